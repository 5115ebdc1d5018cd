// SPDX-License-Identifier: Apache-2.0
//
// The host's side of softmax, rmsnorm, swiglu, merge_states and embedding: which kernel, how rows are dealt out to threads,
// and the launch. The plan decides by shape and dtypes alone and loads every kernel that a binding may want; whether the
// tensors at hand allow 16-byte accesses is seen at the launch.
#include "cuda/rows_host.h"

#include <string.h>

kf_static_assert(KF_ROW_F32 == (int)KF_TYPE_F32 && KF_ROW_F16 == (int)KF_TYPE_F16 && KF_ROW_BF16 == (int)KF_TYPE_BF16,
                 "the kernels' names of dtypes");

enum { WARP = 32 };

// ------------------------------------------------------------------------------------------------------------- tensors

bool kf_cuda_aligned(const kf_view *view, int dims) {
    const int64_t size = kf_type_size(view->type);
    bool aligned = (uintptr_t)view->data % KF_CUDA_CHUNK == 0;
    for (int i = 0; i < dims; i++) aligned &= view->stride[i] * size % KF_CUDA_CHUNK == 0;
    return aligned;
}

// A view of the struct's rows: `from` without its first `skip` dimensions.
typedef struct rows_source {
    const kf_view *from;
    int skip;
} rows_source;

// Fills shape and views. Neighbouring dimensions that lie one in the other in every tensor become one.
static void describe_rows(kf_cuda_rows *r, kf_cuda_rows_view *views, const rows_source *source, int count, int outer,
                          const int64_t *shape) {
    int dims = 0;
    for (int v = 0; v < count; v++) {
        const kf_view *from = source[v].from;
        views[v] = (kf_cuda_rows_view){.data = kf_present(from) ? from->data : NULL, .type = from->type};
        views[v].size = kf_present(from) ? (int32_t)kf_type_size(from->type) : 0;
    }
    for (int i = 0; i < outer; i++) {
        bool inside = dims > 0;
        for (int v = 0; v < count; v++)
            inside &= !dims || views[v].stride[dims - 1] ==
                                   source[v].from->stride[source[v].skip + i] * views[v].size * shape[i];
        const int at = shape[i] == 1 ? -1 : inside ? dims - 1 : dims++;
        if (at < 0) continue;
        r->shape[at] = (uint32_t)shape[i] * (inside ? r->shape[at] : 1);
        for (int v = 0; v < count; v++)
            views[v].stride[at] = source[v].from->stride[source[v].skip + i] * views[v].size;
    }
    r->dims = dims ? dims : 1;
    if (!dims) r->shape[0] = 1;
}

// The dtype that all present ones of the views have, 0: none.
static int common_type(const kf_view *const *views, int count) {
    int type = views[0]->type;
    for (int v = 1; v < count; v++)
        if (kf_present(views[v]) && views[v]->type != type) type = 0;
    return type;
}

static bool all_aligned(const kf_view *const *views, int count, int64_t n, int type) {
    bool aligned = type != 0 && n * kf_type_size(type) % KF_CUDA_CHUNK == 0;
    for (int v = 0; v < count; v++)
        if (kf_present(views[v])) aligned &= kf_cuda_aligned(views[v], views[v]->ndim - 1);
    return aligned;
}

static int64_t step_of(int type) { return type == KF_TYPE_F32 ? 4 : KF_ROWS_SINGLES; }

// ------------------------------------------------------------------------------------------------------------- kernels

const kf_cuda_rows_kernel *kf_cuda_rows_find(const kf_cuda_rows_kernel *table, int type, int chunks) {
    for (; table->function; table++)
        if (table->type == type && (!chunks || table->chunks == chunks)) return table;
    return NULL;
}

kf_status kf_cuda_rows_prepare(const kf_context *context, const kf_cuda_rows_kernel *kernel, int32_t shared,
                               const char *what) {
    return kf_cuda_prepare_kernel(kf_cuda(context), kernel->function, shared, what);
}

kf_status kf_cuda_rows_check_blocks(const char *op, int64_t blocks) {
    if (blocks <= INT32_MAX) return KF_OK;
    return kf_fail(KF_UNSUPPORTED, "%s: %lld thread blocks; the cuda backend allows 2^31 - 1", op, (long long)blocks);
}

