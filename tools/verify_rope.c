// SPDX-License-Identifier: Apache-2.0
//
// The cases of RoPE and of appending to a KV cache, which rotates too: pairings, scalings, partial dimensions, far positions, slots.
#include "verify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(table) ((int)(sizeof(table) / sizeof *(table)))

static const struct rotation {
    const char *name;
    kf_rope_params rope;
} ROTATIONS[] = {
    {"neox", {.pairing = KF_ROPE_NEOX}},
    {"gptj", {.pairing = KF_ROPE_GPTJ}},
    {"neox-partial", {.pairing = KF_ROPE_NEOX, .dims = 20, .base = 100000}},
    {"gptj-partial", {.pairing = KF_ROPE_GPTJ, .dims = 6}},
    {"linear", {.pairing = KF_ROPE_NEOX, .scaling = KF_ROPE_SCALING_LINEAR, .factor = 2.5}},
    {"llama3",
     {.pairing = KF_ROPE_NEOX,
      .base = 500000,
      .scaling = KF_ROPE_SCALING_LLAMA3,
      .factor = 32,
      .original_context = 8192}},
    {"llama3-factors",
     {.pairing = KF_ROPE_GPTJ,
      .scaling = KF_ROPE_SCALING_LLAMA3,
      .factor = 8,
      .low_freq_factor = 2,
      .high_freq_factor = 9,
      .original_context = 500}},
    {"yarn", {.pairing = KF_ROPE_NEOX, .scaling = KF_ROPE_SCALING_YARN, .factor = 4, .original_context = 4096}},
    {"yarn-attention-factor",
     {.pairing = KF_ROPE_GPTJ,
      .scaling = KF_ROPE_SCALING_YARN,
      .factor = 40,
      .original_context = 4096,
      .beta_fast = 16,
      .beta_slow = 2,
      .attention_factor = 1.25}},
    {"yarn-short-context",
     {.pairing = KF_ROPE_NEOX, .scaling = KF_ROPE_SCALING_YARN, .factor = 4, .original_context = 20}},
};

typedef struct rope_case {
    int rotation;
    int64_t B, H, N, D, Dv, capacity;
    const char *x, *y;
    bool positions, in_place, no_slots, no_rotation;
    int64_t offset;
    verify_layout layout;
    void (*edit)(kf_tensor *x);
} rope_case;

// A rotated element is a difference of products as large as the row's largest element, times the amplitude (at most 1.4 here): each is
// rounded to fp32 once or twice, and cos and sin once.
static const double ROTATION_ERROR = 4e-7;

// For rows whose largest element is not finite, element by element: NaN where the oracle has NaN.
static void row_bounds(const kf_tensor *x, double *bounds) {
    const int64_t rows = ref_leading(x, 1), D = x->shape[x->ndim - 1];
    int64_t index[KF_MAX_NDIM];
    for (int64_t r = 0; r < rows; r++) {
        bounds[r] = 0;
        for (int64_t c = 0; c < D; c++) {
            ref_unravel(x, r * D + c, index);
            const double size = fabs(ref_at(x, index));
            if (isfinite(size)) bounds[r] = fmax(bounds[r], size * ROTATION_ERROR);
        }
    }
}

static kf_tensor *make_positions(verify_pool *pool, int64_t B, int64_t N) {
    const int64_t shape[2] = {B, N};
    kf_tensor *positions =
        verify_tensor(pool, "positions", VERIFY_INPUT, verify_dtype(N % 2 ? "int32" : "int64"), VERIFY_GAPS, 2, shape);
    for (int64_t e = 0; positions && e < B * N; e++) {
        const int64_t index[2] = {e / N, e % N}; // -3 and a million among them
        verify_set(positions, index,
                   e % 7 == 0   ? 1000003
                   : e % 7 == 1 ? -3
                                : (double)verify_random_between(&pool->random, 0, 20000));
    }
    return positions;
}

