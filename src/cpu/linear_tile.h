// SPDX-License-Identifier: Apache-2.0
//
// The micro-kernels of the linear layer, written once and compiled for each ISA (linear_scalar.c, linear_avx2.c, ...). The file that
// includes this one has included a simd_*.h (kf_vec, KF_LANES) and defined, for vectors kf_int of KF_LANES int32:
//
//     kf_int_load(p), kf_int_set1(i), kf_int_and, kf_int_or, kf_int_add, kf_int_shl(v, n), kf_int_shr(v, n),
//     kf_int_sar(v, n)                                       bitwise and 32-bit arithmetic; shr is logical, sar is not
//     kf_int_as_vec(v), kf_int_to_vec(v), kf_vec_to_int(f)   the same bits; the same numbers; rounded to nearest even
//     kf_int_store_bytes(p, v), kf_int_hsum(v)               the low byte of each lane; the sum of the lanes
//     kf_vec_load_u8(p), kf_vec_load_s8(p)                   KF_LANES bytes to floats
//     kf_dot(sum, w, x)                                      sum + the dot product of four unsigned and four signed bytes, per lane
//
// or, where only a 16-bit product is to be had (KF_DOT_BY_PARTS): kf_part_first(w, x), kf_part_next(part, w, x), sums of pairs in 16 bits,
// and kf_part_widen(sum, part). With KF_PAIRS: kf_pair_dot(sum, w, x), bf16 pairs.
//
// Quantised tile, R rows x 16 columns x 32 values, D digits: 8 D R dot products, 8 loads of codes with 1.5 to 4 operations each for all R
// rows, and 2 D + 2 operations a row to bring the block into the fp32 sum: with VNNI 24 of 31 are products where D = 3.
#ifndef KF_CPU_LINEAR_TILE_H
#define KF_CPU_LINEAR_TILE_H

#include "cpu/linear.h"

#include <string.h>

static void kf_linear_load(const char *x, int32_t type, int64_t n, float *out);

#define KF_INLINE static inline __attribute__((always_inline))
#define KF_UNROLL _Pragma("GCC unroll 16")

// Arrays of registers have fixed sizes, of which a tile uses R rows, D digits and S strips: a compiler keeps them in registers only so.
enum {
    STRIPS = KF_PANEL_ROWS / KF_LANES,
    GROUPS = KF_BLOCK_SMALL / 4,
    MAX_ROWS = KF_LINEAR_MAX_ROWS,
    MAX_STRIPS = KF_DENSE_MAX_PANELS * STRIPS
};

// ------------------------------------------------------------------------------------------------- codes and their scales

// Block `sub` of 32 values in a unit, for the lanes from `lane` on.
typedef struct block_at {
    const char *unit, *high, *low;
    int sub, lane;
} block_at;

KF_INLINE block_at block_of(const int type, const char *unit, int sub, int lane) {
    const kf_unit u = kf_unit_of(type);
    return (block_at){.unit = unit,
                      .high = unit + u.high + sub * u.high_step + 4 * lane,
                      .low = unit + u.low + sub * u.low_step + 4 * lane,
                      .sub = sub,
                      .lane = lane};
}

KF_INLINE kf_int shifted(kf_int v, int left) { return left >= 0 ? kf_int_shl(v, left) : kf_int_shr(v, -left); }

// Codes 4 g .. 4 g + 3 of each lane's row, a byte each.
KF_INLINE kf_int codes_of(const int type, const block_at at, const int g) {
    const int bits = kf_block_code_bits(type), line = KF_PANEL_ROWS * 4;
    if (bits == 8) return kf_int_load(at.low + g * line);
    kf_int v = kf_int_load(at.low + g / 2 * line);
    if (g % 2) v = kf_int_shr(v, 4);
    v = kf_int_and(v, kf_int_set1(0x0f0f0f0f));
    if (bits == 5) {
        kf_int high = shifted(kf_int_load(at.high), 4 - g);
        v = kf_int_or(v, kf_int_and(high, kf_int_set1(0x10101010)));
    }
    if (bits == 6) {
        kf_int high = shifted(kf_int_load(at.high + g / 4 * line), 4 - 2 * (g % 4));
        v = kf_int_or(v, kf_int_and(high, kf_int_set1(0x30303030)));
    }
    return v;
}

