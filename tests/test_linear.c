// SPDX-License-Identifier: Apache-2.0
//
// The linear layer and the embedding under every ISA of the machine: against sums in float64, packed against unpacked, bits against the
// number of rows and of threads, and what must be refused.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/internal.h"
#include "cpu/linear.h"

static const int TYPES[] = {KF_WEIGHT_F32,  KF_WEIGHT_F16,  KF_WEIGHT_BF16, KF_WEIGHT_Q4_0,
                            KF_WEIGHT_Q4_1, KF_WEIGHT_Q5_0, KF_WEIGHT_Q5_1, KF_WEIGHT_Q8_0,
                            KF_WEIGHT_Q4_K, KF_WEIGHT_Q5_K, KF_WEIGHT_Q6_K};
enum { TYPE_COUNT = sizeof TYPES / sizeof *TYPES };

// ---------------------------------------------------------------------------------------------------------- random numbers

static uint64_t state = 1;

static uint32_t random_bits(void) { // splitmix64
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)(z >> 32);
}

static float random_value(void) { // roughly normal
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += (float)(random_bits() >> 8) * 0x1p-24f - 0.5f;
    return sum * 1.7f;
}

static void put_half(uint8_t *p, float value) {
    const uint16_t half = kf_float_to_fp16(value);
    memcpy(p, &half, 2);
}

static void random_block(int type, uint8_t *block) {
    const float scale = 0.01f * (1 + fabsf(random_value()));
    if (type == KF_WEIGHT_F32) {
        const float value = random_value();
        memcpy(block, &value, 4);
    } else if (type == KF_WEIGHT_F16) {
        put_half(block, random_value());
    } else if (type == KF_WEIGHT_BF16) {
        const uint16_t half = kf_float_to_bf16(random_value());
        memcpy(block, &half, 2);
    } else {
        for (int i = 0; i < kf_block_bytes(type); i++) block[i] = (uint8_t)random_bits();
        put_half(type == KF_WEIGHT_Q6_K ? block + 208 : block, scale);
        if (kf_block_affine(type)) put_half(block + 2, kf_block_is_k(type) ? scale : -8 * scale);
    }
}

// ------------------------------------------------------------------------------------------------------------------ cases

typedef struct layer {
    int type, x_type, y_type, activations;
    int64_t T, N, K;
    uint8_t *w;
    float *x_exact; // [T][K], what x holds
    char *x;
    float *bias;
    kf_weight weight;
} layer;

static int64_t row_bytes(int type, int64_t K) { return K / kf_block_values(type) * kf_block_bytes(type); }

static kf_dtype dtype_of(int type) {
    const kf_dtype f32 = KF_FP32, f16 = KF_FP16, bf16 = KF_BF16;
    return type == KF_TYPE_F32 ? f32 : type == KF_TYPE_F16 ? f16 : bf16;
}

static void put(int type, char *p, float value) {
    const uint16_t half = type == KF_TYPE_F16 ? kf_float_to_fp16(value) : kf_float_to_bf16(value);
    if (type == KF_TYPE_F32)
        memcpy(p, &value, 4);
    else
        memcpy(p, &half, 2);
}

static float get(int type, const char *p) {
    float value;
    uint16_t half;
    memcpy(&half, p, 2);
    if (type == KF_TYPE_F32)
        memcpy(&value, p, 4);
    else
        value = type == KF_TYPE_F16 ? kf_fp16_to_float(half) : kf_bf16_to_float(half);
    return value;
}

static layer make_layer(int type, int x_type, int64_t T, int64_t N, int64_t K) {
    layer l = {.type = type, .x_type = x_type, .y_type = KF_TYPE_F32, .T = T, .N = N, .K = K};
    const int64_t bytes = N * row_bytes(type, K);
    l.w = malloc((size_t)bytes + 1);
    for (int64_t b = 0; b < bytes; b += kf_block_bytes(type)) random_block(type, l.w + b);
    l.x = malloc((size_t)(T * K * 4) + 1);
    l.x_exact = malloc((size_t)(T * K * 4) + 1);
    for (int64_t i = 0; i < T * K; i++) {
        put(x_type, l.x + i * kf_type_size(x_type), random_value());
        l.x_exact[i] = get(x_type, l.x + i * kf_type_size(x_type));
    }
    l.bias = malloc((size_t)N * 4 + 1);
    for (int64_t n = 0; n < N; n++) l.bias[n] = random_value();
    l.weight = (kf_weight){.type = type, .rows = N, .cols = K, .data = l.w, .bytes = (size_t)bytes};
    return l;
}

