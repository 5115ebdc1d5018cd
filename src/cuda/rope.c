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

enum {
    MOST_HEADS = 4,       // of a thread: its angles serve all of them
    FULL_PROCESSOR = 512, // threads of these kernels on a multiprocessor
    ROUNDS = 2,           // a thread has more heads where even so there are this many times as many threads
    FEW_THREADS = 64,     // of a block where there are fewer threads than that; most that share a row
    FEW_PAIRS = 512,      // on a multiprocessor: up to so many pairs, an append has a thread for each
    MOST_PAIRS = 128,     // of a row, that it then may have
};

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

// Threads that share a row of a head; rows of more items are gone through in pieces.
static int64_t threads_of_row(int64_t items) { return items < FEW_THREADS ? items : FEW_THREADS; }

// A thread for each pair of elements of a head at a position: no more than MOST_PAIRS of a row.
static kf_cuda_rope_deal deal_pairs(int64_t B, int64_t N, int64_t H, int64_t pairs, int32_t *threads) {
    *threads = (int32_t)pairs;
    return (kf_cuda_rope_deal){.N = (uint32_t)N,
                               .positions = (uint32_t)(B * N),
                               .H = (int32_t)H,
                               .heads = 1,
                               .items = (int32_t)pairs,
                               .slots = 1};
}

static kf_cuda_rope_deal deal_heads(const kf_context *context, int64_t B, int64_t N, int64_t H, int64_t items,
                                    int32_t *threads) {
    const int64_t own = threads_of_row(items), full = FULL_PROCESSOR * (int64_t)kf_cuda(context)->multiprocessors;
    kf_cuda_rope_deal d = {.N = (uint32_t)N, .positions = (uint32_t)(B * N), .H = (int32_t)H, .heads = 1};
    while (d.heads < MOST_HEADS && B * N * kf_cuda_divide_up(H, 2 * d.heads) * own >= ROUNDS * full) d.heads *= 2;
    *threads = B * N * H * own < full ? FEW_THREADS : kf_cuda_kv_append_kernels->threads;
    d.items = (int32_t)own;
    d.slots = (int32_t)(*threads / own);
    return d;
}

static int64_t blocks_of(const kf_cuda_rope_deal *d) {
    return kf_cuda_divide_up(d->positions * kf_cuda_divide_up(d->H, d->heads), d->slots);
}

static kf_status launch_heads(const kf_op *op, const kf_cuda_rows_kernel *kernel, const kf_cuda_rope_deal *d,
                              int32_t threads, const void *argument, const char *what) {
    const kf_cuda_launch_shape shape = {.blocks = blocks_of(d), .threads = threads, .dependent = true};
    return kf_cuda_launch(kf_cuda(op->context), kernel->function, &shape, argument, what);
}

// Rows of heads are counted in 32 bits.
static kf_status check_heads(const char *op, int64_t B, int64_t N, int64_t H, int64_t width) {
    if (width > INT32_MAX / 2)
        return kf_fail(KF_UNSUPPORTED, "%s: heads of %lld elements; the cuda backend allows 2^30 - 1", op,
                       (long long)width);
    if (H == 0 || B * N <= INT32_MAX / H) return KF_OK;
    return kf_fail(KF_UNSUPPORTED, "%s: %lld positions of %lld heads; the cuda backend allows 2^31 - 1 in all", op,
                   (long long)(B * N), (long long)H);
}

static kf_status prepare_both(const kf_op *op, const kf_cuda_rows_kernel *table, int type, const char *what) {
    KF_TRY(kf_cuda_rows_prepare(op->context, kf_cuda_rows_find(table, type, 0), 0, what));
    return kf_cuda_rows_prepare(op->context, kf_cuda_rows_find(table, 0, 0), 0, what);
}

// ---------------------------------------------------------------------------------------------------------------- rope

static kf_status plan_rope(kf_op *op) {
    const kf_rope_problem *p = &op->problem.rope;
    KF_TRY(check_heads("rope", p->options.B, p->options.N, p->options.H, p->options.D));
    plan_turns(op, &p->options.rope);
    return prepare_both(op, kf_cuda_rope_kernels, p->x.type, "rope");
}

