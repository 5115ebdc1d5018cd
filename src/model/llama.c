// SPDX-License-Identifier: Apache-2.0
// Opens a model of the Llama architecture: metadata, tensors by name and shape, packed weights, caches and buffers. See
// llama.h; steps are in llama_step.c.
//
// Tensors of a file (dim[0] first): token_embd [width, vocabulary], output_norm [width], output [width, vocabulary]
// (absent: token_embd again), and for each layer attn_norm [width], attn_q [width, H D], attn_k and attn_v [width, Hkv
// D], attn_output [H D, width], ffn_norm [width], ffn_gate and ffn_up [width, hidden], ffn_down [hidden, width]. Rows
// of attn_q and attn_k are in the order that turns pairs (2c, 2c + 1): RoPE's GPT-J pairing.
#include "model/llama_internal.h"

#include <stdio.h>
#include <string.h>

// Metadata beyond these is a broken file. Products of any three stay below 2^63.
enum { MAX_LAYERS = 1024, MAX_HEADS = 1024, MAX_HEAD_DIM = 1024, MAX_WIDTH = 1 << 20, MAX_CONTEXT = 1 << 28 };

enum { TENSOR_NAME = 64 };

static const kf_dtype fp32 = KF_FP32, fp16 = KF_FP16, bf16 = KF_BF16;

// ---- metadata ----

static bool integer(const kfm_gguf *g, const char *key, bool required, int64_t hi, int64_t *value, kfm_error *error) {
    return kfm_gguf_integer(g, key, required, 1, hi, value, error);
}

static bool read_rope(kfm_llama *m, const kfm_gguf *g, kfm_error *error) {
    char shown[KFM_NAME_SHOWN];
    int64_t dims = m->info.head_dim;
    double base = 10000, factor = 1;
    kfm_string scaling = {"none", 4};
    if (!integer(g, "llama.rope.dimension_count", false, m->info.head_dim, &dims, error) ||
        !kfm_gguf_float(g, "llama.rope.freq_base", false, &base, error) ||
        !kfm_gguf_string(g, "llama.rope.scaling.type", false, &scaling, error) ||
        !kfm_gguf_float(g, "llama.rope.scaling.factor", false, &factor, error))
        return false;
    bool linear = kfm_string_is(scaling, "linear");
    if (!linear && !kfm_string_is(scaling, "none"))
        return kfm_fail(error, "RoPE scaling '%s' is not supported; keyfold reads 'none' and 'linear'",
                        kfm_printable(scaling, shown));
    if (dims % 2 != 0)
        return kfm_fail(error, "key 'llama.rope.dimension_count' is %lld, an odd number", (long long)dims);
    if (!(base > 0) || !(factor > 0))
        return kfm_fail(error, "RoPE's base %g and factor %g must be above 0", base, factor);
    m->rope = (kf_rope_params){.pairing = KF_ROPE_GPTJ, .dims = (int32_t)dims, .base = base};
    if (linear) m->rope.scaling = KF_ROPE_SCALING_LINEAR, m->rope.factor = factor;
    return true;
}

