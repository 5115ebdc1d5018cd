// SPDX-License-Identifier: Apache-2.0
//
// A sequence: ops that one team goes through without a fork and join between them, or on a device one graph. A step of a model
// is one.
#include "core/op.h"

#include <string.h>

struct kf_sequence {
    const kf_context *context;
    kf_op **ops;
    kf_counter *counters;
    int64_t count, capacity;
    size_t shared_bytes, scratch_bytes; // the largest of the ops'
    // Of a device backend that keeps something for a sequence (run_sequence): what it keeps, and what that was made of.
    void *graph;
    bool added;    // an op, since then
    uint64_t seen; // kf_bindings() then
    char *workspace;
};

kf_status kf_sequence_create(const kf_context *context, kf_sequence **sequence) {
    if (!sequence) return kf_fail(KF_INVALID_ARGUMENT, "sequence_create: sequence is NULL");
    *sequence = NULL;
    if (!context) return kf_fail(KF_INVALID_ARGUMENT, "sequence_create: context is NULL");
    kf_sequence *made = kf_alloc(sizeof *made);
    if (!made) return kf_fail(KF_OUT_OF_MEMORY, "sequence_create: no memory for %zu bytes", sizeof *made);
    *made = (kf_sequence){.context = context};
    *sequence = made;
    return KF_OK;
}

void kf_sequence_destroy(kf_sequence *sequence) {
    if (!sequence) return;
    if (sequence->graph) sequence->context->backend->drop_sequence(sequence->context, sequence->graph);
    kf_free(sequence->ops);
    kf_free(sequence->counters);
    kf_free(sequence);
}

static kf_status grow(kf_sequence *s) {
    int64_t capacity = s->capacity ? s->capacity * 2 : 32;
    size_t op_bytes = (size_t)capacity * sizeof *s->ops,
           counter_bytes = (size_t)capacity * KF_MAX_PHASES * sizeof *s->counters;
    kf_op **ops = kf_alloc(op_bytes);
    kf_counter *counters = kf_alloc(counter_bytes);
    if (!ops || !counters) {
        kf_free(ops);
        kf_free(counters);
        return kf_fail(KF_OUT_OF_MEMORY, "sequence_add: no memory for %zu bytes", op_bytes + counter_bytes);
    }
    if (s->count) memcpy(ops, s->ops, (size_t)s->count * sizeof *ops);
    kf_free(s->ops);
    kf_free(s->counters);
    s->ops = ops;
    s->counters = counters;
    s->capacity = capacity;
    return KF_OK;
}

kf_status kf_sequence_add(kf_sequence *sequence, kf_op *op) {
    if (!sequence || !op) return kf_fail(KF_INVALID_ARGUMENT, "sequence_add: %s is NULL", sequence ? "op" : "sequence");
    if (op->context != sequence->context)
        return kf_fail(KF_INVALID_ARGUMENT, "sequence_add: op was planned on another context than the sequence's");
    if (sequence->count == sequence->capacity) KF_TRY(grow(sequence));
    sequence->ops[sequence->count++] = op;
    if (op->plan.shared_bytes > sequence->shared_bytes) sequence->shared_bytes = op->plan.shared_bytes;
    if (op->plan.scratch_bytes > sequence->scratch_bytes) sequence->scratch_bytes = op->plan.scratch_bytes;
    sequence->added = true;
    return KF_OK;
}

kf_status kf_sequence_workspace_size(const kf_sequence *sequence, size_t *bytes) {
    if (!sequence || !bytes)
        return kf_fail(KF_INVALID_ARGUMENT, "sequence_workspace_size: %s is NULL", sequence ? "bytes" : "sequence");
    return kf_run_workspace_size(sequence->context, sequence->shared_bytes, sequence->scratch_bytes, bytes);
}

// Whether an op was bound anew after the binding that `seen` counts. Going over all ops is only worth it where some op of
// the process was.
static bool bound_since(const kf_sequence *s, uint64_t seen) {
    if (kf_bindings() == seen) return false;
    for (int64_t i = 0; i < s->count; i++)
        if (s->ops[i]->bound > seen) return true;
    return false;
}

// Where nothing changed there is nothing to check either: what is read only at the run, the device reads.
static kf_status run_on_device(kf_sequence *s, kf_run *run, void *workspace, size_t bytes) {
    const kf_backend *backend = s->context->backend;
    const uint64_t bindings = kf_bindings();
    KF_TRY(kf_run_place("sequence_run", run, workspace, bytes));
    const bool changed = s->added || run->workspace != s->workspace || bound_since(s, s->seen);
    if (changed) KF_TRY(kf_run_prepare("sequence_run", run, workspace, bytes));
    s->added |= changed; // should this run fail, the next one begins anew
    KF_TRY(backend->run_sequence(s->context, s->ops, s->count, run->workspace, changed, &s->graph));
    s->added = false;
    s->seen = bindings;
    s->workspace = run->workspace;
    return KF_OK;
}

kf_status kf_sequence_run(kf_sequence *sequence, void *workspace, size_t bytes) {
    if (!sequence) return kf_fail(KF_INVALID_ARGUMENT, "sequence_run: sequence is NULL");
    kf_run run = {.ops = sequence->ops,
                  .count = sequence->count,
                  .next = sequence->counters,
                  .context = sequence->context,
                  .shared_bytes = sequence->shared_bytes,
                  .scratch_bytes = sequence->scratch_bytes};
    if (run.count && sequence->context->backend->run_sequence) return run_on_device(sequence, &run, workspace, bytes);
    KF_TRY(kf_run_prepare("sequence_run", &run, workspace, bytes));
    return run.count ? kf_run_execute(&run) : KF_OK;
}
