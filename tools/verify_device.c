// SPDX-License-Identifier: Apache-2.0
//
// Calls on the tensors of the pool (verify.h), on the CPU and on a CUDA device. On a device:
//
//     pool (host) -> mirrors (device) -> the call, with the same tensors at the mirrors' addresses -> wait -> pool
//
// The mirrors of a small pool lie in one allocation and are copied in one go: a case has hundreds of copies, each of which the device is
// waited for. With --once, and for large buffers, a mirror is an allocation of its own, as long as the buffer's region, guard zone
// included, so that compute-sanitizer sees every access outside it. A region begins at a page, a mirror at a multiple of 256 bytes, so
// alignments are the same. Nothing here but the header's functions is used: what copies, waits and calls is keyfold.
#include "call.h"
#include "verify.h"

#include <stdlib.h>
#include <string.h>

#if KF_HAVE_CUDA
#include "cuda/runtime.h"
#include "reference/cuda/reference_cuda.h"
#endif

// ------------------------------------------------------------------------------------------------------------ mirrors

typedef enum direction { TO_DEVICE, FROM_DEVICE } direction;

static kf_status copy_range(const kf_context *context, const verify_buffer *buffer, unsigned char *at, size_t bytes,
                            direction way) {
    char *mirror = (char *)buffer->mirror + (at - buffer->region);
    return way == TO_DEVICE ? kf_memory_copy(context, mirror, at, bytes) : kf_memory_copy(context, at, mirror, bytes);
}

// Of a sparse buffer only the rows exist.
static kf_status copy_rows(const kf_context *context, const verify_buffer *buffer, direction way) {
    const kf_tensor *tensor = &buffer->tensor;
    const int64_t n = tensor->shape[tensor->ndim - 1], rows = n ? ref_elements(tensor) / n : 0;
    kf_status status = KF_OK;
    int64_t index[KF_MAX_NDIM] = {0};
    for (int64_t r = 0; r < rows && status == KF_OK; r++) {
        ref_unravel(tensor, r * n, index);
        const size_t bytes = (size_t)(n * ref_dtype_bytes(tensor->dtype));
        status = copy_range(context, buffer, ref_address(tensor, index), bytes, way);
    }
    return status;
}

// Gives the buffers that are there at the first call their places in an arena, if all of them are small.
static kf_status open_arena(verify_pool *pool) {
    static const size_t MOST = 4 << 20;
    size_t bytes = 0;
    bool small = !pool->apart;
    for (int i = 0; i < pool->count; i++) {
        small = small && !pool->buffer[i].sparse && !pool->buffer[i].mirror;
        bytes += pool->buffer[i].region_bytes; // pages
    }
    if (!small || bytes == 0 || bytes > MOST) return KF_OK;
    pool->staging = malloc(bytes);
    void *arena = NULL;
    const kf_status status = pool->staging ? kf_memory_allocate(pool->device, bytes, &arena) : KF_OUT_OF_MEMORY;
    if (status != KF_OK) return status;
    pool->arena = arena;
    for (int i = 0; i < pool->count; i++) {
        pool->buffer[i].mirror = pool->arena + pool->arena_bytes;
        pool->buffer[i].in_arena = true;
        pool->arena_bytes += pool->buffer[i].region_bytes;
    }
    return KF_OK;
}

static kf_status copy_arena(verify_pool *pool, direction way) {
    kf_status status = KF_OK;
    if (way == FROM_DEVICE) status = kf_memory_copy(pool->device, pool->staging, pool->arena, pool->arena_bytes);
    for (int i = 0; i < pool->count && status == KF_OK; i++) {
        const verify_buffer *buffer = &pool->buffer[i];
        if (!buffer->in_arena) continue;
        unsigned char *staged = pool->staging + ((unsigned char *)buffer->mirror - pool->arena);
        if (way == FROM_DEVICE)
            memcpy(buffer->region, staged, buffer->region_bytes);
        else
            memcpy(staged, buffer->region, buffer->region_bytes);
    }
    if (way == TO_DEVICE) status = kf_memory_copy(pool->device, pool->arena, pool->staging, pool->arena_bytes);
    return status;
}

