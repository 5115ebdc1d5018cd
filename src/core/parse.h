// SPDX-License-Identifier: Apache-2.0
//
// What the args_*.c files share: each holds the checks, the class, the init function and the plain call of some
// operations.
#ifndef KF_CORE_PARSE_H
#define KF_CORE_PARSE_H

#include "core/internal.h"

#include <string.h>

#define KF_ARGS_INIT(args, kind_)                                                                                      \
    do {                                                                                                               \
        if (!(args)) return;                                                                                           \
        memset((args), 0, sizeof *(args));                                                                             \
        (args)->head.size = (uint32_t)sizeof *(args);                                                                  \
        (args)->head.kind = (kind_);                                                                                   \
    } while (0)

extern const kf_op_class kf_softmax_class, kf_attention_class, kf_merge_states_class, kf_rmsnorm_class, kf_swiglu_class,
    kf_rope_class, kf_kv_append_class, kf_embedding_class, kf_linear_class;

// The plain call: plan, take a workspace, run, give it back.
kf_status kf_run_once(const kf_context *context, const kf_args *args, kf_op_kind kind);

#endif
