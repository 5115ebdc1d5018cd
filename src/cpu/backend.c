// SPDX-License-Identifier: Apache-2.0
//
// The CPU backend: its operations, and its rows of the support table.
#include "cpu/attention.h"
#include "cpu/cpu.h"
#include "cpu/linear.h"
#include "cpu/rows.h"

static const char *dtypes_of(int kind) {
    if (kind != KF_OP_LINEAR && kind != KF_OP_EMBEDDING) return "fp32 fp16 bf16";
    return "fp32 fp16 bf16, GGUF's blocks";
}

static const char *notes_of(int kind, const kf_cpu_table *table) {
    if (kind == KF_OP_ATTENTION) return table->attention->notes;
    return kind == KF_OP_LINEAR ? table->linear->notes : table->rows->name;
}

// Operation by operation, ISA by ISA.
static bool support(int32_t index, kf_support_row *row) {
    for (int kind = 0; kind < KF_OP_COUNT; kind++) {
        if (!kf_backend_cpu.ops[kind]) continue;
        for (int isa = KF_ISA_SCALAR; isa <= KF_ISA_AVX512BF16; isa++) {
            const kf_cpu_table *table = kf_cpu_table_get((kf_isa)isa);
            if (!table || index--) continue;
            row->kind = kind;
            row->backend = kf_backend_cpu.name;
            row->isa = isa;
            row->available = isa <= (int)kf_cpu_detect();
            row->dtypes = dtypes_of(kind);
            row->notes = notes_of(kind, table);
            return true;
        }
    }
    return false;
}

const kf_backend kf_backend_cpu = {
    .name = "cpu",
    .ops =
        {
            [KF_OP_SOFTMAX] = &kf_cpu_softmax,
            [KF_OP_ATTENTION] = &kf_cpu_attention,
            [KF_OP_MERGE_STATES] = &kf_cpu_merge_states,
            [KF_OP_RMSNORM] = &kf_cpu_rmsnorm,
            [KF_OP_SWIGLU] = &kf_cpu_swiglu,
            [KF_OP_ROPE] = &kf_cpu_rope,
            [KF_OP_KV_APPEND] = &kf_cpu_kv_append,
            [KF_OP_EMBEDDING] = &kf_cpu_embedding,
            [KF_OP_LINEAR] = &kf_cpu_linear,
        },
    .pack_weight_size = kf_cpu_pack_weight_size,
    .pack_weight = kf_cpu_pack_weight,
    .support = support,
};
