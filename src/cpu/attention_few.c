// SPDX-License-Identifier: Apache-2.0
//
// Attention where a KV head has few rows (decode): an item reads each key and value of its range once, from where they lie,
// for all rows of the KV head. It is bound by the rate of memory: 2 rows (D + Dv) operations for (D + Dv) elements.
//
//     scratch   q [16][D] | o [16][Dv] fp32 | s, p [16][block]
#include "cpu/attention.h"

#include <string.h>

_Static_assert(KF_KEY_BLOCK % KF_FEW_BLOCK_MAX == 0 && 2 * KF_FEW_BLOCK_MAX <= KF_KEY_BLOCK,
               "blocks lie within splits, two beside each other in a row of scores");

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
    int64_t block;     // keys
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

// Keys first .. first + n - 1, and where their scores and weights are.
typedef struct few_block {
    int64_t first, n;
    float *s;
    void *p;
    bool careful; // some row does not see some key, and some value is not finite
} few_block;

static int64_t padded_keys(const few_run *run, const few_block *block) {
    return kf_padded(block->n, run->call->kernels->lanes);
}

// Neighbouring blocks take turns in the two halves of the rows of scores.
static few_block score_block(const few_run *run, int64_t number) {
    enum { HALF = KF_KEY_BLOCK / 2 };
    const int64_t at = number * run->block, half = number % 2 * HALF;
    few_block block = {.first = kf_max64(at, run->item->keys.lo),
                       .s = run->t.s + half,
                       .p = (char *)run->t.p + half * run->values->element_bytes};
    const int64_t last = kf_min64(at + run->block, run->item->keys.hi);
    block.n = last - block.first;
    run->scores->scores(run->t.q_half, run->rows, run->k + block.first * run->k_stride, run->k_stride, block.n,
                        run->call->problem->options.D, run->end - FEW_KEYS_AHEAD - block.first, block.s);
    if (block.first < run->plain.lo || last > run->plain.hi)
        block.careful =
            kf_attention_mask_rows(run->call, run->item, run->views, run->rows, block.first, 0, block.n, block.s) &&
            !kf_attention_values_finite(run->call, run->item, block.first, last);
    const int64_t padded = padded_keys(run, &block);
    for (int32_t r = 0; padded > block.n && r < run->rows; r++)
        for (int64_t j = block.n; j < padded; j++) block.s[r * KF_SCORE_STRIDE + j] = -INFINITY;
    return block;
}

static void add_values(const few_run *run, const few_block *block, const uint8_t *live) {
    if (block->careful)
        kf_attention_careful_values(run->call, run->item, block->p, run->values->element_bytes, live, run->rows,
                                    block->first, 0, block->n, run->alpha, run->t.o);
    else
        run->values->values(block->p, run->rows, run->v + block->first * run->v_stride, run->v_stride, block->n,
                            run->call->problem->options.Dv, run->end - FEW_KEYS_AHEAD - block->first, run->alpha,
                            run->t.o);
}

// The scores of the next block stand between a block's weights and its values: weights are a long chain of few instructions,
// which run while the processor is already at those products.
static void fold_blocks(few_run *run) {
    uint8_t live[KF_FEW_ROWS * KF_KEY_BLOCK];
    const int64_t end = (run->item->keys.hi + run->block - 1) / run->block;
    int64_t number = run->item->keys.lo / run->block;
    few_block block = score_block(run, number);
    while (++number <= end) {
        const few_block now = block;
        if (now.careful) kf_attention_find_live(now.s, run->rows, 0, now.n, live);
        run->values->softmax(now.s, now.p, run->rows, padded_keys(run, &now), run->factor, run->m, run->d, run->alpha);
        if (number < end) block = score_block(run, number);
        add_values(run, &now, live);
    }
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
    bool large = options->D * kf_type_size(k->type) * KF_FEW_BLOCK_MAX <= run.scores->block_bytes;

    run.block = large ? KF_FEW_BLOCK_MAX : KF_FEW_BLOCK_MIN;
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

    if (item->keys.lo < item->keys.hi) fold_blocks(&run);
    for (int32_t r = 0; r < run.rows; r++)
        kf_attention_finish_row(call, item, item->row0 + r, (kf_state){run.m[r], run.d[r]}, t->o + r * width);
}
