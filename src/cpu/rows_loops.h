// SPDX-License-Identifier: Apache-2.0
//
// The loops of the row kernels, written once over kf_vec. rows_scalar.c, rows_avx2.c, rows_avx512.c and rows_avx512bf16.c include a
// simd_*.h and then this file.
//
// A loop takes the dtypes of its rows as arguments and is inlined. Where all rows have one dtype the arguments are
// constants and loads and stores become single instructions; one more copy with run-time dtypes serves every mixture.
//
// Bits: sums run in an order that depends on the index within the row (and the dtypes) alone.
#ifndef KF_CPU_ROWS_LOOPS_H
#define KF_CPU_ROWS_LOOPS_H

#include <math.h>
#include <string.h>

#include "cpu/rows.h"

#define KF_INLINE static inline __attribute__((always_inline))

// ----------------------------------------------------------------------------------------------- elements of any dtype

KF_INLINE int64_t size_of(int type) { return type == KF_TYPE_F32 ? 4 : 2; }

// The dtype that both have, or none.
KF_INLINE int common(int a, int b) { return a == b ? a : KF_TYPE_NONE; }

// Elements i .. i + step - 1, step <= KF_LANES; the lanes behind them are 0.
KF_INLINE kf_vec load(const char *x, int type, int64_t i, int step) {
    x += i * size_of(type);
    if (step == KF_LANES) {
        if (type == KF_TYPE_F32) return kf_vec_load_f32(x);
        return type == KF_TYPE_F16 ? kf_vec_load_f16(x) : kf_vec_load_bf16(x);
    }
    if (type == KF_TYPE_F32) return kf_vec_load_f32_n(x, step);
    return type == KF_TYPE_F16 ? kf_vec_load_f16_n(x, step) : kf_vec_load_bf16_n(x, step);
}

KF_INLINE void store(char *y, int type, int64_t i, int step, kf_vec a) {
    y += i * size_of(type);
    if (step == KF_LANES) {
        if (type == KF_TYPE_F32)
            kf_vec_store_f32(y, a);
        else if (type == KF_TYPE_F16)
            kf_vec_store_f16(y, a);
        else
            kf_vec_store_bf16(y, a);
    } else {
        if (type == KF_TYPE_F32)
            kf_vec_store_f32_n(y, a, step);
        else if (type == KF_TYPE_F16)
            kf_vec_store_f16_n(y, a, step);
        else
            kf_vec_store_bf16_n(y, a, step);
    }
}

KF_INLINE kf_vec round_to(kf_vec a, int type) {
    if (type == KF_TYPE_F16) return kf_vec_round_f16(a);
    return type == KF_TYPE_BF16 ? kf_vec_round_bf16(a) : a;
}

// Elements of the step at i: a whole vector where there is one.
KF_INLINE int step_at(int64_t i, int64_t n) { return n - i < KF_LANES ? (int)(n - i) : KF_LANES; }

// -------------------------------------------------------------------------------------------------- two vectors at once
//
// The body of a row is taken in pairs of vectors. In a woven pair of bf16, a has the elements at even places and b those
// at odd ones: a shift and a mask take them out of 2 KF_LANES adjacent elements, where two widening loads would keep the
// same execution ports busy twice as long. A loop is woven if all its rows are bf16; scratch then is in woven order too.

enum { PAIR = 2 * KF_LANES };

typedef struct pair {
    kf_vec a, b;
} pair;

KF_INLINE pair load2(const char *x, int type, int64_t i, bool woven) {
    pair v;
    if (woven) {
        kf_vec_load_woven_bf16(x + i * size_of(type), &v.a, &v.b);
        return v;
    }
    v.a = load(x, type, i, KF_LANES);
    v.b = load(x, type, i + KF_LANES, KF_LANES);
    return v;
}

// A woven pair whose subnormal numbers may become 0.
KF_INLINE void store2_ftz(char *y, int64_t i, pair v, bool stream) {
    if (stream)
        kf_vec_stream_woven_bf16_ftz(y + i * 2, v.a, v.b);
    else
        kf_vec_store_woven_bf16_ftz(y + i * 2, v.a, v.b);
}

// `stream`: past the caches; y + i is then at a multiple of 64 bytes.
KF_INLINE void store2(char *y, int type, int64_t i, pair v, bool woven, bool stream) {
    char *to = y + i * size_of(type), *next = to + KF_LANES * size_of(type);
    if (woven) {
        if (stream)
            kf_vec_stream_woven_bf16(to, v.a, v.b);
        else
            kf_vec_store_woven_bf16(to, v.a, v.b);
    } else if (!stream) {
        store(y, type, i, KF_LANES, v.a);
        store(y, type, i + KF_LANES, KF_LANES, v.b);
    } else if (type == KF_TYPE_F32) {
        kf_vec_stream_f32(to, v.a);
        kf_vec_stream_f32(next, v.b);
    } else if (type == KF_TYPE_F16) {
        kf_vec_stream_f16(to, v.a);
        kf_vec_stream_f16(next, v.b);
    } else {
        kf_vec_stream_bf16(to, v.a);
        kf_vec_stream_bf16(next, v.b);
    }
}

