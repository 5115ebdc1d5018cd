// SPDX-License-Identifier: Apache-2.0
//
// fp16 and bf16 conversions: every pattern to fp32 and back; every rounding boundary from fp32, one fp32 step to either
// side; F16C's instructions as a second opinion where the machine has them. exp2 and exp against the C library's in
// float64.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "math/exp2.h"
#include "math/half.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// value = (-1)^s 2^(e - bias) 1.f, from the formats' definition, in float64.
static double value_of(uint16_t half, int fraction_bits, int bias) {
    int exponent = (half & 0x7fff) >> fraction_bits, top = 0x7fff >> fraction_bits;
    int fraction = half & ((1 << fraction_bits) - 1);
    double sign = half & 0x8000 ? -1.0 : 1.0;
    if (exponent == top) return fraction ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexp(fraction, 1 - bias - fraction_bits);
    return sign * ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

static void test_fp16_patterns(void **state) {
    (void)state;
    for (uint32_t h = 0; h <= 0xffff; h++) {
        float f = kf_fp16_to_float((uint16_t)h);
        double expected = value_of((uint16_t)h, 10, 15);
        if (isnan(expected)) {
            assert_true(isnan(f));
            assert_int_equal(kf_float_to_fp16(f), h | 0x0200);
            continue;
        }
        assert_true((double)f == expected && !signbit(f) == !signbit(expected));
        assert_int_equal(kf_float_to_fp16(f), h);
    }
}

static void test_bf16_patterns(void **state) {
    (void)state;
    for (uint32_t h = 0; h <= 0xffff; h++) {
        float f = kf_bf16_to_float((uint16_t)h);
        double expected = value_of((uint16_t)h, 7, 127);
        if (isnan(expected)) {
            assert_true(isnan(f));
            assert_int_equal(kf_float_to_bf16(f), h | 0x0040);
            continue;
        }
        assert_true((double)f == expected && !signbit(f) == !signbit(expected));
        assert_int_equal(kf_float_to_bf16(f), h);
    }
}

// Checks the fp32 numbers halfway between h and its successor away from zero, and one fp32 step to either side.
static void check_boundary(uint16_t h, int fraction_bits, int bias, uint16_t (*convert)(float)) {
    double low = value_of(h, fraction_bits, bias), high = value_of((uint16_t)(h + 1), fraction_bits, bias);
    // Above the largest finite number stands what would be the next one, rounding to infinity.
    if (isinf(high)) high = low * 2 - value_of((uint16_t)(h - 1), fraction_bits, bias);
    float middle = (float)((low + high) / 2);
    assert_true((double)middle == (low + high) / 2);
    uint16_t even = h & 1 ? (uint16_t)(h + 1) : h;
    assert_int_equal(convert(middle), even);
    assert_int_equal(convert(nextafterf(middle, 0.0f)), h);
    assert_int_equal(convert(nextafterf(middle, copysignf(INFINITY, middle))), h + 1);
}

static void test_boundaries(void **state) {
    (void)state;
    for (uint32_t sign = 0; sign <= 0x8000; sign += 0x8000) {
        for (uint32_t h = 0; h < 0x7c00; h++) check_boundary((uint16_t)(sign | h), 10, 15, kf_float_to_fp16);
        for (uint32_t h = 0; h < 0x7f80; h++) check_boundary((uint16_t)(sign | h), 7, 127, kf_float_to_bf16);
    }
}

static void test_specials(void **state) {
    (void)state;
    assert_int_equal(kf_float_to_fp16(INFINITY), 0x7c00);
    assert_int_equal(kf_float_to_fp16(-INFINITY), 0xfc00);
    assert_int_equal(kf_float_to_fp16(3e38f), 0x7c00);
    assert_int_equal(kf_float_to_fp16(-1e-30f), 0x8000);
    assert_int_equal(kf_float_to_bf16(INFINITY), 0x7f80);
    assert_int_equal(kf_float_to_bf16(3.4e38f), 0x7f80);
    assert_int_equal(kf_float_to_bf16(kf_float_of_bits(0x7f800001u)),
                     0x7fc0); // a signalling NaN whose payload would be cut off
    assert_int_equal(kf_float_to_fp16(kf_float_of_bits(0xff800001u)), 0xfe00);
}

#if defined(__x86_64__)
__attribute__((target("avx,f16c"))) static float hardware_to_float(uint16_t half) {
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
}

__attribute__((target("avx,f16c"))) static uint16_t hardware_to_fp16(float value) {
    return (uint16_t)_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(value), _MM_FROUND_TO_NEAREST_INT));
}

static void test_hardware(void **state) {
    (void)state;
    if (!__builtin_cpu_supports("avx2")) skip(); // every machine with AVX2 has F16C
    for (uint32_t h = 0; h <= 0xffff; h++)
        assert_int_equal(kf_bits_of_float(kf_fp16_to_float((uint16_t)h)),
                         kf_bits_of_float(hardware_to_float((uint16_t)h)));
    // Every exponent and sign, the fraction in steps of a prime.
    for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 1009) {
        float f = kf_float_of_bits((uint32_t)bits);
        assert_int_equal(kf_float_to_fp16(f), hardware_to_fp16(f));
    }
}
#endif

// The error of `got` in units of the last place of fp32 at `expected`.
static double ulps(float got, double expected) {
    int exponent;
    frexp(expected, &exponent);
    double ulp = ldexp(1.0, (exponent < -125 ? -125 : exponent) - 24);
    return fabs((double)got - expected) / ulp;
}

static void test_exp(void **state) {
    (void)state;
    double worst_exp2 = 0.0, worst_exp = 0.0;
    for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 509) {
        float x = kf_float_of_bits((uint32_t)bits);
        if (isnan(x)) {
            assert_true(isnan(kf_exp2(x)) && isnan(kf_exp(x)));
            continue;
        }
        double two = exp2((double)x), e = exp((double)x);
        if ((float)two == INFINITY || isinf(two))
            assert_true(kf_exp2(x) == INFINITY);
        else
            worst_exp2 = fmax(worst_exp2, ulps(kf_exp2(x), two));
        if ((float)e == INFINITY || isinf(e))
            assert_true(kf_exp(x) == INFINITY);
        else
            worst_exp = fmax(worst_exp, ulps(kf_exp(x), e));
    }
    print_message("exp2: %.3f ulp, exp: %.3f ulp\n", worst_exp2, worst_exp);
    assert_true(worst_exp2 <= 1.3);
    assert_true(worst_exp <= 1.3);
    assert_true(kf_exp2(-INFINITY) == 0.0f && kf_exp(-INFINITY) == 0.0f);
    assert_true(kf_exp2(INFINITY) == INFINITY && kf_exp(INFINITY) == INFINITY);
    assert_true(kf_exp2(0.0f) == 1.0f && kf_exp(0.0f) == 1.0f && kf_exp(-0.0f) == 1.0f);
    for (int n = -149; n <= 127; n++) assert_true(kf_exp2((float)n) == ldexpf(1.0f, n));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp16_patterns),
        cmocka_unit_test(test_bf16_patterns),
        cmocka_unit_test(test_boundaries),
        cmocka_unit_test(test_specials),
#if defined(__x86_64__)
        cmocka_unit_test(test_hardware),
#endif
        cmocka_unit_test(test_exp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
