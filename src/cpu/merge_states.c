// SPDX-License-Identifier: Apache-2.0
//
// Merge of attention states: L = ln sum_s exp(lse_s), o = sum_s exp(lse_s - L) o_s.
//
// An item is some rows; a row's weights are formed in scratch, then one pass goes over the parts. Bytes: every part
// once and the result once; a multiplication and an addition per element of a part.
#include <math.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/rows.h"

static int64_t rows_per_item(const kf_merge_states_problem *p) {
    return kf_rows_per_item((p->options.parts + 1) * p->options.n);
}

static kf_status merge_plan(kf_op *op) {
    const kf_merge_states_problem *p = &op->problem.merge_states;
    op->plan.phases = 1;
    op->plan.items[0] = kf_ceil_div(p->options.rows, rows_per_item(p));
    op->plan.scratch_bytes = (size_t)p->options.parts * sizeof(float);
    return KF_OK;
}

// Weights of a row's parts: exp(lse - L), and -1 for a part without keys. Returns L.
static float weights_of(const kf_row_kernels *k, const char *lse, int64_t stride, int64_t parts, float *weight) {
    float m = -INFINITY, d = 0.0f;
    for (int64_t s = 0; s < parts; s++) {
        memcpy(&weight[s], lse + s * stride, sizeof *weight);
        if (weight[s] > m) m = weight[s];
    }
    // Nothing but empty parts and NaN: then any finite m will do, and NaN goes through.
    float shift = m == -INFINITY ? 0.0f : m;
    k->exp_minus(weight, shift, parts);
    for (int64_t s = 0; s < parts; s++) d += weight[s];
    float inverse = 1.0f / d;
    for (int64_t s = 0; s < parts; s++) {
        float part;
        memcpy(&part, lse + s * stride, sizeof part);
        weight[s] = part == -INFINITY ? -1.0f : weight[s] * inverse;
    }
    return d == 0.0f ? -INFINITY : (float)((double)m + log((double)d));
}

static void merge_row(const kf_merge_states_problem *p, const kf_row_kernels *k, int64_t row, float *weight) {
    int64_t parts = p->options.parts;
    const char *first_lse = parts ? kf_view_row(&p->lse_parts, 0, row) : NULL;
    const char *first_part = parts ? kf_view_row(&p->o_parts, 1, row) : NULL;
    int64_t part_bytes = p->o_parts.stride[0] * kf_type_size(p->o_parts.type);
    float lse = weights_of(k, first_lse, p->lse_parts.stride[0] * (int64_t)sizeof(float), parts, weight);
    k->weighted_sum(kf_view_row(&p->o, 1, row), p->o.type, first_part, part_bytes, p->o_parts.type, weight, parts,
                    p->options.n);
    if (kf_present(&p->lse)) memcpy(kf_view_row(&p->lse, 0, row), &lse, sizeof lse);
}

static void merge_run(const kf_op *op, const kf_worker *worker, int32_t phase, int64_t first, int64_t count) {
    const kf_merge_states_problem *p = &op->problem.merge_states;
    int64_t step = rows_per_item(p), end = (first + count) * step;
    (void)phase;
    for (int64_t row = first * step; row < end && row < p->options.rows; row++)
        merge_row(p, op->context->cpu->rows, row, (float *)worker->scratch);
}

const kf_backend_op kf_cpu_merge_states = {.plan = merge_plan, .run_items = merge_run};
