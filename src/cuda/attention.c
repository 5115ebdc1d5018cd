// SPDX-License-Identifier: Apache-2.0
//
// Attention on CUDA: which kernel, which tiles, how many splits; and the launches.
//
//     rows <= 16 of a KV head (queries times heads of the group); <= 64 in 16 bits and before many keys
//                                                                  decode: tiles of 16 or 32 rows, keys split over the machine
//     otherwise                                                    prefill: tiles of 64 or 128 rows
//
// The plan depends on the shape and the device alone. Lengths and positions stay on the device: a length out of range is
// taken as the nearest in range, for nothing here may wait to look at it.
#include "cuda/attention.h"
#include "cuda/cuda.h"
#include "cuda/tuned.h"
#include "math/exp2.h"
#include "math/rope.h"

#include <string.h>

enum {
    DECODE_ROWS = 16, // of a KV head, that always go to a decode kernel
    MORE_ROWS = 64, // in 16 bits, where there are KEYS_A_ROW times as many keys: then reading these is what takes time
    KEYS_A_ROW = 32,
    FEW_TILES = 8, // times as many multiprocessors
    // Unsplit lists of so many keys, nearly one for each multiprocessor, are read by eight warps.
    FULL_KEYS = 1024,
    FULL_LISTS = 31,    // of 32 multiprocessors: with 120 lists on 132 it is 3 % slower than four warps, with 112 7 %
    FIXED_SPLIT = 1024, // keys of a split where the context asks for one length
    // What a decode's plan goes by, in keys that a block could have read meanwhile (15 ns each): starting a block and writing its state (two
    // rounds of blocks in the place of one took 1.8 to 4.7 us longer at 32/8 heads and 8,192 to 131,072 keys); the merge by a second kernel, and
    // in a cluster, whose blocks must lie together and read the slower for it (reports/h200/decode-ways.json).
    START_KEYS = 160,
    MERGE_KEYS = 176,
    MERGE_SPLIT = 6, // and for each split
    CLUSTER_KEYS = 16,
    CLUSTER_SLOWER = 12, // by this part
    MOST_SPLITS = 256,
    SHARED_RESERVED = 1024, // bytes of shared memory that the device keeps for each block
    KEYS_ALIGNMENT = 64,    // bytes
    MOST_TILE_KEYS = 128,   // of a prefill
    FEW_SPLITS = 8,         // of many rows, merged by a thread for each chunk of a row
    TUNED_ROWS = 128,       // the rows of a tile in the measure of a shape that tuned.h goes by
    MOST_CLUSTER = 8,       // blocks that merge through shared memory: 16 of them took 1 us longer to start than 8
    SECTION_BYTES =
        40 << 20, // keys and values that tiles running side by side read: they should stay in an L2 of 50 MB
};

typedef struct attention_plan {
    const kf_cuda_attention_kernel *plain, *general; // the same tiles
    const kf_cuda_attention_kernel *merge;
    // What rotates the keys before, at whole rows and at any; NULL: nothing does.
    const kf_cuda_attention_kernel *rotate_whole, *rotate;
    size_t rotated_at; // bytes of the workspace before the rotated keys
    int32_t heads, rows, lists, tiles, section, split, splits, cluster;
    int32_t keys_turn;   // not 0: `plain` turns them, too
    int64_t part_floats; // of o in the workspace, before the states
    kf_cuda_rope rope;
} attention_plan;
kf_static_assert(sizeof(attention_plan) <= sizeof((kf_plan *)0)->word, "the plan's words hold it");

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

static const attention_plan *plan_of(const kf_op *op) { return (const attention_plan *)op->plan.word; }

static const kf_cuda_attention_kernel *const tables[] = {
    kf_cuda_prefill_64,  kf_cuda_prefill_96,   kf_cuda_prefill_128,        kf_cuda_prefill_192,
    kf_cuda_prefill_256, kf_cuda_prefill_fp32, kf_cuda_decode_64,          kf_cuda_decode_128,
    kf_cuda_decode_256,  kf_cuda_decode_fp32,  kf_cuda_prefill_rotated_64, kf_cuda_prefill_rotated_128,
    kf_cuda_decode_turn,
};
// choose_turning alone looks into the last one.
enum { ALL_TABLES = sizeof tables / sizeof *tables, TABLES = ALL_TABLES - 1 };

static int64_t rows_of_kv_head(const struct kf_attention_options *n) { return n->H / n->Hkv * n->Nq; }

