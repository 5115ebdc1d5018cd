// SPDX-License-Identifier: Apache-2.0
//
// Vectors of 16 int32 for linear_tile.h, on AVX-512.
#ifndef KF_CPU_LINEAR_INT_AVX512_H
#define KF_CPU_LINEAR_INT_AVX512_H

#include "cpu/simd_avx512.h"

typedef __m512i kf_int;

static inline kf_int kf_int_load(const void *p) { return _mm512_loadu_si512(p); }
static inline kf_int kf_int_set1(int32_t v) { return _mm512_set1_epi32(v); }
static inline kf_int kf_int_and(kf_int a, kf_int b) { return _mm512_and_si512(a, b); }
static inline kf_int kf_int_or(kf_int a, kf_int b) { return _mm512_or_si512(a, b); }
static inline kf_int kf_int_add(kf_int a, kf_int b) { return _mm512_add_epi32(a, b); }
static inline kf_int kf_int_shl(kf_int a, int n) { return _mm512_slli_epi32(a, (unsigned)n); }
static inline kf_int kf_int_shr(kf_int a, int n) { return _mm512_srli_epi32(a, (unsigned)n); }
static inline kf_int kf_int_sar(kf_int a, int n) { return _mm512_srai_epi32(a, (unsigned)n); }
static inline kf_vec kf_int_as_vec(kf_int a) { return _mm512_castsi512_ps(a); }
static inline kf_vec kf_int_to_vec(kf_int a) { return _mm512_cvtepi32_ps(a); }
static inline kf_int kf_vec_to_int(kf_vec a) { return _mm512_cvtps_epi32(a); }
static inline void kf_int_store_bytes(int8_t *p, kf_int a) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(a)); }
static inline int32_t kf_int_hsum(kf_int a) { return _mm512_reduce_add_epi32(a); }
static inline kf_vec kf_vec_load_u8(const void *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
static inline kf_vec kf_vec_load_s8(const void *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

#endif
