// SPDX-License-Identifier: Apache-2.0
//
// Prefill, head dimensions up to 256: 16 rows a warp; 97 KB of shared memory.
#include "cuda/prefill.cuh"

extern "C" const kf_cuda_attention_kernel kf_cuda_prefill_256[] = {KF_PREFILL_ROWS(256, 256, 64, 32, 4, 2), {}};
