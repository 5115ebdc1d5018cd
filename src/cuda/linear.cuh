// SPDX-License-Identifier: Apache-2.0
//
// What the kernels of the linear layer are made of: weights of a block of 32 columns as fragments of mma.sync, rows of x in the form
// that the product takes, and the sum of one block.
//
//     quantised   P = sum over a block of (code - offset) x, from zero in the tensor cores' fp32 sums: codes are exact in bf16;
//                 sum += d P, then sum += m sum x  (affine types); Q6_K: for each half of the block
//     int8        P exact in int32; sum += d (scale P), then sum += m (scale sum X)
//     dense       16 bits times the same 16 bits: the tensor cores' chain over the whole slice; otherwise W and x are split into bf16
//                 parts (fp32 24 bits = 3 x 8, fp16 11 = 8 + 3) whose sums are exact, P of a block from zero, sum += P
//
// A bf16 part of x is x with its lower bits cut off, so a rest is exact and cannot overflow. Of nine products of parts the three
// smallest (2^-24 of the product and less) are left out.
#ifndef KF_CUDA_LINEAR_CUH
#define KF_CUDA_LINEAR_CUH

#include "cuda/fragments.h"
#include "cuda/linear.h"
#include "cuda/mma.cuh"

#include <type_traits>

enum { KF_F32 = 1, KF_F16 = 2, KF_BF16_ = 3 }; // kf_type

__host__ __device__ constexpr bool kf_is_dense(int type) {
    return type == KF_WEIGHT_F32 || type == KF_WEIGHT_F16 || type == KF_WEIGHT_BF16;
}
__host__ __device__ constexpr bool kf_is_k(int type) {
    return type == KF_WEIGHT_Q4_K || type == KF_WEIGHT_Q5_K || type == KF_WEIGHT_Q6_K;
}
__host__ __device__ constexpr bool kf_is_affine(int type) {
    return type == KF_WEIGHT_Q4_1 || type == KF_WEIGHT_Q5_1 || type == KF_WEIGHT_Q4_K || type == KF_WEIGHT_Q5_K;
}
__host__ __device__ constexpr int kf_bits(int type) {
    return type == KF_WEIGHT_Q8_0                                                       ? 8
           : type == KF_WEIGHT_Q6_K                                                     ? 6
           : type == KF_WEIGHT_Q5_0 || type == KF_WEIGHT_Q5_1 || type == KF_WEIGHT_Q5_K ? 5
                                                                                        : 4;
}
__host__ __device__ constexpr int kf_offset(int type) {
    return kf_is_affine(type) || kf_bits(type) == 8 ? 0 : 1 << (kf_bits(type) - 1);
}
__host__ __device__ constexpr int kf_row_unit(int type) { // bytes of a row of a full unit
    return type == KF_WEIGHT_Q4_0 || type == KF_WEIGHT_Q4_K   ? 144
           : type == KF_WEIGHT_Q4_1                           ? 160
           : type == KF_WEIGHT_Q5_0 || type == KF_WEIGHT_Q5_K ? 176
           : type == KF_WEIGHT_Q5_1                           ? 192
           : type == KF_WEIGHT_Q6_K                           ? 210
                                                              : 272;
}
__host__ __device__ constexpr int kf_x_parts(int mode) { return mode == KF_X_SPLIT ? 3 : 1; }

// ------------------------------------------------------------------------------------------------------- elements

__device__ __forceinline__ float kf_element(const char *x, int type, int64_t i) {
    if (type == KF_F32) return __ldcg(reinterpret_cast<const float *>(x) + i);
    const unsigned short bits = __ldcg(reinterpret_cast<const unsigned short *>(x) + i);
    return type == KF_F16 ? __half2float(__ushort_as_half(bits)) : __uint_as_float((uint32_t)bits << 16);
}

