// SPDX-License-Identifier: Apache-2.0
//
// The plan of an attention on CUDA, on machines without a device: that the table of kernels has one for every head dimension and type within
// the shared memory of every architecture, that the work items cover the keys, which kernel a call's additions lead to, and what is
// launched. src/cuda/attention.c is compiled into this test; launches end in a stand-in, which keeps them. What the kernels compute,
// verify asks on a device.
#if KF_HAVE_CUDA
// The stand-ins have names of their own: the library is linked too.
#define kf_cuda_attention_op planned_attention_op
#define kf_cuda_attention_launch planned_attention_launch
#define kf_cuda_attention_support planned_attention_support
#define kf_cuda_prepare_kernel stand_in_prepare_kernel
#define kf_cuda_cluster_room stand_in_cluster_room
#define kf_cuda_enter stand_in_enter
#define kf_cuda_leave stand_in_leave
#define kf_cuda_launch stand_in_launch
#define KF_TUNE 0
#include "cuda/attention.c"
#include "cuda/tiles.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

// ---- the stand-in ----

enum { KILOBYTE = 1024, CONSUMER = 99 * KILOBYTE, MOST_LAUNCHES = 4, MOST_THREADS = 1024, MOST_PREPARED = 8 };

static kf_cuda_device device;
static kf_context context;
static int cluster_room; // what the driver would say
static int launched;
static const void *prepared[MOST_PREPARED]; // since the last plan began
static int prepared_count;

static bool is_prepared(const void *function) {
    for (int i = 0; i < prepared_count; i++)
        if (prepared[i] == function) return true;
    return false;
}
static struct {
    const void *function;
    kf_cuda_launch_shape shape;
    kf_cuda_attention argument;
} launches[MOST_LAUNCHES];

kf_status kf_cuda_enter(const kf_cuda_device *of, int *before) {
    assert_ptr_equal(of, &device);
    *before = 0;
    return KF_OK;
}
void kf_cuda_leave(const kf_cuda_device *of, int before) { assert_true(of == &device && before == 0); }
kf_status kf_cuda_prepare_kernel(const kf_cuda_device *of, const void *function, int32_t shared, const char *what) {
    assert_true(of == &device);
    (void)what;
    assert_non_null(function);
    assert_in_range(shared, 0, device.shared_limit);
    assert_in_range(prepared_count, 0, MOST_PREPARED - 1);
    prepared[prepared_count++] = function;
    return KF_OK;
}
int kf_cuda_cluster_room(const void *function, int32_t threads, int32_t shared, int32_t cluster) {
    (void)function, (void)threads, (void)shared, (void)cluster;
    return cluster_room;
}
kf_status kf_cuda_launch(const kf_cuda_device *of, const void *function, const kf_cuda_launch_shape *shape,
                         const void *argument, const char *what) {
    (void)what;
    assert_ptr_equal(of, &device);
    assert_in_range(launched, 0, MOST_LAUNCHES - 1);
    assert_in_range(shape->blocks, 1, INT32_MAX);
    assert_in_range(shape->threads, 1, MOST_THREADS);
    assert_in_range(shape->shared, 0, device.shared_limit);
    assert_in_range(shape->cluster, 0, kf_cuda_is_hopper(&device) ? MOST_CLUSTER : 1);
    if (shape->cluster > 1) assert_int_equal(shape->blocks % shape->cluster, 0);
    assert_true(is_prepared(function));
    launches[launched].function = function;
    launches[launched].shape = *shape;
    memcpy(&launches[launched].argument, argument, sizeof launches[launched].argument);
    launched++;
    return KF_OK;
}

static kf_status run(const kf_context *of, kf_op *const *ops, int64_t count, char *workspace) {
    (void)of;
    launched = 0;
    for (int64_t i = 0; i < count; i++) KF_TRY(kf_cuda_attention_launch(ops[i], workspace));
    return KF_OK;
}

static const kf_backend backend = {.name = "cuda", .ops = {[KF_OP_ATTENTION] = &kf_cuda_attention_op}, .run = run};

