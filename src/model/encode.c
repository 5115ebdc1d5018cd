// SPDX-License-Identifier: Apache-2.0
// Text to tokens: special tokens first, then words, then merges within each word. See tokenizer.h.
//
// A word's tokens stand in a doubly linked list, one node for each byte at first. Each pair of neighbours that a merge
// joins waits in a binary heap, ordered by rank and then by place. A pair that is taken out is joined if it still
// stands as it was; its new neighbourhood goes into the heap. n bytes make at most n − 1 joins, each with two new
// pairs, so at most 3n entries.
#include "model/tokenizer_internal.h"

#include <string.h>

// Texts above this are refused: places are 32-bit, and a heap has 3n entries.
#define MAX_TEXT ((size_t)1 << 28)

typedef struct node {
    int32_t id;             // −1: joined into another, or a byte without token
    int32_t previous, next; // −1: none
} node;

typedef struct pair {
    int32_t rank, at, left, right, result;
} pair;

typedef struct scratch {
    node *nodes;
    pair *heap;
    size_t capacity; // bytes of a word that fit
    int32_t heap_count;
    pcre2_match_data *match;
} scratch;

bool kfm_ids_push(kfm_ids *ids, int32_t id, kfm_error *error) {
    if (ids->count == ids->capacity) {
        int64_t capacity = ids->capacity < 64 ? 64 : 2 * ids->capacity;
        int32_t *grown = kfm_grow(ids->id, (uint64_t)capacity, sizeof *grown);
        if (grown == NULL) return kfm_fail(error, "out of memory for %lld tokens", (long long)capacity);
        ids->id = grown;
        ids->capacity = capacity;
    }
    ids->id[ids->count++] = id;
    return true;
}

void kfm_ids_free(kfm_ids *ids) {
    kfm_free(ids->id);
    *ids = (kfm_ids){0};
}

// ---- the heap ----

static bool before(pair a, pair b) { return a.rank != b.rank ? a.rank < b.rank : a.at < b.at; }

static void push_pair(scratch *s, pair p) {
    int32_t i = s->heap_count++;
    for (; i > 0 && before(p, s->heap[(i - 1) / 2]); i = (i - 1) / 2) s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = p;
}