__device__ __forceinline__ void kf_put_element(char *y, int type, int64_t i, float value) {
    if (type == KF_F32)
        reinterpret_cast<float *>(y)[i] = value;
    else if (type == KF_F16)
        reinterpret_cast<__half *>(y)[i] = __float2half_rn(value);
    else
        reinterpret_cast<__nv_bfloat16 *>(y)[i] = __float2bfloat16_rn(value);
}

__device__ __forceinline__ void kf_finish_element(const kf_cuda_linear &a, int64_t t, int64_t n, float sum) {
    if (a.bias) sum += kf_element(a.bias, a.bias_type, n);
    kf_put_element(a.y, a.y_type, t * a.y_stride + n, sum);
}

__device__ __forceinline__ float kf_unpack_low(uint32_t pair, int type) {
    return type == KF_F16 ? __half2float(__ushort_as_half((unsigned short)pair)) : __uint_as_float(pair << 16);
}
__device__ __forceinline__ float kf_unpack_high(uint32_t pair, int type) {
    return type == KF_F16 ? __half2float(__ushort_as_half((unsigned short)(pair >> 16)))
                          : __uint_as_float(pair & 0xffff0000u);
}

// ------------------------------------------------------------------------------------------------------- rows of x

// The eight values of a row that lane `part` (0 to 3) of a quad holds of a block: columns 8 part .. +7 beside dense weights, 4 part .. +3
// and 16 + 4 part .. +3 beside quantised ones. The row begins at a multiple of 16 bytes and holds the whole block.
template <bool DENSE>
__device__ __forceinline__ void kf_x_aligned(const char *row, int type, int block, int part, float (&v)[8]) {
    const int first = block * 8 + (DENSE ? 2 : 1) * part, second = first + (DENSE ? 1 : 4); // in fours
    if (type == KF_F32) {
        const float4 low = __ldcg(reinterpret_cast<const float4 *>(row) + first),
                     high = __ldcg(reinterpret_cast<const float4 *>(row) + second);
        v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
        v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
    } else {
        const uint2 low = __ldcg(reinterpret_cast<const uint2 *>(row) + first),
                    high = __ldcg(reinterpret_cast<const uint2 *>(row) + second);
        v[0] = kf_unpack_low(low.x, type), v[1] = kf_unpack_high(low.x, type);
        v[2] = kf_unpack_low(low.y, type), v[3] = kf_unpack_high(low.y, type);
        v[4] = kf_unpack_low(high.x, type), v[5] = kf_unpack_high(high.x, type);
        v[6] = kf_unpack_low(high.y, type), v[7] = kf_unpack_high(high.y, type);
    }
}

// The same of any row; columns from K on are 0.
template <bool DENSE>
__device__ __forceinline__ void kf_x_values(const kf_cuda_linear &a, int64_t t, int block, int part, float (&v)[8]) {
    const int first = block * 32 + (DENSE ? 8 : 4) * part, second = first + (DENSE ? 4 : 16);
    const int64_t row = t * a.x_stride;
    if (a.x_aligned && second + 4 <= a.K) {
        kf_x_aligned<DENSE>(a.x + row * (a.x_type == KF_F32 ? 4 : 2), a.x_type, block, part, v);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int k = i < 4 ? first + i : second + i - 4;
            v[i] = k < a.K ? kf_element(a.x, a.x_type, row + k) : 0.0f;
        }
    }
}

// Over the four lanes of a quad; all of the warp call it.
__device__ __forceinline__ float kf_block_sum(const float (&v)[8]) {
    return kf_quad_sum(((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7])));
}

// Pair p of the fragments: columns (0,1), (2,3), (4,5), (6,7) of the eight beside dense weights, else (0,2), (1,3), (4,6), (5,7).
template <bool DENSE> __host__ __device__ constexpr int kf_pair_first(int p) {
    return DENSE ? 2 * p : (p & 1) + 4 * (p >> 1);
}
template <bool DENSE> __host__ __device__ constexpr int kf_pair_second(int p) {
    return kf_pair_first<DENSE>(p) + (DENSE ? 1 : 2);
}

