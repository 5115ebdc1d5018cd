// SPDX-License-Identifier: Apache-2.0
//
// The linear layer's micro-kernels on AVX2 and FMA: vpmaddubsw and vpmaddwd as in linear_avx512.c, half as wide. A panel of 16 rows is two
// strips of 8. Tiles: quantised 2 rows x 8 columns (3 spill), dense 6 x 16 (12 sums of 16 registers).
#include "cpu/simd_avx2.h"

typedef __m256i kf_int;

static inline kf_int kf_int_load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline kf_int kf_int_set1(int32_t v) { return _mm256_set1_epi32(v); }
static inline kf_int kf_int_and(kf_int a, kf_int b) { return _mm256_and_si256(a, b); }
static inline kf_int kf_int_or(kf_int a, kf_int b) { return _mm256_or_si256(a, b); }
static inline kf_int kf_int_add(kf_int a, kf_int b) { return _mm256_add_epi32(a, b); }
static inline kf_int kf_int_shl(kf_int a, int n) { return _mm256_slli_epi32(a, n); }
static inline kf_int kf_int_shr(kf_int a, int n) { return _mm256_srli_epi32(a, n); }
static inline kf_int kf_int_sar(kf_int a, int n) { return _mm256_srai_epi32(a, n); }
static inline kf_vec kf_int_as_vec(kf_int a) { return _mm256_castsi256_ps(a); }
static inline kf_vec kf_int_to_vec(kf_int a) { return _mm256_cvtepi32_ps(a); }
static inline kf_int kf_vec_to_int(kf_vec a) { return _mm256_cvtps_epi32(a); }

// The low bytes of 8 lanes: gathered within each half, then the halves side by side.
static inline void kf_int_store_bytes(int8_t *p, kf_int a) {
    const __m256i pick = _mm256_set1_epi32(0x0c080400);
    const __m256i bytes = _mm256_shuffle_epi8(a, pick);
    const __m128i both = _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
    _mm_storel_epi64((__m128i *)p, both);
}

static inline int32_t kf_int_hsum(kf_int a) {
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}
static inline kf_vec kf_vec_load_u8(const void *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
static inline kf_vec kf_vec_load_s8(const void *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

#define KF_DOT_BY_PARTS 1
static inline kf_int kf_part_first(kf_int w, kf_int x) { return _mm256_maddubs_epi16(w, x); }
static inline kf_int kf_part_next(kf_int part, kf_int w, kf_int x) {
    part = _mm256_add_epi16(part, _mm256_maddubs_epi16(w, x));
    // Keeps GCC from making a tree of these sums, which would not fit the registers.
    __asm__("" : "+x"(part));
    return part;
}
static inline kf_int kf_part_widen(kf_int sum, kf_int part) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(part, _mm256_set1_epi16(1)));
}

#include "cpu/linear_tile.h"

KF_QUANT_ROWS(2)
KF_QUANT_ROWS(1)
KF_DENSE_ROWS(6, 1)
KF_DENSE_ROWS(2, 1)
KF_DENSE_ROWS(1, 1)

static void quant(const kf_linear_tile *tile) {
    if (tile->rows == 2)
        quant_rows_2(tile);
    else
        quant_rows_1(tile);
}

static void dense(const kf_linear_tile *tile) {
    if (tile->rows == 6)
        dense_rows_6_1(tile);
    else if (tile->rows == 2)
        dense_rows_2_1(tile);
    else
        dense_rows_1_1(tile);
}

static const int32_t QUANT_ROWS[] = {2, 1}, DENSE_ROWS[] = {6, 2, 1};

const kf_linear_kernels kf_linear_avx2 = {
    .notes = "2x8 maddubs (quantised), 6x16 FMA (dense)",
    .quant_rows = QUANT_ROWS,
    .dense_rows = DENSE_ROWS,
    .dense_panels = 1,
    .load = kf_linear_load,
    .store = kf_linear_store,
    .split = kf_linear_split,
    .quant = quant,
    .dense = dense,
};
