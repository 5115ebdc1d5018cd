// SPDX-License-Identifier: Apache-2.0
//
// A sequence: the operations of one layer of a Llama, each fed by the one before. Run as a kf_sequence with 1, 2 and 3 threads, twice
// each with other key lengths, it must give the bits that the operations give when they are called one by one. (Each operation by itself
// is held against the oracle in its own cases.)
#include "verify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    H = 4,
    HKV = 2,
    D = 32,
    WIDTH = H * D,
    INNER = 256,
    VOCABULARY = 40,
    CAPACITY = 300,
    MAX_OPS = 12,
    MAX_TENSORS = 24
};

typedef struct layer_case {
    const char *name, *dtype; // of the KV cache
    int64_t T;                // tokens of the step
    int weight;               // index into VERIFY_WEIGHTS
    bool packed;
} layer_case;

// The tensors of the layer and the operations over them, in order.
typedef struct layer {
    verify_run *run;
    int64_t T;
    kf_tensor *ids, *slots, *lengths, *y;
    kf_tensor views[MAX_TENSORS];
    int64_t shapes[MAX_TENSORS][4], strides[MAX_TENSORS][4];
    int view_count;
    kf_weight table, weights[5];
    verify_args args[MAX_OPS];
    int count;
} layer;

static kf_tensor *new_tensor(layer *l, const char *name, unsigned role, kf_dtype dtype, int ndim, int64_t a, int64_t b,
                             int64_t c, int64_t d) {
    const int64_t shape[4] = {a, b, c, d};
    return verify_tensor(&l->run->pool, name, role, dtype, VERIFY_COMPACT, ndim, shape);
}

// [T, heads * D] as [1, heads, T, D].
static const kf_tensor *as_heads(layer *l, const kf_tensor *rows, int64_t heads) {
    const int n = l->view_count++;
    const int64_t shape[4] = {1, heads, l->T, D}, strides[4] = {0, D, heads * D, 1};
    memcpy(l->shapes[n], shape, sizeof shape);
    memcpy(l->strides[n], strides, sizeof strides);
    l->views[n] = *rows;
    l->views[n].ndim = 4, l->views[n].shape = l->shapes[n], l->views[n].strides = l->strides[n];
    return &l->views[n];
}

static bool new_weight(layer *l, const layer_case *row, int64_t rows, int64_t cols, kf_weight *weight) {
    if (!verify_weight(&l->run->pool, &VERIFY_WEIGHTS[row->weight], rows, cols, 0, weight)) return false;
    if (!row->packed) return true;
    size_t bytes = 0;
    const kf_context *context = l->run->context[0];
    const kf_weight source = *weight;
    if (!verify_status(l->run, kf_pack_weight_size(context, &source, &bytes), "kf_pack_weight_size")) return false;
    unsigned char *data = verify_bytes(&l->run->pool, "packed weight", (bytes + 63) / 64 * 64);
    if (!data) return false;
    return verify_status(l->run, kf_pack_weight(context, &source, data, bytes, weight), "kf_pack_weight");
}

static void add_linear(layer *l, const kf_tensor *x, const kf_weight *weight, const kf_tensor *y) {
    kf_linear_args *args = &l->args[l->count++].linear;
    kf_linear_args_init(args);
    args->x = x, args->weight = weight, args->y = y;
}

static void add_rope(layer *l, const kf_tensor *q) {
    kf_rope_args *args = &l->args[l->count++].rope;
    kf_rope_args_init(args);
    args->x = args->y = q, args->position_offset = 7, args->rope.pairing = KF_ROPE_NEOX;
}

static bool make_weights(layer *l, const layer_case *row) {
    return verify_weight(&l->run->pool, &VERIFY_WEIGHTS[row->weight], VOCABULARY, 2 * WIDTH, 0, &l->table) &&
           new_weight(l, row, WIDTH, 2 * WIDTH, &l->weights[0]) &&
           new_weight(l, row, 2 * HKV * D, 2 * WIDTH, &l->weights[1]) &&
           new_weight(l, row, 2 * WIDTH, INNER, &l->weights[2]) &&
           new_weight(l, row, 2 * INNER, 2 * WIDTH, &l->weights[3]);
}

// What goes from one operation to the next.
typedef struct layer_tensors {
    kf_tensor *h, *norm, *q, *kv, *k_cache, *v_cache, *attended, *projected, *gate_up;
} layer_tensors;

