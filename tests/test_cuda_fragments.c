// SPDX-License-Identifier: Apache-2.0
//
// The packed form of quantised weights on CUDA (src/cuda/fragments.h), which the host makes: read back lane by lane as its head draws
// it, every code and scale must be the file's.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cuda/fragments.h"

static const int TYPES[] = {KF_WEIGHT_Q4_0, KF_WEIGHT_Q4_1, KF_WEIGHT_Q5_0, KF_WEIGHT_Q5_1,
                            KF_WEIGHT_Q8_0, KF_WEIGHT_Q4_K, KF_WEIGHT_Q5_K, KF_WEIGHT_Q6_K};
enum { TYPE_COUNT = sizeof TYPES / sizeof *TYPES, GUARD = 64, POISON = 0xa5 };

static uint64_t state = 7;

static uint8_t random_byte(void) { // xorshift64*
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return (uint8_t)(state * 0x2545f4914f6cdd1du >> 56);
}

static uint32_t word_at(const uint8_t *p) {
    uint32_t word;
    memcpy(&word, p, 4);
    return word;
}

// The place in a pair, 0 to 7 over the two halves, of the column that is i-th of a lane's eight: pairs (0,2), (1,3), (4,6), (5,7).
static int pair_of(int i) { return i % 2 + i / 4 * 2; }
static int second_of_pair(int i) { return i / 2 % 2; }

// Column i of a lane's eight of block j.
static int read_code(int type, const uint8_t *unit, int rows, int blocks, int j, int lane, int i) {
    const bool full = blocks == 8;
    const int bits = kf_block_code_bits(type), pair = pair_of(i), second = second_of_pair(i);
    if (bits == 8) {
        const uint8_t *at = full ? unit + j / 2 * rows * 64 + lane * 16 + j % 2 * 8 : unit + (j * rows * 4 + lane) * 8;
        return at[i];
    }
    const uint8_t *upper = unit + rows * 16 * blocks;
    if (full && bits > 4) { // codes lie whole in the words of a four of blocks
        uint32_t word[6];
        const int of = j % 4, more = bits - 4;
        for (int w = 0; w < 4; w++) word[w] = word_at(unit + j / 4 * rows * 64 + lane * 16 + w * 4) >> 16 * second;
        for (int w = 0; w < more; w++)
            word[4 + w] = word_at(upper + ((lane * 2 + j / 4) * more + w) * 4) >> 16 * second;
        if (pair < 8 - bits) return word[of] >> bits * pair & ((1 << bits) - 1);
        if (bits == 6 && pair == 2) return word[4 + of / 2] >> 6 * (of % 2) & 63;
        if (bits == 6) return (word[of] >> 12 & 15) | (word[4 + of / 2] >> (12 + 2 * (of % 2)) & 3) << 4;
        if (of > 0) return word[4] >> 5 * (of - 1) & 31;
        int code = 0;
        for (int b = 0; b < 5; b++) code |= (int)(word[b] >> 15 & 1) << b;
        return code;
    }
    const uint8_t *at = full ? unit + j / 4 * rows * 64 + lane * 16 + j % 4 * 4 : unit + (j * rows * 4 + lane) * 4;
    const int code = at[i % 4] >> (i < 4 ? 0 : 4) & 15;
    return bits == 5 ? code | (upper[j * rows * 4 + lane] >> (pair + 4 * second) & 1) << 4 : code;
}

static void check_scales(int type, const uint8_t *row, const uint8_t *unit, int rows, int blocks, int g) {
    const int bits = kf_block_code_bits(type), upper = bits == 5 ? 4 : bits == 6 ? 8 : 0;
    const uint8_t *scales = unit + rows * blocks * ((bits == 8 ? 32 : 16) + upper);
    if (type == KF_WEIGHT_Q6_K) {
        assert_memory_equal(scales + g * 16, row + 192, 16);
        assert_memory_equal(scales + rows * 16 + g * 2, row + 208, 2);
    } else if (kf_block_is_k(type)) {
        assert_memory_equal(scales + g * 16, row, 16);
    } else {
        for (int j = 0; j < blocks; j++) {
            const uint8_t *at = scales + (blocks == 8 ? g * 16 + j * 2 : (j * rows + g) * 2);
            assert_memory_equal(at, row + j * kf_block_bytes(type), 2);
            if (kf_block_affine(type))
                assert_memory_equal(at + rows * blocks * 2, row + j * kf_block_bytes(type) + 2, 2);
        }
    }
}

static void check_unit(int type, int rows, int blocks) {
    enum { MOST = 8 * 8 * 34 };
    uint8_t source[MOST], unit[MOST + GUARD];
    const int row_bytes = kf_unit_row_bytes(type, blocks), bytes = kf_unit_bytes(type, rows, blocks);
    assert_int_equal(row_bytes, blocks * 32 / kf_block_values(type) * kf_block_bytes(type));
    assert_true(bytes >= rows * row_bytes && bytes < rows * row_bytes + 16 && bytes % 16 == 0);
    for (int i = 0; i < rows * row_bytes; i++) source[i] = random_byte();
    memset(unit, POISON, sizeof unit);
    for (int g = 0; g < rows; g++) {
        for (int t = 0; t < 4; t++) kf_pack_lane(type, source + g * row_bytes, rows, blocks, g, t, unit);
        kf_pack_scales(type, source + g * row_bytes, rows, blocks, g, unit);
    }
    for (int i = rows * row_bytes; i < (int)sizeof unit; i++) assert_int_equal(unit[i], POISON);
    for (int g = 0; g < rows; g++) {
        const uint8_t *row = source + g * row_bytes;
        check_scales(type, row, unit, rows, blocks, g);
        for (int first = 0; first < blocks * 32; first += kf_block_values(type)) {
            uint8_t codes[KF_BLOCK_MAX];
            kf_block_codes(type, row + first / kf_block_values(type) * kf_block_bytes(type), codes);
            for (int c = 0; c < kf_block_values(type); c++) {
                const int column = (first + c) % 32, t = column % 16 / 4, i = column / 16 * 4 + column % 4;
                const int code = read_code(type, unit, rows, blocks, (first + c) / 32, 4 * g + t, i);
                assert_int_equal(type == KF_WEIGHT_Q8_0 ? code ^ 0x80 : code, codes[c]);
            }
        }
    }
}

static void every_code_is_the_files(void **unused) {
    (void)unused;
    for (int i = 0; i < TYPE_COUNT; i++)
        for (int rows = 1; rows <= 8; rows++)
            for (int blocks = 1; blocks <= 8; blocks++)
                if (blocks == 8 || !kf_block_is_k(TYPES[i])) check_unit(TYPES[i], rows, blocks);
}

static void packed_bytes_are_the_sources(void **unused) {
    (void)unused;
    for (int i = 0; i < TYPE_COUNT; i++)
        for (int64_t N = 1; N < 40; N++)
            for (int64_t K = kf_block_values(TYPES[i]); K < 2000; K += kf_block_values(TYPES[i])) {
                const int64_t source = N * (K / kf_block_values(TYPES[i])) * kf_block_bytes(TYPES[i]);
                const int64_t packed = kf_fragments_bytes(TYPES[i], N, K);
                assert_true(packed >= source && (double)packed <= 1.1 * (double)source + 64);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_is_the_files),
        cmocka_unit_test(packed_bytes_are_the_sources),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
