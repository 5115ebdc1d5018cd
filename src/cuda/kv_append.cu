// SPDX-License-Identifier: Apache-2.0
//
// Appends N rows to a KV cache: cache[b, h, slot[b] + n] = new[b, h, n]; k is rotated on the way, both are converted to the
// cache's dtype. Slots are read here, so no host has checked them: a sequence whose rows do not all fit its cache is left
// out, and nothing is written for it.
//
// Bytes: k and v once, as many rows of the caches once. A thread has the same item of k and of v; its chunks of BATCH heads
// are on their way while the slot is read and the angles are computed. Where rows are few, a step's one token, time is a chain of waits: there a
// thread has one pair, and has worked out all that does not depend on the slot before the kernel in front has ended.
#include "cuda/rope.cuh"

enum { BATCH = 2 }; // heads that a thread has on their way

// The slot of row n of sequence b; -1 where the sequence's rows do not all fit.
__device__ __forceinline__ int64_t find_slot(const kf_cuda_kv_append &a, uint32_t b, uint32_t n) {
    const int64_t first = a.slots ? kf_integer_load(a.slots, a.slots_wide, b * a.slot_stride) : 0;
    return first >= 0 && first <= a.capacity - a.deal.N ? first + n : -1;
}

// One of the two: where an item of it lies, and what is on its way.
struct stream {
    const kf_cuda_heads &from, &to;
    const char *source;
    int32_t width;
    bool there;
    kf_item_place item;
    kf_item held[BATCH];
};

template <int TYPE> __device__ __forceinline__ void load(stream &s, const kf_rope_place &p, int32_t head) {
#pragma unroll
    for (int i = 0; i < BATCH; i++)
        if (s.there && head + i < p.end)
            s.held[i] =
                kf_item_load<TYPE>(s.source + (head + i) * s.from.stride[1], s.from.type, s.from.size, s.item, s.width);
}

template <int TYPE>
__device__ __forceinline__ void store(const stream &s, const kf_rope_place &p, int32_t head, int64_t offset,
                                      int32_t pairing, const float2 (&turn)[kf_turn_pairs<TYPE>]) {
#pragma unroll
    for (int i = 0; i < BATCH; i++)
        if (s.there && head + i < p.end)
            kf_item_store<TYPE>(s.to.data + offset + (head + i) * s.to.stride[1], s.to.type, s.to.size, s.item, s.width,
                                pairing, s.held[i], turn);
}

template <int TYPE>
__global__ void __launch_bounds__(KF_ROPE_THREADS, KF_ROPE_BLOCKS)
    kf_kv_append_kernel(const __grid_constant__ kf_cuda_kv_append a) {
    kf_rope_place p = kf_rope_find(a.deal);
    kf_launch_dependents();
    kf_wait_for_previous();
    if (!p.there) return;
    const int64_t slot = find_slot(a, p.b, p.n);
    const int64_t position = a.turns.positions
                                 ? kf_integer_load(a.turns.positions, a.turns.positions_wide,
                                                   p.b * a.turns.position_stride[0] + p.n * a.turns.position_stride[1])
                                 : slot;
    stream k = {a.k, a.k_cache, a.k.data + kf_head_offset(a.k, p.b, p.n), a.D};
    stream v = {a.v, a.v_cache, a.v.data + kf_head_offset(a.v, p.b, p.n), a.Dv};
#pragma unroll 1
    for (int32_t item = p.item; item < max(a.k_items, a.v_items); item += a.deal.items) {
        k.there = item < a.k_items, v.there = item < a.v_items;
        k.item = kf_item_find<TYPE>(item, a.turns.pairs, a.turns.pairing);
        v.item = kf_item_find<TYPE>(item, 0, a.turns.pairing);
        float2 turn[kf_turn_pairs<TYPE>] = {};
        load<TYPE>(k, p, p.first);
        load<TYPE>(v, p, p.first);
        if (slot < 0) return;
        if (k.there && k.item.turned) kf_find_turns<TYPE>(turn, a.turns, k.item, position);
        const int64_t to_k = p.b * a.k_cache.stride[0] + slot * a.k_cache.stride[2],
                      to_v = p.b * a.v_cache.stride[0] + slot * a.v_cache.stride[2];
#pragma unroll 1
        for (int32_t head = p.first; head < p.end; head += BATCH) {
            if (head != p.first) load<TYPE>(k, p, head), load<TYPE>(v, p, head);
            store<TYPE>(k, p, head, to_k, a.turns.pairing, turn);
            store<TYPE>(v, p, head, to_v, a.turns.pairing, turn);
        }
    }
}

