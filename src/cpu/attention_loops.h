// SPDX-License-Identifier: Apache-2.0
//
// The attention kernels in fp32 arithmetic, written once over the vectors of an ISA (simd_ISA.h). An attention_ISA.c
// includes this file after it has said
//
//     SCORE_ROWS, SCORE_VECS   the register tile of q k^T: rows (dividing KF_ROW_GROUP) by vectors of keys
//     VALUE_VECS               the widest register tile of p v, in vectors of v's columns; VALUE_ROWS(n): its rows
//     FEW_VECS                 the same where rows are few (up to FEW_ROWS)
//     transpose_block(x)       x[KF_LANES], a square of floats, transposed in place
//     sum_each(x)              one vector of the sums of x[0] .. x[KF_LANES - 1]
//     add_bias(x, bias)        x + bias, and -inf where the bias is -inf, whatever x
//     hide(x, visible)         x, and -inf where the byte is 0
//     weight(x)                2^x for x <= 0 (up to rounding); weight_half(x): where the result is rounded to bf16
//     store_weight_half(p, w)  w as bf16
//     FEW_IN_STEP              defined: a softmax of few rows of its own (attention_few_avx512.h)
//     exact_fma(a, b, c)       a b + c with an exact product: c s and c m are large numbers whose difference is small
//
// Layouts of a packed block (n keys, KF_LANES = L):
//     queries   [D][12]                                    so that a step of d reads 12 neighbours
//     keys      [panel][D][panel keys]                     a step of d reads SCORE_VECS vectors
//     values    [columns / (VALUE_VECS L)][keys][columns]  a step of a key reads up to VALUE_VECS vectors
//
// One step of q k^T: SCORE_ROWS broadcasts and SCORE_VECS loads for SCORE_ROWS SCORE_VECS products; of p v the same.
#include <string.h>

#include "cpu/attention.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

enum { PANEL = SCORE_VECS * KF_LANES };
_Static_assert(KF_ROW_GROUP % SCORE_ROWS == 0, "a group is a number of score tiles");
_Static_assert(KF_KEY_BLOCK % PANEL == 0, "a block is a number of panels");

INLINE kf_vec load_as(const int32_t type, const char *p) {
    return type == KF_TYPE_F32 ? kf_vec_load_f32(p) : type == KF_TYPE_F16 ? kf_vec_load_f16(p) : kf_vec_load_bf16(p);
}

INLINE kf_vec load_as_n(const int32_t type, const char *p, int n) {
    if (n == KF_LANES) return load_as(type, p);
    return type == KF_TYPE_F32   ? kf_vec_load_f32_n(p, n)
           : type == KF_TYPE_F16 ? kf_vec_load_f16_n(p, n)
                                 : kf_vec_load_bf16_n(p, n);
}

INLINE int lanes_left(int64_t n) { return n < KF_LANES ? (int)n : KF_LANES; }

// -------------------------------------------------------------------------------------------------------------- packing

static void pack_queries(const float *rows, int64_t D, void *packed) {
    for (int64_t first = 0; first < KF_ROW_GROUP; first += KF_LANES) {
        int64_t n = kf_min64(KF_ROW_GROUP - first, KF_LANES);
        float *out = (float *)packed + first;
        for (int64_t d = 0; d < D; d += KF_LANES) {
            kf_vec x[KF_LANES];
            int width = lanes_left(D - d);
            for (int i = 0; i < KF_LANES; i++)
                x[i] = i < n ? kf_vec_load_f32_n(rows + (first + i) * D + d, width) : kf_vec_zero();
            transpose_block(x);
            for (int i = 0; i < width; i++) kf_vec_store_f32_n(out + (d + i) * KF_ROW_GROUP, x[i], (int)n);
        }
    }
}

// KF_LANES keys from k on, of which n exist, become columns of a panel.
INLINE void pack_key_columns(const char *k, int64_t stride, const int32_t type, int64_t n, int64_t D, float *out) {
    for (int64_t d = 0; d < D; d += KF_LANES) {
        kf_vec x[KF_LANES];
        int width = lanes_left(D - d);
        for (int i = 0; i < KF_LANES; i++)
            x[i] = i < n ? load_as_n(type, k + i * stride + d * kf_type_size(type), width) : kf_vec_zero();
        transpose_block(x);
        for (int i = 0; i < width; i++) kf_vec_store_f32(out + (d + i) * PANEL, x[i]);
    }
}

