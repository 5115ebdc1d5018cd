// SPDX-License-Identifier: Apache-2.0
//
// What the two AVX-512 files of attention share: the primitives that attention_loops.h asks for.
#ifndef KF_CPU_ATTENTION_AVX512_H
#define KF_CPU_ATTENTION_AVX512_H

#include <immintrin.h>
#include <math.h>

#include "cpu/simd_avx512.h"

#define exact_fma kf_vec_fma

// x[i] lane j <-> x[j] lane i, by 64 shuffles: pairs of 32 bits, of 64 bits, then of quarters.
static inline __attribute__((always_inline)) void transpose_block(__m512 *x) {
    __m512 a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
        a[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int k = 0; k < 2; k++) {
            __m512d low = _mm512_castps_pd(a[i + k]), high = _mm512_castps_pd(a[i + k + 2]);
            b[i + 2 * k] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
            b[i + 2 * k + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
        }
    // b[4g + c] now holds, in quarter l, column 4l + c of rows 4g .. 4g + 3.
    for (int c = 0; c < 4; c++) {
        __m512 even01 = _mm512_shuffle_f32x4(b[c], b[4 + c], 0x88), odd01 = _mm512_shuffle_f32x4(b[c], b[4 + c], 0xdd);
        __m512 even23 = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0x88);
        __m512 odd23 = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0xdd);
        x[c] = _mm512_shuffle_f32x4(even01, even23, 0x88);
        x[4 + c] = _mm512_shuffle_f32x4(odd01, odd23, 0x88);
        x[8 + c] = _mm512_shuffle_f32x4(even01, even23, 0xdd);
        x[12 + c] = _mm512_shuffle_f32x4(odd01, odd23, 0xdd);
    }
}

// Lane i of the result is the sum of x[i]'s lanes: 15 additions, 22 shuffles and 8 blends, which unlike shuffles leave the
// multipliers' ports alone.
static inline __attribute__((always_inline)) __m512 sum_each(const __m512 *x) {
    __m512 y[8], a[4], b[2];
    for (int i = 0; i < 8; i++) { // halves: of one vector below, of another above
        __m512 low = x[i + i / 4 * 4], high = x[i + i / 4 * 4 + 4];
        y[i] = _mm512_add_ps(_mm512_mask_blend_ps(0xff00, low, high), _mm512_shuffle_f32x4(low, high, 0x4e));
    }
    for (int i = 0; i < 4; i++)
        a[i] = _mm512_add_ps(_mm512_unpacklo_ps(y[2 * i], y[2 * i + 1]), _mm512_unpackhi_ps(y[2 * i], y[2 * i + 1]));
    for (int i = 0; i < 2; i++)
        b[i] = _mm512_add_ps(_mm512_shuffle_ps(a[2 * i], a[2 * i + 1], 0x44),
                             _mm512_shuffle_ps(a[2 * i], a[2 * i + 1], 0xee));
    return _mm512_add_ps(_mm512_shuffle_f32x4(b[0], b[1], 0x88), _mm512_shuffle_f32x4(b[0], b[1], 0xdd));
}

// 2^x = 2^floor(x) 2^r for r = x - floor(x), 0 <= r <= 1. vreduceps gives r and vscalefps takes the floor of its exponent,
// so that the whole costs a reduction, a polynomial and a scaling; -inf gives 0 and NaN NaN without a clamp. Minimax
// polynomials in relative error with p(0) = 1, so that 2^0 is 1: error 8e-8 of degree 5.
static inline __attribute__((always_inline)) kf_vec weight(kf_vec x) {
    kf_vec r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    kf_vec p = kf_vec_fma(kf_vec_set1(0x1.e97508p-10f), r, kf_vec_set1(0x1.277850p-7f));
    p = kf_vec_fma(p, r, kf_vec_set1(0x1.c91ce8p-5f));
    p = kf_vec_fma(p, r, kf_vec_set1(0x1.ebdb56p-3f));
    p = kf_vec_fma(p, r, kf_vec_set1(0x1.62e4bap-1f));
    return _mm512_scalef_ps(kf_vec_fma(p, r, kf_vec_set1(1.0f)), x);
}

#define weight_half kf_vec_exp2_short

static inline kf_vec add_bias(kf_vec x, kf_vec bias) {
    kf_vec hidden = _mm512_set1_ps(-INFINITY);
    return _mm512_mask_mov_ps(_mm512_add_ps(x, bias), _mm512_cmp_ps_mask(bias, hidden, _CMP_EQ_OQ), hidden);
}

static inline kf_vec hide(kf_vec x, const uint8_t *visible) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)visible);
    return _mm512_mask_mov_ps(x, _mm_testn_epi8_mask(bytes, bytes), _mm512_set1_ps(-INFINITY));
}

#endif
