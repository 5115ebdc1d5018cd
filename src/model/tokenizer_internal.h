// SPDX-License-Identifier: Apache-2.0
// What the tokeniser's two halves share: tokenizer.c reads the vocabulary, encode.c applies it.
#ifndef KFM_TOKENIZER_INTERNAL_H
#define KFM_TOKENIZER_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "model/tokenizer.h"

// Token types of the format.
enum {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_USER_DEFINED = 4,
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6
};

// A merge joins the tokens left and right into `result`; lower ranks go first. An open-addressed table; rank −1: free.
typedef struct merge {
    int32_t left, right, rank, result;
} merge;

struct kfm_tokenizer {
    int32_t count;
    char *text;              // of all tokens, decoded to bytes, one after the other
    uint64_t *offset;        // [count + 1] into text
    uint8_t *type;           // [count]
    int32_t byte_token[256]; // −1: the vocabulary has none

    merge *merges;
    uint32_t merge_mask; // the table's size − 1

    // Tokens that are found in text before words are: grouped by first byte, longer ones first.
    int32_t *special;
    int32_t special_start[257];

    pcre2_code *pattern;
    int32_t bos, eos, eot, im_start, im_end, end_of_text; // −1: none
    bool add_bos, chatml;
    char *default_system;
};

static inline uint32_t kfm_hash_pair(int32_t left, int32_t right) {
    uint64_t x =
        ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * UINT64_C(0x9e3779b97f4a7c15); // 2^64 / golden ratio
    return (uint32_t)(x >> 32);
}

#endif
