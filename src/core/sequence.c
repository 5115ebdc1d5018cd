// SPDX-License-Identifier: Apache-2.0
//
// A sequence: ops that one team goes through without a fork and join between them. A step of a model is one.
#include "core/op.h"

#include <string.h>

struct kf_sequence {
    const kf_context *context;
    kf_op **ops;
    kf_counter *counters;
    int64_t count, capacity;
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
    return KF_OK;
}

static kf_run run_of(const kf_sequence *s) {
    kf_run run = {.ops = s->ops, .count = s->count, .next = s->counters, .context = s->context};
    for (int64_t i = 0; i < s->count; i++) {
        const kf_plan *plan = &s->ops[i]->plan;
        if (plan->shared_bytes > run.shared_bytes) run.shared_bytes = plan->shared_bytes;
        if (plan->scratch_bytes > run.scratch_bytes) run.scratch_bytes = plan->scratch_bytes;
    }
    return run;
}

kf_status kf_sequence_workspace_size(const kf_sequence *sequence, size_t *bytes) {
    if (!sequence || !bytes)
        return kf_fail(KF_INVALID_ARGUMENT, "sequence_workspace_size: %s is NULL", sequence ? "bytes" : "sequence");
    kf_run run = run_of(sequence);
    return kf_run_workspace_size(sequence->context, run.shared_bytes, run.scratch_bytes, bytes);
}

kf_status kf_sequence_run(kf_sequence *sequence, void *workspace, size_t bytes) {
    if (!sequence) return kf_fail(KF_INVALID_ARGUMENT, "sequence_run: sequence is NULL");
    kf_run run = run_of(sequence);
    KF_TRY(kf_run_prepare("sequence_run", &run, workspace, bytes));
    return run.count ? kf_run_execute(&run) : KF_OK;
}
