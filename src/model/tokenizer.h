// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE (Sennrich et al., arXiv 1508.07909; GPT-2's bytes): text to token ids and back, with the vocabulary
// and merges of a GGUF file.
//
//   text -> fragments between special tokens -> words (the pattern of `tokenizer.ggml.pre`) -> bytes, one token each ->
//   of all neighbours that a merge joins, the ones with the lowest rank are joined, the leftmost first, until none is
//   left
//
// A word of n bytes costs O(n log n): neighbours wait in a heap, and tokens stand in a linked list. Read here: model
// `gpt2` with pre `smollm`.
//
// Bytes that are no UTF-8 are tokens of their own, so that every text can be encoded. A byte that has no token in the
// vocabulary is left out, as other implementations do, and is counted.
//
// A tokeniser is immutable and may be shared by threads. It keeps nothing of the GGUF file, which may be closed.
#ifndef KFM_TOKENIZER_H
#define KFM_TOKENIZER_H

#include "model/gguf.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kfm_tokenizer kfm_tokenizer;

// A list of token ids that grows. Zero-initialise it; kfm_ids_free gives its memory back.
typedef struct kfm_ids {
    int32_t *id;
    int64_t count, capacity;
    int64_t left_out; // bytes of text that have no token
} kfm_ids;

bool kfm_ids_push(kfm_ids *ids, int32_t id, kfm_error *error);
void kfm_ids_free(kfm_ids *ids);

bool kfm_tokenizer_open(kfm_tokenizer **out, const kfm_gguf *gguf, kfm_error *error);
void kfm_tokenizer_close(kfm_tokenizer *tokenizer);

int32_t kfm_tokenizer_count(const kfm_tokenizer *tokenizer);
// The token that a text begins with, where the file asks for one; −1 where it does not.
int32_t kfm_tokenizer_bos(const kfm_tokenizer *tokenizer);
// Whether the token ends an answer: the file's end of sequence or of turn, <|im_end|>, <|endoftext|>.
bool kfm_tokenizer_is_end(const kfm_tokenizer *tokenizer, int32_t id);
// The token with this text, special or not; −1 where there is none.
int32_t kfm_tokenizer_find(const kfm_tokenizer *tokenizer, const char *text);

// Appends the tokens of `length` bytes of text. special: text such as <|im_end|> is that token; otherwise it is plain
// text, which is what text from strangers must be. Tokens that the file calls user-defined are recognised in both.
bool kfm_encode(const kfm_tokenizer *tokenizer, const char *text, size_t length, bool special, kfm_ids *ids,
                kfm_error *error);

// A token's bytes: not terminated, and not always whole characters (kfm_utf8_push). Control tokens give their text.
// Empty for an id out of range.
kfm_string kfm_token_bytes(const kfm_tokenizer *tokenizer, int32_t id);
// Whether the token is one that steers a model (<|im_start|>), no text that a reader should see.
bool kfm_token_is_control(const kfm_tokenizer *tokenizer, int32_t id);

// ChatML: <|im_start|>ROLE\nCONTENT<|im_end|>\n for each message, then <|im_start|>assistant\n, after which the model
// writes. CONTENT is plain text: no message can imitate the end of itself.
bool kfm_chat_check(const kfm_tokenizer *tokenizer, kfm_error *error); // false: the model's template is another
bool kfm_chat_message(const kfm_tokenizer *tokenizer, const char *role, const char *content, size_t length,
                      kfm_ids *ids, kfm_error *error);
bool kfm_chat_answer(const kfm_tokenizer *tokenizer, kfm_ids *ids, kfm_error *error);
// What stands between an answer's <|im_end|> and the next message.
bool kfm_chat_after_answer(const kfm_tokenizer *tokenizer, kfm_ids *ids, kfm_error *error);
// The system message that the model's template puts first where a conversation has none; NULL where it does not.
const char *kfm_chat_default_system(const kfm_tokenizer *tokenizer);

#ifdef __cplusplus
}
#endif
#endif
