// SPDX-License-Identifier: Apache-2.0
//
// The cases of SwiGLU: separate and packed halves, in place, gates far from zero.
#include "verify.h"

#include <math.h>
#include <stdlib.h>

#define COUNT(table) ((int)(sizeof(table) / sizeof *(table)))

typedef struct swiglu_case {
    const char *name;
    int64_t rows[2], n;
    const char *x, *y;
    enum { SEPARATE, PACKED, Y_IS_GATE, Y_IS_UP } form;
    double deviation; // of gate and up; 2
    verify_layout layout;
    void (*edit)(kf_tensor *gate);
} swiglu_case;

// e^-gate carries a relative error of |gate| 2^-24, and gate reaches -100 here.
static const verify_bound BOUND = {
    .rule = "one rounding of an fp32 result", .relative = 8e-6, .absolute = 1e-37, .ulps = 0.5001};

static bool check_swiglu(verify_run *run, const void *pointer) {
    const swiglu_case *row = pointer;
    verify_pool *pool = &run->pool;
    const int64_t shape[3] = {row->rows[0], row->rows[1], row->n}, packed[3] = {row->rows[0], row->rows[1], 2 * row->n};
    const kf_dtype dtype = verify_dtype(row->x);
    const double deviation = row->deviation != 0 ? row->deviation : 2;
    kf_swiglu_args args;
    kf_swiglu_args_init(&args);
    kf_tensor *gate = NULL, *up = NULL, *y = NULL;
    if (row->form == PACKED) {
        gate = verify_tensor(pool, "gate_up", VERIFY_INPUT, dtype, row->layout, 3, packed);
        args.gate_up = gate;
    } else {
        gate = verify_tensor(pool, "gate", row->form == Y_IS_GATE ? VERIFY_IN_PLACE : VERIFY_INPUT, dtype, row->layout,
                             3, shape);
        up = verify_tensor(pool, "up", row->form == Y_IS_UP ? VERIFY_IN_PLACE : VERIFY_INPUT, dtype, row->layout, 3,
                           shape);
        args.gate = gate, args.up = up;
    }
    y = row->form == Y_IS_GATE ? gate
        : row->form == Y_IS_UP ? up
                               : verify_tensor(pool, "y", VERIFY_OUTPUT, verify_dtype(row->y), row->layout, 3, shape);
    if (pool->exhausted) return false;
    verify_fill_normal(pool, gate, deviation);
    verify_fill_normal(pool, up, deviation);
    if (row->edit) row->edit(gate);
    args.y = y;
    double *want = verify_doubles(run, ref_elements(y));
    if (want) ref_swiglu(&args, want);
    const bool good = want && verify_execute(run, &args.head) && verify_rounded_once(run, "y", y, want, &BOUND);
    free(want);
    return good;
}

static void far_gates(kf_tensor *gate) {
    static const double VALUES[] = {-100, 100, -80, 80, -20, -1e4, 1e4, 0, -60000, 60000};
    for (int64_t c = 0; c < 30 && c < gate->shape[2]; c++)
        verify_set(gate, (const int64_t[]){0, 0, c}, VALUES[c % COUNT(VALUES)]);
}
static void infinite_gates(kf_tensor *gate) {
    verify_set(gate, (const int64_t[]){0, 0, 1}, INFINITY);
    verify_set(gate, (const int64_t[]){0, 0, 3}, NAN);
}

static const swiglu_case CASES[] = {
    {.name = "separate"},
    {.name = "packed", .form = PACKED},
    {.name = "packed-gaps", .form = PACKED, .layout = VERIFY_GAPS},
    {.name = "y-is-gate", .form = Y_IS_GATE, .layout = VERIFY_GAPS},
    {.name = "y-is-up", .form = Y_IS_UP},
    {.name = "shuffled", .layout = VERIFY_SHUFFLED},
    {.name = "far-gates", .edit = far_gates},
    {.name = "far-gates-packed", .form = PACKED, .edit = far_gates},
    {.name = "infinite-gates", .edit = infinite_gates},
    {.name = "tiny", .deviation = 1e-4},
};

void verify_swiglu(verify_run *run) {
    static const char *const DTYPES[] = {"fp32", "fp16", "bf16"};
    static const int64_t WIDTHS[] = {1536, 64, 37, 1, 16, 250, 31};
    for (int c = 0; c < COUNT(CASES); c++) {
        for (int d = 0; d < 9; d++) {
            swiglu_case row = CASES[c];
            const bool in_place = row.form == Y_IS_GATE || row.form == Y_IS_UP;
            row.x = DTYPES[d % 3], row.y = DTYPES[d / 3];
            if (in_place && d % 3 != d / 3) continue;
            row.rows[0] = 2, row.rows[1] = 3, row.n = WIDTHS[(c + d) % COUNT(WIDTHS)];
            if (row.edit) row.n = 40;
            verify_case(run, check_swiglu, &row, "swiglu/%s/%s-%s", row.name, row.x, row.y);
        }
    }
    for (int d = 0; run->device && d < COUNT(DTYPES); d++) { // so many that a thread takes two chunks
        swiglu_case row = {.rows = {1, d ? 8500 : 4250}, .n = 2056, .x = DTYPES[d], .y = DTYPES[d]};
        if (d == 1) row.form = PACKED;
        verify_case(run, check_swiglu, &row, "swiglu/many/%s", row.x);
    }
    for (int64_t n = 0; n < run->random; n++) {
        uint64_t state = run->seed * 1000081 + (uint64_t)n;
        swiglu_case row = CASES[verify_random(&state) % 6];
        row.rows[0] = verify_random_between(&state, 1, 4), row.rows[1] = verify_random_between(&state, 1, 9);
        row.n = verify_random_between(&state, 1, 2000);
        row.x = DTYPES[verify_random(&state) % 3], row.y = DTYPES[verify_random(&state) % 3];
        if (row.form == Y_IS_GATE || row.form == Y_IS_UP) row.y = row.x;
        verify_case(run, check_swiglu, &row, "swiglu/random/%lld", (long long)n);
    }
}