// An H200, held to an architecture.
static void be(int arch) {
    device = (kf_cuda_device){.arch = arch, .multiprocessors = 132, .l2_bytes = 60 << 20};
    device.shared_limit = arch == 80 ? 163 * KILOBYTE : arch == 90 ? 227 * KILOBYTE : CONSUMER;
    context = (kf_context){.backend = &backend, .device = &device, .info = {.threads = 1}};
    context.info.device.type = KF_DEVICE_CUDA;
    cluster_room = 1 << 20;
}

// ---- calls ----

typedef struct call {
    kf_attention_args args;
    kf_tensor q, k, v, o, more;
    int64_t q_shape[4], k_shape[4], v_shape[4], o_shape[4], more_shape[4];
} call;

// Addresses that nobody reads, so far from each other that no two tensors meet.
static void *address(int number) { return (void *)((uintptr_t)number << 44); }

static const kf_dtype types[] = {KF_BF16, KF_FP16, KF_FP32};
enum { TYPES = sizeof types / sizeof *types };

static void set_tensor(kf_tensor *t, int number, kf_dtype dtype, int ndim, const int64_t *shape) {
    *t = (kf_tensor){
        .data = address(number), .device = {KF_DEVICE_CUDA, 0}, .ndim = ndim, .dtype = dtype, .shape = shape};
}

static void make_call(call *c, kf_dtype dtype, int64_t B, int64_t H, int64_t Hkv, int64_t Nq, int64_t Nk, int64_t D,
                      int64_t Dv) {
    const int64_t shapes[4][4] = {{B, H, Nq, D}, {B, Hkv, Nk, D}, {B, Hkv, Nk, Dv}, {B, H, Nq, Dv}};
    int64_t *const to[4] = {c->q_shape, c->k_shape, c->v_shape, c->o_shape};
    for (int i = 0; i < 4; i++) memcpy(to[i], shapes[i], sizeof shapes[i]);
    set_tensor(&c->q, 1, dtype, 4, c->q_shape), set_tensor(&c->k, 2, dtype, 4, c->k_shape);
    set_tensor(&c->v, 3, dtype, 4, c->v_shape), set_tensor(&c->o, 4, dtype, 4, c->o_shape);
    kf_attention_args_init(&c->args);
    c->args.q = &c->q, c->args.k = &c->k, c->args.v = &c->v, c->args.o = &c->o;
}

static kf_op *planned(const call *c) {
    kf_op *op = NULL;
    prepared_count = 0;
    if (kf_op_create(&context, &c->args.head, &op) != KF_OK) fail_msg("%s", kf_last_error());
    return op;
}

static void run_op(kf_op *op) {
    size_t bytes = 0;
    assert_int_equal(kf_op_workspace_size(op, &bytes), KF_OK);
    if (kf_op_run(op, address(9), bytes) != KF_OK) fail_msg("%s", kf_last_error());
}

// ---- the tests ----

static void check_kernel(const kf_cuda_attention_kernel *kernel, int64_t D, int64_t Dv) {
    assert_non_null(kernel);
    assert_in_range(kernel->shared, 0, device.shared_limit);
    assert_in_range(kernel->arch_min, 80, device.arch);
    assert_true(kernel->D >= D && kernel->Dv >= Dv);
}

// The keys of the splits are all keys, once; the tiles of the lists all rows.
static void check_items(const kf_op *op) {
    const attention_plan *plan = plan_of(op);
    const struct kf_attention_options *n = &op->problem.attention.options;
    const int64_t rows = plan->plain->rows;
    size_t bytes = 0;
    assert_int_equal(plan->heads * (int64_t)plan->lists, n->B * n->H);
    assert_int_equal(plan->rows, plan->heads * n->Nq);
    assert_true(plan->tiles * rows >= plan->rows && (plan->tiles - 1) * rows < plan->rows);
    assert_int_equal(op->plan.items[0], (int64_t)plan->lists * plan->tiles * plan->splits);
    assert_true(plan->section >= 1 && plan->section <= plan->lists);
    assert_true((int64_t)plan->split * plan->splits >= n->Nk);
    assert_true(plan->cluster == 1 || plan->cluster == plan->splits);
    if (plan->splits == 1) return;
    assert_int_equal(plan->split % plan->plain->keys, 0);
    assert_int_equal(plan->split % plan->general->keys, 0);
    if (plan->cluster == 1) assert_true((int64_t)plan->split * (plan->splits - 1) < n->Nk);
    assert_int_equal(kf_op_workspace_size(op, &bytes), KF_OK);
    const size_t states = plan->cluster == 1 ? (size_t)plan->lists * (size_t)plan->rows * (size_t)plan->splits : 0;
    assert_true(bytes >= states * (size_t)(n->Dv + 2) * sizeof(float));
}

