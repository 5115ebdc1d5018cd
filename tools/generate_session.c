// SPDX-License-Identifier: Apache-2.0
//
// A model that is open: reading tokens, answering, and what was measured meanwhile. See generate.h.
#define _POSIX_C_SOURCE 200809L // sigaction
#include "generate.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "ceilings.h"
#include "tool.h"

// ---- Ctrl-C ----

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    interrupted = 1;
}

void generate_catch_interrupt(void) {
    interrupted = 0;
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &action, NULL);
}

bool generate_interrupted(void) { return interrupted != 0; }

// ---- opening ----

static void show_progress(void *argument, int64_t done, int64_t of) {
    const generate_session *s = argument;
    const char *what = s->options.device.type == KF_DEVICE_CPU ? "packing weights" : "weights to the device";
    if (done < of)
        kft_progress("%s: layer %lld of %lld", what, (long long)done, (long long)of);
    else
        kft_progress(NULL);
}

static bool open_context(generate_session *s, kfm_error *error) {
    kf_context_options options;
    kf_context_options_init(&options);
    options.threads = (int32_t)s->options.threads;
    options.device = s->options.device;
    return kf_context_create(&options, &s->context) == KF_OK || kfm_fail(error, "%s", kf_last_error());
}

bool generate_open(generate_session *s, const generate_options *options, kfm_error *error) {
    *s = (generate_session){.options = *options};
    if (!kfm_gguf_open(&s->gguf, options->model, error) || !kfm_tokenizer_open(&s->tokenizer, s->gguf, error))
        return false;
    kfm_llama_options model = {.context = options->context,
                               .chunk = options->chunk,
                               .cache = options->cache,
                               .rows = options->rows,
                               .weights = options->weights,
                               .activations = options->activations};
    if (!open_context(s, error) || !kfm_llama_open(&s->model, s->context, s->gguf, &model, show_progress, s, error))
        return false;
    int64_t vocabulary = kfm_llama_get_info(s->model).vocabulary;
    if (vocabulary != kfm_tokenizer_count(s->tokenizer))
        return kfm_fail(error, "the tokenizer has %d tokens, and the model %lld", kfm_tokenizer_count(s->tokenizer),
                        (long long)vocabulary);
    void *logits = NULL;
    if (kf_memory_allocate_host(s->context, (size_t)vocabulary * sizeof *s->logits, &logits) != KF_OK)
        return kfm_fail(error, "out of memory for the logits");
    s->logits = logits;
    return kfm_sampler_open(&s->sampler, &options->sampling, (int32_t)vocabulary, error);
}

void generate_close(generate_session *s) {
    kfm_sampler_close(s->sampler);
    kfm_llama_close(s->model);
    kf_memory_free_host(s->context, s->logits);
    kf_context_destroy(s->context);
    kfm_tokenizer_close(s->tokenizer);
    kfm_gguf_close(s->gguf);
    kfm_ids_free(&s->pending);
    kfm_ids_free(&s->ids);
    free(s->text);
}

// ---- answering ----

static bool emit(generate_session *s, const char *bytes, size_t n, bool stream, kfm_error *error) {
    if (n > s->text_room - s->text_bytes) {
        size_t room = 2 * (s->text_bytes + n);
        char *grown = realloc(s->text, room);
        if (grown == NULL) return kfm_fail(error, "out of memory for a text of %zu bytes", room);
        s->text = grown;
        s->text_room = room;
    }
    if (n > 0) memcpy(s->text + s->text_bytes, bytes, n);
    s->text_bytes += n;
    if (stream && n > 0) {
        fwrite(bytes, 1, n, stdout);
        fflush(stdout);
    }
    return true;
}

// A token's bytes, as far as they complete characters; id −1: what is left over at the end.
static bool emit_token(generate_session *s, kfm_utf8 *utf8, int32_t id, bool stream, kfm_error *error) {
    kfm_string token = kfm_token_bytes(s->tokenizer, id);
    char *whole = malloc(KFM_UTF8_ROOM(token.length));
    if (whole == NULL) return kfm_fail(error, "out of memory for a token of %zu bytes", token.length);
    size_t n = id >= 0 ? kfm_utf8_push(utf8, token.bytes, token.length, whole) : kfm_utf8_finish(utf8, whole);
    bool ok = emit(s, whole, n, stream, error);
    free(whole);
    return ok;
}

