// SPDX-License-Identifier: Apache-2.0
//
// bench's model rows: a prompt of 512 tokens, and decoding one token at a time with 0 and with 2048 tokens before it. Defaults are those of
// keyfold generate.
//
//   decode: a token reads every weight once and the cache's positions so far; bounded by the read rate
//   prefill: 2 operations a weight and token, and attention's 4 D H for each pair and layer; bounded by the compute rate
#include <stdlib.h>

#include "bench.h"
#include "model/llama.h"

enum {
    PROMPT = 512,
    DEPTH = 2048,
    DECODED = 16
}; // DECODED: tokens of one run, so that its few milliseconds are some more

typedef struct subject_model {
    kf_context *context;
    kft_ceilings *ceilings;
    kfm_gguf *gguf;
    kfm_llama *model;
    kfm_llama_info info;
    float *logits;
    int32_t tokens[DEPTH];
    int64_t depth; // of the decoding rows
    double matrix_weights;
    const char *dtype;
    kfm_error error;
} subject_model;

static void show_packing(void *argument, int64_t done, int64_t of) {
    (void)argument;
    kft_progress("packing weights: layer %lld of %lld", (long long)done, (long long)of);
}

static bool open_model(subject_model *m, const char *path, int32_t threads, bool int8) {
    kf_context_options options;
    kf_context_options_init(&options);
    options.threads = threads;
    if (kf_context_create(&options, &m->context) != KF_OK) return kfm_fail(&m->error, "%s", kf_last_error());
    kfm_llama_options model = {.context = DEPTH + PROMPT,
                               .activations = int8 ? KF_ACTIVATIONS_INT8 : KF_ACTIVATIONS_EXACT};
    if (!kfm_gguf_open(&m->gguf, path, &m->error)) return false;
    if (!kfm_llama_open(&m->model, m->context, m->gguf, &model, show_packing, NULL, &m->error)) return false;
    kft_progress(NULL);
    m->info = kfm_llama_get_info(m->model);
    m->logits = malloc((size_t)m->info.vocabulary * sizeof *m->logits);
    m->ceilings = kft_ceilings_open(m->context);
    return (m->logits && m->ceilings) || kfm_fail(&m->error, "memory is short");
}

static void close_model(subject_model *m) {
    free(m->logits);
    kft_ceilings_close(m->ceilings);
    kfm_llama_close(m->model);
    kfm_gguf_close(m->gguf);
    kf_context_destroy(m->context);
}

// The weights of the layers' products (vectors and the embedding, of which a prompt's step needs little, left out), and their type.
static void count_weights(subject_model *m) {
    int64_t largest = 0;
    m->dtype = "";
    for (int64_t i = 0; i < kfm_gguf_tensor_count(m->gguf); i++) {
        const kfm_gguf_tensor *t = kfm_gguf_tensor_at(m->gguf, i);
        int64_t elements = t->dim[0] * t->dim[1];
        if (t->dims != 2 || t->dim[1] == m->info.vocabulary) continue;
        m->matrix_weights += (double)elements;
        if (elements > largest) largest = elements, m->dtype = kf_weight_type_string((int)t->type);
    }
}

static bool run_prefill(void *argument, int i, double *seconds) {
    subject_model *m = argument;
    (void)i;
    kfm_llama_rewind(m->model, 0);
    double begin = kft_seconds();
    bool good = kfm_llama_eval(m->model, m->tokens, PROMPT, m->logits, &m->error);
    *seconds = kft_seconds() - begin;
    return good;
}

static bool run_decode(void *argument, int i, double *seconds) {
    subject_model *m = argument;
    kfm_llama_rewind(m->model, m->depth);
    double begin = kft_seconds();
    bool good = true;
    for (int j = 0; good && j < DECODED; j++) {
        good = kfm_llama_eval(m->model, &m->tokens[(i * DECODED + j) % DEPTH], 1, m->logits, &m->error);
    }
    *seconds = (kft_seconds() - begin) / DECODED;
    return good;
}

// Fills the cache up to the depth.
static bool fill_cache(subject_model *m) {
    kfm_llama_rewind(m->model, 0);
    return m->depth == 0 || kfm_llama_eval(m->model, m->tokens, m->depth, NULL, &m->error);
}

static bench_row row_of(const subject_model *m, const char *op, bool int8) {
    kf_context_info info = {.size = sizeof info};
    kf_context_get_info(m->context, &info);
    return (bench_row){.op = op,
                       .backend = "cpu",
                       .isa = kf_isa_string(info.isa),
                       .dtype = m->dtype,
                       .variant = int8 ? "int8" : "",
                       .dims = {"tokens", "depth"},
                       .causal = true,
                       .threads = info.threads};
}

static bool time_prefill(subject_model *m, bool int8, double seconds, bench_row *row) {
    double pairs = 0.5 * PROMPT * (PROMPT + 1.0);
    double attention = 4.0 * (double)(m->info.head_dim * m->info.heads * m->info.layers) * pairs;
    bench_subject subject = {.run = run_prefill, .argument = m, .ceilings = m->ceilings};
    subject.work = (bench_work){.bytes = (double)m->info.weight_bytes,
                                .flops = 2.0 * PROMPT * m->matrix_weights + attention,
                                .memory = KFT_CEILING_READ,
                                .compute = int8 ? KFT_CEILING_INT8_DOT : KFT_CEILING_FMA};
    if (int8 && !kft_ceiling_exists(m->ceilings, KFT_CEILING_INT8_DOT)) subject.work.compute = KFT_CEILING_FMA;
    *row = row_of(m, "prefill", int8);
    row->shape[0] = PROMPT;
    if (!bench_rounds(&subject, seconds, row)) return false;
    row->tokens_per_s = PROMPT / (row->time_us * 1e-6);
    return true;
}

static bool time_decode(subject_model *m, int64_t depth, bool int8, double seconds, bench_row *row) {
    m->depth = depth;
    if (!fill_cache(m)) return false;
    double positions = (double)depth + (DECODED + 1) / 2.0; // read by one token of a run, on average
    bench_subject subject = {.run = run_decode, .argument = m, .ceilings = m->ceilings};
    subject.work =
        (bench_work){.bytes = (double)m->info.weight_bytes + positions * (double)m->info.kv_bytes_per_position,
                     .flops = 2.0 * m->matrix_weights,
                     .memory = KFT_CEILING_READ,
                     .compute = KFT_CEILING_COUNT};
    *row = row_of(m, "decode", int8);
    row->shape[0] = 1;
    row->shape[1] = depth;
    if (!bench_rounds(&subject, seconds, row)) return false;
    row->tokens_per_s = 1e6 / row->time_us;
    return true;
}

int bench_model(const char *path, int32_t threads, bool int8, double seconds,
                void (*print)(void *argument, const bench_row *row), void *argument) {
    subject_model *m = calloc(1, sizeof *m);
    if (!m) return kft_error("bench: memory is short");
    bench_row row;
    bool good = open_model(m, path, threads, int8);
    if (good) {
        count_weights(m);
        // Tokens of no meaning, spread over the vocabulary.
        for (int64_t i = 0; i < DEPTH; i++) m->tokens[i] = (int32_t)(i * 7919 % m->info.vocabulary);
    }
    if (good && (good = time_prefill(m, int8, seconds, &row))) print(argument, &row);
    if (good && (good = time_decode(m, 0, int8, seconds, &row))) print(argument, &row);
    if (good && (good = time_decode(m, DEPTH, int8, seconds, &row))) print(argument, &row);
    int status = good ? 0 : kft_error("bench: %s", m->error.text);
    close_model(m);
    free(m);
    return status;
}