// Row arithmetic on the device is 32-bit; addresses are not.
static kf_status check_rows(const char *op, int64_t rows) {
    if (rows <= INT32_MAX) return KF_OK;
    return kf_fail(KF_UNSUPPORTED, "%s: %lld rows; the cuda backend allows 2^31 - 1", op, (long long)rows);
}

// How rows of n elements are dealt out, and what the kernel at hand likes best.
typedef struct deal {
    int32_t group, cluster, chunks;
} deal;
typedef struct taste {
    int32_t chunks, most; // that a thread keeps; more, up to `most`, where a block of `threads` does not suffice
    int32_t threads;      // of a block; KF_ROWS_BLOCK where even `most` chunks do not
    // Where blocks of a cluster share what is longer still, in the place of `most` and `threads`; 0: they do not.
    int32_t shared_most, shared_threads;
} taste;

// Chosen by the row's length alone, so that a row's bits do not depend on how many there are. false: too long for registers.
static bool deal_rows(const kf_cuda_device *device, int64_t n, int64_t step, const taste *like, deal *d) {
    const int64_t steps = n > 0 ? kf_cuda_divide_up(n, step) : 1;
    *d = (deal){.cluster = 1, .chunks = like->chunks};
    if (steps <= WARP * like->chunks) { // a warp, or a part of it
        d->group = 1;
        while (d->group < WARP && d->group < steps) d->group *= 2;
        d->chunks = steps <= WARP ? 1 : steps <= 2 * WARP ? 2 : KF_ROWS_CHUNKS;
        return true;
    }
    const bool shared = like->shared_most > 0 && kf_cuda_is_hopper(device);
    const int32_t most = shared ? like->shared_most : like->most, many = shared ? like->shared_threads : like->threads;
    while (d->chunks < most && steps > (int64_t)many * d->chunks) d->chunks *= 2;
    int64_t threads = kf_cuda_divide_up(steps, d->chunks);
    while (shared && d->cluster < KF_ROWS_CLUSTER && kf_cuda_divide_up(threads, d->cluster) > KF_ROWS_BLOCK)
        d->cluster *= 2;
    threads = kf_cuda_divide_up(threads, d->cluster);
    d->group = (int32_t)(kf_cuda_divide_up(threads, WARP) * WARP);
    return threads <= KF_ROWS_BLOCK;
}

// Rows of a block.
static int64_t rows_together(const deal *d) { return d->group <= WARP ? KF_ROWS_THREADS / d->group : 1; }

static int64_t blocks_of(const deal *d, int64_t rows) { return kf_cuda_divide_up(rows, rows_together(d)) * d->cluster; }

// Loads what rows dealt out like this want of a table.
static kf_status prepare_rows(const kf_op *op, const char *name, const kf_cuda_rows_kernel *table, int type,
                              const deal *d, int64_t rows) {
    KF_TRY(kf_cuda_rows_check_blocks(name, blocks_of(d, rows)));
    return kf_cuda_rows_prepare(op->context, kf_cuda_rows_find(table, type, d->chunks), 0, name);
}

static void set_rows(kf_cuda_rows *r, const deal *d, int64_t rows, int64_t n) {
    r->rows = (uint32_t)rows, r->n = n;
    r->group = d->group, r->cluster = d->cluster;
    r->shift = d->group <= WARP ? 0 : -1;
    while (d->group <= WARP && 1 << r->shift < d->group) r->shift++;
}

static kf_status launch_rows(const kf_op *op, const kf_cuda_rows_kernel *table, int type, const deal *d, int64_t rows,
                             const void *argument, const char *what) {
    const kf_cuda_launch_shape shape = {.blocks = blocks_of(d, rows),
                                        .threads = (int32_t)rows_together(d) * d->group,
                                        .cluster = d->cluster,
                                        .dependent = true};
    return kf_cuda_launch(kf_cuda(op->context), kf_cuda_rows_find(table, type, d->chunks)->function, &shape, argument,
                          what);
}

kf_status kf_cuda_rows_launch(const kf_op *op, const kf_cuda_rows_kernel *kernel, int64_t blocks, const void *argument,
                              const char *what) {
    const kf_cuda_launch_shape shape = {.blocks = blocks, .threads = kernel->threads, .dependent = true};
    return kf_cuda_launch(kf_cuda(op->context), kernel->function, &shape, argument, what);
}

