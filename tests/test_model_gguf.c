// SPDX-License-Identifier: Apache-2.0
// The GGUF reader: what a right file says, and every way in which a wrong one must be refused: truncation at each byte,
// and the kinds of the public reports on readers of this format (counts, dimensions, sizes and sums that overflow; an
// alignment without bound). Each refusal is a sentence that names what and where.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <unistd.h>

#include "gguf_writer.h"
#include "model/gguf.h"

// Parses a copy that ends where the heap block ends, so that a sanitizer sees a read beyond.
static bool parse_copy(const unsigned char *bytes, size_t n, kfm_gguf **g, unsigned char **copy, kfm_error *error) {
    *copy = malloc(n + (n == 0));
    assert_non_null(*copy);
    if (n > 0) memcpy(*copy, bytes, n);
    memset(error->text, 0, sizeof error->text);
    return kfm_gguf_parse(g, *copy, n, error);
}

static void expect_refused(const gguf_writer *w, const char *part_of_sentence) {
    kfm_gguf *g = (kfm_gguf *)(uintptr_t)1;
    unsigned char *copy;
    kfm_error error;
    assert_false(parse_copy(w->bytes, w->count, &g, &copy, &error));
    assert_null(g);
    if (strstr(error.text, part_of_sentence) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", error.text, part_of_sentence);
    free(copy);
}

// A file with a value of every type and a tensor of every type; its last byte is a tensor's.
static void write_everything(gguf_writer *w) {
    static const struct {
        uint32_t type, block, bytes;
    } types[] = {{KFM_F32, 1, 4},      {KFM_F16, 1, 2},      {KFM_BF16, 1, 2},    {KFM_Q4_0, 32, 18},
                 {KFM_Q4_1, 32, 20},   {KFM_Q5_0, 32, 22},   {KFM_Q5_1, 32, 24},  {KFM_Q8_0, 32, 34},
                 {KFM_Q4_K, 256, 144}, {KFM_Q5_K, 256, 176}, {KFM_Q6_K, 256, 210}};
    enum { TYPES = sizeof types / sizeof types[0], ROWS = 3 };
    gguf_begin(w);
    gguf_key_int(w, "u8", KFM_GGUF_UINT8, 200, 1);
    gguf_key_int(w, "i8", KFM_GGUF_INT8, (uint64_t)-100, 1);
    gguf_key_int(w, "u16", KFM_GGUF_UINT16, 60000, 2);
    gguf_key_int(w, "i16", KFM_GGUF_INT16, (uint64_t)-30000, 2);
    gguf_key_int(w, "u32", KFM_GGUF_UINT32, 4000000000, 4);
    gguf_key_int(w, "i32", KFM_GGUF_INT32, (uint64_t)-2000000000, 4);
    gguf_key_int(w, "u64", KFM_GGUF_UINT64, UINT64_MAX, 8);
    gguf_key_int(w, "i64", KFM_GGUF_INT64, (uint64_t)INT64_MIN, 8);
    gguf_key_f32(w, "f32", 1.5f);
    gguf_key_int(w, "f64", KFM_GGUF_FLOAT64, 0x4000000000000000, 8); // 2
    gguf_key_int(w, "bool", KFM_GGUF_BOOL, 1, 1);
    gguf_key_text(w, "string", "text");
    gguf_key_text(w, "empty", "");
    gguf_key_u32(w, "general.alignment", 64);
    w->alignment = 64;
    gguf_key_array(w, "strings", KFM_GGUF_STRING, 3);
    gguf_put_text(w, "one");
    gguf_put_text(w, "");
    gguf_put_text(w, "three");
    gguf_key_array(w, "ints", KFM_GGUF_INT32, 2);
    gguf_put_int(w, (uint64_t)-7, 4);
    gguf_put_int(w, 7, 4);
    gguf_key_array(w, "none", KFM_GGUF_FLOAT32, 0);
    char name[16];
    for (int i = 0; i < TYPES; i++) {
        snprintf(name, sizeof name, "t%u", types[i].type);
        gguf_tensor(w, name, types[i].type, 2, (uint64_t[]){types[i].block, ROWS}, ROWS * types[i].bytes);
    }
    gguf_end(w);
    unsigned char byte = 0;
    for (int i = 0; i < TYPES; i++) {
        for (uint32_t j = 0; j < ROWS * types[i].bytes; j++) gguf_put(w, &byte, 1), byte++;
        while (i + 1 < TYPES && w->count % w->alignment != 0) gguf_put_int(w, 0, 1);
    }
}

static void reads_every_type(void **state) {
    (void)state;
    gguf_writer w;
    kfm_gguf *g;
    kfm_error error;
    write_everything(&w);
    assert_true(kfm_gguf_parse(&g, w.bytes, w.count, &error));
    static const struct {
        const char *key;
        int64_t value;
    } integers[] = {{"u8", 200},         {"i8", -100},         {"u16", 60000},    {"i16", -30000},
                    {"u32", 4000000000}, {"i32", -2000000000}, {"i64", INT64_MIN}};
    for (size_t i = 0; i < sizeof integers / sizeof integers[0]; i++) {
        int64_t value;
        assert_true(kfm_gguf_integer(g, integers[i].key, true, INT64_MIN, INT64_MAX, &value, &error));
        assert_true(value == integers[i].value);
    }
    double number;
    bool yes;
    kfm_string text;
    assert_true(kfm_gguf_float(g, "f32", true, &number, &error) && number == 1.5);
    assert_true(kfm_gguf_float(g, "f64", true, &number, &error) && number == 2);
    assert_true(kfm_gguf_bool(g, "bool", true, &yes, &error) && yes);
    assert_true(kfm_gguf_string(g, "string", true, &text, &error) && kfm_string_is(text, "text"));
    assert_true(kfm_gguf_string(g, "empty", true, &text, &error) && kfm_string_is(text, ""));
    kfm_gguf_array array;
    assert_true(kfm_gguf_find_array(g, "strings", true, KFM_GGUF_STRING, &array, &error) && array.count == 3);
    assert_true(kfm_string_is(kfm_gguf_next_string(&array), "one") && kfm_string_is(kfm_gguf_next_string(&array), ""));
    assert_true(kfm_string_is(kfm_gguf_next_string(&array), "three") &&
                kfm_string_is(kfm_gguf_next_string(&array), ""));
    assert_true(kfm_gguf_find_array(g, "ints", true, KFM_GGUF_UINT32, &array, &error));
    assert_int_equal(kfm_gguf_next_int32(&array), -7);
    assert_int_equal(kfm_gguf_next_int32(&array), 7);
    assert_true(kfm_gguf_find_array(g, "none", true, KFM_GGUF_FLOAT32, &array, &error) && array.count == 0);
    assert_true(kfm_gguf_next_float32(&array) == 0);
    assert_int_equal(kfm_gguf_tensor_count(g), 11);
    assert_null(kfm_gguf_tensor_at(g, 11));
    assert_null(kfm_gguf_tensor_at(g, -1));
    const kfm_gguf_tensor *t = kfm_gguf_find_tensor(g, "t14");
    assert_true(t == kfm_gguf_tensor_at(g, 10) && t->type == KFM_Q6_K && t->dims == 2 && t->dim[0] == 256 &&
                t->dim[1] == 3 && t->dim[2] == 1);
    assert_true(t->bytes == 630 && (const unsigned char *)t->data + t->bytes == w.bytes + w.count);
    assert_true((const unsigned char *)kfm_gguf_find_tensor(g, "t1")->data ==
                (const unsigned char *)kfm_gguf_find_tensor(g, "t0")->data + 64);
    assert_null(kfm_gguf_find_tensor(g, "t99"));
    kfm_gguf_close(g);
    gguf_free(&w);
}

static void looks_up_by_type_and_range(void **state) {
    (void)state;
    gguf_writer w;
    kfm_gguf *g;
    kfm_error error;
    int64_t value = 5;
    double number = 5;
    bool yes = true;
    kfm_string text = {"kept", 4};
    kfm_gguf_array array;
    write_everything(&w);
    assert_true(kfm_gguf_parse(&g, w.bytes, w.count, &error));
    assert_true(kfm_gguf_integer(g, "absent", false, 0, 9, &value, &error) && value == 5);
    assert_false(kfm_gguf_integer(g, "absent", true, 0, 9, &value, &error));
    assert_string_equal(error.text, "key 'absent' is missing");
    assert_false(kfm_gguf_integer(g, "u8", true, 0, 199, &value, &error));
    assert_string_equal(error.text, "key 'u8' is 200; 0 to 199 are allowed");
    assert_false(kfm_gguf_integer(g, "u64", true, 0, INT64_MAX, &value, &error));
    assert_false(kfm_gguf_integer(g, "f32", true, 0, 9, &value, &error));
    assert_false(kfm_gguf_integer(g, "strings", true, 0, 9, &value, &error));
    assert_false(kfm_gguf_float(g, "u8", true, &number, &error));
    assert_false(kfm_gguf_bool(g, "u8", true, &yes, &error));
    assert_false(kfm_gguf_string(g, "strings", true, &text, &error));
    assert_false(kfm_gguf_find_array(g, "strings", true, KFM_GGUF_INT32, &array, &error));
    assert_false(kfm_gguf_find_array(g, "u8", true, KFM_GGUF_INT32, &array, &error));
    assert_true(kfm_gguf_find_array(g, "absent", false, KFM_GGUF_INT32, &array, &error) && array.count == 0);
    assert_true(value == 5 && number == 5 && yes && kfm_string_is(text, "kept"));
    assert_true(kfm_gguf_has(g, "u8") && !kfm_gguf_has(g, "u9") && !kfm_gguf_has(g, "u"));
    kfm_gguf_close(g);
    gguf_free(&w);
}

// Nothing that was not read yet may be freed (CVE-2024-32878): AddressSanitizer watches.
static void refuses_truncation_at_every_byte(void **state) {
    (void)state;
    gguf_writer w;
    write_everything(&w);
    for (size_t n = 0; n < w.count; n++) {
        kfm_gguf *g;
        unsigned char *copy;
        kfm_error error;
        assert_false(parse_copy(w.bytes, n, &g, &copy, &error));
        if (n >= GGUF_FIRST_KEY_AT)
            assert_true(strstr(error.text, "truncated") != NULL || strstr(error.text, "more than fit") != NULL);
        assert_true(strlen(error.text) > 20);
        free(copy);
    }
    gguf_free(&w);
}

// Any byte may be anything: the reader says yes or no, and what it accepts can be read through.
static void survives_every_byte_changed(void **state) {
    (void)state;
    static const unsigned char hostile[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
    gguf_writer w;
    write_everything(&w);
    for (size_t at = 0; at < w.count - 2048; at++) {
        unsigned char before = w.bytes[at];
        for (size_t k = 0; k < sizeof hostile; k++) {
            kfm_gguf *g;
            unsigned char *copy;
            kfm_error error;
            w.bytes[at] = hostile[k];
            if (parse_copy(w.bytes, w.count, &g, &copy, &error)) {
                volatile unsigned char sum = 0;
                for (int64_t i = 0; i < kfm_gguf_tensor_count(g); i++) {
                    const kfm_gguf_tensor *t = kfm_gguf_tensor_at(g, i);
                    sum = (unsigned char)(sum + ((const unsigned char *)t->data)[t->bytes - 1]);
                }
                kfm_gguf_close(g);
            } else {
                assert_true(strlen(error.text) > 10);
            }
            free(copy);
        }
        w.bytes[at] = before;
    }
    gguf_free(&w);
}

static void refuses_headers(void **state) {
    (void)state;
    gguf_writer w;
    static const struct {
        size_t at;
        uint64_t value;
        int bytes;
        const char *says;
    } cases[] = {
        {0, 0x47475546, 4, "not a GGUF file"},
        {GGUF_VERSION_AT, 1, 4, "version 1"},
        {GGUF_VERSION_AT, 4, 4, "version 4"},
        {GGUF_VERSION_AT, 0, 4, "version 0"},
        {GGUF_VERSION_AT, 0x03000000, 4, "big-endian"},
        {GGUF_VALUES_AT, UINT64_MAX, 8, "more than fit"}, // CVE-2024-23605: a count that wraps when it is multiplied
        {GGUF_VALUES_AT, (uint64_t)1 << 63, 8, "more than fit"},
        {GGUF_VALUES_AT, UINT64_MAX / 48 + 1, 8, "more than fit"},
        {GGUF_VALUES_AT, 1000000, 8, "more than fit"},
        {GGUF_TENSORS_AT, UINT64_MAX, 8, "more than fit"},
        {GGUF_TENSORS_AT, (uint64_t)1 << 60, 8, "more than fit"},
        {GGUF_TENSORS_AT, UINT64_MAX / 88 + 1, 8, "more than fit"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_everything(&w);
        gguf_patch(&w, cases[i].at, cases[i].value, cases[i].bytes);
        expect_refused(&w, cases[i].says);
        gguf_free(&w);
    }
    write_everything(&w);
    gguf_patch(&w, GGUF_VALUES_AT, w.values + 1,
               8); // the first tensor is taken for a key-value, and its dims for a type
    expect_refused(&w, "truncated in tensor 0");
    gguf_free(&w);
}

static void accepts_version_2_and_empty_files(void **state) {
    (void)state;
    gguf_writer w;
    kfm_gguf *g;
    kfm_error error;
    gguf_begin(&w);
    gguf_patch(&w, GGUF_VERSION_AT, 2, 4);
    gguf_end(&w);
    for (size_t n = GGUF_FIRST_KEY_AT; n <= w.count; n++) { // without tensors there is no data to be aligned
        assert_true(kfm_gguf_parse(&g, w.bytes, n, &error));
        assert_true(kfm_gguf_tensor_count(g) == 0 && kfm_gguf_find_tensor(g, "x") == NULL && !kfm_gguf_has(g, "x"));
        kfm_gguf_close(g);
    }
    gguf_free(&w);
}

// Counts and lengths that wrap or do not fit.
static void refuses_counts(void **state) {
    (void)state;
    static const uint64_t counts[] = {UINT64_MAX, (uint64_t)1 << 63, ((uint64_t)1 << 61) + 1, ((uint64_t)1 << 32) + 5,
                                      1000};
    gguf_writer w;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        // An array whose count wraps or does not fit, of strings and of numbers (CVE-2025-49847: a vocabulary's size in
        // 32 bits).
        static const uint32_t elements[] = {KFM_GGUF_STRING, KFM_GGUF_UINT8, KFM_GGUF_INT32, KFM_GGUF_FLOAT64};
        for (size_t k = 0; k < sizeof elements / sizeof elements[0]; k++) {
            gguf_begin(&w);
            gguf_key_array(&w, "tokenizer.ggml.tokens", elements[k], counts[i]);
            gguf_put_text(&w, "a");
            gguf_end(&w);
            expect_refused(&w, "key 'tokenizer.ggml.tokens'");
            gguf_free(&w);
        }
        // A string's and a key's length.
        gguf_begin(&w);
        gguf_key(&w, "name", KFM_GGUF_STRING);
        gguf_put_int(&w, counts[i], 8);
        gguf_end(&w);
        expect_refused(&w, "truncated in key 'name'");
        gguf_free(&w);
        gguf_begin(&w);
        gguf_key_u32(&w, "name", 1);
        gguf_end(&w);
        gguf_patch(&w, GGUF_FIRST_KEY_AT, counts[i], 8);
        expect_refused(&w, "truncated in key-value 0");
        gguf_free(&w);
    }
}

// One key-value that is wrong in itself.
static void refuses_key_values(void **state) {
    (void)state;
    static const uint32_t types[] = {13, 255, 0x80000000, UINT32_MAX};
    gguf_writer w;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        gguf_begin(&w);
        gguf_key_int(&w, "odd", types[i], 0, 8);
        gguf_end(&w);
        expect_refused(&w, "key 'odd' has the value type");
        gguf_free(&w);
    }
    gguf_begin(&w);
    gguf_key_array(&w, "nested", KFM_GGUF_ARRAY, 1);
    gguf_put_int(&w, 0, 32);
    gguf_end(&w);
    expect_refused(&w, "array of arrays");
    gguf_free(&w);
    gguf_begin(&w);
    gguf_key_int(&w, "maybe", KFM_GGUF_BOOL, 2, 1);
    gguf_end(&w);
    expect_refused(&w, "neither 0 nor 1");
    gguf_free(&w);
    gguf_begin(&w);
    gguf_key_u32(&w, "", 1);
    gguf_end(&w);
    expect_refused(&w, "a key of 0 bytes");
    gguf_free(&w);
    gguf_begin(&w);
    gguf_key_u32(&w, "twice", 1);
    gguf_key_u32(&w, "other", 1);
    gguf_key_u32(&w, "twice", 1);
    gguf_end(&w);
    expect_refused(&w, "key 'twice' is there twice");
    gguf_free(&w);
    char *key = malloc(65537);
    assert_non_null(key);
    memset(key, 'k', 65536);
    key[65536] = '\0';
    gguf_begin(&w);
    gguf_key_u32(&w, key, 1);
    gguf_end(&w);
    expect_refused(&w, "a key of 65536 bytes");
    gguf_free(&w);
    free(key);
}

static void refuses_alignments(void **state) {
    (void)state;
    static const struct {
        uint32_t type;
        int bytes;
        uint64_t value;
        const char *says;
    } cases[] = {
        {KFM_GGUF_UINT32, 4, 0, "general.alignment' is 0"},
        {KFM_GGUF_UINT32, 4, 3, "general.alignment is 3, no power of two"},
        {KFM_GGUF_UINT32, 4, (uint64_t)1 << 31, "general.alignment' is 2147483648"},
        {KFM_GGUF_UINT64, 8, (uint64_t)1 << 62, "general.alignment"},
        {KFM_GGUF_UINT64, 8, (uint64_t)1 << 63, "general.alignment"},
        {KFM_GGUF_INT32, 4, 0xffffffe0, "general.alignment' is -32"},
        {KFM_GGUF_FLOAT32, 4, 0x42000000, "general.alignment' has the value type 6"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gguf_writer w;
        gguf_begin(&w);
        gguf_key_int(&w, "general.alignment", cases[i].type, cases[i].value, cases[i].bytes);
        gguf_tensor(&w, "t", KFM_F32, 1, (uint64_t[]){8}, 32);
        gguf_end(&w);
        gguf_put_int(&w, 0, 32);
        expect_refused(&w, cases[i].says);
        gguf_free(&w);
    }
}

static void write_tensor(gguf_writer *w, const char *name, uint32_t type, int dims, const uint64_t *dim) {
    gguf_begin(w);
    gguf_tensor(w, name, type, dims, dim, 0);
    gguf_end(w);
    for (int i = 0; i < 64; i++) gguf_put_int(w, 0, 8);
}

static void refuses_tensors(void **state) {
    (void)state;
    static const struct {
        uint32_t type;
        int dims;
        uint64_t dim[4];
        const char *says;
    } cases[] = {
        {31, 1, {32}, "tensor 'blk.3.attn_q.weight': type 31 is not known"},
        {10, 1, {256}, "type 10 is not known"},
        {UINT32_MAX, 1, {32}, "type 4294967295 is not known"},
        {KFM_F32, 0, {0}, "has 0 dimensions"},
        {KFM_F32, 5, {1, 1, 1, 1}, "has 5 dimensions"},
        {KFM_F32, -1, {0}, "has 4294967295 dimensions"}, // CVE-2024-21802: dims write past an array
        {KFM_F32, 1, {0}, "dimension 0 is 0"},
        {KFM_F32, 2, {32, UINT64_MAX}, "dimension 1 is 18446744073709551615"},
        {KFM_F32, 1, {(uint64_t)1 << 63}, "dimension 0 is 9223372036854775808"},
        {KFM_F32, 1, {INT64_MAX}, "more than 2^60 elements"},
        {KFM_F32,
         2,
         {(uint64_t)1 << 32, (uint64_t)1 << 32},
         "more than 2^60 elements"}, // CVE-2025-53630, CVE-2026-33298: sizes that wrap to small ones
        {KFM_F32,
         4,
         {(uint64_t)1 << 16, (uint64_t)1 << 16, (uint64_t)1 << 16, (uint64_t)1 << 16},
         "more than 2^60 elements"},
        {KFM_F32, 2, {((uint64_t)1 << 62) / 3, 6}, "more than 2^60 elements"},
        {KFM_Q8_0, 2, {(uint64_t)1 << 30, (uint64_t)1 << 29}, "truncated: the data of tensor"},
        {KFM_F32, 1, {((uint64_t)1 << 60) - 1}, "truncated: the data of tensor"},
        {KFM_F32, 1, {1 << 20}, "truncated: the data of tensor"},
        {KFM_Q4_1, 1, {33}, "no whole number of Q4_1 blocks"},
        {KFM_Q6_K,
         2,
         {128, 2},
         "no whole number of Q6_K blocks"}, // ik_llama.cpp 2141: rows, not the whole, must be blocks
    };
    gguf_writer w;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int dims = cases[i].dims;
        write_tensor(&w, "blk.3.attn_q.weight", cases[i].type, dims < 0 || dims > 4 ? 4 : dims, cases[i].dim);
        if (dims < 0 || dims > 4) gguf_patch(&w, GGUF_FIRST_KEY_AT + 8 + 19, (uint64_t)(int64_t)dims, 4);
        expect_refused(&w, cases[i].says);
        expect_refused(&w, "'blk.3.attn_q.weight'");
        gguf_free(&w);
    }
}

static void refuses_names(void **state) {
    (void)state;
    gguf_writer w;
    gguf_begin(&w);
    gguf_tensor(&w, "twice", KFM_F32, 1, (uint64_t[]){8}, 32);
    gguf_tensor(&w, "twice", KFM_F32, 1, (uint64_t[]){8}, 32);
    gguf_end(&w);
    gguf_put_int(&w, 0, 64);
    expect_refused(&w, "tensor 'twice' is there twice");
    gguf_free(&w);
    write_tensor(&w, "", KFM_F32, 1, (uint64_t[]){8});
    expect_refused(&w, "a name of 0 bytes");
    gguf_free(&w);
    write_tensor(&w, "a name of more than sixty-four bytes, which is what the format allows", KFM_F32, 1,
                 (uint64_t[]){8});
    expect_refused(&w, "a name of 69 bytes");
    gguf_free(&w);
    write_tensor(&w, "line\nbreak\x1b[31m", KFM_F32, 1, (uint64_t[]){1 << 20});
    expect_refused(&w,
                   "tensor 'line?break?[31m'"); // a name must not steer the terminal that the sentence is printed on
    gguf_free(&w);
}

// CVE-2026-27940 and its like: offset + size that wraps, or ends beyond the file.
static void refuses_offsets(void **state) {
    (void)state;
    static const struct {
        uint64_t offset;
        const char *says;
    } cases[] = {{UINT64_MAX - 31, "truncated"}, {(uint64_t)1 << 63, "truncated"},        {512, "truncated"},
                 {512 - 32, "truncated"},        {16, "no multiple of the alignment 32"}, {UINT64_MAX, "no multiple"}};
    const size_t offset_at = GGUF_FIRST_KEY_AT + 8 + 1 + 4 + 8 + 4;
    gguf_writer w;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_tensor(&w, "t", KFM_F32, 1, (uint64_t[]){16});
        gguf_patch(&w, offset_at, cases[i].offset, 8);
        expect_refused(&w, cases[i].says);
        gguf_free(&w);
    }
    // Tensors over the same bytes: a small file that asks for much memory.
    gguf_begin(&w);
    gguf_tensor(&w, "first", KFM_F32, 1, (uint64_t[]){16}, 0);
    gguf_tensor(&w, "second", KFM_F32, 1, (uint64_t[]){16}, 0);
    gguf_end(&w);
    gguf_put_int(&w, 0, 64);
    expect_refused(&w, "tensor 'second' overlaps others");
    gguf_free(&w);
    kfm_gguf *g;
    kfm_error error;
    write_tensor(&w, "t", KFM_F32, 1, (uint64_t[]){16});
    gguf_patch(&w, offset_at, 512 - 64, 8); // the last place where it fits
    assert_true(kfm_gguf_parse(&g, w.bytes, w.count, &error));
    kfm_gguf_close(g);
    gguf_free(&w);
}

