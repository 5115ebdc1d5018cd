// SPDX-License-Identifier: Apache-2.0
//
// Vectors of 16 floats on AVX-512 (F, BW, DQ, VL): loads from fp32, fp16 and bf16, stores with one rounding, exp2 and
// exp, sums.
//
// simd_scalar.h, simd_avx2.h and simd_avx512.h have the same names, so that a loop is written once and compiled for
// each (rows_loops.h). Only *_avx512.c and *_avx512bf16.c include this one. `_n` variants touch the first n elements of
// memory alone, 0 <= n <= KF_LANES; a load fills the rest with 0.
#ifndef KF_CPU_SIMD_AVX512_H
#define KF_CPU_SIMD_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#include "math/exp2.h"
#include "math/rope.h"

enum { KF_LANES = 16, KF_CAN_STREAM = 1 };

typedef __m512 kf_vec;

static inline __mmask16 kf_vec_mask(int n) { return (__mmask16)((1u << n) - 1u); }

static inline kf_vec kf_vec_zero(void) { return _mm512_setzero_ps(); }
static inline kf_vec kf_vec_set1(float value) { return _mm512_set1_ps(value); }
static inline kf_vec kf_vec_add(kf_vec a, kf_vec b) { return _mm512_add_ps(a, b); }
static inline kf_vec kf_vec_sub(kf_vec a, kf_vec b) { return _mm512_sub_ps(a, b); }
static inline kf_vec kf_vec_mul(kf_vec a, kf_vec b) { return _mm512_mul_ps(a, b); }
static inline kf_vec kf_vec_div(kf_vec a, kf_vec b) { return _mm512_div_ps(a, b); }
// a * b + c, and c - a * b, with one rounding.
static inline kf_vec kf_vec_fma(kf_vec a, kf_vec b, kf_vec c) { return _mm512_fmadd_ps(a, b, c); }
static inline kf_vec kf_vec_fnma(kf_vec a, kf_vec b, kf_vec c) { return _mm512_fnmadd_ps(a, b, c); }
// Where either is NaN, b.
static inline kf_vec kf_vec_max(kf_vec a, kf_vec b) { return _mm512_max_ps(a, b); }
static inline kf_vec kf_vec_min(kf_vec a, kf_vec b) { return _mm512_min_ps(a, b); }
// Lanes below n from a, the others `fill`.
static inline kf_vec kf_vec_select_n(kf_vec a, float fill, int n) {
    return _mm512_mask_mov_ps(_mm512_set1_ps(fill), kf_vec_mask(n), a);
}

// The largest lane; a NaN may get lost.
static inline float kf_vec_hmax(kf_vec a) { return _mm512_reduce_max_ps(a); }
// The sum of the lanes, always in the same order.
static inline float kf_vec_hsum(kf_vec a) { return _mm512_reduce_add_ps(a); }

// --------------------------------------------------------------------------------------------------------------- loads

static inline kf_vec kf_vec_load_f32(const void *p) { return _mm512_loadu_ps(p); }
static inline kf_vec kf_vec_load_f32_n(const void *p, int n) { return _mm512_maskz_loadu_ps(kf_vec_mask(n), p); }

static inline kf_vec kf_vec_of_f16(__m256i half) { return _mm512_cvtph_ps(half); }
static inline kf_vec kf_vec_load_f16(const void *p) { return kf_vec_of_f16(_mm256_loadu_si256((const __m256i *)p)); }
static inline kf_vec kf_vec_load_f16_n(const void *p, int n) {
    return kf_vec_of_f16(_mm256_maskz_loadu_epi16(kf_vec_mask(n), p));
}

static inline kf_vec kf_vec_of_bf16(__m256i half) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
static inline kf_vec kf_vec_load_bf16(const void *p) { return kf_vec_of_bf16(_mm256_loadu_si256((const __m256i *)p)); }
static inline kf_vec kf_vec_load_bf16_n(const void *p, int n) {
    return kf_vec_of_bf16(_mm256_maskz_loadu_epi16(kf_vec_mask(n), p));
}

