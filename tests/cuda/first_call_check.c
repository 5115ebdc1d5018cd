// SPDX-License-Identifier: Apache-2.0
//
// keyfold_cuda_first_call_check: the very first call of an operation in a process, inside of a capture of the caller's stream. Nothing has
// loaded its kernels, no workspace was taken before, and the capture forbids (in the mode "global") what a careless library would do
// then. The graph, launched twice, must give the bits of a plain call.
//
//     without an argument: a process for each case, one after another; exit status 0 only where all are right
#define _POSIX_C_SOURCE 200809L // fork, execl
#include "call.h"

#include <cuda_runtime_api.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CUDA(call)                                                                                                     \
    do {                                                                                                               \
        const cudaError_t error_ = (call);                                                                             \
        if (error_ != cudaSuccess) {                                                                                   \
            printf("FAILED %s: %s\n", #call, cudaGetErrorString(error_));                                              \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static kf_context *context;
static cudaStream_t stream;
static const kf_dtype bf16 = KF_BF16, fp32 = KF_FP32, int32 = KF_INT32;

// ---- memory ----

enum { MOST_TENSORS = 6 };
static kf_tensor tensors[MOST_TENSORS];
static int64_t shapes[MOST_TENSORS][4];

static float random_value(void) { // in [-1, 1)
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(int32_t)state * 0x1p-31f;
}

// Device memory with random numbers of so many bytes each.
static void *random_memory(size_t bytes, int size) {
    char *host = malloc(bytes);
    void *memory = NULL;
    if (!host) exit(1);
    for (size_t i = 0; i + (size_t)size <= bytes; i += (size_t)size) {
        const float value = random_value();
        memcpy(host + i, (const char *)&value + sizeof value - (size_t)size, (size_t)size); // bf16: the upper half
    }
    CUDA(cudaMalloc(&memory, bytes));
    CUDA(cudaMemcpy(memory, host, bytes, cudaMemcpyHostToDevice));
    free(host);
    return memory;
}

static size_t bytes_of(const kf_tensor *t) {
    size_t bytes = t->dtype.bits / 8;
    for (int i = 0; i < t->ndim; i++) bytes *= (size_t)t->shape[i];
    return bytes;
}

// Dimensions that are 0 are not there. Integers are zeros.
static kf_tensor *tensor(int number, kf_dtype dtype, int64_t a, int64_t b, int64_t c, int64_t d) {
    const int64_t shape[4] = {a, b, c, d};
    kf_tensor *t = &tensors[number];
    memcpy(shapes[number], shape, sizeof shape);
    *t = (kf_tensor){.device = {KF_DEVICE_CUDA, 0}, .dtype = dtype, .shape = shapes[number]};
    while (t->ndim < 4 && shape[t->ndim]) t->ndim++;
    t->data = random_memory(bytes_of(t), dtype.bits / 8);
    if (dtype.code == KF_CODE_INT) CUDA(cudaMemset(t->data, 0, bytes_of(t)));
    return t;
}

static kf_weight weight(int type, int64_t rows, int64_t cols) {
    int32_t values = 1, size = 1;
    if (kf_weight_block(type, &values, &size) != KF_OK) exit(1);
    kf_weight w = {.type = type, .rows = rows, .cols = cols, .device = {KF_DEVICE_CUDA, 0}};
    w.bytes = (size_t)(rows * (cols / values) * size);
    w.data = random_memory(w.bytes, 2);
    return w;
}

// ---- one case ----

static int failed(const char *what, const char *why) {
    printf("FAILED %s: %s\n", what, why);
    return 1;
}

static int check(const char *what, const kf_args *args, const kf_tensor *out) {
    const size_t bytes = bytes_of(out);
    char *by_graph = malloc(bytes), *plain = malloc(bytes);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t executable = NULL;
    if (!by_graph || !plain) return failed(what, "memory is short");
    CUDA(cudaDeviceSynchronize()); // inputs were copied on another stream, which this one does not wait for
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    const kf_status status = call_operation(context, args);
    const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
    if (status != KF_OK) return failed(what, kf_last_error());
    if (ended != cudaSuccess) return failed(what, cudaGetErrorString(ended));
    CUDA(cudaGraphInstantiate(&executable, graph, 0));
    CUDA(cudaMemsetAsync(out->data, 0xff, bytes, stream));
    for (int i = 0; i < 2; i++) CUDA(cudaGraphLaunch(executable, stream));
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaMemcpy(by_graph, out->data, bytes, cudaMemcpyDeviceToHost));
    CUDA(cudaMemsetAsync(out->data, 0xff, bytes, stream));
    if (call_operation(context, args) != KF_OK) return failed(what, kf_last_error());
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaMemcpy(plain, out->data, bytes, cudaMemcpyDeviceToHost));
    size_t written = 0;
    for (size_t i = 0; i < bytes; i++) written += (unsigned char)by_graph[i] != 0xff;
    if (!written) return failed(what, "the graph wrote nothing");
    if (memcmp(by_graph, plain, bytes) != 0) return failed(what, "the graph gives other bits than a call");
    printf("ok     %s\n", what);
    return 0;
}

static int attention(const char *what, kf_dtype dtype, const int64_t n[6], uint32_t flags) { // B, H, Hkv, Nq, Nk, D
    kf_attention_args a;
    kf_attention_args_init(&a);
    a.q = tensor(0, dtype, n[0], n[1], n[3], n[5]), a.k = tensor(1, dtype, n[0], n[2], n[4], n[5]);
    a.v = tensor(2, dtype, n[0], n[2], n[4], n[5]), a.o = tensor(3, dtype, n[0], n[1], n[3], n[5]);
    a.flags = flags, a.rope.pairing = KF_ROPE_NEOX;
    return check(what, &a.head, a.o);
}

static int linear(const char *what, int type, int64_t rows) {
    const kf_weight w = weight(type, 2048, 2048);
    kf_linear_args a;
    kf_linear_args_init(&a);
    a.x = tensor(0, bf16, rows, 2048, 0, 0), a.y = tensor(1, bf16, rows, 2048, 0, 0), a.weight = &w;
    return check(what, &a.head, a.y);
}

static int softmax(const char *what, int64_t rows, int64_t n) {
    kf_softmax_args a;
    kf_softmax_args_init(&a);
    a.x = tensor(0, bf16, rows, n, 0, 0), a.y = tensor(1, bf16, rows, n, 0, 0);
    return check(what, &a.head, a.y);
}

static int rmsnorm(void) {
    kf_rmsnorm_args a;
    kf_rmsnorm_args_init(&a);
    a.x = tensor(0, bf16, 64, 4096, 0, 0), a.residual = tensor(1, bf16, 64, 4096, 0, 0);
    a.weight = tensor(2, bf16, 4096, 0, 0, 0), a.y = tensor(3, bf16, 64, 4096, 0, 0);
    a.sum = tensor(4, bf16, 64, 4096, 0, 0);
    return check("rmsnorm", &a.head, a.y);
}

static int swiglu(void) {
    kf_swiglu_args a;
    kf_swiglu_args_init(&a);
    a.gate = tensor(0, bf16, 64, 4096, 0, 0), a.up = tensor(1, bf16, 64, 4096, 0, 0);
    a.y = tensor(2, bf16, 64, 4096, 0, 0);
    return check("swiglu", &a.head, a.y);
}

static int rope(void) {
    kf_rope_args a;
    kf_rope_args_init(&a);
    a.x = tensor(0, bf16, 2, 8, 16, 128), a.y = tensor(1, bf16, 2, 8, 16, 128), a.rope.pairing = KF_ROPE_NEOX;
    return check("rope", &a.head, a.y);
}

static int kv_append(void) {
    kf_kv_append_args a;
    kf_kv_append_args_init(&a);
    a.k = tensor(0, bf16, 2, 8, 16, 128), a.v = tensor(1, bf16, 2, 8, 16, 128);
    a.k_cache = tensor(2, bf16, 2, 8, 64, 128), a.v_cache = tensor(3, bf16, 2, 8, 64, 128);
    a.rope.pairing = KF_ROPE_NEOX;
    return check("kv_append", &a.head, a.k_cache);
}

static int embedding(void) {
    const kf_weight table = weight(KF_WEIGHT_BF16, 1000, 256);
    kf_embedding_args a;
    kf_embedding_args_init(&a);
    a.table = &table, a.ids = tensor(0, int32, 16, 0, 0, 0), a.y = tensor(1, bf16, 16, 256, 0, 0);
    return check("embedding", &a.head, a.y);
}

static int merge_states(void) {
    kf_merge_states_args a;
    kf_merge_states_args_init(&a);
    a.o_parts = tensor(0, fp32, 4, 64, 128, 0), a.lse_parts = tensor(1, fp32, 4, 64, 0, 0);
    a.o = tensor(2, fp32, 64, 128, 0, 0);
    return check("merge_states", &a.head, a.o);
}

static int run_case(int number) {
    const uint32_t turned = KF_ATTENTION_ROPE_Q | KF_ATTENTION_ROPE_K;
    switch (number) {
    case 0: return attention("prefill", bf16, (int64_t[6]){1, 8, 8, 512, 512, 128}, KF_ATTENTION_CAUSAL);
    case 1: return attention("prefill, keys split", bf16, (int64_t[6]){1, 1, 1, 128, 8192, 64}, 0);
    case 2: return attention("prefill that turns q and k", bf16, (int64_t[6]){1, 8, 8, 512, 512, 128}, turned);
    case 3: return attention("decode in clusters", bf16, (int64_t[6]){1, 32, 8, 1, 2048, 128}, 0);
    case 4: return attention("decode and merge", bf16, (int64_t[6]){1, 32, 8, 1, 131072, 128}, 0);
    case 5: return attention("prefill, fp32", fp32, (int64_t[6]){1, 8, 8, 300, 300, 128}, 0);
    case 6: return attention("decode, fp32", fp32, (int64_t[6]){1, 32, 8, 1, 8192, 128}, 0);
    case 7: return softmax("softmax", 64, 4096);
    case 8: return softmax("softmax in segments", 1, 128256);
    case 9: return rmsnorm();
    case 10: return swiglu();
    case 11: return rope();
    case 12: return kv_append();
    case 13: return embedding();
    case 14: return merge_states();
    case 15: return linear("linear, one row", KF_WEIGHT_BF16, 1);
    case 16: return linear("linear, many rows (cuBLASLt where it is found)", KF_WEIGHT_BF16, 64);
    case 17: return linear("linear, one row, Q4_0 that is not packed", KF_WEIGHT_Q4_0, 1);
    case 18: return linear("linear, many rows, Q4_0 that is not packed", KF_WEIGHT_Q4_0, 64);
    default: return -1;
    }
}
enum { CASES = 19 };

static int in_a_process(int number) {
    char text[8];
    int status = 0;
    snprintf(text, sizeof text, "%d", number);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "keyfold_cuda_first_call_check", text, (char *)NULL);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) < 0) return 1;
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

int main(int argc, char **argv) {
    kf_context_options options;
    if (argc > 1) {
        CUDA(cudaSetDevice(0));
        CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        kf_context_options_init(&options);
        options.device.type = KF_DEVICE_CUDA, options.stream = stream;
        if (kf_context_create(&options, &context) != KF_OK) return failed("the context", kf_last_error());
        return run_case(atoi(argv[1])) != 0;
    }
    int failures = 0;
    for (int number = 0; number < CASES; number++) failures += in_a_process(number);
    printf("first calls in a capture: %d cases, %d failed\n", CASES, failures);
    return failures != 0;
}
