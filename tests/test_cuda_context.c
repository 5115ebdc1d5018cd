// SPDX-License-Identifier: Apache-2.0
//
// What the CUDA backend does on any machine, one without a driver included: the library loads, a context is made or refused
// with the right status, the table of support is whole.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "keyfold.h"

static kf_status create(int32_t id, int32_t isa, kf_context **context) {
    kf_context_options options;
    kf_context_options_init(&options);
    options.device.type = KF_DEVICE_CUDA;
    options.device.id = id;
    options.isa = isa;
    return kf_context_create(&options, context);
}

static void a_context_is_made_or_refused(void **state) {
    (void)state;
    kf_context *context = NULL;
    kf_status status = create(0, 0, &context);
    if (status == KF_OK) {
        kf_context_info info = {.size = sizeof info};
        assert_int_equal(kf_context_get_info(context, &info), KF_OK);
        assert_int_equal(info.device.type, KF_DEVICE_CUDA);
        assert_true(info.isa >= 80 && info.name[0]);
        kf_context_destroy(context);
        return;
    }
    assert_null(context);
    if (status == KF_NO_DEVICE)
        assert_non_null(strstr(kf_last_error(), "no CUDA device"));
    else
        assert_int_equal(status, KF_UNSUPPORTED); // a build without the backend, or a device that is too old
}

static void a_device_that_is_not_there_is_refused(void **state) {
    (void)state;
    kf_context *context = NULL;
    for (int32_t id = -1; id <= 1 << 20; id += (1 << 20) + 1) {
        kf_status status = create(id, 0, &context);
        assert_true(status == KF_NO_DEVICE || status == KF_UNSUPPORTED);
        assert_null(context);
    }
}

static void an_architecture_that_is_not_there_is_refused(void **state) {
    (void)state;
    kf_context *context = NULL;
    assert_int_not_equal(create(0, 70, &context), KF_OK);
    assert_int_not_equal(create(0, 990, &context), KF_OK);
    assert_null(context);
}

static void rows_of_support_are_whole(void **state) {
    (void)state;
    kf_support_row row = {.size = sizeof row};
    for (int32_t i = 0; kf_support(i, &row) == KF_OK; i++) {
        assert_true(row.kind > KF_OP_NONE && row.kind < KF_OP_COUNT);
        assert_true(strcmp(row.backend, "cpu") == 0 || strcmp(row.backend, "cuda") == 0);
        assert_true(row.dtypes[0] && row.notes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_context_is_made_or_refused),
        cmocka_unit_test(a_device_that_is_not_there_is_refused),
        cmocka_unit_test(an_architecture_that_is_not_there_is_refused),
        cmocka_unit_test(rows_of_support_are_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
