// SPDX-License-Identifier: Apache-2.0
//
// The linear layer's micro-kernels in plain C, for every machine: linear_tile.h with vectors of one lane.
#include "cpu/simd_scalar.h"

#include <math.h>

typedef int32_t kf_int;

static inline kf_int kf_int_load(const void *p) {
    int32_t v;
    memcpy(&v, p, 4);
    return v;
}
static inline kf_int kf_int_set1(int32_t v) { return v; }
static inline kf_int kf_int_and(kf_int a, kf_int b) { return a & b; }
static inline kf_int kf_int_or(kf_int a, kf_int b) { return a | b; }
static inline kf_int kf_int_add(kf_int a, kf_int b) { return a + b; }
static inline kf_int kf_int_shl(kf_int a, int n) { return (kf_int)((uint32_t)a << n); }
static inline kf_int kf_int_shr(kf_int a, int n) { return (kf_int)((uint32_t)a >> n); }
static inline kf_int kf_int_sar(kf_int a, int n) { return a >> n; }
static inline kf_vec kf_int_as_vec(kf_int a) { return kf_float_of_bits((uint32_t)a); }
static inline kf_vec kf_int_to_vec(kf_int a) { return (float)a; }
static inline kf_int kf_vec_to_int(kf_vec a) { return (kf_int)lrintf(a); }
static inline void kf_int_store_bytes(int8_t *p, kf_int a) { *p = (int8_t)a; }
static inline int32_t kf_int_hsum(kf_int a) { return a; }
static inline kf_vec kf_vec_load_u8(const void *p) { return (float)*(const uint8_t *)p; }
static inline kf_vec kf_vec_load_s8(const void *p) { return (float)*(const int8_t *)p; }

static inline kf_int kf_dot(kf_int sum, kf_int w, kf_int x) {
    for (int i = 0; i < 32; i += 8) sum += (int32_t)(uint8_t)((uint32_t)w >> i) * (int8_t)((uint32_t)x >> i);
    return sum;
}

#include "cpu/linear_tile.h"

KF_QUANT_ROWS(1)
KF_DENSE_ROWS(1, 1)

static const int32_t ROWS[] = {1};

const kf_linear_kernels kf_linear_scalar = {
    .notes = "one row of x at a time",
    .quant_rows = ROWS,
    .dense_rows = ROWS,
    .dense_panels = 1,
    .load = kf_linear_load,
    .store = kf_linear_store,
    .split = kf_linear_split,
    .quant = quant_rows_1,
    .dense = dense_rows_1_1,
};
