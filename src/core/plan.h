// SPDX-License-Identifier: Apache-2.0
//
// The plan of an attention: how its pairs of queries and keys are cut into work items, for every backend.
//
//     rows    The G = H / Hkv query heads of a KV head read the same keys, so their rows are one list: row r of KV head n
//             is query r / G of head n G + r % G. Neighbours in the list stand at neighbouring positions, which keeps the
//             masks of a tile alike.
//     tile    tile_rows neighbouring rows: the rows of one item
//     split   a range of keys, [s split, (s + 1) split): the keys of one item. With more than one split an item leaves a
//             partial state in slot s of its rows, and a merge follows.
//     item    (tile, sequence, KV head, split), numbered with the last tiles first: under a causal mask these see the
//             most keys, and what is heavy should start early. The splits of a head follow each other: one stream of keys.
//
// Split length depends on the shape alone, or is one constant (fixed_split). Splits and key blocks begin at absolute
// multiples of the key index. So a row's sums are cut in the same places at any number of threads.
#ifndef KF_CORE_PLAN_H
#define KF_CORE_PLAN_H

#include "core/internal.h"
#include "math/mask.h"

typedef struct kf_attention_plan {
    int64_t heads; // H / Hkv = G
    int64_t pairs; // B * Hkv
    int64_t rows;  // of a KV head: G * Nq
    int64_t tile_rows, tiles;
    int64_t split, splits; // keys of a split (a multiple of key_block), and how many there are
    int64_t items;         // tiles * splits * pairs
    int64_t slots;         // partial states of a row: splits, or 0 where one split holds all keys
} kf_attention_plan;

// What a backend asks of the plan.
typedef struct kf_attention_limits {
    int64_t few_rows;      // up to this many rows of a KV head are one tile, cut along the keys alone
    int64_t tile_rows_max; // otherwise: a multiple of row_group
    int64_t row_group;
    int64_t key_block;
    int64_t items_wanted; // tiles shrink until there are this many, where they can
    bool fixed_split;
} kf_attention_limits;

typedef struct kf_attention_item {
    int64_t b, kv_head;
    int64_t row0, row1; // rows of the KV head
    int64_t split;
    kf_mask mask;
    kf_interval keys;     // that the item is to fold: its split, cut to what its rows see; may be empty
    int64_t live0, live1; // the splits that hold keys of this tile: live0 .. live1 - 1
    int64_t p_min, p_max; // positions of its rows
} kf_attention_item;

void kf_attention_plan_make(const struct kf_attention_options *options, const kf_attention_limits *limits,
                            kf_attention_plan *plan);

// Key length of sequence b, as the run's tensors say.
int64_t kf_attention_length(const kf_attention_problem *problem, int64_t b);

// Position of query i of sequence b.
int64_t kf_attention_position(const kf_attention_problem *problem, int64_t b, int64_t i);

// Work item `index`, 0 .. items - 1; with splits == 1 in its place the same cut serves the merge (tile by tile).
void kf_attention_item_get(const kf_attention_plan *plan, const kf_attention_problem *problem, int64_t index,
                           kf_attention_item *item);

// Splits from this one on hold no keys of any sequence: a cache that is longer than what is in it has many such.
int64_t kf_attention_splits_live(const kf_attention_plan *plan, const kf_attention_problem *problem);

// Whether key lengths are in range. The sentence names the sequence.
kf_status kf_attention_check_run(const kf_attention_problem *problem);

#endif
