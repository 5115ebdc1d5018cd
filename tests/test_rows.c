// SPDX-License-Identifier: Apache-2.0
//
// The row operations through the public calls, under every ISA of the machine: against float64 formulas, at every tail
// length, in place, with strides, with NaN and infinities; and that neither the number of threads, nor the batch, nor
// the address changes a bit.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/cpu.h"
#include "cpu/rows.h"
#include "keyfold.h"
#include "math/half.h"

static const kf_dtype FP32 = KF_FP32, FP16 = KF_FP16, BF16 = KF_BF16, INT64 = KF_INT64;

// ---------------------------------------------------------------------------------------------------------- arrays

// Rows of n elements, `gap` unused elements behind each, the first element `shift` elements behind an aligned address.
typedef struct array {
    kf_tensor t;
    int64_t shape[4], strides[4];
    char *memory;
    int64_t rows, n, step;
    size_t bytes;
} array;

static int64_t bytes_of(kf_dtype dtype) { return dtype.bits / 8; }

static void *at(const array *a, int64_t row, int64_t i) {
    return (char *)a->t.data + (row * a->step + i) * bytes_of(a->t.dtype);
}

static double get(const array *a, int64_t row, int64_t i) {
    if (a->t.dtype.bits == 32) {
        float f;
        memcpy(&f, at(a, row, i), 4);
        return f;
    }
    uint16_t h;
    memcpy(&h, at(a, row, i), 2);
    return a->t.dtype.code == KF_CODE_BFLOAT ? kf_bf16_to_float(h) : kf_fp16_to_float(h);
}

static void put(const array *a, int64_t row, int64_t i, double value) {
    float f = (float)value;
    uint16_t h = a->t.dtype.code == KF_CODE_BFLOAT ? kf_float_to_bf16(f) : kf_float_to_fp16(f);
    if (a->t.dtype.bits == 32)
        memcpy(at(a, row, i), &f, 4);
    else
        memcpy(at(a, row, i), &h, 2);
}

static uint64_t seed = 1;

static double random_normal(void) {
    double sum = -6.0;
    for (int i = 0; i < 12; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        sum += (double)(seed >> 40) / 16777216.0;
    }
    return sum;
}

// All bytes 0xff: NaN in every dtype.
static array make(kf_dtype dtype, int64_t rows, int64_t n, int gap, int shift) {
    array a = {.rows = rows, .n = n, .step = n + gap, .shape = {rows, n}, .strides = {n + gap, 1}};
    a.bytes = (size_t)((rows * a.step + shift + 64) * bytes_of(dtype));
    a.memory = kf_alloc(a.bytes);
    assert_non_null(a.memory);
    memset(a.memory, 0xff, a.bytes);
    a.t = kf_tensor_cpu(a.memory + shift * bytes_of(dtype), dtype, 2, NULL);
    return a;
}

static array make_random(kf_dtype dtype, int64_t rows, int64_t n, int gap, int shift) {
    array a = make(dtype, rows, n, gap, shift);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++) put(&a, r, i, random_normal());
    return a;
}

// Points the tensor at the array's own shape and strides, which must not move afterwards.
static const kf_tensor *tensor(array *a) {
    a->t.shape = a->shape;
    a->t.strides = a->strides;
    return &a->t;
}

static void drop(array *a) { kf_free(a->memory); }

// What lies between and behind the rows is still untouched.
static void check_gaps(const array *a) {
    int64_t size = bytes_of(a->t.dtype);
    const char *first = a->t.data;
    for (const char *p = a->memory; p < a->memory + a->bytes; p++) {
        int64_t element = (p - first) / size;
        bool inside = p >= first && element < a->rows * a->step && element % a->step < a->n;
        if (!inside && *p != (char)0xff) fail_msg("byte %td outside of the rows was written", p - first);
    }
}

// Bits of the rows, gaps left out.
static void check_same(const array *a, const array *b) {
    for (int64_t r = 0; r < a->rows; r++)
        assert_memory_equal(at(a, r, 0), at(b, r, 0), (size_t)(a->n * bytes_of(a->t.dtype)));
}

// Half an ulp of rounding, and `ulps` of fp32 for the arithmetic.
static double allowed(kf_dtype dtype, double value, double ulps) {
    double least = dtype.code == KF_CODE_BFLOAT ? 0x1p-133 : dtype.bits == 16 ? 0x1p-24 : 0x1p-149;
    double relative = dtype.code == KF_CODE_BFLOAT ? 0x1p-8 : dtype.bits == 16 ? 0x1p-11 : 0x1p-24;
    return fabs(value) * (relative * 1.001 + ulps * 0x1p-23) + least;
}

