// SPDX-License-Identifier: Apache-2.0
// Reads a tokeniser out of GGUF metadata: tokens (their text in GPT-2's alphabet of bytes), their types, merges ("left
// right", by rank), special ids and the chat template. Texts are looked up in a hash table that lives while the file is
// read; later only ids are needed.
#include "model/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

// A vocabulary beyond this is a broken file: the largest in use have about 2^18 tokens, and ids are 32-bit.
#define MAX_TOKENS (INT64_C(1) << 24)

// Splits text into words. GPT-2's pattern, with each digit (any \p{N}) a word of its own first. W is White_Space of
// Unicode, written out, for \s of PCRE2 holds fewer (without UCP) or more (with it) characters. Possessive (++), for no
// word is ever given back; \s+ alone gives its last character to the word that follows.
#define W "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
static const char smollm_pattern[] = "\\p{N}"
                                     "|'s|'t|'re|'ve|'m|'ll|'d"
                                     "| ?\\p{L}++"
                                     "| ?[^" W "\\p{L}\\p{N}]++"
                                     "|[" W "]+(?![^" W "\\p{N}])"
                                     "|[" W "]+";

// ---- GPT-2's alphabet: the byte that a character of a token's text stands for ----

// Bytes 21-7E, A1-AC and AE-FF stand for themselves; the other 68 are U+0100, U+0101, … in order.
static bool stands_for_itself(int byte) {
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

enum { ALPHABET_END = 0x100 + 68 };

static void make_alphabet(int16_t byte_of[ALPHABET_END]) {
    for (int c = 0; c < ALPHABET_END; c++) byte_of[c] = -1;
    int next = 0x100;
    for (int byte = 0; byte < 256; byte++) byte_of[stands_for_itself(byte) ? byte : next++] = (int16_t)byte;
}

// Decodes a token's text into bytes, of which there are at most text.length. Returns −1 where a character is not of the
// alphabet.
static int64_t decode_text(const int16_t byte_of[ALPHABET_END], kfm_string text, char *bytes) {
    int64_t n = 0;
    for (size_t at = 0; at < text.length;) {
        const unsigned char *p = (const unsigned char *)text.bytes + at;
        int length = kfm_utf8_length(text.bytes + at, text.length - at);
        int c = length == 1 ? p[0] : length == 2 ? (p[0] & 0x1f) << 6 | (p[1] & 0x3f) : -1;
        if (c < 0 || c >= ALPHABET_END || byte_of[c] < 0) return -1;
        bytes[n++] = (char)byte_of[c];
        at += (size_t)length;
    }
    return n;
}

// ---- tokens by their text, while the file is read ----

typedef struct texts {
    kfm_string *text; // [count]
    int32_t *slot;    // open-addressed; −1: free
    uint32_t mask;
} texts;

#define FNV_OFFSET UINT64_C(0xcbf29ce484222325)

static uint64_t fnv1a(uint64_t hash, kfm_string s) { // Fowler, Noll, Vo
    for (size_t i = 0; i < s.length; i++) hash = (hash ^ (unsigned char)s.bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static uint32_t fold(uint64_t hash) { return (uint32_t)(hash ^ hash >> 32); }

// The token whose text is a followed by b; −1 where there is none.
static int32_t find_text(const texts *t, kfm_string a, kfm_string b) {
    for (uint32_t i = fold(fnv1a(fnv1a(FNV_OFFSET, a), b)) & t->mask; t->slot[i] >= 0; i = (i + 1) & t->mask) {
        kfm_string s = t->text[t->slot[i]];
        if (s.length == a.length + b.length && memcmp(s.bytes, a.bytes, a.length) == 0 &&
            memcmp(s.bytes + a.length, b.bytes, b.length) == 0)
            return t->slot[i];
    }
    return -1;
}

static int32_t find_word(const texts *t, const char *word) {
    return find_text(t, (kfm_string){word, strlen(word)}, (kfm_string){"", 0});
}

// A power of two that leaves a table of n entries at least half empty; n is at most 2^24 here.
static uint32_t table_size(uint64_t n) {
    uint32_t size = 16;
    while (size < 2 * n) size *= 2;
    return size;
}

static bool open_texts(texts *t, kfm_gguf_array tokens, kfm_error *error) {
    uint32_t size = table_size(tokens.count);
    t->mask = size - 1;
    t->text = kfm_alloc(tokens.count, sizeof *t->text);
    t->slot = kfm_alloc(size, sizeof *t->slot);
    if (t->text == NULL || t->slot == NULL)
        return kfm_fail(error, "out of memory for %llu tokens", (unsigned long long)tokens.count);
    memset(t->slot, -1, size * sizeof *t->slot);
    int32_t count = (int32_t)tokens.count;
    for (int32_t id = 0; id < count; id++) {
        t->text[id] = kfm_gguf_next_string(&tokens);
        if (find_text(t, t->text[id], (kfm_string){"", 0}) >= 0)
            continue; // a text that is there twice is the first token's
        uint32_t i = fold(fnv1a(FNV_OFFSET, t->text[id])) & t->mask;
        while (t->slot[i] >= 0) i = (i + 1) & t->mask;
        t->slot[i] = id;
    }
    return true;
}

static void close_texts(texts *t) {
    kfm_free(t->text);
    kfm_free(t->slot);
}

// ---- the parts of the vocabulary ----

static bool read_types(kfm_tokenizer *t, const kfm_gguf *g, kfm_error *error) {
    kfm_gguf_array types;
    if (!kfm_gguf_find_array(g, "tokenizer.ggml.token_type", false, KFM_GGUF_INT32, &types, error)) return false;
    if (types.count != 0 && types.count != (uint64_t)t->count)
        return kfm_fail(error, "key 'tokenizer.ggml.token_type' has %llu elements for %d tokens",
                        (unsigned long long)types.count, t->count);
    bool given = types.count != 0;
    for (int32_t id = 0; id < t->count; id++) {
        int64_t type = given ? kfm_gguf_next_int32(&types) : TOKEN_NORMAL;
        if (type < 0 || type > TOKEN_BYTE)
            return kfm_fail(error, "token %d has the type %lld; 0 to %d are known", id, (long long)type, TOKEN_BYTE);
        t->type[id] = (uint8_t)type;
    }
    return true;
}

static bool read_tokens(kfm_tokenizer *t, const texts *all, kfm_error *error) {
    int16_t byte_of[ALPHABET_END];
    make_alphabet(byte_of);
    uint64_t bytes = 1; // texts lie in one file, so that their sum fits
    for (int32_t id = 0; id < t->count; id++) bytes += all->text[id].length;
    t->text = kfm_alloc(bytes, 1);
    if (t->text == NULL) return kfm_fail(error, "out of memory for the tokens' texts");
    memset(t->byte_token, -1, sizeof t->byte_token);
    uint64_t at = 0;
    for (int32_t id = 0; id < t->count; id++) {
        kfm_string text = all->text[id];
        bool coded = t->type[id] == TOKEN_NORMAL || t->type[id] == TOKEN_BYTE;
        int64_t n = coded ? decode_text(byte_of, text, t->text + at) : -1;
        if (n < 0) { // special tokens are written as they are
            if (text.length > 0) memcpy(t->text + at, text.bytes, text.length);
            n = (int64_t)text.length;
        } else if (n == 1 && t->byte_token[(unsigned char)t->text[at]] < 0) {
            t->byte_token[(unsigned char)t->text[at]] = id;
        }
        t->offset[id] = at;
        at += (uint64_t)n;
    }
    t->offset[t->count] = at;
    return true;
}

static void add_merge(kfm_tokenizer *t, merge m) {
    uint32_t i = kfm_hash_pair(m.left, m.right) & t->merge_mask;
    for (; t->merges[i].rank >= 0; i = (i + 1) & t->merge_mask)
        if (t->merges[i].left == m.left && t->merges[i].right == m.right) return; // the first of two has the lower rank
    t->merges[i] = m;
}

static bool read_merges(kfm_tokenizer *t, const kfm_gguf *g, const texts *all, kfm_error *error) {
    kfm_gguf_array list;
    if (!kfm_gguf_find_array(g, "tokenizer.ggml.merges", true, KFM_GGUF_STRING, &list, error)) return false;
    if (list.count > MAX_TOKENS)
        return kfm_fail(error, "key 'tokenizer.ggml.merges' has %llu elements; %lld are allowed",
                        (unsigned long long)list.count, (long long)MAX_TOKENS);
    uint32_t size = table_size(list.count);
    t->merge_mask = size - 1;
    t->merges = kfm_alloc(size, sizeof *t->merges);
    if (t->merges == NULL) return kfm_fail(error, "out of memory for %llu merges", (unsigned long long)list.count);
    memset(t->merges, -1, size * sizeof *t->merges);
    int32_t count = (int32_t)list.count;
    for (int32_t rank = 0; rank < count; rank++) {
        char shown[KFM_NAME_SHOWN];
        kfm_string text = kfm_gguf_next_string(&list);
        const char *space = text.length < 3 ? NULL : memchr(text.bytes + 1, ' ', text.length - 2);
        if (space == NULL)
            return kfm_fail(error, "merge %d, '%s', is not two tokens with a space between", rank,
                            kfm_printable(text, shown));
        kfm_string left = {text.bytes, (size_t)(space - text.bytes)};
        kfm_string right = {space + 1, text.length - left.length - 1};
        merge m = {find_text(all, left, (kfm_string){"", 0}), find_text(all, right, (kfm_string){"", 0}), rank,
                   find_text(all, left, right)};
        if (m.left < 0 || m.right < 0 || m.result < 0)
            return kfm_fail(error, "merge %d, '%s', has a part or a result that is no token", rank,
                            kfm_printable(text, shown));
        add_merge(t, m);
    }
    return true;
}

// ---- special tokens ----

static bool is_special(const kfm_tokenizer *t, int32_t id) {
    return (t->type[id] == TOKEN_CONTROL || t->type[id] == TOKEN_USER_DEFINED || t->type[id] == TOKEN_UNKNOWN) &&
           t->offset[id + 1] > t->offset[id];
}

typedef struct special_entry {
    int32_t id;
    unsigned char first;
    uint64_t length;
} special_entry;

static int compare_special(const void *a, const void *b) {
    const special_entry *x = a, *y = b;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    if (x->length != y->length) return x->length > y->length ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static bool index_special(kfm_tokenizer *t, kfm_error *error) {
    int32_t count = 0, at = 0;
    for (int32_t id = 0; id < t->count; id++) count += is_special(t, id);
    special_entry *entries = kfm_alloc((uint64_t)count + 1, sizeof *entries);
    t->special = kfm_alloc((uint64_t)count + 1, sizeof *t->special);
    if (entries == NULL || t->special == NULL) {
        kfm_free(entries);
        return kfm_fail(error, "out of memory for %d special tokens", count);
    }
    for (int32_t id = 0; id < t->count; id++)
        if (is_special(t, id))
            entries[at++] =
                (special_entry){id, (unsigned char)t->text[t->offset[id]], t->offset[id + 1] - t->offset[id]};
    qsort(entries, (size_t)count, sizeof *entries, compare_special);
    for (int32_t i = 0; i < count; i++) {
        t->special[i] = entries[i].id;
        t->special_start[entries[i].first + 1] = i + 1;
    }
    for (int byte = 0; byte < 256; byte++)
        if (t->special_start[byte + 1] < t->special_start[byte]) t->special_start[byte + 1] = t->special_start[byte];
    kfm_free(entries);
    return true;
}

static bool read_id(const kfm_tokenizer *t, const kfm_gguf *g, const char *key, int32_t *id, kfm_error *error) {
    int64_t value = -1;
    if (!kfm_gguf_integer(g, key, false, 0, t->count - 1, &value, error)) return false;
    *id = (int32_t)value;
    return true;
}

static bool read_special_ids(kfm_tokenizer *t, const kfm_gguf *g, const texts *all, kfm_error *error) {
    if (!read_id(t, g, "tokenizer.ggml.bos_token_id", &t->bos, error) ||
        !read_id(t, g, "tokenizer.ggml.eos_token_id", &t->eos, error) ||
        !read_id(t, g, "tokenizer.ggml.eot_token_id", &t->eot, error) ||
        !kfm_gguf_bool(g, "tokenizer.ggml.add_bos_token", false, &t->add_bos, error))
        return false;
    if (t->add_bos && t->bos < 0)
        return kfm_fail(error,
                        "key 'tokenizer.ggml.add_bos_token' is true, and 'tokenizer.ggml.bos_token_id' is missing");
    t->im_start = find_word(all, "<|im_start|>");
    t->im_end = find_word(all, "<|im_end|>");
    t->end_of_text = find_word(all, "<|endoftext|>");
    return true;
}

// ---- the chat template ----

static const char *find_bytes(kfm_string s, size_t from, const char *wanted) {
    size_t n = strlen(wanted);
    for (size_t at = from; at + n <= s.length; at++)
        if (memcmp(s.bytes + at, wanted, n) == 0) return s.bytes + at;
    return NULL;
}

// A template is a Jinja program, which is not run here. One that is ChatML says <|im_start|>; the system message that
// it puts first by default stands in it as the literal '<|im_start|>system\nTEXT<|im_end|>', and is taken where TEXT is
// literal to its end.
static bool read_template(kfm_tokenizer *t, const kfm_gguf *g, kfm_error *error) {
    static const char head[] = "<|im_start|>system";
    kfm_string jinja = {"", 0};
    if (!kfm_gguf_string(g, "tokenizer.chat_template", false, &jinja, error)) return false;
    t->chatml =
        t->im_start >= 0 && t->im_end >= 0 && (jinja.length == 0 || find_bytes(jinja, 0, "<|im_start|>") != NULL);
    const char *start = find_bytes(jinja, 0, head);
    if (!t->chatml || start == NULL) return true;
    start += sizeof head - 1;
    size_t at = (size_t)(start - jinja.bytes);
    const char *end = find_bytes(jinja, at, "<|im_end|>");
    size_t newline = at < jinja.length && *start == '\n'                            ? 1
                     : at + 1 < jinja.length && start[0] == '\\' && start[1] == 'n' ? 2
                                                                                    : 0;
    if (end == NULL || newline == 0) return true;
    start += newline;
    if (end < start) return true;
    char *out = kfm_alloc((uint64_t)(end - start), 1);
    if (out == NULL) return kfm_fail(error, "out of memory for the chat template");
    size_t n = 0;
    for (; start < end && *start != '\'' && *start != '"' && *start != '{' && *start != '\0'; start++) {
        if (*start == '\\' && start + 1 < end)
            start++, out[n++] = *start == 'n' ? '\n' : *start;
        else
            out[n++] = *start;
    }
    out[n] = '\0';
    if (start == end)
        t->default_system = out;
    else
        kfm_free(out);
    return true;
}

// ---- the whole ----

static bool check_model(const kfm_gguf *g, kfm_error *error) {
    char shown[KFM_NAME_SHOWN];
    kfm_string model, pre = {"default", 7};
    if (!kfm_gguf_string(g, "tokenizer.ggml.model", true, &model, error) ||
        !kfm_gguf_string(g, "tokenizer.ggml.pre", false, &pre, error))
        return false;
    if (!kfm_string_is(model, "gpt2"))
        return kfm_fail(error, "tokenizer model '%s' is not supported; keyfold reads 'gpt2'",
                        kfm_printable(model, shown));
    if (!kfm_string_is(pre, "smollm"))
        return kfm_fail(error, "tokenizer pattern '%s' is not supported; keyfold reads 'smollm'",
                        kfm_printable(pre, shown));
    return true;
}

static bool compile_pattern(kfm_tokenizer *t, kfm_error *error) {
    int code;
    PCRE2_SIZE at;
    t->pattern = pcre2_compile((PCRE2_SPTR)smollm_pattern, sizeof smollm_pattern - 1, PCRE2_UTF, &code, &at, NULL);
    if (t->pattern == NULL)
        return kfm_fail(error, "PCRE2 refuses the tokenizer's pattern at %zu (error %d)", (size_t)at, code);
    pcre2_jit_compile(t->pattern, PCRE2_JIT_COMPLETE); // where it cannot, the pattern is interpreted
    return true;
}

static bool read_vocabulary(kfm_tokenizer *t, const kfm_gguf *g, texts *all, kfm_error *error) {
    kfm_gguf_array tokens;
    if (!check_model(g, error) ||
        !kfm_gguf_find_array(g, "tokenizer.ggml.tokens", true, KFM_GGUF_STRING, &tokens, error))
        return false;
    if (tokens.count < 1 || tokens.count > (uint64_t)MAX_TOKENS)
        return kfm_fail(error, "key 'tokenizer.ggml.tokens' has %llu elements; 1 to %lld are allowed",
                        (unsigned long long)tokens.count, (long long)MAX_TOKENS);
    t->count = (int32_t)tokens.count;
    t->offset = kfm_alloc((uint64_t)t->count + 1, sizeof *t->offset);
    t->type = kfm_alloc((uint64_t)t->count, 1);
    if (t->offset == NULL || t->type == NULL) return kfm_fail(error, "out of memory for %d tokens", t->count);
    return open_texts(all, tokens, error) && read_types(t, g, error) && read_tokens(t, all, error) &&
           read_merges(t, g, all, error) && index_special(t, error) && read_special_ids(t, g, all, error) &&
           read_template(t, g, error) && compile_pattern(t, error);
}

bool kfm_tokenizer_open(kfm_tokenizer **out, const kfm_gguf *g, kfm_error *error) {
    *out = NULL;
    kfm_tokenizer *t = kfm_alloc(1, sizeof *t);
    if (t == NULL) return kfm_fail(error, "out of memory");
    texts all = {0};
    bool ok = read_vocabulary(t, g, &all, error);
    close_texts(&all);
    if (ok)
        *out = t;
    else
        kfm_tokenizer_close(t);
    return ok;
}

void kfm_tokenizer_close(kfm_tokenizer *t) {
    if (t == NULL) return;
    pcre2_code_free(t->pattern);
    kfm_free(t->text);
    kfm_free(t->offset);
    kfm_free(t->type);
    kfm_free(t->merges);
    kfm_free(t->special);
    kfm_free(t->default_system);
    kfm_free(t);
}

int32_t kfm_tokenizer_count(const kfm_tokenizer *t) { return t->count; }

int32_t kfm_tokenizer_bos(const kfm_tokenizer *t) { return t->add_bos ? t->bos : -1; }

bool kfm_tokenizer_is_end(const kfm_tokenizer *t, int32_t id) {
    return id >= 0 && (id == t->eos || id == t->eot || id == t->im_end || id == t->end_of_text);
}

kfm_string kfm_token_bytes(const kfm_tokenizer *t, int32_t id) {
    if (id < 0 || id >= t->count) return (kfm_string){"", 0};
    return (kfm_string){t->text + t->offset[id], (size_t)(t->offset[id + 1] - t->offset[id])};
}

bool kfm_token_is_control(const kfm_tokenizer *t, int32_t id) {
    return id >= 0 && id < t->count && (t->type[id] == TOKEN_CONTROL || t->type[id] == TOKEN_UNKNOWN);
}

int32_t kfm_tokenizer_find(const kfm_tokenizer *t, const char *text) {
    for (int32_t id = 0; id < t->count; id++)
        if (kfm_string_is(kfm_token_bytes(t, id), text)) return id;
    return -1;
}

const char *kfm_chat_default_system(const kfm_tokenizer *t) { return t->default_system; }
