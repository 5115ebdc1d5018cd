// SPDX-License-Identifier: Apache-2.0
//
// Rotary position embedding of x [B, H, N, D]: pairs of each head's elements turn by position * frequency.
//
// Bytes: x and y once; a position's angles once for all heads.
#include "cpu/cpu.h"
#include "cpu/rope_plan.h"

static kf_status rope_plan(kf_op *op) {
    const kf_rope_problem *p = &op->problem.rope;
    kf_rope_plan_fill(op, &p->options.rope, p->options.B * p->options.N, p->options.H * p->options.D);
    return KF_OK;
}

static void rope_position(const kf_op *op, int64_t b, int64_t n) {
    const kf_rope_problem *p = &op->problem.rope;
    const kf_rope_params *rope = &p->options.rope;
    const struct kf_rope_plan *plan = kf_rope_plan_of(op);
    const kf_row_kernels *k = op->context->cpu->rows;
    float cosine[KF_ROPE_PAIRS], sine[KF_ROPE_PAIRS];
    double position = kf_present(&p->positions) ? (double)kf_view_int2(&p->positions, b, n)
                                                : (double)p->options.position_offset + (double)n;
    k->rope_angles(plan->frequency, rope->dims / 2, plan->magnitude, position, cosine, sine);
    for (int64_t h = 0; h < p->options.H; h++)
        k->rope(kf_head_row(&p->y, b, h, n), p->y.type, kf_head_row(&p->x, b, h, n), p->x.type, p->options.D,
                rope->dims, rope->pairing, cosine, sine);
}

static void rope_run(const kf_op *op, const kf_worker *worker, int32_t phase, int64_t first, int64_t count) {
    const kf_rope_problem *p = &op->problem.rope;
    int64_t step = kf_rope_plan_of(op)->positions_per_item, N = p->options.N, all = p->options.B * N;
    int64_t end = (first + count) * step < all ? (first + count) * step : all;
    (void)worker, (void)phase;
    for (int64_t i = first * step; i < end; i++) rope_position(op, i / N, i % N);
}

const kf_backend_op kf_cpu_rope = {.plan = rope_plan, .run_items = rope_run};