// value = d (code - offset) + m, for group `half` of a block of 32 (0 but in Q6_K).
KF_INLINE void scales_of(const int type, const block_at at, const int half, kf_vec *d, kf_vec *m) {
    const kf_unit u = kf_unit_of(type);
    *d = kf_vec_load_f16(at.unit + u.d + 2 * at.lane);
    *m = kf_vec_zero();
    if (type == KF_WEIGHT_Q6_K) {
        *d = kf_vec_mul(*d, kf_vec_load_s8(at.unit + u.scale + (2 * at.sub + half) * KF_PANEL_ROWS + at.lane));
    } else if (kf_block_is_k(type)) {
        *d = kf_vec_mul(*d, kf_vec_load_u8(at.unit + u.scale + at.sub * KF_PANEL_ROWS + at.lane));
        kf_vec minimum = kf_vec_load_u8(at.unit + u.minimum + at.sub * KF_PANEL_ROWS + at.lane);
        *m = kf_vec_fnma(kf_vec_load_f16(at.unit + u.m + 2 * at.lane), minimum, *m);
    } else if (kf_block_affine(type)) {
        *m = kf_vec_load_f16(at.unit + u.m + 2 * at.lane);
    }
}

// Affine types multiply code - centre instead of code, and m + centre d instead of m: the two products then cancel less.
KF_INLINE int centre_of(const int type) {
    return kf_block_affine(type) ? 1 << (kf_block_code_bits(type) - 1) : kf_block_offset(type);
}

// ------------------------------------------------------------------------------------------------------- wild blocks

// In fp32, in the order of k: acc += sum of value x[k], for block `block` of the tile's row r.
static __attribute__((noinline)) void wild_block(const int type, const char *unit, int sub, int lane,
                                                 const kf_linear_tile *tile, int r, int64_t block, float *acc) {
    const block_at at = block_of(type, unit, sub, lane);
    const int halves = KF_BLOCK_SMALL / kf_block_group(type);
    const kf_vec offset = kf_vec_set1((float)kf_block_offset(type));
    kf_vec sum = kf_vec_zero(), d, m;
    float x[KF_BLOCK_SMALL];
    kf_linear_load(tile->raw + r * tile->raw_stride + block * KF_BLOCK_SMALL * kf_type_size(tile->raw_type),
                   tile->raw_type, KF_BLOCK_SMALL, x);
    for (int g = 0; g < GROUPS; g++) {
        const kf_int codes = codes_of(type, at, g);
        scales_of(type, at, g * halves / GROUPS, &d, &m);
        for (int i = 0; i < 4; i++) {
            kf_vec code = kf_int_to_vec(kf_int_and(kf_int_shr(codes, 8 * i), kf_int_set1(255)));
            kf_vec value = kf_vec_add(kf_vec_mul(d, kf_vec_sub(code, offset)), m);
            sum = kf_vec_fma(value, kf_vec_set1(x[4 * g + i]), sum);
        }
    }
    kf_vec_store_f32(acc, kf_vec_add(kf_vec_load_f32(acc), sum));
}

// ----------------------------------------------------------------------------------------------------------- quantised tiles

KF_INLINE kf_int digits_at(const kf_x_block *x, int i, int g) {
    int32_t four;
    memcpy(&four, x->digit[i] + 4 * g, 4);
    return kf_int_set1(four);
}

