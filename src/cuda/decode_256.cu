// SPDX-License-Identifier: Apache-2.0
//
// Decode, head dimensions up to 256.
#include "cuda/decode.cuh"

extern "C" const kf_cuda_attention_kernel kf_cuda_decode_256[] = {KF_DECODE_ROWS(256, 256, 4, 2, 1), {}};