static void check_plan(const call *c) {
    kf_op *op = planned(c);
    const attention_plan *plan = plan_of(op);
    const int64_t D = c->q_shape[3], Dv = c->v_shape[3];
    check_kernel(plan->plain, D, Dv);
    check_kernel(plan->general, D, Dv);
    assert_int_equal(plan->general->rows, plan->plain->rows);
    if (plan->rotate) assert_true(plan->rotate->D >= D && plan->rotate->shared <= device.shared_limit);
    check_items(op);
    run_op(op);
    assert_true(launched >= 1);
    kf_op_destroy(op);
}

// With 99 KB of shared memory too, which is what consumer Ampere and Ada have.
static void every_head_dimension_has_kernels_on_every_architecture(void **state) {
    (void)state;
    static const int architectures[] = {80, 86, 89, 90, 100};
    static const int64_t queries[] = {1, 5, 40, 300};
    for (size_t a = 0; a < sizeof architectures / sizeof *architectures; a++) {
        be(architectures[a]);
        for (int type = 0; type < TYPES; type++)
            for (int64_t D = 8; D <= 256; D += 8)
                for (int64_t Dv = D < 72 ? 8 : D - 64; Dv <= 256; Dv += 56)
                    for (size_t q = 0; q < sizeof queries / sizeof *queries; q++) {
                        call c;
                        make_call(&c, types[type], 2, 4, 2, queries[q], 1000, D, Dv);
                        check_plan(&c);
                        c.args.flags = KF_ATTENTION_CAUSAL | KF_ATTENTION_ROPE_Q | KF_ATTENTION_ROPE_K;
                        c.args.rope.pairing = KF_ROPE_NEOX;
                        check_plan(&c);
                    }
    }
}

static void work_items_cover_rows_and_keys(void **state) {
    (void)state;
    static const int64_t sequences[] = {1, 3, 64}, keys[] = {1, 63, 64, 1000, 8192, 131072};
    static const int64_t rows[][3] = {{32, 8, 1}, {32, 32, 1}, {32, 1, 1}, {8, 8, 16}, {9, 3, 5}, {8, 8, 2048}};
    for (int held = 0; held < 2; held++)
        for (size_t s = 0; s < sizeof sequences / sizeof *sequences; s++)
            for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
                for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
                    for (int room = 0; room < 2; room++) {
                        call c;
                        be(held ? 86 : 90);
                        if (!room) cluster_room = 0;
                        make_call(&c, types[r % TYPES], sequences[s], rows[r][0], rows[r][1], rows[r][2], keys[k], 128,
                                  128);
                        check_plan(&c);
                        context.info.fixed_split = 1;
                        check_plan(&c);
                    }
}

// Parts of a prefill, some of which are not written, are merged by the kernel for many rows, which has room for few splits, or by the one that
// reads no part that nobody wrote.
static void a_prefill_is_merged_by_what_knows_its_gaps(void **state) {
    (void)state;
    be(90);
    static const struct { int64_t H, Hkv, Nq, Nk; } shapes[] = {{3, 1, 128, 1100}, {40, 40, 100, 1100}};
    for (int i = 0; i < 2; i++) {
        call c;
        make_call(&c, types[0], 1, shapes[i].H, shapes[i].Hkv, shapes[i].Nq, shapes[i].Nk, 64, 64);
        kf_op *op = planned(&c);
        const attention_plan *plan = plan_of(op);
        assert_int_equal(plan->plain->kind, KF_CUDA_PREFILL);
        assert_int_equal(plan->splits > FEW_SPLITS, i == 0);
        run_op(op);
        assert_int_equal(launched, 2);
        assert_ptr_equal(launches[1].function, kf_cuda_merge[i == 0 ? 2 : 1].function);
        kf_op_destroy(op);
    }
}

