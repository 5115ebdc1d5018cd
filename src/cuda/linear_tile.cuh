// SPDX-License-Identifier: Apache-2.0
//
// Any number of rows of x: a block makes 128 rows of W times up to 64 rows of x, four warps of 32 x 64.
//
//     weights   quantised: a warp copies the units of its four octets, as they lie, into two buffers of its own in turn and brings four
//               codes at a time into bf16 in registers; factors of a unit are decoded once into shared memory. Dense: fragments of a
//               stage, each lane its own 16 bytes
//     x         in form already (kf_linear_x): fragments, in stages of one or two blocks that the warps share
//     sums      of the slice in registers, beside the sum of the slices before it
//
//     shared    [ stages of x | weights, a part for each warp | factors, a part for each warp ]
//     x in form [tile of 64 rows][block of 32]: a record [part][octet][lane], 16 bytes (int8: 8), then sums [64], scales [64] where needed
//
// The order of a slice's products is the stream kernel's. Bytes: W once for each 64 rows of x, mostly from L2; x once for each 128 rows of W.
// Called by linear.c.
#ifndef KF_CUDA_LINEAR_TILE_CUH
#define KF_CUDA_LINEAR_TILE_CUH

#include "cuda/linear.cuh"

// Whether a row and block has two factors: d and m, or d of two halves.
__host__ __device__ constexpr bool kf_has_two(int type) { return kf_is_affine(type) || type == KF_WEIGHT_Q6_K; }

enum { KF_TILE_OCTETS = KF_TILE_N / KF_OCTET, KF_WARP_OCTETS = 4, KF_TILE_WARPS = KF_TILE_THREADS / 32 };

template <int TYPE, int MODE> struct kf_tile {
    static const bool DENSE = kf_is_dense(TYPE);
    static const int PARTS = kf_x_parts(MODE), FORM = MODE == KF_X_INT8 ? 8 : 16; // bytes of a lane and part
    static const int STAGE_BLOCKS = MODE == KF_X_SPLIT ? 1 : 2;
    static const int STAGES = MODE == KF_X_SPLIT && kf_bits(TYPE) == 8 && !DENSE ? 2 : 3;
    static const int X_BYTES = KF_TILE_OCTETS * PARTS * 32 * FORM;                // of a block
    static const int BESIDE = MODE == KF_X_INT8 ? 2 : kf_is_affine(TYPE) ? 1 : 0; // floats a row and block: sum, scale
    static const int RECORD = X_BYTES + BESIDE * KF_TILE_N * 4, STAGE = STAGE_BLOCKS * RECORD;
    static const int PIECE = TYPE == KF_WEIGHT_F32 ? 2 : 1; // dense: 16-byte pieces of a lane, octet and block
    static const int W_BYTES =
        DENSE ? KF_WARP_OCTETS * STAGE_BLOCKS * PIECE * 512 : KF_WARP_OCTETS * KF_OCTET * kf_row_unit(TYPE);
    static const int W_BUFFERS = DENSE ? STAGES : 2;
    static const int FACTORS = DENSE ? 0 : KF_UNIT_BLOCKS * 32 * (kf_has_two(TYPE) ? 2 : 1); // floats of a warp
    static const int SHARED = STAGES * STAGE + KF_TILE_WARPS * (W_BUFFERS * W_BYTES + FACTORS * 4);
    static const int UNIT_BLOCKS = kf_unit_blocks(TYPE), STEPS = UNIT_BLOCKS / STAGE_BLOCKS; // stages of a unit
};

// A stage of x, which lies in one piece.
template <int BYTES> __device__ __forceinline__ void kf_tile_fetch_x(const char *from, uint32_t stage) {
#pragma unroll
    for (int at = 0; at < BYTES; at += KF_TILE_THREADS * 16) {
        const int i = at + threadIdx.x * 16;
        if (at + KF_TILE_THREADS * 16 <= BYTES || i < BYTES) kf_copy16(stage + i, from + i);
    }
}

// Dense: the warp's fragments of a stage; rows: of the lane, by octet. Rows and columns past the end are not written: what they give is
// not stored, or not used.
template <int TYPE, int MODE>
__device__ __forceinline__ void kf_tile_fetch_dense(const kf_cuda_linear &a, const char *const (&rows)[KF_WARP_OCTETS],
                                                    int first, uint32_t to, int lane) {
    using tile = kf_tile<TYPE, MODE>;
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

// Quantised: unit `unit` of the warp's octets.
template <int TYPE>
__device__ __forceinline__ void kf_tile_fetch_unit(const kf_cuda_linear &a, int octet, int unit, uint32_t to,
                                                   int lane) {
    constexpr int FULL = KF_OCTET * kf_row_unit(TYPE);
    const int blocks = min(KF_UNIT_BLOCKS, a.blocks - unit * KF_UNIT_BLOCKS);
    for (int o = 0; o < KF_WARP_OCTETS; o++) {
        if (octet + o >= a.octets) return;
        const int rows = min(KF_OCTET, a.N - (octet + o) * KF_OCTET), bytes = kf_unit_bytes(TYPE, rows, blocks);
        const char *from =
            a.w + (octet + o) * a.octet_bytes + (int64_t)unit * kf_unit_bytes(TYPE, rows, KF_UNIT_BLOCKS);
        for (int at = lane * 16; at < bytes; at += 512) kf_copy16(to + o * FULL + at, from + at);
    }
}

// Lane 8 o + g decodes the factors of row g of octet o: d [block][row], then m.
template <int TYPE>
__device__ __forceinline__ void kf_tile_factors(const char *units, int rows, int blocks, float *factors, int lane) {
    const char *unit = units + (lane >> 3) * KF_OCTET * kf_row_unit(TYPE);
#pragma unroll
    for (int quad = 0; quad < 2; quad++) {
        const kf_factors f = kf_read_factors<TYPE, false>(unit, rows, blocks, quad, lane & 7);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            factors[(quad * 4 + j) * 32 + lane] = f.d[j];
            if (kf_has_two(TYPE)) factors[KF_UNIT_BLOCKS * 32 + (quad * 4 + j) * 32 + lane] = f.m[j];
        }
    }
}

