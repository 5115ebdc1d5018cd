// SPDX-License-Identifier: Apache-2.0
//
// Options, messages, time and JSON for the subcommands: see tool.h.
#include "tool.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void say(const char *format, va_list arguments) {
    kft_progress(NULL);
    fputs("keyfold: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
}

// In brackets, for the analyzer has macros of these names (tool.h).
int(kft_usage_error)(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
    return 2;
}

int(kft_error)(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
    return 1;
}

bool kft_flag(char **argv, int i, const char *name, const char *short_name) {
    return strcmp(argv[i], name) == 0 || (short_name && strcmp(argv[i], short_name) == 0);
}

bool kft_option(int argc, char **argv, int *i, const char *name, const char *short_name, const char **value) {
    const char *text = argv[*i];
    size_t length = strlen(name);
    if (strncmp(text, name, length) == 0 && text[length] == '=') {
        *value = text + length + 1;
        return true;
    }
    if (!kft_flag(argv, *i, name, short_name)) return false;
    *value = *i + 1 < argc ? argv[++*i] : NULL;
    return true;
}

bool kft_parse_int(const char *text, int64_t lo, int64_t hi, int64_t *value) {
    if (!text || !*text) return false;
    char *end = NULL;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno || *end || number < lo || number > hi) return false;
    *value = number;
    return true;
}

bool kft_parse_double(const char *text, double lo, double hi, double *value) {
    if (!text || !*text) return false;
    char *end = NULL;
    double number = strtod(text, &end);
    if (*end || !(number >= lo && number <= hi)) return false;
    *value = number;
    return true;
}

double kft_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void kft_progress(const char *format, ...) {
    static bool shown;
    if (!isatty(STDERR_FILENO)) return;
    if (shown || format) fputs("\r\033[K", stderr);
    shown = format != NULL;
    if (!format) return;
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fflush(stderr);
}

// The number of bytes of the UTF-8 character at s, or 0 where there is none.
static int utf8_length(const unsigned char *s) {
    int n = s[0] < 0x80                   ? 1
            : s[0] >= 0xC2 && s[0] < 0xE0 ? 2
            : s[0] >= 0xE0 && s[0] < 0xF0 ? 3
            : s[0] >= 0xF0 && s[0] < 0xF5 ? 4
                                          : 0;
    for (int i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80) return 0; // the terminating zero ends here too
    }
    bool overlong = (s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xF0 && s[1] < 0x90);
    bool outside = (s[0] == 0xED && s[1] >= 0xA0) || (s[0] == 0xF4 && s[1] >= 0x90); // surrogates, and past U+10FFFF
    return overlong || outside ? 0 : n;
}

void kft_json_string(FILE *out, const char *text) {
    fputc('"', out);
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        int n = utf8_length(s);
        if (n == 0) {
            fputs("\\ufffd", out);
            n = 1;
        } else if (*s == '"' || *s == '\\') {
            fprintf(out, "\\%c", *s);
        } else if (*s < 0x20 || *s == 0x7F) {
            fprintf(out, "\\u%04x", *s);
        } else {
            fwrite(s, 1, (size_t)n, out);
        }
        s += n;
    }
    fputc('"', out);
}
