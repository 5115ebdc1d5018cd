// SPDX-License-Identifier: Apache-2.0
//
// One row of bf16 x over quantised weights whose blocks' factors are many or whose codes are dear: y[n] = sum_k x[k] w[n, k] + bias[n]. A warp takes
// a unit of two octets, 16 rows and eight blocks of 32 columns:
//
//     P[g, j] = sum over block j of (code - offset)[g] x       y[g] += d[g, j] P[g, j] + m[g, j] X[j]      X[j]: sum of x over block j
//
// The product's eight columns, which rows of x would be, are the unit's eight blocks of the one row: column j holds x of block j, so block j's
// product has P[., j] in column j and nothing that is wanted in the others. Of each of the eight products a lane keeps what is in its own
// columns, 2t and 2t + 1 of rows g and g + 8. So
//
//     x         lane 4 j + part holds columns 4 part .. +3 and 16 + 4 part .. +3 of block j: what it loaded, and no shared memory is wanted
//     factors   of two blocks of two rows a lane, not of eight; the four lanes of a row share the fold
//     order     blocks in twos, twos and fours in pairs: what the kernels for more rows do (linear_wide.cuh), so bits are the same
//
// Instructions for a unit (SASS, sm_90a): 181 for codes and products of four bits, 244 of five and six; 8 to 16 selects of these; 40 to 75 for factors,
// fold and sums.
//
//     kernels   linear_wide_one: of a warp's unit all is asked for at once, as linear_wide.cuh says. linear_many_one: a block goes on to further pairs
//               of octets, as linear_many.cuh says; its warps wait for each other once in 16 pairs, whose sums stay in shared memory until then
//     shared    wide: [warp][16 rows]; many: [pair][warp][16 rows]
//
// Bytes: those of W, once; x once for each two octets, or a block, from L2. Called by linear.c for T = 1.
#ifndef KF_CUDA_LINEAR_ONE_CUH
#define KF_CUDA_LINEAR_ONE_CUH

#include "cuda/linear_wide.cuh"

enum {
    KF_ONE_EARLY = 6,   // blocks that linear_wide_one makes fragments of before the wait: with 0 and 4 up to 4 % slower
    KF_MANY_PAIRS = 16, // of octets, whose sums are kept until they are added up
    KF_ONE_SUMS = 2 * KF_OCTET * 4 // bytes of a warp's sums of a pair
};

// Blocks of eight warps a multiprocessor, in linear_many_one: three where their registers suffice without spills, and were faster.
__host__ __device__ constexpr int kf_one_blocks(int type) {
    return type == KF_WEIGHT_Q4_K || type == KF_WEIGHT_Q5_0 ? 3 : 2;
}

// On sm_80 the 80 registers of three blocks do not hold what they hold on sm_90a: there linear_many_one asks for the factors late and makes a number
// again, rather than spill.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
enum { KF_ONE_SPARES = 1 };
#else
enum { KF_ONE_SPARES = 0 };
#endif

// Of blocks 2t and 2t + 1 of a row, as they lie: d, then m, of both in a word each; K types: the row's 16 bytes; Q6_K: four scales, and d.
template <int TYPE> struct kf_one_raw {
    static const int WORDS = TYPE == KF_WEIGHT_Q6_K ? 2 : kf_is_k(TYPE) ? 4 : kf_is_affine(TYPE) ? 2 : 1;
    uint32_t word[WORDS];
};

// The same as numbers. Q6_K: d of the first and of the second half.
struct kf_one_factors {
    float d[2], m[2];
};

// A unit of two octets, as it came.
template <int TYPE> struct kf_one_unit {
    kf_codes<TYPE> low[KF_DIRECT_QUADS], high[KF_DIRECT_QUADS];
    kf_one_raw<TYPE> of_low, of_high;
};

// ------------------------------------------------------------------------------------------------------- weights

