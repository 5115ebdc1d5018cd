// SPDX-License-Identifier: Apache-2.0
//
// The blocks of GGUF's quantised weights, read one block at a time:
//
//     value = d * (code - offset) + m        code: unsigned, 4 to 8 bits; offset: one number for the type
//
//     type   bytes/values  layout (little-endian)                            d, m of a group of values
//     Q4_0   18/32         d, nibbles[16]                                    d, 0                 offset 8
//     Q4_1   20/32         d, m, nibbles[16]                                 d, m                 offset 0
//     Q5_0   22/32         d, high[4], nibbles[16]                           d, 0                 offset 16
//     Q5_1   24/32         d, m, high[4], nibbles[16]                        d, m                 offset 0
//     Q8_0   34/32         d, int8[32]                                       d, 0                 offset 128
//     Q4_K   144/256       d, dmin, scales[12], nibbles[128]                 d sc, -dmin mn       offset 0
//     Q5_K   176/256       d, dmin, scales[12], high[32], nibbles[128]       d sc, -dmin mn       offset 0
//     Q6_K   210/256       nibbles[128], high[64], int8 sc[16], d            d sc, 0              offset 32
//
// d, m and dmin are fp16. In blocks of 32, byte j of the nibbles holds value j in its low half and value j + 16 in its high half; bit j of
// `high` is value j's fifth bit. Q8_0's codes are its bytes + 128. In K blocks a run of 32 nibble bytes holds 64 values, first the low
// halves. (ggml's k-quants; the format is documented with the GGUF specification.)
//
// Products d * (code - offset) have at most 24 significant bits, so they are exact in fp32, and a value carries one rounding at most.
//
// Used by packing, the embedding, the scalar kernels and the CUDA kernels.
#ifndef KF_MATH_BLOCKS_H
#define KF_MATH_BLOCKS_H

#include "keyfold.h"
#include "math/half.h"

enum {
    KF_BLOCK_SMALL = 32,  // values of Q4_0 .. Q8_0
    KF_BLOCK_LARGE = 256, // values of the K types
    KF_BLOCK_MAX = 256,
    KF_BLOCK_Q6_GROUP = 16 // values that share a scale in Q6_K; 32 in all other types
};

KF_HD int kf_block_quantised(int type) {
    return type != KF_WEIGHT_F32 && type != KF_WEIGHT_F16 && type != KF_WEIGHT_BF16;
}

KF_HD int kf_block_is_k(int type) { return type == KF_WEIGHT_Q4_K || type == KF_WEIGHT_Q5_K || type == KF_WEIGHT_Q6_K; }

KF_HD int kf_block_values(int type) {
    return !kf_block_quantised(type) ? 1 : kf_block_is_k(type) ? KF_BLOCK_LARGE : KF_BLOCK_SMALL;
}

KF_HD int kf_block_bytes(int type) {
    switch (type) {
    case KF_WEIGHT_F32: return 4;
    case KF_WEIGHT_Q4_0: return 18;
    case KF_WEIGHT_Q4_1: return 20;
    case KF_WEIGHT_Q5_0: return 22;
    case KF_WEIGHT_Q5_1: return 24;
    case KF_WEIGHT_Q8_0: return 34;
    case KF_WEIGHT_Q4_K: return 144;
    case KF_WEIGHT_Q5_K: return 176;
    case KF_WEIGHT_Q6_K: return 210;
    default: return 2; // F16, BF16
    }
}

// Has an m of its own.
KF_HD int kf_block_affine(int type) {
    return type == KF_WEIGHT_Q4_1 || type == KF_WEIGHT_Q5_1 || type == KF_WEIGHT_Q4_K || type == KF_WEIGHT_Q5_K;
}

KF_HD int kf_block_code_bits(int type) {
    switch (type) {
    case KF_WEIGHT_Q4_0:
    case KF_WEIGHT_Q4_1:
    case KF_WEIGHT_Q4_K: return 4;
    case KF_WEIGHT_Q5_0:
    case KF_WEIGHT_Q5_1:
    case KF_WEIGHT_Q5_K: return 5;
    case KF_WEIGHT_Q6_K: return 6;
    default: return 8;
    }
}

KF_HD int kf_block_offset(int type) { return kf_block_affine(type) ? 0 : 1 << (kf_block_code_bits(type) - 1); }

KF_HD int kf_block_group(int type) { return type == KF_WEIGHT_Q6_K ? KF_BLOCK_Q6_GROUP : KF_BLOCK_SMALL; }

KF_HD uint16_t kf_block_read16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

KF_HD float kf_block_half(const uint8_t *p) { return kf_fp16_to_float(kf_block_read16(p)); }

// Bytes before the codes of a block of 32.
KF_HD int kf_block_head(int type) { return type == KF_WEIGHT_Q4_1 || type == KF_WEIGHT_Q5_1 ? 4 : 2; }

KF_HD void kf_block_codes_small(int type, const uint8_t *block, uint8_t *code) {
    const uint8_t *p = block + kf_block_head(type);
    if (type == KF_WEIGHT_Q8_0) {
        for (int j = 0; j < 32; j++) code[j] = (uint8_t)(p[j] ^ 0x80);
        return;
    }
    uint32_t high = 0;
    if (kf_block_code_bits(type) == 5) {
        high = (uint32_t)kf_block_read16(p) | (uint32_t)kf_block_read16(p + 2) << 16;
        p += 4;
    }
    for (int j = 0; j < 16; j++) {
        code[j] = (uint8_t)((p[j] & 15) | (high >> j & 1) << 4);
        code[j + 16] = (uint8_t)(p[j] >> 4 | (high >> (j + 16) & 1) << 4);
    }
}