static void check_value(const char *what, double got, double expected, double bound) {
    if (isnan(expected) ? isnan(got) : isinf(expected) ? got == expected : fabs(got - expected) <= bound) return;
    fail_msg("%s: %.9g, expected %.9g, allowed error %.3g", what, got, expected, bound);
}

// ---------------------------------------------------------------------------------------------------- every ISA

static kf_context *context_of(int isa, int threads) {
    kf_context_options options;
    kf_context_options_init(&options);
    options.isa = isa;
    options.threads = threads;
    kf_context *context = NULL;
    assert_int_equal(kf_context_create(&options, &context), KF_OK);
    return context;
}

static void for_each_isa(void (*check)(const kf_context *context)) {
    for (int isa = KF_ISA_SCALAR; isa <= (int)kf_cpu_isa(); isa++) {
        kf_context *context = context_of(isa, 2);
        check(context);
        kf_context_destroy(context);
    }
}

static const int64_t lengths[] = {127, 128, 129, 576, 1023, 1024, 1025, 4096, 5000, 16385, 65536, 65537, 100001};

// Calls check for the lengths 1 to 70 and those above.
static void for_lengths(const kf_context *context, void (*check)(const kf_context *context, int64_t n)) {
    for (int64_t n = 1; n <= 70; n++) check(context, n);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) check(context, lengths[i]);
}

// Dtype of the k-th of several tensors: 0, 1, 2 the same for all, then mixtures.
static kf_dtype dtype_of(int mix, int k) {
    const kf_dtype dtypes[] = {FP32, FP16, BF16};
    return dtypes[mix < 3 ? mix : (mix + k) % 3];
}

// ------------------------------------------------------------------------------------------------------- softmax

// y and lse of row r of x in float64.
static double softmax_row(const array *x, int64_t r, double *y) {
    double m = -INFINITY, d = 0;
    for (int64_t i = 0; i < x->n; i++) m = fmax(m, get(x, r, i));
    for (int64_t i = 0; i < x->n; i++) d += y[i] = m == -INFINITY && !isnan(get(x, r, i)) ? 0 : exp(get(x, r, i) - m);
    for (int64_t i = 0; i < x->n && d != 0; i++) y[i] /= d;
    return d == 0 ? -INFINITY : m + log(d);
}

static void run_softmax(const kf_context *context, array *x, array *y, array *lse) {
    kf_softmax_args args;
    kf_softmax_args_init(&args);
    args.x = tensor(x);
    args.y = tensor(y);
    int64_t rows = x->rows;
    kf_tensor flat;
    if (lse) {
        flat = kf_tensor_cpu(lse->t.data, FP32, 1, &rows);
        args.lse = &flat;
    }
    if (kf_softmax(context, &args) != KF_OK) fail_msg("%s", kf_last_error());
}

static void check_softmax(const array *x, const array *y, const array *lse) {
    double *expected = malloc((size_t)x->n * sizeof(double));
    for (int64_t r = 0; r < x->rows; r++) {
        double l = softmax_row(x, r, expected);
        double top = 0;
        for (int64_t i = 0; i < x->n; i++) top = fmax(top, expected[i]);
        for (int64_t i = 0; i < x->n; i++)
            check_value("softmax", get(y, r, i), expected[i], allowed(y->t.dtype, expected[i], 24) + top * 0x1p-30);
        if (lse) check_value("lse", get(lse, 0, r), l, 4e-7 * (1 + fabs(l)));
    }
    free(expected);
}

static void softmax_length(const kf_context *context, int64_t n) {
    for (int mix = 0; mix < 6; mix++) {
        array x = make_random(dtype_of(mix, 0), 3, n, 5, 3), y = make(dtype_of(mix, 1), 3, n, 2, 1);
        array lse = make(FP32, 1, 3, 0, 0);
        run_softmax(context, &x, &y, &lse);
        check_softmax(&x, &y, &lse);
        check_gaps(&y);
        check_gaps(&lse);
        run_softmax(context, &x, &y, NULL); // for y alone shorter exponentials may do
        check_softmax(&x, &y, NULL);
        if (mix < 3) { // in place: the same bits
            run_softmax(context, &x, &x, NULL);
            check_same(&x, &y);
        }
        drop(&x), drop(&y), drop(&lse);
    }
}

static void softmax_isa(const kf_context *context) { for_lengths(context, softmax_length); }

static void test_softmax(void **state) {
    (void)state;
    for_each_isa(softmax_isa);
}