// Whether a problem is for the fp32 kernels, whatever its head dimensions: tensor cores multiply 16-bit types, and both factors are of one.
static bool is_fp32(const kf_attention_problem *p) { return p->q.type == KF_TYPE_F32 || p->k.type != p->q.type; }

static bool is_decode(const kf_attention_problem *p) {
    const int64_t rows = rows_of_kv_head(&p->options);
    return rows <= DECODE_ROWS || (rows <= MORE_ROWS && p->options.Nk >= KEYS_A_ROW * rows && !is_fp32(p));
}

enum {
    ROTATED_BF16_D = 128, // up to here there are kernels of rotated bf16 keys
    // Queries that turn are rounded to bf16 once, as a rotation in front leaves them. Where there are so few keys, that alone can miss the 5e-3
    // that RoPE may err by: there q is kept as fp16, three bits more, and the keys with it.
    FEW_KEYS = 256
};

// The type of the kernels that compute a problem. A prefill's keys turn once, in a kernel before it; rounded to bf16 again they would err by
// more than the 5e-3 that RoPE may.
static int32_t kernel_type(const kf_attention_problem *p) {
    const struct kf_attention_options *n = &p->options;
    if (is_fp32(p)) return KF_TYPE_F32;
    const bool exact = n->rope_k || (n->rope_q && n->Nk <= FEW_KEYS);
    if (!exact || is_decode(p) || p->q.type == KF_TYPE_F16) return p->q.type;
    return n->D <= ROTATED_BF16_D && n->Dv <= ROTATED_BF16_D ? KF_CUDA_ROTATED_BF16 : KF_TYPE_F32;
}

// Whether the kernel computes this problem on this device, tiles apart.
static bool kernel_fits(const kf_cuda_attention_kernel *row, const kf_cuda_device *device,
                        const kf_attention_problem *p) {
    return row->type == kernel_type(p) && (!row->kv_bytes || row->kv_bytes == kf_type_size(p->k.type)) &&
           row->D >= p->options.D && row->Dv >= p->options.Dv && row->shared <= device->shared_limit &&
           row->arch_min <= device->arch;
}

// The first kernel of the tables (narrow ones stand before wide ones) that fits. Of decode kernels, the first one that has rows enough, or else
// the one with most rows; a tile is a block's, so several tiles read the same keys.
static const kf_cuda_attention_kernel *find_kernel(const kf_cuda_device *device, const kf_attention_problem *p,
                                                   int kind, int64_t rows) {
    const kf_cuda_attention_kernel *first = NULL;
    for (int i = 0; i < TABLES; i++)
        for (const kf_cuda_attention_kernel *row = tables[i]; row->function; row++) {
            if (row->kind != kind || row->general || !kernel_fits(row, device, p)) continue;
            if (kind == KF_CUDA_PREFILL || row->rows >= rows) return row;
            if (!first || (row->rows > first->rows && row->D == first->D && row->Dv == first->Dv)) first = row;
        }
    return first;
}

// What takes the place of `plain` where scores need more than a scale: the same head dimensions and rows a tile. The fp32 decode kernels are both.
static const kf_cuda_attention_kernel *find_general(const kf_cuda_device *device, const kf_attention_problem *p,
                                                    const kf_cuda_attention_kernel *plain) {
    if (plain->type == KF_TYPE_F32 && plain->kind == KF_CUDA_DECODE) return plain;
    for (int i = 0; i < TABLES; i++)
        for (const kf_cuda_attention_kernel *row = tables[i]; row->function; row++)
            if (row->kind == plain->kind && row->general && kernel_fits(row, device, p) && row->D == plain->D &&
                row->Dv == plain->Dv && row->rows == plain->rows)
                return row;
    return NULL;
}

// ------------------------------------------------------------------------------------------------------------- tiles

static const kf_cuda_choice choices[] = {KF_CUDA_CHOICES};

#if KF_TUNE
#include "cuda/tune.h"

static int32_t forced = -1; // row of the tiles of one head dimension that every plan takes

static const kf_cuda_attention_kernel *tile_at(const kf_cuda_attention_kernel *of, int32_t index) {
    for (int i = 0; i < TABLES; i++)
        for (const kf_cuda_attention_kernel *row = tables[i]; row->function; row++)
            if (row->kind == KF_CUDA_PREFILL && row->type == of->type && row->D == of->D && row->Dv == of->Dv &&
                !row->general && index-- == 0)
                return row;
    return NULL;
}

bool kf_cuda_tune_tile(int32_t D, int32_t index, kf_cuda_tile *tile) {
    const kf_cuda_attention_kernel of = {.type = KF_TYPE_BF16, .D = D, .Dv = D}, *row = tile_at(&of, index);
    if (row) *tile = (kf_cuda_tile){row->rows, row->keys, row->threads / 32, row->blocks};
    return row != NULL;
}

