// SPDX-License-Identifier: Apache-2.0
//
// Running ops: the members of a team take work items from one counter per phase and meet at a barrier between phases.
// Which member runs which item changes from run to run; what an item computes does not, hence the same bits at any
// number of threads.
//
//   workspace   [ shared | scratch of worker 0 | scratch of worker 1 | ... ]     each part a multiple of 64 bytes
#include "core/op.h"
#include "core/parse.h"
#include "cpu/cpu.h"

enum { ALIGNMENT = 64 };

// Beyond, chunks (at most 64 a member) and their takers would not fit the 16 bits of a range's counter.
enum { KF_STREAM_MEMBERS = 512 };

static size_t round_up(size_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

kf_status kf_run_workspace_size(const kf_context *context, size_t shared, size_t scratch, size_t *bytes) {
    size_t workers = (size_t)context->info.threads, limit = SIZE_MAX / 4;
    if (shared > limit || scratch > limit / workers)
        return kf_fail(KF_INVALID_ARGUMENT,
                       "the workspace would pass 2^62 bytes (%zu shared, %zu for each of %zu workers)", shared, scratch,
                       workers);
    size_t total = round_up(shared) + workers * round_up(scratch);
    *bytes = total ? total + ALIGNMENT - 1 : 0;
    return KF_OK;
}

kf_status kf_run_place(const char *what, kf_run *run, void *workspace, size_t bytes) {
    size_t needed = 0;
    KF_TRY(kf_run_workspace_size(run->context, run->shared_bytes, run->scratch_bytes, &needed));
    if (needed && !workspace)
        return kf_fail(KF_INVALID_ARGUMENT, "%s: workspace is NULL; %zu bytes are needed", what, needed);
    if (bytes < needed)
        return kf_fail(KF_INVALID_ARGUMENT, "%s: workspace has %zu bytes; %zu are needed", what, bytes, needed);
    run->workspace = (char *)(((uintptr_t)workspace + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    return KF_OK;
}

static kf_worker worker_of(const kf_run *run, int32_t index, int32_t count) {
    char *scratch = run->workspace + round_up(run->shared_bytes) + (size_t)index * round_up(run->scratch_bytes);
    return (kf_worker){.shared = run->workspace, .scratch = scratch, .index = index, .count = count, .first = true};
}

kf_status kf_run_prepare(const char *what, kf_run *run, void *workspace, size_t bytes) {
    KF_TRY(kf_run_place(what, run, workspace, bytes));
    for (int64_t i = 0; i < run->count; i++) {
        KF_TRY(kf_op_check_bound(run->ops[i]));
        if (run->ops[i]->backend->prepare) KF_TRY(run->ops[i]->backend->prepare(run->ops[i]));
    }
    return KF_OK;
}

// Chunk `index` of a phase's items.
static void run_chunk(const kf_op *op, int32_t phase, int64_t chunk, int64_t index, kf_worker *worker) {
    int64_t first = index * chunk, left = op->plan.items[phase] - first;
    op->backend->run_items(op, worker, phase, first, chunk < left ? chunk : left);
    worker->first = false;
}

// Where neighbouring items read neighbouring memory: the chunks lie in up to four ranges. A member begins in a range of
// its own, so that it reads one stream (taking turns on small chunks of one stream costs 40 % of the read rate), and
// goes on to what the others have left. The ranges' counters are the four parts of one word.
static void take_ranges(const kf_op *op, int32_t phase, int64_t chunk, int64_t chunks, kf_counter *next,
                        kf_worker *worker) {
    enum { RANGES = 4, BITS = 16 };
    const int32_t ranges = worker->count < RANGES ? worker->count : RANGES;
    for (int32_t i = 0; i < ranges; i++) {
        const int32_t range = (worker->index + i) % ranges;
        const int64_t begin = chunks * range / ranges, end = chunks * (range + 1) / ranges;
        for (;;) {
            int64_t taken = atomic_fetch_add_explicit(next, INT64_C(1) << range * BITS, memory_order_relaxed);
            taken = taken >> range * BITS & ((1 << BITS) - 1);
            if (begin + taken >= end) break;
            run_chunk(op, phase, chunk, begin + taken, worker);
        }
    }
}

// Items are taken in chunks, so that many small ones cost few atomics and the last ones still spread.
static void take_items(const kf_op *op, int32_t phase, kf_counter *next, kf_worker *worker) {
    enum { CHUNKS_PER_MEMBER = 32 };
    int64_t items = op->plan.items[phase], chunk = items / ((int64_t)worker->count * CHUNKS_PER_MEMBER);
    if (worker->count == 1) chunk = items;
    if (chunk < 1) chunk = 1;
    int64_t chunks = (items + chunk - 1) / chunk, taken;
    worker->first = true;
    if (op->plan.streams && worker->count > 1 && worker->count <= KF_STREAM_MEMBERS) {
        take_ranges(op, phase, chunk, chunks, next, worker);
        return;
    }
    while ((taken = atomic_fetch_add_explicit(next, 1, memory_order_relaxed)) < chunks)
        run_chunk(op, phase, chunk, taken, worker);
}

static void member(void *argument, int32_t index, int32_t count) {
    kf_run *run = argument;
    kf_worker worker = worker_of(run, index, count);
    const kf_cpu_table *cpu = run->context->cpu;
    bool work_before = false;
    if (cpu->thread_begin) cpu->thread_begin();
    for (int64_t i = 0; i < run->count; i++) {
        const kf_op *op = run->ops[i];
        for (int32_t phase = 0; phase < op->plan.phases; phase++) {
            if (op->plan.items[phase] == 0) continue;
            if (work_before) kf_team_barrier(run->context->team, index, count);
            take_items(op, phase, &run->next[i * KF_MAX_PHASES + phase], &worker);
            work_before = true;
        }
    }
    if (cpu->thread_end) cpu->thread_end();
}

kf_status kf_run_execute(kf_run *run) {
    const kf_backend *backend = run->context->backend;
    if (backend->run) return backend->run(run->context, run->ops, run->count, run->workspace);
    int64_t most = 0;
    for (int64_t i = 0; i < run->count; i++)
        for (int32_t phase = 0; phase < KF_MAX_PHASES; phase++) {
            atomic_store_explicit(&run->next[i * KF_MAX_PHASES + phase], 0, memory_order_relaxed);
            if (phase < run->ops[i]->plan.phases && run->ops[i]->plan.items[phase] > most)
                most = run->ops[i]->plan.items[phase];
        }
    if (most <= 1)
        member(run, 0, 1); // nothing to share: the others sleep on
    else
        kf_team_run(run->context->team, member, run);
    return KF_OK;
}

static kf_run run_of(kf_op *const *op, kf_counter *counters) {
    return (kf_run){.ops = op,
                    .count = 1,
                    .next = counters,
                    .context = (*op)->context,
                    .shared_bytes = (*op)->plan.shared_bytes,
                    .scratch_bytes = (*op)->plan.scratch_bytes};
}

kf_status kf_op_workspace_size(const kf_op *op, size_t *bytes) {
    if (!op || !bytes) return kf_fail(KF_INVALID_ARGUMENT, "op_workspace_size: %s is NULL", op ? "bytes" : "op");
    return kf_run_workspace_size(op->context, op->plan.shared_bytes, op->plan.scratch_bytes, bytes);
}

kf_status kf_op_run(kf_op *op, void *workspace, size_t bytes) {
    if (!op) return kf_fail(KF_INVALID_ARGUMENT, "op_run: op is NULL");
    kf_counter counters[KF_MAX_PHASES];
    kf_run run = run_of(&op, counters);
    KF_TRY(kf_run_prepare("op_run", &run, workspace, bytes));
    return kf_run_execute(&run);
}

// Workspace of a plain call: from the heap, or the device's in the order of its stream.
static void *take_workspace(const kf_context *context, size_t bytes) {
    const kf_backend *backend = context->backend;
    return backend->take_workspace ? backend->take_workspace(context, bytes) : kf_alloc(bytes);
}

static void give_workspace(const kf_context *context, void *workspace) {
    const kf_backend *backend = context->backend;
    if (!workspace) return;
    if (backend->give_workspace)
        backend->give_workspace(context, workspace);
    else
        kf_free(workspace);
}

kf_status kf_run_once(const kf_context *context, const kf_args *args, kf_op_kind kind) {
    kf_op op;
    size_t bytes = 0;
    if (!args) return kf_fail(KF_INVALID_ARGUMENT, "%s: args is NULL", kf_op_kind_string((int)kind));
    if (args->kind != (uint32_t)kind)
        return kf_fail(KF_INVALID_ARGUMENT, "%s: the args struct's kind is %u; was kf_%s_args_init called?",
                       kf_op_kind_string((int)kind), args->kind, kf_op_kind_string((int)kind));
    KF_TRY(kf_op_init(&op, context, args));
    KF_TRY(kf_op_workspace_size(&op, &bytes));
    void *workspace = NULL;
    if (bytes && !(workspace = take_workspace(context, bytes)))
        return kf_fail(KF_OUT_OF_MEMORY, "%s: no memory for a workspace of %zu bytes", kf_op_kind_string((int)kind),
                       bytes);
    kf_status status = kf_op_run(&op, workspace, bytes);
    give_workspace(context, workspace);
    return status;
}

// ------------------------------------------------------------------------------------------- for callers with their
// own threads

static kf_status check_has_items(const char *what, const kf_op *op) {
    if (!op->context->backend->run) return KF_OK;
    return kf_fail(KF_UNSUPPORTED, "%s: the %s backend has no work items for threads; use op_run", what,
                   op->context->backend->name);
}

kf_status kf_op_phase_count(const kf_op *op, int32_t *phases) {
    if (!op || !phases) return kf_fail(KF_INVALID_ARGUMENT, "op_phase_count: %s is NULL", op ? "phases" : "op");
    KF_TRY(check_has_items("op_phase_count", op));
    *phases = op->plan.phases;
    return KF_OK;
}

static kf_status check_phase(const char *what, const kf_op *op, int32_t phase) {
    if (!op) return kf_fail(KF_INVALID_ARGUMENT, "%s: op is NULL", what);
    KF_TRY(check_has_items(what, op));
    if (phase >= 0 && phase < op->plan.phases) return KF_OK;
    return kf_fail(KF_INVALID_ARGUMENT, "%s: phase is %d; the op has %d", what, (int)phase, (int)op->plan.phases);
}

kf_status kf_op_item_count(const kf_op *op, int32_t phase, int64_t *items) {
    KF_TRY(check_phase("op_item_count", op, phase));
    if (!items) return kf_fail(KF_INVALID_ARGUMENT, "op_item_count: items is NULL");
    *items = op->plan.items[phase];
    return KF_OK;
}

kf_status kf_op_prepare(kf_op *op, void *workspace, size_t bytes) {
    if (!op) return kf_fail(KF_INVALID_ARGUMENT, "op_prepare: op is NULL");
    KF_TRY(check_has_items("op_prepare", op));
    kf_run run = run_of(&op, NULL);
    return kf_run_prepare("op_prepare", &run, workspace, bytes);
}

kf_status kf_op_run_items(const kf_op *op, void *workspace, size_t bytes, int32_t worker, int32_t phase, int64_t first,
                          int64_t count) {
    KF_TRY(check_phase("op_run_items", op, phase));
    if (worker < 0 || worker >= op->context->info.threads)
        return kf_fail(KF_INVALID_ARGUMENT, "op_run_items: worker is %d; the context has %d threads", (int)worker,
                       (int)op->context->info.threads);
    if (first < 0 || count < 0 || first > op->plan.items[phase] || count > op->plan.items[phase] - first)
        return kf_fail(KF_INVALID_ARGUMENT, "op_run_items: items %lld to %lld + %lld; the phase has %lld",
                       (long long)first, (long long)first, (long long)count, (long long)op->plan.items[phase]);
    kf_op *planned = (kf_op *)(uintptr_t)op; // run_of's ops are not written to
    kf_run run = run_of(&planned, NULL);
    KF_TRY(kf_run_place("op_run_items", &run, workspace, bytes));
    kf_worker self = worker_of(&run, worker, op->context->info.threads);
    const kf_cpu_table *cpu = op->context->cpu;
    if (cpu->thread_begin) cpu->thread_begin();
    if (count) op->backend->run_items(op, &self, phase, first, count);
    if (cpu->thread_end) cpu->thread_end();
    return KF_OK;
}
