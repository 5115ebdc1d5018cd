// SPDX-License-Identifier: Apache-2.0
//
// Quantised weights as fragments: the bytes of a GGUF weight in the order in which the lanes of mma.sync take them, as the 16 x 16
// operand A (rows of W are the rows of the product, rows of x its columns). Bits move, no value changes.
//
//     packed    [ header, 128 bytes | octet 0 | octet 1 | ... ]       an octet: 8 rows of W; two of them are the 16 rows of a fragment
//     octet     units of 256 columns one after another; the last one holds the K % 256 columns that are left
//     unit      [ codes | upper bits | scales | minima ], r rows (8, fewer in the last octet), b blocks of 32 columns (8, or fewer),
//               its end rounded up to 16 bytes
//
// Lane 4 g + t holds, of row g and of a block of 32, the columns 4t .. 4t+3 (first half) and 16+4t .. 16+4t+3 (second half):
//
//     codes     4 low bits: a word, byte i = first half's code i | second half's code i << 4: word t of Q4_0's 16 nibble bytes
//               (5 and 6 bits, b = 8: see upper)
//               8 bits (Q8_0): two words, int8 as in the file
//               b = 8: pieces of 16 bytes a lane, [piece][lane], a piece holding 4 blocks (8 bits: 2); else [block][lane]
//     upper     5 bits, b < 8: a byte a lane, [block][lane]. Pairs p of a block are columns (0,2), (1,3) of the first half, (0,2), (1,3) of
//               the second; bit p: the first's fifth, bit 4 + p: the second's
//               5 and 6 bits, b = 8: 4 (6 bits: 8) bytes a lane and four of blocks, [lane][four]. Behind the four words of codes these are word
//               4 (4 and 5), and codes lie in them whole: a pair's first in the lower half of a word, its second in the upper. Block j of the
//               four has
//                   5 bits: pairs 0..2 at bits 0, 5, 10 of word j; pair 3 at bit 5 (j-1) of word 4; of block 0 bit i of it is bit 15 of word i
//                   6 bits: pairs 0, 1 at bits 0, 6 of word j; pair 2 at bit 6 (j%2) of word 4 + j/2; of pair 3 the lower four bits at bit 12
//                           of word j, the upper two at bit 12 + 2 (j%2) of word 4 + j/2
//     scales    fp16 d, b = 8: 16 bytes a row; else [block][row];   minima m the same
//               Q4_K, Q5_K: the file's d, dmin and twelve bytes, 16 a row;   Q6_K: 16 int8 a row, then d [row]
//
// So a lane's word, shifted and masked, is two codes of a fragment's register; of four bits its two halves are the registers of an int8
// fragment (m16n8k32). Reads of codes are of 16 bytes a lane, neighbours side by side. Bytes: the source's; the rounding costs at most 14 a
// unit in an octet that is not full.
//
// Used by packing on the host (linear_pack.c) and on the device (linear_prepare.cu), and by the kernels that read it.
#ifndef KF_CUDA_FRAGMENTS_H
#define KF_CUDA_FRAGMENTS_H

#include "math/blocks.h"

enum {
    KF_OCTET = 8,              // rows
    KF_UNIT_BLOCKS = 8,        // blocks of 32 columns in a unit
    KF_UNIT_COLUMNS = 256,     //
    KF_FRAGMENTS_HEADER = 128, // bytes
    KF_FRAGMENTS_VERSION = 2,
    KF_FRAGMENTS_LAYOUT = 0x4b460002, // what kf_weight.packed is: this layout
    KF_FRAGMENTS_ALIGNMENT = 16
};

typedef struct kf_fragments_header {
    uint32_t magic, version; // "KFWG" in memory
    int32_t type, reserved;
    int64_t rows, cols;
    uint64_t bytes;
    uint64_t zero[11];
} kf_fragments_header;

// Bytes of a row in a unit of `blocks` blocks of 32: what they are in the file.
KF_HD int kf_unit_row_bytes(int type, int blocks) {
    return blocks * KF_BLOCK_SMALL / kf_block_values(type) * kf_block_bytes(type);
}