static kf_status copy_pool(verify_run *run, direction way) {
    verify_pool *pool = &run->pool;
    kf_status status = pool->arena ? KF_OK : open_arena(pool);
    if (status == KF_OK && pool->arena) status = copy_arena(pool, way);
    for (int i = 0; i < pool->count && status == KF_OK; i++) {
        verify_buffer *buffer = &pool->buffer[i];
        if (buffer->in_arena) continue;
        if (!buffer->mirror) status = kf_memory_allocate(pool->device, buffer->region_bytes, &buffer->mirror);
        if (status != KF_OK) break;
        const bool input = !(buffer->role & VERIFY_OUTPUT);
        if (pool->settled && input && (way == TO_DEVICE || pool->outputs_alone)) continue;
        status = buffer->sparse ? copy_rows(pool->device, buffer, way)
                                : copy_range(pool->device, buffer, buffer->region, buffer->region_bytes, way);
    }
    if (status == KF_OUT_OF_MEMORY) pool->exhausted = true;
    return status;
}

static void *mirror_of(const verify_pool *pool, const void *host) {
    const unsigned char *at = host;
    for (int i = 0; i < pool->count; i++) {
        const verify_buffer *buffer = &pool->buffer[i];
        if (at >= buffer->region && at <= buffer->region + buffer->region_bytes)
            return (char *)buffer->mirror + (at - buffer->region);
    }
    return NULL; // which the library refuses
}

// --------------------------------------------------------------------------------------------------------- parameters

enum { MAX_TENSORS = 16 };

// A call's parameters over the mirrors.
typedef struct device_args {
    verify_args args;
    kf_tensor tensors[MAX_TENSORS];
    kf_weight weight;
} device_args;

// Where the tensors stand in each struct: the first, and how many follow it without a gap; 0: none.
static const struct {
    size_t bytes, first, count, weight, second, second_count;
} PLACES[KF_OP_COUNT] = {
    [KF_OP_SOFTMAX] = {sizeof(kf_softmax_args), offsetof(kf_softmax_args, x), 3, 0, 0, 0},
    [KF_OP_ATTENTION] = {sizeof(kf_attention_args), offsetof(kf_attention_args, q), 11, 0, 0, 0},
    [KF_OP_MERGE_STATES] = {sizeof(kf_merge_states_args), offsetof(kf_merge_states_args, o_parts), 4, 0, 0, 0},
    [KF_OP_RMSNORM] = {sizeof(kf_rmsnorm_args), offsetof(kf_rmsnorm_args, x), 5, 0, 0, 0},
    [KF_OP_SWIGLU] = {sizeof(kf_swiglu_args), offsetof(kf_swiglu_args, gate), 4, 0, 0, 0},
    [KF_OP_ROPE] = {sizeof(kf_rope_args), offsetof(kf_rope_args, x), 3, 0, 0, 0},
    [KF_OP_KV_APPEND] = {sizeof(kf_kv_append_args), offsetof(kf_kv_append_args, k), 6, 0, 0, 0},
    [KF_OP_EMBEDDING] = {sizeof(kf_embedding_args), offsetof(kf_embedding_args, ids), 2,
                         offsetof(kf_embedding_args, table), 0, 0},
    [KF_OP_LINEAR] = {sizeof(kf_linear_args), offsetof(kf_linear_args, x), 1, offsetof(kf_linear_args, weight),
                      offsetof(kf_linear_args, bias), 2},
};

static void mirror_tensors(const verify_run *run, device_args *made, size_t offset, size_t count, kf_tensor *room) {
    for (size_t t = 0; t < count; t++) {
        const kf_tensor **place = (const kf_tensor **)((char *)&made->args + offset) + t;
        if (!*place) continue;
        room[t] = **place;
        *place = &room[t];
        if (room[t].device.type != KF_DEVICE_CPU) continue; // a case that brings a device of its own
        room[t].device = (kf_device){KF_DEVICE_CUDA, run->number};
        room[t].data = room[t].data ? mirror_of(&run->pool, room[t].data) : NULL;
    }
}