KF_HD void kf_block_codes_k(int type, const uint8_t *block, uint8_t *code) {
    const uint8_t *high = block + 16, *p = block + (type == KF_WEIGHT_Q5_K ? 48 : 16);
    for (int run = 0; run < 4; run++)
        for (int l = 0; l < 32; l++) {
            uint8_t byte = p[32 * run + l], bits = type == KF_WEIGHT_Q5_K ? (uint8_t)(high[l] >> 2 * run) : 0;
            code[64 * run + l] = (uint8_t)((byte & 15) | (bits & 1) << 4);
            code[64 * run + 32 + l] = (uint8_t)(byte >> 4 | (bits >> 1 & 1) << 4);
        }
}

KF_HD void kf_block_codes_q6(const uint8_t *block, uint8_t *code) {
    for (int half = 0; half < 2; half++)
        for (int l = 0; l < 32; l++) {
            const uint8_t *p = block + 64 * half;
            uint8_t *c = code + 128 * half, high = block[128 + 32 * half + l];
            c[l] = (uint8_t)((p[l] & 15) | (high & 3) << 4);
            c[l + 32] = (uint8_t)((p[l + 32] & 15) | (high >> 2 & 3) << 4);
            c[l + 64] = (uint8_t)(p[l] >> 4 | (high >> 4 & 3) << 4);
            c[l + 96] = (uint8_t)(p[l + 32] >> 4 | (high >> 6) << 4);
        }
}

// All codes of a block, one byte each.
KF_HD void kf_block_codes(int type, const uint8_t *block, uint8_t *code) {
    if (type == KF_WEIGHT_Q6_K)
        kf_block_codes_q6(block, code);
    else if (kf_block_is_k(type))
        kf_block_codes_k(type, block, code);
    else
        kf_block_codes_small(type, block, code);
}

// Code i of a block, by itself.
KF_HD int kf_block_code(int type, const uint8_t *block, int i) {
    if (type == KF_WEIGHT_Q8_0) return block[kf_block_head(type) + i] ^ 0x80;
    if (type == KF_WEIGHT_Q6_K) {
        const int half = i / 128, quarter = i % 128 / 32, l = i % 32;
        const int byte = block[64 * half + l + 32 * (quarter & 1)], high = block[128 + 32 * half + l];
        return (quarter < 2 ? byte & 15 : byte >> 4) | (high >> 2 * quarter & 3) << 4;
    }
    if (kf_block_is_k(type)) {
        const int run = i / 64, upper = i % 64 / 32, l = i % 32;
        const int byte = block[(type == KF_WEIGHT_Q5_K ? 48 : 16) + 32 * run + l];
        const int bit = type == KF_WEIGHT_Q5_K ? block[16 + l] >> (2 * run + upper) & 1 : 0;
        return (upper ? byte >> 4 : byte & 15) | bit << 4;
    }
    const uint8_t *p = block + kf_block_head(type);
    int bit = 0;
    if (kf_block_code_bits(type) == 5) {
        bit = p[i / 8] >> i % 8 & 1;
        p += 4;
    }
    return (i < 16 ? p[i] & 15 : p[i - 16] >> 4) | bit << 4;
}

// The 6-bit scale and minimum of group j (of 8) of Q4_K and Q5_K.
KF_HD void kf_block_k_scale(const uint8_t *block, int j, uint8_t *scale, uint8_t *minimum) {
    const uint8_t *s = block + 4;
    *scale = j < 4 ? s[j] & 63 : (uint8_t)((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
    *minimum = j < 4 ? s[j + 4] & 63 : (uint8_t)(s[j + 4] >> 4 | (s[j] >> 6) << 4);
}

// d and m of group j of a block.
KF_HD void kf_block_scale(int type, const uint8_t *block, int j, float *d, float *m) {
    *m = 0;
    if (type == KF_WEIGHT_Q6_K) {
        *d = kf_block_half(block + 208) * (float)(int8_t)block[192 + j];
    } else if (kf_block_is_k(type)) {
        uint8_t scale, minimum;
        kf_block_k_scale(block, j, &scale, &minimum);
        *d = kf_block_half(block) * (float)scale;
        *m = -(kf_block_half(block + 2) * (float)minimum);
    } else {
        *d = kf_block_half(block);
        if (kf_block_affine(type)) *m = kf_block_half(block + 2);
    }
}

// All values of a block.
KF_HD void kf_block_dequantise(int type, const uint8_t *block, float *value) {
    uint8_t code[KF_BLOCK_MAX];
    int values = kf_block_values(type), group = kf_block_group(type), offset = kf_block_offset(type);
    kf_block_codes(type, block, code);
    for (int first = 0; first < values; first += group) {
        float d, m;
        kf_block_scale(type, block, first / group, &d, &m);
        for (int k = first; k < first + group; k++) value[k] = d * (float)((int)code[k] - offset) + m;
    }
}

#endif