// Asks for the elements of a pair; what is asked for need not exist.
KF_INLINE void prefetch2(const char *x, int type, int64_t i) {
    for (int64_t line = 0; line < PAIR * size_of(type); line += 64) kf_vec_prefetch(x + i * size_of(type) + line);
}

// Whether stores to y may be streamed.
KF_INLINE bool may_stream(const char *y, bool stream) { return KF_CAN_STREAM && stream && (uintptr_t)y % 64 == 0; }

static void rows_convert(char *y, int y_type, const char *x, int x_type, int64_t n) {
    if (y_type == x_type) {
        memmove(y, x, (size_t)(n * size_of(x_type)));
        return;
    }
    int64_t i = 0;
    for (; i + PAIR <= n; i += PAIR) store2(y, y_type, i, load2(x, x_type, i, false), false, false);
    for (; i < n; i += KF_LANES) store(y, y_type, i, step_at(i, n), load(x, x_type, i, step_at(i, n)));
}

// ------------------------------------------------------------------------------------------------------------- softmax
//
//     y = 2^(c x - s) / d,  c = log2(e),  s = c m,  d the sum of the powers
//
// m cancels, so it need not be the largest x, only near it: it is that of the row's first elements, and x is read once.
// Had it been too low, d is large: then the row is summed again, from its true maximum. s is rounded, c x is not (an FMA),
// so all terms of a row have the same error of s in them, which cancels too. Far from 0 that error would be large, and
// c (x - m) is taken.

enum {
    GUESS = 128, // elements whose largest is m: a twelfth of a row of 1536
    // Bytes of x that are summed between two writings of as many elements, and the distance at which x is asked for. fp32
    // goes at memory's rate only if it asks evenly: a core has some 48 requests under way, and what a long sum asks for
    // beyond them is dropped. 16 bits are bound by arithmetic, to which every begun chunk adds.
    CHUNK_BYTES_32 = 2048,
    CHUNK_BYTES_16 = 8192,
    AHEAD_32 = 8192,
    AHEAD_16 = 16384
};

// Of d: the term of m itself is 1, and up to 2^16 the exponents' rounding stays below 4e-7.
static const float LEAST_SUM = 0.5f, MOST_SUM = 0x1p16f;
// Of |s|: its rounding is below 2^-4.
static const float FAR = 0x1p20f;

KF_INLINE int64_t chunk_of(int type) { return type == KF_TYPE_F32 ? CHUNK_BYTES_32 / 4 : CHUNK_BYTES_16 / 2; }
KF_INLINE int64_t ahead_of(int type) { return type == KF_TYPE_F32 ? AHEAD_32 / 4 : AHEAD_16 / 2; }

KF_INLINE int64_t chunk_length(int64_t i, int64_t n, int type) {
    return n - i < chunk_of(type) ? n - i : chunk_of(type);
}

KF_INLINE void largest_take2(kf_largest *all, const char *x, int type, int64_t i) {
    x += i * size_of(type);
    if (type == KF_TYPE_F32) {
        kf_largest_take32(all, x);
        kf_largest_take32(all, x + KF_LANES * 4);
    } else {
        kf_largest_take16(all, x);
    }
}

// The largest of n elements; what it is where one is NaN does not matter.
KF_INLINE float largest(const char *x, int type, int64_t n) {
    kf_largest all = type == KF_TYPE_F32 ? kf_largest_begin32() : kf_largest_begin16();
    int64_t i = 0;
    for (; i + PAIR <= n; i += PAIR) largest_take2(&all, x, type, i);
    float m = -INFINITY;
    if (n >= PAIR)
        m = type == KF_TYPE_F32   ? kf_largest_of_f32(all)
            : type == KF_TYPE_F16 ? kf_largest_of_f16(all)
                                  : kf_largest_of_bf16(all);
    kf_vec a = kf_vec_set1(m);
    for (; i < n; i += KF_LANES) {
        int step = step_at(i, n);
        a = kf_vec_max(kf_vec_select_n(load(x, type, i, step), m, step), a);
    }
    return kf_vec_hmax(a);
}

// How a row's terms are computed: s is c m, or m itself where that is far. `brief`: to 3e-6, before a rounding to 16 bits.
typedef struct term_rule {
    float s;
    bool far, brief;
} term_rule;

KF_INLINE bool is_far(float m) { return !(fabsf(m * KF_LOG2E) < FAR); }

// What is subtracted: nothing where all elements so far are -inf, for -inf - -inf is NaN.
KF_INLINE term_rule rule_near(float m, bool brief) { return (term_rule){m * KF_LOG2E, false, brief}; }
KF_INLINE term_rule rule_far(float m, bool brief) { return (term_rule){m == -INFINITY ? 0.0f : m, true, brief}; }

// The error of log2(e), 1.3e-8 |x - m|, is nothing beside 1, the largest term.
KF_INLINE kf_vec exponent(kf_vec x, term_rule rule) {
    kf_vec s = kf_vec_set1(rule.s);
    return rule.far ? kf_vec_mul(kf_vec_sub(x, s), kf_vec_set1(KF_LOG2E)) : kf_vec_exponent(x, s);
}

KF_INLINE kf_vec term(kf_vec x, term_rule rule) {
    kf_vec t = exponent(x, rule);
    return rule.brief ? kf_vec_exp2_short(t) : kf_vec_exp2_far(t);
}

