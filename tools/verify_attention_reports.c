// SPDX-License-Identifier: Apache-2.0
//
// The cases of attention that bring their own data: the kinds of bug that were reported against other libraries, each named after its
// kind, and values that are hostile. An edit changes the data after they were filled. Adding a case is adding a row.
#include "verify_attention.h"

#include <math.h>

#define COUNT(table) ((int)(sizeof(table) / sizeof *(table)))
#define CAUSAL KF_ATTENTION_CAUSAL
#define LEFT KF_ATTENTION_WINDOW_LEFT
#define ROPE (KF_ATTENTION_ROPE_Q | KF_ATTENTION_ROPE_K)

// --------------------------------------------------------------------------------------------------------------- edits

static void set_lengths(attention_tensors *t, const int64_t *lengths) {
    for (int64_t b = 0; b < t->q->shape[0]; b++) verify_set(t->key_lengths, &b, (double)lengths[b]);
}

// Sets row j of k or v, in every sequence and head.
static void set_keys(kf_tensor *tensor, int64_t j, double value) {
    const int64_t Nk = tensor->shape[2];
    for (int64_t h = 0; h < ref_leading(tensor, 2); h++) verify_set_row(tensor, h * Nk + j, value);
}

// Adds `offset` + `slope` * j to element 0 of key j, and makes element 0 of every query 1: scores that rise or fall from tile to tile.
static void tilt_scores(attention_tensors *t, double offset, double slope) {
    int64_t index[4];
    const int64_t Nk = t->k->shape[2], D = t->k->shape[3];
    for (int64_t r = 0; r < ref_leading(t->k, 1); r++) {
        ref_unravel(t->k, r * D, index);
        verify_set(t->k, index, offset + slope * (double)(r % Nk));
    }
    for (int64_t r = 0; r < ref_leading(t->q, 1); r++) {
        ref_unravel(t->q, r * D, index);
        verify_set(t->q, index, 1);
    }
}

static void rising(attention_tensors *t) { tilt_scores(t, -40, 0.5); }
static void falling(attention_tensors *t) { tilt_scores(t, 40, -0.5); }
static void last_key_wins(attention_tensors *t) {
    tilt_scores(t, 0, 0);
    set_keys(t->k, t->k->shape[2] - 1, 20);
    verify_fill_value(t->q, 1);
}

static void all_equal(attention_tensors *t) { verify_fill_value(t->k, 0.25); }
static void all_zero(attention_tensors *t) { verify_fill_value(t->q, 0); }

// Raw products around 64 * -80 * D, which fp32 sums exactly whatever the order: q = 64, k = -80 with one element off by up to 1/2.
static void below_5e4(attention_tensors *t) {
    int64_t index[4];
    verify_fill_value(t->q, 64);
    verify_fill_value(t->k, -80);
    for (int64_t r = 0; r < ref_leading(t->k, 1); r++) {
        ref_unravel(t->k, r * t->k->shape[3], index);
        verify_set(t->k, index, -80 + 0.5 * (double)verify_random_between(&t->pool->random, -1, 1));
    }
}

static void minus_524288(attention_tensors *t) {
    verify_fill_value(t->q, -64);
    verify_fill_value(t->k, 64);
}

static void lengths_0305(attention_tensors *t) {
    set_lengths(t, (const int64_t[]){0, 3, 0, 5});
    for (int64_t j = 5; j < t->k->shape[2]; j++) set_keys(t->v, j, NAN);
}

static void lengths_13(attention_tensors *t) {
    set_lengths(t, (const int64_t[]){13, 13});
    for (int64_t j = 13; j < t->k->shape[2]; j++) set_keys(t->k, j, NAN), set_keys(t->v, j, NAN);
}

static void inf_beyond_13(attention_tensors *t) {
    set_lengths(t, (const int64_t[]){13, 13});
    for (int64_t j = 13; j < t->k->shape[2]; j++) set_keys(t->v, j, INFINITY);
}

static void lengths_one(attention_tensors *t) { set_lengths(t, (const int64_t[]){1, 2, 3, 4}); }
static void lengths_zero(attention_tensors *t) { set_lengths(t, (const int64_t[]){0, 0, 0, 0}); }