static bool check_rope(verify_run *run, const void *pointer) {
    const rope_case *row = pointer;
    verify_pool *pool = &run->pool;
    const int64_t shape[4] = {row->B, row->H, row->N, row->D};
    kf_tensor *x = verify_tensor(pool, "x", row->in_place ? VERIFY_IN_PLACE : VERIFY_INPUT, verify_dtype(row->x),
                                 row->layout, 4, shape);
    kf_tensor *y =
        row->in_place ? x : verify_tensor(pool, "y", VERIFY_OUTPUT, verify_dtype(row->y), row->layout, 4, shape);
    kf_tensor *positions = row->positions ? make_positions(pool, row->B, row->N) : NULL;
    if (pool->exhausted) return false;
    verify_fill_normal(pool, x, 1);
    if (row->edit) row->edit(x);

    kf_rope_args args;
    kf_rope_args_init(&args);
    args.x = x, args.y = y, args.positions = positions, args.position_offset = row->offset;
    args.rope = ROTATIONS[row->rotation].rope;
    double *want = verify_doubles(run, ref_elements(x)), *bounds = verify_doubles(run, ref_leading(x, 1));
    if (want && bounds) ref_rope(&args, want), row_bounds(x, bounds);
    const verify_bound bound = {.rule = "one rounding of an fp32 rotation", .row = bounds, .ulps = 0.5001};
    const bool good =
        want && bounds && verify_execute(run, &args.head) && verify_rounded_once(run, "y", y, want, &bound);
    free(want);
    free(bounds);
    return good;
}

// -------------------------------------------------------------------------------------------------------- KV append

// The whole of a cache as it must stand afterwards: as before, with the new rows in their slots, where a sequence's rows all fit; bounds 0 for
// the others.
typedef struct cache_oracle {
    double *want, *bounds;
} cache_oracle;

static void place_rows(const kf_kv_append_args *args, const kf_tensor *cache, const double *rows,
                       const double *row_bound, cache_oracle *w) {
    const int64_t B = args->k->shape[0], H = args->k->shape[1], N = args->k->shape[2], D = cache->shape[3],
                  capacity = cache->shape[2];
    for (int64_t r = 0; r < B * H * capacity; r++) ref_row(cache, r, w->want + r * D), w->bounds[r] = 0;
    for (int64_t r = 0; r < B * H * N; r++) {
        const int64_t b = r / (H * N);
        const int64_t first = args->slots ? (int64_t)ref_at(args->slots, &b) : 0;
        if (first < 0 || first > capacity - N) continue;
        const int64_t at = r / N * capacity + first + r % N;
        memcpy(w->want + at * D, rows + r * D, (size_t)D * sizeof(double));
        w->bounds[at] = row_bound ? row_bound[r] : 0;
    }
}

static bool cache_oracle_open(verify_run *run, const kf_tensor *cache, cache_oracle *w) {
    w->want = verify_doubles(run, ref_elements(cache));
    w->bounds = verify_doubles(run, ref_leading(cache, 1));
    return w->want && w->bounds;
}

static void cache_oracle_close(cache_oracle *w) {
    free(w->want);
    free(w->bounds);
}

static bool find_caches(verify_run *run, const kf_kv_append_args *args, cache_oracle *k, cache_oracle *v) {
    double *k_rows = verify_doubles(run, ref_elements(args->k)), *v_rows = verify_doubles(run, ref_elements(args->v));
    double *k_bounds = verify_doubles(run, ref_leading(args->k, 1));
    const bool open = k_rows && v_rows && k_bounds;
    if (open) {
        ref_kv_append(args, k_rows, v_rows);
        row_bounds(args->k, k_bounds);
        place_rows(args, args->k_cache, k_rows, args->rope.pairing ? k_bounds : NULL, k);
        place_rows(args, args->v_cache, v_rows, NULL, v);
    }
    free(k_rows);
    free(v_rows);
    free(k_bounds);
    return open;
}

// Runs it and holds the caches against the oracle's.
static bool check_caches(verify_run *run, const kf_kv_append_args *args) {
    cache_oracle k_want = {0}, v_want = {0};
    bool good = cache_oracle_open(run, args->k_cache, &k_want) && cache_oracle_open(run, args->v_cache, &v_want) &&
                find_caches(run, args, &k_want, &v_want);
    const verify_bound k_bound = {.rule = "one rounding, in the new rows alone", .row = k_want.bounds, .ulps = 0.5001};
    const verify_bound v_bound = {.rule = "one rounding, in the new rows alone", .ulps = 0.5001};
    good = good && verify_execute(run, &args->head) &&
           verify_rounded_once(run, "k_cache", args->k_cache, k_want.want, &k_bound) &&
           verify_rounded_once(run, "v_cache", args->v_cache, v_want.want, &v_bound);
    cache_oracle_close(&k_want);
    cache_oracle_close(&v_want);
    return good;
}

