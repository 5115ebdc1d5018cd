// SPDX-License-Identifier: Apache-2.0
//
// kf_tensor has the layout of DLPack's DLTensor, so that a DLTensor * may be passed for a kf_tensor *; and the codes are DLPack's.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "keyfold.h"

#if defined(__has_include)
#if __has_include(<dlpack/dlpack.h>)
#include <dlpack/dlpack.h>
#define HAVE_DLPACK 1
#endif
#endif

#ifdef HAVE_DLPACK
static void same_layout(void **state) {
    (void)state;
    assert_int_equal(sizeof(kf_tensor), sizeof(DLTensor));
    assert_int_equal(offsetof(kf_tensor, data), offsetof(DLTensor, data));
    assert_int_equal(offsetof(kf_tensor, device), offsetof(DLTensor, device));
    assert_int_equal(offsetof(kf_tensor, ndim), offsetof(DLTensor, ndim));
    assert_int_equal(offsetof(kf_tensor, dtype), offsetof(DLTensor, dtype));
    assert_int_equal(offsetof(kf_tensor, shape), offsetof(DLTensor, shape));
    assert_int_equal(offsetof(kf_tensor, strides), offsetof(DLTensor, strides));
    assert_int_equal(offsetof(kf_tensor, byte_offset), offsetof(DLTensor, byte_offset));

    assert_int_equal(sizeof(kf_device), sizeof(DLDevice));
    assert_int_equal(sizeof(DLDeviceType), sizeof(int32_t));
    assert_int_equal(offsetof(kf_device, type), offsetof(DLDevice, device_type));
    assert_int_equal(offsetof(kf_device, id), offsetof(DLDevice, device_id));

    assert_int_equal(sizeof(kf_dtype), sizeof(DLDataType));
    assert_int_equal(offsetof(kf_dtype, code), offsetof(DLDataType, code));
    assert_int_equal(offsetof(kf_dtype, bits), offsetof(DLDataType, bits));
    assert_int_equal(offsetof(kf_dtype, lanes), offsetof(DLDataType, lanes));
}

static void same_codes(void **state) {
    (void)state;
    assert_int_equal(KF_DEVICE_CPU, kDLCPU);
    assert_int_equal(KF_DEVICE_CUDA, 2); // kDLCUDA; older headers call it kDLGPU
    assert_int_equal(KF_CODE_INT, kDLInt);
    assert_int_equal(KF_CODE_UINT, kDLUInt);
    assert_int_equal(KF_CODE_FLOAT, kDLFloat);
    assert_int_equal(KF_CODE_BFLOAT, kDLBfloat);
    assert_int_equal(KF_CODE_BOOL, 6); // kDLBool, which DLPack has since 0.8
}

// A DLTensor filled by its own names, read through a kf_tensor.
static void same_values(void **state) {
    (void)state;
    int64_t shape[2] = {3, 4}, strides[2] = {4, 1};
    float data[12] = {0};
    DLTensor theirs = {.data = data, .ndim = 2, .shape = shape, .strides = strides, .byte_offset = 8};
    theirs.device.device_type = kDLCPU;
    theirs.device.device_id = 7;
    theirs.dtype = (DLDataType){.code = kDLBfloat, .bits = 16, .lanes = 1};
    union {
        DLTensor theirs;
        kf_tensor ours;
    } both = {.theirs = theirs};
    assert_ptr_equal(both.ours.data, data);
    assert_int_equal(both.ours.device.type, KF_DEVICE_CPU);
    assert_int_equal(both.ours.device.id, 7);
    assert_int_equal(both.ours.ndim, 2);
    assert_int_equal(both.ours.dtype.code, KF_CODE_BFLOAT);
    assert_int_equal(both.ours.dtype.bits, 16);
    assert_int_equal(both.ours.dtype.lanes, 1);
    assert_ptr_equal(both.ours.shape, shape);
    assert_ptr_equal(both.ours.strides, strides);
    assert_int_equal(both.ours.byte_offset, 8);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_layout), cmocka_unit_test(same_codes),
                                       cmocka_unit_test(same_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void) {
    print_message("skip: no dlpack/dlpack.h (libdlpack-dev)\n");
    return 77;
}
#endif
