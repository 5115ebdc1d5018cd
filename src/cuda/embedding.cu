// SPDX-License-Identifier: Apache-2.0
//
// Rows of a table: y[t] = scale * table[ids[t]], the table dense or in GGUF's blocks (math/blocks.h). A thread makes 8
// neighbouring elements. Ids are read here, so no host has checked them: one outside the table makes its row NaN, and nothing
// is read for it. Bytes: the rows asked for, and y.
#include "cuda/rows.cuh"
#include "math/blocks.h"

enum { THREADS = 128, PIECE = KF_ROWS_PIECE };

// Elements column .. column + 7 of a row of blocks. Groups that share a scale are 16 values or more, so the 8 lie in one.
__device__ __forceinline__ void dequantised(float (&v)[PIECE], const kf_cuda_embedding &a, const char *row,
                                            int64_t column) {
    const int64_t number = column / (a.block_values == KF_BLOCK_SMALL ? KF_BLOCK_SMALL : KF_BLOCK_LARGE);
    const int first = (int)(column - number * a.block_values);
    const uint8_t *block = reinterpret_cast<const uint8_t *>(row) + number * a.block_bytes;
    float d, m;
    kf_block_scale(a.type, block, first / kf_block_group(a.type), &d, &m);
#pragma unroll
    for (int e = 0; e < PIECE; e++)
        v[e] = fmaf(d, (float)(kf_block_code(a.type, block, first + e) - kf_block_offset(a.type)), m);
}

__global__ void __launch_bounds__(THREADS) kf_embedding_kernel(const __grid_constant__ kf_cuda_embedding a) {
    const uint32_t index = blockIdx.x * THREADS + threadIdx.x;
    kf_launch_dependents();
    kf_wait_for_previous();
    if (index >= a.total) return;
    const uint32_t t = index / a.chunks;
    const int64_t column = (int64_t)(index - t * a.chunks) * PIECE, left = a.N - column;
    const int64_t id = kf_integer_load(a.ids + t * a.id_stride, a.ids_wide, 0);
    float v[PIECE];
    if (id < 0 || id >= a.rows) {
#pragma unroll
        for (int e = 0; e < PIECE; e++) v[e] = NAN;
    } else if (kf_block_quantised(a.type)) {
        dequantised(v, a, a.table + id * a.row_bytes, column);
    } else {
        const int type = a.type == KF_WEIGHT_F32 ? KF_ROW_F32 : a.type == KF_WEIGHT_F16 ? KF_ROW_F16 : KF_ROW_BF16;
        const char *row = a.table + id * a.row_bytes;
        kf_piece_load(v, row + column * a.block_bytes, type, a.aligned, left);
    }
#pragma unroll
    for (int e = 0; e < PIECE; e++) v[e] *= a.scale;
    char *at = a.y + t * a.y_stride + column * (a.y_type == KF_ROW_F32 ? 4 : 2);
    kf_piece_store(at, a.y_type, a.aligned, left, v);
}

extern "C" const kf_cuda_rows_kernel kf_cuda_embedding_kernels[] = {
    {0, 1, THREADS, (const void *)kf_embedding_kernel, "pieces of 8 elements, blocks dequantised in registers"},
    {},
};
