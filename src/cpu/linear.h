// SPDX-License-Identifier: Apache-2.0
//
// The linear layer on the CPU: what its driver (linear.c), its packing (pack.c) and its micro-kernels (linear_*.c) share.
//
//     y[t, n] = sum_k x[t, k] w[n, k] + bias[n]
//
// Columns of y (rows of W) are taken in panels of 16: a lane of a vector is one row of W, x is broadcast, and no sum runs across lanes.
//
//     packed weight   [ header, 64 bytes | panel 0 | panel 1 | ... | the last rows % 16 rows as they came ]
//
//     dense panel     F32, F16   [K][16]
//                     BF16       [K/2][16][2], then [16] where K is odd
//     quantised panel units of 16 rows x one block, each:
//       32 values     d [16] fp16, m [16] fp16 where the type has one, high bits, low bits
//       256 values    Q4_K, Q5_K: d [16], dmin [16] fp16, sc [8][16], mn [8][16] bytes, high [8] bits, low [8] bits
//                     Q6_K: d [16] fp16, sc [16][16] int8, high [8] bits, low [8] bits
//       low bits of a block of 32: 4 bits a code, [4][16][4] bytes: byte (j, r, i) holds code 8 j + i of row r in its low half and
//                     8 j + 4 + i in its high half; Q8_0 has [8][16][4] bytes: byte (g, r, i) is code 4 g + i
//       high bits     fifth bits [16][4] bytes: bit g of byte (r, i) belongs to code 4 g + i
//                     Q6_K [2][16][4] bytes: bits 2 g, 2 g + 1 of byte (j, r, i) belong to code 16 j + 4 g + i
//
// So 32 bits of a lane are four codes of one row, which is what an integer dot product (vpdpbusd) multiplies with four int8 of x.
//
// Exact products by integer arithmetic. For quantised weights a block of 32 values of x becomes fixed point,
//
//     x[k] = scale * X[k],   X = 65536 a + 256 b + c,   |X| < 2^23, scale a power of two;   a, b, c int8 (kf_x_block)
//
// and sum_k code[k] X[k] is exact in int32, whatever the order: three dot products of bytes. The block then enters the row's fp32 sum as
// d * scale * sum + m * scale * sum X. Rounding X costs at most 2^-24 of the block's largest |x|, what fp32 sums of the same block cost.
// Blocks for which that is not so (one value dwarfs the rest, infinities, NaN, the ends of fp32's range) are "wild": they are multiplied in
// fp32, in the order of k. Which way a block goes depends on that block of x alone, so a row's bits do not depend on the other rows.
// KF_ACTIVATIONS_INT8 is the same with X one int8 and scale = max|x| / 127.
#ifndef KF_CPU_LINEAR_H
#define KF_CPU_LINEAR_H

#include "cpu/cpu.h"
#include "math/blocks.h"

enum {
    KF_PANEL_ROWS = 16, // 16 lanes of fp32 are one AVX-512 register
    KF_X_DIGITS = 3,    // int8 digits of a value of x: 23 bits and sign
    KF_DENSE_CHUNK =
        256, // dense products are summed over so many k before they are added to the row's sum: bounds the error
    KF_LINEAR_MAX_ROWS = 12,
    KF_DENSE_MAX_PANELS = 2,
    KF_LINEAR_MAX_PANELS = 16, // of a tile of one row
    KF_LINEAR_MAX_SUMS = KF_LINEAR_MAX_ROWS * KF_DENSE_MAX_PANELS * KF_PANEL_ROWS
};
kf_static_assert(KF_LINEAR_MAX_PANELS *KF_PANEL_ROWS <= KF_LINEAR_MAX_SUMS, "room for one row of many panels");

// 32 values of a row of x. start is what the sums of digits begin with: -centre * sum X in digits, where the codes are multiplied as code -
// centre; one for each of the block's two groups of weights that share a scale (types with groups of 32 use the first only).
typedef struct kf_x_block {
    int8_t digit[KF_X_DIGITS][KF_BLOCK_SMALL];
    int32_t start[2][KF_X_DIGITS];
    float scale; // < 0: wild; digits, start and sum are then 0
    float sum;   // scale * sum X
} kf_x_block;
kf_static_assert(sizeof(kf_x_block) == 128, "two cache lines");

