// SPDX-License-Identifier: Apache-2.0
//
// The host's side of rope and kv_append: the table of frequencies in the plan, tiles of positions, the launch.
#include "cuda/rows_host.h"
#include "math/rope.h"

#include <string.h>

typedef struct rope_plan {
    double frequency[KF_ROPE_MOST_PAIRS], magnitude;
} rope_plan;
kf_static_assert(sizeof(rope_plan) <= sizeof((kf_plan *)0)->word, "the plan's words hold it");

// Items that a block should have: enough to hide its angles behind.
enum { TILE_ITEMS = 2048 };

static void plan_turns(kf_op *op, const kf_rope_params *rope) {
    rope_plan plan = {.magnitude = 1};
    if (rope->pairing != KF_ROPE_OFF) plan.magnitude = kf_rope_table(rope, plan.frequency);
    memcpy(op->plan.word, &plan, sizeof plan);
    op->plan.phases = 1;
}

static void set_turns(kf_cuda_turns *t, const kf_op *op, const kf_rope_params *rope, const kf_view *positions,
                      int64_t offset) {
    const rope_plan *plan = (const rope_plan *)op->plan.word;
    t->offset = offset;
    t->pairing = rope->pairing;
    t->pairs = rope->pairing == KF_ROPE_OFF ? 0 : rope->dims / 2;
    t->magnitude = plan->magnitude;
    memcpy(t->frequency, plan->frequency, sizeof t->frequency);
    t->positions = positions->data;
    t->positions_wide = positions->type == KF_TYPE_I64;
    t->position_stride[0] = positions->stride[0], t->position_stride[1] = positions->stride[1];
}

static kf_cuda_heads heads_of(const kf_view *view) {
    const int64_t size = kf_type_size(view->type);
    return (kf_cuda_heads){.data = view->data,
                           .stride = {view->stride[0] * size, view->stride[1] * size, view->stride[2] * size},
                           .type = view->type,
                           .size = (int32_t)size};
}

// Whether rows of `width` elements, of which 2 `pairs` turn, are whole items of chunks.
static bool whole_items(const kf_view *from, const kf_view *to, int64_t width, int64_t pairs) {
    const int64_t step = KF_CUDA_CHUNK / kf_type_size(from->type);
    return from->type == to->type && pairs % step == 0 && width % (2 * step) == 0 && kf_cuda_aligned(from, 3) &&
           kf_cuda_aligned(to, 3);
}

// Items of a row: pairs of chunks of `step` elements.
static int64_t items_of(int64_t width, int64_t step) { return kf_cuda_divide_up(width, 2 * step); }

// Positions of a block, by the items of one, as a power of two. Fewer where all multiprocessors would not have work.
static int32_t tile_shift(const kf_context *context, int64_t items, int64_t positions) {
    int32_t shift = 0;
    while (2 << shift <= KF_ROPE_TILE && items << shift < TILE_ITEMS &&
           positions >> (shift + 1) >= 4 * kf_cuda(context)->multiprocessors)
        shift++;
    return shift;
}

static kf_status check_items(const char *op, int64_t H, int64_t items) {
    const int64_t limit = INT32_MAX / KF_ROPE_TILE; // item arithmetic is 32-bit
    if (items <= limit && H <= limit / (items ? items : 1)) return KF_OK;
    return kf_fail(KF_UNSUPPORTED, "%s: %lld heads of %lld pairs; the cuda backend allows %lld in all", op,
                   (long long)H, (long long)items, (long long)limit);
}

static kf_status prepare_both(const kf_op *op, const kf_cuda_rows_kernel *table, int type, const char *what) {
    KF_TRY(kf_cuda_rows_prepare(op->context, kf_cuda_rows_find(table, type, 0), 0, what));
    return kf_cuda_rows_prepare(op->context, kf_cuda_rows_find(table, 0, 0), 0, what);
}

// ---------------------------------------------------------------------------------------------------------------- rope

static kf_status plan_rope(kf_op *op) {
    const kf_rope_problem *p = &op->problem.rope;
    KF_TRY(check_items("rope", p->options.H, items_of(p->options.D, 1)));
    KF_TRY(kf_cuda_rows_check_blocks("rope", p->options.B * p->options.N));
    plan_turns(op, &p->options.rope);
    return prepare_both(op, kf_cuda_rope_kernels, p->x.type, "rope");
}

