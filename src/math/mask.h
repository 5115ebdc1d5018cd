// SPDX-License-Identifier: Apache-2.0
//
// The mask as geometry. Key length, causal order and sliding window together leave each query row one interval of keys:
//
//     row at position p sees keys j in [lo, hi),   lo = max(0, p - left),   hi = min(length, p + right + 1)
//
// (causal: right = 0; no limit: INT64_MAX). From the interval follows, without a look at any pair:
//     the keys that some row of a query tile sees       kf_mask_keys
//     the positions that see some key of a key tile     kf_mask_queries
//     whether a tile of pairs is full, partial, skipped kf_mask_classify
// Boolean masks and biases of -inf hide single pairs inside the interval; they are not geometry.
//
// All bounds are 64-bit, saturate instead of overflowing, and mean positions and key indices of the whole sequence, so
// a tile may start anywhere (pages, ranks). Used by the plan and by the CPU and CUDA kernels.
#ifndef KF_MATH_MASK_H
#define KF_MATH_MASK_H

#include <stdint.h>

#include "math/hd.h"

typedef struct kf_interval {
    int64_t lo, hi; // [lo, hi); empty where hi <= lo
} kf_interval;

typedef struct kf_mask {
    int64_t length;      // keys of the sequence: 0 <= j < length
    int64_t left, right; // inclusive; INT64_MAX: no limit
} kf_mask;

typedef enum kf_tile_class { KF_TILE_SKIPPED = 0, KF_TILE_PARTIAL = 1, KF_TILE_FULL = 2 } kf_tile_class;

// a + b for b >= 0 and a - b for b >= 0, held at the ends of int64.
KF_HD int64_t kf_saturating_add(int64_t a, int64_t b) { return a > INT64_MAX - b ? INT64_MAX : a + b; }
KF_HD int64_t kf_saturating_sub(int64_t a, int64_t b) { return a < INT64_MIN + b ? INT64_MIN : a - b; }

KF_HD int64_t kf_min64(int64_t a, int64_t b) { return a < b ? a : b; }
KF_HD int64_t kf_max64(int64_t a, int64_t b) { return a > b ? a : b; }

KF_HD kf_interval kf_intersect(kf_interval a, kf_interval b) {
    kf_interval both = {kf_max64(a.lo, b.lo), kf_min64(a.hi, b.hi)};
    return both;
}

// The keys that the row at position p sees: 0 <= lo <= hi <= length, and both ends grow with p.
KF_HD kf_interval kf_mask_row(const kf_mask *mask, int64_t p) {
    kf_interval keys = {0, mask->length};
    if (mask->left != INT64_MAX) keys.lo = kf_max64(0, kf_saturating_sub(p, mask->left));
    if (mask->right != INT64_MAX)
        keys.hi = kf_max64(0, kf_min64(mask->length, kf_saturating_add(kf_saturating_add(p, mask->right), 1)));
    keys.lo = kf_min64(keys.lo, keys.hi); // an empty interval lies within the keys, too
    return keys;
}

// The keys that the rows at positions p_min .. p_max may see: all keys of the tile's rows lie in it.
KF_HD kf_interval kf_mask_keys(const kf_mask *mask, int64_t p_min, int64_t p_max) {
    kf_interval first = kf_mask_row(mask, p_min), last = kf_mask_row(mask, p_max);
    kf_interval keys = {first.lo, last.hi};
    return keys;
}

// The positions that see some key of [k0, k1); [INT64_MIN, INT64_MAX) where nothing limits them.
KF_HD kf_interval kf_mask_queries(const kf_mask *mask, int64_t k0, int64_t k1) {
    kf_interval positions = {INT64_MIN, INT64_MAX};
    kf_interval whole = {0, mask->length}, keys = {k0, k1};
    keys = kf_intersect(keys, whole);
    if (keys.hi <= keys.lo) {
        kf_interval none = {0, 0};
        return none;
    }
    // p + right >= first key, and p - left <= last key.
    if (mask->right != INT64_MAX) positions.lo = kf_saturating_sub(keys.lo, mask->right);
    if (mask->left != INT64_MAX) positions.hi = kf_saturating_add(keys.hi, mask->left);
    return positions;
}

// Rows at positions p_min .. p_max against keys [k0, k1): full where every such row sees every key, skipped where none
// sees any.
KF_HD kf_tile_class kf_mask_classify(const kf_mask *mask, int64_t p_min, int64_t p_max, int64_t k0, int64_t k1) {
    kf_interval keys = {k0, k1};
    kf_interval some = kf_intersect(keys, kf_mask_keys(mask, p_min, p_max));
    if (some.hi <= some.lo) return KF_TILE_SKIPPED;
    kf_interval low = kf_mask_row(mask, p_min), high = kf_mask_row(mask, p_max);
    return k0 >= high.lo && k1 <= low.hi ? KF_TILE_FULL : KF_TILE_PARTIAL;
}

#endif
