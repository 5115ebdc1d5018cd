// SPDX-License-Identifier: Apache-2.0
//
// The cases of the linear layer: every weight type, as it is and packed, exact and with 8-bit activations, with tails in every
// dimension. Rules: |y - oracle| within half an ulp and 2 sqrt(K) 2^-24 of the sum of |x w| (what sums in fp32 lose; the oracle quantises
// x where the kernel does), the relative norm, and a row of y alone has the bits that it has among others (on a device and past eight rows,
// or where rows of dense W are long: with fixed_split).
#include "verify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(table) ((int)(sizeof(table) / sizeof *(table)))

typedef struct linear_case {
    int type; // index into VERIFY_WEIGHTS
    int64_t T, N, K;
    const char *x, *y, *bias;    // bias: NULL: none
    bool packed, int8, identity; // identity: W is 1 in Q8_0, so that y is x as the quantiser left it
    int64_t row_gap;
    verify_layout layout;
    void (*edit)(kf_tensor *x);
} linear_case;

// K roundings at the size of the largest partial sum wander by sqrt(K) of them; twice that.
static double sum_share(int64_t K) { return fmax(8, 2 * sqrt((double)K)) * 0x1p-24; }

typedef struct linear_oracle {
    const kf_linear_args *args;
    double *y, *size;
} linear_oracle;

static bool oracle_outputs(void *argument, int64_t first, int64_t count) {
    const linear_oracle *w = argument;
    return ref_linear(w->args, first, count, w->y, w->size);
}

// Packs `weight` into the pool; fails where the packed form is larger than promised or something past its end was written.
static bool pack(verify_run *run, const kf_weight *weight, kf_weight *packed) {
    verify_pool *pool = &run->pool;
    size_t bytes = 0;
    const char *what = "";
    const kf_context *context = run->context[0];
    if (!verify_status(run, kf_pack_weight_size(context, weight, &bytes), "kf_pack_weight_size")) return false;
    if ((double)bytes > 1.1 * (double)weight->bytes + 4096) {
        return verify_fail(run, "the packed form has %zu bytes, the source %zu", bytes, weight->bytes);
    }
    unsigned char *data =
        verify_bytes(pool, "packed weight", (bytes + 63) / 64 * 64); // so that it is aligned to 64 at either end
    if (!data) return false;
    verify_buffer *buffer = &pool->buffer[pool->count - 1];
    buffer->role = VERIFY_OUTPUT;
    verify_pool_snapshot(pool);
    if (!verify_status(run, kf_pack_weight(context, weight, data, bytes, packed), "kf_pack_weight")) return false;
    const verify_buffer *damaged = verify_pool_damage(pool, &what);
    if (damaged) return verify_fail(run, "kf_pack_weight changed the %s of %s", what, damaged->name);
    buffer->role = VERIFY_INPUT;
    return true;
}

// Row t alone must have the bits that it has in args->y.
static bool check_row_alone(verify_run *run, const kf_context *context, const kf_linear_args *args, int64_t t) {
    const int64_t N = args->weight->rows, one[2] = {1, args->x->shape[1]}, out[2] = {1, N}, at[2] = {t, 0};
    const size_t bytes = (size_t)(N * ref_dtype_bytes(args->y->dtype));
    kf_tensor x = *args->x,
              *y = verify_tensor(&run->pool, "row alone", VERIFY_OUTPUT, args->y->dtype, VERIFY_COMPACT, 2, out);
    if (!y) return false;
    x.data = ref_address(args->x, at), x.byte_offset = 0, x.shape = one;
    kf_linear_args row = *args;
    row.x = &x, row.y = y;
    if (!verify_status(run, verify_call(run, context, &row.head), "a row alone")) return false;
    const int64_t first[2] = {0, 0};
    if (memcmp(ref_address(y, first), ref_address(args->y, at), bytes) == 0) return true;
    return verify_fail(run, "row %lld of y has other bits alone than among %lld rows", (long long)t,
                       (long long)args->x->shape[0]);
}

