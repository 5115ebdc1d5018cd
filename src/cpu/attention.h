// SPDX-License-Identifier: Apache-2.0
//
// Attention on the CPU: what its files share.
//
//     attention.c        plan, prepare, run_items; the rotation of q and k; the merge of partial states
//     attention_rows.c   what both paths do with the rows of an item: masks, logits, finishing
//     attention_tiles.c  many rows a KV head: keys are packed once for a tile of rows, products are register tiles
//     attention_few.c    few rows a KV head (decode): keys are read once, straight from memory, for all of them
//     attention_loops.h  the kernels below, written once over the vectors of an ISA
//     attention_ISA.c    one ISA's kernels: attention_loops.h and what the ISA does better
//
// A tile is folded key block by key block, rows in groups of KF_ROW_GROUP:
//
//     s = q k^T                      scores    (12 rows by up to 256 keys)
//     s = logits(s)                  only where there is softcap, ALiBi, bias or a boolean mask; -inf outside a row's interval
//     m, d, p = fold(s)              softmax   (online: m and d of the rows so far, alpha = 2^(m_before - m_after))
//     o = alpha o + p v              values
#ifndef KF_CPU_ATTENTION_H
#define KF_CPU_ATTENTION_H

#include "core/plan.h"
#include "cpu/cpu.h"
#include "math/state.h"

enum {
    KF_KEY_BLOCK = 256, // keys of a block: 12 rows of scores (13 KB) stay in L1, a packed block (D = 128: 256 KB) in L2
    KF_ROW_GROUP = 12,  // rows of a group: the register tiles of all ISAs divide it
    KF_FEW_ROWS = 16,   // rows of a KV head up to which no keys are packed
    KF_MAX_HEAD_DIM = 256,
    // Distance of two rows of scores, in elements: beside the block one more cache line, so that rows do not fall into
    // the same sets of L1.
    KF_SCORE_STRIDE = KF_KEY_BLOCK + 16,
};

// What makes a row's scores into logits, where that is more than a factor. All pointers are to the block's first key.
typedef struct kf_logit_row {
    float scale;
    float softcap;    // 0: off
    float slope;      // of ALiBi; 0: off
    float distance;   // p - first key
    const char *bias; // NULL: none
    int32_t bias_type;
    const uint8_t *mask; // NULL: none
} kf_logit_row;

// The products of a tile in one arithmetic. Packed keys and values have an arithmetic's own layout; element_bytes is
// that of q, k, v and p in it.
typedef struct kf_tile_kernels {
    int32_t element_bytes; // 4: fp32, 2: bf16
    int32_t panel;         // keys that are packed, scored and skipped together; divides KF_KEY_BLOCK
    // KF_ROW_GROUP rows of D floats, row after row.
    void (*pack_queries)(const float *rows, int64_t D, void *packed);
    // n keys (1 to KF_KEY_BLOCK) of `type`, `stride` bytes apart; those up to the next multiple of `panel` become 0.
    void (*pack_keys)(const char *k, int64_t stride, int32_t type, int64_t n, int64_t D, void *packed);
    // The same for values; false where one of them is NaN or infinite.
    bool (*pack_values)(const char *v, int64_t stride, int32_t type, int64_t n, int64_t Dv, void *packed);
    // s[r][j] = q[r] . k[j] for the group's rows and keys first <= j < last of the block, both multiples of `panel`.
    void (*scores)(const void *queries, const void *keys, int64_t D, int64_t first, int64_t last, float *s);
    // o[r] = alpha[r] o[r] + sum_j p[r][j] v[j]; rows of o are kf_padded(Dv, lanes) apart.
    void (*values)(const void *p, const void *values, int64_t Dv, int64_t first, int64_t last, const float *alpha,
                   float *o);
    // p = 2^(c s - m), for `rows` rows and keys first <= j < last, multiples of `panel`; m, d are brought up to date,
    // alpha is what o is to be multiplied by. p may be s where elements are fp32.
    void (*softmax)(float *s, void *p, int32_t rows, int64_t first, int64_t last, float c, float *m, float *d,
                    float *alpha);
} kf_tile_kernels;

// How far ahead of their reading keys are asked for, where rows are few: a little more than a block. Much more is dropped (a core
// has some twenty requests under way), less comes late: docs/cpu_attention.md.
enum { FEW_KEYS_AHEAD = 40 };

// A block of few rows: 16 or 32 keys. Products in bf16 are faster than memory, which is read best a page of k and one of v at a
// time; those in fp32 are not, and larger blocks have fewer beginnings.
enum { KF_FEW_BLOCK_MIN = 16, KF_FEW_BLOCK_MAX = 32, KF_FEW_PAGE = 4096, KF_FEW_LARGEST = 1 << 20 };

// Products of a few rows with keys and values as they lie in memory (no byte beyond the n rows is read). Beside the first
// `ahead` of them the one FEW_KEYS_AHEAD further on is asked for.
typedef struct kf_few_kernels {
    int32_t element_bytes; // of q and p: 4: fp32, 2: bf16
    int32_t block_bytes;   // a block has KF_FEW_BLOCK_MAX keys where these are no more bytes than that, else MIN
    // s[r][j] = q[r] . k[j]; rows of q are D elements apart. s is written for j < n alone.
    void (*scores)(const void *q, int32_t rows, const char *k, int64_t stride, int64_t n, int64_t D, int64_t ahead,
                   float *s);
    void (*values)(const void *p, int32_t rows, const char *v, int64_t stride, int64_t n, int64_t Dv, int64_t ahead,
                   const float *alpha, float *o);
    // As that of tiles, for keys 0 .. n - 1; n is a multiple of lanes. m, d and alpha have KF_FEW_ROWS elements, which may be read.
    void (*softmax)(float *s, void *p, int32_t rows, int64_t n, float c, float *m, float *d, float *alpha);
} kf_few_kernels;