static bool read_metadata(kfm_llama *m, const kfm_gguf *g, kfm_error *error) {
    char shown[KFM_NAME_SHOWN];
    kfm_llama_info *i = &m->info;
    kfm_string architecture;
    double eps = 1e-5;
    int64_t experts = 0, value_dim;
    if (!kfm_gguf_string(g, "general.architecture", true, &architecture, error)) return false;
    if (!kfm_string_is(architecture, "llama"))
        return kfm_fail(error, "architecture '%s' is not supported; keyfold computes 'llama'",
                        kfm_printable(architecture, shown));
    if (!integer(g, "llama.block_count", true, MAX_LAYERS, &i->layers, error) ||
        !integer(g, "llama.embedding_length", true, MAX_WIDTH, &i->width, error) ||
        !integer(g, "llama.feed_forward_length", true, MAX_WIDTH, &i->hidden, error) ||
        !integer(g, "llama.attention.head_count", true, MAX_HEADS, &i->heads, error) ||
        !integer(g, "llama.context_length", true, MAX_CONTEXT, &i->trained_context, error))
        return false;
    i->kv_heads = i->heads;
    i->head_dim = i->width / i->heads;
    if (!integer(g, "llama.attention.head_count_kv", false, i->heads, &i->kv_heads, error) ||
        !integer(g, "llama.attention.key_length", false, MAX_HEAD_DIM, &i->head_dim, error))
        return false;
    value_dim = i->head_dim;
    if (!integer(g, "llama.attention.value_length", false, MAX_HEAD_DIM, &value_dim, error) ||
        !kfm_gguf_integer(g, "llama.expert_count", false, 0, INT64_MAX, &experts, error) ||
        !kfm_gguf_float(g, "llama.attention.layer_norm_rms_epsilon", false, &eps, error))
        return false;
    if (i->heads % i->kv_heads != 0)
        return kfm_fail(error, "%lld query heads are no multiple of %lld KV heads", (long long)i->heads,
                        (long long)i->kv_heads);
    if (i->head_dim < 1)
        return kfm_fail(error, "a width of %lld does not suffice for %lld heads", (long long)i->width,
                        (long long)i->heads);
    if (value_dim != i->head_dim)
        return kfm_fail(error, "values of %lld dimensions under keys of %lld are not supported", (long long)value_dim,
                        (long long)i->head_dim);
    if (experts != 0) return kfm_fail(error, "a mixture of %lld experts is not supported", (long long)experts);
    if (!(eps >= 0 && eps < 1))
        return kfm_fail(error, "key 'llama.attention.layer_norm_rms_epsilon' is %g; 0 to 1 is allowed", eps);
    m->eps = (float)eps;
    return read_rope(m, g, error);
}

// ---- tensors ----

// Tensors found so far: what is left over at the end is something that this architecture does not compute.
typedef struct loader {
    kfm_llama *model;
    const kfm_gguf *gguf;
    int64_t used;
    size_t packed_at;       // place in model->weights; with weights NULL only sizes are added up
    const kf_context *host; // a context of the CPU, where weights are converted; else NULL
    kfm_error *error;
} loader;

// A tensor by name, "blk.LAYER." before it where layer >= 0. rows 0: a vector.
static const kfm_gguf_tensor *find(loader *l, int64_t layer, const char *name, bool required, int64_t columns,
                                   int64_t rows) {
    char full[TENSOR_NAME];
    if (layer >= 0)
        snprintf(full, sizeof full, "blk.%lld.%s", (long long)layer, name);
    else
        snprintf(full, sizeof full, "%s", name);
    const kfm_gguf_tensor *t = kfm_gguf_find_tensor(l->gguf, full);
    if (t == NULL) {
        if (required) kfm_set_error(l->error, "tensor '%s' is missing", full);
        return NULL;
    }
    bool right = t->dims == (rows == 0 ? 1 : 2) && t->dim[0] == columns && (rows == 0 || t->dim[1] == rows);
    if (!right) {
        kfm_set_error(l->error, "tensor '%s' has the shape [%lld, %lld]; [%lld, %lld] is expected", full,
                      (long long)t->dim[0], (long long)t->dim[1], (long long)columns,
                      (long long)(rows == 0 ? 1 : rows));
        return NULL;
    }
    if ((uintptr_t)t->data % sizeof(float) != 0) { // only a file with an alignment of 1 or 2 can be so
        kfm_set_error(l->error, "tensor '%s' is not aligned to %zu bytes", full, sizeof(float));
        return NULL;
    }
    l->used++;
    return t;
}

// Norms are small: they are copied, so that they lie close together.
static bool load_norm(loader *l, int64_t layer, const char *name, int64_t place, kfm_norm *norm) {
    const kfm_gguf_tensor *t = find(l, layer, name, true, l->model->info.width, 0);
    if (t == NULL) return false;
    if (t->type != KFM_F32 && t->type != KFM_F16 && t->type != KFM_BF16)
        return kfm_fail(l->error, "tensor '%.*s' has the type %s; a norm is F32, F16 or BF16", (int)t->name.length,
                        t->name.bytes, kfm_gguf_type_name(t->type));
    if (l->model->norms == NULL) return true;
    char *copy = (char *)l->model->norms + (size_t)place * (size_t)l->model->info.width * sizeof(float);
    norm->weight = copy;
    norm->dtype = t->type == KFM_F32 ? fp32 : t->type == KFM_F16 ? fp16 : bf16;
    return kfm_llama_copy(l->model, copy, t->data, (size_t)t->bytes, l->error);
}

