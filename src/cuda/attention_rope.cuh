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

#define KF_ROPE_PI 3.14159265358979323846

enum { KF_ROPE_STEPS = 16 }; // rows between two angles that are computed

// The two floats of a packed pair.
template <class T> __device__ __forceinline__ float2 kf_unpack(uint32_t pair);
template <> __device__ __forceinline__ float2 kf_unpack<__nv_bfloat16>(uint32_t pair) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}
template <> __device__ __forceinline__ float2 kf_unpack<__half>(uint32_t pair) {
    return __half22float2(*reinterpret_cast<const __half2 *>(&pair));
}

// Eight elements of 16 bits, 16 bytes.
template <class T> __device__ __forceinline__ void kf_chunk_load(const char *from, float *x) {
    const uint4 all = *reinterpret_cast<const uint4 *>(from);
    const uint32_t word[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 two = kf_unpack<T>(word[i]);
        x[2 * i] = two.x, x[2 * i + 1] = two.y;
    }
}
template <class T> __device__ __forceinline__ void kf_chunk_store(char *to, const float *x) {
    *reinterpret_cast<uint4 *>(to) =
        make_uint4(kf_pack<T>(x[0], x[1]), kf_pack<T>(x[2], x[3]), kf_pack<T>(x[4], x[5]), kf_pack<T>(x[6], x[7]));
}

