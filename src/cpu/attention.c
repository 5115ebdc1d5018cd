// SPDX-License-Identifier: Apache-2.0
//
// The attention operation of the CPU backend: its phases.
//
//     rotate   where RoPE at load is asked for: q and the visible part of k, rotated into shared workspace in fp32. Once a run
//              instead of once for each tile that reads them.
//     pack     where tiles are of few rows and several share their keys: each block of keys and values packed once for all
//              of them into shared workspace, instead of once for each tile that reads it
//     attend   one item of the plan each (plan.h): a tile of many rows (attention_tiles.c) or all rows of a KV head where
//              they are few (attention_few.c)
//     merge    where keys are split: the partial states of a tile's rows, in the order of the splits
//
//     shared   q [B, H, Nq, D] fp32 | k [B, Hkv, Nk, D] fp32 | packed [B Hkv][blocks] | states [slots][rows][2] fp32 | outputs [slots][rows][Dv] fp32
#include "cpu/attention.h"

#include <string.h>

#include "math/rope.h"

typedef struct cpu_attention_plan {
    kf_attention_plan cut;
    int32_t few;                                    // 1: attention_few.c
    int32_t packs;                                  // 1: there is a phase `pack`
    int32_t step[KF_MAX_PHASES];                    // what each phase is
    int64_t rotate_q, rotate_k;                     // items of the rotate phase: blocks of queries, then blocks of keys
    int64_t k_at, packed_at, states_at, outputs_at; // offsets in shared
    double magnitude;
    double frequency[KF_MAX_HEAD_DIM / 2];
} cpu_attention_plan;
kf_static_assert(sizeof(cpu_attention_plan) <= sizeof((kf_plan *)0)->word, "the plan has room");

enum { ROTATE, PACK, ATTEND, MERGE }; // the steps

enum {
    // Tiles below so many rows leave the packing to a phase of its own: in a tile of 192 it is 2 to 6 % of the work.
    PACK_ROWS = 192,
    ROTATE_ROWS = 64, // queries or keys of an item of the rotate phase
    // Bytes of a tile's queries and outputs, beside a packed block of keys and values: together half of a 1 MiB L2.
    TILE_BYTES = 400 * 1024,
    TILE_ROWS_MAX = 384, // by then packing is 2 to 5 % of the work
    ITEMS_WANTED = 32,   // at least, and for each thread: few enough to pack seldom, enough to end together
    ITEMS_PER_THREAD = 8,
};

static const cpu_attention_plan *plan_of(const kf_op *op) { return (const cpu_attention_plan *)op->plan.word; }

static const kf_attention_kernels *kernels_of(const kf_op *op) { return op->context->cpu->attention; }

// ------------------------------------------------------------------------------------------------------------------ plan

static kf_attention_limits limits_of(const kf_op *op) {
    const struct kf_attention_options *n = &op->problem.attention.options;
    int64_t element = kf_attention_choose_tiles(kernels_of(op), &op->problem.attention)->element_bytes;
    int64_t rows = TILE_BYTES / (n->D * element + n->Dv * 4) / KF_ROW_GROUP * KF_ROW_GROUP;
    kf_attention_limits limits = {
        .few_rows = KF_FEW_ROWS,
        .tile_rows_max = kf_max64(kf_min64(rows, TILE_ROWS_MAX), 4 * KF_ROW_GROUP),
        .row_group = KF_ROW_GROUP,
        .key_block = KF_KEY_BLOCK,
        .items_wanted = kf_max64(ITEMS_WANTED, ITEMS_PER_THREAD * op->context->info.threads),
        .fixed_split = op->context->info.fixed_split != 0,
    };
    return limits;
}

// a * b bytes more of shared workspace; false where the sum passes 2^62.
static bool add_shared(int64_t *total, int64_t a, int64_t b) {
    int64_t bytes;
    if (__builtin_mul_overflow(a, b, &bytes) || __builtin_add_overflow(*total, kf_padded(bytes, 64), total))
        return false;
    return *total >= 0 && *total < INT64_C(1) << 62;
}

static int64_t key_blocks(const struct kf_attention_options *n) {
    return kf_padded(n->Nk, KF_KEY_BLOCK) / KF_KEY_BLOCK;
}

