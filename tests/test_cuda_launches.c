// SPDX-License-Identifier: Apache-2.0
//
// What the operations around attention launch on CUDA, on machines without a device: for every operation, dtype, and lengths at the edges of
// how work is dealt out, each launch must be one that a device of the architecture takes, of a kernel that was loaded when the op was
// planned. The library's own plans and launches run here; what would ask the driver is replaced at the link (--wrap). Attention's
// plan is test_cuda_plan.c's; what kernels compute, verify asks on a device.
#if KF_HAVE_CUDA
#include "cuda/cuda.h"
#include "cuda/fragments.h"
#include "cuda/linear.h"
#include "math/blocks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

// ---- what stands for the driver ----

enum { KILOBYTE = 1024, MOST_PREPARED = 16, MOST_CLUSTER = 8, MOST_THREADS = 1024 };

static kf_cuda_device device;
static kf_context context;
static const void *prepared[MOST_PREPARED];
static int32_t prepared_shared[MOST_PREPARED];
static int prepared_count, launched;
static int64_t launched_blocks;

kf_status __wrap_kf_cuda_enter(const kf_cuda_device *of, int *before);
kf_status __wrap_kf_cuda_enter(const kf_cuda_device *of, int *before) {
    assert_ptr_equal(of, &device);
    *before = 0;
    return KF_OK;
}
void __wrap_kf_cuda_leave(const kf_cuda_device *of, int before);
void __wrap_kf_cuda_leave(const kf_cuda_device *of, int before) { assert_true(of == &device && before == 0); }

kf_status __wrap_kf_cuda_prepare_kernel(const kf_cuda_device *of, const void *function, int32_t shared,
                                        const char *what);
kf_status __wrap_kf_cuda_prepare_kernel(const kf_cuda_device *of, const void *function, int32_t shared,
                                        const char *what) {
    assert_true(of == &device);
    (void)what;
    assert_non_null(function);
    assert_in_range(shared, 0, device.shared_limit);
    assert_in_range(prepared_count, 0, MOST_PREPARED - 1);
    prepared_shared[prepared_count] = shared;
    prepared[prepared_count++] = function;
    return KF_OK;
}

// As many blocks as shared memory has room for: what the driver says is no more.
cudaError_t __wrap_cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads,
                                                                 size_t shared);
cudaError_t __wrap_cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads,
                                                                 size_t shared) {
    (void)function;
    const int by_shared = shared ? (int)((size_t)device.shared_limit / shared) : 16, by_threads = 2048 / threads;
    *blocks = by_shared < by_threads ? by_shared : by_threads;
    return cudaSuccess;
}
// Nobody knows the device: no library is asked for its products.
cudaError_t __wrap_cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int of);
cudaError_t __wrap_cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int of) {
    (void)value, (void)attribute, (void)of;
    return cudaErrorNoDevice;
}

static bool is_prepared(const void *function, int32_t shared) {
    for (int i = 0; i < prepared_count; i++)
        if (prepared[i] == function && prepared_shared[i] >= shared) return true;
    return false;
}

kf_status __wrap_kf_cuda_launch(const kf_cuda_device *of, const void *function, const kf_cuda_launch_shape *shape,
                                const void *argument, const char *what);
kf_status __wrap_kf_cuda_launch(const kf_cuda_device *of, const void *function, const kf_cuda_launch_shape *shape,
                                const void *argument, const char *what) {
    assert_ptr_equal(of, &device);
    assert_true(function && argument && what);
    assert_in_range(shape->blocks, 1, INT32_MAX);
    assert_in_range(shape->threads, 1, MOST_THREADS);
    assert_in_range(shape->shared, 0, device.shared_limit);
    assert_in_range(shape->cluster, 0, kf_cuda_is_hopper(&device) ? MOST_CLUSTER : 1);
    if (shape->cluster > 1) assert_int_equal(shape->blocks % shape->cluster, 0);
    assert_true(is_prepared(function, shape->shared));
    launched++;
    launched_blocks += shape->blocks;
    return KF_OK;
}

