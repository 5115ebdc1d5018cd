// SPDX-License-Identifier: Apache-2.0
//
// SwiGLU in bf16 on AVX-512, as a pipeline over woven pairs of vectors (32 elements):
//
//     y = gate / (1 + 2^t) up,  t = -gate log2(e),  2^t = 2^floor(t) p(r),  r = t - floor(t)
//
// One pair is a chain of some 60 cycles, and takes the execution units for 16.6 (docs/cpu_rows.md): four must be under way. The
// schedulers see 64 instructions, two pairs' worth, so the loop is written as the hardware is to run it: each round begins a pair,
// computes the polynomial of the one before, divides for the one before that and stores the fourth. No instruction waits long for its
// operands then.
//
// Bytes of a round: 128 read, 64 written. rows_loops.h calls it for the body of a row.
#ifndef KF_CPU_ROWS_AVX512_H
#define KF_CPU_ROWS_AVX512_H

#include <stdbool.h>

#include "cpu/simd_avx512.h"

#define KF_ROWS_PIPELINED // for rows_loops.h

#define ROWS_INLINE static inline __attribute__((always_inline))

// Keeps the compiler from moving what makes these two before what made others, or after what others are made of.
#define HERE(x) __asm__ volatile("" : "+v"((x)[0]), "+v"((x)[1]))
#define BOTH for (int k = 0; k < 2; k++)

enum { SWIGLU_STAGES = 4, SWIGLU_PAIR = 2 * KF_LANES, SWIGLU_BYTES = 2 * SWIGLU_PAIR };

// A pair under way: p is the polynomial, then the power, the denominator, the quotient.
typedef struct swiglu_pair {
    kf_vec gate[2], t[2], r[2], p[2];
} swiglu_pair;

ROWS_INLINE void swiglu_begin(swiglu_pair *a, const char *gate) {
    kf_vec_load_woven_bf16(gate, &a->gate[0], &a->gate[1]);
    BOTH a->t[k] = kf_vec_mul(a->gate[k], kf_vec_set1(-KF_LOG2E));
    HERE(a->t);
    BOTH a->r[k] = kf_vec_above_floor(a->t[k]);
    HERE(a->r);
}

ROWS_INLINE void swiglu_term(swiglu_pair *a, float coefficient) {
    BOTH a->p[k] = kf_vec_fma(a->p[k], a->r[k], kf_vec_set1(coefficient));
    HERE(a->p);
}

// The polynomial of one pair beside the power and the quotient of another: they keep different units busy.
ROWS_INLINE void swiglu_middle(swiglu_pair *a, swiglu_pair *older) {
    BOTH older->p[k] = _mm512_scalef_ps(older->p[k], older->t[k]);
    BOTH a->p[k] = kf_vec_set1(KF_EXP2_FLOOR_D4_C4);
    swiglu_term(a, KF_EXP2_FLOOR_D4_C3);
    HERE(older->p);
    swiglu_term(a, KF_EXP2_FLOOR_D4_C2);
    BOTH older->p[k] = kf_vec_add(kf_vec_set1(1.0f), older->p[k]);
    HERE(older->p);
    swiglu_term(a, KF_EXP2_FLOOR_D4_C1);
    older->p[0] = kf_vec_div(older->gate[0], older->p[0]);
    swiglu_term(a, 1.0f);
    older->p[1] = kf_vec_div(older->gate[1], older->p[1]);
    HERE(older->p);
}

ROWS_INLINE void swiglu_end(const swiglu_pair *a, char *y, const char *up, bool stream) {
    kf_vec u[2];
    kf_vec_load_woven_bf16(up, &u[0], &u[1]);
    BOTH u[k] = kf_vec_mul(a->p[k], u[k]);
    if (stream)
        kf_vec_stream_woven_bf16_ftz(y, u[0], u[1]);
    else
        kf_vec_store_woven_bf16_ftz(y, u[0], u[1]);
}

// Where a row is: bytes of gate and up before the pair that begins; the pair that ends lies BEHIND bytes before it.
typedef struct swiglu_row {
    char *y;
    const char *gate, *up;
    bool stream;
} swiglu_row;

enum { BEHIND = (SWIGLU_STAGES - 1) * SWIGLU_BYTES, ROUNDS = SWIGLU_STAGES * SWIGLU_BYTES };

// One round, of which each pair has its part: `first` ends, and the fourth begins in the place that the one before left.
ROWS_INLINE void swiglu_round(const swiglu_row *row, int64_t at, const swiglu_pair *first, swiglu_pair *second,
                              swiglu_pair *third, swiglu_pair *fourth) {
    swiglu_end(first, row->y + at - BEHIND, row->up + at - BEHIND, row->stream);
    swiglu_begin(fourth, row->gate + at);
    swiglu_middle(third, second);
}

// Elements 0 .. result - 1 of a row of n; the rest, up to 6 pairs and a part of one, is left to the caller.
ROWS_INLINE int64_t swiglu_pipeline(char *y, const char *gate, const char *up, int64_t n, bool stream) {
    const swiglu_row row = {y, gate, up, stream};
    const int64_t bytes = n / SWIGLU_PAIR * SWIGLU_BYTES;
    int64_t at = BEHIND;
    if (bytes < BEHIND + ROUNDS) return 0;
    swiglu_pair a, b, c, d = {0}; // d as an older one before there is any: its quotient is 0 and goes nowhere
    swiglu_begin(&a, gate);
    swiglu_begin(&b, gate + SWIGLU_BYTES);
    swiglu_middle(&a, &d);
    swiglu_begin(&c, gate + 2 * SWIGLU_BYTES);
    swiglu_middle(&b, &a);
    for (; at + ROUNDS <= bytes; at += ROUNDS) {
        swiglu_round(&row, at, &a, &b, &c, &d);
        swiglu_round(&row, at + SWIGLU_BYTES, &b, &c, &d, &a);
        swiglu_round(&row, at + 2 * SWIGLU_BYTES, &c, &d, &a, &b);
        swiglu_round(&row, at + 3 * SWIGLU_BYTES, &d, &a, &b, &c);
    }
    at -= BEHIND;
    swiglu_end(&a, y + at, up + at, stream);
    swiglu_middle(&c, &b);
    swiglu_end(&b, y + at + SWIGLU_BYTES, up + at + SWIGLU_BYTES, stream);
    swiglu_middle(&d, &c);
    swiglu_end(&c, y + at + 2 * SWIGLU_BYTES, up + at + 2 * SWIGLU_BYTES, stream);
    return (at + BEHIND) / 2;
}

#endif
