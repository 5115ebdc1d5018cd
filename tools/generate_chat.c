// SPDX-License-Identifier: Apache-2.0
//
// The chat on a terminal: a line is a message, the model's answer streams, and the cache keeps the conversation. Ctrl-C
// stops an answer, or at the prompt the chat; Ctrl-D ends it.
#define _POSIX_C_SOURCE 200809L // getline, pselect
#include "generate.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <unistd.h>

#include "tool.h"

// Shows the prompt and waits until there is something to read; false at Ctrl-C. It is held back but for the wait itself, so that
// one typed as the prompt appears isn't lost.
static bool prompt_and_wait(void) {
    sigset_t interrupt, before;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    sigprocmask(SIG_BLOCK, &interrupt, &before);
    generate_catch_interrupt();
    fputs("> ", stdout);
    fflush(stdout);
    fd_set input;
    FD_ZERO(&input);
    FD_SET(STDIN_FILENO, &input);
    int ready = pselect(STDIN_FILENO + 1, &input, NULL, NULL, NULL, &before);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return ready > 0;
}

// Reads a message without its newline. False at the end of the chat. (A terminal gives a line at a time, so none waits in stdin's buffer.)
static bool read_message(char **line, size_t *room, size_t *length) {
    ssize_t n = prompt_and_wait() ? getline(line, room, stdin) : -1;
    if (n < 0) {
        fputc('\n', stdout);
        return false;
    }
    while (n > 0 && ((*line)[n - 1] == '\n' || (*line)[n - 1] == '\r')) n--;
    *length = (size_t)n;
    return true;
}

static bool begin_conversation(generate_session *s, kfm_error *error) {
    const char *system = s->options.system != NULL ? s->options.system : kfm_chat_default_system(s->tokenizer);
    kfm_llama_rewind(s->model, 0);
    s->pending.count = 0;
    int32_t bos = kfm_tokenizer_bos(s->tokenizer);
    if (bos >= 0 && !kfm_ids_push(&s->pending, bos, error)) return false;
    return system == NULL || system[0] == '\0' ||
           kfm_chat_message(s->tokenizer, "system", system, strlen(system), &s->pending, error);
}

// An answer that was cut short is ended, so that the conversation stays well-formed; one that ended itself has its end
// token pending.
static bool end_answer(generate_session *s, kfm_error *error) {
    int32_t last = s->ids.count > 0 ? s->ids.id[s->ids.count - 1] : -1,
            end = kfm_tokenizer_find(s->tokenizer, "<|im_end|>");
    bool seen = s->stop == STOP_INTERRUPT; // the model has read the last token; otherwise it was only sampled
    if (last >= 0 && !seen && s->stop != STOP_END && !kfm_ids_push(&s->pending, last, error)) return false;
    return kfm_ids_push(&s->pending, end, error) && kfm_chat_after_answer(s->tokenizer, &s->pending, error);
}

static bool exchange(generate_session *s, const char *message, size_t length, kfm_error *error) {
    double before = s->decode_seconds;
    int64_t tokens = s->decode_tokens;
    bool ok = kfm_chat_message(s->tokenizer, "user", message, length, &s->pending, error) &&
              kfm_chat_answer(s->tokenizer, &s->pending, error) && generate_answer(s, true, error);
    fputc('\n', stdout);
    if (!ok) return false;
    if (s->stop == STOP_CONTEXT)
        return kfm_fail(error, "the context is full: it holds %lld tokens; --context makes it longer",
                        (long long)kfm_llama_position(s->model));
    tokens = s->decode_tokens - tokens;
    if (tokens > 0)
        fprintf(stderr, "[%lld tokens, %.0f tokens/s]\n", (long long)tokens,
                (double)tokens / (s->decode_seconds - before));
    return end_answer(s, error);
}

int generate_chat(generate_session *s) {
    kfm_error error = {""};
    char *line = NULL;
    size_t room = 0, length;
    if (!kfm_chat_check(s->tokenizer, &error)) return kft_error("%s", error.text);
    fputs("A line is a message. /reset begins anew, /exit or Ctrl-D ends; Ctrl-C stops an answer.\n", stderr);
    bool ok = begin_conversation(s, &error);
    while (ok && read_message(&line, &room, &length)) {
        if (strcmp(line, "/exit\n") == 0) break;
        if (strcmp(line, "/reset\n") == 0)
            ok = begin_conversation(s, &error);
        else if (length > 0)
            ok = exchange(s, line, length, &error);
    }
    free(line);
    return ok ? 0 : kft_error("%s", error.text);
}
