// SPDX-License-Identifier: Apache-2.0
//
// The device's memory and pinned memory of the host for callers, copies and waiting: kf_memory_* and kf_context_synchronize on
// CUDA. Nothing here is on the path of a run.
#include "cuda/cuda.h"

// A wait inside a capture would make the capture invalid, so it is refused before the runtime is asked.
static kf_status refuse_capture(const kf_cuda_device *device, const char *what) {
    enum cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
    const cudaError_t error = cudaStreamIsCapturing(device->stream, &state);
    if (error != cudaErrorStreamCaptureImplicit) KF_TRY(kf_cuda_check(error, what));
    if (error == cudaSuccess && state == cudaStreamCaptureStatusNone) return KF_OK;
    cudaGetLastError();
    return kf_fail(KF_INVALID_ARGUMENT, "%s: the context's stream is being captured; a wait cannot be part of a graph",
                   what);
}

// Memory is not the stream's work: a capture of this or another thread does not forbid it.
kf_status kf_cuda_memory_allocate(const kf_context *context, size_t bytes, bool host, void **memory) {
    const char *what = host ? "memory_allocate_host" : "memory_allocate";
    const size_t some = bytes ? bytes : 1;
    const kf_cuda_device *device = kf_cuda(context);
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    int before = 0;
    KF_TRY(kf_cuda_enter(device, &before));
    kf_status status = kf_cuda_check(cudaThreadExchangeStreamCaptureMode(&mode), what);
    if (status == KF_OK) {
        status =
            kf_cuda_check(host ? cudaHostAlloc(memory, some, cudaHostAllocPortable) : cudaMalloc(memory, some), what);
        cudaThreadExchangeStreamCaptureMode(&mode);
    }
    kf_cuda_leave(device, before);
    return status;
}

void kf_cuda_memory_free(const kf_context *context, bool host, void *memory) {
    const kf_cuda_device *device = kf_cuda(context);
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    int before = 0;
    if (kf_cuda_enter(device, &before) != KF_OK) return;
    cudaThreadExchangeStreamCaptureMode(&mode);
    if ((host ? cudaFreeHost(memory) : cudaFree(memory)) != cudaSuccess) cudaGetLastError();
    cudaThreadExchangeStreamCaptureMode(&mode);
    kf_cuda_leave(device, before);
}

static kf_status copy_and_wait(const kf_cuda_device *device, void *destination, const void *source, size_t bytes) {
    KF_TRY(refuse_capture(device, "memory_copy"));
    KF_TRY(
        kf_cuda_check(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, device->stream), "memory_copy"));
    return kf_cuda_check(cudaStreamSynchronize(device->stream), "memory_copy");
}

kf_status kf_cuda_memory_copy(const kf_context *context, void *destination, const void *source, size_t bytes) {
    const kf_cuda_device *device = kf_cuda(context);
    int before = 0;
    KF_TRY(kf_cuda_enter(device, &before));
    const kf_status status = copy_and_wait(device, destination, source, bytes);
    kf_cuda_leave(device, before);
    return status;
}

kf_status kf_cuda_synchronize(const kf_context *context) {
    const kf_cuda_device *device = kf_cuda(context);
    int before = 0;
    KF_TRY(kf_cuda_enter(device, &before));
    kf_status status = refuse_capture(device, "context_synchronize");
    if (status == KF_OK) status = kf_cuda_check(cudaStreamSynchronize(device->stream), "context_synchronize");
    kf_cuda_leave(device, before);
    return status;
}