static kf_weight weight_of(const kfm_gguf_tensor *t) {
    return (kf_weight){
        .type = (int32_t)t->type, .rows = t->dim[1], .cols = t->dim[0], .data = t->data, .bytes = (size_t)t->bytes};
}

// The weight that the products read: the file's, or one of the type that the options ask for, whose data is made later.
static kf_weight product_weight(const kfm_llama *m, const kfm_gguf_tensor *t) {
    kf_weight w = weight_of(t);
    if (m->weight_dtype.bits == 0) return w;
    w.type = m->weight_dtype.bits == 32               ? KF_WEIGHT_F32
             : m->weight_dtype.code == KF_CODE_BFLOAT ? KF_WEIGHT_BF16
                                                      : KF_WEIGHT_F16;
    w.bytes = (size_t)(w.rows * w.cols) * (m->weight_dtype.bits / 8);
    return w;
}

// A tensor's rows in the options' type: the embedding of all their numbers.
static bool convert(loader *l, const kfm_gguf_tensor *t, void *to) {
    const kf_weight table = weight_of(t);
    const int64_t shape[2] = {table.rows, table.cols};
    int32_t *ids = kfm_alloc((uint64_t)table.rows, sizeof *ids);
    if (ids == NULL) return kfm_fail(l->error, "out of memory for %lld rows", (long long)table.rows);
    for (int64_t i = 0; i < table.rows; i++) ids[i] = (int32_t)i;
    const kf_tensor rows = kf_tensor_cpu(ids, (kf_dtype)KF_INT32, 1, shape),
                    y = kf_tensor_cpu(to, l->model->weight_dtype, 2, shape);
    kf_embedding_args args;
    kf_embedding_args_init(&args);
    args.table = &table;
    args.ids = &rows;
    args.y = &y;
    const kf_status status = kf_embedding(l->host, &args);
    kfm_free(ids);
    return status == KF_OK ||
           kfm_fail(l->error, "tensor '%.*s': %.380s", (int)t->name.length, t->name.bytes, kf_last_error());
}

// The rows of `count` tensors one after the other, in one block of `bytes` bytes; NULL after an error.
static char *join(loader *l, const kfm_gguf_tensor *const *from, int count, size_t bytes) {
    char *block = kfm_alloc(bytes, 1), *at = block;
    if (block == NULL) kfm_set_error(l->error, "out of memory for %zu bytes of weights", bytes);
    for (int i = 0; i < count && block != NULL; i++) {
        const size_t part = product_weight(l->model, from[i]).bytes;
        if (l->host == NULL)
            memcpy(at, from[i]->data, part);
        else if (!convert(l, from[i], at)) {
            kfm_free(block);
            return NULL;
        }
        at += part;
    }
    return block;
}

// Packs into the model's weights at `at`: on a device by way of the host.
static bool pack_at(loader *l, const kf_weight *weight, size_t at, size_t bytes, kf_weight *packed, const char *name,
                    int length) {
    const kfm_llama *m = l->model;
    char *place = (char *)m->weights + at,
         *staging = kfm_llama_on_device(m) ? kfm_alloc_aligned(bytes, KFM_ALIGNMENT) : place;
    if (staging == NULL) return kfm_fail(l->error, "out of memory for %zu bytes of weights", bytes);
    bool ok = kf_pack_weight(m->context, weight, staging, bytes, packed) == KF_OK ||
              kfm_fail(l->error, "tensor '%.*s': %.380s", length, name, kf_last_error());
    if (staging == place) return ok;
    ok = ok && kfm_llama_copy(m, place, staging, bytes, l->error);
    kfm_free(staging);
    packed->data = place;
    packed->device = m->device;
    return ok;
}