template <int TYPE, bool FULL>
__device__ __forceinline__ kf_one_raw<TYPE> kf_one_load_factors(const char *unit, int rows, int blocks, int g, int t) {
    kf_one_raw<TYPE> raw;
    constexpr int LAST = raw.WORDS - 1;
    if (FULL) rows = KF_OCTET, blocks = KF_UNIT_BLOCKS;
    const char *scales = unit + kf_unit_scales(TYPE, rows, blocks);
    if constexpr (TYPE == KF_WEIGHT_Q6_K) {
        raw.word[0] = kf_load_word(scales + g * 16 + t * 4), raw.word[1] = kf_load_half(scales + rows * 16 + g * 2);
    } else if constexpr (kf_is_k(TYPE)) {
        const uint4 all = kf_load_codes(scales + g * 16);
        raw.word[0] = all.x, raw.word[1] = all.y, raw.word[2] = all.z, raw.word[3] = all.w;
    } else if (FULL) {
        raw.word[0] = kf_load_word(scales + g * 16 + t * 4);
        if (kf_is_affine(TYPE)) raw.word[LAST] = kf_load_word(scales + (rows + g) * 16 + t * 4);
    } else {
#pragma unroll
        for (int i = 0; i < raw.WORDS; i++) raw.word[i] = 0;
#pragma unroll
        for (int b = 0; b < 2; b++) {
            const int block = 2 * t + b;
            const char *at = scales + kf_unit_scale(rows, blocks, block, g);
            if (block >= blocks) continue;
            raw.word[0] |= kf_load_half(at) << 16 * b;
            if (kf_is_affine(TYPE)) raw.word[LAST] |= kf_load_half(at + rows * 2 * blocks) << 16 * b;
        }
    }
    return raw;
}

// Four blocks of two octets whose rows and unit are whole; `unit`: where the first one's begins. With the first four come the factors: they become
// numbers while codes are on their way.
template <int TYPE>
__device__ __forceinline__ void kf_one_load(const char *unit, int64_t octet_bytes, int quad, int lane,
                                            kf_one_unit<TYPE> &w) {
    const char *const high = unit + octet_bytes;
    if (quad == (KF_ONE_SPARES ? KF_DIRECT_QUADS - 1 : 0)) {
        w.of_low = kf_one_load_factors<TYPE, true>(unit, KF_OCTET, KF_UNIT_BLOCKS, lane >> 2, lane & 3);
        w.of_high = kf_one_load_factors<TYPE, true>(high, KF_OCTET, KF_UNIT_BLOCKS, lane >> 2, lane & 3);
    }
    w.low[quad] = kf_read_codes<TYPE, true>(unit, KF_OCTET, KF_UNIT_BLOCKS, quad, lane);
    w.high[quad] = kf_read_codes<TYPE, true>(high, KF_OCTET, KF_UNIT_BLOCKS, quad, lane);
}

// At the ends of the rows and of W: blocks that are not there have the factor 0; of a row that isn't there the last one that is, and its sums are
// not stored.
template <int TYPE>
__device__ __forceinline__ void kf_one_load_end(const kf_cuda_linear &a, int octet, int unit, int lane,
                                                kf_one_unit<TYPE> &w) {
    const int blocks = min(KF_UNIT_BLOCKS, a.blocks - unit * KF_UNIT_BLOCKS);
#pragma unroll
    for (int o = 0; o < 2; o++) {
        const int place = min(octet + o, a.octets - 1), rows = min(KF_OCTET, a.N - place * KF_OCTET);
        const int g = min(lane >> 2, rows - 1), t = lane & 3;
        const char *from = a.w + place * a.octet_bytes + (int64_t)unit * kf_unit_bytes(TYPE, rows, KF_UNIT_BLOCKS);
#pragma unroll
        for (int i = 0; i < KF_DIRECT_QUADS; i++)
            (o ? w.high[i] : w.low[i]) = kf_read_codes<TYPE, false>(from, rows, blocks, i, g * 4 + t);
        (o ? w.of_high : w.of_low) = kf_one_load_factors<TYPE, false>(from, rows, blocks, g, t);
    }
}