static void free_layer(layer *l) {
    free(l->w);
    free(l->x);
    free(l->x_exact);
    free(l->bias);
}

static void set_x(layer *l, int64_t t, int64_t k, float value) {
    char *p = l->x + (t * l->K + k) * kf_type_size(l->x_type);
    put(l->x_type, p, value);
    l->x_exact[t * l->K + k] = get(l->x_type, p);
}

static kf_context *context_of(int isa, int threads) {
    kf_context_options options;
    kf_context *context = NULL;
    kf_context_options_init(&options);
    options.isa = isa;
    options.threads = threads;
    assert_int_equal(kf_context_create(&options, &context), KF_OK);
    return context;
}

// Rows t0 .. t0 + count - 1 into y, compact.
static kf_status run_rows(const kf_context *context, const layer *l, const kf_weight *weight, int64_t t0, int64_t count,
                          char *y) {
    const int64_t x_shape[] = {count, l->K}, y_shape[] = {count, l->N}, bias_shape[] = {l->N};
    kf_tensor x = kf_tensor_cpu(l->x + t0 * l->K * kf_type_size(l->x_type), dtype_of(l->x_type), 2, x_shape);
    kf_tensor out = kf_tensor_cpu(y, dtype_of(l->y_type), 2, y_shape),
              bias = kf_tensor_cpu(l->bias, dtype_of(KF_TYPE_F32), 1, bias_shape);
    kf_linear_args args;
    kf_linear_args_init(&args);
    args.x = &x;
    args.weight = weight;
    args.bias = &bias;
    args.y = &out;
    args.activations = l->activations;
    return kf_linear(context, &args);
}

static void dequantise_row(const layer *l, int64_t n, float *row) {
    const uint8_t *from = l->w + n * row_bytes(l->type, l->K);
    for (int64_t k = 0; k < l->K; k += kf_block_values(l->type), from += kf_block_bytes(l->type)) {
        if (l->type == KF_WEIGHT_F32)
            memcpy(row + k, from, 4);
        else if (l->type == KF_WEIGHT_F16)
            row[k] = get(KF_TYPE_F16, (const char *)from);
        else if (l->type == KF_WEIGHT_BF16)
            row[k] = get(KF_TYPE_BF16, (const char *)from);
        else
            kf_block_dequantise(l->type, from, row + k);
    }
}

// x as KF_ACTIVATIONS_INT8 defines it.
static void quantise_int8(const float *x, int64_t K, float *out) {
    for (int64_t first = 0; first < K; first += 32) {
        float largest = 0;
        for (int64_t k = first; k < first + 32; k++) largest = fmaxf(largest, fabsf(x[k]));
        const float scale = largest / 127;
        for (int64_t k = first; k < first + 32; k++) out[k] = scale != 0 ? scale * rintf(x[k] / scale) : 0;
    }
}

// Checks y against float64; the bound is relative to sum |x| |w|.
static void check_layer(const layer *l, const char *y, double bound) {
    float *row = malloc((size_t)l->K * 4 + 4), *x = malloc((size_t)l->K * 4 + 4);
    double error = 0, norm = 0;
    for (int64_t n = 0; n < l->N; n++) {
        dequantise_row(l, n, row);
        for (int64_t t = 0; t < l->T; t++) {
            memcpy(x, l->x_exact + t * l->K, (size_t)l->K * 4);
            if (l->activations && kf_block_quantised(l->type)) quantise_int8(l->x_exact + t * l->K, l->K, x);
            double sum = (double)l->bias[n], size = fabs(sum);
            for (int64_t k = 0; k < l->K; k++) {
                sum += (double)x[k] * (double)row[k];
                size += fabs((double)x[k] * (double)row[k]);
            }
            const double out = (double)get(l->y_type, y + (t * l->N + n) * kf_type_size(l->y_type));
            if (!(fabs(out - sum) <= bound * size))
                fail_msg("%s, T = %d, N = %d, K = %d, (%d, %d): %g instead of %g", kf_weight_type_string(l->type),
                         (int)l->T, (int)l->N, (int)l->K, (int)t, (int)n, out, sum);
            error += (out - sum) * (out - sum);
            norm += size * size;
        }
    }
    if (l->y_type == KF_TYPE_F32) assert_true(sqrt(error) <= 1e-6 * sqrt(norm));
    free(row);
    free(x);
}