// Some rows of y alone. Past so many rows, or over dense W columns that do not fit shared memory with them, a device sums in another order,
// but not with fixed_split.
static bool check_rows_alone(verify_run *run, const kf_linear_args *args) {
    enum { FEW = 8, LONG = 8192 };
    const int64_t T = args->x->shape[0], shape[2] = {T, args->weight->rows};
    const int32_t type = args->weight->type;
    const bool dense = type == KF_WEIGHT_F32 || type == KF_WEIGHT_F16 || type == KF_WEIGHT_BF16;
    const kf_context *context = run->context[0];
    kf_linear_args all = *args;
    if (T < 2) return true;
    if (run->device && (T > FEW || (dense && args->weight->cols > LONG))) {
        context = run->fixed_split;
        all.y = verify_tensor(&run->pool, "y, fixed_split", VERIFY_OUTPUT, args->y->dtype, VERIFY_COMPACT, 2, shape);
        if (!all.y || !verify_status(run, verify_call(run, context, &all.head), "with fixed_split")) return false;
    }
    for (int64_t t = 0; t < T; t += T / 3 + 1)
        if (!check_row_alone(run, context, &all, t)) return false;
    return true;
}

// W[n, n] = 1 with d = 1; all else 0.
static bool identity_weight(verify_pool *pool, int64_t n, kf_weight *weight) {
    enum { VALUES = 32, BYTES = 34, D_BYTES = 2 };
    const size_t bytes = (size_t)(n * n / VALUES * BYTES);
    unsigned char *data = verify_bytes(pool, "weight", bytes);
    if (!data) return false;
    memset(data, 0, bytes);
    for (int64_t c = 0; c < n; c++) {
        unsigned char *block = data + (c * (n / VALUES) + c / VALUES) * BYTES;
        ref_encode((kf_dtype)KF_FP16, 1, block);
        block[D_BYTES + c % VALUES] = 1;
    }
    *weight = (kf_weight){.type = KF_WEIGHT_Q8_0, .rows = n, .cols = n, .data = data, .bytes = bytes};
    weight->device.type = KF_DEVICE_CPU;
    return true;
}

static bool make_weight(verify_run *run, const linear_case *row, kf_weight *weight) {
    if (row->identity) return identity_weight(&run->pool, row->K, weight);
    return verify_weight(&run->pool, &VERIFY_WEIGHTS[row->type], row->N, row->K, row->row_gap, weight);
}

static bool check_linear(verify_run *run, const void *pointer) {
    const linear_case *row = pointer;
    verify_pool *pool = &run->pool;
    const int64_t x_shape[2] = {row->T, row->K}, y_shape[2] = {row->T, row->N};
    kf_weight weight, packed;
    if (!make_weight(run, row, &weight)) return false;
    if (row->packed && !pack(run, &weight, &packed)) return false;
    kf_linear_args args;
    kf_linear_args_init(&args);
    kf_tensor *x = verify_tensor(pool, "x", VERIFY_INPUT, verify_dtype(row->x), row->layout, 2, x_shape), *bias = NULL;
    kf_tensor *y = verify_tensor(pool, "y", VERIFY_OUTPUT, verify_dtype(row->y), row->layout, 2, y_shape);
    if (row->bias)
        bias = verify_tensor(pool, "bias", VERIFY_INPUT, verify_dtype(row->bias), VERIFY_COMPACT, 1, y_shape + 1);
    if (pool->exhausted) return false;
    verify_fill_normal(pool, x, 1);
    verify_fill_normal(pool, bias, 1);
    if (row->edit) row->edit(x);
    args.x = x, args.weight = &weight, args.bias = bias, args.y = y;
    args.activations = row->int8 ? KF_ACTIVATIONS_INT8 : KF_ACTIVATIONS_EXACT;

    if (row->packed) args.weight = &packed;
    if (!verify_execute(run, &args.head)) return false;
    args.weight = &weight;
    linear_oracle w = {&args, verify_doubles(run, row->T * row->N), verify_doubles(run, row->T * row->N)};
    bool good = w.y && w.size && verify_parallel(run->threads, row->N, oracle_outputs, &w);
    if (row->packed) args.weight = &packed;
    const verify_bound bound = {.rule = "fp32 sums and one rounding",
                                .ulps = 0.5001,
                                .size = w.size,
                                .share = row->identity ? 0 : sum_share(row->K),
                                .absolute = 1e-37};
    good = good && verify_elements(run, "y", y, NULL, row->T, w.y, &bound) &&
           verify_norm(run, "y", y, NULL, row->T, w.y, verify_norm_bound(y->dtype));
    good = good && check_rows_alone(run, &args);
    free(w.y);
    free(w.size);
    return good;
}

