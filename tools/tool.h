// SPDX-License-Identifier: Apache-2.0
//
// What the subcommands of `keyfold` share: their entry points, and small helpers for options, messages, time and JSON.
//
// Conventions: results go to stdout, everything else to stderr. Exit status 0: done; 1: it was tried and failed; 2: the
// command line was wrong. An error is one sentence that names what and where. Progress is shown on a terminal only.
#ifndef KF_TOOLS_TOOL_H
#define KF_TOOLS_TOOL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

// The subcommands. argv[0] is the subcommand's name.
int kft_info(int argc, char **argv);
int kft_bench(int argc, char **argv);
int kft_profile(int argc, char **argv);
int kft_tune(int argc, char **argv); // where the CUDA backend is built
int kft_verify(int argc, char **argv);
int kft_generate(int argc, char **argv);
int kft_tokenize(int argc, char **argv);

// Print "keyfold: SENTENCE" on stderr and return the exit status.
int kft_usage_error(const char *format, ...) __attribute__((format(printf, 1, 2))); // 2
int kft_error(const char *format, ...) __attribute__((format(printf, 1, 2)));       // 1
#if defined(__clang_analyzer__) // which, file by file, can't know that they are never 0
#define kft_usage_error(...) ((kft_usage_error)(__VA_ARGS__), 2)
#define kft_error(...) ((kft_error)(__VA_ARGS__), 1)
#endif

// Is argv[*i] the option `name` (or its short form, which may be NULL)? Then true, and *value is its value: what
// follows "=", or the next argument, past which *i is moved; NULL where none is left. kft_flag is for options without a
// value.
bool kft_option(int argc, char **argv, int *i, const char *name, const char *short_name, const char **value);
bool kft_flag(char **argv, int i, const char *name, const char *short_name);

// The whole of text as a number within [lo, hi]; false (value untouched) where it is anything else, text == NULL
// included.
bool kft_parse_int(const char *text, int64_t lo, int64_t hi, int64_t *value);
bool kft_parse_double(const char *text, double lo, double hi, double *value);

// Monotonic seconds.
double kft_seconds(void);

// A line on stderr that the next one overwrites; nothing unless stderr is a terminal. NULL clears it.
void kft_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));

// A JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD.
void kft_json_string(FILE *out, const char *text);

#endif
