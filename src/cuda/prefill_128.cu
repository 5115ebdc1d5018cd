// SPDX-License-Identifier: Apache-2.0
//
// Prefill, head dimensions up to 128: 32 rows a warp; 97 KB of shared memory, two blocks a multiprocessor on Hopper.
#include "cuda/prefill.cuh"

extern "C" const kf_cuda_attention_kernel kf_cuda_prefill_128[] = {
    KF_PREFILL_ROWS(128, 128, 128, 64, 4, 2),
    KF_PREFILL_ROWS(128, 128, 64, 64, 4, 2),
    {},
};