static const kf_args *mirror_args(const verify_run *run, const kf_args *args, device_args *made) {
    const uint32_t kind = args->kind;
    if (!run->device) return args;
    memcpy(&made->args, args, PLACES[kind].bytes);
    mirror_tensors(run, made, PLACES[kind].first, PLACES[kind].count, made->tensors);
    mirror_tensors(run, made, PLACES[kind].second, PLACES[kind].second_count, made->tensors + PLACES[kind].count);
    const kf_weight **weight = (const kf_weight **)((char *)&made->args + PLACES[kind].weight);
    if (PLACES[kind].weight && *weight) {
        made->weight = **weight;
        made->weight.device = (kf_device){KF_DEVICE_CUDA, run->number};
        made->weight.data = made->weight.data ? mirror_of(&run->pool, made->weight.data) : NULL;
        *weight = &made->weight;
    }
    return &made->args.head;
}

// -------------------------------------------------------------------------------------------------------------- calls

static kf_status to_device(verify_run *run) {
    if (!run->device) return KF_OK;
    run->pool.device = run->context[0];
    return copy_pool(run, TO_DEVICE);
}

// Waits for `context` and brings the pool back. An error that is there when asked again does not pass: the process has lost the device.
static kf_status from_device(verify_run *run, const kf_context *context, kf_status status) {
    if (!run->device) return status;
    if (status == KF_OK) status = kf_context_synchronize(context);
    if (status == KF_OK) status = copy_pool(run, FROM_DEVICE);
    if (status == KF_DEVICE_ERROR) run->lost = kf_context_synchronize(context) == KF_DEVICE_ERROR;
    return status;
}

kf_status verify_call(verify_run *run, const kf_context *context, const kf_args *args) {
    device_args made;
    kf_status status = to_device(run);
    if (status == KF_OK) status = call_operation(context, mirror_args(run, args, &made));
    return from_device(run, context, status);
}

kf_status verify_op_create(verify_run *run, const kf_context *context, const kf_args *args, kf_op **op) {
    device_args made;
    const kf_status status = to_device(run);
    return status == KF_OK ? kf_op_create(context, mirror_args(run, args, &made), op) : status;
}

kf_status verify_op_bind(verify_run *run, kf_op *op, const kf_args *args) {
    device_args made;
    const kf_status status = to_device(run);
    return status == KF_OK ? kf_op_bind(op, mirror_args(run, args, &made)) : status;
}

// --------------------------------------------------------------------------------------------------------- workspaces
// [ SKEW | bytes | GUARD ], on the host and in the mirror: a workspace may have any alignment.

enum { WORKSPACE_GUARD = 256, WORKSPACE_SKEW = 3 };

static size_t all_of(size_t bytes) { return bytes + WORKSPACE_GUARD + WORKSPACE_SKEW; }

kf_status verify_workspace_open(verify_run *run, size_t bytes, verify_workspace *workspace) {
    *workspace = (verify_workspace){.bytes = bytes, .memory = malloc(all_of(bytes))};
    if (!workspace->memory) return KF_OUT_OF_MEMORY;
    memset(workspace->memory, 0xFF, all_of(bytes));
    workspace->at = workspace->memory + WORKSPACE_SKEW;
    if (!run->device) return KF_OK;
    const kf_status status = kf_memory_allocate(run->context[0], all_of(bytes), &workspace->mirror);
    workspace->at = (char *)workspace->mirror + WORKSPACE_SKEW;
    return status == KF_OK ? kf_memory_copy(run->context[0], workspace->mirror, workspace->memory, all_of(bytes))
                           : status;
}

bool verify_workspace_intact(const verify_workspace *workspace) {
    const unsigned char *memory = workspace->memory;
    for (size_t i = 0; i < WORKSPACE_GUARD; i++) {
        if (memory[WORKSPACE_SKEW + workspace->bytes + i] != 0xFF) return false;
    }
    return memory[0] == 0xFF && memory[1] == 0xFF && memory[2] == 0xFF;
}

void verify_workspace_close(verify_run *run, verify_workspace *workspace) {
    if (workspace->mirror) kf_memory_free(run->context[0], workspace->mirror);
    free(workspace->memory);
    *workspace = (verify_workspace){0};
}

static kf_status workspace_back(verify_run *run, verify_workspace *workspace, kf_status status) {
    if (status != KF_OK || !run->device) return status;
    return kf_memory_copy(run->context[0], workspace->memory, workspace->mirror, all_of(workspace->bytes));
}

kf_status verify_op_run(verify_run *run, kf_op *op, verify_workspace *workspace) {
    kf_status status = to_device(run);
    if (status == KF_OK) status = kf_op_run(op, workspace->at, workspace->bytes);
    status = from_device(run, run->context[0], status);
    return workspace_back(run, workspace, status);
}

