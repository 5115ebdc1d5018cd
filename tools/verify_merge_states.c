// SPDX-License-Identifier: Apache-2.0
//
// The cases of merge_states: numbers of parts, empty parts (whose o may hold anything), states far apart.
#include "verify.h"

#include <math.h>
#include <stdlib.h>

#define COUNT(table) ((int)(sizeof(table) / sizeof *(table)))

typedef struct merge_case {
    const char *name;
    int64_t parts, rows[2], n;
    const char *o_parts, *o;
    verify_layout layout;
    bool no_lse;
    void (*edit)(kf_tensor *o_parts, kf_tensor *lse_parts);
} merge_case;

static const verify_bound BOUND = {
    .rule = "one rounding of an fp32 result", .relative = 2e-6, .absolute = 4e-6, .ulps = 0.5001};
static const verify_bound LSE_BOUND = {.rule = "log-sum-exp", .relative = 2e-6, .absolute = 2e-6};

static bool check_merge(verify_run *run, const void *pointer) {
    const merge_case *row = pointer;
    verify_pool *pool = &run->pool;
    const int64_t shape[4] = {row->parts, row->rows[0], row->rows[1], row->n};
    kf_tensor *o_parts =
        verify_tensor(pool, "o_parts", VERIFY_INPUT, verify_dtype(row->o_parts), row->layout, 4, shape);
    kf_tensor *lse_parts = verify_tensor(pool, "lse_parts", VERIFY_INPUT, (kf_dtype)KF_FP32, row->layout, 3, shape);
    kf_tensor *o = verify_tensor(pool, "o", VERIFY_OUTPUT, verify_dtype(row->o), row->layout, 3, shape + 1),
              *lse = NULL;
    if (!row->no_lse) lse = verify_tensor(pool, "lse", VERIFY_OUTPUT, (kf_dtype)KF_FP32, row->layout, 2, shape + 1);
    if (pool->exhausted) return false;
    verify_fill_normal(pool, o_parts, 1);
    verify_fill_normal(pool, lse_parts, 3);
    if (row->edit) row->edit(o_parts, lse_parts);

    kf_merge_states_args args;
    kf_merge_states_args_init(&args);
    args.o_parts = o_parts, args.lse_parts = lse_parts, args.o = o, args.lse = lse;
    const int64_t rows = row->rows[0] * row->rows[1];
    double *want = verify_doubles(run, rows * row->n), *want_lse = verify_doubles(run, rows);
    bool good = want && want_lse && ref_merge_states(&args, want, want_lse);
    good = good && verify_execute(run, &args.head) && verify_rounded_once(run, "o", o, want, &BOUND) &&
           (!lse || verify_scalars(run, "lse", lse, NULL, rows, want_lse, &LSE_BOUND));
    free(want);
    free(want_lse);
    return good;
}

// Part s of every row: its log-sum-exp, and what its o holds (0: left).
static void set_part(kf_tensor *o_parts, kf_tensor *lse_parts, int64_t s, double lse, double o) {
    const int64_t rows = ref_leading(lse_parts, 1) / lse_parts->shape[0], n = lse_parts->shape[2];
    for (int64_t r = 0; r < rows; r++) verify_set_row(lse_parts, s * rows + r, lse);
    for (int64_t r = 0; r < rows * n && o != 0; r++) verify_set_row(o_parts, s * rows * n + r, o);
}

static void empty_parts(kf_tensor *o, kf_tensor *lse) {
    set_part(o, lse, 0, -INFINITY, NAN);
    set_part(o, lse, 2, -INFINITY, INFINITY);
}
static void all_empty(kf_tensor *o, kf_tensor *lse) {
    for (int64_t s = 0; s < lse->shape[0]; s++) set_part(o, lse, s, -INFINITY, NAN);
}
static void only_last(kf_tensor *o, kf_tensor *lse) {
    for (int64_t s = 0; s + 1 < lse->shape[0]; s++) set_part(o, lse, s, -INFINITY, NAN);
}
static void far_apart(kf_tensor *o, kf_tensor *lse) {
    for (int64_t s = 0; s < lse->shape[0]; s++) set_part(o, lse, s, 3000.0 * (double)s - 5000, 0);
}
static void low(kf_tensor *o, kf_tensor *lse) {
    for (int64_t s = 0; s < lse->shape[0]; s++) set_part(o, lse, s, -50000 - (double)s, 0);
}
static void lowest(kf_tensor *o, kf_tensor *lse) {
    for (int64_t s = 0; s < lse->shape[0]; s++) set_part(o, lse, s, -3.38e38, 0);
}
static void nan_in_a_part(kf_tensor *o, kf_tensor *lse) {
    (void)lse;
    verify_set(o, (const int64_t[]){1, 0, 0, 2}, NAN);
}
static void nan_lse(kf_tensor *o, kf_tensor *lse) {
    (void)o;
    verify_set(lse, (const int64_t[]){1, 0, 0}, NAN);
}

static const merge_case CASES[] = {
    {.name = "one-part", .parts = 1},
    {.name = "two-parts", .parts = 2},
    {.name = "three-parts", .parts = 3, .layout = VERIFY_GAPS},
    {.name = "sixteen-parts", .parts = 16, .layout = VERIFY_SHUFFLED},
    {.name = "no-lse", .parts = 4, .no_lse = true},
    {.name = "empty-parts", .parts = 4, .edit = empty_parts},
    {.name = "all-empty", .parts = 4, .edit = all_empty},
    {.name = "only-last", .parts = 4, .edit = only_last},
    {.name = "no-parts", .parts = 0},
    {.name = "far-apart", .parts = 4, .edit = far_apart},
    {.name = "low", .parts = 4, .edit = low},
    {.name = "lowest", .parts = 2, .edit = lowest},
    {.name = "nan-in-a-part", .parts = 3, .edit = nan_in_a_part},
    {.name = "nan-lse", .parts = 3, .edit = nan_lse},
};

void verify_merge_states(verify_run *run) {
    static const char *const DTYPES[] = {"fp32", "fp16", "bf16"};
    static const int64_t WIDTHS[] = {64, 128, 80, 8, 33};
    for (int d = 0; d < 9; d++) {
        for (int c = 0; c < COUNT(CASES); c++) {
            if (d % 3 != d / 3 && (c + d) % 4) continue; // of the dtypes that differ, a quarter
            merge_case row = CASES[c];
            row.rows[0] = 2, row.rows[1] = 5, row.n = WIDTHS[(c + d) % COUNT(WIDTHS)];
            row.o_parts = DTYPES[d % 3], row.o = DTYPES[d / 3];
            verify_case(run, check_merge, &row, "merge_states/%s/%s-%s", row.name, row.o_parts, row.o);
        }
    }
    for (int64_t n = 0; n < run->random; n++) {
        uint64_t state = run->seed * 1000037 + (uint64_t)n;
        merge_case row = {.parts = verify_random_between(&state, 1, 20), .n = verify_random_between(&state, 1, 300)};
        row.rows[0] = verify_random_between(&state, 1, 4), row.rows[1] = verify_random_between(&state, 1, 9);
        row.o_parts = DTYPES[verify_random(&state) % 3], row.o = DTYPES[verify_random(&state) % 3];
        row.layout = verify_random(&state) & 1 ? VERIFY_SHUFFLED : VERIFY_GAPS;
        verify_case(run, check_merge, &row, "merge_states/random/%lld", (long long)n);
    }
}