__device__ __forceinline__ uint32_t kf_upper_halves(float low, float high) {
    return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
}
// v less its upper half; of an infinity nothing is left, of NaN NaN.
__device__ __forceinline__ float kf_cut(float v) {
    const float rest = v - __uint_as_float(__float_as_uint(v) & 0xffff0000u);
    return fabsf(v) == INFINITY ? 0.0f : rest;
}

// Three bf16 parts of a pair, the largest first.
__device__ __forceinline__ void kf_split_pair(float low, float high, uint32_t (&part)[3]) {
    part[0] = kf_upper_halves(low, high);
    low = kf_cut(low), high = kf_cut(high);
    part[1] = kf_upper_halves(low, high);
    part[2] = kf_upper_halves(kf_cut(low), kf_cut(high));
}

// The form of eight values in a float mode.
template <int MODE, bool DENSE> __device__ __forceinline__ void kf_x_form(const float (&v)[8], uint4 (&form)[3]) {
    uint32_t word[4][3];
#pragma unroll
    for (int p = 0; p < 4; p++) {
        const float low = v[kf_pair_first<DENSE>(p)], high = v[kf_pair_second<DENSE>(p)];
        if (MODE == KF_X_SPLIT)
            kf_split_pair(low, high, word[p]);
        else
            word[p][0] = MODE == KF_X_F16 ? kf_pack<__half>(low, high) : kf_pack<__nv_bfloat16>(low, high);
    }
#pragma unroll
    for (int i = 0; i < kf_x_parts(MODE); i++) form[i] = make_uint4(word[0][i], word[1][i], word[2][i], word[3][i]);
}

// int8: the block's scale = max|x| / 127, X = x / scale to nearest, both true divisions; a block with NaN or an infinity has the scale
// NaN. *sum is scale times the sum of X. All lanes of the warp call it.
__device__ __forceinline__ uint2 kf_x_int8(const float (&v)[8], float *scale, float *sum) {
    float largest = 0.0f;
    bool finite = true;
#pragma unroll
    for (int i = 0; i < 8; i++) largest = fmaxf(largest, fabsf(v[i])), finite &= fabsf(v[i]) < INFINITY;
    if (!finite) largest = INFINITY;
    largest = kf_quad_max(largest);
    *scale = largest < INFINITY ? __fdiv_rn(largest, 127.0f) : __uint_as_float(0x7fffffffu);
    uint32_t word[2] = {0, 0};
    int total = 0;
    if (*scale > 0.0f) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int q = __float2int_rn(__fdiv_rn(v[i], *scale));
            word[i / 4] |= ((uint32_t)q & 255u) << 8 * (i % 4);
            total += q;
        }
    }
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    *sum = *scale * (float)total;
    return make_uint2(word[0], word[1]);
}

// ------------------------------------------------------------------------------------------------------- quantised weights

// What a lane holds of four blocks (of eight: quad 0 or 1 of a unit) of one row.
template <int TYPE> struct kf_codes {
    static const int LOW = kf_bits(TYPE) == 8 ? 8 : 4, UPPER = kf_bits(TYPE) == 6 ? 2 : 1;
    uint32_t low[LOW], upper[UPPER];
};

// 16 bytes of codes from the device's memory: nobody else reads them. The load stays where it is written: ahead of the wait for the kernel before.
__device__ __forceinline__ uint4 kf_load_codes(const char *at) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at));
    return v;
}
__device__ __forceinline__ uint2 kf_load_pair(const char *at) {
    uint2 v;
    asm volatile("ld.global.nc.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(at));
    return v;
}
__device__ __forceinline__ uint32_t kf_load_word(const char *at) {
    uint32_t v;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(at));
    return v;
}
__device__ __forceinline__ uint32_t kf_load_half(const char *at) {
    unsigned short v;
    asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(at));
    return v;
}