// ------------------------------------------------------------------------------------------------------------- softmax

typedef struct softmax_plan {
    int64_t segment; // of rows that registers do not hold; 0: they do
    int64_t segments;
} softmax_plan;
kf_static_assert(sizeof(softmax_plan) <= sizeof((kf_plan *)0)->word, "the plan's words hold it");

enum {
    SEGMENT_UNIT = 8192,        // elements that a block of the long kernels takes at a time (fp32: in two steps)
    FIXED_SEGMENT = 65536,      // where the context asks for one length
    SEGMENTS_PER_PROCESSOR = 4, // blocks that share a multiprocessor
};

// Of the kernels of any dtypes and of those of one. 32 elements a thread (fp32: 16), for an exponential takes as long as its
// bytes: with fewer, more threads wait for a row's end. From 8192 elements on (fp32: 4096) a thread keeps twice as many, as they
// were read, before a block has more threads, and these before blocks share a row.
enum { SOFTMAX_THREADS = 256 };
static const taste softmax_tastes[2] = {{.chunks = KF_ROWS_CHUNKS, .most = KF_ROWS_CHUNKS, .threads = SOFTMAX_THREADS},
                                        {.chunks = KF_ROWS_CHUNKS,
                                         .most = KF_ROWS_WIDE,
                                         .threads = SOFTMAX_THREADS,
                                         .shared_most = KF_ROWS_WIDE,
                                         .shared_threads = SOFTMAX_THREADS}};

static int softmax_type(const kf_softmax_problem *p) { return common_type((const kf_view *const[]){&p->x, &p->y}, 2); }

static void cut_long_rows(const kf_op *op, softmax_plan *plan) {
    const kf_softmax_problem *p = &op->problem.softmax;
    const int64_t units = kf_cuda_divide_up(p->options.n, SEGMENT_UNIT);
    int64_t wanted = kf_cuda_divide_up(SEGMENTS_PER_PROCESSOR * kf_cuda(op->context)->multiprocessors, p->options.rows);
    if (wanted > units) wanted = units;
    plan->segment = op->context->info.fixed_split ? FIXED_SEGMENT : kf_cuda_divide_up(units, wanted) * SEGMENT_UNIT;
    plan->segments = kf_cuda_divide_up(p->options.n, plan->segment);
}

// Long rows of which there are so few that x stays in L2 are read twice: that spreads them over all multiprocessors. (Not
// where a row's bits must not depend on their number.)
static bool better_in_segments(const kf_op *op, const deal *d) {
    const kf_softmax_problem *p = &op->problem.softmax;
    const bool long_row = (int64_t)d->chunks * d->group * d->cluster > KF_ROWS_CHUNKS * KF_ROWS_BLOCK;
    return long_row && !op->context->info.fixed_split &&
           p->options.rows * p->options.n * kf_type_size(p->x.type) <= kf_cuda(op->context)->l2_bytes / 2;
}

// Whether kernels of this dtype (0: any) keep a row in registers, and how it is dealt out then.
static bool softmax_in_registers(const kf_op *op, int type, deal *d) {
    const taste *like = &softmax_tastes[type ? 1 : 0];
    return deal_rows(kf_cuda(op->context), op->problem.softmax.options.n, step_of(type), like, d) &&
           !better_in_segments(op, d);
}

// Where rows do not stay in registers: their segments.
static kf_status prepare_segments(kf_op *op, int type) {
    softmax_plan *plan = (softmax_plan *)op->plan.word;
    const int64_t rows = op->problem.softmax.options.rows;
    cut_long_rows(op, plan);
    op->plan.shared_bytes = (size_t)(rows * plan->segments) * 2 * sizeof(float);
    KF_TRY(kf_cuda_rows_check_blocks("softmax", rows * plan->segments));
    KF_TRY(kf_cuda_rows_prepare(op->context, kf_cuda_rows_find(kf_cuda_softmax_state_kernels, type, 0), 0, "softmax"));
    return kf_cuda_rows_prepare(op->context, kf_cuda_rows_find(kf_cuda_softmax_apply_kernels, type, 0), 0, "softmax");
}

