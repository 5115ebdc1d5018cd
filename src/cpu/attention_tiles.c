// SPDX-License-Identifier: Apache-2.0
//
// Attention where a KV head has many rows: one item is a tile of up to some hundred rows. Each key block is packed once into
// scratch and met by all groups of rows, so that packing costs a share of 1 / tile_rows of the products; both products then
// run as register tiles out of L1 and L2.
//
//     scratch   queries [groups][D][12] | o [rows][Dv] fp32 | m, d [rows] | keys, values of a block | s, p of a group
//     per block and group   2 * 12 * 256 * (D + Dv) operations, 12 * 256 exponentials
//
// A group computes only the panels of a block that one of its rows sees.
#include "cpu/attention.h"

#include <string.h>

// The parts of an item's scratch.
typedef struct tile_scratch {
    kf_row_view *views;
    char *queries, *keys, *values;
    float *o, *m, *d, *s, *rows;
    void *p; // s itself in fp32
    uint8_t *live;
    size_t bytes;
} tile_scratch;

// The next part of the memory at base; where base is NULL, only bytes are counted.
static void *take(char *base, size_t *at, int64_t bytes) {
    void *part = (void *)((uintptr_t)base + *at);
    *at += (size_t)kf_padded(bytes, 64);
    return part;
}

static tile_scratch lay_out(char *base, const kf_attention_kernels *kernels, const kf_tile_kernels *tiles,
                            const kf_attention_plan *plan, int64_t D, int64_t Dv) {
    int64_t rows = kf_padded(plan->tile_rows, KF_ROW_GROUP), width = kf_padded(Dv, kernels->lanes),
            element = tiles->element_bytes;
    tile_scratch t;
    size_t at = 0;
    t.views = take(base, &at, rows * (int64_t)sizeof(kf_row_view));
    t.queries = take(base, &at, rows * D * element);
    t.o = take(base, &at, rows * width * 4);
    t.m = take(base, &at, rows * 4);
    t.d = take(base, &at, rows * 4);
    t.keys = take(base, &at, KF_KEY_BLOCK * D * element);
    t.values = take(base, &at, KF_KEY_BLOCK * width * element);
    t.s = take(base, &at, KF_ROW_GROUP * KF_SCORE_STRIDE * 4);
    t.p = element == 4 ? (void *)t.s : take(base, &at, KF_ROW_GROUP * KF_SCORE_STRIDE * element);
    t.rows = take(base, &at, KF_ROW_GROUP * D * 4);
    t.live = take(base, &at, KF_ROW_GROUP * KF_KEY_BLOCK);
    t.bytes = at;
    return t;
}

size_t kf_attention_tiles_scratch(const kf_attention_kernels *kernels, const kf_tile_kernels *tiles,
                                  const kf_attention_plan *plan, int64_t D, int64_t Dv) {
    return lay_out(NULL, kernels, tiles, plan, D, Dv).bytes;
}

const kf_tile_kernels *kf_attention_choose_tiles(const kf_attention_kernels *kernels,
                                                 const kf_attention_problem *problem) {
    return kf_attention_all_bf16(problem) && kernels->tiles_bf16 ? kernels->tiles_bf16 : kernels->tiles;
}

static void begin(const kf_attention_call *call, const kf_tile_kernels *tiles, const kf_attention_item *item,
                  tile_scratch *t) {
    int64_t rows = item->row1 - item->row0, padded = kf_padded(rows, KF_ROW_GROUP), D = call->problem->options.D;
    kf_attention_view_rows(call, item, item->row0, (int32_t)rows, t->views);
    for (int64_t r = 0; r < padded; r++) {
        float *q = t->rows + r % KF_ROW_GROUP * D;
        if (r < rows)
            kf_attention_load_query(call, item, &t->views[r], q);
        else
            memset(q, 0, (size_t)D * sizeof *q);
        if ((r + 1) % KF_ROW_GROUP == 0)
            tiles->pack_queries(t->rows, D, t->queries + (r / KF_ROW_GROUP) * KF_ROW_GROUP * D * tiles->element_bytes);
        t->m[r] = -INFINITY;
        t->d[r] = 0.0f;
    }
    memset(t->o, 0, (size_t)(padded * kf_padded(call->problem->options.Dv, call->kernels->lanes)) * sizeof *t->o);
    memset(t->p, 0, (size_t)KF_ROW_GROUP * KF_SCORE_STRIDE * (size_t)tiles->element_bytes);
}

// The keys of a block that some row of the group sees, as positions in the block, widened to whole panels.
static kf_interval group_keys(const kf_row_view *views, int32_t rows, int64_t block, int32_t panel) {
    kf_interval keys = {KF_KEY_BLOCK, 0};
    for (int32_t r = 0; r < rows; r++) {
        if (views[r].keys.hi <= views[r].keys.lo) continue;
        keys.lo = kf_min64(keys.lo, views[r].keys.lo - block);
        keys.hi = kf_max64(keys.hi, views[r].keys.hi - block);
    }
    keys.lo = kf_max64(keys.lo, 0) / panel * panel;
    keys.hi = kf_min64(kf_padded(kf_max64(keys.hi, 0), panel), KF_KEY_BLOCK);
    return keys;
}

