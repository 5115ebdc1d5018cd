// SPDX-License-Identifier: Apache-2.0
//
// The oracle itself: against numbers worked out by hand, and against identities that hold for any data. What it says about visible
// pairs is held against src/math/mask.h in test_mask_reference.c; its block formats against the gguf package in test_blocks.c.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "reference/reference.h"

static const kf_dtype FP32 = KF_FP32, FP16 = KF_FP16, BF16 = KF_BF16, INT64 = KF_INT64;

static void near(double got, double want, double error) {
    if (!(fabs(got - want) <= error)) fail_msg("got %.17g, want %.17g", got, want);
}

// ------------------------------------------------------------------------------------------------------------ numbers

static double of_bits(kf_dtype dtype, uint16_t bits) { return ref_decode(dtype, &bits); }

static void known_numbers(void **state) {
    (void)state;
    assert_true(of_bits(FP16, 0x3C00) == 1 && of_bits(FP16, 0xC000) == -2 && of_bits(FP16, 0x3555) == 0.333251953125);
    assert_true(of_bits(FP16, 0x7BFF) == 65504 && of_bits(FP16, 0x0400) == 0x1p-14 && of_bits(FP16, 0x0001) == 0x1p-24);
    assert_true(of_bits(FP16, 0x7C00) == INFINITY && of_bits(FP16, 0xFC00) == -INFINITY &&
                isnan(of_bits(FP16, 0x7C01)));
    assert_true(of_bits(BF16, 0x3F80) == 1 && of_bits(BF16, 0x4049) == 3.140625 && of_bits(BF16, 0x0001) == 0x1p-133);
    assert_true(of_bits(BF16, 0x7F7F) == 3.3895313892515355e38 && of_bits(BF16, 0xFF80) == -INFINITY &&
                isnan(of_bits(BF16, 0xFFA5)));
}

static void every_number_comes_back(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        const kf_dtype dtypes[] = {FP16, BF16};
        for (int d = 0; d < 2; d++) {
            const double value = of_bits(dtypes[d], (uint16_t)bits);
            uint16_t again = 0;
            ref_encode(dtypes[d], value, &again);
            if (isnan(value))
                assert_true(isnan(of_bits(dtypes[d], again)));
            else
                assert_int_equal(again, bits);
        }
    }
}

static void rounding_goes_to_even(void **state) {
    (void)state;
    assert_true(ref_round(FP16, 1 + 0x1p-11) == 1 && ref_round(FP16, 1 + 3 * 0x1p-11) == 1 + 0x1p-9);
    assert_true(ref_round(FP16, 1 + 0x1p-11 + 0x1p-40) == 1 + 0x1p-10);
    assert_true(ref_round(FP16, 65519.99) == 65504 && ref_round(FP16, 65520) == INFINITY &&
                ref_round(FP16, -1e9) == -INFINITY);
    assert_true(ref_round(FP16, 0x1p-25) == 0 && ref_round(FP16, 0x1.8p-24) == 0x1p-23 &&
                ref_round(FP16, 0x1.1p-25) == 0x1p-24);
    assert_true(ref_round(BF16, 15962) == 15936); // neighbours are 64 apart there
    assert_true(ref_ulp(BF16, 1) == 0x1p-7 && ref_ulp(FP16, 1) == 0x1p-10 && ref_ulp(FP32, 1.5) == 0x1p-23);
    assert_true(ref_ulp(FP16, 0) == 0x1p-24 && ref_ulp(FP16, 1e-6) == 0x1p-24);
    // Neighbours of every fp16 number: the midpoint goes to the one with an even last bit.
    for (uint16_t bits = 0; bits < 0x7BFF; bits++) {
        const double low = of_bits(FP16, bits), high = of_bits(FP16, (uint16_t)(bits + 1));
        assert_true(ref_round(FP16, (low + high) / 2) == (bits % 2 ? high : low));
    }
}

