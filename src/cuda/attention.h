// SPDX-License-Identifier: Apache-2.0
//
// What the host hands to an attention kernel, in one struct that is passed by value, and the rows of the kernels' table.
//
//     list   the rows of one (sequence, group of `heads` query heads that share a KV head): row r is query r / heads of
//            head head0 + r % heads. heads is H / Hkv where packing fills tiles (decode, short queries), else 1.
//     tile   neighbouring rows of a list, one thread block's
//     split  keys [s split, (s + 1) split); with more than one, the blocks' partial states (m, d, o) are merged in the order of s: by the
//            blocks of a cluster through shared memory, or from the workspace by a second kernel
//
// Everything that may change between runs (lengths, positions) is a device pointer.
#ifndef KF_CUDA_ATTENTION_H
#define KF_CUDA_ATTENTION_H

#include <stdbool.h>
#include <stdint.h>

enum {
    KF_CUDA_ROPE_PAIRS = 128,
    KF_ROTATED_KEYS = 32,      // keys of a block of rotate_keys.cu
    KF_ROTATED_HEADS = 8,      // and its KV heads, where keys are whole
    KF_CUDA_ROTATED_BF16 = 100 // a kernel's type: bf16, its q and k as fp16 (prefill_rotated.cuh)
};

typedef struct kf_cuda_rope {
    int32_t q, k;         // not 0: rotated at load
    int32_t split_halves; // pairs (c, c + dims/2); 0: (2c, 2c + 1)
    int32_t dims;
    float magnitude;
    double turns[KF_CUDA_ROPE_PAIRS]; // of pair c, from one position to the next
} kf_cuda_rope;

typedef struct kf_cuda_attention {
    const char *q, *k, *v;
    char *o;
    float *lse; // NULL: not asked for
    // In elements: sequence, head, row; scores' tensors: and key.
    int64_t q_stride[3], k_stride[3], v_stride[3], o_stride[3], lse_stride[3], bias_stride[4], mask_stride[4];
    const char *key_lengths, *positions; // NULL: absent
    int64_t length_stride, position_stride[2];
    const float *alibi_slopes, *sinks;
    const char *bias;
    const uint8_t *mask;
    int32_t length_wide, position_wide; // not 0: int64, else int32
    int32_t bias_type, o_type;          // kf_type
    int32_t q_type, kv_type;            // likewise; read by the fp32 kernels alone
    int32_t H, Hkv, Nq, Nk, D, Dv;
    int32_t heads, rows, lists, tiles; // of a list; lists in all; tiles of a list
    int32_t sequence_lists, kv_lists;  // lists of a sequence; lists that share a KV head
    int32_t section;                   // lists that run side by side, so that their keys share the L2 cache
    int32_t split, splits;             // keys
    int32_t cluster;                   // blocks of a cluster: splits, where the splits of a list are one, else 1
    int32_t aligned;                   // rows of q, k, v and o are multiples of 16 bytes apart and begin at one
    int64_t window_left, window_right;
    float scale, softcap;
    float unit; // times this, m of a state is in units of log2: 1 (plain kernels) or log2(e)
    // Partial states where splits > 1: of row r of list l in split s at index (l rows + r) splits + s.
    float *part_o;     // [.][Dv], not divided by d
    float *part_state; // [.][2]: m, d
    kf_cuda_rope rope;
    // Where a prefill's keys are rotated before it: [B Hkv][Nk][D] of them, [B Hkv][Nk] factors of their scores, [B Hkv][Nk / KF_ROTATED_KEYS]
    // whether one of a block's factors is not 1 (both of KF_CUDA_ROTATED_BF16 alone).
    char *rotated_k;
    float *key_scales;
    int32_t *odd_keys;
} kf_cuda_attention;

// One kernel: what it is for and how it is launched. `function` takes a kf_cuda_attention.
typedef enum kf_cuda_attention_kind {
    KF_CUDA_PREFILL = 0,
    KF_CUDA_DECODE = 1,
    KF_CUDA_MERGE = 2,
    KF_CUDA_ROTATE_KEYS = 3
} kf_cuda_attention_kind;

typedef struct kf_cuda_attention_kernel {
    int32_t kind;     // kf_cuda_attention_kind
    int32_t type;     // kf_type of q, k, v, or KF_CUDA_ROTATED_BF16; fp32: any q, and k and v of kv_bytes an element
    int32_t kv_bytes; // 0: any
    int32_t D, Dv;    // that it is compiled for: smaller head dimensions are padded with zeros
    int32_t general;  // takes softcap, ALiBi, bias, masks, negative scales, unaligned rows
    int32_t rows;     // of a tile
    int32_t keys;     // of a tile; splits are multiples of it
    int32_t threads;
    int32_t blocks;   // meant to share a multiprocessor
    int32_t shared;   // bytes
    int32_t arch_min; // compute capability times ten
    const void *function;
    const char *name;
} kf_cuda_attention_kernel;

// Each ends with a row whose function is NULL.
#ifdef __cplusplus
extern "C" {
#endif
extern const kf_cuda_attention_kernel kf_cuda_prefill_64[], kf_cuda_prefill_96[], kf_cuda_prefill_128[],
    kf_cuda_prefill_192[], kf_cuda_prefill_256[], kf_cuda_prefill_fp32[], kf_cuda_decode_64[], kf_cuda_decode_128[],
    kf_cuda_decode_256[], kf_cuda_decode_fp32[], kf_cuda_decode_turn[], kf_cuda_prefill_rotated_64[],
    kf_cuda_prefill_rotated_128[], kf_cuda_rotate_keys[], kf_cuda_merge[];
#ifdef __cplusplus
}
#endif

#endif
