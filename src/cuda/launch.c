// SPDX-License-Identifier: Apache-2.0
//
// One wrapper over cudaLaunchKernelEx, so that what a launch may need (dependent launch, clusters) is an attribute here and
// nowhere else.
#include "cuda/cuda.h"

kf_status kf_cuda_check(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return KF_OK;
    cudaGetLastError(); // the next call must not report this one again
    kf_status status = error == cudaErrorMemoryAllocation ? KF_OUT_OF_MEMORY : KF_DEVICE_ERROR;
    return kf_fail(status, "%s: %s (%s)", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

kf_status kf_cuda_enter(const kf_cuda_device *device, int *before) {
    KF_TRY(kf_cuda_check(cudaGetDevice(before), "cudaGetDevice"));
    return *before == device->id ? KF_OK : kf_cuda_check(cudaSetDevice(device->id), "cudaSetDevice");
}

void kf_cuda_leave(const kf_cuda_device *device, int before) {
    if (before != device->id) cudaSetDevice(before);
}

// The limit is one number of the kernel, whoever uses it: set to what an op needs, it would take from another op, planned
// before, what that one needs. So it is always what the device has beside the kernel's static shared memory.
static cudaError_t load_kernel(const kf_cuda_device *device, const void *function, int32_t shared) {
    struct cudaFuncAttributes attributes;
    int most = 0;
    cudaError_t error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device->id);
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, function);
    if (error != cudaSuccess) return error;
    most -= (int)attributes.sharedSizeBytes;
    return shared > most ? cudaErrorInvalidValue
                         : cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
}

kf_status kf_cuda_prepare_kernel(const kf_cuda_device *device, const void *function, int32_t shared, const char *what) {
    // Loading a kernel is not a stream's work and may happen while a stream of this thread is captured.
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    int before = 0;
    KF_TRY(kf_cuda_enter(device, &before));
    cudaError_t error = cudaThreadExchangeStreamCaptureMode(&mode);
    if (error == cudaSuccess) {
        error = load_kernel(device, function, shared);
        cudaThreadExchangeStreamCaptureMode(&mode);
    }
    kf_cuda_leave(device, before);
    return kf_cuda_check(error, what);
}

int kf_cuda_cluster_room(const void *function, int32_t threads, int32_t shared, int32_t cluster) {
    cudaLaunchAttribute attribute = {.id = cudaLaunchAttributeClusterDimension,
                                     .val.clusterDim = {(unsigned)cluster, 1, 1}};
    const cudaLaunchConfig_t config = {.gridDim = {(unsigned)cluster, 1, 1},
                                       .blockDim = {(unsigned)threads, 1, 1},
                                       .dynamicSmemBytes = (size_t)shared,
                                       .attrs = &attribute,
                                       .numAttrs = 1};
    int clusters = 0;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed; // as above
    if (cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess) return 0;
    const cudaError_t error = cudaOccupancyMaxActiveClusters(&clusters, function, &config);
    cudaThreadExchangeStreamCaptureMode(&mode);
    if (error == cudaSuccess) return clusters;
    cudaGetLastError(); // the next call must not report it
    return 0;
}

static _Thread_local cudaStream_t diverted;

cudaStream_t kf_cuda_stream(const kf_cuda_device *device) { return diverted ? diverted : device->stream; }

void kf_cuda_divert(cudaStream_t stream) { diverted = stream; }

void (*kf_cuda_launch_seen)(const void *function, int64_t threads);

kf_status kf_cuda_launch(const kf_cuda_device *device, const void *function, const kf_cuda_launch_shape *shape,
                         const void *argument, const char *what) {
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config = {.gridDim = {(unsigned)shape->blocks, 1, 1},
                                 .blockDim = {(unsigned)shape->threads, 1, 1},
                                 .dynamicSmemBytes = (size_t)shape->shared,
                                 .stream = kf_cuda_stream(device),
                                 .attrs = attributes};
    if (shape->dependent && kf_cuda_is_hopper(device) && !(device->launch & KF_LAUNCH_NO_DEPENDENT))
        attributes[config.numAttrs++] = (cudaLaunchAttribute){.id = cudaLaunchAttributeProgrammaticStreamSerialization,
                                                              .val.programmaticStreamSerializationAllowed = 1};
    if (shape->cluster > 1)
        attributes[config.numAttrs++] = (cudaLaunchAttribute){.id = cudaLaunchAttributeClusterDimension,
                                                              .val.clusterDim = {(unsigned)shape->cluster, 1, 1}};
    void *arguments[1] = {(void *)(uintptr_t)argument};
    if (kf_cuda_launch_seen) kf_cuda_launch_seen(function, shape->blocks * shape->threads);
    return kf_cuda_check(cudaLaunchKernelExC(&config, function, arguments), what);
}
