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

#if KF_HAVE_CUDA
// Compiled into this test, under other names, for what no device here could say.
#define kf_backend_cuda tested_backend
#define kf_cuda_enqueue tested_enqueue
#include "cuda/backend.c"

static kf_status choose(int isa, int of_device, int *arch) {
    const kf_context_options options = {.isa = isa};
    return choose_arch(&options, of_device, arch);
}

static void a_device_is_held_to_older_architectures(void **state) {
    (void)state;
    static const struct {
        int isa, of_device, arch; // 0: refused
    } CASES[] = {
        {0, 75, 0},   {0, 80, 80},  {0, 90, 90}, {0, 100, 100}, {0, 120, 120}, {80, 90, 80},
        {86, 90, 86}, {90, 90, 90}, {79, 90, 0}, {91, 90, 0},   {90, 89, 0},   {89, 100, 89},
        {80, 75, 0},  {-1, 90, 0},  {1, 90, 0},  {90, 100, 0},  {90, 120, 0}}; // kernels of 9.0 do not run on newer devices
    for (size_t c = 0; c < sizeof CASES / sizeof *CASES; c++) {
        int arch = 0;
        const kf_status status = choose(CASES[c].isa, CASES[c].of_device, &arch);
        assert_int_equal(status, CASES[c].arch ? KF_OK : KF_UNSUPPORTED);
        if (status == KF_OK) assert_int_equal(arch, CASES[c].arch);
    }
    assert_int_equal(choose(90, 100, &(int){0}), KF_UNSUPPORTED);
    assert_non_null(strstr(kf_last_error(), "this one has 10.0"));
}

// What CUDA's guide says that a block may have; an architecture that is not known is bounded by its device's own number.
static void shared_memory_is_the_architectures(void **state) {
    (void)state;
    assert_int_equal(shared_limit_of(80), 163 * 1024);
    assert_int_equal(shared_limit_of(86), 99 * 1024);
    assert_int_equal(shared_limit_of(87), 163 * 1024);
    assert_int_equal(shared_limit_of(89), 99 * 1024);
    assert_int_equal(shared_limit_of(90), 227 * 1024);
}
#endif

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
#if KF_HAVE_CUDA
        cmocka_unit_test(a_device_is_held_to_older_architectures),
        cmocka_unit_test(shared_memory_is_the_architectures),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
