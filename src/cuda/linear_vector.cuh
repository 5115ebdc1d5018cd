// SPDX-License-Identifier: Apache-2.0
//
// Up to eight rows of x over quantised weights: y[t, n] = sum_k x[t, k] w[n, k] + bias[n], W read once at the rate of memory.
//
//     x         a block of 32 values becomes fixed point: q = x / step to nearest, 2^29 <= largest |q| < 2^30, step a power of two; q is
//               four digits of 8 bits, signed: q = sum of digit[i] 256^i, each digit of a row one column of the product
//     product   mma.sync m16n8k32 on int8: 16 rows of W, its eight columns are the digits of two rows of x ("a pair"). Exact
//     fold      sum += (d step) (256 P[upper digit] + P[lower digit]), in one lane for digits 3 and 2, in its neighbour for 1 and 0
//     int8      (KF_ACTIVATIONS_INT8) the columns are eight rows of x, quantised as the header says
//
//     warp      two octets of W and a part of the columns, `ways` warps side by side share two octets. Weights go straight into registers,
//               DEPTH loads of four blocks ahead of the products; the first ones are asked for before the kernel before has ended
//     block     brings x into form for all its warps, in shared memory: [block of 32][pair]: digits, steps, sums of x
//     shared    [ x in form | sums: [warp][16 rows][8] ]
//
// A weight costs little: for a block of 16 x 32 of Q4_0 and one row of x 6 instructions of decoding, one product, 12 of folding, 3 loads.
// Parts of the columns depend on N and K, not on T: so a row's bits are the same among one to eight rows.
//
// Bytes: those of W, once; x once a block, from L2. Called by linear.c for T <= 8.
#ifndef KF_CUDA_LINEAR_VECTOR_CUH
#define KF_CUDA_LINEAR_VECTOR_CUH

#include "cuda/linear.cuh"

// PAIRS: of rows of x, in mode KF_X_FIXED; KF_X_INT8 has eight rows and one "pair".
template <int TYPE, int MODE, int PAIRS> struct kf_vector {
    static const bool INT8 = MODE == KF_X_INT8;
    static const int DEPTH = TYPE == KF_WEIGHT_Q4_0 && !INT8 && PAIRS < 4 ? 4 : 2; // loads ahead
    static const int SUMS = INT8 ? 4 : 2 * PAIRS, ROWS = INT8 ? 8 : 2 * PAIRS;
    static const int DIGITS = 32 * 8; // bytes: lane 4 g + t holds of column g the values 4t .. 4t+3, 16+4t .. 16+4t+3
    static const int STEPS = INT8 ? 8 : 4;          // floats; fixed: [row of the pair][upper digits, lower]
    static const int PAIR = DIGITS + 2 * STEPS * 4; // behind the steps as many sums of x
    static const int RECORD = PAIRS * PAIR;         // a block of 32
    // Weights are multiplied by 2^SHIFT: four bits less 8 stand in the upper half of a byte.
    static const int SHIFT = TYPE == KF_WEIGHT_Q4_0 && !INT8 ? 4 : 0;
};

// Four blocks of two octets, as they came.
template <int TYPE> struct kf_piece {
    kf_codes<TYPE> low, high;
    kf_raw_factors<TYPE> of_low, of_high;
};

// ------------------------------------------------------------------------------------------------------- weights

// Piece `quad` (four blocks) of two octets whose rows and units are whole.
template <int TYPE>
__device__ __forceinline__ void kf_vector_load(const char *octet, int64_t octet_bytes, int quad, int lane,
                                               kf_piece<TYPE> &piece) {
    constexpr int UNIT = KF_OCTET * kf_row_unit(TYPE);
    const char *low = octet + (int64_t)(quad >> 1) * UNIT, *high = low + octet_bytes;
    piece.low = kf_read_codes<TYPE, true>(low, KF_OCTET, KF_UNIT_BLOCKS, quad & 1, lane);
    piece.high = kf_read_codes<TYPE, true>(high, KF_OCTET, KF_UNIT_BLOCKS, quad & 1, lane);
    piece.of_low = kf_load_factors<TYPE, true>(low, KF_OCTET, KF_UNIT_BLOCKS, quad & 1, lane >> 2);
    piece.of_high = kf_load_factors<TYPE, true>(high, KF_OCTET, KF_UNIT_BLOCKS, quad & 1, lane >> 2);
}