void kf_cuda_tune_force(int32_t index) { forced = index; }
#endif

// Keys of a split where a prefill has fewer tiles than the device has multiprocessors, but too many for choose_split: as many splits as give
// each multiprocessor `blocks` blocks, under a causal mask twice as many, for they differ. 0: not cut.
static int32_t split_of_few_tiles(const kf_op *op, const kf_cuda_attention_kernel *kernel) {
    const struct kf_attention_options *n = &op->problem.attention.options;
    const int64_t multiprocessors = kf_cuda(op->context)->multiprocessors, group = n->H / n->Hkv;
    const int64_t apart = group * divide_up(n->Nq, kernel->rows), packed = divide_up(group * n->Nq, kernel->rows);
    const int64_t tiles = n->B * n->Hkv * (packed < apart ? packed : apart);
    if (op->context->info.fixed_split || kernel->type == KF_TYPE_F32 || kernel->rows != TUNED_ROWS ||
        kernel->blocks < 2 || tiles * 4 <= multiprocessors || tiles > multiprocessors)
        return 0;
    const bool causal = n->window_right == 0, few = tiles * 2 <= multiprocessors;
    if (causal && !few) return 0;
    int64_t splits = (causal ? 2 : 1) * kernel->blocks * multiprocessors / tiles;
    if (splits > FEW_SPLITS) splits = FEW_SPLITS;
    int64_t keys = divide_up(n->Nk, splits);
    if (keys < (few ? 256 : 1024)) keys = few ? 256 : 1024;
    keys = divide_up(keys, MOST_TILE_KEYS) * MOST_TILE_KEYS;
    return keys < n->Nk ? (int32_t)keys : 0;
}

// The tiles that were measured to be fastest for a shape like this one, or `first` where the device has no room for them. A
// fixed split promises a sequence the same bits in any batch: then nothing is chosen by how many there are.
static const kf_cuda_attention_kernel *choose_tile(const kf_op *op, const kf_cuda_attention_kernel *first,
                                                   int32_t *split) {
    const kf_attention_problem *p = &op->problem.attention;
    const struct kf_attention_options *n = &p->options;
    const kf_cuda_device *device = kf_cuda(op->context);
    int64_t size = n->B * n->H * divide_up(n->Nq, TUNED_ROWS) * 1000 / device->multiprocessors;
    if (op->context->info.fixed_split) size = INT64_MAX;
#if KF_TUNE
    if (forced >= 0 && tile_at(first, forced)) return tile_at(first, forced);
#endif
    *split = split_of_few_tiles(op, first);
    if (*split) return first;
    for (size_t c = 0; c < sizeof choices / sizeof *choices; c++) {
        const kf_cuda_choice *choice = &choices[c];
        if (choice->D != first->D || choice->causal != (n->window_right == 0) || choice->most < size) continue;
        for (int i = 0; i < TABLES; i++)
            for (const kf_cuda_attention_kernel *row = tables[i]; row->function; row++)
                if (row->kind == KF_CUDA_PREFILL && !row->general && kernel_fits(row, device, p) &&
                    row->D == first->D && row->Dv == first->Dv && row->rows == choice->rows &&
                    row->keys == choice->keys && row->threads == 32 * choice->warps)
                    return row;
        return first;
    }
    return first;
}

static kf_status check_problem(const kf_attention_problem *p) {
    const struct kf_attention_options *n = &p->options;
    const int64_t limit = INT32_MAX - 1024; // tile arithmetic is 32-bit; addresses are not
    if (n->Nk > limit || n->Nq > limit / (n->H ? n->H : 1) || n->B > limit / (n->H ? n->H : 1))
        return kf_fail(KF_UNSUPPORTED,
                       "attention: B = %lld, H = %lld, Nq = %lld, Nk = %lld; the cuda backend allows products "
                       "B H and H Nq, and Nk, up to %lld",
                       (long long)n->B, (long long)n->H, (long long)n->Nq, (long long)n->Nk, (long long)limit);
    return KF_OK;
}

