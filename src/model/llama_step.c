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

static const kf_tensor *tensor(view *v, const void *data, kf_dtype dtype, int ndim, const int64_t *shape,
                               const int64_t *strides) {
    memcpy(v->shape, shape, (size_t)ndim * sizeof *shape);
    memcpy(v->strides, strides, (size_t)ndim * sizeof *strides);
    v->tensor = kf_tensor_cpu(data, dtype, ndim, v->shape);
    v->tensor.strides = v->strides;
    return &v->tensor;
}

static const kf_tensor *vector(view *v, const void *data, kf_dtype dtype, int64_t n) {
    return tensor(v, data, dtype, 1, (int64_t[]){n}, (int64_t[]){1});
}

// Rows of a float matrix, `stride` elements apart.
static const kf_tensor *matrix(view *v, const float *data, int64_t rows, int64_t columns, int64_t stride) {
    return tensor(v, data, fp32, 2, (int64_t[]){rows, columns}, (int64_t[]){stride, 1});
}

// [1, heads, rows, D] in rows that hold the heads one after the other.
static const kf_tensor *heads_of_rows(view *v, const float *data, int64_t heads, int64_t rows, int64_t D,
                                      int64_t stride) {
    return tensor(v, data, fp32, 4, (int64_t[]){1, heads, rows, D}, (int64_t[]){0, D, stride, 1});
}

