// SPDX-License-Identifier: Apache-2.0
// Writes the seeds of tests/fuzz/corpus_gguf into the folder that it is given: an empty file with a header, one with a
// value and a tensor of every kind, and a vocabulary that a tokeniser accepts. Inputs that once found something stand
// beside them.
#include "../gguf_writer.h"

static void save(gguf_writer *w, const char *folder, const char *name) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(w->bytes, 1, w->count, file) != w->count || fclose(file) != 0) abort();
    gguf_free(w);
}

static void write_kinds(gguf_writer *w) {
    static const unsigned char types[][2] = {
        {0, 4},  {1, 2},  {30, 2},   {2, 18},   {3, 20},  {6, 22},
        {7, 24}, {8, 34}, {12, 144}, {13, 176}, {14, 210}}; // type, bytes of a block
    static const unsigned char scalars[][2] = {{0, 1}, {1, 1}, {2, 2},  {3, 2},  {4, 4}, {5, 4},
                                               {6, 4}, {7, 1}, {10, 8}, {11, 8}, {12, 8}}; // type, bytes
    char name[16];
    gguf_begin(w);
    for (size_t i = 0; i < sizeof scalars / sizeof scalars[0]; i++) {
        snprintf(name, sizeof name, "%c", 'a' + (int)i);
        gguf_key_int(w, name, scalars[i][0], 1, scalars[i][1]);
    }
    gguf_key_text(w, "general.architecture", "llama");
    gguf_key_u32(w, "general.alignment", 8);
    w->alignment = 8;
    gguf_key_array(w, "tokenizer.ggml.tokens", 8, 2);
    gguf_put_text(w, "x");
    gguf_put_text(w, "");
    gguf_key_array(w, "tokenizer.ggml.merges", 5, 2);
    gguf_put_int(w, 7, 8);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        snprintf(name, sizeof name, "t%zu", i);
        uint64_t block = types[i][0] >= 12 && types[i][0] != 30 ? 256 : types[i][1] > 4 ? 32 : 1;
        gguf_tensor(w, name, types[i][0], 2, (uint64_t[]){block, 1}, types[i][1]);
    }
    gguf_end(w);
    gguf_put_int(w, 0, (int)w->data_bytes);
}

static void write_vocabulary(gguf_writer *w) {
    static const char *const tokens[] = {
        "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>", "a", "b",        "aa", "aab",
        "\xc4\xa0",      "\xc4\xa0\x69", "i",          "'",      "s", "\xc4\x8a", "1"};
    static const unsigned char types[] = {3, 3, 3, 4, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    enum { TOKENS = sizeof types };
    gguf_begin(w);
    gguf_key_text(w, "tokenizer.ggml.model", "gpt2");
    gguf_key_text(w, "tokenizer.ggml.pre", "smollm");
    gguf_key_array(w, "tokenizer.ggml.tokens", 8, TOKENS);
    for (int i = 0; i < TOKENS; i++) gguf_put_text(w, tokens[i]);
    gguf_key_array(w, "tokenizer.ggml.token_type", 5, TOKENS);
    for (int i = 0; i < TOKENS; i++) gguf_put_int(w, types[i], 4);
    gguf_key_array(w, "tokenizer.ggml.merges", 8, 3);
    gguf_put_text(w, "a a");
    gguf_put_text(w, "aa b");
    gguf_put_text(w, "\xc4\xa0 i");
    gguf_key_u32(w, "tokenizer.ggml.bos_token_id", 1);
    gguf_key_u32(w, "tokenizer.ggml.eos_token_id", 2);
    gguf_key_int(w, "tokenizer.ggml.add_bos_token", 7, 1, 1);
    gguf_key_text(w, "tokenizer.chat_template", "{{ '<|im_start|>system\\nBe brief.<|im_end|>\\n' }}");
    gguf_end(w);
}

int main(int argc, char **argv) {
    gguf_writer w;
    if (argc != 2) return 2;
    gguf_begin(&w);
    gguf_end(&w);
    save(&w, argv[1], "header.gguf");
    write_kinds(&w);
    save(&w, argv[1], "kinds.gguf");
    write_vocabulary(&w);
    save(&w, argv[1], "vocabulary.gguf");
    return 0;
}
