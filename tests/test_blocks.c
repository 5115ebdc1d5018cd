// SPDX-License-Identifier: Apache-2.0
//
// The oracle's decoding of GGUF's block formats against that of the gguf package (tests/data/blocks.h, made by make_blocks.py);
// codes read one by one against those of a whole block.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "data/blocks.h"
#include "math/blocks.h"
#include "reference/reference.h"

#define ROW(type)                                                                                                      \
    { KF_WEIGHT_##type, #type, type##_BYTES, sizeof type##_BYTES, type##_VALUES, sizeof type##_VALUES / sizeof(double) }

static const struct {
    int type;
    const char *name;
    const unsigned char *bytes;
    size_t byte_count;
    const double *values;
    int64_t count;
} BLOCKS[] = {ROW(Q4_0), ROW(Q4_1), ROW(Q5_0), ROW(Q5_1), ROW(Q8_0), ROW(Q4_K), ROW(Q5_K), ROW(Q6_K)};

static void every_format(void **state) {
    (void)state;
    for (size_t b = 0; b < sizeof BLOCKS / sizeof *BLOCKS; b++) {
        double values[256], size[256];
        const kf_weight weight = {.type = BLOCKS[b].type,
                                  .rows = 1,
                                  .cols = BLOCKS[b].count,
                                  .data = BLOCKS[b].bytes,
                                  .bytes = BLOCKS[b].byte_count};
        ref_weight_row(&weight, 0, values, size);
        for (int64_t c = 0; c < BLOCKS[b].count; c++) {
            // The package computes in fp32.
            const double error = fabs(values[c] - BLOCKS[b].values[c]);
            if (error > 0x1p-22 * size[c])
                fail_msg("%s, value %d: %.9g, not %.9g", BLOCKS[b].name, (int)c, values[c], BLOCKS[b].values[c]);
        }
    }
}

static void single_codes(void **state) {
    (void)state;
    for (size_t b = 0; b < sizeof BLOCKS / sizeof *BLOCKS; b++) {
        const int values = kf_block_values(BLOCKS[b].type), bytes = kf_block_bytes(BLOCKS[b].type);
        for (size_t at = 0; at < BLOCKS[b].byte_count; at += (size_t)bytes) {
            uint8_t code[KF_BLOCK_MAX];
            kf_block_codes(BLOCKS[b].type, BLOCKS[b].bytes + at, code);
            for (int i = 0; i < values; i++)
                assert_int_equal(kf_block_code(BLOCKS[b].type, BLOCKS[b].bytes + at, i), code[i]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_format), cmocka_unit_test(single_codes)};
    return cmocka_run_group_tests_name("block formats", tests, NULL, NULL);
}
