// SPDX-License-Identifier: Apache-2.0
//
// The cases of embedding: every weight type, gaps between rows, scales, ids that repeat, and ids outside the table.
#include "verify.h"

#include <stdlib.h>

typedef struct embedding_case {
    int type; // index into VERIFY_WEIGHTS
    int64_t V, N, T, row_gap;
    const char *y;
    float scale;
    verify_layout layout;
    int64_t bad_id; // not 0: an id that must be refused
} embedding_case;

static const verify_bound BOUND = {
    .rule = "one rounding of an fp32 value", .relative = 2e-7, .absolute = 1e-37, .ulps = 0.5001};

// The sum d q + m, or d sc q - dmin mn, may cancel: what fp32 can lose is measured by its terms.
static bool find_sizes(verify_run *run, const kf_embedding_args *args, double **size) {
    const int64_t T = args->ids->shape[0], N = args->table->cols;
    double *row = verify_doubles(run, N);
    *size = verify_doubles(run, T * N);
    for (int64_t t = 0; row && *size && t < T; t++) {
        ref_weight_row(args->table, (int64_t)ref_at(args->ids, &t), row, *size + t * N);
        for (int64_t c = 0; c < N; c++) (*size)[t * N + c] *= args->scale != 0 ? (double)args->scale : 1;
    }
    free(row);
    return row && *size;
}

static bool check_embedding(verify_run *run, const void *pointer) {
    const embedding_case *row = pointer;
    verify_pool *pool = &run->pool;
    const int64_t shape[2] = {row->T, row->N};
    kf_weight table;
    if (!verify_weight(pool, &VERIFY_WEIGHTS[row->type], row->V, row->N, row->row_gap, &table)) return false;
    kf_tensor *ids = verify_tensor(pool, "ids", VERIFY_INPUT, verify_dtype(row->T % 2 ? "int32" : "int64"),
                                   VERIFY_COMPACT, 1, shape);
    kf_tensor *y = verify_tensor(pool, "y", VERIFY_OUTPUT, verify_dtype(row->y), row->layout, 2, shape);
    if (pool->exhausted) return false;
    for (int64_t t = 0; t < row->T; t++) {
        const int64_t id = t == 0 ? row->V - 1 : t == 1 ? 0 : verify_random_between(&pool->random, 0, row->V - 1);
        verify_set(ids, &t, (double)id);
    }
    kf_embedding_args args;
    kf_embedding_args_init(&args);
    args.table = &table, args.ids = ids, args.y = y, args.scale = row->scale;
    if (row->bad_id) {
        const int64_t last = row->T - 1;
        verify_set(ids, &last, (double)row->bad_id);
        return verify_refused_at_run(run, &args.head, KF_INVALID_ARGUMENT);
    }
    double *want = verify_doubles(run, row->T * row->N), *size = NULL;
    verify_bound bound = BOUND;
    bool good = want && find_sizes(run, &args, &size) && ref_embedding(&args, want);
    bound.size = size, bound.share = 0x1p-23;
    good = good && verify_execute(run, &args.head) && verify_rounded_once(run, "y", y, want, &bound);
    free(want);
    free(size);
    return good;
}

void verify_embedding(verify_run *run) {
    static const char *const DTYPES[] = {"fp32", "fp16", "bf16"};
    for (int c = 0; c < VERIFY_WEIGHT_TYPES; c++) {
        const verify_weight_type *type = &VERIFY_WEIGHTS[c];
        for (int d = 0; d < 3; d++) {
            embedding_case row = {
                .type = c, .V = 37, .N = type->values == 1 ? 45 : 3 * type->values, .T = 1 + 3 * d, .y = DTYPES[d]};
            row.row_gap = d == 1 ? 12 : 0, row.scale = d == 2 ? 24 : 0, row.layout = d ? VERIFY_GAPS : VERIFY_COMPACT;
            verify_case(run, check_embedding, &row, "embedding/%s/%s", type->name, row.y);
        }
        embedding_case row = {.type = c, .V = 5, .N = 256, .T = 4, .y = "fp32", .bad_id = c % 2 ? 5 : -1};
        verify_case(run, check_embedding, &row, "embedding/id-outside/%s", type->name);
        row.T = 0, row.bad_id = 0;
        verify_case(run, check_embedding, &row, "embedding/no-ids/%s", type->name);
    }
}
