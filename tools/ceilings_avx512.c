// SPDX-License-Identifier: Apache-2.0
//
// Ceilings of AVX-512: 16 lanes, 24 accumulators; int8 by maddubs + madd + add, as in AVX2.
#include <immintrin.h>

#include "ceilings_kernels.h"

enum { LANES = 16, ACCUMULATORS = 24 };

static __m512i load(const char *at) { return _mm512_load_si512((const void *)at); }

static float read_plain(const char *data, size_t bytes) {
    __m512i sum[8];
    for (int j = 0; j < 8; j++) sum[j] = _mm512_setzero_si512();
    for (size_t i = 0; i < bytes; i += sizeof sum) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) sum[j] = _mm512_or_si512(sum[j], load(data + i + 64 * (size_t)j));
    }
    for (int j = 1; j < 8; j++) sum[0] = _mm512_or_si512(sum[0], sum[j]);
    return (float)_mm512_reduce_or_epi32(sum[0]);
}

static float read_streams(const char *data, size_t bytes) {
    size_t quarter = bytes / 4;
    __m512i sum[8];
    for (int j = 0; j < 8; j++) sum[j] = _mm512_setzero_si512();
    for (size_t i = 0; i < quarter; i += 128) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            const char *at = data + (size_t)(j / 2) * quarter + i + 64 * (size_t)(j & 1);
            sum[j] = _mm512_or_si512(sum[j], load(at));
        }
    }
    for (int j = 1; j < 8; j++) sum[0] = _mm512_or_si512(sum[0], sum[j]);
    return (float)_mm512_reduce_or_epi32(sum[0]);
}

static void copy_plain(char *to, const char *from, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 256) {
#pragma GCC unroll 4
        for (size_t j = 0; j < 256; j += 64) _mm512_store_si512((void *)(to + i + j), load(from + i + j));
    }
}

static void copy_stream(char *to, const char *from, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 256) {
#pragma GCC unroll 4
        for (size_t j = 0; j < 256; j += 64) _mm512_stream_si512((void *)(to + i + j), load(from + i + j));
    }
    _mm_sfence();
}

static float fma_loop(int64_t rounds) {
    __m512 sum[ACCUMULATORS], factor = _mm512_set1_ps(0.5f), term = _mm512_set1_ps(1.0f);
#pragma GCC unroll 24
    for (int i = 0; i < ACCUMULATORS; i++) sum[i] = _mm512_set1_ps((float)i);
    for (int64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 24
        for (int i = 0; i < ACCUMULATORS; i++) sum[i] = _mm512_fmadd_ps(sum[i], factor, term);
    }
#pragma GCC unroll 24
    for (int i = 1; i < ACCUMULATORS; i++) sum[0] = _mm512_add_ps(sum[0], sum[i]);
    return _mm512_reduce_add_ps(sum[0]);
}

static float int8_loop(int64_t rounds) {
    __m512i sum[ACCUMULATORS], one = _mm512_set1_epi16(1), a = _mm512_set1_epi8(2), b = _mm512_set1_epi8(3);
#pragma GCC unroll 24
    for (int i = 0; i < ACCUMULATORS; i++) sum[i] = _mm512_set1_epi32(i);
    for (int64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 24
        for (int i = 0; i < ACCUMULATORS; i++) {
            __asm__("" : "+v"(a)); // a might have changed: or the product would be taken out of the loop
            __m512i product = _mm512_madd_epi16(_mm512_maddubs_epi16(a, b), one);
            sum[i] = _mm512_add_epi32(sum[i], product);
        }
    }
#pragma GCC unroll 24
    for (int i = 1; i < ACCUMULATORS; i++) sum[0] = _mm512_xor_si512(sum[0], sum[i]);
    return (float)_mm512_reduce_add_epi32(sum[0]);
}

const kft_ceiling_kernels kft_ceilings_avx512 = {
    .read = read_plain,
    .read_streams = read_streams,
    .copy = copy_plain,
    .copy_stream = copy_stream,
    .fma = {fma_loop, 2 * LANES *ACCUMULATORS},
    .int8_dot = {int8_loop, 2 * 4 * LANES *ACCUMULATORS},
};
