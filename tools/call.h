// SPDX-License-Identifier: Apache-2.0
//
// The call of an operation by its arguments, whichever it is.
#ifndef KF_TOOLS_CALL_H
#define KF_TOOLS_CALL_H

#include <keyfold.h>

static inline kf_status call_operation(const kf_context *context, const kf_args *args) {
    switch (args->kind) {
    case KF_OP_SOFTMAX: return kf_softmax(context, (const kf_softmax_args *)args);
    case KF_OP_ATTENTION: return kf_attention(context, (const kf_attention_args *)args);
    case KF_OP_MERGE_STATES: return kf_merge_states(context, (const kf_merge_states_args *)args);
    case KF_OP_RMSNORM: return kf_rmsnorm(context, (const kf_rmsnorm_args *)args);
    case KF_OP_SWIGLU: return kf_swiglu(context, (const kf_swiglu_args *)args);
    case KF_OP_ROPE: return kf_rope(context, (const kf_rope_args *)args);
    case KF_OP_KV_APPEND: return kf_kv_append(context, (const kf_kv_append_args *)args);
    case KF_OP_EMBEDDING: return kf_embedding(context, (const kf_embedding_args *)args);
    case KF_OP_LINEAR: return kf_linear(context, (const kf_linear_args *)args);
    default: return KF_INVALID_ARGUMENT;
    }
}

#endif
