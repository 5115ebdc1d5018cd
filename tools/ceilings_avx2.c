// SPDX-License-Identifier: Apache-2.0
//
// Ceilings of AVX2 + FMA: 8 lanes, 12 accumulators (two FMAs a cycle, four or five cycles of latency); int8 by the pair
// maddubs + madd + add, which is what AVX2 has in place of a dot product.
#include <immintrin.h>

#include "ceilings_kernels.h"

enum { LANES = 8, ACCUMULATORS = 12 };

static float total(__m256 v) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}

static float read_plain(const char *data, size_t bytes) {
    __m256 sum[8] = {0};
    for (size_t i = 0; i < bytes; i += sizeof sum) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++)
            sum[j] = _mm256_or_ps(sum[j], _mm256_load_ps((const float *)(data + i) + LANES * j));
    }
    __m256 all = sum[0];
    for (int j = 1; j < 8; j++) all = _mm256_or_ps(all, sum[j]);
    return total(all);
}

static float read_streams(const char *data, size_t bytes) {
    size_t quarter = bytes / 4;
    __m256 sum[8] = {0};
    for (size_t i = 0; i < quarter; i += 64) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            const float *at = (const float *)(data + (size_t)(j / 2) * quarter + i) + LANES * (j & 1);
            sum[j] = _mm256_or_ps(sum[j], _mm256_load_ps(at));
        }
    }
    __m256 all = sum[0];
    for (int j = 1; j < 8; j++) all = _mm256_or_ps(all, sum[j]);
    return total(all);
}

static void copy_plain(char *to, const char *from, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 128) {
#pragma GCC unroll 4
        for (size_t j = 0; j < 128; j += 32)
            _mm256_store_ps((float *)(to + i + j), _mm256_load_ps((const float *)(from + i + j)));
    }
}

static void copy_stream(char *to, const char *from, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 128) {
#pragma GCC unroll 4
        for (size_t j = 0; j < 128; j += 32)
            _mm256_stream_ps((float *)(to + i + j), _mm256_load_ps((const float *)(from + i + j)));
    }
    _mm_sfence();
}

static float fma_loop(int64_t rounds) {
    __m256 sum[ACCUMULATORS], factor = _mm256_set1_ps(0.5f), term = _mm256_set1_ps(1.0f);
#pragma GCC unroll 12
    for (int i = 0; i < ACCUMULATORS; i++) sum[i] = _mm256_set1_ps((float)i);
    for (int64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 12
        for (int i = 0; i < ACCUMULATORS; i++) sum[i] = _mm256_fmadd_ps(sum[i], factor, term);
    }
#pragma GCC unroll 12
    for (int i = 1; i < ACCUMULATORS; i++) sum[0] = _mm256_add_ps(sum[0], sum[i]);
    return total(sum[0]);
}

static float int8_loop(int64_t rounds) {
    __m256i sum[ACCUMULATORS], one = _mm256_set1_epi16(1), a = _mm256_set1_epi8(2), b = _mm256_set1_epi8(3);
#pragma GCC unroll 12
    for (int i = 0; i < ACCUMULATORS; i++) sum[i] = _mm256_set1_epi32(i);
    for (int64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 12
        for (int i = 0; i < ACCUMULATORS; i++) {
            __asm__("" : "+x"(a)); // a might have changed: or the product would be taken out of the loop
            __m256i product = _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), one);
            sum[i] = _mm256_add_epi32(sum[i], product);
        }
    }
#pragma GCC unroll 12
    for (int i = 1; i < ACCUMULATORS; i++) sum[0] = _mm256_xor_si256(sum[0], sum[i]);
    return total(_mm256_cvtepi32_ps(sum[0]));
}

const kft_ceiling_kernels kft_ceilings_avx2 = {
    .read = read_plain,
    .read_streams = read_streams,
    .copy = copy_plain,
    .copy_stream = copy_stream,
    .fma = {fma_loop, 2 * LANES *ACCUMULATORS},
    .int8_dot = {int8_loop, 2 * 4 * LANES *ACCUMULATORS},
};
