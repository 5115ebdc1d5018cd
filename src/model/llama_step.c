// SPDX-License-Identifier: Apache-2.0
// Steps of the Llama architecture: which operations, on which tensors, in which order (llama.h has the formulas), and
// the runs of them.
//
// All tensors are views of a few buffers. A row of qkv is [q of all heads | k | v], so that attention and the cache's
// append read their heads by strides; the residual stream is added to by the norm that follows (rmsnorm with residual),
// so that an addition is no pass of its own. In the last layer only the rows whose logits are wanted go on after their
// keys and values are in the cache.
#include "model/llama_internal.h"

#include <string.h>

// A tensor with room for its shape and strides.
typedef struct view {
    kf_tensor tensor;
    int64_t shape[4], strides[4];
} view;

static const kf_dtype fp32 = KF_FP32, int32 = KF_INT32, int64 = KF_INT64;

static const kf_tensor *tensor(view *v, const kfm_llama *m, const void *data, kf_dtype dtype, int ndim,
                               const int64_t *shape, const int64_t *strides) {
    memcpy(v->shape, shape, (size_t)ndim * sizeof *shape);
    memcpy(v->strides, strides, (size_t)ndim * sizeof *strides);
    v->tensor = kf_tensor_cpu(data, dtype, ndim, v->shape);
    v->tensor.strides = v->strides;
    v->tensor.device = m->device;
    return &v->tensor;
}

static const kf_tensor *vector(view *v, const kfm_llama *m, const void *data, kf_dtype dtype, int64_t n) {
    return tensor(v, m, data, dtype, 1, (int64_t[]){n}, (int64_t[]){1});
}

static char *element(const kfm_rows *x, int64_t row, int64_t column) {
    return x->data + (row * x->columns + column) * (x->dtype.bits / 8);
}

// Rows of a step's activations, from `first` on; of some columns, or of all.
static const kf_tensor *part_of_rows(view *v, const kfm_llama *m, const kfm_rows *x, int64_t first, int64_t rows,
                                     int64_t column, int64_t columns) {
    return tensor(v, m, element(x, first, column), x->dtype, 2, (int64_t[]){rows, columns}, (int64_t[]){x->columns, 1});
}

static const kf_tensor *rows_of(view *v, const kfm_llama *m, const kfm_rows *x, int64_t first, int64_t rows) {
    return part_of_rows(v, m, x, first, rows, 0, x->columns);
}

// [1, heads, rows, D] in rows that hold the heads one after the other, from `column` on.
static const kf_tensor *heads_of_rows(view *v, const kfm_llama *m, const kfm_rows *x, int64_t first, int64_t rows,
                                      int64_t column, int64_t heads) {
    int64_t D = m->info.head_dim;
    return tensor(v, m, element(x, first, column), x->dtype, 4, (int64_t[]){1, heads, rows, D},
                  (int64_t[]){0, D, x->columns, 1});
}

// The first `keys` positions of a layer's K or V.
static const kf_tensor *cache(view *v, const kfm_llama *m, const void *data, int64_t keys) {
    int64_t D = m->info.head_dim;
    return tensor(v, m, data, m->cache_dtype, 4, (int64_t[]){1, m->info.kv_heads, keys, D},
                  (int64_t[]){0, m->info.context * D, D, 1});
}

// ---- adding operations; each returns false after an error ----

typedef struct builder {
    kfm_llama *model;
    kfm_step *step;
    kfm_error *error;
} builder;

static bool add(builder *b, const kf_args *args) {
    kfm_step *s = b->step;
    if (s->count == s->capacity) {
        int64_t capacity = s->capacity == 0 ? 16 : 2 * s->capacity;
        kf_op **grown = kfm_grow(s->ops, (uint64_t)capacity, sizeof(kf_op *));
        if (grown == NULL) return kfm_fail(b->error, "out of memory for %lld operations", (long long)capacity);
        s->ops = grown;
        s->capacity = capacity;
    }
    kf_op *op;
    if (kf_op_create(b->model->context, args, &op) != KF_OK) return kfm_fail(b->error, "%s", kf_last_error());
    s->ops[s->count++] = op;
    return kf_sequence_add(s->sequence, op) == KF_OK || kfm_fail(b->error, "%s", kf_last_error());
}

static bool add_embedding(builder *b) {
    const kfm_llama *m = b->model;
    view ids, y;
    kf_embedding_args args;
    kf_embedding_args_init(&args);
    args.table = &m->table;
    args.ids = vector(&ids, m, m->inputs.at->ids, int32, b->step->rows);
    args.y = rows_of(&y, m, &m->stream, 0, b->step->rows);
    return add(b, &args.head);
}