// FULL: of a unit of eight rows and eight blocks, else of what is left at the end of the rows or of W.
template <int TYPE, bool FULL>
__device__ __forceinline__ kf_codes<TYPE> kf_read_codes(const char *unit, int rows, int blocks, int quad, int lane) {
    kf_codes<TYPE> c;
    if (FULL) rows = KF_OCTET, blocks = KF_UNIT_BLOCKS;
    const bool all = FULL || blocks == KF_UNIT_BLOCKS;
    const char *upper = unit + kf_unit_upper(TYPE, rows, blocks);
    constexpr int WORDS = c.LOW / 4; // of a block
    c.upper[0] = 0;
    if (FULL) {
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            const uint4 piece = kf_load_codes(unit + (quad * WORDS + i) * rows * 64 + lane * 16);
            c.low[4 * i] = piece.x, c.low[4 * i + 1] = piece.y, c.low[4 * i + 2] = piece.z, c.low[4 * i + 3] = piece.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4 * WORDS; i++) {
            const int block = 4 * quad + i / WORDS, piece = quad * WORDS + i / 4;
            const int at = all ? piece * rows * 64 + lane * 16 + i % 4 * 4
                               : (block * rows * 4 + lane) * 4 * WORDS + 4 * (i % WORDS);
            c.low[i] = block < blocks ? kf_load_word(unit + at) : 0;
        }
    }
    if (kf_bits(TYPE) == 5 && all) c.upper[0] = kf_load_word(upper + lane * 8 + quad * 4);
    if (kf_bits(TYPE) == 6) { // blocks of 256: never less than a unit
        const uint2 pair = kf_load_pair(upper + lane * 16 + quad * 8);
        c.upper[0] = pair.x, c.upper[c.UPPER - 1] = pair.y;
    }
    if (kf_bits(TYPE) == 5 && !all) { // less than a unit: nibbles and bits, put where four whole blocks have them
        uint32_t word[6] = {};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int block = 4 * quad + j;
            if (block >= blocks) continue;
            const uint32_t bits = *reinterpret_cast<const uint8_t *>(upper + block * rows * 4 + lane);
#pragma unroll
            for (int p = 0; p < 4; p++) {
                const uint32_t fifth = (bits >> p & 1) << 4 | (bits >> (4 + p) & 1) << 20;
                kf_pack_pair(5, word, j, p, (c.low[j] >> (4 * (p >> 1) + 8 * (p & 1)) & 0x000f000fu) | fifth);
            }
        }
#pragma unroll
        for (int j = 0; j < 4; j++) c.low[j] = word[j];
        c.upper[0] = word[4];
    }
    return c;
}

// word & mask | base in one instruction: of two constants the compiler made two.
template <uint32_t MASK, uint32_t BASE> __device__ __forceinline__ uint32_t kf_mask_onto(uint32_t word) {
    uint32_t result;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "n"(MASK), "n"(BASE));
    return result;
}

