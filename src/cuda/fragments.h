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
//               8 bits (Q8_0): two words, int8 as in the file
//               b = 8: pieces of 16 bytes a lane, [piece][lane], a piece holding 4 blocks (8 bits: 2); else [block][lane]
//     upper     pairs p of a block: columns (0,2), (1,3) of the first half, (0,2), (1,3) of the second
//               5 bits: b = 8: 8 bytes a lane, word j/4; bit 4 (j%4) + p: the pair's first, 16 bits higher its second
//                       else a byte a lane, [block][lane]: bit p the first, bit 4 + p the second
//               6 bits: 16 bytes a lane, word j/2; bits 2 (4 (j%2) + p) and 16 above
//     scales    fp16 d, b = 8: 16 bytes a row; else [block][row];   minima m the same
//               Q4_K, Q5_K: the file's d, dmin and twelve bytes, 16 a row;   Q6_K: 16 int8 a row, then d [row]
//
// So a lane's word masked with 0x000f000f is two codes of a fragment's register, its two halves are the registers of an int8 fragment
// (m16n8k32), and all reads are of 16 bytes a lane, neighbours side by side. Bytes: the source's; the rounding costs at most 14 a unit in
// an octet that is not full.
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
    KF_FRAGMENTS_VERSION = 1,
    KF_FRAGMENTS_LAYOUT = 0x4b460001, // what kf_weight.packed is: this layout
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

// What lane 4 g + t of a unit holds, from row g of the file.
KF_HD void kf_pack_lane(int type, const uint8_t *row, int rows, int blocks, int g, int t, uint8_t *unit) {
    const int bits = kf_block_code_bits(type), lane = 4 * g + t;
    uint8_t *upper = unit + kf_unit_upper(type, rows, blocks);
    uint32_t word[4] = {0, 0, 0, 0};
    for (int j = 0; j < blocks; j++) {
        uint8_t *codes = unit + kf_unit_codes(type, rows, blocks, j, lane);
        int first[4], second[4];
        for (int i = 0; i < 4; i++) {
            first[i] = kf_unit_code(type, row, j, 4 * t + i);
            second[i] = kf_unit_code(type, row, j, 16 + 4 * t + i);
            if (bits == 8)
                codes[i] = (uint8_t)first[i], codes[4 + i] = (uint8_t)second[i];
            else
                codes[i] = (uint8_t)((first[i] & 15) | (second[i] & 15) << 4);
        }
        if (bits != 5 && bits != 6) continue;
        uint32_t low = 0, high = 0; // upper bits of the pairs' first and second columns
        for (int p = 0; p < 4; p++) {
            const int *half = p < 2 ? first : second;
            low |= (uint32_t)(half[p % 2] >> 4) << (bits - 4) * p;
            high |= (uint32_t)(half[p % 2 + 2] >> 4) << (bits - 4) * p;
        }
        if (bits == 6)
            word[j / 2] |= (low | high << 16) << 8 * (j % 2);
        else if (blocks == KF_UNIT_BLOCKS)
            word[j / 4] |= (low | high << 16) << 4 * (j % 4);
        else
            upper[j * rows * 4 + lane] = (uint8_t)(low | high << 4);
    }
    const int words = bits == 6 ? 4 : bits == 5 && blocks == KF_UNIT_BLOCKS ? 2 : 0;
    for (int i = 0; i < words; i++) kf_pack_word(upper + (lane * words + i) * 4, word[i]);
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
