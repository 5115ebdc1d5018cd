// SPDX-License-Identifier: Apache-2.0
//
// Appends N rows to a KV cache: cache[b, h, slot[b] + n] = new[b, h, n]; k is rotated on the way, both are converted to
// the cache's dtype.
//
// Bytes: k and v once, as many rows of the caches once; a position's angles once for all heads.
#include "cpu/cpu.h"
#include "cpu/rope_plan.h"

static kf_status append_plan(kf_op *op) {
    const kf_kv_append_problem *p = &op->problem.kv_append;
    kf_rope_plan_fill(op, &p->options.rope, p->options.B * p->options.N, p->options.H * (p->options.D + p->options.Dv));
    return KF_OK;
}

static int64_t slot_of(const kf_kv_append_problem *p, int64_t b) {
    return kf_present(&p->slots) ? kf_view_int(&p->slots, b) : 0;
}

static kf_status append_prepare(const kf_op *op) {
    const kf_kv_append_problem *p = &op->problem.kv_append;
    int64_t last = p->options.capacity - p->options.N;
    for (int64_t b = 0; b < p->options.B; b++) {
        int64_t slot = slot_of(p, b);
        if (slot < 0 || slot > last)
            return kf_fail(KF_INVALID_ARGUMENT,
                           "kv_append: slots[%lld] is %lld; %lld rows fit a cache of capacity %lld from slot 0 to %lld",
                           (long long)b, (long long)slot, (long long)p->options.N, (long long)p->options.capacity,
                           (long long)last);
    }
    return KF_OK;
}

static void append_position(const kf_op *op, int64_t b, int64_t n) {
    const kf_kv_append_problem *p = &op->problem.kv_append;
    const kf_rope_params *rope = &p->options.rope;
    const struct kf_rope_plan *plan = kf_rope_plan_of(op);
    const kf_row_kernels *k = op->context->cpu->rows;
    float cosine[KF_ROPE_PAIRS], sine[KF_ROPE_PAIRS];
    int64_t slot = slot_of(p, b) + n;
    if (rope->pairing != KF_ROPE_OFF) {
        double position = kf_present(&p->positions) ? (double)kf_view_int2(&p->positions, b, n) : (double)slot;
        k->rope_angles(plan->frequency, rope->dims / 2, plan->magnitude, position, cosine, sine);
    }
    for (int64_t h = 0; h < p->options.H; h++) {
        const char *key = kf_head_row(&p->k, b, h, n);
        char *key_slot = kf_head_row(&p->k_cache, b, h, slot);
        if (rope->pairing == KF_ROPE_OFF)
            k->convert(key_slot, p->k_cache.type, key, p->k.type, p->options.D);
        else
            k->rope(key_slot, p->k_cache.type, key, p->k.type, p->options.D, rope->dims, rope->pairing, cosine, sine);
        k->convert(kf_head_row(&p->v_cache, b, h, slot), p->v_cache.type, kf_head_row(&p->v, b, h, n), p->v.type,
                   p->options.Dv);
    }
}

static void append_run(const kf_op *op, const kf_worker *worker, int32_t phase, int64_t first, int64_t count) {
    const kf_kv_append_problem *p = &op->problem.kv_append;
    int64_t step = kf_rope_plan_of(op)->positions_per_item, N = p->options.N, all = p->options.B * N;
    int64_t end = (first + count) * step < all ? (first + count) * step : all;
    (void)worker, (void)phase;
    for (int64_t i = first * step; i < end; i++) append_position(op, i / N, i % N);
}

const kf_backend_op kf_cpu_kv_append = {.plan = append_plan, .prepare = append_prepare, .run_items = append_run};