kf_status kf_cuda_rope_launch(const kf_op *op, char *workspace) {
    const kf_rope_problem *p = &op->problem.rope;
    const int64_t pairs = p->options.rope.dims / 2;
    (void)workspace;
    if (p->options.B * p->options.N * p->options.H == 0) return KF_OK;
    const int type = whole_items(&p->x, &p->y, p->options.D, pairs) ? p->x.type : 0;
    const int64_t step = type ? KF_CUDA_CHUNK / kf_type_size(type) : 1;
    int32_t threads;
    kf_cuda_rope a = {.x = heads_of(&p->x),
                      .y = heads_of(&p->y),
                      .D = (int32_t)p->options.D,
                      .items = (int32_t)items_of(p->options.D, step)};
    set_turns(&a.turns, op, &p->options.rope, &p->positions, p->options.position_offset);
    a.deal = deal_heads(op->context, p->options.B, p->options.N, p->options.H, a.items, &threads);
    return launch_heads(op, kf_cuda_rows_find(kf_cuda_rope_kernels, type, 0), &a.deal, threads, &a, "rope: launch");
}

// ----------------------------------------------------------------------------------------------------------- kv_append

static kf_status plan_kv_append(kf_op *op) {
    const kf_kv_append_problem *p = &op->problem.kv_append;
    KF_TRY(check_heads("kv_append", p->options.B, p->options.N, p->options.H,
                       p->options.D > p->options.Dv ? p->options.D : p->options.Dv));
    plan_turns(op, &p->options.rope);
    const kf_cuda_rows_kernel *table = kf_cuda_kv_append_kernels;
    KF_TRY(kf_cuda_rows_prepare(op->context, kf_cuda_rows_find(table, p->k.type, KF_APPEND_PAIRS), 0, "kv_append"));
    return prepare_both(op, table, p->k.type, "kv_append");
}

kf_status kf_cuda_kv_append_launch(const kf_op *op, char *workspace) {
    const kf_kv_append_problem *p = &op->problem.kv_append;
    const int64_t pairs = p->options.rope.pairing == KF_ROPE_OFF ? 0 : p->options.rope.dims / 2;
    (void)workspace;
    if (p->options.B * p->options.N * p->options.H * (p->options.D + p->options.Dv) == 0) return KF_OK;
    const bool whole =
        whole_items(&p->k, &p->k_cache, p->options.D, pairs) && whole_items(&p->v, &p->v_cache, p->options.Dv, 0);
    const bool one_type = p->k.type == p->v.type && p->k.type == p->k_cache.type && p->k.type == p->v_cache.type;
    const int64_t rows = p->options.B * p->options.N * p->options.H,
                  row_pairs = items_of(p->options.D > p->options.Dv ? p->options.D : p->options.Dv, 1);
    const bool few = one_type && row_pairs <= MOST_PAIRS &&
                     rows * row_pairs <= FEW_PAIRS * (int64_t)kf_cuda(op->context)->multiprocessors;
    const int type = few || (one_type && whole) ? p->k.type : 0;
    const int64_t step = few || !type ? 1 : KF_CUDA_CHUNK / kf_type_size(type);
    int32_t threads;
    kf_cuda_kv_append a = {.k = heads_of(&p->k),
                           .v = heads_of(&p->v),
                           .k_cache = heads_of(&p->k_cache),
                           .v_cache = heads_of(&p->v_cache),
                           .slots = p->slots.data,
                           .slot_stride = p->slots.stride[0],
                           .slots_wide = p->slots.type == KF_TYPE_I64,
                           .capacity = p->options.capacity,
                           .D = (int32_t)p->options.D,
                           .Dv = (int32_t)p->options.Dv,
                           .k_items = (int32_t)items_of(p->options.D, step),
                           .v_items = (int32_t)items_of(p->options.Dv, step)};
    set_turns(&a.turns, op, &p->options.rope, &p->positions, 0);
    const int64_t items = a.k_items > a.v_items ? a.k_items : a.v_items;
    a.deal = few ? deal_pairs(p->options.B, p->options.N, p->options.H, items, &threads)
                 : deal_heads(op->context, p->options.B, p->options.N, p->options.H, items, &threads);
    const int way = few ? KF_APPEND_PAIRS : type ? KF_APPEND_CHUNKS : 0;
    return launch_heads(op, kf_cuda_rows_find(kf_cuda_kv_append_kernels, type, way), &a.deal, threads, &a,
                        "kv_append: launch");
}

const kf_backend_op kf_cuda_rope_op = {.plan = plan_rope};
const kf_backend_op kf_cuda_kv_append_op = {.plan = plan_kv_append};