// Packs `count` tensors, whose products are of one type, as one weight.
static bool pack(loader *l, const kfm_gguf_tensor *const *from, int count, kf_weight *packed) {
    const char *name = from[0]->name.bytes;
    const int length = (int)from[0]->name.length;
    kf_weight joined = product_weight(l->model, from[0]);
    for (int i = 1; i < count; i++) {
        const kf_weight next = product_weight(l->model, from[i]);
        joined.rows += next.rows, joined.bytes += next.bytes;
    }
    size_t bytes;
    if (kf_pack_weight_size(l->model->context, &joined, &bytes) != KF_OK)
        return kfm_fail(l->error, "tensor '%.*s': %.380s", length, name, kf_last_error());
    const size_t at = l->packed_at;
    l->packed_at += kfm_llama_round_up(bytes);
    if (l->model->weights == NULL) return true;
    l->model->info.weight_bytes += (int64_t)joined.bytes;
    char *block = count > 1 || l->host != NULL ? join(l, from, count, joined.bytes) : NULL;
    if (block == NULL && (count > 1 || l->host != NULL)) return false;
    if (block != NULL) joined.data = block;
    const bool ok = pack_at(l, &joined, at, bytes, packed, name, length);
    kfm_free(block);
    return ok;
}

// A product of up to three tensors with the same columns, named by layer; neighbours of one type become one part.
static bool load_product(loader *l, int64_t layer, int count, const char *const *names, int64_t columns,
                         const int64_t *rows, kfm_product *p) {
    const kfm_gguf_tensor *t[KFM_MAX_PARTS];
    for (int i = 0; i < count; i++) {
        t[i] = find(l, layer, names[i], true, columns, rows[i]);
        if (t[i] == NULL) return false;
    }
    *p = (kfm_product){0};
    for (int first = 0, end; first < count; first = end) {
        const int32_t type = product_weight(l->model, t[first]).type;
        for (end = first + 1; end < count && product_weight(l->model, t[end]).type == type;) end++;
        p->column[p->parts] = p->columns;
        if (!pack(l, t + first, end - first, &p->part[p->parts++])) return false;
        for (int i = first; i < end; i++) p->columns += rows[i];
    }
    return true;
}

static bool load_layer(loader *l, int64_t i) {
    static const char *const qkv[] = {"attn_q.weight", "attn_k.weight", "attn_v.weight"}, *const output[] = {
                                                                                              "attn_output.weight"};
    static const char *const gate_up[] = {"ffn_gate.weight", "ffn_up.weight"}, *const down[] = {"ffn_down.weight"};
    const kfm_llama_info *m = &l->model->info;
    kfm_layer *layer = &l->model->layers[i];
    int64_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
    return load_norm(l, i, "attn_norm.weight", 2 * i, &layer->attention_norm) &&
           load_product(l, i, 3, qkv, m->width, (int64_t[]){q, kv, kv}, &layer->qkv) &&
           load_product(l, i, 1, output, q, &m->width, &layer->output) &&
           load_norm(l, i, "ffn_norm.weight", 2 * i + 1, &layer->ffn_norm) &&
           load_product(l, i, 2, gate_up, m->width, (int64_t[]){m->hidden, m->hidden}, &layer->gate_up) &&
           load_product(l, i, 1, down, m->hidden, &m->width, &layer->down);
}

// The embedding's table: as it is in the file, on the CPU the file's own bytes.
static bool load_table(loader *l, const kfm_gguf_tensor *t) {
    kfm_llama *m = l->model;
    m->table = weight_of(t);
    if (!kfm_llama_on_device(m)) return true;
    const size_t at = l->packed_at;
    l->packed_at += kfm_llama_round_up(m->table.bytes);
    if (m->weights == NULL) return true;
    char *place = (char *)m->weights + at;
    m->table.data = place;
    m->table.device = m->device;
    return kfm_llama_copy(m, place, t->data, m->table.bytes, l->error);
}