static void survives_every_allocation_failing(void **state) {
    (void)state;
    gguf_writer w;
    kfm_gguf *g;
    kfm_error error;
    write_everything(&w);
    for (int64_t n = 1;; n++) {
        kfm_fail_allocation(n);
        bool ok = kfm_gguf_parse(&g, w.bytes, w.count, &error);
        bool reached = kfm_fail_allocation(0) == 0;
        assert_true(ok == !reached);
        if (ok) break;
        assert_non_null(strstr(error.text, "out of memory"));
    }
    kfm_gguf_close(g);
    gguf_free(&w);
}

static void opens_files(void **state) {
    (void)state;
    kfm_gguf *g;
    kfm_error error;
    assert_false(kfm_gguf_open(&g, "no/such/file.gguf", &error));
    assert_string_equal(error.text, "cannot open 'no/such/file.gguf': No such file or directory");
    assert_false(kfm_gguf_open(&g, ".", &error));
    assert_string_equal(error.text, "'.' is a directory");
    char path[] = "test_model_gguf.XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_false(kfm_gguf_open(&g, path, &error));
    assert_non_null(strstr(error.text, "is empty"));
    gguf_writer w;
    write_everything(&w);
    assert_true(write(file, w.bytes, w.count) == (ssize_t)w.count);
    assert_true(kfm_gguf_open(&g, path, &error));
    assert_int_equal(kfm_gguf_tensor_count(g), 11);
    kfm_gguf_close(g);
    assert_int_equal(ftruncate(file, (off_t)w.count - 1), 0);
    assert_false(kfm_gguf_open(&g, path, &error));
    assert_null(g);
    assert_non_null(strstr(error.text, path));
    assert_non_null(strstr(error.text, "truncated: the data of tensor 't14'"));
    close(file);
    unlink(path);
    gguf_free(&w);
    kfm_gguf_close(NULL);
}

