// SPDX-License-Identifier: Apache-2.0
//
// Prefill, head dimensions up to 128; tiles: tuned.h.
#include "cuda/prefill.cuh"
#include "cuda/tiles.h"

#define PLAIN(TILE, KEYS, WARPS, BLOCKS) KF_PREFILL_PLAIN(128, 128, TILE, KEYS, WARPS, BLOCKS),

extern "C" const kf_cuda_attention_kernel kf_cuda_prefill_128[] = {
    KF_TILES_128(PLAIN) KF_PREFILL_GENERAL(128, 128, 128, 64),
    KF_PREFILL_GENERAL(128, 128, 64, 64),
    {},
};