// start plus the sums over groups first .. first + count - 1 of codes, of each digit.
#ifndef KF_DOT_BY_PARTS
KF_INLINE void dot_block(const int type, const int R, const int D, const block_at at, const kf_x_block *x,
                         const int first, const int count, const int half, kf_int (*sum)[KF_X_DIGITS]) {
    KF_UNROLL for (int r = 0; r < R; r++) {
        KF_UNROLL for (int i = 0; i < D; i++) sum[r][i] = kf_int_set1(x[r].start[half][i]);
    }
    KF_UNROLL for (int g = first; g < first + count; g++) {
        const kf_int w = codes_of(type, at, g);
        KF_UNROLL for (int r = 0; r < R; r++) {
            KF_UNROLL for (int i = 0; i < D; i++) sum[r][i] = kf_dot(sum[r][i], w, digits_at(&x[r], i, g));
        }
    }
}
#else
// Two products of a b-bit code and an int8 are at most 2^(b + 8), so 2^(7 - b) such sums fit int16. Codes of 8 bits are taken as two of 4:
// their upper halves (shift 4) open the sum, the lower ones add to 16 times that.
KF_INLINE void dot_parts(const int type, const int R, const int D, const block_at at, const kf_x_block *x,
                         const int first, const int count, const int half, const int shift,
                         kf_int (*sum)[KF_X_DIGITS]) {
    const bool eight = kf_block_code_bits(type) == 8;
    const int most = 1 << (7 - (eight ? 4 : kf_block_code_bits(type)));
    kf_int part[MAX_ROWS][KF_X_DIGITS];
    KF_UNROLL for (int g = first; g < first + count; g++) {
        kf_int w = codes_of(type, at, g);
        if (eight) w = kf_int_and(kf_int_shr(w, shift), kf_int_set1(0x0f0f0f0f));
        const bool opens = (g - first) % most == 0, closes = (g - first) % most == most - 1 || g == first + count - 1;
        const bool first_part = g - first < most;
        KF_UNROLL for (int r = 0; r < R; r++) {
            KF_UNROLL for (int i = 0; i < D; i++) {
                const kf_int digits = digits_at(&x[r], i, g);
                part[r][i] = opens ? kf_part_first(w, digits) : kf_part_next(part[r][i], w, digits);
                if (!closes) continue;
                kf_int before = sum[r][i];
                if (first_part && !eight) before = kf_int_set1(x[r].start[half][i]);
                if (first_part && eight) before = shift ? kf_int_set1(0) : kf_int_shl(before, 4);
                if (first_part && eight && !shift) before = kf_int_add(before, kf_int_set1(x[r].start[half][i]));
                sum[r][i] = kf_part_widen(before, part[r][i]);
            }
        }
    }
}

KF_INLINE void dot_block(const int type, const int R, const int D, const block_at at, const kf_x_block *x,
                         const int first, const int count, const int half, kf_int (*sum)[KF_X_DIGITS]) {
    if (kf_block_code_bits(type) == 8) dot_parts(type, R, D, at, x, first, count, half, 4, sum);
    dot_parts(type, R, D, at, x, first, count, half, 0, sum);
}
#endif

// 65536 A + 256 B + C as a float: 256 A + B is exact in int32.
KF_INLINE kf_vec join_digits(const int D, const kf_int *sum) {
    if (D == 1) return kf_int_to_vec(sum[0]);
    kf_vec upper = kf_int_to_vec(kf_int_add(kf_int_shl(sum[0], 8), sum[1]));
    return kf_vec_fma(upper, kf_vec_set1(256.0f), kf_int_to_vec(sum[2]));
}

KF_INLINE void quant_block(const int type, const int R, const int D, const block_at at, const kf_x_block *x,
                           kf_vec *acc) {
    const int halves = KF_BLOCK_SMALL / kf_block_group(type), count = GROUPS / halves;
    KF_UNROLL for (int half = 0; half < halves; half++) {
        kf_int sum[MAX_ROWS][KF_X_DIGITS];
        kf_vec d, m;
        dot_block(type, R, D, at, x, half * count, count, half, sum);
        scales_of(type, at, half, &d, &m);
        if (kf_block_affine(type)) m = kf_vec_fma(kf_vec_set1((float)centre_of(type)), d, m);
        KF_UNROLL for (int r = 0; r < R; r++) {
            acc[r] = kf_vec_fma(d, kf_vec_mul(join_digits(D, sum[r]), kf_vec_set1(x[r].scale)), acc[r]);
            if (kf_block_affine(type)) acc[r] = kf_vec_fma(m, kf_vec_set1(x[r].sum), acc[r]);
        }
    }
}

KF_INLINE bool any_wild(const int R, const kf_x_block *x) {
    uint32_t bits = 0;
    KF_UNROLL for (int r = 0; r < R; r++) bits |= kf_bits_of_float(x[r].scale);
    return bits >> 31;
}