// ----------------------------------------------------------------------------------------------------- hostile inputs

static void nan_row(kf_tensor *x) { verify_set(x, (const int64_t[]){1, x->shape[1] / 2}, NAN); }
static void zero_row(kf_tensor *x) { verify_set_row(x, 1, 0); }
static void one_outlier(kf_tensor *x) { verify_set(x, (const int64_t[]){1, x->shape[1] / 3}, 3000); }
static void tiny(kf_tensor *x) {
    for (int64_t c = 0; c < x->shape[1]; c++) verify_set(x, (const int64_t[]){1, c}, c % 3 ? 1e-4 : -2e-4);
}
// Multiples of half a step: quotients that lie on ties.
static void ties(kf_tensor *x) {
    for (int64_t c = 0; c < x->shape[1]; c++)
        verify_set(x, (const int64_t[]){1, c}, c % 32 ? ((double)(c % 32) - 15.5) : 127);
}

static const struct hostile {
    const char *name;
    void (*edit)(kf_tensor *x);
} HOSTILE[] = {
    {"nan-row", nan_row}, {"zero-row", zero_row}, {"one-outlier", one_outlier}, {"tiny", tiny}, {"ties", ties}};

static const char *const DTYPES[] = {"fp32", "fp16", "bf16"}; // as the dense weight types stand in VERIFY_WEIGHTS
static const int64_t TOKENS[] = {1, 2, 3, 4, 5, 8, 17, 40};
static const int64_t OUTPUTS[] = {64, 1, 33, 16, 7, 100, 48, 31, 130};
static const int64_t BLOCKS[] = {1, 18, 3, 8, 2, 5}; // of 32 columns; for blocks of 256 a third of it

static int64_t columns(const verify_weight_type *type, int n) {
    const int64_t blocks = BLOCKS[n % COUNT(BLOCKS)];
    return type->values == 256 ? 256 * (1 + blocks / 4) : type->values == 32 ? 32 * blocks : 32 * blocks - n % 32;
}

