// SPDX-License-Identifier: Apache-2.0
// The Llama architecture: a small random model against a textbook in float64, in chunks of every size and on one and
// two threads; broken files; and, where KEYFOLD_MODEL names the model file, the logits and choices of another
// implementation (tests/data/smollm2.json).
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "json.h"
#include "small_model.h"
#include "model/llama.h"

// ---- the textbook, in float64 ----

static const double *values(const small_model *m, int layer, const char *name) {
    char full[40];
    if (layer >= 0)
        snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    else
        snprintf(full, sizeof full, "%s", name);
    for (int i = 0; i < m->count; i++)
        if (strcmp(m->tensors[i].name, full) == 0) return m->tensors[i].values;
    fail_msg("no %s", full);
    return NULL;
}

static void multiply(const double *w, const double *x, int rows, int columns, double *y) {
    for (int r = 0; r < rows; r++) {
        y[r] = 0;
        for (int c = 0; c < columns; c++) y[r] += w[r * columns + c] * x[c];
    }
}

static void norm(const double *x, const double *weight, double *y) {
    double sum = 0;
    for (int i = 0; i < WIDTH; i++) sum += x[i] * x[i];
    for (int i = 0; i < WIDTH; i++) y[i] = x[i] / sqrt(sum / WIDTH + eps) * weight[i];
}

// Turns pairs (2c, 2c + 1) of the first ROPE_DIMS elements.
static void rotate(double *x, int position) {
    for (int c = 0; c < ROPE_DIMS / 2; c++) {
        double angle = position * pow(rope_base, -2.0 * c / ROPE_DIMS), a = x[2 * c], b = x[2 * c + 1];
        x[2 * c] = a * cos(angle) - b * sin(angle);
        x[2 * c + 1] = a * sin(angle) + b * cos(angle);
    }
}

typedef struct textbook {
    double k[LAYERS][CONTEXT][KV_HEADS * DIM], v[LAYERS][CONTEXT][KV_HEADS * DIM];
} textbook;

static void attend(const textbook *t, int layer, const double *q, int position, double *out) {
    for (int h = 0; h < HEADS; h++) {
        int at = h / (HEADS / KV_HEADS) * DIM;
        double weight[CONTEXT], sum = 0;
        for (int j = 0; j <= position; j++) {
            double score = 0;
            for (int d = 0; d < DIM; d++) score += q[h * DIM + d] * t->k[layer][j][at + d];
            sum += weight[j] = exp(score / sqrt(DIM));
        }
        for (int d = 0; d < DIM; d++) {
            out[h * DIM + d] = 0;
            for (int j = 0; j <= position; j++) out[h * DIM + d] += weight[j] / sum * t->v[layer][j][at + d];
        }
    }
}

static void textbook_step(const small_model *m, textbook *t, int token, int position, double *logits) {
    double h[WIDTH], n[WIDTH], q[HEADS * DIM], o[HEADS * DIM], gate[HIDDEN], up[HIDDEN], add[WIDTH];
    memcpy(h, values(m, -1, "token_embd.weight") + token * WIDTH, sizeof h);
    for (int l = 0; l < LAYERS; l++) {
        norm(h, values(m, l, "attn_norm.weight"), n);
        multiply(values(m, l, "attn_q.weight"), n, HEADS * DIM, WIDTH, q);
        multiply(values(m, l, "attn_k.weight"), n, KV_HEADS * DIM, WIDTH, t->k[l][position]);
        multiply(values(m, l, "attn_v.weight"), n, KV_HEADS * DIM, WIDTH, t->v[l][position]);
        for (int i = 0; i < HEADS; i++) rotate(q + i * DIM, position);
        for (int i = 0; i < KV_HEADS; i++) rotate(t->k[l][position] + i * DIM, position);
        attend(t, l, q, position, o);
        multiply(values(m, l, "attn_output.weight"), o, WIDTH, HEADS * DIM, add);
        for (int i = 0; i < WIDTH; i++) h[i] += add[i];
        norm(h, values(m, l, "ffn_norm.weight"), n);
        multiply(values(m, l, "ffn_gate.weight"), n, HIDDEN, WIDTH, gate);
        multiply(values(m, l, "ffn_up.weight"), n, HIDDEN, WIDTH, up);
        for (int i = 0; i < HIDDEN; i++) gate[i] *= up[i] / (1 + exp(-gate[i]));
        multiply(values(m, l, "ffn_down.weight"), gate, WIDTH, HIDDEN, add);
        for (int i = 0; i < WIDTH; i++) h[i] += add[i];
    }
    norm(h, values(m, -1, "output_norm.weight"), n);
    multiply(values(m, -1, "token_embd.weight"), n, VOCABULARY, WIDTH, logits);
}

