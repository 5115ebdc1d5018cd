// SPDX-License-Identifier: Apache-2.0
//
// The attention state over a set of keys J, and its merge (Milakov & Gimelshein, arXiv 1805.02867):
//
//     m = max_J t_j      d = sum_J 2^(t_j - m)      o = sum_J 2^(t_j - m) v_j          t = score * log2(e)
//     (m1, d1, o1) + (m2, d2, o2) = (m, w1 d1 + w2 d2, w1 o1 + w2 o2),   m = max(m1, m2),   w_i = 2^(m_i - m)
//
// Scores are kept in units of log2, for exp2 is what machines have; what leaves the library is in natural logarithms.
// The empty set is (-inf, 0, 0). A NaN score leaves m as it is and makes d and o NaN, which no merge undoes.
//
// o is a vector that each kernel keeps in its own way; here are the numbers that go with it. Used by the CPU and CUDA
// kernels.
#ifndef KF_MATH_STATE_H
#define KF_MATH_STATE_H

#include <math.h>

#include "math/exp2.h"
#include "math/hd.h"

typedef struct kf_state {
    float m, d;
} kf_state;

KF_HD kf_state kf_state_empty(void) {
    kf_state state = {-INFINITY, 0.0f};
    return state;
}

// What scores are taken relative to. Where all of them are -inf, so is m, and -inf - -inf would be NaN: then 0.
KF_HD float kf_state_origin(float m) { return m == -INFINITY ? 0.0f : m; }

// Merges b into a; *wa and *wb are what a's and b's o are to be multiplied by before they are added.
KF_HD kf_state kf_state_merge(kf_state a, kf_state b, float *wa, float *wb) {
    kf_state both;
    both.m = a.m > b.m ? a.m : b.m;
    float origin = kf_state_origin(both.m);
    *wa = kf_exp2(a.m - origin);
    *wb = kf_exp2(b.m - origin);
    both.d = *wa * a.d + *wb * b.d;
    return both;
}

// A sink joins as a state with one score and no value. *w is what o is to be multiplied by.
KF_HD kf_state kf_state_add_sink(kf_state state, float sink, float *w) {
    kf_state one = {sink * KF_LOG2E, 1.0f};
    float unused;
    if (sink == -INFINITY) one = kf_state_empty();
    return kf_state_merge(state, one, w, &unused);
}

// 1 / d, by which o is to be multiplied; 0 for the empty set, whose o is 0.
KF_HD float kf_state_normaliser(kf_state state) { return state.d == 0.0f ? 0.0f : 1.0f / state.d; }

// ln of the sum of e^score; -inf for the empty set.
KF_HD float kf_state_lse(kf_state state) {
    if (state.d == 0.0f) return -INFINITY;
    return (float)(((double)state.m + log2((double)state.d)) * 0.69314718055994530942);
}

#endif