static kf_status plan_softmax(kf_op *op) {
    const kf_softmax_problem *p = &op->problem.softmax;
    const int types[2] = {0, softmax_type(p)};
    op->plan.phases = 1;
    if (p->options.rows == 0) return KF_OK;
    KF_TRY(check_rows("softmax", p->options.rows));
    for (int i = 0; i < (types[1] ? 2 : 1); i++) {
        deal d;
        if (softmax_in_registers(op, types[i], &d))
            KF_TRY(prepare_rows(op, "softmax", kf_cuda_softmax_kernels, types[i], &d, p->options.rows));
        else
            KF_TRY(prepare_segments(op, types[i]));
    }
    return KF_OK;
}

kf_status kf_cuda_softmax_launch(const kf_op *op, char *workspace) {
    const kf_softmax_problem *p = &op->problem.softmax;
    const softmax_plan *plan = (const softmax_plan *)op->plan.word;
    const kf_view *const views[] = {&p->x, &p->y};
    if (p->options.rows == 0) return KF_OK;
    kf_cuda_softmax a = {.segment = plan->segment, .segments = (int32_t)plan->segments};
    const rows_source source[] = {{&p->x, 0}, {&p->y, 0}, {&p->lse, 0}};
    describe_rows(&a.rows, a.view, source, 3, p->x.ndim - 1, p->x.shape);
    const int same = softmax_type(p), type = all_aligned(views, 2, p->options.n, same) ? same : 0;
    deal d;
    const bool in_registers = softmax_in_registers(op, type, &d);
    set_rows(&a.rows, &d, p->options.rows, p->options.n);
    if (in_registers) return launch_rows(op, kf_cuda_softmax_kernels, type, &d, p->options.rows, &a, "softmax: launch");
    a.states = (float *)(void *)workspace;
    const int64_t blocks = p->options.rows * plan->segments;
    KF_TRY(kf_cuda_rows_launch(op, kf_cuda_rows_find(kf_cuda_softmax_state_kernels, type, 0), blocks, &a,
                               "softmax: launch of the states"));
    return kf_cuda_rows_launch(op, kf_cuda_rows_find(kf_cuda_softmax_apply_kernels, type, 0), blocks, &a,
                               "softmax: launch");
}

// ------------------------------------------------------------------------------------------------------------- rmsnorm

enum { RMSNORM_VIEWS = 4 };

// As few chunks a thread as a block allows: a row then takes the least time, and a multiprocessor holds many threads. On
// Hopper a second chunk comes before more threads: 64 rows of 4096 take 2 % longer, 32768 1.5 % less.
// Longer rows of one dtype are shared by the blocks of a cluster, rather than that a thread keeps four chunks: their registers
// would leave a multiprocessor one block.
enum { RMSNORM_THREADS = 256 };
static const taste rmsnorm_tastes[2] = {{.chunks = 1, .most = KF_ROWS_CHUNKS, .threads = KF_ROWS_BLOCK},
                                        {.chunks = 1,
                                         .most = KF_ROWS_CHUNKS,
                                         .threads = KF_ROWS_BLOCK,
                                         .shared_most = KF_RMSNORM_SHARED,
                                         .shared_threads = RMSNORM_THREADS}};

// The dtype of all tensors. y may be of 16 bits beside others in fp32: so a model rounds what its products read and keeps its
// residual stream.
static int rmsnorm_type(const kf_rmsnorm_problem *p) {
    const int type = common_type((const kf_view *const[]){&p->x, &p->residual, &p->sum, &p->weight}, RMSNORM_VIEWS);
    return type == p->y.type || type == KF_TYPE_F32 ? type : 0;
}

static bool deal_rmsnorm(const kf_op *op, int type, deal *d) {
    return deal_rows(kf_cuda(op->context), op->problem.rmsnorm.options.n, step_of(type), &rmsnorm_tastes[type ? 1 : 0],
                     d);
}

