// SPDX-License-Identifier: Apache-2.0
//
// Streams and graphs for the tools: see runtime.h.
#include "runtime.h"

#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>

#include <stdio.h>

static char sentence[256];

const char *kft_cuda_error(void) { return sentence; }

static kf_status status_of(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return KF_OK;
    cudaGetLastError();
    snprintf(sentence, sizeof sentence, "%s: %s", what, cudaGetErrorString(error));
    return error == cudaErrorMemoryAllocation ? KF_OUT_OF_MEMORY : KF_DEVICE_ERROR;
}

int kft_cuda_device_count(void) {
    int count = 0;
    return status_of(cudaGetDeviceCount(&count), "cudaGetDeviceCount") == KF_OK ? count : 0;
}

int kft_cuda_current_device(void) {
    int device = -1;
    return cudaGetDevice(&device) == cudaSuccess ? device : -1;
}

void kft_cuda_use_device(int device) { (void)cudaSetDevice(device); }

void *kft_cuda_stream(void) {
    cudaStream_t stream = NULL;
    const cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    return status_of(error, "cudaStreamCreate") == KF_OK ? stream : NULL;
}

void kft_cuda_stream_destroy(void *stream) {
    if (stream) cudaStreamDestroy((cudaStream_t)stream);
}

void kft_cuda_profiler(bool on) { (void)(on ? cudaProfilerStart() : cudaProfilerStop()); }

kf_status kft_cuda_capture(void *stream, kf_status (*enqueue)(void *argument), void *argument, void **graph) {
    cudaGraph_t captured = NULL;
    cudaGraphExec_t made = NULL;
    *graph = NULL;
    sentence[0] = 0;
    kf_status status =
        status_of(cudaStreamBeginCapture((cudaStream_t)stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
    if (status != KF_OK) return status;
    status = enqueue(argument);
    const cudaError_t ended = cudaStreamEndCapture((cudaStream_t)stream, &captured);
    if (status == KF_OK) status = status_of(ended, "cudaStreamEndCapture");
    if (status == KF_OK) status = status_of(cudaGraphInstantiateWithFlags(&made, captured, 0), "cudaGraphInstantiate");
    if (captured) cudaGraphDestroy(captured);
    cudaGetLastError();
    *graph = made;
    return status;
}

kf_status kft_cuda_graph_launch(void *graph, void *stream) {
    return status_of(cudaGraphLaunch((cudaGraphExec_t)graph, (cudaStream_t)stream), "cudaGraphLaunch");
}

void kft_cuda_graph_destroy(void *graph) {
    if (graph) cudaGraphExecDestroy((cudaGraphExec_t)graph);
}
