// SPDX-License-Identifier: Apache-2.0
//
// The machine's ceilings, measured by the context's own threads, so that a bench can take them turn by turn with a
// kernel:
//
//   share of the roofline = max(bytes / memory rate, operations / compute rate) / time
//
// A sample takes about ten milliseconds. Memory is measured over buffers much larger than the last cache.
#ifndef KF_TOOLS_CEILINGS_H
#define KF_TOOLS_CEILINGS_H

#include "keyfold.h"

typedef enum kft_ceiling {
    KFT_CEILING_COPY = 0, // bytes read + bytes written, with the faster kind of store
    KFT_CEILING_READ,
    KFT_CEILING_FMA, // fp32
    KFT_CEILING_BF16_DOT,
    KFT_CEILING_INT8_DOT,
    KFT_CEILING_COUNT
} kft_ceiling;

typedef struct kft_ceilings kft_ceilings;

// "copy", "read", "fma", "bf16 dot", "int8 dot".
const char *kft_ceiling_name(kft_ceiling ceiling);

// For the threads and the ISA of the context, which must outlive it. NULL where memory is short. Chooses the faster
// kinds of read and of store by trying them.
kft_ceilings *kft_ceilings_open(const kf_context *context);
void kft_ceilings_close(kft_ceilings *ceilings);

bool kft_ceiling_exists(const kft_ceilings *ceilings, kft_ceiling ceiling);

// One sample: bytes or operations a second; 0 where the ISA has no such ceiling.
double kft_ceiling_sample(kft_ceilings *ceilings, kft_ceiling ceiling);

// Bytes of the last level of cache (a guess of 32 MiB where the system does not say).
size_t kft_cache_bytes(void);

// Memory for measurements: 2 MiB aligned, in large pages where the system gives them, every page touched. NULL where
// there is none.
void *kft_buffer_alloc(size_t bytes);
void kft_buffer_free(void *buffer);

#endif