static bool make_tensors(layer *l, const layer_case *row, layer_tensors *t) {
    const kf_dtype f32 = KF_FP32, cache = verify_dtype(row->dtype);
    const int64_t T = row->T;
    verify_pool *pool = &l->run->pool;
    l->ids = new_tensor(l, "ids", VERIFY_INPUT, (kf_dtype)KF_INT32, 1, T, 0, 0, 0);
    l->slots = new_tensor(l, "slots", VERIFY_INPUT, (kf_dtype)KF_INT64, 1, 1, 0, 0, 0);
    l->lengths = new_tensor(l, "lengths", VERIFY_INPUT, (kf_dtype)KF_INT32, 1, 1, 0, 0, 0);
    t->h = new_tensor(l, "h", VERIFY_OUTPUT, f32, 2, T, 2 * WIDTH, 0, 0);
    t->norm = new_tensor(l, "norm", VERIFY_OUTPUT, f32, 2, T, 2 * WIDTH, 0, 0);
    t->q = new_tensor(l, "q", VERIFY_OUTPUT, f32, 2, T, WIDTH, 0, 0);
    t->kv = new_tensor(l, "kv", VERIFY_OUTPUT, f32, 2, T, 2 * HKV * D, 0, 0);
    t->k_cache = new_tensor(l, "k_cache", VERIFY_IN_PLACE, cache, 4, 1, HKV, CAPACITY, D);
    t->v_cache = new_tensor(l, "v_cache", VERIFY_IN_PLACE, cache, 4, 1, HKV, CAPACITY, D);
    t->attended = new_tensor(l, "attended", VERIFY_OUTPUT, f32, 2, T, INNER, 0, 0);
    t->projected = new_tensor(l, "projected", VERIFY_OUTPUT, f32, 2, T, 2 * WIDTH, 0, 0);
    t->gate_up = new_tensor(l, "gate_up", VERIFY_OUTPUT, f32, 2, T, 2 * INNER, 0, 0);
    l->y = new_tensor(l, "y", VERIFY_OUTPUT, f32, 2, T, INNER, 0, 0);
    if (pool->exhausted) return false;
    verify_fill_uniform(pool, l->ids, 0, VOCABULARY - 0.01);
    verify_fill_normal(pool, t->k_cache, 1);
    verify_fill_normal(pool, t->v_cache, 1);
    verify_fill_value(t->attended, 0); // attention writes half of each row
    return true;
}

// kv's heads to the cache: its first half is k, the second v.
static void add_append(layer *l, const layer_tensors *t) {
    kf_kv_append_args *append = &l->args[l->count++].kv_append;
    kf_kv_append_args_init(append);
    const kf_tensor *k_and_v = as_heads(l, t->kv, 2 * HKV);
    kf_tensor *k = &l->views[l->view_count++], *v = &l->views[l->view_count++];
    *k = *v = *k_and_v;
    l->shapes[1][1] = HKV;
    const int64_t half[4] = {0, HKV, 0, 0};
    v->data = ref_address(k_and_v, half), v->byte_offset = 0;
    append->k = k, append->v = v, append->k_cache = t->k_cache, append->v_cache = t->v_cache, append->slots = l->slots;
    append->rope.pairing = KF_ROPE_NEOX;
}

static void add_attention(layer *l, const layer_tensors *t) {
    kf_attention_args *attention = &l->args[l->count++].attention;
    kf_attention_args_init(attention);
    kf_tensor *o = (kf_tensor *)(uintptr_t)as_heads(l, t->attended, H);
    l->strides[l->view_count - 1][2] = INNER;
    attention->q = &l->views[0], attention->k = t->k_cache, attention->v = t->v_cache, attention->o = o;
    attention->key_lengths = l->lengths;
    attention->flags = KF_ATTENTION_CAUSAL;
}

// embedding -> norm -> q, kv -> rope, append -> attention -> projection -> residual norm -> gate and up -> SwiGLU -> down -> softmax.
static bool build(verify_run *run, const layer_case *row, layer *l) {
    layer_tensors t;
    *l = (layer){.run = run, .T = row->T};
    if (!make_weights(l, row) || !make_tensors(l, row, &t)) return false;
    kf_embedding_args *embedding = &l->args[l->count++].embedding;
    kf_embedding_args_init(embedding);
    embedding->table = &l->table, embedding->ids = l->ids, embedding->y = t.h;
    kf_rmsnorm_args *first = &l->args[l->count++].rmsnorm;
    kf_rmsnorm_args_init(first);
    first->x = t.h, first->y = t.norm;
    add_linear(l, t.norm, &l->weights[0], t.q);
    add_linear(l, t.norm, &l->weights[1], t.kv);
    add_rope(l, as_heads(l, t.q, H));
    add_append(l, &t);
    add_attention(l, &t);
    add_linear(l, t.attended, &l->weights[2], t.projected);
    kf_rmsnorm_args *second = &l->args[l->count++].rmsnorm;
    kf_rmsnorm_args_init(second);
    second->x = t.projected, second->residual = t.h, second->sum = t.h, second->y = t.norm;
    add_linear(l, t.norm, &l->weights[3], t.gate_up);
    kf_swiglu_args *swiglu = &l->args[l->count++].swiglu;
    kf_swiglu_args_init(swiglu);
    swiglu->gate_up = t.gate_up, swiglu->y = l->y;
    kf_softmax_args *softmax = &l->args[l->count++].softmax;
    kf_softmax_args_init(softmax);
    softmax->x = softmax->y = l->y;
    return true;
}

