// SPDX-License-Identifier: Apache-2.0
//
// The row kernels (rows_loops.h) for AVX2, FMA and F16C.
#if defined(__x86_64__)
#include "cpu/simd_avx2.h"

#include "cpu/rows_loops.h"

const kf_row_kernels kf_rows_avx2 = KF_ROW_KERNELS("8 floats, FMA, F16C");
#else
typedef int kf_rows_not_here; // ISO C wants a declaration
#endif
