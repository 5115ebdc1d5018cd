// SPDX-License-Identifier: Apache-2.0
//
// Ceilings of a CUDA device, for bench and info; on the CPU tools/ceilings.h has them. What a read or a copy can reach depends on how
// many bytes it moves, so a memory ceiling is for an amount: that of the work it stands beside.
#ifndef KF_TOOLS_CUDA_CEILINGS_H
#define KF_TOOLS_CUDA_CEILINGS_H

#include "ceilings.h"

#ifdef __cplusplus
extern "C" {
#endif

// Work shorter than this is timed by graph replay: the launches of a plain call would be a part of the time.
#define KFT_CUDA_REPLAY_SECONDS 30e-6

typedef struct kft_cuda_ceilings kft_cuda_ceilings;

// On the current device; everything is enqueued on `stream`. NULL where memory is short.
kft_cuda_ceilings *kft_cuda_ceilings_open(void *stream);
void kft_cuda_ceilings_close(kft_cuda_ceilings *c);

size_t kft_cuda_l2_bytes(const kft_cuda_ceilings *c);

// Copy, read and fma exist everywhere, the bf16 product where cuBLASLt is found when it's first asked for.
bool kft_cuda_ceiling_exists(kft_cuda_ceilings *c, kft_ceiling ceiling);

// Chooses the fastest of several kernels for a read or copy of `bytes` (those read and those written together), to be sampled from now
// on: by graph replay, or one launch at a time. A copy with reads == 2 reads two streams for the one it writes, which memory does faster
// than one for one.
bool kft_cuda_ceiling_prepare(kft_cuda_ceilings *c, kft_ceiling ceiling, double bytes, int reads, bool replay);

// One sample: bytes or operations a second; 0 where it isn't prepared (memory) or doesn't exist.
double kft_cuda_ceiling_sample(kft_cuda_ceilings *c, kft_ceiling ceiling);

// Enqueues a read of memory larger than the L2 cache, so that it holds nothing of what is timed next, and nothing to be written back.
void kft_cuda_flush(kft_cuda_ceilings *c);

// Seconds that `enqueue` takes on the stream, from event to event, after a flush; negative where the device reported an error.
double kft_cuda_seconds(kft_cuda_ceilings *c, bool (*enqueue)(void *argument), void *argument);

// (product.c) A product of bf16 matrices through cuBLASLt, loaded at run time. NULL where it isn't there.
typedef struct kft_cuda_product kft_cuda_product;
kft_cuda_product *kft_cuda_product_open(void *stream, const void *random, size_t bytes);
void kft_cuda_product_close(kft_cuda_product *product);
double kft_cuda_product_operations(void);
bool kft_cuda_product_enqueue(void *product);

#ifdef __cplusplus
}
#endif

#endif
