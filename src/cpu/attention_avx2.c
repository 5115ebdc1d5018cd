// SPDX-License-Identifier: Apache-2.0
//
// Attention kernels for AVX2 with FMA and F16C: fp32 products, 8 floats a vector, 16 registers.
//
//     q k^T   6 rows x 2 vectors: 12 sums, 2 loads and 6 broadcasts for 12 products
//     p v     6 rows x 2 vectors: the same
//
// Two FMA units of latency 4 or 5 want 8 to 10 sums under way; 12 sums, 2 vectors and a broadcast fill the registers.
#if defined(__x86_64__)
#include <math.h>

#include "cpu/simd_avx2.h"

#define SCORE_ROWS 6
#define SCORE_VECS 2
#define VALUE_VECS 2
#define VALUE_ROWS(vecs) ((vecs) == 1 ? 12 : 6)
#define FEW_ROWS 4
#define FEW_VECS 2

#define INLINE_PRIMITIVE static inline __attribute__((always_inline))

// x[i] lane j <-> x[j] lane i, by 24 shuffles: pairs of 32 bits, of 64 bits, then halves.
INLINE_PRIMITIVE void transpose_block(__m256 *x) {
    __m256 a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int k = 0; k < 2; k++) {
            b[i + 2 * k] = _mm256_shuffle_ps(a[i + k], a[i + k + 2], 0x44);
            b[i + 2 * k + 1] = _mm256_shuffle_ps(a[i + k], a[i + k + 2], 0xee);
        }
    for (int c = 0; c < 4; c++) {
        x[c] = _mm256_permute2f128_ps(b[c], b[4 + c], 0x20);
        x[4 + c] = _mm256_permute2f128_ps(b[c], b[4 + c], 0x31);
    }
}

// Lane i of the result is the sum of x[i]'s lanes.
INLINE_PRIMITIVE __m256 sum_each(const __m256 *x) {
    __m256 low = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
    __m256 high = _mm256_hadd_ps(_mm256_hadd_ps(x[4], x[5]), _mm256_hadd_ps(x[6], x[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
}

INLINE_PRIMITIVE kf_vec add_bias(kf_vec x, kf_vec bias) {
    kf_vec hidden = _mm256_set1_ps(-INFINITY);
    return _mm256_blendv_ps(_mm256_add_ps(x, bias), hidden, _mm256_cmp_ps(bias, hidden, _CMP_EQ_OQ));
}

INLINE_PRIMITIVE kf_vec hide(kf_vec x, const uint8_t *visible) {
    __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)visible));
    __m256 hidden = _mm256_castsi256_ps(_mm256_cmpeq_epi32(bytes, _mm256_setzero_si256()));
    return _mm256_blendv_ps(x, _mm256_set1_ps(-INFINITY), hidden);
}

INLINE_PRIMITIVE void store_weight_half(uint16_t *p, kf_vec w) { kf_vec_store_bf16(p, w); }

#define exact_fma kf_vec_fma
#define weight kf_vec_exp2_flush
#define weight_half kf_vec_exp2_flush

#include "cpu/attention_loops.h"

const kf_attention_kernels kf_attention_avx2 = {
    .notes = "fp32 FMA, 6x16 tiles",
    .lanes = KF_LANES,
    .tiles = &tiles_f32,
    .few = {NULL, &few_f32, &few_f16, &few_bf16},
    .logits = logits,
    .load_row = load_row,
    .store_row = store_row,
    .add_row = add_row,
};
#endif
