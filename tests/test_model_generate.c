// SPDX-License-Identifier: Apache-2.0
// keyfold generate and keyfold tokenize as a user runs them, on a small random model: what they print, that runs
// repeat, a full context, broken files, Ctrl-C, a prompt from a pipe, and a chat on a terminal.
#define _XOPEN_SOURCE 700 // posix_openpt
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "json.h"
#include "model/common.h"
#include "small_model.h"
#include "small_vocabulary.h"

static const char command[] = KF_BINARY_DIR "/keyfold";
static char model_path[64];
static char out_path[64], error_path[64];

enum { MAX_ARGUMENTS = 24 };

// ---- running the command ----

typedef struct result {
    int status; // of the exit; −1 where a signal ended it
    char *out, *error;
} result;

static char *read_all(const char *path) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    size_t n = fread(text, 1, (1 << 20) - 1, file);
    text[n] = '\0';
    fclose(file);
    return text;
}

static void redirect(const char *path, int flags, int to) {
    int from = open(path, flags, 0600);
    if (from < 0 || dup2(from, to) < 0) _exit(126);
    close(from);
}

// Starts keyfold NAME -m MODEL ARGUMENTS… (NULL ends them).
static pid_t start(const char *name, const char *input, const char *const *arguments) {
    const char *argv[MAX_ARGUMENTS + 5] = {command, name, "-m", model_path};
    for (int i = 0; i < MAX_ARGUMENTS && arguments[i] != NULL; i++) argv[4 + i] = arguments[i];
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        redirect(input, O_RDONLY, 0);
        redirect(out_path, O_WRONLY | O_CREAT | O_TRUNC, 1);
        redirect(error_path, O_WRONLY | O_CREAT | O_TRUNC, 2);
        execv(command, (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    return child;
}

static result finish(pid_t child) {
    int status;
    while (waitpid(child, &status, 0) < 0) assert_int_equal(errno, EINTR);
    return (result){WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_all(out_path), read_all(error_path)};
}

#define RUN(name, ...) finish(start(name, "/dev/null", (const char *const[]){__VA_ARGS__, NULL}))

static void forget(result *r) {
    free(r->out);
    free(r->error);
}

static void expect(result r, int status, const char *out, const char *error) {
    if (r.status != status || strstr(r.error, error) == NULL || (out != NULL && strcmp(r.out, out) != 0))
        fail_msg("status %d, out \"%s\", error \"%s\"", r.status, r.out, r.error);
    forget(&r);
}

static bool is_utf8(const char *text) {
    size_t n = strlen(text);
    for (size_t at = 0; at < n;) {
        int length = kfm_utf8_length(text + at, n - at);
        if (length <= 0) return false;
        at += (size_t)length;
    }
    return true;
}

// ---- the model file ----

static void put_right_vocabulary(gguf_writer *w) { put_vocabulary(w, &right_vocabulary); }

static int write_model(void **state) {
    (void)state;
    small_model small;
    make_small(&small, put_right_vocabulary);
    snprintf(model_path, sizeof model_path, "test_model_generate.%ld.gguf", (long)getpid());
    snprintf(out_path, sizeof out_path, "test_model_generate.%ld.out", (long)getpid());
    snprintf(error_path, sizeof error_path, "test_model_generate.%ld.err", (long)getpid());
    FILE *file = fopen(model_path, "wb");
    bool ok =
        file != NULL && fwrite(small.file.bytes, 1, small.file.count, file) == small.file.count && fclose(file) == 0;
    free_small(&small);
    return ok ? 0 : -1;
}

static int remove_model(void **state) {
    (void)state;
    unlink(model_path);
    unlink(out_path);
    unlink(error_path);
    return 0;
}

// Changes the model file for the length of a test.
static void patch_file(long at, const char *bytes, size_t n) {
    FILE *file = fopen(model_path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

// ---- tests ----

static void tokenizes(void **state) {
    (void)state;
    expect(RUN("tokenize", "-p", "ab<|im_end|>1", "--json"), 0, "[260, 2, 53]\n", "");
    expect(RUN("tokenize", "-p", "<|im_end|>", "--json", "--plain"), 0,
           "[64, 128, 109, 113, 99, 105, 114, 104, 128, 66]\n", "");
    expect(RUN("tokenize", "-p", "ab\n"), 0, "   260  ab\n    14  \\n\n", "");
    expect(RUN("tokenize", "-p", "", "--json"), 0, "[]\n", "");
    expect(RUN("tokenize", "--nonsense"), 2, "", "tokenize has no option \"--nonsense\"");
    expect(RUN("tokenize", "-p"), 2, "", "--prompt needs a text");
}

static void prints_an_object(void **state) {
    (void)state;
    result r = RUN("generate", "-p", "abc 1", "-n", "12", "--ignore-end", "--json");
    assert_int_equal(r.status, 0);
    json value = json_parse(r.out);
    assert_int_equal(json_get(&value, "prompt_ids")->count, 3);
    assert_int_equal((int)json_get(&value, "prompt_ids")->items[2].number, FIRST_BYTE + '1');
    assert_int_equal(json_get(&value, "ids")->count, 12);
    assert_string_equal(json_get(&value, "stop")->text, "length");
    assert_true(json_get(&value, "prefill_tokens_per_s")->number > 0 &&
                json_get(&value, "decode_tokens_per_s")->number > 0);
    assert_true(json_get(&value, "bytes_per_token")->number > 50000 && json_get(&value, "gbps")->number >= 0);
    assert_true(json_get(&value, "read_gbps")->number > 0);
    // The same run as text: what streams is the object's text, and a newline where it does not end in one.
    result text = RUN("generate", "-p", "abc 1", "-n", "12", "--ignore-end");
    const char *expected = json_get(&value, "text")->text;
    assert_int_equal(text.status, 0);
    assert_true(is_utf8(text.out));
    assert_memory_equal(text.out, expected, strlen(expected));
    assert_true(strlen(text.out) - strlen(expected) <= 1);
    assert_non_null(strstr(text.error, "tokens/s"));
    assert_non_null(strstr(text.error, "GB/s"));
    assert_non_null(strstr(text.error, "% of the"));
    json_free(&value);
    forget(&r);
    forget(&text);
}

static char *text_of(const char *const *arguments) {
    result r = finish(start("generate", "/dev/null", arguments));
    if (r.status != 0) fail_msg("status %d: %s", r.status, r.error);
    free(r.error);
    return r.out;
}

#define TEXT(...) text_of((const char *const[]){"-p", "abc", "-n", "30", "--ignore-end", __VA_ARGS__, NULL})

static void runs_repeat(void **state) {
    (void)state;
    char *greedy = TEXT("--threads", "1"), *two = TEXT("--threads", "2"), *chunks = TEXT("--chunk", "1"),
         *top1 = TEXT("--temp=1", "--top-k=1");
    assert_string_equal(greedy, two);
    assert_string_equal(greedy, chunks);
    assert_string_equal(greedy, top1);
    char *a = TEXT("--temp", "2", "--seed", "7"), *b = TEXT("--temp", "2", "--seed", "7", "--threads", "1"),
         *c = TEXT("--temp", "2", "--seed", "8");
    assert_string_equal(a, b);
    assert_string_not_equal(a, c);
    char *bf16 = TEXT("--cache", "bf16"), *fp32 = TEXT("--cache", "fp32"), *int8 = TEXT("--activations", "int8");
    assert_true(is_utf8(bf16) && is_utf8(fp32) && is_utf8(int8));
    free(greedy), free(two), free(chunks), free(top1), free(a), free(b), free(c), free(bf16), free(fp32), free(int8);
}

// The prompt as ids, and its logits in a file: the greedy answer's first token is where the last row is largest.
static void writes_logits(void **state) {
    (void)state;
    enum { TOKENS = 3 };
    static float logits[TOKENS * VOCABULARY + 1];
    char path[80];
    snprintf(path, sizeof path, "%s.logits", model_path);
    expect(RUN("generate", "--ids", "260,14,53", "--logits", path), 0, "", "");
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t n = fread(logits, sizeof *logits, sizeof logits / sizeof *logits, file);
    fclose(file);
    unlink(path);
    assert_int_equal(n, TOKENS * VOCABULARY);
    const float *last = logits + (TOKENS - 1) * VOCABULARY;
    int best = 0;
    for (int i = 1; i < VOCABULARY; i++) best = last[i] > last[best] ? i : best;
    result r = RUN("generate", "--ids", "260,14,53", "-n", "1", "--ignore-end", "--json");
    json value = json_parse(r.out);
    assert_int_equal(json_get(&value, "prompt_ids")->count, TOKENS);
    assert_int_equal((int)json_get(&value, "ids")->items[0].number, best);
    json_free(&value);
    forget(&r);
    expect(RUN("generate", "--ids", "260,,14"), 1, "", "--ids: \",14\" does not begin with a token id");
    expect(RUN("generate", "--ids", "260,"), 1, "", "--ids: \"\" does not begin with a token id");
    expect(RUN("generate", "--ids", "99999999999"), 1, "", "--ids: \"99999999999\" does not begin with a token id");
    expect(RUN("generate", "--ids", "9999"), 1, NULL, "token 0 is 9999; the vocabulary has 0 to 274");
    expect(RUN("generate", "-p", "a", "--logits", "no/such/folder"), 1, "", "no/such/folder cannot be written");
}

static void reads_a_pipe_and_chats_in_one_turn(void **state) {
    (void)state;
    FILE *file = fopen("test_model_generate.in", "wb");
    assert_non_null(file);
    fputs("abc", file);
    fclose(file);
    result r = finish(start("generate", "test_model_generate.in", (const char *const[]){"-n", "5", "--json", NULL}));
    unlink("test_model_generate.in");
    assert_int_equal(r.status, 0);
    json value = json_parse(r.out);
    assert_int_equal(json_get(&value, "prompt_ids")->count, 1);
    json_free(&value);
    forget(&r);
    r = RUN("generate", "-p", "abc", "-n", "5", "--json", "--chat", "--context", "200");
    assert_int_equal(r.status, 0);
    value = json_parse(r.out);
    const json *ids = json_get(&value, "prompt_ids");
    assert_int_equal((int)ids->items[0].number,
                     IM_START); // the template's system message, the message, the answer's beginning
    int starts = 0;
    for (size_t i = 0; i < ids->count; i++) starts += ids->items[i].number == IM_START;
    assert_int_equal(starts, 3);
    json_free(&value);
    forget(&r);
    r = RUN("generate", "-p", "abc", "-n", "5", "--json", "--chat", "--context", "200", "--system", "");
    value = json_parse(r.out);
    ids = json_get(&value, "prompt_ids");
    starts = 0;
    for (size_t i = 0; i < ids->count; i++) starts += ids->items[i].number == IM_START;
    assert_int_equal(starts, 2);
    json_free(&value);
    forget(&r);
}

static void says_that_the_context_is_full(void **state) {
    (void)state;
    result r = RUN("generate", "-p", "1 2 3", "-n", "50", "--context", "16", "--ignore-end");
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.error, "keyfold: the context is full: it holds 16 tokens, and the text goes on"));
    assert_true(strlen(r.out) > 0); // what it wrote until then
    forget(&r);
    r = RUN("generate", "-p", "1 2 3", "-n", "50", "--context", "16", "--ignore-end", "--json");
    assert_int_equal(r.status, 1);
    json value = json_parse(r.out);
    assert_string_equal(json_get(&value, "stop")->text, "context");
    json_free(&value);
    forget(&r);
    expect(RUN("generate", "-p", "1 2 3 4 5 6 7 8", "--context", "8"), 1, "",
           "keyfold: the context is full: it holds 0 of 8 tokens, and the prompt's 15 do not fit\n");
    expect(RUN("generate", "-p", ""), 1, NULL, "keyfold: the prompt has no tokens\n");
}

static void refuses_broken_files(void **state) {
    (void)state;
    struct stat file;
    assert_int_equal(stat(model_path, &file), 0);
    char sentence[200];
    // An unknown type: the type of blk.1.ffn_up.weight stands behind its name, the number of dims and two dims.
    small_model small;
    make_small(&small, put_right_vocabulary);
    const char *name = "blk.1.ffn_up.weight";
    size_t at = 0;
    while (memcmp(small.file.bytes + at, name, strlen(name)) != 0) at++;
    at += strlen(name) + 4 + 16;
    char before = (char)small.file.bytes[at];
    free_small(&small);
    patch_file((long)at, "\x1f", 1);
    snprintf(sentence, sizeof sentence, "keyfold: '%s': tensor 'blk.1.ffn_up.weight': type 31 is not known",
             model_path);
    expect(RUN("generate", "-p", "x"), 1, "", sentence);
    patch_file((long)at, &before, 1);
    // Truncated: in the data, in the tensors, in the metadata, in the header.
    const off_t sizes[] = {file.st_size - 1, (off_t)at, 500, 10};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        assert_int_equal(truncate(model_path, sizes[i]), 0);
        snprintf(sentence, sizeof sentence, "keyfold: '%s': t",
                 model_path); // "truncated", or "the header counts more than fit"
        expect(RUN("generate", "-p", "x"), 1, "", sentence);
        expect(RUN("tokenize", "-p", "x"), 1, "", sentence);
    }
    assert_int_equal(write_model(NULL), 0);
    expect(RUN("generate", "-p", "x", "-m", "no/such/file"), 1, "",
           "keyfold: cannot open 'no/such/file': No such file or directory\n");
}

static void refuses_wrong_command_lines(void **state) {
    (void)state;
    expect(RUN("generate", "--nonsense"), 2, "", "generate has no option \"--nonsense\"");
    expect(RUN("generate", "-n", "x"), 2, "", "--tokens is \"x\"; a number from 0 to");
    expect(RUN("generate", "-n", "-1"), 2, "", "--tokens is \"-1\"");
    expect(RUN("generate", "--temp", "hot"), 2, "", "--temp is \"hot\"");
    expect(RUN("generate", "--top-p", "0"), 2, "", "--top-p is \"0\"");
    expect(RUN("generate", "--cache", "int4"), 2, "", "--cache is \"int4\"; fp16, bf16 or fp32 is expected");
    expect(RUN("generate", "--activations", "x"), 2, "", "--activations is \"x\"; exact or int8");
    expect(RUN("generate", "--threads", "0"), 2, "", "--threads is \"0\"");
    expect(RUN("generate", "-p"), 2, "", "--prompt needs a value");
    expect(RUN("generate", "--ids", "1", "-p", "x"), 2, "", "--ids is the whole prompt");
    expect(RUN("generate", "--ids", "1", "--logits", "x", "--json"), 2, "", "--logits writes a file");
}

static void wait_a_moment(double seconds) {
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

// Ctrl-C ends an answer as its end does: what was written stays, whole characters, statistics, status 0.
static void ends_cleanly_at_an_interrupt(void **state) {
    (void)state;
    struct stat written = {0};
    pid_t child =
        start("generate", "/dev/null",
              (const char *const[]){"-p", "abc", "-n", "1000000", "--context", "1000000", "--ignore-end", NULL});
    for (int i = 0; i < 1000 && written.st_size < 20; i++) {
        wait_a_moment(0.02);
        if (stat(out_path, &written) != 0) written.st_size = 0;
    }
    assert_int_equal(kill(child, SIGINT), 0);
    result r = finish(child);
    assert_int_equal(r.status, 0);
    assert_true(strlen(r.out) >= 20 && is_utf8(r.out));
    assert_non_null(strstr(r.error, "tokens/s"));
    forget(&r);
}

// ---- a chat on a terminal ----

static int open_terminal(char *slave, size_t size) {
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0 || ptsname(master) == NULL) {
        print_message("no pseudo-terminal here: the chat is not tried\n");
        skip();
    }
    snprintf(slave, size, "%s", ptsname(master));
    return master;
}

// A chat that is typed to: what it showed until it ended. Where `interrupt`, Ctrl-C is typed at the prompt after the first answer.
static void run_chat(const char *typed, bool interrupt, char *seen, size_t room) {
    char slave[256];
    size_t n = 0;
    int master = open_terminal(slave, sizeof slave), status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(master);
        setsid();
        alarm(120); // of a chat that doesn't end
        for (int i = 0; i < 3; i++) redirect(slave, O_RDWR, i);
        execl(command, command, "generate", "-m", model_path, "-n", "6", "--context", "500", "--ignore-end",
              (char *)NULL);
        _exit(127);
    }
    assert_int_equal(write(master, typed, strlen(typed)), strlen(typed));
    for (;;) { // until the terminal is closed
        ssize_t got = read(master, seen + n, room - 1 - n);
        if (got <= 0) break;
        for (ssize_t i = 0; i < got; i++)
            seen[n + (size_t)i] = seen[n + (size_t)i] == '\0' ? '0' : seen[n + (size_t)i]; // the model may say any byte
        n += (size_t)got;
        seen[n] = '\0';
        const char *answered = strstr(seen, "tokens/s]");
        if (!interrupt || answered == NULL || strstr(answered, "\n> ") == NULL) continue;
        assert_int_equal(write(master, "\003", 1), 1);
        interrupt = false;
    }
    close(master);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail_msg("status %d: %s", status, seen);
}

