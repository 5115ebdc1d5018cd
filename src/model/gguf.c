// SPDX-License-Identifier: Apache-2.0
// The GGUF reader of gguf.h. One pass: header, key-values, tensors; each read goes through take(), which knows how many
// bytes are left. Then names are sorted, so that a double is found and a look-up costs a binary search, in files with
// many names too.
#define _POSIX_C_SOURCE 200809L // O_CLOEXEC, mmap
#include "model/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// Limits of the format's description, and the fewest bytes that an entry can have.
enum {
    MAX_KEY_LENGTH = 65535,
    MAX_TENSOR_NAME = 64,
    MIN_KEY_VALUE_BYTES = 8 + 1 + 4 + 1, // length, one byte of key, type, one byte of value
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8,
    DEFAULT_ALIGNMENT = 32,
    MAX_ALIGNMENT = 1 << 20 // far above any page or cache line that one would align to
};

typedef struct key_value {
    kfm_string key;
    uint32_t type;    // KFM_GGUF_ARRAY for arrays
    uint32_t element; // of an array; otherwise the type
    uint64_t count;   // of an array; otherwise 1
    const unsigned char *data;
} key_value;

struct kfm_gguf {
    const unsigned char *bytes;
    uint64_t size;
    bool mapped;
    key_value *values; // sorted by key
    uint64_t value_count;
    kfm_gguf_tensor *tensors; // in the file's order
    kfm_gguf_tensor **sorted; // by name
    uint64_t tensor_count;
};

static const struct {
    uint32_t type;
    const char *name;
    uint32_t block; // values in a block
    uint32_t bytes; // of a block
} tensor_types[] = {
    {KFM_F32, "F32", 1, 4},       {KFM_F16, "F16", 1, 2},       {KFM_BF16, "BF16", 1, 2},
    {KFM_Q4_0, "Q4_0", 32, 18},   {KFM_Q4_1, "Q4_1", 32, 20},   {KFM_Q5_0, "Q5_0", 32, 22},
    {KFM_Q5_1, "Q5_1", 32, 24},   {KFM_Q8_0, "Q8_0", 32, 34},   {KFM_Q4_K, "Q4_K", 256, 144},
    {KFM_Q5_K, "Q5_K", 256, 176}, {KFM_Q6_K, "Q6_K", 256, 210},
};
enum { TENSOR_TYPES = sizeof tensor_types / sizeof tensor_types[0] };

static int find_type(uint32_t type) {
    for (int i = 0; i < TENSOR_TYPES; i++)
        if (tensor_types[i].type == type) return i;
    return -1;
}

const char *kfm_gguf_type_name(uint32_t type) {
    int i = find_type(type);
    return i < 0 ? NULL : tensor_types[i].name;
}

// Little-endian numbers, at any alignment, on any machine.
static uint64_t little_endian(const unsigned char *p, int bytes) {
    uint64_t value = 0;
    for (int i = bytes; i-- > 0;) value = value << 8 | p[i];
    return value;
}

// ---- reading forward ----

typedef struct reader {
    const unsigned char *bytes;
    uint64_t size, at;
    char where[KFM_NAME_SHOWN + 32]; // "key 'general.name'": what the sentence of an error names
    kfm_error *error;
} reader;

static bool take(reader *r, uint64_t n, const char *what, const unsigned char **p) {
    if (n > r->size - r->at)
        return kfm_fail(r->error,
                        "truncated in %s: its %s needs %" PRIu64 " bytes from offset %" PRIu64
                        ", and the file ends at %" PRIu64,
                        r->where, what, n, r->at, r->size);
    *p = r->bytes + r->at;
    r->at += n;
    return true;
}

static bool take_number(reader *r, int bytes, const char *what, uint64_t *value) {
    const unsigned char *p;
    if (!take(r, (uint64_t)bytes, what, &p)) return false;
    *value = little_endian(p, bytes);
    return true;
}

static bool take_string(reader *r, const char *what, kfm_string *s) {
    const unsigned char *p;
    uint64_t length;
    if (!take_number(r, 8, what, &length) || !take(r, length, what, &p)) return false;
    *s = (kfm_string){(const char *)p, (size_t)length};
    return true;
}

