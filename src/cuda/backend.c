// SPDX-License-Identifier: Apache-2.0
//
// The CUDA backend: contexts, runs of ops, the table of support.
#include "cuda/cuda.h"

#include <string.h>

enum { OLDEST_ARCH = 80, HOPPER = 90 };

// Shared memory that a block may have, by compute capability: consumer Ampere and Ada have 99 KB. A context that is lowered
// to such an architecture keeps to it, so that one machine tests the configurations of others.
static int32_t shared_limit_of(int arch) {
    switch (arch) {
    case 80:
    case 87: return 163 << 10;
    case 86:
    case 89: return 99 << 10;
    default: return 227 << 10;
    }
}

// The runtime calls a driver that is not there "insufficient", too.
static kf_status refuse_driver(void) {
    int driver = 0, runtime = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
        return kf_fail(KF_NO_DEVICE, "context: no CUDA device (this machine has no NVIDIA driver)");
    cudaRuntimeGetVersion(&runtime);
    return kf_fail(KF_NO_DEVICE, "context: no CUDA device (the driver is of CUDA %d.%d, this build of %d.%d)",
                   driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
}

static kf_status find_device(const kf_context_options *options) {
    int devices = 0;
    cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess) cudaGetLastError();
    if (error == cudaErrorInsufficientDriver) return refuse_driver();
    if (error != cudaSuccess) return kf_fail(KF_NO_DEVICE, "context: no CUDA device (%s)", cudaGetErrorString(error));
    if (devices == 0) return kf_fail(KF_NO_DEVICE, "context: no CUDA device");
    if (options->device.id >= 0 && options->device.id < devices) return KF_OK;
    return kf_fail(KF_NO_DEVICE, "context: CUDA device %d is asked for; devices 0 to %d are there",
                   (int)options->device.id, devices - 1);
}

static kf_status check_stream(const kf_context_options *options) {
    int device = 0;
    cudaStream_t stream = (cudaStream_t)options->stream;
    if (!stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread) return KF_OK;
    KF_TRY(kf_cuda_check(cudaStreamGetDevice(stream, &device), "context: stream"));
    if (device == options->device.id) return KF_OK;
    return kf_fail(KF_INVALID_ARGUMENT, "context: the stream is of CUDA device %d; the context is on %d", device,
                   (int)options->device.id);
}

static kf_status choose_arch(const kf_context_options *options, int of_device, int *arch) {
    *arch = options->isa ? options->isa : of_device;
    if (of_device < OLDEST_ARCH)
        return kf_fail(KF_UNSUPPORTED, "context: the device's compute capability is %d.%d; %d.%d or newer is needed",
                       of_device / 10, of_device % 10, OLDEST_ARCH / 10, OLDEST_ARCH % 10);
    if (*arch < OLDEST_ARCH || *arch > of_device)
        return kf_fail(
            KF_UNSUPPORTED,
            "context: isa is %d; on this CUDA device 0 or %d (compute capability times ten) to %d are allowed", *arch,
            OLDEST_ARCH, of_device);
    // A newer device compiles the PTX of compute_80, which has none of Hopper's parts: what relies on them would be wrong.
    if (*arch == HOPPER && of_device != HOPPER)
        return kf_fail(
            KF_UNSUPPORTED,
            "context: isa is 90; kernels for it run on devices of compute capability 9.0 alone, this one has %d.%d",
            of_device / 10, of_device % 10);
    return KF_OK;
}

static kf_status open_device(kf_context *context, const kf_context_options *options) {
    KF_TRY(find_device(options));
    KF_TRY(check_stream(options));
    struct cudaDeviceProp properties;
    KF_TRY(kf_cuda_check(cudaGetDeviceProperties(&properties, options->device.id), "context: cudaGetDeviceProperties"));
    kf_cuda_device found = {.id = options->device.id,
                            .multiprocessors = properties.multiProcessorCount,
                            .l2_bytes = properties.l2CacheSize,
                            .launch = options->launch,
                            .stream = (cudaStream_t)options->stream};
    KF_TRY(choose_arch(options, properties.major * 10 + properties.minor, &found.arch));
    found.shared_limit = shared_limit_of(found.arch);
    if (found.shared_limit > (int32_t)properties.sharedMemPerBlockOptin)
        found.shared_limit = (int32_t)properties.sharedMemPerBlockOptin;
    kf_cuda_device *device = kf_alloc(sizeof *device);
    if (!device) return kf_fail(KF_OUT_OF_MEMORY, "context_create: no memory for %zu bytes", sizeof *device);
    *device = found;
    context->device = device;
    context->info.isa = found.arch;
    memcpy(context->info.name, properties.name, sizeof context->info.name - 1);
    return KF_OK;
}