// a * b + c on pairs of bf16.
__device__ __forceinline__ uint32_t kf_fma_pair(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// The two codes of pair p of block j of the four, each 16 bits, onto BASE: fragments.h says where they lie. Types of four to six bits.
template <int TYPE, uint32_t BASE>
__device__ __forceinline__ uint32_t kf_code_two(const kf_codes<TYPE> &c, int j, int p) {
    const uint32_t word = c.low[j], more = c.upper[j / 2 % c.UPPER];
    if (kf_bits(TYPE) == 4) return kf_mask_onto<0x000f000fu, BASE>(word >> (4 * (p >> 1) + 8 * (p & 1)));
    if (kf_bits(TYPE) == 5) {
        if (p < 3) return kf_mask_onto<0x001f001fu, BASE>(word >> 5 * p);
        if (j > 0) return kf_mask_onto<0x001f001fu, BASE>(more >> 5 * (j - 1));
        uint32_t two = kf_mask_onto<0x00010001u, BASE>(word >> 15) | (more >> 11 & 0x00100010u);
#pragma unroll
        for (int i = 1; i < 4; i++) two |= c.low[i] >> (15 - i) & 0x00010001u << i;
        return two;
    }
    if (p < 2) return kf_mask_onto<0x003f003fu, BASE>(word >> 6 * p);
    if (p == 2) return kf_mask_onto<0x003f003fu, BASE>(more >> 6 * (j & 1));
    return kf_mask_onto<0x000f000fu, BASE>(word >> 12) | (more >> (8 + 2 * (j & 1)) & 0x00300030u);
}

// Pair p of block j of the four: code - offset as bf16. 128 + code is 0x4300 | code, for bf16 has 7 bits after the first.
template <int TYPE> __device__ __forceinline__ uint32_t kf_code_pair(const kf_codes<TYPE> &c, int j, int p) {
    constexpr uint32_t base = 0x43004300u, one = 0x3f803f80u, minus_one = 0xbf80bf80u;
    if (kf_bits(TYPE) == 8) { // 7 bits less 128 times the sign: the sign turns 128 into 256 in the subtrahend
        const uint32_t word = c.low[(2 * j + p / 2) % c.LOW] >> 8 * (p & 1);
        return kf_fma_pair(kf_mask_onto<0x00800080u, base>(word), minus_one, kf_mask_onto<0x007f007fu, base>(word));
    }
    const uint32_t less = 0xc300u + kf_offset(TYPE);
    return kf_fma_pair(kf_code_two<TYPE, base>(c, j, p), one, less | less << 16);
}

// Half 0 or 1 of block j as four int8.
template <int TYPE> __device__ __forceinline__ uint32_t kf_code_bytes(const kf_codes<TYPE> &c, int j, int half) {
    if (kf_bits(TYPE) == 8) return c.low[(2 * j + half) % c.LOW];
    uint32_t four = c.low[j] >> 4 * half & 0x0f0f0f0fu;
    if (kf_bits(TYPE) > 4)
        four = __byte_perm(kf_code_two<TYPE, 0>(c, j, 2 * half), kf_code_two<TYPE, 0>(c, j, 2 * half + 1), 0x6240);
    // Less the offset in every byte, without a borrow between them.
    const uint32_t sign = 0x80808080u;
    return kf_offset(TYPE) ? ((four | sign) - kf_offset(TYPE) * 0x01010101u) ^ sign : four;
}

// Factors of four blocks of one row: d and m; Q6_K: d of the first and of the second half. Blocks that are not there: 0.
struct kf_factors {
    float d[4], m[4];
};

__device__ __forceinline__ float kf_half_at(uint32_t pair, int high) {
    return __half2float(__ushort_as_half((unsigned short)(high ? pair >> 16 : pair)));
}

// The same as they lie: a quad's d (then m) in two words each; K types: the row's 16 bytes; Q6_K: the quad's 8 bytes, and d.
template <int TYPE> struct kf_raw_factors {
    static const int WORDS = TYPE == KF_WEIGHT_Q6_K ? 3 : kf_is_k(TYPE) || kf_is_affine(TYPE) ? 4 : 2;
    uint32_t word[WORDS];
};

template <int TYPE, bool FULL>
__device__ __forceinline__ kf_raw_factors<TYPE> kf_load_factors(const char *unit, int rows, int blocks, int quad,
                                                                int g) {
    kf_raw_factors<TYPE> raw;
    constexpr int LAST = raw.WORDS - 1;
    if (FULL) rows = KF_OCTET, blocks = KF_UNIT_BLOCKS;
    const char *scales = unit + kf_unit_scales(TYPE, rows, blocks);
    if constexpr (TYPE == KF_WEIGHT_Q6_K) {
        const uint2 s = kf_load_pair(scales + g * 16 + quad * 8);
        raw.word[0] = s.x, raw.word[1] = s.y, raw.word[2] = kf_load_half(scales + rows * 16 + g * 2);
    } else if constexpr (kf_is_k(TYPE)) {
        const uint2 s = kf_load_pair(scales + g * 16), t = kf_load_pair(scales + g * 16 + 8);
        raw.word[0] = s.x, raw.word[1] = s.y, raw.word[2] = t.x, raw.word[3] = t.y;
    } else if (FULL) {
        const uint2 d = kf_load_pair(scales + g * 16 + quad * 8);
        raw.word[0] = d.x, raw.word[1] = d.y;
        if (kf_is_affine(TYPE)) {
            const uint2 m = kf_load_pair(scales + (rows + g) * 16 + quad * 8);
            raw.word[LAST - 1] = m.x, raw.word[LAST] = m.y;
        }
    } else {
#pragma unroll
        for (int i = 0; i < raw.WORDS; i++) raw.word[i] = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int block = 4 * quad + j;
            const char *at = scales + kf_unit_scale(rows, blocks, block, g);
            if (block >= blocks) continue;
            raw.word[j / 2] |= kf_load_half(at) << 16 * (j & 1);
            if (kf_is_affine(TYPE)) raw.word[LAST - 1 + j / 2] |= kf_load_half(at + rows * 2 * blocks) << 16 * (j & 1);
        }
    }
    return raw;
}

