// SPDX-License-Identifier: Apache-2.0
//
// The cases of attention: the shapes that the project was asked for, a grid (masks x dtypes x shapes, head dims, dtype mixes, layouts),
// the kinds of bug that others have reported, hostile values, and random ones. Adding a case is adding a row.
#include "verify_attention.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define COUNT(table) ((int)(sizeof(table) / sizeof *(table)))
#define CAUSAL KF_ATTENTION_CAUSAL
#define LEFT KF_ATTENTION_WINDOW_LEFT
#define RIGHT KF_ATTENTION_WINDOW_RIGHT
#define ROPE (KF_ATTENTION_ROPE_Q | KF_ATTENTION_ROPE_K)

// ------------------------------------------------------------------------------------------------- the shapes asked for

static const struct {
    int64_t B, H, N, D; // self-attention
    int64_t quick_B, quick_H, quick_N;
} SHAPES[] = {
    {1, 8, 512, 64, 1, 2, 512},    {1, 8, 2048, 64, 1, 1, 768},   {4, 32, 4096, 128, 2, 2, 320},
    {1, 8, 8192, 128, 1, 1, 1024}, {2, 16, 16384, 64, 2, 1, 700},
};

static void shape_cases(verify_run *run) {
    static const char *const DTYPES[] = {"bf16", "fp16", "fp32"};
    for (int s = 0; s < COUNT(SHAPES); s++) {
        for (int c = 0; c < 2 * COUNT(DTYPES); c++) {
            attention_case row = {.B = SHAPES[s].B, .H = SHAPES[s].H, .Nq = SHAPES[s].N, .D = SHAPES[s].D};
            row.q = DTYPES[c / 2], row.flags = c % 2 ? CAUSAL : 0;
            if (run->quick) row.B = SHAPES[s].quick_B, row.H = SHAPES[s].quick_H, row.Nq = SHAPES[s].quick_N;
            row.Nk = row.Nq;
            verify_case(run, check_attention, &row, "attention/shape/%lldx%lldx%lldx%lld/%s/%s", (long long)SHAPES[s].B,
                        (long long)SHAPES[s].H, (long long)SHAPES[s].N, (long long)SHAPES[s].D, row.q,
                        c % 2 ? "causal" : "full");
        }
    }
}

// ------------------------------------------------------------------------------------------------------------ the grid

static const attention_case MASKS[] = {
    {.name = "none"},
    {.name = "causal", .flags = CAUSAL},
    {.name = "window-self", .flags = LEFT | RIGHT},
    {.name = "window-left", .flags = LEFT, .left = 17},
    {.name = "window-left-causal", .flags = LEFT | CAUSAL, .left = 31},
    {.name = "window-right", .flags = RIGHT, .right = 9},
    {.name = "window-both", .flags = LEFT | RIGHT, .left = 40, .right = 12},
    {.name = "window-unbounded", .flags = LEFT | RIGHT, .left = INT64_MAX, .right = INT64_MAX},
    {.name = "alibi", .with = ALIBI},
    {.name = "alibi-causal", .flags = CAUSAL, .with = ALIBI},
    {.name = "softcap", .softcap = 3},
    {.name = "softcap-causal", .flags = CAUSAL, .softcap = 15, .scale = 0.5f},
    {.name = "sinks", .with = SINKS},
    {.name = "sinks-window-causal", .flags = LEFT | CAUSAL, .left = 12, .with = SINKS},
    {.name = "bias", .with = BIAS},
    {.name = "bias-causal", .flags = CAUSAL, .with = BIAS},
    {.name = "bool-mask", .with = MASK},
    {.name = "bool-mask-causal", .flags = CAUSAL, .with = MASK},
    {.name = "lengths", .B = 3, .with = LENGTHS},
    {.name = "lengths-causal", .B = 4, .flags = CAUSAL, .with = LENGTHS},
    {.name = "positions-causal", .flags = CAUSAL, .with = POSITIONS},
    {.name = "positions-window", .flags = LEFT | RIGHT, .left = 11, .right = 5, .with = POSITIONS},
    {.name = "positions-alibi", .flags = CAUSAL, .with = POSITIONS | ALIBI},
    {.name = "rope-neox", .flags = ROPE | CAUSAL, .rope = {.pairing = KF_ROPE_NEOX}},
    {.name = "rope-gptj", .flags = ROPE | CAUSAL, .rope = {.pairing = KF_ROPE_GPTJ, .base = 500000}},
    {.name = "rope-partial", .flags = ROPE, .rope = {.pairing = KF_ROPE_NEOX, .dims = 8}},
    {.name = "rope-q", .flags = KF_ATTENTION_ROPE_Q | CAUSAL, .rope = {.pairing = KF_ROPE_NEOX}},
    {.name = "rope-k", .flags = KF_ATTENTION_ROPE_K, .rope = {.pairing = KF_ROPE_GPTJ, .dims = 6}},
    {.name = "rope-linear",
     .flags = ROPE | CAUSAL,
     .rope = {.pairing = KF_ROPE_NEOX, .scaling = KF_ROPE_SCALING_LINEAR, .factor = 4}},
    {.name = "rope-llama3",
     .flags = ROPE | CAUSAL,
     .rope = {.pairing = KF_ROPE_NEOX,
              .base = 500000,
              .scaling = KF_ROPE_SCALING_LLAMA3,
              .factor = 8,
              .original_context = 8192}},
    {.name = "rope-yarn",
     .flags = ROPE | CAUSAL,
     .rope = {.pairing = KF_ROPE_NEOX, .scaling = KF_ROPE_SCALING_YARN, .factor = 16, .original_context = 4096}},
    {.name = "rope-lengths", .B = 2, .flags = ROPE | CAUSAL, .with = LENGTHS, .rope = {.pairing = KF_ROPE_NEOX}},
    {.name = "everything",
     .B = 2,
     .flags = ROPE | CAUSAL | LEFT,
     .left = 60,
     .softcap = 20,
     .with = ALIBI | SINKS | BIAS | MASK | LENGTHS,
     .rope = {.pairing = KF_ROPE_NEOX, .dims = 16}},
};