static void close_device(kf_context *context) { kf_free(context->device); }

static kf_status (*const launches[KF_OP_COUNT])(const kf_op *op, char *workspace) = {
    [KF_OP_SOFTMAX] = kf_cuda_softmax_launch,
    [KF_OP_ATTENTION] = kf_cuda_attention_launch,
    [KF_OP_MERGE_STATES] = kf_cuda_merge_states_launch,
    [KF_OP_RMSNORM] = kf_cuda_rmsnorm_launch,
    [KF_OP_SWIGLU] = kf_cuda_swiglu_launch,
    [KF_OP_ROPE] = kf_cuda_rope_launch,
    [KF_OP_KV_APPEND] = kf_cuda_kv_append_launch,
    [KF_OP_EMBEDDING] = kf_cuda_embedding_launch,
    [KF_OP_LINEAR] = kf_cuda_linear_launch,
};

kf_status kf_cuda_enqueue(kf_op *const *ops, int64_t count, char *workspace) {
    kf_status status = KF_OK;
    for (int64_t i = 0; i < count && status == KF_OK; i++) status = launches[ops[i]->kind](ops[i], workspace);
    return status;
}

static kf_status run(const kf_context *context, kf_op *const *ops, int64_t count, char *workspace) {
    const kf_cuda_device *device = kf_cuda(context);
    int before = 0;
    KF_TRY(kf_cuda_enter(device, &before));
    const kf_status status = kf_cuda_enqueue(ops, count, workspace);
    kf_cuda_leave(device, before);
    return status;
}

// Both in the order of the stream: what was enqueued before still has its workspace.
static void *take_workspace(const kf_context *context, size_t bytes) {
    const kf_cuda_device *device = kf_cuda(context);
    void *memory = NULL;
    int before = 0;
    if (kf_cuda_enter(device, &before) != KF_OK) return NULL;
    if (cudaMallocAsync(&memory, bytes, device->stream) != cudaSuccess) {
        cudaGetLastError();
        memory = NULL;
    }
    kf_cuda_leave(device, before);
    return memory;
}

static void give_workspace(const kf_context *context, void *workspace) {
    const kf_cuda_device *device = kf_cuda(context);
    int before = 0;
    if (kf_cuda_enter(device, &before) != KF_OK) return;
    if (cudaFreeAsync(workspace, device->stream) != cudaSuccess) cudaGetLastError();
    kf_cuda_leave(device, before);
}

// The tables of support, one behind the other. What is here is whether there is a device.
static bool support(int32_t index, kf_support_row *row) {
    static bool (*const tables[])(int32_t index, kf_support_row * row) = {kf_cuda_attention_support,
                                                                          kf_cuda_rows_support, kf_cuda_linear_support};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        kf_support_row unused = {.size = sizeof unused};
        int32_t rows = 0;
        while (tables[i](rows, &unused)) rows++;
        if (index < rows) {
            int devices = 0;
            if (cudaGetDeviceCount(&devices) != cudaSuccess) cudaGetLastError();
            row->available = devices > 0;
            return tables[i](index, row);
        }
        index -= rows;
    }
    return false;
}

const kf_backend kf_backend_cuda = {
    .name = "cuda",
    .ops =
        {
            [KF_OP_SOFTMAX] = &kf_cuda_softmax_op,
            [KF_OP_ATTENTION] = &kf_cuda_attention_op,
            [KF_OP_MERGE_STATES] = &kf_cuda_merge_states_op,
            [KF_OP_RMSNORM] = &kf_cuda_rmsnorm_op,
            [KF_OP_SWIGLU] = &kf_cuda_swiglu_op,
            [KF_OP_ROPE] = &kf_cuda_rope_op,
            [KF_OP_KV_APPEND] = &kf_cuda_kv_append_op,
            [KF_OP_EMBEDDING] = &kf_cuda_embedding_op,
            [KF_OP_LINEAR] = &kf_cuda_linear_op,
        },
    .pack_weight_size = kf_cuda_pack_weight_size,
    .pack_weight = kf_cuda_pack_weight,
    .support = support,
    .open = open_device,
    .close = close_device,
    .run = run,
    .run_sequence = kf_cuda_sequence_run,
    .drop_sequence = kf_cuda_sequence_drop,
    .take_workspace = take_workspace,
    .give_workspace = give_workspace,
    .memory_allocate = kf_cuda_memory_allocate,
    .memory_free = kf_cuda_memory_free,
    .memory_copy = kf_cuda_memory_copy,
    .synchronize = kf_cuda_synchronize,
};
