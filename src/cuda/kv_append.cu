// SPDX-License-Identifier: Apache-2.0
//
// Appends N rows to a KV cache: cache[b, h, slot[b] + n] = new[b, h, n]; k is rotated on the way, both are converted to the
// cache's dtype. Slots are read here, so no host has checked them: a sequence whose rows do not all fit its cache is left
// out, and nothing is written for it.
//
// A row's items are those of k, then those of v. Bytes: k and v once, as many rows of the caches once; a position's angles
// once for all heads. A thread's first chunks are on their way while slots are read and the angles computed.
#include "cuda/rope.cuh"

enum { BATCH = 2 }; // rows that a thread has on their way

// The slot of row n of sequence b; KF_NOWHERE where the sequence's rows do not all fit.
__device__ __forceinline__ int64_t find_slot(const kf_cuda_kv_append &a, uint32_t b, uint32_t n) {
    const int64_t first = a.slots ? kf_integer_load(a.slots, a.slots_wide, b * a.slot_stride) : 0;
    return first >= 0 && first <= a.capacity - a.N ? first + n : KF_NOWHERE;
}

template <int TYPE>
__global__ void __launch_bounds__(KF_ROPE_THREADS) kf_kv_append_kernel(const __grid_constant__ kf_cuda_kv_append a) {
    __shared__ float2 turn[KF_ROPE_TILE * KF_ROPE_MOST_PAIRS];
    __shared__ int64_t from[2][KF_ROPE_TILE], to[2][KF_ROPE_TILE]; // of k, of v
    const kf_tile tile = kf_tile_find(a.shift, a.positions);
    const uint32_t N = (uint32_t)a.N;
    const int32_t items = a.k_items + a.v_items, rows = a.H << a.shift;
    const kf_item_deal deal = kf_items_deal(items);
    kf_launch_dependents();
    const uint32_t b = (tile.first + threadIdx.x) / N, n = tile.first + threadIdx.x - b * N; // of the first threads
    if (threadIdx.x < tile.count)
        from[0][threadIdx.x] = kf_head_offset(a.k, b, n), from[1][threadIdx.x] = kf_head_offset(a.v, b, n);
    __syncthreads();
    kf_wait_for_previous();
    auto between = [&] {
        if (threadIdx.x < tile.count) {
            const int64_t slot = find_slot(a, b, n);
            const bool fits = slot != KF_NOWHERE;
            to[0][threadIdx.x] = fits ? b * a.k_cache.stride[0] + slot * a.k_cache.stride[2] : KF_NOWHERE;
            to[1][threadIdx.x] = fits ? b * a.v_cache.stride[0] + slot * a.v_cache.stride[2] : KF_NOWHERE;
        }
        kf_find_turns(a.turns, tile, N, turn, [&](uint32_t of, uint32_t row) { return (double)find_slot(a, of, row); });
        __syncthreads();
    };
    for (int32_t piece = 0; piece < items; piece += KF_ROPE_THREADS) {
        const int32_t index = piece + deal.item;
        const bool is_k = index < a.k_items;
        const kf_cuda_heads &source = is_k ? a.k : a.v, &cache = is_k ? a.k_cache : a.v_cache;
        const kf_rotation r = {
            kf_item_find<TYPE>(is_k ? index : index - a.k_items, is_k ? a.turns.pairs : 0, a.turns.pairing),
            source.data,
            cache.data,
            source.stride[1],
            cache.stride[1],
            from[is_k ? 0 : 1],
            to[is_k ? 0 : 1],
            source.type,
            source.size,
            cache.type,
            cache.size,
            is_k ? a.D : a.Dv};
        const bool idle = deal.row >= deal.together || index >= items;
        kf_rotate<TYPE, BATCH>(r, tile, idle ? rows : deal.row, deal.together, rows, a.turns, turn, [&] {
            if (piece == 0) between();
        });
    }
}

#define KERNEL(type, name)                                                                                             \
    { type, 1, KF_ROPE_THREADS, (const void *)kf_kv_append_kernel<type>, name }

extern "C" const kf_cuda_rows_kernel kf_cuda_kv_append_kernels[] = {
    KERNEL(KF_ROW_F32, "k turned and v in one pass, 16-byte chunks"),
    KERNEL(KF_ROW_F16, "k turned and v in one pass, 16-byte chunks"),
    KERNEL(KF_ROW_BF16, "k turned and v in one pass, 16-byte chunks"),
    KERNEL(0, "k turned and v in one pass, any dtypes and addresses"),
    {},
};
