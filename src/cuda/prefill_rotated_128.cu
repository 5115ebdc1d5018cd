// SPDX-License-Identifier: Apache-2.0
//
// Prefill with keys that were rotated into the workspace (rotate_keys.cu), bf16, head dimensions up to 128.
#include "cuda/prefill.cuh"
#include "cuda/tiles.h"

#define ROTATED(TILE, KEYS, WARPS, BLOCKS) KF_PREFILL_ROTATED(128, TILE, KEYS, WARPS, BLOCKS, false),

extern "C" const kf_cuda_attention_kernel kf_cuda_prefill_rotated_128[] = {
    KF_TILES_128(ROTATED) KF_PREFILL_ROTATED(128, 128, 64, 8, 1, true),
    KF_PREFILL_ROTATED(128, 64, 64, 4, 1, true),
    {},
};
