// SPDX-License-Identifier: Apache-2.0
//
// The linear layer on CUDA: which kernels, how the columns are cut into slices, what stands in the workspace; and the launches.
//
//     T <= 8, quantised W, bf16 x             one of the direct kernels, where K allows: one launch
//     T <= 8, other quantised W            vector: one launch, or one for each few rows where x is long
//     T <= 8, dense W, x fits shared memory    stream: one launch
//     more, dense W of x's type, aligned       cuBLASLt, where it is found
//     else                                     x into form, then tiles: two launches
//     weights that the kernels cannot read as they are (unpacked blocks, rows not aligned to 16 bytes, K not a multiple of 32) are first
//     brought into form in the workspace: one launch more, and twice the bytes
//
// The order in which a row of y is summed does not depend on T within one of these. A context with fixed_split keeps it the same at every T: no
// cuBLASLt, and quantised W by the direct or the vector kernel alone, eight rows after eight.
#include "cuda/linear.h"
#include "cuda/cuda.h"
#include "cuda/fragments.h"
#include "cuda/linear_lt.h"
#include "math/mask.h"

#include <string.h>

enum {
    PREPARE_THREADS = 256, // of linear_prepare.cu: 8 warps
    PREPARE_WARPS = 8,
    SUM_BYTES = 2 * KF_OCTET * KF_STREAM_ROWS * (int)sizeof(float) // vector: of a warp's sums
};

typedef struct linear_plan {
    const kf_cuda_linear_kernel *kernel; // NULL: nothing to do
    const void *x_form;                  // tile: the kernel that brings x into form
    int32_t made;                        // not 0: the weights come through the workspace
    int32_t blocks, units, row_blocks, octets, slices, slice_units;
    int32_t ring, shared;
    int32_t ways, part_quads,
        group_bits; // vector, direct: warps that share two octets, what each takes; 2^group_bits times so many are a block
    int64_t grid;
    int32_t record, beside;        // of x in form: bytes of a block, floats a row in it
    int64_t x_items;               // octets and blocks to be brought into form
    int64_t weight_bytes, x_bytes; // of the workspace: weights; x in form, or what cuBLASLt wants
    kf_cuda_lt lt;
} linear_plan;
kf_static_assert(sizeof(linear_plan) <= sizeof((kf_plan *)0)->word, "the plan's words hold it");

static const linear_plan *plan_of(const kf_op *op) { return (const linear_plan *)op->plan.word; }

static const kf_cuda_linear_kernel *const tables[] = {
    kf_cuda_linear_dense,      kf_cuda_linear_q4,      kf_cuda_linear_q5,      kf_cuda_linear_q8,
    kf_cuda_linear_tile_dense, kf_cuda_linear_tile_q4, kf_cuda_linear_tile_q5, kf_cuda_linear_tile_q8,
};
enum { TABLES = sizeof tables / sizeof *tables };

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

static int32_t mode_of(const kf_linear_problem *p) {
    if (kf_block_quantised(p->weight.type)) {
        if (p->options.activations == KF_ACTIVATIONS_INT8) return KF_X_INT8;
        return p->x.type == KF_TYPE_BF16 ? KF_X_BF16 : KF_X_SPLIT;
    }
    if (p->weight.type == KF_WEIGHT_BF16 && p->x.type == KF_TYPE_BF16) return KF_X_BF16;
    if (p->weight.type == KF_WEIGHT_F16 && p->x.type == KF_TYPE_F16) return KF_X_F16;
    return KF_X_SPLIT;
}

static const kf_cuda_linear_kernel *find_kernel(const kf_linear_problem *p, int kind, int octets, int rows) {
    int mode = mode_of(p);
    if (kind == KF_CUDA_VECTOR && mode != KF_X_INT8) mode = KF_X_FIXED;
    for (int i = 0; i < TABLES; i++)
        for (const kf_cuda_linear_kernel *row = tables[i]; row->function; row++)
            if (row->kind == kind && row->octets == octets && row->rows >= rows && row->type == p->weight.type &&
                row->mode == mode)
                return row;
    return NULL;
}

static int64_t element_bytes(int type) { return type == KF_WEIGHT_F32 ? 4 : 2; }

