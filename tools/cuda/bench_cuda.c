// SPDX-License-Identifier: Apache-2.0
//
// How a case is timed on a CUDA device. Its tensors exist in `sets`, copies of one another at other addresses and together larger than the L2
// cache; runs take them in turn. One round is
//
//     compute ceiling, copy or read ceiling for the case's bytes, then: a read that fills the L2 cache, event, runs, event
//
// A flush by writing would put its write-back into what is timed, so it reads. Where a run takes under 30 us, the runs over all sets are one
// graph: in a plain call the launch would be timed instead. Ceilings are timed in the same way.
#include "bench.h"
#include "cuda_ceilings.h"
#include "runtime.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SETS = 512, COLD_L2S = 4, MOST_RUNS = 2048 };
static const double MOST_BYTES = 24e9;       // of all sets
static const double REPLAY_SECONDS = 200e-6; // of a graph, at least

typedef struct timing {
    const bench_case *c;
    bench_work work;
    kf_context *context;
    kf_context_info info;
    kft_cuda_ceilings *ceilings;
    kf_op *op;
    bench_set set; // laid out on the host
    char *host, *device;
    void *stream, *workspace, *graph;
    size_t workspace_bytes;
    int sets, runs; // runs: of the graph
    int next;       // the set of the next run
    kf_status status;
} timing;

static kf_status make_context(timing *t) {
    kf_context_options options;
    kf_context_options_init(&options);
    options.device = (kf_device){KF_DEVICE_CUDA, 0};
    options.isa = t->c->isa;
    // Whether there is a device at all is the context's to say.
    kf_status status = kf_context_create(&options, &t->context);
    kf_context_destroy(t->context);
    t->context = NULL;
    if (status != KF_OK) return status;
    options.stream = t->stream = kft_cuda_stream();
    if (!t->stream) return KF_OUT_OF_MEMORY;
    status = kf_context_create(&options, &t->context);
    t->info.size = sizeof t->info;
    if (status == KF_OK) status = kf_context_get_info(t->context, &t->info);
    if (status == KF_OK && !(t->ceilings = kft_cuda_ceilings_open(t->stream))) status = KF_OUT_OF_MEMORY;
    return status;
}

// One set made on the host, `sets` of it on the device.
static kf_status make_sets(timing *t) {
    bench_set count = {.memory = NULL};
    kf_status status = t->c->op->make(t->c, t->context, &count);
    if (status != KF_OK) return status;
    const size_t bytes = (count.used + 255) / 256 * 256;
    const double cold = COLD_L2S * (double)kft_cuda_l2_bytes(t->ceilings), wanted = ceil(cold / (double)(bytes + 1));
    t->sets = wanted < 2 ? 2 : wanted > MOST_SETS ? MOST_SETS : (int)wanted;
    if ((double)bytes * t->sets > MOST_BYTES) t->sets = 1;
    t->host = kft_buffer_alloc(bytes);
    if (!t->host) return KF_OUT_OF_MEMORY;
    t->set = (bench_set){.memory = t->host, .random = 1};
    status = t->c->op->make(t->c, t->context, &t->set);
    void *device = NULL;
    if (status == KF_OK) status = kf_memory_allocate(t->context, bytes * (size_t)t->sets, &device);
    t->device = device;
    for (int i = 0; i < t->sets && status == KF_OK; i++) {
        const void *from = i ? t->device : t->host;
        status = kf_memory_copy(t->context, t->device + (size_t)i * bytes, from, bytes);
    }
    t->set.used = bytes;
    return status;
}

// A host address of the set, in set i on the device.
static void *moved(const timing *t, const void *host, const char *from, int i) {
    return t->device + (size_t)i * t->set.used + ((const char *)host - from);
}

// Lets the set's tensors point to set i; they point to `from` now.
static void point_at(timing *t, const char *from, int i) {
    for (int n = 0; n < BENCH_TENSORS; n++) {
        if (!t->set.tensor[n].data) continue;
        t->set.tensor[n].data = moved(t, t->set.tensor[n].data, from, i);
        t->set.tensor[n].device = (kf_device){KF_DEVICE_CUDA, 0};
    }
    if (!t->set.weight.data) return;
    t->set.weight.data = moved(t, t->set.weight.data, from, i);
    t->set.weight.device = (kf_device){KF_DEVICE_CUDA, 0};
}

static kf_status make_op(timing *t) {
    point_at(t, t->host, 0);
    kf_status status = kf_op_create(t->context, &t->set.args.head, &t->op);
    if (status == KF_OK) status = kf_op_workspace_size(t->op, &t->workspace_bytes);
    return status == KF_OK ? kf_memory_allocate(t->context, t->workspace_bytes, &t->workspace) : status;
}

// Enqueues a run on the next set.
static kf_status run_next(timing *t) {
    const int last = t->next, i = (t->next + 1) % t->sets;
    point_at(t, t->device + (size_t)last * t->set.used, i);
    t->next = i;
    const kf_status status = kf_op_bind(t->op, &t->set.args.head);
    return status == KF_OK ? kf_op_run(t->op, t->workspace, t->workspace_bytes) : status;
}