template <int TYPE> __device__ __forceinline__ kf_factors kf_decode_factors(const kf_raw_factors<TYPE> &raw, int quad) {
    kf_factors f;
    constexpr int LAST = raw.WORDS - 1;
    if constexpr (TYPE == KF_WEIGHT_Q6_K) {
        const float d = kf_half_at(raw.word[2], 0);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t pair = raw.word[j / 2] >> 16 * (j & 1);
            f.d[j] = d * (float)(int8_t)(pair & 255), f.m[j] = d * (float)(int8_t)(pair >> 8 & 255);
        }
    } else if constexpr (kf_is_k(TYPE)) {
        const uint32_t low = 0x3f3f3f3fu, nibble = 0x0f0f0f0fu, two = 0x03030303u;
        const uint32_t y = raw.word[1], z = raw.word[2], w = raw.word[3];
        const uint32_t sc = quad == 0 ? y & low : (w & nibble) | (y >> 6 & two) << 4;
        const uint32_t mn = quad == 0 ? z & low : (w >> 4 & nibble) | (z >> 6 & two) << 4;
        const float d = kf_half_at(raw.word[0], 0), least = kf_half_at(raw.word[0], 1);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            f.d[j] = d * (float)(sc >> 8 * j & 255);
            f.m[j] = -(least * (float)(mn >> 8 * j & 255));
        }
    } else {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            f.d[j] = kf_half_at(raw.word[j / 2], j & 1);
            f.m[j] = kf_is_affine(TYPE) ? kf_half_at(raw.word[LAST - 1 + j / 2], j & 1) : 0.0f;
        }
    }
    return f;
}

// ------------------------------------------------------------------------------------------------------- products

// A fragment's 16 rows of a block of 32 columns: of row g and row g + 8, the four pairs (int8: the two halves).
struct kf_block_a {
    uint32_t low[4], high[4];
};

__device__ __forceinline__ void kf_mma_int8(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                            uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void kf_mma_int8_half(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b0));
}

template <class T>
__device__ __forceinline__ void kf_mma_step(float (&c)[4], const kf_block_a &a, int step, const uint4 &x) {
    const uint32_t f[4] = {a.low[2 * step], a.high[2 * step], a.low[2 * step + 1], a.high[2 * step + 1]};
    kf_mma<T>(c, f, step ? x.z : x.x, step ? x.w : x.y);
}

// sum += factors times products: c0, c1 are row g (factor low), c2, c3 row g + 8.
__device__ __forceinline__ void kf_fold(float (&sum)[4], float low, float high, const float (&p)[4]) {
    sum[0] = fmaf(low, p[0], sum[0]), sum[1] = fmaf(low, p[1], sum[1]);
    sum[2] = fmaf(high, p[2], sum[2]), sum[3] = fmaf(high, p[3], sum[3]);
}