// ---- opening ----

static kf_context *open_context(int threads) {
    kf_context_options options;
    kf_context *context;
    kf_context_options_init(&options);
    options.threads = threads;
    if (kf_context_create(&options, &context) != KF_OK) fail_msg("%s", kf_last_error());
    return context;
}

typedef struct opened {
    kfm_gguf *gguf;
    kf_context *context;
    kfm_llama *model;
} opened;

static opened open_bytes(const gguf_writer *w, int threads, kfm_llama_options options) {
    opened o = {.context = open_context(threads)};
    kfm_error error = {""};
    if (!kfm_gguf_parse(&o.gguf, w->bytes, w->count, &error) ||
        !kfm_llama_open(&o.model, o.context, o.gguf, &options, NULL, NULL, &error))
        fail_msg("%s", error.text);
    return o;
}

static void close_opened(opened *o) {
    kfm_llama_close(o->model);
    kf_context_destroy(o->context);
    kfm_gguf_close(o->gguf);
}

static void eval(kfm_llama *m, const int32_t *tokens, int64_t count, float *logits) {
    kfm_error error = {""};
    if (!kfm_llama_eval(m, tokens, count, logits, &error)) fail_msg("%s", error.text);
}

static void eval_all(kfm_llama *m, const int32_t *tokens, int64_t count, float *logits) {
    kfm_error error = {""};
    if (!kfm_llama_eval_all(m, tokens, count, logits, &error)) fail_msg("%s", error.text);
}

static void small_tokens(int32_t *tokens, int n) {
    for (int i = 0; i < n; i++) tokens[i] = (i * 37 + i * i) % VOCABULARY;
}

// ---- the small model ----

static void agrees_with_the_textbook(void **state) {
    (void)state;
    // bound: relative to the largest logit; what is rounded to 2^-24, 2^-11 or 2^-8, through 3 layers. The small model's weights
    // are the same numbers in every type.
    static const struct {
        kfm_llama_options options;
        double bound;
    } cases[] = {
        {{.cache = KF_FP32}, 2e-5},
        {{.cache = KF_FP16}, 2e-3},
        {{.cache = KF_BF16}, 2e-2},
        {{.cache = KF_FP32, .weights = KF_FP32}, 2e-5},
        {{.cache = KF_FP32, .weights = KF_BF16}, 2e-5},
        {{.cache = KF_FP16, .weights = KF_FP16}, 2e-3},
        {{.cache = KF_FP32, .rows = KF_FP16}, 4e-3},
        {{.cache = KF_BF16, .rows = KF_BF16, .weights = KF_BF16}, 4e-2},
    };
    enum { CASES = sizeof cases / sizeof cases[0] };
    small_model small;
    static textbook book;
    static double expected[CONTEXT][VOCABULARY];
    int32_t tokens[CONTEXT];
    double largest = 0;
    make_small(&small, NULL);
    small_tokens(tokens, CONTEXT);
    for (int i = 0; i < CONTEXT; i++) {
        textbook_step(&small, &book, tokens[i], i, expected[i]);
        for (int k = 0; k < VOCABULARY; k++) largest = fmax(largest, fabs(expected[i][k]));
    }
    for (int c = 0; c < CASES; c++) {
        opened o = open_bytes(&small.file, 2, cases[c].options);
        static float logits[CONTEXT][VOCABULARY];
        eval_all(o.model, tokens, CONTEXT, logits[0]);
        for (int i = 0; i < CONTEXT; i++)
            for (int k = 0; k < VOCABULARY; k++)
                if (!(fabs(logits[i][k] - expected[i][k]) <= cases[c].bound * largest))
                    fail_msg("case %d, token %d, logit %d: %g instead of %g (largest %g)", c, i, k, logits[i][k],
                             expected[i][k], largest);
        assert_int_equal(kfm_llama_position(o.model), CONTEXT);
        close_opened(&o);
    }
    free_small(&small);
}

