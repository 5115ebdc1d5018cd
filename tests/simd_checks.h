// SPDX-License-Identifier: Apache-2.0
//
// Checks of a simd_*.h, the same for each ISA: test_simd_avx2.c and test_simd_avx512.c include theirs and then this file.
#ifndef KF_TESTS_SIMD_CHECKS_H
#define KF_TESTS_SIMD_CHECKS_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "keyfold.h"
#include "math/half.h"

// Numbers around every rounding boundary of 16-bit formats, and everything in between in steps of a prime.
static uint32_t next_bits(uint32_t bits) { return bits + ((bits & 0x1fff) < 4 || (bits & 0x1fff) > 0x1ffb ? 1 : 61); }

// Conversions of a vector of such numbers equal the scalar ones, bit for bit.
static void check_conversions(void **state) {
    (void)state;
    uint32_t bits = 0;
    for (bool wrapped = false; !wrapped;) {
        float x[2 * KF_LANES];
        uint16_t bf16[2 * KF_LANES], fp16[KF_LANES];
        for (int i = 0; i < 2 * KF_LANES; i++) {
            x[i] = kf_float_of_bits(bits);
            uint32_t next = next_bits(bits);
            wrapped = wrapped || next < bits;
            bits = next;
        }
        kf_vec a = kf_vec_load_f32(x), b = kf_vec_load_f32(x + KF_LANES);
        kf_vec_store_f16(fp16, a);
        kf_vec_store_bf16(bf16, a);
        for (int i = 0; i < KF_LANES; i++) {
            assert_int_equal(fp16[i], kf_float_to_fp16(x[i]));
            assert_int_equal(bf16[i], kf_float_to_bf16(x[i]));
        }
        kf_vec_store_woven_bf16(bf16, a, b);
        for (int i = 0; i < KF_LANES; i++) {
            assert_int_equal(bf16[2 * i], kf_float_to_bf16(x[i]));
            assert_int_equal(bf16[2 * i + 1], kf_float_to_bf16(x[KF_LANES + i]));
        }
    }
}

// Every 16-bit pattern to fp32, and tails: nothing outside of the first n is written, the rest is read as 0.
static void check_loads(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h += KF_LANES) {
        uint16_t half[KF_LANES];
        float x[KF_LANES];
        for (int i = 0; i < KF_LANES; i++) half[i] = (uint16_t)(h + (uint32_t)i);
        kf_vec_store_f32(x, kf_vec_load_f16(half));
        for (int i = 0; i < KF_LANES; i++) {
            assert_int_equal(kf_bits_of_float(x[i]), kf_bits_of_float(kf_fp16_to_float(half[i])));
        }
        int n = (int)(h / KF_LANES % (KF_LANES + 1));
        uint16_t out[KF_LANES];
        memset(out, 0xee, sizeof out);
        kf_vec_store_f32(x, kf_vec_load_bf16_n(half, n));
        kf_vec_store_bf16_n(out, kf_vec_load_bf16_n(half, n), n);
        for (int i = 0; i < KF_LANES; i++) {
            float expected = i < n ? kf_bf16_to_float(half[i]) : 0.0f;
            assert_true(isnan(expected) ? isnan(x[i]) : x[i] == expected);
            assert_int_equal(out[i], i < n ? kf_float_to_bf16(expected) : 0xeeee);
        }
    }
}

static double error_in_ulp(float got, double expected) {
    int exponent;
    frexp(expected, &exponent);
    return fabs((double)got - expected) / ldexp(1.0, (exponent < -125 ? -125 : exponent) - 24);
}

