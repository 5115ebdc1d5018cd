// SPDX-License-Identifier: Apache-2.0
//
// The linear layer's driver: y[T, N] = x[T, K] W[N, K]^T + bias. linear.h says how W is laid out and how products are made.
//
//     phase 0   x into the form that the tiles read: rows are taken in tiles of R (12, 6, ... 1), a tile's rows interleaved. One item is a
//               few hundred columns of one tile. Where T = 1 there is no such phase: each worker does it for itself, which takes less than a
//               barrier; and one fp32 row for dense weights is used as it stands.
//     phase 1   one item is a chunk of rows times a panel of 16 columns (dense: a tile's one or two). Items that follow each other share the
//               chunk, which then stays in L2 while the weights pass by once. With few rows an item is a thread's share of the panels.
//
// Bytes: W once per chunk of rows, x once per panel from L2, y once. Operations: 2 T N K. For T = 1 the weights' bytes decide.
// Unpacked weights, and the last N % 16 rows of packed ones, are packed panel by panel into a worker's scratch.
#include "cpu/linear.h"

#include <string.h>

enum {
    FEW_ROWS = 16,        // up to here the weights' way from memory decides
    ITEM_BYTES = 1 << 20, // of weights, about, to an item of few rows
    CHUNK_ROWS = 96,      // a multiple of all tile heights: 96 rows of K = 1536 are 590 KB as kf_x_block
    SPLIT_VALUES = 512,   // along K, to an item of phase 0: 1 to 3 us for a tile of rows
    STAGE = 64            // words of each row of x on the stack: with 12 rows 3 KB
};

typedef struct linear_plan {
    int64_t panels;         // ceil(N / 16)
    int64_t tile_panels;    // that one call of a micro-kernel covers
    int64_t item_panels;    // that an item covers
    int64_t groups;         // of item_panels panels
    int64_t scratch_panels; // that a worker packs at a time
    int64_t panel_bytes;
    int64_t splits;  // parts of a row of x that are brought into form one by one; 0: x is used as it stands
    int64_t x_bytes; // of a row of x in that form
    int32_t quantised, pairs, digits;
    int32_t local; // each worker has a copy of x, at the start of its scratch
} linear_plan;
kf_static_assert(sizeof(linear_plan) <= sizeof(int64_t) * KF_PLAN_WORDS, "fits the plan");

static const linear_plan *plan_of(const kf_op *op) { return (const linear_plan *)op->plan.word; }

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static const int32_t *heights_of(const kf_op *op) {
    const kf_linear_kernels *kernels = op->context->cpu->linear;
    return plan_of(op)->quantised ? kernels->quant_rows : kernels->dense_rows;
}

// The height of the tile that begins at a row with `left` rows to come.
static int32_t tile_height(const int32_t *heights, int64_t left) {
    while (*heights > left) heights++;
    return *heights;
}

// Tiles of T rows, and where tile `index` begins. Full tiles come first, then ever lower ones.
static int64_t tile_count(const int32_t *heights, int64_t T) {
    int64_t count = T / heights[0];
    for (int64_t left = T % heights[0]; left > 0; left -= tile_height(heights, left)) count++;
    return count;
}

static int64_t tile_start(const int32_t *heights, int64_t T, int64_t index) {
    const int64_t full = T / heights[0];
    int64_t first = smaller(index, full) * heights[0];
    for (int64_t i = full; i < index; i++) first += tile_height(heights, T - first);
    return first;
}

// Where panels begin in the scratch of a worker that has x there.
static int64_t local_bytes(const linear_plan *plan) { return ceil_div(plan->x_bytes, 64) * 64; }

static int64_t x_row_bytes(const linear_plan *plan, int64_t K) {
    if (plan->quantised) return K / KF_BLOCK_SMALL * (int64_t)sizeof(kf_x_block);
    return plan->pairs ? (K + 1) / 2 * 4 : K * 4;
}

static int64_t panels_of_tile(const kf_op *op, const linear_plan *plan) {
    if (!plan->quantised) return op->context->cpu->linear->dense_panels;
    return op->problem.linear.options.T == 1 ? KF_LINEAR_MAX_PANELS : 1;
}