static int64_t dense_row_bytes(const kf_weight *weight) {
    return weight->row_bytes ? weight->row_bytes : weight->cols * element_bytes(weight->type);
}

static const char *weight_data(const kf_weight *weight) {
    return (const char *)weight->data + (weight->packed ? KF_FRAGMENTS_HEADER : 0);
}

// Shapes that 32-bit arithmetic holds; addresses are 64-bit.
static kf_status check_problem(const kf_linear_problem *p) {
    const int64_t limit = INT32_MAX - 65536;
    if (p->options.T > limit || p->options.N > limit || p->options.K > limit)
        return kf_fail(KF_UNSUPPORTED, "linear: T = %lld, N = %lld, K = %lld; the cuda backend allows %lld each",
                       (long long)p->options.T, (long long)p->options.N, (long long)p->options.K, (long long)limit);
    return p->weight.packed ? kf_cuda_packed_check(&p->weight) : KF_OK;
}

// Whether the kernels can't read the weight as it is. Alignment of its address is known only when it is bound; see the launch.
static bool must_make(const kf_linear_problem *p) {
    if (kf_block_quantised(p->weight.type)) return !p->weight.packed;
    return p->options.K % KF_BLOCK_SMALL || dense_row_bytes(&p->weight) % 16;
}

static kf_status prepare(const kf_op *op, const void *function, int32_t shared) {
    return kf_cuda_prepare_kernel(kf_cuda(op->context), function, shared, "linear: kernel");
}

static void cut_columns(const kf_linear_problem *p, linear_plan *plan) {
    const int64_t unit_blocks = kf_block_quantised(p->weight.type) ? (int)KF_UNIT_BLOCKS : (int)KF_DENSE_UNIT_BLOCKS;
    plan->blocks = (int32_t)divide_up(p->options.K, KF_BLOCK_SMALL);
    plan->units = (int32_t)divide_up(plan->blocks, unit_blocks);
    plan->row_blocks = (int32_t)(plan->units * unit_blocks);
    plan->octets = (int32_t)divide_up(p->options.N, KF_OCTET);
    plan->slice_units = (int32_t)kf_max64(divide_up(plan->units, KF_DENSE_SLICES), 1);
    plan->slices = (int32_t)kf_max64(divide_up(plan->units, plan->slice_units), 1);
}

// How many warps share two octets: as many as find room on the device at once, in parts that are even within a tenth. Depends on N and K
// alone.
static void share_columns(const kf_op *op, linear_plan *plan) {
    enum { ROOM = 15 }; // warps of a multiprocessor: 16 have room for 128 registers a lane, 15 were as fast or faster
    const kf_linear_problem *p = &op->problem.linear;
    const int64_t quads = kf_max64(divide_up(plan->blocks, 4), 1), pairs = divide_up(plan->octets, 2),
                  room = (int64_t)ROOM * kf_cuda(op->context)->multiprocessors;
    plan->ways = 1, plan->part_quads = (int32_t)quads;
    for (int64_t n = 2; n <= KF_VECTOR_WARPS && pairs * n <= room; n++) {
        const int64_t part = divide_up(quads, n), ways = divide_up(quads, part);
        if (10 * quads >= 9 * part * ways) plan->ways = (int32_t)ways, plan->part_quads = (int32_t)part;
    }
    // x is brought into form by each block: with more rows more warps share it.
    const int32_t warps = p->options.T > 2 && plan->ways > 4 ? KF_VECTOR_WARPS : KF_VECTOR_WARPS / 2;
    while (plan->ways << (plan->group_bits + 1) <= warps) plan->group_bits++;
}

// Which of the direct kernels, whose warps take two octets and a unit: all of their blocks find room on the device at once, beside those of the
// kernel before (then their weights are fragments before that one has ended) or just so; or blocks go on to further octets. -1: none.
// Depends on N and K alone.
static int direct_kind(const linear_plan *plan, int64_t multiprocessors) {
    enum { FEW = 12 }; // warps of a multiprocessor: with 8 and 10 measured faster than wide, with 21 slower
    const int64_t pairs = divide_up(plan->octets, 2);
    if (plan->units < 1 || plan->units > KF_WIDE_WARPS) return -1;
    if (plan->units <= KF_DIRECT_WARPS && pairs * plan->units <= FEW * multiprocessors) return KF_CUDA_DIRECT;
    if (pairs <= KF_WIDE_WARPS / plan->units * multiprocessors) return KF_CUDA_DIRECT_WIDE;
    return plan->units <= KF_DIRECT_WARPS ? KF_CUDA_DIRECT_MANY : -1;
}

