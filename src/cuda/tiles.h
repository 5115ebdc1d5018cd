// SPDX-License-Identifier: Apache-2.0
//
// The tiles that `keyfold tune` compares, built where KF_TUNE is 1 (`make tune`): X(queries, keys, warps, blocks a multiprocessor).
// Each fits 99 KB of shared memory. All others build what tuned.h names.
#ifndef KF_CUDA_TILES_H
#define KF_CUDA_TILES_H

#include "cuda/tuned.h"

#define KF_ALL_TILES_64(X)                                                                                             \
    X(128, 128, 4, 2) X(64, 64, 4, 3) X(128, 64, 4, 2) X(64, 64, 2, 4) X(64, 128, 2, 3) X(128, 64, 8, 2)
#define KF_ALL_TILES_128(X)                                                                                            \
    X(128, 64, 4, 2) X(64, 64, 4, 2) X(64, 32, 2, 4) X(128, 32, 4, 2) X(128, 64, 8, 1) X(64, 64, 2, 2)

#if KF_TUNE
#define KF_TILES_64 KF_ALL_TILES_64
#define KF_TILES_128 KF_ALL_TILES_128
#else
#define KF_TILES_64 KF_TUNED_TILES_64
#define KF_TILES_128 KF_TUNED_TILES_128
#endif

#endif