static void reads_the_model(void **state) {
    (void)state;
    const char *path = getenv("KEYFOLD_MODEL");
    if (path == NULL) {
        print_message("KEYFOLD_MODEL is not set: the model file is not tried\n");
        skip();
    }
    kfm_gguf *g;
    kfm_error error = {""};
    if (!kfm_gguf_open(&g, path, &error)) fail_msg("%s", error.text);
    int64_t layers = 0;
    kfm_string name;
    assert_true(kfm_gguf_integer(g, "llama.block_count", true, 1, 1000, &layers, &error));
    assert_true(kfm_gguf_string(g, "general.architecture", true, &name, &error) && kfm_string_is(name, "llama"));
    assert_int_equal(layers, 30);
    assert_int_equal(kfm_gguf_tensor_count(g), 272);
    const kfm_gguf_tensor *t = kfm_gguf_find_tensor(g, "blk.29.ffn_down.weight");
    assert_non_null(t);
    assert_true(t->type == KFM_Q4_1 && t->dim[0] == 1536 && t->dim[1] == 576 && t->bytes == 1536 / 32 * 20 * 576);
    kfm_gguf_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_every_type),
        cmocka_unit_test(looks_up_by_type_and_range),
        cmocka_unit_test(refuses_truncation_at_every_byte),
        cmocka_unit_test(survives_every_byte_changed),
        cmocka_unit_test(refuses_headers),
        cmocka_unit_test(accepts_version_2_and_empty_files),
        cmocka_unit_test(refuses_counts),
        cmocka_unit_test(refuses_key_values),
        cmocka_unit_test(refuses_alignments),
        cmocka_unit_test(refuses_tensors),
        cmocka_unit_test(refuses_names),
        cmocka_unit_test(refuses_offsets),
        cmocka_unit_test(survives_every_allocation_failing),
        cmocka_unit_test(opens_files),
        cmocka_unit_test(reads_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