// A model beside another one has a cache of its own; repeating a step changes nothing.
static void stands_beside_another(void **state) {
    (void)state;
    small_model small;
    int32_t tokens[CONTEXT];
    float logits[2][VOCABULARY];
    kfm_llama *beside;
    kfm_error error = {""};
    make_small(&small, NULL);
    small_tokens(tokens, CONTEXT);
    opened o = open_bytes(&small.file, 2, (kfm_llama_options){0});
    assert_false(kfm_llama_repeat(o.model, 1, &error));
    if (!kfm_llama_open_beside(&beside, o.context, o.model, &error)) fail_msg("%s", error.text);
    eval(beside, tokens + 9, 5, logits[1]);
    eval(o.model, tokens, 7, logits[0]);
    kfm_llama_rewind(beside, 0);
    eval(beside, tokens, 7, logits[1]);
    assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
    eval(beside, tokens + 7, 1, logits[1]);
    memset(logits[1], 0, sizeof logits[1]);
    assert_true(kfm_llama_repeat(beside, 3, &error));
    eval(o.model, tokens + 7, 1, logits[0]);
    assert_memory_equal(logits[0], logits[1], sizeof logits[0]); // written by the repetition
    eval(o.model, tokens + 8, 1, logits[0]);
    eval(beside, tokens + 8, 1, logits[1]);
    assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
    assert_int_equal(kfm_llama_get_info(beside).operations, kfm_llama_get_info(o.model).operations);
    kfm_llama_close(beside);
    close_opened(&o);
    free_small(&small);
}

// However a text is cut into steps and chunks, the logits are those of the whole, up to the order of sums.
static void chunks_make_no_difference(void **state) {
    (void)state;
    small_model small;
    int32_t tokens[CONTEXT];
    static float whole[CONTEXT][VOCABULARY];
    make_small(&small, NULL);
    small_tokens(tokens, CONTEXT);
    opened o = open_bytes(&small.file, 1, (kfm_llama_options){0});
    eval_all(o.model, tokens, CONTEXT, whole[0]);
    close_opened(&o);
    for (int64_t chunk = 1; chunk <= CONTEXT; chunk += chunk < 8 ? 1 : 13) {
        o = open_bytes(&small.file, 2, (kfm_llama_options){.chunk = chunk});
        for (int cut = 1; cut < CONTEXT; cut += 9) {
            float logits[VOCABULARY];
            kfm_llama_rewind(o.model, 0);
            eval(o.model, tokens, cut, NULL); // no logits: the last layer is cut short
            eval(o.model, tokens + cut, CONTEXT - 1 - cut, logits);
            eval(o.model, tokens + CONTEXT - 1, 1, logits);
            for (int k = 0; k < VOCABULARY; k++) assert_true(fabsf(logits[k] - whole[CONTEXT - 1][k]) < 0.02f);
        }
        close_opened(&o);
    }
    free_small(&small);
}

static void threads_make_no_difference(void **state) {
    (void)state;
    small_model small;
    int32_t tokens[CONTEXT];
    static float logits[2][CONTEXT][VOCABULARY];
    make_small(&small, NULL);
    small_tokens(tokens, CONTEXT);
    for (int threads = 1; threads <= 2; threads++) {
        opened o = open_bytes(&small.file, threads, (kfm_llama_options){0});
        eval_all(o.model, tokens, 40, logits[threads - 1][0]);
        for (int i = 40; i < CONTEXT; i++) eval(o.model, tokens + i, 1, logits[threads - 1][i]);
        close_opened(&o);
    }
    assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
    free_small(&small);
}