// The terms of two pairs.
KF_INLINE void terms4(kf_vec *v, term_rule rule) {
    for (int k = 0; k < 4; k++) v[k] = exponent(v[k], rule);
    if (rule.brief)
        kf_vec_exp2_short4(v);
    else
        for (int k = 0; k < 4; k++) v[k] = kf_vec_exp2_far(v[k]);
}

// The sum of the terms; p, if `keep`, receives them. Asks for what lies ahead.
KF_INLINE float exp_sum(const char *x, int type, int64_t n, term_rule rule, float *p, bool keep, bool woven) {
    kf_vec a = kf_vec_zero(), b = a;
    int64_t i = 0;
    for (; rule.brief && i + 2 * PAIR <= n; i += 2 * PAIR) {
        pair v = load2(x, type, i, woven), w = load2(x, type, i + PAIR, woven);
        kf_vec e[4] = {v.a, v.b, w.a, w.b};
        prefetch2(x, type, i + ahead_of(type));
        prefetch2(x, type, i + PAIR + ahead_of(type));
        terms4(e, rule);
        a = kf_vec_add(kf_vec_add(a, e[0]), e[2]);
        b = kf_vec_add(kf_vec_add(b, e[1]), e[3]);
        if (keep) store2((char *)p, KF_TYPE_F32, i, (pair){e[0], e[1]}, false, false);
        if (keep) store2((char *)p, KF_TYPE_F32, i + PAIR, (pair){e[2], e[3]}, false, false);
    }
    for (; i + PAIR <= n; i += PAIR) {
        pair v = load2(x, type, i, woven);
        prefetch2(x, type, i + ahead_of(type));
        v = (pair){term(v.a, rule), term(v.b, rule)};
        a = kf_vec_add(a, v.a);
        b = kf_vec_add(b, v.b);
        if (keep) store2((char *)p, KF_TYPE_F32, i, v, false, false);
    }
    for (; i < n; i += KF_LANES) {
        int step = step_at(i, n);
        kf_vec e = kf_vec_select_n(term(load(x, type, i, step), rule), 0.0f, step);
        a = kf_vec_add(a, e);
        if (keep) store((char *)p, KF_TYPE_F32, i, step, e);
    }
    return kf_vec_hsum(kf_vec_add(a, b));
}

// The state of n elements from their true maximum, in any dtype: seldom needed. p NULL: the terms are not kept.
static __attribute__((noinline)) kf_md sum_again(const char *x, int type, int64_t n, bool brief, float *p, bool woven) {
    kf_md s = {largest(x, type, n), 0.0f};
    for (int64_t i = 0; i < n; i += chunk_of(type))
        s.d += exp_sum(x + i * size_of(type), type, chunk_length(i, n, type), rule_far(s.m, brief), p ? p + i : NULL,
                       p != NULL, woven);
    return s;
}

// A NaN is no good sum.
KF_INLINE bool good_sum(float d) { return d >= LEAST_SUM && d <= MOST_SUM; }

// 2^(s - c m) for s = c m rounded: what makes a sum of 2^(c x - s) one of exp(x - m).
KF_INLINE float undo_rounding(float m) { return kf_exp2((float)(m * KF_LOG2E - (double)m * (double)KF_LOG2E)); }

// The state of n elements.
KF_INLINE kf_md fold(const char *x, int type, int64_t n, bool woven) {
    kf_md s = {largest(x, type, n < GUESS ? n : GUESS), 0.0f};
    if (is_far(s.m)) return sum_again(x, type, n, false, NULL, woven);
    for (int64_t i = 0; i < n; i += chunk_of(type))
        s.d +=
            exp_sum(x + i * size_of(type), type, chunk_length(i, n, type), rule_near(s.m, false), NULL, false, woven);
    if (!good_sum(s.d)) return sum_again(x, type, n, false, NULL, woven);
    s.d *= undo_rounding(s.m);
    return s;
}

// y = factor p
KF_INLINE void scale(char *y, int type, const float *p, int64_t n, float factor, bool woven, bool stream) {
    kf_vec f = kf_vec_set1(factor);
    int64_t i = 0;
    for (; i + PAIR <= n; i += PAIR) {
        pair v = load2((const char *)p, KF_TYPE_F32, i, false);
        v.a = kf_vec_mul(v.a, f);
        v.b = kf_vec_mul(v.b, f);
        if (woven)
            store2_ftz(y, i, v, stream);
        else
            store2(y, type, i, v, false, stream);
    }
    for (; i < n; i += KF_LANES) {
        int step = step_at(i, n);
        store(y, type, i, step, kf_vec_mul(load((const char *)p, KF_TYPE_F32, i, step), f));
    }
}

KF_INLINE void scale_chunk(const kf_softmax_row *row, int type, const float *p, int64_t i, int64_t n, bool woven,
                           bool stream) {
    char *y = row->y + i * size_of(type);
    if (may_stream(y, stream))
        scale(y, type, p + i, n, row->factor, woven, true);
    else
        scale(y, type, p + i, n, row->factor, woven, false);
}

