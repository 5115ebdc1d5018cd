// SPDX-License-Identifier: Apache-2.0
// Sampling: Philox's published answers, greedy choice, what top-k, top-p and min-p leave (against a sorted list),
// frequencies, and hostile logits.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/sampler.h"

static kfm_sampler *open_sampler(kfm_sampling options, int32_t count) {
    kfm_sampler *s;
    kfm_error error = {""};
    if (!kfm_sampler_open(&s, &options, count, &error)) fail_msg("%s", error.text);
    return s;
}

// The known answers of the Random123 library's kat_vectors for philox4x32-10.
static void philox_gives_the_published_answers(void **state) {
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t out[4];
        kfm_philox(cases[i].counter, cases[i].key, out);
        assert_memory_equal(out, cases[i].out, sizeof out);
    }
}

static void greedy_takes_the_largest(void **state) {
    (void)state;
    kfm_sampler *s = open_sampler(kfm_sampling_default(), 6);
    assert_int_equal(kfm_sample(s, (float[]){1, 3, 2, 3, -1, 0}), 1); // the first of two
    assert_int_equal(kfm_sample(s, (float[]){NAN, -5, NAN, -4, NAN, -6}), 3);
    assert_int_equal(kfm_sample(s, (float[]){-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -1e30f}), 5);
    assert_int_equal(kfm_sample(s, (float[]){0, INFINITY, 0, 0, 0, 0}), 1);
    assert_int_equal(kfm_sample(s, (float[]){NAN, NAN, NAN, NAN, NAN, NAN}), -1);
    kfm_sampler_close(s);
}

enum { COUNT = 50 };

static void random_logits(float *logits, uint32_t seed) {
    for (int i = 0; i < COUNT; i++) {
        uint32_t out[4];
        kfm_philox((uint32_t[]){(uint32_t)i, seed, 1, 2}, (uint32_t[]){3, 4}, out);
        logits[i] = (float)(out[0] * 0x1p-32 * 10 - 5);
        if (i % 7 == 3) logits[i] = logits[i - 1]; // equals
    }
}

// The probabilities that the definition leaves, by a full sort: p[id], summing up to 1.
static void expected_probabilities(const float *logits, kfm_sampling o, double *p) {
    int order[COUNT], n = COUNT;
    double weight[COUNT], total = 0, sum = 0;
    for (int i = 0; i < COUNT; i++) {
        int at = i;
        for (; at > 0 && logits[order[at - 1]] < logits[i]; at--) order[at] = order[at - 1];
        order[at] = i;
        p[i] = 0;
    }
    if (o.top_k > 0 && o.top_k < n) n = o.top_k;
    for (int i = 0; i < n; i++) total += weight[i] = exp(((double)logits[order[i]] - logits[order[0]]) / o.temperature);
    int kept = 0;
    for (; kept < n && (kept == 0 || o.top_p >= 1 || sum < o.top_p * total); kept++) sum += weight[kept];
    while (kept > 1 && weight[kept - 1] < o.min_p) kept--;
    sum = 0;
    for (int i = 0; i < kept; i++) sum += weight[i];
    for (int i = 0; i < kept; i++) p[order[i]] = weight[i] / sum;
}

static void frequencies_follow_the_definition(void **state) {
    (void)state;
    static const kfm_sampling cases[] = {
        {.temperature = 1, .top_p = 1},
        {.temperature = 0.7, .top_p = 1},
        {.temperature = 2, .top_p = 1, .top_k = 5},
        {.temperature = 1, .top_p = 1, .top_k = 1},
        {.temperature = 1, .top_p = 1, .top_k = 1000},
        {.temperature = 1, .top_p = 0.5},
        {.temperature = 3, .top_p = 0.9, .top_k = 20},
        {.temperature = 1, .top_p = 1e-9},
        {.temperature = 1, .top_p = 1, .min_p = 0.2},
        {.temperature = 1.5, .top_p = 0.8, .min_p = 0.1, .top_k = 30},
        {.temperature = 1, .top_p = 1, .min_p = 1},
    };
    enum { DRAWS = 40000 };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        float logits[COUNT];
        double p[COUNT];
        int drawn[COUNT] = {0};
        kfm_sampling options = cases[c];
        options.seed = 11 + c;
        random_logits(logits, (uint32_t)c);
        expected_probabilities(logits, options, p);
        kfm_sampler *s = open_sampler(options, COUNT);
        for (int i = 0; i < DRAWS; i++) drawn[kfm_sample(s, logits)]++;
        for (int id = 0; id < COUNT; id++) {
            double deviation = sqrt(DRAWS * p[id] * (1 - p[id]));
            if (p[id] == 0)
                assert_int_equal(drawn[id], 0); // cut off means never
            else
                assert_true(fabs(drawn[id] - DRAWS * p[id]) <= 5 * deviation + 1);
        }
        kfm_sampler_close(s);
    }
}