INLINE void pack_keys_as(const char *k, int64_t stride, const int32_t type, int64_t n, int64_t D, float *out) {
    for (int64_t j = 0; j < n; j += PANEL, out += PANEL * D)
        for (int i = 0; i < PANEL; i += KF_LANES)
            pack_key_columns(k + (j + i) * stride, stride, type, n - j - i, D, out + i);
}

static void pack_keys(const char *k, int64_t stride, int32_t type, int64_t n, int64_t D, void *packed) {
    if (type == KF_TYPE_F32) pack_keys_as(k, stride, KF_TYPE_F32, n, D, packed);
    if (type == KF_TYPE_F16) pack_keys_as(k, stride, KF_TYPE_F16, n, D, packed);
    if (type == KF_TYPE_BF16) pack_keys_as(k, stride, KF_TYPE_BF16, n, D, packed);
}

// `width` columns of n values, from v on. x * 0 is 0 for finite x alone: the sum of those says whether all are.
INLINE kf_vec pack_value_columns(const char *v, int64_t stride, const int32_t type, int64_t n, int64_t padded,
                                 int64_t width, float *out) {
    kf_vec bad = kf_vec_zero();
    int64_t vectors = (width + KF_LANES - 1) / KF_LANES;
    for (int64_t j = 0; j < n; j++, out += vectors * KF_LANES)
        for (int64_t c = 0; c < width; c += KF_LANES) {
            kf_vec x = load_as_n(type, v + j * stride + c * kf_type_size(type), lanes_left(width - c));
            bad = kf_vec_fma(x, kf_vec_zero(), bad);
            kf_vec_store_f32(out + c, x);
        }
    memset(out, 0, (size_t)((padded - n) * vectors * KF_LANES) * sizeof *out);
    return bad;
}

INLINE bool pack_values_as(const char *v, int64_t stride, const int32_t type, int64_t n, int64_t Dv, float *out) {
    kf_vec bad = kf_vec_zero();
    for (int64_t c = 0; c < Dv; c += VALUE_VECS * KF_LANES) {
        int64_t width = kf_min64(VALUE_VECS * KF_LANES, Dv - c);
        bad = kf_vec_add(
            bad, pack_value_columns(v + c * kf_type_size(type), stride, type, n, kf_padded(n, PANEL), width, out));
        out += KF_KEY_BLOCK * VALUE_VECS * KF_LANES;
    }
    return kf_vec_hsum(bad) == 0.0f;
}

static bool pack_values(const char *v, int64_t stride, int32_t type, int64_t n, int64_t Dv, void *packed) {
    if (type == KF_TYPE_F32) return pack_values_as(v, stride, KF_TYPE_F32, n, Dv, packed);
    if (type == KF_TYPE_F16) return pack_values_as(v, stride, KF_TYPE_F16, n, Dv, packed);
    return pack_values_as(v, stride, KF_TYPE_BF16, n, Dv, packed);
}

// ------------------------------------------------------------------------------------------------------------- products

// SCORE_ROWS rows by one panel.
INLINE void score_tile(const float *q, const float *k, int64_t D, float *s) {
    kf_vec acc[SCORE_ROWS][SCORE_VECS];
    UNROLL for (int r = 0; r < SCORE_ROWS; r++) UNROLL for (int i = 0; i < SCORE_VECS; i++) acc[r][i] = kf_vec_zero();
    for (int64_t d = 0; d < D; d++, q += KF_ROW_GROUP, k += PANEL) {
        kf_vec b[SCORE_VECS];
        UNROLL for (int i = 0; i < SCORE_VECS; i++) b[i] = kf_vec_load_f32(k + i * KF_LANES);
        UNROLL for (int r = 0; r < SCORE_ROWS; r++) {
            kf_vec a = kf_vec_set1(q[r]);
            UNROLL for (int i = 0; i < SCORE_VECS; i++) acc[r][i] = kf_vec_fma(a, b[i], acc[r][i]);
        }
    }
    UNROLL for (int r = 0; r < SCORE_ROWS; r++) UNROLL for (int i = 0; i < SCORE_VECS; i++)
        kf_vec_store_f32(s + r * KF_SCORE_STRIDE + i * KF_LANES, acc[r][i]);
}