// A long decode is cut, into a cluster where the driver has room for them, else for a second kernel that merges. A short one is not.
static void a_decode_is_cut_and_merged(void **state) {
    (void)state;
    call c;
    be(90);
    make_call(&c, types[0], 1, 32, 8, 1, 2048, 128, 128);
    kf_op *op = planned(&c);
    run_op(op);
    assert_int_equal(launched, 1);
    assert_true(plan_of(op)->cluster > 1);
    assert_int_equal(launches[0].shape.cluster, plan_of(op)->cluster);
    assert_int_equal(launches[0].shape.blocks, op->plan.items[0]);
    assert_int_equal(op->plan.shared_bytes, 0);
    kf_op_destroy(op);

    cluster_room = 0;
    op = planned(&c);
    run_op(op);
    assert_int_equal(launched, 2);
    assert_true(plan_of(op)->splits > 1 && launches[0].shape.cluster == 1);
    assert_ptr_equal(launches[0].argument.part_o, address(9));
    assert_ptr_equal(launches[0].argument.part_state, (float *)address(9) + plan_of(op)->part_floats);
    assert_ptr_equal(launches[1].function, plan_of(op)->merge->function);
    assert_true(launches[0].shape.dependent && launches[1].shape.dependent);
    kf_op_destroy(op);

    make_call(&c, types[0], 1, 32, 8, 1, 16, 128, 128);
    op = planned(&c);
    run_op(op);
    assert_true(launched == 1 && plan_of(op)->splits == 1);
    kf_op_destroy(op);
}

// Threads of the kernel that a decode of `lists` lists of one row is planned for.
static int32_t threads_for(int arch, bool fixed_split, int64_t lists, int64_t keys) {
    call c;
    be(arch);
    context.info.fixed_split = fixed_split;
    make_call(&c, types[0], 1, lists, lists, 1, keys, 128, 128);
    kf_op *op = planned(&c);
    const int32_t threads = plan_of(op)->plain->threads;
    assert_int_equal(plan_of(op)->general->threads, 128);
    run_op(op);
    assert_int_equal(launches[0].shape.threads, threads);
    kf_op_destroy(op);
    return threads;
}

// Eight warps where nearly each of the 132 multiprocessors reads one unsplit list that is long.
static void full_lists_take_eight_warps(void **state) {
    (void)state;
    assert_int_equal(threads_for(90, false, 128, 8192), 256);
    assert_int_equal(threads_for(90, false, 132, 8192), 256);
    assert_int_equal(threads_for(90, false, 132, 1024), 256);
    assert_int_equal(threads_for(90, false, 132, 1023), 128);
    assert_int_equal(threads_for(90, false, 127, 8192), 128);
    assert_int_equal(threads_for(90, false, 133, 8192), 128);
    assert_int_equal(threads_for(90, true, 132, 1024), 128);
    assert_int_equal(threads_for(86, false, 132, 8192), 128);
    assert_int_equal(threads_for(80, false, 132, 8192), 128);
}

// Whether a decode whose keys turn is launched as the kernel that turns them in registers.
static bool turns_in_registers(int arch, bool fixed_split, kf_dtype dtype, int64_t heads, int64_t D, int32_t dims,
                               float softcap) {
    call c;
    be(arch);
    context.info.fixed_split = fixed_split;
    make_call(&c, dtype, 1, heads, 1, 1, 1000, D, D);
    c.args.flags = KF_ATTENTION_CAUSAL | KF_ATTENTION_ROPE_Q | KF_ATTENTION_ROPE_K;
    c.args.rope.pairing = KF_ROPE_NEOX, c.args.rope.dims = dims, c.args.softcap = softcap;
    kf_op *op = planned(&c);
    const attention_plan *plan = plan_of(op);
    run_op(op);
    bool turns = false;
    for (const kf_cuda_attention_kernel *row = kf_cuda_decode_turn; row->function; row++)
        turns |= launches[0].function == row->function;
    assert_ptr_equal(launches[0].function, turns ? plan->plain->function : plan->general->function);
    assert_int_equal(launches[0].shape.shared, turns ? plan->plain->shared : plan->general->shared);
    assert_true(launches[0].argument.unit == (turns ? 1.0f : KF_LOG2E));
    kf_op_destroy(op);
    return turns;
}

