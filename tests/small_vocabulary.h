// SPDX-License-Identifier: Apache-2.0
// A small vocabulary for tests: 3 special tokens, a user-defined one, 256 bytes, and merges over them.
#ifndef KFM_TEST_SMALL_VOCABULARY_H
#define KFM_TEST_SMALL_VOCABULARY_H

#include "gguf_writer.h"
#include "model/gguf.h"

enum { END_OF_TEXT, IM_START, IM_END, USER_DEFINED, FIRST_BYTE, FIRST_MERGED = FIRST_BYTE + 256 };

static const char *const merges[][2] = {{"a", "b"},  {"b", "c"},  {"ab", "c"},      {"a", "a"},   {"aa", "aa"},
                                        {" ", "a"},  {" a", "b"}, {"c", "c"},       {"\n", "\n"}, {"abc", "abc"},
                                        {"r", "\n"}, {"\n", "H"}, {"\xc3", "\xa9"}, {"1", "2"},   {"'", "s"}};
enum { MERGES = sizeof merges / sizeof merges[0], SMALL_VOCABULARY = FIRST_MERGED + MERGES };

// A byte's character in GPT-2's alphabet, as UTF-8; returns its length.
static inline int alphabet(int byte, char out[2]) {
    int c = byte;
    if (!((byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae)) {
        c = 256;
        for (int b = 0; b < byte; b++) c += !((b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae);
    }
    if (c < 0x80)
        out[0] = (char)c;
    else
        out[0] = (char)(0xc0 | c >> 6), out[1] = (char)(0x80 | (c & 63));
    return c < 0x80 ? 1 : 2;
}

static inline size_t to_alphabet(const char *bytes, size_t n, char *out) {
    size_t length = 0;
    for (size_t i = 0; i < n; i++) length += (size_t)alphabet((unsigned char)bytes[i], out + length);
    return length;
}

static inline void put_token(gguf_writer *w, const char *bytes, size_t n) {
    char text[64];
    size_t length = to_alphabet(bytes, n, text);
    gguf_put_int(w, length, 8);
    gguf_put(w, text, length);
}

static const char small_template[] = "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nBe "
                                     "brief.<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + message['role']}}";

// Options that break one thing each.
typedef struct vocabulary {
    const char *model, *pre, *chat_template, *bad_merge;
    int without_byte; // −1: none
    uint64_t types;   // number of types; 0: as many as tokens
    uint32_t odd_type, eos;
} vocabulary;

static const vocabulary right_vocabulary = {"gpt2", "smollm", small_template, NULL, -1, 0, 3, IM_END};

// The metadata of a tokeniser; between gguf_begin and the tensors.
static inline void put_vocabulary(gguf_writer *w, const vocabulary *v) {
    static const char *const special[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>"};
    if (v->model != NULL) gguf_key_text(w, "tokenizer.ggml.model", v->model);
    gguf_key_text(w, "tokenizer.ggml.pre", v->pre);
    gguf_key_array(w, "tokenizer.ggml.tokens", KFM_GGUF_STRING, FIRST_MERGED + MERGES);
    for (int i = 0; i < 4; i++) gguf_put_text(w, special[i]);
    for (int byte = 0; byte < 256; byte++) {
        if (byte == v->without_byte)
            gguf_put_text(w, "unreachable text");
        else
            put_token(w, &(char){(char)byte}, 1);
    }
    for (int i = 0; i < MERGES; i++) {
        char both[32];
        snprintf(both, sizeof both, "%s%s", merges[i][0], merges[i][1]);
        put_token(w, both, strlen(both));
    }
    uint64_t types = v->types != 0 ? v->types : FIRST_MERGED + MERGES;
    gguf_key_array(w, "tokenizer.ggml.token_type", KFM_GGUF_INT32, types);
    for (uint64_t i = 0; i < types; i++) gguf_put_int(w, i == 0 ? v->odd_type : i < 3 ? 3 : i == 3 ? 4 : 1, 4);
    gguf_key_array(w, "tokenizer.ggml.merges", KFM_GGUF_STRING, MERGES + (v->bad_merge != NULL));
    for (int i = 0; i < MERGES; i++) {
        char text[64];
        size_t n = to_alphabet(merges[i][0], strlen(merges[i][0]), text);
        text[n++] = ' ';
        n += to_alphabet(merges[i][1], strlen(merges[i][1]), text + n);
        gguf_put_int(w, n, 8);
        gguf_put(w, text, n);
    }
    if (v->bad_merge != NULL) gguf_put_text(w, v->bad_merge);
    gguf_key_u32(w, "tokenizer.ggml.eos_token_id", v->eos);
    if (v->chat_template != NULL) gguf_key_text(w, "tokenizer.chat_template", v->chat_template);
}

#endif
