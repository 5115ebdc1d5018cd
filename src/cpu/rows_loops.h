// SPDX-License-Identifier: Apache-2.0
//
// The loops of the row kernels, written once over kf_vec. rows_scalar.c, rows_avx2.c, rows_avx512.c and rows_avx512bf16.c include a
// simd_*.h and then this file.
//
// A loop takes the dtypes of its rows as arguments and is inlined. Where all rows have one dtype the arguments are
// constants and loads and stores become single instructions; one more copy with run-time dtypes serves every mixture.
//
// Bits: sums run in an order that depends on the index within the row alone. Loops that map elements one by one may
// begin with a short step, so that streamed stores are aligned.
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

// As store, past the caches where `stream`; whole vectors are then at aligned addresses (see head_of).
KF_INLINE void put(char *y, int type, int64_t i, int step, kf_vec a, bool stream) {
    if (!stream || step < KF_LANES) {
        store(y, type, i, step, a);
        return;
    }
    y += i * size_of(type);
    if (type == KF_TYPE_F32)
        kf_vec_stream_f32(y, a);
    else if (type == KF_TYPE_F16)
        kf_vec_stream_f16(y, a);
    else
        kf_vec_stream_bf16(y, a);
}

KF_INLINE kf_vec round_to(kf_vec a, int type) {
    if (type == KF_TYPE_F16) return kf_vec_round_f16(a);
    return type == KF_TYPE_BF16 ? kf_vec_round_bf16(a) : a;
}

// Elements of the step at i: a whole vector where there is one.
KF_INLINE int step_at(int64_t i, int64_t n) { return n - i < KF_LANES ? (int)(n - i) : KF_LANES; }

// Elements before the first address that a whole vector may be streamed to.
KF_INLINE int head_of(const char *y, int type, int64_t n, bool stream) {
    int64_t off = (int64_t)((uintptr_t)y % (uintptr_t)(KF_LANES * size_of(type))) / size_of(type);
    int64_t head = stream && off ? KF_LANES - off : 0;
    return (int)(head < n ? head : n);
}

// Calls one(..., i, step) for steps that cover 0 .. n - 1: a short one to begin with if head > 0, whole vectors, and
// what is left.
#define KF_STEPS(n, head, one, ...)                                                                                    \
    do {                                                                                                               \
        int64_t i_ = (head), n_ = (n);                                                                                 \
        if (i_ > 0) one(__VA_ARGS__, 0, (int)i_);                                                                      \
        for (; i_ + KF_LANES <= n_; i_ += KF_LANES) one(__VA_ARGS__, i_, KF_LANES);                                    \
        if (i_ < n_) one(__VA_ARGS__, i_, (int)(n_ - i_));                                                             \
    } while (0)

KF_INLINE void convert_step(char *y, int y_type, const char *x, int x_type, int64_t i, int step) {
    store(y, y_type, i, step, load(x, x_type, i, step));
}

static void rows_convert(char *y, int y_type, const char *x, int x_type, int64_t n) {
    if (y_type == x_type) {
        memmove(y, x, (size_t)(n * size_of(x_type)));
        return;
    }
    KF_STEPS(n, 0, convert_step, y, y_type, x, x_type);
}

// ------------------------------------------------------------------------------------------------------------- softmax
//
// One pass over x: in chunks that stay in the L1 cache, first the chunk's maximum, then its exponentials; when the
// maximum grows, the sum so far is scaled down.

enum { CHUNK = 1024, CHUNKS = KF_SOFTMAX_ROW / CHUNK };

// The larger of m and the elements that are not NaN.
KF_INLINE float largest(const char *x, int type, int64_t n, float m) {
    kf_vec a = kf_vec_set1(m), b = a, c = a, d = a;
    int64_t i = 0;
    for (; i + 4 * KF_LANES <= n; i += 4 * KF_LANES) {
        a = kf_vec_max(load(x, type, i, KF_LANES), a);
        b = kf_vec_max(load(x, type, i + KF_LANES, KF_LANES), b);
        c = kf_vec_max(load(x, type, i + 2 * KF_LANES, KF_LANES), c);
        d = kf_vec_max(load(x, type, i + 3 * KF_LANES, KF_LANES), d);
    }
    for (; i < n; i += KF_LANES) {
        int step = step_at(i, n);
        a = kf_vec_max(kf_vec_select_n(load(x, type, i, step), m, step), a);
    }
    return kf_vec_hmax(kf_vec_max(kf_vec_max(a, b), kf_vec_max(c, d)));
}