template <int TYPE> __device__ __forceinline__ kf_one_factors kf_one_decode(const kf_one_raw<TYPE> &raw, int t) {
    kf_one_factors f;
    if constexpr (TYPE == KF_WEIGHT_Q6_K) {
        const float d = kf_half_at(raw.word[1], 0);
#pragma unroll
        for (int b = 0; b < 2; b++) {
            const uint32_t pair = raw.word[0] >> 16 * b;
            f.d[b] = d * (float)(int8_t)(pair & 255), f.m[b] = d * (float)(int8_t)(pair >> 8 & 255);
        }
    } else if constexpr (
        kf_is_k(TYPE)) { // six bits each; of the last four blocks the upper two stand over the first four's
        const int shift = 16 * (t & 1);
        const uint32_t y = raw.word[1] >> shift, z = raw.word[2] >> shift, w = raw.word[3] >> shift;
        const uint32_t sc = t < 2 ? y & 0x3f3fu : (w & 0x0f0fu) | (y >> 2 & 0x3030u);
        const uint32_t mn = t < 2 ? z & 0x3f3fu : (w >> 4 & 0x0f0fu) | (z >> 2 & 0x3030u);
        const float d = kf_half_at(raw.word[0], 0), least = kf_half_at(raw.word[0], 1);
#pragma unroll
        for (int b = 0; b < 2; b++) {
            f.d[b] = d * (float)(sc >> 8 * b & 255);
            f.m[b] = -(least * (float)(mn >> 8 * b & 255));
        }
    } else {
#pragma unroll
        for (int b = 0; b < 2; b++) {
            f.d[b] = kf_half_at(raw.word[0], b);
            f.m[b] = kf_is_affine(TYPE) ? kf_half_at(raw.word[raw.WORDS - 1], b) : 0.0f;
        }
    }
    return f;
}

// ------------------------------------------------------------------------------------------------------- x

// What a lane holds of its warp's unit of x: a fragment of the product; and X of blocks 2t and 2t + 1.
struct kf_one_x {
    uint4 pairs;
    float sum[2];
};

template <int TYPE>
__device__ __forceinline__ kf_one_x kf_one_bring(const kf_cuda_linear &a, const char *from, bool there, float scale,
                                                 int lane) {
    kf_one_x x;
    uint2 low = make_uint2(0, 0), high = low;
    if (there && a.x_aligned) {
        low = __ldcg(reinterpret_cast<const uint2 *>(from)), high = __ldcg(reinterpret_cast<const uint2 *>(from + 32));
    } else if (there) { // rare
        const uint16_t *at = reinterpret_cast<const uint16_t *>(from);
        low = make_uint2(at[0] | (uint32_t)at[1] << 16, at[2] | (uint32_t)at[3] << 16);
        high = make_uint2(at[16] | (uint32_t)at[17] << 16, at[18] | (uint32_t)at[19] << 16);
    }
    x.pairs = kf_direct_pairs(low, high);
    if (!kf_is_affine(TYPE)) return x;
    const float2 sum = kf_direct_sum(x.pairs, scale);
    x.sum[0] = sum.x, x.sum[1] = sum.y;
    return x;
}

// ------------------------------------------------------------------------------------------------------- products

// P of a lane's two blocks: of row g, of row g + 8. Q6_K: of the first halves, of the second ones.
template <int TYPE> struct kf_one_products { float first[4], second[TYPE == KF_WEIGHT_Q6_K ? 4 : 1]; };

// Block j of the unit.
template <int TYPE>
__device__ __forceinline__ void kf_one_block(kf_one_products<TYPE> &keep, const kf_block_a &w, const kf_one_x &x, int j,
                                             int lane) {
    float p[4] = {}, second[4] = {};
    kf_mma_step<__nv_bfloat16>(p, w, 0, x.pairs);
    kf_mma_step<__nv_bfloat16>(TYPE == KF_WEIGHT_Q6_K ? second : p, w, 1, x.pairs);
    const bool mine = (lane & 3) == j / 2;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int at = 2 * row + (j & 1);
        keep.first[at] = mine || j < 2 ? p[at] : keep.first[at];
        if (TYPE == KF_WEIGHT_Q6_K) keep.second[at] = mine || j < 2 ? second[at] : keep.second[at];
    }
}

