// SPDX-License-Identifier: Apache-2.0
//
// What rope and kv_append plan alike: the table of frequencies, and items of some positions each. An item covers all
// heads of its positions, so that cosines and sines are computed once for them.
#ifndef KF_CPU_ROPE_PLAN_H
#define KF_CPU_ROPE_PLAN_H

#include "cpu/rows.h"
#include "math/rope.h"

struct __attribute__((may_alias)) kf_rope_plan {
    double frequency[KF_ROPE_PAIRS];
    double magnitude;
    int64_t positions_per_item; // counted over B and N
};
kf_static_assert(sizeof(struct kf_rope_plan) <= sizeof((kf_plan *)0)->word, "the plan has room");

static inline const struct kf_rope_plan *kf_rope_plan_of(const kf_op *op) {
    return (const struct kf_rope_plan *)op->plan.word;
}

// `positions` of `elements` each, over all heads. rope->pairing may be OFF.
static inline void kf_rope_plan_fill(kf_op *op, const kf_rope_params *rope, int64_t positions, int64_t elements) {
    struct kf_rope_plan *plan = (struct kf_rope_plan *)op->plan.word;
    if (rope->pairing != KF_ROPE_OFF) plan->magnitude = kf_rope_table(rope, plan->frequency);
    plan->positions_per_item = kf_rows_per_item(elements);
    op->plan.phases = 1;
    op->plan.items[0] = kf_ceil_div(positions, plan->positions_per_item);
}

// Address of (b, h, n) in a [B, H, N, D] view.
static inline char *kf_head_row(const kf_view *view, int64_t b, int64_t h, int64_t n) {
    return view->data + (b * view->stride[0] + h * view->stride[1] + n * view->stride[2]) * kf_type_size(view->type);
}

#endif