// exp(x - shift), for sums and results of y_type. The error of log2(e), 1.3e-8 |x - shift|, is nothing beside 1, the
// largest term.
KF_INLINE kf_vec exp_below(kf_vec x, kf_vec shift, int y_type) {
    kf_vec u = kf_vec_mul(kf_vec_sub(x, shift), kf_vec_set1(KF_LOG2E));
    return y_type == KF_TYPE_F32 ? kf_vec_exp2_flush(u) : kf_vec_exp2_half(u);
}

// What is subtracted before exp: nothing where all elements so far are -inf, for -inf - -inf is NaN.
KF_INLINE float shift_of(float m) { return m == -INFINITY ? 0.0f : m; }

// sum exp(x - shift); p, if not NULL, receives the terms. Prefetches what the next chunk will read.
KF_INLINE float exp_sum(const char *x, int type, int y_type, int64_t n, float shift, float *p) {
    kf_vec s = kf_vec_set1(shift), a = kf_vec_zero(), b = a;
    const char *ahead = x + CHUNK * size_of(type);
    int64_t i = 0;
    for (; i + 2 * KF_LANES <= n; i += 2 * KF_LANES) {
        kf_vec_prefetch(ahead + i * size_of(type));
        if (type == KF_TYPE_F32) kf_vec_prefetch(ahead + (i + KF_LANES) * size_of(type));
        kf_vec e = exp_below(load(x, type, i, KF_LANES), s, y_type);
        kf_vec f = exp_below(load(x, type, i + KF_LANES, KF_LANES), s, y_type);
        a = kf_vec_add(a, e);
        b = kf_vec_add(b, f);
        if (!p) continue;
        kf_vec_store_f32(p + i, e);
        kf_vec_store_f32(p + i + KF_LANES, f);
    }
    for (; i < n; i += KF_LANES) {
        int step = step_at(i, n);
        kf_vec e = kf_vec_select_n(exp_below(load(x, type, i, step), s, y_type), 0.0f, step);
        a = kf_vec_add(a, e);
        if (p) kf_vec_store_f32_n(p + i, e, step);
    }
    return kf_vec_hsum(kf_vec_add(a, b));
}

// The state of n elements; if p is given, p = exp(x - shift[i / CHUNK]).
KF_INLINE kf_md fold(const char *x, int type, int y_type, int64_t n, float *p, float *shift) {
    kf_md s = {-INFINITY, 0.0f};
    for (int64_t i = 0; i < n; i += CHUNK) {
        int64_t length = n - i < CHUNK ? n - i : CHUNK;
        const char *chunk = x + i * size_of(type);
        float m = largest(chunk, type, length, s.m);
        if (m > s.m) s.d *= kf_exp(s.m - m);
        s.m = m;
        s.d += exp_sum(chunk, type, y_type, length, shift_of(m), p ? p + i : NULL);
        if (shift) shift[i / CHUNK] = shift_of(m);
    }
    return s;
}

// y = p * factor
KF_INLINE void scale_step(char *y, int type, const float *p, kf_vec factor, bool stream, int64_t i, int step) {
    put(y, type, i, step, kf_vec_mul(load((const char *)p, KF_TYPE_F32, i, step), factor), stream);
}

KF_INLINE void scale_chunk(char *y, int type, const float *p, int64_t n, float factor, bool stream) {
    if (stream)
        KF_STEPS(n, head_of(y, type, n, true), scale_step, y, type, p, kf_vec_set1(factor), true);
    else
        KF_STEPS(n, 0, scale_step, y, type, p, kf_vec_set1(factor), false);
}

KF_INLINE kf_md softmax_of(char *y, int y_type, const char *x, int x_type, int64_t n, float *p, bool stream) {
    float shift[CHUNKS];
    kf_md s = fold(x, x_type, y_type, n, p, shift);
    // All -inf: d = 0 and every p is 0. A NaN in the row has made d NaN.
    float inverse = s.d == 0.0f ? 0.0f : 1.0f / s.d;
    for (int64_t i = 0; i < n; i += CHUNK) {
        float factor = kf_exp(shift[i / CHUNK] - shift_of(s.m)) * inverse;
        scale_chunk(y + i * size_of(y_type), y_type, p + i, n - i < CHUNK ? n - i : CHUNK, factor, stream);
    }
    return s;
}

