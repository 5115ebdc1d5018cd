// SPDX-License-Identifier: Apache-2.0
//
// RoPE at load: rows of a tile of q or k turn in shared memory, between their arrival and their first product.
//
//     pair c of a row at position p: (x, y) -> (x cos t - y sin t, x sin t + y cos t) magnitude,   t = 2 pi p turns(c)
//
// turns(c) is the pair's frequency over 2 pi, in double, from the plan: the whole turns of p turns(c) fall away in double, so
// the angle of position 2^20 is as good as that of position 3. The product is fp32 and is rounded once, to the tile's type.
// Where the rows of a run are neighbours, the angle of every KF_ROPE_STEPS-th one is computed and those between follow by
// turning it once more: two instructions in the place of fifty, and an error of some 2^-23.
//
// A tile is seen through load(row, column) and store(row, column, x). Lanes take pairs, so that a warp's accesses are neighbours.
#ifndef KF_CUDA_ATTENTION_ROPE_CUH
#define KF_CUDA_ATTENTION_ROPE_CUH

#include "cuda/attention.cuh"

enum { KF_ROPE_STEPS = 16 }; // rows between two angles that are computed

// A tile of 16-bit elements in swizzled chunks (mma.cuh).
template <class T, int COLS> struct kf_rope_tile {
    char *base;
    __device__ __forceinline__ T *at(int row, int column) const {
        return reinterpret_cast<T *>(base + kf_swizzle<COLS>(row, column / KF_CHUNK)) + column % KF_CHUNK;
    }
    __device__ __forceinline__ float load(int row, int column) const { return (float)*at(row, column); }
    __device__ __forceinline__ void store(int row, int column, float x) const { *at(row, column) = (T)x; }
};

// A tile of floats with rows STRIDE apart.
template <int STRIDE> struct kf_rope_tile_fp32 {
    float *base;
    __device__ __forceinline__ float load(int row, int column) const { return base[row * STRIDE + column]; }
    __device__ __forceinline__ void store(int row, int column, float x) const { base[row * STRIDE + column] = x; }
};

// cos and sin of a position's angle.
__device__ __forceinline__ float2 kf_rope_angle(double turns, int64_t position) {
    const double t = (double)position * turns;
    float sine, cosine;
    sincospif(2.0f * (float)(t - rint(t)), &sine, &cosine);
    return make_float2(cosine, sine);
}

__device__ __forceinline__ float2 kf_rope_and(float2 a, float2 b) {
    return make_float2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}

// Rows first .. end - 1 of the tile, by one warp. STEPS: rows from one computed angle to the next, where the rows are
// neighbours (position(row + 1) = position(row) + 1).
template <int STEPS, class Tile, class Position>
__device__ __forceinline__ void kf_rotate_rows(const kf_cuda_rope &rope, Tile tile, int first, int end, bool neighbours,
                                               Position position, int lane) {
    const int half = rope.dims / 2;
#pragma unroll 1
    for (int c = lane; c < half; c += 32) {
        const double turns = rope.turns[c];
        const int x_at = rope.split_halves ? c : 2 * c, y_at = rope.split_halves ? c + half : 2 * c + 1;
        const float2 step = STEPS > 1 && neighbours ? kf_rope_angle(turns, 1) : make_float2(1.0f, 0.0f);
        float2 angle = step;
#pragma unroll 1
        for (int row = first; row < end; row++) {
            if (STEPS == 1 || !neighbours || (row - first) % STEPS == 0) {
                angle = kf_rope_angle(turns, position(row));
                angle.x *= rope.magnitude, angle.y *= rope.magnitude;
            } else {
                angle = kf_rope_and(angle, step);
            }
            const float x = tile.load(row, x_at), y = tile.load(row, y_at);
            tile.store(row, x_at, x * angle.x - y * angle.y);
            tile.store(row, y_at, x * angle.y + y * angle.x);
        }
    }
}

// Rows first .. end - 1 of the block's tile of queries, by one warp; rows past the last query stay zero.
template <int STEPS, class Tile>
__device__ __forceinline__ void kf_rotate_queries(const kf_cuda_attention &a, const kf_block &w, Tile tile, int first,
                                                  int end, int lane) {
    const auto position = [&](int row) { return kf_block_position(a, w, kf_block_row(a, w.row0 + row).x); };
    kf_rotate_rows<STEPS>(a.rope, tile, first, min(end, w.rows), a.heads == 1 && !a.positions, position, lane);
}

// Rows first .. end - 1 of a tile of keys that begins at key `key`: key j stands at position j.
template <int STEPS, class Tile>
__device__ __forceinline__ void kf_rotate_keys(const kf_cuda_attention &a, Tile tile, int32_t key, int first, int end,
                                               int lane) {
    kf_rotate_rows<STEPS>(
        a.rope, tile, first, end, true, [&](int row) { return (int64_t)key + row; }, lane);
}

#endif
