// SPDX-License-Identifier: Apache-2.0
//
// The cases of attention: the shapes that the project was asked for, a grid (masks x dtypes x shapes, head dims, dtype mixes, layouts),
// the ways of being called, and random ones; verify_attention_reports.c has those with data of their own. Adding a case is adding a row.
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
    {.name = "scale-negative", .flags = CAUSAL, .scale = -0.25f},
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

// V's head dim beside Q's, in the pairs that kernels are made for.
static void head_dim_pair_cases(verify_run *run) {
    static const struct {
        int64_t D, Dv;
    } PAIRS[] = {{192, 128}, {64, 128}, {128, 64}, {256, 64}, {96, 96}, {192, 192}};
    for (int p = 0; p < COUNT(PAIRS) * COUNT(DTYPES); p++) {
        for (int s = 0; s < 2; s++) {
            attention_case row = {.B = 2, .H = 4, .Hkv = 1, .Nq = s ? 193 : 1, .Nk = 257, .flags = CAUSAL};
            row.D = PAIRS[p / COUNT(DTYPES)].D, row.Dv = PAIRS[p / COUNT(DTYPES)].Dv;
            set_dtypes(&row, &DTYPES[p % COUNT(DTYPES)]);
            verify_case(run, check_attention, &row, "attention/head-dims/%lldx%lld/%s/%lld-queries", (long long)row.D,
                        (long long)row.Dv, row.q, (long long)row.Nq);
        }
    }
}

// Lengths at and around the tiles of 16 to 128 rows and keys.
static void size_cases(verify_run *run) {
    static const struct {
        int64_t Nq, Nk;
    } LENGTH_PAIRS[] = {{1, 1},     {2, 16},   {16, 17},   {17, 1},    {63, 64},  {64, 63},  {65, 129}, {127, 128},
                        {128, 127}, {129, 65}, {300, 500}, {500, 300}, {1, 4096}, {4, 1023}, {16, 257}};
    for (int n = 0; n < COUNT(LENGTH_PAIRS) * COUNT(DTYPES); n++) {
        for (int c = 0; c < 4; c++) {
            attention_case row = {.H = 3, .D = c / 2 ? 128 : 64, .flags = c % 2 ? CAUSAL : 0};
            row.Nq = LENGTH_PAIRS[n / COUNT(DTYPES)].Nq, row.Nk = LENGTH_PAIRS[n / COUNT(DTYPES)].Nk;
            set_dtypes(&row, &DTYPES[n % COUNT(DTYPES)]);
            verify_case(run, check_attention, &row, "attention/size/%lldx%lldx%lld/%s/%s", (long long)row.Nq,
                        (long long)row.Nk, (long long)row.D, row.q, c % 2 ? "causal" : "full");
        }
    }
}

// On a device: each head dim with and without what the general kernels are for, and RoPE, in one row, a few, some, as many as take a
// tile of 128 rows for each multiprocessor, in two tiles of 16 rows before the same keys, the second one not full,
// and in tiles of 32.
static void tile_cases(verify_run *run) {
    static const char *const KINDS[] = {"plain", "general", "rope", "rope-general"};
    static const struct {
        int64_t D, Dv;
    } DIMS[] = {{64, 64}, {96, 96}, {128, 128}, {192, 128}, {192, 192}, {256, 256}};
    static const struct {
        int64_t H, Hkv, Nq, Nk;
    } ROWS[] = {{4, 4, 1, 300}, {8, 2, 3, 300}, {2, 2, 70, 90}, {70, 70, 129, 40}, {27, 1, 1, 900}, {162, 9, 1, 600}};
    for (int n = 0; run->device && n < COUNT(DIMS) * COUNT(DTYPES) * COUNT(ROWS); n++) {
        for (int kind = 0; kind < 4; kind++) {
            attention_case row = {.H = ROWS[n % COUNT(ROWS)].H, .Hkv = ROWS[n % COUNT(ROWS)].Hkv};
            row.Nq = ROWS[n % COUNT(ROWS)].Nq, row.Nk = ROWS[n % COUNT(ROWS)].Nk;
            row.D = DIMS[n / COUNT(ROWS) % COUNT(DIMS)].D, row.Dv = DIMS[n / COUNT(ROWS) % COUNT(DIMS)].Dv;
            set_dtypes(&row, &DTYPES[n / COUNT(ROWS) / COUNT(DIMS)]);
            if (kind % 2) row.softcap = 10, row.with = MASK;
            if (kind / 2) row.flags = ROPE, row.rope.pairing = n % 2 ? KF_ROPE_NEOX : KF_ROPE_GPTJ;
            verify_case(run, check_attention, &row, "attention/tile/%lldx%lld/%s/%lldx%lld/%s", (long long)row.D,
                        (long long)row.Dv, row.q, (long long)row.H, (long long)row.Nq, KINDS[kind]);
        }
    }
}