// One query; few; as many as keys; ragged; more queries than keys.
static const struct { int64_t Nq, Nk; } SIZES[] = {{1, 77}, {1, 530}, {4, 129}, {33, 33}, {65, 191}, {70, 40}};

static const struct { int64_t H, Hkv; } HEADS[] = {{2, 2}, {4, 2}, {4, 1}, {6, 2}, {1, 1}};

static const int64_t HEAD_DIMS[] = {64, 32, 80, 128, 40, 16};

static const attention_case DTYPES[] = {{.q = "fp32", .kv = "fp32", .o = "fp32"},
                                        {.q = "fp16", .kv = "fp16", .o = "fp16"},
                                        {.q = "bf16", .kv = "bf16", .o = "bf16"}};

static const attention_case DTYPE_MIXES[] = {
    {.q = "fp16", .kv = "fp16", .o = "fp32"}, {.q = "bf16", .kv = "bf16", .o = "fp32"},
    {.q = "fp32", .kv = "fp16", .o = "fp32"}, {.q = "fp32", .kv = "bf16", .o = "fp32"},
    {.q = "fp16", .kv = "bf16", .o = "fp16"}, {.q = "bf16", .kv = "fp16", .o = "bf16"},
    {.q = "fp16", .kv = "fp32", .o = "fp16"}, {.q = "bf16", .kv = "fp32", .o = "fp32"},
};

static void set_dtypes(attention_case *row, const attention_case *dtypes) {
    row->q = dtypes->q, row->kv = dtypes->kv, row->o = dtypes->o;
}

// masks x dtypes x sizes; heads, head dims and layouts go round.
static void grid_cases(verify_run *run) {
    for (int m = 0, n = 0; m < COUNT(MASKS); m++) {
        for (int d = 0; d < COUNT(DTYPES); d++) {
            for (int s = 0; s < COUNT(SIZES); s++, n++) {
                attention_case row = MASKS[m];
                set_dtypes(&row, &DTYPES[d]);
                row.Nq = SIZES[s].Nq, row.Nk = SIZES[s].Nk;
                row.H = HEADS[n % COUNT(HEADS)].H, row.Hkv = HEADS[n % COUNT(HEADS)].Hkv;
                row.D = HEAD_DIMS[(n + m) % COUNT(HEAD_DIMS)];
                row.layout = (verify_layout)(n % VERIFY_LAYOUTS);
                verify_case(run, check_attention, &row, "attention/grid/%s/%s/%lldx%lld", row.name, row.q,
                            (long long)row.Nq, (long long)row.Nk);
            }
        }
    }
}

