// SPDX-License-Identifier: Apache-2.0
//
// Prefill, head dimensions up to 192, values up to 128 or 192: 16 rows a warp, for o alone takes 6 registers a row and 8
// columns; 73 KB of shared memory.
#include "cuda/prefill.cuh"

extern "C" const kf_cuda_attention_kernel kf_cuda_prefill_192[] = {
    KF_PREFILL_ROWS(192, 128, 64, 32, 4, 2),
    KF_PREFILL_ROWS(192, 192, 64, 32, 4, 2),
    {},
};