// ------------------------------------------------------------------------------------------------------------- largest
// The largest of numbers as they lie in memory. Integers order the bits of numbers of one sign: positive ones (and
// those above negative ones) as signed, negative ones backwards, so the lane's largest number is the largest signed
// integer or, where that is negative, the smallest unsigned one. What a NaN does to it is not said.

typedef struct kf_largest {
    __m512i high, low; // lanes of 16 or 32 bits
} kf_largest;

static inline kf_largest kf_largest_begin16(void) {
    return (kf_largest){_mm512_set1_epi16(INT16_MIN), _mm512_set1_epi16(-1)};
}
static inline kf_largest kf_largest_begin32(void) {
    return (kf_largest){_mm512_set1_epi32(INT32_MIN), _mm512_set1_epi32(-1)};
}
// 2 KF_LANES of 16 bits, KF_LANES of 32.
static inline void kf_largest_take16(kf_largest *all, const void *p) {
    __m512i x = _mm512_loadu_si512(p);
    all->high = _mm512_max_epi16(x, all->high);
    all->low = _mm512_min_epu16(x, all->low);
}
static inline void kf_largest_take32(kf_largest *all, const void *p) {
    __m512i x = _mm512_loadu_si512(p);
    all->high = _mm512_max_epi32(x, all->high);
    all->low = _mm512_min_epu32(x, all->low);
}
static inline float kf_largest_of_f32(kf_largest all) {
    __mmask16 negative = _mm512_movepi32_mask(all.high);
    return kf_vec_hmax(_mm512_castsi512_ps(_mm512_mask_mov_epi32(all.high, negative, all.low)));
}
static inline __m512i kf_largest_chosen16(kf_largest all) {
    return _mm512_mask_mov_epi16(all.high, _mm512_movepi16_mask(all.high), all.low);
}
static inline float kf_largest_of_f16(kf_largest all) {
    __m512i x = kf_largest_chosen16(all);
    return kf_vec_hmax(
        kf_vec_max(kf_vec_of_f16(_mm512_castsi512_si256(x)), kf_vec_of_f16(_mm512_extracti64x4_epi64(x, 1))));
}
static inline float kf_largest_of_bf16(kf_largest all) {
    __m512i x = kf_largest_chosen16(all);
    return kf_vec_hmax(
        kf_vec_max(kf_vec_of_bf16(_mm512_castsi512_si256(x)), kf_vec_of_bf16(_mm512_extracti64x4_epi64(x, 1))));
}

// -------------------------------------------------------------------------------------------------------------- stores
// Rounded to nearest, ties to even, subnormals kept; a NaN is stored as a quiet NaN. `stream` goes past the caches and
// needs an address that is a multiple of the bytes it stores.

static inline void kf_vec_store_f32(void *p, kf_vec a) { _mm512_storeu_ps(p, a); }
static inline void kf_vec_store_f32_n(void *p, kf_vec a, int n) { _mm512_mask_storeu_ps(p, kf_vec_mask(n), a); }
static inline void kf_vec_stream_f32(void *p, kf_vec a) { _mm512_stream_ps(p, a); }

static inline __m256i kf_vec_to_f16(kf_vec a) {
    return _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline void kf_vec_store_f16(void *p, kf_vec a) { _mm256_storeu_si256((__m256i *)p, kf_vec_to_f16(a)); }
static inline void kf_vec_store_f16_n(void *p, kf_vec a, int n) {
    _mm256_mask_storeu_epi16(p, kf_vec_mask(n), kf_vec_to_f16(a));
}
static inline void kf_vec_stream_f16(void *p, kf_vec a) { _mm256_stream_si256((__m256i *)p, kf_vec_to_f16(a)); }
static inline kf_vec kf_vec_round_f16(kf_vec a) { return kf_vec_of_f16(kf_vec_to_f16(a)); }

// See kf_float_to_bf16: the result in the upper half of each lane, rubbish below it.
static inline __m512i kf_vec_round_bits(kf_vec a) {
    __m512i bits = _mm512_castps_si512(a);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x400000));
}
static inline __m256i kf_vec_to_bf16_by_integers(kf_vec a) {
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(kf_vec_round_bits(a), 16));
}