// The first `keys` positions of a layer's K or V.
static const kf_tensor *cache(view *v, const kfm_llama *m, const void *data, int64_t keys) {
    int64_t D = m->info.head_dim;
    return tensor(v, data, m->cache_dtype, 4, (int64_t[]){1, m->info.kv_heads, keys, D},
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
    args.ids = vector(&ids, m->ids, int32, b->step->rows);
    args.y = matrix(&y, m->stream, b->step->rows, m->info.width, m->info.width);
    return add(b, &args.head);
}

// normed = rmsnorm(stream); where `added` holds what the layer before has to add, stream += added first. For `rows`
// rows from `first` on.
static bool add_norm(builder *b, const kfm_norm *norm, bool added, int64_t first, int64_t rows) {
    const kfm_llama *m = b->model;
    int64_t width = m->info.width, at = first * width;
    view x, residual, weight, y;
    kf_rmsnorm_args args;
    kf_rmsnorm_args_init(&args);
    args.x = matrix(&x, (added ? m->added : m->stream) + at, rows, width, width);
    if (added) args.residual = args.sum = matrix(&residual, m->stream + at, rows, width, width);
    args.weight = vector(&weight, norm->weight, norm->dtype, width);
    args.y = matrix(&y, m->normed + at, rows, width, width);
    args.eps = m->eps;
    return add(b, &args.head);
}

// y = x W^T: rows of x are K apart, those of y are the product's columns apart.
static bool add_product(builder *b, const kfm_product *p, const float *x, float *y, int64_t rows, int32_t activations) {
    for (int i = 0; i < p->parts; i++) {
        view in, out;
        kf_linear_args args;
        kf_linear_args_init(&args);
        args.x = matrix(&in, x, rows, p->part[i].cols, p->part[i].cols);
        args.weight = &p->part[i];
        args.y = matrix(&out, y + p->column[i], rows, p->part[i].rows, p->columns);
        args.activations = activations;
        if (!add(b, &args.head)) return false;
    }
    return true;
}

static bool add_append(builder *b, const kfm_layer *layer) {
    const kfm_llama *m = b->model;
    int64_t H = m->info.heads, Hkv = m->info.kv_heads, D = m->info.head_dim, stride = layer->qkv.columns;
    view k, v, k_cache, v_cache, slots;
    kf_kv_append_args args;
    kf_kv_append_args_init(&args);
    args.k = heads_of_rows(&k, m->qkv + H * D, Hkv, b->step->rows, D, stride);
    args.v = heads_of_rows(&v, m->qkv + (H + Hkv) * D, Hkv, b->step->rows, D, stride);
    args.k_cache = cache(&k_cache, m, layer->k_cache, m->info.context);
    args.v_cache = cache(&v_cache, m, layer->v_cache, m->info.context);
    args.slots = vector(&slots, &m->slot, int64, 1);
    args.rope = m->rope;
    return add(b, &args.head);
}

static bool add_attention(builder *b, const kfm_layer *layer, int64_t first, int64_t rows) {
    const kfm_llama *m = b->model;
    int64_t H = m->info.heads, D = m->info.head_dim, stride = layer->qkv.columns;
    view q, k, v, o, lengths;
    kf_attention_args args;
    kf_attention_args_init(&args);
    args.q = heads_of_rows(&q, m->qkv + first * stride, H, rows, D, stride);
    args.k = cache(&k, m, layer->k_cache, b->step->keys);
    args.v = cache(&v, m, layer->v_cache, b->step->keys);
    args.o = heads_of_rows(&o, m->attended + first * H * D, H, rows, D, H * D);
    args.key_lengths = vector(&lengths, &m->key_length, int64, 1);
    args.flags = KF_ATTENTION_CAUSAL | KF_ATTENTION_ROPE_Q;
    args.rope = m->rope;
    return add(b, &args.head);
}

static bool add_swiglu(builder *b, int64_t first, int64_t rows) {
    const kfm_llama *m = b->model;
    int64_t n = m->info.hidden;
    view gate_up, y;
    kf_swiglu_args args;
    kf_swiglu_args_init(&args);
    args.gate_up = matrix(&gate_up, m->gate_up + first * 2 * n, rows, 2 * n, 2 * n);
    args.y = matrix(&y, m->hidden + first * n, rows, n, n);
    return add(b, &args.head);
}

// One layer; where `last`, only the step's outputs go on after the append. Queries, keys and values are exact products
// also where 8-bit activations are asked for: they are an eighth of the weights, and their errors pass through the
// softmax (root mean square over SmolLM2's logits 0.19 in place of 0.24).
static bool add_layer(builder *b, const kfm_layer *layer, bool added, bool last) {
    const kfm_llama *m = b->model;
    int64_t rows = b->step->rows, on = last ? b->step->outputs : rows, first = rows - on;
    int64_t width = m->info.width, hidden = m->info.hidden;
    float *attended = m->attended + first * m->info.heads * m->info.head_dim, *normed = m->normed + first * width;
    float *added_rows = m->added + first * width, *gate_up = m->gate_up + first * 2 * hidden;
    if (!add_norm(b, &layer->attention_norm, added, 0, rows) ||
        !add_product(b, &layer->qkv, m->normed, m->qkv, rows, KF_ACTIVATIONS_EXACT) || !add_append(b, layer))
        return false;
    if (on == 0) return true;
    return add_attention(b, layer, first, on) &&
           add_product(b, &layer->output, attended, added_rows, on, m->activations) &&
           add_norm(b, &layer->ffn_norm, true, first, on) &&
           add_product(b, &layer->gate_up, normed, gate_up, on, m->activations) && add_swiglu(b, first, on) &&
           add_product(b, &layer->down, m->hidden + first * hidden, added_rows, on, m->activations);
}

static kf_linear_args logits_args(const kfm_llama *m, const kfm_step *s, float *logits, view *x, view *y) {
    int64_t width = m->info.width, first = s->rows - s->outputs;
    kf_linear_args args;
    kf_linear_args_init(&args);
    args.x = matrix(x, m->normed + first * width, s->outputs, width, width);
    args.weight = &m->vocabulary.part[0];
    args.y = matrix(y, logits, s->outputs, m->info.vocabulary, m->info.vocabulary);
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

static void drop_step(kfm_step *s) {
    kf_sequence_destroy(s->sequence);
    for (int64_t i = 0; i < s->count; i++) kf_op_destroy(s->ops[i]);
    kfm_free(s->ops);
    *s = (kfm_step){0};
}

void kfm_llama_drop_steps(kfm_llama *m) {
    for (int i = 0; i < KFM_MAX_STEPS; i++) drop_step(&m->steps[i]);
}

static bool reserve_workspace(kfm_llama *m, const kfm_step *s, kfm_error *error) {
    size_t bytes;
    if (kf_sequence_workspace_size(s->sequence, &bytes) != KF_OK) return kfm_fail(error, "%s", kf_last_error());
    if (bytes <= m->workspace_bytes && m->workspace != NULL) return true;
    void *grown = kfm_alloc(bytes, 1);
    if (grown == NULL) return kfm_fail(error, "out of memory for a workspace of %zu bytes", bytes);
    kfm_free(m->workspace);
    m->workspace = grown;
    m->workspace_bytes = bytes;
    return true;
}

static bool build_step(kfm_llama *m, kfm_step *s, kfm_error *error) {
    builder b = {m, s, error};
    if (kf_sequence_create(m->context, &s->sequence) != KF_OK) return kfm_fail(error, "%s", kf_last_error());
    if (!add_embedding(&b)) return false;
    for (int64_t i = 0; i < m->info.layers; i++)
        if (!add_layer(&b, &m->layers[i], i > 0, i + 1 == m->info.layers)) return false;
    return add_logits(&b) && reserve_workspace(m, s, error);
}

// Attention's plan, above all how many splits the keys have, depends on the cache's size. So it is planned for the power of two above the keys that are
// there, not for all of a long context that is almost empty.
static int64_t planned_keys(const kfm_llama *m, int64_t key_length) {
    int64_t keys = KFM_LEAST_KEYS;
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
    drop_step(oldest);
    *oldest = (kfm_step){.rows = rows, .outputs = outputs, .keys = keys, .last_used = ++m->clock};
    if (build_step(m, oldest, error)) return oldest;
    drop_step(oldest);
    return NULL;
}

bool kfm_llama_plan_decoding(kfm_llama *m, kfm_error *error) {
    for (int64_t keys = 1; keys <= m->info.context; keys = planned_keys(m, keys) + 1)
        if (kfm_llama_step(m, 1, 1, keys, error) == NULL) return false;
    return true;
}

static bool run_step(kfm_llama *m, const int32_t *tokens, int64_t rows, int64_t outputs, float *logits,
                     kfm_error *error) {
    kfm_step *s = kfm_llama_step(m, rows, outputs, m->position + rows, error);
    if (s == NULL) return false;
    memcpy(m->ids, tokens, (size_t)rows * sizeof *tokens);
    m->slot = m->position;
    m->key_length = m->position + rows;
    view x, y;
    kf_linear_args args;
    if (outputs > 0) args = logits_args(m, s, logits, &x, &y);
    if (outputs > 0 && kf_op_bind(s->logits_op, &args.head) != KF_OK) return kfm_fail(error, "%s", kf_last_error());
    if (kf_sequence_run(s->sequence, m->workspace, m->workspace_bytes) != KF_OK)
        return kfm_fail(error, "%s", kf_last_error());
    m->position += rows;
    return true;
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
