// SPDX-License-Identifier: Apache-2.0
//
// The cases that only a device has: memory and waits while a stream is captured, tensors and streams of other devices, and lengths that
// the host doesn't read.
#include "runtime.h"
#include "verify.h"

// ------------------------------------------------------------------------------------------------------------- memory

typedef struct memory_probe {
    const kf_context *context;
    void *memory;
    kf_status allocated, copied, waited;
} memory_probe;

static kf_status probe(void *argument) {
    memory_probe *p = argument;
    char byte = 0;
    p->allocated = kf_memory_allocate(p->context, 1 << 20, &p->memory);
    p->copied = kf_memory_copy(p->context, p->memory, &byte, 1);
    p->waited = kf_context_synchronize(p->context);
    return KF_OK;
}

// Memory may be had inside a capture; a copy or a wait is refused, and the capture survives it.
static bool check_memory_in_capture(verify_run *run, const void *row) {
    (void)row;
    memory_probe p = {.context = run->captured};
    void *graph = NULL;
    const kf_status status = kft_cuda_capture(run->stream, probe, &p, &graph);
    kft_cuda_graph_destroy(graph);
    kf_memory_free(run->captured, p.memory);
    if (status != KF_OK) return verify_fail(run, "the capture did not survive: %s", kft_cuda_error());
    if (p.allocated != KF_OK) return verify_fail(run, "kf_memory_allocate: %s", kf_status_string(p.allocated));
    if (p.copied != KF_INVALID_ARGUMENT) return verify_fail(run, "kf_memory_copy gave %s", kf_status_string(p.copied));
    if (p.waited != KF_INVALID_ARGUMENT)
        return verify_fail(run, "kf_context_synchronize gave %s", kf_status_string(p.waited));
    return true;
}

// ---------------------------------------------------------------------------------------------------------- attention

enum { B = 2, H = 4, HKV = 2, NK = 700, D = 64 };

typedef struct attention {
    kf_tensor *q, *k, *v, *o, *lengths;
    kf_attention_args args;
} attention;

static bool make_attention(verify_run *run, int64_t Nq, attention *a) {
    verify_pool *pool = &run->pool;
    const int64_t q[4] = {B, H, Nq, D}, k[4] = {B, HKV, NK, D}, batch = B;
    const kf_dtype dtype = KF_BF16;
    a->q = verify_tensor(pool, "q", VERIFY_INPUT, dtype, VERIFY_COMPACT, 4, q);
    a->k = verify_tensor(pool, "k", VERIFY_INPUT, dtype, VERIFY_COMPACT, 4, k);
    a->v = verify_tensor(pool, "v", VERIFY_INPUT, dtype, VERIFY_COMPACT, 4, k);
    a->o = verify_tensor(pool, "o", VERIFY_OUTPUT, dtype, VERIFY_COMPACT, 4, q);
    a->lengths = verify_tensor(pool, "key_lengths", VERIFY_INPUT, (kf_dtype)KF_INT64, VERIFY_COMPACT, 1, &batch);
    if (pool->exhausted) return false;
    verify_fill_normal(pool, a->q, 1);
    verify_fill_normal(pool, a->k, 1);
    verify_fill_normal(pool, a->v, 1);
    kf_attention_args_init(&a->args);
    a->args.q = a->q, a->args.k = a->k, a->args.v = a->v, a->args.o = a->o, a->args.flags = KF_ATTENTION_CAUSAL;
    return true;
}

static void set_lengths(attention *a, double first, double second) {
    verify_set(a->lengths, (const int64_t[]){0}, first);
    verify_set(a->lengths, (const int64_t[]){1}, second);
    a->args.key_lengths = a->lengths;
}

// A length out of range is taken as the nearest in range: the bits are those of that one.
static bool check_lengths_out_of_range(verify_run *run, const void *row) {
    attention a;
    if (!make_attention(run, *(const int64_t *)row, &a)) return false;
    set_lengths(&a, -3, NK + 5e9);
    if (!verify_execute_once(run, run->context[0], &a.args.head)) return false;
    verify_pool_keep_first(&run->pool);
    verify_pool_restore(&run->pool);
    set_lengths(&a, 0, NK);
    if (!verify_execute_once(run, run->context[0], &a.args.head)) return false;
    const verify_buffer *differs = verify_pool_differs(&run->pool);
    return differs ? verify_fail(run, "%s is not what the nearest lengths in range give", differs->name) : true;
}

static void next_lengths(void *argument, int step) {
    static const double LENGTHS[][2] = {{NK, NK}, {1, 0}, {17, 333}, {NK - 1, 64}};
    set_lengths(argument, LENGTHS[step][0], LENGTHS[step][1]);
}

// A captured run stays valid as lengths change.
static bool check_lengths_of_a_graph(verify_run *run, const void *row) {
    attention a;
    if (!make_attention(run, *(const int64_t *)row, &a)) return false;
    set_lengths(&a, NK, NK);
    verify_pool_snapshot(&run->pool);
    return verify_captured_steps(run, &a.args.head, 4, next_lengths, &a);
}