static kf_status run_all(void *argument) {
    timing *t = argument;
    kf_status status = KF_OK;
    for (int n = 0; n < t->runs && status == KF_OK; n++) status = run_next(t);
    return status;
}

static bool enqueue(void *argument) {
    timing *t = argument;
    t->status = t->graph ? kft_cuda_graph_launch(t->graph, t->stream) : run_all(t);
    return t->status == KF_OK;
}

static bool run_once(void *argument, int i, double *seconds) {
    timing *t = argument;
    (void)i;
    *seconds = kft_cuda_seconds(t->ceilings, enqueue, t) / t->runs;
    if (*seconds <= 0 && t->status == KF_OK) t->status = KF_DEVICE_ERROR;
    return *seconds > 0;
}

static double sample(void *argument, kft_ceiling ceiling) {
    const timing *t = argument;
    return kft_cuda_ceiling_sample(t->ceilings, ceiling);
}

// Short runs become a graph over all sets, or over more than all.
static kf_status make_graph(timing *t) {
    double seconds = 0, least = INFINITY;
    t->runs = 1;
    for (int n = 0; n < 5; n++) { // the first ones load kernels
        if (!run_once(t, n, &seconds)) return t->status;
        least = fmin(least, seconds);
    }
    if (least >= KFT_CUDA_REPLAY_SECONDS) return KF_OK;
    const double runs = ceil(REPLAY_SECONDS / least / t->sets) * t->sets;
    t->runs = runs > MOST_RUNS ? MOST_RUNS / t->sets * t->sets : (int)runs;
    return kft_cuda_capture(t->stream, run_all, t, &t->graph);
}

// bf16 and fp16 products have the tensor cores' rate.
static void choose_ceilings(timing *t) {
    bench_work *work = &t->work;
    if (work->compute != KFT_CEILING_COUNT && strcmp(t->c->dtype, "fp32") != 0) work->compute = KFT_CEILING_BF16_DOT;
    if (work->compute != KFT_CEILING_COUNT && !kft_cuda_ceiling_exists(t->ceilings, work->compute))
        work->compute = KFT_CEILING_COUNT;
}

static kf_status time_case(timing *t, double seconds, bench_row *row) {
    static char isa[16];
    kf_status status = make_graph(t);
    if (status != KF_OK) return status;
    choose_ceilings(t);
    if (!kft_cuda_ceiling_prepare(t->ceilings, t->work.memory, t->work.bytes, t->work.reads, t->graph != NULL))
        return KF_DEVICE_ERROR;
    bench_name_row(t->c, &t->info, row);
    snprintf(isa, sizeof isa, "sm%d", t->info.isa);
    row->backend = "cuda", row->isa = isa, row->replay = t->graph != NULL, row->sets = t->sets;
    row->warm = t->sets > 1 && (double)t->set.used * t->sets < (double)kft_cuda_l2_bytes(t->ceilings);
    bench_subject subject = {.work = t->work, .run = run_once, .argument = t, .sample = sample};
    if (!bench_rounds(&subject, seconds, row)) return t->status;
    if (strcmp(row->ceiling_name, kft_ceiling_name(KFT_CEILING_BF16_DOT)) == 0) row->ceiling_name = "product";
    // The best sample, not the median: then more than 100 % of it says that one of the two was measured wrongly.
    row->share *= row->ceiling / row->ceiling_high;
    row->ceiling = row->ceiling_high;
    return KF_OK;
}

static kf_status open_timing(timing *t, const bench_case *c) {
    t->c = c;
    kf_status status = make_context(t);
    if (status == KF_OK) t->work = c->op->work(c, t->info.isa);
    if (status == KF_OK) status = make_sets(t);
    return status == KF_OK ? make_op(t) : status;
}

static void close_timing(timing *t) {
    if (t->context) (void)kf_context_synchronize(t->context);
    kft_cuda_graph_destroy(t->graph);
    kf_op_destroy(t->op);
    if (t->context) {
        kf_memory_free(t->context, t->workspace);
        kf_memory_free(t->context, t->device);
    }
    kft_cuda_ceilings_close(t->ceilings);
    kf_context_destroy(t->context);
    kft_cuda_stream_destroy(t->stream);
    kft_buffer_free(t->host);
    free(t);
}

kf_status bench_time_cuda(const bench_case *c, double seconds, bench_row *row) {
    timing *t = calloc(1, sizeof *t);
    if (!t) return KF_OUT_OF_MEMORY;
    kf_status status = open_timing(t, c);
    if (status == KF_OK) status = time_case(t, seconds, row);
    close_timing(t);
    return status;
}

kf_status bench_profile_cuda(const bench_case *c) {
    enum { WARM_UP = 3 };
    timing *t = calloc(1, sizeof *t);
    if (!t) return KF_OUT_OF_MEMORY;
    kf_status status = open_timing(t, c);
    for (int n = 0; n < WARM_UP && status == KF_OK; n++) status = run_next(t);
    if (status == KF_OK) {
        kft_cuda_flush(t->ceilings);
        status = kf_context_synchronize(t->context);
    }
    if (status == KF_OK) {
        kft_cuda_profiler(true);
        status = run_next(t);
        if (status == KF_OK) status = kf_context_synchronize(t->context);
        kft_cuda_profiler(false);
    }
    close_timing(t);
    return status;
}
