// SPDX-License-Identifier: Apache-2.0
//
// Dense products of many rows by cuBLASLt, which is loaded at run time: see linear_lt.c.
#ifndef KF_CUDA_LINEAR_LT_H
#define KF_CUDA_LINEAR_LT_H

#include "cuda/cuda.h"

// y[t, n] = sum_k x[t, k] w[n, k] + bias[n]; strides of rows in elements, types of kf_type.
typedef struct kf_cuda_lt_product {
    int64_t T, N, K;
    int64_t w_stride, x_stride, y_stride;
    int32_t w_type, x_type, y_type, bias_type;
    const void *w, *x, *bias; // bias NULL: none
    void *y;
} kf_cuda_lt_product;

// What a plan keeps.
typedef struct kf_cuda_lt {
    uint64_t algorithm[8];
    int64_t workspace; // bytes
    int32_t found;     // not 0: cuBLASLt takes this product
    int32_t reserved;
} kf_cuda_lt;

// Whether addresses, strides and types are what a product that was planned may have.
bool kf_cuda_lt_fits(const kf_cuda_lt_product *product);

// False where cuBLASLt is not found or does not know such a product. The device is the thread's current one.
bool kf_cuda_lt_plan(const kf_cuda_device *device, const kf_cuda_lt_product *product, kf_cuda_lt *out);
int64_t kf_cuda_lt_workspace(const kf_cuda_lt *plan); // bytes, any alignment

kf_status kf_cuda_lt_run(const kf_cuda_device *device, const kf_cuda_lt_product *product, const kf_cuda_lt *plan,
                         char *workspace);

#endif