static bool multiply(uint64_t a, uint64_t b, uint64_t *product) {
    if (a != 0 && b > UINT64_MAX / a) return false;
    *product = a * b;
    return true;
}

// ---- key-values ----

// Bytes of a value of a fixed size; 0 for strings, arrays and what is not known.
static int value_bytes(uint32_t type) {
    static const unsigned char bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < sizeof bytes ? bytes[type] : 0;
}

static bool read_elements(reader *r, key_value *kv) {
    if (kv->element == KFM_GGUF_STRING) {
        kv->data = r->bytes + r->at;
        kfm_string s;
        for (uint64_t i = 0; i < kv->count;
             i++) // each takes 8 bytes or more, so a count that is too large ends at the file's end
            if (!take_string(r, "string", &s)) return false;
        return true;
    }
    int size = value_bytes(kv->element);
    uint64_t bytes;
    if (kv->element == KFM_GGUF_ARRAY)
        return kfm_fail(r->error, "%s is an array of arrays, which keyfold does not read", r->where);
    if (size == 0)
        return kfm_fail(r->error, "%s has the value type %" PRIu32 ", which is not known", r->where, kv->element);
    if (!multiply(kv->count, (uint64_t)size, &bytes))
        return kfm_fail(r->error, "%s has %" PRIu64 " elements of %d bytes, more than 64 bits can count", r->where,
                        kv->count, size);
    if (!take(r, bytes, "value", &kv->data)) return false;
    if (kv->element == KFM_GGUF_BOOL)
        for (uint64_t i = 0; i < kv->count; i++)
            if (kv->data[i] > 1)
                return kfm_fail(r->error, "%s has the byte %d as a bool, neither 0 nor 1", r->where, kv->data[i]);
    return true;
}

static bool read_key_value(reader *r, uint64_t index, key_value *kv) {
    char shown[KFM_NAME_SHOWN];
    uint64_t number;
    snprintf(r->where, sizeof r->where, "key-value %" PRIu64, index);
    if (!take_string(r, "key", &kv->key)) return false;
    if (kv->key.length == 0 || kv->key.length > MAX_KEY_LENGTH)
        return kfm_fail(r->error, "%s has a key of %zu bytes; the format allows 1 to %d", r->where, kv->key.length,
                        MAX_KEY_LENGTH);
    snprintf(r->where, sizeof r->where, "key '%s'", kfm_printable(kv->key, shown));
    if (!take_number(r, 4, "type", &number)) return false;
    kv->type = kv->element = (uint32_t)number;
    kv->count = 1;
    if (kv->type == KFM_GGUF_ARRAY) {
        if (!take_number(r, 4, "element type", &number) || !take_number(r, 8, "count", &kv->count)) return false;
        kv->element = (uint32_t)number;
    }
    return read_elements(r, kv);
}

static int compare_strings(kfm_string a, kfm_string b) {
    size_t n = a.length < b.length ? a.length : b.length;
    int order = n == 0 ? 0 : memcmp(a.bytes, b.bytes, n);
    return order != 0 ? order : (a.length > b.length) - (a.length < b.length);
}

static int compare_keys(const void *a, const void *b) {
    return compare_strings(((const key_value *)a)->key, ((const key_value *)b)->key);
}

static bool read_key_values(reader *r, kfm_gguf *g) {
    if (g->value_count > (r->size - r->at) / MIN_KEY_VALUE_BYTES)
        return kfm_fail(r->error,
                        "the header counts %" PRIu64 " key-values, more than fit into a file of %" PRIu64 " bytes",
                        g->value_count, r->size);
    g->values = kfm_alloc(g->value_count, sizeof *g->values);
    if (g->values == NULL) return kfm_fail(r->error, "out of memory for %" PRIu64 " key-values", g->value_count);
    for (uint64_t i = 0; i < g->value_count; i++)
        if (!read_key_value(r, i, &g->values[i])) return false;
    qsort(g->values, (size_t)g->value_count, sizeof *g->values, compare_keys);
    for (uint64_t i = 1; i < g->value_count; i++)
        if (compare_keys(&g->values[i - 1], &g->values[i]) == 0) {
            char shown[KFM_NAME_SHOWN];
            return kfm_fail(r->error, "key '%s' is there twice", kfm_printable(g->values[i].key, shown));
        }
    return true;
}

