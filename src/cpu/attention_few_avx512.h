// SPDX-License-Identifier: Apache-2.0
//
// The softmax of decode on AVX-512: up to 4 rows in step, their maxima, factors and sums in the lanes of one vector.
//
//     m' = max(m, max_j s_j)      p_j = 2^(c s_j - c m')      alpha = 2^(c m - c m')      d = alpha d + sum_j p_j
//
// A block of decode has 16 or 32 keys, so the scores of a row are one or two vectors, and what a softmax costs is not its
// instructions but the chain of them: maximum over lanes, exponential, and back to memory for the values' pass. Row by row
// (attention_loops.h) that was 300 cycles a block in which nothing else ran.
//
// attention_loops.h includes this file behind softmax_as, which takes what is rare: rows that have seen no key yet, and
// numbers so large that c m cannot be rounded (state.h).
#ifndef KF_CPU_ATTENTION_FEW_AVX512_H
#define KF_CPU_ATTENTION_FEW_AVX512_H

// Lane r of each quarter: `fold` of all lanes of x[r].
#define FOLD_ROWS(fold, x, result)                                                                                     \
    do {                                                                                                               \
        __m512 ab = fold(_mm512_unpacklo_ps((x)[0], (x)[1]), _mm512_unpackhi_ps((x)[0], (x)[1]));                      \
        __m512 cd = fold(_mm512_unpacklo_ps((x)[2], (x)[3]), _mm512_unpackhi_ps((x)[2], (x)[3]));                      \
        __m512 all = fold(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));                           \
        all = fold(all, _mm512_shuffle_f32x4(all, all, 0x4e));                                                         \
        (result) = fold(all, _mm512_shuffle_f32x4(all, all, 0xb1));                                                    \
    } while (0)

INLINE kf_vec load_quarter(const float *x) { return _mm512_broadcast_f32x4(_mm_loadu_ps(x)); }
INLINE void store_quarter(float *x, int rows, kf_vec a) {
    _mm_mask_storeu_ps(x, (__mmask8)((1u << rows) - 1u), _mm512_castps512_ps128(a));
}

// Lane r of each quarter, everywhere.
INLINE kf_vec row_of(kf_vec a, const int r) {
    return r == 0   ? _mm512_permute_ps(a, 0x00)
           : r == 1 ? _mm512_permute_ps(a, 0x55)
           : r == 2 ? _mm512_permute_ps(a, 0xaa)
                    : _mm512_permute_ps(a, 0xff);
}

// False, and nothing done, where a row is none for this.
INLINE bool softmax_rows(const int rows, const bool half, const float *s, char *p, int64_t n, float factor, float *m,
                         float *d, float *alpha) {
    const kf_vec c = kf_vec_set1(factor);
    kf_vec x[4], before = load_quarter(m), now;
    for (int r = 0; r < 4; r++) x[r] = kf_vec_set1(-INFINITY);
    for (int64_t j = 0; j < n; j += KF_LANES)
        UNROLL for (int r = 0; r < rows; r++) x[r] = kf_vec_max(kf_vec_load_f32(s + r * KF_SCORE_STRIDE + j), x[r]);
    FOLD_ROWS(kf_vec_max, x, now);
    now = kf_vec_max(now, before);
    const kf_vec t = kf_vec_mul(c, now), far = kf_vec_set1(KF_STATE_FAR);
    const __mmask16 near = _mm512_cmp_ps_mask(_mm512_abs_ps(t), far, _CMP_LT_OQ);
    if ((near & ((1u << rows) - 1u)) != (1u << rows) - 1u) return false;
    const kf_vec a = weight(kf_vec_sub(kf_vec_mul(c, before), t));

    for (int r = 0; r < 4; r++) x[r] = kf_vec_zero();
    for (int64_t j = 0; j < n; j += KF_LANES) UNROLL for (int r = 0; r < rows; r++) {
            kf_vec e =
                exact_fma(c, kf_vec_load_f32(s + r * KF_SCORE_STRIDE + j), kf_vec_sub(kf_vec_zero(), row_of(t, r)));
            char *to = p + (r * KF_SCORE_STRIDE + j) * (half ? 2 : 4);
            e = half ? weight_half(e) : weight(e);
            x[r] = kf_vec_add(x[r], e);
            if (half)
                store_weight_half((uint16_t *)(void *)to, e);
            else
                kf_vec_store_f32((float *)(void *)to, e);
        }
    store_quarter(alpha, rows, a);
    store_quarter(m, rows, now);
    FOLD_ROWS(kf_vec_add, x, now);
    store_quarter(d, rows, kf_vec_add(kf_vec_mul(load_quarter(d), a), now));
    return true;
}

INLINE void few_softmax_as(const bool half, float *s, void *p, int32_t rows, int64_t n, float c, float *m, float *d,
                           float *alpha) {
    for (int32_t r = 0; r < rows; r += 4) {
        float *s_r = s + r * KF_SCORE_STRIDE;
        char *p_r = (char *)p + r * KF_SCORE_STRIDE * (half ? 2 : 4);
        int32_t count = rows - r < 4 ? rows - r : 4;
        bool done = false;
        switch (count) {
        case 1: done = softmax_rows(1, half, s_r, p_r, n, c, m + r, d + r, alpha + r); break;
        case 2: done = softmax_rows(2, half, s_r, p_r, n, c, m + r, d + r, alpha + r); break;
        case 3: done = softmax_rows(3, half, s_r, p_r, n, c, m + r, d + r, alpha + r); break;
        case 4: done = softmax_rows(4, half, s_r, p_r, n, c, m + r, d + r, alpha + r); break;
        }
        if (done) continue;
        float factors[KF_LANES] = {0}; // softmax_as writes whole vectors
        softmax_as(half, s_r, p_r, count, 0, n, c, m + r, d + r, factors);
        memcpy(alpha + r, factors, (size_t)count * sizeof *alpha);
    }
}

static void few_softmax_f32(float *s, void *p, int32_t rows, int64_t n, float c, float *m, float *d, float *alpha) {
    few_softmax_as(false, s, p, rows, n, c, m, d, alpha);
}

// x[i] lane 4 r + k: row r, key 4 i + k. Rows of 16 keys, written as whole vectors: a load meets one store, not four.
INLINE void store_quarters(const kf_vec *x, float *s) {
    kf_vec low01 = _mm512_shuffle_f32x4(x[0], x[1], 0x44), high01 = _mm512_shuffle_f32x4(x[0], x[1], 0xee);
    kf_vec low23 = _mm512_shuffle_f32x4(x[2], x[3], 0x44), high23 = _mm512_shuffle_f32x4(x[2], x[3], 0xee);
    kf_vec_store_f32(s, _mm512_shuffle_f32x4(low01, low23, 0x88));
    kf_vec_store_f32(s + KF_SCORE_STRIDE, _mm512_shuffle_f32x4(low01, low23, 0xdd));
    kf_vec_store_f32(s + 2 * KF_SCORE_STRIDE, _mm512_shuffle_f32x4(high01, high23, 0x88));
    kf_vec_store_f32(s + 3 * KF_SCORE_STRIDE, _mm512_shuffle_f32x4(high01, high23, 0xdd));
}

#endif