// The same at the ends of the rows and of W. A lane whose row isn't there takes the last one that is: its sums are not stored.
template <int TYPE>
__device__ __forceinline__ void kf_vector_load_end(const kf_cuda_linear &a, int octet, int quad, int lane,
                                                   kf_piece<TYPE> &piece) {
    const int unit = quad >> 1, blocks = min(KF_UNIT_BLOCKS, a.blocks - unit * KF_UNIT_BLOCKS);
#pragma unroll
    for (int o = 0; o < 2; o++) {
        const int place = min(octet + o, a.octets - 1), rows = min(KF_OCTET, a.N - place * KF_OCTET);
        const int g = min(lane >> 2, rows - 1), there = g * 4 + (lane & 3);
        const char *from = a.w + place * a.octet_bytes + (int64_t)unit * kf_unit_bytes(TYPE, rows, KF_UNIT_BLOCKS);
        kf_codes<TYPE> &codes = o ? piece.high : piece.low;
        kf_raw_factors<TYPE> &factors = o ? piece.of_high : piece.of_low;
        codes = kf_read_codes<TYPE, false>(from, rows, blocks, quad & 1, there);
        factors = kf_load_factors<TYPE, false>(from, rows, blocks, quad & 1, g);
    }
}

// ------------------------------------------------------------------------------------------------------- x

// Bytes i of four words side by side, for each i.
__device__ __forceinline__ void kf_transpose_bytes(const uint32_t (&word)[4], uint32_t (&byte)[4]) {
    const uint32_t a = __byte_perm(word[0], word[1], 0x5140), b = __byte_perm(word[2], word[3], 0x5140);
    const uint32_t c = __byte_perm(word[0], word[1], 0x7362), d = __byte_perm(word[2], word[3], 0x7362);
    byte[0] = __byte_perm(a, b, 0x5410), byte[1] = __byte_perm(a, b, 0x7632);
    byte[2] = __byte_perm(c, d, 0x5410), byte[3] = __byte_perm(c, d, 0x7632);
}

// Eight values of row t (lane `part` of a quad) into four digits each. Steps and digits as the head of this file says; the step of a
// block with NaN or an infinity is NaN. Below 2^-90 the step stays that of 2^-90. All of the warp call it.
template <int TYPE, int MODE, int PAIRS>
__device__ __forceinline__ void kf_vector_fixed(const float (&v)[8], int t, int part, char *record) {
    using vector = kf_vector<TYPE, MODE, PAIRS>;
    constexpr int BIAS = 127, BITS = 29, LEAST = BIAS - 90;
    constexpr uint32_t SIGNS = 0x80808080u, INFINITE = 0x7f800000u;
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) largest = max(largest, __float_as_uint(v[i]) & 0x7fffffffu);
    largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    const int exponent = max((int)(largest >> 23), LEAST);
    const float per_step = __uint_as_float((uint32_t)(BITS + 2 * BIAS - exponent) << 23);
    uint32_t digits[2][4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t word[4];
#pragma unroll
        for (int i = 0; i < 4; i++) // adding 128 to each digit makes it a byte without a sign
            word[i] = ((uint32_t)__float2int_rn(v[4 * half + i] * per_step) + SIGNS) ^ SIGNS;
        kf_transpose_bytes(word, digits[half]);
    }
    char *pair = record + (t >> 1) * vector::PAIR;
#pragma unroll
    for (int i = 0; i < 4; i++) // the upper digit first
        *reinterpret_cast<uint2 *>(pair + ((4 * (t & 1) + 3 - i) * 4 + part) * 8) =
            make_uint2(digits[0][i], digits[1][i]);
    const float sum = kf_is_affine(TYPE) ? kf_block_sum(v) : 0.0f;
    if (part != 0) return;
    const uint32_t low = (uint32_t)(exponent - BITS - vector::SHIFT) << 23, high = low + (16u << 23);
    float2 step = make_float2(__uint_as_float(high), __uint_as_float(low));
    if (largest >= INFINITE) step.x = step.y = __uint_as_float(0x7fffffffu);
    *reinterpret_cast<float2 *>(pair + vector::DIGITS + (t & 1) * 8) = step;
    if (kf_is_affine(TYPE))
        *reinterpret_cast<float2 *>(pair + vector::DIGITS + vector::STEPS * 4 + (t & 1) * 8) = make_float2(sum, 0.0f);
}