static void refuses_what_does_not_fit(void **state) {
    (void)state;
    small_model small;
    int32_t tokens[CONTEXT];
    float logits[VOCABULARY], again[VOCABULARY];
    kfm_error error;
    make_small(&small, NULL);
    small_tokens(tokens, CONTEXT);
    opened o = open_bytes(&small.file, 2, (kfm_llama_options){.context = 10});
    assert_int_equal(kfm_llama_get_info(o.model).context, 10);
    assert_false(kfm_llama_eval(o.model, tokens, 11, logits, &error));
    assert_string_equal(error.text, "the context is full: it holds 0 of 10 tokens, and 11 more do not fit");
    eval(o.model, tokens, 10, logits);
    assert_false(kfm_llama_eval(o.model, tokens, 1, again, &error));
    assert_non_null(strstr(error.text, "holds 10 of 10 tokens, and 1 more do not fit"));
    kfm_llama_rewind(o.model, 9);
    assert_false(kfm_llama_eval(o.model, (int32_t[]){VOCABULARY}, 1, again, &error));
    assert_non_null(strstr(error.text, "token 0 is 275; the vocabulary has 0 to 274"));
    assert_false(kfm_llama_eval(o.model, (int32_t[]){-1}, 1, again, &error));
    assert_false(kfm_llama_eval(o.model, NULL, 1, again, &error));
    assert_false(kfm_llama_eval(o.model, tokens, -1, again, &error));
    assert_int_equal(kfm_llama_position(o.model), 9);
    eval(o.model, tokens + 9, 1, again); // nothing of this left a trace
    for (int k = 0; k < VOCABULARY; k++) assert_true(fabsf(logits[k] - again[k]) < 0.02f);
    eval(o.model, tokens, 0, NULL);
    kfm_llama_rewind(o.model, 100);
    kfm_llama_rewind(o.model, -5);
    assert_int_equal(kfm_llama_position(o.model), 10);
    close_opened(&o);
    free_small(&small);
}

static void expect_refused(const gguf_writer *w, kfm_llama_options options, const char *says) {
    kf_context *context = open_context(1);
    kfm_gguf *g;
    kfm_llama *m = (kfm_llama *)(uintptr_t)1;
    kfm_error error = {""};
    if (!kfm_gguf_parse(&g, w->bytes, w->count, &error)) fail_msg("%s", error.text);
    assert_false(kfm_llama_open(&m, context, g, &options, NULL, NULL, &error));
    assert_null(m);
    if (strstr(error.text, says) == NULL) fail_msg("\"%s\" does not say \"%s\"", error.text, says);
    kfm_gguf_close(g);
    kf_context_destroy(context);
}

// The place of a key's value in the file; of a tensor's dim[0].
static size_t value_of(const gguf_writer *w, const char *key) {
    size_t n = strlen(key);
    for (size_t at = 0; at + n < w->count; at++)
        if (memcmp(w->bytes + at, key, n) == 0) return at + n + 4;
    fail_msg("no %s", key);
    return 0;
}

