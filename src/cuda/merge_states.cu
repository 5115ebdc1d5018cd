// SPDX-License-Identifier: Apache-2.0
//
// Merge of attention states: with m = max_s lse_s and w_s = e^(lse_s - m), d = sum_s w_s:
//
//     o = sum_s w_s o_s / d,   lse = m + ln d
//
// in the order of s; parts with lse = -inf hold no keys and are not read. A thread has a piece of 8 elements of a row and
// goes over the parts twice, first over their lse alone, which the row's threads find in L1. Bytes: every part once and the
// result once.
#include "cuda/rows.cuh"
#include "math/exp2.h"

enum { THREADS = 128, PIECE = KF_ROWS_PIECE };

__global__ void __launch_bounds__(THREADS, 1) kf_merge_states_kernel(const __grid_constant__ kf_cuda_merge_states a) {
    const uint32_t index = blockIdx.x * THREADS + threadIdx.x;
    const kf_cuda_rows_view &o_parts = a.view[0], &lse_parts = a.view[1], &o = a.view[2], &lse = a.view[3];
    kf_launch_dependents();
    kf_wait_for_previous();
    if (index >= a.total) return;
    const uint32_t row = index / a.chunks;
    const int64_t column = (int64_t)(index - row * a.chunks) * PIECE;
    int64_t offset[4];
    kf_row_offsets(a.rows, a.view, row, offset);
    const char *part_lse = lse_parts.data + offset[1];
    float m = -INFINITY;
    for (int64_t s = 0; s < a.parts; s++) m = fmaxf(m, *reinterpret_cast<const float *>(part_lse + s * a.lse_stride));
    // Nothing but empty parts and NaN: then any finite m will do, and NaN goes through.
    const float origin = m == -INFINITY ? 0.0f : m;
    float sum[PIECE] = {}, d = 0.0f;
#pragma unroll 2
    for (int64_t s = 0; s < a.parts; s++) {
        const float part = *reinterpret_cast<const float *>(part_lse + s * a.lse_stride);
        if (part == -INFINITY) continue;
        const float weight = kf_exp2_fast((part - origin) * KF_LOG2E);
        float v[PIECE];
        d += weight;
        kf_piece_load(v, o_parts.data + offset[0] + s * a.part_stride + column * o_parts.size, o_parts.type, a.aligned,
                      a.rows.n - column);
#pragma unroll
        for (int e = 0; e < PIECE; e++) sum[e] = fmaf(weight, v[e], sum[e]);
    }
    const float inverse = d == 0.0f ? 0.0f : 1.0f / d;
#pragma unroll
    for (int e = 0; e < PIECE; e++) sum[e] *= inverse;
    kf_piece_store(o.data + offset[2] + column * o.size, o.type, a.aligned, a.rows.n - column, sum);
    if (lse.data && column == 0) *reinterpret_cast<float *>(lse.data + offset[3]) = d == 0.0f ? -INFINITY : m + logf(d);
}

extern "C" const kf_cuda_rows_kernel kf_cuda_merge_states_kernels[] = {
    {0, 1, THREADS, (const void *)kf_merge_states_kernel, "pieces of 8 elements, parts in their order"},
    {},
};
