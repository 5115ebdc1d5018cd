// SPDX-License-Identifier: Apache-2.0
// A small JSON reader (RFC 8259) for tests: the expected values lie in JSON files. Aborts on what is not JSON, for then
// the test's own data is broken.
#ifndef KF_TEST_JSON_H
#define KF_TEST_JSON_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct json {
    char kind; // '{', '[', '"', '0' (a number), 't' (true), 'f' (false), 'n' (null)
    double number;
    char *text; // terminated; \u escapes are decoded to UTF-8
    size_t count;
    struct json *items;
    char **keys; // of an object
} json;

static inline void json_broken(const char *at) {
    fprintf(stderr, "not JSON: %.40s\n", at);
    abort();
}

static inline void json_space(const char **p) { *p += strspn(*p, " \t\r\n"); }

static inline char *json_put_utf8(char *out, unsigned c) {
    if (c < 0x80)
        *out++ = (char)c;
    else if (c < 0x800)
        *out++ = (char)(0xc0 | c >> 6), *out++ = (char)(0x80 | (c & 63));
    else if (c < 0x10000)
        *out++ = (char)(0xe0 | c >> 12), *out++ = (char)(0x80 | (c >> 6 & 63)), *out++ = (char)(0x80 | (c & 63));
    else
        *out++ = (char)(0xf0 | c >> 18), *out++ = (char)(0x80 | (c >> 12 & 63)), *out++ = (char)(0x80 | (c >> 6 & 63)),
        *out++ = (char)(0x80 | (c & 63));
    return out;
}

static inline unsigned json_hex(const char **p) {
    char digits[5] = {0};
    memcpy(digits, *p, strnlen(*p, 4));
    *p += strlen(digits);
    return (unsigned)strtoul(digits, NULL, 16);
}

static inline char *json_text(const char **p) {
    const char *plain = "\"\\/bfnrt", *meant = "\"\\/\b\f\n\r\t";
    if (*(*p)++ != '"') json_broken(*p - 1);
    char *text = malloc(strlen(*p) + 1), *out = text;
    if (text == NULL) abort();
    while (**p != '"') {
        if (**p == '\0') json_broken("a string without end");
        if (**p != '\\') {
            *out++ = *(*p)++;
            continue;
        }
        char escape = (*p)[1];
        *p += 2;
        if (escape == 'u') {
            unsigned c = json_hex(p);
            if (c >= 0xd800 && c < 0xdc00)
                *p += 2, c = 0x10000 + ((c - 0xd800) << 10) + (json_hex(p) - 0xdc00); // a surrogate pair
            out = json_put_utf8(out, c);
        } else {
            const char *found = escape == '\0' ? NULL : strchr(plain, escape);
            if (found == NULL) json_broken(*p - 2);
            *out++ = meant[found - plain];
        }
    }
    ++*p;
    *out = '\0';
    return text;
}

static inline json json_value(const char **p);

static inline void json_list(const char **p, json *list) {
    char end = list->kind == '{' ? '}' : ']';
    for (++*p, json_space(p); **p != end; json_space(p)) {
        list->items = realloc(list->items, (list->count + 1) * sizeof *list->items);
        list->keys = realloc(list->keys, (list->count + 1) * sizeof *list->keys);
        if (list->items == NULL || list->keys == NULL) abort();
        list->keys[list->count] = NULL;
        if (end == '}') {
            list->keys[list->count] = json_text(p);
            json_space(p);
            if (*(*p)++ != ':') json_broken(*p - 1);
        }
        list->items[list->count++] = json_value(p);
        json_space(p);
        if (**p == ',')
            ++*p;
        else if (**p != end)
            json_broken(*p);
    }
    ++*p;
}

static inline json json_value(const char **p) {
    json_space(p);
    json value = {.kind = **p};
    if (value.kind == '{' || value.kind == '[') {
        json_list(p, &value);
    } else if (value.kind == '"') {
        value.text = json_text(p);
    } else if (strncmp(*p, "true", 4) == 0 || strncmp(*p, "null", 4) == 0) {
        *p += 4;
    } else if (strncmp(*p, "false", 5) == 0) {
        *p += 5;
    } else {
        char *end;
        value.kind = '0';
        value.number = strtod(*p, &end);
        if (end == *p) json_broken(*p);
        *p = end;
    }
    return value;
}

static inline json json_parse(const char *text) {
    json value = json_value(&text);
    json_space(&text);
    if (*text != '\0') json_broken(text);
    return value;
}

static inline json json_read_file(const char *path) {
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    size_t count = 0, n = 1;
    if (file == NULL) json_broken(path);
    for (; n > 0; count += n) {
        text = realloc(text, count + 4097);
        if (text == NULL) abort();
        n = fread(text + count, 1, 4096, file);
    }
    text[count] = '\0';
    fclose(file);
    json value = json_parse(text);
    free(text);
    return value;
}

// The member of an object; aborts where there is none.
static inline const json *json_get(const json *object, const char *key) {
    for (size_t i = 0; i < object->count; i++)
        if (object->keys[i] != NULL && strcmp(object->keys[i], key) == 0) return &object->items[i];
    json_broken(key);
    return NULL;
}

static inline void json_free(json *value) {
    for (size_t i = 0; i < value->count; i++) {
        json_free(&value->items[i]);
        free(value->keys[i]);
    }
    free(value->items);
    free(value->keys);
    free(value->text);
}

#endif
