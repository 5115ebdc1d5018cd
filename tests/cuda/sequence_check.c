// SPDX-License-Identifier: Apache-2.0
//
// keyfold_cuda_sequence_check: sequences on a GPU, for a person who has one. A chain of attentions, each with the output of the one
// before as its queries, with splits merged in clusters and by a second kernel, so that a kernel that began too early would read
// what is not there yet. The chain must leave the same bits
//
//     - launched one by one or as a graph, with dependent launch or without, 30 times each, on the legacy and on another stream
//     - after kf_op_bind of its first and of its last op, with another workspace, after one more op was added
//     - as a first call inside a capture of the caller's stream, and after it
//
// and lengths that change in the device's memory must be seen. It prints what a run costs in each mode, and that runs allocate nothing.
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "keyfold.h"

enum { OPS = 40, H = 8, HKV = 2, D = 64, NK = 8192, RUNS = 30, TIMED = 200, MODES = 4 };
static const uint32_t modes[MODES] = {KF_LAUNCH_NO_GRAPH | KF_LAUNCH_NO_DEPENDENT, KF_LAUNCH_NO_GRAPH,
                                      KF_LAUNCH_NO_DEPENDENT, 0};
static const char *const mode_names[MODES] = {"launch per op", "launch per op, dependent", "graph", "graph, dependent"};
// So large that few keys make up a softmax: else every output would be the mean of all values, whatever the queries.
static const float SCALE = 8;
static int failures;

static void check_cuda(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return;
    printf("%s: %s\n", what, cudaGetErrorString(error));
    exit(2);
}
#define CUDA(call) check_cuda(call, #call)

static void check(kf_status status, const char *what) {
    if (status == KF_OK) return;
    printf("%s: %s: %s\n", what, kf_status_string(status), kf_last_error());
    exit(1);
}
#define KF(call) check(call, #call)

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// ---- the chain ----

// All in fp16. o[0] holds the first queries, o[i + 1] what op i makes of o[i].
typedef struct chain {
    const kf_context *context;
    uint16_t *o[OPS + 2], *k, *v;
    int64_t *length; // on the device
    void *workspace, *other_workspace;
    size_t bytes;
    kf_op *ops[OPS + 1];
    kf_sequence *sequence;
} chain;

enum { Q_ELEMENTS = H * D, KV_ELEMENTS = HKV * NK * D };

typedef struct call {
    kf_attention_args args;
    kf_tensor q, k, v, o, lengths;
    int64_t q_shape[4], kv_shape[4], one;
} call;

static kf_tensor on_device(const void *data, kf_dtype dtype, int ndim, const int64_t *shape) {
    kf_tensor t = kf_tensor_cpu(data, dtype, ndim, shape);
    t.device = (kf_device){KF_DEVICE_CUDA, 0};
    return t;
}

// Op i looks at 8192, 1024 or 64 keys: many splits, a cluster, one block.
static void describe(const chain *c, int i, const uint16_t *from, const uint16_t *to, call *a) {
    static const int64_t keys[] = {NK, 1024, 64};
    const kf_dtype fp16 = KF_FP16, int64 = KF_INT64;
    *a = (call){.q_shape = {1, H, 1, D}, .kv_shape = {1, HKV, keys[i % 3], D}, .one = 1};
    kf_attention_args_init(&a->args);
    a->q = on_device(from, fp16, 4, a->q_shape);
    a->o = on_device(to, fp16, 4, a->q_shape);
    a->k = on_device(c->k + i * D, fp16, 4, a->kv_shape); // other keys for every op
    a->v = on_device(c->v + i * D, fp16, 4, a->kv_shape);
    a->lengths = on_device(c->length, int64, 1, &a->one);
    a->args.scale = SCALE;
    a->args.q = &a->q, a->args.k = &a->k, a->args.v = &a->v, a->args.o = &a->o, a->args.key_lengths = &a->lengths;
}

