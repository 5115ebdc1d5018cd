// SPDX-License-Identifier: Apache-2.0
//
// Attention as an op: its items run by hand and in any order, splits that do not depend on the batch, values that are
// read at each run, RoPE at load, shapes near the limits between the paths.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "keyfold.h"

enum { B = 3, H = 6, HKV = 2, NQ = 40, NK = 700, D = 64 };

static float *random_floats(int64_t n, uint64_t seed) {
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)(seed >> 40) * 0x1p-23f - 1.0f;
    }
    return x;
}

// An attention over random fp32 tensors.
typedef struct fixture {
    int64_t sq[4], sk[4], b;
    float *q, *k, *v, *o;
    int32_t lengths[8];
    kf_tensor tq, tk, tv, to, tl;
    kf_attention_args args;
} fixture;

static void set_up(fixture *f, int64_t b, int64_t nq, int64_t nk) {
    const int64_t sq[4] = {b, H, nq, D}, sk[4] = {b, HKV, nk, D};
    const kf_dtype f32 = KF_FP32, i32 = KF_INT32;
    memset(f, 0, sizeof *f);
    memcpy(f->sq, sq, sizeof sq), memcpy(f->sk, sk, sizeof sk), f->b = b;
    f->q = random_floats(b * H * nq * D, 1), f->k = random_floats(b * HKV * nk * D, 2);
    f->v = random_floats(b * HKV * nk * D, 3), f->o = malloc((size_t)(b * H * nq * D) * sizeof *f->o);
    for (int i = 0; i < 8; i++) f->lengths[i] = (int32_t)nk;
    f->tq = kf_tensor_cpu(f->q, f32, 4, f->sq), f->tk = kf_tensor_cpu(f->k, f32, 4, f->sk);
    f->tv = kf_tensor_cpu(f->v, f32, 4, f->sk), f->to = kf_tensor_cpu(f->o, f32, 4, f->sq);
    f->tl = kf_tensor_cpu(f->lengths, i32, 1, &f->b);
    kf_attention_args_init(&f->args);
    f->args.q = &f->tq, f->args.k = &f->tk, f->args.v = &f->tv, f->args.o = &f->to, f->args.key_lengths = &f->tl;
    f->args.flags = KF_ATTENTION_CAUSAL;
}

static void tear_down(fixture *f) { free(f->q), free(f->k), free(f->v), free(f->o); }

static kf_context *context_of(int threads, int fixed_split) {
    kf_context_options options;
    kf_context *context = NULL;
    kf_context_options_init(&options);
    options.threads = threads, options.fixed_split = fixed_split;
    assert_int_equal(kf_context_create(&options, &context), KF_OK);
    return context;
}

static size_t bytes_of(const fixture *f) { return (size_t)(f->sq[0] * H * f->sq[2] * D) * sizeof(float); }

static void items_by_hand_in_any_order(void **state) {
    (void)state;
    kf_context *context = context_of(2, 0);
    const int64_t shapes[][2] = {{NQ, NK}, {2, NK}, {1, 3000}};
    for (int c = 0; c < 3; c++) {
        fixture f;
        kf_op *op;
        size_t bytes;
        int32_t phases;
        set_up(&f, B, shapes[c][0], shapes[c][1]);
        assert_int_equal(kf_op_create(context, &f.args.head, &op), KF_OK);
        assert_int_equal(kf_op_workspace_size(op, &bytes), KF_OK);
        char *workspace = malloc(bytes + 1);
        memset(workspace, 0xff, bytes); // NaN everywhere: nothing may be read that was not written
        assert_int_equal(kf_op_run(op, workspace, bytes), KF_OK);
        float *once = malloc(bytes_of(&f));
        memcpy(once, f.o, bytes_of(&f));
        memset(f.o, 0xff, bytes_of(&f));
        memset(workspace, 0xff, bytes);
        assert_int_equal(kf_op_prepare(op, workspace, bytes), KF_OK);
        assert_int_equal(kf_op_phase_count(op, &phases), KF_OK);
        for (int32_t phase = 0; phase < phases; phase++) {
            int64_t items;
            assert_int_equal(kf_op_item_count(op, phase, &items), KF_OK);
            for (int64_t i = items - 1; i >= 0; i--)
                assert_int_equal(kf_op_run_items(op, workspace, bytes, (int32_t)(i % 2), phase, i, 1), KF_OK);
        }
        assert_memory_equal(once, f.o, bytes_of(&f));
        assert_int_equal(kf_op_run(op, workspace, bytes - 1), KF_INVALID_ARGUMENT);
        kf_op_destroy(op);
        free(once), free(workspace), tear_down(&f);
    }
    kf_context_destroy(context);
}

// With fixed_split, sequence 0 alone and as one of three: the same bits.
static void fixed_splits_do_not_depend_on_the_batch(void **state) {
    (void)state;
    kf_context *context = context_of(3, 1);
    const int64_t queries[] = {1, 3, NQ};
    for (int c = 0; c < 3; c++) {
        fixture many, one;
        set_up(&many, B, queries[c], 2500), set_up(&one, 1, queries[c], 2500);
        assert_int_equal(kf_attention(context, &many.args), KF_OK);
        assert_int_equal(kf_attention(context, &one.args), KF_OK);
        assert_memory_equal(many.o, one.o, bytes_of(&one));
        tear_down(&many), tear_down(&one);
    }
    kf_context_destroy(context);
}

