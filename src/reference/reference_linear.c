// SPDX-License-Identifier: Apache-2.0
//
// The linear layer y = x W^T + bias in float64, and the block formats of GGUF's weights, decoded value by value:
//
//     type   bytes/values  layout                                                    value
//     Q4_0   18/32         d, nibble[16]                                             d (q - 8)
//     Q4_1   20/32         d, m, nibble[16]                                          d q + m
//     Q5_0   22/32         d, high[4], nibble[16]                                    d (q - 16)
//     Q5_1   24/32         d, m, high[4], nibble[16]                                 d q + m
//     Q8_0   34/32         d, int8[32]                                               d q
//     Q4_K   144/256       d, dmin, scales[12], nibble[128]                          d sc q - dmin mn
//     Q5_K   176/256       d, dmin, scales[12], high[32], nibble[128]                d sc q - dmin mn
//     Q6_K   210/256       low[128], high[64], int8 scales[16], d                    d sc (q - 32)
//
// d, m, dmin are fp16. Blocks of 32: byte j holds value j in its low nibble, j + 16 in its high one; bit j of `high` is the fifth bit.
#include "reference/reference.h"

#include <math.h>
#include <stdlib.h>

// A value and the size of the terms that it is the sum of.
typedef struct term {
    double value, size;
} term;

static term of_scale(double scaled) { return (term){scaled, fabs(scaled)}; }
static term of_affine(double scaled, double offset) { return (term){scaled + offset, fabs(scaled) + fabs(offset)}; }

static double half_at(const unsigned char *bytes) { return ref_decode((kf_dtype)KF_FP16, bytes); }

// Nibble j of a block of 32.
static int nibble(const unsigned char *bytes, int j) { return j < 16 ? bytes[j] & 15 : bytes[j - 16] >> 4; }

static int bit(const unsigned char *bytes, int j) { return bytes[j / 8] >> j % 8 & 1; }

static term q4_0(const unsigned char *block, int j) { return of_scale(half_at(block) * (nibble(block + 2, j) - 8)); }

static term q4_1(const unsigned char *block, int j) {
    return of_affine(half_at(block) * nibble(block + 4, j), half_at(block + 2));
}

static term q5_0(const unsigned char *block, int j) {
    return of_scale(half_at(block) * ((nibble(block + 6, j) | bit(block + 2, j) << 4) - 16));
}

static term q5_1(const unsigned char *block, int j) {
    return of_affine(half_at(block) * (nibble(block + 8, j) | bit(block + 4, j) << 4), half_at(block + 2));
}

static term q8_0(const unsigned char *block, int j) { return of_scale(half_at(block) * (signed char)block[2 + j]); }

// The 6-bit scale and minimum of sub-block `sub` (of 8) of a K block, from its 12 scale bytes.
static void k_scale(const unsigned char *scales, int sub, int *scale, int *minimum) {
    if (sub < 4) {
        *scale = scales[sub] & 63;
        *minimum = scales[sub + 4] & 63;
    } else {
        *scale = (scales[sub + 4] & 15) | (scales[sub - 4] >> 6) << 4;
        *minimum = scales[sub + 4] >> 4 | (scales[sub] >> 6) << 4;
    }
}

static term k_affine(const unsigned char *block, int sub, int q) {
    int scale, minimum;
    k_scale(block + 4, sub, &scale, &minimum);
    return of_affine(half_at(block) * scale * q, -half_at(block + 2) * minimum);
}

// Values 64 i .. 64 i + 31 are the low nibbles of bytes 32 i .. 32 i + 31, the next 32 values their high nibbles.
static int k_nibble(const unsigned char *bytes, int j) {
    return bytes[j / 64 * 32 + j % 32] >> (j % 64 < 32 ? 0 : 4) & 15;
}

static term q4_k(const unsigned char *block, int j) { return k_affine(block, j / 32, k_nibble(block + 16, j)); }

static term q5_k(const unsigned char *block, int j) {
    const int high = block[16 + j % 32] >> j / 32 & 1;
    return k_affine(block, j / 32, k_nibble(block + 48, j) | high << 4);
}

// 128 values at a time: l, l + 32, l + 64, l + 96 take the low nibbles of low[l], low[l + 32], then their high ones, and bits 0-1, 2-3,
// 4-5, 6-7 of high[l].
static term q6_k(const unsigned char *block, int j) {
    const unsigned char *low = block + j / 128 * 64, *high = block + 128 + j / 128 * 32;
    const int quarter = j % 128 / 32, l = j % 32;
    const int nib = low[l + (quarter % 2) * 32] >> (quarter < 2 ? 0 : 4) & 15;
    const int q = nib | (high[l] >> 2 * quarter & 3) << 4;
    return of_scale(half_at(block + 208) * (signed char)block[192 + j / 16] * (q - 32));
}

