// SPDX-License-Identifier: Apache-2.0
//
// src/math/mask.h against the definition, pair by pair: every Nq, Nk up to 40, causal or not, every window; and the
// slopes of ALiBi against published ones.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "math/alibi.h"
#include "math/mask.h"

enum { N = 40, TILE = 7 };

static int sees(const kf_mask *mask, int64_t p, int64_t j) {
    if (j < 0 || j >= mask->length) return 0;
    if (mask->left != INT64_MAX && j < p - mask->left) return 0;
    if (mask->right != INT64_MAX && j > p + mask->right) return 0;
    return 1;
}

static void check_rows(const kf_mask *mask, int64_t Nq) {
    for (int64_t i = 0; i < Nq; i++) {
        int64_t p = i + mask->length - Nq + (i % 7 == 6 ? 50 : 0); // given positions lie anywhere
        kf_interval keys = kf_mask_row(mask, p);
        assert_true(keys.lo >= 0 && keys.lo <= keys.hi && keys.hi <= mask->length);
        for (int64_t j = -2; j < mask->length + 2; j++) assert_int_equal(sees(mask, p, j), j >= keys.lo && j < keys.hi);
    }
}

// A tile of rows against a tile of keys: the class, and both questions.
static void check_tile(const kf_mask *mask, int64_t p0, int64_t p1, int64_t k0, int64_t k1) {
    int some = 0, all = 1;
    kf_interval keys = kf_mask_keys(mask, p0, p1 - 1), positions = kf_mask_queries(mask, k0, k1);
    for (int64_t p = p0; p < p1; p++) {
        int row = 0;
        for (int64_t j = k0; j < k1; j++) {
            int seen = sees(mask, p, j);
            some |= seen, row |= seen, all &= seen;
            if (seen) assert_true(j >= keys.lo && j < keys.hi);
        }
        // Windows are contiguous in both directions, so the answer is exact: every position in it sees a key.
        assert_int_equal(row, p >= positions.lo && p < positions.hi);
    }
    kf_tile_class class = kf_mask_classify(mask, p0, p1 - 1, k0, k1);
    assert_int_equal(class == KF_TILE_FULL, all);
    if (some) assert_true(class != KF_TILE_SKIPPED);
    if (class == KF_TILE_SKIPPED) assert_false(some);
}

static void check_tiles(const kf_mask *mask, int64_t Nq) {
    int64_t first = mask->length - Nq;
    for (int64_t p = first; p < first + Nq; p += TILE)
        for (int64_t k = 0; k < mask->length; k += TILE)
            check_tile(mask, p, kf_min64(p + TILE, first + Nq), k, kf_min64(k + TILE, mask->length));
}

static void every_shape_and_window(void **state) {
    (void)state;
    for (int64_t Nq = 1; Nq <= N; Nq++)
        for (int64_t Nk = 0; Nk <= N; Nk++)
            for (int64_t left = 0; left <= N + 1; left++)
                for (int right = 0; right < 4; right++) {
                    // no limit, causal, and windows to the right
                    const int64_t rights[4] = {INT64_MAX, 0, 1, 11};
                    kf_mask mask = {Nk, left == N + 1 ? INT64_MAX : left, rights[right]};
                    check_rows(&mask, Nq);
                    if (Nq % 5 == 0 || Nk % 3 == 0) check_tiles(&mask, Nq);
                }
}

static void every_right_window(void **state) {
    (void)state;
    for (int64_t Nq = 1; Nq <= N; Nq += 3)
        for (int64_t Nk = 0; Nk <= N; Nk++)
            for (int64_t right = 0; right <= N; right++) {
                kf_mask mask = {Nk, INT64_MAX, right};
                check_rows(&mask, Nq);
                check_tiles(&mask, Nq);
            }
}

static void far_positions_do_not_overflow(void **state) {
    (void)state;
    kf_mask mask = {100, INT64_MAX - 1, INT64_MAX - 1};
    kf_interval keys = kf_mask_row(&mask, INT64_MAX);
    assert_int_equal(keys.lo, 1);
    assert_int_equal(keys.hi, 100);
    mask.left = 5;
    keys = kf_mask_row(&mask, INT64_MIN);
    assert_int_equal(keys.lo, 0);
    assert_int_equal(keys.hi, 0);
    mask.right = 0;
    keys = kf_mask_row(&mask, INT64_MAX);
    assert_int_equal(keys.hi, keys.lo);
    kf_mask huge = {INT64_C(1) << 62, 7, 0};
    keys = kf_mask_row(&huge, (INT64_C(1) << 61) + 3);
    assert_true(keys.lo == (INT64_C(1) << 61) - 4 && keys.hi == (INT64_C(1) << 61) + 4);
}

static void slopes_as_published(void **state) {
    (void)state;
    for (int h = 0; h < 8; h++) assert_true(kf_alibi_slope(h, 8) == ldexpf(1.0f, -(h + 1)));
    // 12 heads: those of 8, then the 1st, 3rd, 5th, 7th of 16.
    for (int h = 0; h < 4; h++)
        assert_true(fabsf(kf_alibi_slope(8 + h, 12) - (float)pow(2.0, -0.5 * (2 * h + 1))) < 1e-7f);
    assert_true(kf_alibi_slope(0, 3) == 0.0625f && kf_alibi_slope(1, 3) == 0.00390625f &&
                kf_alibi_slope(2, 3) == 0.25f);
    assert_true(kf_alibi_bias(0.5f, 10, 4) == -3.0f && kf_alibi_bias(0.5f, 4, 10) == -3.0f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_and_window),
        cmocka_unit_test(every_right_window),
        cmocka_unit_test(far_positions_do_not_overflow),
        cmocka_unit_test(slopes_as_published),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