static void keys_that_turn_whole_have_kernels(void **state) {
    (void)state;
    for (int type = 0; type < 2; type++)
        for (int64_t D = 64; D <= 128; D += 64) {
            assert_true(turns_in_registers(90, false, types[type], 4, D, 0, 0));
            assert_true(turns_in_registers(90, true, types[type], 4, D, 0, 0));
            assert_true(turns_in_registers(80, false, types[type], 16, D, (int32_t)D, 0));
            assert_true(turns_in_registers(86, false, types[type], 4, D, 0, 0) == (D == 64)); // 102 KB
            assert_false(turns_in_registers(90, false, types[type], 4, D, 32, 0));
            assert_false(turns_in_registers(90, false, types[type], 4, D, 0, 30));
            assert_true(turns_in_registers(90, false, types[type], 24, D, 0, 0)); // two tiles of 16 rows
            assert_false(turns_in_registers(90, true, types[type], 24, D, 0, 0)); // one of 32
            assert_false(turns_in_registers(90, false, types[type], 4, D - 8, 0, 0));
        }
    call c;
    be(90);
    make_call(&c, types[0], 1, 4, 1, 1, 1000, 128, 128);
    c.args.flags = KF_ATTENTION_ROPE_Q, c.args.rope.pairing = KF_ROPE_NEOX;
    kf_op *op = planned(&c);
    assert_int_equal(plan_of(op)->keys_turn, 0);
    kf_op_destroy(op);
}

// With fixed_split what a sequence's sums are cut into is the same alone and among others.
static void a_fixed_split_knows_no_batch(void **state) {
    (void)state;
    static const int64_t queries[] = {1, 24, 200};
    be(90);
    context.info.fixed_split = 1;
    for (int type = 0; type < TYPES; type++)
        for (int q = 0; q < 3; q++) {
            call one, many;
            make_call(&one, types[type], 1, 8, 4, queries[q], 8192, 128, 128);
            make_call(&many, types[type], 64, 8, 4, queries[q], 8192, 128, 128);
            kf_op *a = planned(&one), *b = planned(&many);
            assert_ptr_equal(plan_of(a)->plain, plan_of(b)->plain);
            assert_ptr_equal(plan_of(a)->general, plan_of(b)->general);
            assert_int_equal(plan_of(a)->split, plan_of(b)->split);
            assert_int_equal(plan_of(a)->heads, plan_of(b)->heads);
            kf_op_destroy(a), kf_op_destroy(b);
        }
}

static void check_launched(call *c, bool general) {
    kf_op *op = planned(c);
    const attention_plan *plan = plan_of(op);
    assert_ptr_not_equal(plan->plain->function, plan->general->function);
    run_op(op);
    assert_ptr_equal(launches[0].function, general ? plan->general->function : plan->plain->function);
    assert_int_equal(launches[0].shape.shared, general ? plan->general->shared : plan->plain->shared);
    kf_op_destroy(op);
}

// What needs more than a scale of a score, and rows that are not aligned, take the general kernel; intervals of keys don't.
static void additions_take_the_general_kernel(void **state) {
    (void)state;
    const kf_dtype fp32 = KF_FP32, boolean = KF_BOOL, int32 = KF_INT32;
    for (int64_t Nq = 1; Nq <= 301; Nq += 300)
        for (int addition = 0; addition < 13; addition++) {
            call c;
            be(90);
            make_call(&c, types[0], 2, 8, 8, Nq, 512, 128, 128);
            const int64_t of_heads[4] = {8}, of_scores[4] = {1, 1, 1, 512}, of_sequences[4] = {2}, of_rows[4] = {2, Nq};
            c.args.flags = addition == 1   ? KF_ATTENTION_CAUSAL
                           : addition == 2 ? KF_ATTENTION_WINDOW_LEFT | KF_ATTENTION_WINDOW_RIGHT
                                           : 0;
            if (addition == 3) set_tensor(&c.more, 5, int32, 1, of_sequences), c.args.key_lengths = &c.more;
            if (addition == 4) set_tensor(&c.more, 5, int32, 2, of_rows), c.args.positions = &c.more;
            if (addition == 5) set_tensor(&c.more, 5, fp32, 1, of_heads), c.args.sinks = &c.more;
            if (addition == 6) set_tensor(&c.more, 5, fp32, 1, of_heads), c.args.alibi_slopes = &c.more;
            if (addition == 7) set_tensor(&c.more, 5, fp32, 4, of_scores), c.args.bias = &c.more;
            if (addition == 8) set_tensor(&c.more, 5, boolean, 4, of_scores), c.args.mask = &c.more;
            if (addition == 9) c.args.softcap = 30;
            if (addition == 10) c.args.scale = -1;
            if (addition == 11) c.k.byte_offset = 2;
            if (addition == 12) c.o.byte_offset = 8;
            check_launched(&c, addition >= 6);
        }
}

