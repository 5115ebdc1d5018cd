// SPDX-License-Identifier: Apache-2.0
//
// The cases of RMSNorm: every place of the cast, with and without residual, sum and weight, in place, tiny and huge inputs.
#include "verify.h"

#include <math.h>
#include <stdlib.h>

#define COUNT(table) ((int)(sizeof(table) / sizeof *(table)))

typedef struct rmsnorm_case {
    const char *name;
    int64_t rows[2], n;
    const char *x, *y, *sum, *weight; // dtypes; sum, weight: NULL: absent
    bool residual;
    enum { APART, Y_IS_X, SUM_IS_RESIDUAL, SUM_IS_X } alias;
    int cast;
    float eps, offset;
    double deviation; // of x; 1
    verify_layout layout;
    void (*edit)(kf_tensor *x);
} rmsnorm_case;

// END rounds once. SUM and LLAMA round in between, to dtypes that may be coarser than the output's: where a number lies near a tie, fp32
// and float64 may go different ways there, which the oracle's slack allows, and of which the norm of a row of finer numbers knows nothing.
static verify_bound bound_of(const rmsnorm_case *row, const kf_rmsnorm_args *args, const double *slack) {
    verify_bound bound = {
        .rule = "the roundings that `cast` names", .relative = 2e-6, .absolute = 1e-37, .ulps = 0.5001};
    bound.size = slack, bound.share = 1;
    const kf_dtype sum = args->sum ? args->sum->dtype : args->x->dtype;
    if (row->cast != KF_CAST_END) bound.norm = ref_coarser(args->y->dtype, ref_coarser(sum, args->x->dtype));
    return bound;
}

static bool check_rmsnorm(verify_run *run, const void *pointer) {
    const rmsnorm_case *row = pointer;
    verify_pool *pool = &run->pool;
    const int64_t shape[3] = {row->rows[0], row->rows[1], row->n};
    const kf_dtype x_dtype = verify_dtype(row->x);
    const unsigned x_role = row->alias == Y_IS_X || row->alias == SUM_IS_X ? VERIFY_IN_PLACE : VERIFY_INPUT;
    const unsigned residual_role = row->alias == SUM_IS_RESIDUAL ? VERIFY_IN_PLACE : VERIFY_INPUT;
    kf_tensor *x = verify_tensor(pool, "x", x_role, x_dtype, row->layout, 3, shape), *residual = NULL, *weight = NULL,
              *sum = NULL;
    if (row->residual) residual = verify_tensor(pool, "residual", residual_role, x_dtype, row->layout, 3, shape);
    if (row->weight)
        weight = verify_tensor(pool, "weight", VERIFY_INPUT, verify_dtype(row->weight), VERIFY_COMPACT, 1, shape + 2);
    kf_tensor *y =
        row->alias == Y_IS_X ? x : verify_tensor(pool, "y", VERIFY_OUTPUT, verify_dtype(row->y), row->layout, 3, shape);
    if (row->alias == SUM_IS_RESIDUAL)
        sum = residual;
    else if (row->alias == SUM_IS_X)
        sum = x;
    else if (row->sum)
        sum = verify_tensor(pool, "sum", VERIFY_OUTPUT, verify_dtype(row->sum), row->layout, 3, shape);
    if (pool->exhausted || !x || !y) return false;
    verify_fill_normal(pool, x, row->deviation != 0 ? row->deviation : 1);
    if (residual) verify_fill_normal(pool, residual, row->deviation != 0 ? row->deviation : 1);
    if (weight) verify_fill_normal(pool, weight, 1);
    if (row->edit) row->edit(x);

    kf_rmsnorm_args args;
    kf_rmsnorm_args_init(&args);
    args.x = x, args.residual = residual, args.weight = weight, args.y = y, args.sum = sum;
    args.eps = row->eps, args.weight_offset = row->offset, args.cast = row->cast;
    const int64_t count = ref_elements(x);
    double *want = verify_doubles(run, count), *want_sum = verify_doubles(run, count),
           *slack = verify_doubles(run, count);
    const verify_bound bound = bound_of(row, &args, slack);
    const verify_bound sum_bound = {.rule = "one rounding", .relative = 1e-7, .ulps = 0.5001};
    bool good = want && want_sum && slack && ref_rmsnorm(&args, want, want_sum, slack);
    good = good && verify_execute(run, &args.head) && verify_rounded_once(run, "y", y, want, &bound) &&
           (!sum || verify_rounded_once(run, "sum", sum, want_sum, &sum_bound));
    free(want);
    free(want_sum);
    free(slack);
    return good;
}

