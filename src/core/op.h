// SPDX-License-Identifier: Apache-2.0
//
// Between op.c, run.c and sequence.c.
#ifndef KF_CORE_OP_H
#define KF_CORE_OP_H

#include "core/internal.h"

#include <stdatomic.h>

// Checks and plans into memory of the caller's.
kf_status kf_op_init(kf_op *op, const kf_context *context, const kf_args *args);

// Every tensor that a run touches has data.
kf_status kf_op_check_bound(const kf_op *op);

// How often any op was bound anew so far: a sequence that has seen this number knows at once that nothing of it changed.
uint64_t kf_bindings(void);

// Work that one team goes through: ops in order, phases in order, items in any order. next: one counter per op and
// phase.
typedef _Atomic int64_t kf_counter;
typedef struct kf_run {
    kf_op *const *ops;
    int64_t count;
    kf_counter *next; // count * KF_MAX_PHASES
    const kf_context *context;
    size_t shared_bytes, scratch_bytes; // the largest of the ops'
    char *workspace;                    // aligned
} kf_run;

// Workspace for these sizes and the context's threads, alignment included; KF_INVALID_ARGUMENT past 2^63.
kf_status kf_run_workspace_size(const kf_context *context, size_t shared_bytes, size_t scratch_bytes, size_t *bytes);

// Checks the workspace and sets run->workspace.
kf_status kf_run_place(const char *what, kf_run *run, void *workspace, size_t bytes);

// The same, and checks and prepares every op.
kf_status kf_run_prepare(const char *what, kf_run *run, void *workspace, size_t bytes);

// On the team, or enqueued on the device's stream.
kf_status kf_run_execute(kf_run *run);

#endif