// Rows of the bias: all -3.4e38 (row 0), -3.4e38 on every second key (row 1), ordinary ones after.
static void bias_of_minus_max(attention_tensors *t) {
    for (int64_t e = 0; e < ref_elements(t->bias); e++) {
        int64_t index[4];
        ref_unravel(t->bias, e, index);
        const bool low = index[2] == 0 || (index[2] == 1 && index[3] % 2);
        verify_set(t->bias, index, low ? -3.4028234663852886e38 : 0);
    }
}

static void bias_of_1e30(attention_tensors *t) {
    verify_fill_value(t->bias, -1e30);
    int64_t index[4] = {0, 0, 0, 7};
    for (index[2] = 0; index[2] < t->bias->shape[2]; index[2]++) verify_set(t->bias, index, 1e30);
}

// Every query times 2^-e; of three keys one times 2^e, one 2^-e, one as it is: far from 1, with scores like any other's.
static void scale_by(attention_tensors *t, int exponent) {
    int64_t index[4];
    for (int64_t e = 0; e < ref_elements(t->q); e++) {
        ref_unravel(t->q, e, index);
        verify_set(t->q, index, ldexp(ref_at(t->q, index), -exponent));
    }
    for (int64_t e = 0; e < ref_elements(t->k); e++) {
        ref_unravel(t->k, e, index);
        const int64_t kind = index[2] % 3;
        verify_set(t->k, index, ldexp(ref_at(t->k, index), kind == 0 ? exponent : kind == 1 ? -exponent : 0));
    }
}

// As far as the type goes.
static int far_from_one(const attention_tensors *t) { return ref_precision(t->k->dtype) == 11 ? 5 : 40; }
static void large_keys(attention_tensors *t) { scale_by(t, far_from_one(t)); }
static void small_keys(attention_tensors *t) {
    int64_t index[4];
    for (int64_t e = 0; e < ref_elements(t->k); e++) {
        ref_unravel(t->k, e, index);
        if (index[2] % 2) verify_set(t->k, index, ldexp(ref_at(t->k, index), -far_from_one(t)));
    }
    for (int64_t e = 0; e < ref_elements(t->q); e++) {
        ref_unravel(t->q, e, index);
        verify_set(t->q, index, ldexp(ref_at(t->q, index), index[2] % 2 ? -far_from_one(t) : 0));
    }
}

static void mask_all_true(attention_tensors *t) { verify_fill_value(t->mask, 1); }
static void mask_all_false(attention_tensors *t) { verify_fill_value(t->mask, 0); }
static void mask_first_tiles(attention_tensors *t) {
    for (int64_t e = 0; e < ref_elements(t->mask); e++) {
        int64_t index[4];
        ref_unravel(t->mask, e, index);
        verify_set(t->mask, index, index[3] >= 300);
    }
}

static void sinks_high(attention_tensors *t) { verify_fill_value(t->sinks, 60); }
static void sinks_low(attention_tensors *t) { verify_fill_value(t->sinks, -1e4); }
static void sinks_none(attention_tensors *t) { verify_fill_value(t->sinks, -INFINITY); }

// Values that rows of the same tile see and do not see.
static void nan_v_in_the_middle(attention_tensors *t) { set_keys(t->v, t->v->shape[2] / 2, NAN); }
static void inf_v_in_the_middle(attention_tensors *t) { set_keys(t->v, t->v->shape[2] / 2, -INFINITY); }
static void nan_k_in_the_middle(attention_tensors *t) { set_keys(t->k, t->k->shape[2] / 2, NAN); }
static void nan_k_at_the_end(attention_tensors *t) { set_keys(t->k, t->k->shape[2] - 1, NAN); }
static void one_nan_in_v(attention_tensors *t) {
    const int64_t index[4] = {0, 0, t->v->shape[2] / 3, 5};
    verify_set(t->v, index, NAN);
}
static void one_inf_in_k(attention_tensors *t) {
    const int64_t index[4] = {0, 0, t->k->shape[2] / 3, 5};
    verify_set(t->k, index, INFINITY);
}
static void nan_q_row(attention_tensors *t) {
    const int64_t index[4] = {0, 1, t->q->shape[2] / 2, 3};
    verify_set(t->q, index, NAN);
}
static void nan_bias(attention_tensors *t) {
    const int64_t index[4] = {0, 0, 0, 4};
    verify_set(t->bias, index, NAN);
}