static kf_status plan_rmsnorm(kf_op *op) {
    const kf_rmsnorm_problem *p = &op->problem.rmsnorm;
    const int types[2] = {0, rmsnorm_type(p)};
    op->plan.phases = 1;
    if (p->options.rows == 0 || p->options.n == 0) return KF_OK;
    KF_TRY(check_rows("rmsnorm", p->options.rows));
    for (int i = 0; i < (types[1] ? 2 : 1); i++) {
        deal d;
        if (deal_rmsnorm(op, types[i], &d))
            KF_TRY(prepare_rows(op, "rmsnorm", kf_cuda_rmsnorm_kernels, types[i], &d, p->options.rows));
        else
            KF_TRY(kf_cuda_rows_prepare(op->context, kf_cuda_rmsnorm_long_kernels, 0, "rmsnorm"));
    }
    return KF_OK;
}

kf_status kf_cuda_rmsnorm_launch(const kf_op *op, char *workspace) {
    const kf_rmsnorm_problem *p = &op->problem.rmsnorm;
    const kf_view *const views[] = {&p->x, &p->residual, &p->y, &p->sum, &p->weight};
    (void)workspace;
    if (p->options.rows == 0 || p->options.n == 0) return KF_OK;
    kf_cuda_rmsnorm a = {.weight = p->weight.data,
                         .weight_type = p->weight.type,
                         .weight_size = (int32_t)kf_type_size(p->weight.type),
                         .cast = p->options.cast,
                         .eps = p->options.eps,
                         .weight_offset = p->options.weight_offset,
                         .inverse_n = 1.0f / (float)p->options.n};
    const rows_source source[RMSNORM_VIEWS] = {{&p->x, 0}, {&p->residual, 0}, {&p->y, 0}, {&p->sum, 0}};
    describe_rows(&a.rows, a.view, source, RMSNORM_VIEWS, p->x.ndim - 1, p->x.shape);
    const int same = rmsnorm_type(p), type = all_aligned(views, RMSNORM_VIEWS + 1, p->options.n, same) ? same : 0;
    deal d;
    const bool is_long = !deal_rmsnorm(op, type, &d);
    set_rows(&a.rows, &d, p->options.rows, p->options.n);
    if (is_long) return kf_cuda_rows_launch(op, kf_cuda_rmsnorm_long_kernels, p->options.rows, &a, "rmsnorm: launch");
    return launch_rows(op, kf_cuda_rmsnorm_kernels, type, &d, p->options.rows, &a, "rmsnorm: launch");
}

// -------------------------------------------------------------------------------------------------------------- swiglu

// Elements that a thread moves at a time: a chunk, or one.
static int64_t swiglu_step(int type) { return type ? step_of(type) : 1; }

static const kf_cuda_rows_kernel *swiglu_kernel(int type) { return kf_cuda_rows_find(kf_cuda_swiglu_kernels, type, 0); }

static int64_t swiglu_blocks(const kf_cuda_rows_kernel *kernel, int64_t total) {
    return kf_cuda_divide_up(total, (int64_t)kernel->threads * kernel->chunks);
}

static int swiglu_type(const kf_swiglu_problem *p) { return common_type((const kf_view *const[]){&p->gate, &p->y}, 2); }

static kf_status plan_swiglu(kf_op *op) {
    const kf_swiglu_problem *p = &op->problem.swiglu;
    const int type = swiglu_type(p);
    op->plan.phases = 1;
    if (p->options.rows == 0 || p->options.n == 0) return KF_OK;
    // Counted in 32 bits by the kernel of any dtypes, with what its last block has beyond the end.
    const kf_cuda_rows_kernel *any = swiglu_kernel(0);
    if (p->options.rows > (UINT32_MAX - (int64_t)any->threads * any->chunks) / p->options.n)
        return kf_fail(KF_UNSUPPORTED,
                       "swiglu: %lld rows of %lld elements; the cuda backend allows fewer than 2^32 - 2^11",
                       (long long)p->options.rows, (long long)p->options.n);
    if (type) KF_TRY(kf_cuda_rows_prepare(op->context, swiglu_kernel(type), 0, "swiglu"));
    return kf_cuda_rows_prepare(op->context, swiglu_kernel(0), 0, "swiglu");
}

// Whether all rows together are one long row in each tensor.
static bool is_flat(const kf_cuda_rows *r, const kf_cuda_rows_view *views, int count, int64_t n) {
    bool flat = r->dims == 1;
    for (int v = 0; v < count; v++) flat &= r->shape[0] == 1 || views[v].stride[0] == n * views[v].size;
    return flat;
}

