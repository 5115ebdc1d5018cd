// SPDX-License-Identifier: Apache-2.0
//
// Stream kernels (up to eight rows of x) of the linear layer for weights of eight and of six bits.
#include "cuda/linear_stream.cuh"

extern "C" const kf_cuda_linear_kernel kf_cuda_linear_q8[] = {
    KF_STREAM_ROWS_OF(KF_WEIGHT_Q8_0, KF_X_BF16, "matrix-vector, bf16 x"),
    KF_STREAM_ROWS_OF(KF_WEIGHT_Q8_0, KF_X_SPLIT, "matrix-vector, x in three bf16 parts"),
    KF_STREAM_ROWS_OF(KF_WEIGHT_Q8_0, KF_X_INT8, "matrix-vector, int8 x"),
    KF_STREAM_ROWS_OF(KF_WEIGHT_Q6_K, KF_X_BF16, "matrix-vector, bf16 x"),
    KF_STREAM_ROWS_OF(KF_WEIGHT_Q6_K, KF_X_SPLIT, "matrix-vector, x in three bf16 parts"),
    KF_STREAM_ROWS_OF(KF_WEIGHT_Q6_K, KF_X_INT8, "matrix-vector, int8 x"),
    {},
};
