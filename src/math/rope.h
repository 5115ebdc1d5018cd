// SPDX-License-Identifier: Apache-2.0
//
// Rotary position embedding: the table of frequencies, and cosine and sine of a position's angles.
//
//     frequency(c) = scaled(base^(-2c / dims)),   c = 0 .. dims/2 - 1
//     cos[c], sin[c] = magnitude * cos, sin(position * frequency(c))          (magnitude: 1 except for YaRN)
//
// Angles are float64: bf16 turns position 15962 into 15936, an fp32 one is off by 0.004 at a million. Position
// and frequency make one rounded product (2^-53 relative), so at position 2^20 an angle is good to 1e-10.
//
// Scaling (c's wavelength is 2 pi / frequency; L = original_context):
//     linear   frequency / factor
//     llama3   t = L / wavelength: t < low_freq_factor: frequency / factor; t > high_freq_factor: unchanged;
//              between, with s = (t - low) / (high - low): (1 - s) frequency / factor + s frequency
//     YaRN     index(beta) = dims ln(L / (2 pi beta)) / (2 ln base) is the pair that turns beta times in L positions;
//              from floor(index(beta_fast)) to ceil(index(beta_slow)), clamped to 0 .. dims - 1, pairs go linearly
//              from unchanged to frequency / factor. (The paper's ramp is linear in the number of turns; this one is
//              its authors' code's and that of the models in circulation.)
//              magnitude = attention_factor, 0 meaning 0.1 ln(factor) + 1
//
// Used by the CPU's rope, kv_append and attention; frequencies go to CUDA as a table.
#ifndef KF_MATH_ROPE_H
#define KF_MATH_ROPE_H

#include <math.h>

#include "keyfold.h"
#include "math/hd.h"

#define KF_PI 3.14159265358979323846

// For the vector spellings of cosine and sine: pi / 2 in two parts (the second is what the first, rounded to 53 bits,
// lacks), and the coefficients of Taylor's series, 1 / n! with their signs.
#define KF_TWO_OVER_PI 0x1.45f306dc9c883p-1
#define KF_HALF_PI_HIGH 0x1.921fb54442d18p+0
#define KF_HALF_PI_LOW 0x1.1a62633145c07p-54
#define KF_SIN_3 (-1.0 / 6.0)
#define KF_SIN_5 (1.0 / 120.0)
#define KF_SIN_7 (-1.0 / 5040.0)
#define KF_SIN_9 (1.0 / 362880.0)
#define KF_SIN_11 (-1.0 / 39916800.0)
#define KF_SIN_13 (1.0 / 6227020800.0)
#define KF_COS_4 (1.0 / 24.0)
#define KF_COS_6 (-1.0 / 720.0)
#define KF_COS_8 (1.0 / 40320.0)
#define KF_COS_10 (-1.0 / 3628800.0)
#define KF_COS_12 (1.0 / 479001600.0)
#define KF_COS_14 (-1.0 / 87178291200.0)

// The pair, as a real number, whose angle turns `turns` full circles over the original context.
KF_HD double kf_rope_yarn_index(const kf_rope_params *rope, double turns) {
    return rope->dims * log(rope->original_context / (turns * 2.0 * KF_PI)) / (2.0 * log(rope->base));
}

KF_HD double kf_rope_scale_llama3(const kf_rope_params *rope, double frequency) {
    double turns = rope->original_context * frequency / (2.0 * KF_PI);
    double low = rope->low_freq_factor, high = rope->high_freq_factor;
    if (turns < low) return frequency / rope->factor;
    if (turns > high) return frequency;
    double share = (turns - low) / (high - low);
    return (1.0 - share) * frequency / rope->factor + share * frequency;
}

KF_HD double kf_rope_scale_yarn(const kf_rope_params *rope, double frequency, int32_t c) {
    double low = floor(kf_rope_yarn_index(rope, rope->beta_fast));
    double high = ceil(kf_rope_yarn_index(rope, rope->beta_slow));
    low = low < 0.0 ? 0.0 : low;
    high = high > rope->dims - 1 ? rope->dims - 1 : high;
    // An empty ramp is a step; its width only has to keep the division finite.
    double width = high - low < 0.001 ? 0.001 : high - low;
    double share = (c - low) / width;
    share = share < 0.0 ? 0.0 : share > 1.0 ? 1.0 : share;
    return share * frequency / rope->factor + (1.0 - share) * frequency;
}

// Frequency of pair c. `rope` has its defaults filled in (kf_parse_rope).
KF_HD double kf_rope_frequency(const kf_rope_params *rope, int32_t c) {
    double frequency = pow(rope->base, -2.0 * c / rope->dims);
    switch (rope->scaling) {
    case KF_ROPE_SCALING_LINEAR: return frequency / rope->factor;
    case KF_ROPE_SCALING_LLAMA3: return kf_rope_scale_llama3(rope, frequency);
    case KF_ROPE_SCALING_YARN: return kf_rope_scale_yarn(rope, frequency, c);
    default: return frequency;
    }
}

KF_HD double kf_rope_magnitude(const kf_rope_params *rope) {
    if (rope->scaling != KF_ROPE_SCALING_YARN) return 1.0;
    return rope->attention_factor != 0.0 ? rope->attention_factor : 0.1 * log(rope->factor) + 1.0;
}

// The whole table: dims / 2 frequencies. Returns the magnitude.
KF_HD double kf_rope_table(const kf_rope_params *rope, double *frequency) {
    for (int32_t c = 0; c < rope->dims / 2; c++) frequency[c] = kf_rope_frequency(rope, c);
    return kf_rope_magnitude(rope);
}

// cosine and sine of a position, rounded once to fp32. Row kernels have a vector spelling: kf_row_kernels.rope_angles.
KF_HD void kf_rope_cos_sin(const double *frequency, int32_t pairs, double magnitude, double position, float *cosine,
                           float *sine) {
    for (int32_t c = 0; c < pairs; c++) {
        double angle = position * frequency[c];
        cosine[c] = (float)(magnitude * cos(angle));
        sine[c] = (float)(magnitude * sin(angle));
    }
}

#endif
