// SPDX-License-Identifier: Apache-2.0
// A small model of the Llama architecture for tests: random weights of several types in a GGUF file, and as float64
// beside it.
#ifndef KFM_TEST_SMALL_MODEL_H
#define KFM_TEST_SMALL_MODEL_H

#include <math.h>

#include "gguf_writer.h"
#include "model/gguf.h"

enum {
    LAYERS = 3,
    WIDTH = 64,
    HEADS = 4,
    KV_HEADS = 2,
    DIM = 16,
    HIDDEN = 96,
    VOCABULARY = 275, // of small_vocabulary.h
    CONTEXT = 64,
    TENSORS = 2 + 9 * LAYERS,
    ROPE_DIMS = 8
};
static const double eps = 1e-5, rope_base = 500;

typedef struct small_tensor {
    char name[40];
    uint32_t type;
    uint64_t dim[2]; // columns, rows (0: a vector)
    double *values;
} small_tensor;

typedef struct small_model {
    small_tensor tensors[TENSORS];
    int count;
    gguf_writer file;
} small_model;

static uint32_t random_state;

static inline double random_number(void) { // [-1, 1)
    random_state = random_state * 1664525 + 1013904223;
    return (random_state >> 8) * 0x1p-23 - 1;
}

static inline void add_small(small_model *m, int layer, const char *name, uint32_t type, uint64_t columns,
                             uint64_t rows) {
    small_tensor *t = &m->tensors[m->count++];
    if (layer >= 0)
        snprintf(t->name, sizeof t->name, "blk.%d.%s", layer, name);
    else
        snprintf(t->name, sizeof t->name, "%s", name);
    t->type = type;
    t->dim[0] = columns;
    t->dim[1] = rows;
    t->values = calloc(columns * (rows == 0 ? 1 : rows), sizeof *t->values);
    if (t->values == NULL) abort();
}

static inline uint64_t small_bytes(const small_tensor *t) {
    uint64_t n = t->dim[0] * (t->dim[1] == 0 ? 1 : t->dim[1]);
    return t->type == KFM_F32 ? 4 * n : t->type == KFM_BF16 ? 2 * n : n / 32 * 34;
}

static inline void put_float(gguf_writer *w, float value, int bytes) { // 4: fp32; 2: its upper half, bf16
    uint32_t bits;
    memcpy(&bits, &value, 4);
    gguf_put_int(w, bytes == 2 ? bits >> 16 : bits, bytes);
}

// Random values that the type holds exactly, into the file and into t->values.
static inline void put_small(gguf_writer *w, small_tensor *t) {
    uint64_t n = t->dim[0] * (t->dim[1] == 0 ? 1 : t->dim[1]);
    for (uint64_t i = 0; i < n; i++) {
        if (t->type == KFM_Q8_0) { // fp16 scale 2^-9 (0x1800), then 32 int8
            if (i % 32 == 0) gguf_put_int(w, 0x1800, 2);
            int q = (int)(random_number() * 127);
            t->values[i] = q * 0x1p-9;
            gguf_put_int(w, (uint64_t)(int64_t)q, 1);
        } else {
            double value = t->dim[1] == 0 ? 1 + 0.2 * random_number() : 0.25 * random_number();
            float rounded = (float)(round(value * 128) / 128); // exact in bf16
            t->values[i] = rounded;
            put_float(w, rounded, t->type == KFM_F32 ? 4 : 2);
        }
    }
    while (w->count % 32 != 0) gguf_put_int(w, 0, 1);
}

static inline void put_metadata(gguf_writer *w) {
    gguf_key_text(w, "general.architecture", "llama");
    gguf_key_u32(w, "llama.block_count", LAYERS);
    gguf_key_u32(w, "llama.embedding_length", WIDTH);
    gguf_key_u32(w, "llama.feed_forward_length", HIDDEN);
    gguf_key_u32(w, "llama.attention.head_count", HEADS);
    gguf_key_u32(w, "llama.attention.head_count_kv", KV_HEADS);
    gguf_key_u32(w, "llama.context_length", CONTEXT);
    gguf_key_u32(w, "llama.rope.dimension_count", ROPE_DIMS);
    gguf_key_f32(w, "llama.rope.freq_base", (float)rope_base);
    gguf_key_f32(w, "llama.attention.layer_norm_rms_epsilon", (float)eps);
}

// Types differ between q, k and v of layer 1 and between gate and up of layer 2, so that products of one and of several
// parts are met. `more` adds key-values; NULL: none.
static inline void make_small(small_model *m, void (*more)(gguf_writer *)) {
    *m = (small_model){.count = 0};
    random_state = 17;
    add_small(m, -1, "token_embd.weight", KFM_Q8_0, WIDTH, VOCABULARY);
    add_small(m, -1, "output_norm.weight", KFM_F32, WIDTH, 0);
    for (int i = 0; i < LAYERS; i++) {
        add_small(m, i, "attn_norm.weight", KFM_F32, WIDTH, 0);
        add_small(m, i, "attn_q.weight", i == 1 ? KFM_F32 : KFM_Q8_0, WIDTH, HEADS * DIM);
        add_small(m, i, "attn_k.weight", KFM_Q8_0, WIDTH, KV_HEADS * DIM);
        add_small(m, i, "attn_v.weight", i == 1 ? KFM_BF16 : KFM_Q8_0, WIDTH, KV_HEADS * DIM);
        add_small(m, i, "attn_output.weight", KFM_Q8_0, HEADS * DIM, WIDTH);
        add_small(m, i, "ffn_norm.weight", i == 0 ? KFM_BF16 : KFM_F32, WIDTH, 0);
        add_small(m, i, "ffn_gate.weight", KFM_Q8_0, WIDTH, HIDDEN);
        add_small(m, i, "ffn_up.weight", i == 2 ? KFM_BF16 : KFM_Q8_0, WIDTH, HIDDEN);
        add_small(m, i, "ffn_down.weight", KFM_Q8_0, HIDDEN, WIDTH);
    }
    gguf_begin(&m->file);
    put_metadata(&m->file);
    if (more != NULL) more(&m->file);
    for (int i = 0; i < m->count; i++) {
        small_tensor *t = &m->tensors[i];
        gguf_tensor(&m->file, t->name, t->type, t->dim[1] == 0 ? 1 : 2, t->dim, small_bytes(t));
    }
    gguf_end(&m->file);
    for (int i = 0; i < m->count; i++) put_small(&m->file, &m->tensors[i]);
}

static inline void free_small(small_model *m) {
    for (int i = 0; i < m->count; i++) free(m->tensors[i].values);
    gguf_free(&m->file);
}

#endif
