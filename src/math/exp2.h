// SPDX-License-Identifier: Apache-2.0
//
// exp and exp2 in fp32: range reduction, polynomial, scaling by a power of two.
//
//     exp2(x) = 2^n 2^r,  n = round(x),        r = x - n,            |r| <= 1/2
//     exp(x)  = 2^n e^r,  n = round(x log2 e), r = x - n ln 2,       |r| <= ln(2) / 2
//
// The polynomials are minimax in relative error with leading coefficient 1, so that exp2(n) = 2^n and exp(0) = 1
// exactly:
//
//     name          degree  polynomial  function (measured in ulp by test_half.c and test_simd_*.c)
//     KF_EXP2_D6      6      3.0e-9      1.1   exp2
//     KF_EXP2_D5      5      9.4e-8      1.9   exp2 where a few bits buy speed: softmax
//     KF_EXP2_FLOOR_D4  4    3e-6        50    exp2 before a rounding to 16 bits (2e-3, 2e-4)
//     KF_EXP_D6       6      3.2e-9      1.1   exp
//
// KF_EXP2_FLOOR_D5 is D5 (and D4 such a one) for 0 <= r < 1, n = floor(x), which AVX-512 has instructions for.
//
// -inf gives 0, NaN stays NaN, +inf stays +inf; results below 2^-126 round to subnormals, below 2^-150 to 0; above
// 2^128: +inf.
//
// Used by the scalar kernels; the vector spellings in src/cpu/simd_*.h and the CUDA kernels take the constants from
// here.
#ifndef KF_MATH_EXP2_H
#define KF_MATH_EXP2_H

#include "math/half.h"
#include "math/hd.h"

#define KF_EXP2_D6_C1 0x1.62e430p-1f
#define KF_EXP2_D6_C2 0x1.ebfbdcp-3f
#define KF_EXP2_D6_C3 0x1.c6af7cp-5f
#define KF_EXP2_D6_C4 0x1.3b2de0p-7f
#define KF_EXP2_D6_C5 0x1.5f0830p-10f
#define KF_EXP2_D6_C6 0x1.416b5cp-13f

#define KF_EXP2_D5_C1 0x1.62e42ap-1f
#define KF_EXP2_D5_C2 0x1.ebf9c2p-3f
#define KF_EXP2_D5_C3 0x1.c6b6dap-5f
#define KF_EXP2_D5_C4 0x1.3ce8b2p-7f
#define KF_EXP2_D5_C5 0x1.5bd97ap-10f

#define KF_EXP2_FLOOR_D5_C1 0x1.62e4bap-1f
#define KF_EXP2_FLOOR_D5_C2 0x1.ebdb6ap-3f
#define KF_EXP2_FLOOR_D5_C3 0x1.c91c10p-5f
#define KF_EXP2_FLOOR_D5_C4 0x1.277c1cp-7f
#define KF_EXP2_FLOOR_D5_C5 0x1.e96910p-10f

#define KF_EXP2_FLOOR_D4_C1 0x1.62d6c6p-1f
#define KF_EXP2_FLOOR_D4_C2 0x1.ee2454p-3f
#define KF_EXP2_FLOOR_D4_C3 0x1.abf854p-5f
#define KF_EXP2_FLOOR_D4_C4 0x1.b7f754p-7f

#define KF_EXP_D6_C2 0x1.fffffcp-2f // C1 = 1
#define KF_EXP_D6_C3 0x1.555492p-3f
#define KF_EXP_D6_C4 0x1.5558aap-5f
#define KF_EXP_D6_C5 0x1.12396cp-7f
#define KF_EXP_D6_C6 0x1.6a5228p-10f

#define KF_LOG2E 0x1.715476p+0f // log2(e)
#define KF_LN2 0x1.62e430p-1f   // ln(2)
// ln 2 in two parts; the first has 9 bits, so that n times it is exact for every n that occurs.
#define KF_LN2_HIGH 0x1.63p-1f
#define KF_LN2_LOW -0x1.bd0106p-13f

// Outside of [KF_EXP2_MIN, KF_EXP2_MAX] the result is 0 or +inf; clamping there keeps n in the range of two-step
// scaling.
#define KF_EXP2_MIN -152.0f
#define KF_EXP2_MAX 129.0f
#define KF_EXP_MIN -105.4f
#define KF_EXP_MAX 89.5f

// Adding and subtracting 1.5 * 2^23 rounds |x| < 2^22 to the nearest integer, ties to even.
#define KF_ROUND_MAGIC 0x1.8p23f

// p * 2^n, -160 <= n <= 160, with one rounding: 2^n itself may be no fp32 number, so it is applied in two halves.
KF_HD float kf_scale_by_power(float p, int n) {
    int half = n / 2, rest = n - half;
    return p * kf_float_of_bits((uint32_t)(half + 127) << 23) * kf_float_of_bits((uint32_t)(rest + 127) << 23);
}

KF_HD float kf_exp2(float x) {
    if (x != x) return x;
    x = x < KF_EXP2_MIN ? KF_EXP2_MIN : x > KF_EXP2_MAX ? KF_EXP2_MAX : x;
    float n = (x + KF_ROUND_MAGIC) - KF_ROUND_MAGIC;
    float r = x - n;
    float p = KF_EXP2_D6_C6;
    p = p * r + KF_EXP2_D6_C5;
    p = p * r + KF_EXP2_D6_C4;
    p = p * r + KF_EXP2_D6_C3;
    p = p * r + KF_EXP2_D6_C2;
    p = p * r + KF_EXP2_D6_C1;
    p = p * r + 1.0f;
    return kf_scale_by_power(p, (int)n);
}

KF_HD float kf_exp(float x) {
    if (x != x) return x;
    x = x < KF_EXP_MIN ? KF_EXP_MIN : x > KF_EXP_MAX ? KF_EXP_MAX : x;
    float n = (x * KF_LOG2E + KF_ROUND_MAGIC) - KF_ROUND_MAGIC;
    float r = (x - n * KF_LN2_HIGH) - n * KF_LN2_LOW;
    float p = KF_EXP_D6_C6;
    p = p * r + KF_EXP_D6_C5;
    p = p * r + KF_EXP_D6_C4;
    p = p * r + KF_EXP_D6_C3;
    p = p * r + KF_EXP_D6_C2;
    p = p * r * r + r + 1.0f;
    return kf_scale_by_power(p, (int)n);
}

#endif
