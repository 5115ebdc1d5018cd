// SPDX-License-Identifier: Apache-2.0
//
// Up to eight rows of bf16 x over quantised weights of which a device has more warps' units than linear_direct.cuh decodes ahead of x:
// y[t, n] = sum_k x[t, k] w[n, k] + bias[n]. The same warps, the same form of x; but weights stay in registers as they came until x is there:
// 80 registers a lane in the place of 128, 24 warps a block or a multiprocessor. What then counts is how many instructions a warp
// has behind the wait for the kernel before, and how long the end is.
//
//     codes     of four bits become bf16 without a shift to the lowest bits: bits 0-3 or 4-7 of a half word are a number below bf16's normal
//               ones, c 2^-133 or c 2^-129, exact like any other; one fma makes 2^-6 (c - offset) of either. The warp's sums times
//               2^6 at the end
//     sums      of the warps meet in shared memory; eight lanes add those of a row of y: every eighth warp's each, then in pairs
//
//     shared    as in linear_direct.cuh
//
// Bytes: those of W, once; x once for each two octets, from L2. Called by linear.c for T <= 8.
#ifndef KF_CUDA_LINEAR_WIDE_CUH
#define KF_CUDA_LINEAR_WIDE_CUH

#include "cuda/linear_direct.cuh"

// Codes become numbers below the normal ones.
__host__ __device__ constexpr bool kf_wide_below(int type) { return kf_bits(type) == 4; }

// Types whose single row linear_one.cuh takes. Of the two others, whose factors are few and whose codes become numbers in a few instructions,
// it is no faster.
__host__ __device__ constexpr bool kf_one_takes(int type) { return type != KF_WEIGHT_Q4_0 && type != KF_WEIGHT_Q8_0; }

// The first four blocks become fragments before the wait, where registers suffice.
__host__ __device__ constexpr bool kf_wide_early(int type, int rows) { return rows == 1 && type == KF_WEIGHT_Q4_0; }

// Pair p of block j: code - offset, of four bits times 2^-6.
template <int TYPE> __device__ __forceinline__ uint32_t kf_wide_pair(const kf_codes<TYPE> &c, int j, int p) {
    if (!kf_wide_below(TYPE)) return kf_code_pair(c, j, p);
    constexpr uint32_t less = kf_offset(TYPE) ? 0xbe00be00u : 0, of_low = 0x7f007f00u, of_high = 0x7d007d00u;
    const uint32_t at = c.low[j] >> 8 * (p & 1); // offset 8: -2^-3; factors 2^127 and 2^123
    return p >> 1 ? kf_fma_pair(at & 0x00f000f0u, of_high, less) : kf_fma_pair(at & 0x000f000fu, of_low, less);
}

// ------------------------------------------------------------------------------------------------------- products

// A lane's part of the unit's blocks of x: the first HELD in registers.
template <int HELD> struct kf_wide_x {
    uint4 held[HELD ? HELD : 1];
    const char *form;
    int block_bytes;

    __device__ __forceinline__ kf_wide_x(const char *unit, int T, int lane)
        : form(unit + kf_direct_column(T, lane) * 16), block_bytes(T * KF_DIRECT_FORM) {
#pragma unroll
        for (int j = 0; j < HELD; j++) held[j] = *reinterpret_cast<const uint4 *>(form + j * block_bytes);
    }
    __device__ __forceinline__ uint4 block(int j) const {
        return j < HELD ? held[j < HELD ? j : 0] : *reinterpret_cast<const uint4 *>(form + j * block_bytes);
    }
};

// Block j of four as fragments.
template <int TYPE>
__device__ __forceinline__ kf_block_a kf_wide_fragment(const kf_codes<TYPE> &low, const kf_codes<TYPE> &high, int j) {
    kf_block_a w;
#pragma unroll
    for (int p = 0; p < 4; p++) w.low[p] = kf_wide_pair<TYPE>(low, j, p), w.high[p] = kf_wide_pair<TYPE>(high, j, p);
    return w;
}

