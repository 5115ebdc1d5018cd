// SPDX-License-Identifier: Apache-2.0
//
// Prefill, head dimensions up to 64; tiles: tuned.h.
#include "cuda/prefill.cuh"
#include "cuda/tiles.h"

#define PLAIN(TILE, KEYS, WARPS, BLOCKS) KF_PREFILL_PLAIN(64, 64, TILE, KEYS, WARPS, BLOCKS),

extern "C" const kf_cuda_attention_kernel kf_cuda_prefill_64[] = {
    KF_TILES_64(PLAIN) KF_PREFILL_GENERAL(64, 64, 128, 128),
    KF_PREFILL_GENERAL(64, 64, 64, 64),
    {},
};