static const double FP32_BOUND = 1e-6;

// ------------------------------------------------------------------------------------------------------------------- tests

typedef void (*with_isa)(int isa);

static void for_each_isa(with_isa test) {
    for (int isa = KF_ISA_SCALAR; isa <= (int)kf_cpu_isa(); isa++) test(isa);
}

static kf_weight pack(const kf_context *context, const kf_weight *weight, void **memory) {
    kf_weight packed;
    size_t bytes = 0;
    assert_int_equal(kf_pack_weight_size(context, weight, &bytes), KF_OK);
    assert_true((double)bytes <= 1.1 * (double)weight->bytes + 4096);
    *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_int_equal(kf_pack_weight(context, weight, *memory, bytes, &packed), KF_OK);
    assert_true(packed.bytes == bytes && packed.packed);
    return packed;
}

static void one_shape(const kf_context *context, int type, int x_type, int y_type, int activations, int64_t T,
                      int64_t N, int64_t K) {
    layer l = make_layer(type, x_type, T, N, K);
    l.y_type = y_type;
    l.activations = activations;
    const size_t bytes = (size_t)(T * N * kf_type_size(y_type));
    char *y = malloc(bytes + 1), *again = malloc(bytes + 1);
    void *memory;
    const kf_weight packed = pack(context, &l.weight, &memory);
    memset(y, 0xff, bytes);
    memset(again, 0xff, bytes);
    assert_int_equal(run_rows(context, &l, &l.weight, 0, T, y), KF_OK);
    assert_int_equal(run_rows(context, &l, &packed, 0, T, again), KF_OK);
    assert_memory_equal(y, again, bytes);
    check_layer(&l, y, y_type == KF_TYPE_F32 ? FP32_BOUND : y_type == KF_TYPE_F16 ? 0x1p-10 : 0x1p-7);
    free(memory);
    free(y);
    free(again);
    free_layer(&l);
}

static void shapes(int isa) {
    kf_context *context = context_of(isa, 1);
    static const int64_t T[] = {1, 2, 3, 5, 13, 27}, N[] = {1, 16, 37, 65}, K[] = {256, 768};
    for (int i = 0; i < TYPE_COUNT; i++)
        for (int t = 0; t < 6; t++)
            for (int n = 0; n < 4; n++)
                for (int k = 0; k < 2; k++)
                    for (int activations = 0; activations < 2; activations++)
                        one_shape(context, TYPES[i], KF_TYPE_F32, KF_TYPE_F32, activations, T[t], N[n], K[k]);
    kf_context_destroy(context);
}

static void dtypes(int isa) {
    kf_context *context = context_of(isa, 2);
    static const int DTYPES[] = {KF_TYPE_F32, KF_TYPE_F16, KF_TYPE_BF16};
    for (int i = 0; i < TYPE_COUNT; i++)
        for (int x = 0; x < 3; x++)
            for (int y = 0; y < 3; y++) one_shape(context, TYPES[i], DTYPES[x], DTYPES[y], 0, 7, 40, 512);
    kf_context_destroy(context);
}

static void odd_columns(int isa) {
    kf_context *context = context_of(isa, 1);
    static const int64_t K[] = {0, 1, 2, 31, 255, 256, 257, 511, 513};
    for (int type = 0; type < 3; type++)
        for (int x = KF_TYPE_F32; x <= KF_TYPE_BF16; x++)
            for (int k = 0; k < 9; k++)
                for (int64_t T = 1; T < 15; T += 13) one_shape(context, TYPES[type], x, KF_TYPE_F32, 0, T, 33, K[k]);
    for (int i = 3; i < TYPE_COUNT; i++) one_shape(context, TYPES[i], KF_TYPE_F32, KF_TYPE_F32, 0, 3, 20, 0);
    for (int i = 0; i < TYPE_COUNT; i++) one_shape(context, TYPES[i], KF_TYPE_F32, KF_TYPE_F32, 0, 0, 20, 256);
    for (int i = 0; i < TYPE_COUNT; i++) one_shape(context, TYPES[i], KF_TYPE_F32, KF_TYPE_F32, 0, 3, 0, 256);
    kf_context_destroy(context);
}