// One block of quantised weights times eight rows of x. d, m: of row g and g + 8. x: float modes' parts. x_sum: of rows 2t and 2t + 1.
template <int TYPE, int MODE>
__device__ __forceinline__ void kf_quantised_block(float (&sum)[4], const kf_block_a &a, const float2 d, const float2 m,
                                                   const uint4 (&x)[3], float2 x_sum) {
    float p[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if constexpr (TYPE == KF_WEIGHT_Q6_K) {
        float second[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int i = kf_x_parts(MODE) - 1; i >= 0; i--) {
            kf_mma_step<__nv_bfloat16>(p, a, 0, x[i]);
            kf_mma_step<__nv_bfloat16>(second, a, 1, x[i]);
        }
        kf_fold(sum, d.x, d.y, p);
        kf_fold(sum, m.x, m.y, second);
    } else {
#pragma unroll
        for (int i = kf_x_parts(MODE) - 1; i >= 0; i--) {
            kf_mma_step<__nv_bfloat16>(p, a, 0, x[i]);
            kf_mma_step<__nv_bfloat16>(p, a, 1, x[i]);
        }
        kf_fold(sum, d.x, d.y, p);
    }
    const float beside[4] = {x_sum.x, x_sum.y, x_sum.x, x_sum.y};
    if (kf_is_affine(TYPE)) kf_fold(sum, m.x, m.y, beside);
}

__device__ __forceinline__ void kf_scaled(float (&p)[4], const int (&c)[4], float2 scale) {
    p[0] = scale.x * (float)c[0], p[1] = scale.y * (float)c[1], p[2] = scale.x * (float)c[2],
    p[3] = scale.y * (float)c[3];
}

template <int TYPE>
__device__ __forceinline__ void kf_int8_block(float (&sum)[4], const kf_block_a &a, const float2 d, const float2 m,
                                              uint2 x, float2 scale, float2 x_sum) {
    int c[4] = {0, 0, 0, 0};
    float p[4];
    if (TYPE == KF_WEIGHT_Q6_K) {
        kf_mma_int8_half(c, a.low[0], a.high[0], x.x);
        kf_scaled(p, c, scale);
        kf_fold(sum, d.x, d.y, p);
        c[0] = c[1] = c[2] = c[3] = 0;
        kf_mma_int8_half(c, a.low[1], a.high[1], x.y);
        kf_scaled(p, c, scale);
        kf_fold(sum, m.x, m.y, p);
        return;
    }
    kf_mma_int8(c, a.low[0], a.high[0], a.low[1], a.high[1], x.x, x.y);
    kf_scaled(p, c, scale);
    kf_fold(sum, d.x, d.y, p);
    const float beside[4] = {x_sum.x, x_sum.y, x_sum.x, x_sum.y};
    if (kf_is_affine(TYPE)) kf_fold(sum, m.x, m.y, beside);
}

template <int TYPE, int MODE>
__device__ __forceinline__ kf_block_a kf_quantised_fragment(const kf_codes<TYPE> &low, const kf_codes<TYPE> &high,
                                                            int j) {
    kf_block_a a;
#pragma unroll
    for (int p = 0; p < (MODE == KF_X_INT8 ? 2 : 4); p++) {
        a.low[p] = MODE == KF_X_INT8 ? kf_code_bytes(low, j, p) : kf_code_pair(low, j, p);
        a.high[p] = MODE == KF_X_INT8 ? kf_code_bytes(high, j, p) : kf_code_pair(high, j, p);
    }
    return a;
}

// ------------------------------------------------------------------------------------------------------- dense weights

// A lane's eight columns of a row and block: 16 bytes, of fp32 32.
template <int TYPE> struct kf_dense_piece { uint4 word[TYPE == KF_WEIGHT_F32 ? 2 : 1]; };

// Whether W and x are multiplied as they are.
template <int TYPE, int MODE> __host__ __device__ constexpr bool kf_is_direct() {
    return (TYPE == KF_WEIGHT_BF16 && MODE == KF_X_BF16) || (TYPE == KF_WEIGHT_F16 && MODE == KF_X_F16);
}

__device__ __forceinline__ kf_block_a kf_dense_fragment(uint4 low, uint4 high) {
    return {{low.x, low.y, low.z, low.w}, {high.x, high.y, high.z, high.w}};
}

// Three bf16 parts of a piece of fp16 or fp32 weights.
template <int TYPE>
__device__ __forceinline__ void kf_split_piece(const kf_dense_piece<TYPE> &piece, uint4 (&part)[3]) {
    uint32_t word[4][3];
    const uint4 w = piece.word[0], rest = piece.word[TYPE == KF_WEIGHT_F32 ? 1 : 0];
    if (TYPE == KF_WEIGHT_F32) {
        kf_split_pair(__uint_as_float(w.x), __uint_as_float(w.y), word[0]);
        kf_split_pair(__uint_as_float(w.z), __uint_as_float(w.w), word[1]);
        kf_split_pair(__uint_as_float(rest.x), __uint_as_float(rest.y), word[2]);
        kf_split_pair(__uint_as_float(rest.z), __uint_as_float(rest.w), word[3]);
    } else {
        kf_split_pair(kf_unpack_low(w.x, KF_F16), kf_unpack_high(w.x, KF_F16), word[0]);
        kf_split_pair(kf_unpack_low(w.y, KF_F16), kf_unpack_high(w.y, KF_F16), word[1]);
        kf_split_pair(kf_unpack_low(w.z, KF_F16), kf_unpack_high(w.z, KF_F16), word[2]);
        kf_split_pair(kf_unpack_low(w.w, KF_F16), kf_unpack_high(w.w, KF_F16), word[3]);
    }
#pragma unroll
    for (int i = 0; i < 3; i++) part[i] = make_uint4(word[0][i], word[1][i], word[2][i], word[3][i]);
}

// One block of dense weights of 16 rows, in parts, ready for the product.
template <int TYPE, int MODE> struct kf_dense_a {
    static const int PARTS = kf_is_direct<TYPE, MODE>() || TYPE == KF_WEIGHT_BF16 ? 1 : 3;
    kf_block_a part[PARTS];
};

template <int TYPE, int MODE>
__device__ __forceinline__ kf_dense_a<TYPE, MODE> kf_dense_parts(const kf_dense_piece<TYPE> &low,
                                                                 const kf_dense_piece<TYPE> &high) {
    kf_dense_a<TYPE, MODE> a;
    if (a.PARTS == 1) {
        a.part[0] = kf_dense_fragment(low.word[0], high.word[0]);
    } else {
        uint4 l[3], h[3];
        kf_split_piece<TYPE>(low, l);
        kf_split_piece<TYPE>(high, h);
#pragma unroll
        for (int i = 0; i < a.PARTS; i++) a.part[i] = kf_dense_fragment(l[i], h[i]);
    }
    return a;
}

template <int TYPE, int MODE>
__device__ __forceinline__ void kf_dense_block(float (&sum)[4], const kf_dense_a<TYPE, MODE> &a, const uint4 (&x)[3]) {
    if constexpr (kf_is_direct<TYPE, MODE>()) {
        using element = typename std::conditional<TYPE == KF_WEIGHT_F16, __half, __nv_bfloat16>::type;
        kf_mma_step<element>(sum, a.part[0], 0, x[0]);
        kf_mma_step<element>(sum, a.part[0], 1, x[0]);
    } else {
        float p[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int rank = 2; rank >= 0; rank--) // of the parts' places together: the smallest products first
#pragma unroll
            for (int i = 0; i < kf_dense_a<TYPE, MODE>::PARTS; i++) {
                if (i > rank) continue;
                kf_mma_step<__nv_bfloat16>(p, a.part[i], 0, x[rank - i]);
                kf_mma_step<__nv_bfloat16>(p, a.part[i], 1, x[rank - i]);
            }
        kf_fold(sum, 1.0f, 1.0f, p);
    }
}

#endif