// The prompt, chunk by chunk, so that Ctrl-C is heard and progress shown. Logits are those after its last token.
static bool read_pending(generate_session *s, kfm_error *error) {
    int64_t count = s->pending.count, chunk = kfm_llama_get_info(s->model).chunk, start = kfm_llama_position(s->model);
    int64_t room = kfm_llama_get_info(s->model).context - start;
    double begin = kft_seconds();
    if (count == 0) return kfm_fail(error, "the prompt has no tokens");
    if (count > room) // said before a long prompt is read in vain
        return kfm_fail(error, "the context is full: it holds %lld of %lld tokens, and the prompt's %lld do not fit",
                        (long long)start, (long long)(start + room), (long long)count);
    int64_t done = 0;
    while (done < count && !generate_interrupted()) {
        int64_t n = count - done < chunk ? count - done : chunk;
        if (count > chunk) kft_progress("reading the prompt: %lld of %lld tokens", (long long)done, (long long)count);
        if (!kfm_llama_eval(s->model, s->pending.id + done, n, done + n == count ? s->logits : NULL, error))
            return false;
        done += n;
    }
    kft_progress(NULL);
    s->prefill_tokens += done;
    s->prefill_seconds += kft_seconds() - begin;
    s->pending.count = count - done; // after Ctrl-C the rest waits for the next turn
    if (done < count) memmove(s->pending.id, s->pending.id + done, (size_t)(count - done) * sizeof *s->pending.id);
    return true;
}

// One token after the other, from the logits that are there, until something stops it.
static bool decode(generate_session *s, bool stream, kfm_error *error) {
    const generate_options *o = &s->options;
    int64_t context = kfm_llama_get_info(s->model).context;
    kfm_utf8 utf8 = {0};
    double begin = kft_seconds();
    for (s->stop = STOP_LENGTH; s->ids.count < o->max_tokens;) {
        if (generate_interrupted()) {
            s->stop = STOP_INTERRUPT;
            break;
        }
        int32_t id = kfm_sample(s->sampler, s->logits);
        if (id < 0)
            return kfm_fail(error, "the model's logits are not numbers after %lld tokens",
                            (long long)kfm_llama_position(s->model));
        if (!kfm_ids_push(&s->ids, id, error)) return false;
        if (!o->ignore_end && kfm_tokenizer_is_end(s->tokenizer, id)) {
            s->stop = STOP_END;
            break;
        }
        if (!emit_token(s, &utf8, id, stream, error)) return false;
        if (s->ids.count == o->max_tokens) break; // its logits are not wanted
        if (kfm_llama_position(s->model) == context) {
            s->stop = STOP_CONTEXT;
            break;
        }
        if (!kfm_llama_eval(s->model, &id, 1, s->logits, error)) return false;
        s->decode_tokens++;
        s->decode_positions += kfm_llama_position(s->model);
    }
    s->decode_seconds += kft_seconds() - begin;
    return emit_token(s, &utf8, -1, stream, error);
}

bool generate_answer(generate_session *s, bool stream, kfm_error *error) {
    s->ids.count = 0;
    s->text_bytes = 0;
    if (!read_pending(s, error)) return false;
    if (generate_interrupted()) {
        s->stop = STOP_INTERRUPT;
        return true;
    }
    return decode(s, stream, error);
}

// ---- statistics ----

// Bytes a second that the context's threads can read: the best of a few samples, for whatever disturbs one makes it slower.
static double measure_read(const kf_context *context) {
    enum { SAMPLES = 12 };
    double best = 0;
    kft_ceilings *ceilings = kft_ceilings_open(context);
    if (ceilings == NULL) return 0;
    for (int i = 0; i < SAMPLES; i++) {
        double rate = kft_ceiling_sample(ceilings, KFT_CEILING_READ);
        best = rate > best ? rate : best;
    }
    kft_ceilings_close(ceilings);
    return best;
}

generate_statistics generate_measure(const generate_session *s) {
    kfm_llama_info info = kfm_llama_get_info(s->model);
    generate_statistics r = {0};
    if (s->prefill_seconds > 0) r.prefill_rate = (double)s->prefill_tokens / s->prefill_seconds;
    if (s->decode_tokens == 0 || s->decode_seconds <= 0) return r;
    r.decode_rate = (double)s->decode_tokens / s->decode_seconds;
    r.bytes_per_token = (double)info.weight_bytes +
                        (double)info.kv_bytes_per_position * (double)s->decode_positions / (double)s->decode_tokens;
    r.bytes_per_s = r.bytes_per_token * r.decode_rate;
    if (s->options.device.type == KF_DEVICE_CPU) r.read = measure_read(s->context);
    return r;
}

void generate_print_statistics(const generate_session *s, const generate_statistics *r) {
    fprintf(stderr, "prompt: %lld tokens, %.0f tokens/s", (long long)s->prefill_tokens, r->prefill_rate);
    if (s->decode_tokens > 0)
        fprintf(stderr, "; answer: %lld tokens, %.0f tokens/s, %.1f MB a token, %.1f GB/s", (long long)s->decode_tokens,
                r->decode_rate, r->bytes_per_token * 1e-6, r->bytes_per_s * 1e-9);
    if (r->read > 0)
        fprintf(stderr, ", %.0f %% of the %.1f GB/s that this machine reads", 100 * r->bytes_per_s / r->read,
                r->read * 1e-9);
    fputc('\n', stderr);
}
