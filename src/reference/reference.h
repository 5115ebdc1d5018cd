// SPDX-License-Identifier: Apache-2.0
//
// The oracle: every operation of keyfold.h in float64, as a textbook writes it.
//
// It takes the public parameter structs and writes arrays of double, row-major, that the caller owns. Nothing of the kernels, of
// src/math or of src/core is used here: 16-bit numbers, block formats, rotary angles and masks are all decided again from the header's
// words, pair (i, j) by pair (i, j), for an oracle that shares a wrong bound with the kernel proves nothing. Arguments are taken as
// valid: the caller has had them checked by the library.
//
// Called by the `keyfold verify` command and by the tests. Functions that need memory return false where there is none.
#ifndef KF_REFERENCE_REFERENCE_H
#define KF_REFERENCE_REFERENCE_H

#include "keyfold.h"

#ifdef __cplusplus
extern "C" {
#endif

// ----------------------------------------------------------------------------------------------------------- numbers

// A binary floating-point format: `precision` significant bits, and the smallest positive number 2^smallest.
double ref_decode(kf_dtype dtype, const void *address);       // any dtype of the header, integers and bools too
void ref_encode(kf_dtype dtype, double value, void *address); // to nearest, ties to even; past the largest: infinity
double ref_round(kf_dtype dtype, double value);               // what encode and decode make of it
double ref_ulp(kf_dtype dtype, double value);                 // the distance of the format's numbers around |value|
int64_t ref_dtype_bytes(kf_dtype dtype);
bool ref_same_dtype(kf_dtype a, kf_dtype b);
int ref_precision(kf_dtype dtype);            // 24, 11, 8 for fp32, fp16, bf16
kf_dtype ref_coarser(kf_dtype a, kf_dtype b); // the one of lower precision

// Element `index` (ndim numbers) of a tensor, strides and byte_offset regarded.
void *ref_address(const kf_tensor *tensor, const int64_t *index);
double ref_at(const kf_tensor *tensor, const int64_t *index);
int64_t ref_elements(const kf_tensor *tensor);
int64_t ref_leading(const kf_tensor *tensor, int inner); // product of the dimensions before the last `inner` ones
void ref_unravel(const kf_tensor *tensor, int64_t flat, int64_t *index); // row-major element number to index
void ref_row(const kf_tensor *tensor, int64_t row, double *values);      // row `row` along the last axis

// ------------------------------------------------------------------------------------------------------------- rotary

// Rotates x[dims'] in place, as a head of D elements at `position`. pairing KF_ROPE_OFF changes nothing.
void ref_rotate(const kf_rope_params *rope, int64_t D, double position, double *x);
void ref_rotate_fp32(const kf_rope_params *rope, int64_t D, double position,
                     double *x); // angles in float64, the rest in fp32

// The frequency of each pair, and the amplitude; returns the number of pairs (at most D / 2).
int64_t ref_rope_frequencies(const kf_rope_params *rope, int64_t D, double *frequency, double *amplitude);

// ---------------------------------------------------------------------------------------------------------- attention

// Query rows are numbered (b * H + h) * Nq + i. rows == NULL: the rows 0 .. count - 1. o is [count, Dv]; lse [count], may be NULL.
bool ref_attention(const kf_attention_args *args, const int64_t *rows, int64_t count, double *o, double *lse);

// The yardstick of FlashAttention's error rule: the same textbook, but with scores, probabilities and output rounded to the coarser of
// q's and k's dtype (the output then to its own), and sums in fp32.
bool ref_attention_naive(const kf_attention_args *args, const int64_t *rows, int64_t count, double *o);

// Whether query row i of (b, h) sees key j: the header's definition, one pair at a time.
bool ref_visible(const kf_attention_args *args, int64_t b, int64_t h, int64_t i, int64_t j);

// ----------------------------------------------------------------------------------------------------- row operations

void ref_softmax(const kf_softmax_args *args, double *y, double *lse);           // [*, N], [*] or NULL
bool ref_merge_states(const kf_merge_states_args *args, double *o, double *lse); // [*, Dv], [*] or NULL
// `slack`, where not NULL, gets for each y what it may differ by where fp32 arithmetic rounds a number near a tie the other way, at the
// roundings that `cast` puts in between.
bool ref_rmsnorm(const kf_rmsnorm_args *args, double *y, double *sum, double *slack); // [*, N] all; sum may be NULL
void ref_swiglu(const kf_swiglu_args *args, double *y);                               // [*, N]
void ref_rope(const kf_rope_args *args, double *y);                                   // [B, H, N, D]
void ref_kv_append(const kf_kv_append_args *args, double *k,
                   double *v); // the new rows as they must stand in the caches, before rounding
bool ref_embedding(const kf_embedding_args *args, double *y); // [T, N]

// ------------------------------------------------------------------------------------------------------------- linear

// Row `row` of a weight that is not packed: cols values. `size`, where not NULL, gets for each value the size of the terms it was made
// of (|scale * q| + |min|), the measure of what fp32 can lose in it.
void ref_weight_row(const kf_weight *weight, int64_t row, double *values, double *size);

// Quantises `count` values of x (a multiple of 32, or a shorter tail) as KF_ACTIVATIONS_INT8 says: scale = fp32(max|x| / 127),
// q = x / scale to the nearest integer, ties to even; all zero: scale 0, q 0; NaN or inf in it: scale NaN.
void ref_quantise_int8(const double *x, int64_t count, int8_t *q, double *scales);

// Outputs first .. first + count - 1 of every row of y [T, N]; `size`, as large, gets the sum of |x| * size(w) over K for each: the bound
// on what sums in fp32 can lose is a multiple of 2^-24 times it. The weight must not be packed.
bool ref_linear(const kf_linear_args *args, int64_t first, int64_t count, double *y, double *size);

#ifdef __cplusplus
}
#endif

#endif
