// SPDX-License-Identifier: Apache-2.0
//
// Kernels for up to eight rows of x over weights of five bits.
#include "cuda/linear_many.cuh"

extern "C" const kf_cuda_linear_kernel kf_cuda_linear_q5[] = {
    KF_VECTOR_ROWS_OF(KF_WEIGHT_Q5_0),
    KF_ONE_ROWS_OF(KF_WEIGHT_Q5_0),
    KF_VECTOR_ROWS_OF(KF_WEIGHT_Q5_1),
    KF_ONE_ROWS_OF(KF_WEIGHT_Q5_1),
    KF_VECTOR_ROWS_OF(KF_WEIGHT_Q5_K),
    KF_ONE_ROWS_OF(KF_WEIGHT_Q5_K),
    {},
};