static void type_cases(verify_run *run, int type) {
    const verify_weight_type *weight = &VERIFY_WEIGHTS[type];
    for (int form = 0, n = type; form < 4; form++) {
        if (weight->values == 1 && form >= 2) continue; // dense weights know no 8-bit activations
        for (int t = 0; t < COUNT(TOKENS); t++, n++) {
            linear_case row = {.type = type, .T = TOKENS[t], .N = OUTPUTS[n % COUNT(OUTPUTS)], .K = columns(weight, n)};
            row.packed = form & 1, row.int8 = form & 2;
            row.x = DTYPES[n % 3], row.y = DTYPES[n / 3 % 3], row.bias = n % 2 ? NULL : DTYPES[n / 2 % 3];
            row.row_gap = n % 4 == 3 ? 16 : 0, row.layout = n % 5 == 4 ? VERIFY_GAPS : VERIFY_COMPACT;
            verify_case(run, check_linear, &row, "linear/%s/%s-%s/%lldx%lldx%lld", weight->name,
                        row.packed ? "packed" : "plain", row.int8 ? "int8" : "exact", (long long)row.T,
                        (long long)row.N, (long long)row.K);
        }
        for (int h = 0; h < COUNT(HOSTILE); h++) {
            linear_case row = {
                .type = type, .T = 3, .N = 20, .K = 256, .x = DTYPES[h % 3], .y = "fp32", .edit = HOSTILE[h].edit};
            row.packed = form & 1, row.int8 = form & 2;
            verify_case(run, check_linear, &row, "linear/%s/%s-%s/%s", weight->name, row.packed ? "packed" : "plain",
                        row.int8 ? "int8" : "exact", HOSTILE[h].name);
        }
    }
    linear_case row = {.type = type, .T = 0, .N = 20, .K = 256, .x = "fp32", .y = "fp32"};
    verify_case(run, check_linear, &row, "linear/%s/no-rows", weight->name);
    row.T = 3, row.N = 0;
    verify_case(run, check_linear, &row, "linear/%s/no-outputs", weight->name);
    row.T = 2, row.N = 576, row.K = 1536, row.packed = true;
    verify_case(run, check_linear, &row, "linear/%s/smollm2-down", weight->name);
    if (weight->values == 1) { // and x of the weight's type
        row.x = row.y = DTYPES[type];
        verify_case(run, check_linear, &row, "linear/%s/smollm2-down-same", weight->name);
        row.x = row.y = "fp32";
    }
    row.T = 130, row.N = 3072;
    verify_case(run, check_linear, &row, "linear/large/%s", weight->name);
}

// So many columns that a warp's buffers go round, and so many outputs that blocks go on to further ones.
static void long_cases(verify_run *run) {
    static const struct {
        const char *name;
        int64_t T, N, K;
        bool quantised;
    } LONG[] = {{"columns", 3, 24, 10240, true}, {"steps", 2, 400, 4352, true}, {"outputs", 2, 69000, 64, false}};
    for (int type = 0; type < VERIFY_WEIGHT_TYPES; type++) {
        const bool dense = VERIFY_WEIGHTS[type].values == 1;
        for (int c = 0; c < 2 * COUNT(LONG); c++) {
            linear_case row = {.type = type, .T = LONG[c / 2].T, .N = LONG[c / 2].N, .K = LONG[c / 2].K, .y = "fp32"};
            row.packed = !dense, row.int8 = !dense && c % 2, row.x = dense && c % 2 ? DTYPES[type] : "fp32";
            if (!dense && !LONG[c / 2].quantised) continue;
            verify_case(run, check_linear, &row, "linear/%s/many-%s/%s", VERIFY_WEIGHTS[type].name, LONG[c / 2].name,
                        dense   ? c % 2 ? "same" : "fp32"
                        : c % 2 ? "int8"
                                : "exact");
        }
    }
}

// bf16 x over four to eight units of 256 columns, the last one not always full: in the direct kernel on CUDA a warp each.
static void unit_cases(verify_run *run) {
    static const struct { int64_t T, N, K; } UNITS[] = {{1, 33, 2048}, {5, 20, 1312}, {8, 100, 1824}, {2, 7, 1792}};
    for (int type = 0; type < VERIFY_WEIGHT_TYPES; type++) {
        const verify_weight_type *weight = &VERIFY_WEIGHTS[type];
        for (int c = 0; c < COUNT(UNITS) && weight->values > 1; c++) {
            linear_case row = {.type = type, .T = UNITS[c].T, .N = UNITS[c].N, .x = "bf16", .packed = c < 3};
            row.K = UNITS[c].K / weight->values * weight->values;
            row.y = DTYPES[(type + c) % COUNT(DTYPES)], row.bias = c % 2 ? "fp32" : NULL;
            verify_case(run, check_linear, &row, "linear/%s/units/%lldx%lldx%lld", weight->name, (long long)row.T,
                        (long long)row.N, (long long)row.K);
        }
    }
}