static void refuses_broken_models(void **state) {
    (void)state;
    static const struct {
        const char *key;
        uint64_t value;
        const char *says;
    } numbers[] = {
        {"llama.block_count", LAYERS + 1, "tensor 'blk.3.attn_norm.weight' is missing"},
        {"llama.block_count", LAYERS - 1, "is no part of the Llama architecture"},
        {"llama.block_count", 0, "'llama.block_count' is 0"},
        {"llama.block_count", UINT32_MAX, "'llama.block_count' is 4294967295"},
        {"llama.embedding_length", 32, "tensor 'token_embd.weight' has the shape [64, 275]; [32, 275] is expected"},
        {"llama.feed_forward_length", 64, "tensor 'blk.0.ffn_gate.weight' has the shape"},
        {"llama.attention.head_count", 8, "tensor 'blk.0.attn_k.weight' has the shape"},
        {"llama.attention.head_count", 3, "3 query heads are no multiple of 2 KV heads"},
        {"llama.attention.head_count_kv", 5, "'llama.attention.head_count_kv' is 5; 1 to 4"},
        {"llama.context_length", 0, "'llama.context_length' is 0"},
        {"llama.rope.dimension_count", 7, "an odd number"},
        {"llama.rope.dimension_count", 18, "'llama.rope.dimension_count' is 18; 1 to 16"},
        {"llama.rope.freq_base", 0, "base 0"},
        {"llama.attention.layer_norm_rms_epsilon", 0x7fc00000, "is nan; 0 to 1"},
    };
    small_model small;
    make_small(&small, NULL);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        size_t at = value_of(&small.file, numbers[i].key);
        unsigned char before[4];
        memcpy(before, small.file.bytes + at, 4);
        gguf_patch(&small.file, at, numbers[i].value, 4);
        expect_refused(&small.file, (kfm_llama_options){0}, numbers[i].says);
        memcpy(small.file.bytes + at, before, 4);
    }
    static const struct {
        const char *from, *to, *says;
    } names[] = {
        {"blk.1.ffn_up.weight", "blk.1.ffn_uq.weight", "tensor 'blk.1.ffn_up.weight' is missing"},
        {"output_norm.weight", "output_nerm.weight", "tensor 'output_norm.weight' is missing"},
        {"general.architecture", "general.architectuRE", "key 'general.architecture' is missing"},
        {"llama.block_count", "llama.block_cOunt", "key 'llama.block_count' is missing"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t at = value_of(&small.file, names[i].from) - 4 - strlen(names[i].from);
        memcpy(small.file.bytes + at, names[i].to, strlen(names[i].to));
        expect_refused(&small.file, (kfm_llama_options){0}, names[i].says);
        memcpy(small.file.bytes + at, names[i].from, strlen(names[i].from));
    }
    expect_refused(&small.file, (kfm_llama_options){.context = -1}, "a context of -1");
    expect_refused(&small.file, (kfm_llama_options){.chunk = -1}, "a chunk of -1");
    expect_refused(&small.file, (kfm_llama_options){.cache = KF_INT32}, "int32");
    expect_refused(&small.file, (kfm_llama_options){.activations = 7}, "activations");
    expect_refused(&small.file, (kfm_llama_options){.weights = KF_INT32}, "weights");
    expect_refused(&small.file, (kfm_llama_options){.rows = KF_INT32}, "int32");
    free_small(&small);
}

static void put_experts(gguf_writer *w) { gguf_key_u32(w, "llama.expert_count", 8); }
static void put_yarn(gguf_writer *w) { gguf_key_text(w, "llama.rope.scaling.type", "yarn"); }
static void put_value_length(gguf_writer *w) { gguf_key_u32(w, "llama.attention.value_length", 8); }
static void put_key_length(gguf_writer *w) { gguf_key_u32(w, "llama.attention.key_length", 8); }

static void refuses_what_it_does_not_compute(void **state) {
    (void)state;
    static const struct {
        void (*more)(gguf_writer *);
        const char *says;
    } cases[] = {
        {put_experts, "a mixture of 8 experts"},
        {put_yarn, "RoPE scaling 'yarn' is not supported"},
        {put_value_length, "values of 8 dimensions under keys of 16"},
        {put_key_length, "tensor 'blk.0.attn_q.weight' has the shape"},
    };
    small_model small;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        make_small(&small, cases[i].more);
        expect_refused(&small.file, (kfm_llama_options){0}, cases[i].says);
        free_small(&small);
    }
    make_small(&small, NULL);
    memcpy(small.file.bytes + value_of(&small.file, "general.architecture") + 8, "qwen2", 5);
    expect_refused(&small.file, (kfm_llama_options){0}, "architecture 'qwen2' is not supported");
    free_small(&small);
}