// Every head dim from 8 to 256, for many queries and for one, with V's own head dim now and then.
static void head_dim_cases(verify_run *run) {
    for (int64_t D = 8; D <= 256; D += 8) {
        for (int d = 0; d < COUNT(DTYPES); d++) {
            attention_case row = {.H = 4, .Hkv = 2, .Nq = d == D / 8 % 3 ? 1 : 37, .Nk = 83, .D = D, .flags = CAUSAL};
            if (D / 8 % 4 == d) row.Dv = 264 - D;
            set_dtypes(&row, &DTYPES[d]);
            verify_case(run, check_attention, &row, "attention/head-dim/%lldx%lld/%s/%lld-queries", (long long)D,
                        (long long)(row.Dv ? row.Dv : D), row.q, (long long)row.Nq);
        }
    }
}

static void mix_cases(verify_run *run) {
    static const char *const NAMES[] = {"decode", "few", "many"};
    for (int d = 0; d < COUNT(DTYPE_MIXES); d++) {
        for (int s = 0; s < COUNT(NAMES); s++) {
            attention_case row = {.H = 4, .Hkv = 2, .Nq = s == 0 ? 1 : s == 1 ? 5 : 66, .Nk = 150, .flags = CAUSAL};
            row.layout = (verify_layout)((d + s) % VERIFY_LAYOUTS);
            set_dtypes(&row, &DTYPE_MIXES[d]);
            verify_case(run, check_attention, &row, "attention/dtypes/%s-%s-%s/%s", row.q, row.kv, row.o, NAMES[s]);
        }
    }
}

// Few rows and many keys: the keys are split over threads.
static const attention_case DECODE[] = {
    {.name = "decode/mha", .H = 4, .Nq = 1, .Nk = 3000, .D = 64},
    {.name = "decode/gqa", .H = 8, .Hkv = 2, .Nq = 1, .Nk = 4099, .D = 128},
    {.name = "decode/mqa", .H = 8, .Hkv = 1, .Nq = 1, .Nk = 2048, .D = 64},
    {.name = "decode/batch", .B = 3, .H = 9, .Hkv = 3, .Nq = 1, .Nk = 1025, .D = 64, .flags = CAUSAL, .with = LENGTHS},
    {.name = "decode/window", .H = 4, .Hkv = 2, .Nq = 1, .Nk = 3001, .D = 64, .flags = CAUSAL | LEFT, .left = 99},
    {.name = "decode/sinks", .H = 8, .Hkv = 1, .Nq = 1, .Nk = 2500, .D = 64, .with = SINKS},
    {.name = "decode/speculative", .H = 8, .Hkv = 2, .Nq = 5, .Nk = 2777, .D = 128, .flags = CAUSAL},
    {.name = "decode/rope",
     .H = 8,
     .Hkv = 2,
     .Nq = 1,
     .Nk = 1500,
     .D = 64,
     .flags = ROPE | CAUSAL,
     .rope = {.pairing = KF_ROPE_NEOX}},
    {.name = "decode/alibi", .H = 12, .Hkv = 12, .Nq = 1, .Nk = 1999, .D = 64, .flags = CAUSAL, .with = ALIBI},
    {.name = "decode/mask", .H = 4, .Hkv = 2, .Nq = 2, .Nk = 2222, .D = 64, .with = MASK | BIAS},
    {.name = "decode/32-heads", .H = 32, .Hkv = 8, .Nq = 1, .Nk = 1024, .D = 128},
    {.name = "decode/8192", .H = 32, .Hkv = 32, .Nq = 1, .Nk = 8192, .D = 128, .full_only = true},
    {.name = "decode/32768", .H = 32, .Hkv = 8, .Nq = 1, .Nk = 32768, .D = 128, .full_only = true},
    {.name = "prefill/chunk", .H = 3, .Hkv = 1, .Nq = 128, .Nk = 1100, .D = 64, .flags = CAUSAL},
    {.name = "prefill/chunk-lengths",
     .B = 2,
     .H = 3,
     .Hkv = 3,
     .Nq = 100,
     .Nk = 600,
     .D = 128,
     .flags = CAUSAL,
     .with = LENGTHS},
    {.name = "prefill/window", .H = 2, .Nq = 700, .Nk = 700, .D = 64, .flags = CAUSAL | LEFT, .left = 127},
};