static void large_values(attention_tensors *t) { verify_fill_uniform(t->pool, t->v, 30000, 60000); }
static void tiny_values(attention_tensors *t) { verify_fill_normal(t->pool, t->v, 1e-5); }
static void large_scores(attention_tensors *t) { verify_fill_normal(t->pool, t->q, 30); }

// The last two strides change places: [.., Dv, Nk] in memory. Honoured or refused, never ignored.
static void transpose_v(attention_tensors *t) {
    int64_t *strides = (int64_t *)(uintptr_t)t->v->strides;
    strides[2] = 1, strides[3] = t->v->shape[2];
}

// -------------------------------------------------------------------------------------------------------------- reports

// Named after the kinds of bug that were reported against other libraries.
static const attention_case REPORTS[] = {
    {.name = "rope-large-keys",
     .Nq = 70,
     .Nk = 200,
     .D = 64,
     .flags = CAUSAL | ROPE,
     .rope = {.pairing = KF_ROPE_NEOX},
     .edit = large_keys},
    {.name = "rope-small-keys",
     .Nq = 70,
     .Nk = 200,
     .D = 128,
     .flags = CAUSAL | ROPE,
     .rope = {.pairing = KF_ROPE_GPTJ, .dims = 64},
     .edit = small_keys},
    {.name = "rope-small-keys-whole", // rows of which all turn, more KV heads than a block of CUDA's rotation has
     .H = 20,
     .Hkv = 10,
     .Nq = 150,
     .Nk = 301,
     .D = 128,
     .flags = CAUSAL | ROPE,
     .rope = {.pairing = KF_ROPE_NEOX},
     .edit = small_keys},
    {.name = "rope-small-keys-pairs",
     .Nq = 70,
     .Nk = 203,
     .D = 64,
     .flags = CAUSAL | ROPE,
     .rope = {.pairing = KF_ROPE_GPTJ},
     .edit = small_keys},
    {.name = "rope-large-keys-softcap",
     .Nq = 40,
     .Nk = 130,
     .D = 64,
     .flags = ROPE,
     .softcap = 20,
     .rope = {.pairing = KF_ROPE_NEOX, .scaling = KF_ROPE_SCALING_YARN, .factor = 16, .original_context = 4096},
     .edit = large_keys},
    {.name = "all-logits-below-5e4", .H = 16, .Hkv = 1, .Nq = 3, .Nk = 64, .D = 128, .edit = below_5e4, .looser = 1000},
    {.name = "raw-logit-minus-524288", .Nq = 1, .Nk = 1, .D = 128, .edit = minus_524288},
    {.name = "causal-more-queries-than-keys", .Nq = 40, .Nk = 9, .flags = CAUSAL},
    {.name = "masked-rows-are-written", .Nq = 20, .Nk = 60, .with = MASK, .edit = mask_all_false},
    {.name = "bias-minus-3.4e38", .B = 1, .Nq = 6, .Nk = 70, .with = BIAS, .edit = bias_of_minus_max},
    {.name = "causal-q3-k128", .Nq = 3, .Nk = 128, .flags = CAUSAL},
    {.name = "causal-q2-k6", .Nq = 2, .Nk = 6, .flags = CAUSAL},
    {.name = "lengths-0-3-0-5", .B = 4, .H = 9, .Hkv = 3, .Nq = 1, .Nk = 8, .with = LENGTHS, .edit = lengths_0305},
    {.name = "no-keys-d256", .B = 1, .H = 2, .Hkv = 2, .Nq = 5, .Nk = 0, .D = 256, .Dv = 256, .empty = true},
    {.name = "no-queries", .B = 1, .H = 2, .Hkv = 2, .Nq = 0, .Nk = 9, .D = 64, .Dv = 64, .empty = true},
    {.name = "no-batch", .B = 0, .H = 2, .Hkv = 2, .Nq = 4, .Nk = 9, .D = 64, .Dv = 64, .empty = true},
    {.name = "no-heads", .B = 2, .H = 0, .Hkv = 0, .Nq = 4, .Nk = 9, .D = 64, .Dv = 64, .empty = true},
    {.name = "nan-beyond-length", .B = 2, .Nq = 4, .Nk = 16, .with = LENGTHS, .edit = lengths_13},
    {.name = "nan-beyond-length-decode",
     .B = 2,
     .H = 8,
     .Hkv = 2,
     .Nq = 1,
     .Nk = 700,
     .with = LENGTHS,
     .edit = lengths_13},
    {.name = "inf-in-v-beyond-length", .B = 2, .Nq = 4, .Nk = 16, .with = LENGTHS, .edit = inf_beyond_13},
    {.name = "large/sizes-beyond-2^31", .H = 1, .Nq = 46400, .Nk = 46400, .D = 8, .flags = CAUSAL | LEFT, .left = 20},
    {.name = "softcap-before-mask", .Nq = 30, .Nk = 30, .flags = CAUSAL, .softcap = 5, .scale = 2},
    {.name = "window-of-5-tokens", .Nq = 50, .Nk = 50, .flags = CAUSAL | LEFT, .left = 4},
    {.name = "window-of-1-token", .Nq = 50, .Nk = 50, .flags = CAUSAL | LEFT, .left = 0},
    {.name = "window-leaves-first-tiles-empty", .Nq = 64, .Nk = 900, .flags = CAUSAL | LEFT, .left = 70},
    {.name = "lse-natural", .Nq = 4, .Nk = 200, .flags = CAUSAL},
    {.name = "split-with-one-key", .B = 4, .H = 4, .Hkv = 2, .Nq = 1, .Nk = 2048, .with = LENGTHS, .edit = lengths_one},
    {.name = "split-with-no-keys",
     .B = 4,
     .H = 4,
     .Hkv = 2,
     .Nq = 1,
     .Nk = 2048,
     .with = LENGTHS,
     .edit = lengths_zero},
    {.name = "split-all-hidden",
     .H = 4,
     .Hkv = 2,
     .Nq = 1,
     .Nk = 4096,
     .flags = LEFT | CAUSAL,
     .left = 3,
     .with = SINKS},
    {.name = "strides-bshd", .B = 2, .H = 3, .Nq = 33, .Nk = 65, .layout = VERIFY_SWAPPED},
    {.name = "v-transposed", .Nk = 64, .D = 32, .edit = transpose_v, .refused = KF_INVALID_ARGUMENT},
    {.name = "head-dim-72", .Nq = 40, .Nk = 100, .D = 72},
    {.name = "head-dim-96", .Nq = 40, .Nk = 100, .D = 96},
    {.name = "head-dim-20", .D = 20, .refused = KF_UNSUPPORTED},
    {.name = "head-dim-264", .D = 264, .refused = KF_UNSUPPORTED},
    {.name = "heads-33-over-2", .H = 33, .Hkv = 2, .refused = KF_INVALID_ARGUMENT},
    {.name = "alibi-3-heads", .H = 3, .Nq = 9, .Nk = 90, .flags = CAUSAL, .with = ALIBI},
    {.name = "alibi-5-heads", .H = 5, .Nq = 9, .Nk = 90, .flags = CAUSAL, .with = ALIBI},
    {.name = "alibi-6-heads", .H = 6, .Nq = 9, .Nk = 90, .flags = CAUSAL, .with = ALIBI},
    {.name = "alibi-12-heads", .H = 12, .Nq = 9, .Nk = 90, .flags = CAUSAL, .with = ALIBI},
    {.name = "alibi-far", .H = 2, .Nq = 2, .Nk = 9000, .D = 8, .flags = CAUSAL, .with = ALIBI},
    {.name = "gqa-keys-256", .H = 8, .Hkv = 2, .Nq = 1, .Nk = 256, .D = 64},
    {.name = "gqa-keys-512", .H = 8, .Hkv = 2, .Nq = 7, .Nk = 512, .D = 64, .flags = CAUSAL},
    {.name = "gqa-decode-batch", .B = 4, .H = 8, .Hkv = 2, .Nq = 1, .Nk = 300, .with = LENGTHS},
    {.name = "mask-all-true", .B = 2, .H = 4, .Nq = 8, .Nk = 8, .with = MASK, .edit = mask_all_true},
    {.name = "query-of-one", .B = 1, .H = 1, .Nq = 1, .Nk = 33, .flags = CAUSAL},
    {.name = "one-key", .Nq = 17, .Nk = 1},
};

