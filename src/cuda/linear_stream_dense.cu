// SPDX-License-Identifier: Apache-2.0
//
// Stream kernels (up to eight rows of x) of the linear layer for fp32, fp16 and bf16 weights.
#include "cuda/linear_stream.cuh"

extern "C" const kf_cuda_linear_kernel kf_cuda_linear_dense[] = {
    KF_STREAM_ROWS_OF(KF_WEIGHT_BF16, KF_X_BF16, "matrix-vector, bf16 x"),
    KF_STREAM_ROWS_OF(KF_WEIGHT_F16, KF_X_F16, "matrix-vector, fp16 x"),
    KF_STREAM_ROWS_OF(KF_WEIGHT_BF16, KF_X_SPLIT, "matrix-vector, x in three bf16 parts"),
    KF_STREAM_ROWS_OF(KF_WEIGHT_F16, KF_X_SPLIT, "matrix-vector, x in three bf16 parts"),
    KF_STREAM_ROWS_OF(KF_WEIGHT_F32, KF_X_SPLIT, "matrix-vector, x in three bf16 parts"),
    {},
};
