// SPDX-License-Identifier: Apache-2.0
// Writes GGUF files in memory, for tests: right ones, and by single fields wrong ones. Call gguf_begin, then the
// key-values, then the tensors, then gguf_end with the tensors' data. Counts are patched at the end, unless a test has
// set its own.
#ifndef KFM_TEST_GGUF_WRITER_H
#define KFM_TEST_GGUF_WRITER_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct gguf_writer {
    unsigned char *bytes;
    size_t count, capacity;
    uint64_t values, tensors;
    uint64_t data_bytes; // offset of the next tensor's data
    uint64_t alignment;
} gguf_writer;

static inline void gguf_put(gguf_writer *w, const void *bytes, size_t n) {
    if (w->count + n > w->capacity) {
        w->capacity = 2 * (w->count + n);
        w->bytes = realloc(w->bytes, w->capacity);
        if (w->bytes == NULL) abort();
    }
    if (n > 0) memcpy(w->bytes + w->count, bytes, n);
    w->count += n;
}

// Little-endian.
static inline void gguf_put_int(gguf_writer *w, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) gguf_put(w, &(unsigned char){(unsigned char)(i < 8 ? value >> 8 * i : 0)}, 1);
}

static inline void gguf_patch(gguf_writer *w, size_t at, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) w->bytes[at + (size_t)i] = (unsigned char)(value >> 8 * i);
}

static inline void gguf_put_text(gguf_writer *w, const char *text) {
    gguf_put_int(w, strlen(text), 8);
    gguf_put(w, text, strlen(text));
}

static inline void gguf_begin(gguf_writer *w) {
    *w = (gguf_writer){.alignment = 32};
    gguf_put(w, "GGUF", 4);
    gguf_put_int(w, 3, 4);
    gguf_put_int(w, 0, 8); // tensors
    gguf_put_int(w, 0, 8); // key-values
}

enum { GGUF_VERSION_AT = 4, GGUF_TENSORS_AT = 8, GGUF_VALUES_AT = 16, GGUF_FIRST_KEY_AT = 24 };

// The key and the type of a value that the caller writes next.
static inline void gguf_key(gguf_writer *w, const char *key, uint32_t type) {
    gguf_put_text(w, key);
    gguf_put_int(w, type, 4);
    w->values++;
}

static inline void gguf_key_int(gguf_writer *w, const char *key, uint32_t type, uint64_t value, int bytes) {
    gguf_key(w, key, type);
    gguf_put_int(w, value, bytes);
}

static inline void gguf_key_u32(gguf_writer *w, const char *key, uint32_t value) { gguf_key_int(w, key, 4, value, 4); }

static inline void gguf_key_f32(gguf_writer *w, const char *key, float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    gguf_key_int(w, key, 6, bits, 4);
}

static inline void gguf_key_text(gguf_writer *w, const char *key, const char *text) {
    gguf_key(w, key, 8);
    gguf_put_text(w, text);
}

// The head of an array; its elements come next.
static inline void gguf_key_array(gguf_writer *w, const char *key, uint32_t element, uint64_t count) {
    gguf_key(w, key, 9);
    gguf_put_int(w, element, 4);
    gguf_put_int(w, count, 8);
}

// A tensor's entry; its data takes `bytes` at the next aligned place.
static inline void gguf_tensor(gguf_writer *w, const char *name, uint32_t type, int dims, const uint64_t *dim,
                               uint64_t bytes) {
    gguf_put_text(w, name);
    gguf_put_int(w, (uint64_t)dims, 4);
    for (int i = 0; i < dims; i++) gguf_put_int(w, dim[i], 8);
    gguf_put_int(w, type, 4);
    gguf_put_int(w, w->data_bytes, 8);
    w->data_bytes += bytes + (w->alignment - bytes % w->alignment) % w->alignment;
    w->tensors++;
}

static inline void gguf_end(gguf_writer *w) {
    gguf_patch(w, GGUF_TENSORS_AT, w->tensors, 8);
    gguf_patch(w, GGUF_VALUES_AT, w->values, 8);
    while (w->count % w->alignment != 0) gguf_put_int(w, 0, 1);
}

static inline void gguf_free(gguf_writer *w) { free(w->bytes); }

#endif
