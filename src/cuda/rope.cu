// SPDX-License-Identifier: Apache-2.0
//
// Rotary position embedding of x [B, H, N, D]. Bytes: x and y once; the angles of a position once for all heads. A thread's
// first chunks are on their way while the block computes the angles.
#include "cuda/rope.cuh"

template <int TYPE>
__global__ void __launch_bounds__(KF_ROPE_THREADS) kf_rope_kernel(const __grid_constant__ kf_cuda_rope a) {
    __shared__ float2 turn[KF_ROPE_TILE * KF_ROPE_MOST_PAIRS];
    const kf_tile tile = kf_tile_find(a.tile, a.positions);
    const int32_t pairs = a.turns.pairs, per_head = tile.count * a.items, total = per_head * a.H;
    kf_launch_dependents();
    kf_wait_for_previous();

    // Items of a position, positions of a head, heads.
    struct place {
        kf_item_place item;
        int32_t h, position;
        int64_t b, n;
    };
    auto find = [&](int32_t i) {
        place p;
        p.h = i / per_head;
        const int32_t rest = i - p.h * per_head;
        p.position = rest / a.items;
        p.item = kf_item_find<TYPE>(rest - p.position * a.items, pairs, a.turns.pairing);
        p.b = (uint32_t)(tile.first + p.position) / (uint32_t)a.N;
        p.n = tile.first + p.position - p.b * a.N;
        return p;
    };
    int32_t i = threadIdx.x;
    place at = {};
    kf_item item = {};
    if (i < total) {
        at = find(i);
        item = kf_item_load<TYPE>(kf_head_at(a.x, at.b, at.h, at.n), a.x.type, a.x.size, at.item, a.D);
    }
    for (int32_t t = threadIdx.x; t < tile.count * pairs; t += KF_ROPE_THREADS) {
        const int32_t p = t / pairs, c = t - p * pairs;
        const int64_t b = (uint32_t)(tile.first + p) / (uint32_t)a.N, n = tile.first + p - b * a.N;
        const double position =
            a.turns.positions ? (double)kf_integer_load(a.turns.positions, a.turns.positions_wide,
                                                        b * a.turns.position_stride[0] + n * a.turns.position_stride[1])
                              : (double)a.turns.offset + (double)n;
        turn[t] = kf_turn(position * a.turns.frequency[c], a.turns.magnitude);
    }
    __syncthreads();
    while (i < total) {
        const place now = at;
        const kf_item held = item;
        i += KF_ROPE_THREADS;
        if (i < total) {
            at = find(i);
            item = kf_item_load<TYPE>(kf_head_at(a.x, at.b, at.h, at.n), a.x.type, a.x.size, at.item, a.D);
        }
        kf_item_store<TYPE>(kf_head_at(a.y, now.b, now.h, now.n), a.y.type, a.y.size, now.item, a.D, a.turns.pairing,
                            held, turn + now.position * pairs);
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