static void nan_in_a_row(kf_tensor *x) { verify_set(x, (const int64_t[]){0, 0, x->shape[2] / 2}, NAN); }
static void inf_in_a_row(kf_tensor *x) { verify_set(x, (const int64_t[]){0, 0, x->shape[2] / 2}, INFINITY); }
static void zero_row(kf_tensor *x) { verify_set_row(x, 0, 0); }

static const rmsnorm_case CASES[] = {
    {.name = "plain", .weight = "x"},
    {.name = "no-weight"},
    {.name = "gemma", .weight = "x", .offset = 1, .cast = KF_CAST_SUM},
    {.name = "weight-fp32", .weight = "fp32"},
    {.name = "residual", .weight = "x", .residual = true, .sum = "x"},
    {.name = "residual-without-sum", .weight = "x", .residual = true},
    {.name = "residual-sum-fp32", .weight = "x", .residual = true, .sum = "fp32"},
    {.name = "sum-without-residual", .weight = "x", .sum = "x"},
    {.name = "y-is-x", .weight = "x", .alias = Y_IS_X},
    {.name = "y-is-x-residual", .weight = "x", .residual = true, .sum = "x", .alias = Y_IS_X},
    {.name = "sum-is-residual", .weight = "x", .residual = true, .alias = SUM_IS_RESIDUAL},
    {.name = "sum-is-x", .weight = "x", .residual = true, .alias = SUM_IS_X},
    {.name = "tiny-inputs-d32", .weight = "x", .deviation = 1e-4, .eps = 1e-6f},
    {.name = "eps-0", .weight = "x", .eps = 0},
    {.name = "eps-large", .weight = "x", .eps = 10},
    {.name = "large-inputs", .weight = "x", .deviation = 3000},
    {.name = "zero-row", .weight = "x", .edit = zero_row},
    {.name = "nan-in-a-row", .weight = "x", .edit = nan_in_a_row},
    {.name = "inf-in-a-row", .weight = "x", .edit = inf_in_a_row},
};

static const char *const DTYPES[] = {"fp32", "fp16", "bf16"};
static const char *const CASTS[] = {"end", "sum", "llama"};
static const int64_t WIDTHS[] = {576, 32, 1, 64, 100, 255, 1027, 4096};
// Rows that lie at multiples of 16 bytes, one step past each way of sharing a row among threads; the last are longer than any holds.
static const int64_t ALIGNED[] = {8, 136, 264, 520, 1032, 2056, 4104, 8200, 16392, 32776, 65544, 131080};
// Rows of several dtypes: of so many elements as a thread, a warp, and a block of threads with one, two and four pieces of 8 each have
// room for, and of more.
static const int64_t MIXED[] = {8, 500, 4000, 6001, 12000, 20011};

// In the tables "x" stands for x's dtype.
static void set_dtypes(rmsnorm_case *row, const char *x, const char *y) {
    row->x = x;
    row->y = row->alias == Y_IS_X ? x : y;
    if (row->sum && row->sum[0] == 'x') row->sum = x;
    if (row->weight && row->weight[0] == 'x') row->weight = x;
}

