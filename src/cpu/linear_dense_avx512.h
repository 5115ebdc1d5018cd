// SPDX-License-Identifier: Apache-2.0
//
// The linear layer's dense tiles on AVX-512, with and without BF16's pairs: rows x 32 columns of 2 panels or 16 of one, 12 rows (24 sums in
// registers), 4 and 1. Included by linear_avx512.c and linear_avx512bf16.c, after linear_tile.h.
#ifndef KF_CPU_LINEAR_DENSE_AVX512_H
#define KF_CPU_LINEAR_DENSE_AVX512_H

KF_DENSE_ROWS(12, 2)
KF_DENSE_ROWS(12, 1)
KF_DENSE_ROWS(4, 2)
KF_DENSE_ROWS(4, 1)
KF_DENSE_ROWS(1, 2)
KF_DENSE_ROWS(1, 1)

static void dense(const kf_linear_tile *tile) {
    const bool two = tile->panels == 2;
    if (tile->rows == 12)
        (two ? dense_rows_12_2 : dense_rows_12_1)(tile);
    else if (tile->rows == 4)
        (two ? dense_rows_4_2 : dense_rows_4_1)(tile);
    else
        (two ? dense_rows_1_2 : dense_rows_1_1)(tile);
}

static const int32_t DENSE_ROWS[] = {12, 4, 1};

#endif