KF_HD int kf_unit_bytes(int type, int rows, int blocks) {
    return (rows * kf_unit_row_bytes(type, blocks) + KF_FRAGMENTS_ALIGNMENT - 1) / KF_FRAGMENTS_ALIGNMENT *
           KF_FRAGMENTS_ALIGNMENT;
}

KF_HD int64_t kf_octet_bytes(int type, int rows, int64_t K) {
    const int left = (int)(K % KF_UNIT_COLUMNS) / KF_BLOCK_SMALL;
    return K / KF_UNIT_COLUMNS * kf_unit_bytes(type, rows, KF_UNIT_BLOCKS) +
           (left ? kf_unit_bytes(type, rows, left) : 0);
}

KF_HD int64_t kf_fragments_bytes(int type, int64_t N, int64_t K) { // without the header
    return N / KF_OCTET * kf_octet_bytes(type, KF_OCTET, K) +
           (N % KF_OCTET ? kf_octet_bytes(type, (int)(N % KF_OCTET), K) : 0);
}

// Bytes of codes of a lane and block.
KF_HD int kf_unit_lane_bytes(int type) { return kf_block_code_bits(type) == 8 ? 8 : 4; }

// Where in a unit the codes of block j begin for a lane.
KF_HD int kf_unit_codes(int type, int rows, int blocks, int j, int lane) {
    const int bytes = kf_unit_lane_bytes(type), at = j * bytes;
    return blocks == KF_UNIT_BLOCKS ? at / 16 * rows * 64 + lane * 16 + at % 16 : at * rows * 4 + lane * bytes;
}

KF_HD int kf_unit_upper(int type, int rows, int blocks) { return rows * 4 * kf_unit_lane_bytes(type) * blocks; }

KF_HD int kf_unit_scales(int type, int rows, int blocks) {
    const int bits = kf_block_code_bits(type);
    return kf_unit_upper(type, rows, blocks) + (bits == 5 ? 4 : bits == 6 ? 8 : 0) * rows * blocks;
}

// Where among the scales that of block j of row g is (types of 32 values).
KF_HD int kf_unit_scale(int rows, int blocks, int j, int g) {
    return blocks == KF_UNIT_BLOCKS ? g * 16 + 2 * j : (j * rows + g) * 2;
}

// Code k of block j of a row of a unit; `row` is where the row's unit begins in the file. Q8_0's are int8.
KF_HD int kf_unit_code(int type, const uint8_t *row, int j, int k) {
    if (type == KF_WEIGHT_Q6_K) {
        const int low = row[64 * (j / 4) + 32 * (j % 2) + k], high = row[128 + 32 * (j / 4) + k];
        return (j % 4 < 2 ? low & 15 : low >> 4) | (high >> 2 * (j % 4) & 3) << 4;
    }
    if (kf_block_is_k(type)) {
        const int low = row[(type == KF_WEIGHT_Q5_K ? 48 : 16) + 32 * (j / 2) + k];
        return (j % 2 ? low >> 4 : low & 15) | (type == KF_WEIGHT_Q5_K ? row[16 + k] >> j & 1 : 0) << 4;
    }
    const uint8_t *p = row + j * kf_block_bytes(type) + kf_block_head(type);
    if (type == KF_WEIGHT_Q8_0) return p[k];
    const int fifth = kf_block_code_bits(type) == 5 ? p[k / 8] >> k % 8 & 1 : 0;
    const int low = p[(kf_block_code_bits(type) == 5 ? 4 : 0) + k % 16];
    return (k < 16 ? low & 15 : low >> 4) | fifth << 4;
}

KF_HD void kf_pack_word(uint8_t *to, uint32_t word) {
    for (int i = 0; i < 4; i++) to[i] = (uint8_t)(word >> 8 * i);
}

