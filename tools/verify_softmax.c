// SPDX-License-Identifier: Apache-2.0
//
// The cases of softmax: lengths around vectors and tiles, dtypes, layouts, in place, and rows that are hostile.
#include "verify.h"

#include <math.h>
#include <stdlib.h>

#define COUNT(table) ((int)(sizeof(table) / sizeof *(table)))

typedef struct softmax_case {
    const char *name;
    int64_t rows[3]; // leading dimensions
    int ndim;        // 1 to 4: how many of rows there are, plus 1
    int64_t n;
    const char *x, *y;
    verify_layout layout;
    bool in_place, no_lse;
    bool
        fixed_split; // by the context whose bits do not depend on the number of rows: the way of long rows that are many
    double deviation; // of the normal values; 2
    void (*edit)(kf_tensor *x);
} softmax_case;

// exp's argument is rounded at the size of x - max, so small values carry more relative error; below 1e-9 nothing is asked of them. Where
// the output has 16 bits, an exp of 3e-6 is enough beside their 5e-4.
static verify_bound bound_of(kf_dtype y) {
    const double relative = ref_precision(y) == 24 ? 2e-6 : 4e-6;
    return (verify_bound){
        .rule = "one rounding of an fp32 result", .relative = relative, .absolute = 1e-9, .ulps = 0.5001};
}

static const verify_bound LSE_BOUND = {.rule = "log-sum-exp", .relative = 2e-6, .absolute = 2e-6};

static bool check_softmax(verify_run *run, const void *pointer) {
    const softmax_case *row = pointer;
    verify_pool *pool = &run->pool;
    int64_t shape[4];
    for (int a = 0; a < row->ndim - 1; a++) shape[a] = row->rows[a];
    shape[row->ndim - 1] = row->n;
    const unsigned role = row->in_place ? VERIFY_IN_PLACE : VERIFY_INPUT;
    kf_tensor *x = verify_tensor(pool, "x", role, verify_dtype(row->x), row->layout, row->ndim, shape);
    kf_tensor *y = row->in_place
                       ? x
                       : verify_tensor(pool, "y", VERIFY_OUTPUT, verify_dtype(row->y), row->layout, row->ndim, shape);
    kf_tensor *lse = NULL;
    if (!row->no_lse)
        lse = verify_tensor(pool, "lse", VERIFY_OUTPUT, (kf_dtype)KF_FP32, VERIFY_COMPACT, row->ndim - 1, shape);
    if (pool->exhausted) return false;
    verify_fill_normal(pool, x, row->deviation != 0 ? row->deviation : 2);
    if (row->edit) row->edit(x);

    kf_softmax_args args;
    kf_softmax_args_init(&args);
    args.x = x, args.y = y, args.lse = lse;
    double *want = verify_doubles(run, ref_elements(x)), *want_lse = verify_doubles(run, ref_leading(x, 1));
    const verify_bound bound = bound_of(y->dtype);
    bool good = want && want_lse;
    if (good) ref_softmax(&args, want, want_lse);
    if (good)
        good =
            row->fixed_split ? verify_execute_once(run, run->fixed_split, &args.head) : verify_execute(run, &args.head);
    good = good && verify_rounded_once(run, "y", y, want, &bound) &&
           (!lse || verify_scalars(run, "lse", lse, NULL, ref_leading(x, 1), want_lse, &LSE_BOUND));
    free(want);
    free(want_lse);
    return good;
}

// ------------------------------------------------------------------------------------------------------- hostile rows

static void row_of(kf_tensor *x, double value) { verify_set_row(x, 0, value); }
static void all_minus_inf(kf_tensor *x) { row_of(x, -INFINITY); }
static void all_lowest(kf_tensor *x) {
    row_of(x, x->dtype.bits == 32 || x->dtype.code == KF_CODE_BFLOAT ? -3.38e38 : -65504);
}
static void all_highest(kf_tensor *x) {
    row_of(x, x->dtype.bits == 32 || x->dtype.code == KF_CODE_BFLOAT ? 3.38e38 : 65504);
}
static void set_one(kf_tensor *x, double value) {
    const int64_t index[4] = {0, x->shape[1] / 2, 0, 0}; // [rows, n]
    verify_set(x, index, value);
}
static void one_nan(kf_tensor *x) { set_one(x, NAN); }
static void one_plus_inf(kf_tensor *x) { set_one(x, INFINITY); }
static void one_minus_inf(kf_tensor *x) { set_one(x, -INFINITY); }
static void one_high(kf_tensor *x) { set_one(x, 60000); }
static void first_high(kf_tensor *x) { verify_set(x, (const int64_t[]){0, 0}, 5000); }
static void last_high(kf_tensor *x) { verify_set(x, (const int64_t[]){0, x->shape[1] - 1}, 5000); }
static void only_last_finite(kf_tensor *x) {
    row_of(x, -INFINITY);
    verify_set(x, (const int64_t[]){0, x->shape[1] - 1}, 1);
}
static void equal(kf_tensor *x) { row_of(x, 0.5); }
static void lowest_and_highest(kf_tensor *x) {
    all_lowest(x);
    set_one(x, x->dtype.bits == 32 || x->dtype.code == KF_CODE_BFLOAT ? 3.38e38 : 65504);
}