KF_INLINE void wild_rows(const int type, const int R, const block_at at, const kf_linear_tile *tile,
                         const kf_x_block *x, int64_t block, kf_vec *acc) {
    KF_UNROLL for (int r = 0; r < R; r++) {
        if (!(x[r].scale < 0)) continue;
        float sum[KF_LANES];
        kf_vec_store_f32(sum, acc[r]);
        wild_block(type, at.unit, at.sub, at.lane, tile, r, block, sum);
        acc[r] = kf_vec_load_f32(sum);
    }
}

// With few rows the weights' way from memory decides. Units stand one behind the other, panels too, and the hardware asks ahead within a page
// only: asking for L2 by hand, two pages ahead, made 41 GB/s of 30 (of 45 that reads alone reach). Asking for L1 made it slower.
enum { FEW_ROWS = 2, AHEAD = 8192, CACHE_LINE = 64 };

KF_INLINE void ask_for(const char *p, const int bytes) {
    KF_UNROLL for (int i = 0; i < bytes; i += CACHE_LINE) __builtin_prefetch(p + i, 0, 2);
}

KF_INLINE void quant_tile(const int type, const int R, const int D, const kf_linear_tile *tile) {
    const kf_unit u = kf_unit_of(type);
    const int blocks = u.values / KF_BLOCK_SMALL, share = u.bytes / blocks; // NOLINT: a quantised type has blocks
    for (int s = 0; s < tile->panels * STRIPS; s++) {
        const char *unit = tile->w + s / STRIPS * tile->panel_bytes;
        const kf_x_block *x = tile->x;
        kf_vec acc[MAX_ROWS];
        KF_UNROLL for (int r = 0; r < R; r++) acc[r] = kf_vec_zero();
        for (int64_t k = 0; k < tile->K; k += u.values, unit += u.bytes) {
            for (int sub = 0; sub < blocks; sub++, x += R) {
                const block_at at = block_of(type, unit, sub, s % STRIPS * KF_LANES);
                if (R <= FEW_ROWS && s % STRIPS == 0 && tile->w_end - unit > AHEAD)
                    ask_for(unit + AHEAD + sub * share, share);
                quant_block(type, R, D, at, x, acc);
                if (__builtin_expect(any_wild(R, x), 0)) wild_rows(type, R, at, tile, x, k / KF_BLOCK_SMALL + sub, acc);
            }
        }
        float *y = tile->y + s * KF_LANES;
        KF_UNROLL for (int r = 0; r < R; r++) kf_vec_store_f32(y + r * tile->panels * KF_PANEL_ROWS, acc[r]);
    }
}

#define KF_QUANT_CASE(type, R)                                                                                         \
    case type:                                                                                                         \
        if (tile->digits == 1)                                                                                         \
            quant_tile(type, R, 1, tile);                                                                              \
        else                                                                                                           \
            quant_tile(type, R, KF_X_DIGITS, tile);                                                                    \
        return;

#define KF_QUANT_ROWS(R)                                                                                               \
    static void quant_rows_##R(const kf_linear_tile *tile) {                                                           \
        switch (tile->type) {                                                                                          \
            KF_QUANT_CASE(KF_WEIGHT_Q4_0, R)                                                                           \
            KF_QUANT_CASE(KF_WEIGHT_Q4_1, R)                                                                           \
            KF_QUANT_CASE(KF_WEIGHT_Q5_0, R)                                                                           \
            KF_QUANT_CASE(KF_WEIGHT_Q5_1, R)                                                                           \
            KF_QUANT_CASE(KF_WEIGHT_Q8_0, R)                                                                           \
            KF_QUANT_CASE(KF_WEIGHT_Q4_K, R)                                                                           \
            KF_QUANT_CASE(KF_WEIGHT_Q5_K, R)                                                                           \
            KF_QUANT_CASE(KF_WEIGHT_Q6_K, R)                                                                           \
        default: return;                                                                                               \
        }                                                                                                              \
    }

// --------------------------------------------------------------------------------------------------------------- dense tiles