// normed = rmsnorm(stream); where `added` holds what the layer before has to add, stream += added first. For `rows`
// rows from `first` on.
static bool add_norm(builder *b, const kfm_norm *norm, bool added, int64_t first, int64_t rows) {
    const kfm_llama *m = b->model;
    view x, residual, weight, y;
    kf_rmsnorm_args args;
    kf_rmsnorm_args_init(&args);
    args.x = rows_of(&x, m, added ? &m->added : &m->stream, first, rows);
    if (added) args.residual = args.sum = rows_of(&residual, m, &m->stream, first, rows);
    args.weight = vector(&weight, m, norm->weight, norm->dtype, m->info.width);
    args.y = rows_of(&y, m, &m->normed, first, rows);
    args.eps = m->eps;
    return add(b, &args.head);
}

// y = x W^T, for `rows` rows from `first` on.
static bool add_product(builder *b, const kfm_product *p, const kfm_rows *x, const kfm_rows *y, int64_t first,
                        int64_t rows, int32_t activations) {
    for (int i = 0; i < p->parts; i++) {
        view in, out;
        kf_linear_args args;
        kf_linear_args_init(&args);
        args.x = rows_of(&in, b->model, x, first, rows);
        args.weight = &p->part[i];
        args.y = part_of_rows(&out, b->model, y, first, rows, p->column[i], p->part[i].rows);
        args.activations = activations;
        if (!add(b, &args.head)) return false;
    }
    return true;
}

static bool add_append(builder *b, const kfm_layer *layer) {
    const kfm_llama *m = b->model;
    int64_t H = m->info.heads, Hkv = m->info.kv_heads, D = m->info.head_dim;
    view k, v, k_cache, v_cache, slots;
    kf_kv_append_args args;
    kf_kv_append_args_init(&args);
    args.k = heads_of_rows(&k, m, &m->qkv, 0, b->step->rows, H * D, Hkv);
    args.v = heads_of_rows(&v, m, &m->qkv, 0, b->step->rows, (H + Hkv) * D, Hkv);
    args.k_cache = cache(&k_cache, m, layer->k_cache, m->info.context);
    args.v_cache = cache(&v_cache, m, layer->v_cache, m->info.context);
    args.slots = vector(&slots, m, &m->inputs.at->slot, int64, 1);
    args.rope = m->rope;
    return add(b, &args.head);
}

static bool add_attention(builder *b, const kfm_layer *layer, int64_t first, int64_t rows) {
    const kfm_llama *m = b->model;
    int64_t H = m->info.heads;
    view q, k, v, o, lengths;
    kf_attention_args args;
    kf_attention_args_init(&args);
    args.q = heads_of_rows(&q, m, &m->qkv, first, rows, 0, H);
    args.k = cache(&k, m, layer->k_cache, b->step->keys);
    args.v = cache(&v, m, layer->v_cache, b->step->keys);
    args.o = heads_of_rows(&o, m, &m->attended, first, rows, 0, H);
    args.key_lengths = vector(&lengths, m, &m->inputs.at->key_length, int64, 1);
    args.flags = KF_ATTENTION_CAUSAL | KF_ATTENTION_ROPE_Q;
    args.rope = m->rope;
    return add(b, &args.head);
}

static bool add_swiglu(builder *b, int64_t first, int64_t rows) {
    const kfm_llama *m = b->model;
    view gate_up, y;
    kf_swiglu_args args;
    kf_swiglu_args_init(&args);
    args.gate_up = rows_of(&gate_up, m, &m->gate_up, first, rows);
    args.y = rows_of(&y, m, &m->hidden, first, rows);
    return add(b, &args.head);
}

// One layer; where `last`, only the step's outputs go on after the append. Queries, keys and values are exact products
// also where 8-bit activations are asked for: they are an eighth of the weights, and their errors pass through the
// softmax (root mean square over SmolLM2's logits 0.19 in place of 0.24).
static bool add_layer(builder *b, const kfm_layer *layer, bool added, bool last) {
    const kfm_llama *m = b->model;
    int64_t rows = b->step->rows, on = last ? b->step->outputs : rows, first = rows - on;
    if (!add_norm(b, &layer->attention_norm, added, 0, rows) ||
        !add_product(b, &layer->qkv, &m->normed, &m->qkv, 0, rows, KF_ACTIVATIONS_EXACT) || !add_append(b, layer))
        return false;
    if (on == 0) return true;
    return add_attention(b, layer, first, on) &&
           add_product(b, &layer->output, &m->attended, &m->added, first, on, m->activations) &&
           add_norm(b, &layer->ffn_norm, true, first, on) &&
           add_product(b, &layer->gate_up, &m->normed, &m->gate_up, first, on, m->activations) &&
           add_swiglu(b, first, on) && add_product(b, &layer->down, &m->hidden, &m->added, first, on, m->activations);
}