kf_status kf_cuda_swiglu_launch(const kf_op *op, char *workspace) {
    const kf_swiglu_problem *p = &op->problem.swiglu;
    const kf_view *const views[] = {&p->gate, &p->up, &p->y};
    (void)workspace;
    if (p->options.rows == 0 || p->options.n == 0) return KF_OK;
    const int same = swiglu_type(p), type = all_aligned(views, 3, p->options.n, same) ? same : 0;
    kf_cuda_swiglu a = {.chunks = (uint32_t)(p->options.n / swiglu_step(type))};
    a.total = a.chunks * (uint32_t)p->options.rows;
    const rows_source source[] = {{&p->gate, 0}, {&p->up, 0}, {&p->y, 0}};
    describe_rows(&a.rows, a.view, source, 3, p->y.ndim - 1, p->y.shape);
    a.flat = is_flat(&a.rows, a.view, 3, p->options.n);
    const kf_cuda_rows_kernel *kernel = swiglu_kernel(type);
    return kf_cuda_rows_launch(op, kernel, swiglu_blocks(kernel, a.total), &a, "swiglu: launch");
}

// --------------------------------------------------------------------------------------------------------- merge_states

static int64_t pieces_of(int64_t n) { return kf_cuda_divide_up(n, KF_ROWS_SINGLES); }

static int64_t merge_total(const kf_merge_states_problem *p) {
    // A row without elements still has a log-sum-exp.
    return p->options.rows * (p->options.n ? pieces_of(p->options.n) : 1);
}

// Pieces are counted in 32 bits.
static kf_status check_pieces(const char *op, int64_t pieces) {
    if (pieces <= INT32_MAX) return KF_OK;
    return kf_fail(KF_UNSUPPORTED, "%s: the output has %lld pieces of 8 elements; the cuda backend allows 2^31 - 1", op,
                   (long long)pieces);
}

static kf_status plan_merge_states(kf_op *op) {
    op->plan.phases = 1;
    KF_TRY(check_pieces("merge_states", merge_total(&op->problem.merge_states)));
    return kf_cuda_rows_prepare(op->context, kf_cuda_merge_states_kernels, 0, "merge_states");
}

kf_status kf_cuda_merge_states_launch(const kf_op *op, char *workspace) {
    const kf_merge_states_problem *p = &op->problem.merge_states;
    const kf_cuda_rows_kernel *kernel = kf_cuda_merge_states_kernels;
    (void)workspace;
    if (p->options.rows == 0) return KF_OK;
    kf_cuda_merge_states a = {.part_stride = p->o_parts.stride[0] * kf_type_size(p->o_parts.type),
                              .lse_stride = p->lse_parts.stride[0] * (int64_t)sizeof(float),
                              .parts = p->options.parts,
                              .total = (uint32_t)merge_total(p)};
    a.chunks = a.total / (uint32_t)p->options.rows;
    a.aligned = p->options.n > 0 && p->options.n % KF_ROWS_SINGLES == 0 &&
                kf_cuda_aligned(&p->o_parts, p->o_parts.ndim - 1) && kf_cuda_aligned(&p->o, p->o.ndim - 1);
    a.rows.rows = (uint32_t)p->options.rows, a.rows.n = p->options.n;
    const rows_source source[] = {{&p->o_parts, 1}, {&p->lse_parts, 1}, {&p->o, 0}, {&p->lse, 0}};
    describe_rows(&a.rows, a.view, source, 4, p->o.ndim - 1, p->o.shape);
    return kf_cuda_rows_launch(op, kernel, kf_cuda_divide_up(a.total, kernel->threads), &a, "merge_states: launch");
}

// ----------------------------------------------------------------------------------------------------------- embedding

static int64_t embedding_total(const kf_embedding_problem *p) { return p->options.T * pieces_of(p->options.N); }

static kf_status plan_embedding(kf_op *op) {
    op->plan.phases = 1;
    KF_TRY(check_pieces("embedding", embedding_total(&op->problem.embedding)));
    return kf_cuda_rows_prepare(op->context, kf_cuda_embedding_kernels, 0, "embedding");
}