// An H200, held to an architecture.
static void be(int arch, bool fixed_split) {
    device = (kf_cuda_device){.arch = arch, .multiprocessors = 132, .l2_bytes = 60 << 20};
    device.shared_limit = (arch == 80 ? 163 : arch == 90 ? 227 : 99) * KILOBYTE;
    context = (kf_context){.backend = &kf_backend_cuda, .device = &device, .info = {.threads = 1}};
    context.info.device.type = KF_DEVICE_CUDA;
    context.info.fixed_split = fixed_split;
}

// ---- calls ----

// Addresses that nobody reads, so far from each other that no two tensors meet.
static void *address(int number) { return (void *)((uintptr_t)number << 44); }

enum { MOST_TENSORS = 8 };
static kf_tensor tensors[MOST_TENSORS];
static int64_t shapes[MOST_TENSORS][4];

static kf_tensor *tensor(int number, kf_dtype dtype, int ndim, int64_t a, int64_t b, int64_t c, int64_t d) {
    const int64_t shape[4] = {a, b, c, d};
    memcpy(shapes[number], shape, sizeof shape);
    tensors[number] = (kf_tensor){.data = address(number + 1),
                                  .device = {KF_DEVICE_CUDA, 0},
                                  .ndim = ndim,
                                  .dtype = dtype,
                                  .shape = shapes[number]};
    return &tensors[number];
}

// Plans, then runs: with addresses that are multiples of 16 bytes, and, `skew` bytes further, of an element alone.
static void check(const kf_args *args, int skew) {
    kf_op *op = NULL;
    size_t bytes = 0;
    prepared_count = launched = 0, launched_blocks = 0;
    if (kf_op_create(&context, args, &op) != KF_OK) fail_msg("%s", kf_last_error());
    assert_int_equal(kf_op_workspace_size(op, &bytes), KF_OK);
    const int planned = prepared_count;
    for (int at = 0; at < 2; at++) {
        for (int i = 0; i < MOST_TENSORS; i++) tensors[i].byte_offset = at ? (uint64_t)skew : 0;
        if (kf_op_bind(op, args) != KF_OK) fail_msg("%s", kf_last_error());
        if (kf_op_run(op, address(15), bytes) != KF_OK) fail_msg("%s", kf_last_error());
        assert_true(launched >= at + 1);
    }
    assert_int_equal(prepared_count, planned); // nothing is loaded at a run
    for (int i = 0; i < MOST_TENSORS; i++) tensors[i].byte_offset = 0;
    kf_op_destroy(op);
}

static const kf_dtype types[] = {KF_BF16, KF_FP16, KF_FP32};
enum { TYPES = sizeof types / sizeof *types };
static const int64_t lengths[] = {1, 7, 8, 255, 256, 1000, 1024, 4096, 8192, 11008, 32768, 65536, 131072, 262144};
enum { LENGTHS = sizeof lengths / sizeof *lengths };
static const int64_t row_counts[] = {1, 3, 64, 4096, 100000};
enum { ROW_COUNTS = sizeof row_counts / sizeof *row_counts };

static void softmax(kf_dtype x, kf_dtype y, int64_t rows, int64_t n) {
    kf_softmax_args a;
    kf_softmax_args_init(&a);
    a.x = tensor(0, x, 2, rows, n, 0, 0), a.y = tensor(1, y, 2, rows, n, 0, 0);
    check(&a.head, x.bits / 8 > y.bits / 8 ? x.bits / 8 : y.bits / 8);
}

static void rmsnorm(kf_dtype x, kf_dtype y, int64_t rows, int64_t n) {
    kf_rmsnorm_args a;
    kf_rmsnorm_args_init(&a);
    a.x = tensor(0, x, 2, rows, n, 0, 0), a.residual = tensor(1, x, 2, rows, n, 0, 0);
    a.weight = tensor(2, x, 1, n, 0, 0, 0), a.y = tensor(3, y, 2, rows, n, 0, 0);
    a.sum = tensor(4, x, 2, rows, n, 0, 0);
    check(&a.head, 4);
}

static void swiglu(kf_dtype x, kf_dtype y, int64_t rows, int64_t n) {
    kf_swiglu_args a;
    kf_swiglu_args_init(&a);
    if (rows > UINT32_MAX / n) return; // refused
    a.gate = tensor(0, x, 2, rows, n, 0, 0), a.up = tensor(1, x, 2, rows, n, 0, 0);
    a.y = tensor(2, y, 2, rows, n, 0, 0);
    check(&a.head, 4);
}