// Subnormal numbers become zero where the hardware has the instruction.
static inline __m256i kf_vec_to_bf16_ftz(kf_vec a) {
#ifdef __AVX512BF16__
    return (__m256i)_mm512_cvtneps_pbh(a);
#else
    return kf_vec_to_bf16_by_integers(a);
#endif
}

// vcvtneps2bf16 takes subnormal numbers for zero; where there is one, integers do the work.
static inline __m256i kf_vec_to_bf16(kf_vec a) {
#ifdef __AVX512BF16__
    if (__builtin_expect(_mm512_fpclass_ps_mask(a, 0x20 /* subnormal */) == 0, 1)) return kf_vec_to_bf16_ftz(a);
#endif
    return kf_vec_to_bf16_by_integers(a);
}
static inline void kf_vec_store_bf16(void *p, kf_vec a) { _mm256_storeu_si256((__m256i *)p, kf_vec_to_bf16(a)); }
static inline void kf_vec_store_bf16_n(void *p, kf_vec a, int n) {
    _mm256_mask_storeu_epi16(p, kf_vec_mask(n), kf_vec_to_bf16(a));
}
static inline void kf_vec_stream_bf16(void *p, kf_vec a) { _mm256_stream_si256((__m256i *)p, kf_vec_to_bf16(a)); }
static inline kf_vec kf_vec_round_bf16(kf_vec a) { return kf_vec_of_bf16(kf_vec_to_bf16(a)); }

// 32 adjacent bf16: those at even places in even, those at odd places in odd.
static inline void kf_vec_load_woven_bf16(const void *p, kf_vec *even, kf_vec *odd) {
    __m512i both = _mm512_loadu_si512(p);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32((int)0xffff0000u)));
}
static inline __m512i kf_vec_weave_by_integers(kf_vec even, kf_vec odd) {
    __m512i low = _mm512_srli_epi32(kf_vec_round_bits(even), 16);
    return _mm512_mask_blend_epi16(0xaaaaaaaau, low, kf_vec_round_bits(odd));
}
// Puts the halves of vcvtne2ps2bf16's result together.
static inline __m512i kf_vec_weave_halves(__m512i halves) {
    const __m512i places = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                            21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(places, halves);
}
// Subnormal numbers become zero where the hardware has the instruction.
static inline __m512i kf_vec_weave_bf16_ftz(kf_vec even, kf_vec odd) {
#ifdef __AVX512BF16__
    return kf_vec_weave_halves((__m512i)_mm512_cvtne2ps_pbh(odd, even));
#else
    return kf_vec_weave_by_integers(even, odd);
#endif
}
static inline __m512i kf_vec_weave_bf16(kf_vec even, kf_vec odd) {
#ifdef __AVX512BF16__
    __mmask16 subnormal = _mm512_fpclass_ps_mask(even, 0x20), other = _mm512_fpclass_ps_mask(odd, 0x20);
    if (__builtin_expect(_kortestz_mask16_u8(subnormal, other), 1)) return kf_vec_weave_bf16_ftz(even, odd);
#endif
    return kf_vec_weave_by_integers(even, odd);
}
static inline void kf_vec_store_woven_bf16(void *p, kf_vec even, kf_vec odd) {
    _mm512_storeu_si512(p, kf_vec_weave_bf16(even, odd));
}
static inline void kf_vec_stream_woven_bf16(void *p, kf_vec even, kf_vec odd) {
    _mm512_stream_si512((__m512i *)p, kf_vec_weave_bf16(even, odd));
}
static inline void kf_vec_store_woven_bf16_ftz(void *p, kf_vec even, kf_vec odd) {
    _mm512_storeu_si512(p, kf_vec_weave_bf16_ftz(even, odd));
}
static inline void kf_vec_stream_woven_bf16_ftz(void *p, kf_vec even, kf_vec odd) {
    _mm512_stream_si512((__m512i *)p, kf_vec_weave_bf16_ftz(even, odd));
}

// Into the L2 cache. Always inlined: of a call that does nothing but prefetch GCC thinks that it does nothing.
static inline __attribute__((always_inline)) void kf_vec_prefetch(const void *p) {
    _mm_prefetch((const char *)p, _MM_HINT_T1);
}

// Orders the streamed stores before whatever tells another thread that they are done.
static inline void kf_vec_stream_fence(void) { _mm_sfence(); }

