// SPDX-License-Identifier: Apache-2.0
//
// Row kernels: what softmax, merge_states, rmsnorm, swiglu, rope and kv_append do to one row. One table per ISA; all
// four are the same loops (rows_loops.h) over the vectors of that ISA (simd_*.h). x, y, ... are rows of fp32, fp16 or
// bf16 (`type`: a kf_type) whose elements are adjacent; any alignment; arithmetic is fp32. y may be x itself, element
// for element.
//
// What a row's result is does not depend on where it lies, on `stream`, or on any other row.
#ifndef KF_CPU_ROWS_H
#define KF_CPU_ROWS_H

#include "core/internal.h"

enum {
    // Longest row whose exponentials are kept while its sum is formed: 256 KiB of floats, a quarter of the L2 cache.
    KF_SOFTMAX_ROW = 65536,
    // Longer rows are folded in segments of this length; it takes part in the bits, so it is the same for every shape
    // and ISA.
    KF_SOFTMAX_SEGMENT = 16384,
    // Most rotated pairs: rope.dims is at most 256.
    KF_ROPE_PAIRS = 128
};

// A softmax state without its output: d = sum exp(x - m), for an m that is near the largest x (-inf: all are).
typedef struct kf_md {
    float m, d;
} kf_md;

// One row of softmax, of at most KF_SOFTMAX_ROW elements.
typedef struct kf_softmax_row {
    const char *x;
    char *y;
    kf_md state;
    float factor; // y = factor p
} kf_softmax_row;

// One row of rmsnorm; see kf_rmsnorm_args. Types of what is absent are KF_TYPE_NONE.
typedef struct kf_rmsnorm_row {
    const char *x, *residual, *weight;
    char *y, *sum;
    int32_t x_type, residual_type, weight_type, y_type, sum_type;
    int32_t cast;
    float eps, weight_offset;
    int64_t n;
    float *s; // n floats of scratch: the sum in fp32, where x and residual do not outlive it
    bool stream;
} kf_rmsnorm_row;

// `stream`: write past the caches, for outputs that are too large to be found there again. Whoever sets it calls
// `fence` before others may read.
typedef struct kf_row_kernels {
    const char *name;

    // y = x, rounded once.
    void (*convert)(char *y, int y_type, const char *x, int x_type, int64_t n);

    // Softmax of rows of n <= KF_SOFTMAX_ROW elements in steps, so that memory is read and written all the time: chunk by
    // chunk the y of `before` is made of the terms in p, and the terms of `row` take their places (n floats; state,
    // factor). Each row is first row, then before; either may be NULL. `want_state`: for its own sake, not for y alone.
    void (*softmax)(kf_softmax_row *row, const kf_softmax_row *before, float *p, int y_type, int x_type, int64_t n,
                    bool want_state, bool stream);
    // The state of a segment of a longer row, and y = exp(x - m) / d once the row's state is known.
    kf_md (*softmax_state)(const char *x, int x_type, int64_t n);
    void (*softmax_apply)(char *y, int y_type, const char *x, int x_type, int64_t n, kf_md row, bool stream);

    void (*rmsnorm)(const kf_rmsnorm_row *row);

    // y = gate / (1 + exp(-gate)) * up
    void (*swiglu)(char *y, int y_type, const char *gate, const char *up, int type, int64_t n, bool stream);

    // y = sum_s weight[s] part_s, in the order of s; part s begins at parts + s * part_bytes. A part of negative weight
    // is empty and not read.
    void (*weighted_sum)(char *y, int y_type, const char *parts, int64_t part_bytes, int type, const float *weight,
                         int64_t count, int64_t n);
    // x = exp(x - m)
    void (*exp_minus)(float *x, float m, int64_t n);

    // cosine[c], sine[c] = magnitude * cos, sin(position * frequency[c]), computed in float64; c < pairs.
    void (*rope_angles)(const double *frequency, int pairs, double magnitude, double position, float *cosine,
                        float *sine);
    // Rotates the first `dims` of D elements by the angles of dims / 2 pairs, copies the rest. pairing: KF_ROPE_NEOX or
    // KF_ROPE_GPTJ.
    void (*rope)(char *y, int y_type, const char *x, int x_type, int64_t D, int dims, int pairing, const float *cosine,
                 const float *sine);

    void (*fence)(void);
} kf_row_kernels;

extern const kf_row_kernels kf_rows_scalar, kf_rows_avx2, kf_rows_avx512, kf_rows_avx512bf16;

// --------------------------------------------------------------------------------------------- how ops are cut into
// items

// Elements in a work item: about 5 us of work, so that handing it out (0.02 us) is lost in it and 16 items still spread
// evenly.
enum { KF_ROW_ITEM = 16384 };

// Rows in an item for rows of n elements.
static inline int64_t kf_rows_per_item(int64_t n) { return n >= KF_ROW_ITEM ? 1 : KF_ROW_ITEM / (n > 0 ? n : 1); }

static inline int64_t kf_ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// Outputs of this many bytes go past the caches: nobody finds them there again.
enum { KF_STREAM_BYTES = 8 << 20 };

static inline bool kf_rows_stream(const kf_view *output) {
    return kf_view_elements(output) >= KF_STREAM_BYTES / kf_type_size(output->type);
}

#endif