static bool plan_direct(const kf_op *op, linear_plan *plan) {
    const kf_linear_problem *p = &op->problem.linear;
    const kf_cuda_device *device = kf_cuda(op->context);
    const int kind = direct_kind(plan, device->multiprocessors);
    if (mode_of(p) != KF_X_BF16 || kind < 0) return false;
    plan->kernel = find_kernel(p, kind, 0, p->options.T == 1 ? 1 : (int)KF_STREAM_ROWS);
    plan->ways = plan->units;
    plan->grid = divide_up(plan->octets, 2);
    if (kind == KF_CUDA_DIRECT_MANY)
        plan->grid = kf_min64(plan->grid, (int64_t)(plan->kernel->columns / plan->units) * device->multiprocessors);
    // Whether it has room depends on what eight rows want, whatever T is.
    const kf_cuda_linear_kernel *most = find_kernel(p, kind, 0, KF_STREAM_ROWS);
    if (plan->ways * (KF_STREAM_ROWS * most->shared + most->depth) > device->shared_limit) return false;
    const int32_t rows = (int32_t)kf_min64(p->options.T, KF_STREAM_ROWS);
    plan->shared = plan->ways * (rows * plan->kernel->shared + plan->kernel->depth);
    return prepare(op, plan->kernel->function, plan->shared) == KF_OK;
}

// The vector kernel; where x does not fit shared memory, several launches of fewer rows. False where even that is too much.
static bool plan_vector(const kf_op *op, linear_plan *plan) {
    const kf_linear_problem *p = &op->problem.linear;
    const kf_cuda_device *device = kf_cuda(op->context);
    share_columns(op, plan);
    const kf_cuda_linear_kernel *kernel = NULL;
    for (int rows = (int)kf_min64(p->options.T, KF_STREAM_ROWS); rows > 0; rows /= 2) {
        kernel = find_kernel(p, KF_CUDA_VECTOR, 0, rows);
        plan->shared = plan->row_blocks * kernel->shared + (plan->ways << plan->group_bits) * SUM_BYTES;
        if (plan->shared <= device->shared_limit) break;
    }
    if (!kernel || plan->shared > device->shared_limit) return false;
    if (prepare(op, kernel->function, plan->shared) != KF_OK) return false;
    plan->kernel = kernel;
    plan->grid = divide_up(divide_up(plan->octets, 2), 1 << plan->group_bits);
    return true;
}

// The stream kernel for blocks of so many octets: their number, and what each has in shared memory; false where that is too much.
static bool plan_stream(const kf_op *op, int octets, linear_plan *plan) {
    const kf_linear_problem *p = &op->problem.linear;
    const kf_cuda_device *device = kf_cuda(op->context);
    const kf_cuda_linear_kernel *kernel = plan->kernel = find_kernel(p, KF_CUDA_STREAM, octets, (int)p->options.T);
    const int64_t slice_blocks = plan->row_blocks ? plan->row_blocks / plan->units * plan->slice_units : 0;
    const int64_t warp_bytes = slice_blocks * p->options.T * kf_x_bytes(kernel->mode) +
                               2 * octets * KF_OCTET * KF_STREAM_ROWS * (int64_t)sizeof(float);
    const int64_t all = divide_up(plan->octets, octets),
                  steps = divide_up(slice_blocks * KF_BLOCK_SMALL, kernel->columns);
    plan->ring = kernel->depth;
    int64_t shared = plan->slices * (warp_bytes + (int64_t)plan->ring * kernel->shared);
    if (shared > device->shared_limit) return false;
    int before = 0, fit = 0;
    // All that a block may have: ops of other shapes share the kernel.
    if (prepare(op, kernel->function, device->shared_limit) != KF_OK || kf_cuda_enter(device, &before) != KF_OK)
        return false;
    const bool known = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, kernel->function, plan->slices * 32,
                                                                     (size_t)shared) == cudaSuccess;
    kf_cuda_leave(device, before);
    if (!known || fit < 1) return false;
    const int64_t room = (int64_t)fit * device->multiprocessors, rounds = divide_up(all, room);
    plan->grid = kf_min64(all, room);
    if (rounds * steps < plan->ring) { // a ring no longer than the work
        plan->ring = (int32_t)kf_max64(rounds * steps, 1);
        shared = plan->slices * (warp_bytes + (int64_t)plan->ring * kernel->shared);
    }
    plan->shared = (int32_t)shared;
    return true;
}

