// SPDX-License-Identifier: Apache-2.0
//
// The linear layer's micro-kernels on AVX-512 with VNNI and BF16: vpdpbusd multiplies 64 codes with 64 digits of x, vdpbf16ps 32 pairs.
// Tiles: quantised 6 rows x 16 columns (18 sums of digits and 6 fp32 sums in registers), dense 12 x 32 (24 sums).
#include "cpu/linear_int_avx512.h"

static inline kf_int kf_dot(kf_int sum, kf_int w, kf_int x) { return _mm512_dpbusd_epi32(sum, w, x); }

#define KF_PAIRS 1
static inline kf_vec kf_pair_dot(kf_vec sum, kf_int w, kf_int x) {
    return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x);
}
static inline kf_int kf_int_load_u16(const void *p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
}

#include "cpu/linear_tile.h"

#include "cpu/linear_dense_avx512.h"

KF_QUANT_ROWS(6)
KF_QUANT_ROWS(2)
KF_QUANT_ROWS(1)

static void quant(const kf_linear_tile *tile) {
    if (tile->rows == 6)
        quant_rows_6(tile);
    else if (tile->rows == 2)
        quant_rows_2(tile);
    else
        quant_rows_1(tile);
}

static const int32_t QUANT_ROWS[] = {6, 2, 1};

const kf_linear_kernels kf_linear_avx512bf16 = {
    .notes = "6x16 VNNI (quantised), 12x32 FMA and bf16 pairs (dense)",
    .quant_rows = QUANT_ROWS,
    .dense_rows = DENSE_ROWS,
    .dense_panels = 2,
    .pairs = 1,
    .load = kf_linear_load,
    .store = kf_linear_store,
    .split = kf_linear_split,
    .quant = quant,
    .dense = dense,
};