// Results do not depend on it: a panel's sums are its own. With few rows each thread has one stretch of the weights, or of a large matrix
// as many as every other: shorter ones that alternate between threads lose a quarter of the memory's rate.
static int64_t panels_of_item(const kf_op *op, const linear_plan *plan) {
    if (op->problem.linear.options.T > FEW_ROWS) return plan->tile_panels;
    const int64_t share = ceil_div(plan->panels, op->context->info.threads);
    const int64_t parts = larger(1, ceil_div(share * plan->panel_bytes, ITEM_BYTES));
    return ceil_div(share, parts);
}

static kf_status plan_linear(kf_op *op) {
    const kf_linear_problem *p = &op->problem.linear;
    const kf_linear_kernels *kernels = op->context->cpu->linear;
    linear_plan *plan = (linear_plan *)op->plan.word;
    const int64_t T = p->options.T, N = p->options.N, K = p->options.K;
    if (K > KF_LINEAR_MAX_K)
        return kf_fail(KF_INVALID_ARGUMENT, "linear: the weight has %lld columns; at most 2^48 are allowed",
                       (long long)K);
    plan->quantised = kf_block_quantised(p->weight.type);
    plan->pairs = kernels->pairs && p->weight.type == KF_WEIGHT_BF16 && p->x.type == KF_TYPE_BF16;
    plan->digits = p->options.activations == KF_ACTIVATIONS_INT8 ? 1 : KF_X_DIGITS;
    plan->panels = ceil_div(N, KF_PANEL_ROWS);
    plan->panel_bytes = kf_panel_bytes(p->weight.type, K);
    plan->tile_panels = panels_of_tile(op, plan);
    plan->item_panels = panels_of_item(op, plan);
    plan->scratch_panels = !p->weight.packed ? (plan->quantised ? 1 : plan->tile_panels) : N % KF_PANEL_ROWS ? 1 : 0;
    plan->groups = plan->panels ? ceil_div(plan->panels, plan->item_panels) : 0;
    const bool as_it_stands = !plan->quantised && T == 1 && p->x.type == KF_TYPE_F32;
    plan->splits = as_it_stands ? 0 : ceil_div(K, SPLIT_VALUES);
    plan->x_bytes = x_row_bytes(plan, K);
    plan->local = T == 1 && plan->splits > 0;
    op->plan.streams = T == 1;
    if (T == 0 || N == 0) return KF_OK; // no phase
    if (plan->x_bytes > INT64_MAX / 2 / T)
        return kf_fail(KF_INVALID_ARGUMENT, "linear: x has too many values (%lld rows of %lld)", (long long)T,
                       (long long)K);
    if (plan->splits && !plan->local) {
        op->plan.items[op->plan.phases++] = tile_count(heights_of(op), T) * plan->splits;
        op->plan.shared_bytes = (size_t)(T * plan->x_bytes);
    }
    op->plan.items[op->plan.phases++] = ceil_div(T, CHUNK_ROWS) * plan->groups;
    op->plan.scratch_bytes = (size_t)(plan->panel_bytes * plan->scratch_panels);
    op->plan.scratch_bytes += (size_t)(plan->local ? local_bytes(plan) : 0);
    return KF_OK;
}

static kf_status prepare_linear(const kf_op *op) {
    const kf_linear_problem *p = &op->problem.linear;
    if (!p->weight.packed || !p->weight.data) return KF_OK;
    return kf_packed_check(op->context, &p->weight);
}

// ----------------------------------------------------------------------------------------------------------- phase 0: x

// One tile of rows of x, and its place in the form that is multiplied.
typedef struct x_tile {
    const char *row; // the first
    int64_t stride;  // in bytes
    int32_t type, height;
    char *to;
} x_tile;

static void split_tile(const kf_op *op, const x_tile *tile, int64_t k0, int64_t k1) {
    const linear_plan *plan = plan_of(op);
    kf_x_block *to = (kf_x_block *)tile->to + k0 / KF_BLOCK_SMALL * tile->height;
    for (int32_t r = 0; r < tile->height; r++)
        op->context->cpu->linear->split(tile->row + r * tile->stride + k0 * kf_type_size(tile->type), tile->type,
                                        op->problem.linear.weight.type, plan->digits, (k1 - k0) / KF_BLOCK_SMALL,
                                        tile->height, to + r);
}