// A tile of 16-bit elements in swizzled chunks (mma.cuh).
template <class T, int COLS> struct kf_rope_tile {
    char *base;
    __device__ __forceinline__ T *at(int row, int column) const {
        return reinterpret_cast<T *>(base + kf_swizzle<COLS>(row, column / KF_CHUNK)) + column % KF_CHUNK;
    }
    __device__ __forceinline__ float load(int row, int column) const { return (float)*at(row, column); }
    __device__ __forceinline__ void store(int row, int column, float x) const { *at(row, column) = (T)x; }
    __device__ __forceinline__ void load_chunk(int row, int chunk, float *x) const {
        kf_chunk_load<T>(base + kf_swizzle<COLS>(row, chunk), x);
    }
    __device__ __forceinline__ void store_chunk(int row, int chunk, const float *x) const {
        kf_chunk_store<T>(base + kf_swizzle<COLS>(row, chunk), x);
    }
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

// The same by the device's own sine and cosine, 2^-20 off at most: for what is rounded to 16 bits.
__device__ __forceinline__ float2 kf_rope_angle_16(double turns, int64_t position) {
    const double t = (double)position * turns;
    const float x = (float)(2 * KF_ROPE_PI) * (float)(t - rint(t));
    return make_float2(__cosf(x), __sinf(x));
}

__device__ __forceinline__ float2 kf_rope_and(float2 a, float2 b) {
    return make_float2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}

// The pair of a row turned by `angle`, which holds the magnitude.
template <class Tile>
__device__ __forceinline__ void kf_rope_store(Tile tile, int row, int x_at, int y_at, float x, float y, float2 angle) {
    tile.store(row, x_at, x * angle.x - y * angle.y);
    tile.store(row, y_at, x * angle.y + y * angle.x);
}

// Columns of pair c.
__device__ __forceinline__ int2 kf_rope_columns(const kf_cuda_rope &rope, int c) {
    return rope.split_halves ? make_int2(c, c + rope.dims / 2) : make_int2(2 * c, 2 * c + 1);
}

// One row at position p, by one warp.
template <class Tile>
__device__ __forceinline__ void kf_rotate_row(const kf_cuda_rope &rope, Tile tile, int row, int64_t p, int lane) {
#pragma unroll 1
    for (int c = lane; c < rope.dims / 2; c += 32) {
        const int2 at = kf_rope_columns(rope, c);
        float2 angle = kf_rope_angle(rope.turns[c], p);
        angle.x *= rope.magnitude, angle.y *= rope.magnitude;
        kf_rope_store(tile, row, at.x, at.y, tile.load(row, at.x), tile.load(row, at.y), angle);
    }
}

// COUNT rows from `row` on, whose angles begin with `angle` and are `step` apart: what is loaded is asked for before it is used.
template <int COUNT, class Tile>
__device__ __forceinline__ void kf_rotate_steps(Tile tile, int row, int2 at, float2 &angle, float2 step) {
    constexpr int BATCH = 8; // loads on their way
    static_assert(COUNT % BATCH == 0, "");
#pragma unroll
    for (int r0 = 0; r0 < COUNT; r0 += BATCH) {
        float x[BATCH], y[BATCH];
#pragma unroll
        for (int r = 0; r < BATCH; r++) x[r] = tile.load(row + r0 + r, at.x), y[r] = tile.load(row + r0 + r, at.y);
#pragma unroll
        for (int r = 0; r < BATCH; r++) {
            kf_rope_store(tile, row + r0 + r, at.x, at.y, x[r], y[r], angle);
            angle = kf_rope_and(angle, step);
        }
    }
}

// COUNT neighbouring rows from `row` on, the first at position p, by one warp.
template <int COUNT, class Tile>
__device__ __forceinline__ void kf_rotate_run(const kf_cuda_rope &rope, Tile tile, int row, int64_t p, int lane) {
    constexpr int STEPS = COUNT < KF_ROPE_STEPS ? COUNT : KF_ROPE_STEPS;
#pragma unroll 1
    for (int c = lane; c < rope.dims / 2; c += 32) {
        const int2 at = kf_rope_columns(rope, c);
        const double turns = rope.turns[c];
        const float2 step = kf_rope_angle(turns, 1);
#pragma unroll 1
        for (int r = 0; r < COUNT; r += STEPS) {
            float2 angle = kf_rope_angle(turns, p + r);
            angle.x *= rope.magnitude, angle.y *= rope.magnitude;
            kf_rotate_steps<STEPS>(tile, row + r, at, angle, step);
        }
    }
}

// Rows `row` .. row + COUNT - 1 of the block's tile of queries, by one warp; rows past the last query are zero and stay so. EXACT:
// each row's angle for itself.
template <int COUNT, bool EXACT, class Tile>
__device__ __forceinline__ void kf_rotate_queries(const kf_cuda_attention &a, const kf_block &w, Tile tile, int row,
                                                  int lane) {
    if constexpr (!EXACT)
        if (a.heads == 1 && !a.positions) {
            kf_rotate_run<COUNT>(a.rope, tile, row, (int64_t)w.row0 + row + w.offset, lane);
            return;
        }
    const int end = min(row + COUNT, w.rows);
    for (; row < end; row++)
        kf_rotate_row(a.rope, tile, row, kf_block_position(a, w, kf_block_row(a, w.row0 + row).x), lane);
}

__device__ __forceinline__ void kf_rope_turn(float &x, float &y, float2 angle) {
    const float turned = x * angle.x - y * angle.y;
    y = x * angle.y + y * angle.x, x = turned;
}

// Two chunks of a row turned, times `scale`, and rounded to TO: first those of the first chunk, then those of the second. SPLIT: a pair is an element of
// one and one of the other; else neighbours.
template <class T, class TO, bool SPLIT>
__device__ __forceinline__ void kf_turn_chunks(const uint4 (&in)[2], const float2 (&angle)[KF_CHUNK], float scale,
                                               uint32_t (&out)[KF_CHUNK]) {
    const uint32_t word[KF_CHUNK] = {in[0].x, in[0].y, in[0].z, in[0].w, in[1].x, in[1].y, in[1].z, in[1].w};
    float x[2 * KF_CHUNK];
#pragma unroll
    for (int i = 0; i < KF_CHUNK; i++) {
        const float2 two = kf_unpack<T>(word[i]);
        x[2 * i] = two.x * scale, x[2 * i + 1] = two.y * scale;
    }
#pragma unroll
    for (int e = 0; e < KF_CHUNK; e++)
        kf_rope_turn(x[SPLIT ? e : 2 * e], x[SPLIT ? e + KF_CHUNK : 2 * e + 1], angle[e]);
#pragma unroll
    for (int i = 0; i < KF_CHUNK; i++) out[i] = kf_pack<TO>(x[2 * i], x[2 * i + 1]);
}

// Rows of COLS elements of which all turn, chunk by chunk: a lane has the pairs of two chunks, 8 of them, in every AT_ONCE-th row. The angles of
// the first rows come through `table` in shared memory, [AT_ONCE + 1][COLS / 2] of a warp, so that each is computed by one lane.
template <int COLS> struct kf_rope_chunks {
    static constexpr int PAIRS = COLS / 2, PARTS = COLS / (2 * KF_CHUNK), AT_ONCE = PARTS <= 32 ? 32 / PARTS : 1;
    static constexpr bool POSSIBLE = 32 % PARTS == 0;
    static constexpr int TABLE_BYTES = POSSIBLE ? (AT_ONCE + 1) * PAIRS * 8 : 0;

    static __device__ __forceinline__ void prepare(const kf_cuda_rope &rope, char *place, int64_t p, int lane) {
        float2 *const table = reinterpret_cast<float2 *>(place);
#pragma unroll 2
        for (int c = lane; c < PAIRS; c += 32) {
            const double turns = rope.turns[c];
            const float2 one = kf_rope_angle(turns, 1); // multiplied up to 31 times
            float2 now = kf_rope_angle_16(turns, p), all = one;
            now.x *= rope.magnitude, now.y *= rope.magnitude;
#pragma unroll
            for (int r = 0; r < AT_ONCE; r++) {
                table[r * PAIRS + c] = now;
                now = kf_rope_and(now, one);
            }
#pragma unroll
            for (int i = 1; i < AT_ONCE; i *= 2) all = kf_rope_and(all, all);
            table[AT_ONCE * PAIRS + c] = all;
        }
        __syncwarp();
    }

    // A lane's angles in its first row, and what they are turned by from one of its rows to the next.
    static __device__ __forceinline__ void angles(const char *table, int lane, float2 (&angle)[KF_CHUNK],
                                                  float2 (&step)[KF_CHUNK]) {
        const int part = lane % PARTS;
        const float4 *const first =
            reinterpret_cast<const float4 *>(table) + (lane / PARTS * PAIRS + KF_CHUNK * part) / 2;
        const float4 *const steps = reinterpret_cast<const float4 *>(table) + (AT_ONCE * PAIRS + KF_CHUNK * part) / 2;
#pragma unroll
        for (int i = 0; i < KF_CHUNK / 2; i++) {
            const float4 a = first[i], s = steps[i];
            angle[2 * i] = make_float2(a.x, a.y), angle[2 * i + 1] = make_float2(a.z, a.w);
            step[2 * i] = make_float2(s.x, s.y), step[2 * i + 1] = make_float2(s.z, s.w);
        }
    }

    // COUNT neighbouring rows from `row` on, by one warp whose table was prepared for the first one's position.
    template <int COUNT, class Tile>
    static __device__ __forceinline__ void run(const kf_cuda_rope &rope, Tile tile, int row, const char *table,
                                               int lane) {
        static_assert(COUNT % AT_ONCE == 0, "");
        const int part = lane % PARTS, low = rope.split_halves ? part : 2 * part,
                  high = rope.split_halves ? part + PARTS : 2 * part + 1;
        row += lane / PARTS;
        float2 angle[KF_CHUNK], step[KF_CHUNK];
        angles(table, lane, angle, step);
#pragma unroll 2
        for (int r = 0; r < COUNT; r += AT_ONCE) {
            float x[2 * KF_CHUNK];
            tile.load_chunk(row + r, low, x), tile.load_chunk(row + r, high, x + KF_CHUNK);
            if (rope.split_halves) {
#pragma unroll
                for (int e = 0; e < KF_CHUNK; e++) kf_rope_turn(x[e], x[e + KF_CHUNK], angle[e]);
            } else {
#pragma unroll
                for (int e = 0; e < KF_CHUNK; e++) kf_rope_turn(x[2 * e], x[2 * e + 1], angle[e]);
            }
            tile.store_chunk(row + r, low, x), tile.store_chunk(row + r, high, x + KF_CHUNK);
#pragma unroll
            for (int e = 0; e < KF_CHUNK; e++) angle[e] = kf_rope_and(angle[e], step[e]);
        }
    }
};

// A prefill's queries, as kf_rotate_queries. First, while they are on their way, the table, where they turn by chunks; whether they do.
template <int COLS, bool CHUNKED>
__device__ __forceinline__ bool kf_prepare_queries(const kf_cuda_attention &a, const kf_block &w, int row, char *table,
                                                   int lane) {
    if (!CHUNKED || !a.rope.q || a.heads != 1 || a.positions || a.rope.dims != COLS) return false;
    kf_rope_chunks<COLS>::prepare(a.rope, table, (int64_t)w.row0 + row + w.offset, lane);
    return true;
}
template <int COUNT, int COLS, bool CHUNKED, class Tile>
__device__ __forceinline__ void kf_rotate_tile_queries(const kf_cuda_attention &a, const kf_block &w, Tile tile,
                                                       int row, bool chunks, const char *table, int lane) {
    if constexpr (CHUNKED)
        if (chunks) {
            kf_rope_chunks<COLS>::template run<COUNT>(a.rope, tile, row, table, lane);
            return;
        }
    kf_rotate_queries<COUNT, false>(a, w, tile, row, lane);
}

// The angles of a warp's own pairs while it goes through tiles of keys that are `distance` positions apart. They follow from each
// other: over a hundred tiles an error of 2^-20, below what rounding to 16 bits leaves.
template <int PAIRS> struct kf_rope_walk { // pairs lane, lane + 32, ...
    float2 angle[PAIRS], step[PAIRS], stride[PAIRS];

    __device__ __forceinline__ void begin(const kf_cuda_rope &rope, int64_t p, int distance, int lane) {
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const int c = lane + 32 * i;
            const double turns = c < rope.dims / 2 ? rope.turns[c] : 0.0;
            angle[i] = kf_rope_angle(turns, p), step[i] = kf_rope_angle(turns, 1);
            stride[i] = kf_rope_angle(turns, distance);
            angle[i].x *= rope.magnitude, angle[i].y *= rope.magnitude;
        }
    }

    // Rows 0 .. COUNT - 1 of the next tile.
    template <int COUNT, class Tile>
    __device__ __forceinline__ void next(const kf_cuda_rope &rope, Tile tile, int lane) {
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const int c = lane + 32 * i;
            if (c >= rope.dims / 2) continue;
            float2 now = angle[i];
            kf_rotate_steps<COUNT>(tile, 0, kf_rope_columns(rope, c), now, step[i]);
            angle[i] = kf_rope_and(angle[i], stride[i]);
        }
    }
};

#endif
