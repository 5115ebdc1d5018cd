// SPDX-License-Identifier: Apache-2.0
//
// The loops behind the ceilings, one table an ISA. A compute loop runs `rounds` rounds of a fixed number of operations
// on registers alone, with enough independent accumulators to hide the latency; it returns a value that depends on all
// of them, so that no compiler may drop the work. Memory loops take multiples of KFT_BLOCK bytes at addresses that are
// multiples of 64.
#ifndef KF_TOOLS_CEILINGS_KERNELS_H
#define KF_TOOLS_CEILINGS_KERNELS_H

#include <stddef.h>
#include <stdint.h>

enum { KFT_BLOCK = 4096 };

typedef struct kft_compute_loop {
    float (*run)(int64_t rounds);
    int64_t ops; // multiplications and additions of one round; 0: the ISA has no such loop
} kft_compute_loop;

typedef struct kft_ceiling_kernels {
    float (*read)(const char *data, size_t bytes);
    float (*read_streams)(const char *data, size_t bytes); // four places at a time
    void (*copy)(char *to, const char *from, size_t bytes);
    void (*copy_stream)(char *to, const char *from, size_t bytes); // with non-temporal stores
    kft_compute_loop fma, bf16_dot, int8_dot;
} kft_ceiling_kernels;

extern const kft_ceiling_kernels kft_ceilings_scalar;
#if defined(__x86_64__)
extern const kft_ceiling_kernels kft_ceilings_avx2, kft_ceilings_avx512, kft_ceilings_avx512bf16;
#endif

#endif