template <int TYPE, int MODE, int PAIRS>
__device__ __forceinline__ void kf_vector_item(const float (&v)[8], int t, int part, char *record) {
    using vector = kf_vector<TYPE, MODE, PAIRS>;
    if constexpr (vector::INT8) {
        float scale, sum;
        *reinterpret_cast<uint2 *>(record + (t * 4 + part) * 8) = kf_x_int8(v, &scale, &sum);
        if (part != 0) return;
        reinterpret_cast<float *>(record + vector::DIGITS)[t] = scale;
        reinterpret_cast<float *>(record + vector::DIGITS)[vector::STEPS + t] = sum;
    } else {
        kf_vector_fixed<TYPE, MODE, PAIRS>(v, t, part, record);
    }
}

// Values of a row that is not aligned to 16 bytes or ends within a block of 32: rare, and slow.
__device__ __forceinline__ void kf_vector_values(const kf_cuda_linear &a, const char *row, int block, int part,
                                                 float (&v)[8]) {
#pragma unroll 1
    for (int i = 0; i < 8; i++) {
        const int k = block * 32 + 4 * part + i % 4 + i / 4 * 16;
        const float value = k < a.K ? kf_element(row, a.x_type, k) : 0.0f;
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (j == i) v[j] = value;
    }
}

// All columns into form, those past K as zeros. A warp takes units, eight blocks at once, four lanes each: two units' loads are on their way at a
// time where x has few rows.
template <int TYPE, int MODE, int PAIRS>
__device__ __forceinline__ void kf_vector_x(const kf_cuda_linear &a, char *form, int lane) {
    using vector = kf_vector<TYPE, MODE, PAIRS>;
    constexpr int ROWS = vector::ROWS, UNITS = ROWS == 2 ? 2 : 1;
    const int part = lane & 3, warps = blockDim.x >> 5;
    const int64_t row_bytes = a.x_stride * (a.x_type == KF_F32 ? 4 : 2);
    const bool aligned = a.x_aligned && a.K % 32 == 0;
#pragma unroll 1
    for (int unit = threadIdx.x >> 5; unit < a.units; unit += UNITS * warps) {
        float v[UNITS][ROWS][8] = {};
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            const int block = (unit + u * warps) * KF_UNIT_BLOCKS + (lane >> 2);
            const char *row = a.x;
#pragma unroll
            for (int t = 0; t < ROWS; t++, row += row_bytes) {
                if (t >= a.T || block >= a.blocks) continue;
                if (aligned)
                    kf_x_aligned<false>(row, a.x_type, block, part, v[u][t]);
                else
                    kf_vector_values(a, row, block, part, v[u][t]);
            }
        }
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            if (unit + u * warps >= a.units) break;
            char *const record = form + ((unit + u * warps) * KF_UNIT_BLOCKS + (lane >> 2)) * vector::RECORD;
#pragma unroll
            for (int t = 0; t < ROWS; t++)
                if (t < a.T) kf_vector_item<TYPE, MODE, PAIRS>(v[u][t], t, part, record);
        }
    }
}

// ------------------------------------------------------------------------------------------------------- products

// (word & MASK) ^ FLIP in one instruction.
template <uint32_t MASK, uint32_t FLIP> __device__ __forceinline__ uint32_t kf_mask_flip(uint32_t word) {
    uint32_t result;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(result) : "r"(word), "n"(MASK), "n"(FLIP));
    return result;
}

// Half 0 or 1 of block j as four int8, times 2^SHIFT. Four bits in the upper half of a byte with the first flipped are 16 (code - 8).
template <int TYPE, bool SHIFTED>
__device__ __forceinline__ uint32_t kf_vector_bytes(const kf_codes<TYPE> &c, int j, int half) {
    if (!SHIFTED) return kf_code_bytes(c, j, half);
    return kf_mask_flip<0xf0f0f0f0u, 0x80808080u>(half ? c.low[j] : c.low[j] << 4);
}

// sum[0], sum[1]: of rows g and g + 8.
__device__ __forceinline__ void kf_vector_fold(float *sum, const int (&c)[4], float d_low, float d_high, float step) {
    sum[0] = fmaf(d_low * step, (float)(c[0] * 256 + c[1]), sum[0]);
    sum[1] = fmaf(d_high * step, (float)(c[2] * 256 + c[3]), sum[1]);
}