KF_INLINE void softmax_of(kf_softmax_row *row, const kf_softmax_row *before, float *p, int y_type, int x_type,
                          int64_t n, bool brief, bool stream) {
    const bool woven = x_type == KF_TYPE_BF16 && y_type == KF_TYPE_BF16;
    const float m = row ? largest(row->x, x_type, n < GUESS ? n : GUESS) : 0.0f;
    bool again = is_far(m);
    float d = 0.0f;
    for (int64_t i = 0; i < n; i += chunk_of(x_type)) {
        int64_t length = chunk_length(i, n, x_type);
        if (before) scale_chunk(before, y_type, p, i, length, woven, stream);
        if (row && !again)
            d += exp_sum(row->x + i * size_of(x_type), x_type, length, rule_near(m, brief), p + i, true, woven);
    }
    if (!row) return;
    again = again || !good_sum(d);
    row->state = again ? sum_again(row->x, x_type, n, brief, p, woven) : (kf_md){m, d * undo_rounding(m)};
    if (again) d = row->state.d;
    row->factor = d == 0.0f ? 0.0f : 1.0f / d; // all -inf: d = 0 and every p is 0. A NaN in the row has made d NaN
}

static void rows_softmax(kf_softmax_row *row, const kf_softmax_row *before, float *p, int y_type, int x_type, int64_t n,
                         bool want_state, bool stream) {
    const int both = common(y_type, x_type), f16 = KF_TYPE_F16, bf16 = KF_TYPE_BF16;
    if (both == KF_TYPE_F32)
        softmax_of(row, before, p, KF_TYPE_F32, KF_TYPE_F32, n, false, stream);
    else if (both == f16 && !want_state)
        softmax_of(row, before, p, f16, f16, n, true, stream);
    else if (both == bf16 && !want_state)
        softmax_of(row, before, p, bf16, bf16, n, true, stream);
    else if (both == bf16)
        softmax_of(row, before, p, bf16, bf16, n, false, stream);
    else
        softmax_of(row, before, p, y_type, x_type, n, false, stream);
}

static kf_md rows_softmax_state(const char *x, int x_type, int64_t n) {
    switch (x_type) {
    case KF_TYPE_F32: return fold(x, KF_TYPE_F32, n, false);
    case KF_TYPE_F16: return fold(x, KF_TYPE_F16, n, false);
    default: return fold(x, KF_TYPE_BF16, n, true);
    }
}

KF_INLINE void softmax_apply_to(char *y, int y_type, const char *x, int x_type, int64_t n, term_rule rule, float factor,
                                bool stream) {
    kf_vec f = kf_vec_set1(factor);
    bool woven = x_type == KF_TYPE_BF16 && y_type == KF_TYPE_BF16;
    int64_t i = 0;
    for (; i + PAIR <= n; i += PAIR) {
        pair v = load2(x, x_type, i, woven);
        v = (pair){kf_vec_mul(term(v.a, rule), f), kf_vec_mul(term(v.b, rule), f)};
        if (woven)
            store2_ftz(y, i, v, stream);
        else
            store2(y, y_type, i, v, false, stream);
    }
    for (; i < n; i += KF_LANES) {
        int step = step_at(i, n);
        store(y, y_type, i, step, kf_vec_mul(term(load(x, x_type, i, step), rule), f));
    }
}

static __attribute__((noinline)) void softmax_apply_far(char *y, int y_type, const char *x, int x_type, int64_t n,
                                                        kf_md row) {
    float factor = row.d == 0.0f ? 0.0f : 1.0f / row.d;
    softmax_apply_to(y, y_type, x, x_type, n, rule_far(row.m, y_type != KF_TYPE_F32), factor, false);
}

KF_INLINE void softmax_apply_of(char *y, int y_type, const char *x, int x_type, int64_t n, kf_md row, bool stream) {
    const bool brief = y_type != KF_TYPE_F32;
    float factor = undo_rounding(row.m) / row.d;
    if (may_stream(y, stream))
        softmax_apply_to(y, y_type, x, x_type, n, rule_near(row.m, brief), factor, true);
    else
        softmax_apply_to(y, y_type, x, x_type, n, rule_near(row.m, brief), factor, false);
}

static void rows_softmax_apply(char *y, int y_type, const char *x, int x_type, int64_t n, kf_md row, bool stream) {
    if (is_far(row.m)) {
        softmax_apply_far(y, y_type, x, x_type, n, row);
        return;
    }
    switch (common(y_type, x_type)) {
    case KF_TYPE_F32: softmax_apply_of(y, KF_TYPE_F32, x, KF_TYPE_F32, n, row, stream); return;
    case KF_TYPE_F16: softmax_apply_of(y, KF_TYPE_F16, x, KF_TYPE_F16, n, row, stream); return;
    case KF_TYPE_BF16: softmax_apply_of(y, KF_TYPE_BF16, x, KF_TYPE_BF16, n, row, stream); return;
    default: softmax_apply_of(y, y_type, x, x_type, n, row, stream);
    }
}

// ------------------------------------------------------------------------------------------------------- merged states

static void rows_exp_minus(float *x, float m, int64_t n) {
    for (int64_t i = 0; i < n; i += KF_LANES) {
        int step = step_at(i, n);
        kf_vec e = kf_vec_exp(kf_vec_sub(kf_vec_load_f32_n(x + i, step), kf_vec_set1(m)));
        kf_vec_store_f32_n(x + i, e, step);
    }
}

