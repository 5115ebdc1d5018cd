// SPDX-License-Identifier: Apache-2.0
//
// What both paths of attention do with the rows of an item: which keys a row sees, logits from scores, the careful sum
// over values that are not all finite, and a row's end.
//
//     logit = cap(scale s) - slope |p - j| + bias          hidden: -inf, by selection
//
// The cost of a mask that is only an interval is the stores of -inf outside it; everything else here is touched once a
// row and key block at most.
#include "cpu/attention.h"

#include <string.h>

#include "math/half.h"

bool kf_attention_all_bf16(const kf_attention_problem *problem) {
    return problem->q.type == KF_TYPE_BF16 && problem->k.type == KF_TYPE_BF16 && !problem->options.rope_k;
}

bool kf_attention_has_logits(const kf_attention_problem *problem) {
    return problem->options.softcap > 0.0f || kf_present(&problem->alibi_slopes) || kf_present(&problem->bias) ||
           kf_present(&problem->mask);
}

float kf_attention_factor(const kf_attention_problem *problem) {
    if (kf_attention_has_logits(problem)) return KF_LOG2E;
    float scale = problem->options.scale;
    return (scale < 0.0f ? -scale : scale) * KF_LOG2E;
}

void kf_attention_view_rows(const kf_attention_call *call, const kf_attention_item *item, int64_t row0, int32_t rows,
                            kf_row_view *views) {
    const kf_attention_problem *problem = call->problem;
    int64_t heads = call->plan->heads, offset = item->mask.length - problem->options.Nq;
    bool given = kf_present(&problem->positions);
    for (int32_t r = 0; r < rows; r++) {
        kf_row_view *view = &views[r];
        view->query = (row0 + r) / heads;
        view->head = item->kv_head * heads + (row0 + r) % heads;
        view->position = given ? kf_view_int2(&problem->positions, item->b, view->query) : view->query + offset;
        view->keys = kf_mask_row(&item->mask, view->position);
    }
}

void kf_attention_load_query(const kf_attention_call *call, const kf_attention_item *item, const kf_row_view *view,
                             float *q) {
    // The maximum of c s is the maximum of s only for c > 0.
    bool turn = call->problem->options.scale < 0.0f && !kf_attention_has_logits(call->problem);
    call->kernels->load_row(kf_at(&call->q, item->b, view->head, view->query), call->q.type, call->problem->options.D,
                            turn ? -1.0f : 1.0f, q);
}

// Pointers and numbers for the logits of one row, from key k0 on.
static kf_logit_row logit_row(const kf_attention_problem *problem, int64_t b, const kf_row_view *view, int64_t k0) {
    kf_logit_row row = {.scale = problem->options.scale, .softcap = problem->options.softcap};
    if (kf_present(&problem->alibi_slopes)) {
        const kf_view *slopes = &problem->alibi_slopes;
        memcpy(&row.slope, slopes->data + view->head * slopes->stride[0] * 4, sizeof row.slope);
        // In integers as long as they can tell positions apart; a difference that overflows is far beyond fp32's.
        row.distance = (float)((double)view->position - (double)k0);
        if (view->position > -(INT64_C(1) << 53) && view->position < INT64_C(1) << 53)
            row.distance = (float)(view->position - k0);
    }
    if (kf_present(&problem->bias)) {
        row.bias = kf_at(&problem->bias, b, view->head, view->query) + k0 * kf_type_size(problem->bias.type);
        row.bias_type = problem->bias.type;
    }
    if (kf_present(&problem->mask)) row.mask = (const uint8_t *)kf_at(&problem->mask, b, view->head, view->query) + k0;
    return row;
}

static void fill_hidden(float *s, int64_t first, int64_t last) {
    for (int64_t j = first; j < last; j++) s[j] = -INFINITY;
}

bool kf_attention_mask_rows(const kf_attention_call *call, const kf_attention_item *item, const kf_row_view *views,
                            int32_t rows, int64_t block, int64_t first, int64_t last, float *s) {
    const kf_attention_problem *problem = call->problem;
    bool logits = kf_attention_has_logits(problem);
    bool partial = kf_present(&problem->bias) || kf_present(&problem->mask);
    int64_t end = kf_min64(last, item->mask.length - block);
    for (int32_t r = 0; r < rows; r++) {
        float *row = s + r * KF_SCORE_STRIDE;
        if (logits) {
            kf_logit_row what = logit_row(problem, item->b, &views[r], block + first);
            call->kernels->logits(row + first, end - first, &what);
        }
        int64_t lo = kf_min64(kf_max64(views[r].keys.lo - block, first), last);
        int64_t hi = kf_min64(kf_max64(views[r].keys.hi - block, lo), last);
        partial |= lo > first || hi < last;
        fill_hidden(row, first, lo);
        fill_hidden(row, hi, last);
    }
    return partial;
}

void kf_attention_find_live(const float *s, int32_t rows, int64_t first, int64_t last, uint8_t *live) {
    for (int32_t r = 0; r < rows; r++)
        for (int64_t j = first; j < last; j++) live[r * KF_KEY_BLOCK + j] = s[r * KF_SCORE_STRIDE + j] != -INFINITY;
}