static const attention_case HOSTILE[] = {
    {.name = "rising-scores", .Nq = 40, .Nk = 700, .scale = 1, .edit = rising, .looser = 100},
    {.name = "falling-scores", .Nq = 40, .Nk = 700, .scale = 1, .edit = falling, .looser = 100},
    {.name = "rising-scores-decode", .H = 4, .Hkv = 1, .Nq = 1, .Nk = 2100, .scale = 1, .edit = rising, .looser = 100},
    {.name = "last-key-wins", .Nq = 5, .Nk = 600, .edit = last_key_wins, .looser = 100},
    {.name = "equal-scores", .Nq = 20, .Nk = 333, .edit = all_equal},
    {.name = "zero-query", .Nq = 20, .Nk = 333, .flags = CAUSAL, .edit = all_zero},
    {.name = "large-scores", .Nq = 20, .Nk = 200, .edit = large_scores, .looser = 100},
    {.name = "large-scores-softcap", .Nq = 20, .Nk = 200, .softcap = 30, .edit = large_scores, .looser = 20},
    {.name = "large-values", .Nq = 20, .Nk = 200, .edit = large_values},
    {.name = "tiny-values", .Nq = 20, .Nk = 200, .edit = tiny_values},
    {.name = "bias-1e30", .B = 1, .Nq = 6, .Nk = 70, .with = BIAS, .edit = bias_of_1e30},
    {.name = "mask-hides-first-tiles", .Nq = 30, .Nk = 600, .with = MASK, .edit = mask_first_tiles},
    {.name = "mask-hides-first-tiles-decode",
     .H = 8,
     .Hkv = 2,
     .Nq = 1,
     .Nk = 1600,
     .with = MASK,
     .edit = mask_first_tiles},
    {.name = "sinks-high", .Nq = 9, .Nk = 100, .with = SINKS, .edit = sinks_high, .looser = 30},
    {.name = "sinks-low", .Nq = 9, .Nk = 100, .with = SINKS, .edit = sinks_low},
    {.name = "sinks-minus-inf", .Nq = 9, .Nk = 5, .flags = CAUSAL, .with = SINKS, .edit = sinks_none},
    {.name = "sinks-without-keys", .Nq = 9, .Nk = 4, .flags = CAUSAL, .with = SINKS},
    {.name = "nan-v-seen-by-some",
     .Nq = 70,
     .Nk = 70,
     .flags = CAUSAL,
     .with = KEEP_HIDDEN,
     .edit = nan_v_in_the_middle,
     .spreads = true},
    {.name = "nan-v-seen-by-some-window",
     .Nq = 90,
     .Nk = 90,
     .flags = CAUSAL | LEFT,
     .left = 9,
     .edit = nan_v_in_the_middle,
     .spreads = true},
    {.name = "nan-v-seen-by-some-mask", .Nq = 40, .Nk = 90, .with = MASK, .edit = nan_v_in_the_middle, .spreads = true},
    {.name = "nan-v-seen-by-some-decode",
     .H = 4,
     .Hkv = 1,
     .Nq = 4,
     .Nk = 700,
     .flags = LEFT,
     .left = 348,
     .edit = nan_v_in_the_middle,
     .spreads = true},
    {.name = "inf-v-seen-by-some", .Nq = 70, .Nk = 70, .flags = CAUSAL, .edit = inf_v_in_the_middle, .spreads = true},
    {.name = "inf-v-seen-by-some-gqa",
     .H = 6,
     .Hkv = 2,
     .Nq = 20,
     .Nk = 40,
     .flags = CAUSAL,
     .edit = inf_v_in_the_middle,
     .spreads = true},
    {.name = "nan-k-seen-by-some", .Nq = 70, .Nk = 70, .flags = CAUSAL, .edit = nan_k_in_the_middle},
    {.name = "nan-k-seen-by-some-window",
     .Nq = 90,
     .Nk = 90,
     .flags = CAUSAL | LEFT,
     .left = 9,
     .edit = nan_k_in_the_middle},
    {.name = "nan-k-seen-by-last-row", .Nq = 33, .Nk = 70, .flags = CAUSAL, .edit = nan_k_at_the_end},
    {.name = "nan-k-softcap", .Nq = 33, .Nk = 70, .flags = CAUSAL, .softcap = 10, .edit = nan_k_in_the_middle},
    {.name = "nan-k-decode", .H = 4, .Hkv = 2, .Nq = 1, .Nk = 600, .edit = nan_k_in_the_middle},
    {.name = "nan-k-rope",
     .Nq = 33,
     .Nk = 70,
     .flags = CAUSAL | ROPE,
     .rope = {.pairing = KF_ROPE_NEOX},
     .edit = nan_k_in_the_middle},
    {.name = "nan-k-rope-decode",
     .H = 4,
     .Hkv = 2,
     .Nq = 1,
     .Nk = 600,
     .flags = CAUSAL | ROPE,
     .rope = {.pairing = KF_ROPE_NEOX},
     .edit = nan_k_in_the_middle},
    {.name = "nan-k-rope-decode-window", // the key is in a tile that the row sees, and before what it sees of it
     .H = 4,
     .Hkv = 2,
     .Nq = 1,
     .Nk = 611,
     .D = 128,
     .flags = CAUSAL | LEFT | ROPE,
     .left = 303,
     .rope = {.pairing = KF_ROPE_GPTJ},
     .edit = nan_k_in_the_middle},
    {.name = "one-nan-in-v", .Nq = 20, .Nk = 60, .flags = CAUSAL, .edit = one_nan_in_v, .spreads = true},
    {.name = "nan-query-row", .Nq = 20, .Nk = 60, .flags = CAUSAL, .edit = nan_q_row},
    {.name = "nan-query-row-gqa-decode", .H = 4, .Hkv = 1, .Nq = 1, .Nk = 600, .edit = nan_q_row},
    {.name = "nan-bias", .B = 1, .Nq = 8, .Nk = 60, .with = BIAS, .edit = nan_bias},
};