// The bits of a row: alone, in batches of every size, and with other threads.
static void same_bits(int isa) {
    kf_context *one = context_of(isa, 1), *three = context_of(isa, 3);
    enum { T = 101, N = 50, K = 768 };
    for (int i = 0; i < TYPE_COUNT; i++) {
        for (int x_type = KF_TYPE_F32; x_type <= KF_TYPE_BF16; x_type += KF_TYPE_BF16 - KF_TYPE_F32) {
            layer l = make_layer(TYPES[i], x_type, T, N, K);
            set_x(&l, 3, 40, 1e4f); // a wild block
            set_x(&l, 9, 0, 1e4f);
            const size_t row = N * 4;
            char *y = malloc(T * row), *part = malloc(T * row);
            void *memory;
            const kf_weight packed = pack(one, &l.weight, &memory);
            assert_int_equal(run_rows(one, &l, &packed, 0, T, y), KF_OK);
            assert_int_equal(run_rows(three, &l, &packed, 0, T, part), KF_OK);
            assert_memory_equal(y, part, T * row);
            for (int64_t count = 1; count < 20; count++) {
                const int64_t t0 = count % 7;
                assert_int_equal(run_rows(one, &l, &packed, t0, count, part), KF_OK);
                assert_memory_equal(y + t0 * (int64_t)row, part, (size_t)count * row);
            }
            free(memory);
            free(y);
            free(part);
            free_layer(&l);
        }
    }
    kf_context_destroy(one);
    kf_context_destroy(three);
}

// Blocks of x that fixed point does not hold: one value dwarfs the others while its weight is 0, and the ends of fp32's range.
static void wild_values(int isa) {
    kf_context *context = context_of(isa, 1);
    static const float SCALE[] = {1, 1e-30f, 1e30f, 1e-36f};
    for (int i = 3; i < TYPE_COUNT; i++) {
        for (int s = 0; s < 4; s++) {
            layer l = make_layer(TYPES[i], KF_TYPE_F32, 5, 21, 512);
            for (int64_t t = 0; t < l.T; t++)
                for (int64_t k = 0; k < l.K; k++) set_x(&l, t, k, l.x_exact[t * l.K + k] * SCALE[s]);
            for (int64_t n = 0; n < l.N; n++) l.bias[n] = 0;
            for (int64_t b = 0; b < 16; b++) set_x(&l, 2, b * 32 + 5, 3e5f * SCALE[s]);
            char y[5 * 21 * 4];
            assert_int_equal(run_rows(context, &l, &l.weight, 0, l.T, y), KF_OK);
            check_layer(&l, y, FP32_BOUND);
            free_layer(&l);
        }
    }
    // Q8_0 with d = 1 and the identity's columns: y is x, the dwarfed values too.
    layer l = make_layer(KF_WEIGHT_Q8_0, KF_TYPE_F32, 1, 32, 32);
    memset(l.w, 0, 32 * 34);
    for (int n = 0; n < 32; n++) {
        put_half(l.w + n * 34, 1);
        l.w[n * 34 + 2 + n] = 1;
        l.bias[n] = 0;
    }
    set_x(&l, 0, 7, 1e9f);
    float y[32];
    assert_int_equal(run_rows(context, &l, &l.weight, 0, 1, (char *)y), KF_OK);
    for (int n = 0; n < 32; n++) assert_true(y[n] == l.x_exact[n]);
    free_layer(&l);
    kf_context_destroy(context);
}

// NaN and infinity reach their row and no other.
static void not_finite(int isa) {
    kf_context *context = context_of(isa, 1);
    for (int i = 0; i < TYPE_COUNT; i++) {
        for (int activations = 0; activations < 2; activations++) {
            layer l = make_layer(TYPES[i], KF_TYPE_F32, 13, 24, 256);
            l.activations = activations;
            float *y = malloc(13 * 24 * 4), *clean = malloc(13 * 24 * 4);
            assert_int_equal(run_rows(context, &l, &l.weight, 0, 13, (char *)clean), KF_OK);
            set_x(&l, 4, 100, NAN);
            set_x(&l, 8, 33, INFINITY);
            assert_int_equal(run_rows(context, &l, &l.weight, 0, 13, (char *)y), KF_OK);
            for (int j = 0; j < 13 * 24; j++) {
                if (j / 24 == 4)
                    assert_true(isnan(y[j]));
                else if (j / 24 == 8)
                    assert_false(isfinite(y[j]));
                else
                    assert_true(y[j] == clean[j]);
            }
            free(y);
            free(clean);
            free_layer(&l);
        }
    }
    kf_context_destroy(context);
}

