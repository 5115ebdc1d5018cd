// SPDX-License-Identifier: Apache-2.0
//
// Softmax over the last axis: y = exp(x - m) / d, m = max x, d = sum exp(x - m); lse = m + ln d.
//
//     rows of at most KF_SOFTMAX_ROW elements   one phase: x is read once, the exponentials wait in scratch for d
//     longer rows                               folded in segments of KF_SOFTMAX_SEGMENT, whose states merge in order:
//         many rows                             one phase, a row an item; the second reading of x finds it in the cache
//         few rows                              three phases, so that one row keeps all threads busy: states of the
//                                               segments; their merge; y of the segments
//
// Both ways through a long row give the same bits. Bytes: x once (long rows: twice) and y once; an exponential per
// element (long rows: two).
#include <math.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/rows.h"

// From this many rows on, items of whole rows balance over the threads.
enum { MANY_ROWS = 64 };

struct softmax_plan {
    int64_t rows_per_item;
    int64_t segments; // of a row; 0: short rows
    int64_t split;    // segments are items of their own
    int64_t stream;
};
kf_static_assert(sizeof(struct softmax_plan) <= sizeof((kf_plan *)0)->word, "the plan has room");

static const struct softmax_plan *plan_of(const kf_op *op) { return (const struct softmax_plan *)op->plan.word; }

static kf_status softmax_plan(kf_op *op) {
    const kf_softmax_problem *p = &op->problem.softmax;
    struct softmax_plan *plan = (struct softmax_plan *)op->plan.word;
    int64_t rows = p->options.rows, n = p->options.n;
    plan->stream = kf_rows_stream(&p->y);
    plan->rows_per_item = kf_rows_per_item(n);
    op->plan.phases = 1;
    op->plan.streams = 1;
    op->plan.items[0] = kf_ceil_div(rows, plan->rows_per_item);
    if (n <= KF_SOFTMAX_ROW) {
        op->plan.scratch_bytes = (size_t)n * sizeof(float);
        return KF_OK;
    }
    plan->segments = kf_ceil_div(n, KF_SOFTMAX_SEGMENT);
    plan->split = rows < MANY_ROWS;
    if (!plan->split) return KF_OK;
    op->plan.phases = 3;
    op->plan.items[0] = op->plan.items[2] = rows * plan->segments;
    op->plan.items[1] = rows;
    op->plan.shared_bytes = (size_t)(rows * (plan->segments + 1)) * sizeof(kf_md); // segments, then whole rows
    return KF_OK;
}

static kf_md merge(kf_md a, kf_md b) {
    float m = a.m > b.m ? a.m : b.m;
    if (m == -INFINITY) return (kf_md){m, a.d + b.d}; // both empty, or a NaN came by
    return (kf_md){m, a.d * expf(a.m - m) + b.d * expf(b.m - m)};
}

static void store_lse(const kf_view *lse, int64_t row, kf_md s) {
    if (!kf_present(lse)) return;
    float value = s.d == 0.0f ? -INFINITY : (float)((double)s.m + log((double)s.d));
    memcpy(kf_view_row(lse, 0, row), &value, sizeof value);
}

// Segment `segment` of a row: where it starts in x and y, and its length.
struct segment {
    const char *x;
    char *y;
    int64_t n;
};

static struct segment segment_of(const kf_softmax_problem *p, int64_t row, int64_t segment) {
    int64_t first = segment * KF_SOFTMAX_SEGMENT, rest = p->options.n - first;
    return (struct segment){kf_view_row(&p->x, 1, row) + first * kf_type_size(p->x.type),
                            kf_view_row(&p->y, 1, row) + first * kf_type_size(p->y.type),
                            rest < KF_SOFTMAX_SEGMENT ? rest : KF_SOFTMAX_SEGMENT};
}

// Rows first .. end - 1, two of them under way at a time.
static void short_rows(const kf_op *op, const kf_row_kernels *k, int64_t first, int64_t end, float *scratch) {
    const kf_softmax_problem *p = &op->problem.softmax;
    kf_softmax_row rows[2], *before = NULL;
    for (int64_t i = first; i <= end; i++) {
        kf_softmax_row *row = i < end ? &rows[i % 2] : NULL;
        if (row) {
            row->x = kf_view_row(&p->x, 1, i);
            row->y = kf_view_row(&p->y, 1, i);
        }
        k->softmax(row, before, scratch, p->y.type, p->x.type, p->options.n, kf_present(&p->lse), plan_of(op)->stream);
        if (row) store_lse(&p->lse, i, row->state);
        before = row;
    }
}

static void long_row(const kf_op *op, const kf_row_kernels *k, int64_t row) {
    const kf_softmax_problem *p = &op->problem.softmax;
    const struct softmax_plan *plan = plan_of(op);
    kf_md s = {-INFINITY, 0.0f};
    for (int64_t i = 0; i < plan->segments; i++) {
        struct segment g = segment_of(p, row, i);
        s = merge(s, k->softmax_state(g.x, p->x.type, g.n));
    }
    for (int64_t i = 0; i < plan->segments; i++) {
        struct segment g = segment_of(p, row, i);
        k->softmax_apply(g.y, p->y.type, g.x, p->x.type, g.n, s, plan->stream);
    }
    store_lse(&p->lse, row, s);
}

// The phases of few long rows.
static void split_item(const kf_op *op, const kf_row_kernels *k, kf_md *states, int phase, int64_t item) {
    const kf_softmax_problem *p = &op->problem.softmax;
    const struct softmax_plan *plan = plan_of(op);
    kf_md *whole = states + p->options.rows * plan->segments;
    if (phase == 1) {
        kf_md s = {-INFINITY, 0.0f};
        for (int64_t i = 0; i < plan->segments; i++) s = merge(s, states[item * plan->segments + i]);
        whole[item] = s;
        store_lse(&p->lse, item, s);
        return;
    }
    int64_t row = item / plan->segments;
    struct segment g = segment_of(p, row, item % plan->segments);
    if (phase == 0)
        states[item] = k->softmax_state(g.x, p->x.type, g.n);
    else
        k->softmax_apply(g.y, p->y.type, g.x, p->x.type, g.n, whole[row], plan->stream);
}

static void softmax_run(const kf_op *op, const kf_worker *worker, int32_t phase, int64_t first, int64_t count) {
    const struct softmax_plan *plan = plan_of(op);
    const kf_row_kernels *k = op->context->cpu->rows;
    if (plan->split) {
        for (int64_t i = first; i < first + count; i++) split_item(op, k, (kf_md *)worker->shared, phase, i);
    } else {
        int64_t start = first * plan->rows_per_item, end = (first + count) * plan->rows_per_item;
        if (end > op->problem.softmax.options.rows) end = op->problem.softmax.options.rows;
        if (!plan->segments) short_rows(op, k, start, end, (float *)worker->scratch);
        for (int64_t row = start; plan->segments && row < end; row++) long_row(op, k, row);
    }
    if (plan->stream) k->fence();
}

const kf_backend_op kf_cpu_softmax = {.plan = softmax_plan, .run_items = softmax_run};
