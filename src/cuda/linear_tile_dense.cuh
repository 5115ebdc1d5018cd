// SPDX-License-Identifier: Apache-2.0
//
// Many rows of x over dense weights, where cuBLASLt does not take them: a block makes 128 rows of W times up to 64 rows of x, four warps of
// 32 x 64.
//
//     weights   fragments of a stage in shared memory, a part for each warp, each lane its own 16 bytes
//     x         in form already (kf_linear_x_dense): fragments, in stages of one or two blocks that the warps share
//     sums      of the slice in registers, beside the sum of the slices before it
//
//     shared    [ stages of x | weights, a part for each warp ]
//     x in form [tile of 64 rows][block of 32]: a record [part][octet][lane], 16 bytes
//
// The order of a slice's products is the stream kernel's. Bytes: W once for each 64 rows of x, mostly from L2; x once for each 128 rows of W.
// Called by linear.c.
#ifndef KF_CUDA_LINEAR_TILE_DENSE_CUH
#define KF_CUDA_LINEAR_TILE_DENSE_CUH

#include "cuda/linear.cuh"

enum { KF_TILE_OCTETS = KF_TILE_N / KF_OCTET, KF_WARP_OCTETS = 4, KF_TILE_WARPS = KF_DENSE_TILE_THREADS / 32 };

template <int TYPE, int MODE> struct kf_dense_tile {
    static const int PARTS = kf_x_parts(MODE);
    static const int STAGE_BLOCKS = MODE == KF_X_SPLIT ? 1 : 2, STAGES = 3;
    static const int RECORD = KF_TILE_OCTETS * PARTS * 512,
                     STAGE = STAGE_BLOCKS * RECORD;         // bytes of a block of x, of a stage
    static const int PIECE = TYPE == KF_WEIGHT_F32 ? 2 : 1; // 16-byte pieces of a lane, octet and block
    static const int W_BYTES = KF_WARP_OCTETS * STAGE_BLOCKS * PIECE * 512;
    static const int SHARED = STAGES * (STAGE + KF_TILE_WARPS * W_BYTES);
    // Octets of x whose products overlap: as many as there are registers for.
    static const int TOGETHER = KF_TILE_OCTETS / (MODE == KF_X_SPLIT ? 4 : 2);
    static const int STEPS = KF_DENSE_UNIT_BLOCKS / STAGE_BLOCKS; // stages of a unit
};

// A stage of x, which lies in one piece.
template <int BYTES> __device__ __forceinline__ void kf_tile_fetch_x(const char *from, uint32_t stage) {
#pragma unroll
    for (int at = 0; at < BYTES; at += KF_DENSE_TILE_THREADS * 16) {
        const int i = at + threadIdx.x * 16;
        if (at + KF_DENSE_TILE_THREADS * 16 <= BYTES || i < BYTES) kf_copy16(stage + i, from + i);
    }
}

// Dense: the warp's fragments of a stage; rows: of the lane, by octet. Rows and columns past the end are not written: what they give is
// not stored, or not used.
template <int TYPE, int MODE>
__device__ __forceinline__ void kf_tile_fetch_dense(const kf_cuda_linear &a, const char *const (&rows)[KF_WARP_OCTETS],
                                                    int first, uint32_t to, int lane) {
    using tile = kf_dense_tile<TYPE, MODE>;
#pragma unroll
    for (int o = 0; o < KF_WARP_OCTETS; o++) {
        if (!rows[o]) continue;
        const char *from = rows[o] + (int64_t)first * tile::PIECE * 64;
#pragma unroll
        for (int b = 0; b < tile::STAGE_BLOCKS; b++)
#pragma unroll
            for (int i = 0; i < tile::PIECE; i++)
                if (first + b < a.blocks)
                    kf_copy16(to + (((o * tile::STAGE_BLOCKS + b) * tile::PIECE + i) * 32 + lane) * 16,
                              from + b * tile::PIECE * 64 + i * 16);
    }
}

typedef float kf_tile_sums[2][KF_TILE_OCTETS][4];

// Block `block` of a stage: the weights of both strips of the warp times all octets of x, or the first half of them. No finer: a branch for
// each octet kept the products from overlapping. What an octet past the last one gives is not stored.
template <int TYPE, int MODE>
__device__ __forceinline__ void kf_tile_dense(const char *weights, const char *record, int octets, int block, int lane,
                                              kf_tile_sums &sum) {
    using tile = kf_dense_tile<TYPE, MODE>;
    const uint4 *pieces = reinterpret_cast<const uint4 *>(weights) + lane;
    kf_dense_a<TYPE, MODE> w[2];
#pragma unroll
    for (int s = 0; s < 2; s++) {
        kf_dense_piece<TYPE> low, high;
#pragma unroll
        for (int i = 0; i < tile::PIECE; i++) {
            low.word[i] = pieces[((2 * s * tile::STAGE_BLOCKS + block) * tile::PIECE + i) * 32];
            high.word[i] = pieces[(((2 * s + 1) * tile::STAGE_BLOCKS + block) * tile::PIECE + i) * 32];
        }
        w[s] = kf_dense_parts<TYPE, MODE>(low, high);
    }
#pragma unroll
    for (int n = 0; n < KF_TILE_OCTETS; n++) {
        if (n > 0 && n % tile::TOGETHER == 0 && octets <= n) break;
        uint4 part[3];
#pragma unroll
        for (int p = 0; p < tile::PARTS; p++)
            part[p] = *reinterpret_cast<const uint4 *>(record + ((p * KF_TILE_OCTETS + n) * 32 + lane) * 16);
#pragma unroll
        for (int s = 0; s < 2; s++) kf_dense_block<TYPE, MODE>(sum[s][n], w[s], part);
    }
}