static kf_md rows_softmax(char *y, int y_type, const char *x, int x_type, int64_t n, float *p, bool stream) {
    switch (common(y_type, x_type)) {
    case KF_TYPE_F32: return softmax_of(y, KF_TYPE_F32, x, KF_TYPE_F32, n, p, stream);
    case KF_TYPE_F16: return softmax_of(y, KF_TYPE_F16, x, KF_TYPE_F16, n, p, stream);
    case KF_TYPE_BF16: return softmax_of(y, KF_TYPE_BF16, x, KF_TYPE_BF16, n, p, stream);
    default: return softmax_of(y, y_type, x, x_type, n, p, stream);
    }
}

static kf_md rows_softmax_state(const char *x, int x_type, int64_t n) {
    switch (x_type) {
    case KF_TYPE_F32: return fold(x, KF_TYPE_F32, KF_TYPE_F32, n, NULL, NULL);
    case KF_TYPE_F16: return fold(x, KF_TYPE_F16, KF_TYPE_F32, n, NULL, NULL);
    default: return fold(x, KF_TYPE_BF16, KF_TYPE_F32, n, NULL, NULL);
    }
}

KF_INLINE void apply_step(char *y, int y_type, const char *x, int x_type, kf_vec shift, kf_vec inverse, bool stream,
                          int64_t i, int step) {
    put(y, y_type, i, step, kf_vec_mul(exp_below(load(x, x_type, i, step), shift, y_type), inverse), stream);
}

KF_INLINE void softmax_apply_of(char *y, int y_type, const char *x, int x_type, int64_t n, kf_md row, bool stream) {
    kf_vec m = kf_vec_set1(shift_of(row.m)), inverse = kf_vec_set1(row.d == 0.0f ? 0.0f : 1.0f / row.d);
    if (stream)
        KF_STEPS(n, head_of(y, y_type, n, true), apply_step, y, y_type, x, x_type, m, inverse, true);
    else
        KF_STEPS(n, 0, apply_step, y, y_type, x, x_type, m, inverse, false);
}