static bool check_kv_append(verify_run *run, const void *pointer) {
    const rope_case *row = pointer;
    verify_pool *pool = &run->pool;
    const int64_t k[4] = {row->B, row->H, row->N, row->D}, v[4] = {row->B, row->H, row->N, row->Dv};
    const int64_t k_cache[4] = {row->B, row->H, row->capacity, row->D},
                  v_cache[4] = {row->B, row->H, row->capacity, row->Dv};
    const kf_dtype x = verify_dtype(row->x), y = verify_dtype(row->y);
    kf_kv_append_args args;
    kf_kv_append_args_init(&args);
    kf_tensor *tensors[4] = {verify_tensor(pool, "k", VERIFY_INPUT, x, row->layout, 4, k),
                             verify_tensor(pool, "v", VERIFY_INPUT, x, row->layout, 4, v),
                             verify_tensor(pool, "k_cache", VERIFY_IN_PLACE, y, row->layout, 4, k_cache),
                             verify_tensor(pool, "v_cache", VERIFY_IN_PLACE, y, row->layout, 4, v_cache)};
    kf_tensor *slots =
        row->no_slots ? NULL
                      : verify_tensor(pool, "slots", VERIFY_INPUT, verify_dtype("int64"), VERIFY_COMPACT, 1, &row->B);
    args.positions = row->positions ? make_positions(pool, row->B, row->N) : NULL;
    if (pool->exhausted) return false;
    for (int t = 0; t < 4; t++) verify_fill_normal(pool, tensors[t], 1);
    for (int64_t b = 0; slots && b < row->B; b++) {
        // The first sequence up to the cache's end, the others anywhere.
        verify_set(slots, &b,
                   b == 0 ? (double)(row->capacity - row->N)
                          : (double)verify_random_between(&pool->random, 0, row->capacity - row->N));
    }
    if (row->edit) row->edit(tensors[0]), row->edit(tensors[1]);
    args.k = tensors[0], args.v = tensors[1], args.k_cache = tensors[2], args.v_cache = tensors[3], args.slots = slots;
    if (!row->no_rotation) args.rope = ROTATIONS[row->rotation].rope;
    return check_caches(run, &args);
}

// A slot past the end: refused before anything is written. On a device, where no host has read the slots, that sequence is left out.
static bool check_kv_append_full(verify_run *run, const void *pointer) {
    const rope_case *row = pointer;
    verify_pool *pool = &run->pool;
    const int64_t shape[4] = {row->B, row->H, row->N, row->D}, cache[4] = {row->B, row->H, row->capacity, row->D};
    kf_kv_append_args args;
    kf_kv_append_args_init(&args);
    kf_tensor *tensors[4] = {
        verify_tensor(pool, "k", VERIFY_INPUT, verify_dtype(row->x), VERIFY_COMPACT, 4, shape),
        verify_tensor(pool, "v", VERIFY_INPUT, verify_dtype(row->x), VERIFY_COMPACT, 4, shape),
        verify_tensor(pool, "k_cache", VERIFY_IN_PLACE, verify_dtype(row->y), VERIFY_COMPACT, 4, cache),
        verify_tensor(pool, "v_cache", VERIFY_IN_PLACE, verify_dtype(row->y), VERIFY_COMPACT, 4, cache)};
    kf_tensor *slots = verify_tensor(pool, "slots", VERIFY_INPUT, verify_dtype("int32"), VERIFY_COMPACT, 1, &row->B);
    if (pool->exhausted) return false;
    for (int t = 0; t < 4; t++) verify_fill_normal(pool, tensors[t], 1);
    // The last sequence does not fit: one too far, or before the beginning.
    verify_fill_value(slots, 0);
    const int64_t last = row->B - 1;
    verify_set(slots, &last, row->offset ? (double)(row->capacity - row->N + 1) : -1);
    args.k = tensors[0], args.v = tensors[1], args.k_cache = tensors[2], args.v_cache = tensors[3], args.slots = slots;
    return run->device ? check_caches(run, &args) : verify_refused(run, &args.head, KF_INVALID_ARGUMENT);
}

// -------------------------------------------------------------------------------------------------------------- tables

static void nan_and_inf(kf_tensor *x) {
    verify_set(x, (const int64_t[]){0, 0, 0, 1}, NAN);
    verify_set(x, (const int64_t[]){0, 0, x->shape[2] - 1, x->shape[3] - 1}, INFINITY);
}

static const char *const DTYPES[] = {"fp32", "fp16", "bf16"};
static const int64_t HEAD_DIMS[] = {64, 128, 40, 24, 96, 256};

static rope_case random_rope(uint64_t *state) {
    rope_case row = {.rotation = (int)(verify_random(state) % COUNT(ROTATIONS)),
                     .B = verify_random_between(state, 1, 3)};
    row.H = verify_random_between(state, 1, 5), row.N = verify_random_between(state, 1, 20);
    row.D = 2 * verify_random_between(state, 10, 128), row.Dv = verify_random_between(state, 1, 200);
    row.capacity = row.N + verify_random_between(state, 0, 50);
    row.x = DTYPES[verify_random(state) % 3], row.y = DTYPES[verify_random(state) % 3];
    row.positions = verify_random(state) & 1, row.offset = verify_random_between(state, 0, 5000);
    row.no_slots = verify_random(state) % 4 == 0, row.no_rotation = verify_random(state) % 3 == 0;
    row.layout = verify_random(state) & 1 ? VERIFY_SHUFFLED : VERIFY_GAPS;
    return row;
}