// Adds the products of k .. k + step - 1 to sum; step is 2 where bf16 stands in pairs, else 1. w: strip s at w + s's offset.
KF_INLINE void dense_step(const int type, const int R, const int S, const char *const *w, const float *x, int64_t k,
                          kf_vec (*sum)[MAX_STRIPS]) {
    kf_vec even[MAX_STRIPS], odd[MAX_STRIPS];
    KF_UNROLL for (int s = 0; s < S; s++) {
        if (type == KF_WEIGHT_F32) even[s] = kf_vec_load_f32(w[s] + k * KF_PANEL_ROWS * 4);
        if (type == KF_WEIGHT_F16) even[s] = kf_vec_load_f16(w[s] + k * KF_PANEL_ROWS * 2);
        if (type == KF_WEIGHT_BF16) {
            const kf_int pair = kf_int_load(w[s] + k * KF_PANEL_ROWS * 2);
            even[s] = kf_int_as_vec(kf_int_shl(pair, 16));
            odd[s] = kf_int_as_vec(kf_int_and(pair, kf_int_set1((int32_t)0xffff0000)));
        }
    }
    KF_UNROLL for (int r = 0; r < R; r++) {
        const kf_vec x0 = kf_vec_set1(x[k * R + r]);
        KF_UNROLL for (int s = 0; s < S; s++) sum[r][s] = kf_vec_fma(even[s], x0, sum[r][s]);
    }
    if (type != KF_WEIGHT_BF16) return;
    KF_UNROLL for (int r = 0; r < R; r++) {
        const kf_vec x1 = kf_vec_set1(x[(k + 1) * R + r]);
        KF_UNROLL for (int s = 0; s < S; s++) sum[r][s] = kf_vec_fma(odd[s], x1, sum[r][s]);
    }
}

// The odd last column of bf16 stands alone.
KF_INLINE void dense_last(const int R, const int S, const char *const *last, const float *x, int64_t k,
                          kf_vec (*sum)[MAX_STRIPS]) {
    for (int s = 0; s < S; s++) {
        const kf_vec w = kf_vec_load_bf16(last[s]);
        for (int r = 0; r < R; r++) sum[r][s] = kf_vec_fma(w, kf_vec_set1(x[k * R + r]), sum[r][s]);
    }
}

KF_INLINE void dense_add(const int R, const int S, bool first, kf_vec (*sum)[MAX_STRIPS], float *y) {
    KF_UNROLL for (int r = 0; r < R; r++) {
        KF_UNROLL for (int s = 0; s < S; s++) {
            float *to = y + (r * S + s) * KF_LANES;
            kf_vec_store_f32(to, first ? sum[r][s] : kf_vec_add(kf_vec_load_f32(to), sum[r][s]));
        }
    }
}

KF_INLINE void dense_tile(const int type, const int R, const int S, const kf_linear_tile *tile) {
    const int bytes = kf_block_bytes(type), step = type == KF_WEIGHT_BF16 ? 2 : 1;
    const char *w[MAX_STRIPS], *last[MAX_STRIPS];
    const int64_t K = tile->K, whole = K / step * step;
    for (int s = 0; s < S; s++) {
        const char *panel = tile->w + s / STRIPS * tile->panel_bytes;
        const int lane = s % STRIPS * KF_LANES;
        w[s] = panel + lane * bytes * step;
        last[s] = panel + whole * KF_PANEL_ROWS * bytes + lane * bytes;
    }
    for (int64_t k0 = 0; k0 == 0 || k0 < K; k0 += KF_DENSE_CHUNK) {
        const int64_t end = k0 + KF_DENSE_CHUNK < whole ? k0 + KF_DENSE_CHUNK : whole;
        kf_vec sum[MAX_ROWS][MAX_STRIPS];
        KF_UNROLL for (int r = 0; r < R; r++) { KF_UNROLL for (int s = 0; s < S; s++) sum[r][s] = kf_vec_zero(); }
        for (int64_t k = k0; k < end; k += step) dense_step(type, R, S, w, tile->x, k, sum);
        if (whole < K && k0 + KF_DENSE_CHUNK >= K) dense_last(R, S, last, tile->x, whole, sum);
        dense_add(R, S, k0 == 0, sum, tile->y);
    }
}