static term dense_f32(const unsigned char *block, int j) {
    return (void)j, of_scale(ref_decode((kf_dtype)KF_FP32, block));
}
static term dense_f16(const unsigned char *block, int j) {
    return (void)j, of_scale(ref_decode((kf_dtype)KF_FP16, block));
}
static term dense_bf16(const unsigned char *block, int j) {
    return (void)j, of_scale(ref_decode((kf_dtype)KF_BF16, block));
}

typedef struct block_format {
    int type, values, bytes;
    term (*decode)(const unsigned char *block, int j);
} block_format;

static const block_format FORMATS[] = {
    {KF_WEIGHT_F32, 1, 4, dense_f32}, {KF_WEIGHT_F16, 1, 2, dense_f16}, {KF_WEIGHT_BF16, 1, 2, dense_bf16},
    {KF_WEIGHT_Q4_0, 32, 18, q4_0},   {KF_WEIGHT_Q4_1, 32, 20, q4_1},   {KF_WEIGHT_Q5_0, 32, 22, q5_0},
    {KF_WEIGHT_Q5_1, 32, 24, q5_1},   {KF_WEIGHT_Q8_0, 32, 34, q8_0},   {KF_WEIGHT_Q4_K, 256, 144, q4_k},
    {KF_WEIGHT_Q5_K, 256, 176, q5_k}, {KF_WEIGHT_Q6_K, 256, 210, q6_k},
};

static const block_format *format_of(int type) {
    for (size_t f = 0; f < sizeof FORMATS / sizeof *FORMATS; f++) {
        if (FORMATS[f].type == type) return &FORMATS[f];
    }
    return NULL;
}

void ref_weight_row(const kf_weight *weight, int64_t row, double *values, double *size) {
    const block_format *format = format_of(weight->type);
    const int64_t compact = weight->cols / format->values * format->bytes;
    const unsigned char *bytes =
        (const unsigned char *)weight->data + row * (weight->row_bytes ? weight->row_bytes : compact);
    for (int64_t c = 0; c < weight->cols; c++) {
        const term t = format->decode(bytes + c / format->values * format->bytes, (int)(c % format->values));
        values[c] = t.value;
        if (size) size[c] = t.size;
    }
}

enum { INT8_BLOCK = 32 }; // of activations, along K

void ref_quantise_int8(const double *x, int64_t count, int8_t *q, double *scales) {
    for (int64_t first = 0; first < count; first += INT8_BLOCK) {
        const int64_t end = first + INT8_BLOCK < count ? first + INT8_BLOCK : count;
        double largest = 0;
        bool finite = true;
        for (int64_t c = first; c < end; c++) {
            largest = fmax(largest, fabs(x[c]));
            finite = finite && isfinite(x[c]);
        }
        const double scale = finite ? (double)((float)largest / 127.0f) : (double)NAN;
        for (int64_t c = first; c < end; c++) {
            // The quotient is an fp32 one: nearbyint's ties to even are then those of the number that the header speaks of.
            q[c] = finite && scale != 0 ? (int8_t)nearbyint((double)((float)x[c] / (float)scale)) : 0;
        }
        scales[first / INT8_BLOCK] = scale;
    }
}

// Row t of x in float64, quantised where the call says so. q and scales are scratch of K values each.
static void linear_input(const kf_linear_args *args, int64_t t, double *x, int8_t *q, double *scales) {
    const int64_t K = args->weight->cols;
    ref_row(args->x, t, x);
    if (args->activations != KF_ACTIVATIONS_INT8 || format_of(args->weight->type)->values == 1) return;
    ref_quantise_int8(x, K, q, scales);
    for (int64_t c = 0; c < K; c++) x[c] = scales[c / INT8_BLOCK] * q[c];
}

bool ref_linear(const kf_linear_args *args, int64_t first, int64_t count, double *y, double *size) {
    const int64_t T = args->x->shape[0], N = args->weight->rows, K = args->weight->cols;
    const size_t bytes = (size_t)(K + 1) * sizeof(double);
    double *x = malloc(bytes * (size_t)(T + 1)), *w = malloc(bytes), *w_size = malloc(bytes), *scales = malloc(bytes);
    int8_t *q = malloc((size_t)K + 1);
    const bool open = x && w && w_size && scales && q;
    for (int64_t t = 0; open && t < T; t++) linear_input(args, t, x + t * K, q, scales);
    for (int64_t n = first; open && n < first + count; n++) {
        const double bias = args->bias ? ref_at(args->bias, &n) : 0;
        ref_weight_row(args->weight, n, w, w_size);
        for (int64_t t = 0; t < T; t++) {
            double sum = bias, sum_size = fabs(bias);
            for (int64_t c = 0; c < K; c++) {
                sum += x[t * K + c] * w[c];
                sum_size += fabs(x[t * K + c]) * w_size[c];
            }
            y[t * N + n] = sum;
            size[t * N + n] = sum_size;
        }
    }
    free(x);
    free(w);
    free(w_size);
    free(scales);
    free(q);
    return open;
}
