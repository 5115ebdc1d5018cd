// SPDX-License-Identifier: Apache-2.0
//
// What the host hands to the row kernels (softmax, rmsnorm, swiglu, merge_states, embedding, rope, kv_append): one struct
// for each operation, passed by value, and the rows of the kernels' tables.
//
//     chunk   16 bytes of a row: 8 elements of 16 bits, 4 of fp32. The kernels of one dtype (type: a kf_type) move chunks;
//             those of type 0 move single elements, of any dtypes and at any address
//     group   the threads that share a row: a power of two up to a warp, or all threads of a block
//     cluster blocks that share a row (Hopper)
//
// What may change between runs (positions, slots, ids) is a device pointer.
#ifndef KF_CUDA_ROWS_H
#define KF_CUDA_ROWS_H

#include <stdint.h>

enum { KF_ROW_F32 = 1, KF_ROW_F16 = 2, KF_ROW_BF16 = 3 }; // kf_type of core/internal.h; checked in rows.c

enum {
    KF_ROWS_DIMS = 5, // dimensions before the last one
    // Elements of a thread's step in a kernel of type 0: as many as a chunk of 16-bit elements has.
    KF_ROWS_SINGLES = 8,
    KF_ROWS_THREADS = 128, // of a block that holds several rows
    KF_ROWS_BLOCK = 512,   // most threads of a block that holds one row: leaves each 128 registers
    KF_ROWS_CHUNKS = 4,    // most chunks that a thread keeps as floats
    KF_RMSNORM_SHARED = 2, // chunks of a thread whose block shares its row with others
    KF_ROWS_WIDE = 8,      // chunks that a thread keeps as they were read
    KF_ROWS_CLUSTER = 8    // most blocks of a cluster on every Hopper
};

// A tensor [*, N], or [*] beside such ones. data is NULL where it is absent. Strides in bytes.
typedef struct kf_cuda_rows_view {
    char *data;
    int64_t stride[KF_ROWS_DIMS];
    int32_t type, size; // kf_type, bytes of an element
} kf_cuda_rows_view;

// The dimensions before the last one, those that lie alike in all tensors merged, and how rows are dealt out.
typedef struct kf_cuda_rows {
    int64_t n;
    uint32_t rows, shape[KF_ROWS_DIMS];
    int32_t dims;         // 1 or more
    int32_t group, shift; // threads of a row; its logarithm where blocks hold several rows, else -1
    int32_t cluster;      // blocks of a row
} kf_cuda_rows;

typedef struct kf_cuda_softmax {
    kf_cuda_rows rows;
    kf_cuda_rows_view view[3]; // x, y, lse
    // Rows too long to be kept: `segments` of `segment` elements, whose states (m, d) the first kernel leaves in `states`.
    float *states;
    int64_t segment;
    int32_t segments;
} kf_cuda_softmax;

typedef struct kf_cuda_rmsnorm {
    kf_cuda_rows rows;
    kf_cuda_rows_view view[4]; // x, residual, y, sum
    const char *weight;
    int32_t weight_type, weight_size;
    int32_t cast;
    float eps, weight_offset, inverse_n; // inverse_n: 1 / n
} kf_cuda_rmsnorm;

typedef struct kf_cuda_swiglu {
    kf_cuda_rows rows;
    kf_cuda_rows_view view[3]; // gate, up, y
    uint32_t chunks, total;    // of a row; of all rows
    int32_t flat;              // all tensors are compact: one row as long as all of them
} kf_cuda_swiglu;

typedef struct kf_cuda_merge_states {
    kf_cuda_rows rows;
    kf_cuda_rows_view view[4];       // o_parts, lse_parts (both of part 0), o, lse
    int64_t part_stride, lse_stride; // bytes from one part to the next
    int64_t parts;
    uint32_t chunks, total; // pieces of a row (one where it is empty, for its lse); of all rows
    int32_t aligned;        // rows are whole pieces at multiples of 16 bytes
} kf_cuda_merge_states;

typedef struct kf_cuda_embedding {
    const char *table, *ids;
    char *y;
    int64_t rows, row_bytes, y_stride, id_stride; // of the table; strides in bytes
    int64_t N, chunks, total;                     // pieces of a row, of all rows
    int32_t type, block_bytes, block_values;      // of the table: a kf_weight_type
    int32_t y_type, ids_wide, aligned;            // as above; blocks may lie anywhere
    float scale;
} kf_cuda_embedding;

// A tensor [B, H, N, D].
typedef struct kf_cuda_heads {
    char *data;
    int64_t stride[3]; // of b, h and n, in bytes
    int32_t type, size;
} kf_cuda_heads;

enum { KF_ROPE_MOST_PAIRS = 128 }; // half of the largest rope.dims

// How rows of heads are dealt out: a thread has one item of `heads` heads at one position; `slots` such rows a block.
typedef struct kf_cuda_rope_deal {
    uint32_t N, positions; // positions: B N
    int32_t H, heads;
    int32_t items, slots; // threads of a slot: the items of a row, or of its pieces
} kf_cuda_rope_deal;

// The angles of positions, and which pairs turn.
typedef struct kf_cuda_turns {
    double frequency[KF_ROPE_MOST_PAIRS], magnitude;
    const char *positions;      // NULL: offset + n
    int64_t position_stride[2]; // of b and n, in elements
    int64_t offset;
    int32_t positions_wide;
    int32_t pairs, pairing; // 0 pairs: nothing turns
} kf_cuda_turns;

typedef struct kf_cuda_rope {
    kf_cuda_turns turns;
    kf_cuda_rope_deal deal;
    kf_cuda_heads x, y;
    int32_t D, items; // items: of a head's row, pairs of chunks
} kf_cuda_rope;

// kv_append's kernels of one dtype, in the place of their chunks: by chunks of 16 bytes; a pair of elements a thread.
enum { KF_APPEND_CHUNKS = 1, KF_APPEND_PAIRS = 2 };

typedef struct kf_cuda_kv_append {
    kf_cuda_turns turns; // without positions: those of the slots
    kf_cuda_rope_deal deal;
    kf_cuda_heads k, v, k_cache, v_cache;
    const char *slots; // NULL: 0
    int64_t slot_stride, capacity;
    int32_t slots_wide, D, Dv;
    int32_t k_items, v_items;
} kf_cuda_kv_append;

// One kernel: what it is for. `function` takes the struct of its operation.
typedef struct kf_cuda_rows_kernel {
    int32_t type;    // kf_type of all tensors; 0: any
    int32_t chunks;  // that a thread keeps
    int32_t threads; // most of a block
    const void *function;
    const char *name;
} kf_cuda_rows_kernel;

// Each ends with a row whose function is NULL.
#ifdef __cplusplus
extern "C" {
#endif
extern const kf_cuda_rows_kernel kf_cuda_softmax_kernels[], kf_cuda_softmax_state_kernels[],
    kf_cuda_softmax_apply_kernels[], kf_cuda_rmsnorm_kernels[], kf_cuda_rmsnorm_long_kernels[],
    kf_cuda_swiglu_kernels[], kf_cuda_merge_states_kernels[], kf_cuda_embedding_kernels[], kf_cuda_rope_kernels[],
    kf_cuda_kv_append_kernels[];
#ifdef __cplusplus
}
#endif

#endif