static void lengths_are_read_at_each_run(void **state) {
    (void)state;
    kf_context *context = context_of(2, 0);
    fixture f, shorter;
    kf_op *op;
    size_t bytes;
    set_up(&f, 1, 1, NK), set_up(&shorter, 1, 1, NK);
    assert_int_equal(kf_op_create(context, &f.args.head, &op), KF_OK);
    assert_int_equal(kf_op_workspace_size(op, &bytes), KF_OK);
    void *workspace = malloc(bytes + 1);
    for (int32_t length = 0; length <= NK; length += 35) {
        f.lengths[0] = length;
        assert_int_equal(kf_op_run(op, workspace, bytes), KF_OK);
        for (int h = 0; h < H; h++)
            for (int c = 0; c < D; c += 13) {
                double sum = 0, o = 0;
                for (int j = 0; j < length; j++) {
                    const float *k = f.k + ((h / (H / HKV)) * NK + j) * D;
                    double x = 0;
                    for (int i = 0; i < D; i++) x += (double)f.q[h * D + i] * (double)k[i];
                    sum += exp(x / 8), o += exp(x / 8) * (double)f.v[((h / (H / HKV)) * NK + j) * D + c];
                }
                assert_true(fabs((double)f.o[h * D + c] - (length ? o / sum : 0)) < 1e-5);
            }
    }
    const int32_t wrong[] = {-1, NK + 1, INT32_MAX};
    for (int i = 0; i < 3; i++) {
        f.lengths[0] = wrong[i];
        memset(f.o, 0x55, bytes_of(&f));
        assert_int_equal(kf_op_run(op, workspace, bytes), KF_INVALID_ARGUMENT);
        assert_non_null(strstr(kf_last_error(), "key_lengths[0]"));
        for (size_t c = 0; c < bytes_of(&f); c++) assert_int_equal(((unsigned char *)f.o)[c], 0x55);
    }
    kf_op_destroy(op);
    free(workspace), tear_down(&f), tear_down(&shorter);
    kf_context_destroy(context);
}

static void rotate(float *x, int64_t position, int pairing, int dims) {
    for (int c = 0; c < dims / 2; c++) {
        int a = pairing == KF_ROPE_NEOX ? c : 2 * c, b = pairing == KF_ROPE_NEOX ? c + dims / 2 : 2 * c + 1;
        double angle = (double)position * pow(10000.0, -2.0 * c / dims), first = (double)x[a], second = (double)x[b];
        x[a] = (float)(first * cos(angle) - second * sin(angle));
        x[b] = (float)(first * sin(angle) + second * cos(angle));
    }
}

// RoPE at load against keys and queries that were rotated before.
static void rope_at_load(void **state) {
    (void)state;
    kf_context *context = context_of(2, 0);
    for (int c = 0; c < 8; c++) {
        int pairing = c & 1 ? KF_ROPE_GPTJ : KF_ROPE_NEOX, dims = c & 2 ? 24 : D;
        int64_t nq = c & 4 ? 1 : NQ, nk = c & 4 ? 2000 : 300;
        fixture f, before;
        set_up(&f, 2, nq, nk), set_up(&before, 2, nq, nk);
        f.lengths[1] = before.lengths[1] = 100;
        f.args.flags |= KF_ATTENTION_ROPE_Q | KF_ATTENTION_ROPE_K;
        f.args.rope.pairing = pairing, f.args.rope.dims = dims;
        for (int64_t r = 0; r < 2 * H * nq; r++)
            rotate(before.q + r * D, r % nq + f.lengths[r / (H * nq)] - nq, pairing, dims);
        for (int64_t r = 0; r < 2 * HKV * nk; r++) rotate(before.k + r * D, r % nk, pairing, dims);
        assert_int_equal(kf_attention(context, &f.args), KF_OK);
        assert_int_equal(kf_attention(context, &before.args), KF_OK);
        for (size_t i = 0; i < bytes_of(&f) / 4; i++) assert_true(fabsf(f.o[i] - before.o[i]) < 2e-6f);
        tear_down(&f), tear_down(&before);
    }
    kf_context_destroy(context);
}

// From one row of a KV head to many: the paths agree with each other at every number of queries.
static void every_number_of_queries(void **state) {
    (void)state;
    kf_context *context = context_of(2, 0);
    fixture all;
    set_up(&all, 1, NQ, NK);
    assert_int_equal(kf_attention(context, &all.args), KF_OK);
    for (int64_t nq = 1; nq < NQ; nq++) {
        fixture last;
        set_up(&last, 1, nq, NK);
        for (int h = 0; h < H; h++)
            memcpy(last.q + h * nq * D, all.q + (h * NQ + NQ - nq) * D, (size_t)(nq * D) * sizeof(float));
        assert_int_equal(kf_attention(context, &last.args), KF_OK);
        for (int h = 0; h < H; h++)
            for (int64_t i = 0; i < nq * D; i++)
                assert_true(fabsf(last.o[h * nq * D + i] - all.o[(h * NQ + NQ - nq) * D + i]) < 2e-6f);
        tear_down(&last);
    }
    tear_down(&all);
    kf_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_by_hand_in_any_order),   cmocka_unit_test(fixed_splits_do_not_depend_on_the_batch),
        cmocka_unit_test(lengths_are_read_at_each_run), cmocka_unit_test(rope_at_load),
        cmocka_unit_test(every_number_of_queries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
