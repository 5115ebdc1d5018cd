// SPDX-License-Identifier: Apache-2.0
//
// Rotary position embedding of x [B, H, N, D]. Bytes: x and y once; the angles of a position once for all heads. A thread's
// first chunks are on their way while the block computes the angles.
#include "cuda/rope.cuh"

enum { BATCH = 4 }; // rows that a thread has on their way

template <int TYPE>
__global__ void __launch_bounds__(KF_ROPE_THREADS) kf_rope_kernel(const __grid_constant__ kf_cuda_rope a) {
    __shared__ float2 turn[KF_ROPE_TILE * KF_ROPE_MOST_PAIRS];
    __shared__ int64_t from[KF_ROPE_TILE], to[KF_ROPE_TILE];
    const kf_tile tile = kf_tile_find(a.shift, a.positions);
    const uint32_t N = (uint32_t)a.N;
    const kf_item_deal deal = kf_items_deal(a.items);
    kf_launch_dependents();
    if (threadIdx.x < tile.count) {
        const uint32_t b = (tile.first + threadIdx.x) / N, n = tile.first + threadIdx.x - b * N;
        from[threadIdx.x] = kf_head_offset(a.x, b, n);
        to[threadIdx.x] = kf_head_offset(a.y, b, n);
    }
    __syncthreads();
    kf_wait_for_previous();
    const int32_t rows = a.H << a.shift;
    for (int32_t piece = 0; piece < a.items; piece += KF_ROPE_THREADS) {
        const int32_t index = piece + deal.item;
        const kf_rotation r = {kf_item_find<TYPE>(index, a.turns.pairs, a.turns.pairing),
                               a.x.data,
                               a.y.data,
                               a.x.stride[1],
                               a.y.stride[1],
                               from,
                               to,
                               a.x.type,
                               a.x.size,
                               a.y.type,
                               a.y.size,
                               a.D};
        const bool idle = deal.row >= deal.together || index >= a.items;
        kf_rotate<TYPE, BATCH>(r, tile, idle ? rows : deal.row, deal.together, rows, a.turns, turn, [&] {
            if (piece) return;
            kf_find_turns(a.turns, tile, N, turn,
                          [&](uint32_t, uint32_t n) { return (double)a.turns.offset + (double)n; });
            __syncthreads();
        });
    }
}

#define KERNEL(type, name)                                                                                             \
    { type, 1, KF_ROPE_THREADS, (const void *)kf_rope_kernel<type>, name }

extern "C" const kf_cuda_rows_kernel kf_cuda_rope_kernels[] = {
    KERNEL(KF_ROW_F32, "tiles of positions with all heads, 16-byte chunks"),
    KERNEL(KF_ROW_F16, "tiles of positions with all heads, 16-byte chunks"),
    KERNEL(KF_ROW_BF16, "tiles of positions with all heads, 16-byte chunks"),
    KERNEL(0, "tiles of positions with all heads, any dtypes and addresses"),
    {},
};
