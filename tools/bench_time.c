// SPDX-License-Identifier: Apache-2.0
//
// How a case is timed. One round is
//
//   compute ceiling, copy ceiling where it counts, read ceiling, then the kernel once on the next of the sets
//
// so that kernel and ceilings meet the same machine, minute by minute, and the read, which walks memory far larger than
// the last cache, leaves that cache cold for the kernel. The row has the medians and the range; its share is
//
//   max(bytes / memory rate, flops / compute rate) / time
#include <stdlib.h>
#include <string.h>

#include "bench.h"

// A row has at least MIN_RUNS runs, or FEW_RUNS where MIN_RUNS would take several times the budget.
enum { FEW_RUNS = 3, MIN_RUNS = 9, PATIENCE = 5, MAX_RUNS = 201, MAX_SETS = 3, WARM_UP = 2 };
// The sets together stay below this; a case whose set is larger than half of it has one.
static const double SETS_BYTES = 3e9;

// ---- rounds ----

typedef struct samples {
    double value[MAX_RUNS];
    int count;
} samples;

static void push(samples *s, double value) { s->value[s->count++] = value; }

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Sorts; the range is then value[0] and value[count - 1].
static double median(samples *s) {
    if (s->count == 0) return 0;
    qsort(s->value, (size_t)s->count, sizeof s->value[0], ascending);
    return (s->value[(s->count - 1) / 2] + s->value[s->count / 2]) / 2;
}

static void fill_row(const bench_subject *subject, samples *time, samples rate[KFT_CEILING_COUNT], bench_row *row) {
    const bench_work *work = &subject->work;
    double seconds = median(time);
    row->runs = time->count;
    row->time_us = seconds * 1e6;
    row->time_us_min = time->value[0] * 1e6;
    row->time_us_max = time->value[time->count - 1] * 1e6;
    row->gflops = work->flops / seconds * 1e-9;
    row->gbps = work->bytes / seconds * 1e-9;
    // The ceiling that bounds this work is the one that asks for more time.
    kft_ceiling bound = work->memory;
    double memory_time = work->bytes / median(&rate[work->memory]);
    if (work->compute != KFT_CEILING_COUNT && work->flops / median(&rate[work->compute]) > memory_time)
        bound = work->compute;
    samples *rates = &rate[bound];
    row->ceiling_name = kft_ceiling_name(bound);
    row->ceiling = median(rates) * 1e-9;
    row->ceiling_low = rates->value[0] * 1e-9;
    row->ceiling_high = rates->value[rates->count - 1] * 1e-9;
    row->share = (bound == work->memory ? row->gbps : row->gflops) / row->ceiling;
}

static double sample_of(const bench_subject *subject, kft_ceiling ceiling) {
    return subject->sample ? subject->sample(subject->argument, ceiling)
                           : kft_ceiling_sample(subject->ceilings, ceiling);
}

bool bench_rounds(const bench_subject *subject, double budget, bench_row *row) {
    const bench_work *work = &subject->work;
    samples time = {.count = 0}, rate[KFT_CEILING_COUNT] = {{.count = 0}};
    kft_ceiling order[] = {work->compute, work->memory == KFT_CEILING_COPY ? KFT_CEILING_COPY : KFT_CEILING_COUNT,
                           KFT_CEILING_READ};
    double seconds = 0;
    for (int i = 0; i < WARM_UP; i++) {
        if (!subject->run(subject->argument, i, &seconds)) return false;
    }
    double begin = kft_seconds(), spent = 0;
    for (int i = 0; i < MAX_RUNS; i++) {
        if (spent > budget * (i < MIN_RUNS ? PATIENCE : 1) && i >= FEW_RUNS) break;
        for (int j = 0; j < 3; j++) {
            if (order[j] != KFT_CEILING_COUNT) push(&rate[order[j]], sample_of(subject, order[j]));
        }
        if (!subject->run(subject->argument, i, &seconds)) return false;
        push(&time, seconds);
        spent = kft_seconds() - begin;
        kft_progress("%s %s: run %d, %.0f us", row->op, row->dtype, i + 1, seconds * 1e6);
    }
    kft_progress(NULL);
    fill_row(subject, &time, rate, row);
    return true;
}

// ---- cases ----

// Everything that lives while a case is timed.
typedef struct timing {
    const bench_case *c;
    kf_context *context;
    kft_ceilings *ceilings;
    kf_op *op;
    bench_set sets[MAX_SETS];
    int set_count;
    char *memory, *workspace;
    size_t workspace_bytes;
    kf_status status; // of the last run
} timing;

