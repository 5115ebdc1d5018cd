// SPDX-License-Identifier: Apache-2.0
//
// Prefill, head dimensions up to 96: 32 rows a warp; 73 KB of shared memory.
#include "cuda/prefill.cuh"

extern "C" const kf_cuda_attention_kernel kf_cuda_prefill_96[] = {KF_PREFILL_ROWS(96, 96, 128, 64, 4, 2), {}};