// Rows of kinds: what stands where.
static void softmax_kinds_of(const kf_context *context, int64_t n) {
    enum { KINDS = 10 };
    array x = make_random(FP32, KINDS, n, 0, 0), y = make(FP32, KINDS, n, 0, 0), lse = make(FP32, 1, KINDS, 0, 0);
    for (int64_t i = 0; i < n; i++) {
        put(&x, 0, i, -INFINITY);
        if (i < n - 1) put(&x, 1, i, -INFINITY); // but for the last
        if (i > 0) put(&x, 2, i, -INFINITY);     // but for the first
        put(&x, 3, i, 1e30 * get(&x, 3, i));
        put(&x, 4, i, 1e-30 * get(&x, 4, i));
        put(&x, 5, i, i % 2 ? 3e38 : -3e38);
        put(&x, 6, i, -1e4 + get(&x, 6, i));
        put(&x, 9, i, 80.0 * get(&x, 9, i));
    }
    put(&x, 7, n / 2, NAN);
    put(&x, 8, n / 3, INFINITY);
    run_softmax(context, &x, &y, &lse);
    check_softmax(&x, &y, &lse);
    for (int64_t i = 0; i < n; i++) {
        assert_true(get(&y, 0, i) == 0);
        assert_true(isnan(get(&y, 7, i)) && isnan(get(&y, 8, i)));
    }
    assert_true(get(&lse, 0, 0) == -INFINITY);
    // A row of nothing but -inf and NaN.
    for (int64_t i = 0; i < n; i++) put(&x, 0, i, i == n - 1 ? NAN : -INFINITY);
    run_softmax(context, &x, &y, NULL);
    for (int64_t i = 0; i < n; i++) assert_true(isnan(get(&y, 0, i)));
    // A NaN of any payload.
    const uint32_t bits[] = {0xffffffffu, 0x7fc00001u, 0x7f800001u, 0xffc01234u};
    for (int k = 0; k < 4; k++) {
        memcpy(at(&x, 9, n / 4), &bits[k], 4);
        run_softmax(context, &x, &y, NULL);
        for (int64_t i = 0; i < n; i++) assert_true(isnan(get(&y, 9, i)));
    }
    drop(&x), drop(&y), drop(&lse);
}

static void softmax_kinds(const kf_context *context) {
    const int64_t sizes[] = {1, 2, 7, 40, 1030, 3000, 70000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) softmax_kinds_of(context, sizes[i]);
}

static void test_softmax_kinds(void **state) {
    (void)state;
    for_each_isa(softmax_kinds);
}

// A row has the same bits alone, among many (which takes another way through long rows), and at another address.
static void softmax_bits(const kf_context *context) {
    const int64_t sizes[] = {37, 4099, 70001};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t n = sizes[i];
        array many = make_random(BF16, 66, n, 0, 0), y = make(BF16, 66, n, 0, 0);
        run_softmax(context, &many, &y, NULL);
        array one = make(BF16, 1, n, 0, 5), z = make(BF16, 1, n, 0, 3);
        memcpy(one.t.data, at(&many, 65, 0), (size_t)n * 2);
        run_softmax(context, &one, &z, NULL);
        assert_memory_equal(z.t.data, at(&y, 65, 0), (size_t)n * 2);
        drop(&many), drop(&y), drop(&one), drop(&z);
    }
}

static void test_softmax_bits(void **state) {
    (void)state;
    for_each_isa(softmax_bits);
}

// ------------------------------------------------------------------------------------------------------- rmsnorm

typedef struct norm_case {
    array x, residual, weight, y, sum;
    int has_residual, has_weight, has_sum, cast;
    float eps, offset;
} norm_case;

static void run_norm(const kf_context *context, norm_case *c) {
    kf_rmsnorm_args args;
    kf_rmsnorm_args_init(&args);
    args.x = tensor(&c->x);
    args.y = tensor(&c->y);
    if (c->has_residual) args.residual = tensor(&c->residual);
    if (c->has_sum) args.sum = tensor(&c->sum);
    kf_tensor weight = kf_tensor_cpu(c->weight.t.data, c->weight.t.dtype, 1, &c->x.shape[1]);
    if (c->has_weight) args.weight = &weight;
    args.eps = c->eps;
    args.weight_offset = c->offset;
    args.cast = c->cast;
    if (kf_rmsnorm(context, &args) != KF_OK) fail_msg("%s", kf_last_error());
}

static double rounded(kf_dtype dtype, double value) {
    if (dtype.bits == 32) return (float)value;
    if (dtype.code == KF_CODE_BFLOAT) return kf_bf16_to_float(kf_float_to_bf16((float)value));
    return kf_fp16_to_float(kf_float_to_fp16((float)value));
}