// Time of a cut into `splits`, in keys that a place for a block could have read: what the busiest one reads (of the 16-bit kernels one
// block reads as fast as two, so a multiprocessor is one place), what it costs to start blocks, one after another, and the merge.
static int64_t split_time(int64_t places, const kf_cuda_attention_kernel *kernel, int64_t blocks, int64_t Nk,
                          int64_t unit, int64_t splits, bool cluster, int64_t *keys) {
    *keys = divide_up(divide_up(Nk, splits), unit) * unit;
    const int64_t merge = splits == 1 ? 0
                          : cluster   ? CLUSTER_KEYS + *keys / CLUSTER_SLOWER
                                      : MERGE_KEYS + divide_up(Nk, *keys) * MERGE_SPLIT;
    const int64_t rounds = divide_up(blocks * divide_up(Nk, *keys), places);
    const int64_t starts = kernel->kind == KF_CUDA_DECODE ? rounds : divide_up(rounds, kernel->blocks);
    return rounds * *keys + starts * START_KEYS + merge;
}

// Whether the splits of a list can be a cluster. A cluster has as many blocks as it is launched with: splits that hold no keys are among them.
static bool may_cluster(const kf_cuda_device *device, const attention_plan *plan, int64_t places, int64_t splits) {
    return plan->plain->kind == KF_CUDA_DECODE && kf_cuda_is_hopper(device) && splits > 1 && splits <= MOST_CLUSTER &&
           (splits & (splits - 1)) == 0 && (int64_t)plan->lists * plan->tiles * splits <= places;
}

// Not more clusters than find room at once. How many do differs from one GPU to the next, whose groups of multiprocessors are not of one size:
// where 30 of 32 clusters of 4 found room beside each other, some multiprocessors had two blocks, and a decode took a fifth longer.
static bool clusters_fit(const kf_cuda_device *device, const attention_plan *plan, int64_t places, int64_t splits) {
    const kf_cuda_attention_kernel *kernel = plan->plain;
    // Where a multiprocessor is to have one block, each is said to need more than half of the shared memory.
    const bool alone = places == device->multiprocessors && device->shared_limit / 2 > kernel->shared;
    const int32_t shared = alone ? device->shared_limit / 2 + SHARED_RESERVED : kernel->shared;
    return (int64_t)plan->lists * plan->tiles <=
           kf_cuda_cluster_room(kernel->function, kernel->threads, shared, (int32_t)splits);
}

static void choose_split(const kf_context *context, int64_t Nk, attention_plan *plan) {
    const kf_cuda_attention_kernel *kernel = plan->plain;
    const kf_cuda_device *device = kf_cuda(context);
    const int64_t blocks = (int64_t)plan->lists * plan->tiles;
    // Whichever of the two kernels runs, a split ends with a tile (powers of two).
    const int32_t tile = plan->general->keys > kernel->keys ? plan->general->keys : kernel->keys;
    const int64_t unit = kernel->kind == KF_CUDA_DECODE ? kernel->keys * (kernel->threads / 32) : tile;
    // The fp32 kernels, and the rotation of keys, are bound by their instructions, too: there two blocks side by side read faster than one.
    const bool busy = kernel->type == KF_TYPE_F32 || (plan->rope.k && !plan->rotate);
    const int64_t places = (int64_t)device->multiprocessors * (busy ? kernel->blocks : 1);
    if (Nk < 1) Nk = 1;
    plan->cluster = 1;
    plan->split = (int32_t)(divide_up(Nk, unit) * unit);
    if (context->info.fixed_split) {
        plan->split = FIXED_SPLIT;
        plan->splits = (int32_t)divide_up(Nk, plan->split);
        return;
    }
    int64_t best = INT64_MAX;
    for (int64_t splits = 1; splits <= MOST_SPLITS; splits++) {
        int64_t keys = 0;
        bool cluster = may_cluster(device, plan, places, splits);
        int64_t time = split_time(places, kernel, blocks, Nk, unit, splits, cluster, &keys);
        if (cluster && time < best && !clusters_fit(device, plan, places, splits)) {
            cluster = false;
            time = split_time(places, kernel, blocks, Nk, unit, splits, cluster, &keys);
        }
        if (time >= best) continue;
        best = time;
        plan->split = (int32_t)keys;
        plan->cluster = cluster ? (int32_t)splits : 1;
        plan->splits = cluster ? (int32_t)splits : (int32_t)divide_up(Nk, keys);
    }
}

