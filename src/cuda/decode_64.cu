// SPDX-License-Identifier: Apache-2.0
//
// Decode, head dimensions up to 64.
#include "cuda/decode.cuh"

extern "C" const kf_cuda_attention_kernel kf_cuda_decode_64[] = {
    KF_DECODE_ROWS(64, 64, 1, 4, 4, 2), KF_DECODE_ROWS(64, 64, 2, 4, 4, 2), {}};