static void tile_scores(const void *queries, const void *keys, int64_t D, int64_t first, int64_t last, float *s) {
    for (int64_t j = first; j < last; j += PANEL)
        for (int r = 0; r < KF_ROW_GROUP; r += SCORE_ROWS)
            score_tile((const float *)queries + r, (const float *)keys + j * D, D, s + r * KF_SCORE_STRIDE + j);
}

// `rows` rows of p by n keys, into `vecs` vectors of o's columns.
INLINE void value_tile(const int rows, const int vecs, const float *p, const float *v, int64_t n, const float *alpha,
                       float *o, int64_t o_stride) {
    kf_vec acc[12][4];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int i = 0; i < vecs; i++) acc[r][i] =
        kf_vec_mul(kf_vec_set1(alpha[r]), kf_vec_load_f32(o + r * o_stride + i * KF_LANES));
    for (int64_t j = 0; j < n; j++, p++, v += vecs * KF_LANES) {
        kf_vec b[4];
        UNROLL for (int i = 0; i < vecs; i++) b[i] = kf_vec_load_f32(v + i * KF_LANES);
        UNROLL for (int r = 0; r < rows; r++) {
            kf_vec a = kf_vec_set1(p[r * KF_SCORE_STRIDE]);
            UNROLL for (int i = 0; i < vecs; i++) acc[r][i] = kf_vec_fma(a, b[i], acc[r][i]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int i = 0; i < vecs; i++)
        kf_vec_store_f32(o + r * o_stride + i * KF_LANES, acc[r][i]);
}

INLINE void value_columns(const int vecs, const float *p, const float *v, int64_t first, int64_t last,
                          const float *alpha, float *o, int64_t o_stride) {
    const int rows = VALUE_ROWS(vecs);
    for (int r = 0; r < KF_ROW_GROUP; r += rows)
        value_tile(rows, vecs, p + r * KF_SCORE_STRIDE + first, v + first * vecs * KF_LANES, last - first, alpha + r,
                   o + r * o_stride, o_stride);
}

static void tile_values(const void *p, const void *values, int64_t Dv, int64_t first, int64_t last, const float *alpha,
                        float *o) {
    const float *v = values;
    int64_t o_stride = kf_padded(Dv, KF_LANES);
    for (int64_t vecs = o_stride / KF_LANES; vecs > 0; vecs -= VALUE_VECS) {
        switch (kf_min64(vecs, VALUE_VECS)) {
        case 1: value_columns(1, p, v, first, last, alpha, o, o_stride); break;
#if VALUE_VECS >= 2
        case 2: value_columns(2, p, v, first, last, alpha, o, o_stride); break;
#endif
#if VALUE_VECS >= 3
        case 3: value_columns(3, p, v, first, last, alpha, o, o_stride); break;
#endif
#if VALUE_VECS >= 4
        case 4: value_columns(4, p, v, first, last, alpha, o, o_stride); break;
#endif
        }
        v += KF_KEY_BLOCK * VALUE_VECS * KF_LANES;
        o += VALUE_VECS * KF_LANES;
    }
}

// -------------------------------------------------------------------------------------------------------------- softmax

INLINE float row_max(const float *s, int64_t first, int64_t last) {
    kf_vec m0 = kf_vec_set1(-INFINITY), m1 = m0;
    int64_t j = first;
    for (; j + 2 * KF_LANES <= last; j += 2 * KF_LANES) {
        m0 = kf_vec_max(kf_vec_load_f32(s + j), m0);
        m1 = kf_vec_max(kf_vec_load_f32(s + j + KF_LANES), m1);
    }
    for (; j < last; j += KF_LANES) m0 = kf_vec_max(kf_vec_load_f32(s + j), m0);
    return kf_vec_hmax(kf_vec_max(m0, m1));
}

// p of one vector, stored; returned for the sum. origin: c m, or where that is far m itself (state.h). half: p is bf16.
INLINE kf_vec weights_at(const float *s, void *p, int64_t j, kf_vec c, kf_vec origin, const bool far, const bool half) {
    kf_vec x = kf_vec_load_f32(s + j);
    x = far ? kf_vec_mul(c, kf_vec_sub(x, origin)) : exact_fma(c, x, kf_vec_sub(kf_vec_zero(), origin));
    kf_vec w = half ? weight_half(x) : weight(x);
    if (half)
        store_weight_half((uint16_t *)p + j, w);
    else
        kf_vec_store_f32((float *)p + j, w);
    return w;
}

INLINE float row_weights(const float *s, void *p, int64_t first, int64_t last, float c, float origin, const bool far,
                         const bool half) {
    kf_vec sum0 = kf_vec_zero(), sum1 = kf_vec_zero(), factor = kf_vec_set1(c), shift = kf_vec_set1(origin);
    int64_t j = first;
    for (; j + 2 * KF_LANES <= last; j += 2 * KF_LANES) {
        sum0 = kf_vec_add(sum0, weights_at(s, p, j, factor, shift, far, half));
        sum1 = kf_vec_add(sum1, weights_at(s, p, j + KF_LANES, factor, shift, far, half));
    }
    for (; j < last; j += KF_LANES) sum0 = kf_vec_add(sum0, weights_at(s, p, j, factor, shift, far, half));
    return kf_vec_hsum(kf_vec_add(sum0, sum1));
}

INLINE void softmax_as(const bool half, float *s, void *p, int32_t rows, int64_t first, int64_t last, float c, float *m,
                       float *d, float *alpha) {
    for (int32_t r = 0; r < rows; r++) {
        float block = row_max(s + r * KF_SCORE_STRIDE, first, last);
        float both = m[r] > block ? m[r] : block, t = c * both;
        // A weight by hand, so that all rows' exponentials are taken together. While there is no score, origin 0: -inf + inf is NaN.
        alpha[r] = m[r] == -INFINITY ? m[r] : kf_state_is_far(t) ? c * (m[r] - both) : c * m[r] - t;
        m[r] = both;
    }
    for (int32_t r = 0; r < rows; r += KF_LANES) kf_vec_store_f32(alpha + r, weight(kf_vec_load_f32(alpha + r)));
    for (int32_t r = 0; r < rows; r++) {
        char *row = (char *)p + r * KF_SCORE_STRIDE * (half ? 2 : 4);
        const float *s_r = s + r * KF_SCORE_STRIDE;
        float t = m[r] == -INFINITY ? 0.0f : c * m[r];
        float sum = kf_state_is_far(t) ? row_weights(s_r, row, first, last, c, m[r], true, half)
                                       : row_weights(s_r, row, first, last, c, t, false, half);
        d[r] = d[r] * alpha[r] + sum;
    }
}

static void softmax_f32(float *s, void *p, int32_t rows, int64_t first, int64_t last, float c, float *m, float *d,
                        float *alpha) {
    softmax_as(false, s, p, rows, first, last, c, m, d, alpha);
}

#ifdef FEW_IN_STEP
#include "cpu/attention_few_avx512.h"
#else
static void few_softmax_f32(float *s, void *p, int32_t rows, int64_t n, float c, float *m, float *d, float *alpha) {
    softmax_as(false, s, p, rows, 0, n, c, m, d, alpha);
}
#endif

// tanh(x) = u / (u + 2) with u = e^(2x) - 1, kept exact to rounding near 0: u = 2^n (2^r - 1) + (2^n - 1).
INLINE kf_vec tanh_of(kf_vec x) {
    x = kf_vec_min(kf_vec_set1(20.0f), kf_vec_max(kf_vec_set1(-20.0f), x)); // beyond, tanh is 1 in fp32; a NaN passes
    kf_vec t = kf_vec_mul(x, kf_vec_set1(2.0f * KF_LOG2E)), magic = kf_vec_set1(KF_ROUND_MAGIC);
    kf_vec n = kf_vec_sub(kf_vec_add(t, magic), magic), r = kf_vec_sub(t, n);
    kf_vec p = kf_vec_fma(kf_vec_set1(KF_EXP2_D6_C6), r, kf_vec_set1(KF_EXP2_D6_C5));
    p = kf_vec_fma(p, r, kf_vec_set1(KF_EXP2_D6_C4));
    p = kf_vec_fma(p, r, kf_vec_set1(KF_EXP2_D6_C3));
    p = kf_vec_fma(p, r, kf_vec_set1(KF_EXP2_D6_C2));
    p = kf_vec_fma(p, r, kf_vec_set1(KF_EXP2_D6_C1));
    kf_vec power = kf_vec_exp2(n), one = kf_vec_set1(1.0f);
    kf_vec u = kf_vec_fma(power, kf_vec_mul(p, r), kf_vec_sub(power, one));
    return kf_vec_div(u, kf_vec_add(u, kf_vec_set1(2.0f)));
}

// `count` lanes of logits, from key j of the row on.
INLINE kf_vec logits_of(kf_vec x, const kf_logit_row *row, int64_t j, int count) {
    x = kf_vec_mul(x, kf_vec_set1(row->scale));
    if (row->softcap > 0.0f) {
        kf_vec cap = kf_vec_set1(row->softcap);
        x = kf_vec_mul(cap, tanh_of(kf_vec_div(x, cap)));
    }
    if (row->slope != 0.0f) {
        float lane[KF_LANES];
        for (int i = 0; i < KF_LANES; i++) lane[i] = (float)(j + i);
        kf_vec distance = kf_vec_sub(kf_vec_set1(row->distance), kf_vec_load_f32(lane));
        distance = kf_vec_max(distance, kf_vec_sub(kf_vec_zero(), distance));
        x = kf_vec_fnma(kf_vec_set1(row->slope), distance, x);
    }
    if (row->bias) {
        const char *bias = row->bias + j * kf_type_size(row->bias_type);
        x = add_bias(x, load_as_n(row->bias_type, bias, count));
    }
    if (row->mask) {
        uint8_t visible[KF_LANES] = {0};
        if (count == KF_LANES)
            memcpy(visible, row->mask + j, KF_LANES);
        else
            for (int i = 0; i < count; i++) visible[i % KF_LANES] = row->mask[j + i];
        x = hide(x, visible);
    }
    return x;
}

static void logits(float *s, int64_t n, const kf_logit_row *row) {
    for (int64_t j = 0; j < n; j += KF_LANES) {
        int count = lanes_left(n - j);
        kf_vec_store_f32_n(s + j, logits_of(kf_vec_load_f32_n(s + j, count), row, j, count), count);
    }
}

// ------------------------------------------------------------------------------------------------------------- few rows

// Keys whose rows are read by all groups of rows (or columns) before the next: a few KB, which L1 keeps meanwhile.
enum { FEW_KEYS = 32 };

// Requests go to L2: 8 to 32 KB of k and as much of v would push each other out of L1. They are spread evenly over the
// work, a line or a row at a time: of many at once most would be dropped.
INLINE void prefetch_line(const char *x) { __builtin_prefetch(x, 0, 2); }

// Rows of values that are to be asked for in the passes over the columns, one of them in `every` steps.
typedef struct few_asking {
    const char *row;
    int64_t stride, bytes, left;
    int64_t step, every;
    int64_t beside; // bytes of the row being read that are brought into L1 with its first ones
} few_asking;

INLINE void ask_row(few_asking *asking) {
    if (!asking || ++asking->step < asking->every) return;
    asking->step = 0;
    if (asking->left-- <= 0) return;
    for (int64_t i = 0; i < asking->bytes; i += 64) prefetch_line(asking->row + i);
    asking->row += asking->stride;
}

// For n rows from v on, of which `ahead` have a successor FEW_KEYS_AHEAD further on, in so many passes.
INLINE few_asking asking_for(const char *v, int64_t stride, int64_t bytes, int64_t n, int64_t ahead, int64_t passes) {
    return (few_asking){.row = v + FEW_KEYS_AHEAD * stride,
                        .stride = stride,
                        .bytes = bytes,
                        .left = kf_min64(n, ahead),
                        .every = passes};
}

// The keys to ask for beside those from j on; NULL: none.
INLINE const char *ask_key(const char *k, int64_t stride, int64_t j, int keys, int64_t ahead) {
    return j + keys <= ahead ? k + (j + FEW_KEYS_AHEAD) * stride : NULL;
}

// `keys` dot products for each of `rows` rows, gathered in one vector: row r, key i in lane r * keys + i. Asks for as many keys at `ask`.
INLINE kf_vec few_score_tile(const int rows, const int keys, const int32_t type, const float *q, const char *k,
                             int64_t stride, int64_t D, const char *ask) {
    kf_vec acc[KF_LANES];
    UNROLL for (int i = 0; i < KF_LANES; i++) acc[i] = kf_vec_zero();
    int64_t size = kf_type_size(type), d = 0;
    for (; d + KF_LANES <= D; d += KF_LANES) UNROLL for (int i = 0; i < keys; i++) {
            kf_vec x = load_as(type, k + i * stride + d * size);
            if (ask && d * size % 64 == 0) prefetch_line(ask + i * stride + d * size);
            UNROLL for (int r = 0; r < rows; r++) acc[r * keys + i] =
                kf_vec_fma(kf_vec_load_f32(q + r * D + d), x, acc[r * keys + i]);
        }
    if (d < D) UNROLL for (int i = 0; i < keys; i++) {
            kf_vec x = load_as_n(type, k + i * stride + d * size, (int)(D - d));
            UNROLL for (int r = 0; r < rows; r++) acc[r * keys + i] =
                kf_vec_fma(kf_vec_load_f32_n(q + r * D + d, (int)(D - d)), x, acc[r * keys + i]);
        }
    return sum_each(acc);
}

INLINE void few_score_rows(const int rows, const int keys, const int32_t type, const float *q, const char *k,
                           int64_t stride, int64_t n, int64_t D, int64_t ahead, float *s) {
    float sums[KF_LANES];
    int64_t j = 0;
#ifdef FEW_IN_STEP
    for (; rows == 4 && j + 4 * keys <= n; j += 4 * keys) {
        kf_vec x[4];
        UNROLL for (int i = 0; i < 4; i++) {
            int64_t at = j + i * keys;
            x[i] = few_score_tile(rows, keys, type, q, k + at * stride, stride, D, ask_key(k, stride, at, keys, ahead));
        }
        store_quarters(x, s + j);
    }
#endif
    for (; j < n && n >= keys; j += keys) {
        if (j > n - keys) j = n - keys; // the last keys again rather than one by one; the sums are the same
        const char *ask = ask_key(k, stride, j, keys, ahead);
        kf_vec_store_f32(sums, few_score_tile(rows, keys, type, q, k + j * stride, stride, D, ask));
        UNROLL for (int r = 0; r < rows; r++)
            memcpy(s + r * KF_SCORE_STRIDE + j, sums + r * keys, (size_t)keys * sizeof *s);
    }
    for (; j < n; j++) {
        kf_vec_store_f32(sums, few_score_tile(rows, 1, type, q, k + j * stride, stride, D, NULL));
        UNROLL for (int r = 0; r < rows; r++) s[r * KF_SCORE_STRIDE + j] = sums[r];
    }
}

INLINE void few_scores_as(const int32_t type, const float *q, int32_t rows, const char *k, int64_t stride, int64_t n,
                          int64_t D, int64_t ahead, float *s) {
    for (int64_t j = 0; j < n; j += FEW_KEYS)
        for (int32_t r = 0; r < rows; r += FEW_ROWS) {
            const float *q_r = q + r * D;
            const char *k_j = k + j * stride;
            float *s_r = s + r * KF_SCORE_STRIDE + j;
            int64_t keys = kf_min64(n - j, FEW_KEYS), asking = r ? 0 : ahead - j;
            switch (kf_min64(rows - r, FEW_ROWS)) {
            case 1: few_score_rows(1, KF_LANES, type, q_r, k_j, stride, keys, D, asking, s_r); break;
#if FEW_ROWS == 4
            case 2: few_score_rows(2, KF_LANES / 2, type, q_r, k_j, stride, keys, D, asking, s_r); break;
            case 3: few_score_rows(3, KF_LANES / 4, type, q_r, k_j, stride, keys, D, asking, s_r); break;
            case 4: few_score_rows(4, KF_LANES / 4, type, q_r, k_j, stride, keys, D, asking, s_r); break;
#endif
            }
        }
}

// `vecs` vectors of columns, of which the last has `width` lanes.
INLINE void few_value_tile(const int rows, const int vecs, const int32_t type, const float *p, const char *v,
                           int64_t stride, int64_t n, int width, few_asking *asking, const float *alpha, float *o,
                           int64_t o_stride) {
    kf_vec acc[4][4];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int i = 0; i < vecs; i++) acc[r][i] =
        kf_vec_mul(kf_vec_set1(alpha[r]), kf_vec_load_f32(o + r * o_stride + i * KF_LANES));
    for (int64_t j = 0; j < n; j++, v += stride) {
        ask_row(asking);
        kf_vec b[4];
        UNROLL for (int i = 0; i < vecs; i++) {
            const char *x = v + i * KF_LANES * kf_type_size(type);
            b[i] = i + 1 < vecs || width == KF_LANES ? load_as(type, x) : load_as_n(type, x, width);
        }
        UNROLL for (int r = 0; r < rows; r++) {
            kf_vec a = kf_vec_set1(p[r * KF_SCORE_STRIDE + j]);
            UNROLL for (int i = 0; i < vecs; i++) acc[r][i] = kf_vec_fma(a, b[i], acc[r][i]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int i = 0; i < vecs; i++)
        kf_vec_store_f32(o + r * o_stride + i * KF_LANES, acc[r][i]);
}

// All keys for one set of columns after the other: sums stay in registers, and each cache line is read once.
INLINE void few_value_columns(const int vecs, const int32_t type, const float *p, int32_t rows, const char *v,
                              int64_t stride, int64_t n, int width, few_asking *asking, const float *alpha, float *o,
                              int64_t o_stride) {
    for (int32_t r = 0; r < rows; r += FEW_ROWS) {
        const float *p_r = p + r * KF_SCORE_STRIDE, *alpha_r = alpha + r;
        float *o_r = o + r * o_stride;
        switch (kf_min64(rows - r, FEW_ROWS)) {
        case 1:
            few_value_tile(1, vecs, type, p_r, v, stride, n, width, r ? NULL : asking, alpha_r, o_r, o_stride);
            break;
#if FEW_ROWS == 4
        case 2:
            few_value_tile(2, vecs, type, p_r, v, stride, n, width, r ? NULL : asking, alpha_r, o_r, o_stride);
            break;
        case 3:
            few_value_tile(3, vecs, type, p_r, v, stride, n, width, r ? NULL : asking, alpha_r, o_r, o_stride);
            break;
        case 4:
            few_value_tile(4, vecs, type, p_r, v, stride, n, width, r ? NULL : asking, alpha_r, o_r, o_stride);
            break;
#endif
        }
    }
}

INLINE void few_values_as(const int32_t type, const float *p, int32_t rows, const char *v, int64_t stride, int64_t n,
                          int64_t Dv, int64_t ahead, const float *alpha, float *o) {
    int64_t o_stride = kf_padded(Dv, KF_LANES), passes = (Dv + FEW_VECS * KF_LANES - 1) / (FEW_VECS * KF_LANES);
    few_asking asking = asking_for(v, stride, Dv * kf_type_size(type), n, ahead, passes);
    for (int64_t c = 0; c < Dv; c += FEW_VECS * KF_LANES) {
        const char *v_c = v + c * kf_type_size(type);
        int64_t vecs = kf_min64((Dv - c + KF_LANES - 1) / KF_LANES, FEW_VECS);
        int width = lanes_left(Dv - c - (vecs - 1) * KF_LANES);
        switch (vecs) {
        case 1: few_value_columns(1, type, p, rows, v_c, stride, n, width, &asking, alpha, o + c, o_stride); break;
#if FEW_VECS >= 2
        case 2: few_value_columns(2, type, p, rows, v_c, stride, n, width, &asking, alpha, o + c, o_stride); break;
#endif
#if FEW_VECS >= 4
        case 3: few_value_columns(3, type, p, rows, v_c, stride, n, width, &asking, alpha, o + c, o_stride); break;
        case 4: few_value_columns(4, type, p, rows, v_c, stride, n, width, &asking, alpha, o + c, o_stride); break;
#endif
        }
    }
}

// The usual head dims by themselves: loops of known length cost less.
#define DEFINE_FEW(name, type)                                                                                         \
    static void few_scores_##name(const void *q, int32_t rows, const char *k, int64_t stride, int64_t n, int64_t D,    \
                                  int64_t ahead, float *s) {                                                           \
        if (D == 64)                                                                                                   \
            few_scores_as(type, q, rows, k, stride, n, 64, ahead, s);                                                  \
        else if (D == 128)                                                                                             \
            few_scores_as(type, q, rows, k, stride, n, 128, ahead, s);                                                 \
        else                                                                                                           \
            few_scores_as(type, q, rows, k, stride, n, D, ahead, s);                                                   \
    }                                                                                                                  \
    static void few_values_##name(const void *p, int32_t rows, const char *v, int64_t stride, int64_t n, int64_t Dv,   \
                                  int64_t ahead, const float *alpha, float *o) {                                       \
        if (Dv == 64)                                                                                                  \
            few_values_as(type, p, rows, v, stride, n, 64, ahead, alpha, o);                                           \
        else if (Dv == 128)                                                                                            \
            few_values_as(type, p, rows, v, stride, n, 128, ahead, alpha, o);                                          \
        else                                                                                                           \
            few_values_as(type, p, rows, v, stride, n, Dv, ahead, alpha, o);                                           \
    }                                                                                                                  \
    static const kf_few_kernels few_##name = {4, KF_FEW_LARGEST, few_scores_##name, few_values_##name, few_softmax_f32};

