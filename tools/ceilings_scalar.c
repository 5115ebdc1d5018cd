// SPDX-License-Identifier: Apache-2.0
//
// Ceilings of plain C, as the compiler vectorises it for the baseline of the architecture (SSE2 on x86-64):
// multiplication and addition apart, which is what the scalar kernels may use.
#include <string.h>

#include "ceilings_kernels.h"

enum { LANES = 4, ACCUMULATORS = 8 };

// GCC's and clang's vectors: the four lanes that every 64-bit baseline has.
typedef float lanes __attribute__((vector_size(16)));

static float read_plain(const char *data, size_t bytes) {
    lanes sum[4] = {{0}};
    for (size_t i = 0; i < bytes; i += sizeof sum) {
        lanes part[4];
        memcpy(part, data + i, sizeof part);
        for (int j = 0; j < 4; j++) sum[j] += part[j];
    }
    lanes all = sum[0] + sum[1] + sum[2] + sum[3];
    return all[0] + all[1] + all[2] + all[3];
}

static float read_streams(const char *data, size_t bytes) {
    size_t quarter = bytes / 4;
    lanes sum[4] = {{0}};
    for (size_t i = 0; i < quarter; i += 64) {
        for (size_t stream = 0; stream < 4; stream++) {
            lanes part[4];
            memcpy(part, data + stream * quarter + i, sizeof part);
            for (int j = 0; j < 4; j++) sum[j] += part[j];
        }
    }
    lanes all = sum[0] + sum[1] + sum[2] + sum[3];
    return all[0] + all[1] + all[2] + all[3];
}

static void copy_plain(char *to, const char *from, size_t bytes) {
    for (size_t i = 0; i < bytes; i += KFT_BLOCK) memcpy(to + i, from + i, KFT_BLOCK);
}

static void copy_library(char *to, const char *from, size_t bytes) { memcpy(to, from, bytes); }

static float fma_loop(int64_t rounds) {
    lanes sum[ACCUMULATORS];
    for (int i = 0; i < ACCUMULATORS; i++) sum[i] = (lanes){1, 2, 3, (float)i};
    lanes factor = {0.5f, 0.25f, 0.5f, 0.125f}, term = {1, 2, 3, 4};
    for (int64_t round = 0; round < rounds; round++) {
        for (int i = 0; i < ACCUMULATORS; i++) sum[i] = sum[i] * factor + term;
    }
    lanes all = {0};
    for (int i = 0; i < ACCUMULATORS; i++) all += sum[i];
    return all[0] + all[1] + all[2] + all[3];
}

const kft_ceiling_kernels kft_ceilings_scalar = {
    .read = read_plain,
    .read_streams = read_streams,
    .copy = copy_plain,
    .copy_stream = copy_library,
    .fma = {fma_loop, 2 * LANES *ACCUMULATORS},
};
