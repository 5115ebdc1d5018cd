// SPDX-License-Identifier: Apache-2.0
//
// Writes the file twice with the same code: once to learn its size, once into memory of that size. See bench_model_random.h; the
// format is described in src/model/gguf.h.
#include "bench_model_random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf.h"

// The models' published configurations.
static const bench_model_shape shapes[] = {
    {"smollm2-135m", 30, 576, 1536, 9, 3, 64, 49152, 1, 100000},
    {"tinyllama-1.1b", 22, 2048, 5632, 32, 4, 64, 32000, 0, 10000},
    {"llama-3.2-1b", 16, 2048, 8192, 32, 8, 64, 128256, 1, 500000},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

const bench_model_shape *bench_model_shape_find(const char *name) {
    for (int i = 0; i < SHAPES; i++)
        if (strcmp(shapes[i].name, name) == 0) return &shapes[i];
    return NULL;
}

const char *bench_model_shape_names(void) { return "smollm2-135m, tinyllama-1.1b, llama-3.2-1b"; }

enum { ALIGNMENT = 32, LAYER_TENSORS = 9, KEYS = 10, NAME = 64 };

typedef struct writer {
    char *to; // NULL: count only
    size_t at;
    uint64_t data_at; // of the next tensor, from the beginning of the data
    uint64_t random;
} writer;

static void put(writer *w, const void *bytes, size_t n) {
    if (w->to) memcpy(w->to + w->at, bytes, n);
    w->at += n;
}

static void put_u32(writer *w, uint32_t value) { put(w, &value, sizeof value); }
static void put_u64(writer *w, uint64_t value) { put(w, &value, sizeof value); }

static void put_text(writer *w, const char *text) {
    put_u64(w, strlen(text));
    put(w, text, strlen(text));
}

static void key(writer *w, const char *name, uint32_t type) {
    put_text(w, name);
    put_u32(w, type);
}

static void key_u32(writer *w, const char *name, int64_t value) {
    key(w, name, KFM_GGUF_UINT32);
    put_u32(w, (uint32_t)value);
}

static void align(writer *w) {
    static const char zeros[ALIGNMENT];
    put(w, zeros, (ALIGNMENT - w->at % ALIGNMENT) % ALIGNMENT);
}

// ---- tensors: visited in the same order for their entries and for their data ----

typedef void (*visit)(writer *w, const char *name, int64_t columns, int64_t rows); // rows 0: a vector, fp32

static void visit_tensors(writer *w, const bench_model_shape *s, visit each) {
    const int64_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    const struct {
        const char *name;
        int64_t columns, rows;
    } layer[LAYER_TENSORS] = {
        {"attn_norm", s->width, 0},        {"attn_q", s->width, q},         {"attn_k", s->width, kv},
        {"attn_v", s->width, kv},          {"attn_output", q, s->width},    {"ffn_norm", s->width, 0},
        {"ffn_gate", s->width, s->hidden}, {"ffn_up", s->width, s->hidden}, {"ffn_down", s->hidden, s->width},
    };
    each(w, "token_embd.weight", s->width, s->vocabulary);
    if (!s->tied) each(w, "output.weight", s->width, s->vocabulary);
    each(w, "output_norm.weight", s->width, 0);
    for (int64_t i = 0; i < s->layers; i++)
        for (int t = 0; t < LAYER_TENSORS; t++) {
            char name[NAME];
            snprintf(name, sizeof name, "blk.%lld.%s.weight", (long long)i, layer[t].name);
            each(w, name, layer[t].columns, layer[t].rows);
        }
}

static uint64_t bytes_of(int64_t columns, int64_t rows) {
    return (uint64_t)columns * (rows ? (uint64_t)rows * sizeof(uint16_t) : sizeof(float));
}

static void put_entry(writer *w, const char *name, int64_t columns, int64_t rows) {
    put_text(w, name);
    put_u32(w, rows ? 2 : 1);
    put_u64(w, (uint64_t)columns);
    if (rows) put_u64(w, (uint64_t)rows);
    put_u32(w, rows ? KFM_BF16 : KFM_F32);
    put_u64(w, w->data_at);
    w->data_at += (bytes_of(columns, rows) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

// Numbers of either sign from [2^-6, 2^-5), four at a time: of the size that keeps a row's product near its norm.
static void put_data(writer *w, const char *name, int64_t columns, int64_t rows) {
    const uint64_t bytes = bytes_of(columns, rows), kept = 0x807f807f807f807f, exponent = 0x3c803c803c803c80;
    (void)name;
    for (uint64_t i = 0; w->to && rows && i + sizeof(uint64_t) <= bytes; i += sizeof(uint64_t)) {
        w->random ^= w->random << 13, w->random ^= w->random >> 7, w->random ^= w->random << 17;
        const uint64_t four = (w->random & kept) | exponent;
        memcpy(w->to + w->at + i, &four, sizeof four);
    }
    for (int64_t i = 0; w->to && !rows && i < columns; i++)
        memcpy(w->to + w->at + (size_t)i * sizeof(float), &(float){1}, sizeof(float));
    w->at += bytes;
    align(w);
}

// ---- the file ----

static void write_file(writer *w, const bench_model_shape *s, int64_t context) {
    put(w, "GGUF", 4);
    put_u32(w, 3);
    put_u64(w, (uint64_t)(s->layers * LAYER_TENSORS + (s->tied ? 2 : 3)));
    put_u64(w, KEYS);
    key(w, "general.architecture", KFM_GGUF_STRING);
    put_text(w, "llama");
    key_u32(w, "llama.block_count", s->layers);
    key_u32(w, "llama.embedding_length", s->width);
    key_u32(w, "llama.feed_forward_length", s->hidden);
    key_u32(w, "llama.attention.head_count", s->heads);
    key_u32(w, "llama.attention.head_count_kv", s->kv_heads);
    key_u32(w, "llama.attention.key_length", s->head_dim);
    key_u32(w, "llama.context_length", context);
    key_u32(w, "llama.rope.dimension_count", s->head_dim);
    key(w, "llama.rope.freq_base", KFM_GGUF_FLOAT32);
    put(w, &s->rope_base, sizeof s->rope_base);
    visit_tensors(w, s, put_entry);
    align(w);
    visit_tensors(w, s, put_data);
}

void *bench_model_random(const bench_model_shape *shape, int64_t context, size_t *bytes) {
    const uint64_t seed = 0x9e3779b97f4a7c15;
    writer count = {.random = seed};
    write_file(&count, shape, context);
    writer w = {.to = malloc(count.at), .random = seed};
    if (w.to) write_file(&w, shape, context);
    *bytes = count.at;
    return w.to;
}