static pair pop_pair(scratch *s) {
    pair top = s->heap[0], last = s->heap[--s->heap_count];
    int32_t i = 0;
    for (;;) {
        int32_t child = 2 * i + 1;
        if (child >= s->heap_count) break;
        if (child + 1 < s->heap_count && before(s->heap[child + 1], s->heap[child])) child++;
        if (!before(s->heap[child], last)) break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

// ---- one word ----

// The pair of node `at` and its neighbour goes into the heap if a merge joins them.
static void offer_pair(const kfm_tokenizer *t, scratch *s, int32_t at) {
    if (at < 0 || s->nodes[at].next < 0) return;
    int32_t left = s->nodes[at].id, right = s->nodes[s->nodes[at].next].id;
    if (left < 0 || right < 0) return;
    for (uint32_t i = kfm_hash_pair(left, right) & t->merge_mask; t->merges[i].rank >= 0; i = (i + 1) & t->merge_mask)
        if (t->merges[i].left == left && t->merges[i].right == right) {
            push_pair(s, (pair){t->merges[i].rank, at, left, right, t->merges[i].result});
            return;
        }
}

static void join(const kfm_tokenizer *t, scratch *s, pair p) {
    node *left = &s->nodes[p.at];
    if (left->id != p.left || left->next < 0 || s->nodes[left->next].id != p.right) return; // joined elsewhere since
    node *right = &s->nodes[left->next];
    left->id = p.result;
    left->next = right->next;
    if (right->next >= 0) s->nodes[right->next].previous = p.at;
    right->id = -1;
    offer_pair(t, s, left->previous);
    offer_pair(t, s, p.at);
}

static bool reserve(scratch *s, size_t n, kfm_error *error) {
    if (n <= s->capacity) return true;
    size_t capacity = n < 64 ? 64 : n + n / 2;
    kfm_free(s->nodes);
    kfm_free(s->heap);
    s->nodes = kfm_alloc(capacity, sizeof *s->nodes);
    s->heap = kfm_alloc(3 * capacity, sizeof *s->heap);
    s->capacity = s->nodes == NULL || s->heap == NULL ? 0 : capacity;
    return s->capacity != 0 || kfm_fail(error, "out of memory for a word of %zu bytes", n);
}

static bool encode_word(const kfm_tokenizer *t, scratch *s, const char *word, size_t n, kfm_ids *ids,
                        kfm_error *error) {
    if (!reserve(s, n, error)) return false;
    int32_t count = (int32_t)n;
    for (int32_t i = 0; i < count; i++) {
        s->nodes[i] = (node){t->byte_token[(unsigned char)word[i]], i - 1, i + 1 < count ? i + 1 : -1};
        ids->left_out += s->nodes[i].id < 0;
    }
    s->heap_count = 0;
    for (int32_t i = 0; i < count; i++) offer_pair(t, s, i);
    while (s->heap_count > 0) join(t, s, pop_pair(s));
    for (int32_t i = 0; i >= 0; i = s->nodes[i].next) // node 0 is never joined into one before it
        if (s->nodes[i].id >= 0 && !kfm_ids_push(ids, s->nodes[i].id, error)) return false;
    return true;
}

// ---- words ----

// Words of n bytes of UTF-8.
static bool encode_words(const kfm_tokenizer *t, scratch *s, const char *text, size_t n, kfm_ids *ids,
                         kfm_error *error) {
    for (size_t at = 0; at < n;) {
        int found = pcre2_match(t->pattern, (PCRE2_SPTR)text, n, at, PCRE2_NO_UTF_CHECK, s->match, NULL);
        if (found < 0) return kfm_fail(error, "PCRE2 cannot split the text at byte %zu (error %d)", at, found);
        PCRE2_SIZE *span = pcre2_get_ovector_pointer(s->match);
        if (!encode_word(t, s, text + span[0], span[1] - span[0], ids, error)) return false;
        at = span[1];
    }
    return true;
}

// Plain text. Each run of UTF-8 is split into words; each run of other bytes is a word.
static bool encode_plain(const kfm_tokenizer *t, scratch *s, const char *text, size_t n, kfm_ids *ids,
                         kfm_error *error) {
    for (size_t at = 0; at < n;) {
        size_t end = at;
        for (int length; end < n && (length = kfm_utf8_length(text + end, n - end)) > 0;) end += (size_t)length;
        if (!encode_words(t, s, text + at, end - at, ids, error)) return false;
        at = end;
        while (end < n && kfm_utf8_length(text + end, n - end) <= 0) end++;
        if (end > at && !encode_word(t, s, text + at, end - at, ids, error)) return false;
        at = end;
    }
    return true;
}

// ---- special tokens ----

// The longest special token that the text begins with; −1 where there is none.
static int32_t special_at(const kfm_tokenizer *t, const char *text, size_t n, bool special) {
    unsigned char first = (unsigned char)text[0];
    for (int32_t i = t->special_start[first]; i < t->special_start[first + 1]; i++) {
        int32_t id = t->special[i];
        size_t length = (size_t)(t->offset[id + 1] - t->offset[id]);
        if (!special && t->type[id] != TOKEN_USER_DEFINED) continue;
        if (length <= n && memcmp(text, t->text + t->offset[id], length) == 0) return id;
    }
    return -1;
}

static bool encode_fragments(const kfm_tokenizer *t, scratch *s, const char *text, size_t n, bool special, kfm_ids *ids,
                             kfm_error *error) {
    size_t start = 0;
    for (size_t at = 0; at < n;) {
        int32_t id = special_at(t, text + at, n - at, special);
        if (id < 0) {
            at++;
            continue;
        }
        if (!encode_plain(t, s, text + start, at - start, ids, error) || !kfm_ids_push(ids, id, error)) return false;
        at += (size_t)(t->offset[id + 1] - t->offset[id]);
        start = at;
    }
    return encode_plain(t, s, text + start, n - start, ids, error);
}

bool kfm_encode(const kfm_tokenizer *t, const char *text, size_t length, bool special, kfm_ids *ids, kfm_error *error) {
    if (length > MAX_TEXT) return kfm_fail(error, "the text has %zu bytes; %zu are allowed", length, MAX_TEXT);
    scratch s = {.match = pcre2_match_data_create(1, NULL)};
    bool ok =
        s.match != NULL ? encode_fragments(t, &s, text, length, special, ids, error) : kfm_fail(error, "out of memory");
    pcre2_match_data_free(s.match);
    kfm_free(s.nodes);
    kfm_free(s.heap);
    return ok;
}

// ---- ChatML ----

bool kfm_chat_check(const kfm_tokenizer *t, kfm_error *error) {
    return t->chatml || kfm_fail(error, "the model's chat template is not ChatML, the one that keyfold writes");
}

// "user\nHello" is one text, for its newline may be part of a word with what follows.
bool kfm_chat_message(const kfm_tokenizer *t, const char *role, const char *content, size_t length, kfm_ids *ids,
                      kfm_error *error) {
    if (!kfm_chat_check(t, error)) return false;
    size_t head = strlen(role) + 1;
    char *text = length > MAX_TEXT ? NULL : kfm_alloc(head + length, 1);
    if (text == NULL) return kfm_fail(error, "out of memory for a message of %zu bytes", length);
    memcpy(text, role, head - 1);
    text[head - 1] = '\n';
    if (length > 0) memcpy(text + head, content, length);
    bool ok = kfm_ids_push(ids, t->im_start, error) && kfm_encode(t, text, head + length, false, ids, error) &&
              kfm_ids_push(ids, t->im_end, error) && kfm_encode(t, "\n", 1, false, ids, error);
    kfm_free(text);
    return ok;
}

bool kfm_chat_answer(const kfm_tokenizer *t, kfm_ids *ids, kfm_error *error) {
    static const char head[] = "assistant\n";
    return kfm_chat_check(t, error) && kfm_ids_push(ids, t->im_start, error) &&
           kfm_encode(t, head, sizeof head - 1, false, ids, error);
}

bool kfm_chat_after_answer(const kfm_tokenizer *t, kfm_ids *ids, kfm_error *error) {
    return kfm_chat_check(t, error) && kfm_encode(t, "\n", 1, false, ids, error);
}
