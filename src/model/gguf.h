// SPDX-License-Identifier: Apache-2.0
// Reads GGUF files, version 3 (and 2, which has the same layout): a model's metadata and the places of its tensors.
// Nothing is copied: strings, arrays and tensors are pointers into the mapped file, valid until it is closed.
//
// Layout, little-endian: "GGUF", u32 version, u64 tensors, u64 key-values; each key-value: string key, u32 type, value;
// a string: u64 length, bytes; an array: u32 element type, u64 count, elements; each tensor: string name, u32 dims, u64
// dim[dims] with the contiguous one first, u32 type, u64 offset; the tensors' data begins at the next multiple of
// general.alignment (32 if absent), and offsets count from there.
//
// The file is not trusted. Every count and size is checked against the bytes that are left, with multiplication that
// cannot wrap, before it is used and before anything is allocated. A file that another process shortens while it is
// mapped is outside of what a reader of a mapping can guard against.
#ifndef KFM_GGUF_H
#define KFM_GGUF_H

#include "model/common.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kfm_gguf kfm_gguf;

// Types of metadata values, by the format's numbers.
enum {
    KFM_GGUF_UINT8 = 0,
    KFM_GGUF_INT8 = 1,
    KFM_GGUF_UINT16 = 2,
    KFM_GGUF_INT16 = 3,
    KFM_GGUF_UINT32 = 4,
    KFM_GGUF_INT32 = 5,
    KFM_GGUF_FLOAT32 = 6,
    KFM_GGUF_BOOL = 7,
    KFM_GGUF_STRING = 8,
    KFM_GGUF_ARRAY = 9,
    KFM_GGUF_UINT64 = 10,
    KFM_GGUF_INT64 = 11,
    KFM_GGUF_FLOAT64 = 12
};

// Types of tensors, by the format's numbers: those that keyfold computes with.
enum {
    KFM_F32 = 0,
    KFM_F16 = 1,
    KFM_Q4_0 = 2,
    KFM_Q4_1 = 3,
    KFM_Q5_0 = 6,
    KFM_Q5_1 = 7,
    KFM_Q8_0 = 8,
    KFM_Q4_K = 12,
    KFM_Q5_K = 13,
    KFM_Q6_K = 14,
    KFM_BF16 = 30
};

enum { KFM_MAX_DIMS = 4 };

typedef struct kfm_gguf_tensor {
    kfm_string name;
    uint32_t type;
    int dims;
    int64_t dim[KFM_MAX_DIMS]; // dim[0] is contiguous: a linear layer's K, dim[1] its N; those beyond dims are 1
    const void *data;
    uint64_t bytes;
} kfm_gguf_tensor;

// A metadata value, or an array of them. Elements are read by the functions below, one after the other.
typedef struct kfm_gguf_array {
    uint32_t type; // of an element
    uint64_t count;
    const unsigned char *next; // the element that is read next
} kfm_gguf_array;

// Opens and checks a file. *out is NULL after an error.
bool kfm_gguf_open(kfm_gguf **out, const char *path, kfm_error *error);
// The same over bytes in memory, which must outlive *out.
bool kfm_gguf_parse(kfm_gguf **out, const void *bytes, size_t size, kfm_error *error);
void kfm_gguf_close(kfm_gguf *gguf);

// Typed look-ups. A key that is absent leaves *value as it was, and is an error only where it is required; a value of
// another type, or one outside [lo, hi], always is. Any integer type serves an integer, either float type a float.
bool kfm_gguf_integer(const kfm_gguf *gguf, const char *key, bool required, int64_t lo, int64_t hi, int64_t *value,
                      kfm_error *error);
bool kfm_gguf_float(const kfm_gguf *gguf, const char *key, bool required, double *value, kfm_error *error);
bool kfm_gguf_bool(const kfm_gguf *gguf, const char *key, bool required, bool *value, kfm_error *error);
bool kfm_gguf_string(const kfm_gguf *gguf, const char *key, bool required, kfm_string *value, kfm_error *error);
// Where the key is absent and not required, count is 0. `type` is what an element must be; UINT32 and INT32 stand for
// each other.
bool kfm_gguf_find_array(const kfm_gguf *gguf, const char *key, bool required, uint32_t type, kfm_gguf_array *value,
                         kfm_error *error);
bool kfm_gguf_has(const kfm_gguf *gguf, const char *key);

// The next element of an array of strings, of 32-bit integers or of float32. Calls beyond count are the caller's
// mistake and give an empty string or 0.
kfm_string kfm_gguf_next_string(kfm_gguf_array *array);
int64_t kfm_gguf_next_int32(kfm_gguf_array *array);
float kfm_gguf_next_float32(kfm_gguf_array *array);

int64_t kfm_gguf_tensor_count(const kfm_gguf *gguf);
const kfm_gguf_tensor *kfm_gguf_tensor_at(const kfm_gguf *gguf, int64_t index);
const kfm_gguf_tensor *kfm_gguf_find_tensor(const kfm_gguf *gguf, const char *name); // NULL where there is none

// "Q4_1"; NULL for a type that is not known.
const char *kfm_gguf_type_name(uint32_t type);

#ifdef __cplusplus
}
#endif
#endif
