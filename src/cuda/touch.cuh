// SPDX-License-Identifier: Apache-2.0
//
// A launch's arguments before its kernel waits for the one in front. Decode and merge call it.
#ifndef KF_CUDA_TOUCH_CUH
#define KF_CUDA_TOUCH_CUH

#include <stddef.h>

#include "cuda/attention.cuh"

// The arguments of a launch are in no constant cache yet, and a warp waits for each line of them that it comes upon. So all that a kernel needs is
// read once, while the kernel in front still runs: 0.1 to 0.2 us of a decode. `to` is a place in shared memory that is the thread's until the next
// barrier; without the store nothing would be read.
__device__ __forceinline__ void kf_touch_arguments(const kf_cuda_attention &a, int *to) {
    constexpr int LINE = 64, LINES = (offsetof(kf_cuda_attention, rope) + offsetof(kf_cuda_rope, turns)) / LINE + 1;
    const int *const words = reinterpret_cast<const int *>(&a);
    int all = 0;
#pragma unroll
    for (int i = 0; i < LINES; i++) all ^= words[i * (LINE / 4)];
    asm volatile("st.volatile.shared.u32 [%0], %1;" ::"r"(kf_shared(to)), "r"(all) : "memory");
}

#endif