static bool load_vocabulary(loader *l) {
    kfm_llama *m = l->model;
    const kfm_gguf_tensor *t = kfm_gguf_find_tensor(l->gguf, "token_embd.weight");
    int64_t vocabulary = t != NULL ? t->dim[1] : 1;
    if (vocabulary > INT32_MAX)
        return kfm_fail(l->error, "tensor 'token_embd.weight' has %lld rows; ids are 32-bit", (long long)vocabulary);
    t = find(l, -1, "token_embd.weight", true, m->info.width, vocabulary);
    if (t == NULL || !load_table(l, t)) return false;
    m->info.vocabulary = vocabulary;
    const char *output = kfm_gguf_find_tensor(l->gguf, "output.weight") != NULL ? "output.weight" : "token_embd.weight";
    if (output[0] == 't') l->used--; // find counts it once more
    return load_product(l, -1, 1, &output, m->info.width, &vocabulary, &m->vocabulary);
}

// Goes over all tensors; twice: for their checks and sizes, and to pack them.
static bool load_all(loader *l, kfm_progress progress, void *argument) {
    int64_t layers = l->model->info.layers;
    l->used = 0;
    l->packed_at = 0;
    if (!load_vocabulary(l)) return false;
    for (int64_t i = 0; i < layers; i++) {
        if (!load_layer(l, i)) return false;
        if (progress != NULL) progress(argument, i + 1, layers);
    }
    return load_norm(l, -1, "output_norm.weight", 2 * layers, &l->model->output_norm);
}

static bool name_left_over(loader *l) {
    static const char *const layer_parts[] = {"attn_norm.weight", "attn_q.weight",      "attn_k.weight",
                                              "attn_v.weight",    "attn_output.weight", "ffn_norm.weight",
                                              "ffn_gate.weight",  "ffn_up.weight",      "ffn_down.weight"};
    char shown[KFM_NAME_SHOWN], full[TENSOR_NAME];
    for (int64_t k = 0; k < kfm_gguf_tensor_count(l->gguf); k++) {
        const kfm_gguf_tensor *t = kfm_gguf_tensor_at(l->gguf, k);
        bool known = kfm_string_is(t->name, "token_embd.weight") || kfm_string_is(t->name, "output_norm.weight") ||
                     kfm_string_is(t->name, "output.weight");
        for (int64_t i = 0; i < l->model->info.layers && !known; i++)
            for (size_t p = 0; p < sizeof layer_parts / sizeof layer_parts[0] && !known; p++) {
                snprintf(full, sizeof full, "blk.%lld.%s", (long long)i, layer_parts[p]);
                known = kfm_string_is(t->name, full);
            }
        if (!known)
            return kfm_fail(l->error, "tensor '%s' is no part of the Llama architecture that keyfold computes",
                            kfm_printable(t->name, shown));
    }
    return true;
}

// ---- memory ----

static bool load_weights(kfm_llama *m, const kfm_gguf *g, const kf_context *host, kfm_progress progress, void *argument,
                         kfm_error *error) {
    loader l = {.model = m, .gguf = g, .host = host, .error = error};
    m->layers = kfm_alloc((uint64_t)m->info.layers, sizeof *m->layers);
    if (m->layers == NULL) return kfm_fail(error, "out of memory for %lld layers", (long long)m->info.layers);
    if (!load_all(&l, NULL, NULL)) return false;
    if (l.used != kfm_gguf_tensor_count(g) && !name_left_over(&l)) return false;
    m->norms = kfm_llama_allocate(m, (size_t)(2 * m->info.layers + 1) * (size_t)m->info.width * sizeof(float), error);
    m->weights = kfm_llama_allocate(m, l.packed_at, error);
    return m->norms != NULL && m->weights != NULL && load_all(&l, progress, argument);
}

// Weights are converted on the CPU.
static bool load_converted(kfm_llama *m, const kfm_gguf *g, kfm_progress progress, void *argument, kfm_error *error) {
    kf_context *made = NULL;
    const bool needed = m->weight_dtype.bits != 0;
    if (needed && kfm_llama_on_device(m) && kf_context_create(NULL, &made) != KF_OK)
        return kfm_fail(error, "%s", kf_last_error());
    const bool ok = load_weights(m, g, !needed ? NULL : made != NULL ? made : m->context, progress, argument, error);
    kf_context_destroy(made);
    return ok;
}