#ifdef KF_PAIRS
KF_INLINE void pairs_tile(const int R, const int S, const kf_linear_tile *tile) {
    const int64_t K = tile->K, pairs = K / 2, line = KF_PANEL_ROWS * 4, chunk = KF_DENSE_CHUNK / 2;
    const int32_t *x = tile->x;
    for (int64_t p0 = 0; p0 == 0 || p0 < (K + 1) / 2; p0 += chunk) {
        const int64_t end = p0 + chunk < pairs ? p0 + chunk : pairs;
        kf_vec sum[MAX_ROWS][MAX_STRIPS];
        KF_UNROLL for (int r = 0; r < R; r++) { KF_UNROLL for (int s = 0; s < S; s++) sum[r][s] = kf_vec_zero(); }
        for (int64_t p = p0; p < end; p++) {
            kf_int w[MAX_STRIPS];
            KF_UNROLL for (int s = 0; s < S; s++) w[s] = kf_int_load(tile->w + s * tile->panel_bytes + p * line);
            KF_UNROLL for (int r = 0; r < R; r++) {
                const kf_int pair = kf_int_set1(x[p * R + r]);
                KF_UNROLL for (int s = 0; s < S; s++) sum[r][s] = kf_pair_dot(sum[r][s], w[s], pair);
            }
        }
        if (K % 2 && p0 + chunk >= (K + 1) / 2) {
            for (int s = 0; s < S; s++) {
                const kf_int w = kf_int_load_u16(tile->w + s * tile->panel_bytes + pairs * line);
                for (int r = 0; r < R; r++) sum[r][s] = kf_pair_dot(sum[r][s], w, kf_int_set1(x[pairs * R + r]));
            }
        }
        dense_add(R, S, p0 == 0, sum, tile->y);
    }
}
#define KF_PAIRS_CASE(R, P)                                                                                            \
    if (tile->pairs) {                                                                                                 \
        pairs_tile(R, P *STRIPS, tile);                                                                                \
        return;                                                                                                        \
    }
#else
#define KF_PAIRS_CASE(R, P)
#endif

#define KF_DENSE_ROWS(R, P)                                                                                            \
    static void dense_rows_##R##_##P(const kf_linear_tile *tile) {                                                     \
        KF_PAIRS_CASE(R, P)                                                                                            \
        if (tile->type == KF_WEIGHT_F32)                                                                               \
            dense_tile(KF_WEIGHT_F32, R, P *STRIPS, tile);                                                             \
        else if (tile->type == KF_WEIGHT_F16)                                                                          \
            dense_tile(KF_WEIGHT_F16, R, P *STRIPS, tile);                                                             \
        else                                                                                                           \
            dense_tile(KF_WEIGHT_BF16, R, P *STRIPS, tile);                                                            \
    }

// ------------------------------------------------------------------------------------------------------------- x and y

static void kf_linear_load(const char *x, int32_t type, int64_t n, float *out) {
    const int64_t size = kf_type_size(type);
    for (int64_t i = 0; i < n; i += KF_LANES) {
        const int lanes = n - i < KF_LANES ? (int)(n - i) : KF_LANES;
        const char *from = x + i * size;
        const kf_vec v = type == KF_TYPE_F32   ? kf_vec_load_f32_n(from, lanes)
                         : type == KF_TYPE_F16 ? kf_vec_load_f16_n(from, lanes)
                                               : kf_vec_load_bf16_n(from, lanes);
        kf_vec_store_f32_n(out + i, v, lanes);
    }
}

static void kf_linear_store(const float *y, const float *bias, int64_t n, int32_t type, char *out) {
    const int64_t size = kf_type_size(type);
    for (int64_t i = 0; i < n; i += KF_LANES) {
        const int lanes = n - i < KF_LANES ? (int)(n - i) : KF_LANES;
        kf_vec v = kf_vec_load_f32_n(y + i, lanes);
        char *to = out + i * size;
        if (bias) v = kf_vec_add(v, kf_vec_load_f32_n(bias + i, lanes));
        if (type == KF_TYPE_F32)
            kf_vec_store_f32_n(to, v, lanes);
        else if (type == KF_TYPE_F16)
            kf_vec_store_f16_n(to, v, lanes);
        else
            kf_vec_store_bf16_n(to, v, lanes);
    }
}

enum { VECTORS = KF_BLOCK_SMALL / KF_LANES };