static void decode_cases(verify_run *run) {
    for (int c = 0; c < COUNT(DECODE); c++) {
        for (int d = 0; d < COUNT(DTYPES); d++) {
            attention_case row = DECODE[c];
            set_dtypes(&row, &DTYPES[d]);
            verify_case(run, check_attention, &row, "attention/%s/%s", row.name, row.q);
        }
    }
}

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
    {.name = "sizes-beyond-2^31",
     .H = 1,
     .Nq = 46400,
     .Nk = 46400,
     .D = 8,
     .flags = CAUSAL | LEFT,
     .left = 20,
     .full_only = true},
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
     .edit = nan_v_in_the_middle},
    {.name = "nan-v-seen-by-some-window",
     .Nq = 90,
     .Nk = 90,
     .flags = CAUSAL | LEFT,
     .left = 9,
     .edit = nan_v_in_the_middle},
    {.name = "nan-v-seen-by-some-mask", .Nq = 40, .Nk = 90, .with = MASK, .edit = nan_v_in_the_middle},
    {.name = "nan-v-seen-by-some-decode",
     .H = 4,
     .Hkv = 1,
     .Nq = 4,
     .Nk = 700,
     .flags = LEFT,
     .left = 348,
     .edit = nan_v_in_the_middle},
    {.name = "inf-v-seen-by-some", .Nq = 70, .Nk = 70, .flags = CAUSAL, .edit = inf_v_in_the_middle},
    {.name = "inf-v-seen-by-some-gqa",
     .H = 6,
     .Hkv = 2,
     .Nq = 20,
     .Nk = 40,
     .flags = CAUSAL,
     .edit = inf_v_in_the_middle},
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
    {.name = "one-nan-in-v", .Nq = 20, .Nk = 60, .flags = CAUSAL, .edit = one_nan_in_v},
    {.name = "nan-query-row", .Nq = 20, .Nk = 60, .flags = CAUSAL, .edit = nan_q_row},
    {.name = "nan-query-row-gqa-decode", .H = 4, .Hkv = 1, .Nq = 1, .Nk = 600, .edit = nan_q_row},
    {.name = "nan-bias", .B = 1, .Nq = 8, .Nk = 60, .with = BIAS, .edit = nan_bias},
};

static void named_cases(verify_run *run, const attention_case *rows, int count, const char *folder) {
    for (int c = 0; c < count; c++) {
        for (int d = 0; d < COUNT(DTYPES); d++) {
            attention_case row = rows[c];
            set_dtypes(&row, &DTYPES[d]);
            verify_case(run, check_attention, &row, "attention/%s/%s/%s", folder, row.name, row.q);
        }
    }
}

// --------------------------------------------------------------------------------------------- other ways of being called

static const attention_case REBIND[] = {
    {.name = "decode", .B = 3, .H = 4, .Hkv = 2, .Nq = 1, .Nk = 800, .flags = CAUSAL, .with = LENGTHS},
    {.name = "speculative",
     .B = 2,
     .H = 4,
     .Hkv = 1,
     .Nq = 4,
     .Nk = 500,
     .flags = CAUSAL,
     .with = LENGTHS,
     .layout = VERIFY_SHUFFLED},
    {.name = "prefill",
     .B = 2,
     .H = 4,
     .Hkv = 2,
     .Nq = 64,
     .Nk = 200,
     .flags = CAUSAL,
     .with = LENGTHS,
     .layout = VERIFY_SWAPPED},
    {.name = "rope",
     .B = 2,
     .H = 2,
     .Nq = 8,
     .Nk = 90,
     .flags = CAUSAL | ROPE,
     .with = LENGTHS,
     .rope = {.pairing = KF_ROPE_NEOX}},
};

static const attention_case IN_BATCH[] = {
    {.name = "decode", .B = 4, .H = 4, .Hkv = 2, .Nq = 1, .Nk = 3000, .flags = CAUSAL, .with = LENGTHS},
    {.name = "decode-many", .B = 9, .H = 2, .Hkv = 2, .Nq = 1, .Nk = 1500},
    {.name = "prefill", .B = 3, .H = 4, .Hkv = 2, .Nq = 50, .Nk = 333, .flags = CAUSAL, .with = LENGTHS},
};

