// SPDX-License-Identifier: Apache-2.0
//
// src/math/blocks.h and panels: blocks written by hand, and what packing may cost. (The oracle has its own decoder: test_blocks.c.)
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/internal.h"
#include "cpu/linear.h"

static const int TYPES[] = {KF_WEIGHT_F32,  KF_WEIGHT_F16,  KF_WEIGHT_BF16, KF_WEIGHT_Q4_0,
                            KF_WEIGHT_Q4_1, KF_WEIGHT_Q5_0, KF_WEIGHT_Q5_1, KF_WEIGHT_Q8_0,
                            KF_WEIGHT_Q4_K, KF_WEIGHT_Q5_K, KF_WEIGHT_Q6_K};

static void put_half(uint8_t *p, float value) {
    const uint16_t half = kf_float_to_fp16(value);
    memcpy(p, &half, 2);
}

// d = 0.5, m = -3; byte j holds code j & 15 and 15 - (j & 15); where there is a fifth bit, that of value 1 and of value 31 is set.
static void test_small_blocks(void **unused) {
    (void)unused;
    static const struct {
        int type, offset, fifth;
        float m;
    } CASES[] = {{KF_WEIGHT_Q4_0, 8, 0, 0},
                 {KF_WEIGHT_Q4_1, 0, 0, -3},
                 {KF_WEIGHT_Q5_0, 16, 16, 0},
                 {KF_WEIGHT_Q5_1, 0, 16, -3}};
    for (int c = 0; c < 4; c++) {
        uint8_t block[210] = {0}, *p = block + 2;
        float value[256];
        put_half(block, 0.5f);
        if (CASES[c].m != 0) {
            put_half(p, CASES[c].m);
            p += 2;
        }
        if (CASES[c].fifth) {
            p[0] = 2;
            p[3] = 0x80;
            p += 4;
        }
        for (int j = 0; j < 16; j++) p[j] = (uint8_t)(j | (15 - j) << 4);
        kf_block_dequantise(CASES[c].type, block, value);
        for (int j = 0; j < 32; j++) {
            const int code = (j < 16 ? j : 31 - j) + (j == 1 || j == 31 ? CASES[c].fifth : 0);
            assert_true(value[j] == 0.5f * (float)(code - CASES[c].offset) + CASES[c].m);
        }
    }
    uint8_t block[210];
    float value[256];
    put_half(block, 0.25f);
    for (int j = 0; j < 32; j++) block[2 + j] = (uint8_t)(8 * j - 128);
    kf_block_dequantise(KF_WEIGHT_Q8_0, block, value);
    for (int j = 0; j < 32; j++) assert_true(value[j] == 0.25f * (float)(8 * j - 128));
}

// Every scale and minimum of a K block by itself: 6 bits, spread over 12 bytes.
static void test_k_scales(void **unused) {
    (void)unused;
    for (int sub = 0; sub < 8; sub++) {
        uint8_t block[210] = {0}, *s = block + 4, scale, minimum;
        if (sub < 4) {
            s[sub] = 45;
            s[sub + 4] = 51;
        } else {
            s[sub + 4] = (45 & 15) | (51 & 15) << 4;
            s[sub - 4] = (45 >> 4) << 6;
            s[sub] = (51 >> 4) << 6;
        }
        for (int j = 0; j < 8; j++) {
            kf_block_k_scale(block, j, &scale, &minimum);
            assert_int_equal(scale, j == sub ? 45 : 0);
            assert_int_equal(minimum, j == sub ? 51 : 0);
        }
        put_half(block, 2);
        put_half(block + 2, 0.5f);
        block[48 + 32 * (sub / 2) + 7] =
            sub % 2 ? 0xa0 : 0x0a; // value 7 of the sub-block: code 10, with its fifth bit 26
        block[16 + 7] = (uint8_t)(1 << sub);
        float value[256];
        kf_block_dequantise(KF_WEIGHT_Q5_K, block, value);
        for (int k = 0; k < 256; k++) {
            const float code = k == 32 * sub + 7 ? 26 : 0;
            assert_true(value[k] == (k / 32 == sub ? 2 * 45 * code - 0.5f * 51 : 0));
        }
    }
}