// The cache: for each layer K, then V.
static bool make_caches(kfm_llama *m, kfm_error *error) {
    kfm_llama_info *i = &m->info;
    int64_t element = m->cache_dtype.bits / 8,
            one = i->kv_heads * i->head_dim * element; // bytes of a position in one of K and V
    i->kv_bytes_per_position = 2 * i->layers * one;
    if (i->context > INT64_MAX / 2 / i->kv_bytes_per_position)
        return kfm_fail(error, "a context of %lld is too long for this model", (long long)i->context);
    int64_t stride = (int64_t)kfm_llama_round_up((size_t)(one * i->context));
    m->caches = kfm_llama_allocate(m, (size_t)(2 * i->layers * stride), error);
    if (m->caches == NULL)
        return kfm_fail(error, "out of memory for a context of %lld tokens (%lld bytes)", (long long)i->context,
                        (long long)(2 * i->layers * stride));
    for (int64_t k = 0; k < i->layers; k++) {
        m->layers[k].k_cache = (char *)m->caches + 2 * k * stride;
        m->layers[k].v_cache = m->layers[k].k_cache + stride;
    }
    return true;
}

static bool make_inputs(kfm_llama *m, kfm_error *error) {
    const size_t bytes = sizeof *m->inputs.at + (size_t)m->info.chunk * sizeof(int32_t);
    void *values = NULL;
    if (kf_memory_allocate_host(m->context, bytes, &values) != KF_OK)
        return kfm_fail(error, "out of memory for steps of %lld tokens", (long long)m->info.chunk);
    memset(values, 0, bytes);
    m->inputs.values = values;
    m->inputs.at = kfm_llama_on_device(m) ? kfm_llama_allocate(m, bytes, error) : m->inputs.values;
    return m->inputs.at != NULL;
}

static bool make_buffers(kfm_llama *m, kfm_error *error) {
    const kfm_llama_info *i = &m->info;
    const int64_t q = i->heads * i->head_dim, kv = i->kv_heads * i->head_dim;
    const kf_dtype read = m->rows_dtype, qkv = kfm_llama_on_device(m) ? m->cache_dtype : read;
    m->stream = (kfm_rows){.dtype = fp32, .columns = i->width};
    m->normed = (kfm_rows){.dtype = read, .columns = i->width};
    m->qkv = (kfm_rows){.dtype = qkv, .columns = q + 2 * kv};
    m->attended = (kfm_rows){.dtype = read, .columns = q};
    m->added = (kfm_rows){.dtype = fp32, .columns = i->width};
    m->gate_up = (kfm_rows){.dtype = read, .columns = 2 * i->hidden};
    m->hidden = (kfm_rows){.dtype = read, .columns = i->hidden};
    kfm_rows *const list[] = {&m->stream, &m->normed, &m->qkv, &m->attended, &m->added, &m->gate_up, &m->hidden};
    enum { BUFFERS = sizeof list / sizeof list[0] };
    size_t bytes = 0, at[BUFFERS];
    for (int b = 0; b < BUFFERS; b++) {
        at[b] = bytes;
        bytes += kfm_llama_round_up((size_t)(list[b]->columns * i->chunk) * (list[b]->dtype.bits / 8));
    }
    m->memory = kfm_llama_allocate(m, bytes, error);
    for (int b = 0; b < BUFFERS && m->memory != NULL; b++) list[b]->data = m->memory + at[b];
    return m->memory != NULL && make_inputs(m, error);
}

// ---- the whole ----

static bool is_float(kf_dtype t) {
    return t.code == KF_CODE_FLOAT ? t.bits == 16 || t.bits == 32 : t.code == KF_CODE_BFLOAT && t.bits == 16;
}