static kf_linear_args logits_args(const kfm_llama *m, const kfm_step *s, float *logits, view *x, view *y) {
    int64_t vocabulary = m->info.vocabulary;
    kf_linear_args args;
    kf_linear_args_init(&args);
    args.x = rows_of(x, m, &m->normed, s->rows - s->outputs, s->outputs);
    args.weight = &m->vocabulary.part[0];
    args.y = tensor(y, m, logits, fp32, 2, (int64_t[]){s->outputs, vocabulary}, (int64_t[]){vocabulary, 1});
    args.activations = m->activations;
    return args;
}

static bool add_logits(builder *b) {
    kfm_step *s = b->step;
    view x, y;
    if (s->outputs == 0) return true;
    if (!add_norm(b, &b->model->output_norm, true, s->rows - s->outputs, s->outputs)) return false;
    kf_linear_args args = logits_args(b->model, s, NULL, &x, &y);
    if (!add(b, &args.head)) return false;
    s->logits_op = s->ops[s->count - 1];
    return true;
}

// ---- steps ----

static void drop_step(kfm_llama *m, kfm_step *s) {
    if (m->last == s) m->last = NULL;
    kf_sequence_destroy(s->sequence);
    for (int64_t i = 0; i < s->count; i++) kf_op_destroy(s->ops[i]);
    kfm_free(s->ops);
    *s = (kfm_step){0};
}

void kfm_llama_drop_steps(kfm_llama *m) {
    for (int i = 0; i < KFM_MAX_STEPS; i++) drop_step(m, &m->steps[i]);
}

// The workspace, and on a device the place of the logits, large enough for this step too.
static bool reserve_memory(kfm_llama *m, const kfm_step *s, kfm_error *error) {
    size_t bytes;
    if (kf_sequence_workspace_size(s->sequence, &bytes) != KF_OK) return kfm_fail(error, "%s", kf_last_error());
    if (!kfm_llama_reserve(m, &m->workspace, &m->workspace_bytes, bytes, error)) return false;
    bytes = (size_t)s->outputs * (size_t)m->info.vocabulary * sizeof *m->logits;
    void *logits = m->logits;
    bool ok = !kfm_llama_on_device(m) || kfm_llama_reserve(m, &logits, &m->logits_bytes, bytes, error);
    m->logits = logits;
    return ok;
}

static bool build_step(kfm_llama *m, kfm_step *s, kfm_error *error) {
    builder b = {m, s, error};
    if (kf_sequence_create(m->context, &s->sequence) != KF_OK) return kfm_fail(error, "%s", kf_last_error());
    if (!add_embedding(&b)) return false;
    for (int64_t i = 0; i < m->info.layers; i++)
        if (!add_layer(&b, &m->layers[i], i > 0, i + 1 == m->info.layers)) return false;
    return add_logits(&b) && reserve_memory(m, s, error);
}

// Attention's plan, above all how many splits the keys have, depends on the cache's size. So it is planned for the power of two above the keys that are
// there, not for all of a long context that is almost empty.
static int64_t planned_keys(const kfm_llama *m, int64_t key_length) {
    int64_t keys = kfm_llama_on_device(m) ? KFM_LEAST_KEYS_ON_DEVICE : KFM_LEAST_KEYS;
    while (keys < key_length) keys *= 2;
    return keys < m->info.context ? keys : m->info.context;
}

// The steps of decoding stay, so that decoding never plans.
static bool is_decoding(const kfm_step *s) { return s->rows == 1 && s->outputs == 1; }

kfm_step *kfm_llama_step(kfm_llama *m, int64_t rows, int64_t outputs, int64_t key_length, kfm_error *error) {
    int64_t keys = planned_keys(m, key_length);
    kfm_step *oldest = NULL;
    for (int i = 0; i < KFM_MAX_STEPS; i++) {
        kfm_step *s = &m->steps[i];
        if (s->rows == rows && s->outputs == outputs && s->keys == keys) {
            s->last_used = ++m->clock;
            return s;
        }
        if (!is_decoding(s) && (oldest == NULL || s->last_used < oldest->last_used)) oldest = s;
    }
    drop_step(m, oldest);
    *oldest = (kfm_step){.rows = rows, .outputs = outputs, .keys = keys, .last_used = ++m->clock};
    if (build_step(m, oldest, error)) return oldest;
    drop_step(m, oldest);
    return NULL;
}