static void strides_and_offsets(void **state) {
    (void)state;
    float data[12];
    for (int e = 0; e < 12; e++) data[e] = (float)e;
    const int64_t shape[2] = {3, 2}, strides[2] = {-4, 1}, index[2] = {2, 1};
    kf_tensor tensor = kf_tensor_cpu(data, FP32, 2, shape);
    double row[2];
    assert_true(ref_at(&tensor, index) == 5); // compact
    tensor.strides = strides, tensor.byte_offset = 9 * sizeof(float);
    assert_true(ref_at(&tensor, index) == 2); // 9 - 2 * 4 + 1
    ref_row(&tensor, 1, row);
    assert_true(row[0] == 5 && row[1] == 6 && ref_elements(&tensor) == 6 && ref_leading(&tensor, 1) == 3);
}

// ---------------------------------------------------------------------------------------------------------- attention

enum { D = 8, MAX_KEYS = 12, MAX_QUERIES = 6, HEADS = 2 };

// One sequence, HEADS query heads, one KV head.
typedef struct problem {
    float q[HEADS * MAX_QUERIES * D], k[MAX_KEYS * D], v[MAX_KEYS * D];
    int64_t q_shape[4], k_shape[4];
    kf_tensor q_tensor, k_tensor, v_tensor, o_tensor;
    kf_attention_args args;
} problem;

static void set_up(problem *p, int64_t Nq, int64_t Nk) {
    memset(p, 0, sizeof *p);
    const int64_t q_shape[4] = {1, HEADS, Nq, D}, k_shape[4] = {1, 1, Nk, D};
    memcpy(p->q_shape, q_shape, sizeof q_shape);
    memcpy(p->k_shape, k_shape, sizeof k_shape);
    p->q_tensor = kf_tensor_cpu(p->q, FP32, 4, p->q_shape);
    p->k_tensor = kf_tensor_cpu(p->k, FP32, 4, p->k_shape);
    p->v_tensor = kf_tensor_cpu(p->v, FP32, 4, p->k_shape);
    p->o_tensor = p->q_tensor; // its dtype is looked at, its data is not
    p->args.q = &p->q_tensor, p->args.k = &p->k_tensor, p->args.v = &p->v_tensor, p->args.o = &p->o_tensor;
    p->args.scale = 1;
}

static void fill(problem *p) {
    uint32_t seed = 7;
    float *arrays[3] = {p->q, p->k, p->v};
    const int counts[3] = {HEADS * MAX_QUERIES * D, MAX_KEYS * D, MAX_KEYS * D};
    for (int a = 0; a < 3; a++) {
        for (int e = 0; e < counts[a]; e++) {
            seed = seed * 1664525u + 1013904223u;
            arrays[a][e] = (float)(int32_t)seed * 0x1p-30f;
        }
    }
}

// One query (1, 0, ...), keys whose first elements are 0 and ln 3, values 10 and 20: weights 1/4 and 3/4.
static void two_keys(problem *p) {
    set_up(p, 1, 2);
    p->q[0] = 1;
    p->k[D] = (float)log(3);
    p->v[0] = 10, p->v[D] = 20;
}

static void attend(const problem *p, double *o, double *lse) {
    assert_true(ref_attention(&p->args, NULL, HEADS * p->q_shape[2], o, lse));
}

static void attention_by_hand(void **state) {
    (void)state;
    problem p;
    double o[HEADS * MAX_QUERIES * D], lse[HEADS * MAX_QUERIES];
    two_keys(&p);
    attend(&p, o, lse);
    near(o[0], 17.5, 1e-6);
    near(lse[0], log(4), 1e-6);
    near(o[D], 15, 1e-12); // the second head's query is zero: the mean
    near(lse[1], log(2), 1e-12);

    p.args.scale = 2; // scores 0 and ln 9
    attend(&p, o, lse);
    near(o[0], 10 * 0.1 + 20 * 0.9, 1e-6);

    p.args.scale = 0; // 1 / sqrt(8)
    attend(&p, o, lse);
    const double weight = pow(3, 1 / sqrt(8));
    near(o[0], (10 + 20 * weight) / (1 + weight), 1e-6);

    p.args.scale = 1, p.args.softcap = 0.5f; // 0 and tanh(2 ln 3) / 2 = (81 - 1) / (81 + 1) / 2
    attend(&p, o, lse);
    const double capped = exp(0.5 * 80.0 / 82.0);
    near(o[0], (10 + 20 * capped) / (1 + capped), 1e-6);
}