// The kernel of more warps in place of plan->plain where nearly each multiprocessor reads one unsplit list and there is much to read. A second
// round of blocks would find no room beside the first (64 sequences: 0.99 of the speed). A fixed split promises a sequence the same bits in any
// batch: then nothing is chosen by how many there are.
static void choose_warps(const kf_op *op, attention_plan *plan) {
    const kf_attention_problem *p = &op->problem.attention;
    const kf_cuda_device *device = kf_cuda(op->context);
    const kf_cuda_attention_kernel *plain = plan->plain;
    const int64_t blocks = (int64_t)plan->lists * plan->tiles, places = device->multiprocessors;
    if (plain->kind != KF_CUDA_DECODE || plan->splits > 1 || op->context->info.fixed_split ||
        p->options.Nk < FULL_KEYS || blocks > places || blocks * 32 < places * FULL_LISTS)
        return;
    for (int i = 0; i < TABLES; i++)
        for (const kf_cuda_attention_kernel *row = tables[i]; row->function; row++)
            if (row->kind == KF_CUDA_DECODE && !row->general && kernel_fits(row, device, p) && row->D == plain->D &&
                row->Dv == plain->Dv && row->rows == plain->rows && row->threads > plain->threads)
                plan->plain = row;
}

// A decode's keys turn in `plain`, where there is such a kernel; else in `general`.
static void choose_turning(const kf_op *op, attention_plan *plan) {
    const kf_attention_problem *p = &op->problem.attention;
    if (!plan->rope.k || plan->plain->kind != KF_CUDA_DECODE || plan->rope.dims != p->options.D) return;
    for (const kf_cuda_attention_kernel *row = kf_cuda_decode_turn; row->function; row++)
        if (kernel_fits(row, kf_cuda(op->context), p) && row->D == p->options.D && row->rows == plan->plain->rows)
            plan->plain = row, plan->keys_turn = 1;
}

static void cut_rows(const struct kf_attention_options *n, int64_t heads, int64_t tile_rows, attention_plan *plan) {
    plan->heads = (int32_t)heads;
    plan->rows = (int32_t)(heads * n->Nq);
    plan->lists = (int32_t)(n->B * (n->H / heads));
    plan->tiles = (int32_t)divide_up(plan->rows, tile_rows);
}

// Rows of a decode's tile that would be best. Two blocks of 16 rows that read the same keys are faster than one of 32 while there is room for
// many splits of each (on 132 multiprocessors with up to 8 KV heads of all sequences; slower from 16 on). A fixed split promises a sequence the
// same bits in any batch: then nothing is chosen by how many there are.
static int64_t decode_rows(const kf_op *op) {
    const struct kf_attention_options *n = &op->problem.attention.options;
    const int64_t rows = rows_of_kv_head(n), tiles = n->B * n->Hkv * divide_up(rows, DECODE_ROWS);
    const bool few = tiles * FEW_TILES <= kf_cuda(op->context)->multiprocessors;
    return few && rows > DECODE_ROWS && !op->context->info.fixed_split ? DECODE_ROWS : rows;
}

// Pieces of KF_ROTATED_KEYS keys of a KV head, and the blocks that rotate them.
static int64_t key_pieces(const struct kf_attention_options *n) {
    return n->B * n->Hkv * divide_up(n->Nk, KF_ROTATED_KEYS);
}
static int64_t rotate_blocks(const struct kf_attention_options *n, const kf_cuda_attention_kernel *kernel) {
    return kernel->general ? key_pieces(n)
                           : n->B * divide_up(n->Nk, KF_ROTATED_KEYS) * divide_up(n->Hkv, KF_ROTATED_HEADS);
}

static kf_status choose_kernels(const kf_op *op, attention_plan *plan) {
    const kf_attention_problem *p = &op->problem.attention;
    const struct kf_attention_options *n = &p->options;
    const kf_cuda_device *device = kf_cuda(op->context);
    const int64_t group = n->H / n->Hkv;
    const bool decode = is_decode(p);
    const int64_t rows_wanted = decode ? decode_rows(op) : rows_of_kv_head(n);
    plan->plain = find_kernel(device, p, decode ? KF_CUDA_DECODE : KF_CUDA_PREFILL, rows_wanted);
    if (plan->plain && !decode) plan->plain = choose_tile(op, plan->plain, &plan->split);
    if (plan->plain) plan->general = find_general(device, p, plan->plain);
    plan->merge = kf_cuda_merge;
    if (!plan->plain || !plan->general)
        return kf_fail(KF_UNSUPPORTED, "attention: no kernel for D = %lld, Dv = %lld within %d bytes of shared memory",
                       (long long)n->D, (long long)n->Dv, (int)device->shared_limit);
    // Packed where the queries of the group's heads together need fewer tiles than apart.
    const int64_t rows = plan->plain->rows, apart = group * divide_up(n->Nq, rows),
                  packed = divide_up(group * n->Nq, rows);
    cut_rows(n, packed < apart ? group : 1, rows, plan);
    const bool rotated = n->rope_k || plan->plain->type == KF_CUDA_ROTATED_BF16;
    if (!rotated || decode || plan->plain->type == KF_TYPE_F32) return KF_OK;
    for (const kf_cuda_attention_kernel *row = kf_cuda_rotate_keys; row->function && !plan->rotate; row++)
        if (row->type == p->k.type && row->D >= n->D && row->general) plan->rotate = row;
    for (const kf_cuda_attention_kernel *row = kf_cuda_rotate_keys; row->function && n->rope_k; row++)
        if (row->type == p->k.type && row->D == n->D && !row->general && n->rope.dims == n->D) plan->rotate_whole = row;
    if (key_pieces(n) > INT32_MAX)
        return kf_fail(KF_UNSUPPORTED, "attention: B = %lld, Hkv = %lld, Nk = %lld are too many keys to rotate",
                       (long long)n->B, (long long)n->Hkv, (long long)n->Nk);
    return KF_OK;
}