static void rows_softmax_apply(char *y, int y_type, const char *x, int x_type, int64_t n, kf_md row, bool stream) {
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
// Pass 1 reads x and residual, writes the sum, keeps it in fp32 (in the L1 or L2 cache) and adds its squares; pass 2
// writes y.

// s = x + residual, rounded to round_type, also stored to `sum`; returns s * s + squares.
KF_INLINE kf_vec add_step(const kf_rmsnorm_row *r, int x_type, int residual_type, int sum_type, int round_type,
                          bool stream, kf_vec squares, int64_t i, int step) {
    kf_vec v = load(r->x, x_type, i, step);
    if (residual_type != KF_TYPE_NONE) v = kf_vec_add(v, load(r->residual, residual_type, i, step));
    v = round_to(v, round_type);
    store((char *)r->s, KF_TYPE_F32, i, step, v);
    if (sum_type != KF_TYPE_NONE) put(r->sum, sum_type, i, step, v, stream);
    return kf_vec_fma(v, v, squares);
}

// Pass 1 over elements first .. last - 1. Lanes go by the index, so the sum is streamed only where it is aligned.
KF_INLINE float add_chunk(const kf_rmsnorm_row *r, int x_type, int residual_type, int sum_type, bool stream,
                          int64_t first, int64_t last) {
    int round_type = r->cast == KF_CAST_END ? KF_TYPE_F32 : sum_type != KF_TYPE_NONE ? sum_type : x_type;
    kf_vec a = kf_vec_zero(), b = a;
    int64_t i = first;
    for (; i + 2 * KF_LANES <= last; i += 2 * KF_LANES) {
        a = add_step(r, x_type, residual_type, sum_type, round_type, stream, a, i, KF_LANES);
        b = add_step(r, x_type, residual_type, sum_type, round_type, stream, b, i + KF_LANES, KF_LANES);
    }
    for (; i < last; i += KF_LANES)
        a = add_step(r, x_type, residual_type, sum_type, round_type, stream, a, i, step_at(i, last));
    return kf_vec_hsum(kf_vec_add(a, b));
}

// In chunks, so that no sum has many terms.
KF_INLINE float add_residual(const kf_rmsnorm_row *r, int x_type, int residual_type, int sum_type, bool stream) {
    float squares = 0.0f;
    for (int64_t i = 0; i < r->n; i += CHUNK)
        squares += add_chunk(r, x_type, residual_type, sum_type, stream, i, r->n - i < CHUNK ? r->n : i + CHUNK);
    return squares;
}

// Squares may overflow or vanish where s itself does not. Then s is multiplied by the power of two that brings its
// largest element into [1, 2), which changes no bit of it, and *power is set so that s = 2^-power times what it was.
static float sum_squares_scaled(float *s, int64_t n, int *power) {
    float most = 0.0f, sum = 0.0f;
    for (int64_t i = 0; i < n; i++) most = fmaxf(most, fabsf(s[i]));
    if (!(most > 0.0f && most < INFINITY)) return NAN;
    *power = ilogbf(most);
    for (int64_t i = 0; i < n; i++) {
        s[i] = scalbnf(s[i], -*power);
        sum += s[i] * s[i];
    }
    return sum;
}

// 1 / sqrt(mean s^2 + eps), for s as it is left in scratch.
static float inverse_rms(float *s, int64_t n, float squares, float eps) {
    // Between these no square that matters was lost: 2^-126 is the smallest normal number, and n is below 2^40.
    const float least = 0x1p-80f;
    bool lost = squares == INFINITY || (squares < least && eps < least);
    int power = 0;
    float scaled = lost ? sum_squares_scaled(s, n, &power) : NAN;
    double mean = (isnan(scaled) ? (double)squares : (double)scaled) / (double)n;
    return (float)(1.0 / sqrt(mean + ldexp((double)eps, -2 * power)));
}

// y = s * inverse * (offset + weight). Prefetches the row behind this one, which is most often the next.
KF_INLINE void weight_step(const kf_rmsnorm_row *r, int x_type, int residual_type, int weight_type, int y_type,
                           int round_type, kf_vec inverse, kf_vec offset, bool stream, int64_t i, int step) {
    kf_vec_prefetch(r->x + (r->n + i) * size_of(x_type));
    if (residual_type != KF_TYPE_NONE) kf_vec_prefetch(r->residual + (r->n + i) * size_of(residual_type));
    kf_vec v = round_to(kf_vec_mul(load((const char *)r->s, KF_TYPE_F32, i, step), inverse), round_type);
    if (weight_type != KF_TYPE_NONE) v = kf_vec_mul(v, kf_vec_add(offset, load(r->weight, weight_type, i, step)));
    put(r->y, y_type, i, step, v, stream);
}

KF_INLINE void rmsnorm_of(const kf_rmsnorm_row *r, int x_type, int residual_type, int weight_type, int y_type,
                          int sum_type) {
    bool aligned = sum_type == KF_TYPE_NONE || head_of(r->sum, sum_type, r->n, true) == 0;
    float squares = KF_CAN_STREAM && r->stream && aligned ? add_residual(r, x_type, residual_type, sum_type, true)
                                                          : add_residual(r, x_type, residual_type, sum_type, false);
    kf_vec inverse = kf_vec_set1(inverse_rms(r->s, r->n, squares, r->eps)), offset = kf_vec_set1(r->weight_offset);
    int round_type = r->cast == KF_CAST_LLAMA ? x_type : KF_TYPE_F32;
    if (KF_CAN_STREAM && r->stream)
        KF_STEPS(r->n, head_of(r->y, y_type, r->n, true), weight_step, r, x_type, residual_type, weight_type, y_type,
                 round_type, inverse, offset, true);
    else
        KF_STEPS(r->n, 0, weight_step, r, x_type, residual_type, weight_type, y_type, round_type, inverse, offset,
                 false);
}

// With residual and sum, and with neither, in one dtype throughout (weights may be fp32): these are what models run.
static void rows_rmsnorm(const kf_rmsnorm_row *r) {
    bool same = r->x_type == r->y_type && r->weight_type == r->x_type && r->residual_type == r->sum_type;
    bool both = same && r->residual_type == r->x_type, neither = same && r->residual_type == KF_TYPE_NONE;
    const int none = KF_TYPE_NONE;
    switch (both ? r->x_type : none) {
    case KF_TYPE_F32: rmsnorm_of(r, KF_TYPE_F32, KF_TYPE_F32, KF_TYPE_F32, KF_TYPE_F32, KF_TYPE_F32); return;
    case KF_TYPE_F16: rmsnorm_of(r, KF_TYPE_F16, KF_TYPE_F16, KF_TYPE_F16, KF_TYPE_F16, KF_TYPE_F16); return;
    case KF_TYPE_BF16: rmsnorm_of(r, KF_TYPE_BF16, KF_TYPE_BF16, KF_TYPE_BF16, KF_TYPE_BF16, KF_TYPE_BF16); return;
    }
    switch (neither ? r->x_type : none) {
    case KF_TYPE_F32: rmsnorm_of(r, KF_TYPE_F32, none, KF_TYPE_F32, KF_TYPE_F32, none); return;
    case KF_TYPE_F16: rmsnorm_of(r, KF_TYPE_F16, none, KF_TYPE_F16, KF_TYPE_F16, none); return;
    case KF_TYPE_BF16: rmsnorm_of(r, KF_TYPE_BF16, none, KF_TYPE_BF16, KF_TYPE_BF16, none); return;
    }
    rmsnorm_of(r, r->x_type, r->residual_type, r->weight_type, r->y_type, r->sum_type);
}

// -------------------------------------------------------------------------------------------------------------- swiglu

// gate / (1 + exp(-gate)). Where exp overflows the quotient is 0, and -inf / inf is NaN, as the formula has it.
KF_INLINE kf_vec silu(kf_vec gate, int y_type) {
    kf_vec u = kf_vec_sub(kf_vec_zero(), gate);
    kf_vec e = y_type == KF_TYPE_F32 ? kf_vec_exp(u) : kf_vec_exp_half(u);
    return kf_vec_div(gate, kf_vec_add(kf_vec_set1(1.0f), e));
}

KF_INLINE void swiglu_step(char *y, int y_type, const char *gate, const char *up, int type, bool stream, int64_t i,
                           int step) {
    put(y, y_type, i, step, kf_vec_mul(silu(load(gate, type, i, step), y_type), load(up, type, i, step)), stream);
}

KF_INLINE void swiglu_of(char *y, int y_type, const char *gate, const char *up, int type, int64_t n, bool stream) {
    if (stream)
        KF_STEPS(n, head_of(y, y_type, n, true), swiglu_step, y, y_type, gate, up, type, true);
    else
        KF_STEPS(n, 0, swiglu_step, y, y_type, gate, up, type, false);
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
    float a[KF_LANES], b[KF_LANES], pair[2 * KF_LANES];
    for (int c = 0; c < pairs; c += KF_LANES) {
        int step = (int)step_at(c, pairs), low = 2 * step < KF_LANES ? 2 * step : KF_LANES, high = 2 * step - low;
        kf_vec_store_f32(pair, load(x, x_type, 2 * c, low));
        kf_vec_store_f32(pair + KF_LANES, load(x, x_type, 2 * c + low, high));
        for (int i = 0; i < KF_LANES; i++) a[i] = pair[2 * i], b[i] = pair[2 * i + 1];
        kf_vec va = kf_vec_load_f32(a), vb = kf_vec_load_f32(b);
        kf_vec cs = load((const char *)cosine, KF_TYPE_F32, c, step),
               sn = load((const char *)sine, KF_TYPE_F32, c, step);
        kf_vec_store_f32(a, kf_vec_fnma(vb, sn, kf_vec_mul(va, cs)));
        kf_vec_store_f32(b, kf_vec_fma(va, sn, kf_vec_mul(vb, cs)));
        for (int i = 0; i < KF_LANES; i++) pair[2 * i] = a[i], pair[2 * i + 1] = b[i];
        store(y, y_type, 2 * c, low, kf_vec_load_f32(pair));
        store(y, y_type, 2 * c + low, high, kf_vec_load_f32(pair + KF_LANES));
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