static void additions_to_scores_by_hand(void **state) {
    (void)state;
    problem p;
    double o[HEADS * MAX_QUERIES * D], lse[HEADS * MAX_QUERIES];
    const int64_t heads[1] = {HEADS}, scores[4] = {1, 1, 1, 2};
    two_keys(&p);
    // A sink of ln 4 takes half: weights 1/8 and 3/8.
    const float sinks[HEADS] = {(float)log(4), -INFINITY};
    kf_tensor sink_tensor = kf_tensor_cpu(sinks, FP32, 1, heads);
    p.args.sinks = &sink_tensor;
    attend(&p, o, lse);
    near(o[0], 8.75, 1e-6);
    near(lse[0], log(8), 1e-6);
    near(o[D], 15, 1e-12);
    p.args.sinks = NULL;
    // ALiBi: the query stands at 1, so key 0 loses one slope of ln 2: weights 1/7 and 6/7.
    const float slopes[HEADS] = {(float)log(2), 0};
    kf_tensor slope_tensor = kf_tensor_cpu(slopes, FP32, 1, heads);
    p.args.alibi_slopes = &slope_tensor;
    attend(&p, o, lse);
    near(o[0], (10 + 20 * 6) / 7.0, 1e-5);
    p.args.alibi_slopes = NULL;
    // A bias of ln 3 on key 0 evens the scores; one of -inf hides it; the lowest number does not, but weighs nothing.
    float bias[2] = {(float)log(3), 0};
    kf_tensor bias_tensor = kf_tensor_cpu(bias, FP32, 4, scores);
    p.args.bias = &bias_tensor;
    attend(&p, o, lse);
    near(o[0], 15, 1e-6);
    bias[0] = -INFINITY, p.v[0] = NAN;
    attend(&p, o, lse);
    near(o[0], 20, 1e-6);
    near(lse[0], log(3), 1e-6);
    bias[0] = bias[1] = -3.4e38f, p.v[0] = 10;
    attend(&p, o, lse);
    near(o[0], 15, 1e-6);
    bias[0] = bias[1] = -INFINITY;
    attend(&p, o, lse);
    assert_true(o[0] == 0 && lse[0] == -INFINITY);
}

static void rows_without_keys(void **state) {
    (void)state;
    problem p;
    double o[HEADS * MAX_QUERIES * D], lse[HEADS * MAX_QUERIES];
    const int64_t heads[1] = {HEADS};
    const float sinks[HEADS] = {2.5f, -1};
    kf_tensor sink_tensor = kf_tensor_cpu(sinks, FP32, 1, heads);
    set_up(&p, 5, 2); // causal, bottom-right: rows 0 to 2 stand before key 0
    fill(&p);
    p.args.flags = KF_ATTENTION_CAUSAL;
    attend(&p, o, lse);
    for (int64_t i = 0; i < 5; i++) assert_true((lse[i] == -INFINITY) == (i < 3) && (o[i * D] == 0) == (i < 3));
    near(o[3 * D], (double)p.v[0], 1e-6); // row 3 sees key 0 alone
    p.args.sinks = &sink_tensor;
    attend(&p, o, lse);
    assert_true(o[0] == 0 && lse[0] == 2.5 && lse[5] == -1);
}

// Keys [0, 5) and [5, 12) as two states, merged, are the state of all.
static void states_merge(void **state) {
    (void)state;
    problem p;
    double whole[HEADS * D], whole_lse[HEADS], part[HEADS * D], part_lse[HEADS];
    float o_parts[2][HEADS][D], lse_parts[2][HEADS];
    set_up(&p, 1, MAX_KEYS);
    fill(&p);
    attend(&p, whole, whole_lse);
    for (int s = 0; s < 2; s++) {
        p.k_shape[2] = s ? 7 : 5;
        p.k_tensor.data = p.k + s * 5 * D, p.v_tensor.data = p.v + s * 5 * D;
        attend(&p, part, part_lse);
        for (int e = 0; e < HEADS * D; e++) o_parts[s][e / D][e % D] = (float)part[e];
        for (int h = 0; h < HEADS; h++) lse_parts[s][h] = (float)part_lse[h];
    }
    const int64_t shape[3] = {2, HEADS, D};
    kf_tensor o_tensor = kf_tensor_cpu(o_parts, FP32, 3, shape), lse_tensor = kf_tensor_cpu(lse_parts, FP32, 2, shape);
    kf_tensor out = kf_tensor_cpu(NULL, FP32, 2, shape + 1);
    kf_merge_states_args merge = {.o_parts = &o_tensor, .lse_parts = &lse_tensor, .o = &out};
    assert_true(ref_merge_states(&merge, part, part_lse));
    for (int e = 0; e < HEADS * D; e++) near(part[e], whole[e], 1e-6);
    for (int h = 0; h < HEADS; h++) near(part_lse[h], whole_lse[h], 1e-6);
}