static void open_chain(chain *c, const kf_context *context) {
    memset(c, 0, sizeof *c);
    c->context = context;
    void *memory;
    const size_t kv_bytes = (KV_ELEMENTS + OPS * D) * sizeof(uint16_t);
    for (int i = 0; i < OPS + 2; i++) {
        KF(kf_memory_allocate(context, Q_ELEMENTS * sizeof(uint16_t), &memory));
        c->o[i] = memory;
    }
    KF(kf_memory_allocate(context, kv_bytes, &memory));
    c->k = memory;
    KF(kf_memory_allocate(context, kv_bytes, &memory));
    c->v = memory;
    KF(kf_memory_allocate(context, sizeof *c->length, &memory));
    c->length = memory;
    uint16_t *host = malloc(kv_bytes);
    uint32_t state = 1;
    for (uint16_t *const *to = (uint16_t *const[]){c->k, c->v, NULL}; *to; to++) {
        for (size_t i = 0; i < kv_bytes / sizeof *host; i++) {
            state = state * 1664525 + 1013904223;
            host[i] = (uint16_t)((state >> 16 & 0x83ff) | 0x3400); // +-[0.25, 0.5)
        }
        KF(kf_memory_copy(context, *to, host, kv_bytes));
    }
    for (int i = 0; i < Q_ELEMENTS; i++) host[i] = (uint16_t)(0x3c00 + (i * 37 & 0x3ff)); // [1, 2)
    KF(kf_memory_copy(context, c->o[0], host, Q_ELEMENTS * sizeof *host));
    for (int i = 0; i < Q_ELEMENTS; i++) host[i] ^= 0x8000;
    KF(kf_memory_copy(context, c->o[OPS + 1], host, Q_ELEMENTS * sizeof *host)); // other queries, to bind
    free(host);
    KF(kf_sequence_create(context, &c->sequence));
    for (int i = 0; i < OPS; i++) {
        call a;
        describe(c, i, c->o[i], c->o[i + 1], &a);
        KF(kf_op_create(context, &a.args.head, &c->ops[i]));
        KF(kf_sequence_add(c->sequence, c->ops[i]));
    }
    KF(kf_sequence_workspace_size(c->sequence, &c->bytes));
    KF(kf_memory_allocate(context, c->bytes, &c->workspace));
    KF(kf_memory_allocate(context, c->bytes, &c->other_workspace));
}

static void close_chain(chain *c) {
    kf_sequence_destroy(c->sequence);
    for (int i = 0; i <= OPS; i++) kf_op_destroy(c->ops[i]);
    for (int i = 0; i < OPS + 2; i++) kf_memory_free(c->context, c->o[i]);
    kf_memory_free(c->context, c->k);
    kf_memory_free(c->context, c->v);
    kf_memory_free(c->context, c->length);
    kf_memory_free(c->context, c->workspace);
    kf_memory_free(c->context, c->other_workspace);
}

static void set_length(chain *c, int64_t length) { KF(kf_memory_copy(c->context, c->length, &length, sizeof length)); }

static void clear_outputs(chain *c) {
    for (int i = 1; i <= OPS; i++) CUDA(cudaMemset(c->o[i], 0xff, Q_ELEMENTS * sizeof(uint16_t))); // NaN
    CUDA(cudaDeviceSynchronize());
}

static void read_output(chain *c, int i, uint16_t *to) {
    KF(kf_memory_copy(c->context, to, c->o[i], Q_ELEMENTS * sizeof *to));
}

static void expect(const char *mode, const char *what, const uint16_t *got, const uint16_t *wanted) {
    for (int i = 0; i < Q_ELEMENTS; i++)
        if (got[i] != wanted[i]) {
            printf("FAILED %s, %s: element %d is %04x; one by one it is %04x\n", mode, what, i, got[i], wanted[i]);
            failures++;
            return;
        }
}

// ---- what is compared with ----

typedef struct expected {
    uint16_t plain[Q_ELEMENTS], shorter[Q_ELEMENTS], other_first[Q_ELEMENTS], one_more[Q_ELEMENTS];
} expected;

enum { LENGTH = 5000, SHORTER = 700 };

// Single calls, each waited for.
static void run_single(chain *c, int first_queries, int ops, uint16_t *result) {
    for (int i = 0; i < ops; i++) {
        call a;
        describe(c, i % OPS, i == 0 ? c->o[first_queries] : c->o[i], i < OPS ? c->o[i + 1] : c->o[1], &a);
        KF(kf_attention(c->context, &a.args));
        KF(kf_context_synchronize(c->context));
    }
    read_output(c, ops == OPS ? OPS : 1, result);
}

static void find_expected(chain *c, expected *e) {
    set_length(c, LENGTH);
    run_single(c, 0, OPS, e->plain);
    run_single(c, OPS + 1, OPS, e->other_first);
    run_single(c, OPS + 1, OPS + 1, e->one_more);
    set_length(c, SHORTER);
    run_single(c, 0, OPS, e->shorter);
    if (memcmp(e->plain, e->shorter, sizeof e->plain) == 0 || memcmp(e->plain, e->other_first, sizeof e->plain) == 0) {
        printf("FAILED: the chain does not depend on lengths or queries\n");
        failures++;
    }
}

// ---- the checks ----

static void run(chain *c, void *workspace) { KF(kf_sequence_run(c->sequence, workspace, c->bytes)); }