// ------------------------------------------------------------------------------------------------------ other devices

static bool refused(verify_run *run, const kf_context *context, const kf_attention_args *args, const char *what) {
    const kf_status status = kf_attention(context, args);
    if (status == KF_INVALID_ARGUMENT && kf_last_error()[0]) return true;
    return verify_fail(run, "%s must be refused with KF_INVALID_ARGUMENT, gave %s", what, kf_status_string(status));
}

// Tensors of the host, of a device that is not the context's, and of both; none of it may be touched.
static bool check_tensors_elsewhere(verify_run *run, const void *row) {
    attention a;
    (void)row;
    if (!make_attention(run, 1, &a)) return false;
    if (!refused(run, run->context[0], &a.args, "tensors of the host")) return false;
    const kf_device here = {KF_DEVICE_CUDA, run->number}, other = {KF_DEVICE_CUDA, run->number ? 0 : 1};
    kf_tensor *const tensors[4] = {a.q, a.k, a.v, a.o};
    for (int t = 0; t < 4; t++) tensors[t]->device = here;
    for (int t = 0; t < 4; t++) {
        tensors[t]->device = other;
        if (!refused(run, run->context[0], &a.args, "a tensor of another device")) return false;
        tensors[t]->device = (kf_device){KF_DEVICE_CPU, 0};
        if (!refused(run, run->context[0], &a.args, "a tensor of the host among others")) return false;
        tensors[t]->device = here;
    }
    return true;
}

static kf_status open_on(const verify_run *run, int device, void *stream, kf_context **context) {
    kf_context_options options;
    kf_context_options_init(&options);
    options.device = (kf_device){KF_DEVICE_CUDA, device};
    options.isa = run->isa;
    options.stream = stream;
    return kf_context_create(&options, context);
}

// A stream of the run's device with a context on another one.
static bool check_stream_elsewhere(verify_run *run, const void *row) {
    (void)row;
    if (kft_cuda_device_count() < 2) return verify_skip(run, "there is one device");
    kf_context *context = NULL;
    const kf_status status = open_on(run, run->number ? 0 : 1, run->stream, &context);
    kf_context_destroy(context);
    if (status == KF_INVALID_ARGUMENT && kf_last_error()[0]) return true;
    return verify_fail(run, "a stream of device %d on another one gave %s", run->number, kf_status_string(status));
}

// A device that isn't there.
static bool check_device_beyond(verify_run *run, const void *row) {
    (void)row;
    kf_context *context = NULL;
    const kf_status status = open_on(run, kft_cuda_device_count(), NULL, &context);
    kf_context_destroy(context);
    return status == KF_NO_DEVICE || verify_fail(run, "a device beyond the last gave %s", kf_status_string(status));
}

// The same call on every device, run about: what a device gives doesn't depend on which was used before, nor on the current one.
static bool check_every_device(verify_run *run, const void *row) {
    attention a;
    const int devices = kft_cuda_device_count(), own = run->number;
    kf_context *const context = run->context[0];
    if (devices < 2) return verify_skip(run, "there is one device");
    if (!make_attention(run, *(const int64_t *)row, &a) || !verify_execute_once(run, context, &a.args.head))
        return false;
    verify_pool_keep_first(&run->pool);
    for (int n = 0; n < 2 * devices; n++) {
        kf_context *other = NULL;
        if (!verify_status(run, open_on(run, n % devices, NULL, &other), "a context on another device")) return false;
        verify_pool_free_mirrors(&run->pool);
        run->number = n % devices, run->context[0] = other;
        verify_pool_restore(&run->pool);
        const bool good = verify_status(run, verify_call(run, other, &a.args.head), "a call on another device");
        verify_pool_free_mirrors(&run->pool);
        run->number = own, run->context[0] = context, run->pool.device = context;
        kf_context_destroy(other);
        if (!good) return false;
        const verify_buffer *differs = verify_pool_differs(&run->pool);
        if (differs) return verify_fail(run, "%s has other bits on device %d", differs->name, n % devices);
    }
    return true;
}

void verify_device(verify_run *run) {
    if (!run->device) return;
    verify_case(run, check_memory_in_capture, NULL, "device/memory-in-a-capture");
    const int64_t rows[] = {1, 5, 100};
    for (int r = 0; r < 3; r++) {
        verify_case(run, check_lengths_of_a_graph, &rows[r], "device/lengths-of-a-graph/%lld", (long long)rows[r]);
        verify_case(run, check_lengths_out_of_range, &rows[r], "device/lengths-out-of-range/%lld", (long long)rows[r]);
        verify_case(run, check_every_device, &rows[r], "device/every-device/%lld", (long long)rows[r]);
    }
    verify_case(run, check_tensors_elsewhere, NULL, "device/tensors-elsewhere");
    verify_case(run, check_stream_elsewhere, NULL, "device/stream-elsewhere");
    verify_case(run, check_device_beyond, NULL, "device/beyond-the-last");
}
