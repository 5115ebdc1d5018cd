// SPDX-License-Identifier: Apache-2.0
//
// src/math/mask.h, which the kernels take their bounds from, against the oracle's ref_visible, which decides each pair from the header's
// words and shares no code with it: all Nq and Nk to 40, causal or not, every left window, every right one, lengths short of Nk.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "math/mask.h"
#include "reference/reference.h"

enum { N = 40 };

// What the kernels make of the arguments (core's parse): causal is a right window of 0.
static kf_mask mask_of(const kf_attention_args *args, int64_t length) {
    kf_mask mask = {length, INT64_MAX, INT64_MAX};
    if (args->flags & KF_ATTENTION_WINDOW_LEFT) mask.left = args->window_left;
    if (args->flags & KF_ATTENTION_WINDOW_RIGHT) mask.right = args->window_right;
    if (args->flags & KF_ATTENTION_CAUSAL) mask.right = 0;
    return mask;
}

static void check(int64_t Nq, int64_t Nk, int64_t length, uint32_t flags, int64_t left, int64_t right) {
    const int64_t q_shape[4] = {1, 1, Nq, 8}, k_shape[4] = {1, 1, Nk, 8}, one[1] = {1}, lengths[1] = {length};
    const kf_tensor q = kf_tensor_cpu(NULL, (kf_dtype)KF_FP32, 4, q_shape),
                    k = kf_tensor_cpu(NULL, (kf_dtype)KF_FP32, 4, k_shape);
    const kf_tensor key_lengths = kf_tensor_cpu(lengths, (kf_dtype)KF_INT64, 1, one);
    const kf_attention_args args = {
        .q = &q, .k = &k, .key_lengths = &key_lengths, .flags = flags, .window_left = left, .window_right = right};
    const kf_mask mask = mask_of(&args, length);
    for (int64_t i = 0; i < Nq; i++) {
        const kf_interval keys = kf_mask_row(&mask, i + length - Nq);
        for (int64_t j = 0; j < Nk; j++) {
            const bool wanted = ref_visible(&args, 0, 0, i, j), got = j >= keys.lo && j < keys.hi;
            if (wanted != got) {
                fail_msg("Nq %d, Nk %d, length %d, flags %u, left %d, right %d: row %d, key %d: %d, not %d", (int)Nq,
                         (int)Nk, (int)length, flags, (int)left, (int)right, (int)i, (int)j, got, wanted);
            }
        }
    }
}

static void every_shape(void **state) {
    (void)state;
    for (int64_t Nq = 1; Nq <= N; Nq++) {
        for (int64_t Nk = 0; Nk <= N; Nk++) {
            check(Nq, Nk, Nk, 0, 0, 0);
            check(Nq, Nk, Nk, KF_ATTENTION_CAUSAL, 0, 0);
            check(Nq, Nk, Nk / 2, KF_ATTENTION_CAUSAL, 0, 0);
        }
    }
}

// Windows of every size, for shapes on both sides of the diagonal and lengths short of Nk.
static void every_window(void **state) {
    (void)state;
    const uint32_t LEFT = KF_ATTENTION_WINDOW_LEFT, RIGHT = KF_ATTENTION_WINDOW_RIGHT, CAUSAL = KF_ATTENTION_CAUSAL;
    for (int64_t Nq = 1; Nq <= N; Nq++) {
        for (int64_t Nk = 0; Nk <= N; Nk++) {
            for (int64_t window = 0; window <= N; window++) {
                const int64_t length = Nk - window % 3 > 0 ? Nk - window % 3 : 0;
                check(Nq, Nk, length, LEFT, window, 0);
                check(Nq, Nk, length, LEFT | CAUSAL, window, 0);
                check(Nq, Nk, length, RIGHT, 0, window);
                check(Nq, Nk, length, LEFT | RIGHT, window, (window * 7) % N);
                check(Nq, Nk, length, LEFT | RIGHT | CAUSAL, window, 3);
            }
            check(Nq, Nk, Nk, LEFT | RIGHT, INT64_MAX, INT64_MAX);
            check(Nq, Nk, Nk, LEFT | RIGHT, INT64_MAX - 1, 0);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_shape), cmocka_unit_test(every_window)};
    return cmocka_run_group_tests_name("mask against the oracle", tests, NULL, NULL);
}