static kf_status prepare_kernel(const kf_op *op, const kf_cuda_attention_kernel *kernel) {
    return kf_cuda_prepare_kernel(kf_cuda(op->context), kernel->function, kernel->shared, "attention: kernel");
}

// In turns, so that the device finds an angle's fraction of a turn by one product.
static void plan_rope(const struct kf_attention_options *n, kf_cuda_rope *rope) {
    if (!n->rope_q && !n->rope_k) return;
    rope->q = (int32_t)n->rope_q, rope->k = (int32_t)n->rope_k;
    rope->split_halves = n->rope.pairing == KF_ROPE_NEOX;
    rope->dims = n->rope.dims;
    rope->magnitude = (float)kf_rope_table(&n->rope, rope->turns);
    for (int32_t c = 0; c < rope->dims / 2; c++) rope->turns[c] /= 2 * KF_PI;
}

static bool merges_by_kernel(const attention_plan *plan) { return plan->splits > 1 && plan->cluster == 1; }

// Partial states lie in the workspace: o, then m and d. Behind them the rotated keys, the factors of their scores, and which blocks of
// keys have any.
static size_t workspace_of(attention_plan *plan, const struct kf_attention_options *n, int64_t states) {
    size_t bytes = 0;
    if (merges_by_kernel(plan)) {
        plan->part_floats = divide_up(states * n->Dv, 16) * 16;
        bytes = (size_t)(plan->part_floats + 2 * states) * sizeof(float);
    }
    if (!plan->rotate) return bytes;
    const size_t keys = (size_t)(n->B * n->Hkv * n->Nk);
    plan->rotated_at = (size_t)divide_up((int64_t)bytes, KEYS_ALIGNMENT) * KEYS_ALIGNMENT;
    const size_t scales = (keys + MOST_TILE_KEYS) * sizeof(float); // a tile is read whole
    return plan->rotated_at + keys * (size_t)n->D * 2 + scales + (size_t)key_pieces(n) * sizeof(int32_t);
}

// The device is the thread's current one.
static kf_status make_plan_here(kf_op *op) {
    const kf_attention_problem *p = &op->problem.attention;
    const struct kf_attention_options *n = &p->options;
    attention_plan plan = {0};
    KF_TRY(check_problem(p));
    if (n->B * n->H * n->Nq == 0) return KF_OK; // nothing to do: no kernel is chosen
    KF_TRY(choose_kernels(op, &plan));
    KF_TRY(prepare_kernel(op, plan.plain));
    KF_TRY(prepare_kernel(op, plan.general));
    plan_rope(n, &plan.rope);
    // Partial states are worth their memory where rows are few.
    const bool few = plan.plain->kind == KF_CUDA_DECODE ||
                     (!op->context->info.fixed_split &&
                      (int64_t)plan.lists * plan.tiles * 4 <= kf_cuda(op->context)->multiprocessors);
    if (plan.split)
        plan.splits = (int32_t)divide_up(n->Nk, plan.split), plan.cluster = 1;
    else if (few)
        choose_split(op->context, n->Nk, &plan), choose_warps(op, &plan), choose_turning(op, &plan);
    else
        plan.split = INT32_MAX, plan.splits = plan.cluster = 1;
    const int64_t states = (int64_t)plan.lists * plan.rows * plan.splits,
                  blocks = (int64_t)plan.lists * plan.tiles * plan.splits;
    if (blocks > INT32_MAX || states > INT32_MAX * (int64_t)MOST_SPLITS)
        return kf_fail(KF_UNSUPPORTED, "attention: %lld tiles; the cuda backend allows 2^31 - 1", (long long)blocks);
    if (plan.plain->kind == KF_CUDA_DECODE) plan.section = plan.lists;
    const int64_t lists_per_kv = n->H / n->Hkv / plan.heads, bytes = n->Nk * (n->D + n->Dv) * kf_type_size(p->k.type);
    const int64_t together = bytes > 0 ? SECTION_BYTES / bytes * lists_per_kv : plan.lists;
    if (!plan.section) plan.section = (int32_t)(together < lists_per_kv ? lists_per_kv : together);
    if (plan.section > plan.lists) plan.section = plan.lists;
    if (plan.plain->kind == KF_CUDA_PREFILL) plan.merge = &kf_cuda_merge[plan.splits <= FEW_SPLITS ? 1 : 2];
    KF_TRY(prepare_kernel(op, plan.plain)); // another one, perhaps, than the split was chosen for
    if (merges_by_kernel(&plan)) KF_TRY(prepare_kernel(op, plan.merge));
    if (plan.rotate) KF_TRY(prepare_kernel(op, plan.rotate));
    if (plan.rotate_whole) KF_TRY(prepare_kernel(op, plan.rotate_whole));
    op->plan.shared_bytes = workspace_of(&plan, n, states);
    op->plan.phases = 1;
    op->plan.items[0] = blocks;
    memcpy(op->plan.word, &plan, sizeof plan);
    return KF_OK;
}

