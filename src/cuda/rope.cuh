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

// Bytes from the beginning to row n of head 0 of sequence b.
__device__ __forceinline__ int64_t kf_head_offset(const kf_cuda_heads &x, uint32_t b, uint32_t n) {
    return b * x.stride[0] + n * x.stride[2];
}

// The positions of a block: `count` of them from `first` on, counted over B and N; a.tile, a power of two, at most.
struct kf_tile {
    uint32_t first;
    int32_t count, shift; // shift: the logarithm of a.tile
};

__device__ __forceinline__ kf_tile kf_tile_find(int32_t shift, int64_t positions) {
    kf_tile t;
    t.shift = shift;
    t.first = blockIdx.x << shift;
    t.count = (int32_t)min((int64_t)1 << shift, positions - t.first);
    return t;
}

// Angles of the tile's positions. place(p): where position p of the tile stands if no positions are given.
template <class PLACE>
__device__ __forceinline__ void kf_find_turns(const kf_cuda_turns &a, const kf_tile &tile, uint32_t N, float2 *turn,
                                              PLACE place) {
    for (int32_t t = threadIdx.x; t < tile.count * a.pairs; t += KF_ROPE_THREADS) {
        const int32_t p = t / a.pairs, c = t - p * a.pairs;
        const uint32_t b = (tile.first + p) / N, n = tile.first + p - b * N;
        const double position = a.positions
                                    ? (double)kf_integer_load(a.positions, a.positions_wide,
                                                              b * a.position_stride[0] + n * a.position_stride[1])
                                    : place(b, n);
        turn[t] = kf_turn(position * a.frequency[c], a.magnitude);
    }
}

#define KF_NOWHERE INT64_MIN

// What one thread does: the same item of some rows, row r being position r mod tile of head r / tile. Offsets of the tile's
// positions lie in shared memory; to KF_NOWHERE nothing is written.
struct kf_rotation {
    kf_item_place item;
    const char *from;
    char *to;
    int64_t from_head, to_head; // strides
    const int64_t *from_offset, *to_offset;
    int32_t from_type, from_size, to_type, to_size, width;
};

// How the items of rows are dealt out to the block's threads: `together` rows at a time, this thread's first row and item.
// Rows of more items than threads are gone through in pieces of KF_ROPE_THREADS.
struct kf_item_deal {
    int32_t together, row, item;
};

__device__ __forceinline__ kf_item_deal kf_items_deal(int32_t items) {
    kf_item_deal d;
    const int32_t own = min(items, (int32_t)KF_ROPE_THREADS);
    d.together = KF_ROPE_THREADS / own;
    d.row = threadIdx.x / own;
    d.item = threadIdx.x - d.row * own;
    return d;
}

// Rows first, first + step, ... below `rows`, BATCH of them at a time. `between` is called by all threads of the block after
// the first loads are sent; it ends with a barrier.
template <int TYPE, int BATCH, class BETWEEN>
__device__ __forceinline__ void kf_rotate(const kf_rotation &r, const kf_tile &tile, int32_t first, int32_t step,
                                          int32_t rows, const kf_cuda_turns &turns, const float2 *turn,
                                          BETWEEN between) {
    const int32_t mask = (1 << tile.shift) - 1;
    kf_item held[BATCH];
    auto load = [&](int32_t row) {
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int32_t at = row + i * step, position = at & mask;
            if (at < rows && position < tile.count)
                held[i] = kf_item_load<TYPE>(r.from + r.from_offset[position] + (at >> tile.shift) * r.from_head,
                                             r.from_type, r.from_size, r.item, r.width);
        }
    };
    load(first);
    between();
    for (int32_t row = first; row < rows; row += BATCH * step) {
        if (row != first) load(row);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int32_t at = row + i * step, position = at & mask;
            if (at < rows && position < tile.count && r.to_offset[position] != KF_NOWHERE)
                kf_item_store<TYPE>(r.to + r.to_offset[position] + (at >> tile.shift) * r.to_head, r.to_type, r.to_size,
                                    r.item, r.width, turns.pairing, held[i], turn + position * turns.pairs);
        }
    }
}

#endif