// x and residual as they were before the call. Between casts a value near a tie may round the other way: then y may be
// off by one step of x's dtype.
static void check_norm(const norm_case *c, const array *x, const array *residual) {
    kf_dtype sum_dtype = c->has_sum ? c->sum.t.dtype : x->t.dtype;
    for (int64_t r = 0; r < x->rows; r++) {
        double squares = 0;
        double *s = malloc((size_t)x->n * sizeof(double));
        for (int64_t i = 0; i < x->n; i++) {
            s[i] = get(x, r, i) + (c->has_residual ? get(residual, r, i) : 0.0);
            if (c->has_sum) check_value("sum", get(&c->sum, r, i), s[i], allowed(sum_dtype, s[i], 1));
            if (c->cast != KF_CAST_END) s[i] = rounded(sum_dtype, s[i]);
            squares += s[i] * s[i];
        }
        double scale = 1.0 / sqrt(squares / (double)x->n + (double)c->eps);
        for (int64_t i = 0; i < x->n; i++) {
            double v = s[i] * scale, w = c->has_weight ? (double)c->offset + get(&c->weight, 0, i) : 1.0;
            double slack = 0.0;
            if (c->cast == KF_CAST_LLAMA) {
                slack = 2.0 * allowed(x->t.dtype, v, 4) * fabs(w);
                v = rounded(x->t.dtype, v);
            }
            check_value("rmsnorm", get(&c->y, r, i), v * w, allowed(c->y.t.dtype, v * w, 6) + slack);
        }
        free(s);
    }
}

static norm_case make_norm(int mix, int64_t rows, int64_t n, int parts) {
    norm_case c = {.has_residual = parts & 1, .has_sum = parts >> 1 & 1, .has_weight = parts >> 2 & 1, .eps = 1e-5f};
    c.x = make_random(dtype_of(mix, 0), rows, n, 3, 1);
    c.y = make(dtype_of(mix, 1), rows, n, 1, 7);
    c.residual = make_random(dtype_of(mix, 2), rows, n, 0, 2);
    c.sum = make(dtype_of(mix, 3), rows, n, 2, 0);
    c.weight = make_random(dtype_of(mix, 4), 1, n, 0, 1);
    return c;
}

static void drop_norm(norm_case *c) { drop(&c->x), drop(&c->y), drop(&c->residual), drop(&c->sum), drop(&c->weight); }

static void norm_length(const kf_context *context, int64_t n) {
    for (int mix = 0; mix < 6; mix++) {
        for (int cast = KF_CAST_END; cast <= KF_CAST_LLAMA; cast++) {
            norm_case c = make_norm(mix, 2, n, (int)(n + mix + cast) % 8);
            c.cast = cast;
            c.offset = n % 3 ? 0.0f : 1.0f;
            run_norm(context, &c);
            check_norm(&c, &c.x, &c.residual);
            check_gaps(&c.y);
            check_gaps(&c.sum);
            drop_norm(&c);
        }
    }
}

static void norm_isa(const kf_context *context) { for_lengths(context, norm_length); }

static void test_rmsnorm(void **state) {
    (void)state;
    for_each_isa(norm_isa);
}

// y in x's place and sum in residual's: the bits of the call with outputs of their own.
static void norm_in_place(const kf_context *context) {
    for (int mix = 0; mix < 3; mix++) {
        norm_case c = make_norm(mix, 3, 1111, 7);
        run_norm(context, &c);
        norm_case same = c;
        same.y = same.x;
        same.sum = same.residual;
        run_norm(context, &same);
        check_same(&same.x, &c.y);
        check_same(&same.residual, &c.sum);
        drop_norm(&c);
    }
}

static void test_rmsnorm_in_place(void **state) {
    (void)state;
    for_each_isa(norm_in_place);
}

// Squares that no fp32 number holds; rows of zeros; NaN and infinities stay in their row.
static void norm_extremes(const kf_context *context) {
    const double scales[] = {1e30, 3e37, 1e-20, 1e-30, 1e-40};
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        norm_case c = make_norm(0, 2, 300, 4);
        c.eps = scales[i] < 1 ? 0.0f : 1e-6f;
        for (int64_t k = 0; k < 600; k++) put(&c.x, k / 300, k % 300, scales[i] * get(&c.x, k / 300, k % 300));
        run_norm(context, &c);
        check_norm(&c, &c.x, &c.residual);
        drop_norm(&c);
    }
    norm_case c = make_norm(0, 5, 300, 4);
    for (int64_t k = 0; k < 300; k++) put(&c.x, 0, k, 0.0);
    put(&c.x, 1, 150, NAN);
    put(&c.x, 3, 299, -INFINITY);
    run_norm(context, &c);
    check_norm(&c, &c.x, &c.residual);
    drop_norm(&c);
}