static void same_seed_same_choice(void **state) {
    (void)state;
    float logits[COUNT];
    random_logits(logits, 5);
    kfm_sampling options = {.temperature = 1, .top_p = 1, .seed = UINT64_C(0x123456789abcdef0)};
    kfm_sampler *a = open_sampler(options, COUNT), *b = open_sampler(options, COUNT);
    options.seed ^= UINT64_C(1) << 40; // all 64 bits count
    kfm_sampler *other = open_sampler(options, COUNT);
    int differ = 0;
    for (int i = 0; i < 200; i++) {
        int32_t x = kfm_sample(a, logits);
        assert_int_equal(x, kfm_sample(b, logits));
        differ += x != kfm_sample(other, logits);
    }
    assert_true(differ > 50);
    kfm_sampler_close(a);
    kfm_sampler_close(b);
    kfm_sampler_close(other);
}

static void hostile_logits_are_survived(void **state) {
    (void)state;
    static const kfm_sampling cases[] = {{.temperature = 1, .top_p = 1},
                                         {.temperature = 1e-300, .top_p = 0.9},
                                         {.temperature = 1e300, .top_p = 1, .min_p = 0.5},
                                         {.temperature = 1, .top_p = 1, .top_k = 2}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        kfm_sampler *s = open_sampler(cases[c], 4);
        for (int i = 0; i < 100; i++) {
            assert_int_equal(kfm_sample(s, (float[]){NAN, NAN, NAN, NAN}), -1);
            assert_int_equal(kfm_sample(s, (float[]){NAN, 1, NAN, NAN}), 1);
            int32_t id = kfm_sample(s, (float[]){-INFINITY, -INFINITY, -INFINITY, -INFINITY});
            assert_true(id >= 0 && id < 4);
            assert_int_equal(kfm_sample(s, (float[]){-INFINITY, INFINITY, 0, 3e38f}), 1);
            assert_int_equal(kfm_sample(s, (float[]){-INFINITY, -INFINITY, -3e38f, NAN}), 2);
        }
        kfm_sampler_close(s);
    }
}

static void refuses_options(void **state) {
    (void)state;
    static const struct {
        kfm_sampling options;
        int32_t count;
        const char *says;
    } cases[] = {
        {{.temperature = -1, .top_p = 1}, 4, "temperature is -1"},
        {{.temperature = NAN, .top_p = 1}, 4, "temperature is"},
        {{.temperature = INFINITY, .top_p = 1}, 4, "temperature is inf"},
        {{.top_k = -1, .top_p = 1}, 4, "top-k is -1"},
        {{.top_p = 0}, 4, "top-p is 0"},
        {{.top_p = 1.5}, 4, "top-p is 1.5"},
        {{.top_p = NAN}, 4, "top-p is"},
        {{.top_p = 1, .min_p = -0.1}, 4, "min-p is -0.1"},
        {{.top_p = 1, .min_p = NAN}, 4, "min-p is"},
        {{.top_p = 1}, 0, "a sampler of 0 tokens"},
    };
    kfm_sampler *s;
    kfm_error error;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_false(kfm_sampler_open(&s, &cases[i].options, cases[i].count, &error));
        assert_null(s);
        assert_non_null(strstr(error.text, cases[i].says));
    }
    kfm_sampling right = kfm_sampling_default();
    for (int64_t n = 1;; n++) {
        kfm_fail_allocation(n);
        bool ok = kfm_sampler_open(&s, &right, 4, &error);
        assert_true(ok == (kfm_fail_allocation(0) != 0));
        if (ok) break;
    }
    kfm_sampler_close(s);
    kfm_sampler_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_answers), cmocka_unit_test(greedy_takes_the_largest),
        cmocka_unit_test(frequencies_follow_the_definition),  cmocka_unit_test(same_seed_same_choice),
        cmocka_unit_test(hostile_logits_are_survived),        cmocka_unit_test(refuses_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
