// SPDX-License-Identifier: Apache-2.0
//
// Prefill, head dimensions up to 256: 16 rows a warp. Tiles of 128 x 64 take 193 KB of shared memory, which Hopper has (1.11 times as fast as
// 64 x 32 there, twice on a multiprocessor); those of 64 x 32 take 97 KB.
#include "cuda/prefill.cuh"

extern "C" const kf_cuda_attention_kernel kf_cuda_prefill_256[] = {
    KF_PREFILL_PLAIN(256, 256, 128, 64, 8, 1),
    KF_PREFILL_ROWS(256, 256, 64, 32, 4, 2),
    KF_PREFILL_GENERAL(256, 256, 128, 32),
    {},
};
