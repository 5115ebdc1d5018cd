// SPDX-License-Identifier: Apache-2.0
//
// Attention kernels for AVX-512 with BF16: where q, k and v are bf16, both products run on vdpbf16ps, which adds two products
// of bf16 numbers to each of 16 fp32 sums; p is rounded to bf16 between them. Anything else runs on the fp32 kernels.
//
//     vdpbf16ps(a, b)[i] = a[2i] b[2i] + a[2i + 1] b[2i + 1]         subnormal numbers count as zero
//
// So the packed layouts are those of attention_loops.h with pairs of bf16 in the place of floats:
//     queries   [D / 2][12][2]       keys   [panel][D / 2][32 keys][2]       values   [columns / 64][keys / 2][columns][2]
#if defined(__x86_64__)
#include <math.h>

#include "cpu/simd_avx512.h"

#define SCORE_ROWS 12
#define SCORE_VECS 2
#define VALUE_VECS 4
#define VALUE_ROWS(vecs) ((vecs) <= 2 ? 12 : 6)
#define FEW_ROWS 4
#define FEW_VECS 4
#define FEW_IN_STEP

#include "cpu/attention_avx512.h"

static inline void store_weight_half(uint16_t *p, kf_vec w) {
    _mm256_storeu_si256((__m256i *)(void *)p, kf_vec_to_bf16_ftz(w));
}

#include "cpu/attention_loops.h"

typedef __m512i pairs; // 16 pairs of bf16

INLINE kf_vec dot(kf_vec sum, pairs a, pairs b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }

// The first n (up to 32) bf16 numbers at p, then zeros.
INLINE pairs load_pairs(const char *p, int64_t n) {
    if (n >= 32) return _mm512_loadu_si512(p);
    return _mm512_maskz_loadu_epi16((1u << n) - 1, p);
}

INLINE pairs broadcast_pair(const void *p) {
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return _mm512_set1_epi32(pair);
}

// Two rows of 32 columns become pairs: columns 0 .. 15 in *low, 16 .. 31 in *high.
INLINE void interleave(pairs a, pairs b, pairs *low, pairs *high) {
    const __m512i first = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                                           37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    *low = _mm512_permutex2var_epi16(a, first, b);
    *high = _mm512_permutex2var_epi16(a, _mm512_add_epi16(first, _mm512_set1_epi16(16)), b);
}

// -------------------------------------------------------------------------------------------------------------- packing

static void pack_queries_bf16(const float *rows, int64_t D, void *packed) {
    char *out = packed;
    for (int64_t d = 0; d < D; d += 32) {
        __m512 x[16];
        int64_t n = kf_min64(D - d, 32);
        for (int r = 0; r < 16; r++) {
            const float *row = rows + r * D + d;
            x[r] = kf_vec_zero();
            if (r >= KF_ROW_GROUP) continue;
            kf_vec low = kf_vec_load_f32_n(row, lanes_left(n)), high = kf_vec_zero();
            if (n > 16) high = kf_vec_load_f32_n(row + 16, (int)n - 16);
            x[r] = (__m512)_mm512_cvtne2ps_pbh(high, low);
        }
        transpose_block(x);
        for (int64_t i = 0; i < n / 2; i++)
            kf_vec_store_f32_n(out + (d / 2 + i) * KF_ROW_GROUP * 4, x[i], KF_ROW_GROUP);
    }
}

// 16 keys from k on, of which n exist, become columns of a panel.
INLINE void pack_key_pairs(const char *k, int64_t stride, int64_t n, int64_t D, char *out) {
    for (int64_t d = 0; d < D; d += 32) {
        __m512 x[16];
        for (int i = 0; i < 16; i++)
            x[i] = i < n ? _mm512_castsi512_ps(load_pairs(k + i * stride + 2 * d, D - d)) : kf_vec_zero();
        transpose_block(x);
        int64_t width = kf_min64(D - d, 32) / 2;
        for (int64_t i = 0; i < width; i++) kf_vec_store_f32(out + (d / 2 + i) * PANEL * 4, x[i]);
    }
}

