// SPDX-License-Identifier: Apache-2.0
//
// Rotation of heads, shared by rope and kv_append: a pair (a, b) turns into (a cos t - b sin t, a sin t + b cos t),
// t = position * frequency.
//
// An item is a pair of chunks of a head's row: NeoX (c, c + dims/2), GPT-J two neighbours, and behind dims two neighbours that
// are copied. In kernels of type 0 a chunk is one element. A thread has one item of one position in `heads` heads, one after
// another: the angles of its pairs are found once, in float64 (math/rope.h says why), and stay in registers. Neighbouring
// threads have neighbouring items, then positions, then groups of heads: a block goes through long pieces of memory.
#ifndef KF_CUDA_ROPE_CUH
#define KF_CUDA_ROPE_CUH

#include "cuda/rows.cuh"
#include "math/rope.h"

// Of a block, and blocks of a multiprocessor: 128 registers a thread hold two heads' chunks and the angles. With fewer ptxas spills,
// which costs more than the threads bring.
enum { KF_ROPE_THREADS = 128, KF_ROPE_BLOCKS = 4 };

// Pairs of an item.
template <int TYPE> constexpr int kf_turn_pairs = TYPE == 0 ? 1 : kf_step<TYPE>;

// Beyond, the two parts of pi / 2 no longer suffice.
#define KF_TURN_FAR 0x1p30

// cos and sin, times magnitude, rounded once: as the CPU's vectors do it. |angle| < KF_TURN_FAR.
__device__ __forceinline__ float2 kf_turn(double angle, double magnitude) {
    double s, c;
    const double q = rint(angle * KF_TWO_OVER_PI);
    const double r = fma(-q, KF_HALF_PI_LOW, fma(-q, KF_HALF_PI_HIGH, angle)), r2 = r * r;
    s = fma(fma(fma(fma(fma(KF_SIN_13, r2, KF_SIN_11), r2, KF_SIN_9), r2, KF_SIN_7), r2, KF_SIN_5), r2, KF_SIN_3);
    s = fma(s * r2, r, r);
    c = fma(fma(fma(fma(fma(KF_COS_14, r2, KF_COS_12), r2, KF_COS_10), r2, KF_COS_8), r2, KF_COS_6), r2, KF_COS_4);
    c = fma(fma(c, r2, -0.5), r2, 1.0);
    // Quadrants 1 and 3 swap the two; the sine is negative in 2 and 3, the cosine in 1 and 2.
    const int quadrant = (int)q;
    const double sine = quadrant & 1 ? c : s, cosine = quadrant & 1 ? s : c;
    return make_float2((float)((quadrant + 1) & 2 ? -magnitude * cosine : magnitude * cosine),
                       (float)(quadrant & 2 ? -magnitude * sine : magnitude * sine));
}

__device__ __forceinline__ void kf_turn_pair(float &a, float &b, const float2 &t) {
    const float x = fmaf(-b, t.y, a * t.x);
    b = fmaf(a, t.y, b * t.x);
    a = x;
}

// The two chunks of an item as they are read: of a kernel of type 0 their floats' bits.
struct kf_item {
    uint4 low, high;
};

// Where the chunks of item `index` begin, in elements; `turned` where they are pairs.
struct kf_item_place {
    int32_t low, high;
    bool turned;
};

template <int TYPE>
__device__ __forceinline__ kf_item_place kf_item_find(int32_t index, int32_t pairs, int32_t pairing) {
    constexpr int STEP = kf_turn_pairs<TYPE>;
    kf_item_place p;
    p.turned = index * STEP < pairs;
    p.low = p.turned && pairing == KF_ROPE_NEOX ? index * STEP : 2 * index * STEP;
    p.high = p.turned && pairing == KF_ROPE_NEOX ? p.low + pairs : p.low + STEP;
    return p;
}

template <int TYPE>
__device__ __forceinline__ kf_item kf_item_load(const char *row, int type, int size, const kf_item_place &p,
                                                int32_t width) {
    kf_item item;
    if constexpr (TYPE != 0) {
        item.low = kf_chunk_load(row + (int64_t)p.low * size);
        item.high = kf_chunk_load(row + (int64_t)p.high * size);
    } else {
        item.low.x = __float_as_uint(kf_element_load(row + (int64_t)p.low * size, type));
        item.high.x = 0;
        if (p.high < width) item.high.x = __float_as_uint(kf_element_load(row + (int64_t)p.high * size, type));
    }
    return item;
}

