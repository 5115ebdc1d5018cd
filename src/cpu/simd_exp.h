// SPDX-License-Identifier: Apache-2.0
//
// exp2 and exp over the vectors of AVX2 and AVX-512: range reduction and polynomial of math/exp2.h, term by term what the scalar ones compute.
// Included by simd_avx2.h and simd_avx512.h once they have kf_vec_round (to the nearest integer) and kf_vec_scale_by_power (p * 2^n with one
// rounding), which is where the two differ. About 10 operations a vector. The clamps have x second, so that a NaN passes.
#ifndef KF_CPU_SIMD_EXP_H
#define KF_CPU_SIMD_EXP_H

static inline kf_vec kf_vec_exp2(kf_vec x) {
    x = kf_vec_min(kf_vec_set1(KF_EXP2_MAX), kf_vec_max(kf_vec_set1(KF_EXP2_MIN), x));
    kf_vec n = kf_vec_round(x);
    kf_vec r = kf_vec_sub(x, n);
    kf_vec p = kf_vec_fma(kf_vec_set1(KF_EXP2_D6_C6), r, kf_vec_set1(KF_EXP2_D6_C5));
    p = kf_vec_fma(p, r, kf_vec_set1(KF_EXP2_D6_C4));
    p = kf_vec_fma(p, r, kf_vec_set1(KF_EXP2_D6_C3));
    p = kf_vec_fma(p, r, kf_vec_set1(KF_EXP2_D6_C2));
    p = kf_vec_fma(p, r, kf_vec_set1(KF_EXP2_D6_C1));
    p = kf_vec_fma(p, r, kf_vec_set1(1.0f));
    return kf_vec_scale_by_power(p, n);
}

static inline kf_vec kf_vec_exp(kf_vec x) {
    x = kf_vec_min(kf_vec_set1(KF_EXP_MAX), kf_vec_max(kf_vec_set1(KF_EXP_MIN), x));
    kf_vec n = kf_vec_round(kf_vec_mul(x, kf_vec_set1(KF_LOG2E)));
    kf_vec r = kf_vec_fnma(n, kf_vec_set1(KF_LN2_HIGH), x);
    r = kf_vec_fnma(n, kf_vec_set1(KF_LN2_LOW), r);
    kf_vec p = kf_vec_fma(kf_vec_set1(KF_EXP_D6_C6), r, kf_vec_set1(KF_EXP_D6_C5));
    p = kf_vec_fma(p, r, kf_vec_set1(KF_EXP_D6_C4));
    p = kf_vec_fma(p, r, kf_vec_set1(KF_EXP_D6_C3));
    p = kf_vec_fma(p, r, kf_vec_set1(KF_EXP_D6_C2));
    p = kf_vec_fma(p, r, kf_vec_set1(1.0f));
    p = kf_vec_fma(p, r, kf_vec_set1(1.0f));
    return kf_vec_scale_by_power(p, n);
}

#endif
