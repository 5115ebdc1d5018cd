// SPDX-License-Identifier: Apache-2.0
//
// fp16 and bf16 to fp32 and back, by integer arithmetic alone, one value at a time.
//
//            sign  exponent  fraction  bias
//     fp32     1       8        23      127
//     bf16     1       8         7      127    the upper half of an fp32
//     fp16     1       5        10       15
//
// To fp32: exact, subnormals and infinities included. From fp32: round to nearest, ties to even; too large becomes
// infinity. A NaN stays a NaN with its sign and the upper bits of its payload, made quiet: bit for bit what F16C's
// vcvtph2ps and vcvtps2ph do.
//
// Used by the scalar kernels, the readers of weights, the tests and the CUDA host code. Vector spellings:
// src/cpu/simd_*.h.
#ifndef KF_MATH_HALF_H
#define KF_MATH_HALF_H

#include <stdint.h>
#include <string.h>

#include "math/hd.h"

KF_HD uint32_t kf_bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

KF_HD float kf_float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

KF_HD float kf_bf16_to_float(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    int nan = (half & 0x7fffu) > 0x7f80u;
    return kf_float_of_bits(nan ? bits | 0x00400000u : bits);
}

KF_HD uint16_t kf_float_to_bf16(float value) {
    uint32_t bits = kf_bits_of_float(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x0040u);
    // Half an ulp, less one where the kept part is even: a tie then rounds down to it. The carry runs into the
    // exponent, as it should.
    uint32_t odd = bits >> 16 & 1u;
    return (uint16_t)((bits + 0x7fffu + odd) >> 16);
}

KF_HD float kf_fp16_to_float(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = half >> 10 & 0x1fu, fraction = half & 0x3ffu;
    if (exponent == 0x1f) { // infinity or NaN
        uint32_t quiet = fraction ? 0x00400000u : 0u;
        return kf_float_of_bits(sign | 0x7f800000u | fraction << 13 | quiet);
    }
    if (exponent == 0) { // zero or subnormal: fraction * 2^-24, exact in fp32
        float magnitude = (float)fraction * 0x1p-24f;
        return kf_float_of_bits(sign | kf_bits_of_float(magnitude));
    }
    return kf_float_of_bits(sign | (exponent + 112u) << 23 | fraction << 13);
}

KF_HD uint16_t kf_float_to_fp16(float value) {
    uint32_t bits = kf_bits_of_float(value);
    uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); // 65520 and more: infinity
    if (magnitude < 0x38800000u) {
        // Below 2^-14, fp16's smallest normal: multiples of 2^-24. Beside 0.5 fp32's last bit weighs 2^-24, so the
        // addition rounds.
        float shifted = kf_float_of_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (kf_bits_of_float(shifted) - 0x3f000000u));
    }
    uint32_t odd = magnitude >> 13 & 1u;
    return (uint16_t)(sign | (magnitude - (112u << 23) + 0xfffu + odd) >> 13);
}

#endif