// from [height][STAGE] to [count][height], words of 32 bits.
static void interleave(const uint32_t *from, int32_t height, int64_t count, uint32_t *to) {
    for (int64_t k = 0; k < count; k++)
        for (int32_t r = 0; r < height; r++) *to++ = from[r * STAGE + k];
}

static void spread_tile(const kf_op *op, const x_tile *tile, int64_t k0, int64_t k1) {
    uint32_t stage[KF_LINEAR_MAX_ROWS * STAGE];
    for (int64_t k = k0; k < k1; k += STAGE) {
        const int64_t count = smaller(k1 - k, STAGE);
        for (int32_t r = 0; r < tile->height; r++)
            op->context->cpu->linear->load(tile->row + r * tile->stride + k * kf_type_size(tile->type), tile->type,
                                           count, (float *)stage + r * STAGE);
        interleave(stage, tile->height, count, (uint32_t *)tile->to + k * tile->height);
    }
}

// Pairs of bf16 are words as they stand; an odd last one gets a zero.
static void spread_pairs(const x_tile *tile, int64_t k0, int64_t k1) {
    uint32_t stage[KF_LINEAR_MAX_ROWS * STAGE];
    for (int64_t k = k0; k < k1; k += 2 * STAGE) {
        const int64_t count = smaller(k1 - k, 2 * STAGE), pairs = (count + 1) / 2;
        for (int32_t r = 0; r < tile->height; r++) {
            stage[r * STAGE + pairs - 1] = 0;
            memcpy(stage + r * STAGE, tile->row + r * tile->stride + k * 2, (size_t)count * 2);
        }
        interleave(stage, tile->height, pairs, (uint32_t *)tile->to + k / 2 * tile->height);
    }
}

// Item `item` of phase 0: a part of a tile.
static void arrange_x(const kf_op *op, char *to, int64_t item) {
    const kf_linear_problem *p = &op->problem.linear;
    const linear_plan *plan = plan_of(op);
    const int64_t t = tile_start(heights_of(op), p->options.T, item / plan->splits);
    const int64_t k0 = item % plan->splits * SPLIT_VALUES, k1 = smaller(k0 + SPLIT_VALUES, p->options.K);
    const int64_t size = kf_type_size(p->x.type);
    const x_tile tile = {.row = p->x.data + t * p->x.stride[0] * size,
                         .stride = p->x.stride[0] * size,
                         .type = p->x.type,
                         .height = tile_height(heights_of(op), p->options.T - t),
                         .to = to + t * plan->x_bytes};
    if (plan->quantised)
        split_tile(op, &tile, k0, k1);
    else if (plan->pairs)
        spread_pairs(&tile, k0, k1);
    else
        spread_tile(op, &tile, k0, k1);
}

// ---------------------------------------------------------------------------------------------------- phase 1: products

// Panels that one tile takes from `panel` on: packed ones stand in a row; others are packed into scratch, a few at a time.
static int64_t panels_at(const kf_op *op, int64_t panel, int64_t end) {
    const kf_weight *w = &op->problem.linear.weight;
    const linear_plan *plan = plan_of(op);
    if (!w->packed) return smaller(end - panel, plan->scratch_panels);
    const int64_t whole = smaller(end, w->rows / KF_PANEL_ROWS) - panel;
    return whole > 0 ? smaller(whole, plan->tile_panels) : 1;
}