// Rotated by the same angle more, queries and keys give the same scores: only p - j counts.
static void rotation_is_relative(void **state) {
    (void)state;
    for (int pairing = KF_ROPE_NEOX; pairing <= KF_ROPE_GPTJ; pairing++) {
        const kf_rope_params rope = {.pairing = pairing, .base = 100};
        const double q0[D] = {1, -2, 3, 0.5, -1, 2, 0.25, 1}, k0[D] = {0.5, 1, -1, 2, 3, -0.5, 1, 0};
        double first = 0;
        for (int shift = 0; shift < 50; shift++) {
            double q[D], k[D], product = 0, norm = 0;
            memcpy(q, q0, sizeof q);
            memcpy(k, k0, sizeof k);
            ref_rotate(&rope, D, 9 + shift, q);
            ref_rotate(&rope, D, 4 + shift, k);
            for (int c = 0; c < D; c++) product += q[c] * k[c], norm += q[c] * q[c];
            near(norm, 20.3125, 1e-12);
            if (shift == 0) first = product;
            near(product, first, 1e-12);
        }
    }
}

static void rotation_by_hand(void **state) {
    (void)state;
    double x[D] = {1, 2, 0, 0, 0, 0, 5, 6}, y[D] = {1, 0, 2, 0, 0, 0, 5, 6};
    const kf_rope_params neox = {.pairing = KF_ROPE_NEOX, .dims = 4, .base = 100},
                         gptj = {.pairing = KF_ROPE_GPTJ, .dims = 4, .base = 100};
    ref_rotate(&neox, D, 2, x); // pairs (0, 2) by 2 and (1, 3) by 2 / 10; elements 4 to 7 stay
    ref_rotate(&gptj, D, 2, y); // pairs (0, 1) and (2, 3)
    const double want[4] = {cos(2), 2 * cos(0.2), sin(2), 2 * sin(0.2)};
    for (int c = 0; c < 4; c++) near(x[c], want[c], 1e-15);
    near(y[0], want[0], 1e-15), near(y[1], want[2], 1e-15), near(y[2], want[1], 1e-15), near(y[3], want[3], 1e-15);
    assert_true(x[6] == 5 && x[7] == 6 && y[6] == 5);
}

// Where a pair's angle at position 1 ends up: its frequency.
static double frequency(kf_rope_params rope, int64_t dims, int64_t c) {
    double x[256] = {0};
    rope.pairing = KF_ROPE_GPTJ;
    x[2 * c] = 1;
    ref_rotate(&rope, dims, 1, x);
    return atan2(x[2 * c + 1], x[2 * c]);
}

