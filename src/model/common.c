// SPDX-License-Identifier: Apache-2.0
// Errors as sentences, strings that are not terminated, and UTF-8: see common.h.
#include "model/common.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void kfm_set_error(kfm_error *error, const char *format, ...) {
    if (error == NULL) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
}

static _Thread_local int64_t allocations_to_failure; // 0: none fails

int64_t kfm_fail_allocation(int64_t n) {
    int64_t left = allocations_to_failure;
    allocations_to_failure = n;
    return left;
}

static bool may_allocate(uint64_t count, size_t size) {
    if (allocations_to_failure > 0 && --allocations_to_failure == 0) return false;
    return size == 0 || count < SIZE_MAX / size;
}

void *kfm_alloc(uint64_t count, size_t size) {
    return may_allocate(count, size) ? calloc((size_t)count + 1, size) : NULL;
}

void *kfm_grow(void *memory, uint64_t count, size_t size) {
    return may_allocate(count, size) ? realloc(memory, (size_t)(count + 1) * size) : NULL;
}

void *kfm_alloc_aligned(size_t bytes, size_t alignment) {
    size_t whole = bytes + (alignment - bytes % alignment) % alignment;
    if (whole < bytes || !may_allocate(1, 1)) return NULL;
    return aligned_alloc(alignment, whole == 0 ? alignment : whole);
}

void kfm_free(void *memory) { free(memory); }

const char *kfm_printable(kfm_string name, char shown[KFM_NAME_SHOWN]) {
    const size_t room = KFM_NAME_SHOWN - 4; // "..." and the terminator
    size_t n = name.length < room ? name.length : room;
    for (size_t i = 0; i < n; i++) shown[i] = name.bytes[i] >= 0x20 && name.bytes[i] < 0x7f ? name.bytes[i] : '?';
    strcpy(shown + n, name.length > room ? "..." : "");
    return shown;
}

bool kfm_string_is(kfm_string s, const char *text) {
    return s.length == strlen(text) && (s.length == 0 || memcmp(s.bytes, text, s.length) == 0);
}

int kfm_utf8_length(const char *bytes, size_t length) {
    const unsigned char *b = (const unsigned char *)bytes;
    if (length == 0) return -1;
    if (b[0] < 0x80) return 1;
    int n = b[0] >= 0xc2 && b[0] <= 0xdf ? 2 : (b[0] & 0xf0) == 0xe0 ? 3 : b[0] >= 0xf0 && b[0] <= 0xf4 ? 4 : 0;
    if (n == 0) return 0;
    // The second byte's range shuts out overlong forms (E0, F0), surrogates (ED) and what lies above U+10FFFF (F4).
    unsigned char lo = b[0] == 0xe0 ? 0xa0 : b[0] == 0xf0 ? 0x90 : 0x80;
    unsigned char hi = b[0] == 0xed ? 0x9f : b[0] == 0xf4 ? 0x8f : 0xbf;
    for (int i = 1; i < n; i++) {
        if ((size_t)i == length) return -1;
        if (b[i] < lo || b[i] > hi) return 0;
        lo = 0x80;
        hi = 0xbf;
    }
    return n;
}

static size_t put_replacement(char *out) {
    memcpy(out, "\xef\xbf\xbd", 3); // U+FFFD
    return 3;
}

size_t kfm_utf8_push(kfm_utf8 *stream, const char *bytes, size_t n, char *out) {
    size_t written = 0;
    for (size_t i = 0; i < n;) {
        stream->pending[stream->count] = bytes[i];
        int length = kfm_utf8_length(stream->pending, (size_t)stream->count + 1);
        if (length < 0) { // begun, not complete
            stream->count++;
            i++;
        } else if (length > 0) {
            memcpy(out + written, stream->pending, (size_t)length);
            written += (size_t)length;
            stream->count = 0;
            i++;
        } else { // no UTF-8: what was begun is given up, and this byte is looked at again as a first one
            written += put_replacement(out + written);
            if (stream->count == 0) i++;
            stream->count = 0;
        }
    }
    return written;
}

size_t kfm_utf8_finish(kfm_utf8 *stream, char *out) {
    if (stream->count == 0) return 0;
    stream->count = 0;
    return put_replacement(out);
}