static bool lay_out_shared(const kf_op *op, cpu_attention_plan *plan, int64_t *bytes) {
    const kf_attention_problem *problem = &op->problem.attention;
    const struct kf_attention_options *n = &problem->options;
    int64_t slots = plan->cut.slots * plan->cut.pairs * plan->cut.rows;
    bool fits = true;
    *bytes = 0;
    if (n->rope_q) fits &= add_shared(bytes, n->B * n->H * n->Nq, n->D * 4);
    plan->k_at = *bytes;
    if (n->rope_k) fits = fits && add_shared(bytes, n->B * n->Hkv * n->Nk, n->D * 4);
    plan->packed_at = *bytes;
    if (plan->packs)
        fits = fits && add_shared(bytes, plan->cut.pairs * key_blocks(n),
                                  (int64_t)kf_attention_packed_bytes(
                                      kernels_of(op), kf_attention_choose_tiles(kernels_of(op), problem), n->D, n->Dv));
    plan->states_at = *bytes;
    fits = fits && add_shared(bytes, slots, sizeof(kf_state));
    plan->outputs_at = *bytes;
    return fits && add_shared(bytes, slots, n->Dv * 4);
}

static void add_phase(kf_op *op, cpu_attention_plan *plan, int32_t step, int64_t items) {
    plan->step[op->plan.phases] = step;
    op->plan.items[op->plan.phases++] = items;
}

static kf_status plan_attention(kf_op *op) {
    const kf_attention_problem *problem = &op->problem.attention;
    const struct kf_attention_options *n = &problem->options;
    const kf_attention_kernels *kernels = kernels_of(op);
    kf_attention_limits limits = limits_of(op);
    cpu_attention_plan plan = {0};
    int64_t shared;
    kf_attention_plan_make(n, &limits, &plan.cut);
    plan.few = plan.cut.rows <= KF_FEW_ROWS;
    plan.packs = !plan.few && plan.cut.tiles > 1 && plan.cut.tile_rows < PACK_ROWS;
    if (!lay_out_shared(op, &plan, &shared))
        return kf_fail(KF_INVALID_ARGUMENT,
                       "attention: B = %lld, H = %lld, Nq = %lld, Nk = %lld need a workspace of more than 2^62 bytes",
                       (long long)n->B, (long long)n->H, (long long)n->Nq, (long long)n->Nk);
    if (n->rope_q) plan.rotate_q = n->B * ((n->Nq + ROTATE_ROWS - 1) / ROTATE_ROWS);
    if (n->rope_k) plan.rotate_k = (n->Nk + ROTATE_ROWS - 1) / ROTATE_ROWS;
    if (n->rope_q || n->rope_k) {
        plan.magnitude = kf_rope_table(&n->rope, plan.frequency);
        add_phase(op, &plan, ROTATE, plan.rotate_q + plan.rotate_k);
    }
    if (plan.packs) add_phase(op, &plan, PACK, plan.cut.pairs * key_blocks(n));
    add_phase(op, &plan, ATTEND, plan.cut.items);
    if (plan.cut.slots) add_phase(op, &plan, MERGE, plan.cut.pairs * plan.cut.tiles);
    op->plan.streams = plan.few;
    op->plan.shared_bytes = (size_t)shared;
    op->plan.scratch_bytes = plan.few ? kf_attention_few_scratch(kernels, n->D, n->Dv)
                                      : kf_attention_tiles_scratch(kernels, kf_attention_choose_tiles(kernels, problem),
                                                                   &plan.cut, n->D, n->Dv);
    memcpy(op->plan.word, &plan, sizeof plan);
    return KF_OK;
}

static kf_status prepare_attention(const kf_op *op) { return kf_attention_check_run(&op->problem.attention); }

// ---------------------------------------------------------------------------------------------------------------- rotate

// A compact view of fp32 [B, heads, rows, D] in shared workspace.
static kf_view compact_view(const kf_view *like, char *data) {
    kf_view view = *like;
    view.data = data;
    view.type = KF_TYPE_F32;
    for (int64_t i = 3, stride = 1; i >= 0; stride *= view.shape[i], i--) view.stride[i] = stride;
    return view;
}

static void rotate(const kf_rope_params *rope, const float *cosine, const float *sine, float *x) {
    int32_t pairs = rope->dims / 2;
    for (int32_t c = 0; c < pairs; c++) {
        int32_t a = rope->pairing == KF_ROPE_NEOX ? c : 2 * c,
                b = rope->pairing == KF_ROPE_NEOX ? c + pairs : 2 * c + 1;
        float first = x[a], second = x[b];
        x[a] = first * cosine[c] - second * sine[c];
        x[b] = first * sine[c] + second * cosine[c];
    }
}

// Row i of all heads of a sequence, from one view to another, turned by the angles.
static void rotate_heads(const kf_attention_call *call, const float *cosine, const float *sine, const kf_view *from,
                         const kf_view *to, int64_t b, int64_t i) {
    int64_t D = call->problem->options.D;
    float x[KF_MAX_HEAD_DIM];
    for (int64_t h = 0; h < from->shape[1]; h++) {
        call->kernels->load_row(kf_at(from, b, h, i), from->type, D, 1.0f, x);
        rotate(&call->problem->options.rope, cosine, sine, x);
        call->kernels->store_row(x, D, 1.0f, to->type, (char *)(uintptr_t)kf_at(to, b, h, i));
    }
}