// The largest errors over the range, in ulp: exp2 and exp anywhere; exp2_flush where its result is normal.
static void check_exp(void **state) {
    (void)state;
    double worst[3] = {0, 0, 0};
    for (int block = 0; block < 400000 / KF_LANES; block++) {
        float x[KF_LANES], y[3][KF_LANES];
        for (int i = 0; i < KF_LANES; i++) x[i] = -160.0f + (float)(block * KF_LANES + i) * (300.0f / 400000.0f);
        kf_vec v = kf_vec_load_f32(x);
        kf_vec_store_f32(y[0], kf_vec_exp2(v));
        kf_vec_store_f32(y[1], kf_vec_exp(v));
        kf_vec_store_f32(y[2], kf_vec_exp2_flush(v));
        for (int i = 0; i < KF_LANES; i++) {
            double two = exp2((double)x[i]), e = exp((double)x[i]);
            if (x[i] < 127.9f) worst[0] = fmax(worst[0], error_in_ulp(y[0][i], two));
            if (x[i] < 88.7f) worst[1] = fmax(worst[1], error_in_ulp(y[1][i], e));
            if (x[i] <= 0.0f && x[i] >= -126.0f) worst[2] = fmax(worst[2], error_in_ulp(y[2][i], two));
        }
    }
    print_message("exp2 %.3f ulp, exp %.3f, exp2_flush %.3f\n", worst[0], worst[1], worst[2]);
    assert_true(worst[0] < 1.3 && worst[1] < 1.3 && worst[2] < 2.2);
}

static void check_exp_specials(void **state) {
    (void)state;
    const uint32_t nans[] = {0x7fc00000u, 0xffffffffu, 0x7fc00001u, 0x7f800001u, 0xff812345u};
    float y[KF_LANES];
    for (int i = 0; i < 5; i++) {
        kf_vec nan = kf_vec_set1(kf_float_of_bits(nans[i]));
        kf_vec_store_f32(y, kf_vec_exp2(nan));
        assert_true(isnan(y[0]));
        kf_vec_store_f32(y, kf_vec_exp(nan));
        assert_true(isnan(y[0]));
        kf_vec_store_f32(y, kf_vec_exp2_flush(nan));
        assert_true(isnan(y[0]));
        kf_vec_store_f32(y, kf_vec_exp_minus(nan));
        assert_true(isnan(y[0]));
    }
    const float below[] = {-INFINITY, -3e38f, -1e6f, -200.0f};
    for (int i = 0; i < 4; i++) {
        kf_vec_store_f32(y, kf_vec_exp2_flush(kf_vec_set1(below[i])));
        assert_true(y[0] == 0.0f);
        kf_vec_store_f32(y, kf_vec_exp(kf_vec_set1(below[i])));
        assert_true(y[0] == 0.0f);
        kf_vec_store_f32(y, kf_vec_exp_minus(kf_vec_set1(below[i])));
        assert_true(y[0] == INFINITY);
    }
    kf_vec_store_f32(y, kf_vec_exp2_flush(kf_vec_zero()));
    assert_true(y[0] == 1.0f);
}

// The largest of 2 KF_LANES numbers, whatever their signs: every number of 16 bits has its turn beside smaller ones.
static void check_largest(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        uint16_t half[2 * KF_LANES];
        float x[2 * KF_LANES], bf16 = kf_bf16_to_float((uint16_t)h), fp16 = kf_fp16_to_float((uint16_t)h);
        bool negative = h >> 15;
        if (isnan(bf16) || isnan(fp16) || h > 0xfbff) continue;
        for (int i = 0; i < 2 * KF_LANES; i++) {
            uint32_t lower = h + 5 * (uint32_t)i < 0xfbff ? h + 5 * (uint32_t)i : 0xfbff; // of two negative numbers
            half[i] = (uint16_t)(negative ? lower : h - h * (uint32_t)i / 64);
            x[i] = kf_bf16_to_float(half[i]);
        }
        int place = (int)(h * 7 % (2 * KF_LANES));
        half[place] = (uint16_t)h, x[place] = bf16;
        kf_largest all = kf_largest_begin16(), wide = kf_largest_begin32();
        kf_largest_take16(&all, half);
        kf_largest_take32(&wide, x);
        kf_largest_take32(&wide, x + KF_LANES);
        assert_true(kf_largest_of_bf16(all) == bf16);
        assert_true(kf_largest_of_f16(all) == fp16);
        assert_true(kf_largest_of_f32(wide) == bf16);
        half[(place + 1) % (2 * KF_LANES)] = 0xfbff; // a negative number beside them, the lowest of fp16
        kf_largest_take16(&all, half);
        assert_true(kf_largest_of_f16(all) == fp16);
    }
}

static int run_simd_checks(kf_isa isa) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(check_conversions), cmocka_unit_test(check_loads),
                                       cmocka_unit_test(check_exp), cmocka_unit_test(check_exp_specials),
                                       cmocka_unit_test(check_largest)};
    if (kf_cpu_isa() < isa) return 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