// turn: (cos, sin) of the item's pairs.
template <int TYPE>
__device__ __forceinline__ void kf_item_store(char *row, int type, int size, const kf_item_place &p, int32_t width,
                                              int32_t pairing, const kf_item &item,
                                              const float2 (&turn)[kf_turn_pairs<TYPE>]) {
    constexpr int STEP = kf_turn_pairs<TYPE>;
    float v[2 * STEP];
    if constexpr (TYPE != 0) {
        if (!p.turned) {
            kf_chunk_store(row + (int64_t)p.low * size, item.low);
            kf_chunk_store(row + (int64_t)p.high * size, item.high);
            return;
        }
        kf_chunk_unpack<TYPE>(item.low, *reinterpret_cast<float(*)[STEP]>(v));
        kf_chunk_unpack<TYPE>(item.high, *reinterpret_cast<float(*)[STEP]>(v + STEP));
    } else {
        v[0] = __uint_as_float(item.low.x), v[1] = __uint_as_float(item.high.x);
    }
    if (p.turned) {
        if (pairing == KF_ROPE_NEOX) {
#pragma unroll
            for (int e = 0; e < STEP; e++) kf_turn_pair(v[e], v[e + STEP], turn[e]);
        } else {
#pragma unroll
            for (int e = 0; e < STEP; e++) kf_turn_pair(v[2 * e], v[2 * e + 1], turn[e]);
        }
    }
    if constexpr (TYPE != 0) {
        kf_chunk_store(row + (int64_t)p.low * size, kf_chunk_pack<TYPE>(*reinterpret_cast<float(*)[STEP]>(v)));
        kf_chunk_store(row + (int64_t)p.high * size, kf_chunk_pack<TYPE>(*reinterpret_cast<float(*)[STEP]>(v + STEP)));
    } else {
        kf_element_store(row + (int64_t)p.low * size, type, v[0]);
        if (p.high < width) kf_element_store(row + (int64_t)p.high * size, type, v[1]);
    }
}

// Bytes from the beginning to row n of head 0 of sequence b.
__device__ __forceinline__ int64_t kf_head_offset(const kf_cuda_heads &x, uint32_t b, uint32_t n) {
    return b * x.stride[0] + n * x.stride[2];
}

// What a thread has: row n of sequence b, heads first .. end - 1, and (in the block's first piece) this item of a row.
struct kf_rope_place {
    uint32_t b, n;
    int32_t first, end, item;
    bool there;
};

__device__ __forceinline__ kf_rope_place kf_rope_find(const kf_cuda_rope_deal &d) {
    kf_rope_place p;
    const uint32_t slot = threadIdx.x / d.items, index = blockIdx.x * d.slots + slot, group = index / d.positions;
    const uint32_t position = index - group * d.positions;
    p.item = threadIdx.x - slot * d.items;
    p.b = position / d.N, p.n = position - p.b * d.N;
    p.first = group * d.heads;
    p.end = min(p.first + d.heads, d.H);
    p.there = slot < d.slots && p.first < d.H;
    return p;
}

// The same of any angle.
__device__ __forceinline__ float2 kf_turn_any(double angle, double magnitude) {
    if (__builtin_expect(fabs(angle) < KF_TURN_FAR, 1)) return kf_turn(angle, magnitude);
    double s, c;
    sincos(angle, &s, &c);
    return make_float2((float)(magnitude * c), (float)(magnitude * s));
}

// The angles of an item's pairs at a position. Far ones take one loop that isn't unrolled: the library's sincos is long.
template <int TYPE>
__device__ __forceinline__ void kf_find_turns(float2 (&turn)[kf_turn_pairs<TYPE>], const kf_cuda_turns &a,
                                              const kf_item_place &item, int64_t position) {
    constexpr int PAIRS = kf_turn_pairs<TYPE>;
    const double *frequency = a.frequency + (a.pairing == KF_ROPE_NEOX ? item.low : item.low / 2);
    bool near = true;
#pragma unroll
    for (int e = 0; e < PAIRS; e++) {
        const double angle = (double)position * frequency[e];
        near = near && fabs(angle) < KF_TURN_FAR;
        turn[e] = kf_turn(angle, a.magnitude);
    }
    if (__builtin_expect(near, 1)) return;
#pragma unroll 1
    for (int e = 0; e < PAIRS; e++) {
        double s, c;
        sincos((double)position * frequency[e], &s, &c);
#pragma unroll
        for (int i = 0; i < PAIRS; i++) // registers have no index
            if (i == e) turn[i] = make_float2((float)(a.magnitude * c), (float)(a.magnitude * s));
    }
}

#endif
