// SPDX-License-Identifier: Apache-2.0
// What the model's parts share: llama.c reads a file into this, llama_memory.c has the memory of its device, llama_step.c
// plans steps over it and runs them.
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

// Activations of a step's tokens: [chunk, columns], compact.
typedef struct kfm_rows {
    char *data;
    kf_dtype dtype;
    int64_t columns;
} kfm_rows;

// What a step reads when it runs. On a device `at` is there and is filled by one copy of the host's `values`; on the CPU the
// two are one.
typedef struct kfm_inputs {
    struct kfm_input_values {
        int64_t slot, key_length;
        int32_t ids[]; // [chunk]
    } * values, *at;
} kfm_inputs;

// The operations for `rows` tokens of which the last `outputs` get logits: 0, 1 or all.
typedef struct kfm_step {
    int64_t rows, outputs;
    int64_t keys; // positions of the cache that attention is planned for
    kf_op **ops;
    int64_t count, capacity;
    kf_op *logits_op; // borrowed from ops; NULL where outputs is 0
    float *logits;    // what it is bound to: the caller's memory, on a device the model's
    kf_sequence *sequence;
    uint64_t last_used;
} kfm_step;

// Decoding has one for each power of two of keys up to the context's, at most 23; the others are of prompts. On a device the first 64
// keys are one split, which saves a step of SmolLM2 27 us of 640 (docs/cuda_model.md).
enum { KFM_MAX_STEPS = 40, KFM_LEAST_KEYS = 256, KFM_LEAST_KEYS_ON_DEVICE = 64 };

struct kfm_llama {
    const kf_context *context;
    kf_device device; // of the context
    kfm_llama_info info;
    kf_dtype cache_dtype, rows_dtype, weight_dtype; // weight_dtype of 0 bits: as in the file
    int32_t activations;
    float eps;
    kf_rope_params rope;

    kf_weight table; // of the embedding, in the file
    kfm_product vocabulary;
    kfm_norm output_norm;
    kfm_layer *layers;
    void *weights, *caches, *norms; // what the above point into
    bool borrowed;                  // weights and norms are another model's

    char *memory; // what these lie in
    kfm_rows stream, normed, qkv, attended, added, gate_up, hidden;
    kfm_inputs inputs;
    float *logits; // on a device: [rows of the step that wants most, vocabulary]
    size_t logits_bytes;

    kfm_step steps[KFM_MAX_STEPS];
    kfm_step *last; // that ran; NULL: none, or it is no longer there
    uint64_t clock; // of last_used
    void *workspace;
    size_t workspace_bytes;
    int64_t position;
};

// ---- llama_memory.c: memory of the model's device ----

static inline bool kfm_llama_on_device(const kfm_llama *m) { return m->device.type != KF_DEVICE_CPU; }

// Blocks begin at multiples of this in a buffer that holds several.
enum { KFM_ALIGNMENT = 256 };
static inline size_t kfm_llama_round_up(size_t bytes) {
    return bytes + (KFM_ALIGNMENT - bytes % KFM_ALIGNMENT) % KFM_ALIGNMENT;
}

void *kfm_llama_allocate(const kfm_llama *m, size_t bytes, kfm_error *error); // NULL after an error
void kfm_llama_free(const kfm_llama *m, void *memory);
// Makes sure that *memory has `bytes`; what it held is lost where it grows.
bool kfm_llama_reserve(const kfm_llama *m, void **memory, size_t *held, size_t bytes, kfm_error *error);
// Copies to or from the device, and waits; on the CPU a copy.
bool kfm_llama_copy(const kfm_llama *m, void *to, const void *from, size_t bytes, kfm_error *error);

// ---- llama_step.c ----

// Plans a step for `rows` tokens that see up to key_length keys, or finds it. NULL after an error.
kfm_step *kfm_llama_step(kfm_llama *model, int64_t rows, int64_t outputs, int64_t key_length, kfm_error *error);
// Plans every step that decoding takes.
bool kfm_llama_plan_decoding(kfm_llama *model, kfm_error *error);
void kfm_llama_drop_steps(kfm_llama *model);

#endif