// Rows of a dense table are loaded by elements; blocks by bytes.
static kf_status check_table(const kf_weight *table) {
    const int64_t size = kf_block_quantised(table->type) ? 1 : kf_block_bytes(table->type);
    if ((uintptr_t)table->data % (uintptr_t)size == 0 && table->row_bytes % size == 0) return KF_OK;
    return kf_fail(
        KF_INVALID_ARGUMENT,
        "embedding: the table is at %p, its rows %lld bytes apart; both must be multiples of an element's %d",
        table->data, (long long)table->row_bytes, (int)size);
}

kf_status kf_cuda_embedding_launch(const kf_op *op, char *workspace) {
    const kf_embedding_problem *p = &op->problem.embedding;
    const kf_cuda_rows_kernel *kernel = kf_cuda_embedding_kernels;
    (void)workspace;
    if (embedding_total(p) == 0) return KF_OK;
    KF_TRY(check_table(&p->table));
    const bool aligned_table = kf_block_quantised(p->table.type) || ((uintptr_t)p->table.data % KF_CUDA_CHUNK == 0 &&
                                                                     p->table.row_bytes % KF_CUDA_CHUNK == 0);
    const kf_cuda_embedding a = {
        .table = p->table.data,
        .ids = p->ids.data,
        .y = p->y.data,
        .rows = p->table.rows,
        .row_bytes = p->table.row_bytes,
        .y_stride = p->y.stride[0] * kf_type_size(p->y.type),
        .id_stride = p->ids.stride[0] * kf_type_size(p->ids.type),
        .N = p->options.N,
        .chunks = (uint32_t)pieces_of(p->options.N),
        .total = (uint32_t)embedding_total(p),
        .type = p->table.type,
        .block_bytes = kf_block_bytes(p->table.type),
        .block_values = kf_block_values(p->table.type),
        .y_type = p->y.type,
        .ids_wide = p->ids.type == KF_TYPE_I64,
        .aligned = aligned_table && p->options.N % KF_ROWS_SINGLES == 0 && kf_cuda_aligned(&p->y, 1),
        .scale = p->options.scale,
    };
    return kf_cuda_rows_launch(op, kernel, kf_cuda_divide_up(a.total, kernel->threads), &a, "embedding: launch");
}

const kf_backend_op kf_cuda_softmax_op = {.plan = plan_softmax};
const kf_backend_op kf_cuda_rmsnorm_op = {.plan = plan_rmsnorm};
const kf_backend_op kf_cuda_swiglu_op = {.plan = plan_swiglu};
const kf_backend_op kf_cuda_merge_states_op = {.plan = plan_merge_states};
const kf_backend_op kf_cuda_embedding_op = {.plan = plan_embedding};

// ------------------------------------------------------------------------------------------------------------- support

bool kf_cuda_rows_support(int32_t index, kf_support_row *row) {
    static const struct {
        kf_op_kind kind;
        const kf_cuda_rows_kernel *table;
    } tables[] = {
        {KF_OP_SOFTMAX, kf_cuda_softmax_kernels},       {KF_OP_SOFTMAX, kf_cuda_softmax_state_kernels},
        {KF_OP_SOFTMAX, kf_cuda_softmax_apply_kernels}, {KF_OP_MERGE_STATES, kf_cuda_merge_states_kernels},
        {KF_OP_RMSNORM, kf_cuda_rmsnorm_kernels},       {KF_OP_RMSNORM, kf_cuda_rmsnorm_long_kernels},
        {KF_OP_SWIGLU, kf_cuda_swiglu_kernels},         {KF_OP_ROPE, kf_cuda_rope_kernels},
        {KF_OP_KV_APPEND, kf_cuda_kv_append_kernels},   {KF_OP_EMBEDDING, kf_cuda_embedding_kernels},
    };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        for (const kf_cuda_rows_kernel *kernel = tables[i].table; kernel->function; kernel++) {
            // Those that differ in the number of chunks alone are one row.
            if ((kernel > tables[i].table && kernel->type == kernel[-1].type) || index-- > 0) continue;
            row->kind = tables[i].kind;
            row->backend = "cuda";
            row->isa = 0;
            row->dtypes = kernel->type                        ? kf_type_name(kernel->type)
                          : tables[i].kind == KF_OP_EMBEDDING ? "fp32 fp16 bf16, GGUF's blocks"
                                                              : "fp32 fp16 bf16";
            row->notes = kernel->name;
            return true;
        }
    return false;
}