static const attention_case MERGED[] = {
    {.name = "plain", .H = 4, .Hkv = 2, .Nq = 20, .Nk = 200, .o = "fp32"},
    {.name = "sinks", .H = 4, .Hkv = 2, .Nq = 20, .Nk = 200, .with = SINKS, .o = "fp32"},
    {.name = "softcap", .Nq = 3, .Nk = 1000, .softcap = 10, .o = "fp32"},
};

// Strides of 2^30 elements between sequences.
static const attention_case SPARSE[] = {
    {.name = "decode", .B = 3, .H = 4, .Hkv = 2, .Nq = 1, .Nk = 100},
    {.name = "prefill", .B = 3, .H = 4, .Hkv = 2, .Nq = 40, .Nk = 70, .flags = CAUSAL},
};

static void way_cases(verify_run *run) {
    const struct {
        const char *folder;
        verify_check *check;
        const attention_case *rows;
        int count;
    } tables[] = {
        {"rebind", check_attention_rebind, REBIND, COUNT(REBIND)},
        {"in-batch", check_attention_in_batch, IN_BATCH, COUNT(IN_BATCH)},
        {"merged", check_attention_merged, MERGED, COUNT(MERGED)},
        {"report/batch-stride-2^30", check_attention_sparse, SPARSE, COUNT(SPARSE)},
    };
    for (int t = 0; t < COUNT(tables); t++) {
        for (int c = 0; c < tables[t].count * COUNT(DTYPES); c++) {
            attention_case row = tables[t].rows[c / COUNT(DTYPES)];
            const char *o = row.o;
            set_dtypes(&row, &DTYPES[c % COUNT(DTYPES)]);
            if (o) row.o = o;
            verify_case(run, tables[t].check, &row, "attention/%s/%s/%s", tables[t].folder, row.name, row.q);
        }
    }
}

// --------------------------------------------------------------------------------------------------------------- random

static attention_case random_case(uint64_t *state) {
    static const int64_t GROUPS[] = {1, 1, 2, 3, 4, 8};
    static const attention_case *const tables[] = {DTYPES, DTYPE_MIXES};
    attention_case row = MASKS[verify_random(state) % COUNT(MASKS)];
    const bool mixed = verify_random(state) % 4 == 0;
    set_dtypes(&row, &tables[mixed][verify_random(state) % (uint64_t)(mixed ? COUNT(DTYPE_MIXES) : COUNT(DTYPES))]);
    row.B = verify_random_between(state, 1, 3);
    row.Hkv = verify_random_between(state, 1, 3);
    row.H = row.Hkv * GROUPS[verify_random(state) % COUNT(GROUPS)];
    row.Nq = verify_random(state) % 3 ? verify_random_between(state, 2, 100) : 1;
    row.Nk = row.Nq == 1 ? verify_random_between(state, 1, 1200) : verify_random_between(state, 1, 240);
    row.D = 8 * verify_random_between(state, 1, verify_random(state) % 4 ? 16 : 32);
    row.Dv = verify_random(state) % 4 ? row.D : 8 * verify_random_between(state, 1, 32);
    row.left = row.left ? verify_random_between(state, 0, row.Nk + 5) : 0;
    row.right = row.right ? verify_random_between(state, 0, row.Nk + 5) : 0;
    row.layout = (verify_layout)(verify_random(state) % VERIFY_LAYOUTS);
    if (verify_random(state) % 4 == 0) row.with |= LENGTHS;
    if (verify_random(state) % 8 == 0) row.with |= NO_LSE;
    if (row.rope.dims > row.D) row.rope.dims = 0;
    return row;
}

static void random_cases(verify_run *run) {
    for (int64_t n = 0; n < run->random; n++) {
        uint64_t state = run->seed * 1000003 + (uint64_t)n;
        const attention_case row = random_case(&state);
        verify_case(run, check_attention, &row, "attention/random/%lld", (long long)n);
    }
}

void verify_attention(verify_run *run) {
    named_cases(run, REPORTS, COUNT(REPORTS), "report");
    named_cases(run, HOSTILE, COUNT(HOSTILE), "hostile");
    shape_cases(run);
    decode_cases(run);
    grid_cases(run);
    head_dim_cases(run);
    mix_cases(run);
    way_cases(run);
    random_cases(run);
}