bool kfm_llama_plan_decoding(kfm_llama *m, kfm_error *error) {
    for (int64_t keys = 1; keys <= m->info.context; keys = planned_keys(m, keys) + 1)
        if (kfm_llama_step(m, 1, 1, keys, error) == NULL) return false;
    m->info.operations = m->steps[0].count;
    return true;
}

static bool bind_logits(const kfm_llama *m, kfm_step *s, float *logits, kfm_error *error) {
    view x, y;
    if (s->outputs == 0 || s->logits == logits) return true;
    kf_linear_args args = logits_args(m, s, logits, &x, &y);
    if (kf_op_bind(s->logits_op, &args.head) != KF_OK) return kfm_fail(error, "%s", kf_last_error());
    s->logits = logits;
    return true;
}

static bool send_inputs(kfm_llama *m, const int32_t *tokens, int64_t rows, kfm_error *error) {
    struct kfm_input_values *values = m->inputs.values;
    memcpy(values->ids, tokens, (size_t)rows * sizeof *tokens);
    values->slot = m->position;
    values->key_length = m->position + rows;
    return m->inputs.at == values ||
           kfm_llama_copy(m, m->inputs.at, values, sizeof *values + (size_t)rows * sizeof *tokens, error);
}

static bool run_step(kfm_llama *m, const int32_t *tokens, int64_t rows, int64_t outputs, float *logits,
                     kfm_error *error) {
    const bool on_device = kfm_llama_on_device(m);
    kfm_step *s = kfm_llama_step(m, rows, outputs, m->position + rows, error);
    if (s == NULL || !bind_logits(m, s, on_device ? m->logits : logits, error) || !send_inputs(m, tokens, rows, error))
        return false;
    if (kf_sequence_run(s->sequence, m->workspace, m->workspace_bytes) != KF_OK)
        return kfm_fail(error, "%s", kf_last_error());
    const size_t bytes = (size_t)outputs * (size_t)m->info.vocabulary * sizeof *logits;
    if (on_device && outputs > 0 && !kfm_llama_copy(m, logits, m->logits, bytes, error)) return false;
    m->last = s;
    m->position += rows;
    return true;
}

bool kfm_llama_repeat(kfm_llama *m, int64_t times, kfm_error *error) {
    if (m->last == NULL) return kfm_fail(error, "there is no step to repeat");
    for (int64_t i = 0; i < times; i++)
        if (kf_sequence_run(m->last->sequence, m->workspace, m->workspace_bytes) != KF_OK)
            return kfm_fail(error, "%s", kf_last_error());
    return kf_context_synchronize(m->context) == KF_OK || kfm_fail(error, "%s", kf_last_error());
}

// ---- evaluation ----

static bool eval(kfm_llama *m, const int32_t *tokens, int64_t count, bool all, float *logits, kfm_error *error) {
    int64_t start = m->position, chunk = m->info.chunk;
    if (count < 0 || (count > 0 && tokens == NULL) || (all && count > 0 && logits == NULL))
        return kfm_fail(error, "%lld tokens cannot be evaluated", (long long)count);
    if (count > m->info.context - start)
        return kfm_fail(error, "the context is full: it holds %lld of %lld tokens, and %lld more do not fit",
                        (long long)start, (long long)m->info.context, (long long)count);
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= m->info.vocabulary)
            return kfm_fail(error, "token %lld is %d; the vocabulary has 0 to %lld", (long long)i, tokens[i],
                            (long long)m->info.vocabulary - 1);
    for (int64_t done = 0; done < count;) {
        int64_t rows = count - done < chunk ? count - done : chunk;
        int64_t outputs = all ? rows : logits != NULL && done + rows == count ? 1 : 0;
        float *out = all ? logits + done * m->info.vocabulary : logits;
        if (!run_step(m, tokens + done, rows, outputs, out, error)) {
            m->position = start;
            return false;
        }
        done += rows;
    }
    return true;
}

bool kfm_llama_eval(kfm_llama *m, const int32_t *tokens, int64_t count, float *logits, kfm_error *error) {
    return eval(m, tokens, count, false, logits, error);
}

bool kfm_llama_eval_all(kfm_llama *m, const int32_t *tokens, int64_t count, float *logits, kfm_error *error) {
    return eval(m, tokens, count, true, logits, error);
}

int64_t kfm_llama_position(const kfm_llama *m) { return m->position; }

void kfm_llama_rewind(kfm_llama *m, int64_t position) {
    if (position >= 0 && position < m->position) m->position = position;
}
