// SPDX-License-Identifier: Apache-2.0
//
// The attention state over a set of keys J, and its merge (Milakov & Gimelshein, arXiv 1805.02867):
//
//     m = max_J s_j      d = sum_J 2^(c s_j - c m)      o = sum_J 2^(c s_j - c m) v_j
//     (m1, d1, o1) + (m2, d2, o2) = (m, w1 d1 + w2 d2, w1 o1 + w2 o2),   m = max(m1, m2),   w_i = 2^(c m_i - c m)
//
// s is a score in whatever unit the kernel has it, and c > 0 brings it to units of log2, for exp2 is what machines have:
// c = scale log2(e) for plain products, log2(e) for logits. What leaves the library is in natural logarithms. The empty set
// is (-inf, 0, 0). A NaN score leaves m as it is and makes d and o NaN, which no merge undoes.
//
// o is a vector that each kernel keeps in its own way; here are the numbers that go with it. Used by the CPU and CUDA
// kernels.
#ifndef KF_MATH_STATE_H
#define KF_MATH_STATE_H

#include <math.h>

#include "math/exp2.h"
#include "math/hd.h"

typedef struct kf_state {
    float m, d; // m in the kernel's unit, unscaled
} kf_state;

KF_HD kf_state kf_state_empty(void) {
    kf_state state = {-INFINITY, 0.0f};
    return state;
}

// What weights are relative to: p_j = 2^(c s_j - t), t = c m rounded, by one FMA whose product is exact. That holds for any
// t near c m. From KF_STATE_FAR on the rounding of c m alone is more than weights can hold, and c m may overflow: there
// p_j = 2^(c (s_j - m)), the difference rounded first.
#define KF_STATE_FAR 0x1p28f

KF_HD int kf_state_is_far(float t) { return !(t > -KF_STATE_FAR && t < KF_STATE_FAR); }

// w: by this d and o of a state with m_i are multiplied where m is the largest score of all.
KF_HD float kf_state_weight(float c, float m_i, float m) {
    if (m_i == -INFINITY) return 0.0f; // holds nothing, or NaN, which stays
    float t = c * m;
    return kf_exp2(kf_state_is_far(t) ? c * (m_i - m) : c * m_i - t);
}

// The exponent that d is relative to, in units of log2.
KF_HD double kf_state_exponent(float c, kf_state state) {
    float t = c * state.m;
    return kf_state_is_far(t) ? (double)c * (double)state.m : (double)t;
}

// A state's end: what o is to be multiplied by, and ln of the sum of e^score. A sink (NULL: none) is one more score without
// a value. The empty set gives 0 and -inf, or the sink. lse may be NULL.
KF_HD float kf_state_finish(float c, kf_state state, const float *sink, float *lse) {
    const double ln2 = 0.69314718055994530942;
    if (state.d == 0.0f) {
        if (lse) *lse = sink ? *sink : -INFINITY;
        return 0.0f;
    }
    double t = kf_state_exponent(c, state), top = t, d = (double)state.d, weight = 1.0;
    if (sink && *sink != -INFINITY) {
        double alone = (double)*sink / ln2;
        top = t > alone ? t : alone;
        weight = exp2(t - top);
        d = weight * d + exp2(alone - top);
    }
    if (lse) *lse = (float)((top + log2(d)) * ln2);
    return (float)(weight / d);
}

#endif