// On a device: fewer tiles of 128 rows than multiprocessors (132 of an H200, where a third to all of them counts), and keys enough to be split
// beside each other and merged.
static const attention_case FEW_TILES[] = {
    {.name = "full", .H = 40, .Nq = 100, .Nk = 1100, .D = 64},
    {.name = "causal", .H = 20, .Nq = 300, .Nk = 1300, .D = 128, .flags = CAUSAL},
    {.name = "more-queries", .H = 6, .Nq = 1000, .Nk = 700, .D = 64, .flags = CAUSAL},
    {.name = "packed", .B = 3, .H = 32, .Hkv = 8, .Nq = 50, .Nk = 1200, .D = 64, .flags = CAUSAL},
    {.name = "lengths", .B = 4, .H = 10, .Nq = 130, .Nk = 1100, .D = 128, .flags = CAUSAL, .with = LENGTHS | SINKS},
    {.name = "window", .H = 6, .Nq = 1000, .Nk = 1000, .D = 64, .flags = CAUSAL | LEFT, .left = 99},
    {.name = "general", .H = 40, .Nq = 70, .Nk = 1100, .D = 128, .softcap = 10, .with = MASK | BIAS},
    {.name = "padded", .H = 40, .Nq = 100, .Nk = 1100, .D = 80, .Dv = 40, .with = POSITIONS, .flags = CAUSAL},
    {.name = "shuffled", .H = 36, .Hkv = 12, .Nq = 128, .Nk = 1030, .D = 40, .layout = VERIFY_SHUFFLED},
    {.name = "rope",
     .B = 2,
     .H = 20,
     .Hkv = 10,
     .Nq = 128,
     .Nk = 1100,
     .D = 128,
     .flags = ROPE | CAUSAL,
     .rope = {.pairing = KF_ROPE_NEOX}},
    {.name = "rope-lengths",
     .B = 4,
     .H = 10,
     .Nq = 120,
     .Nk = 1100,
     .D = 64,
     .flags = ROPE | CAUSAL,
     .with = LENGTHS,
     .rope = {.pairing = KF_ROPE_GPTJ}},
};

static void few_tile_cases(verify_run *run) {
    static const char *const OUTPUTS[] = {"fp16", "bf16", "fp32"}; // of bf16 inputs last
    for (int n = 0; run->device && n < COUNT(FEW_TILES) * COUNT(OUTPUTS); n++) {
        attention_case row = FEW_TILES[n / COUNT(OUTPUTS)];
        row.o = OUTPUTS[n % COUNT(OUTPUTS)];
        row.q = row.kv = n % COUNT(OUTPUTS) == 0 ? "fp16" : "bf16";
        verify_case(run, check_attention, &row, "attention/few-tiles/%s/%s-%s", row.name, row.q, row.o);
    }
}

