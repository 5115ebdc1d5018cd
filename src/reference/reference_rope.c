// SPDX-License-Identifier: Apache-2.0
//
// Rotary position embedding, one pair at a time:
//
//     (a, b) -> (a cos t - b sin t, a sin t + b cos t) * amplitude,   t = position * frequency(c),   c = 0 .. dims/2 - 1
//
// with frequency(c) = base^(-2c/dims), changed by the scaling that the model asks for.
#include "reference/reference.h"

#include <math.h>

static const double PI = 3.14159265358979323846;

static double or_default(double value, double otherwise) { return value != 0 ? value : otherwise; }

// Llama 3.1: long wavelengths are stretched by `factor`, short ones stay, those between are blended.
static double llama3_frequency(const kf_rope_params *rope, double frequency) {
    const double low = or_default(rope->low_freq_factor, 1), high = or_default(rope->high_freq_factor, 4);
    const double wavelength = 2 * PI / frequency;
    if (wavelength > rope->original_context / low) return frequency / rope->factor;
    if (wavelength < rope->original_context / high) return frequency;
    const double blend = (rope->original_context / wavelength - low) / (high - low);
    return (1 - blend) * frequency / rope->factor + blend * frequency;
}

// The pair index whose frequency makes `turns` full turns over the original context.
static double yarn_pair(const kf_rope_params *rope, double dims, double base, double turns) {
    return dims * log(rope->original_context / (turns * 2 * PI)) / (2 * log(base));
}

// YaRN: pairs below `first` keep their frequency, pairs above `last` are stretched, between them a linear ramp in c.
static double yarn_frequency(const kf_rope_params *rope, double dims, double base, double c, double frequency) {
    const double first = fmax(floor(yarn_pair(rope, dims, base, or_default(rope->beta_fast, 32))), 0);
    double last = fmin(ceil(yarn_pair(rope, dims, base, or_default(rope->beta_slow, 1))), dims - 1);
    if (last - first < 0.001) last = first + 0.001;
    const double ramp = fmin(fmax((c - first) / (last - first), 0), 1);
    return frequency / rope->factor * ramp + frequency * (1 - ramp);
}

static double frequency_of(const kf_rope_params *rope, double dims, double c) {
    const double base = or_default(rope->base, 10000);
    const double frequency = pow(base, -2 * c / dims);
    switch (rope->scaling) {
    case KF_ROPE_SCALING_LINEAR: return frequency / rope->factor;
    case KF_ROPE_SCALING_LLAMA3: return llama3_frequency(rope, frequency);
    case KF_ROPE_SCALING_YARN: return yarn_frequency(rope, dims, base, c, frequency);
    default: return frequency;
    }
}

static double amplitude_of(const kf_rope_params *rope) {
    if (rope->scaling != KF_ROPE_SCALING_YARN) return 1;
    return or_default(rope->attention_factor, 0.1 * log(rope->factor) + 1);
}

int64_t ref_rope_frequencies(const kf_rope_params *rope, int64_t D, double *frequency, double *amplitude) {
    const int64_t dims = rope->dims ? rope->dims : D;
    for (int64_t c = 0; c < dims / 2; c++) frequency[c] = frequency_of(rope, (double)dims, (double)c);
    *amplitude = amplitude_of(rope);
    return dims / 2;
}

// A value as float64 arithmetic leaves it, or as fp32 arithmetic does.
static double step(bool single, double value) { return single ? (double)(float)value : value; }

static void rotate(const kf_rope_params *rope, int64_t D, double position, bool single, double *x) {
    if (rope->pairing == KF_ROPE_OFF) return;
    const int64_t dims = rope->dims ? rope->dims : D;
    const double amplitude = amplitude_of(rope);
    for (int64_t c = 0; c < dims / 2; c++) {
        const int64_t first = rope->pairing == KF_ROPE_NEOX ? c : 2 * c;
        const int64_t second = rope->pairing == KF_ROPE_NEOX ? c + dims / 2 : 2 * c + 1;
        const double angle = position * frequency_of(rope, (double)dims, (double)c);
        const double cosine = step(single, amplitude * cos(angle)), sine = step(single, amplitude * sin(angle));
        const double a = x[first], b = x[second];
        x[first] = step(single, step(single, a * cosine) - step(single, b * sine));
        x[second] = step(single, step(single, a * sine) + step(single, b * cosine));
    }
}

void ref_rotate(const kf_rope_params *rope, int64_t D, double position, double *x) {
    rotate(rope, D, position, false, x);
}

void ref_rotate_fp32(const kf_rope_params *rope, int64_t D, double position, double *x) {
    rotate(rope, D, position, true, x);
}
