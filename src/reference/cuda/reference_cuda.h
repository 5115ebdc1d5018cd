// SPDX-License-Identifier: Apache-2.0
//
// The oracle's twin on a CUDA device (reference.h says what the oracle is): for shapes whose every element the CPU would take hours for.
// It is a textbook too, in float64, and takes nothing of the kernels nor of src/math. On small cases `keyfold verify` holds it against
// the CPU's oracle.
#ifndef KF_REFERENCE_CUDA_REFERENCE_CUDA_H
#define KF_REFERENCE_CUDA_REFERENCE_CUDA_H

#include "reference/reference.h"

#ifdef __cplusplus
extern "C" {
#endif

// ref_attention and ref_attention_naive for all rows. The tensors of args lie on the current device; o and naive are [B, H, Nq, Dv],
// lse [B, H, Nq], of the host. NULL, or the runtime's sentence where it failed.
const char *ref_cuda_attention(const kf_attention_args *args, double *o, double *lse, double *naive);

#ifdef __cplusplus
}
#endif
#endif