static kf_status make_plan(kf_op *op) {
    const kf_cuda_device *device = kf_cuda(op->context);
    int before = 0;
    KF_TRY(kf_cuda_enter(device, &before));
    const kf_status status = make_plan_here(op);
    kf_cuda_leave(device, before);
    return status;
}

static bool rows_aligned(const kf_view *x) {
    const int64_t size = kf_type_size(x->type);
    bool aligned = (uintptr_t)x->data % 16 == 0;
    for (int i = 0; i < 3; i++) aligned &= x->stride[i] * size % 16 == 0;
    return aligned;
}

static bool aligned_apart_from_keys(const kf_op *op) {
    const kf_attention_problem *p = &op->problem.attention;
    return rows_aligned(&p->q) && rows_aligned(&p->v) && rows_aligned(&p->o);
}

static kf_cuda_attention make_argument(const kf_op *op, char *workspace) {
    const kf_attention_problem *p = &op->problem.attention;
    const struct kf_attention_options *n = &p->options;
    const attention_plan *plan = plan_of(op);
    kf_cuda_attention a = {
        .q = p->q.data,
        .k = p->k.data,
        .v = p->v.data,
        .o = p->o.data,
        .lse = (float *)(void *)p->lse.data,
        .key_lengths = p->key_lengths.data,
        .positions = p->positions.data,
        .length_stride = p->key_lengths.stride[0],
        .position_stride = {p->positions.stride[0], p->positions.stride[1]},
        .alibi_slopes = (const float *)(const void *)p->alibi_slopes.data,
        .sinks = (const float *)(const void *)p->sinks.data,
        .bias = p->bias.data,
        .mask = (const uint8_t *)p->mask.data,
        .length_wide = p->key_lengths.type == KF_TYPE_I64,
        .position_wide = p->positions.type == KF_TYPE_I64,
        .bias_type = p->bias.type,
        .o_type = p->o.type,
        .q_type = p->q.type,
        .kv_type = p->k.type,
        .H = (int32_t)n->H,
        .Hkv = (int32_t)n->Hkv,
        .Nq = (int32_t)n->Nq,
        .Nk = (int32_t)n->Nk,
        .D = (int32_t)n->D,
        .Dv = (int32_t)n->Dv,
        .heads = plan->heads,
        .rows = plan->rows,
        .lists = plan->lists,
        .tiles = plan->tiles,
        .section = plan->section,
        .sequence_lists = (int32_t)(n->H / plan->heads),
        .kv_lists = (int32_t)(n->H / n->Hkv / plan->heads),
        .split = plan->split,
        .splits = plan->splits,
        .cluster = plan->cluster,
        .aligned = aligned_apart_from_keys(op) && (plan->rotate || rows_aligned(&p->k)),
        .window_left = n->window_left,
        .window_right = n->window_right,
        .scale = n->scale,
        .softcap = n->softcap,
        .rope = plan->rope,
    };
    for (int i = 0; i < 3; i++) {
        a.q_stride[i] = p->q.stride[i], a.k_stride[i] = p->k.stride[i], a.v_stride[i] = p->v.stride[i];
        a.o_stride[i] = p->o.stride[i], a.lse_stride[i] = p->lse.stride[i];
    }
    for (int i = 0; i < 4; i++) a.bias_stride[i] = p->bias.stride[i], a.mask_stride[i] = p->mask.stride[i];
    if (merges_by_kernel(plan)) {
        a.part_o = (float *)(void *)workspace;
        a.part_state = a.part_o + plan->part_floats;
    }
    return a;
}

