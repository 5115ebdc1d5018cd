// SPDX-License-Identifier: Apache-2.0
//
// RoPE at load in a decode kernel: the keys of a tile turn between ldmatrix and their product, in the fragments' own registers.
//
//     pair c of the key at position p: (x, y) -> (x cos t - y sin t, x sin t + y cos t) magnitude,   t = 2 pi p turns(c)
//
// Of a tile of 16 keys a lane has two, n = lane / 4 and n + 8, and of each D / 8 whole pairs: with split halves (c, c + D/2) one element is in the
// fragment of columns 16 kk, the other in that of 16 kk + D/2, at the same place; with pairs (2c, 2c + 1) both are in one word.
//
//     lane's pair i = 4 a + 2 b + e      c = 16 a + 8 b + 2 (lane % 4) + e  (split halves),   4 i + lane % 4  (neighbours)
//
// The angles of key n are the lane's, and go on by the turn of a warp's step after each tile; those of key n + 8 follow by the turn of 8. Both turns
// are the same for all, in shared memory, and so is the angle of the queries where these have one position. Errors as in kf_rope_walk. A pair costs
// four multiply-adds, four more for its angle, and three for bringing it from 16 bits to fp32 and back.
#ifndef KF_CUDA_DECODE_TURN_CUH
#define KF_CUDA_DECODE_TURN_CUH

#include "cuda/attention_rope.cuh"

template <class T, int D> struct kf_key_turns {
    static constexpr int PAIRS = D / 2, MINE = D / 8, HALF = D / 32, KEYS = 16;
    static constexpr int START_BYTES = 8 * PAIRS * 8;  // of a warp: the angles of the first tile's keys 0 to 7
    static constexpr int SHARED_BYTES = 3 * PAIRS * 8; // of the block: the queries' angle, the turn of 8, of a step
    enum { QUERIES = 0, EIGHT = PAIRS, STEP = 2 * PAIRS };

    float2 angle[MINE];

    // Where pair c stands in a table, so that a lane's pairs 2 j and 2 j + 1 are neighbours.
    static __device__ __forceinline__ int place(const kf_cuda_rope &rope, int c) {
        return rope.split_halves ? c : (c & ~15) + (c & 8) + 2 * (c & 3) + (c >> 2 & 1);
    }

    // The block's tables; the queries' is in the order of the pairs.
    template <int THREADS>
    static __device__ __forceinline__ void prepare(const kf_cuda_rope &rope, float2 *table, int64_t query, int step,
                                                   int thread) {
#pragma unroll 1
        for (int i = thread; i < 3 * PAIRS; i += THREADS) {
            const int which = i / PAIRS * PAIRS, c = i % PAIRS;
            float2 turn = kf_rope_angle(rope.turns[c], which == QUERIES ? query : which == EIGHT ? 8 : step);
            if (which == QUERIES) turn.x *= rope.magnitude, turn.y *= rope.magnitude;
            table[which + (which == QUERIES ? c : place(rope, c))] = turn;
        }
    }

    // The warp's angles, of a first tile at position p, by way of START_BYTES at `start`.
    __device__ __forceinline__ void begin(const kf_cuda_rope &rope, char *start, int64_t p, int lane) {
        float2 *const table = reinterpret_cast<float2 *>(start);
#pragma unroll
        for (int c = lane; c < PAIRS; c += 32) {
            const double turns = rope.turns[c];
            const float2 one = kf_rope_angle(turns, 1);
            float2 now = kf_rope_angle(turns, p);
            now.x *= rope.magnitude, now.y *= rope.magnitude;
#pragma unroll
            for (int r = 0; r < 8; r++) {
                table[r * PAIRS + place(rope, c)] = now;
                now = kf_rope_and(now, one);
            }
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < MINE; i += 2) load_two(table + lane / 4 * PAIRS, i, lane, angle[i], angle[i + 1]);
        __syncwarp();
    }

    // Row `row` of the queries, by one warp.
    template <class Tile>
    static __device__ __forceinline__ void turn_query(const kf_cuda_rope &rope, const float2 *table, Tile tile, int row,
                                                      int lane) {
#pragma unroll
        for (int c = lane; c < PAIRS; c += 32) {
            const int2 at = kf_rope_columns(rope, c);
            kf_rope_store(tile, row, at.x, at.y, tile.load(row, at.x), tile.load(row, at.y), table[QUERIES + c]);
        }
    }

    static __device__ __forceinline__ void load_two(const float2 *table, int i, int lane, float2 &x, float2 &y) {
        const float4 two = *reinterpret_cast<const float4 *>(table + 4 * (i & ~3) + 4 * (i & 2) + 2 * (lane & 3));
        x = make_float2(two.x, two.y), y = make_float2(two.z, two.w);
    }

    // Two words of 16-bit elements, `low` of the first halves of two pairs and `high` of the second ones.
    static __device__ __forceinline__ void turn_apart(uint32_t &low, uint32_t &high, float2 first, float2 second) {
        float2 x = kf_unpack<T>(low), y = kf_unpack<T>(high);
        kf_rope_turn(x.x, y.x, first), kf_rope_turn(x.y, y.y, second);
        low = kf_pack<T>(x.x, x.y), high = kf_pack<T>(y.x, y.y);
    }
    // Two words of a whole pair each.
    static __device__ __forceinline__ void turn_together(uint32_t &one, uint32_t &other, float2 first, float2 second) {
        float2 x = kf_unpack<T>(one), y = kf_unpack<T>(other);
        kf_rope_turn(x.x, x.y, first), kf_rope_turn(y.x, y.y, second);
        one = kf_pack<T>(x.x, x.y), other = kf_pack<T>(y.x, y.y);
    }

    // The lane's pairs i and i + 1 of both its keys, and on to the next tile's angles. Words: key n's two, key n + 8's two.
    template <bool SPLIT_HALVES>
    __device__ __forceinline__ void turn_two(const float2 *table, int i, int lane, uint32_t &n0, uint32_t &n1,
                                             uint32_t &m0, uint32_t &m1) {
        float2 eight[2], step[2];
        load_two(table + EIGHT, i, lane, eight[0], eight[1]);
        load_two(table + STEP, i, lane, step[0], step[1]);
        const float2 x = kf_rope_and(angle[i], eight[0]), y = kf_rope_and(angle[i + 1], eight[1]);
        if (SPLIT_HALVES) {
            turn_apart(n0, n1, angle[i], angle[i + 1]);
            turn_apart(m0, m1, x, y);
        } else {
            turn_together(n0, n1, angle[i], angle[i + 1]);
            turn_together(m0, m1, x, y);
        }
        angle[i] = kf_rope_and(angle[i], step[0]), angle[i + 1] = kf_rope_and(angle[i + 1], step[1]);
    }

    // The fragments of columns 16 kk and 16 kk + D/2 (kk < HALF) of split halves; of columns 16 kk, and 16 more, of neighbours.
    __device__ __forceinline__ void turn_apart(const float2 *table, int kk, uint32_t (&b)[4], uint32_t (&c)[4],
                                               int lane) {
        turn_two<true>(table, 4 * kk, lane, b[0], c[0], b[2], c[2]);
        turn_two<true>(table, 4 * kk + 2, lane, b[1], c[1], b[3], c[3]);
    }
    __device__ __forceinline__ void turn_together(const float2 *table, int kk, uint32_t (&b)[4], int lane) {
        turn_two<false>(table, 2 * kk, lane, b[0], b[1], b[2], b[3]);
    }
};

#endif