// x and y with strides, weight rows apart; what lies between y's rows stays.
static void strides(int isa) {
    kf_context *context = context_of(isa, 1);
    enum { T = 9, N = 20, K = 256, XS = 300, YS = 31, GAP = 6 };
    for (int i = 0; i < TYPE_COUNT; i++) {
        layer l = make_layer(TYPES[i], KF_TYPE_F32, T, N, K);
        const int64_t bytes = row_bytes(l.type, K);
        float *x = malloc(T * XS * 4), *y = malloc(T * YS * 4), plain[T * N];
        uint8_t *w = malloc((size_t)(N * (bytes + GAP)));
        for (int t = 0; t < T; t++) memcpy(x + (T - 1 - t) * XS, l.x_exact + t * K, K * 4);
        for (int n = 0; n < N; n++) memcpy(w + n * (bytes + GAP), l.w + n * bytes, (size_t)bytes);
        memset(y, 0xff, T * YS * 4);
        const int64_t x_shape[] = {T, K}, x_strides[] = {-XS, 1}, y_shape[] = {T, N}, y_strides[] = {YS, 1},
                      bias_shape[] = {N};
        kf_tensor xt = kf_tensor_cpu(x + (T - 1) * XS, dtype_of(KF_TYPE_F32), 2, x_shape),
                  yt = kf_tensor_cpu(y, dtype_of(KF_TYPE_F32), 2, y_shape);
        kf_tensor bias = kf_tensor_cpu(l.bias, dtype_of(KF_TYPE_F32), 1, bias_shape);
        xt.strides = x_strides;
        yt.strides = y_strides;
        kf_weight weight = l.weight;
        weight.data = w;
        weight.row_bytes = bytes + GAP;
        weight.bytes = (size_t)(N * (bytes + GAP));
        kf_linear_args args;
        kf_linear_args_init(&args);
        args.x = &xt;
        args.weight = &weight;
        args.bias = &bias;
        args.y = &yt;
        assert_int_equal(kf_linear(context, &args), KF_OK);
        assert_int_equal(run_rows(context, &l, &l.weight, 0, T, (char *)plain), KF_OK);
        for (int t = 0; t < T; t++) {
            assert_memory_equal(y + t * YS, plain + t * N, N * 4);
            for (int n = N; n < YS; n++) assert_true(isnan(y[t * YS + n]));
        }
        free(x);
        free(y);
        free(w);
        free_layer(&l);
    }
    kf_context_destroy(context);
}

static void test_shapes(void **unused) { (void)unused, for_each_isa(shapes); }
static void test_dtypes(void **unused) { (void)unused, for_each_isa(dtypes); }
static void test_odd_columns(void **unused) { (void)unused, for_each_isa(odd_columns); }
static void test_same_bits(void **unused) { (void)unused, for_each_isa(same_bits); }
static void test_wild_values(void **unused) { (void)unused, for_each_isa(wild_values); }
static void test_not_finite(void **unused) { (void)unused, for_each_isa(not_finite); }
static void test_strides(void **unused) { (void)unused, for_each_isa(strides); }