// One of the two: a pair of elements, where they come from, and where they go in slot 0.
template <int TYPE> struct single {
    static constexpr int SIZE = TYPE == KF_ROW_F32 ? 4 : 2;
    const char *from;
    char *to;
    int64_t stride; // of the cache's slots
    int32_t width;
    bool there;
    kf_item_place place;
    kf_item held;

    __device__ __forceinline__ single(const kf_cuda_heads &x, const kf_cuda_heads &cache, const kf_rope_place &p,
                                      int32_t items, int32_t width_, int32_t pairs, int32_t pairing)
        : from(x.data + kf_head_offset(x, p.b, p.n) + p.first * x.stride[1]),
          to(cache.data + p.b * cache.stride[0] + p.first * cache.stride[1]), stride(cache.stride[2]), width(width_),
          there(p.there && p.item < items), place(kf_item_find<0>(p.item, pairs, pairing)) {
        asm volatile("" : "+l"(from), "+l"(to), "+l"(stride)); // now, not where they are needed
    }
    __device__ __forceinline__ void load() {
        if (there) held = kf_item_load<0>(from, TYPE, SIZE, place, width);
    }
    __device__ __forceinline__ void store(int64_t slot, int32_t pairing, const float2 (&turn)[1]) const {
        if (there) kf_item_store<0>(to + slot * stride, TYPE, SIZE, place, width, pairing, held, turn);
    }
};

template <int TYPE>
__global__ void __launch_bounds__(KF_ROPE_THREADS)
    kf_kv_append_pairs_kernel(const __grid_constant__ kf_cuda_kv_append a) {
    const kf_rope_place p = kf_rope_find(a.deal);
    const int32_t pairing = a.turns.pairing;
    single<TYPE> k(a.k, a.k_cache, p, a.k_items, a.D, a.turns.pairs, pairing);
    single<TYPE> v(a.v, a.v_cache, p, a.v_items, a.Dv, 0, pairing);
    const bool turned = k.there && k.place.turned;
    double frequency = turned ? a.turns.frequency[p.item] : 0.0, magnitude = a.turns.magnitude;
    int64_t room = a.capacity - a.deal.N;
    const char *slot_at = a.slots + p.b * a.slot_stride * (a.slots_wide ? 8 : 4);
    asm volatile("" : "+d"(frequency), "+d"(magnitude), "+l"(room), "+l"(slot_at));
    kf_launch_dependents();
    kf_wait_for_previous();
    if (!p.there) return;
    const int64_t first = a.slots ? kf_integer_load(slot_at, a.slots_wide, 0) : 0;
    int64_t position = first + p.n;
    if (a.turns.positions)
        position = kf_integer_load(a.turns.positions, a.turns.positions_wide,
                                   p.b * a.turns.position_stride[0] + p.n * a.turns.position_stride[1]);
    k.load();
    v.load();
    if (first < 0 || first > room) return;
    float2 turn[1] = {};
    if (turned) turn[0] = kf_turn_any((double)position * frequency, magnitude);
    k.store(first + p.n, pairing, turn);
    v.store(first + p.n, pairing, turn);
}

#define KERNEL(type, name)                                                                                             \
    { type, KF_APPEND_CHUNKS, KF_ROPE_THREADS, (const void *)kf_kv_append_kernel<type>, name }
#define PAIRS(type)                                                                                                    \
    {                                                                                                                  \
        type, KF_APPEND_PAIRS, KF_ROPE_THREADS, (const void *)kf_kv_append_pairs_kernel<type>,                         \
            "k turned and v in one pass, a pair a thread"                                                              \
    }

extern "C" const kf_cuda_rows_kernel kf_cuda_kv_append_kernels[] = {
    KERNEL(KF_ROW_F32, "k turned and v in one pass, 16-byte chunks"),
    KERNEL(KF_ROW_F16, "k turned and v in one pass, 16-byte chunks"),
    KERNEL(KF_ROW_BF16, "k turned and v in one pass, 16-byte chunks"),
    PAIRS(KF_ROW_F32),
    PAIRS(KF_ROW_F16),
    PAIRS(KF_ROW_BF16),
    KERNEL(0, "k turned and v in one pass, any dtypes and addresses"),
    {},
};
