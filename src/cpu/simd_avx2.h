// SPDX-License-Identifier: Apache-2.0
//
// Vectors of 8 floats on AVX2, FMA and F16C. The names and their meaning are those of simd_avx512.h; only *_avx2.c
// includes this one. AVX2 has no masked loads and stores of 16-bit elements: tails are put together from pieces of 8, 4
// and 2 bytes.
#ifndef KF_CPU_SIMD_AVX2_H
#define KF_CPU_SIMD_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "math/exp2.h"
#include "math/rope.h"

enum { KF_LANES = 8, KF_CAN_STREAM = 1 };

typedef __m256 kf_vec;

// All ones in the first n lanes: a window into eight of them followed by eight zeros.
static inline __m256i kf_vec_mask(int n) {
    static const int32_t ones_then_zeros[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_si256((const __m256i *)(ones_then_zeros + 8 - n));
}

static inline kf_vec kf_vec_zero(void) { return _mm256_setzero_ps(); }
static inline kf_vec kf_vec_set1(float value) { return _mm256_set1_ps(value); }
static inline kf_vec kf_vec_add(kf_vec a, kf_vec b) { return _mm256_add_ps(a, b); }
static inline kf_vec kf_vec_sub(kf_vec a, kf_vec b) { return _mm256_sub_ps(a, b); }
static inline kf_vec kf_vec_mul(kf_vec a, kf_vec b) { return _mm256_mul_ps(a, b); }
static inline kf_vec kf_vec_div(kf_vec a, kf_vec b) { return _mm256_div_ps(a, b); }
static inline kf_vec kf_vec_fma(kf_vec a, kf_vec b, kf_vec c) { return _mm256_fmadd_ps(a, b, c); }
static inline kf_vec kf_vec_fnma(kf_vec a, kf_vec b, kf_vec c) { return _mm256_fnmadd_ps(a, b, c); }
static inline kf_vec kf_vec_max(kf_vec a, kf_vec b) { return _mm256_max_ps(a, b); }
static inline kf_vec kf_vec_min(kf_vec a, kf_vec b) { return _mm256_min_ps(a, b); }
static inline kf_vec kf_vec_select_n(kf_vec a, float fill, int n) {
    return _mm256_blendv_ps(_mm256_set1_ps(fill), a, _mm256_castsi256_ps(kf_vec_mask(n)));
}

static inline float kf_vec_hmax(kf_vec a) {
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

static inline float kf_vec_hsum(kf_vec a) {
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

// --------------------------------------------------------------------------------------------------------------- loads

static inline uint64_t kf_vec_read64(const char *p) {
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

// The first n of eight 16-bit elements, 0 <= n <= 8.
static inline __m128i kf_vec_load16_n(const void *p, int n) {
    const char *bytes = p;
    if (n == 8) return _mm_loadu_si128((const __m128i *)p);
    uint64_t low = 0, high = 0;
    if (n >= 4) {
        low = kf_vec_read64(bytes);
        // The last four elements, of which 8 - n were in `low` already.
        if (n > 4) high = kf_vec_read64(bytes + 2 * (n - 4)) >> 16 * (8 - n);
    } else {
        uint32_t two = 0;
        uint16_t one = 0;
        if (n & 2) memcpy(&two, bytes, 4);
        if (n & 1) memcpy(&one, bytes + 2 * (n & 2), 2);
        low = (uint64_t)two | (uint64_t)one << 16 * (n & 2);
    }
    return _mm_set_epi64x((long long)high, (long long)low);
}

static inline void kf_vec_store16_n(void *p, __m128i a, int n) {
    char *bytes = p;
    if (n == 8) {
        _mm_storeu_si128((__m128i *)p, a);
        return;
    }
    uint64_t word = (uint64_t)_mm_cvtsi128_si64(a);
    if (n & 4) {
        memcpy(bytes, &word, 8);
        bytes += 8;
        word = (uint64_t)_mm_extract_epi64(a, 1);
    }
    if (n & 2) {
        memcpy(bytes, &word, 4);
        bytes += 4;
        word >>= 32;
    }
    if (n & 1) memcpy(bytes, &word, 2);
}

static inline kf_vec kf_vec_load_f32(const void *p) { return _mm256_loadu_ps(p); }
static inline kf_vec kf_vec_load_f32_n(const void *p, int n) { return _mm256_maskload_ps(p, kf_vec_mask(n)); }

static inline kf_vec kf_vec_of_f16(__m128i half) { return _mm256_cvtph_ps(half); }
static inline kf_vec kf_vec_load_f16(const void *p) { return kf_vec_of_f16(_mm_loadu_si128((const __m128i *)p)); }
static inline kf_vec kf_vec_load_f16_n(const void *p, int n) { return kf_vec_of_f16(kf_vec_load16_n(p, n)); }

static inline kf_vec kf_vec_of_bf16(__m128i half) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
static inline kf_vec kf_vec_load_bf16(const void *p) { return kf_vec_of_bf16(_mm_loadu_si128((const __m128i *)p)); }
static inline kf_vec kf_vec_load_bf16_n(const void *p, int n) { return kf_vec_of_bf16(kf_vec_load16_n(p, n)); }

// ------------------------------------------------------------------------------------------------------------- largest

typedef struct kf_largest {
    __m256i high, low;
} kf_largest;

static inline kf_largest kf_largest_begin16(void) {
    return (kf_largest){_mm256_set1_epi16(INT16_MIN), _mm256_set1_epi16(-1)};
}
static inline kf_largest kf_largest_begin32(void) {
    return (kf_largest){_mm256_set1_epi32(INT32_MIN), _mm256_set1_epi32(-1)};
}
static inline void kf_largest_take16(kf_largest *all, const void *p) {
    __m256i x = _mm256_loadu_si256((const __m256i *)p);
    all->high = _mm256_max_epi16(x, all->high);
    all->low = _mm256_min_epu16(x, all->low);
}
static inline void kf_largest_take32(kf_largest *all, const void *p) {
    __m256i x = _mm256_loadu_si256((const __m256i *)p);
    all->high = _mm256_max_epi32(x, all->high);
    all->low = _mm256_min_epu32(x, all->low);
}
static inline float kf_largest_of_f32(kf_largest all) {
    __m256i x = _mm256_blendv_epi8(all.high, all.low, _mm256_srai_epi32(all.high, 31));
    return kf_vec_hmax(_mm256_castsi256_ps(x));
}
static inline __m256i kf_largest_chosen16(kf_largest all) {
    return _mm256_blendv_epi8(all.high, all.low, _mm256_srai_epi16(all.high, 15));
}
static inline float kf_largest_of_f16(kf_largest all) {
    __m256i x = kf_largest_chosen16(all);
    return kf_vec_hmax(
        kf_vec_max(kf_vec_of_f16(_mm256_castsi256_si128(x)), kf_vec_of_f16(_mm256_extracti128_si256(x, 1))));
}
static inline float kf_largest_of_bf16(kf_largest all) {
    __m256i x = kf_largest_chosen16(all);
    return kf_vec_hmax(
        kf_vec_max(kf_vec_of_bf16(_mm256_castsi256_si128(x)), kf_vec_of_bf16(_mm256_extracti128_si256(x, 1))));
}

// -------------------------------------------------------------------------------------------------------------- stores

static inline void kf_vec_store_f32(void *p, kf_vec a) { _mm256_storeu_ps(p, a); }
static inline void kf_vec_store_f32_n(void *p, kf_vec a, int n) { _mm256_maskstore_ps(p, kf_vec_mask(n), a); }
static inline void kf_vec_stream_f32(void *p, kf_vec a) { _mm256_stream_ps(p, a); }

static inline __m128i kf_vec_to_f16(kf_vec a) { return _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT); }
static inline void kf_vec_store_f16(void *p, kf_vec a) { _mm_storeu_si128((__m128i *)p, kf_vec_to_f16(a)); }
static inline void kf_vec_store_f16_n(void *p, kf_vec a, int n) { kf_vec_store16_n(p, kf_vec_to_f16(a), n); }
static inline void kf_vec_stream_f16(void *p, kf_vec a) { _mm_stream_si128((__m128i *)p, kf_vec_to_f16(a)); }
static inline kf_vec kf_vec_round_f16(kf_vec a) { return kf_vec_of_f16(kf_vec_to_f16(a)); }

// See kf_float_to_bf16: the result in the upper half of each lane, rubbish below it.
static inline __m256i kf_vec_round_bits(kf_vec a) {
    __m256i bits = _mm256_castps_si256(a);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(up, _mm256_or_si256(bits, _mm256_set1_epi32(0x400000)), nan);
}
// The results fit 16 bits, so the saturating pack keeps them.
static inline __m128i kf_vec_to_bf16(kf_vec a) {
    __m256i up = _mm256_srli_epi32(kf_vec_round_bits(a), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(up), _mm256_extracti128_si256(up, 1));
}
static inline void kf_vec_store_bf16(void *p, kf_vec a) { _mm_storeu_si128((__m128i *)p, kf_vec_to_bf16(a)); }
static inline void kf_vec_store_bf16_n(void *p, kf_vec a, int n) { kf_vec_store16_n(p, kf_vec_to_bf16(a), n); }
static inline void kf_vec_stream_bf16(void *p, kf_vec a) { _mm_stream_si128((__m128i *)p, kf_vec_to_bf16(a)); }
static inline kf_vec kf_vec_round_bf16(kf_vec a) { return kf_vec_of_bf16(kf_vec_to_bf16(a)); }

static inline void kf_vec_load_woven_bf16(const void *p, kf_vec *even, kf_vec *odd) {
    __m256i both = _mm256_loadu_si256((const __m256i *)p);
    *even = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
    *odd = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32((int)0xffff0000u)));
}
static inline __m256i kf_vec_weave_bf16(kf_vec even, kf_vec odd) {
    return _mm256_blend_epi16(_mm256_srli_epi32(kf_vec_round_bits(even), 16), kf_vec_round_bits(odd), 0xaa);
}
static inline void kf_vec_store_woven_bf16(void *p, kf_vec even, kf_vec odd) {
    _mm256_storeu_si256((__m256i *)p, kf_vec_weave_bf16(even, odd));
}
static inline void kf_vec_stream_woven_bf16(void *p, kf_vec even, kf_vec odd) {
    _mm256_stream_si256((__m256i *)p, kf_vec_weave_bf16(even, odd));
}

static inline void kf_vec_store_woven_bf16_ftz(void *p, kf_vec even, kf_vec odd) {
    kf_vec_store_woven_bf16(p, even, odd);
}
static inline void kf_vec_stream_woven_bf16_ftz(void *p, kf_vec even, kf_vec odd) {
    kf_vec_stream_woven_bf16(p, even, odd);
}

static inline __attribute__((always_inline)) void kf_vec_prefetch(const void *p) {
    _mm_prefetch((const char *)p, _MM_HINT_T1);
}

static inline void kf_vec_stream_fence(void) { _mm_sfence(); }

// ----------------------------------------------------------------------------------------------------------- exp2, exp

static inline kf_vec kf_vec_round(kf_vec x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

// 2^n for whole n, -126 <= n <= 127.
static inline kf_vec kf_vec_power(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

// p * 2^n with one rounding: see kf_scale_by_power.
static inline kf_vec kf_vec_scale_by_power(kf_vec p, kf_vec n) {
    __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    return kf_vec_mul(kf_vec_mul(p, kf_vec_power(half)), kf_vec_power(_mm256_sub_epi32(whole, half)));
}

#include "cpu/simd_exp.h"

// The exponent is added to p's bits, which is right while p * 2^n is normal: x below -126 gives 0. A NaN is not below,
// and is converted to an integer whose shift is 0, so that its bits stay.
static inline kf_vec kf_vec_exp2_flush(kf_vec x) {
    __m256i n = _mm256_cvtps_epi32(x);
    kf_vec r = kf_vec_sub(x, _mm256_cvtepi32_ps(n));
    kf_vec p = kf_vec_fma(kf_vec_set1(KF_EXP2_D5_C5), r, kf_vec_set1(KF_EXP2_D5_C4));
    p = kf_vec_fma(p, r, kf_vec_set1(KF_EXP2_D5_C3));
    p = kf_vec_fma(p, r, kf_vec_set1(KF_EXP2_D5_C2));
    p = kf_vec_fma(p, r, kf_vec_set1(KF_EXP2_D5_C1));
    p = kf_vec_fma(p, r, kf_vec_set1(1.0f));
    kf_vec scaled = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(n, 23)));
    return _mm256_and_ps(scaled, _mm256_cmp_ps(x, _mm256_set1_ps(-126.0f), _CMP_NLT_UQ));
}

// The clamp keeps the exponent from running over.
static inline kf_vec kf_vec_exp2_far(kf_vec x) { return kf_vec_exp2_flush(kf_vec_min(kf_vec_set1(127.0f), x)); }
static inline kf_vec kf_vec_exp2_short(kf_vec x) { return kf_vec_exp2_far(x); }

static inline void kf_vec_exp2_short4(kf_vec *x) {
    for (int k = 0; k < 4; k++) x[k] = kf_vec_exp2_short(x[k]);
}
static inline kf_vec kf_vec_exponent(kf_vec x, kf_vec s) { return _mm256_fmsub_ps(x, kf_vec_set1(KF_LOG2E), s); }

static inline kf_vec kf_vec_exp_minus(kf_vec x) {
    x = kf_vec_mul(x, kf_vec_set1(-KF_LOG2E));
    x = kf_vec_min(kf_vec_set1(KF_EXP2_MAX), kf_vec_max(kf_vec_set1(KF_EXP2_MIN), x));
    kf_vec n = kf_vec_round(x), r = kf_vec_sub(x, n);
    kf_vec p = kf_vec_fma(kf_vec_set1(KF_EXP2_D5_C5), r, kf_vec_set1(KF_EXP2_D5_C4));
    p = kf_vec_fma(p, r, kf_vec_set1(KF_EXP2_D5_C3));
    p = kf_vec_fma(p, r, kf_vec_set1(KF_EXP2_D5_C2));
    p = kf_vec_fma(p, r, kf_vec_set1(KF_EXP2_D5_C1));
    return kf_vec_scale_by_power(kf_vec_fma(p, r, kf_vec_set1(1.0f)), n);
}

static inline void kf_vec_exp_minus4(kf_vec *x) {
    for (int k = 0; k < 4; k++) x[k] = kf_vec_exp_minus(x[k]);
}

// -------------------------------------------------------------------------------------------------------------- angles

// As in simd_avx512.h, four at a time.
static inline void kf_vec_angles(const double *frequency, int pairs, double magnitude, double position, float *cosine,
                                 float *sine) {
    for (int c = 0; c < pairs; c += 4) {
        __m128i mask = _mm256_castsi256_si128(kf_vec_mask(pairs - c < 4 ? pairs - c : 4));
        __m256d f = _mm256_maskload_pd(frequency + c, _mm256_cvtepi32_epi64(mask));
        __m256d a = _mm256_mul_pd(_mm256_set1_pd(position), f);
        __m256d q = _mm256_round_pd(_mm256_mul_pd(a, _mm256_set1_pd(KF_TWO_OVER_PI)),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        __m256d r = _mm256_fnmadd_pd(q, _mm256_set1_pd(KF_HALF_PI_HIGH), a);
        r = _mm256_fnmadd_pd(q, _mm256_set1_pd(KF_HALF_PI_LOW), r);
        __m256d r2 = _mm256_mul_pd(r, r), s = _mm256_set1_pd(KF_SIN_13), k = _mm256_set1_pd(KF_COS_14);
        s = _mm256_fmadd_pd(s, r2, _mm256_set1_pd(KF_SIN_11));
        s = _mm256_fmadd_pd(s, r2, _mm256_set1_pd(KF_SIN_9));
        s = _mm256_fmadd_pd(s, r2, _mm256_set1_pd(KF_SIN_7));
        s = _mm256_fmadd_pd(s, r2, _mm256_set1_pd(KF_SIN_5));
        s = _mm256_fmadd_pd(s, r2, _mm256_set1_pd(KF_SIN_3));
        s = _mm256_fmadd_pd(_mm256_mul_pd(s, r2), r, r);
        k = _mm256_fmadd_pd(k, r2, _mm256_set1_pd(KF_COS_12));
        k = _mm256_fmadd_pd(k, r2, _mm256_set1_pd(KF_COS_10));
        k = _mm256_fmadd_pd(k, r2, _mm256_set1_pd(KF_COS_8));
        k = _mm256_fmadd_pd(k, r2, _mm256_set1_pd(KF_COS_6));
        k = _mm256_fmadd_pd(k, r2, _mm256_set1_pd(KF_COS_4));
        k = _mm256_fmadd_pd(k, r2, _mm256_set1_pd(-0.5));
        k = _mm256_fmadd_pd(k, r2, _mm256_set1_pd(1.0));
        __m256i quadrant = _mm256_cvtepi32_epi64(_mm256_cvtpd_epi32(q));
        __m256d odd = _mm256_castsi256_pd(_mm256_slli_epi64(quadrant, 63)); // blendv looks at the top bit
        __m256i sine_sign = _mm256_slli_epi64(_mm256_srli_epi64(quadrant, 1), 63);
        __m256i next = _mm256_add_epi64(quadrant, _mm256_set1_epi64x(1));
        __m256i cosine_sign = _mm256_slli_epi64(_mm256_srli_epi64(next, 1), 63);
        __m256d m = _mm256_set1_pd(magnitude);
        __m256d vs = _mm256_mul_pd(m, _mm256_blendv_pd(s, k, odd));
        __m256d vk = _mm256_mul_pd(m, _mm256_blendv_pd(k, s, odd));
        vs = _mm256_xor_pd(vs, _mm256_castsi256_pd(sine_sign));
        vk = _mm256_xor_pd(vk, _mm256_castsi256_pd(cosine_sign));
        _mm_maskstore_ps(sine + c, mask, _mm256_cvtpd_ps(vs));
        _mm_maskstore_ps(cosine + c, mask, _mm256_cvtpd_ps(vk));
    }
}

#endif
