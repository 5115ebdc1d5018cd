// SPDX-License-Identifier: Apache-2.0
//
// The CPU backend: its operations, and its rows of the support table.
#include "cpu/cpu.h"

static bool support(int32_t index, kf_support_row *row) {
    (void)index;
    (void)row;
    return false;
}

const kf_backend kf_backend_cpu = {
    .name = "cpu",
    .ops = {[KF_OP_ATTENTION] = &kf_cpu_attention},
    .support = support,
};
