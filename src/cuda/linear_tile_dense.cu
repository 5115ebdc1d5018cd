// SPDX-License-Identifier: Apache-2.0
//
// Tile kernels (many rows of x) of the linear layer for fp32, fp16 and bf16 weights.
#include "cuda/linear_tile_dense.cuh"

extern "C" const kf_cuda_linear_kernel kf_cuda_linear_tile_dense[] = {
    KF_TILE_ROW(KF_WEIGHT_BF16, KF_X_BF16, "128x64 tiles, bf16 x"),
    KF_TILE_ROW(KF_WEIGHT_F16, KF_X_F16, "128x64 tiles, fp16 x"),
    KF_TILE_ROW(KF_WEIGHT_BF16, KF_X_SPLIT, "128x64 tiles, x in three bf16 parts"),
    KF_TILE_ROW(KF_WEIGHT_F16, KF_X_SPLIT, "128x64 tiles, x in three bf16 parts"),
    KF_TILE_ROW(KF_WEIGHT_F32, KF_X_SPLIT, "128x64 tiles, x in three bf16 parts"),
    {},
};
