// SPDX-License-Identifier: Apache-2.0
//
// "Vectors" of one float, for every machine. The names and their meaning are those of simd_avx512.h; only *_scalar.c
// includes this one.
#ifndef KF_CPU_SIMD_SCALAR_H
#define KF_CPU_SIMD_SCALAR_H

#include <stdint.h>
#include <string.h>

#include "math/exp2.h"
#include "math/rope.h"

enum { KF_LANES = 1, KF_CAN_STREAM = 0 };

typedef float kf_vec;

static inline kf_vec kf_vec_zero(void) { return 0.0f; }
static inline kf_vec kf_vec_set1(float value) { return value; }
static inline kf_vec kf_vec_add(kf_vec a, kf_vec b) { return a + b; }
static inline kf_vec kf_vec_sub(kf_vec a, kf_vec b) { return a - b; }
static inline kf_vec kf_vec_mul(kf_vec a, kf_vec b) { return a * b; }
static inline kf_vec kf_vec_div(kf_vec a, kf_vec b) { return a / b; }
// Two roundings here: plain x86-64 has no FMA, and fmaf would be a call.
static inline kf_vec kf_vec_fma(kf_vec a, kf_vec b, kf_vec c) { return a * b + c; }
static inline kf_vec kf_vec_fnma(kf_vec a, kf_vec b, kf_vec c) { return c - a * b; }
static inline kf_vec kf_vec_max(kf_vec a, kf_vec b) { return a > b ? a : b; }
static inline kf_vec kf_vec_min(kf_vec a, kf_vec b) { return a < b ? a : b; }
static inline kf_vec kf_vec_select_n(kf_vec a, float fill, int n) { return n > 0 ? a : fill; }
static inline float kf_vec_hmax(kf_vec a) { return a; }
static inline float kf_vec_hsum(kf_vec a) { return a; }

static inline uint16_t kf_vec_read16(const void *p) {
    uint16_t half;
    memcpy(&half, p, 2);
    return half;
}

static inline kf_vec kf_vec_load_f32(const void *p) {
    float value;
    memcpy(&value, p, 4);
    return value;
}
static inline kf_vec kf_vec_load_f16(const void *p) { return kf_fp16_to_float(kf_vec_read16(p)); }
static inline kf_vec kf_vec_load_bf16(const void *p) { return kf_bf16_to_float(kf_vec_read16(p)); }
static inline kf_vec kf_vec_load_f32_n(const void *p, int n) { return n > 0 ? kf_vec_load_f32(p) : 0.0f; }
static inline kf_vec kf_vec_load_f16_n(const void *p, int n) { return n > 0 ? kf_vec_load_f16(p) : 0.0f; }
static inline kf_vec kf_vec_load_bf16_n(const void *p, int n) { return n > 0 ? kf_vec_load_bf16(p) : 0.0f; }

// Integers as in simd_avx512.h, here in one word: what is negative is turned over.
typedef struct kf_largest {
    int32_t high;
} kf_largest;

static inline int32_t kf_largest_order(int32_t bits, int32_t size) { return bits < 0 ? bits ^ size : bits; }
static inline kf_largest kf_largest_begin16(void) { return (kf_largest){INT16_MIN}; }
static inline kf_largest kf_largest_begin32(void) { return (kf_largest){INT32_MIN}; }
static inline void kf_largest_take(kf_largest *all, int32_t x) { all->high = x > all->high ? x : all->high; }
static inline void kf_largest_take16(kf_largest *all, const void *p) {
    for (int i = 0; i < 2; i++)
        kf_largest_take(all, kf_largest_order((int16_t)kf_vec_read16((const char *)p + 2 * i), INT16_MAX));
}
static inline void kf_largest_take32(kf_largest *all, const void *p) {
    int32_t bits;
    memcpy(&bits, p, 4);
    kf_largest_take(all, kf_largest_order(bits, INT32_MAX));
}
static inline float kf_largest_of_f32(kf_largest all) {
    return kf_float_of_bits((uint32_t)kf_largest_order(all.high, INT32_MAX));
}
static inline float kf_largest_of_f16(kf_largest all) {
    return kf_fp16_to_float((uint16_t)kf_largest_order(all.high, INT16_MAX));
}
static inline float kf_largest_of_bf16(kf_largest all) {
    return kf_bf16_to_float((uint16_t)kf_largest_order(all.high, INT16_MAX));
}