KF_INLINE kf_vec magnitude_of(kf_vec x) { return kf_vec_max(x, kf_vec_sub(kf_vec_zero(), x)); }

// The block's sum and largest of |x|; a NaN reaches the sum, if not the largest.
KF_INLINE void sum_of_magnitudes(const kf_vec *x, float *sum, float *largest) {
    kf_vec total = magnitude_of(x[0]), most = total;
    KF_UNROLL for (int v = 1; v < VECTORS; v++) {
        const kf_vec magnitude = magnitude_of(x[v]);
        total = kf_vec_add(total, magnitude);
        most = kf_vec_max(magnitude, most);
    }
    *sum = kf_vec_hsum(total);
    *largest = kf_vec_hmax(most);
}

KF_INLINE int32_t sum_of(const kf_int *X, const int first, const int count) {
    kf_int total = X[first];
    KF_UNROLL for (int v = first + 1; v < first + count; v++) total = kf_int_add(total, X[v]);
    return kf_int_hsum(total);
}

// value in digits 65536, 256, 1: what the sums of D digits begin with.
KF_INLINE void write_start(const int D, int64_t value, int32_t *start) {
    start[0] = (int32_t)(D == 1 ? value : value >> 16);
    start[1] = (int32_t)(value >> 8 & 255);
    start[2] = (int32_t)(value & 255);
}

// The digits of integers X, from the last one up: X's low byte, taken as signed, leaves (X + 128) >> 8.
KF_INLINE void write_block(const kf_int *X, const int D, const int group, int32_t centre, float scale,
                           kf_x_block *out) {
    KF_UNROLL for (int v = 0; v < VECTORS; v++) {
        kf_int rest = X[v];
        KF_UNROLL for (int i = D - 1; i >= 0; i--) {
            kf_int_store_bytes(out->digit[i] + v * KF_LANES, rest);
            if (i > 0) rest = kf_int_sar(kf_int_add(rest, kf_int_set1(128)), 8);
        }
    }
    int32_t sum;
    if (group < KF_BLOCK_SMALL) {
        const int32_t first = sum_of(X, 0, VECTORS / 2), second = sum_of(X, VECTORS / 2, VECTORS / 2);
        write_start(D, -(int64_t)centre * first, out->start[0]);
        write_start(D, -(int64_t)centre * second, out->start[1]);
        sum = first + second;
    } else {
        sum = sum_of(X, 0, VECTORS);
        write_start(D, -(int64_t)centre * sum, out->start[0]);
    }
    out->scale = scale;
    out->sum = scale * (float)sum;
}

static void write_empty(float scale, float sum, kf_x_block *out) {
    memset(out, 0, sizeof *out);
    out->scale = scale;
    out->sum = sum;
}

// Range in which neither scale nor d * scale * sum leaves fp32's normal numbers, whatever the fp16 d.
#define KF_TAME_MIN 0x1p-60f
#define KF_TAME_MAX 0x1p+60f
// max|x| 2^-e below 2^23 / KF_DIGIT_ROOM keeps |X| <= 127 (65536 + 256 + 1), the largest three balanced digits.
#define KF_DIGIT_ROOM 1.004f
// A block is tame if rounding to X moves its values by less than this share of what they sum to without the largest: 2^-18 is reached at
// about max|x| = 100 mean|x|; normal numbers have 2^-22.8.
#define KF_TAME_ROUNDING 0x1p-18f