// ----------------------------------------------------------------------------------------------------------- exp2, exp

static inline kf_vec kf_vec_round(kf_vec x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// Underflow and overflow included.
static inline kf_vec kf_vec_scale_by_power(kf_vec p, kf_vec n) { return _mm512_scalef_ps(p, n); }

#include "cpu/simd_exp.h"

// x - floor(x); 0 for an infinity.
static inline kf_vec kf_vec_above_floor(kf_vec x) {
    return _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}

// For softmax: degree 5. Where it is dearer to keep results below 2^-126 (AVX2) they are 0. vreduceps gives x - floor(x)
// (0 for an infinity) and vscalefps takes the floor itself, so that -inf needs no clamp.
static inline kf_vec kf_vec_exp2_flush(kf_vec x) {
    kf_vec r = kf_vec_above_floor(x);
    kf_vec p = kf_vec_fma(kf_vec_set1(KF_EXP2_FLOOR_D5_C5), r, kf_vec_set1(KF_EXP2_FLOOR_D5_C4));
    p = kf_vec_fma(p, r, kf_vec_set1(KF_EXP2_FLOOR_D5_C3));
    p = kf_vec_fma(p, r, kf_vec_set1(KF_EXP2_FLOOR_D5_C2));
    p = kf_vec_fma(p, r, kf_vec_set1(KF_EXP2_FLOOR_D5_C1));
    p = kf_vec_fma(p, r, kf_vec_set1(1.0f));
    return _mm512_scalef_ps(p, x);
}

// The same of degree 4: before a rounding to 16 bits.
static inline __attribute__((always_inline)) kf_vec kf_vec_exp2_short(kf_vec x) {
    kf_vec r = kf_vec_above_floor(x);
    kf_vec p = kf_vec_fma(kf_vec_set1(KF_EXP2_FLOOR_D4_C4), r, kf_vec_set1(KF_EXP2_FLOOR_D4_C3));
    p = kf_vec_fma(p, r, kf_vec_set1(KF_EXP2_FLOOR_D4_C2));
    p = kf_vec_fma(p, r, kf_vec_set1(KF_EXP2_FLOOR_D4_C1));
    return _mm512_scalef_ps(kf_vec_fma(p, r, kf_vec_set1(1.0f)), x);
}
// Of four vectors, step by step.
static inline __attribute__((always_inline)) void kf_vec_exp2_short4(kf_vec *x) {
    kf_vec r[4], p[4];
    for (int k = 0; k < 4; k++) r[k] = kf_vec_above_floor(x[k]);
    for (int k = 0; k < 4; k++)
        p[k] = kf_vec_fma(kf_vec_set1(KF_EXP2_FLOOR_D4_C4), r[k], kf_vec_set1(KF_EXP2_FLOOR_D4_C3));
    for (int k = 0; k < 4; k++) p[k] = kf_vec_fma(p[k], r[k], kf_vec_set1(KF_EXP2_FLOOR_D4_C2));
    for (int k = 0; k < 4; k++) p[k] = kf_vec_fma(p[k], r[k], kf_vec_set1(KF_EXP2_FLOOR_D4_C1));
    for (int k = 0; k < 4; k++) p[k] = kf_vec_fma(p[k], r[k], kf_vec_set1(1.0f));
    for (int k = 0; k < 4; k++) x[k] = _mm512_scalef_ps(p[k], x[k]);
}
// kf_vec_exp2_flush, and for large x at least 2^127.
static inline kf_vec kf_vec_exp2_far(kf_vec x) { return kf_vec_exp2_flush(x); }

// x log2(e) - s with one rounding.
static inline kf_vec kf_vec_exponent(kf_vec x, kf_vec s) { return _mm512_fmsub_ps(x, kf_vec_set1(KF_LOG2E), s); }

// exp(-x) by the short exp2, with the error of log2(e), |x| 1.3e-8, besides.
static inline kf_vec kf_vec_exp_minus(kf_vec x) { return kf_vec_exp2_short(kf_vec_mul(x, kf_vec_set1(-KF_LOG2E))); }

static inline __attribute__((always_inline)) void kf_vec_exp_minus4(kf_vec *x) {
    for (int k = 0; k < 4; k++) x[k] = kf_vec_mul(x[k], kf_vec_set1(-KF_LOG2E));
    kf_vec_exp2_short4(x);
}

// -------------------------------------------------------------------------------------------------------------- angles

// cosine and sine of position * frequency[c], |position * frequency| < 2^30, in float64: a = q pi/2 + r, Taylor's
// series of r, |r| <= pi/4 (errors below 1e-13), and q's quadrant. Stores `pairs` floats.
static inline void kf_vec_angles(const double *frequency, int pairs, double magnitude, double position, float *cosine,
                                 float *sine) {
    for (int c = 0; c < pairs; c += 8) {
        __mmask8 lanes = (__mmask8)((1u << (pairs - c < 8 ? pairs - c : 8)) - 1u);
        __m512d a = _mm512_mul_pd(_mm512_set1_pd(position), _mm512_maskz_loadu_pd(lanes, frequency + c));
        __m512d q = _mm512_roundscale_pd(_mm512_mul_pd(a, _mm512_set1_pd(KF_TWO_OVER_PI)),
                                         _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        __m512d r = _mm512_fnmadd_pd(q, _mm512_set1_pd(KF_HALF_PI_HIGH), a);
        r = _mm512_fnmadd_pd(q, _mm512_set1_pd(KF_HALF_PI_LOW), r);
        __m512d r2 = _mm512_mul_pd(r, r), s = _mm512_set1_pd(KF_SIN_13), k = _mm512_set1_pd(KF_COS_14);
        s = _mm512_fmadd_pd(s, r2, _mm512_set1_pd(KF_SIN_11));
        s = _mm512_fmadd_pd(s, r2, _mm512_set1_pd(KF_SIN_9));
        s = _mm512_fmadd_pd(s, r2, _mm512_set1_pd(KF_SIN_7));
        s = _mm512_fmadd_pd(s, r2, _mm512_set1_pd(KF_SIN_5));
        s = _mm512_fmadd_pd(s, r2, _mm512_set1_pd(KF_SIN_3));
        s = _mm512_fmadd_pd(_mm512_mul_pd(s, r2), r, r);
        k = _mm512_fmadd_pd(k, r2, _mm512_set1_pd(KF_COS_12));
        k = _mm512_fmadd_pd(k, r2, _mm512_set1_pd(KF_COS_10));
        k = _mm512_fmadd_pd(k, r2, _mm512_set1_pd(KF_COS_8));
        k = _mm512_fmadd_pd(k, r2, _mm512_set1_pd(KF_COS_6));
        k = _mm512_fmadd_pd(k, r2, _mm512_set1_pd(KF_COS_4));
        k = _mm512_fmadd_pd(k, r2, _mm512_set1_pd(-0.5));
        k = _mm512_fmadd_pd(k, r2, _mm512_set1_pd(1.0));
        // Quadrants 1 and 3 swap the two; the sine is negative in 2 and 3, the cosine in 1 and 2.
        __m512i quadrant = _mm512_cvtpd_epi64(q);
        __mmask8 odd = _mm512_test_epi64_mask(quadrant, _mm512_set1_epi64(1));
        __m512i sine_sign = _mm512_slli_epi64(_mm512_srli_epi64(quadrant, 1), 63);
        __m512i next = _mm512_add_epi64(quadrant, _mm512_set1_epi64(1));
        __m512i cosine_sign = _mm512_slli_epi64(_mm512_srli_epi64(next, 1), 63);
        __m512d m = _mm512_set1_pd(magnitude);
        __m512d vs = _mm512_mul_pd(m, _mm512_mask_mov_pd(s, odd, k));
        __m512d vk = _mm512_mul_pd(m, _mm512_mask_mov_pd(k, odd, s));
        vs = _mm512_xor_pd(vs, _mm512_castsi512_pd(sine_sign));
        vk = _mm512_xor_pd(vk, _mm512_castsi512_pd(cosine_sign));
        _mm256_mask_storeu_ps(sine + c, lanes, _mm512_cvtpd_ps(vs));
        _mm256_mask_storeu_ps(cosine + c, lanes, _mm512_cvtpd_ps(vk));
    }
}

#endif