// One block of 32 columns: two octets of W times one pair.
template <int TYPE>
__device__ __forceinline__ void kf_vector_pair(float *sum, const kf_block_a &w, float2 d, float2 m, uint2 x, float step,
                                               float x_sum) {
    int c[4] = {0, 0, 0, 0};
    if constexpr (TYPE == KF_WEIGHT_Q6_K) {
        int second[4] = {0, 0, 0, 0};
        kf_mma_int8_half(c, w.low[0], w.high[0], x.x);
        kf_mma_int8_half(second, w.low[1], w.high[1], x.y);
        kf_vector_fold(sum, c, d.x, d.y, step);
        kf_vector_fold(sum, second, m.x, m.y, step);
    } else {
        kf_mma_int8(c, w.low[0], w.high[0], w.low[1], w.high[1], x.x, x.y);
        kf_vector_fold(sum, c, d.x, d.y, step);
        if (kf_is_affine(TYPE)) sum[0] = fmaf(m.x, x_sum, sum[0]), sum[1] = fmaf(m.y, x_sum, sum[1]);
    }
}

// Four blocks times all of x; `records`: the first one's.
template <int TYPE, int MODE, int PAIRS>
__device__ __forceinline__ void kf_vector_multiply(const kf_piece<TYPE> &piece, int quad, const char *records, int lane,
                                                   float (&sum)[kf_vector<TYPE, MODE, PAIRS>::SUMS]) {
    using vector = kf_vector<TYPE, MODE, PAIRS>;
    const int t = lane & 3;
    const kf_factors low = kf_decode_factors<TYPE>(piece.of_low, quad),
                     high = kf_decode_factors<TYPE>(piece.of_high, quad);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        kf_block_a w;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            w.low[half] = kf_vector_bytes<TYPE, vector::SHIFT != 0>(piece.low, j, half);
            w.high[half] = kf_vector_bytes<TYPE, vector::SHIFT != 0>(piece.high, j, half);
        }
        const float2 d = make_float2(low.d[j], high.d[j]), m = make_float2(low.m[j], high.m[j]);
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            const char *record = records + (j * PAIRS + p) * vector::PAIR;
            const uint2 x = *reinterpret_cast<const uint2 *>(record + lane * 8);
            const float *steps = reinterpret_cast<const float *>(record + vector::DIGITS);
            if constexpr (vector::INT8) {
                const float2 scale = reinterpret_cast<const float2 *>(steps)[t];
                float2 x_sum = make_float2(0.0f, 0.0f);
                if (kf_is_affine(TYPE)) x_sum = reinterpret_cast<const float2 *>(steps + vector::STEPS)[t];
                kf_int8_block<TYPE>(sum, w, d, m, x, scale, x_sum);
            } else {
                const float x_sum = kf_is_affine(TYPE) ? steps[vector::STEPS + t] : 0.0f;
                kf_vector_pair<TYPE>(sum + 2 * p, w, d, m, x, steps[t], x_sum);
            }
        }
    }
}

// A warp's sums to shared memory: [16 rows][8 rows of x].
template <int TYPE, int MODE, int PAIRS>
__device__ __forceinline__ void kf_vector_put(float *to, int lane, float (&sum)[kf_vector<TYPE, MODE, PAIRS>::SUMS]) {
    const int g = lane >> 2, t = lane & 3;
    if constexpr (MODE == KF_X_INT8) {
        *reinterpret_cast<float2 *>(to + g * 8 + 2 * t) = make_float2(sum[0], sum[1]);
        *reinterpret_cast<float2 *>(to + (g + 8) * 8 + 2 * t) = make_float2(sum[2], sum[3]);
    } else {
#pragma unroll
        for (int i = 0; i < 2 * PAIRS; i++) {
            const float both = sum[i] + __shfl_xor_sync(0xffffffffu, sum[i], 1); // upper and lower digits
            if ((t & 1) == 0) to[(g + 8 * (i & 1)) * 8 + (i & ~1) + (t >> 1)] = both;
        }
    }
}

