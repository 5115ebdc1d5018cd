// SPDX-License-Identifier: Apache-2.0
//
// Ceilings of what AVX-512 BF16 and VNNI add: dot products of bf16 pairs (vdpbf16ps) and of int8 quadruples (vpdpbusd).
// Memory and FMA are those of AVX-512.
#include <immintrin.h>

#include "ceilings_kernels.h"

enum { LANES = 16, ACCUMULATORS = 24 };

static float bf16_loop(int64_t rounds) {
    __m512 sum[ACCUMULATORS];
    __m512bh a = (__m512bh)_mm512_set1_epi16(0x3F80), b = (__m512bh)_mm512_set1_epi16(0x3E80); // 1 and 0.25
#pragma GCC unroll 24
    for (int i = 0; i < ACCUMULATORS; i++) sum[i] = _mm512_set1_ps((float)i);
    for (int64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 24
        for (int i = 0; i < ACCUMULATORS; i++) sum[i] = _mm512_dpbf16_ps(sum[i], a, b);
    }
#pragma GCC unroll 24
    for (int i = 1; i < ACCUMULATORS; i++) sum[0] = _mm512_add_ps(sum[0], sum[i]);
    return _mm512_reduce_add_ps(sum[0]);
}

static float int8_loop(int64_t rounds) {
    __m512i sum[ACCUMULATORS], a = _mm512_set1_epi8(2), b = _mm512_set1_epi8(3);
#pragma GCC unroll 24
    for (int i = 0; i < ACCUMULATORS; i++) sum[i] = _mm512_set1_epi32(i);
    for (int64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 24
        for (int i = 0; i < ACCUMULATORS; i++) {
            // In assembly: from the intrinsic GCC 12 makes two register moves for each of them.
            __asm__("vpdpbusd %2, %1, %0" : "+v"(sum[i]) : "v"(a), "v"(b));
        }
    }
#pragma GCC unroll 24
    for (int i = 1; i < ACCUMULATORS; i++) sum[0] = _mm512_xor_si512(sum[0], sum[i]);
    return (float)_mm512_reduce_add_epi32(sum[0]);
}

const kft_ceiling_kernels kft_ceilings_avx512bf16 = {
    .bf16_dot = {bf16_loop, 2 * 2 * LANES *ACCUMULATORS},
    .int8_dot = {int8_loop, 2 * 4 * LANES *ACCUMULATORS},
};