// On a device: one unsplit list of up to 16 rows for nearly each multiprocessor (128 to 132, of an H200's 132), and keys enough that it is read
// by eight warps; ends of tiles, rows that see few keys or none, padded head dims. The general kernel takes two of them.
static const attention_case FULL_LISTS[] = {
    {.name = "plain", .H = 132, .Nq = 1, .Nk = 1024, .D = 128},
    {.name = "groups", .B = 16, .H = 32, .Hkv = 8, .Nq = 1, .Nk = 1100, .D = 128, .flags = CAUSAL, .with = LENGTHS},
    {.name = "queries", .B = 2, .H = 260, .Hkv = 65, .Nq = 3, .Nk = 1039, .D = 96, .Dv = 72, .flags = CAUSAL},
    {.name = "16-rows", .B = 5, .H = 416, .Hkv = 26, .Nq = 1, .Nk = 1025, .D = 72, .Dv = 128, .with = SINKS},
    {.name = "window", .B = 33, .H = 16, .Hkv = 4, .Nq = 1, .Nk = 1200, .D = 80, .flags = CAUSAL | LEFT, .left = 203},
    {.name = "swapped", .B = 33, .H = 8, .Hkv = 4, .Nq = 2, .Nk = 1030, .D = 88, .layout = VERIFY_SWAPPED},
    {.name = "positions",
     .B = 13,
     .H = 20,
     .Hkv = 10,
     .Nq = 2,
     .Nk = 1050,
     .D = 80,
     .flags = CAUSAL,
     .with = POSITIONS},
    {.name = "rope-q", .H = 129, .Nq = 1, .Nk = 1033, .D = 72, .flags = KF_ATTENTION_ROPE_Q | CAUSAL},
    {.name = "rope", .H = 129, .Nq = 1, .Nk = 1033, .D = 72, .flags = ROPE | CAUSAL},
    {.name = "softcap", .B = 5, .H = 52, .Hkv = 26, .Nq = 1, .Nk = 1040, .D = 80, .softcap = 10},
};

static void full_list_cases(verify_run *run) {
    for (int n = 0; run->device && n < COUNT(FULL_LISTS) * COUNT(DTYPES); n++) {
        attention_case row = FULL_LISTS[n / COUNT(DTYPES)];
        set_dtypes(&row, &DTYPES[n % COUNT(DTYPES)]);
        if (row.flags & KF_ATTENTION_ROPE_Q) row.rope.pairing = KF_ROPE_NEOX;
        verify_case(run, check_attention, &row, "attention/full-lists/%s/%s", row.name, row.q);
    }
}

// Few rows whose keys turn, all dimensions of them: the kernels of decode_turn.cu, by clusters, by a merge, unsplit; and what must not take them.
#define TURNS .rope = {.pairing = KF_ROPE_NEOX}
#define TURNS_NEIGHBOURS .rope = {.pairing = KF_ROPE_GPTJ}
static const attention_case TURNING[] = {
    {.name = "cluster", .H = 32, .Hkv = 8, .Nq = 1, .Nk = 1030, .D = 128, .flags = ROPE | CAUSAL, TURNS},
    {.name = "cluster-gptj", .H = 16, .Hkv = 4, .Nq = 1, .Nk = 1021, .D = 128, .flags = ROPE, TURNS_NEIGHBOURS},
    {.name = "merged", .H = 8, .Hkv = 2, .Nq = 1, .Nk = 7001, .D = 128, .flags = ROPE | CAUSAL, TURNS},
    {.name = "merged-gptj", .H = 3, .Hkv = 3, .Nq = 1, .Nk = 5000, .D = 64, .flags = ROPE | CAUSAL, TURNS_NEIGHBOURS},
    {.name = "unsplit", .B = 50, .H = 12, .Hkv = 6, .Nq = 1, .Nk = 333, .D = 128, .flags = ROPE | CAUSAL, TURNS},
    {.name = "unsplit-gptj", .B = 70, .H = 4, .Nq = 1, .Nk = 150, .D = 64, .flags = ROPE, TURNS_NEIGHBOURS},
    {.name = "queries", .H = 8, .Hkv = 2, .Nq = 3, .Nk = 777, .D = 64, .flags = ROPE | CAUSAL, TURNS},
    {.name = "queries-gptj", .H = 8, .Hkv = 2, .Nq = 4, .Nk = 901, .D = 128, .flags = ROPE | CAUSAL, TURNS_NEIGHBOURS},
    {.name = "few-keys", .H = 6, .Hkv = 2, .Nq = 2, .Nk = 5, .D = 128, .flags = ROPE | CAUSAL, TURNS},
    {.name = "lengths",
     .B = 5,
     .H = 4,
     .Hkv = 2,
     .Nq = 2,
     .Nk = 611,
     .D = 128,
     .flags = ROPE | CAUSAL,
     .with = LENGTHS,
     TURNS},
    {.name = "positions",
     .B = 3,
     .H = 4,
     .Hkv = 2,
     .Nq = 2,
     .Nk = 640,
     .D = 64,
     .flags = ROPE | CAUSAL,
     .with = POSITIONS,
     TURNS},
    {.name = "position",
     .B = 3,
     .H = 4,
     .Hkv = 2,
     .Nq = 1,
     .Nk = 640,
     .D = 128,
     .flags = ROPE | CAUSAL,
     .with = POSITIONS,
     TURNS_NEIGHBOURS},
    {.name = "window",
     .H = 8,
     .Hkv = 2,
     .Nq = 2,
     .Nk = 1500,
     .D = 128,
     .flags = ROPE | CAUSAL | LEFT,
     .left = 333,
     TURNS},
    {.name = "16-rows", .H = 32, .Hkv = 2, .Nq = 1, .Nk = 1111, .D = 128, .flags = ROPE | CAUSAL, .with = SINKS, TURNS},
    {.name = "keys-alone",
     .H = 8,
     .Hkv = 2,
     .Nq = 1,
     .Nk = 1200,
     .D = 64,
     .flags = KF_ATTENTION_ROPE_K | CAUSAL,
     TURNS},
    {.name = "narrow-values", .H = 8, .Hkv = 4, .Nq = 1, .Nk = 1200, .D = 128, .Dv = 72, .flags = ROPE | CAUSAL, TURNS},
    {.name = "yarn",
     .H = 8,
     .Hkv = 2,
     .Nq = 1,
     .Nk = 2100,
     .D = 128,
     .flags = ROPE | CAUSAL,
     .rope = {.pairing = KF_ROPE_NEOX, .scaling = KF_ROPE_SCALING_YARN, .factor = 16, .original_context = 4096}},
    {.name = "some-dimensions",
     .H = 8,
     .Hkv = 2,
     .Nq = 1,
     .Nk = 700,
     .D = 128,
     .flags = ROPE | CAUSAL,
     .rope = {.pairing = KF_ROPE_NEOX, .dims = 64}},
    {.name = "softcap", .H = 8, .Hkv = 2, .Nq = 1, .Nk = 700, .D = 128, .flags = ROPE | CAUSAL, .softcap = 10, TURNS},
    {.name = "24-rows", .H = 24, .Nq = 1, .Hkv = 1, .Nk = 1100, .D = 64, .flags = ROPE | CAUSAL, TURNS},
};

