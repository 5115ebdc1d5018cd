// SPDX-License-Identifier: Apache-2.0
//
// The row kernels (rows_loops.h) for AVX-512 with BF16.
#if defined(__x86_64__)
#include "cpu/rows_avx512.h"

#include "cpu/rows_loops.h"

const kf_row_kernels kf_rows_avx512bf16 = KF_ROW_KERNELS("16 floats, bf16 stores");
#else
typedef int kf_rows_not_here; // ISO C wants a declaration
#endif