static void rows_weighted_sum(char *y, int y_type, const char *parts, int64_t part_bytes, int type, const float *weight,
                              int64_t count, int64_t n) {
    for (int64_t i = 0; i < n; i += KF_LANES) {
        int step = step_at(i, n);
        kf_vec sum = kf_vec_zero();
        for (int64_t s = 0; s < count; s++) {
            if (weight[s] < 0.0f) continue;
            sum = kf_vec_fma(kf_vec_set1(weight[s]), load(parts + s * part_bytes, type, i, step), sum);
        }
        store(y, y_type, i, step, sum);
    }
}

// ------------------------------------------------------------------------------------------------------------- rmsnorm
//
// Pass 1 reads x and residual, writes the sum s and adds its squares; pass 2 forms s again, from x and residual in the
// cache, and writes y. Where the sum has taken the place of one of them, s waits in scratch, in fp32; keeping it there
// always would cost more of L1 than reading 16-bit rows twice.

// Squares of a chunk are added by themselves, so that no sum has many terms.
enum { NORM_CHUNK = 1024 };

// s = x + residual, rounded.
KF_INLINE kf_vec add1(kf_vec x, kf_vec residual, bool has_residual, int round_type) {
    return round_to(has_residual ? kf_vec_add(x, residual) : x, round_type);
}

KF_INLINE pair add2(const kf_rmsnorm_row *r, int x_type, int residual_type, int round_type, bool woven, int64_t i) {
    bool add = residual_type != KF_TYPE_NONE;
    pair v = load2(r->x, x_type, i, woven), w = v;
    if (add) w = load2(r->residual, residual_type, i, woven);
    return (pair){add1(v.a, w.a, add, round_type), add1(v.b, w.b, add, round_type)};
}

KF_INLINE kf_vec add_step(const kf_rmsnorm_row *r, int x_type, int residual_type, int round_type, int64_t i, int step) {
    bool add = residual_type != KF_TYPE_NONE;
    kf_vec v = load(r->x, x_type, i, step), w = add ? load(r->residual, residual_type, i, step) : v;
    return add1(v, w, add, round_type);
}

// Pass 1 over elements first .. last - 1. `keep`: into scratch too. Asks meanwhile for the residual of the row
// behind this one, most often the next.
KF_INLINE float add_chunk(const kf_rmsnorm_row *r, int x_type, int residual_type, int sum_type, int round_type,
                          bool woven, bool stream, bool keep, int64_t first, int64_t last) {
    bool out = sum_type != KF_TYPE_NONE;
    kf_vec a = kf_vec_zero(), b = a;
    int64_t i = first;
    for (; i + PAIR <= last; i += PAIR) {
        pair v = add2(r, x_type, residual_type, round_type, woven, i);
        if (residual_type != KF_TYPE_NONE) prefetch2(r->residual, residual_type, r->n + i);
        if (keep) store2((char *)r->s, KF_TYPE_F32, i, v, false, false);
        if (out) store2(r->sum, sum_type, i, v, woven, stream);
        a = kf_vec_fma(v.a, v.a, a);
        b = kf_vec_fma(v.b, v.b, b);
    }
    for (; i < last; i += KF_LANES) {
        int step = step_at(i, last);
        kf_vec v = add_step(r, x_type, residual_type, round_type, i, step);
        if (keep) store((char *)r->s, KF_TYPE_F32, i, step, v);
        if (out) store(r->sum, sum_type, i, step, v);
        a = kf_vec_fma(v, v, a);
    }
    return kf_vec_hsum(kf_vec_add(a, b));
}

KF_INLINE int sum_round_type(const kf_rmsnorm_row *r, int x_type, int sum_type) {
    return r->cast == KF_CAST_END ? KF_TYPE_F32 : sum_type != KF_TYPE_NONE ? sum_type : x_type;
}

// Returns the sum of squares, formed in chunks, so that no sum has many terms.
KF_INLINE float add_residual(const kf_rmsnorm_row *r, int x_type, int residual_type, int sum_type, bool woven,
                             bool stream, bool keep) {
    int round_type = sum_round_type(r, x_type, sum_type);
    float squares = 0.0f;
    for (int64_t i = 0; i < r->n; i += NORM_CHUNK) {
        int64_t last = r->n - i < NORM_CHUNK ? r->n : i + NORM_CHUNK;
        if (round_type == KF_TYPE_F32)
            squares += add_chunk(r, x_type, residual_type, sum_type, KF_TYPE_F32, woven, stream, keep, i, last);
        else
            squares += add_chunk(r, x_type, residual_type, sum_type, round_type, woven, stream, keep, i, last);
    }
    return squares;
}

// Squares may overflow or vanish where s itself does not. Then s is multiplied by the power of two that brings its
// largest element into [1, 2), which changes no bit of it, and *power is set so that s = 2^-power times what it was.
static float sum_squares_scaled(float *s, int64_t n, int *power) {
    float most = 0.0f;
    double sum = 0; // of many terms
    for (int64_t i = 0; i < n; i++) most = fmaxf(most, fabsf(s[i]));
    if (!(most > 0.0f && most < INFINITY)) return NAN;
    *power = ilogbf(most);
    for (int64_t i = 0; i < n; i++) {
        s[i] = scalbnf(s[i], -*power);
        sum += (double)s[i] * (double)s[i];
    }
    return (float)sum;
}

