// SPDX-License-Identifier: Apache-2.0
//
// A sequence on CUDA: its launches as one graph, whose edges are those of dependent launch wherever the kernels take it.
//
//     made      by capturing the ops' own launches on a stream of its own, so that what an op does is written once, and
//               libraries' kernels come in too
//     run       one cudaGraphLaunch: some 5 us of the host's time, where each launch of its own takes 2
//     changed   captured anew; the executable graph takes the new parameters where only these differ (cudaGraphExecUpdate),
//               else it is instantiated anew. Runs that are on their way keep what they were launched with
//
// Ops share one workspace. That is safe although a kernel may begin before the one before has ended: before it touches what
// another kernel writes, every kernel waits, and it waits for a kernel that has waited for all before it.
//
// Nothing here waits for the device. core/sequence.c calls it.
#include "cuda/cuda.h"

typedef struct sequence_graph {
    cudaGraphExec_t executable; // NULL: not made yet
    bool stale;                 // it is of other ops, tensors or workspace than the sequence's now
} sequence_graph;

// The ops' launches as a graph. Errors of a launch are reported by its op; the capture is ended in any case.
static kf_status capture_on(cudaStream_t stream, kf_op *const *ops, int64_t count, char *workspace,
                            cudaGraph_t *graph) {
    KF_TRY(kf_cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "sequence: capture"));
    kf_cuda_divert(stream);
    kf_status status = kf_cuda_enqueue(ops, count, workspace);
    kf_cuda_divert(NULL);
    const cudaError_t ended = cudaStreamEndCapture(stream, graph);
    if (status == KF_OK) return kf_cuda_check(ended, "sequence: end of the capture");
    cudaGetLastError();
    if (ended == cudaSuccess && *graph) cudaGraphDestroy(*graph);
    return status;
}

static kf_status capture(kf_op *const *ops, int64_t count, char *workspace, cudaGraph_t *graph) {
    cudaStream_t stream = NULL;
    KF_TRY(
        kf_cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "sequence: stream for the capture"));
    const kf_status status = capture_on(stream, ops, count, workspace, graph);
    cudaStreamDestroy(stream);
    return status;
}

// Makes s->executable what `graph` is.
static kf_status take_graph(sequence_graph *s, cudaGraph_t graph) {
    if (s->executable) {
        cudaGraphExecUpdateResultInfo result;
        if (cudaGraphExecUpdate(s->executable, graph, &result) == cudaSuccess) return KF_OK;
        cudaGetLastError();                  // another number of kernels, or another kernel: made anew
        cudaGraphExecDestroy(s->executable); // runs on their way keep what they need
        s->executable = NULL;
    }
    return kf_cuda_check(cudaGraphInstantiate(&s->executable, graph, 0), "sequence: cudaGraphInstantiate");
}

static kf_status make(sequence_graph *s, kf_op *const *ops, int64_t count, char *workspace) {
    // Nothing of it is the work of a stream that this or another thread may be capturing meanwhile.
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    KF_TRY(kf_cuda_check(cudaThreadExchangeStreamCaptureMode(&mode), "sequence: capture mode"));
    cudaGraph_t graph = NULL;
    kf_status status = capture(ops, count, workspace, &graph);
    if (status == KF_OK) {
        status = take_graph(s, graph);
        cudaGraphDestroy(graph);
    }
    cudaThreadExchangeStreamCaptureMode(&mode);
    s->stale = status != KF_OK;
    return status;
}

static kf_status run(const kf_cuda_device *device, kf_op *const *ops, int64_t count, char *workspace, bool changed,
                     void **kept) {
    enum cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    sequence_graph *s = *kept;
    if (s) s->stale |= changed;
    if (device->launch & KF_LAUNCH_NO_GRAPH) return kf_cuda_enqueue(ops, count, workspace);
    KF_TRY(kf_cuda_check(cudaStreamIsCapturing(device->stream, &capturing), "sequence: the context's stream"));
    if (capturing != cudaStreamCaptureStatusNone) return kf_cuda_enqueue(ops, count, workspace);
    if (!s) {
        s = kf_alloc(sizeof *s);
        if (!s) return kf_fail(KF_OUT_OF_MEMORY, "sequence_run: no memory for %zu bytes", sizeof *s);
        *s = (sequence_graph){.stale = true};
        *kept = s;
    }
    if (s->stale) KF_TRY(make(s, ops, count, workspace));
    return kf_cuda_check(cudaGraphLaunch(s->executable, device->stream), "sequence: cudaGraphLaunch");
}

kf_status kf_cuda_sequence_run(const kf_context *context, kf_op *const *ops, int64_t count, char *workspace,
                               bool changed, void **kept) {
    const kf_cuda_device *device = kf_cuda(context);
    int before = 0;
    KF_TRY(kf_cuda_enter(device, &before));
    const kf_status status = run(device, ops, count, workspace, changed, kept);
    kf_cuda_leave(device, before);
    return status;
}

void kf_cuda_sequence_drop(const kf_context *context, void *kept) {
    sequence_graph *s = kept;
    int before = 0;
    if (s->executable && kf_cuda_enter(kf_cuda(context), &before) == KF_OK) {
        if (cudaGraphExecDestroy(s->executable) != cudaSuccess) cudaGetLastError();
        kf_cuda_leave(kf_cuda(context), before);
    }
    kf_free(s);
}