static void scalings_by_hand(void **state) {
    (void)state;
    const kf_rope_params linear = {.scaling = KF_ROPE_SCALING_LINEAR, .factor = 4};
    near(frequency(linear, 64, 3), pow(10000, -6.0 / 64) / 4, 1e-15);
    // llama3, L = 8192, low 1, high 4: a wavelength of 2 pi is unchanged, one of 2 pi 500000^(62/64) is divided by 8.
    const kf_rope_params llama3 = {
        .scaling = KF_ROPE_SCALING_LLAMA3, .base = 500000, .factor = 8, .original_context = 8192};
    near(frequency(llama3, 64, 0), 1, 1e-15);
    near(frequency(llama3, 64, 31), pow(500000, -62.0 / 64) / 8, 1e-18);
    // Between: c = 17, wavelength 6700: L / wavelength = 1.2227, blend (1.2227 - 1) / 3.
    const double f = pow(500000, -34.0 / 64), blend = (8192 * f / 6.283185307179586 - 1) / 3;
    assert_true(blend > 0 && blend < 1);
    near(frequency(llama3, 64, 17), (1 - blend) * f / 8 + blend * f, 1e-15);
    // YaRN, 64 dimensions, L = 4096: index(32) = 10.46, index(1) = 22.5: the ramp goes from 10 to 23, and amplitudes grow by 1.277.
    const kf_rope_params yarn = {
        .pairing = KF_ROPE_GPTJ, .scaling = KF_ROPE_SCALING_YARN, .factor = 16, .original_context = 4096};
    near(frequency(yarn, 64, 10), pow(10000, -20.0 / 64), 1e-15);
    near(frequency(yarn, 64, 23), pow(10000, -46.0 / 64) / 16, 1e-16);
    const double middle = pow(10000, -32.0 / 64), ramp = 6.0 / 13;
    near(frequency(yarn, 64, 16), middle / 16 * ramp + middle * (1 - ramp), 1e-15);
    double x[64] = {1};
    ref_rotate(&yarn, 64, 0, x);
    near(x[0], 0.1 * log(16) + 1, 1e-15);
}

// The naive result is off by about the dtype's precision, and no less than a hundredth of it.
static void naive_is_naive(void **state) {
    (void)state;
    problem p;
    double o[HEADS * MAX_QUERIES * D], naive[HEADS * MAX_QUERIES * D];
    uint16_t q[HEADS * MAX_QUERIES * D], k[MAX_KEYS * D], v[MAX_KEYS * D];
    const kf_dtype dtypes[] = {FP32, FP16, BF16};
    for (int d = 0; d < 3; d++) {
        set_up(&p, MAX_QUERIES, MAX_KEYS);
        fill(&p);
        for (int e = 0; e < HEADS * MAX_QUERIES * D; e++)
            ref_encode(dtypes[d], (double)p.q[e], d ? (void *)&q[e] : (void *)&p.q[e]);
        for (int e = 0; e < MAX_KEYS * D && d; e++)
            ref_encode(dtypes[d], (double)p.k[e], &k[e]), ref_encode(dtypes[d], (double)p.v[e], &v[e]);
        if (d) p.q_tensor.data = q, p.k_tensor.data = k, p.v_tensor.data = v;
        p.q_tensor.dtype = p.k_tensor.dtype = p.v_tensor.dtype = p.o_tensor.dtype = dtypes[d];
        attend(&p, o, NULL);
        assert_true(ref_attention_naive(&p.args, NULL, HEADS * MAX_QUERIES, naive));
        double worst = 0;
        for (int e = 0; e < HEADS * MAX_QUERIES * D; e++) worst = fmax(worst, fabs(naive[e] - o[e]));
        const double unit = ldexp(1, -ref_precision(dtypes[d]));
        assert_true(worst < 16 * unit && worst > unit / 100);
    }
}

static void a_subset_of_rows(void **state) {
    (void)state;
    problem p;
    double all[HEADS * MAX_QUERIES * D], some[3 * D], all_lse[HEADS * MAX_QUERIES], some_lse[3];
    const int64_t rows[3] = {11, 0, 7};
    set_up(&p, MAX_QUERIES, MAX_KEYS);
    fill(&p);
    p.args.flags = KF_ATTENTION_CAUSAL;
    attend(&p, all, all_lse);
    assert_true(ref_attention(&p.args, rows, 3, some, some_lse));
    for (int r = 0; r < 3; r++) {
        assert_memory_equal(some + r * D, all + rows[r] * D, D * sizeof(double));
        assert_true(some_lse[r] == all_lse[rows[r]]);
    }
}

// ----------------------------------------------------------------------------------------------------- row operations

