// SPDX-License-Identifier: Apache-2.0
//
// Decode, head dimensions up to 256. The second configuration (73 KB of shared memory) is for architectures that allow a block 99 KB.
#include "cuda/decode.cuh"

extern "C" const kf_cuda_attention_kernel kf_cuda_decode_256[] = {
    KF_DECODE_ROWS(256, 256, 1, 4, 2, 1),
    KF_DECODE_ROWS(256, 256, 1, 2, 2, 1),
    {},
};