static void set_step(layer *l, int64_t slot) {
    const int64_t zero = 0;
    verify_set(l->slots, &zero, (double)slot);
    verify_set(l->lengths, &zero, (double)(slot + l->T));
}

static bool run_sequence(verify_run *run, layer *l, kf_sequence *sequence, verify_workspace *workspace) {
    const char *what = "";
    verify_pool_restore(&run->pool);
    if (!verify_status(run, verify_sequence_run(run, sequence, workspace), "kf_sequence_run")) return false;
    if (!verify_workspace_intact(workspace)) return verify_fail(run, "the sequence wrote past its workspace");
    const verify_buffer *damaged = verify_pool_damage(&run->pool, &what), *differs = verify_pool_differs(&run->pool);
    if (damaged) return verify_fail(run, "the sequence changed the %s of %s", what, damaged->name);
    if (differs)
        return verify_fail(run, "%s has other bits in a sequence of %d operations than from single calls",
                           differs->name, l->count);
    return true;
}

// One by one first; then as a sequence.
static bool run_step(verify_run *run, layer *l, kf_sequence *sequence, verify_workspace *workspace, int64_t slot) {
    set_step(l, slot);
    verify_pool_restore(&run->pool);
    verify_pool_snapshot(&run->pool);
    for (int n = 0; n < l->count; n++) {
        if (!verify_status(run, verify_call(run, run->context[1], &l->args[n].head), "one by one")) return false;
    }
    verify_pool_keep_first(&run->pool);
    for (int time = 0; time < 2; time++) {
        if (!run_sequence(run, l, sequence, workspace)) return false;
    }
    return true;
}

static bool check_layer(verify_run *run, const void *pointer) {
    const layer_case *row = pointer;
    layer l;
    if (!build(run, row, &l)) return false;
    verify_pool_snapshot(&run->pool);
    bool good = true;
    for (int threads = 1; threads <= 3 && good; threads++) {
        kf_sequence *sequence = NULL;
        kf_op *ops[MAX_OPS] = {NULL};
        size_t bytes = 0;
        const kf_context *context = run->context[threads];
        kf_status status = kf_sequence_create(context, &sequence);
        for (int n = 0; n < l.count && status == KF_OK; n++) {
            status = verify_op_create(run, context, &l.args[n].head, &ops[n]);
            if (status == KF_OK) status = kf_sequence_add(sequence, ops[n]);
        }
        if (status == KF_OK) status = kf_sequence_workspace_size(sequence, &bytes);
        verify_workspace workspace = {0};
        if (status == KF_OK) status = verify_workspace_open(run, bytes, &workspace);
        good = verify_status(run, status, "making the sequence") && run_step(run, &l, sequence, &workspace, 0) &&
               run_step(run, &l, sequence, &workspace, CAPACITY - row->T);
        verify_workspace_close(run, &workspace);
        kf_sequence_destroy(sequence);
        for (int n = 0; n < l.count; n++) kf_op_destroy(ops[n]);
    }
    return good;
}

void verify_sequences(verify_run *run) {
    static const char *const CACHES[] = {"fp32", "fp16", "bf16"};
    for (int c = 0; c < 3; c++) {
        for (int weight = 0; weight < VERIFY_WEIGHT_TYPES; weight += 2) {
            for (int packed = 0; packed < 2; packed++) {
                layer_case row = {
                    .dtype = CACHES[c], .T = 1 + 6 * (weight % 4 == 0), .weight = weight, .packed = packed};
                verify_case(run, check_layer, &row, "sequence/layer/%s/%s-%s/%lld", row.dtype,
                            VERIFY_WEIGHTS[weight].name, packed ? "packed" : "plain", (long long)row.T);
            }
        }
    }
}