// Four blocks, the quad-th four of the unit, times the rows of x; beside: of the unit. MADE: they are the fragments w. The types that have one row's
// kernels in linear_one.cuh add blocks up in twos, the twos in pairs, as these do; the others one after another.
template <int TYPE, int ROWS, bool MADE, class X>
__device__ __forceinline__ void kf_wide_multiply(const kf_piece<TYPE> &piece, const kf_block_a (&w)[4], int quad,
                                                 const X &x, const float *beside, int lane, float (&sum)[4]) {
    constexpr int RUN = kf_one_takes(TYPE) ? 2 : 4; // blocks
    const kf_factors low = kf_decode_factors<TYPE>(piece.of_low, quad),
                     high = kf_decode_factors<TYPE>(piece.of_high, quad);
    float four[4];
#pragma unroll
    for (int j = 0; j < 4; j += RUN) {
        float own[4] = {};
        float(&run)[4] = RUN == 4 ? sum : own;
#pragma unroll
        for (int k = j; k < j + RUN; k++) {
            const uint4 parts[3] = {x.block(quad * 4 + k)};
            float2 of_x = make_float2(0.0f, 0.0f);
            if (kf_is_affine(TYPE)) of_x = kf_direct_beside<ROWS>(beside, quad * 4 + k, lane);
            kf_quantised_block<TYPE, KF_X_BF16>(run, MADE ? w[k] : kf_wide_fragment<TYPE>(piece.low, piece.high, k),
                                                make_float2(low.d[k], high.d[k]), make_float2(low.m[k], high.m[k]),
                                                parts, of_x);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) four[i] = j ? four[i] + own[i] : own[i];
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (RUN == 2) sum[i] = quad ? sum[i] + four[i] : four[i];
}

// Adds the sums of KF_WIDE_WARPS warps at most up and stores them: every eighth warp's, then these in pairs. One row of x: eight lanes an
// element, for this end waits for one warp; else one, for there are enough.
template <int ROWS> __device__ __forceinline__ void kf_wide_finish(const kf_cuda_linear &a, int T, const float *sums) {
    constexpr int PARTS = 8, LANES = ROWS == 1 ? PARTS : 1, MINE = PARTS / LANES;
#pragma unroll 1
    for (int i = threadIdx.x; i < 2 * KF_OCTET * LANES * T; i += blockDim.x) { // one row: whole warps
        const int part = i & (LANES - 1), row = i / LANES & 15, t = i / (16 * LANES), n = blockIdx.x * 16 + row;
        float each[PARTS] = {};
#pragma unroll
        for (int j = 0; j < MINE; j++)
#pragma unroll
            for (int w = j; w < KF_WIDE_WARPS; w += PARTS)
                if (part + w < a.ways) each[j] += sums[((part + w) * 16 + row) * ROWS + t];
        float total = each[0];
        if (LANES == 1)
            total = ((each[0] + each[1]) + (each[2] + each[3])) + ((each[4] + each[5]) + (each[6] + each[7]));
#pragma unroll
        for (int other = 1; other < LANES; other *= 2) total += __shfl_xor_sync(0xffffffffu, total, other);
        if (part == 0 && n < a.N) kf_finish_element(a, t, n, total);
    }
}

// ROWS: 1 or KF_STREAM_ROWS, at most.
template <int TYPE, int ROWS>
__global__ void __launch_bounds__(KF_WIDE_WARPS * 32, 1) kf_linear_wide(const __grid_constant__ kf_cuda_linear a) {
    constexpr int QUADS = KF_DIRECT_QUADS;
    constexpr bool EARLY = kf_wide_early(TYPE, ROWS);
    constexpr float UP = kf_wide_below(TYPE) ? 64.0f : 1.0f;
    extern __shared__ __align__(128) char memory[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, T = ROWS == 1 ? 1 : a.T;
    const int octet = blockIdx.x * 2, first = warp * QUADS, count = min(QUADS, (a.blocks + 3) / 4 - first);
    const int quad_bytes = 4 * T * KF_DIRECT_FORM, form_bytes = QUADS * quad_bytes + kf_direct<TYPE>::BESIDE;
    char *const form = memory + warp * form_bytes;
    float *const beside = reinterpret_cast<float *>(form + QUADS * quad_bytes);
    float *const sums = reinterpret_cast<float *>(memory + a.ways * form_bytes);

    kf_piece<TYPE> piece[QUADS];
    if (a.weights_made) kf_wait_for_previous();
    kf_direct_load<TYPE>(a, octet, first, count, lane, piece);
    kf_launch_dependents();
    const kf_direct_place place = kf_direct_find(a, T, first * 4, warp * form_bytes, lane);
    kf_block_a w[4];
    if (EARLY && count > 0) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            w[j] = kf_wide_fragment<TYPE>(piece[0].low, piece[0].high, j);
            kf_direct_stay(w[j]);
        }
    }
    kf_wait_for_previous();
    kf_direct_bring<TYPE, ROWS>(a, place, memory, form, T, 1.0f / UP, beside, lane);

    float sum[4] = {};
    const kf_wide_x<0> x(form, T, lane);
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        if (i >= count) break;
        if (EARLY && i == 0)
            kf_wide_multiply<TYPE, ROWS, true>(piece[i], w, i, x, beside, lane, sum);
        else
            kf_wide_multiply<TYPE, ROWS, false>(piece[i], w, i, x, beside, lane, sum);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) sum[i] *= UP;
    kf_direct_put<ROWS>(sums + warp * 2 * KF_OCTET * ROWS, lane, sum);
    __syncthreads();
    kf_wide_finish<ROWS>(a, T, sums);
}

#endif