// One code of Q6_K set at a time.
static void test_q6(void **unused) {
    (void)unused;
    for (int k = 0; k < 256; k++) {
        uint8_t block[210] = {0};
        float value[256];
        const int half = k / 128, quarter = k % 128 / 32, l = k % 32;
        block[64 * half + l + 32 * (quarter % 2)] = (uint8_t)(5 << (quarter < 2 ? 0 : 4));
        block[128 + 32 * half + l] = (uint8_t)(3 << 2 * quarter);
        for (int j = 0; j < 16; j++) block[192 + j] = (uint8_t)(j - 8);
        put_half(block + 208, 1);
        kf_block_dequantise(KF_WEIGHT_Q6_K, block, value);
        for (int j = 0; j < 256; j++) assert_true(value[j] == (float)(j / 16 - 8) * (j == k ? 53 - 32 : -32));
    }
}

// The limits that the contract sets for packing, for every number of rows; and units end where the next one begins.
static void test_sizes(void **unused) {
    (void)unused;
    kf_context *context = NULL;
    assert_int_equal(kf_context_create(NULL, &context), KF_OK);
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++) {
        int32_t values, bytes;
        assert_int_equal(kf_weight_block(TYPES[i], &values, &bytes), KF_OK);
        assert_int_equal(values, kf_block_values(TYPES[i]));
        assert_int_equal(bytes, kf_block_bytes(TYPES[i]));
        for (int64_t rows = 0; rows < 70; rows++)
            for (int64_t cols = 0; cols <= 4 * values; cols += values) {
                const kf_weight weight = {.type = TYPES[i], .rows = rows, .cols = cols};
                size_t size = 0;
                assert_int_equal(kf_pack_weight_size(context, &weight, &size), KF_OK);
                assert_true((double)size <= 1.1 * (double)(rows * cols / values * bytes) + 4096);
            }
    }
    kf_context_destroy(context);
}

// Packing moves bits: codes and scales come back out of a panel.
static void test_panels(void **unused) {
    (void)unused;
    for (size_t i = 3; i < sizeof TYPES / sizeof *TYPES; i++) {
        const int type = TYPES[i], bits = kf_block_code_bits(type), bytes = kf_block_bytes(type);
        const kf_unit u = kf_unit_of(type);
        uint8_t rows[16][210], code[256];
        for (int r = 0; r < 16; r++)
            for (int b = 0; b < bytes; b++) rows[r][b] = (uint8_t)(r * 37 + b * 101 + b * b);
        uint8_t *unit = malloc((size_t)u.bytes);
        assert_int_equal(kf_panel_bytes(type, u.values), u.bytes);
        kf_pack_panel(type, (const char *)rows, 210, 16, u.values, (char *)unit);
        for (int r = 0; r < 16; r++) {
            kf_block_codes(type, rows[r], code);
            assert_memory_equal(unit + u.d + 2 * r, rows[r] + (type == KF_WEIGHT_Q6_K ? 208 : 0), 2);
            for (int k = 0; k < u.values; k++) {
                const int in = k % 32, g = in / 4, byte = r * 4 + in % 4;
                const uint8_t *low = unit + u.low + k / 32 * u.low_step, *high = unit + u.high + k / 32 * u.high_step;
                int found = bits == 8 ? low[g * 64 + byte] : low[g / 2 * 64 + byte] >> g % 2 * 4 & 15;
                if (bits == 5) found |= (high[byte] >> g & 1) << 4;
                if (bits == 6) found |= (high[g / 4 * 64 + byte] >> g % 4 * 2 & 3) << 4;
                assert_int_equal(found, code[k]);
            }
        }
        free(unit);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_small_blocks), cmocka_unit_test(test_k_scales),
                                       cmocka_unit_test(test_q6), cmocka_unit_test(test_sizes),
                                       cmocka_unit_test(test_panels)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
