// SPDX-License-Identifier: Apache-2.0
//
// ALiBi (Press et al., arXiv 2108.12409): what is added to the score of a query at position p and key j,
//
//     -slope_h |p - j|          (the paper's slope (j - p) where j <= p)
//
// and the slopes of n heads: for n = 2^k those are 2^(-8h/n), h = 1 .. n; otherwise those of the power of two below n,
// followed by the 1st, 3rd, 5th ... slope of the power of two above.
//
// The distance is taken in integers, for positions near 2^24 and beyond are no longer apart in fp32; the product is
// fp32. Used by the CPU and CUDA kernels, and by tests.
#ifndef KF_MATH_ALIBI_H
#define KF_MATH_ALIBI_H

#include <math.h>
#include <stdint.h>

#include "math/hd.h"

// The unsigned difference is right even where p - j would overflow.
KF_HD float kf_alibi_bias(float slope, int64_t p, int64_t j) {
    uint64_t distance = p > j ? (uint64_t)p - (uint64_t)j : (uint64_t)j - (uint64_t)p;
    return -slope * (float)distance;
}

// Slope of head h (0-based) of n.
KF_HD float kf_alibi_slope(int64_t h, int64_t n) {
    int64_t power = 1;
    while (power * 2 <= n) power *= 2;
    double exponent =
        h < power ? 8.0 * (double)(h + 1) / (double)power : 4.0 * (double)(2 * (h - power) + 1) / (double)power;
    return (float)exp2(-exponent);
}

#endif