static const softmax_case HOSTILE[] = {
    {.name = "all-minus-inf", .edit = all_minus_inf},
    {.name = "all-lowest", .edit = all_lowest},
    {.name = "all-highest", .edit = all_highest},
    {.name = "one-nan", .edit = one_nan},
    {.name = "one-plus-inf", .edit = one_plus_inf},
    {.name = "one-minus-inf", .edit = one_minus_inf},
    {.name = "one-high", .edit = one_high},
    {.name = "first-high", .edit = first_high},
    {.name = "last-high", .edit = last_high},
    {.name = "only-last-finite", .edit = only_last_finite},
    {.name = "equal", .edit = equal},
    {.name = "lowest-and-highest", .edit = lowest_and_highest},
    {.name = "wide", .deviation = 40},
};

static const char *const DTYPES[] = {"fp32", "fp16", "bf16"};
static const int64_t LENGTHS[] = {1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 257, 1000, 4099};
// Rows that lie at multiples of 16 bytes, one step past each way of sharing a row among threads.
static const int64_t ALIGNED[] = {8, 24, 136, 264, 520, 1032, 2056, 4104, 8200, 16392, 32776, 65544, 131080, 262152};

void verify_softmax(verify_run *run) {
    for (int d = 0; d < COUNT(DTYPES); d++) {
        for (int c = 0; c < COUNT(HOSTILE); c++) {
            softmax_case row = HOSTILE[c];
            row.rows[0] = 3, row.ndim = 2, row.n = 77 + 200 * (c % 3), row.x = row.y = DTYPES[d];
            verify_case(run, check_softmax, &row, "softmax/hostile/%s/%s", row.name, row.x);
            row.n = 70000, row.fixed_split = true;
            verify_case(run, check_softmax, &row, "softmax/hostile-long/%s/%s", row.name, row.x);
            row.n = 477, row.fixed_split = false, row.no_lse = true; // for y alone shorter exponentials do
            verify_case(run, check_softmax, &row, "softmax/hostile-y/%s/%s", row.name, row.x);
        }
        for (int n = 0; n < COUNT(LENGTHS); n++) {
            softmax_case row = {
                .rows = {3, 2, 5}, .ndim = 1 + n % 4, .n = LENGTHS[n], .x = DTYPES[d], .y = DTYPES[(d + n) % 3]};
            row.layout = (verify_layout)(n % VERIFY_LAYOUTS);
            if (row.layout == VERIFY_SHARED || row.layout == VERIFY_NEGATIVE) row.layout = VERIFY_GAPS;
            row.no_lse = n % 5 == 4;
            verify_case(run, check_softmax, &row, "softmax/length/%lld/%s-%s", (long long)row.n, row.x, row.y);
        }
        for (int n = 0; n < COUNT(ALIGNED); n++) {
            softmax_case row = {.rows = {n < 6 ? 7 : 2}, .ndim = 2, .n = ALIGNED[n], .x = DTYPES[d], .y = DTYPES[d]};
            row.in_place = n % 3 == 2, row.no_lse = n % 2 == 1;
            verify_case(run, check_softmax, &row, "softmax/aligned/%lld/%s", (long long)row.n, row.x);
            row.fixed_split = true;
            if (row.n > 16384)
                verify_case(run, check_softmax, &row, "softmax/fixed-split/%lld/%s", (long long)row.n, row.x);
        }
        softmax_case row = {.rows = {2, 5},
                            .ndim = 3,
                            .n = 300,
                            .x = DTYPES[d],
                            .y = DTYPES[d],
                            .layout = VERIFY_SHUFFLED,
                            .in_place = true};
        verify_case(run, check_softmax, &row, "softmax/in-place/%s", row.x);
        row.in_place = false, row.layout = VERIFY_NEGATIVE;
        verify_case(run, check_softmax, &row, "softmax/negative-strides/%s", row.x);
        row.layout = VERIFY_COMPACT, row.n = 50001, row.rows[1] = 1;
        verify_case(run, check_softmax, &row, "softmax/long/%s", row.x);
        row.n = 270001;
        verify_case(run, check_softmax, &row, "softmax/longer/%s", row.x);
        row.n = 150001, row.fixed_split = true;
        verify_case(run, check_softmax, &row, "softmax/fixed-split/%lld/%s", (long long)row.n, row.x);
        row.fixed_split = false;
        row.n = 0;
        verify_case(run, check_softmax, &row, "softmax/empty-rows/%s", row.x);
        row.n = 5, row.rows[1] = 0;
        verify_case(run, check_softmax, &row, "softmax/no-rows/%s", row.x);
    }
    for (int64_t n = 0; n < run->random; n++) {
        uint64_t state = run->seed * 1000033 + (uint64_t)n;
        softmax_case row = {.ndim = (int)verify_random_between(&state, 1, 4),
                            .n = verify_random_between(&state, 1, 600)};
        for (int a = 0; a < 3; a++) row.rows[a] = verify_random_between(&state, 1, 6);
        row.x = DTYPES[verify_random(&state) % 3], row.y = DTYPES[verify_random(&state) % 3];
        row.layout = verify_random(&state) & 1 ? VERIFY_SHUFFLED : VERIFY_GAPS;
        row.no_lse = verify_random(&state) % 4 == 0;
        verify_case(run, check_softmax, &row, "softmax/random/%lld", (long long)n);
    }
}