// The lane's part of x of octet n in a block's record.
template <int TYPE, int MODE>
__device__ __forceinline__ void kf_tile_form(const char *record, int n, int lane, uint4 (&part)[3], uint2 &bytes) {
    if constexpr (MODE == KF_X_INT8) {
        bytes = *reinterpret_cast<const uint2 *>(record + (n * 32 + lane) * 8);
    } else {
#pragma unroll
        for (int p = 0; p < kf_tile<TYPE, MODE>::PARTS; p++)
            part[p] = *reinterpret_cast<const uint4 *>(record + ((p * KF_TILE_OCTETS + n) * 32 + lane) * 16);
    }
}

typedef float kf_tile_sums[2][KF_TILE_OCTETS][4];

// Block `block` of a stage: the weights of both strips of the warp times all octets of x, or the first half of them. No finer: a branch for
// each octet kept the products from overlapping (5 times as slow). What an octet past the last one gives is not stored.
template <int TYPE, int MODE>
__device__ __forceinline__ void kf_tile_quantised(const kf_block_a (&w)[2], const float *factors, const char *record,
                                                  int octets, int lane, kf_tile_sums &sum) {
    using tile = kf_tile<TYPE, MODE>;
    const int g = lane >> 2, t = lane & 3;
    float2 d[2], m[2];
#pragma unroll
    for (int s = 0; s < 2; s++) {
        const float *low = factors + 16 * s + g, *second = low + (kf_has_two(TYPE) ? KF_UNIT_BLOCKS * 32 : 0);
        d[s] = make_float2(low[0], low[8]), m[s] = make_float2(second[0], second[8]);
    }
    const char *beside = record + tile::X_BYTES + t * 8;
#pragma unroll
    for (int n = 0; n < KF_TILE_OCTETS; n++) {
        if (n == KF_TILE_OCTETS / 2 && octets <= n) break;
        uint4 part[3];
        uint2 bytes;
        kf_tile_form<TYPE, MODE>(record, n, lane, part, bytes);
        float2 x_sum = make_float2(0.0f, 0.0f), scale = x_sum;
        if (kf_is_affine(TYPE)) x_sum = *reinterpret_cast<const float2 *>(beside + n * 32);
        if (MODE == KF_X_INT8) scale = *reinterpret_cast<const float2 *>(beside + KF_TILE_N * 4 + n * 32);
#pragma unroll
        for (int s = 0; s < 2; s++) {
            if (MODE == KF_X_INT8)
                kf_int8_block<TYPE>(sum[s][n], w[s], d[s], m[s], bytes, scale, x_sum);
            else
                kf_quantised_block<TYPE, MODE>(sum[s][n], w[s], d[s], m[s], part, x_sum);
        }
    }
}