// ---- tensors ----

// Elements and bytes of a tensor; its type, dims and dim are read. Products stay below 2^63, so that the rest of the
// program can use int64_t.
static bool size_tensor(reader *r, kfm_gguf_tensor *t) {
    int type = find_type(t->type);
    if (type < 0)
        return kfm_fail(
            r->error,
            "%s: type %" PRIu32
            " is not known; keyfold reads F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K and Q6_K",
            r->where, t->type);
    uint64_t elements = 1;
    for (int i = 0; i < t->dims; i++)
        if (!multiply(elements, (uint64_t)t->dim[i], &elements) || elements > INT64_MAX / 8)
            return kfm_fail(r->error, "%s: its dimensions multiply to more than 2^60 elements", r->where);
    uint32_t block = tensor_types[type].block;
    if (t->dim[0] % block != 0)
        return kfm_fail(r->error, "%s: its rows of %" PRId64 " values are no whole number of %s blocks of %" PRIu32,
                        r->where, t->dim[0], tensor_types[type].name, block);
    t->bytes = elements / block * tensor_types[type].bytes; // at most 4 bytes an element, so below 2^62
    return true;
}

static bool read_tensor(reader *r, uint64_t index, kfm_gguf_tensor *t, uint64_t *offset) {
    char shown[KFM_NAME_SHOWN];
    uint64_t number;
    snprintf(r->where, sizeof r->where, "tensor %" PRIu64, index);
    if (!take_string(r, "name", &t->name)) return false;
    if (t->name.length == 0 || t->name.length > MAX_TENSOR_NAME)
        return kfm_fail(r->error, "%s has a name of %zu bytes; the format allows 1 to %d", r->where, t->name.length,
                        MAX_TENSOR_NAME);
    snprintf(r->where, sizeof r->where, "tensor '%s'", kfm_printable(t->name, shown));
    if (!take_number(r, 4, "number of dimensions", &number)) return false;
    if (number < 1 || number > KFM_MAX_DIMS)
        return kfm_fail(r->error, "%s has %" PRIu64 " dimensions; 1 to %d are read", r->where, number, KFM_MAX_DIMS);
    t->dims = (int)number;
    for (int i = 0; i < KFM_MAX_DIMS; i++) {
        number = 1;
        if (i < t->dims && !take_number(r, 8, "dimensions", &number)) return false;
        if (number < 1 || number > INT64_MAX)
            return kfm_fail(r->error, "%s: dimension %d is %" PRIu64 "; 1 to 2^63 - 1 are read", r->where, i, number);
        t->dim[i] = (int64_t)number;
    }
    if (!take_number(r, 4, "type", &number)) return false;
    t->type = (uint32_t)number;
    return size_tensor(r, t) && take_number(r, 8, "offset", offset);
}

static int compare_tensors(const void *a, const void *b) {
    return compare_strings((*(kfm_gguf_tensor *const *)a)->name, (*(kfm_gguf_tensor *const *)b)->name);
}

static bool sort_tensors(reader *r, kfm_gguf *g) {
    for (uint64_t i = 0; i < g->tensor_count; i++) g->sorted[i] = &g->tensors[i];
    qsort(g->sorted, (size_t)g->tensor_count, sizeof *g->sorted, compare_tensors);
    for (uint64_t i = 1; i < g->tensor_count; i++)
        if (compare_tensors(&g->sorted[i - 1], &g->sorted[i]) == 0) {
            char shown[KFM_NAME_SHOWN];
            return kfm_fail(r->error, "tensor '%s' is there twice", kfm_printable(g->sorted[i]->name, shown));
        }
    return true;
}

