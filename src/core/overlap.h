// SPDX-License-Identifier: Apache-2.0
//
// Whether two views can share a byte. Used by op.c on every pair with an output in it.
#ifndef KF_CORE_OVERLAP_H
#define KF_CORE_OVERLAP_H

#include "core/internal.h"

// The bytes from *first to *end (exclusive) that a view of at least one element touches.
void kf_view_extent(const kf_view *view, uintptr_t *first, uintptr_t *end);

// The same data, type, shape and strides.
bool kf_view_same(const kf_view *a, const kf_view *b);

// True where it is certain that a and b share no byte: their extents are apart, or they are different columns of rows
// of one pitch (as the thirds of a packed q, k, v buffer are). Views that interleave in some other way count as
// overlapping.
bool kf_view_disjoint(const kf_view *a, const kf_view *b);

#endif