// All 8 bits of an exponent set: infinity or NaN.
bool kf_attention_values_finite(const kf_attention_call *call, const kf_attention_item *item, int64_t first,
                                int64_t last) {
    const kf_view *v = &call->problem->v;
    int64_t Dv = call->problem->options.Dv;
    float value[KF_MAX_HEAD_DIM];
    uint32_t bad = 0;
    last = kf_min64(last, item->mask.length);
    for (int64_t j = first; j < last; j++) {
        call->kernels->load_row(kf_at(v, item->b, item->kv_head, j), v->type, Dv, 1.0f, value);
        for (int64_t c = 0; c < Dv; c++) bad |= (kf_bits_of_float(value[c]) & 0x7f800000u) == 0x7f800000u;
    }
    return bad == 0;
}

static float read_weight(const void *p, int32_t element_bytes, int64_t i) {
    if (element_bytes == 4) return ((const float *)p)[i];
    return kf_bf16_to_float(((const uint16_t *)p)[i]);
}

void kf_attention_careful_values(const kf_attention_call *call, const kf_attention_item *item, const void *p,
                                 int32_t element_bytes, const uint8_t *live, int32_t rows, int64_t block, int64_t first,
                                 int64_t last, const float *alpha, float *o) {
    const kf_view *v = &call->problem->v;
    int64_t Dv = call->problem->options.Dv, stride = kf_padded(Dv, call->kernels->lanes);
    float value[KF_MAX_HEAD_DIM];
    last = kf_min64(last, item->mask.length - block);
    for (int32_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < Dv; c++) o[r * stride + c] *= alpha[r];
    for (int64_t j = first; j < last; j++) {
        call->kernels->load_row(kf_at(v, item->b, item->kv_head, block + j), v->type, Dv, 1.0f, value);
        for (int32_t r = 0; r < rows; r++) {
            if (!live[r * KF_KEY_BLOCK + j]) continue;
            float weight = read_weight(p, element_bytes, r * KF_SCORE_STRIDE + j);
            call->kernels->add_row(o + r * stride, value, weight, Dv);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------- a row's end

// Where a tile has one live split or none, its item knows the whole answer and the merge has nothing to do.
static bool stands_alone(const kf_attention_item *item) { return item->live1 - item->live0 <= 1; }

static int64_t slot_of(const kf_attention_call *call, const kf_attention_item *item, int64_t split, int64_t row) {
    int64_t pair = item->b * call->problem->options.Hkv + item->kv_head;
    return (split * call->plan->pairs + pair) * call->plan->rows + row;
}

static void write_state(const kf_attention_call *call, const kf_attention_item *item, int64_t row, kf_state state,
                        const float *o) {
    int64_t Dv = call->problem->options.Dv, slot = slot_of(call, item, item->split, row);
    memcpy(call->states + 2 * slot, &state, sizeof state);
    memcpy(call->outputs + Dv * slot, o, (size_t)Dv * sizeof *o);
}

static void write_output(const kf_attention_call *call, const kf_attention_item *item, int64_t row, kf_state state,
                         const float *o) {
    const kf_attention_problem *problem = call->problem;
    int64_t query = row / call->plan->heads, head = item->kv_head * call->plan->heads + row % call->plan->heads;
    float sink, lse;
    bool has_sink = kf_present(&problem->sinks), has_lse = kf_present(&problem->lse);
    if (has_sink) memcpy(&sink, problem->sinks.data + head * problem->sinks.stride[0] * 4, sizeof sink);
    float factor = kf_state_finish(kf_attention_factor(problem), state, has_sink ? &sink : NULL, has_lse ? &lse : NULL);
    char *out = (char *)(uintptr_t)kf_at(&problem->o, item->b, head, query);
    call->kernels->store_row(o, problem->options.Dv, factor, problem->o.type, out);
    if (has_lse) memcpy((char *)(uintptr_t)kf_at(&problem->lse, item->b, head, query), &lse, sizeof lse);
}

void kf_attention_finish_row(const kf_attention_call *call, const kf_attention_item *item, int64_t row, kf_state state,
                             const float *o) {
    if (stands_alone(item))
        write_output(call, item, row, state, o);
    else
        write_state(call, item, row, state, o);
}

void kf_attention_merge_row(const kf_attention_call *call, const kf_attention_item *item, int64_t row) {
    int64_t Dv = call->problem->options.Dv;
    kf_state all = kf_state_empty();
    float o[KF_MAX_HEAD_DIM] = {0};
    // Weights are relative to the largest m of all, so that each o is scaled once.
    for (int64_t s = item->live0; s < item->live1; s++) {
        float m = call->states[2 * slot_of(call, item, s, row)];
        all.m = m > all.m ? m : all.m;
    }
    for (int64_t s = item->live0; s < item->live1; s++) {
        int64_t slot = slot_of(call, item, s, row);
        float w = kf_state_weight(kf_attention_factor(call->problem), call->states[2 * slot], all.m);
        all.d += w * call->states[2 * slot + 1];
        call->kernels->add_row(o, call->outputs + Dv * slot, w, Dv);
    }
    write_output(call, item, row, all, o);
}