// Sums of rows g and g + 8, the same in all four lanes of g.
template <int TYPE>
__device__ __forceinline__ void kf_one_fold(const kf_one_products<TYPE> &p, const kf_one_factors &low,
                                            const kf_one_factors &high, const kf_one_x &x, float (&sum)[2]) {
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const kf_one_factors &f = row ? high : low;
        float s = 0.0f;
#pragma unroll
        for (int b = 0; b < 2; b++) {
            s = fmaf(f.d[b], p.first[2 * row + b], s);
            if constexpr (TYPE == KF_WEIGHT_Q6_K) s = fmaf(f.m[b], p.second[2 * row + b], s);
            if (kf_is_affine(TYPE)) s = fmaf(f.m[b], x.sum[b], s);
        }
        sum[row] = kf_quad_sum(s);
    }
}

// Block j of the unit as fragments.
template <int TYPE> __device__ __forceinline__ kf_block_a kf_one_fragment(const kf_one_unit<TYPE> &unit, int j) {
    return kf_wide_fragment<TYPE>(unit.low[j / 4], unit.high[j / 4], j % 4);
}

template <int TYPE>
__device__ __forceinline__ void kf_one_ask(const kf_cuda_linear &a, int octet, int warp, int lane,
                                           kf_one_unit<TYPE> &unit) {
    if ((octet + 2) * KF_OCTET <= a.N && (warp + 1) * KF_UNIT_BLOCKS <= a.blocks) {
        const char *const from = a.w + octet * a.octet_bytes + (int64_t)warp * (KF_OCTET * kf_row_unit(TYPE));
#pragma unroll
        for (int i = 0; i < KF_DIRECT_QUADS; i++) kf_one_load<TYPE>(from, a.octet_bytes, i, lane, unit);
    } else {
        kf_one_load_end<TYPE>(a, octet, warp, lane, unit);
    }
}

// The warp's first unit is asked for; where the lane's part of x begins, found before the wait, too.
template <int TYPE>
__device__ __forceinline__ const char *kf_one_begin(const kf_cuda_linear &a, int block, int warp, int lane,
                                                    kf_one_unit<TYPE> &unit) {
    if (a.weights_made) kf_wait_for_previous();
    kf_one_ask<TYPE>(a, blockIdx.x * 2, warp, lane, unit);
    kf_launch_dependents();
    const char *from = a.x + (int64_t)block * 64 + (lane & 3) * 8;
    asm volatile("" : "+l"(from));
    return from;
}

