// SPDX-License-Identifier: Apache-2.0
//
// The cut of an attention into work items; see plan.h.
#include "core/plan.h"

// Splits are meant for machines of any size, so their number is that of a large one: with few rows an item reads its
// keys once and leaves a state of a few kilobytes, so 128 items cost little (256 cost 1 %); a tile of many rows leaves more.
enum { ITEMS_FEW = 128, ITEMS_TILES = 32 };
// Keys of the shortest split: below, the state costs as much as the keys. With fixed_split the length is one constant.
enum { SPLIT_MIN_FEW = 256, SPLIT_MIN_TILES = 1024, SPLIT_FIXED_FEW = 1024 };

// b is a limit of the backend or a number of rows: never 0.
static int64_t divide_up(int64_t a, int64_t b) { return a / b + (a % b != 0); } // NOLINT
static int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

// The rows of a tile: as many as the backend allows, fewer where that leaves too few items.
static int64_t choose_tile_rows(const kf_attention_limits *limits, const kf_attention_plan *plan) {
    if (plan->rows <= limits->few_rows) return kf_max64(plan->rows, 1);
    int64_t rows = kf_min64(limits->tile_rows_max, round_up(plan->rows, limits->row_group));
    while (rows > 4 * limits->row_group && plan->pairs * divide_up(plan->rows, rows) < limits->items_wanted)
        rows = round_up(rows / 2, limits->row_group);
    return rows;
}

static int64_t choose_split(const struct kf_attention_options *options, const kf_attention_limits *limits,
                            const kf_attention_plan *plan) {
    bool few = plan->rows <= limits->few_rows;
    if (limits->fixed_split) return few ? SPLIT_FIXED_FEW : INT64_MAX;
    // The tiles that a shape has at the largest tile: their number must not depend on the number of threads.
    int64_t tiles = few ? 1 : divide_up(plan->rows, limits->tile_rows_max);
    int64_t wanted = divide_up(few ? ITEMS_FEW : ITEMS_TILES, kf_max64(plan->pairs * tiles, 1));
    int64_t split = divide_up(options->Nk, wanted);
    return kf_max64(round_up(split, limits->key_block), few ? SPLIT_MIN_FEW : SPLIT_MIN_TILES);
}

void kf_attention_plan_make(const struct kf_attention_options *options, const kf_attention_limits *limits,
                            kf_attention_plan *plan) {
    plan->heads = options->Hkv ? options->H / options->Hkv : 0;
    plan->pairs = options->B * options->Hkv;
    plan->rows = plan->heads * options->Nq;
    plan->tile_rows = choose_tile_rows(limits, plan);
    plan->tiles = divide_up(plan->rows, plan->tile_rows);
    plan->split = choose_split(options, limits, plan);
    plan->splits = kf_max64(divide_up(options->Nk, plan->split), 1);
    plan->items = plan->tiles * plan->splits * plan->pairs;
    plan->slots = plan->splits > 1 ? plan->splits : 0;
}

int64_t kf_attention_length(const kf_attention_problem *problem, int64_t b) {
    return kf_present(&problem->key_lengths) ? kf_view_int(&problem->key_lengths, b) : problem->options.Nk;
}

int64_t kf_attention_position(const kf_attention_problem *problem, int64_t b, int64_t i) {
    if (kf_present(&problem->positions)) return kf_view_int2(&problem->positions, b, i);
    return i + kf_attention_length(problem, b) - problem->options.Nq;
}

// Positions of queries i0 .. i1 - 1: they rise one by one unless they are given.
static void find_positions(const kf_attention_problem *problem, int64_t i0, int64_t i1, kf_attention_item *item) {
    item->p_min = kf_attention_position(problem, item->b, i0);
    item->p_max = kf_attention_position(problem, item->b, i1 - 1);
    if (!kf_present(&problem->positions)) return;
    for (int64_t i = i0; i < i1; i++) {
        int64_t p = kf_attention_position(problem, item->b, i);
        item->p_min = kf_min64(item->p_min, p);
        item->p_max = kf_max64(item->p_max, p);
    }
}

void kf_attention_item_get(const kf_attention_plan *plan, const kf_attention_problem *problem, int64_t index,
                           kf_attention_item *item) {
    const struct kf_attention_options *options = &problem->options;
    int64_t tile = plan->tiles - 1 - index / plan->pairs / plan->splits;
    // Splits of a pair follow each other: they are one stream of keys.
    int64_t pair = index / plan->splits % plan->pairs;
    item->b = pair / options->Hkv;
    item->kv_head = pair % options->Hkv;
    item->split = index % plan->splits;
    item->row0 = tile * plan->tile_rows;
    item->row1 = kf_min64(item->row0 + plan->tile_rows, plan->rows);
    item->mask.length = kf_attention_length(problem, item->b);
    item->mask.left = options->window_left;
    item->mask.right = options->window_right;
    find_positions(problem, item->row0 / plan->heads, (item->row1 - 1) / plan->heads + 1, item);
    kf_interval seen = kf_mask_keys(&item->mask, item->p_min, item->p_max);
    bool none = seen.hi <= seen.lo;
    item->live0 = none ? 0 : seen.lo / plan->split;
    item->live1 = none ? 0 : (seen.hi - 1) / plan->split + 1;
    kf_interval split = {item->split * plan->split,
                         item->split + 1 < plan->splits ? (item->split + 1) * plan->split : options->Nk};
    item->keys = kf_intersect(seen, split);
}

int64_t kf_attention_splits_live(const kf_attention_plan *plan, const kf_attention_problem *problem) {
    if (plan->splits == 1) return 1;
    int64_t longest = 0;
    for (int64_t b = 0; b < problem->options.B; b++) longest = kf_max64(longest, kf_attention_length(problem, b));
    return kf_max64(divide_up(longest, plan->split), 1); // split 0 answers for sequences without keys
}

kf_status kf_attention_check_run(const kf_attention_problem *problem) {
    if (!kf_present(&problem->key_lengths)) return KF_OK;
    for (int64_t b = 0; b < problem->options.B; b++) {
        int64_t length = kf_view_int(&problem->key_lengths, b);
        if (length < 0 || length > problem->options.Nk)
            return kf_fail(KF_INVALID_ARGUMENT, "attention: key_lengths[%lld] is %lld; it must be 0 to Nk = %lld",
                           (long long)b, (long long)length, (long long)problem->options.Nk);
    }
    return KF_OK;
}