template <int TYPE, int MODE>
__device__ __forceinline__ void kf_tile_dense(const char *weights, const char *record, int octets, int block,
                                              int lane, kf_tile_sums &sum) {
    using tile = kf_tile<TYPE, MODE>;
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
        if (n == KF_TILE_OCTETS / 2 && octets <= n) break;
        uint4 part[3];
        uint2 unused;
        kf_tile_form<TYPE, MODE>(record, n, lane, part, unused);
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
__global__ void __launch_bounds__(KF_TILE_THREADS, kf_tile<TYPE, MODE>::SHARED <= 110 << 10 ? 2 : 1)
    kf_linear_tile(const __grid_constant__ kf_cuda_linear a) {
    using tile = kf_tile<TYPE, MODE>;
    extern __shared__ __align__(128) char memory[];
    constexpr int STAGE = tile::STAGE, STAGES = tile::STAGES, BLOCKS = tile::STAGE_BLOCKS;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int x_tiles = (a.T + KF_TILE_N - 1) / KF_TILE_N, m_tile = blockIdx.x / x_tiles,
              x_tile = blockIdx.x - m_tile * x_tiles;
    const int octet = m_tile * (KF_TILE_M / KF_OCTET) + warp * KF_WARP_OCTETS, x_octet = x_tile * KF_TILE_OCTETS;
    const int octets = min(KF_TILE_OCTETS, (a.T + KF_OCTET - 1) / KF_OCTET - x_octet);
    char *const weights = memory + STAGES * STAGE + warp * tile::W_BUFFERS * tile::W_BYTES;
    float *const factors =
        reinterpret_cast<float *>(memory + STAGES * STAGE + KF_TILE_WARPS * tile::W_BUFFERS * tile::W_BYTES) +
        warp * tile::FACTORS;
    const uint32_t stages_at = kf_shared(memory), weights_at = kf_shared(weights);
    const int steps = a.units * tile::STEPS;
    const char *const x = a.parts + (int64_t)x_tile * a.row_blocks * tile::RECORD;
    [[maybe_unused]] const char *rows[KF_WARP_OCTETS];
    if constexpr (tile::DENSE)
#pragma unroll
        for (int o = 0; o < KF_WARP_OCTETS; o++) {
            const int64_t n = (int64_t)(octet + o) * KF_OCTET + (lane >> 2);
            rows[o] = n < a.N ? a.w + n * a.row_bytes + (lane & 3) * tile::PIECE * 16 : nullptr;
        }
    // Stage `step` of x, and of dense weights. Quantised weights are a unit ahead: that unit's first stage asks for the next one.
    const auto fetch = [&](int step, bool with_weights) {
        if (step < steps) {
            kf_tile_fetch_x<STAGE>(x + (int64_t)step * STAGE, stages_at + step % STAGES * STAGE);
            if constexpr (tile::DENSE)
                if (with_weights)
                    kf_tile_fetch_dense<TYPE, MODE>(a, rows, step * BLOCKS, weights_at + step % STAGES * tile::W_BYTES,
                                                    lane);
        }
        kf_copy_commit();
    };
    if (a.weights_made) kf_wait_for_previous();
    if (a.units > 0) {
        if constexpr (tile::DENSE) {
            for (int i = 0; i < STAGES - 1; i++)
                if (i < steps)
                    kf_tile_fetch_dense<TYPE, MODE>(a, rows, i * BLOCKS, weights_at + i * tile::W_BYTES, lane);
        } else {
            kf_tile_fetch_unit<TYPE>(a, octet, 0, weights_at, lane);
        }
    }
    kf_launch_dependents();
    kf_wait_for_previous();
    for (int i = 0; i < STAGES - 1; i++) fetch(i, false);

    kf_tile_sums total = {}, sum = {};
    for (int unit = 0, step = 0; unit < a.units; unit++) {
        [[maybe_unused]] const char *units = weights + (unit & 1) * tile::W_BYTES;
        const int blocks = min(tile::UNIT_BLOCKS, a.blocks - unit * tile::UNIT_BLOCKS);
#pragma unroll 1
        for (int quad = 0; quad < tile::UNIT_BLOCKS / 4; quad++) {
            [[maybe_unused]] kf_codes<kf_is_dense(TYPE) ? KF_WEIGHT_Q4_0 : TYPE> codes[KF_WARP_OCTETS];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int block = j % BLOCKS;
                if (block == 0) {
                    kf_copy_wait<STAGES - 2>();
                    __syncthreads();
                    if constexpr (!tile::DENSE) {
                        if (quad == 0 && j == 0) {
                            if (unit + 1 < a.units)
                                kf_tile_fetch_unit<TYPE>(a, octet, unit + 1, weights_at + (~unit & 1) * tile::W_BYTES,
                                                         lane);
                            const int row_octet = min(octet + (lane >> 3), a.octets - 1);
                            kf_tile_factors<TYPE>(units, min(KF_OCTET, a.N - row_octet * KF_OCTET), blocks, factors,
                                                  lane);
                            __syncwarp();
                        }
                    }
                    fetch(step + STAGES - 1, true);
                }
                const char *record = memory + step % STAGES * STAGE + block * tile::RECORD;
                if constexpr (tile::DENSE) {
                    if (quad * 4 + j < blocks)
                        kf_tile_dense<TYPE, MODE>(weights + step % STAGES * tile::W_BYTES, record, octets, block, lane,
                                                  sum);
                } else {
                    if (j == 0) {
#pragma unroll
                        for (int o = 0; o < KF_WARP_OCTETS; o++) {
                            const int rows = max(1, min(KF_OCTET, a.N - (octet + o) * KF_OCTET));
                            codes[o] = kf_read_codes<TYPE, false>(units + o * KF_OCTET * kf_row_unit(TYPE), rows,
                                                                  blocks, quad, lane);
                        }
                    }
                    const kf_block_a w[2] = {kf_quantised_fragment<TYPE, MODE>(codes[0], codes[1], j),
                                             kf_quantised_fragment<TYPE, MODE>(codes[2], codes[3], j)};
                    kf_tile_quantised<TYPE, MODE>(w, factors + (quad * 4 + j) * 32, record, octets, lane, sum);
                }
                if (block == BLOCKS - 1) step++;
            }
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
    { KF_CUDA_TILE, TYPE, MODE, kf_tile<TYPE, MODE>::SHARED, 0, 0, 0, (const void *)kf_linear_tile<TYPE, MODE>, NAME }

#endif