template <int TYPE>
__global__ void __launch_bounds__(KF_WIDE_WARPS * 32, 1) kf_linear_wide_one(const __grid_constant__ kf_cuda_linear a) {
    constexpr int EARLY = KF_ONE_EARLY;
    constexpr float UP = kf_wide_below(TYPE) ? 64.0f : 1.0f;
    extern __shared__ __align__(128) float sums[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, block = warp * KF_UNIT_BLOCKS + (lane >> 2);
    kf_one_unit<TYPE> unit;
    const char *const from = kf_one_begin<TYPE>(a, block, warp, lane, unit);
    kf_block_a early[EARLY];
#pragma unroll
    for (int j = 0; j < EARLY; j++) early[j] = kf_one_fragment<TYPE>(unit, j), kf_direct_stay(early[j]);
    kf_one_factors low = kf_one_decode<TYPE>(unit.of_low, lane & 3), high = kf_one_decode<TYPE>(unit.of_high, lane & 3);
#pragma unroll
    for (int b = 0; b < 2; b++) {
        asm volatile("" : "+f"(low.d[b]), "+f"(high.d[b]));
        if (kf_is_affine(TYPE) || TYPE == KF_WEIGHT_Q6_K) asm volatile("" : "+f"(low.m[b]), "+f"(high.m[b]));
    }
    kf_wait_for_previous();
    const kf_one_x x = kf_one_bring<TYPE>(a, from, block < a.blocks, 1.0f / UP, lane);
    kf_one_products<TYPE> keep;
#pragma unroll
    for (int j = 0; j < KF_UNIT_BLOCKS; j++)
        kf_one_block<TYPE>(keep, j < EARLY ? early[j < EARLY ? j : 0] : kf_one_fragment<TYPE>(unit, j), x, j, lane);
    float sum[2];
    kf_one_fold<TYPE>(keep, low, high, x, sum);
    if ((lane & 3) == 0)
        sums[warp * 16 + (lane >> 2)] = sum[0] * UP, sums[warp * 16 + KF_OCTET + (lane >> 2)] = sum[1] * UP;
    __syncthreads();
    kf_wide_finish<1>(a, 1, sums);
}

// Adds the warps' sums of `count` pairs up, those of a row in pairs, and stores them.
__device__ __forceinline__ void kf_one_finish(const kf_cuda_linear &a, int first, int count, const float *sums) {
#pragma unroll 1
    for (int i = threadIdx.x; i < count * 2 * KF_OCTET; i += blockDim.x) {
        const int row = i & 15, n = (first + (i >> 4) * gridDim.x) * 2 * KF_OCTET + row;
        const float *const from = sums + (i >> 4) * a.ways * 16 + row;
        float each[KF_DIRECT_WARPS];
#pragma unroll
        for (int w = 0; w < KF_DIRECT_WARPS; w++) each[w] = w < a.ways ? from[w * 16] : 0.0f;
        const float total = ((each[0] + each[1]) + (each[2] + each[3])) + ((each[4] + each[5]) + (each[6] + each[7]));
        if (n < a.N) kf_finish_element(a, 0, n, total);
    }
}

template <int TYPE>
__global__ void __launch_bounds__(KF_DIRECT_WARPS * 32, kf_one_blocks(TYPE))
    kf_linear_many_one(const __grid_constant__ kf_cuda_linear a) {
    constexpr float UP = kf_wide_below(TYPE) ? 64.0f : 1.0f;
    extern __shared__ __align__(128) float sums[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, block = warp * KF_UNIT_BLOCKS + (lane >> 2);
    const int pairs = (a.octets + 1) / 2, step = gridDim.x;
    const int whole = (warp + 1) * KF_UNIT_BLOCKS <= a.blocks ? a.N / (2 * KF_OCTET) : 0;
    kf_one_unit<TYPE> unit;
    const char *const from = kf_one_begin<TYPE>(a, block, warp, lane, unit);
    kf_wait_for_previous();
    const kf_one_x x = kf_one_bring<TYPE>(a, from, block < a.blocks, 1.0f / UP, lane);
    const char *ahead = a.w + (int64_t)warp * (KF_OCTET * kf_row_unit(TYPE)) + blockIdx.x * 2 * a.octet_bytes;
#pragma unroll 1
    for (int pair = blockIdx.x; pair < pairs;) {
        const int first = pair;
        int held = 0;
#pragma unroll 1
        for (; held < KF_MANY_PAIRS && pair < pairs; held++, pair += step) {
            const int next = pair + step;
            const kf_one_factors low = kf_one_decode<TYPE>(unit.of_low, lane & 3),
                                 high = kf_one_decode<TYPE>(unit.of_high, lane & 3);
            ahead += step * 2 * a.octet_bytes;
            kf_one_products<TYPE> keep;
#pragma unroll
            for (int j = 0; j < KF_UNIT_BLOCKS; j++) {
                kf_one_block<TYPE>(keep, kf_one_fragment<TYPE>(unit, j), x, j, lane);
                if (j % 4 == 3 && next < whole) kf_one_load<TYPE>(ahead, a.octet_bytes, j / 4, lane, unit);
            }
            if (next >= whole && next < pairs) kf_one_load_end<TYPE>(a, next * 2, warp, lane, unit);
            float sum[2];
            kf_one_fold<TYPE>(keep, low, high, x, sum);
            float *const mine = sums + (held * a.ways + warp) * 16 + (lane >> 2);
            if ((lane & 3) == 0) mine[0] = sum[0] * UP, mine[KF_OCTET] = sum[1] * UP;
        }
        __syncthreads();
        kf_one_finish(a, KF_ONE_SPARES ? pair - held * step : first, held, sums);
        if (pair < pairs) __syncthreads();
    }
}

#endif