// The data begins at the first multiple of the alignment after the last tensor's entry. Each tensor must lie between
// there and the file's end.
static bool place_tensors(reader *r, kfm_gguf *g, uint64_t alignment, const uint64_t *offsets) {
    char shown[KFM_NAME_SHOWN];
    uint64_t start = r->at + (alignment - r->at % alignment) % alignment; // at most the file's size + 2^20
    uint64_t left = start < g->size ? g->size - start : 0;
    for (uint64_t i = 0; i < g->tensor_count; i++) {
        kfm_gguf_tensor *t = &g->tensors[i];
        const char *name = kfm_printable(t->name, shown);
        if (offsets[i] % alignment != 0)
            return kfm_fail(r->error, "tensor '%s': its offset %" PRIu64 " is no multiple of the alignment %" PRIu64,
                            name, offsets[i], alignment);
        if (start > g->size || offsets[i] > g->size - start || t->bytes > g->size - start - offsets[i])
            return kfm_fail(r->error,
                            "truncated: the data of tensor '%s' is %" PRIu64 " bytes at %" PRIu64 " + %" PRIu64
                            ", and the file ends at %" PRIu64,
                            name, t->bytes, start, offsets[i], g->size);
        if (t->bytes > left)
            return kfm_fail(r->error, "tensor '%s' overlaps others: together they are larger than the file", name);
        left -= t->bytes;
        t->data = g->bytes + start + offsets[i];
    }
    return true;
}

static bool read_tensors(reader *r, kfm_gguf *g) {
    int64_t alignment = DEFAULT_ALIGNMENT;
    if (!kfm_gguf_integer(g, "general.alignment", false, 1, MAX_ALIGNMENT, &alignment, r->error)) return false;
    if ((alignment & (alignment - 1)) != 0)
        return kfm_fail(r->error, "general.alignment is %" PRId64 ", no power of two", alignment);
    if (g->tensor_count > (r->size - r->at) / MIN_TENSOR_BYTES)
        return kfm_fail(r->error,
                        "the header counts %" PRIu64 " tensors, more than fit into a file of %" PRIu64 " bytes",
                        g->tensor_count, r->size);
    uint64_t *offsets = kfm_alloc(g->tensor_count, sizeof *offsets);
    g->tensors = kfm_alloc(g->tensor_count, sizeof *g->tensors);
    g->sorted = kfm_alloc(g->tensor_count, sizeof *g->sorted);
    bool ok = offsets != NULL && g->tensors != NULL && g->sorted != NULL;
    if (!ok) kfm_set_error(r->error, "out of memory for %" PRIu64 " tensors", g->tensor_count);
    for (uint64_t i = 0; ok && i < g->tensor_count; i++) ok = read_tensor(r, i, &g->tensors[i], &offsets[i]);
    ok = ok && place_tensors(r, g, (uint64_t)alignment, offsets) && sort_tensors(r, g);
    kfm_free(offsets);
    return ok;
}

// ---- the whole ----

static bool read_header(reader *r, kfm_gguf *g) {
    const unsigned char *magic;
    uint64_t version;
    strcpy(r->where, "the header");
    if (!take(r, 4, "magic", &magic)) return false;
    if (memcmp(magic, "GGUF", 4) != 0)
        return kfm_fail(r->error, "not a GGUF file: it begins with the bytes %02x %02x %02x %02x", magic[0], magic[1],
                        magic[2], magic[3]);
    if (!take_number(r, 4, "version", &version)) return false;
    if (version != 0 && (version & 0xffff) == 0)
        return kfm_fail(r->error, "a big-endian GGUF file; keyfold reads little-endian ones");
    if (version != 2 && version != 3)
        return kfm_fail(r->error, "GGUF version %" PRIu64 "; keyfold reads 2 and 3", version);
    return take_number(r, 8, "number of tensors", &g->tensor_count) &&
           take_number(r, 8, "number of key-values", &g->value_count);
}

static bool read_all(kfm_gguf *g, kfm_error *error) {
    reader r = {.bytes = g->bytes, .size = g->size, .error = error};
    return read_header(&r, g) && read_key_values(&r, g) && read_tensors(&r, g);
}

void kfm_gguf_close(kfm_gguf *g) {
    if (g == NULL) return;
    kfm_free(g->values);
    kfm_free(g->tensors);
    kfm_free(g->sorted);
    if (g->mapped) munmap((void *)(uintptr_t)g->bytes, (size_t)g->size);
    kfm_free(g);
}

bool kfm_gguf_parse(kfm_gguf **out, const void *bytes, size_t size, kfm_error *error) {
    *out = NULL;
    kfm_gguf *g = kfm_alloc(1, sizeof *g);
    if (g == NULL) return kfm_fail(error, "out of memory");
    g->bytes = bytes;
    g->size = size;
    if (!read_all(g, error)) {
        kfm_gguf_close(g);
        return false;
    }
    *out = g;
    return true;
}