// Between these no square that matters was lost: 2^-126 is the smallest normal number, and n is below 2^40.
static bool squares_lost(float squares, float eps) {
    const float least = 0x1p-80f;
    return squares == INFINITY || (squares < least && eps < least);
}

// 1 / sqrt(mean s^2 + eps). Where squares were lost s is in scratch, and is left there scaled.
static float inverse_rms(float *s, int64_t n, float squares, float eps) {
    int power = 0;
    float scaled = squares_lost(squares, eps) ? sum_squares_scaled(s, n, &power) : NAN;
    double mean = (isnan(scaled) ? (double)squares : (double)scaled) / (double)n;
    return (float)(1.0 / sqrt(mean + ldexp((double)eps, -2 * power)));
}

// Offset + weight.
KF_INLINE pair weight2(const kf_rmsnorm_row *r, int type, int64_t i, bool woven) {
    kf_vec offset = kf_vec_set1(r->weight_offset), one = kf_vec_set1(1.0f);
    if (type == KF_TYPE_NONE) return (pair){one, one};
    pair w = load2(r->weight, type, i, woven);
    return (pair){kf_vec_add(offset, w.a), kf_vec_add(offset, w.b)};
}

KF_INLINE kf_vec weight_step(const kf_rmsnorm_row *r, int type, int64_t i, int step) {
    if (type == KF_TYPE_NONE) return kf_vec_set1(1.0f);
    return kf_vec_add(kf_vec_set1(r->weight_offset), load(r->weight, type, i, step));
}

// Pass 2: y = s * inverse * (offset + weight). Asks meanwhile for the next row's x.
KF_INLINE void scale_by_weight(const kf_rmsnorm_row *r, float inverse, bool kept, int sum_round, int x_type,
                               int residual_type, int y_type, int round_type, bool woven, bool stream) {
    kf_vec f = kf_vec_set1(inverse);
    int weight_type = woven ? (r->weight_type == KF_TYPE_NONE ? KF_TYPE_NONE : KF_TYPE_BF16) : r->weight_type;
    int64_t i = 0;
    for (; i + PAIR <= r->n; i += PAIR) {
        pair w = weight2(r, weight_type, i, woven), v;
        if (kept)
            v = load2((const char *)r->s, KF_TYPE_F32, i, false);
        else
            v = add2(r, x_type, residual_type, sum_round, woven, i);
        prefetch2(r->x, x_type, r->n + i);
        v.a = kf_vec_mul(round_to(kf_vec_mul(v.a, f), round_type), w.a);
        v.b = kf_vec_mul(round_to(kf_vec_mul(v.b, f), round_type), w.b);
        store2(r->y, y_type, i, v, woven, stream);
    }
    for (; i < r->n; i += KF_LANES) {
        int step = step_at(i, r->n);
        kf_vec v, w = weight_step(r, weight_type, i, step);
        if (kept)
            v = load((const char *)r->s, KF_TYPE_F32, i, step);
        else
            v = add_step(r, x_type, residual_type, sum_round, i, step);
        store(r->y, y_type, i, step, kf_vec_mul(round_to(kf_vec_mul(v, f), round_type), w));
    }
}

// Whether the row's loops are woven.
KF_INLINE bool norm_woven(const kf_rmsnorm_row *r) {
    const int bf16 = KF_TYPE_BF16, none = KF_TYPE_NONE;
    return r->x_type == bf16 && r->y_type == bf16 && (r->weight_type == bf16 || r->weight_type == none) &&
           (r->residual_type == bf16 || r->residual_type == none) && (r->sum_type == bf16 || r->sum_type == none);
}

KF_INLINE void rmsnorm_of(const kf_rmsnorm_row *row, int x_type, int residual_type, int y_type, int sum_type,
                          bool woven) {
    const kf_rmsnorm_row copy = *row, *r = &copy; // which no store can change
    bool stream_sum = sum_type != KF_TYPE_NONE && may_stream(r->sum, r->stream);
    bool kept = r->sum && (r->sum == r->x || r->sum == r->residual);
    float squares = stream_sum ? add_residual(r, x_type, residual_type, sum_type, woven, true, kept)
                               : add_residual(r, x_type, residual_type, sum_type, woven, false, kept);
    if (!kept && squares_lost(squares, r->eps)) {
        kept = true;
        add_residual(r, x_type, residual_type, sum_type, woven, false, kept);
    }
    float inverse = inverse_rms(r->s, r->n, squares, r->eps);
    int sum_round = sum_round_type(r, x_type, sum_type);
    bool stream = may_stream(r->y, r->stream);
    if (r->cast == KF_CAST_LLAMA)
        scale_by_weight(r, inverse, kept, sum_round, x_type, residual_type, y_type, x_type, woven, stream);
    else if (r->cast == KF_CAST_SUM)
        scale_by_weight(r, inverse, kept, sum_round, x_type, residual_type, y_type, KF_TYPE_F32, woven, stream);
    else if (stream)
        scale_by_weight(r, inverse, kept, KF_TYPE_F32, x_type, residual_type, y_type, KF_TYPE_F32, woven, true);
    else
        scale_by_weight(r, inverse, kept, KF_TYPE_F32, x_type, residual_type, y_type, KF_TYPE_F32, woven, false);
}