static void row_operations_by_hand(void **state) {
    (void)state;
    double y[4], sum[4];
    const int64_t shape[2] = {1, 2}, packed[2] = {1, 4};
    const float x[2] = {3, 4}, weight[2] = {2, 10}, residual[2] = {0, -1}, logits[2] = {0, (float)log(3)};
    kf_tensor x_tensor = kf_tensor_cpu(x, FP32, 2, shape), weight_tensor = kf_tensor_cpu(weight, FP32, 1, shape + 1);
    kf_tensor residual_tensor = kf_tensor_cpu(residual, FP32, 2, shape),
              logits_tensor = kf_tensor_cpu(logits, FP32, 2, shape);
    kf_tensor y_tensor = kf_tensor_cpu(NULL, FP32, 2, shape);

    kf_rmsnorm_args norm = {.x = &x_tensor, .weight = &weight_tensor, .y = &y_tensor};
    assert_true(ref_rmsnorm(&norm, y, NULL, NULL)); // mean of squares 12.5
    near(y[0], 6 / sqrt(12.5), 1e-14), near(y[1], 40 / sqrt(12.5), 1e-14);
    norm.residual = &residual_tensor, norm.weight_offset = 1, norm.eps = 7; // (3, 3): mean 9
    assert_true(ref_rmsnorm(&norm, y, sum, NULL));
    near(y[0], 3 * 3 / 4.0, 1e-14), near(y[1], 3 * 11 / 4.0, 1e-14);
    assert_true(sum[0] == 3 && sum[1] == 3);

    kf_softmax_args softmax = {.x = &logits_tensor, .y = &y_tensor};
    ref_softmax(&softmax, y, sum);
    near(y[0], 0.25, 1e-7), near(y[1], 0.75, 1e-7), near(sum[0], log(4), 1e-7);

    const float halves[4] = {(float)log(3), 0, 8, 9}; // sigmoid(ln 3) = 3/4
    kf_tensor halves_tensor = kf_tensor_cpu(halves, FP32, 2, packed);
    kf_swiglu_args swiglu = {.gate_up = &halves_tensor, .y = &y_tensor};
    ref_swiglu(&swiglu, y);
    near(y[0], 0.75 * log(3) * 8, 1e-6);
    assert_true(y[1] == 0);
}

// The place of the cast: s = 1 + 2^-9 rounds to 1 in bf16.
static void casts_by_hand(void **state) {
    (void)state;
    double y[2];
    const int64_t shape[2] = {1, 2};
    uint16_t x[2], residual[2], weight[2];
    ref_encode(BF16, 1, &x[0]), ref_encode(BF16, 3, &x[1]);
    ref_encode(BF16, 0x1p-9, &residual[0]), ref_encode(BF16, 0, &residual[1]);
    ref_encode(BF16, 1, &weight[0]), ref_encode(BF16, 1 + 0x1p-7, &weight[1]);
    kf_tensor x_tensor = kf_tensor_cpu(x, BF16, 2, shape), residual_tensor = kf_tensor_cpu(residual, BF16, 2, shape);
    kf_tensor weight_tensor = kf_tensor_cpu(weight, BF16, 1, shape + 1);
    kf_rmsnorm_args args = {.x = &x_tensor, .residual = &residual_tensor, .weight = &weight_tensor, .y = &x_tensor};
    const double s = 1 + 0x1p-9;
    assert_true(ref_rmsnorm(&args, y, NULL, NULL));
    near(y[0], s / sqrt((s * s + 9) / 2), 1e-14);
    args.cast = KF_CAST_SUM;
    assert_true(ref_rmsnorm(&args, y, NULL, NULL));
    near(y[0], 1 / sqrt(5), 1e-14);
    near(y[1], 3 / sqrt(5) * (1 + 0x1p-7), 1e-14);
    args.cast = KF_CAST_LLAMA;
    assert_true(ref_rmsnorm(&args, y, NULL, NULL));
    assert_true(y[0] == ref_round(BF16, 1 / sqrt(5)) && y[1] == ref_round(BF16, 3 / sqrt(5)) * (1 + 0x1p-7));
}

