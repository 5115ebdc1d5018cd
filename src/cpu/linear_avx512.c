// SPDX-License-Identifier: Apache-2.0
//
// The linear layer's micro-kernels on AVX-512 F, BW, DQ, VL. Without VNNI a product of bytes takes two steps: vpmaddubsw sums pairs in 16
// bits, and once for several groups of codes vpmaddwd brings them to 32. Tiles: quantised 4 rows x 16 columns, dense 12 x 32.
#include "cpu/linear_int_avx512.h"

#define KF_DOT_BY_PARTS 1
static inline kf_int kf_part_first(kf_int w, kf_int x) { return _mm512_maddubs_epi16(w, x); }
static inline kf_int kf_part_next(kf_int part, kf_int w, kf_int x) {
    part = _mm512_add_epi16(part, _mm512_maddubs_epi16(w, x));
    // Keeps GCC from making a tree of these sums, which would not fit the registers.
    __asm__("" : "+v"(part));
    return part;
}
static inline kf_int kf_part_widen(kf_int sum, kf_int part) {
    return _mm512_add_epi32(sum, _mm512_madd_epi16(part, _mm512_set1_epi16(1)));
}

#include "cpu/linear_tile.h"

#include "cpu/linear_dense_avx512.h"

KF_QUANT_ROWS(4)
KF_QUANT_ROWS(1)

static void quant(const kf_linear_tile *tile) {
    if (tile->rows == 4)
        quant_rows_4(tile);
    else
        quant_rows_1(tile);
}

static const int32_t QUANT_ROWS[] = {4, 1};

const kf_linear_kernels kf_linear_avx512 = {
    .notes = "4x16 maddubs (quantised), 12x32 FMA (dense)",
    .quant_rows = QUANT_ROWS,
    .dense_rows = DENSE_ROWS,
    .dense_panels = 2,
    .load = kf_linear_load,
    .store = kf_linear_store,
    .split = kf_linear_split,
    .quant = quant,
    .dense = dense,
};