// Before a prefill that turns keys stands the kernel that does: where all of a row turns and lies at addresses of 16 bytes, the one that keeps them in
// registers. Its blocks have all keys of all heads, and the workspace room for what it writes.
static void keys_turn_before_a_prefill(void **state) {
    (void)state;
    for (int which = 0; which < 5; which++) {
        const int64_t B = 5, Hkv = 10, Nk = 301, D = which == 3 ? 96 : 128; // too many tiles to be cut
        call c;
        be(90);
        make_call(&c, types[which == 4], B, 20, Hkv, 150, Nk, D, D);
        c.args.flags = KF_ATTENTION_CAUSAL | KF_ATTENTION_ROPE_Q | KF_ATTENTION_ROPE_K;
        c.args.rope.pairing = KF_ROPE_NEOX;
        if (which == 1) c.k.byte_offset = 2;
        if (which == 2) c.args.rope.dims = 64;
        const bool whole = which == 0 || which == 4;
        kf_op *op = planned(&c);
        const attention_plan *plan = plan_of(op);
        assert_int_equal(plan->rotate_whole != NULL, which != 2 && which != 3);
        run_op(op);
        assert_int_equal(launched, 2);
        const kf_cuda_attention_kernel *kernel = whole ? plan->rotate_whole : plan->rotate;
        assert_ptr_equal(launches[0].function, kernel->function);
        assert_int_equal(launches[0].shape.threads, kernel->threads);
        const int64_t pieces = divide_up(Nk, KF_ROTATED_KEYS);
        assert_int_equal(launches[0].shape.blocks, B * pieces * (whole ? divide_up(Hkv, KF_ROTATED_HEADS) : Hkv));
        assert_true(launches[0].argument.rope.k && !launches[1].argument.rope.k && launches[1].shape.dependent);
        const kf_cuda_attention *turned = &launches[1].argument;
        assert_ptr_equal(turned->k, launches[0].argument.rotated_k);
        assert_true((char *)turned->key_scales - turned->k >= B * Hkv * Nk * D * 2);
        assert_true(turned->odd_keys - (int32_t *)(void *)turned->key_scales >= B * Hkv * Nk);
        size_t bytes = 0;
        assert_int_equal(kf_op_workspace_size(op, &bytes), KF_OK);
        assert_true((char *)(turned->odd_keys + B * Hkv * pieces) <= (char *)address(9) + bytes);
        kf_op_destroy(op);
    }
}

// A plan is of shapes: bound to other tensors, it stays as it is, and the launch has the new addresses.
static void a_plan_holds_nothing_of_tensors(void **state) {
    (void)state;
    call c;
    be(90);
    make_call(&c, types[0], 1, 8, 8, 300, 512, 128, 128);
    kf_op *op = planned(&c);
    const kf_plan before = op->plan;
    c.q.data = address(6), c.k.data = address(7), c.o.data = address(8);
    assert_int_equal(kf_op_bind(op, &c.args.head), KF_OK);
    assert_memory_equal(&before, &op->plan, sizeof before);
    run_op(op);
    assert_ptr_equal(launches[0].argument.q, address(6));
    assert_ptr_equal(launches[0].argument.k, address(7));
    assert_ptr_equal(launches[0].argument.v, address(3));
    assert_ptr_equal(launches[0].argument.o, address(8));
    kf_op_destroy(op);
}