static void pack_keys_bf16(const char *k, int64_t stride, int32_t type, int64_t n, int64_t D, void *packed) {
    (void)type;
    char *out = packed;
    for (int64_t j = 0; j < n; j += PANEL, out += PANEL * D * 2)
        for (int i = 0; i < PANEL; i += 16) pack_key_pairs(k + (j + i) * stride, stride, n - j - i, D, out + i * 4);
}

// Up to 64 columns of n values. Returns the largest bits of each lane, signs removed: from 0x7f80 on no finite number.
INLINE __m512i pack_value_pairs(const char *v, int64_t stride, int64_t n, int64_t padded, int64_t width, char *out) {
    __m512i largest = _mm512_setzero_si512();
    int64_t vectors = (width + 15) / 16;
    for (int64_t j = 0; j < padded; j += 2, out += vectors * 64)
        for (int64_t i = 0; i < vectors; i += 2) {
            const char *x = v + j * stride + i * 32;
            pairs a = j < n ? load_pairs(x, width - i * 16) : _mm512_setzero_si512();
            pairs b = j + 1 < n ? load_pairs(x + stride, width - i * 16) : _mm512_setzero_si512();
            pairs low, high;
            interleave(a, b, &low, &high);
            largest = _mm512_max_epu16(largest, _mm512_and_si512(_mm512_set1_epi16(0x7fff), a));
            largest = _mm512_max_epu16(largest, _mm512_and_si512(_mm512_set1_epi16(0x7fff), b));
            _mm512_storeu_si512(out + i * 64, low);
            if (i + 1 < vectors) _mm512_storeu_si512(out + i * 64 + 64, high);
        }
    return largest;
}

static bool pack_values_bf16(const char *v, int64_t stride, int32_t type, int64_t n, int64_t Dv, void *packed) {
    (void)type;
    char *out = packed;
    __m512i largest = _mm512_setzero_si512();
    for (int64_t c = 0; c < Dv; c += VALUE_VECS * 16, out += KF_KEY_BLOCK * VALUE_VECS * 16 * 2) {
        int64_t width = kf_min64(VALUE_VECS * 16, Dv - c);
        largest = _mm512_max_epu16(largest, pack_value_pairs(v + 2 * c, stride, n, kf_padded(n, PANEL), width, out));
    }
    return _mm512_cmpge_epu16_mask(largest, _mm512_set1_epi16(0x7f80)) == 0;
}

// ------------------------------------------------------------------------------------------------------------- products

INLINE void score_tile_bf16(const char *q, const char *k, int64_t D, float *s) {
    kf_vec acc[SCORE_ROWS][SCORE_VECS];
    UNROLL for (int r = 0; r < SCORE_ROWS; r++) UNROLL for (int i = 0; i < SCORE_VECS; i++) acc[r][i] = kf_vec_zero();
    for (int64_t d = 0; d < D; d += 2, q += KF_ROW_GROUP * 4, k += PANEL * 4) {
        pairs b[SCORE_VECS];
        UNROLL for (int i = 0; i < SCORE_VECS; i++) b[i] = _mm512_loadu_si512(k + i * 64);
        UNROLL for (int r = 0; r < SCORE_ROWS; r++) {
            pairs a = broadcast_pair(q + r * 4);
            UNROLL for (int i = 0; i < SCORE_VECS; i++) acc[r][i] = dot(acc[r][i], a, b[i]);
        }
    }
    UNROLL for (int r = 0; r < SCORE_ROWS; r++) UNROLL for (int i = 0; i < SCORE_VECS; i++)
        kf_vec_store_f32(s + r * KF_SCORE_STRIDE + i * 16, acc[r][i]);
}

static void tile_scores_bf16(const void *queries, const void *keys, int64_t D, int64_t first, int64_t last, float *s) {
    for (int64_t j = first; j < last; j += PANEL) score_tile_bf16(queries, (const char *)keys + j * D * 2, D, s + j);
}

