// SPDX-License-Identifier: Apache-2.0
//
// RMSNorm with or without the residual's addition: s = x + residual, y = s rsqrt(mean s^2 + eps) (offset + weight).
//
// An item is some rows; scratch holds a row of s in fp32, where it is needed. Bytes: x, residual, sum and y once each
// (their second reading, and the weights, come from the cache).
#include "cpu/cpu.h"
#include "cpu/rows.h"

static kf_status rmsnorm_plan(kf_op *op) {
    const kf_rmsnorm_problem *p = &op->problem.rmsnorm;
    op->plan.phases = 1;
    op->plan.streams = 1;
    op->plan.items[0] = kf_ceil_div(p->options.rows, kf_rows_per_item(p->options.n));
    op->plan.scratch_bytes = (size_t)p->options.n * sizeof(float);
    op->plan.word[0] = kf_rows_stream(&p->y);
    return KF_OK;
}

static char *row_or_null(const kf_view *view, int64_t row) {
    return kf_present(view) ? kf_view_row(view, 1, row) : NULL;
}

static void rmsnorm_run(const kf_op *op, const kf_worker *worker, int32_t phase, int64_t first, int64_t count) {
    const kf_rmsnorm_problem *p = &op->problem.rmsnorm;
    const kf_row_kernels *k = op->context->cpu->rows;
    int64_t step = kf_rows_per_item(p->options.n), end = (first + count) * step;
    kf_rmsnorm_row r = {.weight = p->weight.data,
                        .x_type = p->x.type,
                        .residual_type = p->residual.type,
                        .weight_type = p->weight.type,
                        .y_type = p->y.type,
                        .sum_type = p->sum.type,
                        .cast = p->options.cast,
                        .eps = p->options.eps,
                        .weight_offset = p->options.weight_offset,
                        .n = p->options.n,
                        .s = (float *)worker->scratch,
                        .stream = op->plan.word[0]};
    (void)phase;
    for (int64_t row = first * step; row < end && row < p->options.rows; row++) {
        r.x = kf_view_row(&p->x, 1, row);
        r.y = kf_view_row(&p->y, 1, row);
        r.residual = row_or_null(&p->residual, row);
        r.sum = row_or_null(&p->sum, row);
        k->rmsnorm(&r);
    }
    if (r.stream) k->fence();
}

const kf_backend_op kf_cpu_rmsnorm = {.plan = rmsnorm_plan, .run_items = rmsnorm_run};