__device__ __forceinline__ void kf_tile_store(const kf_cuda_linear &a, int octet, int x_octet, int lane,
                                              const kf_tile_sums &sum) {
    const int g = lane >> 2;
#pragma unroll
    for (int s = 0; s < 2; s++)
#pragma unroll
        for (int n = 0; n < KF_TILE_OCTETS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int64_t row = (int64_t)(octet + 2 * s + (i >> 1)) * KF_OCTET + g;
                const int64_t t = (int64_t)(x_octet + n) * KF_OCTET + 2 * (lane & 3) + (i & 1);
                if (row < a.N && t < a.T) kf_finish_element(a, t, row, sum[s][n][i]);
            }
}

template <int TYPE, int MODE>
__global__ void __launch_bounds__(KF_DENSE_TILE_THREADS, 1)
    kf_linear_tile_dense(const __grid_constant__ kf_cuda_linear a) {
    using tile = kf_dense_tile<TYPE, MODE>;
    extern __shared__ __align__(128) char memory[];
    constexpr int STAGE = tile::STAGE, STAGES = tile::STAGES, BLOCKS = tile::STAGE_BLOCKS;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int x_tiles = (a.T + KF_TILE_N - 1) / KF_TILE_N, m_tile = blockIdx.x / x_tiles,
              x_tile = blockIdx.x - m_tile * x_tiles;
    const int octet = m_tile * (KF_TILE_M / KF_OCTET) + warp * KF_WARP_OCTETS, x_octet = x_tile * KF_TILE_OCTETS;
    const int octets = min(KF_TILE_OCTETS, (a.T + KF_OCTET - 1) / KF_OCTET - x_octet);
    char *const weights = memory + STAGES * (STAGE + warp * tile::W_BYTES);
    const uint32_t stages_at = kf_shared(memory), weights_at = kf_shared(weights);
    const int steps = a.units * tile::STEPS;
    const char *const x = a.parts + (int64_t)x_tile * a.row_blocks * tile::RECORD;
    const char *rows[KF_WARP_OCTETS];
#pragma unroll
    for (int o = 0; o < KF_WARP_OCTETS; o++) {
        const int64_t n = (int64_t)(octet + o) * KF_OCTET + (lane >> 2);
        rows[o] = n < a.N ? a.w + n * a.row_bytes + (lane & 3) * tile::PIECE * 16 : nullptr;
    }
    const auto fetch = [&](int step, bool with_weights) {
        if (step < steps) {
            kf_tile_fetch_x<STAGE>(x + (int64_t)step * STAGE, stages_at + step % STAGES * STAGE);
            if (with_weights)
                kf_tile_fetch_dense<TYPE, MODE>(a, rows, step * BLOCKS, weights_at + step % STAGES * tile::W_BYTES,
                                                lane);
        }
        kf_copy_commit();
    };
    if (a.weights_made) kf_wait_for_previous();
    for (int i = 0; i < STAGES - 1; i++)
        if (i < steps) kf_tile_fetch_dense<TYPE, MODE>(a, rows, i * BLOCKS, weights_at + i * tile::W_BYTES, lane);
    kf_launch_dependents();
    kf_wait_for_previous();
    for (int i = 0; i < STAGES - 1; i++) fetch(i, false);

    kf_tile_sums total = {}, sum = {};
#pragma unroll 1
    for (int unit = 0, step = 0; unit < a.units; unit++) {
        const int blocks = min((int)KF_DENSE_UNIT_BLOCKS, a.blocks - unit * KF_DENSE_UNIT_BLOCKS);
#pragma unroll
        for (int j = 0; j < KF_DENSE_UNIT_BLOCKS; j++) {
            const int block = j % BLOCKS;
            if (block == 0) {
                kf_copy_wait<STAGES - 2>();
                __syncthreads();
                fetch(step + STAGES - 1, true);
            }
            if (j < blocks)
                kf_tile_dense<TYPE, MODE>(weights + step % STAGES * tile::W_BYTES,
                                          memory + step % STAGES * STAGE + block * tile::RECORD, octets, block, lane,
                                          sum);
            if (block == BLOCKS - 1) step++;
        }
        if ((unit + 1) % a.slice_units && unit + 1 < a.units) continue;
#pragma unroll
        for (int i = 0; i < 2 * KF_TILE_OCTETS * 4; i++) { // the slice is done
            const int s = i / (KF_TILE_OCTETS * 4), n = i / 4 % KF_TILE_OCTETS;
            total[s][n][i % 4] += sum[s][n][i % 4], sum[s][n][i % 4] = 0.0f;
        }
    }
    kf_tile_store(a, octet, x_octet, lane, total);
}

#define KF_TILE_ROW(TYPE, MODE, NAME)                                                                                  \
    {                                                                                                                  \
        KF_CUDA_TILE, TYPE, MODE, kf_dense_tile<TYPE, MODE>::SHARED, 0, 0, 0, 0,                                       \
            (const void *)kf_linear_tile_dense<TYPE, MODE>, NAME                                                       \
    }

#endif