static void run_rotate(const cpu_attention_plan *plan, const kf_attention_call *call, int64_t item) {
    const kf_attention_problem *problem = call->problem;
    const struct kf_attention_options *n = &problem->options;
    float cosine[KF_MAX_HEAD_DIM / 2], sine[KF_MAX_HEAD_DIM / 2];
    bool queries = item < plan->rotate_q;
    int64_t blocks = queries ? plan->rotate_q / n->B : plan->rotate_k;
    int64_t index = queries ? item : item - plan->rotate_q;
    int64_t first = index % blocks * ROTATE_ROWS, last = kf_min64(first + ROTATE_ROWS, queries ? n->Nq : n->Nk);
    for (int64_t i = first; i < last; i++) {
        int64_t position = queries ? kf_attention_position(problem, index / blocks, i) : i;
        kf_rope_cos_sin(plan->frequency, n->rope.dims / 2, plan->magnitude, position, cosine, sine);
        if (queries) {
            rotate_heads(call, cosine, sine, &problem->q, &call->q, index / blocks, i);
            continue;
        }
        for (int64_t b = 0; b < n->B; b++)
            if (i < kf_attention_length(problem, b)) rotate_heads(call, cosine, sine, &problem->k, &call->k, b, i);
    }
}

// --------------------------------------------------------------------------------------------------------------- phases

static kf_attention_call call_of(const kf_op *op, char *shared) {
    const cpu_attention_plan *plan = plan_of(op);
    const kf_attention_problem *problem = &op->problem.attention;
    kf_attention_call call = {
        .problem = problem, .plan = &plan->cut, .kernels = kernels_of(op), .q = problem->q, .k = problem->k};
    if (problem->options.rope_q) call.q = compact_view(&problem->q, shared);
    if (problem->options.rope_k) call.k = compact_view(&problem->k, shared + plan->k_at);
    if (plan->packs) call.packed = shared + plan->packed_at;
    if (plan->cut.slots) {
        call.states = (float *)(void *)(shared + plan->states_at);
        call.outputs = (float *)(void *)(shared + plan->outputs_at);
    }
    return call;
}

// A block of a KV head's keys, where some row of all tiles may see one of them.
static void run_pack(const cpu_attention_plan *plan, const kf_attention_call *call, int64_t index) {
    int64_t blocks = key_blocks(&call->problem->options), block = index % blocks * KF_KEY_BLOCK;
    kf_attention_plan whole = plan->cut;
    kf_attention_item item;
    whole.tile_rows = whole.rows;
    whole.tiles = whole.splits = 1;
    kf_attention_item_get(&whole, call->problem, index / blocks, &item);
    if (block + KF_KEY_BLOCK <= item.keys.lo || block >= item.keys.hi) return;
    kf_attention_pack_block(call, item.b, item.kv_head, block, item.keys.hi);
}

// An item whose split its rows do not see leaves at once; where they see no key at all, the first split says so.
static void run_attend(const cpu_attention_plan *plan, const kf_attention_call *call, int64_t index, char *scratch) {
    kf_attention_item item;
    kf_attention_item_get(&plan->cut, call->problem, index, &item);
    bool nothing_seen = item.live1 == item.live0;
    if (nothing_seen ? item.split != 0 : item.keys.hi <= item.keys.lo) return;
    if (plan->few)
        kf_attention_run_few(call, &item, scratch);
    else
        kf_attention_run_tile(call, &item, scratch);
}

static void run_merge(const cpu_attention_plan *plan, const kf_attention_call *call, int64_t index) {
    kf_attention_plan tiles = plan->cut;
    kf_attention_item item;
    tiles.splits = 1;
    kf_attention_item_get(&tiles, call->problem, index, &item);
    if (item.live1 - item.live0 <= 1) return;
    for (int64_t row = item.row0; row < item.row1; row++) kf_attention_merge_row(call, &item, row);
}

static void run_attention(const kf_op *op, const kf_worker *worker, int32_t phase, int64_t first, int64_t count) {
    const cpu_attention_plan *plan = plan_of(op);
    kf_attention_call call = call_of(op, worker->shared);
    const int32_t step = plan->step[phase];
    int64_t live = step == ATTEND ? kf_attention_splits_live(&plan->cut, call.problem) : 0;
    for (int64_t i = first; i < first + count; i++) {
        if (step == ROTATE) run_rotate(plan, &call, i);
        if (step == PACK) run_pack(plan, &call, i);
        if (step == ATTEND && i % plan->cut.splits < live) run_attend(plan, &call, i, worker->scratch);
        if (step == MERGE) run_merge(plan, &call, i);
    }
}

const kf_backend_op kf_cpu_attention = {plan_attention, prepare_attention, run_attention};