// bf16 x over more W than a device's warps decode ahead of x: more columns than eight warps of a block have, to their limit and past it;
// more outputs; and, half of the types each, more than its warps hold at all. Tails of N and K; each type meets numbers of rows from one to
// eight.
static void wide_cases(verify_run *run) {
    enum { ROWS = 8, SHARED = 9 };
    static const struct {
        int64_t N, K;
        bool plain, gaps, nan;
    } WIDE[] = {{33, 2304, false, false, false},   {16, 2336, false, true, false},  {7, 5632, true, false, false},
                {40, 6144, false, false, false},   {100, 3968, false, false, true}, {25, 6400, false, false, false},
                {12805, 512, false, false, false}, {48, 5792, true, true, false},   {32, 4096, false, false, false},
                {6401, 1824, false, false, false}, {50697, 256, false, true, false}};
    for (int type = 0; type < VERIFY_WEIGHT_TYPES; type++) {
        const verify_weight_type *weight = &VERIFY_WEIGHTS[type];
        if (weight->values == 1) continue;
        for (int c = 0; c < COUNT(WIDE); c++) {
            if (c >= SHARED && c % 2 != type % 2) continue;
            linear_case row = {.type = type, .T = 1 + (type + c) % ROWS, .N = WIDE[c].N, .x = "bf16"};
            if (c >= SHARED && row.T == 1) row.T = 2; // more than it holds: with one row and with more, of each type
            row.K = WIDE[c].K / weight->values * weight->values;
            row.y = DTYPES[(type + c) % 3], row.bias = c % 2 ? DTYPES[c / 2 % 3] : NULL;
            row.packed = !WIDE[c].plain, row.layout = WIDE[c].gaps ? VERIFY_GAPS : VERIFY_COMPACT;
            if (WIDE[c].nan && row.T > 1) row.edit = nan_row;
            verify_case(run, check_linear, &row, "linear/%s/wide/%lldx%lldx%lld", weight->name, (long long)row.T,
                        (long long)row.N, (long long)row.K);
        }
    }
}

// The quantiser of activations by itself: a code that is off by one shows as it is, with no sum to hide in.
static void quantiser_cases(verify_run *run) {
    for (int h = -1; h < COUNT(HOSTILE); h++) {
        for (int form = 0; form < 2 * COUNT(DTYPES); form++) {
            linear_case row = {
                .T = 7, .N = 96, .K = 96, .x = DTYPES[form / 2], .y = "fp32", .int8 = true, .identity = true};
            row.packed = form & 1, row.edit = h < 0 ? NULL : HOSTILE[h].edit;
            verify_case(run, check_linear, &row, "linear/quantiser/%s-%s/%s", row.x, row.packed ? "packed" : "plain",
                        h < 0 ? "normal" : HOSTILE[h].name);
        }
    }
}

void verify_linear(verify_run *run) {
    quantiser_cases(run);
    for (int type = 0; type < VERIFY_WEIGHT_TYPES; type++) type_cases(run, type);
    long_cases(run);
    unit_cases(run);
    wide_cases(run);
    for (int64_t n = 0; n < run->random; n++) {
        uint64_t state = run->seed * 1000121 + (uint64_t)n;
        linear_case row = {.type = (int)(verify_random(&state) % VERIFY_WEIGHT_TYPES),
                           .T = verify_random_between(&state, 1, 50)};
        row.N = verify_random_between(&state, 1, 150),
        row.K = columns(&VERIFY_WEIGHTS[row.type], (int)(verify_random(&state) % 64));
        row.x = DTYPES[verify_random(&state) % 3], row.y = DTYPES[verify_random(&state) % 3];
        row.bias = verify_random(&state) & 1 ? DTYPES[verify_random(&state) % 3] : NULL;
        row.packed = verify_random(&state) & 1, row.int8 = verify_random(&state) & 1;
        row.layout = verify_random(&state) & 1 ? VERIFY_SHUFFLED : VERIFY_COMPACT;
        verify_case(run, check_linear, &row, "linear/random/%lld", (long long)n);
    }
}