static void test_rmsnorm_extremes(void **state) {
    (void)state;
    for_each_isa(norm_extremes);
}

// -------------------------------------------------------------------------------------------------------- swiglu

static void run_swiglu(const kf_context *context, array *gate, array *up, array *packed, array *y) {
    kf_swiglu_args args;
    kf_swiglu_args_init(&args);
    if (packed)
        args.gate_up = tensor(packed);
    else
        args.gate = tensor(gate), args.up = tensor(up);
    args.y = tensor(y);
    if (kf_swiglu(context, &args) != KF_OK) fail_msg("%s", kf_last_error());
}

static void check_swiglu(const array *gate, const array *up, const array *y) {
    for (int64_t r = 0; r < y->rows; r++)
        for (int64_t i = 0; i < y->n; i++) {
            double g = get(gate, r, i), expected = g / (1 + exp(-g)) * get(up, r, i);
            if (fabs(expected) > 1e38) continue;            // beyond fp32 somewhere on the way
            double lost = g < -88.0 ? fabs(expected) : 0.0; // exp overflows: 0
            check_value("swiglu", get(y, r, i), expected, allowed(y->t.dtype, expected, 6) + lost);
        }
}

static void swiglu_length(const kf_context *context, int64_t n) {
    for (int mix = 0; mix < 6; mix++) {
        kf_dtype in = dtype_of(mix, 0);
        array gate = make_random(in, 2, n, 1, 3), up = make_random(in, 2, n, 4, 0),
              y = make(dtype_of(mix, 1), 2, n, 3, 5);
        run_swiglu(context, &gate, &up, NULL, &y);
        check_swiglu(&gate, &up, &y);
        check_gaps(&y);
        array packed = make(in, 2, 2 * n, 1, 0), z = make(dtype_of(mix, 1), 2, n, 0, 0);
        for (int64_t r = 0; r < 2; r++) {
            memcpy(at(&packed, r, 0), at(&gate, r, 0), (size_t)(n * bytes_of(in)));
            memcpy(at(&packed, r, n), at(&up, r, 0), (size_t)(n * bytes_of(in)));
        }
        run_swiglu(context, NULL, NULL, &packed, &z);
        check_same(&z, &y);
        if (mix < 3) {
            run_swiglu(context, &gate, &up, NULL, mix == 1 ? &up : &gate);
            check_same(mix == 1 ? &up : &gate, &y);
        }
        drop(&gate), drop(&up), drop(&y), drop(&packed), drop(&z);
    }
}

static void swiglu_isa(const kf_context *context) {
    for_lengths(context, swiglu_length);
    // Every fp16 number as gate: infinities and NaN among them.
    array gate = make(FP16, 1, 65536, 0, 0), up = make_random(FP16, 1, 65536, 0, 0), y = make(FP32, 1, 65536, 0, 0);
    for (int64_t i = 0; i < 65536; i++) {
        uint16_t bits = (uint16_t)i;
        memcpy(at(&gate, 0, i), &bits, 2);
    }
    run_swiglu(context, &gate, &up, NULL, &y);
    check_swiglu(&gate, &up, &y);
    drop(&gate), drop(&up), drop(&y);
}

static void test_swiglu(void **state) {
    (void)state;
    for_each_isa(swiglu_isa);
}

// ------------------------------------------------------------------------------------------------------- merge

