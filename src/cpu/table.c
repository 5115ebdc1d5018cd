// SPDX-License-Identifier: Apache-2.0
//
// The kernels of each ISA, row by row. An ISA that has no version of its own of some kernels names the table of the ISA
// below.
#include "cpu/attention.h"
#include "cpu/cpu.h"
#include "cpu/linear.h"
#include "cpu/rows.h"

static const kf_cpu_table tables[] = {
    {
        .isa = KF_ISA_SCALAR,
        .name = "scalar",
        .attention = &kf_attention_scalar,
        .rows = &kf_rows_scalar,
        .linear = &kf_linear_scalar,
    },
#if defined(__x86_64__)
    {
        .isa = KF_ISA_AVX2,
        .name = "avx2",
        .attention = &kf_attention_avx2,
        .rows = &kf_rows_avx2,
        .linear = &kf_linear_avx2,
    },
    {
        .isa = KF_ISA_AVX512,
        .name = "avx512",
        .attention = &kf_attention_avx512,
        .rows = &kf_rows_avx512,
        .linear = &kf_linear_avx512,
    },
    {
        .isa = KF_ISA_AVX512BF16,
        .name = "avx512bf16",
        .attention = &kf_attention_avx512bf16,
        .rows = &kf_rows_avx512bf16,
        .linear = &kf_linear_avx512bf16,
    },
#endif
};

const kf_cpu_table *kf_cpu_table_get(kf_isa isa) {
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (tables[i].isa == isa) return &tables[i];
    return NULL;
}