DEFINE_FEW(f32, KF_TYPE_F32)
DEFINE_FEW(f16, KF_TYPE_F16)
DEFINE_FEW(bf16, KF_TYPE_BF16)

// ------------------------------------------------------------------------------------------------------------------ rows

static void load_row(const char *x, int32_t type, int64_t n, float factor, float *y) {
    for (int64_t i = 0; i < n; i += KF_LANES) {
        int width = lanes_left(n - i);
        kf_vec value = load_as_n(type, x + i * kf_type_size(type), width);
        kf_vec_store_f32_n(y + i, kf_vec_mul(kf_vec_set1(factor), value), width);
    }
}

static void store_row(const float *x, int64_t n, float factor, int32_t type, char *y) {
    for (int64_t i = 0; i < n; i += KF_LANES) {
        int width = lanes_left(n - i);
        kf_vec value = kf_vec_mul(kf_vec_set1(factor), kf_vec_load_f32_n(x + i, width));
        char *out = y + i * kf_type_size(type);
        if (type == KF_TYPE_F32) kf_vec_store_f32_n(out, value, width);
        if (type == KF_TYPE_F16) kf_vec_store_f16_n(out, value, width);
        if (type == KF_TYPE_BF16) kf_vec_store_bf16_n(out, value, width);
    }
}

static void add_row(float *y, const float *x, float factor, int64_t n) {
    for (int64_t i = 0; i < n; i += KF_LANES) {
        int width = lanes_left(n - i);
        kf_vec sum = kf_vec_fma(kf_vec_set1(factor), kf_vec_load_f32_n(x + i, width), kf_vec_load_f32_n(y + i, width));
        kf_vec_store_f32_n(y + i, sum, width);
    }
}

static const kf_tile_kernels tiles_f32 = {4,           PANEL,       pack_queries, pack_keys,
                                          pack_values, tile_scores, tile_values,  softmax_f32};