static bool apply_options(kfm_llama *m, const kfm_llama_options *o, kfm_error *error) {
    m->cache_dtype = o->cache.bits == 0 ? fp16 : o->cache;
    m->rows_dtype = o->rows.bits == 0 ? fp32 : o->rows;
    m->weight_dtype = o->weights;
    m->activations = o->activations;
    if (o->weights.bits != 0 && !is_float(o->weights))
        return kfm_fail(error, "weights can be made fp32, fp16 or bf16; of %d bits and type %d they cannot",
                        o->weights.bits, o->weights.code);
    m->info.context = o->context != 0 ? o->context : m->info.trained_context;
    m->info.chunk = o->chunk != 0 ? o->chunk : KFM_DEFAULT_CHUNK;
    if (m->info.context < 1 || m->info.context > MAX_CONTEXT)
        return kfm_fail(error, "a context of %lld; 1 to %d is allowed", (long long)o->context, MAX_CONTEXT);
    if (m->info.chunk < 1 || m->info.chunk > MAX_CONTEXT)
        return kfm_fail(error, "a chunk of %lld rows; 1 to %d is allowed", (long long)o->chunk, MAX_CONTEXT);
    if (m->info.chunk > m->info.context) m->info.chunk = m->info.context;
    return true;
}

static kf_device device_of(const kf_context *context) {
    kf_context_info info = {.size = sizeof info};
    kf_context_get_info(context, &info);
    return info.device;
}

// What a model has of its own: everything but the weights.
static bool make_state(kfm_llama *m, kfm_error *error) {
    return make_caches(m, error) && make_buffers(m, error) && kfm_llama_plan_decoding(m, error);
}

static bool finish_opening(kfm_llama *m, bool ok, kfm_llama **out) {
    if (ok)
        *out = m;
    else
        kfm_llama_close(m);
    return ok;
}

bool kfm_llama_open(kfm_llama **out, const kf_context *context, const kfm_gguf *g, const kfm_llama_options *options,
                    kfm_progress progress, void *argument, kfm_error *error) {
    static const kfm_llama_options defaults = {0};
    *out = NULL;
    kfm_llama *m = kfm_alloc(1, sizeof *m);
    if (m == NULL) return kfm_fail(error, "out of memory");
    m->context = context;
    m->device = device_of(context);
    bool ok = read_metadata(m, g, error) && apply_options(m, options != NULL ? options : &defaults, error) &&
              load_converted(m, g, progress, argument, error) && make_state(m, error);
    return finish_opening(m, ok, out);
}

bool kfm_llama_open_beside(kfm_llama **out, const kf_context *context, const kfm_llama *first, kfm_error *error) {
    *out = NULL;
    kfm_llama *m = kfm_alloc(1, sizeof *m);
    if (m == NULL) return kfm_fail(error, "out of memory");
    *m = (kfm_llama){.context = context,
                     .device = device_of(context),
                     .info = first->info,
                     .cache_dtype = first->cache_dtype,
                     .rows_dtype = first->rows_dtype,
                     .weight_dtype = first->weight_dtype,
                     .activations = first->activations,
                     .eps = first->eps,
                     .rope = first->rope,
                     .table = first->table,
                     .vocabulary = first->vocabulary,
                     .output_norm = first->output_norm,
                     .weights = first->weights,
                     .norms = first->norms,
                     .borrowed = true};
    const uint64_t layers = (uint64_t)m->info.layers;
    m->layers = kfm_alloc(layers, sizeof *m->layers);
    if (m->layers == NULL) return finish_opening(m, kfm_fail(error, "out of memory"), out);
    memcpy(m->layers, first->layers, layers * sizeof *m->layers);
    return finish_opening(m, make_state(m, error), out);
}

void kfm_llama_close(kfm_llama *m) {
    if (m == NULL) return;
    kfm_llama_drop_steps(m);
    kfm_llama_free(m, m->workspace);
    kfm_llama_free(m, m->logits);
    if (m->inputs.at != m->inputs.values) kfm_llama_free(m, m->inputs.at);
    kf_memory_free_host(m->context, m->inputs.values);
    kfm_llama_free(m, m->memory);
    kfm_llama_free(m, m->caches);
    if (!m->borrowed) kfm_llama_free(m, m->weights);
    if (!m->borrowed) kfm_llama_free(m, m->norms);
    kfm_free(m->layers);
    kfm_free(m);
}

kfm_llama_info kfm_llama_get_info(const kfm_llama *m) { return m->info; }