static const char *find_panels(const kf_op *op, char *scratch, int64_t panel, int64_t count) {
    const kf_weight *w = &op->problem.linear.weight;
    const int64_t bytes = plan_of(op)->panel_bytes, whole = w->rows / KF_PANEL_ROWS;
    const char *panels = (const char *)w->data + KF_PACKED_HEADER_BYTES;
    if (bytes == 0) return scratch;
    if (w->packed && panel < whole) return panels + panel * bytes;
    const char *rows =
        w->packed ? panels + whole * bytes : (const char *)w->data + panel * KF_PANEL_ROWS * w->row_bytes;
    const int64_t compact = w->cols / kf_block_values(w->type) * kf_block_bytes(w->type);
    const int64_t row_bytes = w->packed ? compact : w->row_bytes, left = w->rows - panel * KF_PANEL_ROWS;
    for (int64_t i = 0; i < count; i++)
        kf_pack_panel(w->type, rows + i * KF_PANEL_ROWS * row_bytes, row_bytes,
                      smaller(left - i * KF_PANEL_ROWS, KF_PANEL_ROWS), w->cols, scratch + i * bytes);
    return scratch;
}

typedef struct columns {
    const char *w, *w_end; // w_end: of what this worker is to read from here on
    int64_t first, count;  // of y's columns
    int32_t panels;
    const float *bias;
} columns;

static void multiply_tile(const kf_op *op, const kf_worker *worker, const columns *c, int64_t t, int32_t rows) {
    const kf_linear_problem *p = &op->problem.linear;
    const kf_linear_kernels *kernels = op->context->cpu->linear;
    const linear_plan *plan = plan_of(op);
    float sums[KF_LINEAR_MAX_SUMS] __attribute__((aligned(64)));
    const kf_linear_tile tile = {.type = p->weight.type,
                                 .rows = rows,
                                 .panels = c->panels,
                                 .digits = plan->digits,
                                 .K = p->options.K,
                                 .w = c->w,
                                 .w_end = c->w_end,
                                 .panel_bytes = plan->panel_bytes,
                                 .x = plan->local    ? worker->scratch
                                      : plan->splits ? worker->shared + t * plan->x_bytes
                                                     : p->x.data,
                                 .raw = p->x.data + t * p->x.stride[0] * kf_type_size(p->x.type),
                                 .raw_stride = p->x.stride[0] * kf_type_size(p->x.type),
                                 .raw_type = p->x.type,
                                 .pairs = plan->pairs,
                                 .y = sums};
    if (plan->quantised)
        kernels->quant(&tile);
    else
        kernels->dense(&tile);
    for (int32_t r = 0; r < rows; r++) {
        char *y = p->y.data + ((t + r) * p->y.stride[0] + c->first) * kf_type_size(p->y.type);
        kernels->store(sums + r * c->panels * KF_PANEL_ROWS, c->bias, c->count, p->y.type, y);
    }
}

// Rows t0 .. t1 - 1 times the panels of one tile from `panel` on, `end` being where the item ends. Returns their number.
static int64_t multiply_panels(const kf_op *op, const kf_worker *worker, int64_t panel, int64_t end, int64_t t0,
                               int64_t t1) {
    const kf_linear_problem *p = &op->problem.linear;
    const linear_plan *plan = plan_of(op);
    const int64_t panels = panels_at(op, panel, end), whole = p->options.N / KF_PANEL_ROWS;
    const int64_t ahead = p->weight.packed && panel < whole ? smaller(end, whole) - panel : panels;
    float bias[KF_LINEAR_MAX_PANELS * KF_PANEL_ROWS];
    columns c = {.w = find_panels(op, worker->scratch + (plan->local ? local_bytes(plan) : 0), panel, panels),
                 .first = panel * KF_PANEL_ROWS,
                 .count = smaller(p->options.N - panel * KF_PANEL_ROWS, panels * KF_PANEL_ROWS),
                 .panels = (int32_t)panels};
    c.w_end = c.w + ahead * plan->panel_bytes;
    if (kf_present(&p->bias)) {
        op->context->cpu->linear->load(p->bias.data + c.first * kf_type_size(p->bias.type), p->bias.type, c.count,
                                       bias);
        c.bias = bias;
    }
    for (int64_t t = t0; t < t1;) {
        const int32_t rows = tile_height(heights_of(op), t1 - t);
        multiply_tile(op, worker, &c, t, rows);
        t += rows;
    }
    return panels;
}

