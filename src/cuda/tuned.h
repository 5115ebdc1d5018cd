// SPDX-License-Identifier: Apache-2.0
//
// Which tiles a prefill takes, as `keyfold tune` measured them. Written by it; a hand that changes a line should say so here.
//
//     source   NVIDIA H200, commit 9578e37, 2026-11-30, reports/h200/tune.txt: make tune && build-tune/keyfold tune
//
// KF_TUNED_TILES_D(X): the tiles that the choices of head dimensions up to D name, which every build holds:
// X(queries, keys, warps, blocks a multiprocessor). KF_CUDA_CHOICES: the first line whose D is the kernel's and whose `most` is
// not below the shape's tiles of 128 queries in thousandths of the multiprocessors names the tile.
#ifndef KF_CUDA_TUNED_H
#define KF_CUDA_TUNED_H

#include <stdint.h>

#define KF_TUNED_TILES_64(X) X(128, 128, 4, 2) X(64, 64, 4, 3)
#define KF_TUNED_TILES_128(X) X(128, 64, 4, 2) X(64, 64, 4, 2)

typedef struct kf_cuda_choice {
    int32_t D, causal; // causal: 0 or 1
    int64_t most;
    int32_t rows, keys, warps;
} kf_cuda_choice;

#define KF_CUDA_CHOICES                                                                                                \
    {64, 0, 500, 64, 64, 4}, {64, 0, 1000, 64, 64, 4}, {64, 0, 2000, 128, 128, 4}, {64, 0, 4000, 128, 128, 4},         \
        {64, 0, INT64_MAX, 128, 128, 4}, {64, 1, 500, 64, 64, 4}, {64, 1, 1000, 64, 64, 4},                            \
        {64, 1, 2000, 128, 128, 4}, {64, 1, 4000, 128, 128, 4}, {64, 1, INT64_MAX, 128, 128, 4},                       \
        {128, 0, 500, 64, 64, 4}, {128, 0, 1000, 64, 64, 4}, {128, 0, 2000, 128, 64, 4}, {128, 0, 4000, 128, 64, 4},   \
        {128, 0, INT64_MAX, 128, 64, 4}, {128, 1, 500, 64, 64, 4}, {128, 1, 1000, 64, 64, 4},                          \
        {128, 1, 2000, 64, 64, 4}, {128, 1, 4000, 128, 64, 4}, {128, 1, INT64_MAX, 128, 64, 4},

#endif