// Puts pair p of block j of four, two codes of 5 or 6 bits, into their words.
KF_HD void kf_pack_pair(int bits, uint32_t *word, int j, int p, uint32_t pair) {
    if (p < 8 - bits) {
        word[j] |= pair << bits * p;
    } else if (bits == 6 && p == 2) {
        word[4 + j / 2] |= pair << 6 * (j % 2);
    } else if (bits == 6) {
        word[j] |= (pair & 0x000f000fu) << 12;
        word[4 + j / 2] |= (pair >> 4 & 0x00030003u) << (12 + 2 * (j % 2));
    } else if (j > 0) {
        word[4] |= pair << 5 * (j - 1);
    } else {
        for (int i = 0; i < 5; i++) word[i] |= (pair >> i & 0x00010001u) << 15;
    }
}

// Four whole blocks of 5 or 6 bits.
KF_HD void kf_pack_four(int type, const uint8_t *row, int rows, int quad, int t, int lane, uint8_t *unit) {
    const int bits = kf_block_code_bits(type), upper = bits - 4; // words
    uint32_t word[6] = {0, 0, 0, 0, 0, 0};
    for (int q = 0; q < 16; q++) {
        const int j = 4 * quad + q / 4, k = q % 4 / 2 * 16 + 4 * t + q % 2;
        const int first = kf_unit_code(type, row, j, k), second = kf_unit_code(type, row, j, k + 2);
        kf_pack_pair(bits, word, q / 4, q % 4, (uint32_t)first | (uint32_t)second << 16);
    }
    uint8_t *low = unit + kf_unit_codes(type, rows, KF_UNIT_BLOCKS, 4 * quad, lane);
    uint8_t *high = unit + kf_unit_upper(type, rows, KF_UNIT_BLOCKS) + (2 * lane + quad) * upper * 4;
    for (int i = 0; i < 4 + upper; i++) kf_pack_word(i < 4 ? low + 4 * i : high + 4 * (i - 4), word[i]);
}

// What lane 4 g + t of a unit holds, from row g of the file.
KF_HD void kf_pack_lane(int type, const uint8_t *row, int rows, int blocks, int g, int t, uint8_t *unit) {
    const int bits = kf_block_code_bits(type), lane = 4 * g + t;
    if ((bits == 5 || bits == 6) && blocks == KF_UNIT_BLOCKS) {
        for (int quad = 0; quad < 2; quad++) kf_pack_four(type, row, rows, quad, t, lane, unit);
        return;
    }
    for (int j = 0; j < blocks; j++) {
        uint8_t *codes = unit + kf_unit_codes(type, rows, blocks, j, lane);
        uint8_t *upper = unit + kf_unit_upper(type, rows, blocks) + j * rows * 4 + lane;
        if (bits == 5) *upper = 0;
        for (int i = 0; i < 4; i++) {
            const int first = kf_unit_code(type, row, j, 4 * t + i),
                      second = kf_unit_code(type, row, j, 16 + 4 * t + i);
            if (bits == 8)
                codes[i] = (uint8_t)first, codes[4 + i] = (uint8_t)second;
            else
                codes[i] = (uint8_t)((first & 15) | (second & 15) << 4);
            // Column i is the first (i < 2) or the second of pairs i % 2 and 2 + i % 2.
            if (bits == 5) *upper |= (uint8_t)((first >> 4 << i % 2 | second >> 4 << (2 + i % 2)) << i / 2 * 4);
        }
    }
}

// The scales of row g of a unit.
KF_HD void kf_pack_scales(int type, const uint8_t *row, int rows, int blocks, int g, uint8_t *unit) {
    uint8_t *scales = unit + kf_unit_scales(type, rows, blocks);
    if (kf_block_is_k(type)) {
        for (int i = 0; i < 16; i++) scales[g * 16 + i] = type == KF_WEIGHT_Q6_K ? row[192 + i] : row[i];
        for (int i = 0; i < 2 && type == KF_WEIGHT_Q6_K; i++) scales[rows * 16 + 2 * g + i] = row[208 + i];
        return;
    }
    for (int j = 0; j < blocks; j++)
        for (int i = 0; i < 2; i++) {
            const uint8_t *block = row + j * kf_block_bytes(type);
            uint8_t *to = scales + kf_unit_scale(rows, blocks, j, g) + i;
            *to = block[i];
            if (kf_block_affine(type)) to[rows * 2 * blocks] = block[2 + i];
        }
}

#endif