// Maps a regular file for reading; *size is at least 1.
static bool map_file(const char *path, void **bytes, size_t *size, kfm_error *error) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return kfm_fail(error, "cannot open '%s': %s", path, strerror(errno));
    struct stat status;
    bool ok = fstat(file, &status) == 0;
    if (!ok) {
        kfm_set_error(error, "cannot read '%s': %s", path, strerror(errno));
    } else if (!S_ISREG(status.st_mode) || status.st_size <= 0 || (uintmax_t)status.st_size > SIZE_MAX) {
        ok = kfm_fail(error, "'%s' is %s", path,
                      S_ISDIR(status.st_mode) ? "a directory"
                      : status.st_size == 0   ? "empty"
                                              : "no regular file that can be mapped");
    } else {
        *size = (size_t)status.st_size;
        *bytes = mmap(NULL, *size, PROT_READ, MAP_PRIVATE, file, 0);
        if (*bytes == MAP_FAILED) ok = kfm_fail(error, "cannot map '%s': %s", path, strerror(errno));
    }
    close(file);
    return ok;
}

bool kfm_gguf_open(kfm_gguf **out, const char *path, kfm_error *error) {
    void *bytes;
    size_t size;
    *out = NULL;
    if (!map_file(path, &bytes, &size, error)) return false;
    kfm_error inner;
    if (!kfm_gguf_parse(out, bytes, size, &inner)) {
        munmap(bytes, size);
        return kfm_fail(error, "'%.200s': %.290s", path, inner.text);
    }
    (*out)->mapped = true;
    return true;
}

// ---- look-ups ----

static const key_value *find_key(const kfm_gguf *g, const char *key, bool required, bool *ok, kfm_error *error) {
    key_value wanted = {.key = {key, strlen(key)}};
    const key_value *kv = bsearch(&wanted, g->values, (size_t)g->value_count, sizeof *g->values, compare_keys);
    *ok = kv != NULL || !required;
    if (!*ok) kfm_set_error(error, "key '%s' is missing", key);
    return kv;
}

bool kfm_gguf_has(const kfm_gguf *g, const char *key) {
    bool ok;
    return find_key(g, key, false, &ok, NULL) != NULL;
}

static bool wrong_type(const char *key, const key_value *kv, const char *wanted, kfm_error *error) {
    return kfm_fail(error, "key '%s' has the value type %" PRIu32 ", and %s is expected", key, kv->type, wanted);
}

bool kfm_gguf_integer(const kfm_gguf *g, const char *key, bool required, int64_t lo, int64_t hi, int64_t *value,
                      kfm_error *error) {
    bool ok;
    const key_value *kv = find_key(g, key, required, &ok, error);
    if (kv == NULL) return ok;
    int64_t v;
    uint64_t raw =
        kv->type == KFM_GGUF_ARRAY || kv->type == KFM_GGUF_STRING ? 0 : little_endian(kv->data, value_bytes(kv->type));
    switch (kv->type) {
    case KFM_GGUF_UINT8:
    case KFM_GGUF_UINT16:
    case KFM_GGUF_UINT32: v = (int64_t)raw; break;
    case KFM_GGUF_UINT64:
        if (raw > INT64_MAX)
            return kfm_fail(error, "key '%s' is %" PRIu64 "; %" PRId64 " to %" PRId64 " are allowed", key, raw, lo, hi);
        v = (int64_t)raw;
        break;
    case KFM_GGUF_INT8: v = (int8_t)raw; break;
    case KFM_GGUF_INT16: v = (int16_t)raw; break;
    case KFM_GGUF_INT32: v = (int32_t)raw; break;
    case KFM_GGUF_INT64: v = (int64_t)raw; break;
    default: return wrong_type(key, kv, "an integer", error);
    }
    if (v < lo || v > hi)
        return kfm_fail(error, "key '%s' is %" PRId64 "; %" PRId64 " to %" PRId64 " are allowed", key, v, lo, hi);
    *value = v;
    return true;
}

