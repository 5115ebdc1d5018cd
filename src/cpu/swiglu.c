// SPDX-License-Identifier: Apache-2.0
//
// SwiGLU: y = gate / (1 + exp(-gate)) * up.
//
// An item is some rows, or a block of a long row. Bytes: gate, up and y once each; an exponential and a division per
// element.
#include "cpu/cpu.h"
#include "cpu/rows.h"

static int64_t blocks_per_row(int64_t n) { return n > KF_ROW_ITEM ? kf_ceil_div(n, KF_ROW_ITEM) : 1; }

static kf_status swiglu_plan(kf_op *op) {
    const kf_swiglu_problem *p = &op->problem.swiglu;
    int64_t rows = p->options.rows, n = p->options.n;
    op->plan.phases = 1;
    op->plan.streams = 1;
    op->plan.items[0] = n > KF_ROW_ITEM ? rows * blocks_per_row(n) : kf_ceil_div(rows, kf_rows_per_item(n));
    op->plan.word[0] = kf_rows_stream(&p->y);
    return KF_OK;
}

// Elements first .. first + n - 1 of a row.
static void part_of_row(const kf_op *op, int64_t row, int64_t first, int64_t n) {
    const kf_swiglu_problem *p = &op->problem.swiglu;
    int64_t in = first * kf_type_size(p->gate.type), out = first * kf_type_size(p->y.type);
    op->context->cpu->rows->swiglu(kf_view_row(&p->y, 1, row) + out, p->y.type, kf_view_row(&p->gate, 1, row) + in,
                                   kf_view_row(&p->up, 1, row) + in, p->gate.type, n, op->plan.word[0]);
}

static void swiglu_run(const kf_op *op, const kf_worker *worker, int32_t phase, int64_t first, int64_t count) {
    const kf_swiglu_problem *p = &op->problem.swiglu;
    int64_t n = p->options.n, blocks = blocks_per_row(n), step = kf_rows_per_item(n);
    (void)worker, (void)phase;
    for (int64_t i = first; blocks > 1 && i < first + count; i++) {
        int64_t at = i % blocks * KF_ROW_ITEM;
        part_of_row(op, i / blocks, at, n - at < KF_ROW_ITEM ? n - at : KF_ROW_ITEM);
    }
    for (int64_t row = first * step; blocks == 1 && row < (first + count) * step && row < p->options.rows; row++)
        part_of_row(op, row, 0, n);
    if (op->plan.word[0]) op->context->cpu->rows->fence();
}

const kf_backend_op kf_cpu_swiglu = {.plan = swiglu_plan, .run_items = swiglu_run};