// One call of a micro-kernel: `rows` rows of x times `panels` panels.
typedef struct kf_linear_tile {
    int32_t type; // kf_weight_type
    int32_t rows;
    int32_t panels;
    int32_t digits; // quantised: 3, or 1 for INT8
    int64_t K;
    const char *w;       // panel 0
    const char *w_end;   // the end of what this worker reads next in one go: how far asking ahead makes sense
    int64_t panel_bytes; // to the next panel
    const void *x;       // quantised: kf_x_block [K/32][rows]; dense: float [K][rows]; bf16 pairs: [(K+1)/2][rows][2]
    const char *raw;     // quantised: the first row of x as given, for wild blocks
    int64_t raw_stride;  // in bytes
    int32_t raw_type;
    int32_t pairs; // dense: x is bf16 pairs
    float *y;      // [rows][16 * panels]
} kf_linear_tile;

typedef struct kf_linear_kernels {
    const char *notes;
    const int32_t *quant_rows; // heights of tiles, descending, the last one 1
    const int32_t *dense_rows;
    int32_t dense_panels; // panels that a dense tile covers, at most KF_DENSE_MAX_PANELS
    int32_t pairs;        // not 0: bf16 x and bf16 W are multiplied in pairs (dense tiles with `pairs`)
    void (*load)(const char *x, int32_t type, int64_t n, float *out);
    // out = y (+ bias), rounded once.
    void (*store)(const float *y, const float *bias, int64_t n, int32_t type, char *out);
    // Blocks of 32 values of a row of x to what weights of `type` are multiplied with; out goes on in steps of `step`.
    void (*split)(const char *x, int32_t x_type, int32_t type, int32_t digits, int64_t blocks, int64_t step,
                  kf_x_block *out);
    void (*quant)(const kf_linear_tile *tile);
    void (*dense)(const kf_linear_tile *tile);
} kf_linear_kernels;

extern const kf_linear_kernels kf_linear_scalar;
#if defined(__x86_64__)
extern const kf_linear_kernels kf_linear_avx2, kf_linear_avx512, kf_linear_avx512bf16;
#endif

// ------------------------------------------------------------------------------------------------------------- layout

// Where the parts of a unit stand, in bytes. In units of 256, high and low are those of the first 32 values; high_step and low_step lead
// to the next 32.
typedef struct kf_unit {
    int32_t values, bytes;
    int32_t d, m, scale, minimum;
    int32_t high, high_step;
    int32_t low, low_step;
} kf_unit;

static inline int kf_unit_low_bytes(int type) { return type == KF_WEIGHT_Q8_0 ? 512 : 256; }

static inline int kf_unit_high_bytes(int type) {
    int bits = kf_block_code_bits(type);
    return bits == 5 ? 64 : bits == 6 ? 128 : 0;
}

static inline kf_unit kf_unit_of(int type) {
    const int lane_halves = KF_PANEL_ROWS * 2;
    kf_unit u = {
        .values = kf_block_values(type), .low_step = kf_unit_low_bytes(type), .high_step = kf_unit_high_bytes(type)};
    int blocks = u.values / KF_BLOCK_SMALL, at = lane_halves; // d comes first
    if (kf_block_affine(type)) {
        u.m = at;
        at += lane_halves;
    }
    if (kf_block_is_k(type)) {
        u.scale = at;
        at += u.values / kf_block_group(type) * KF_PANEL_ROWS;
        if (kf_block_affine(type)) {
            u.minimum = at;
            at += blocks * KF_PANEL_ROWS;
        }
    }
    u.high = at;
    u.low = u.high + blocks * u.high_step;
    u.bytes = u.low + blocks * u.low_step;
    return u;
}

static inline int64_t kf_panel_bytes(int type, int64_t K) {
    if (!kf_block_quantised(type)) return K * KF_PANEL_ROWS * kf_block_bytes(type);
    kf_unit u = kf_unit_of(type);
    return K / u.values * u.bytes;
}

// Columns of a weight, at most: with so many, sizes of panels and of x stay far below 2^63.
#define KF_LINEAR_MAX_K ((int64_t)1 << 48)

// -------------------------------------------------------------------------------------------------------------- pack.c

// Packs `rows` <= 16 rows of `type` that stand row_bytes apart into one panel; the panel's other rows are zeros.
void kf_pack_panel(int type, const char *rows, int64_t row_bytes, int64_t count, int64_t K, char *panel);

// Checks the header of a packed weight against what kf_weight says and the ISA of the context.
kf_status kf_packed_check(const kf_context *context, const kf_weight *weight);

enum { KF_PACKED_HEADER_BYTES = 64 };

kf_status kf_cpu_pack_weight_size(const kf_context *context, const kf_weight *weight, size_t *bytes);
kf_status kf_cpu_pack_weight(const kf_context *context, const kf_weight *weight, void *destination, size_t bytes,
                             kf_weight *packed);

#endif