// One octet a block where even so there are few warps: then the machine waits for the longest of them, not for memory.
static bool choose_stream(const kf_op *op, linear_plan *plan) {
    const kf_linear_problem *p = &op->problem.linear;
    const int64_t warps = (int64_t)plan->octets * plan->slices, few = 4;
    if (kf_block_quantised(p->weight.type))
        return (p->options.T <= KF_STREAM_ROWS || op->context->info.fixed_split) &&
               (plan_direct(op, plan) || plan_vector(op, plan));
    if (p->options.T > KF_STREAM_ROWS) return false;
    return plan_stream(op, warps <= few * kf_cuda(op->context)->multiprocessors ? 1 : 2, plan);
}

static kf_status plan_tiles(const kf_op *op, linear_plan *plan) {
    const kf_linear_problem *p = &op->problem.linear;
    const kf_cuda_device *device = kf_cuda(op->context);
    plan->kernel = find_kernel(p, KF_CUDA_TILE, 0, 0);
    if (!plan->kernel || plan->kernel->shared > device->shared_limit)
        return kf_fail(KF_UNSUPPORTED, "linear: no kernel for weights of %s within %d bytes of shared memory",
                       kf_weight_type_string(p->weight.type), (int)device->shared_limit);
    plan->x_form = (kf_block_quantised(p->weight.type) ? kf_cuda_linear_x : kf_cuda_linear_x_dense)[plan->kernel->mode];
    const int64_t tiles = divide_up(p->options.T, KF_TILE_N);
    plan->grid = divide_up(p->options.N, KF_TILE_M) * tiles;
    plan->x_items = tiles * (KF_TILE_N / KF_OCTET) * plan->row_blocks;
    plan->shared = plan->kernel->shared;
    plan->beside = plan->kernel->mode == KF_X_INT8 ? 2 : kf_block_affine(p->weight.type) ? 1 : 0;
    plan->record = KF_TILE_N * (kf_x_bytes(plan->kernel->mode) + plan->beside * (int32_t)sizeof(float));
    plan->x_bytes = tiles * plan->row_blocks * plan->record;
    KF_TRY(prepare(op, plan->kernel->function, plan->shared));
    return prepare(op, plan->x_form, 0);
}

// Dense weights' type as one of tensors.
static int32_t tensor_type(int type) {
    return type == KF_WEIGHT_F32 ? KF_TYPE_F32 : type == KF_WEIGHT_F16 ? KF_TYPE_F16 : KF_TYPE_BF16;
}

static kf_cuda_lt_product lt_product(const kf_linear_problem *p) {
    return (kf_cuda_lt_product){.T = p->options.T,
                                .N = p->options.N,
                                .K = p->options.K,
                                .w_stride = dense_row_bytes(&p->weight) / element_bytes(p->weight.type),
                                .x_stride = p->x.stride[0],
                                .y_stride = p->y.stride[0],
                                .w_type = tensor_type(p->weight.type),
                                .x_type = p->x.type,
                                .y_type = p->y.type,
                                .bias_type = p->bias.type,
                                .w = weight_data(&p->weight),
                                .x = p->x.data,
                                .bias = kf_present(&p->bias) ? p->bias.data : NULL,
                                .y = p->y.data};
}

// Asks cuBLASLt. A context that is held to an older architecture is to be served by kernels of that one.
static void plan_lt(const kf_op *op, linear_plan *plan) {
    const kf_linear_problem *p = &op->problem.linear;
    const kf_cuda_device *device = kf_cuda(op->context);
    int before = 0, major = 0, minor = 0;
    if (kf_block_quantised(p->weight.type) || op->context->info.fixed_split || kf_cuda_enter(device, &before) != KF_OK)
        return;
    const kf_cuda_lt_product product = lt_product(p);
    const bool own = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device->id) == cudaSuccess &&
                     cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device->id) == cudaSuccess &&
                     device->arch == major * 10 + minor;
    if (own && kf_cuda_lt_plan(device, &product, &plan->lt))
        plan->x_bytes = kf_max64(plan->x_bytes, kf_cuda_lt_workspace(&plan->lt));
    kf_cuda_leave(device, before);
}

