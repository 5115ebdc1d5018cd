// SPDX-License-Identifier: Apache-2.0
//
// Appends N rows to a KV cache: cache[b, h, slot[b] + n] = new[b, h, n]; k is rotated on the way, both are converted to the
// cache's dtype. Slots are read here, so no host has checked them: a sequence whose rows do not all fit its cache is left
// out, and nothing is written for it.
//
// Bytes: k and v once, as many rows of the caches once; a position's angles once for all heads.
#include "cuda/rope.cuh"

// A row of k or v that an item belongs to. from: NULL for one whose slot does not exist.
struct append_place {
    kf_item_place item;
    const char *from;
    char *to;
    int32_t position;
    bool is_k;
};

template <int TYPE>
__device__ __forceinline__ append_place append_find(const kf_cuda_kv_append &a, const kf_tile &tile,
                                                    const int64_t *slot, int32_t i) {
    append_place p;
    const int32_t items = a.k_items + a.v_items, per_head = tile.count * items;
    const int32_t h = i / per_head, rest = i - h * per_head;
    p.position = rest / items;
    const int32_t index = rest - p.position * items;
    p.is_k = index < a.k_items;
    p.item = kf_item_find<TYPE>(p.is_k ? index : index - a.k_items, p.is_k ? a.turns.pairs : 0, a.turns.pairing);
    const int64_t b = (uint32_t)(tile.first + p.position) / (uint32_t)a.N, n = tile.first + p.position - b * a.N;
    p.from = kf_head_at(p.is_k ? a.k : a.v, b, h, n);
    p.to = kf_head_at(p.is_k ? a.k_cache : a.v_cache, b, h, slot[p.position]);
    if (slot[p.position] < 0) p.from = NULL;
    return p;
}

// First the slots of the tile (-1: the sequence does not fit), then the angles of their positions.
__device__ __forceinline__ void find_slots(const kf_cuda_kv_append &a, const kf_tile &tile, int64_t *slot) {
    if (threadIdx.x < tile.count) {
        const int64_t b = (uint32_t)(tile.first + threadIdx.x) / (uint32_t)a.N, n = tile.first + threadIdx.x - b * a.N;
        const int64_t first = a.slots ? kf_integer_load(a.slots, a.slots_wide, b * a.slot_stride) : 0;
        slot[threadIdx.x] = first >= 0 && first <= a.capacity - a.N ? first + n : -1;
    }
    __syncthreads();
}

__device__ __forceinline__ void find_turns(const kf_cuda_kv_append &a, const kf_tile &tile, const int64_t *slot,
                                           float2 *turn) {
    const int32_t pairs = a.turns.pairs;
    for (int32_t t = threadIdx.x; t < tile.count * pairs; t += KF_ROPE_THREADS) {
        const int32_t p = t / pairs, c = t - p * pairs;
        const int64_t b = (uint32_t)(tile.first + p) / (uint32_t)a.N, n = tile.first + p - b * a.N;
        const double position =
            a.turns.positions ? (double)kf_integer_load(a.turns.positions, a.turns.positions_wide,
                                                        b * a.turns.position_stride[0] + n * a.turns.position_stride[1])
                              : (double)slot[p];
        turn[t] = kf_turn(position * a.turns.frequency[c], a.turns.magnitude);
    }
}

template <int TYPE>
__global__ void __launch_bounds__(KF_ROPE_THREADS) kf_kv_append_kernel(const __grid_constant__ kf_cuda_kv_append a) {
    __shared__ float2 turn[KF_ROPE_TILE * KF_ROPE_MOST_PAIRS];
    __shared__ int64_t slot[KF_ROPE_TILE];
    const kf_tile tile = kf_tile_find(a.tile, a.positions);
    const int32_t total = tile.count * (a.k_items + a.v_items) * a.H;
    kf_launch_dependents();
    kf_wait_for_previous();
    find_slots(a, tile, slot);
    int32_t i = threadIdx.x;
    append_place at = {};
    kf_item item = {};
    auto load = [&] {
        at = append_find<TYPE>(a, tile, slot, i);
        if (at.from)
            item = kf_item_load<TYPE>(at.from, at.is_k ? a.k.type : a.v.type, at.is_k ? a.k.size : a.v.size, at.item,
                                      at.is_k ? a.D : a.Dv);
    };
    if (i < total) load();
    if (a.turns.pairs) find_turns(a, tile, slot, turn);
    __syncthreads();
    while (i < total) {
        const append_place now = at;
        const kf_item held = item;
        i += KF_ROPE_THREADS;
        if (i < total) load();
        if (now.from)
            kf_item_store<TYPE>(now.to, now.is_k ? a.k_cache.type : a.v_cache.type,
                                now.is_k ? a.k_cache.size : a.v_cache.size, now.item, now.is_k ? a.D : a.Dv,
                                a.turns.pairing, held, turn + now.position * a.turns.pairs);
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
