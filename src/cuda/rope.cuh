// SPDX-License-Identifier: Apache-2.0
//
// Rotation of heads, shared by rope and kv_append: a pair (a, b) turns into (a cos t - b sin t, a sin t + b cos t),
// t = position * frequency.
//
// A block has a tile of positions with all their heads: the angles of a position are computed once, in float64 (math/rope.h
// says why), and lie in shared memory. An item is a pair of chunks of a head's row: NeoX (c, c + dims/2), GPT-J two
// neighbours, and behind dims two neighbours that are copied. In kernels of type 0 a chunk is one element.
#ifndef KF_CUDA_ROPE_CUH
#define KF_CUDA_ROPE_CUH

#include "cuda/rows.cuh"
#include "math/rope.h"

enum { KF_ROPE_THREADS = 256 };

// Beyond, the two parts of pi / 2 no longer suffice.
#define KF_TURN_FAR 0x1p30

// cos and sin, times magnitude, rounded once: as the CPU's vectors do it.
__device__ __forceinline__ float2 kf_turn(double angle, double magnitude) {
    double s, c;
    if (!(fabs(angle) < KF_TURN_FAR)) {
        sincos(angle, &s, &c);
        return make_float2((float)(magnitude * c), (float)(magnitude * s));
    }
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

// Chunks of a rotation: E elements, or single ones.
template <int TYPE> constexpr int kf_turn_step = TYPE == 0 ? 1 : kf_step<TYPE>;

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
    constexpr int STEP = kf_turn_step<TYPE>;
    kf_item_place p;
    p.turned = index * STEP < pairs;
    p.low = p.turned && pairing == KF_ROPE_NEOX ? index * STEP : 2 * index * STEP;
    p.high = p.turned && pairing == KF_ROPE_NEOX ? p.low + pairs : p.low + STEP;
    return p;
}

template <int TYPE>
__device__ __forceinline__ kf_item kf_item_load(const char *row, int type, int size, const kf_item_place &p,
                                                int32_t width) {
    kf_item item = {};
    if constexpr (TYPE != 0) {
        item.low = kf_chunk_load(row + (int64_t)p.low * size);
        item.high = kf_chunk_load(row + (int64_t)p.high * size);
    } else {
        item.low.x = __float_as_uint(kf_element_load(row + (int64_t)p.low * size, type));
        if (p.high < width) item.high.x = __float_as_uint(kf_element_load(row + (int64_t)p.high * size, type));
    }
    return item;
}

// turn: (cos, sin) of the position's pairs.
template <int TYPE>
__device__ __forceinline__ void kf_item_store(char *row, int type, int size, const kf_item_place &p, int32_t width,
                                              int32_t pairing, const kf_item &item, const float2 *turn) {
    constexpr int STEP = kf_turn_step<TYPE>;
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
    const bool neox = pairing == KF_ROPE_NEOX;
    if (p.turned) {
        const float2 *at = turn + (neox ? p.low : p.low / 2);
        float w[2 * STEP];
#pragma unroll
        for (int e = 0; e < STEP; e++) {
            const float2 t = at[e];
            const float a = neox ? v[e] : v[2 * e], b = neox ? v[e + STEP] : v[2 * e + 1];
            const float x = fmaf(-b, t.y, a * t.x), y = fmaf(a, t.y, b * t.x);
            if (neox)
                w[e] = x, w[e + STEP] = y;
            else
                w[2 * e] = x, w[2 * e + 1] = y;
        }
#pragma unroll
        for (int e = 0; e < 2 * STEP; e++) v[e] = w[e];
    }
    if constexpr (TYPE != 0) {
        kf_chunk_store(row + (int64_t)p.low * size, kf_chunk_pack<TYPE>(*reinterpret_cast<float(*)[STEP]>(v)));
        kf_chunk_store(row + (int64_t)p.high * size, kf_chunk_pack<TYPE>(*reinterpret_cast<float(*)[STEP]>(v + STEP)));
    } else {
        kf_element_store(row + (int64_t)p.low * size, type, v[0]);
        if (p.high < width) kf_element_store(row + (int64_t)p.high * size, type, v[1]);
    }
}

// Row n of head h of sequence b.
__device__ __forceinline__ char *kf_head_at(const kf_cuda_heads &x, int64_t b, int64_t h, int64_t n) {
    return x.data + (b * x.stride[0] + h * x.stride[1] + n * x.stride[2]);
}

// The positions of a block: `count` of them from `first` on, counted over B and N.
struct kf_tile {
    int64_t first;
    int32_t count;
};

__device__ __forceinline__ kf_tile kf_tile_find(int32_t tile, int64_t positions) {
    kf_tile t;
    t.first = (int64_t)blockIdx.x * tile;
    t.count = (int32_t)min((int64_t)tile, positions - t.first);
    return t;
}

#endif