static void chats_on_a_terminal(void **state) {
    (void)state;
    static char seen[1 << 16];
    run_chat("abc\n\n/reset\nabc 1\n/exit\n", false, seen, sizeof seen);
    const char *first = strstr(seen, "tokens/s]");
    if (first == NULL) fail_msg("seen: %s", seen);
    assert_non_null(strstr(first + 1, "tokens/s]")); // two answers
}

static void ends_a_chat_at_an_interrupt(void **state) {
    (void)state;
    static char seen[1 << 16];
    run_chat("abc\n", true, seen, sizeof seen);
    assert_non_null(strstr(seen, "tokens/s]"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokenizes),
        cmocka_unit_test(prints_an_object),
        cmocka_unit_test(runs_repeat),
        cmocka_unit_test(writes_logits),
        cmocka_unit_test(reads_a_pipe_and_chats_in_one_turn),
        cmocka_unit_test(says_that_the_context_is_full),
        cmocka_unit_test(refuses_broken_files),
        cmocka_unit_test(refuses_wrong_command_lines),
        cmocka_unit_test(ends_cleanly_at_an_interrupt),
        cmocka_unit_test(chats_on_a_terminal),
        cmocka_unit_test(ends_a_chat_at_an_interrupt),
    };
    if (access(command, X_OK) != 0) return 77; // skipped: the command is not built
    return cmocka_run_group_tests(tests, write_model, remove_model);
}
