// SPDX-License-Identifier: Apache-2.0
//
// What `keyfold tune` asks of a build with KF_TUNE: the tiles of the prefill kernels, and a plan that takes one of them.
#ifndef KF_CUDA_TUNE_H
#define KF_CUDA_TUNE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct kf_cuda_tile {
    int32_t rows, keys, warps, blocks;
} kf_cuda_tile;

// Tile `index` of the kernels for head dimensions of D (64 or 128); false past the last.
bool kf_cuda_tune_tile(int32_t D, int32_t index, kf_cuda_tile *tile);

// Every prefill that is planned from now on takes this tile of its head dimension, where there is one. -1: tuned.h's choice.
void kf_cuda_tune_force(int32_t index);

#endif