void verify_rmsnorm(verify_run *run) {
    for (int c = 0; c < COUNT(CASES); c++) {
        for (int d = 0; d < COUNT(DTYPES) * COUNT(CASTS); d++) {
            rmsnorm_case row = CASES[c];
            const char *x = DTYPES[d % 3];
            if (row.cast && row.cast != d / 3) continue;
            row.cast = d / 3, row.rows[0] = 2, row.rows[1] = 3;
            row.n = c == 12 ? 32 : WIDTHS[(c + d) % COUNT(WIDTHS)];
            row.layout = (verify_layout)((c + d) % 2 ? VERIFY_SHUFFLED : VERIFY_COMPACT);
            if (row.eps == 0 && c != 13) row.eps = 1e-5f;
            set_dtypes(&row, x, c % 5 == 4 ? "fp32" : x);
            verify_case(run, check_rmsnorm, &row, "rmsnorm/%s/%s/%s", row.name, CASTS[row.cast], row.x);
        }
    }
    for (int d = 0; d < COUNT(DTYPES); d++) {
        for (int n = 0; n < 2 * COUNT(ALIGNED); n++) {
            rmsnorm_case row = {.rows = {1, 3}, .n = ALIGNED[n / 2], .residual = true, .sum = "x", .weight = "x"};
            row.cast = (n / 2 + d) % 3, row.eps = 1e-6f;
            if (n % 2) row.alias = row.n % 3 ? SUM_IS_X : Y_IS_X;
            set_dtypes(&row, DTYPES[d], DTYPES[d]);
            verify_case(run, check_rmsnorm, &row, "rmsnorm/aligned%s/%lld/%s", n % 2 ? "-in-place" : "",
                        (long long)row.n, row.x);
        }
        for (int n = 3; n < COUNT(ALIGNED); n += 3) {
            rmsnorm_case row = {.rows = {1, 3}, .n = ALIGNED[n], .weight = "x", .offset = 1, .eps = 1e-6f};
            row.cast = (n / 3 + d) % 3;
            set_dtypes(&row, DTYPES[d], DTYPES[d]);
            verify_case(run, check_rmsnorm, &row, "rmsnorm/aligned-gemma/%lld/%s", (long long)row.n, row.x);
        }
        for (int n = 0; d > 0 && n < COUNT(ALIGNED); n += 2) { // y alone is of 16 bits
            rmsnorm_case row = {.rows = {1, 3}, .n = ALIGNED[n], .residual = true, .sum = "x", .weight = "x"};
            row.cast = (n / 2 + d) % 3, row.eps = 1e-6f;
            set_dtypes(&row, "fp32", DTYPES[d]);
            verify_case(run, check_rmsnorm, &row, "rmsnorm/narrow-y/%lld/%s", (long long)row.n, row.y);
        }
        for (int n = 0; n < COUNT(MIXED); n++) {
            rmsnorm_case row = {
                .rows = {1, 3}, .n = MIXED[n], .residual = true, .sum = d ? "fp32" : "bf16", .weight = "x"};
            row.cast = (n + d) % 3, row.eps = 1e-6f;
            set_dtypes(&row, DTYPES[d], DTYPES[(d + 1) % 3]);
            verify_case(run, check_rmsnorm, &row, "rmsnorm/mixed/%lld/%s", (long long)row.n, row.x);
        }
        for (int n = 0; n < 4; n++) { // on a device so many that blocks go from row to row
            rmsnorm_case row = {.rows = {1, !run->device ? 40
                                            : n < 2      ? 6000
                                                         : 1700},
                                .n = n < 2 ? 1032 : 4104,
                                .weight = "x"};
            row.cast = (n + d) % 3, row.eps = 1e-6f, row.residual = n % 2 == 0;
            if (row.residual) row.alias = d == 0 ? SUM_IS_X : SUM_IS_RESIDUAL;
            set_dtypes(&row, DTYPES[d], DTYPES[d]);
            verify_case(run, check_rmsnorm, &row, "rmsnorm/many-rows%s/%lld/%s", row.residual ? "-residual" : "",
                        (long long)row.n, row.x);
        }
        for (int n = 0; n < 6; n++) { // squares that overflow or vanish in fp32, though the values do not
            rmsnorm_case row = {
                .rows = {1, 3}, .n = (const int64_t[]){52, 4096, 40960}[n % 3], .residual = true, .weight = "x"};
            if (d == 1) break;
            row.deviation = n / 3 ? 1e-30 : 1e30;
            set_dtypes(&row, DTYPES[d], DTYPES[d]);
            verify_case(run, check_rmsnorm, &row, "rmsnorm/squares-%s/%lld/%s", n / 3 ? "vanish" : "overflow",
                        (long long)row.n, row.x);
        }
    }
    for (int64_t n = 0; n < run->random; n++) {
        uint64_t state = run->seed * 1000039 + (uint64_t)n;
        rmsnorm_case row = CASES[verify_random(&state) % 13];
        row.rows[0] = verify_random_between(&state, 1, 4), row.rows[1] = verify_random_between(&state, 1, 9);
        row.n = verify_random_between(&state, 1, 1500), row.cast = (int)(verify_random(&state) % 3), row.eps = 1e-6f;
        row.layout = verify_random(&state) & 1 ? VERIFY_SHUFFLED : VERIFY_GAPS;
        set_dtypes(&row, DTYPES[verify_random(&state) % 3], DTYPES[verify_random(&state) % 3]);
        verify_case(run, check_rmsnorm, &row, "rmsnorm/random/%lld", (long long)n);
    }
}
