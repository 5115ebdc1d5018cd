// SPDX-License-Identifier: Apache-2.0
//
// Between rows.c and rope.c: tensors and launches of the row kernels.
#ifndef KF_CUDA_ROWS_HOST_H
#define KF_CUDA_ROWS_HOST_H

#include "cuda/cuda.h"
#include "cuda/rows.h"
#include "math/blocks.h"

enum { KF_CUDA_CHUNK = 16 }; // bytes

static inline int64_t kf_cuda_divide_up(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// Whether every row begins at a multiple of 16 bytes, the first `dims` dimensions being those of rows.
bool kf_cuda_aligned(const kf_view *view, int dims);

// The first kernel of a table for this dtype and (0: any) number of chunks.
const kf_cuda_rows_kernel *kf_cuda_rows_find(const kf_cuda_rows_kernel *table, int type, int chunks);

// When an op is planned: loads a kernel; and the number of blocks that its launch will have.
kf_status kf_cuda_rows_prepare(const kf_context *context, const kf_cuda_rows_kernel *kernel, int32_t shared,
                               const char *what);
kf_status kf_cuda_rows_check_blocks(const char *op, int64_t blocks);

// With the kernel's own number of threads.
kf_status kf_cuda_rows_launch(const kf_op *op, const kf_cuda_rows_kernel *kernel, int64_t blocks, const void *argument,
                              const char *what);

#endif
