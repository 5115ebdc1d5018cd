// SPDX-License-Identifier: Apache-2.0
// What every part of the model library shares: the sentence of an error, strings that are not terminated, and UTF-8
// (RFC 3629).
//
// A function of the model library that can fail returns false and leaves one sentence in the caller's kfm_error: what
// is wrong, where, and what would be right. Like the library below it, it never prints, exits or aborts.
#ifndef KFM_COMMON_H
#define KFM_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define KFM_PRINTF(text_, first_) __attribute__((format(printf, text_, first_)))
#else
#define KFM_PRINTF(text_, first_)
#endif

typedef struct kfm_error {
    char text[512];
} kfm_error;

// Bytes that belong to someone else (a mapped file, a tokeniser) and end where length says.
typedef struct kfm_string {
    const char *bytes;
    size_t length;
} kfm_string;

// Writes the sentence. A null error is allowed.
void kfm_set_error(kfm_error *error, const char *format, ...) KFM_PRINTF(2, 3);
// The same as an expression that is false: `return kfm_fail(error, …)`.
#define kfm_fail(...) (kfm_set_error(__VA_ARGS__), false)

// All memory of the model library comes from here, so that tests can make any allocation fail. Room for count + 1
// elements, zeroed; NULL where memory is short or the product would wrap.
void *kfm_alloc(uint64_t count, size_t size);
// Grows what kfm_alloc gave (or NULL); the old block stays where NULL is returned.
void *kfm_grow(void *memory, uint64_t count, size_t size);
// Not zeroed, at a multiple of `alignment`, a power of two.
void *kfm_alloc_aligned(size_t bytes, size_t alignment);
void kfm_free(void *memory);
// For tests: the n-th allocation of this thread from now on fails (n = 1: the next); 0: none. Returns how many were
// left to go.
int64_t kfm_fail_allocation(int64_t n);

// A name from a file, made fit for a sentence: what is not printable ASCII becomes '?', what is long is cut and ends in
// "...".
#define KFM_NAME_SHOWN 80
const char *kfm_printable(kfm_string name, char shown[KFM_NAME_SHOWN]);

bool kfm_string_is(kfm_string s, const char *text);

// The length in bytes of the character that starts at bytes[0]: 1 to 4; 0 where the bytes are no UTF-8; −1 where they
// are the beginning of a character that goes on beyond `length`. Overlong forms, surrogates and what lies above
// U+10FFFF are no UTF-8.
int kfm_utf8_length(const char *bytes, size_t length);

// A stream of bytes cut into whole characters. Tokens end anywhere, also within a character; a terminal and a JSON
// string want whole ones.
typedef struct kfm_utf8 {
    char pending[4];
    int count;
} kfm_utf8;

// Takes n bytes, writes the characters that are complete and returns how many bytes they are. What is no UTF-8 becomes
// U+FFFD. `out` has room for KFM_UTF8_ROOM(n).
#define KFM_UTF8_ROOM(n) (3 * ((n) + 4))
size_t kfm_utf8_push(kfm_utf8 *stream, const char *bytes, size_t n, char *out);
// The end of the stream: a character that was begun becomes U+FFFD.
size_t kfm_utf8_finish(kfm_utf8 *stream, char *out);

#ifdef __cplusplus
}
#endif
#endif
