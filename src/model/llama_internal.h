// SPDX-License-Identifier: Apache-2.0
// What the model's two halves share: llama.c reads a file into this, llama_step.c plans steps over it and runs them.
#ifndef KFM_LLAMA_INTERNAL_H
#define KFM_LLAMA_INTERNAL_H

#include "model/llama.h"

enum { KFM_MAX_PARTS = 3 };

// y[T, columns] = x W^T for one or several tensors that share x: neighbours of one type are packed as one weight. Part
// i writes columns from column[i] on.
typedef struct kfm_product {
    kf_weight part[KFM_MAX_PARTS];
    int64_t column[KFM_MAX_PARTS];
    int parts;
    int64_t columns;
} kfm_product;

typedef struct kfm_norm {
    const void *weight; // [width]
    kf_dtype dtype;
} kfm_norm;

typedef struct kfm_layer {
    kfm_norm attention_norm, ffn_norm;
    kfm_product qkv, output, gate_up, down;
    char *k_cache, *v_cache; // [Hkv, context, D]
} kfm_layer;

// The operations for `rows` tokens of which the last `outputs` get logits: 0, 1 or all.
typedef struct kfm_step {
    int64_t rows, outputs;
    int64_t keys; // positions of the cache that attention is planned for
    kf_op **ops;
    int64_t count, capacity;
    kf_op *logits_op; // bound to the caller's memory at each run; borrowed from ops; NULL where outputs is 0
    kf_sequence *sequence;
    uint64_t last_used;
} kfm_step;

// Decoding has one for each power of two of keys up to the context's, at most 21; the others are of prompts.
enum { KFM_MAX_STEPS = 40, KFM_LEAST_KEYS = 256 };

struct kfm_llama {
    const kf_context *context;
    kfm_llama_info info;
    kf_dtype cache_dtype;
    int32_t activations;
    float eps;
    kf_rope_params rope;

    kf_weight table; // of the embedding, in the file
    kfm_product vocabulary;
    kfm_norm output_norm;
    kfm_layer *layers;
    void *weights, *caches, *norms; // what the above point into

    // Activations of one step, fp32, [chunk, …].
    float *memory;
    float *stream, *normed, *qkv, *attended, *added, *gate_up, *hidden;

    // Read by a step when it runs.
    int32_t *ids;
    int64_t slot, key_length;

    kfm_step steps[KFM_MAX_STEPS];
    uint64_t clock; // of last_used
    void *workspace;
    size_t workspace_bytes;
    int64_t position;
};

// Plans a step for `rows` tokens that see up to key_length keys, or finds it. NULL after an error.
kfm_step *kfm_llama_step(kfm_llama *model, int64_t rows, int64_t outputs, int64_t key_length, kfm_error *error);
// Plans every step that decoding takes.
bool kfm_llama_plan_decoding(kfm_llama *model, kfm_error *error);
void kfm_llama_drop_steps(kfm_llama *model);

#endif
