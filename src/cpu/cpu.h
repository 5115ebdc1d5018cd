// SPDX-License-Identifier: Apache-2.0
//
// The CPU backend's table: for each ISA the kernels of every operation. A context picks one row when it is created; a
// kernel that an ISA has no version of is taken from the ISA below, so a new ISA (AMX, NEON, SVE) is one file per
// operation and one row in table.c.
#ifndef KF_CPU_CPU_H
#define KF_CPU_CPU_H

#include "core/internal.h"

struct kf_attention_kernels; // src/cpu/attention.h
struct kf_row_kernels;       // src/cpu/rows.h: softmax, merge, rmsnorm, swiglu, rope, conversions
struct kf_linear_kernels;    // src/cpu/linear.h

typedef struct kf_cpu_table {
    kf_isa isa;
    const char *name; // "avx512bf16"
    const struct kf_attention_kernels *attention;
    const struct kf_row_kernels *rows;
    const struct kf_linear_kernels *linear;
    // A thread's set-up before it runs items and after (AMX tiles, say); NULL: none.
    void (*thread_begin)(void);
    void (*thread_end)(void);
} kf_cpu_table;

// The table of `isa` (SCALAR .. the highest in the build); NULL where the build has none.
const kf_cpu_table *kf_cpu_table_get(kf_isa isa);

// What CPUID and the operating system allow.
kf_isa kf_cpu_detect(void);

// The operations of the backend, each in its own file.
extern const kf_backend_op kf_cpu_softmax, kf_cpu_attention, kf_cpu_merge_states, kf_cpu_rmsnorm, kf_cpu_swiglu,
    kf_cpu_rope, kf_cpu_kv_append, kf_cpu_embedding, kf_cpu_linear;

#endif