static void survives_every_allocation_failing(void **state) {
    (void)state;
    small_model small;
    int32_t tokens[CONTEXT];
    float logits[VOCABULARY];
    kfm_gguf *g;
    kfm_llama *m;
    kfm_error error;
    make_small(&small, NULL);
    small_tokens(tokens, CONTEXT);
    kf_context *context = open_context(1);
    assert_true(kfm_gguf_parse(&g, small.file.bytes, small.file.count, &error));
    for (int64_t n = 1;; n++) {
        const kfm_llama_options converted = {.weights = KF_BF16};
        kfm_fail_allocation(n);
        bool ok = kfm_llama_open(&m, context, g, &converted, NULL, NULL, &error);
        assert_true(ok == (kfm_fail_allocation(0) != 0) && (m != NULL) == ok);
        if (!ok) continue;
        kfm_llama_close(m);
        break;
    }
    for (int64_t n = 1;; n++) {
        kfm_fail_allocation(n);
        bool ok = kfm_llama_open(&m, context, g, NULL, NULL, NULL, &error);
        assert_true(ok == (kfm_fail_allocation(0) != 0) && (m != NULL) == ok);
        if (ok) break;
        assert_non_null(strstr(error.text, "out of memory"));
    }
    for (int64_t n = 1;; n++) {
        kfm_llama *beside;
        kfm_fail_allocation(n);
        bool ok = kfm_llama_open_beside(&beside, context, m, &error);
        assert_true(ok == (kfm_fail_allocation(0) != 0) && (beside != NULL) == ok);
        if (!ok) continue;
        kfm_llama_close(beside);
        break;
    }
    for (int64_t n = 1;; n++) { // planning a new step
        kfm_fail_allocation(n);
        bool ok = kfm_llama_eval(m, tokens, 7, logits, &error);
        assert_true(ok == (kfm_fail_allocation(0) != 0) && kfm_llama_position(m) == (ok ? 7 : 0));
        if (ok) break;
    }
    kfm_fail_allocation(1); // decoding allocates nothing
    assert_true(kfm_llama_eval(m, tokens, 1, logits, &error));
    assert_int_equal(kfm_fail_allocation(0), 1);
    kfm_llama_close(m);
    kfm_llama_close(NULL);
    kf_context_destroy(context);
    kfm_gguf_close(g);
    free_small(&small);
}

// ---- the model, against another implementation ----

// Leaves the test where there is no model file: called before anything is allocated.
static const char *model_path(void) {
    const char *path = getenv("KEYFOLD_MODEL");
    if (path == NULL) {
        print_message("KEYFOLD_MODEL is not set: the model file is not tried\n");
        skip();
    }
    return path;
}

static opened open_model(int threads, kfm_llama_options options) {
    const char *path = model_path();
    opened o = {.context = NULL};
    kfm_error error = {""};
    o.context = open_context(threads);
    if (!kfm_gguf_open(&o.gguf, path, &error) ||
        !kfm_llama_open(&o.model, o.context, o.gguf, &options, NULL, NULL, &error))
        fail_msg("%s", error.text);
    return o;
}

// A text of the data: the prompt's ids, then those that the other implementation chose on float32.
typedef struct continuation {
    int32_t *ids;
    int64_t prompt, count;
    const json *margins, *first;
} continuation;

static continuation read_continuation(const json *data, size_t index) {
    const json *item = &json_get(data, "generate")->items[index], *prompt = json_get(item, "prompt_ids"),
               *run = json_get(item, "float32"), *gen = json_get(run, "gen_ids");
    continuation c = {malloc((prompt->count + gen->count) * sizeof(int32_t)), (int64_t)prompt->count,
                      (int64_t)(prompt->count + gen->count), json_get(run, "margins"),
                      json_get(run, "first_logits_top20")};
    assert_non_null(c.ids);
    for (size_t i = 0; i < prompt->count; i++) c.ids[i] = (int32_t)prompt->items[i].number;
    for (size_t i = 0; i < gen->count; i++) c.ids[prompt->count + i] = (int32_t)gen->items[i].number;
    return c;
}

