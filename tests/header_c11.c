// SPDX-License-Identifier: Apache-2.0
//
// The public header by itself, as strict C11: every constant and initialiser that it offers is used once. See test_header.sh.
#include "keyfold.h"

static const kf_dtype dtypes[] = {KF_FP32, KF_FP16, KF_BF16, KF_INT32, KF_INT64, KF_BOOL};

int main(void) {
    static const int64_t shape[2] = {1, 2};
    float data[2] = {0, 0};
    kf_tensor t = kf_tensor_cpu(data, dtypes[0], 2, shape);
    return t.ndim == 2 && t.dtype.bits == 32 ? KF_OK : KF_INVALID_ARGUMENT;
}
