// SPDX-License-Identifier: Apache-2.0
//
// Decode, head dimensions up to 128. The second configuration (70 KB of shared memory) is for architectures that allow a block 99 KB; the
// last one (198 KB) for Hopper, where lists fill the machine unsplit: it stands behind its like, where choose_warps alone finds it (attention.c).
#include "cuda/decode.cuh"

extern "C" const kf_cuda_attention_kernel kf_cuda_decode_128[] = {
    KF_DECODE_ROWS(128, 128, 1, 4, 3, 2),
    KF_DECODE_ROWS(128, 128, 1, 4, 2, 1),
    KF_DECODE_ROWS(128, 128, 2, 4, 3, 2),
    KF_DECODE_ROWS(128, 128, 2, 4, 2, 1),
    KF_DECODE_FULL(128, 128, 8, 3, 1), // one tile asked for ahead: docs/cuda_notes.md
    {},
};