static void caches_and_tables_by_hand(void **state) {
    (void)state;
    double k[4], v[2], y[2];
    const int64_t shape[4] = {1, 1, 2, 2}, narrow[4] = {1, 1, 2, 1}, slots[1] = {5}, one[1] = {1}, ids[1] = {2};
    const float new_k[4] = {1, 0, 0, 1}, new_v[2] = {7, 8}, table[6] = {1, 2, 3, 4, 5, 6};
    kf_tensor k_tensor = kf_tensor_cpu(new_k, FP32, 4, shape), v_tensor = kf_tensor_cpu(new_v, FP32, 4, narrow);
    kf_tensor slot_tensor = kf_tensor_cpu(slots, INT64, 1, one), id_tensor = kf_tensor_cpu(ids, INT64, 1, one);
    kf_kv_append_args append = {
        .k = &k_tensor, .v = &v_tensor, .slots = &slot_tensor, .rope = {.pairing = KF_ROPE_NEOX}};
    ref_kv_append(&append, k, v); // positions 5 and 6
    near(k[0], cos(5), 1e-15), near(k[1], sin(5), 1e-15), near(k[2], -sin(6), 1e-15), near(k[3], cos(6), 1e-15);
    assert_true(v[0] == 7 && v[1] == 8);

    const kf_weight weight = {.type = KF_WEIGHT_F32, .rows = 3, .cols = 2, .data = table, .bytes = sizeof table};
    kf_embedding_args embedding = {.table = &weight, .ids = &id_tensor, .scale = 3};
    assert_true(ref_embedding(&embedding, y));
    assert_true(y[0] == 15 && y[1] == 18);
}

// -------------------------------------------------------------------------------------------------------------- linear

static void linear_by_hand(void **state) {
    (void)state;
    double y[3], size[3];
    const int64_t shape[2] = {1, 2}, outputs[1] = {3};
    const float x[2] = {2, -1}, table[6] = {1, 2, 3, 4, 5, 6}, bias[3] = {0, 10, 0};
    kf_tensor x_tensor = kf_tensor_cpu(x, FP32, 2, shape), bias_tensor = kf_tensor_cpu(bias, FP32, 1, outputs);
    const kf_weight weight = {.type = KF_WEIGHT_F32, .rows = 3, .cols = 2, .data = table, .bytes = sizeof table};
    kf_linear_args args = {.x = &x_tensor, .weight = &weight, .bias = &bias_tensor};
    assert_true(ref_linear(&args, 0, 3, y, size));
    assert_true(y[0] == 0 && y[1] == 12 && y[2] == 4 && size[0] == 4 && size[1] == 20 && size[2] == 16);
}

static void quantiser_by_hand(void **state) {
    (void)state;
    double x[96] = {0}, scales[3];
    int8_t q[96];
    const double values[8] = {127, 0.5, 1.5, 2.5, -0.5, -1.5, -126.6, 0.49}; // scale 1: ties go to even
    const int8_t want[8] = {127, 0, 2, 2, 0, -2, -127, 0};
    memcpy(x, values, sizeof values);
    x[64] = -0.25; // the third block: scale 0.25 / 127; the second is all zero
    x[65] = 0.125;
    ref_quantise_int8(x, 96, q, scales);
    assert_true(scales[0] == 1 && scales[1] == 0 && scales[2] == (double)(0.25f / 127));
    assert_memory_equal(q, want, 8);
    assert_true(q[40] == 0 && q[64] == -127 && q[65] == 64);
    x[33] = NAN;
    ref_quantise_int8(x, 96, q, scales);
    assert_true(scales[0] == 1 && isnan(scales[1]) && q[33] == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_numbers),         cmocka_unit_test(every_number_comes_back),
        cmocka_unit_test(rounding_goes_to_even), cmocka_unit_test(strides_and_offsets),
        cmocka_unit_test(attention_by_hand),     cmocka_unit_test(additions_to_scores_by_hand),
        cmocka_unit_test(rows_without_keys),     cmocka_unit_test(states_merge),
        cmocka_unit_test(rotation_is_relative),  cmocka_unit_test(rotation_by_hand),
        cmocka_unit_test(scalings_by_hand),      cmocka_unit_test(naive_is_naive),
        cmocka_unit_test(a_subset_of_rows),      cmocka_unit_test(row_operations_by_hand),
        cmocka_unit_test(casts_by_hand),         cmocka_unit_test(caches_and_tables_by_hand),
        cmocka_unit_test(linear_by_hand),        cmocka_unit_test(quantiser_by_hand),
    };
    return cmocka_run_group_tests_name("reference", tests, NULL, NULL);
}
