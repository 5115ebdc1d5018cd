// SPDX-License-Identifier: Apache-2.0
//
// The CPU backend: its operations, and its rows of the support table.
#include "cpu/cpu.h"
#include "cpu/linear.h"

static bool support(int32_t index, kf_support_row *row) {
    (void)index;
    (void)row;
    return false;
}

const kf_backend kf_backend_cpu = {
    .name = "cpu",
    .ops =
        {
            [KF_OP_ATTENTION] = &kf_cpu_attention,
            [KF_OP_EMBEDDING] = &kf_cpu_embedding,
            [KF_OP_LINEAR] = &kf_cpu_linear,
        },
    .pack_weight_size = kf_cpu_pack_weight_size,
    .pack_weight = kf_cpu_pack_weight,
    .support = support,
};
