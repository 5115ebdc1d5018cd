// SPDX-License-Identifier: Apache-2.0
//
// Tile kernels (many rows of x) of the linear layer for weights of eight and of six bits.
#include "cuda/linear_tile.cuh"

extern "C" const kf_cuda_linear_kernel kf_cuda_linear_tile_q8[] = {
    KF_TILE_ROW(KF_WEIGHT_Q8_0, KF_X_BF16, "128x64 tiles, bf16 x"),
    KF_TILE_ROW(KF_WEIGHT_Q8_0, KF_X_SPLIT, "128x64 tiles, x in three bf16 parts"),
    KF_TILE_ROW(KF_WEIGHT_Q8_0, KF_X_INT8, "128x64 tiles, int8 x"),
    KF_TILE_ROW(KF_WEIGHT_Q6_K, KF_X_BF16, "128x64 tiles, bf16 x"),
    KF_TILE_ROW(KF_WEIGHT_Q6_K, KF_X_SPLIT, "128x64 tiles, x in three bf16 parts"),
    KF_TILE_ROW(KF_WEIGHT_Q6_K, KF_X_INT8, "128x64 tiles, int8 x"),
    {},
};
