// SPDX-License-Identifier: Apache-2.0
//
// The linear layer on CUDA: which kernels, how the columns are cut into slices, what stands in the workspace; and the launches.
//
//     T <= 8 and x fits shared memory    stream: one launch
//     otherwise                          x into form, then tiles: two launches
//     weights that the kernels cannot read as they are (unpacked blocks, rows not aligned to 16 bytes, K not a multiple of 32) are first
//     brought into form in the workspace: one launch more, and twice the bytes
//
// Slices depend on K alone. Nothing depends on T but which kernel runs, and both sum in one order: so a row of y has the same bits at
// every T.
#include "cuda/linear.h"
#include "cuda/cuda.h"
#include "cuda/fragments.h"
#include "math/mask.h"

#include <string.h>

enum {
    PREPARE_THREADS = 256, // of linear_prepare.cu: 8 warps
    PREPARE_WARPS = 8
};

typedef struct linear_plan {
    const kf_cuda_linear_kernel *kernel; // NULL: nothing to do
    const void *x_form;                  // tile: the kernel that brings x into form
    int32_t made;                        // not 0: the weights come through the workspace
    int32_t blocks, units, row_blocks, octets, slices, slice_units;
    int32_t ring, shared;
    int64_t grid;
    int32_t record, beside;        // of x in form: bytes of a block, floats a row in it
    int64_t weight_bytes, x_bytes; // of the workspace: weights, x in form
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

static const kf_cuda_linear_kernel *find_kernel(const kf_linear_problem *p, int kind, int octets) {
    for (int i = 0; i < TABLES; i++)
        for (const kf_cuda_linear_kernel *row = tables[i]; row->function; row++)
            if (row->kind == kind && row->octets == octets && row->type == p->weight.type && row->mode == mode_of(p))
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

static void cut_columns(const kf_linear_problem *p, linear_plan *plan) {
    const bool quantised = kf_block_quantised(p->weight.type);
    const int64_t unit_blocks = quantised ? KF_UNIT_BLOCKS : KF_DENSE_UNIT_BLOCKS,
                  most = quantised ? KF_QUANTISED_SLICES : KF_DENSE_SLICES;
    plan->blocks = (int32_t)divide_up(p->options.K, KF_BLOCK_SMALL);
    plan->units = (int32_t)divide_up(plan->blocks, unit_blocks);
    plan->row_blocks = (int32_t)(plan->units * unit_blocks);
    plan->octets = (int32_t)divide_up(p->options.N, KF_OCTET);
    plan->slice_units = (int32_t)kf_max64(divide_up(plan->units, most), 1);
    plan->slices = (int32_t)kf_max64(divide_up(plan->units, plan->slice_units), 1);
}

// The stream kernel for blocks of so many octets: their number, and what each has in shared memory; false where that is too much.
static bool plan_stream(const kf_op *op, int octets, linear_plan *plan) {
    const kf_linear_problem *p = &op->problem.linear;
    const kf_cuda_device *device = kf_cuda(op->context);
    const kf_cuda_linear_kernel *kernel = plan->kernel = find_kernel(p, KF_CUDA_STREAM, octets);
    const int64_t slice_blocks = plan->row_blocks ? plan->row_blocks / plan->units * plan->slice_units : 0;
    const int64_t floats = kernel->mode == KF_X_INT8 ? 2 : kf_block_affine(p->weight.type) ? 1 : 0;
    const int64_t warp_bytes =
        slice_blocks * (p->options.T * kf_x_bytes(kernel->mode) + KF_STREAM_ROWS * floats * (int64_t)sizeof(float)) +
        2 * octets * KF_OCTET * KF_STREAM_ROWS * (int64_t)sizeof(float);
    const int64_t all = divide_up(plan->octets, octets),
                  steps = divide_up(slice_blocks * KF_BLOCK_SMALL, kernel->columns);
    plan->ring = kernel->depth;
    int64_t shared = plan->slices * (warp_bytes + (int64_t)plan->ring * kernel->shared);
    if (shared > device->shared_limit) return false;
    int before = 0, fit = 0;
    if (kf_cuda_enter(device, &before) != KF_OK) return false;
    // All that a block may have: ops of other shapes share the kernel.
    const bool known = kf_cuda_prepare_kernel(kernel->function, device->shared_limit, "linear: kernel") == KF_OK &&
                       cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, kernel->function, plan->slices * 32,
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
    const int64_t warps = (int64_t)plan->octets * plan->slices, few = kf_block_quantised(p->weight.type) ? 2 : 4;
    if (p->options.T > KF_STREAM_ROWS) return false;
    return plan_stream(op, warps <= few * kf_cuda(op->context)->multiprocessors ? 1 : 2, plan);
}

static kf_status plan_tiles(const kf_op *op, linear_plan *plan) {
    const kf_linear_problem *p = &op->problem.linear;
    const kf_cuda_device *device = kf_cuda(op->context);
    plan->kernel = find_kernel(p, KF_CUDA_TILE, 0);
    if (!plan->kernel || plan->kernel->shared > device->shared_limit)
        return kf_fail(KF_UNSUPPORTED, "linear: no kernel for weights of %s within %d bytes of shared memory",
                       kf_weight_type_string(p->weight.type), (int)device->shared_limit);
    plan->x_form = (kf_block_quantised(p->weight.type) ? kf_cuda_linear_x : kf_cuda_linear_x_dense)[plan->kernel->mode];
    plan->grid = divide_up(p->options.N, KF_TILE_M) * divide_up(p->options.T, KF_TILE_N);
    plan->shared = plan->kernel->shared;
    plan->beside = plan->kernel->mode == KF_X_INT8 ? 2 : kf_block_affine(p->weight.type) ? 1 : 0;
    plan->record = KF_TILE_N * (kf_x_bytes(plan->kernel->mode) + plan->beside * (int32_t)sizeof(float));
    plan->x_bytes = divide_up(p->options.T, KF_TILE_N) * plan->row_blocks * plan->record;
    int before = 0;
    KF_TRY(kf_cuda_enter(device, &before));
    const kf_status status = kf_cuda_prepare_kernel(plan->kernel->function, plan->shared, "linear: kernel");
    kf_cuda_leave(device, before);
    return status;
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
    if (!choose_stream(op, &plan)) KF_TRY(plan_tiles(op, &plan));
    if (plan.grid > INT32_MAX)
        return kf_fail(KF_UNSUPPORTED, "linear: %lld tiles; the cuda backend allows 2^31 - 1", (long long)plan.grid);
    op->plan.shared_bytes = (size_t)(plan.weight_bytes + plan.x_bytes);
    op->plan.phases = 1;
    op->plan.items[0] = plan.grid;
    memcpy(op->plan.word, &plan, sizeof plan);
    return KF_OK;
}

// An address that a load of one element could fault on is refused.
static kf_status check_aligned(const kf_view *view, const char *name) {
    if (!kf_present(view) || (uintptr_t)view->data % (uintptr_t)kf_type_size(view->type) == 0) return KF_OK;
    return kf_fail(KF_INVALID_ARGUMENT, "linear: %s is at %p; it must be aligned to an element, %d bytes", name,
                   (void *)view->data, (int)kf_type_size(view->type));
}

static kf_status make_argument(const kf_op *op, char *workspace, kf_cuda_linear *argument) {
    const kf_linear_problem *p = &op->problem.linear;
    const linear_plan *plan = plan_of(op);
    const char *weights = weight_data(&p->weight);
    const int64_t x_bytes = kf_type_size(p->x.type);
    const bool quantised = kf_block_quantised(p->weight.type);
    KF_TRY(check_aligned(&p->x, "x"));
    KF_TRY(check_aligned(&p->y, "y"));
    KF_TRY(check_aligned(&p->bias, "bias"));
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

kf_status kf_cuda_linear_launch(const kf_op *op, char *workspace) {
    const linear_plan *plan = plan_of(op);
    if (!plan->kernel) return KF_OK;
    const kf_cuda_device *device = kf_cuda(op->context);
    kf_cuda_linear a;
    KF_TRY(make_argument(op, workspace, &a));
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
        KF_TRY(launch_prepare(device, plan->x_form,
                              divide_up(a.T, KF_TILE_N) * (KF_TILE_N / KF_OCTET) * plan->row_blocks, &a,
                              "linear: launch of x's packing"));
    const bool stream = plan->kernel->kind == KF_CUDA_STREAM;
    const kf_cuda_launch_shape shape = {.blocks = plan->grid,
                                        .threads = stream ? plan->slices * 32 : KF_TILE_THREADS,
                                        .shared = plan->shared,
                                        .dependent = true};
    return kf_cuda_launch(device, plan->kernel->function, &shape, &a, "linear: launch");
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
