// SPDX-License-Identifier: Apache-2.0
//
// Attention where a KV head has few rows (decode): an item reads each key and value of its range once, from where they lie,
// for all rows of the KV head. It is bound by the rate of memory: 2 rows (D + Dv) operations for (D + Dv) elements.
//
//     scratch   q [16][D] | o [16][Dv] fp32 | s, p [16][block]
#include "cpu/attention.h"

#include <string.h>

// Keys of a block: its rows of k and of v, 8 to 16 KB each, stay in L1 for all rows and columns.
enum { FEW_BLOCK = 32 };
_Static_assert(KF_KEY_BLOCK % FEW_BLOCK == 0, "blocks lie within splits");

typedef struct few_scratch {
    float *q;
    void *q_half; // q itself in fp32
    float *o, *s;
    void *p; // s itself in fp32
} few_scratch;

static few_scratch lay_out(char *base, const kf_attention_kernels *kernels, int64_t D, int64_t Dv) {
    int64_t width = kf_padded(Dv, kernels->lanes);
    few_scratch t;
    char *at = base;
    t.q = (float *)at, at += KF_FEW_ROWS * D * 4;
    t.q_half = at, at += KF_FEW_ROWS * D * 4;
    t.o = (float *)at, at += KF_FEW_ROWS * width * 4;
    t.s = (float *)at, at += KF_FEW_ROWS * KF_SCORE_STRIDE * 4;
    t.p = at;
    return t;
}

size_t kf_attention_few_scratch(const kf_attention_kernels *kernels, int64_t D, int64_t Dv) {
    int64_t width = kf_padded(Dv, kernels->lanes);
    return (size_t)(KF_FEW_ROWS * 4 * (2 * D + width + 2 * KF_SCORE_STRIDE));
}

// One set of kernels where q, k and v are bf16; else those of k's type for scores and of v's for the rest: k may have been
// rotated, which makes it fp32.
static const kf_few_kernels *choose(const kf_attention_call *call, const kf_view *view) {
    bool bf16 = kf_attention_all_bf16(call->problem) && call->kernels->few_bf16;
    return bf16 ? call->kernels->few_bf16 : call->kernels->few[view->type];
}

// Rows of the item against keys k0 .. k1 - 1 of one block.
static void fold_block(const kf_attention_call *call, const kf_attention_item *item, const kf_row_view *views,
                       int32_t rows, const few_scratch *t, int64_t k0, int64_t k1, float *m, float *d) {
    const struct kf_attention_options *options = &call->problem->options;
    const kf_view *k = &call->k, *v = &call->problem->v;
    const kf_few_kernels *few = choose(call, v);
    int64_t n = k1 - k0, ahead = item->keys.hi - FEW_KEYS_AHEAD - k0, padded = kf_padded(n, call->kernels->lanes);
    float alpha[KF_FEW_ROWS] = {0};
    uint8_t live[KF_FEW_ROWS * KF_KEY_BLOCK];

    choose(call, k)->scores(t->q_half, rows, kf_at(k, item->b, item->kv_head, k0), k->stride[2] * kf_type_size(k->type),
                            n, options->D, ahead, t->s);
    bool partial = kf_attention_mask_rows(call, item, views, rows, k0, 0, n, t->s);
    for (int32_t r = 0; r < rows; r++)
        for (int64_t j = n; j < padded; j++) t->s[r * KF_SCORE_STRIDE + j] = -INFINITY;
    bool careful = partial && !kf_attention_values_finite(call, item, k0, k1);
    if (careful) kf_attention_find_live(t->s, rows, 0, n, live);
    few->softmax(t->s, t->p, rows, 0, padded, kf_attention_factor(call->problem), m, d, alpha);
    if (careful)
        kf_attention_careful_values(call, item, t->p, few->element_bytes, live, rows, k0, 0, n, alpha, t->o);
    else
        few->values(t->p, rows, kf_at(v, item->b, item->kv_head, k0), v->stride[2] * kf_type_size(v->type), n,
                    options->Dv, ahead, alpha, t->o);
}

void kf_attention_run_few(const kf_attention_call *call, const kf_attention_item *item, char *scratch) {
    const struct kf_attention_options *options = &call->problem->options;
    bool half = choose(call, &call->problem->v)->element_bytes == 2;
    few_scratch t = lay_out(scratch, call->kernels, options->D, options->Dv);
    int32_t rows = (int32_t)(item->row1 - item->row0);
    int64_t width = kf_padded(options->Dv, call->kernels->lanes);
    kf_row_view views[KF_FEW_ROWS];
    float m[KF_FEW_ROWS], d[KF_FEW_ROWS];

    kf_attention_view_rows(call, item, item->row0, rows, views);
    for (int32_t r = 0; r < rows; r++) {
        kf_attention_load_query(call, item, &views[r], t.q + r * options->D);
        m[r] = -INFINITY;
        d[r] = 0.0f;
    }
    memset(t.o, 0, (size_t)(rows * width) * sizeof *t.o);
    if (half)
        for (int32_t r = 0; r < rows; r++)
            call->kernels->store_row(t.q + r * options->D, options->D, 1.0f, KF_TYPE_BF16,
                                     (char *)t.q_half + r * options->D * 2);
    else
        t.q_half = t.q, t.p = t.s;

    for (int64_t block = item->keys.lo / FEW_BLOCK * FEW_BLOCK; block < item->keys.hi; block += FEW_BLOCK)
        fold_block(call, item, views, rows, &t, kf_max64(block, item->keys.lo),
                   kf_min64(block + FEW_BLOCK, item->keys.hi), m, d);
    for (int32_t r = 0; r < rows; r++)
        kf_attention_finish_row(call, item, item->row0 + r, (kf_state){m[r], d[r]}, t.o + r * width);
}