static void check_chain(chain *c, const char *mode, const expected *e) {
    uint16_t got[Q_ELEMENTS];
    call a;
    for (int i = 0; i < RUNS; i++) {
        clear_outputs(c);
        set_length(c, i % 2 ? SHORTER : LENGTH);
        run(c, c->workspace);
        read_output(c, OPS, got);
        expect(mode, i % 2 ? "shorter" : "plain", got, i % 2 ? e->shorter : e->plain);
    }
    set_length(c, LENGTH);
    run(c, c->other_workspace);
    CUDA(cudaMemset(c->workspace, 0xff, c->bytes));
    clear_outputs(c);
    run(c, c->other_workspace);
    read_output(c, OPS, got);
    expect(mode, "another workspace", got, e->plain);
    // Bound anew while the run before is still on its way: that one keeps what it was launched with.
    describe(c, 0, c->o[OPS + 1], c->o[1], &a);
    clear_outputs(c);
    for (int i = 0; i < 4; i++) run(c, c->other_workspace);
    KF(kf_op_bind(c->ops[0], &a.args.head));
    run(c, c->other_workspace);
    read_output(c, OPS, got);
    expect(mode, "the first op bound anew", got, e->other_first);
    describe(c, OPS - 1, c->o[OPS - 1], c->o[OPS], &a);
    KF(kf_op_bind(c->ops[OPS - 1], &a.args.head));
    describe(c, 0, c->o[OPS], c->o[1], &a);
    KF(kf_op_create(c->context, &a.args.head, &c->ops[OPS]));
    KF(kf_sequence_add(c->sequence, c->ops[OPS]));
    run(c, c->workspace);
    read_output(c, 1, got);
    expect(mode, "one more op", got, e->one_more);
}

// The caller's graph, captured with the sequence's first call, must give the same and leave the sequence usable.
static void check_capture(const kf_context *context, cudaStream_t stream, const char *mode, const expected *e) {
    chain c;
    uint16_t got[Q_ELEMENTS];
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    open_chain(&c, context);
    set_length(&c, LENGTH);
    clear_outputs(&c);
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    run(&c, c.workspace);
    if (kf_context_synchronize(context) == KF_OK) printf("FAILED: a wait inside a capture\n"), failures++;
    CUDA(cudaStreamEndCapture(stream, &graph));
    size_t nodes = 0;
    CUDA(cudaGraphGetNodes(graph, NULL, &nodes));
    CUDA(cudaGraphInstantiate(&executable, graph, 0));
    for (int i = 0; i < RUNS; i++) {
        set_length(&c, i % 2 ? SHORTER : LENGTH);
        CUDA(cudaGraphLaunch(executable, stream));
        read_output(&c, OPS, got);
        expect(mode, "the caller's graph", got, i % 2 ? e->shorter : e->plain);
    }
    clear_outputs(&c);
    set_length(&c, LENGTH);
    run(&c, c.workspace);
    read_output(&c, OPS, got);
    expect(mode, "after the caller's capture", got, e->plain);
    printf("%-26s  a caller's graph of %d ops has %zu nodes\n", mode, OPS, nodes);
    CUDA(cudaGraphExecDestroy(executable));
    CUDA(cudaGraphDestroy(graph));
    close_chain(&c);
}

// Tried again where device memory became less meanwhile: another process may have taken it.
static void time_chain(chain *c, const char *mode) {
    enum { TRIES = 3 };
    size_t free_before = 1, free_after = 0, all;
    double begin = 0, enqueued = 0, end = 0;
    for (int i = 0; i < TRIES && free_after < free_before; i++) {
        run(c, c->workspace);
        KF(kf_context_synchronize(c->context));
        CUDA(cudaMemGetInfo(&free_before, &all));
        begin = seconds();
        for (int k = 0; k < TIMED; k++) run(c, c->workspace);
        enqueued = seconds();
        KF(kf_context_synchronize(c->context));
        end = seconds();
        CUDA(cudaMemGetInfo(&free_after, &all));
    }
    if (free_after < free_before) printf("FAILED %s: a run allocates device memory\n", mode), failures++;
    printf("%-26s  %7.1f us a run of %d ops, of which the host enqueues for %.1f us\n", mode,
           (end - begin) / TIMED * 1e6, OPS + 1, (enqueued - begin) / TIMED * 1e6);
}

static kf_context *open_context(cudaStream_t stream, uint32_t launch) {
    kf_context *context = NULL;
    kf_context_options options;
    kf_context_options_init(&options);
    options.device.type = KF_DEVICE_CUDA;
    options.stream = stream;
    options.launch = launch;
    KF(kf_context_create(&options, &context));
    return context;
}

int main(void) {
    static expected e;
    cudaStream_t stream = NULL;
    kf_context *plain = open_context(NULL, modes[0]);
    chain single;
    open_chain(&single, plain);
    find_expected(&single, &e);
    close_chain(&single);
    kf_context_destroy(plain);
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int own = 0; own < 2; own++)
        for (int i = 0; i < MODES; i++) {
            kf_context *context = open_context(own ? stream : NULL, modes[i]);
            chain c;
            open_chain(&c, context);
            check_chain(&c, mode_names[i], &e);
            time_chain(&c, mode_names[i]);
            close_chain(&c);
            if (own) check_capture(context, stream, mode_names[i], &e);
            kf_context_destroy(context);
        }
    CUDA(cudaStreamDestroy(stream));
    printf("%d failed\n", failures);
    return failures ? 1 : 0;
}