static void test_header(void **unused) {
    (void)unused;
    kf_context *context = context_of(KF_ISA_SCALAR, 1);
    layer l = make_layer(KF_WEIGHT_Q4_1, KF_TYPE_F32, 1, 40, 64);
    char y[40 * 4];
    void *memory;
    const kf_weight packed = pack(context, &l.weight, &memory);
    assert_int_equal(run_rows(context, &l, &packed, 0, 1, y), KF_OK);
    for (size_t byte = 0; byte < 48; byte++) { // any byte of the header
        ((char *)memory)[byte] ^= 1;
        assert_int_equal(run_rows(context, &l, &packed, 0, 1, y), KF_INVALID_ARGUMENT);
        ((char *)memory)[byte] ^= 1;
    }
    kf_weight wrong = packed;
    wrong.bytes--;
    assert_int_equal(run_rows(context, &l, &wrong, 0, 1, y), KF_INVALID_ARGUMENT);
    wrong.bytes = 10;
    assert_int_equal(run_rows(context, &l, &wrong, 0, 1, y), KF_INVALID_ARGUMENT);
    wrong = packed;
    wrong.type = KF_WEIGHT_Q4_0;
    assert_int_equal(run_rows(context, &l, &wrong, 0, 1, y), KF_INVALID_ARGUMENT);
    assert_non_null(strstr(kf_last_error(), "q4_1"));
    if (kf_cpu_isa() > KF_ISA_SCALAR) {
        kf_context *other = context_of(KF_ISA_AVX2, 1);
        assert_int_equal(run_rows(other, &l, &packed, 0, 1, y), KF_INVALID_ARGUMENT);
        assert_non_null(strstr(kf_last_error(), "scalar"));
        kf_context_destroy(other);
    }
    // Copied as bytes it is as good.
    kf_weight copy = packed;
    copy.data = malloc(packed.bytes);
    memcpy((void *)(uintptr_t)copy.data, packed.data, packed.bytes);
    assert_int_equal(run_rows(context, &l, &copy, 0, 1, y), KF_OK);
    free((void *)(uintptr_t)copy.data);
    free(memory);
    free_layer(&l);
    kf_context_destroy(context);
}

static void test_too_long(void **unused) {
    (void)unused;
    kf_context *context = context_of(KF_ISA_AUTO, 1);
    const int64_t K = (int64_t)1 << 49, x_shape[] = {1, K}, y_shape[] = {1, 1};
    kf_weight weight = {.type = KF_WEIGHT_Q4_K, .rows = 1, .cols = K};
    size_t bytes = 0;
    assert_int_equal(kf_pack_weight_size(context, &weight, &bytes), KF_INVALID_ARGUMENT);
    kf_tensor x = kf_tensor_cpu(NULL, dtype_of(KF_TYPE_F32), 2, x_shape);
    kf_tensor y = kf_tensor_cpu(NULL, dtype_of(KF_TYPE_F32), 2, y_shape);
    kf_linear_args args;
    kf_linear_args_init(&args);
    args.x = &x;
    args.weight = &weight;
    args.y = &y;
    kf_op *op = NULL;
    assert_int_equal(kf_op_create(context, &args.head, &op), KF_INVALID_ARGUMENT);
    kf_context_destroy(context);
}

static void test_embedding(void **unused) {
    (void)unused;
    enum { V = 11, N = 512, T = 5 };
    kf_context *context = context_of(KF_ISA_AUTO, 2);
    for (int i = 0; i < TYPE_COUNT; i++) {
        layer l = make_layer(TYPES[i], KF_TYPE_F32, 0, V, N);
        int32_t ids[T] = {3, 10, 0, 3, 7};
        const int64_t ids_shape[] = {T}, y_shape[] = {T, N};
        float *y = malloc(T * N * 4), row[N];
        kf_tensor idt = kf_tensor_cpu(ids, (kf_dtype)KF_INT32, 1, ids_shape),
                  yt = kf_tensor_cpu(y, dtype_of(KF_TYPE_F32), 2, y_shape);
        kf_embedding_args args;
        kf_embedding_args_init(&args);
        args.table = &l.weight;
        args.ids = &idt;
        args.y = &yt;
        args.scale = 2;
        assert_int_equal(kf_embedding(context, &args), KF_OK);
        for (int t = 0; t < T; t++) {
            dequantise_row(&l, ids[t], row);
            for (int n = 0; n < N; n++) assert_true(y[t * N + n] == 2 * row[n]);
        }
        y[0] = 5;
        ids[4] = V;
        assert_int_equal(kf_embedding(context, &args), KF_INVALID_ARGUMENT);
        ids[4] = -1;
        assert_int_equal(kf_embedding(context, &args), KF_INVALID_ARGUMENT);
        assert_true(y[0] == 5);
        free(y);
        free_layer(&l);
    }
    kf_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),    cmocka_unit_test(test_dtypes),      cmocka_unit_test(test_odd_columns),
        cmocka_unit_test(test_same_bits), cmocka_unit_test(test_wild_values), cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_strides),   cmocka_unit_test(test_header),      cmocka_unit_test(test_too_long),
        cmocka_unit_test(test_embedding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