// One group of rows against one packed block.
static void fold_group(const kf_attention_call *call, const kf_tile_kernels *tiles, const kf_attention_item *item,
                       const tile_scratch *t, int64_t group, int64_t block, bool finite) {
    const struct kf_attention_options *options = &call->problem->options;
    int64_t row = group * KF_ROW_GROUP;
    int32_t rows = (int32_t)kf_min64(item->row1 - item->row0 - row, KF_ROW_GROUP);
    const kf_row_view *views = t->views + row;
    kf_interval keys = group_keys(views, rows, block, tiles->panel);
    if (keys.hi <= keys.lo) return;
    float alpha[KF_FEW_ROWS] = {0};
    float *o = t->o + row * kf_padded(options->Dv, call->kernels->lanes);

    tiles->scores(t->queries + row * options->D * tiles->element_bytes, t->keys, options->D, keys.lo, keys.hi, t->s);
    bool partial = kf_attention_mask_rows(call, item, views, rows, block, keys.lo, keys.hi, t->s);
    bool careful = partial && !finite && !kf_attention_values_finite(call, item, block + keys.lo, block + keys.hi);
    if (careful) kf_attention_find_live(t->s, rows, keys.lo, keys.hi, t->live);
    tiles->softmax(t->s, t->p, rows, keys.lo, keys.hi, kf_attention_factor(call->problem), t->m + row, t->d + row,
                   alpha);
    if (careful)
        kf_attention_careful_values(call, item, t->p, tiles->element_bytes, t->live, rows, block, keys.lo, keys.hi,
                                    alpha, o);
    else
        tiles->values(t->p, t->values, options->Dv, keys.lo, keys.hi, alpha, o);
}

// A packed block in memory: keys | values | whether all values are finite.
typedef struct packed_block {
    char *keys, *values;
    bool *finite;
    size_t bytes;
} packed_block;

static packed_block lay_out_block(char *base, const kf_attention_kernels *kernels, const kf_tile_kernels *tiles,
                                  int64_t D, int64_t Dv) {
    size_t at = 0;
    packed_block p;
    p.keys = take(base, &at, KF_KEY_BLOCK * D * tiles->element_bytes);
    p.values = take(base, &at, KF_KEY_BLOCK * kf_padded(Dv, kernels->lanes) * tiles->element_bytes);
    p.finite = take(base, &at, sizeof *p.finite);
    p.bytes = at;
    return p;
}

size_t kf_attention_packed_bytes(const kf_attention_kernels *kernels, const kf_tile_kernels *tiles, int64_t D,
                                 int64_t Dv) {
    return lay_out_block(NULL, kernels, tiles, D, Dv).bytes;
}

// The block of call->packed that holds keys `block` .. of a KV head.
static packed_block find_block(const kf_attention_call *call, int64_t b, int64_t kv_head, int64_t block) {
    const struct kf_attention_options *n = &call->problem->options;
    const kf_tile_kernels *tiles = kf_attention_choose_tiles(call->kernels, call->problem);
    int64_t blocks = kf_padded(n->Nk, KF_KEY_BLOCK) / KF_KEY_BLOCK;
    int64_t index = (b * n->Hkv + kv_head) * blocks + block / KF_KEY_BLOCK;
    size_t bytes = kf_attention_packed_bytes(call->kernels, tiles, n->D, n->Dv);
    return lay_out_block(call->packed + (size_t)index * bytes, call->kernels, tiles, n->D, n->Dv);
}

// Keys block .. end - 1, at most KF_KEY_BLOCK of them; whether their values are finite.
static bool pack(const kf_attention_call *call, int64_t b, int64_t kv_head, int64_t block, int64_t end, char *keys,
                 char *values) {
    const kf_tile_kernels *tiles = kf_attention_choose_tiles(call->kernels, call->problem);
    const kf_view *k = &call->k, *v = &call->problem->v;
    int64_t n = kf_min64(end - block, KF_KEY_BLOCK);
    tiles->pack_keys(kf_at(k, b, kv_head, block), k->stride[2] * kf_type_size(k->type), k->type, n,
                     call->problem->options.D, keys);
    return tiles->pack_values(kf_at(v, b, kv_head, block), v->stride[2] * kf_type_size(v->type), v->type, n,
                              call->problem->options.Dv, values);
}

void kf_attention_pack_block(const kf_attention_call *call, int64_t b, int64_t kv_head, int64_t block, int64_t end) {
    packed_block p = find_block(call, b, kv_head, block);
    *p.finite = pack(call, b, kv_head, block, end, p.keys, p.values);
}

// The block's keys and values for this tile, from the packing phase or packed here.
static bool take_block(const kf_attention_call *call, const kf_attention_item *item, int64_t block, tile_scratch *t) {
    if (!call->packed) return pack(call, item->b, item->kv_head, block, item->keys.hi, t->keys, t->values);
    packed_block p = find_block(call, item->b, item->kv_head, block);
    t->keys = p.keys;
    t->values = p.values;
    return *p.finite;
}

void kf_attention_run_tile(const kf_attention_call *call, const kf_attention_item *item, char *scratch) {
    const struct kf_attention_options *options = &call->problem->options;
    const kf_tile_kernels *tiles = kf_attention_choose_tiles(call->kernels, call->problem);
    tile_scratch t = lay_out(scratch, call->kernels, tiles, call->plan, options->D, options->Dv);
    begin(call, tiles, item, &t);
    int64_t rows = item->row1 - item->row0, groups = kf_padded(rows, KF_ROW_GROUP) / KF_ROW_GROUP;

    for (int64_t block = item->keys.lo / KF_KEY_BLOCK * KF_KEY_BLOCK; block < item->keys.hi; block += KF_KEY_BLOCK) {
        bool finite = take_block(call, item, block, &t);
        for (int64_t group = 0; group < groups; group++) fold_group(call, tiles, item, &t, group, block, finite);
    }
    for (int64_t r = 0; r < rows; r++)
        kf_attention_finish_row(call, item, item->row0 + r, (kf_state){t.m[r], t.d[r]},
                                t.o + r * kf_padded(options->Dv, call->kernels->lanes));
}
