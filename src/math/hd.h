// SPDX-License-Identifier: Apache-2.0
//
// KF_HD: "host and device". The headers of src/math are compiled into the CPU kernels by a C compiler and into the CUDA
// kernels by nvcc.
#ifndef KF_MATH_HD_H
#define KF_MATH_HD_H

#ifdef __CUDACC__
#define KF_HD __host__ __device__ static inline
#else
#define KF_HD static inline
#endif

#endif
