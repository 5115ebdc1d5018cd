// SPDX-License-Identifier: Apache-2.0
//
// Numbers and tensors for the oracle. A binary format with p significant bits and smallest positive number 2^s holds, near x, the
// multiples of ulp(x) = 2^max(e - p, s), where 2^(e-1) <= |x| < 2^e; rounding is the nearest multiple, ties to even:
//
//     format   p    s      largest
//     fp32     24   -149   (2 - 2^-23) 2^127
//     fp16     11   -24    65504
//     bf16     8    -133   (2 - 2^-7) 2^127
#include "reference/reference.h"

#include <math.h>
#include <string.h>

typedef struct format {
    int precision, smallest, exponent_bits;
} format;

static format format_of(kf_dtype dtype) {
    if (dtype.code == KF_CODE_BFLOAT) return (format){8, -133, 8};
    if (dtype.bits == 16) return (format){11, -24, 5};
    return (format){24, -149, 8};
}

static bool is_float(kf_dtype dtype) { return dtype.code == KF_CODE_FLOAT || dtype.code == KF_CODE_BFLOAT; }

int64_t ref_dtype_bytes(kf_dtype dtype) { return dtype.bits / 8; }

bool ref_same_dtype(kf_dtype a, kf_dtype b) { return a.code == b.code && a.bits == b.bits; }

int ref_precision(kf_dtype dtype) { return format_of(dtype).precision; }

kf_dtype ref_coarser(kf_dtype a, kf_dtype b) { return ref_precision(a) <= ref_precision(b) ? a : b; }

double ref_ulp(kf_dtype dtype, double value) {
    const format f = format_of(dtype);
    int e = 0;
    frexp(value, &e);
    if (value == 0 || e - f.precision < f.smallest) return ldexp(1.0, f.smallest);
    return ldexp(1.0, e - f.precision);
}

double ref_round(kf_dtype dtype, double value) {
    if (!is_float(dtype) || value == 0 || !isfinite(value)) return value;
    if (dtype.bits == 32) return (double)(float)value; // the hardware's rounding is the same one
    const format f = format_of(dtype);
    const double ulp = ref_ulp(dtype, value);
    const double rounded = nearbyint(value / ulp) * ulp;
    const double largest = dtype.code == KF_CODE_FLOAT ? 65504.0 : ldexp(2.0 - ldexp(1.0, 1 - f.precision), 127);
    return fabs(rounded) > largest ? copysign(INFINITY, value) : rounded;
}

// sign | exponent | fraction; exponent all ones: inf or NaN; zero: subnormal.
static double decode_bits(format f, uint32_t bits) {
    const int fraction_bits = f.precision - 1;
    const uint32_t fraction = bits & ((1u << fraction_bits) - 1);
    const int exponent = (int)(bits >> fraction_bits & ((1u << f.exponent_bits) - 1));
    const double sign = bits >> (fraction_bits + f.exponent_bits) & 1 ? -1.0 : 1.0;
    if (exponent == (1 << f.exponent_bits) - 1) return fraction ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexp(fraction, f.smallest);
    return sign * ldexp(fraction + ldexp(1.0, fraction_bits), f.smallest + exponent - 1);
}

static uint32_t encode_bits(format f, double value) {
    const int fraction_bits = f.precision - 1;
    const uint32_t all_ones = ((1u << f.exponent_bits) - 1) << fraction_bits;
    const uint32_t sign = signbit(value) ? 1u << (fraction_bits + f.exponent_bits) : 0;
    const double size = fabs(value);
    if (isnan(value)) return sign | all_ones | 1u << (fraction_bits - 1);
    if (isinf(value)) return sign | all_ones;
    if (size < ldexp(1.0, f.smallest + fraction_bits)) return sign | (uint32_t)ldexp(size, -f.smallest);
    int e = 0;
    const double mantissa = frexp(size, &e); // in [1/2, 1)
    const uint32_t fraction = (uint32_t)ldexp(mantissa, f.precision) - (1u << fraction_bits);
    return sign | (uint32_t)(e - f.precision - f.smallest + 1) << fraction_bits | fraction;
}

double ref_decode(kf_dtype dtype, const void *address) {
    if (is_float(dtype) && dtype.bits == 32) {
        float value;
        memcpy(&value, address, 4);
        return (double)value;
    }
    if (is_float(dtype)) {
        uint16_t bits;
        memcpy(&bits, address, 2);
        return decode_bits(format_of(dtype), bits);
    }
    if (dtype.bits == 8) return *(const unsigned char *)address;
    if (dtype.bits == 32) {
        int32_t value;
        memcpy(&value, address, 4);
        return value;
    }
    int64_t value;
    memcpy(&value, address, 8);
    return (double)value;
}

void ref_encode(kf_dtype dtype, double value, void *address) {
    if (is_float(dtype) && dtype.bits == 32) {
        const float f32 = (float)value;
        memcpy(address, &f32, 4);
    } else if (is_float(dtype)) {
        const uint16_t bits = (uint16_t)encode_bits(format_of(dtype), ref_round(dtype, value));
        memcpy(address, &bits, 2);
    } else if (dtype.bits == 8) {
        *(unsigned char *)address = (unsigned char)value;
    } else if (dtype.bits == 32) {
        const int32_t i32 = (int32_t)value;
        memcpy(address, &i32, 4);
    } else {
        const int64_t i64 = (int64_t)value;
        memcpy(address, &i64, 8);
    }
}

// ------------------------------------------------------------------------------------------------------------ tensors

static int64_t stride_of(const kf_tensor *tensor, int axis) {
    if (tensor->strides) return tensor->strides[axis];
    int64_t stride = 1;
    for (int a = axis + 1; a < tensor->ndim; a++) stride *= tensor->shape[a];
    return stride;
}

void *ref_address(const kf_tensor *tensor, const int64_t *index) {
    int64_t offset = 0;
    for (int a = 0; a < tensor->ndim; a++) offset += index[a] * stride_of(tensor, a);
    return (char *)tensor->data + tensor->byte_offset + offset * ref_dtype_bytes(tensor->dtype);
}

double ref_at(const kf_tensor *tensor, const int64_t *index) {
    return ref_decode(tensor->dtype, ref_address(tensor, index));
}

int64_t ref_leading(const kf_tensor *tensor, int inner) {
    int64_t product = 1;
    for (int a = 0; a < tensor->ndim - inner; a++) product *= tensor->shape[a];
    return product;
}

int64_t ref_elements(const kf_tensor *tensor) { return ref_leading(tensor, 0); }

void ref_unravel(const kf_tensor *tensor, int64_t flat, int64_t *index) {
    for (int a = tensor->ndim - 1; a >= 0; a--) {
        const int64_t n = tensor->shape[a];
        index[a] = n ? flat % n : 0;
        flat = n ? flat / n : 0;
    }
}

void ref_row(const kf_tensor *tensor, int64_t row, double *values) {
    const int64_t n = tensor->shape[tensor->ndim - 1];
    int64_t index[KF_MAX_NDIM] = {0};
    if (!n) return;
    ref_unravel(tensor, row * n, index);
    const char *address = ref_address(tensor, index);
    for (int64_t c = 0; c < n; c++) values[c] = ref_decode(tensor->dtype, address + c * ref_dtype_bytes(tensor->dtype));
}
