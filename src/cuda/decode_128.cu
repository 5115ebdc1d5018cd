// SPDX-License-Identifier: Apache-2.0
//
// Decode, head dimensions up to 128.
#include "cuda/decode.cuh"

extern "C" const kf_cuda_attention_kernel kf_cuda_decode_128[] = {KF_DECODE_ROWS(128, 128, 4, 3, 2), {}};