// With residual and sum, and with neither, in one dtype throughout: these are what models run.
static void rows_rmsnorm(const kf_rmsnorm_row *r) {
    const int none = KF_TYPE_NONE;
    bool same = r->x_type == r->y_type && r->residual_type == r->sum_type;
    bool woven = norm_woven(r), both = same && r->residual_type == r->x_type, neither = same && r->sum_type == none;
    switch (both ? r->x_type : none) {
    case KF_TYPE_F32: rmsnorm_of(r, KF_TYPE_F32, KF_TYPE_F32, KF_TYPE_F32, KF_TYPE_F32, false); return;
    case KF_TYPE_F16: rmsnorm_of(r, KF_TYPE_F16, KF_TYPE_F16, KF_TYPE_F16, KF_TYPE_F16, false); return;
    case KF_TYPE_BF16:
        if (woven)
            rmsnorm_of(r, KF_TYPE_BF16, KF_TYPE_BF16, KF_TYPE_BF16, KF_TYPE_BF16, true);
        else
            rmsnorm_of(r, KF_TYPE_BF16, KF_TYPE_BF16, KF_TYPE_BF16, KF_TYPE_BF16, false);
        return;
    }
    switch (neither ? r->x_type : none) {
    case KF_TYPE_F32: rmsnorm_of(r, KF_TYPE_F32, none, KF_TYPE_F32, none, false); return;
    case KF_TYPE_F16: rmsnorm_of(r, KF_TYPE_F16, none, KF_TYPE_F16, none, false); return;
    case KF_TYPE_BF16: rmsnorm_of(r, KF_TYPE_BF16, none, KF_TYPE_BF16, none, woven); return;
    }
    rmsnorm_of(r, r->x_type, r->residual_type, r->y_type, r->sum_type, woven);
}

// -------------------------------------------------------------------------------------------------------------- swiglu

// gate / (1 + exp(-gate)) * up. Where exp overflows the quotient is 0, and -inf / inf is NaN, as the formula has it.
// Beside a rounding to 16 bits the shorter exponential does.
KF_INLINE kf_vec swiglu1(kf_vec gate, kf_vec up, int y_type) {
    kf_vec e = y_type == KF_TYPE_F32 ? kf_vec_exp(kf_vec_sub(kf_vec_zero(), gate)) : kf_vec_exp_minus(gate);
    return kf_vec_mul(kf_vec_div(gate, kf_vec_add(kf_vec_set1(1.0f), e)), up);
}

// The same four times, for 16 bits, step by step: the schedulers hold too few instructions for four such chains in turn.
KF_INLINE void swiglu4(kf_vec *gate, const kf_vec *up) {
    kf_vec e[4];
    for (int k = 0; k < 4; k++) e[k] = gate[k];
    kf_vec_exp_minus4(e);
    for (int k = 0; k < 4; k++) e[k] = kf_vec_add(kf_vec_set1(1.0f), e[k]);
    for (int k = 0; k < 4; k++) gate[k] = kf_vec_div(gate[k], e[k]);
    for (int k = 0; k < 4; k++) gate[k] = kf_vec_mul(gate[k], up[k]);
}

KF_INLINE void swiglu_to(char *y, int y_type, const char *gate, const char *up, int type, int64_t n, bool stream) {
    bool woven = y_type == KF_TYPE_BF16 && type == KF_TYPE_BF16;
    int64_t i = 0;
#ifdef KF_ROWS_PIPELINED
    if (woven) i = swiglu_pipeline(y, gate, up, n, stream);
#endif
    for (; woven && i + 2 * PAIR <= n; i += 2 * PAIR) {
        kf_vec g[4], u[4];
        for (int k = 0; k < 4; k += 2) {
            kf_vec_load_woven_bf16(gate + (i + k * KF_LANES) * 2, &g[k], &g[k + 1]);
            kf_vec_load_woven_bf16(up + (i + k * KF_LANES) * 2, &u[k], &u[k + 1]);
        }
        swiglu4(g, u);
        for (int k = 0; k < 4; k += 2) store2_ftz(y, i + k * KF_LANES, (pair){g[k], g[k + 1]}, stream);
    }
    for (; i + PAIR <= n; i += PAIR) {
        pair g = load2(gate, type, i, woven), u = load2(up, type, i, woven);
        g.a = swiglu1(g.a, u.a, y_type);
        g.b = swiglu1(g.b, u.b, y_type);
        store2(y, y_type, i, g, woven, stream);
    }
    for (; i < n; i += KF_LANES) {
        int step = step_at(i, n);
        store(y, y_type, i, step, swiglu1(load(gate, type, i, step), load(up, type, i, step), y_type));
    }
}

