// SPDX-License-Identifier: Apache-2.0
//
// The row kernels (rows_loops.h) in portable C.
#include "cpu/simd_scalar.h"

#include "cpu/rows_loops.h"

const kf_row_kernels kf_rows_scalar = KF_ROW_KERNELS("one float at a time");