typedef struct kf_attention_kernels {
    const char *notes; // for the table of support
    int32_t lanes;     // floats of a vector: rows of o, and the keys that a softmax works on, are multiples of it
    const kf_tile_kernels *tiles;                                                     // fp32, fed with any type
    const kf_tile_kernels *tiles_bf16;                                                // q, k and v all bf16; NULL: none
    const kf_few_kernels *few[4];                                                     // by the keys' kf_type
    const kf_few_kernels *few_bf16;                                                   // q, k and v all bf16; NULL: none
    void (*logits)(float *s, int64_t n, const kf_logit_row *row);                     // in place
    void (*load_row)(const char *x, int32_t type, int64_t n, float factor, float *y); // y = factor x
    void (*store_row)(const float *x, int64_t n, float factor, int32_t type, char *y); // y = factor x, rounded once
    void (*add_row)(float *y, const float *x, float factor, int64_t n);                // y += factor x
} kf_attention_kernels;

extern const kf_attention_kernels kf_attention_scalar, kf_attention_avx2, kf_attention_avx512, kf_attention_avx512bf16;

// ------------------------------------------------------------------------------------------------ shared by the drivers

// An attention as a worker sees it.
typedef struct kf_attention_call {
    const kf_attention_problem *problem;
    const kf_attention_plan *plan;
    const kf_attention_kernels *kernels;
    kf_view q, k;   // rotated where that was asked for
    char *packed;   // [pairs][key blocks] packed once for all tiles (attention_tiles.c); NULL: each tile packs its own
    float *states;  // [slots][rows of all KV heads][2]: m, d
    float *outputs; // [slots][rows of all KV heads][Dv], not yet divided by d
} kf_attention_call;

// How the rows of an item see one key block.
typedef struct kf_row_view {
    int64_t query, head; // of the row
    int64_t position;
    kf_interval keys; // that it sees
} kf_row_view;

static inline int64_t kf_padded(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

static inline const char *kf_at(const kf_view *x, int64_t b, int64_t h, int64_t i) {
    return x->data + (b * x->stride[0] + h * x->stride[1] + i * x->stride[2]) * kf_type_size(x->type);
}

// Whether products may be made of bf16 numbers: q, k and v are such, and k stays so (rotated, it is fp32).
bool kf_attention_all_bf16(const kf_attention_problem *problem);

// Whether scores need more than a factor, and that factor times log2(e): p = 2^(c s - m).
bool kf_attention_has_logits(const kf_attention_problem *problem);
float kf_attention_factor(const kf_attention_problem *problem);

// Rows row0 .. row0 + rows - 1 of the item's KV head.
void kf_attention_view_rows(const kf_attention_call *call, const kf_attention_item *item, int64_t row0, int32_t rows,
                            kf_row_view *views);
// A row of queries as floats, its sign turned where the scale is negative and is left to the softmax.
void kf_attention_load_query(const kf_attention_call *call, const kf_attention_item *item, const kf_row_view *view,
                             float *q);

// Rows of scores of keys block + first .. block + last - 1: logits, where needed, and -inf for what a row does not see.
// Returns whether some row may not see some key of the range.
bool kf_attention_mask_rows(const kf_attention_call *call, const kf_attention_item *item, const kf_row_view *views,
                            int32_t rows, int64_t block, int64_t first, int64_t last, float *s);

// o = alpha o + p v over the live keys alone: for blocks with NaN or infinity in v that some rows do not see. live has
// KF_KEY_BLOCK bytes a row.
bool kf_attention_values_finite(const kf_attention_call *call, const kf_attention_item *item, int64_t first,
                                int64_t last);
void kf_attention_find_live(const float *s, int32_t rows, int64_t first, int64_t last, uint8_t *live);
void kf_attention_careful_values(const kf_attention_call *call, const kf_attention_item *item, const void *p,
                                 int32_t element_bytes, const uint8_t *live, int32_t rows, int64_t block, int64_t first,
                                 int64_t last, const float *alpha, float *o);

// The end of a row: its output, or its partial state where its tile has several splits.
void kf_attention_finish_row(const kf_attention_call *call, const kf_attention_item *item, int64_t row, kf_state state,
                             const float *o);

// The output of a row from its partial states, in the order of the splits.
void kf_attention_merge_row(const kf_attention_call *call, const kf_attention_item *item, int64_t row);

size_t kf_attention_tiles_scratch(const kf_attention_kernels *kernels, const kf_tile_kernels *tiles,
                                  const kf_attention_plan *plan, int64_t D, int64_t Dv);
size_t kf_attention_few_scratch(const kf_attention_kernels *kernels, int64_t D, int64_t Dv);
// One block of a KV head's keys and values packed into call->packed: its bytes, and the packing of keys block .. end - 1.
size_t kf_attention_packed_bytes(const kf_attention_kernels *kernels, const kf_tile_kernels *tiles, int64_t D,
                                 int64_t Dv);
void kf_attention_pack_block(const kf_attention_call *call, int64_t b, int64_t kv_head, int64_t block, int64_t end);
void kf_attention_run_tile(const kf_attention_call *call, const kf_attention_item *item, char *scratch);
void kf_attention_run_few(const kf_attention_call *call, const kf_attention_item *item, char *scratch);

// The arithmetic of a tile's products.
const kf_tile_kernels *kf_attention_choose_tiles(const kf_attention_kernels *kernels,
                                                 const kf_attention_problem *problem);

#endif