static inline void kf_vec_store_f32(void *p, kf_vec a) { memcpy(p, &a, 4); }
static inline void kf_vec_store_f16(void *p, kf_vec a) {
    uint16_t half = kf_float_to_fp16(a);
    memcpy(p, &half, 2);
}
static inline void kf_vec_store_bf16(void *p, kf_vec a) {
    uint16_t half = kf_float_to_bf16(a);
    memcpy(p, &half, 2);
}
static inline void kf_vec_store_f32_n(void *p, kf_vec a, int n) {
    if (n > 0) kf_vec_store_f32(p, a);
}
static inline void kf_vec_store_f16_n(void *p, kf_vec a, int n) {
    if (n > 0) kf_vec_store_f16(p, a);
}
static inline void kf_vec_store_bf16_n(void *p, kf_vec a, int n) {
    if (n > 0) kf_vec_store_bf16(p, a);
}
// No store past the caches in portable C.
static inline void kf_vec_stream_f32(void *p, kf_vec a) { kf_vec_store_f32(p, a); }
static inline void kf_vec_stream_f16(void *p, kf_vec a) { kf_vec_store_f16(p, a); }
static inline void kf_vec_stream_bf16(void *p, kf_vec a) { kf_vec_store_bf16(p, a); }
static inline void kf_vec_load_woven_bf16(const void *p, kf_vec *even, kf_vec *odd) {
    *even = kf_vec_load_bf16(p);
    *odd = kf_vec_load_bf16((const char *)p + 2);
}
static inline void kf_vec_store_woven_bf16(void *p, kf_vec even, kf_vec odd) {
    kf_vec_store_bf16(p, even);
    kf_vec_store_bf16((char *)p + 2, odd);
}
static inline void kf_vec_stream_woven_bf16(void *p, kf_vec even, kf_vec odd) { kf_vec_store_woven_bf16(p, even, odd); }
static inline void kf_vec_store_woven_bf16_ftz(void *p, kf_vec even, kf_vec odd) {
    kf_vec_store_woven_bf16(p, even, odd);
}
static inline void kf_vec_stream_woven_bf16_ftz(void *p, kf_vec even, kf_vec odd) {
    kf_vec_stream_woven_bf16(p, even, odd);
}
static inline __attribute__((always_inline)) void kf_vec_prefetch(const void *p) { (void)p; }
static inline void kf_vec_stream_fence(void) {}

static inline kf_vec kf_vec_round_f16(kf_vec a) { return kf_fp16_to_float(kf_float_to_fp16(a)); }
static inline kf_vec kf_vec_round_bf16(kf_vec a) { return kf_bf16_to_float(kf_float_to_bf16(a)); }

static inline kf_vec kf_vec_exp2(kf_vec x) { return kf_exp2(x); }
static inline kf_vec kf_vec_exp2_flush(kf_vec x) { return kf_exp2(x); }
static inline kf_vec kf_vec_exp2_far(kf_vec x) { return kf_exp2(x); }
static inline kf_vec kf_vec_exp2_short(kf_vec x) { return kf_exp2(x); }
static inline void kf_vec_exp2_short4(kf_vec *x) {
    for (int k = 0; k < 4; k++) x[k] = kf_vec_exp2_short(x[k]);
}
static inline kf_vec kf_vec_exponent(kf_vec x, kf_vec s) { return (float)((double)x * (double)KF_LOG2E - (double)s); }
static inline kf_vec kf_vec_exp(kf_vec x) { return kf_exp(x); }
static inline kf_vec kf_vec_exp_minus(kf_vec x) { return kf_exp(-x); }

static inline void kf_vec_exp_minus4(kf_vec *x) {
    for (int k = 0; k < 4; k++) x[k] = kf_vec_exp_minus(x[k]);
}

static inline void kf_vec_angles(const double *frequency, int pairs, double magnitude, double position, float *cosine,
                                 float *sine) {
    kf_rope_cos_sin(frequency, pairs, magnitude, position, cosine, sine);
}

#endif