INLINE void value_tile_bf16(const int rows, const int vecs, const uint16_t *p, const char *v, int64_t n,
                            const float *alpha, float *o, int64_t o_stride) {
    kf_vec acc[12][4];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int i = 0; i < vecs; i++) acc[r][i] =
        kf_vec_mul(kf_vec_set1(alpha[r]), kf_vec_load_f32(o + r * o_stride + i * 16));
    for (int64_t j = 0; j < n; j += 2, p += 2, v += vecs * 64) {
        pairs b[4];
        UNROLL for (int i = 0; i < vecs; i++) b[i] = _mm512_loadu_si512(v + i * 64);
        UNROLL for (int r = 0; r < rows; r++) {
            pairs a = broadcast_pair(p + r * KF_SCORE_STRIDE);
            UNROLL for (int i = 0; i < vecs; i++) acc[r][i] = dot(acc[r][i], a, b[i]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int i = 0; i < vecs; i++)
        kf_vec_store_f32(o + r * o_stride + i * 16, acc[r][i]);
}

INLINE void value_columns_bf16(const int vecs, const uint16_t *p, const char *v, int64_t first, int64_t last,
                               const float *alpha, float *o, int64_t o_stride) {
    const int rows = VALUE_ROWS(vecs);
    for (int r = 0; r < KF_ROW_GROUP; r += rows)
        value_tile_bf16(rows, vecs, p + r * KF_SCORE_STRIDE + first, v + first / 2 * vecs * 64, last - first, alpha + r,
                        o + r * o_stride, o_stride);
}

static void tile_values_bf16(const void *p, const void *values, int64_t Dv, int64_t first, int64_t last,
                             const float *alpha, float *o) {
    const char *v = values;
    int64_t o_stride = kf_padded(Dv, 16);
    for (int64_t vecs = o_stride / 16; vecs > 0; vecs -= VALUE_VECS) {
        switch (kf_min64(vecs, VALUE_VECS)) {
        case 1: value_columns_bf16(1, p, v, first, last, alpha, o, o_stride); break;
        case 2: value_columns_bf16(2, p, v, first, last, alpha, o, o_stride); break;
        case 3: value_columns_bf16(3, p, v, first, last, alpha, o, o_stride); break;
        case 4: value_columns_bf16(4, p, v, first, last, alpha, o, o_stride); break;
        }
        v += KF_KEY_BLOCK * VALUE_VECS * 16 * 2;
        o += VALUE_VECS * 16;
    }
}

static void softmax_bf16(float *s, void *p, int32_t rows, int64_t first, int64_t last, float c, float *m, float *d,
                         float *alpha) {
    softmax_as(true, s, p, rows, first, last, c, m, d, alpha);
}

static const kf_tile_kernels tiles_bf16 = {
    2, PANEL, pack_queries_bf16, pack_keys_bf16, pack_values_bf16, tile_scores_bf16, tile_values_bf16, softmax_bf16};

// ------------------------------------------------------------------------------------------------------------- few rows

INLINE kf_vec few_score_tile_bf16(const int rows, const int keys, const char *q, const char *k, int64_t stride,
                                  int64_t D, const char *ask) {
    kf_vec acc[16];
    UNROLL for (int i = 0; i < 16; i++) acc[i] = kf_vec_zero();
    int64_t d = 0;
    for (; d + 32 <= D; d += 32) UNROLL for (int i = 0; i < keys; i++) {
            pairs x = _mm512_loadu_si512(k + i * stride + 2 * d);
            if (ask) prefetch_line(ask + i * stride + 2 * d);
            UNROLL for (int r = 0; r < rows; r++) acc[r * keys + i] =
                dot(acc[r * keys + i], _mm512_loadu_si512(q + (r * D + d) * 2), x);
        }
    if (d < D) UNROLL for (int i = 0; i < keys; i++) {
            pairs x = load_pairs(k + i * stride + 2 * d, D - d);
            UNROLL for (int r = 0; r < rows; r++) acc[r * keys + i] =
                dot(acc[r * keys + i], load_pairs(q + (r * D + d) * 2, D - d), x);
        }
    return sum_each(acc);
}

INLINE void few_score_rows_bf16(const int rows, const int keys, const char *q, const char *k, int64_t stride, int64_t n,
                                int64_t D, int64_t ahead, float *s) {
    float sums[16];
    int64_t j = 0;
    for (; rows == 4 && j + 4 * keys <= n; j += 4 * keys) {
        kf_vec x[4];
        UNROLL for (int i = 0; i < 4; i++) {
            int64_t at = j + i * keys;
            x[i] = few_score_tile_bf16(rows, keys, q, k + at * stride, stride, D, ask_key(k, stride, at, keys, ahead));
        }
        store_quarters(x, s + j);
    }
    for (; j < n && n >= keys; j += keys) {
        if (j > n - keys) j = n - keys;
        const char *ask = ask_key(k, stride, j, keys, ahead);
        kf_vec_store_f32(sums, few_score_tile_bf16(rows, keys, q, k + j * stride, stride, D, ask));
        UNROLL for (int r = 0; r < rows; r++)
            memcpy(s + r * KF_SCORE_STRIDE + j, sums + r * keys, (size_t)keys * sizeof *s);
    }
    for (; j < n; j++) {
        kf_vec_store_f32(sums, few_score_tile_bf16(rows, 1, q, k + j * stride, stride, D, NULL));
        UNROLL for (int r = 0; r < rows; r++) s[r * KF_SCORE_STRIDE + j] = sums[r];
    }
}

INLINE void few_scores_bf16_of(const int64_t D, const char *q, int32_t rows, const char *k, int64_t stride, int64_t n,
                               int64_t ahead, float *s) {
    for (int64_t j = 0; j < n; j += FEW_KEYS)
        for (int32_t r = 0; r < rows; r += FEW_ROWS) {
            const char *q_r = q + r * D * 2, *k_j = k + j * stride;
            float *s_r = s + r * KF_SCORE_STRIDE + j;
            int64_t keys = kf_min64(n - j, FEW_KEYS), asking = r ? 0 : ahead - j;
            switch (kf_min64(rows - r, FEW_ROWS)) {
            case 1: few_score_rows_bf16(1, 16, q_r, k_j, stride, keys, D, asking, s_r); break;
            case 2: few_score_rows_bf16(2, 8, q_r, k_j, stride, keys, D, asking, s_r); break;
            case 3: few_score_rows_bf16(3, 4, q_r, k_j, stride, keys, D, asking, s_r); break;
            case 4: few_score_rows_bf16(4, 4, q_r, k_j, stride, keys, D, asking, s_r); break;
            }
        }
}

// The usual head dims by themselves: loops of known length cost a third less.
static void few_scores_dot(const void *q, int32_t rows, const char *k, int64_t stride, int64_t n, int64_t D,
                           int64_t ahead, float *s) {
    switch (D) {
    case 64: few_scores_bf16_of(64, q, rows, k, stride, n, ahead, s); break;
    case 128: few_scores_bf16_of(128, q, rows, k, stride, n, ahead, s); break;
    default: few_scores_bf16_of(D, q, rows, k, stride, n, ahead, s);
    }
}

// `rows` rows by n keys into 32 halves columns, of which the last 32 have `width`. The first pass over columns brings the rest of
// each row into L1 beside: the next pass reads it, and whole rows are what the prefetchers follow.
INLINE void few_value_tile_bf16(const int rows, const int halves, const uint16_t *p, const char *v, int64_t stride,
                                int64_t n, int64_t width, few_asking *asking, const float *alpha, float *o,
                                int64_t o_stride, bool last_vector) {
    const int64_t beside = asking ? asking->beside : 0;
    kf_vec acc[4][4];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int i = 0; i < 2 * halves; i++) {
        bool there = i + 1 < 2 * halves || last_vector;
        acc[r][i] =
            there ? kf_vec_mul(kf_vec_set1(alpha[r]), kf_vec_load_f32(o + r * o_stride + i * 16)) : kf_vec_zero();
    }
    for (int64_t j = 0; j < n; j += 2, v += 2 * stride) {
        pairs b[4];
        ask_row(asking);
        ask_row(asking);
        for (int64_t i = 128; i < beside; i += 64) {
            __builtin_prefetch(v + i, 0, 3);
            __builtin_prefetch(v + stride + i, 0, 3);
        }
        UNROLL for (int i = 0; i < halves; i++) {
            int64_t columns = i + 1 < halves ? 32 : width;
            pairs a = load_pairs(v + i * 64, columns);
            pairs c = j + 1 < n ? load_pairs(v + stride + i * 64, columns) : _mm512_setzero_si512();
            interleave(a, c, &b[2 * i], &b[2 * i + 1]);
        }
        UNROLL for (int r = 0; r < rows; r++) {
            pairs w = broadcast_pair(p + r * KF_SCORE_STRIDE + j);
            UNROLL for (int i = 0; i < 2 * halves; i++) acc[r][i] = dot(acc[r][i], w, b[i]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int i = 0; i < 2 * halves; i++) if (i + 1 < 2 * halves || last_vector)
            kf_vec_store_f32(o + r * o_stride + i * 16, acc[r][i]);
}

INLINE void few_value_columns_bf16(const int halves, const uint16_t *p, int32_t rows, const char *v, int64_t stride,
                                   int64_t n, int64_t width, few_asking *asking, const float *alpha, float *o,
                                   int64_t o_stride, bool last) {
    for (int32_t r = 0; r < rows; r += FEW_ROWS) {
        const uint16_t *p_r = p + r * KF_SCORE_STRIDE;
        const float *alpha_r = alpha + r;
        float *o_r = o + r * o_stride;
        switch (kf_min64(rows - r, FEW_ROWS)) {
        case 1:
            few_value_tile_bf16(1, halves, p_r, v, stride, n, width, r ? NULL : asking, alpha_r, o_r, o_stride, last);
            break;
        case 2:
            few_value_tile_bf16(2, halves, p_r, v, stride, n, width, r ? NULL : asking, alpha_r, o_r, o_stride, last);
            break;
        case 3:
            few_value_tile_bf16(3, halves, p_r, v, stride, n, width, r ? NULL : asking, alpha_r, o_r, o_stride, last);
            break;
        case 4:
            few_value_tile_bf16(4, halves, p_r, v, stride, n, width, r ? NULL : asking, alpha_r, o_r, o_stride, last);
            break;
        }
    }
}

INLINE void few_values_bf16_of(const int64_t Dv, const uint16_t *p, int32_t rows, const char *v, int64_t stride,
                               int64_t n, int64_t ahead, const float *alpha, float *o) {
    int64_t o_stride = kf_padded(Dv, 16);
    few_asking asking = asking_for(v, stride, 2 * Dv, n, ahead, (Dv + 63) / 64);
    for (int64_t c = 0; c < Dv; c += 64) {
        int64_t columns = kf_min64(Dv - c, 64);
        bool last = (columns + 15) / 16 % 2 == 0;
        const char *v_c = v + 2 * c;
        asking.beside = c == 0 ? 2 * Dv : 0;
        if (columns == 64)
            few_value_columns_bf16(2, p, rows, v_c, stride, n, 32, &asking, alpha, o + c, o_stride, true);
        else if (columns > 32)
            few_value_columns_bf16(2, p, rows, v_c, stride, n, columns - 32, &asking, alpha, o + c, o_stride, last);
        else
            few_value_columns_bf16(1, p, rows, v_c, stride, n, columns, &asking, alpha, o + c, o_stride, last);
    }
}

static void few_values_dot(const void *p, int32_t rows, const char *v, int64_t stride, int64_t n, int64_t Dv,
                           int64_t ahead, const float *alpha, float *o) {
    switch (Dv) {
    case 64: few_values_bf16_of(64, p, rows, v, stride, n, ahead, alpha, o); break;
    case 128: few_values_bf16_of(128, p, rows, v, stride, n, ahead, alpha, o); break;
    default: few_values_bf16_of(Dv, p, rows, v, stride, n, ahead, alpha, o);
    }
}

static void few_softmax_bf16(float *s, void *p, int32_t rows, int64_t n, float c, float *m, float *d, float *alpha) {
    few_softmax_as(true, s, p, rows, n, c, m, d, alpha);
}

static const kf_few_kernels few_dot = {2, KF_FEW_PAGE, few_scores_dot, few_values_dot, few_softmax_bf16};

const kf_attention_kernels kf_attention_avx512bf16 = {
    .notes = "bf16 dot products (fp32 FMA for other types), 12x32 and 6x64 tiles",
    .lanes = KF_LANES,
    .tiles = &tiles_f32,
    .tiles_bf16 = &tiles_bf16,
    .few = {NULL, &few_f32, &few_f16, &few_bf16},
    .few_bf16 = &few_dot,
    .logits = logits,
    .load_row = load_row,
    .store_row = store_row,
    .add_row = add_row,
};
#endif