static void merge_case(const kf_context *context, int mix, int64_t parts, int64_t rows, int64_t n) {
    array o_parts = make_random(dtype_of(mix, 0), parts * rows, n, 3, 1), o = make(dtype_of(mix, 1), rows, n, 1, 2);
    array lse_parts = make_random(FP32, 1, parts * rows, 0, 0), lse = make(FP32, 1, rows, 0, 0);
    for (int64_t i = 0; i < parts * rows; i++) { // some parts are empty: their output does not count
        if ((i * 7 + i / rows) % 3) continue;
        put(&lse_parts, 0, i, -INFINITY);
        put(&o_parts, i, n / 2, NAN);
    }
    for (int64_t s = 0; s < parts; s++) put(&lse_parts, 0, s * rows, -INFINITY); // row 0 has no keys at all
    int64_t shape[] = {parts, rows, n}, strides[] = {rows * o_parts.step, o_parts.step, 1};
    kf_tensor po = kf_tensor_cpu(o_parts.t.data, o_parts.t.dtype, 3, shape);
    kf_tensor pl = kf_tensor_cpu(lse_parts.t.data, FP32, 2, shape), l = kf_tensor_cpu(lse.t.data, FP32, 1, &rows);
    po.strides = strides;
    kf_merge_states_args args;
    kf_merge_states_args_init(&args);
    args.o_parts = &po;
    args.lse_parts = &pl;
    args.o = tensor(&o);
    args.lse = &l;
    if (kf_merge_states(context, &args) != KF_OK) fail_msg("%s", kf_last_error());
    for (int64_t r = 0; r < rows; r++) {
        double d = 0, size = 0;
        for (int64_t s = 0; s < parts; s++) d += exp(get(&lse_parts, 0, s * rows + r));
        check_value("merged lse", get(&lse, 0, r), log(d), 1e-6);
        for (int64_t i = 0; i < n; i++) {
            double sum = 0;
            size = 0;
            for (int64_t s = 0; s < parts; s++) {
                double w = exp(get(&lse_parts, 0, s * rows + r)) / d;
                if (!(w > 0)) continue;
                sum += w * get(&o_parts, s * rows + r, i);
                size += w * fabs(get(&o_parts, s * rows + r, i));
            }
            check_value("merge", get(&o, r, i), sum, allowed(o.t.dtype, sum, 0) + size * 1e-6);
        }
    }
    check_gaps(&o);
    drop(&o_parts), drop(&o), drop(&lse_parts), drop(&lse);
}

static void merge_isa(const kf_context *context) {
    for (int64_t n = 1; n <= 70; n++) merge_case(context, (int)n % 6, 1 + n % 5, 3, n);
    for (int mix = 0; mix < 6; mix++) merge_case(context, mix, 40, 33, 128);
}

static void test_merge(void **state) {
    (void)state;
    for_each_isa(merge_isa);
}

// -------------------------------------------------------------------------------------------- rope and kv_append

// x turned at a position, from the definition.
static void rotate(const kf_rope_params *rope, int64_t D, double position, double *x) {
    int dims = rope->dims ? rope->dims : (int)D;
    for (int c = 0; c < dims / 2; c++) {
        double angle = position * pow(rope->base, -2.0 * c / dims);
        int i = rope->pairing == KF_ROPE_NEOX ? c : 2 * c, j = rope->pairing == KF_ROPE_NEOX ? c + dims / 2 : 2 * c + 1;
        double a = x[i], b = x[j];
        x[i] = a * cos(angle) - b * sin(angle);
        x[j] = b * cos(angle) + a * sin(angle);
    }
}

enum { B = 2, H = 3, N = 4 };

// [B, H, N, D] in memory of [B, N, H, D]: the heads of a token lie together, as a projection leaves them.
static kf_tensor heads_of(array *a, int64_t rows, int64_t D) {
    const int64_t shape[] = {B, H, rows, D}, strides[] = {rows * H * a->step, a->step, H * a->step, 1};
    memcpy(a->shape, shape, sizeof shape);
    memcpy(a->strides, strides, sizeof strides);
    kf_tensor t = kf_tensor_cpu(a->t.data, a->t.dtype, 4, a->shape);
    t.strides = a->strides;
    return t;
}

static int64_t row_of(int64_t rows, int64_t b, int64_t h, int64_t n) { return (b * rows + n) * H + h; }

static void check_heads(const kf_rope_params *rope, const array *x, const array *y, int64_t rows,
                        const int64_t *position, const int64_t *slot, int64_t D) {
    double expected[600];
    for (int64_t i = 0; i < B * H * N; i++) {
        int64_t b = i / (H * N), h = i / N % H, n = i % N;
        for (int64_t c = 0; c < D; c++) expected[c] = get(x, row_of(N, b, h, n), c);
        double most = 0;
        for (int64_t c = 0; c < D; c++) most = fmax(most, fabs(expected[c]));
        if (rope->pairing != KF_ROPE_OFF) rotate(rope, D, (double)position[b * N + n], expected);
        for (int64_t c = 0; c < D; c++)
            check_value("rotated", get(y, row_of(rows, b, h, slot ? slot[b] + n : n), c), expected[c],
                        allowed(y->t.dtype, expected[c], 0) + (rope->pairing == KF_ROPE_OFF ? 0 : most * 3e-7));
    }
}