void verify_rope(verify_run *run) {
    for (int c = 0; c < COUNT(ROTATIONS); c++) {
        for (int d = 0; d < 9; d++) {
            rope_case row = {
                .rotation = c, .B = 2, .H = 3, .N = 1 + 4 * (d % 3), .D = HEAD_DIMS[(c + d) % COUNT(HEAD_DIMS)]};
            row.x = DTYPES[d % 3], row.y = DTYPES[(d + d / 3) % 3], row.positions = (c + d) % 2, row.offset = d * 1000;
            row.in_place = d / 3 == 0, row.layout = (verify_layout)(d % 2 ? VERIFY_SWAPPED : VERIFY_SHUFFLED);
            verify_case(run, check_rope, &row, "rope/%s/%s-%s%s", ROTATIONS[c].name, row.x, row.y,
                        row.in_place ? "-in-place" : "");
        }
    }
    for (int d = 0; d < 3; d++) {
        rope_case row = {.B = 1, .H = 2, .N = 3, .D = 64, .x = DTYPES[d], .y = DTYPES[d], .edit = nan_and_inf};
        verify_case(run, check_rope, &row, "rope/nan-and-inf/%s", row.x);
        row.edit = NULL, row.D = 2;
        verify_case(run, check_rope, &row, "rope/head-dim-2/%s", row.x);
        row.D = 34;
        verify_case(run, check_rope, &row, "rope/head-dim-34/%s", row.x);
        row.D = 64, row.offset = 4095; // where a table of 4096 positions would end
        verify_case(run, check_rope, &row, "rope/report/position-4096/%s", row.x);
        row.offset = 15960;
        verify_case(run, check_rope, &row, "rope/report/position-15962/%s", row.x);
        row.offset = 10000000;
        verify_case(run, check_rope, &row, "rope/position-10-million/%s", row.x);
        row.N = 0;
        verify_case(run, check_rope, &row, "rope/no-rows/%s", row.x);
    }
    for (int64_t n = 0; n < run->random; n++) {
        uint64_t state = run->seed * 1000099 + (uint64_t)n;
        const rope_case row = random_rope(&state);
        verify_case(run, check_rope, &row, "rope/random/%lld", (long long)n);
    }
}

void verify_kv_append(verify_run *run) {
    for (int d = 0; d < 3; d++) { // whole vectors of each dtype
        rope_case row = {.B = 2, .H = 2, .N = 3, .D = 64, .Dv = 64, .capacity = 20, .x = DTYPES[d], .y = DTYPES[d]};
        verify_case(run, check_kv_append, &row, "kv_append/aligned/%s", row.x);
        row.H = 3, row.N = 400, row.capacity = 430;
        verify_case(run, check_kv_append, &row, "kv_append/aligned-many/%s", row.x);
    }
    for (int c = 0; c < 9; c++) {
        rope_case row = {
            .rotation = c, .B = 3, .H = 2, .N = 1 + c % 4, .D = HEAD_DIMS[c % COUNT(HEAD_DIMS)], .capacity = 29};
        row.Dv = c % 2 ? row.D : 80, row.x = DTYPES[c % 3], row.y = DTYPES[c / 3], row.positions = c % 2,
        row.layout = (verify_layout)(c % 3);
        verify_case(run, check_kv_append, &row, "kv_append/%s/%s-%s", ROTATIONS[c].name, row.x, row.y);
        row.no_rotation = true, row.no_slots = c % 2;
        verify_case(run, check_kv_append, &row, "kv_append/no-rotation/%s-%s", row.x, row.y);
        row.edit = nan_and_inf;
        verify_case(run, check_kv_append, &row, "kv_append/nan-and-inf/%s-%s", row.x, row.y);
        row.edit = NULL, row.Dv = row.D;
        verify_case(run, check_kv_append_full, &row, "kv_append/before-the-cache/%s-%s", row.x, row.y);
        row.offset = 1;
        verify_case(run, check_kv_append_full, &row, "kv_append/past-the-cache/%s-%s", row.x, row.y);
    }
    for (int64_t n = 0; n < run->random; n++) {
        uint64_t state = run->seed * 1000117 + (uint64_t)n;
        const rope_case row = random_rope(&state);
        verify_case(run, check_kv_append, &row, "kv_append/random/%lld", (long long)n);
    }
}
