// SPDX-License-Identifier: Apache-2.0
//
// Rotary position embedding of x [B, H, N, D]. Bytes: x and y once. A thread's chunks of BATCH heads are on their way while it
// computes its angles.
#include "cuda/rope.cuh"

enum { BATCH = 4 }; // heads that a thread has on their way

template <int TYPE>
__global__ void __launch_bounds__(KF_ROPE_THREADS, KF_ROPE_BLOCKS)
    kf_rope_kernel(const __grid_constant__ kf_cuda_rope a) {
    const kf_rope_place p = kf_rope_find(a.deal);
    kf_launch_dependents();
    kf_wait_for_previous();
    if (!p.there) return;
    const char *from = a.x.data + kf_head_offset(a.x, p.b, p.n);
    char *to = a.y.data + kf_head_offset(a.y, p.b, p.n);
    const int64_t position = a.turns.positions
                                 ? kf_integer_load(a.turns.positions, a.turns.positions_wide,
                                                   p.b * a.turns.position_stride[0] + p.n * a.turns.position_stride[1])
                                 : a.turns.offset + p.n;
#pragma unroll 1
    for (int32_t item = p.item; item < a.items; item += a.deal.items) {
        const kf_item_place place = kf_item_find<TYPE>(item, a.turns.pairs, a.turns.pairing);
        float2 turn[kf_turn_pairs<TYPE>] = {};
        kf_item held[BATCH];
        auto load = [&](int32_t head) {
#pragma unroll
            for (int i = 0; i < BATCH; i++)
                if (head + i < p.end)
                    held[i] = kf_item_load<TYPE>(from + (head + i) * a.x.stride[1], a.x.type, a.x.size, place, a.D);
        };
        load(p.first);
        if (place.turned) kf_find_turns<TYPE>(turn, a.turns, place, position);
#pragma unroll 1
        for (int32_t head = p.first; head < p.end; head += BATCH) {
            if (head != p.first) load(head);
#pragma unroll
            for (int i = 0; i < BATCH; i++)
                if (head + i < p.end)
                    kf_item_store<TYPE>(to + (head + i) * a.y.stride[1], a.y.type, a.y.size, place, a.D,
                                        a.turns.pairing, held[i], turn);
        }
    }
}

#define KERNEL(type, name)                                                                                             \
    { type, 1, KF_ROPE_THREADS, (const void *)kf_rope_kernel<type>, name }

extern "C" const kf_cuda_rows_kernel kf_cuda_rope_kernels[] = {
    KERNEL(KF_ROW_F32, "16-byte chunks of some heads at a position"),
    KERNEL(KF_ROW_F16, "16-byte chunks of some heads at a position"),
    KERNEL(KF_ROW_BF16, "16-byte chunks of some heads at a position"),
    KERNEL(0, "elements of some heads at a position, any dtypes and addresses"),
    {},
};
