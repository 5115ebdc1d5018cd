// SPDX-License-Identifier: Apache-2.0
//
// What the host hands to the kernels of the linear layer, in one struct passed by value, and the rows of their table.
//
//     y[t, n] = sum_k x[t, k] w[n, k] + bias[n]
//
//     octet   8 rows of W; two are the 16 rows of an mma.sync product, whose columns are rows of x
//     unit    256 columns of quantised W, 128 of dense; block: 32 columns
//     slice   of dense W: neighbouring units whose products are summed by themselves; a row's sum is the sum of its slices' sums, in
//             order. The slices depend on K alone, and both dense kernels sum a slice in the same way
//
//     vector  up to 8 rows of x over quantised W: W passes by once, in registers
//     direct  the same of bf16 x where a warp has no more than a unit of two octets; its wide form: more of these warps; its form for many rows
//             of W: a warp has that unit of further octets, too
//     stream  the same for dense W: the slices of one or two octets go to the warps of a block
//     tile    any number: 128 rows of W x 64 of x a block, x brought into form by a kernel before it
#ifndef KF_CUDA_LINEAR_H
#define KF_CUDA_LINEAR_H

#include <stdint.h>

typedef struct kf_cuda_linear {
    const char *w; // dense: rows, 16-byte aligned, K a multiple of 32; quantised: fragments.h, behind the header
    const char *x, *bias;
    char *y;
    const char *source;         // of the packing kernel, which writes to `packed`
    char *packed;               //
    char *parts;                // of the tile kernel: x in form (linear_tile.cuh)
    int64_t x_stride, y_stride; // elements
    int64_t row_bytes;          // of w, dense; of `source`
    int64_t octet_bytes;        // of a full octet of w
    int32_t T, N, K;
    int32_t blocks, units, octets;     // of K and of N: blocks and units that hold columns
    int32_t row_blocks;                // of x in form: those of whole units
    int32_t slices, slice_units;       // dense
    int32_t ring;                      // stream: slots of a warp
    int32_t ways, part_quads;          // vector, direct: warps that share two octets; fours of blocks of each
    int32_t type;                      // kf_weight_type
    int32_t x_type, y_type, bias_type; // kf_type
    int32_t record, beside;            // bytes of a block of x in form; floats a row in it
    int32_t x_aligned;                 // rows begin at multiples of 16 bytes
    int32_t weights_made;              // w was written by the kernel before this one
    int32_t group_bits;                // 2^group_bits times `ways` warps are a block
} kf_cuda_linear;

typedef enum kf_cuda_linear_kind {
    KF_CUDA_STREAM = 0,
    KF_CUDA_TILE = 1,
    KF_CUDA_VECTOR = 2,
    KF_CUDA_DIRECT = 3,
    KF_CUDA_DIRECT_WIDE = 4,
    KF_CUDA_DIRECT_MANY = 5
} kf_cuda_linear_kind;

// The form that x takes.
typedef enum kf_cuda_x_mode {
    KF_X_BF16 = 0,  // bf16 as it is
    KF_X_F16 = 1,   // fp16 as it is, for fp16 weights
    KF_X_SPLIT = 2, // three bf16 whose sum is the value: any type
    KF_X_INT8 = 3,  // int8 in blocks of 32
    KF_X_FIXED = 4  // fixed point in blocks of 32: four digits of 8 bits (linear_vector.cuh)
} kf_cuda_x_mode;

enum {
    KF_STREAM_ROWS = 8,   // of x
    KF_DENSE_SLICES = 16, // at most: warps of a block of the stream kernel
    KF_VECTOR_WARPS = 16, // of a block of the vector kernel, at most
    KF_DIRECT_WARPS = 8,  // of a block of the direct kernel: two blocks have room for 128 registers a lane
    KF_WIDE_WARPS = 24,   // of a block or of all blocks of a multiprocessor, of its wide form: 80 registers
    KF_MANY_WARPS = 16,   // of all blocks of a multiprocessor, of its form for many rows of W: 128 registers
    KF_DENSE_UNIT_BLOCKS = 4,
    KF_TILE_M = 128, // rows of W of a block
    KF_TILE_N = 64,  // rows of x
    KF_TILE_THREADS = 256,
    KF_DENSE_TILE_THREADS = 128
};

// `function` takes a kf_cuda_linear.
typedef struct kf_cuda_linear_kernel {
    int32_t kind, type, mode;
    int32_t
        shared; // tile: bytes. stream: bytes of a slot. vector: bytes of a block of 32 of x in form. direct: of a row of a warp's x
    int32_t depth;   // stream: most slots of a warp's ring. direct: bytes beside a warp's x
    int32_t columns; // stream: columns of a slot. direct, many rows of W: warps of a multiprocessor
    int32_t octets;  // stream: of a block
    int32_t rows;    // of x; 0: any number
    const void *function;
    const char *name;
} kf_cuda_linear_kernel;

#ifdef __cplusplus
extern "C" {
#endif
// Each ends with a row whose function is NULL.
extern const kf_cuda_linear_kernel kf_cuda_linear_dense[], kf_cuda_linear_q4[], kf_cuda_linear_q5[],
    kf_cuda_linear_q8[], kf_cuda_linear_tile_dense[], kf_cuda_linear_tile_q4[], kf_cuda_linear_tile_q5[],
    kf_cuda_linear_tile_q8[];
extern const void *const
    kf_cuda_linear_pack; // quantised rows into fragments, or dense ones into aligned rows: a warp an octet and unit
extern const void
    *const kf_cuda_linear_x[4]; // by kf_cuda_x_mode: x into form for quantised weights: a warp an octet and block
extern const void *const kf_cuda_linear_x_dense[4]; // the same for dense ones
#ifdef __cplusplus
}
#endif

// Bytes of a row of x and block in form, all parts; and floats beside it.
static inline int32_t kf_x_bytes(int32_t mode) { return mode == KF_X_SPLIT ? 192 : mode == KF_X_INT8 ? 32 : 64; }

#endif
