// SPDX-License-Identifier: Apache-2.0
//
// Attention kernels for AVX-512 (F, BW, DQ, VL): fp32 products, 16 floats a vector, 32 registers.
//
//     q k^T   12 rows x 2 vectors: 24 sums, 2 loads and 12 broadcasts for 24 products
//     p v     6 rows x 4 vectors:  24 sums, 4 loads and 6 broadcasts for 24 products
//
// A Zen 4 core makes one 512-bit FMA a cycle of latency 4 and loads one vector or two broadcasts a cycle, so the sums hide
// the latency and the loads fit beside the products.
#if defined(__x86_64__)
#include <math.h>

#include "cpu/simd_avx512.h"

#define SCORE_ROWS 12
#define SCORE_VECS 2
#define VALUE_VECS 4
#define VALUE_ROWS(vecs) ((vecs) <= 2 ? 12 : 6)
#define FEW_ROWS 4
#define FEW_VECS 4
#define FEW_IN_STEP

#include "cpu/attention_avx512.h"

static inline void store_weight_half(uint16_t *p, kf_vec w) { kf_vec_store_bf16(p, w); }

#include "cpu/attention_loops.h"

const kf_attention_kernels kf_attention_avx512 = {
    .notes = "fp32 FMA, 12x32 and 6x64 tiles",
    .lanes = KF_LANES,
    .tiles = &tiles_f32,
    .few = {NULL, &few_f32, &few_f16, &few_bf16},
    .logits = logits,
    .load_row = load_row,
    .store_row = store_row,
    .add_row = add_row,
};
#endif
