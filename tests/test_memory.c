// SPDX-License-Identifier: Apache-2.0
//
// kf_memory_allocate, kf_memory_free, the same of the host, kf_memory_copy, kf_context_synchronize: on the CPU, and on a CUDA device where there is one.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "keyfold.h"

static kf_context *make(int32_t device_type) {
    kf_context_options options;
    kf_context *context = NULL;
    kf_context_options_init(&options);
    options.device.type = device_type;
    return kf_context_create(&options, &context) == KF_OK ? context : NULL;
}

static void bytes_go_there_and_back(const kf_context *context) {
    unsigned char out[1000], back[1000];
    void *a = NULL, *b = NULL;
    for (int i = 0; i < 1000; i++) out[i] = (unsigned char)(i * 7);
    assert_int_equal(kf_memory_allocate(context, sizeof out, &a), KF_OK);
    assert_int_equal(kf_memory_allocate(context, sizeof out, &b), KF_OK);
    assert_true((uintptr_t)a % 64 == 0 && (uintptr_t)b % 64 == 0 && a != b);
    assert_int_equal(kf_memory_copy(context, a, out, sizeof out), KF_OK);
    assert_int_equal(kf_memory_copy(context, (char *)b + 3, (char *)a + 3, sizeof out - 3), KF_OK);
    assert_int_equal(kf_memory_copy(context, b, a, 3), KF_OK);
    assert_int_equal(kf_memory_copy(context, back, b, sizeof back), KF_OK);
    assert_int_equal(kf_context_synchronize(context), KF_OK);
    assert_memory_equal(out, back, sizeof out);
    kf_memory_free(context, a);
    kf_memory_free(context, b);
}

static void host_memory_is_the_hosts(const kf_context *context) {
    const int n = 1000;
    void *host = NULL, *there = NULL;
    assert_int_equal(kf_memory_allocate_host(context, (size_t)n, &host), KF_OK);
    assert_int_equal(kf_memory_allocate(context, (size_t)n, &there), KF_OK);
    unsigned char *bytes = host;
    for (int i = 0; i < n; i++) bytes[i] = (unsigned char)(i * 5);
    assert_int_equal(kf_memory_copy(context, there, host, (size_t)n), KF_OK);
    memset(host, 0, (size_t)n);
    assert_int_equal(kf_memory_copy(context, host, there, (size_t)n), KF_OK);
    for (int i = 0; i < n; i++) assert_int_equal(bytes[i], (unsigned char)(i * 5));
    kf_memory_free(context, there);
    kf_memory_free_host(context, host);
    assert_int_equal(kf_memory_allocate_host(context, 0, &host), KF_OK);
    assert_non_null(host);
    kf_memory_free_host(context, host);
    kf_memory_free_host(context, NULL);
    kf_memory_free_host(NULL, NULL);
    assert_int_equal(kf_memory_allocate_host(context, 1, NULL), KF_INVALID_ARGUMENT);
    assert_int_equal(kf_memory_allocate_host(NULL, 1, &host), KF_INVALID_ARGUMENT);
    assert_null(host);
    assert_non_null(strstr(kf_last_error(), "memory_allocate_host"));
}

static void nothing_is_something(const kf_context *context) {
    void *memory = NULL;
    assert_int_equal(kf_memory_allocate(context, 0, &memory), KF_OK);
    assert_non_null(memory);
    assert_int_equal(kf_memory_copy(context, NULL, NULL, 0), KF_OK);
    kf_memory_free(context, memory);
    kf_memory_free(context, NULL);
    kf_memory_free(NULL, NULL);
}

static void wrong_calls_are_refused(const kf_context *context) {
    char byte[2] = {1, 2};
    void *memory = byte;
    assert_int_equal(kf_memory_allocate(context, 1, NULL), KF_INVALID_ARGUMENT);
    assert_int_equal(kf_memory_allocate(NULL, 1, &memory), KF_INVALID_ARGUMENT);
    assert_null(memory);
    assert_int_equal(kf_memory_allocate(context, SIZE_MAX, &memory), KF_OUT_OF_MEMORY);
    assert_null(memory);
    assert_int_equal(kf_memory_copy(NULL, byte, byte + 1, 1), KF_INVALID_ARGUMENT);
    assert_int_equal(kf_memory_copy(context, NULL, byte, 1), KF_INVALID_ARGUMENT);
    assert_non_null(strstr(kf_last_error(), "destination is NULL"));
    assert_int_equal(kf_memory_copy(context, byte, NULL, 1), KF_INVALID_ARGUMENT);
    assert_int_equal(kf_memory_copy(context, byte, byte + 1, 2), KF_INVALID_ARGUMENT);
    assert_non_null(strstr(kf_last_error(), "overlap"));
    assert_int_equal(kf_context_synchronize(NULL), KF_INVALID_ARGUMENT);
}

static void check(int32_t device_type) {
    kf_context *context = make(device_type);
    if (!context) skip();
    bytes_go_there_and_back(context);
    host_memory_is_the_hosts(context);
    nothing_is_something(context);
    wrong_calls_are_refused(context);
    kf_context_destroy(context);
}

static void on_the_cpu(void **state) {
    (void)state;
    check(KF_DEVICE_CPU);
}

static void on_cuda(void **state) {
    (void)state;
    check(KF_DEVICE_CUDA);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(on_the_cpu), cmocka_unit_test(on_cuda)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