// Adds the parts' sums up in their order and stores them. The block has 2^group_bits groups of a.ways warps.
__device__ __forceinline__ void kf_vector_finish(const kf_cuda_linear &a, const float *sums) {
    const int groups = 1 << a.group_bits;
    for (int i = threadIdx.x; i < groups * 16 * a.T; i += blockDim.x) {
        const int row = i & 15, group = i >> 4 & (groups - 1), t = i >> (4 + a.group_bits);
        const int64_t n = (int64_t)(blockIdx.x * groups + group) * 2 * KF_OCTET + row;
        if (n >= a.N) continue;
        const float *part = sums + (group * a.ways * 16 + row) * 8 + t;
        float each[KF_VECTOR_WARPS], total = 0.0f;
#pragma unroll
        for (int w = 0; w < KF_VECTOR_WARPS; w++) each[w] = w < a.ways ? part[w * 128] : 0.0f;
#pragma unroll
        for (int w = 0; w < KF_VECTOR_WARPS; w++) total += each[w];
        kf_finish_element(a, t, n, total);
    }
}

template <int TYPE, int MODE, int PAIRS>
__global__ void __launch_bounds__(KF_VECTOR_WARPS * 32, 1) kf_linear_vector(const __grid_constant__ kf_cuda_linear a) {
    using vector = kf_vector<TYPE, MODE, PAIRS>;
    constexpr int DEPTH = vector::DEPTH;
    extern __shared__ __align__(128) char memory[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int group = warp / a.ways, part = warp - group * a.ways;
    const int octet = ((blockIdx.x << a.group_bits) + group) * 2, first = part * a.part_quads;
    const int count = octet < a.octets ? min(a.part_quads, (a.blocks + 3) / 4 - first) : 0;
    const bool whole = (octet + 2) * KF_OCTET <= a.N && (first + count + 1) / 2 * KF_UNIT_BLOCKS <= a.blocks;
    const char *const from = a.w + octet * a.octet_bytes;
    float *const sums = reinterpret_cast<float *>(memory + a.row_blocks * vector::RECORD);

    kf_piece<TYPE> piece[DEPTH];
    if (a.weights_made) kf_wait_for_previous();
    if (whole) {
#pragma unroll
        for (int i = 0; i < DEPTH; i++)
            if (i < count) kf_vector_load<TYPE>(from, a.octet_bytes, first + i, lane, piece[i]);
    } else if (count > 0) {
        kf_vector_load_end<TYPE>(a, octet, first, lane, piece[0]);
    }
    kf_launch_dependents();
    kf_wait_for_previous();
    kf_vector_x<TYPE, MODE, PAIRS>(a, memory, lane);
    __syncthreads();

    float sum[vector::SUMS] = {};
    if (whole) {
#pragma unroll 1
        for (int q = 0; q < count; q += DEPTH) {
#pragma unroll
            for (int i = 0; i < DEPTH; i++) {
                if (q + i >= count) break;
                const int quad = first + q + i;
                kf_vector_multiply<TYPE, MODE, PAIRS>(piece[i], quad & 1, memory + quad * 4 * vector::RECORD, lane,
                                                      sum);
                if (q + i + DEPTH < count) kf_vector_load<TYPE>(from, a.octet_bytes, quad + DEPTH, lane, piece[i]);
            }
        }
    } else {
#pragma unroll 1
        for (int quad = first; quad < first + count; quad++) {
            kf_vector_multiply<TYPE, MODE, PAIRS>(piece[0], quad & 1, memory + quad * 4 * vector::RECORD, lane, sum);
            if (quad + 1 < first + count) kf_vector_load_end<TYPE>(a, octet, quad + 1, lane, piece[0]);
        }
    }
    kf_vector_put<TYPE, MODE, PAIRS>(sums + warp * 128, lane, sum);
    __syncthreads();
    kf_vector_finish(a, sums);
}

#define KF_VECTOR_ROW(TYPE, MODE, PAIRS, ROWS, NAME)                                                                   \
    {                                                                                                                  \
        KF_CUDA_VECTOR, TYPE, MODE, kf_vector<TYPE, MODE, PAIRS>::RECORD, 0, 0, 0, ROWS,                               \
            (const void *)kf_linear_vector<TYPE, MODE, PAIRS>, NAME                                                    \
    }
#define KF_VECTOR_ROWS_OF(TYPE)                                                                                        \
    KF_VECTOR_ROW(TYPE, KF_X_FIXED, 1, 2, "1 to 2 rows"), KF_VECTOR_ROW(TYPE, KF_X_FIXED, 2, 4, "3 to 4 rows"),        \
        KF_VECTOR_ROW(TYPE, KF_X_FIXED, 4, 8, "5 to 8 rows"),                                                          \
        KF_VECTOR_ROW(TYPE, KF_X_INT8, 1, 8, "1 to 8 rows, int8 x")

#endif