static void merge(kf_dtype parts, kf_dtype y, int64_t rows, int64_t n) {
    const kf_dtype fp32 = KF_FP32;
    kf_merge_states_args a;
    kf_merge_states_args_init(&a);
    a.o_parts = tensor(0, parts, 3, 5, rows, n, 0), a.lse_parts = tensor(1, fp32, 2, 5, rows, 0, 0);
    a.o = tensor(2, y, 2, rows, n, 0, 0), a.lse = tensor(3, fp32, 1, rows, 0, 0, 0);
    check(&a.head, 4);
}

static void every_row_kernel_is_one_that_a_device_takes(void **state) {
    (void)state;
    static const int architectures[] = {80, 86, 90, 100};
    for (int a = 0; a < 4; a++)
        for (int fixed = 0; fixed < 2; fixed++)
            for (int x = 0; x < TYPES; x++)
                for (int y = 0; y < TYPES; y++)
                    for (int n = 0; n < LENGTHS; n++)
                        for (int r = 0; r < ROW_COUNTS; r++) {
                            be(architectures[a], fixed);
                            softmax(types[x], types[y], row_counts[r], lengths[n]);
                            rmsnorm(types[x], types[y], row_counts[r], lengths[n]);
                            swiglu(types[x], types[y], row_counts[r], lengths[n]);
                            if (lengths[n] <= 256) merge(types[x], types[y], row_counts[r], lengths[n]);
                        }
}

static void heads(kf_dtype x, kf_dtype y, int64_t B, int64_t H, int64_t N, int64_t D) {
    kf_rope_args a;
    kf_rope_args_init(&a);
    a.x = tensor(0, x, 4, B, H, N, D), a.y = tensor(1, y, 4, B, H, N, D), a.rope.pairing = KF_ROPE_GPTJ;
    check(&a.head, 4);
    kf_kv_append_args c;
    kf_kv_append_args_init(&c);
    c.k = tensor(0, x, 4, B, H, N, D), c.v = tensor(1, x, 4, B, H, N, D);
    c.k_cache = tensor(2, y, 4, B, H, N + 100, D), c.v_cache = tensor(3, y, 4, B, H, N + 100, D);
    c.rope.pairing = KF_ROPE_NEOX;
    check(&c.head, 4);
    c.rope.pairing = KF_ROPE_OFF;
    check(&c.head, 4);
}