KF_INLINE void split_exact(const kf_vec *x, const int group, int32_t centre, kf_x_block *out) {
    kf_int X[VECTORS];
    float magnitude, largest;
    sum_of_magnitudes(x, &magnitude, &largest);
    if (!(magnitude < KF_TAME_MAX && largest > KF_TAME_MIN)) {
        write_empty(magnitude == 0 ? 0.0f : -1.0f, 0, out);
        return;
    }
    // 2^(22 - e) and 2^(e - 22), e = floor(log2(largest * room)), from the exponent's bits.
    const uint32_t exponent = kf_bits_of_float(largest * KF_DIGIT_ROOM) >> 23;
    const float up = kf_float_of_bits((254 + 22 - exponent) << 23), scale = kf_float_of_bits((exponent - 22) << 23);
    KF_UNROLL for (int v = 0; v < VECTORS; v++) X[v] = kf_vec_to_int(kf_vec_mul(x[v], kf_vec_set1(up)));
    // All errors together are at most 16 scale: seldom need they be summed.
    const float allowed = KF_TAME_ROUNDING * (magnitude - largest);
    if (__builtin_expect(scale * (KF_BLOCK_SMALL / 2) > allowed, 0)) {
        kf_vec lost = kf_vec_zero();
        for (int v = 0; v < VECTORS; v++)
            lost = kf_vec_add(lost, magnitude_of(kf_vec_fnma(kf_int_to_vec(X[v]), kf_vec_set1(scale), x[v])));
        if (kf_vec_hsum(lost) > allowed) {
            write_empty(-1, 0, out);
            return;
        }
    }
    write_block(X, KF_X_DIGITS, group, centre, scale, out);
}

KF_INLINE void split_int8(const kf_vec *x, const int group, int32_t centre, kf_x_block *out) {
    kf_int X[VECTORS];
    float magnitude, largest;
    sum_of_magnitudes(x, &magnitude, &largest);
    const float scale = largest / 127.0f;
    if (magnitude != magnitude || largest > FLT_MAX || scale == 0) { // no scale holds NaN and infinity
        const float sum = scale == 0 && magnitude == magnitude ? 0.0f : kf_float_of_bits(0x7fc00000u);
        write_empty(sum, sum, out);
        return;
    }
    const kf_vec limit = kf_vec_set1(127.0f); // the scale of a block of subnormals has few bits
    KF_UNROLL for (int v = 0; v < VECTORS; v++) {
        kf_vec q = kf_vec_div(x[v], kf_vec_set1(scale));
        q = kf_vec_min(limit, kf_vec_max(kf_vec_sub(kf_vec_zero(), limit), q));
        X[v] = kf_vec_to_int(q);
    }
    write_block(X, 1, group, centre, scale, out);
}

KF_INLINE void split_row(const int x_type, const int D, const int group, int32_t centre, const char *x, int64_t blocks,
                         int64_t step, kf_x_block *out) {
    const int64_t size = kf_type_size(x_type);
    for (int64_t b = 0; b < blocks; b++, x += KF_BLOCK_SMALL * size, out += step) {
        kf_vec v[VECTORS];
        KF_UNROLL for (int i = 0; i < VECTORS; i++) {
            const char *from = x + i * KF_LANES * size;
            v[i] = x_type == KF_TYPE_F32   ? kf_vec_load_f32(from)
                   : x_type == KF_TYPE_F16 ? kf_vec_load_f16(from)
                                           : kf_vec_load_bf16(from);
        }
        if (D == 1)
            split_int8(v, group, centre, out);
        else
            split_exact(v, group, centre, out);
    }
}

#define KF_SPLIT(x_type, group)                                                                                        \
    do {                                                                                                               \
        if (digits == 1)                                                                                               \
            split_row(x_type, 1, group, centre_of(type), x, blocks, step, out);                                        \
        else                                                                                                           \
            split_row(x_type, KF_X_DIGITS, group, centre_of(type), x, blocks, step, out);                              \
        return;                                                                                                        \
    } while (0)

static void kf_linear_split(const char *x, int32_t x_type, int32_t type, int32_t digits, int64_t blocks, int64_t step,
                            kf_x_block *out) {
    if (kf_block_group(type) < KF_BLOCK_SMALL) {
        if (x_type == KF_TYPE_F32) KF_SPLIT(KF_TYPE_F32, KF_BLOCK_Q6_GROUP);
        if (x_type == KF_TYPE_F16) KF_SPLIT(KF_TYPE_F16, KF_BLOCK_Q6_GROUP);
        KF_SPLIT(KF_TYPE_BF16, KF_BLOCK_Q6_GROUP);
    }
    if (x_type == KF_TYPE_F32) KF_SPLIT(KF_TYPE_F32, KF_BLOCK_SMALL);
    if (x_type == KF_TYPE_F16) KF_SPLIT(KF_TYPE_F16, KF_BLOCK_SMALL);
    KF_SPLIT(KF_TYPE_BF16, KF_BLOCK_SMALL);
}

#endif