static kf_status make_context(timing *t) {
    kf_context_options options;
    kf_context_options_init(&options);
    options.threads = t->c->threads;
    options.isa = t->c->isa;
    kf_status status = kf_context_create(&options, &t->context);
    if (status != KF_OK) return status;
    t->ceilings = kft_ceilings_open(t->context);
    return t->ceilings ? KF_OK : KF_OUT_OF_MEMORY;
}

static kf_status make_sets(timing *t) {
    bench_set count = {.memory = NULL};
    kf_status status = t->c->op->make(t->c, t->context, &count);
    if (status != KF_OK) return status;
    double wanted = SETS_BYTES / ((double)count.used + 1);
    t->set_count = wanted >= MAX_SETS ? MAX_SETS : wanted >= 2 ? 2 : 1;
    t->memory = kft_buffer_alloc(count.used * (size_t)t->set_count);
    if (!t->memory) return KF_OUT_OF_MEMORY;
    for (int i = 0; i < t->set_count && status == KF_OK; i++) {
        kft_progress("%s %s: set %d of %d", t->c->op->name, t->c->dtype, i + 1, t->set_count);
        t->sets[i] = (bench_set){.memory = t->memory + (size_t)i * count.used, .random = (uint64_t)i + 1};
        status = t->c->op->make(t->c, t->context, &t->sets[i]);
    }
    return status;
}

static kf_status make_op(timing *t) {
    kf_status status = kf_op_create(t->context, &t->sets[0].args.head, &t->op);
    if (status == KF_OK) status = kf_op_workspace_size(t->op, &t->workspace_bytes);
    if (status != KF_OK) return status;
    t->workspace = kft_buffer_alloc(t->workspace_bytes);
    return t->workspace ? KF_OK : KF_OUT_OF_MEMORY;
}

// One run on set i, in seconds.
static bool run_once(void *argument, int i, double *seconds) {
    timing *t = argument;
    t->status = kf_op_bind(t->op, &t->sets[i % t->set_count].args.head);
    if (t->status != KF_OK) return false;
    double begin = kft_seconds();
    t->status = kf_op_run(t->op, t->workspace, t->workspace_bytes);
    *seconds = kft_seconds() - begin;
    return t->status == KF_OK;
}

static const char *variant(const bench_case *c) {
    if (strcmp(c->op->name, "rmsnorm") == 0) return c->plain ? "" : "residual";
    if (strcmp(c->op->name, "attention") == 0) return c->rope ? "rope" : "";
    if (strcmp(c->op->name, "linear") != 0) return "";
    return c->int8 ? (c->plain ? "int8, unpacked" : "int8") : (c->plain ? "unpacked" : "");
}

void bench_name_row(const bench_case *c, const kf_context_info *info, bench_row *row) {
    *row = (bench_row){.op = c->op->name, .backend = "cpu", .isa = kf_isa_string(info->isa), .dtype = c->dtype};
    row->variant = variant(c);
    memcpy(row->dims, c->op->dims, sizeof row->dims);
    memcpy(row->shape, c->shape, sizeof row->shape);
    row->causal = c->causal;
    row->threads = info->threads;
    row->asked = c->asked;
}

static kf_status time_case(timing *t, double seconds, bench_row *row) {
    kf_context_info info = {.size = sizeof info};
    kf_status status = kf_context_get_info(t->context, &info);
    if (status != KF_OK) return status;
    bench_name_row(t->c, &info, row);
    bench_subject subject = {
        .work = t->c->op->work(t->c, info.isa), .run = run_once, .argument = t, .ceilings = t->ceilings};
    return bench_rounds(&subject, seconds, row) ? KF_OK : t->status;
}

kf_status bench_time(const bench_case *c, double seconds, bench_row *row) {
    timing *t = calloc(1, sizeof *t);
    if (!t) return KF_OUT_OF_MEMORY;
    t->c = c;
    kf_status status = make_context(t);
    if (status == KF_OK) status = make_sets(t);
    if (status == KF_OK) status = make_op(t);
    if (status == KF_OK) status = time_case(t, seconds, row);
    kf_op_destroy(t->op);
    kft_ceilings_close(t->ceilings);
    kf_context_destroy(t->context);
    kft_buffer_free(t->memory);
    kft_buffer_free(t->workspace);
    free(t);
    return status;
}
