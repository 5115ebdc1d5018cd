// SPDX-License-Identifier: Apache-2.0
//
// Attention kernels in plain C: the loops of attention_loops.h over "vectors" of one float. What every machine can run.
#include <math.h>

#include "cpu/simd_scalar.h"

// kf_vec_fma rounds twice here. In float64 the product of two floats is exact, so that sums of products err as they do where there is an FMA.
static inline kf_vec exact_fma(kf_vec a, kf_vec b, kf_vec c) { return (float)((double)a * (double)b + (double)c); }
#define kf_vec_fma exact_fma

#define SCORE_ROWS 4
#define SCORE_VECS 4
#define VALUE_VECS 4
#define VALUE_ROWS(vecs) ((vecs) == 1 ? 12 : 4)
#define FEW_ROWS 1
#define FEW_VECS 4

#define transpose_block(x) ((void)(x))
#define sum_each(x) ((x)[0])

static inline kf_vec add_bias(kf_vec x, kf_vec bias) { return bias == -INFINITY ? -INFINITY : x + bias; }
static inline kf_vec hide(kf_vec x, const uint8_t *visible) { return *visible ? x : -INFINITY; }
#define store_weight_half kf_vec_store_bf16

#define weight kf_vec_exp2_flush
#define weight_half kf_vec_exp2_flush

#include "cpu/attention_loops.h"

const kf_attention_kernels kf_attention_scalar = {
    .notes = "plain C, fp32",
    .lanes = KF_LANES,
    .tiles = &tiles_f32,
    .few = {NULL, &few_f32, &few_f16, &few_bf16},
    .logits = logits,
    .load_row = load_row,
    .store_row = store_row,
    .add_row = add_row,
};