static float to_float32(const unsigned char *p) {
    uint32_t bits = (uint32_t)little_endian(p, 4);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

bool kfm_gguf_float(const kfm_gguf *g, const char *key, bool required, double *value, kfm_error *error) {
    bool ok;
    const key_value *kv = find_key(g, key, required, &ok, error);
    if (kv == NULL) return ok;
    if (kv->type == KFM_GGUF_FLOAT32) {
        *value = to_float32(kv->data);
        return true;
    }
    if (kv->type != KFM_GGUF_FLOAT64) return wrong_type(key, kv, "a float", error);
    uint64_t bits = little_endian(kv->data, 8);
    memcpy(value, &bits, sizeof *value);
    return true;
}

bool kfm_gguf_bool(const kfm_gguf *g, const char *key, bool required, bool *value, kfm_error *error) {
    bool ok;
    const key_value *kv = find_key(g, key, required, &ok, error);
    if (kv == NULL) return ok;
    if (kv->type != KFM_GGUF_BOOL) return wrong_type(key, kv, "a bool", error);
    *value = kv->data[0] != 0;
    return true;
}

bool kfm_gguf_string(const kfm_gguf *g, const char *key, bool required, kfm_string *value, kfm_error *error) {
    bool ok;
    const key_value *kv = find_key(g, key, required, &ok, error);
    if (kv == NULL) return ok;
    if (kv->type != KFM_GGUF_STRING) return wrong_type(key, kv, "a string", error);
    kfm_gguf_array one = {KFM_GGUF_STRING, 1, kv->data};
    *value = kfm_gguf_next_string(&one);
    return true;
}

bool kfm_gguf_find_array(const kfm_gguf *g, const char *key, bool required, uint32_t type, kfm_gguf_array *value,
                         kfm_error *error) {
    bool ok;
    *value = (kfm_gguf_array){.type = type};
    const key_value *kv = find_key(g, key, required, &ok, error);
    if (kv == NULL) return ok;
    if (kv->type != KFM_GGUF_ARRAY) return wrong_type(key, kv, "an array", error);
    bool integers = type == KFM_GGUF_UINT32 || type == KFM_GGUF_INT32;
    if (kv->element != type && !(integers && (kv->element == KFM_GGUF_UINT32 || kv->element == KFM_GGUF_INT32)))
        return kfm_fail(error, "key '%s' is an array of the value type %" PRIu32 ", and type %" PRIu32 " is expected",
                        key, kv->element, type);
    *value = (kfm_gguf_array){kv->element, kv->count, kv->data};
    return true;
}

kfm_string kfm_gguf_next_string(kfm_gguf_array *array) {
    if (array->count == 0 || array->type != KFM_GGUF_STRING) return (kfm_string){"", 0};
    kfm_string s = {(const char *)array->next + 8, (size_t)little_endian(array->next, 8)};
    array->next += 8 + s.length;
    array->count--;
    return s;
}

int64_t kfm_gguf_next_int32(kfm_gguf_array *array) {
    bool is_signed = array->type == KFM_GGUF_INT32;
    if (array->count == 0 || (!is_signed && array->type != KFM_GGUF_UINT32)) return 0;
    uint32_t raw = (uint32_t)little_endian(array->next, 4);
    array->next += 4;
    array->count--;
    return is_signed ? (int64_t)(int32_t)raw : (int64_t)raw;
}

float kfm_gguf_next_float32(kfm_gguf_array *array) {
    if (array->count == 0 || array->type != KFM_GGUF_FLOAT32) return 0;
    float value = to_float32(array->next);
    array->next += 4;
    array->count--;
    return value;
}

int64_t kfm_gguf_tensor_count(const kfm_gguf *g) { return (int64_t)g->tensor_count; }

const kfm_gguf_tensor *kfm_gguf_tensor_at(const kfm_gguf *g, int64_t index) {
    return index < 0 || (uint64_t)index >= g->tensor_count ? NULL : &g->tensors[index];
}

const kfm_gguf_tensor *kfm_gguf_find_tensor(const kfm_gguf *g, const char *name) {
    kfm_gguf_tensor wanted = {.name = {name, strlen(name)}};
    kfm_gguf_tensor *key = &wanted;
    kfm_gguf_tensor **found =
        bsearch(&key, g->sorted, (size_t)g->tensor_count, sizeof(kfm_gguf_tensor *), compare_tensors);
    return found == NULL ? NULL : *found;
}
