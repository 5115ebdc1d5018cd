// SPDX-License-Identifier: Apache-2.0
//
// Overlap of strided views. In general it is a hard problem (a Diophantine one); two sufficient tests cover what
// callers do.
#include "core/overlap.h"

#include <string.h>

void kf_view_extent(const kf_view *view, uintptr_t *first, uintptr_t *end) {
    int64_t low = 0, high = 0, size = kf_type_size(view->type);
    for (int i = 0; i < view->ndim; i++) {
        int64_t reach = (view->shape[i] - 1) * view->stride[i];
        if (reach < 0)
            low += reach;
        else
            high += reach;
    }
    *first = (uintptr_t)view->data + (uintptr_t)(low * size);
    *end = (uintptr_t)view->data + (uintptr_t)((high + 1) * size);
}

bool kf_view_same(const kf_view *a, const kf_view *b) {
    if (a->data != b->data || a->type != b->type || a->ndim != b->ndim) return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i] || a->stride[i] != b->stride[i]) return false;
    return true;
}

static int64_t gcd(int64_t a, int64_t b) {
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

// Splits a view into a contiguous run of *width bytes and outer dimensions whose strides (bytes) are folded into *pitch
// by gcd.
static void run_and_pitch(const kf_view *view, int64_t *width, int64_t *pitch) {
    int64_t size = kf_type_size(view->type);
    bool used[KF_MAX_NDIM] = {false};
    *width = size;
    for (bool grown = true; grown;) {
        grown = false;
        for (int i = 0; i < view->ndim; i++) {
            if (used[i] || view->shape[i] <= 1 || kf_absolute(view->stride[i]) * size != *width) continue;
            *width *= view->shape[i];
            used[i] = grown = true;
        }
    }
    for (int i = 0; i < view->ndim; i++)
        if (!used[i] && view->shape[i] > 1) *pitch = gcd(*pitch, kf_absolute(view->stride[i]) * size);
}

bool kf_view_disjoint(const kf_view *a, const kf_view *b) {
    uintptr_t a_first, a_end, b_first, b_end;
    kf_view_extent(a, &a_first, &a_end);
    kf_view_extent(b, &b_first, &b_end);
    if (a_end <= b_first || b_end <= a_first) return true;
    int64_t pitch = 0, a_width, b_width;
    run_and_pitch(a, &a_width, &pitch);
    run_and_pitch(b, &b_width, &pitch);
    if (pitch == 0) return false;
    // All bytes of a view lie at [offset, offset + width) modulo the pitch.
    int64_t offset = (int64_t)((b_first > a_first ? b_first - a_first : a_first - b_first) % (uintptr_t)pitch);
    if (b_first < a_first && offset) offset = pitch - offset;
    return a_width <= offset && offset + b_width <= pitch;
}