kf_status verify_sequence_run(verify_run *run, kf_sequence *sequence, verify_workspace *workspace) {
    kf_status status = to_device(run);
    if (status == KF_OK) status = kf_sequence_run(sequence, workspace->at, workspace->bytes);
    status = from_device(run, run->context[0], status);
    return workspace_back(run, workspace, status);
}

// ------------------------------------------------------------------------------------------------------------- graphs

#if KF_HAVE_CUDA

typedef struct captured {
    verify_run *run;
    const kf_args *args; // of the plain call; NULL: the op is run
    kf_op *op;
    verify_workspace workspace;
} captured;

static kf_status enqueue(void *argument) {
    captured *c = argument;
    device_args made;
    if (c->args) return call_operation(c->run->captured, mirror_args(c->run, c->args, &made));
    return kf_op_run(c->op, c->workspace.at, c->workspace.bytes);
}

static kf_status launch_and_wait(verify_run *run, void *graph) {
    kf_status status = to_device(run);
    if (status == KF_OK) status = kft_cuda_graph_launch(graph, run->stream);
    return from_device(run, run->captured, status);
}

// A planned run, or one call, as a graph.
static kf_status capture(verify_run *run, const kf_args *args, bool plain_call, captured *c, void **graph) {
    kf_status status = KF_OK;
    size_t bytes = 0;
    *c = (captured){.run = run, .args = plain_call ? args : NULL};
    *graph = NULL;
    if (!plain_call) {
        status = verify_op_create(run, run->captured, args, &c->op);
        if (status == KF_OK) status = kf_op_workspace_size(c->op, &bytes);
        if (status == KF_OK) status = verify_workspace_open(run, bytes, &c->workspace);
    }
    return status == KF_OK ? kft_cuda_capture(run->stream, enqueue, c, graph) : status;
}

static void drop(captured *c, void *graph) {
    kft_cuda_graph_destroy(graph);
    verify_workspace_close(c->run, &c->workspace);
    kf_op_destroy(c->op);
}

kf_status verify_captured_run(verify_run *run, const kf_args *args, bool plain_call, bool *intact) {
    captured c;
    void *graph = NULL;
    kf_status status = capture(run, args, plain_call, &c, &graph);
    // The first launch's outputs are replaced: what counts is that a graph may be launched again.
    if (status == KF_OK) status = launch_and_wait(run, graph);
    verify_pool_restore(&run->pool);
    if (status == KF_OK) status = launch_and_wait(run, graph);
    if (!plain_call) status = workspace_back(run, &c.workspace, status);
    if (!plain_call && status == KF_OK) *intact = verify_workspace_intact(&c.workspace);
    if (status != KF_OK && kft_cuda_error()[0]) verify_fail(run, "a graph: %s", kft_cuda_error());
    drop(&c, graph);
    return status;
}

bool verify_captured_steps(verify_run *run, const kf_args *args, int steps, void (*change)(void *argument, int step),
                           void *argument) {
    captured c;
    void *graph = NULL;
    bool good = verify_status(run, capture(run, args, false, &c, &graph), "capturing");
    for (int step = 0; good && step < steps; step++) {
        change(argument, step);
        good = verify_status(run, launch_and_wait(run, graph), "the graph");
        verify_pool_keep_first(&run->pool);
        verify_pool_restore(&run->pool);
        good = good && verify_status(run, verify_call(run, run->context[0], args), "a call");
        const verify_buffer *differs = verify_pool_differs(&run->pool);
        if (good && differs)
            good = verify_fail(run, "step %d: %s has other bits from the graph than from a call", step, differs->name);
        verify_pool_restore(&run->pool);
    }
    drop(&c, graph);
    return good;
}

bool verify_device_oracle(verify_run *run, const kf_attention_args *args, double *o, double *lse, double *naive) {
    device_args made;
    mirror_args(run, &args->head, &made);
    kft_cuda_use_device(run->number);
    const char *error = ref_cuda_attention(&made.args.attention, o, lse, naive);
    kft_cuda_use_device(0);
    if (!error) return true;
    run->lost = kf_context_synchronize(run->context[0]) == KF_DEVICE_ERROR;
    return verify_fail(run, "the oracle on the device: %s", error);
}

#endif
