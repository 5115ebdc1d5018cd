// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: any bytes as a GGUF file. What the reader accepts is read through to the last byte, the tokeniser
// is opened on it, and encodes and decodes a text. tests/fuzz.sh builds and runs it.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

volatile unsigned char fuzz_sink;

// A read of every byte that the compiler must not drop.
static void touch(const void *bytes, uint64_t n) {
    unsigned char sum = 0;
    for (uint64_t i = 0; i < n; i++) sum = (unsigned char)(sum + ((const unsigned char *)bytes)[i]);
    fuzz_sink = sum;
}

static void read_metadata(const kfm_gguf *g) {
    static const char *const keys[] = {"general.alignment",
                                       "general.architecture",
                                       "tokenizer.ggml.model",
                                       "tokenizer.ggml.tokens",
                                       "tokenizer.ggml.merges",
                                       "a",
                                       "b"};
    kfm_error error;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        int64_t integer;
        double number;
        bool yes;
        kfm_string text = {"", 0};
        kfm_gguf_array array;
        kfm_gguf_integer(g, keys[i], true, INT64_MIN, INT64_MAX, &integer, &error);
        kfm_gguf_float(g, keys[i], true, &number, &error);
        kfm_gguf_bool(g, keys[i], true, &yes, &error);
        if (kfm_gguf_string(g, keys[i], true, &text, &error)) touch(text.bytes, text.length);
        if (kfm_gguf_find_array(g, keys[i], true, KFM_GGUF_STRING, &array, &error))
            while (array.count > 0) text = kfm_gguf_next_string(&array), touch(text.bytes, text.length);
        if (kfm_gguf_find_array(g, keys[i], true, KFM_GGUF_INT32, &array, &error))
            while (array.count > 0) kfm_gguf_next_int32(&array);
        if (kfm_gguf_find_array(g, keys[i], true, KFM_GGUF_FLOAT32, &array, &error))
            while (array.count > 0) kfm_gguf_next_float32(&array);
    }
}

static void tokenize(const kfm_gguf *g) {
    static const char text[] = "aab <|im_end|>\xf0\x9f\x98\x80\xff 12  \n\n it's";
    kfm_tokenizer *t;
    kfm_ids ids = {0};
    kfm_error error;
    if (!kfm_tokenizer_open(&t, g, &error)) return;
    for (int special = 0; special < 2; special++)
        if (!kfm_encode(t, text, sizeof text - 1, special, &ids, &error)) abort();
    if (kfm_chat_check(t, &error) && !kfm_chat_message(t, "user", text, sizeof text - 1, &ids, &error)) abort();
    for (int64_t i = 0; i < ids.count; i++) {
        kfm_string bytes = kfm_token_bytes(t, ids.id[i]);
        touch(bytes.bytes, bytes.length);
    }
    const char *system = kfm_chat_default_system(t);
    if (system != NULL) touch(system, strlen(system));
    kfm_ids_free(&ids);
    kfm_tokenizer_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kfm_gguf *g;
    kfm_error error = {""};
    if (!kfm_gguf_parse(&g, data, size, &error)) {
        if (error.text[0] == '\0') abort(); // no refusal without a sentence
        return 0;
    }
    for (int64_t i = 0; i < kfm_gguf_tensor_count(g); i++) {
        const kfm_gguf_tensor *t = kfm_gguf_tensor_at(g, i);
        touch(t->data, t->bytes);
    }
    read_metadata(g);
    tokenize(g);
    kfm_gguf_close(g);
    return 0;
}
