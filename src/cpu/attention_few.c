// SPDX-License-Identifier: Apache-2.0
//
// Attention where a KV head has few rows (decode): an item reads each key and value of its range once, from where they lie,
// for all rows of the KV head. It is bound by the rate of memory: 2 rows (D + Dv) operations for (D + Dv) elements.
//
//     scratch   q [16][D] | o [16][Dv] fp32 | s, p [16][block]
#include "cpu/attention.h"

#include <string.h>

// Keys of a block: its rows of k and of v, 8 to 16 KB each, stay in L1 for all rows and columns.
enum { FEW_BLOCK = 16 };
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

// What the blocks of an item have in common.
typedef struct few_run {
    const kf_attention_call *call;
    const kf_attention_item *item;
    const kf_few_kernels *scores, *values; // of k's type and of v's
    const char *k, *v;                     // the KV head's rows
    int64_t k_stride, v_stride;            // in bytes
    int32_t rows;
    float factor;
    int64_t end;       // of the keys that may be asked for: the next split's are most likely this thread's too
    kf_interval plain; // keys that all rows see and whose scores need a factor alone
    kf_row_view views[KF_FEW_ROWS];
    few_scratch t;
    float m[KF_FEW_ROWS], d[KF_FEW_ROWS], alpha[KF_FEW_ROWS];
} few_run;

static kf_interval plain_keys(const few_run *run) {
    const kf_attention_problem *problem = run->call->problem;
    kf_interval keys = run->item->keys;
    if (kf_attention_has_logits(problem)) return (kf_interval){0, 0};
    for (int32_t r = 0; r < run->rows; r++) keys = kf_intersect(keys, run->views[r].keys);
    return keys;
}

static const char *key_at(const few_run *run, int64_t j) { return run->k + j * run->k_stride; }
static const char *value_at(const few_run *run, int64_t j) { return run->v + j * run->v_stride; }

// Rows of the item against keys k0 .. k1 - 1 of one block.
static void fold_block(few_run *run, int64_t k0, int64_t k1) {
    const struct kf_attention_options *options = &run->call->problem->options;
    const few_scratch *t = &run->t;
    int64_t n = k1 - k0, ahead = run->end - FEW_KEYS_AHEAD - k0;
    int64_t padded = kf_padded(n, run->call->kernels->lanes);
    uint8_t live[KF_FEW_ROWS * KF_KEY_BLOCK];
    bool careful = false;

    run->scores->scores(t->q_half, run->rows, key_at(run, k0), run->k_stride, n, options->D, ahead, t->s);
    if (k0 < run->plain.lo || k1 > run->plain.hi)
        careful = kf_attention_mask_rows(run->call, run->item, run->views, run->rows, k0, 0, n, t->s) &&
                  !kf_attention_values_finite(run->call, run->item, k0, k1);
    for (int32_t r = 0; padded > n && r < run->rows; r++)
        for (int64_t j = n; j < padded; j++) t->s[r * KF_SCORE_STRIDE + j] = -INFINITY;
    if (careful) kf_attention_find_live(t->s, run->rows, 0, n, live);
    run->values->softmax(t->s, t->p, run->rows, 0, padded, run->factor, run->m, run->d, run->alpha);
    if (careful)
        kf_attention_careful_values(run->call, run->item, t->p, run->values->element_bytes, live, run->rows, k0, 0, n,
                                    run->alpha, t->o);
    else
        run->values->values(t->p, run->rows, value_at(run, k0), run->v_stride, n, options->Dv, ahead, run->alpha, t->o);
}

void kf_attention_run_few(const kf_attention_call *call, const kf_attention_item *item, char *scratch) {
    const struct kf_attention_options *options = &call->problem->options;
    const kf_view *k = &call->k, *v = &call->problem->v;
    few_run run = {.call = call,
                   .item = item,
                   .scores = choose(call, k),
                   .values = choose(call, v),
                   .k = kf_at(k, item->b, item->kv_head, 0),
                   .v = kf_at(v, item->b, item->kv_head, 0),
                   .k_stride = k->stride[2] * kf_type_size(k->type),
                   .v_stride = v->stride[2] * kf_type_size(v->type),
                   .rows = (int32_t)(item->row1 - item->row0),
                   .factor = kf_attention_factor(call->problem),
                   .end = kf_min64(item->live1 * call->plan->split, item->mask.length),
                   .t = lay_out(scratch, call->kernels, options->D, options->Dv)};
    few_scratch *t = &run.t;
    int64_t width = kf_padded(options->Dv, call->kernels->lanes);

    kf_attention_view_rows(call, item, item->row0, run.rows, run.views);
    run.plain = plain_keys(&run);
    for (int32_t r = 0; r < run.rows; r++) {
        kf_attention_load_query(call, item, &run.views[r], t->q + r * options->D);
        run.m[r] = -INFINITY;
    }
    memset(t->o, 0, (size_t)(run.rows * width) * sizeof *t->o);
    if (run.values->element_bytes == 2)
        for (int32_t r = 0; r < run.rows; r++)
            call->kernels->store_row(t->q + r * options->D, options->D, 1.0f, KF_TYPE_BF16,
                                     (char *)t->q_half + r * options->D * 2);
    else
        t->q_half = t->q, t->p = t->s;

    for (int64_t block = item->keys.lo / FEW_BLOCK * FEW_BLOCK; block < item->keys.hi; block += FEW_BLOCK)
        fold_block(&run, kf_max64(block, item->keys.lo), kf_min64(block + FEW_BLOCK, item->keys.hi));
    for (int32_t r = 0; r < run.rows; r++)
        kf_attention_finish_row(call, item, item->row0 + r, (kf_state){run.m[r], run.d[r]}, t->o + r * width);
}