static int64_t largest(const float *logits, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

// The largest deviation of our first logits from theirs, and how often our choice, fed their tokens, is another where
// their margin is above 0.1.
static void compare(kfm_llama *m, const continuation *c, double *deviation, int *other_choices) {
    int64_t n = kfm_llama_get_info(m).vocabulary;
    float *logits = malloc((size_t)(n * c->count) * sizeof *logits);
    assert_non_null(logits);
    kfm_llama_rewind(m, 0);
    eval_all(m, c->ids, c->prompt, logits);
    for (int64_t i = c->prompt; i < c->count; i++) eval(m, c->ids + i, 1, logits + i * n); // decoded, one by one
    const float *first = logits + (c->prompt - 1) * n;
    for (size_t i = 0; i < c->first->count; i++) {
        const json *pair = &c->first->items[i];
        *deviation = fmax(*deviation, fabs(first[(int64_t)pair->items[0].number] - pair->items[1].number));
    }
    for (int64_t i = c->prompt; i < c->count; i++) {
        bool same = largest(logits + (i - 1) * n, n) == c->ids[i];
        *other_choices += !same && c->margins->items[i - c->prompt].number > 0.1;
    }
    free(logits);
}

static void compare_all(kfm_llama_options options, double *deviation, int *other_choices) {
    opened o = open_model(2, options);
    json data = json_read_file(KF_SOURCE_DIR "/tests/data/smollm2.json");
    *deviation = *other_choices = 0;
    for (size_t i = 0; i < json_get(&data, "generate")->count; i++) {
        continuation c = read_continuation(&data, i);
        compare(o.model, &c, deviation, other_choices);
        free(c.ids);
    }
    json_free(&data);
    close_opened(&o);
}

static void float_activations_agree(void **state) {
    (void)state;
    model_path();
    static const kf_dtype caches[] = {KF_FP16, KF_FP32};
    for (int i = 0; i < 2; i++) {
        double deviation;
        int other_choices;
        compare_all((kfm_llama_options){.cache = caches[i]}, &deviation, &other_choices);
        print_message("%s cache: the first logits are within %.4f, %d other choices\n", i == 0 ? "fp16" : "fp32",
                      deviation, other_choices);
        assert_true(deviation < 0.05);
        assert_int_equal(other_choices, 0);
    }
}

// Root mean square over all logits of the texts, against exact products over an fp32 cache.
static double deviation_of(kfm_llama_options options, const json *data) {
    double sum = 0;
    int64_t terms = 0;
    opened exact = open_model(2, (kfm_llama_options){.cache = KF_FP32}), other = open_model(2, options);
    int64_t n = kfm_llama_get_info(exact.model).vocabulary;
    for (size_t t = 0; t < json_get(data, "generate")->count; t++) {
        continuation c = read_continuation(data, t);
        float *a = malloc((size_t)(n * c.count) * sizeof *a), *b = malloc((size_t)(n * c.count) * sizeof *b);
        assert_true(a != NULL && b != NULL);
        kfm_llama_rewind(exact.model, 0);
        kfm_llama_rewind(other.model, 0);
        eval_all(exact.model, c.ids, c.count, a);
        eval_all(other.model, c.ids, c.count, b);
        for (int64_t i = 0; i < n * c.count; i++) sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        terms += n * c.count;
        free(a);
        free(b);
        free(c.ids);
    }
    close_opened(&exact);
    close_opened(&other);
    return sqrt(sum / (double)terms);
}

// What the data has of both the other implementation's 8-bit activations and its float32: the five largest first
// logits, and the margins as long as the two chose the same tokens. Root mean square of the differences: theirs, and
// ours with 8-bit activations on the same terms.
static void compare_rounding(kfm_llama *m, const json *item, const continuation *c, double *theirs, double *ours,
                             int *terms) {
    const json *exact = json_get(item, "float32"), *rounded = json_get(item, "int8_activations");
    const json *top20 = json_get(exact, "first_logits_top20"), *top5 = json_get(rounded, "first_logits_top5");
    const json *exact_ids = json_get(exact, "gen_ids"), *rounded_ids = json_get(rounded, "gen_ids");
    int64_t n = kfm_llama_get_info(m).vocabulary;
    float *logits = malloc((size_t)n * sizeof *logits);
    assert_non_null(logits);
    kfm_llama_rewind(m, 0);
    eval(m, c->ids, c->prompt, logits);
    for (size_t i = 0; i < top5->count; i++)
        for (size_t k = 0; k < top20->count; k++) {
            double id = top5->items[i].items[0].number, value = top20->items[k].items[1].number;
            if (top20->items[k].items[0].number != id) continue;
            *theirs += pow(top5->items[i].items[1].number - value, 2);
            *ours += pow(logits[(int64_t)id] - value, 2);
            ++*terms;
        }
    for (size_t i = 0; i < exact_ids->count; i++) {
        double margin = json_get(exact, "margins")->items[i].number;
        int64_t best = largest(logits, n), second = best == 0 ? 1 : 0;
        for (int64_t k = 0; k < n; k++)
            if (k != best && logits[k] > logits[second]) second = k;
        *theirs += pow(json_get(rounded, "margins")->items[i].number - margin, 2);
        *ours += pow(logits[best] - logits[second] - margin, 2);
        ++*terms;
        if (exact_ids->items[i].number != rounded_ids->items[i].number) break;
        eval(m, &c->ids[c->prompt + (int64_t)i], 1, logits);
    }
    free(logits);
}

static void rounding_is_measured(void **state) {
    (void)state;
    model_path();
    const kfm_llama_options with_int8 = {.cache = KF_FP16, .activations = KF_ACTIVATIONS_INT8};
    json data = json_read_file(KF_SOURCE_DIR "/tests/data/smollm2.json");
    double fp16 = deviation_of((kfm_llama_options){.cache = KF_FP16}, &data),
           bf16 = deviation_of((kfm_llama_options){.cache = KF_BF16}, &data);
    double int8 = deviation_of(with_int8, &data), theirs = 0, ours = 0;
    int terms = 0;
    opened o = open_model(2, with_int8);
    for (size_t t = 0; t < json_get(&data, "generate")->count; t++) {
        continuation c = read_continuation(&data, t);
        compare_rounding(o.model, &json_get(&data, "generate")->items[t], &c, &theirs, &ours, &terms);
        free(c.ids);
    }
    close_opened(&o);
    json_free(&data);
    print_message("root mean square over all logits: fp16 cache %.4f, bf16 cache %.4f, 8-bit activations %.4f\n", fp16,
                  bf16, int8);
    theirs = sqrt(theirs / terms);
    ours = sqrt(ours / terms);
    print_message("8-bit activations, %d logits and margins: ours %.4f, the other implementation's %.4f\n", terms, ours,
                  theirs);
    // The other implementation's own, over the same logits: fp16 cache 0.0050, bf16 cache 0.0303, 8-bit activations
    // 0.246 (reports/zen4/logits.json). The terms that the data has are few and hang together; they show that nothing
    // is broken.
    assert_true(fp16 < 0.005 && bf16 < 0.03 && int8 < 0.24);
    assert_true(ours < 1.5 * theirs);
}

static void the_same_text_on_one_and_two_threads(void **state) {
    (void)state;
    model_path();
    enum { TOKENS = 40 };
    int32_t text[2][TOKENS];
    for (int threads = 1; threads <= 2; threads++) {
        opened o = open_model(threads, (kfm_llama_options){0});
        int64_t n = kfm_llama_get_info(o.model).vocabulary;
        float *logits = malloc((size_t)n * sizeof *logits);
        assert_non_null(logits);
        int32_t prompt[300];
        for (int i = 0; i < 300; i++) prompt[i] = 300 + i * 131 % 40000;
        eval(o.model, prompt, 300, logits);
        for (int i = 0; i < TOKENS; i++) {
            text[threads - 1][i] = (int32_t)largest(logits, n);
            eval(o.model, &text[threads - 1][i], 1, logits);
        }
        free(logits);
        close_opened(&o);
    }
    assert_memory_equal(text[0], text[1], sizeof text[0]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_textbook),
        cmocka_unit_test(stands_beside_another),
        cmocka_unit_test(chunks_make_no_difference),
        cmocka_unit_test(threads_make_no_difference),
        cmocka_unit_test(refuses_what_does_not_fit),
        cmocka_unit_test(refuses_broken_models),
        cmocka_unit_test(refuses_what_it_does_not_compute),
        cmocka_unit_test(survives_every_allocation_failing),
        cmocka_unit_test(float_activations_agree),
        cmocka_unit_test(rounding_is_measured),
        cmocka_unit_test(the_same_text_on_one_and_two_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
