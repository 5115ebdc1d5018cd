// SPDX-License-Identifier: Apache-2.0
//
// Overlap of views, held against the sets of their bytes.
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "core/overlap.h"

static char memory[4096];

static kf_view view_of(int64_t offset, int type, int ndim, const int64_t *shape, const int64_t *stride) {
    kf_view v = {.data = memory + 1024 + offset, .type = type, .ndim = ndim};
    for (int i = 0; i < ndim; i++) v.shape[i] = shape[i], v.stride[i] = shape[i] > 1 ? stride[i] : 0;
    return v;
}

static void mark(const kf_view *v, char *set) {
    int64_t elements = kf_view_elements(v), size = kf_type_size(v->type);
    for (int64_t e = 0; e < elements; e++) {
        int64_t at = v->data - memory, rest = e;
        for (int i = v->ndim - 1; i >= 0; i--) {
            at += rest % v->shape[i] * v->stride[i] * size;
            rest /= v->shape[i];
        }
        memset(set + at, 1, (size_t)size);
    }
}

static bool share_a_byte(const kf_view *a, const kf_view *b) {
    char x[sizeof memory] = {0}, y[sizeof memory] = {0};
    mark(a, x);
    mark(b, y);
    for (size_t i = 0; i < sizeof memory; i++)
        if (x[i] && y[i]) return true;
    return false;
}

static void thirds_of_one_row_are_apart(void **state) {
    (void)state;
    // q [H=2, N=3, D=4], k and v [1, 3, 4] as columns of rows of 16 fp32
    kf_view q = view_of(0, KF_TYPE_F32, 3, (int64_t[]){2, 3, 4}, (int64_t[]){4, 16, 1});
    kf_view k = view_of(32, KF_TYPE_F32, 3, (int64_t[]){1, 3, 4}, (int64_t[]){4, 16, 1});
    kf_view v = view_of(48, KF_TYPE_F32, 3, (int64_t[]){1, 3, 4}, (int64_t[]){4, 16, 1});
    assert_true(kf_view_disjoint(&q, &k));
    assert_true(kf_view_disjoint(&v, &q));
    assert_true(kf_view_disjoint(&k, &v));
    assert_false(kf_view_disjoint(&q, &q));
    assert_true(kf_view_same(&q, &q));
}

// Never "apart" where a byte is shared: 20,000 random pairs.
static void random_views(void **state) {
    (void)state;
    uint32_t seed = 1;
    int apart = 0;
    for (int round = 0; round < 20000; round++) {
        kf_view v[2];
        for (int j = 0; j < 2; j++) {
            int64_t shape[3], stride[3];
            for (int i = 0; i < 3; i++) {
                seed = seed * 1664525u + 1013904223u;
                shape[i] = 1 + (seed >> 20) % 3;
                seed = seed * 1664525u + 1013904223u;
                stride[i] = (int64_t)((seed >> 16) % 17) - 4;
            }
            stride[2] = 1;
            seed = seed * 1664525u + 1013904223u;
            v[j] = view_of((seed >> 16) % 64, (seed >> 8) % 2 ? KF_TYPE_F32 : KF_TYPE_F16, 3, shape, stride);
        }
        if (kf_view_disjoint(&v[0], &v[1])) {
            apart++;
            assert_false(share_a_byte(&v[0], &v[1]));
        }
    }
    assert_true(apart > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(thirds_of_one_row_are_apart), cmocka_unit_test(random_views)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