static void multiply(const kf_op *op, const kf_worker *worker, int64_t item) {
    const linear_plan *plan = plan_of(op);
    const int64_t first = item % plan->groups * plan->item_panels, t0 = item / plan->groups * CHUNK_ROWS;
    const int64_t end = smaller(first + plan->item_panels, plan->panels);
    const int64_t t1 = smaller(t0 + CHUNK_ROWS, op->problem.linear.options.T);
    for (int64_t panel = first; panel < end;) panel += multiply_panels(op, worker, panel, end, t0, t1);
}

static void run_linear(const kf_op *op, const kf_worker *worker, int32_t phase, int64_t first, int64_t count) {
    const linear_plan *plan = plan_of(op);
    if (phase + 1 < op->plan.phases) {
        for (int64_t item = first; item < first + count; item++) arrange_x(op, worker->shared, item);
        return;
    }
    for (int64_t part = 0; plan->local && worker->first && part < plan->splits; part++)
        arrange_x(op, worker->scratch, part);
    for (int64_t item = first; item < first + count; item++) multiply(op, worker, item);
}

const kf_backend_op kf_cpu_linear = {.plan = plan_linear, .prepare = prepare_linear, .run_items = run_linear};

// ------------------------------------------------------------------------------------------------------------ embedding
// y[t] = scale * table[ids[t]]: one item is a row; bytes: the row once and y once.

static kf_status plan_embedding(kf_op *op) {
    const kf_embedding_problem *p = &op->problem.embedding;
    if (p->options.T == 0 || p->options.N == 0) return KF_OK;
    op->plan.phases = 1;
    op->plan.items[0] = p->options.T;
    return KF_OK;
}

static kf_status prepare_embedding(const kf_op *op) {
    const kf_embedding_problem *p = &op->problem.embedding;
    for (int64_t t = 0; t < p->options.T; t++) {
        const int64_t id = kf_view_int(&p->ids, t);
        if (id < 0 || id >= p->table.rows)
            return kf_fail(KF_INVALID_ARGUMENT, "embedding: ids[%lld] is %lld; the table has rows 0 to %lld",
                           (long long)t, (long long)id, (long long)p->table.rows - 1);
    }
    return KF_OK;
}

// `count` values from value k on, a multiple of the block.
static void read_weights(const kf_linear_kernels *kernels, int type, const char *row, int64_t k, int64_t count,
                         float *values) {
    const int block = kf_block_values(type), bytes = kf_block_bytes(type);
    const char *from = row + k / block * bytes;
    if (!kf_block_quantised(type)) {
        const int32_t dense = type == KF_WEIGHT_F32 ? KF_TYPE_F32 : type == KF_WEIGHT_F16 ? KF_TYPE_F16 : KF_TYPE_BF16;
        kernels->load(from, dense, count, values);
        return;
    }
    for (int64_t i = 0; i < count; i += block, from += bytes)
        kf_block_dequantise(type, (const uint8_t *)from, values + i);
}

static void run_embedding(const kf_op *op, const kf_worker *worker, int32_t phase, int64_t first, int64_t count) {
    (void)worker, (void)phase;
    const kf_embedding_problem *p = &op->problem.embedding;
    const kf_linear_kernels *kernels = op->context->cpu->linear;
    for (int64_t t = first; t < first + count; t++) {
        const char *row = (const char *)p->table.data + kf_view_int(&p->ids, t) * p->table.row_bytes;
        char *y = p->y.data + t * p->y.stride[0] * kf_type_size(p->y.type);
        for (int64_t k = 0; k < p->options.N; k += KF_BLOCK_MAX) {
            float values[KF_BLOCK_MAX];
            const int64_t n = p->options.N - k < KF_BLOCK_MAX ? p->options.N - k : KF_BLOCK_MAX;
            read_weights(kernels, p->table.type, row, k, n, values);
            for (int64_t i = 0; i < n; i++) values[i] *= p->options.scale;
            kernels->store(values, NULL, n, p->y.type, y + k * kf_type_size(p->y.type));
        }
    }
}

const kf_backend_op kf_cpu_embedding = {
    .plan = plan_embedding, .prepare = prepare_embedding, .run_items = run_embedding};