static void nothing_to_do_launches_nothing(void **state) {
    (void)state;
    be(90);
    for (int empty = 0; empty < 3; empty++) {
        call c;
        make_call(&c, types[0], empty == 0 ? 0 : 2, empty == 1 ? 0 : 8, 8, empty == 2 ? 0 : 5, 64, 128, 128);
        kf_op *op = planned(&c);
        run_op(op);
        assert_int_equal(launched, 0);
        kf_op_destroy(op);
    }
    call c; // rows without keys are zeros, which a kernel writes
    make_call(&c, types[0], 2, 8, 8, 5, 0, 128, 128);
    kf_op *op = planned(&c);
    run_op(op);
    assert_true(launched >= 1);
    kf_op_destroy(op);
}

// A load there would be a fault of the device, which a process does not get over.
static void addresses_within_an_element_are_refused(void **state) {
    (void)state;
    be(90);
    for (int type = 0; type < TYPES; type++)
        for (int tensor = 0; tensor < 4; tensor++) {
            call c;
            kf_op *op = NULL, *whole;
            make_call(&c, types[type], 1, 8, 8, 5, 64, 128, 128);
            whole = planned(&c);
            (tensor == 0 ? &c.q : tensor == 1 ? &c.k : tensor == 2 ? &c.v : &c.o)->byte_offset = 1;
            assert_int_equal(kf_op_create(&context, &c.args.head, &op), KF_INVALID_ARGUMENT);
            assert_non_null(strstr(kf_last_error(), "must be aligned to an element"));
            assert_int_equal(kf_op_bind(whole, &c.args.head), KF_INVALID_ARGUMENT);
            kf_op_destroy(whole);
        }
}

static void sizes_beyond_32_bits_are_refused(void **state) {
    (void)state;
    call c;
    kf_op *op = NULL;
    be(90);
    make_call(&c, types[0], 1, 1, 1, 1, INT32_MAX, 8, 8);
    assert_int_equal(kf_op_create(&context, &c.args.head, &op), KF_UNSUPPORTED);
    assert_non_null(strstr(kf_last_error(), "Nk = 2147483647"));
    make_call(&c, types[0], 1 << 20, 1 << 12, 1 << 12, 1, 1, 8, 8);
    assert_int_equal(kf_op_create(&context, &c.args.head, &op), KF_UNSUPPORTED);
    assert_non_null(strstr(kf_last_error(), "B = 1048576"));
}

// tuned.h names tiles that are built, for both types, within 99 KB; keyfold tune has at least four of each head dimension to choose from.
static void tuned_tiles_are_there(void **state) {
    (void)state;
#define COUNT(rows, keys, warps, blocks) +1
    assert_true(0 KF_ALL_TILES_64(COUNT) >= 4 && 0 KF_ALL_TILES_128(COUNT) >= 4);
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        const kf_cuda_choice *choice = &choices[i];
        int found = 0;
        for (int t = 0; t < TABLES; t++)
            for (const kf_cuda_attention_kernel *row = tables[t]; row->function; row++)
                found += row->kind == KF_CUDA_PREFILL && !row->general && row->D == choice->D &&
                         (row->type == KF_TYPE_F16 || row->type == KF_TYPE_BF16) && row->rows == choice->rows &&
                         row->keys == choice->keys && row->threads == 32 * choice->warps && row->shared <= CONSUMER;
        assert_int_equal(found, 2);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_head_dimension_has_kernels_on_every_architecture),
        cmocka_unit_test(work_items_cover_rows_and_keys),
        cmocka_unit_test(a_prefill_is_merged_by_what_knows_its_gaps),
        cmocka_unit_test(a_decode_is_cut_and_merged),
        cmocka_unit_test(full_lists_take_eight_warps),
        cmocka_unit_test(keys_that_turn_whole_have_kernels),
        cmocka_unit_test(a_fixed_split_knows_no_batch),
        cmocka_unit_test(additions_take_the_general_kernel),
        cmocka_unit_test(keys_turn_before_a_prefill),
        cmocka_unit_test(a_plan_holds_nothing_of_tensors),
        cmocka_unit_test(nothing_to_do_launches_nothing),
        cmocka_unit_test(addresses_within_an_element_are_refused),
        cmocka_unit_test(sizes_beyond_32_bits_are_refused),
        cmocka_unit_test(tuned_tiles_are_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include <stdio.h>

int main(void) {
    puts("skip: this build has no CUDA backend");
    return 77;
}
#endif