// On a device, fp32: an infinity reaches the rows that see it as an infinity (or gives a key no weight), and no other row.
static const attention_case INFINITE[] = {
    {.name = "inf-v", .H = 4, .Hkv = 2, .Nq = 70, .Nk = 70, .flags = CAUSAL, .edit = inf_v_in_the_middle},
    {.name = "inf-v-mask", .Nq = 40, .Nk = 90, .D = 128, .with = MASK | LENGTHS, .B = 2, .edit = inf_v_in_the_middle},
    {.name = "inf-v-split", .H = 2, .Nq = 130, .Nk = 1500, .D = 128, .flags = CAUSAL, .edit = inf_v_in_the_middle},
    {.name = "one-inf-in-k", .H = 3, .Nq = 70, .Nk = 90, .D = 200, .flags = CAUSAL, .edit = one_inf_in_k},
    {.name = "one-inf-in-k-rope-q",
     .Nq = 33,
     .Nk = 60,
     .flags = CAUSAL | KF_ATTENTION_ROPE_Q,
     .rope = {.pairing = KF_ROPE_NEOX},
     .edit = one_inf_in_k},
};

static void infinite_cases(verify_run *run) {
    for (int c = 0; run->device && c < COUNT(INFINITE); c++) {
        attention_case row = INFINITE[c];
        row.q = row.kv = row.o = "fp32";
        verify_case(run, check_attention, &row, "attention/infinite/%s", row.name);
    }
}

static void named_cases(verify_run *run, const attention_case *rows, int count, const char *folder) {
    static const char *const DTYPES[] = {"fp32", "fp16", "bf16"};
    for (int c = 0; c < count; c++) {
        for (int d = 0; d < COUNT(DTYPES); d++) {
            attention_case row = rows[c];
            row.q = row.kv = row.o = DTYPES[d];
            verify_case(run, check_attention, &row, "attention/%s/%s/%s", folder, row.name, row.q);
        }
    }
}

void verify_attention_reports(verify_run *run) {
    named_cases(run, REPORTS, COUNT(REPORTS), "report");
    named_cases(run, HOSTILE, COUNT(HOSTILE), "hostile");
    infinite_cases(run);
}
