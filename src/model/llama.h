// SPDX-License-Identifier: Apache-2.0
// The Llama architecture (Touvron et al., arXiv 2302.13971) from a GGUF file, on nothing but keyfold's public header.
// With h the residual stream of T tokens:
//
//   h = embedding[tokens]
//   for each layer:  n = rmsnorm(h);  q, k, v = n Wqkv^T;  append rope(k), v to the cache;  h += attention(rope(q),
//   cache) Wo^T
//                    n = rmsnorm(h);  g, u = n Wgu^T;      h += (silu(g) * u) Wd^T
//   logits = rmsnorm(h) E^T
//
// A step for T tokens is a kf_sequence of these operations, planned once and kept: one of a single row for decoding,
// one of `chunk` rows for prompts, others for what remains of a prompt. Decoding allocates nothing. Weights are packed once,
// when the model is opened; the cache is [layer][K or V][Hkv, context, D] in fp16, bf16 or fp32. Activations are fp32; on a
// device q, k and v are in the cache's type.
//
// On a device all of that lies in the device's memory. A step begins with one small copy to it (tokens, where they stand) and
// ends with one of the logits back; between them nothing comes from the host, so that the step is the same graph every time.
//
// A token's step reads every weight once (bytes: kfm_llama_info.weight_bytes) and the cache's positions so far
// (kv_bytes_per_position each), and spends two operations a weight.
#ifndef KFM_LLAMA_H
#define KFM_LLAMA_H

#include "keyfold.h"
#include "model/gguf.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kfm_llama kfm_llama;

typedef struct kfm_llama_options {
    int64_t context;     // positions in the cache; 0: what the model was trained for
    int64_t chunk;       // rows of a prompt in one step; 0: KFM_DEFAULT_CHUNK
    kf_dtype cache;      // KF_FP16, KF_BF16 or KF_FP32; zeros: KF_FP16
    int32_t activations; // KF_ACTIVATIONS_EXACT, or KF_ACTIVATIONS_INT8 for all products but queries, keys and values
    kf_dtype rows;       // of what products read: KF_FP32, KF_FP16 or KF_BF16; zeros: KF_FP32
    kf_dtype weights;    // of the products' matrices: KF_BF16, KF_FP16, KF_FP32; zeros: as in the file
} kfm_llama_options;

enum { KFM_DEFAULT_CHUNK = 512 };

typedef struct kfm_llama_info {
    int64_t layers, width, hidden, heads, kv_heads, head_dim, vocabulary;
    int64_t trained_context; // of the file
    int64_t context;         // of this cache
    int64_t chunk;
    int64_t weight_bytes;          // that a token's step reads, in the file's types, or in options.weights
    int64_t kv_bytes_per_position; // of all layers
    int64_t operations;            // of a token's step
} kfm_llama_info;

// What went on while a model was opened: called for each layer when it is packed, and on its device. May be NULL.
typedef void (*kfm_progress)(void *argument, int64_t done, int64_t of);

// Checks the metadata and every tensor, packs the weights for the context and plans the first steps. `gguf` and
// `context` must outlive the model. A tensor that is missing, has another shape or is not part of this architecture is
// an error that names it.
bool kfm_llama_open(kfm_llama **out, const kf_context *context, const kfm_gguf *gguf, const kfm_llama_options *options,
                    kfm_progress progress, void *argument, kfm_error *error);
// A second model over the first one's weights, which must outlive it: a cache and steps of its own, on a context of the same
// device and ISA.
bool kfm_llama_open_beside(kfm_llama **out, const kf_context *context, const kfm_llama *first, kfm_error *error);
void kfm_llama_close(kfm_llama *model);
kfm_llama_info kfm_llama_get_info(const kfm_llama *model);

// Evaluates `count` tokens after those that the cache holds. `logits`: [vocabulary] of the last token, or NULL where
// they are not wanted. Where the tokens do not fit the context, or after any error, the position is what it was.
bool kfm_llama_eval(kfm_llama *model, const int32_t *tokens, int64_t count, float *logits, kfm_error *error);
// The same with the logits of every token: [count, vocabulary].
bool kfm_llama_eval_all(kfm_llama *model, const int32_t *tokens, int64_t count, float *logits, kfm_error *error);

// Runs the last step `times` times more, with nothing to or from the host between them, and waits: what it leaves is the same,
// and the time is that of the step alone.
bool kfm_llama_repeat(kfm_llama *model, int64_t times, kfm_error *error);

// Tokens in the cache.
int64_t kfm_llama_position(const kfm_llama *model);
// Forgets all tokens from `position` on; one beyond the current position changes nothing.
void kfm_llama_rewind(kfm_llama *model, int64_t position);

#ifdef __cplusplus
}
#endif
#endif