// Rotates the keys into the workspace, where `a` has them from then on.
static kf_status rotate_keys(const kf_op *op, char *workspace, kf_cuda_attention *a) {
    const attention_plan *plan = plan_of(op);
    const struct kf_attention_options *n = &op->problem.attention.options;
    const int64_t keys = n->B * n->Hkv * n->Nk;
    kf_cuda_attention argument = *a;
    argument.aligned = rows_aligned(&op->problem.attention.k);
    argument.rotated_k = workspace + plan->rotated_at;
    argument.key_scales = (float *)(void *)(argument.rotated_k + keys * n->D * 2);
    argument.odd_keys = (int32_t *)(void *)(argument.key_scales + keys + MOST_TILE_KEYS);
    a->rotated_k = argument.rotated_k, a->key_scales = argument.key_scales, a->odd_keys = argument.odd_keys;
    a->k = argument.rotated_k;
    a->k_stride[0] = n->Hkv * n->Nk * n->D, a->k_stride[1] = n->Nk * n->D, a->k_stride[2] = n->D;
    a->rope.k = 0;
    const kf_cuda_attention_kernel *kernel = plan->rotate_whole && argument.aligned ? plan->rotate_whole : plan->rotate;
    const kf_cuda_launch_shape blocks = {
        .blocks = rotate_blocks(n, kernel), .threads = kernel->threads, .dependent = true};
    if (blocks.blocks == 0) return KF_OK;
    return kf_cuda_launch(kf_cuda(op->context), kernel->function, &blocks, &argument,
                          "attention: launch of the rotation");
}

kf_status kf_cuda_attention_launch(const kf_op *op, char *workspace) {
    const attention_plan *plan = plan_of(op);
    if (!plan->plain) return KF_OK;
    const kf_cuda_device *device = kf_cuda(op->context);
    kf_cuda_attention a = make_argument(op, workspace);
    if (plan->rotate) KF_TRY(rotate_keys(op, workspace, &a));
    // Where positions are given, a window's intervals may leave gaps between them: keys that no row sees.
    const bool turned = plan->rotate && key_pieces(&op->problem.attention.options) > 0;
    const bool gaps = a.positions && a.window_left != INT64_MAX;
    const bool general = !a.aligned || a.softcap > 0 || a.alibi_slopes || a.bias || a.mask || a.scale < 0 || gaps ||
                         (a.rope.k && !plan->keys_turn);
    const kf_cuda_attention_kernel *kernel = general ? plan->general : plan->plain;
    a.unit = general || kernel->type == KF_TYPE_F32 ? KF_LOG2E : 1.0f;
    // A prefill fills the machine: blocks that wait for their turn among its last ones cost (1,8,8,2048,64) a fifth.
    const kf_cuda_launch_shape tiles = {.blocks = op->plan.items[0],
                                        .threads = kernel->threads,
                                        .shared = kernel->shared,
                                        .cluster = plan->cluster,
                                        .dependent = kernel->kind == KF_CUDA_DECODE || turned};
    KF_TRY(kf_cuda_launch(device, kernel->function, &tiles, &a, "attention: launch"));
    if (!merges_by_kernel(plan)) return KF_OK;
    const int64_t count = (int64_t)plan->lists * plan->rows;
    const kf_cuda_launch_shape rows = {
        .blocks = plan->merge->rows ? count : divide_up(count * (a.Dv / 8), plan->merge->threads),
        .threads = plan->merge->threads,
        .dependent = true};
    return kf_cuda_launch(device, plan->merge->function, &rows, &a, "attention: launch of the merge");
}

const kf_backend_op kf_cuda_attention_op = {.plan = make_plan};

bool kf_cuda_attention_support(int32_t index, kf_support_row *row) {
    for (int i = 0; i < ALL_TABLES; i++)
        for (const kf_cuda_attention_kernel *kernel = tables[i]; kernel->function; kernel++) {
            if (kernel->general || index-- > 0) continue;
            row->kind = KF_OP_ATTENTION;
            row->backend = "cuda";
            row->isa = 0;
            row->dtypes = kernel->type == KF_TYPE_F32            ? "fp32 fp16 bf16, mixed"
                          : kernel->type == KF_CUDA_ROTATED_BF16 ? "bf16, k rotated"
                                                                 : kf_type_name(kernel->type);
            row->notes = kernel->name;
            return true;
        }
    return false;
}
