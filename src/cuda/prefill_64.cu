// SPDX-License-Identifier: Apache-2.0
//
// Prefill, head dimensions up to 64: 32 rows a warp; 81 KB of shared memory, two blocks a multiprocessor on Hopper. Tiles of
// 128 keys were 1.15 times as fast as tiles of 64 with three blocks. Small tiles are for few queries.
#include "cuda/prefill.cuh"

extern "C" const kf_cuda_attention_kernel kf_cuda_prefill_64[] = {
    KF_PREFILL_ROWS(64, 64, 128, 128, 4, 2),
    KF_PREFILL_ROWS(64, 64, 64, 64, 4, 3),
    {},
};