static void rope_case(const kf_context *context, int mix, int pairing, int64_t D, int dims, int64_t start) {
    array x = make_random(dtype_of(mix, 0), B * N * H, D, 1, 1), y = make(dtype_of(mix, 1), B * N * H, D, 2, 3);
    int64_t position[B * N];
    for (int64_t i = 0; i < B * N; i++) position[i] = start + (i * 37) % 1000 * (i % 2 ? 1 : -1);
    const int64_t shape[] = {B, N};
    kf_tensor p = kf_tensor_cpu(position, INT64, 2, shape), tx = heads_of(&x, N, D), ty = heads_of(&y, N, D);
    kf_rope_args args;
    kf_rope_args_init(&args);
    args.x = &tx;
    args.y = &ty;
    args.positions = &p;
    args.rope = (kf_rope_params){.pairing = pairing, .dims = dims, .base = 500.0};
    if (kf_rope(context, &args) != KF_OK) fail_msg("%s", kf_last_error());
    check_heads(&args.rope, &x, &y, N, position, NULL, D);
    check_gaps(&y);
    if (mix < 3) {
        args.y = &tx;
        assert_int_equal(kf_rope(context, &args), KF_OK);
        check_same(&x, &y);
    }
    drop(&x), drop(&y);
}

static void rope_isa(const kf_context *context) {
    for (int pairing = KF_ROPE_NEOX; pairing <= KF_ROPE_GPTJ; pairing++) {
        for (int64_t D = 2; D <= 74; D += 2)
            rope_case(context, (int)(D / 2) % 6, pairing, D, D % 3 ? 0 : (int)D / 4 * 2, 0);
        for (int mix = 0; mix < 6; mix++) rope_case(context, mix, pairing, 128, 0, 100000);
        rope_case(context, 0, pairing, 512, 256, 1 << 20);
        rope_case(context, 0, pairing, 64, 64, (int64_t)1 << 40);
    }
}

static void test_rope(void **state) {
    (void)state;
    for_each_isa(rope_isa);
}

// cos and sin of every kernel against the C library's: the same fp32 number but for ties.
static void test_angles(void **state) {
    (void)state;
    const double positions[] = {0, 1, 2, 3, 4095, 131072, 1048575, -5, -70000, 33554431.0, 1e9, 1e15};
    for (int isa = KF_ISA_SCALAR; isa <= (int)kf_cpu_isa(); isa++) {
        const kf_row_kernels *k = kf_cpu_table_get((kf_isa)isa)->rows;
        for (int pairs = 1; pairs <= 32; pairs++) {
            for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
                double frequency[32];
                float cosine[33], sine[33];
                for (int c = 0; c < pairs; c++) frequency[c] = pow(10000.0, -c / 32.0);
                cosine[pairs] = sine[pairs] = 5.0f;
                k->rope_angles(frequency, pairs, 1.25, positions[i], cosine, sine);
                for (int c = 0; c < pairs; c++) {
                    double angle = positions[i] * frequency[c];
                    check_value("cosine", cosine[c], 1.25 * cos(angle), allowed(FP32, 1.25 * cos(angle), 0) + 1e-12);
                    check_value("sine", sine[c], 1.25 * sin(angle), allowed(FP32, 1.25 * sin(angle), 0) + 1e-12);
                }
                assert_true(cosine[pairs] == 5.0f && sine[pairs] == 5.0f);
            }
        }
    }
}

static void append_case(const kf_context *context, int mix, int pairing, int64_t D, int64_t Dv) {
    enum { CAPACITY = 11 };
    array k = make_random(dtype_of(mix, 0), B * N * H, D, 1, 0), v = make_random(dtype_of(mix, 0), B * N * H, Dv, 0, 1);
    array k_cache = make(dtype_of(mix, 1), B * CAPACITY * H, D, 0, 0);
    array v_cache = make(dtype_of(mix, 1), B * CAPACITY * H, Dv, 3, 0);
    int64_t slot[B] = {CAPACITY - N, 2}, batch = B, position[B * N];
    for (int64_t i = 0; i < B * N; i++) position[i] = slot[i / N] + i % N;
    kf_tensor tk = heads_of(&k, N, D), tv = heads_of(&v, N, Dv), ts = kf_tensor_cpu(slot, INT64, 1, &batch);
    kf_tensor tkc = heads_of(&k_cache, CAPACITY, D), tvc = heads_of(&v_cache, CAPACITY, Dv);
    kf_kv_append_args args;
    kf_kv_append_args_init(&args);
    args.k = &tk, args.v = &tv, args.k_cache = &tkc, args.v_cache = &tvc, args.slots = &ts;
    args.rope = (kf_rope_params){.pairing = pairing, .base = 500.0};
    slot[0]++; // one row too far: refused, and nothing is written
    assert_int_equal(kf_kv_append(context, &args), KF_INVALID_ARGUMENT);
    for (size_t i = 0; i < k_cache.bytes; i++) assert_int_equal(k_cache.memory[i], (char)0xff);
    slot[0] = -1;
    assert_int_equal(kf_kv_append(context, &args), KF_INVALID_ARGUMENT);
    slot[0] = CAPACITY - N;
    if (kf_kv_append(context, &args) != KF_OK) fail_msg("%s", kf_last_error());
    check_heads(&args.rope, &k, &k_cache, CAPACITY, position, slot, D);
    check_heads(&(kf_rope_params){.pairing = KF_ROPE_OFF}, &v, &v_cache, CAPACITY, position, slot, Dv);
    for (int64_t i = 0; i < B * CAPACITY * H; i++) { // rows that were not appended
        int64_t b = i / (CAPACITY * H), at_slot = i / H % CAPACITY - slot[b];
        if (at_slot >= 0 && at_slot < N) continue;
        for (int64_t c = 0; c < Dv; c++) assert_true(isnan(get(&v_cache, i, c)));
    }
    check_gaps(&k_cache);
    check_gaps(&v_cache);
    drop(&k), drop(&v), drop(&k_cache), drop(&v_cache);
}

