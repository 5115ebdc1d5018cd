// SPDX-License-Identifier: Apache-2.0
//
// Decode whose keys turn: all of 64 or 128 dimensions, up to 16 rows, scores that need no more than a scale. Others turn in the general kernels.
#include "cuda/decode.cuh"

extern "C" const kf_cuda_attention_kernel kf_cuda_decode_turn[] = {
    KF_DECODE_TURN(64, 4, 4, 2),
    KF_DECODE_TURN(128, 4, 3, 2),
    {},
};