static void turning_cases(verify_run *run) {
    for (int n = 0; n < COUNT(TURNING) * COUNT(DTYPES); n++) {
        attention_case row = TURNING[n / COUNT(DTYPES)];
        set_dtypes(&row, &DTYPES[n % COUNT(DTYPES)]);
        verify_case(run, check_attention, &row, "attention/turning/%s/%s", row.name, row.q);
    }
}

static void mix_cases(verify_run *run) {
    static const char *const NAMES[] = {"decode", "few", "many"};
    static const int64_t DIMS[] = {64, 128, 256};
    for (int d = 0; d < COUNT(DTYPE_MIXES) * COUNT(DIMS); d++) {
        for (int s = 0; s < COUNT(NAMES); s++) {
            attention_case row = {.H = 4, .Hkv = 2, .Nq = s == 0 ? 1 : s == 1 ? 5 : 66, .Nk = 150, .flags = CAUSAL};
            row.layout = (verify_layout)((d + s) % VERIFY_LAYOUTS);
            set_dtypes(&row, &DTYPE_MIXES[d % COUNT(DTYPE_MIXES)]);
            row.D = DIMS[d / COUNT(DTYPE_MIXES)];
            verify_case(run, check_attention, &row, "attention/dtypes/%s-%s-%s/%lld/%s", row.q, row.kv, row.o,
                        (long long)row.D, NAMES[s]);
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
    {.name = "decode/mqa-32", .H = 32, .Hkv = 1, .Nq = 1, .Nk = 3001, .D = 128},
    {.name = "decode/mqa-32-short", .B = 2, .H = 32, .Hkv = 1, .Nq = 1, .Nk = 1030, .D = 64, .with = SINKS},
    {.name = "decode/mqa-64", .H = 64, .Hkv = 1, .Nq = 1, .Nk = 2100, .D = 64},
    {.name = "decode/50-rows",
     .B = 2,
     .H = 20,
     .Hkv = 2,
     .Nq = 5,
     .Nk = 1650,
     .D = 128,
     .flags = CAUSAL,
     .with = LENGTHS},
    // Rows of one KV head far apart: some have seen no key while others have, and their scores are too large to be rounded.
    {.name = "decode/rows-apart",
     .B = 3,
     .H = 6,
     .Hkv = 2,
     .Nq = 2,
     .Nk = 1500,
     .D = 64,
     .flags = CAUSAL | LEFT,
     .left = 40,
     .with = POSITIONS},
    {.name = "decode/rows-apart-far",
     .B = 2,
     .H = 12,
     .Hkv = 2,
     .Nq = 2,
     .Nk = 700,
     .D = 128,
     .flags = CAUSAL | LEFT,
     .left = 200,
     .scale = 1e9f,
     .with = POSITIONS},
    {.name = "decode/17-rows", .H = 34, .Hkv = 2, .Nq = 1, .Nk = 1111, .D = 64, .flags = CAUSAL | LEFT, .left = 300},
    {.name = "decode/32-rows-lengths",
     .B = 5,
     .H = 8,
     .Hkv = 2,
     .Nq = 8,
     .Nk = 1300,
     .D = 128,
     .flags = CAUSAL,
     .with = LENGTHS},
    {.name = "decode/32-rows-causal", // more tiles than an eighth of 132 multiprocessors, or two of 16 rows take them
     .B = 3,
     .H = 16,
     .Hkv = 4,
     .Nq = 8,
     .Nk = 1300,
     .D = 64,
     .flags = CAUSAL,
     .with = LENGTHS},
    {.name = "decode/24-rows-window",
     .B = 3,
     .H = 6,
     .Hkv = 2,
     .Nq = 8,
     .Nk = 900,
     .D = 128,
     .flags = CAUSAL | LEFT,
     .left = 50,
     .with = LENGTHS | POSITIONS},
    {.name = "decode/20-rows-alibi",
     .H = 4,
     .Nq = 20,
     .Nk = 700,
     .D = 96,
     .flags = CAUSAL,
     .with = ALIBI | BIAS | MASK},
    {.name = "decode/28-rows-wide", .H = 28, .Hkv = 1, .Nq = 1, .Nk = 999, .D = 192, .Dv = 128},
    {.name = "decode/32-rows-wide", .H = 16, .Hkv = 4, .Nq = 8, .Nk = 1055, .D = 256, .flags = CAUSAL},
    {.name = "decode/32-rows-rope",
     .H = 16,
     .Hkv = 2,
     .Nq = 4,
     .Nk = 1500,
     .D = 128,
     .flags = ROPE | CAUSAL,
     .rope = {.pairing = KF_ROPE_NEOX}},
    {.name = "decode/32-heads", .H = 32, .Hkv = 8, .Nq = 1, .Nk = 1024, .D = 128},
    {.name = "large/decode-8192", .H = 32, .Hkv = 32, .Nq = 1, .Nk = 8192, .D = 128},
    {.name = "large/decode-32768", .H = 32, .Hkv = 8, .Nq = 1, .Nk = 32768, .D = 128},
    {.name = "large/decode-4-queries", .B = 2, .H = 32, .Hkv = 8, .Nq = 4, .Nk = 8192, .D = 128},
    {.name = "large/decode-mqa", .B = 2, .H = 32, .Hkv = 1, .Nq = 1, .Nk = 8192, .D = 128},
    {.name = "large/decode-16-sequences", .B = 16, .H = 32, .Hkv = 8, .Nq = 1, .Nk = 2048, .D = 128},
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
    {.name = "decode-32-rows", .B = 9, .H = 32, .Hkv = 1, .Nq = 1, .Nk = 3000, .flags = CAUSAL, .with = LENGTHS},
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
    verify_attention_reports(run);
    shape_cases(run);
    decode_cases(run);
    grid_cases(run);
    head_dim_cases(run);
    head_dim_pair_cases(run);
    size_cases(run);
    tile_cases(run);
    few_tile_cases(run);
    full_list_cases(run);
    turning_cases(run);
    mix_cases(run);
    way_cases(run);
    random_cases(run);
}