static void append_isa(const kf_context *context) {
    for (int mix = 0; mix < 6; mix++)
        for (int pairing = KF_ROPE_OFF; pairing <= KF_ROPE_GPTJ; pairing++) {
            append_case(context, mix, pairing, 64, 64);
            append_case(context, mix, pairing, 22, 37);
        }
}

static void test_kv_append(void **state) {
    (void)state;
    for_each_isa(append_isa);
}

// ------------------------------------------------------------------------------------------- threads, empty shapes

// Large enough for many items and for streamed stores.
static void test_threads(void **state) {
    (void)state;
    for (int isa = KF_ISA_SCALAR; isa <= (int)kf_cpu_isa(); isa += 1) {
        array first[4];
        for (int threads = 1; threads <= 4; threads++) {
            kf_context *context = context_of(isa, threads);
            seed = 7;
            array x = make_random(BF16, 1030, 4100, 0, 1);
            array s = make(BF16, 1030, 4100, 0, 1), g = make(BF16, 1030, 4100, 0, 1);
            array long_x = make_random(FP32, 2, 200000, 0, 0), long_y = make(FP32, 2, 200000, 0, 0);
            norm_case c = {.x = x, .residual = x, .has_residual = 1, .has_sum = 1, .eps = 1e-5f};
            c.y = make(BF16, 1030, 4100, 0, 1), c.sum = make(BF16, 1030, 4100, 0, 1);
            run_softmax(context, &x, &s, NULL);
            run_softmax(context, &long_x, &long_y, NULL);
            run_swiglu(context, &x, &x, NULL, &g);
            run_norm(context, &c);
            if (threads == 1) {
                first[0] = s, first[1] = long_y, first[2] = g, first[3] = c.y;
            } else {
                check_same(&s, &first[0]), check_same(&long_y, &first[1]);
                check_same(&g, &first[2]), check_same(&c.y, &first[3]);
                drop(&s), drop(&long_y), drop(&g), drop(&c.y);
            }
            drop(&x), drop(&long_x), drop(&c.sum);
            kf_context_destroy(context);
        }
        for (int i = 0; i < 4; i++) drop(&first[i]);
    }
}

static void empty_shapes(const kf_context *context) {
    const int64_t sizes[][2] = {{0, 5}, {3, 0}, {0, 0}};
    for (int i = 0; i < 3; i++) {
        array x = make(FP32, sizes[i][0], sizes[i][1], 0, 0), lse = make(FP32, 1, 3, 0, 0);
        run_softmax(context, &x, &x, &lse);
        for (int64_t r = 0; r < sizes[i][0]; r++) assert_true(get(&lse, 0, r) == -INFINITY);
        run_swiglu(context, &x, &x, NULL, &x);
        norm_case c = {.x = x, .y = x, .eps = 1e-5f};
        run_norm(context, &c);
        drop(&x), drop(&lse);
    }
}

static void test_empty(void **state) {
    (void)state;
    for_each_isa(empty_shapes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_softmax_kinds),
        cmocka_unit_test(test_softmax_bits),
        cmocka_unit_test(test_rmsnorm),
        cmocka_unit_test(test_rmsnorm_in_place),
        cmocka_unit_test(test_rmsnorm_extremes),
        cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_merge),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_angles),
        cmocka_unit_test(test_kv_append),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