KF_INLINE void swiglu_of(char *y, int y_type, const char *gate, const char *up, int type, int64_t n, bool stream) {
    if (may_stream(y, stream))
        swiglu_to(y, y_type, gate, up, type, n, true);
    else
        swiglu_to(y, y_type, gate, up, type, n, false);
}

static void rows_swiglu(char *y, int y_type, const char *gate, const char *up, int type, int64_t n, bool stream) {
    switch (common(y_type, type)) {
    case KF_TYPE_F32: swiglu_of(y, KF_TYPE_F32, gate, up, KF_TYPE_F32, n, stream); return;
    case KF_TYPE_F16: swiglu_of(y, KF_TYPE_F16, gate, up, KF_TYPE_F16, n, stream); return;
    case KF_TYPE_BF16: swiglu_of(y, KF_TYPE_BF16, gate, up, KF_TYPE_BF16, n, stream); return;
    default: swiglu_of(y, y_type, gate, up, type, n, stream);
    }
}

// ---------------------------------------------------------------------------------------------------------------- rope
//
// A pair (a, b) turns into (a cos - b sin, b cos + a sin).

// Pairs (c, c + pairs).
KF_INLINE void rope_neox(char *y, int y_type, const char *x, int x_type, int pairs, const float *cosine,
                         const float *sine) {
    for (int c = 0; c < pairs; c += KF_LANES) {
        int step = (int)step_at(c, pairs);
        kf_vec a = load(x, x_type, c, step), b = load(x, x_type, c + pairs, step);
        kf_vec cs = load((const char *)cosine, KF_TYPE_F32, c, step),
               sn = load((const char *)sine, KF_TYPE_F32, c, step);
        store(y, y_type, c, step, kf_vec_fnma(b, sn, kf_vec_mul(a, cs)));
        store(y, y_type, c + pairs, step, kf_vec_fma(a, sn, kf_vec_mul(b, cs)));
    }
}

// Pairs (2c, 2c + 1).
KF_INLINE void rope_gptj(char *y, int y_type, const char *x, int x_type, int pairs, const float *cosine,
                         const float *sine) {
    float a[KF_LANES], b[KF_LANES], both[2 * KF_LANES];
    for (int c = 0; c < pairs; c += KF_LANES) {
        int step = (int)step_at(c, pairs), low = 2 * step < KF_LANES ? 2 * step : KF_LANES, high = 2 * step - low;
        kf_vec_store_f32(both, load(x, x_type, 2 * c, low));
        kf_vec_store_f32(both + KF_LANES, load(x, x_type, 2 * c + low, high));
        for (int i = 0; i < KF_LANES; i++) a[i] = both[2 * i], b[i] = both[2 * i + 1];
        kf_vec va = kf_vec_load_f32(a), vb = kf_vec_load_f32(b);
        kf_vec cs = load((const char *)cosine, KF_TYPE_F32, c, step),
               sn = load((const char *)sine, KF_TYPE_F32, c, step);
        kf_vec_store_f32(a, kf_vec_fnma(vb, sn, kf_vec_mul(va, cs)));
        kf_vec_store_f32(b, kf_vec_fma(va, sn, kf_vec_mul(vb, cs)));
        for (int i = 0; i < KF_LANES; i++) both[2 * i] = a[i], both[2 * i + 1] = b[i];
        store(y, y_type, 2 * c, low, kf_vec_load_f32(both));
        store(y, y_type, 2 * c + low, high, kf_vec_load_f32(both + KF_LANES));
    }
}

static void rows_rope(char *y, int y_type, const char *x, int x_type, int64_t D, int dims, int pairing,
                      const float *cosine, const float *sine) {
    if (pairing == KF_ROPE_NEOX)
        rope_neox(y, y_type, x, x_type, dims / 2, cosine, sine);
    else
        rope_gptj(y, y_type, x, x_type, dims / 2, cosine, sine);
    if (dims < D && !(y == x && y_type == x_type))
        rows_convert(y + dims * size_of(y_type), y_type, x + dims * size_of(x_type), x_type, D - dims);
}

// The vectors' angles are good up to here (kf_vec_angles); beyond, the C library's slower reduction is.
static void rows_rope_angles(const double *frequency, int pairs, double magnitude, double position, float *cosine,
                             float *sine) {
    const double limit = 0x1p30; // of position: frequencies are at most 1 (or a factor's inverse)
    bool fast = true;
    for (int c = 0; c < pairs; c++) fast = fast && fabs(position * frequency[c]) < limit;
    if (fast)
        kf_vec_angles(frequency, pairs, magnitude, position, cosine, sine);
    else
        kf_rope_cos_sin(frequency, pairs, magnitude, position, cosine, sine);
}

static void rows_fence(void) { kf_vec_stream_fence(); }

// The whole table.
#define KF_ROW_KERNELS(name_)                                                                                          \
    {                                                                                                                  \
        .name = name_, .convert = rows_convert, .softmax = rows_softmax, .softmax_state = rows_softmax_state,          \
        .softmax_apply = rows_softmax_apply, .rmsnorm = rows_rmsnorm, .swiglu = rows_swiglu,                           \
        .weighted_sum = rows_weighted_sum, .exp_minus = rows_exp_minus, .rope_angles = rows_rope_angles,               \
        .rope = rows_rope, .fence = rows_fence                                                                         \
    }

#endif