kf_status kf_cuda_rope_launch(const kf_op *op, char *workspace) {
    const kf_rope_problem *p = &op->problem.rope;
    const int64_t pairs = p->options.rope.dims / 2, positions = p->options.B * p->options.N;
    (void)workspace;
    if (positions * p->options.H == 0) return KF_OK;
    const int type = whole_items(&p->x, &p->y, p->options.D, pairs) ? p->x.type : 0;
    const int64_t step = type ? KF_CUDA_CHUNK / kf_type_size(type) : 1;
    kf_cuda_rope a = {.x = heads_of(&p->x),
                      .y = heads_of(&p->y),
                      .N = p->options.N,
                      .positions = positions,
                      .H = (int32_t)p->options.H,
                      .D = (int32_t)p->options.D,
                      .items = (int32_t)items_of(p->options.D, step)};
    set_turns(&a.turns, op, &p->options.rope, &p->positions, p->options.position_offset);
    a.shift = tile_shift(op->context, (int64_t)a.items * a.H, positions);
    return kf_cuda_rows_launch(op, kf_cuda_rows_find(kf_cuda_rope_kernels, type, 0),
                               kf_cuda_divide_up(positions, INT64_C(1) << a.shift), &a, "rope: launch");
}

// ----------------------------------------------------------------------------------------------------------- kv_append

static kf_status plan_kv_append(kf_op *op) {
    const kf_kv_append_problem *p = &op->problem.kv_append;
    KF_TRY(check_items("kv_append", p->options.H, items_of(p->options.D, 1) + items_of(p->options.Dv, 1)));
    KF_TRY(kf_cuda_rows_check_blocks("kv_append", p->options.B * p->options.N));
    plan_turns(op, &p->options.rope);
    return prepare_both(op, kf_cuda_kv_append_kernels, p->k.type, "kv_append");
}

kf_status kf_cuda_kv_append_launch(const kf_op *op, char *workspace) {
    const kf_kv_append_problem *p = &op->problem.kv_append;
    const int64_t pairs = p->options.rope.pairing == KF_ROPE_OFF ? 0 : p->options.rope.dims / 2,
                  positions = p->options.B * p->options.N;
    (void)workspace;
    if (positions * p->options.H * (p->options.D + p->options.Dv) == 0) return KF_OK;
    const bool whole = p->k.type == p->v.type && whole_items(&p->k, &p->k_cache, p->options.D, pairs) &&
                       whole_items(&p->v, &p->v_cache, p->options.Dv, 0);
    const int type = whole ? p->k.type : 0;
    const int64_t step = type ? KF_CUDA_CHUNK / kf_type_size(type) : 1;
    kf_cuda_kv_append a = {.k = heads_of(&p->k),
                           .v = heads_of(&p->v),
                           .k_cache = heads_of(&p->k_cache),
                           .v_cache = heads_of(&p->v_cache),
                           .slots = p->slots.data,
                           .slot_stride = p->slots.stride[0],
                           .slots_wide = p->slots.type == KF_TYPE_I64,
                           .capacity = p->options.capacity,
                           .N = p->options.N,
                           .positions = positions,
                           .H = (int32_t)p->options.H,
                           .D = (int32_t)p->options.D,
                           .Dv = (int32_t)p->options.Dv,
                           .k_items = (int32_t)items_of(p->options.D, step),
                           .v_items = (int32_t)items_of(p->options.Dv, step)};
    set_turns(&a.turns, op, &p->options.rope, &p->positions, 0);
    a.shift = tile_shift(op->context, (int64_t)(a.k_items + a.v_items) * a.H, positions);
    return kf_cuda_rows_launch(op, kf_cuda_rows_find(kf_cuda_kv_append_kernels, type, 0),
                               kf_cuda_divide_up(positions, INT64_C(1) << a.shift), &a, "kv_append: launch");
}

const kf_backend_op kf_cuda_rope_op = {.plan = plan_rope};
const kf_backend_op kf_cuda_kv_append_op = {.plan = plan_kv_append};