// What the weights need in the workspace; dense rows may turn out not to be aligned when they are bound.
static int64_t made_bytes(const kf_linear_problem *p, const linear_plan *plan) {
    if (kf_block_quantised(p->weight.type))
        return p->weight.packed ? 0 : round_up(kf_fragments_bytes(p->weight.type, p->options.N, p->options.K), 128);
    if (!plan->made && (!p->weight.data || (uintptr_t)weight_data(&p->weight) % 16 == 0)) return 0;
    return round_up(p->options.N * plan->blocks * KF_BLOCK_SMALL * element_bytes(p->weight.type), 128);
}

static kf_status make_plan(kf_op *op) {
    const kf_linear_problem *p = &op->problem.linear;
    linear_plan plan = {0};
    KF_TRY(check_problem(p));
    if (p->options.T == 0 || p->options.N == 0) return KF_OK;
    cut_columns(p, &plan);
    plan.made = must_make(p);
    plan.weight_bytes = made_bytes(p, &plan);
    if (plan.weight_bytes > 0) KF_TRY(prepare(op, kf_cuda_linear_pack, 0)); // a launch may want it
    if (!choose_stream(op, &plan)) {
        KF_TRY(plan_tiles(op, &plan));
        plan_lt(op, &plan);
    }
    if (plan.grid > INT32_MAX)
        return kf_fail(KF_UNSUPPORTED, "linear: %lld tiles; the cuda backend allows 2^31 - 1", (long long)plan.grid);
    op->plan.shared_bytes = (size_t)(plan.weight_bytes + plan.x_bytes);
    op->plan.phases = 1;
    op->plan.items[0] = plan.grid;
    memcpy(op->plan.word, &plan, sizeof plan);
    return KF_OK;
}

static kf_status make_argument(const kf_op *op, char *workspace, kf_cuda_linear *argument) {
    const kf_linear_problem *p = &op->problem.linear;
    const linear_plan *plan = plan_of(op);
    const char *weights = weight_data(&p->weight);
    const int64_t x_bytes = kf_type_size(p->x.type);
    const bool quantised = kf_block_quantised(p->weight.type);
    const bool made = plan->made || (!quantised && (uintptr_t)weights % 16);
    if (quantised && !made && (uintptr_t)weights % 16)
        return kf_fail(KF_INVALID_ARGUMENT, "linear: the packed weight is at %p; it must be aligned to 16 bytes",
                       p->weight.data);
    if (made && plan->weight_bytes == 0 && plan->blocks > 0)
        return kf_fail(KF_INVALID_ARGUMENT,
                       "linear: the weight is at %p and was planned aligned to 16 bytes; plan a new op",
                       p->weight.data);
    kf_cuda_linear a = {
        .w = made ? workspace : weights,
        .x = p->x.data,
        .bias = p->bias.data,
        .y = p->y.data,
        .source = weights,
        .packed = workspace,
        .parts = workspace + plan->weight_bytes,
        .x_stride = p->x.stride[0],
        .y_stride = p->y.stride[0],
        .row_bytes = made ? plan->blocks * KF_BLOCK_SMALL * element_bytes(p->weight.type) : dense_row_bytes(&p->weight),
        .octet_bytes = quantised ? kf_octet_bytes(p->weight.type, KF_OCTET, p->options.K) : 0,
        .T = (int32_t)p->options.T,
        .N = (int32_t)p->options.N,
        .K = (int32_t)p->options.K,
        .blocks = plan->blocks,
        .units = plan->units,
        .octets = plan->octets,
        .row_blocks = plan->row_blocks,
        .slices = plan->slices,
        .slice_units = plan->slice_units,
        .ring = plan->ring,
        .ways = plan->ways,
        .part_quads = plan->part_quads,
        .group_bits = plan->group_bits,
        .type = p->weight.type,
        .x_type = p->x.type,
        .y_type = p->y.type,
        .bias_type = p->bias.type,
        .record = plan->record,
        .beside = plan->beside,
        .x_aligned = (uintptr_t)p->x.data % 16 == 0 && p->x.stride[0] * x_bytes % 16 == 0,
        .weights_made = made && plan->blocks > 0,
    };
    *argument = a;
    return KF_OK;
}