static void rope_and_append_are_too(void **state) {
    (void)state;
    static const int64_t sizes[][4] = {{1, 8, 1, 128}, {64, 8, 1, 128},  {1, 1, 1, 2},        {2, 3, 5, 80},
                                       {1, 4, 3, 256}, {2, 8, 4096, 64}, {1, 32, 131072, 128}};
    for (int held = 0; held < 2; held++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (int x = 0; x < TYPES; x++)
                for (int y = 0; y < TYPES; y++) {
                    be(held ? 86 : 90, false);
                    heads(types[x], types[y], sizes[s][0], sizes[s][1], sizes[s][2], sizes[s][3]);
                }
}

static const int weights[] = {KF_WEIGHT_F32,  KF_WEIGHT_F16,  KF_WEIGHT_BF16, KF_WEIGHT_Q4_0,
                              KF_WEIGHT_Q4_1, KF_WEIGHT_Q5_0, KF_WEIGHT_Q5_1, KF_WEIGHT_Q8_0,
                              KF_WEIGHT_Q4_K, KF_WEIGHT_Q5_K, KF_WEIGHT_Q6_K};
enum { WEIGHTS = sizeof weights / sizeof *weights };

static void linear(int type, bool packed, kf_dtype x, int64_t T, int64_t N, int64_t K, int activations) {
    const int64_t row = K / kf_block_values(type) * kf_block_bytes(type);
    kf_weight weight = {.type = type, .rows = N, .cols = K, .data = address(9), .bytes = (size_t)(N * row)};
    if (packed) {
        size_t bytes = 0;
        assert_int_equal(kf_pack_weight_size(&context, &weight, &bytes), KF_OK);
        weight.bytes = bytes, weight.packed = KF_FRAGMENTS_LAYOUT;
    }
    weight.device = context.info.device;
    kf_linear_args a;
    kf_linear_args_init(&a);
    a.x = tensor(0, x, 2, T, K, 0, 0), a.y = tensor(1, x, 2, T, N, 0, 0), a.weight = &weight;
    a.bias = tensor(2, x, 1, N, 0, 0, 0), a.activations = activations;
    check(&a.head, 4);
}

static void products_are_too(void **state) {
    (void)state;
    static const int64_t rows[] = {1, 2, 5, 8, 9, 64, 65, 513}, columns[] = {1, 8, 250, 2048, 32000},
                         inputs[] = {256, 512, 2048, 5632, 14336, 131072};
    static const int architectures[] = {80, 86, 90, 100};
    for (int a = 0; a < 4; a++)
        for (int fixed = 0; fixed < 2; fixed++)
            for (int w = 0; w < WEIGHTS; w++)
                for (int packed = 0; packed < 2; packed++)
                    for (int x = 0; x < TYPES; x++)
                        for (int t = 0; t < 8; t++)
                            for (int n = 0; n < 5; n++)
                                for (int k = 0; k < 6; k++) {
                                    be(architectures[a], fixed);
                                    linear(weights[w], packed, types[x], rows[t], columns[n], inputs[k],
                                           (t + n + k) % 3 ? KF_ACTIVATIONS_EXACT : KF_ACTIVATIONS_INT8);
                                }
}

static void weights_packed_by_an_older_version_are_refused(void **state) {
    (void)state;
    be(90, false);
    kf_weight weight = {.type = KF_WEIGHT_Q6_K, .rows = 8, .cols = 256, .data = address(9), .bytes = 4096};
    weight.packed = KF_FRAGMENTS_LAYOUT - 1, weight.device = context.info.device;
    kf_linear_args a;
    kf_linear_args_init(&a);
    a.x = tensor(0, types[0], 2, 1, 256, 0, 0), a.y = tensor(1, types[0], 2, 1, 8, 0, 0), a.weight = &weight;
    kf_op *op = NULL;
    assert_int_equal(kf_op_create(&context, &a.head, &op), KF_INVALID_ARGUMENT);
    assert_non_null(strstr(kf_last_error(), "weight.packed is"));
    weight.packed = KF_FRAGMENTS_LAYOUT;
    assert_int_equal(kf_op_create(&context, &a.head, &op), KF_OK);
    kf_op_destroy(op);
}

static void embeddings_are_too(void **state) {
    (void)state;
    const kf_dtype int32 = KF_INT32;
    be(90, false);
    for (int w = 0; w < WEIGHTS; w++)
        for (int y = 0; y < TYPES; y++)
            for (int64_t T = 1; T <= 10000; T *= 100) {
                const int64_t row = 2048 / kf_block_values(weights[w]) * kf_block_bytes(weights[w]);
                kf_weight table = {.type = weights[w], .rows = 32000, .cols = 2048, .data = address(9)};
                table.bytes = (size_t)(32000 * row), table.device = context.info.device;
                kf_embedding_args a;
                kf_embedding_args_init(&a);
                a.table = &table, a.ids = tensor(0, int32, 1, T, 0, 0, 0), a.y = tensor(1, types[y], 2, T, 2048, 0, 0);
                check(&a.head, 4);
                if (kf_block_quantised(weights[w])) continue;
                kf_op *op = NULL;
                table.data = (char *)address(9) + 1;
                assert_int_equal(kf_op_create(&context, &a.head, &op), KF_OK);
                assert_int_equal(kf_op_run(op, NULL, 0), KF_INVALID_ARGUMENT);
                assert_non_null(strstr(kf_last_error(), "the table is at"));
                kf_op_destroy(op);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_kernel_is_one_that_a_device_takes),
        cmocka_unit_test(rope_and_append_are_too),
        cmocka_unit_test(products_are_too),
        cmocka_unit_test(weights_packed_by_an_older_version_are_refused),
        cmocka_unit_test(embeddings_are_too),
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