static kf_status launch_prepare(const kf_cuda_device *device, const void *function, int64_t warps,
                                const kf_cuda_linear *a, const char *what) {
    const kf_cuda_launch_shape shape = {
        .blocks = divide_up(warps, PREPARE_WARPS), .threads = PREPARE_THREADS, .dependent = true};
    return warps ? kf_cuda_launch(device, function, &shape, a, what) : KF_OK;
}

static bool is_direct(int kind) {
    return kind == KF_CUDA_DIRECT || kind == KF_CUDA_DIRECT_WIDE || kind == KF_CUDA_DIRECT_MANY;
}

kf_status kf_cuda_linear_launch(const kf_op *op, char *workspace) {
    const linear_plan *plan = plan_of(op);
    if (!plan->kernel) return KF_OK;
    const kf_cuda_device *device = kf_cuda(op->context);
    kf_cuda_linear a;
    KF_TRY(make_argument(op, workspace, &a));
    if (plan->lt.found) {
        const kf_cuda_lt_product product = lt_product(&op->problem.linear);
        if (kf_cuda_lt_fits(&product)) return kf_cuda_lt_run(device, &product, &plan->lt, a.parts);
    }
    if (a.weights_made) {
        kf_cuda_linear pack =
            a; // rows of the source are where they were, and packed dense rows stand where octets would
        const kf_weight *weight = &op->problem.linear.weight;
        const int64_t compact = weight->cols / kf_block_values(weight->type) * kf_block_bytes(weight->type);
        pack.row_bytes = weight->row_bytes ? weight->row_bytes : compact;
        if (!kf_block_quantised(weight->type)) pack.octet_bytes = a.row_bytes;
        pack.units = (int32_t)divide_up(plan->blocks, KF_UNIT_BLOCKS);
        KF_TRY(launch_prepare(device, kf_cuda_linear_pack, (int64_t)plan->octets * pack.units, &pack,
                              "linear: launch of the weights' packing"));
    }
    if (plan->kernel->kind == KF_CUDA_TILE)
        KF_TRY(launch_prepare(device, plan->x_form, plan->x_items, &a, "linear: launch of x's packing"));
    const int kind = plan->kernel->kind;
    const kf_cuda_launch_shape shape = {.blocks = plan->grid,
                                        .threads = kind == KF_CUDA_VECTOR || is_direct(kind)
                                                       ? (plan->ways << plan->group_bits) * 32
                                                   : kind == KF_CUDA_STREAM     ? plan->slices * 32
                                                   : kf_block_quantised(a.type) ? KF_TILE_THREADS
                                                                                : KF_DENSE_TILE_THREADS,
                                        .shared = plan->shared,
                                        .dependent = true};
    const int32_t T = a.T, most = plan->kernel->rows ? plan->kernel->rows : T;
    for (int32_t first = 0; first < T; first += most) {
        a.T = most < T - first ? most : T - first;
        KF_TRY(kf_cuda_launch(device, plan->kernel->function, &shape, &a, "linear: launch"));
        a.x += most * a.x_stride * kf_type_size(a.x_type), a.y += most * a.y_stride * kf_type_size(a.y_type);
    }
    return KF_OK;
}

const kf_backend_op kf_cuda_linear_op = {.plan = make_plan};

bool kf_cuda_linear_support(int32_t index, kf_support_row *row) {
    for (int i = 0; i < TABLES; i++)
        for (const kf_cuda_linear_kernel *kernel = tables[i]; kernel->function; kernel++) {
            if (index-- > 0) continue;
            int devices = 0;
            if (cudaGetDeviceCount(&devices) != cudaSuccess) cudaGetLastError();
            row->kind = KF_OP_LINEAR;
            row->backend = "cuda";
            row->isa = 0;
            row->available = devices > 0;
            row->dtypes = kf_weight_type_string(kernel->type);
            row->notes = kernel->name;
            return true;
        }
    return false;
}
