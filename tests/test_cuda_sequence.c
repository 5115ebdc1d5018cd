// SPDX-License-Identifier: Apache-2.0
//
// When a sequence on CUDA makes its graph, keeps it, and makes it anew; that it enqueues plain launches where the caller captures;
// that nothing is left behind after a failure. The runtime is a stand-in here, which counts: src/cuda/sequence.c is compiled into
// this test, so that it runs on machines without a device. What the graphs compute, verify asks on a device.
#if __has_include(<cuda_runtime_api.h>)
// The stand-ins have names of their own: the library, with the runtime in it, is linked too.
#define cudaStreamCreateWithFlags stand_in_cudaStreamCreateWithFlags
#define cudaStreamDestroy stand_in_cudaStreamDestroy
#define cudaStreamIsCapturing stand_in_cudaStreamIsCapturing
#define cudaStreamBeginCapture stand_in_cudaStreamBeginCapture
#define cudaStreamEndCapture stand_in_cudaStreamEndCapture
#define cudaGraphDestroy stand_in_cudaGraphDestroy
#define cudaGraphInstantiate stand_in_cudaGraphInstantiate
#define cudaGraphExecUpdate stand_in_cudaGraphExecUpdate
#define cudaGraphExecDestroy stand_in_cudaGraphExecDestroy
#define cudaGraphLaunch stand_in_cudaGraphLaunch
#define cudaGetLastError stand_in_cudaGetLastError
#define cudaThreadExchangeStreamCaptureMode stand_in_cudaThreadExchangeStreamCaptureMode
#define kf_cuda_check stand_in_kf_cuda_check
#define kf_cuda_enter stand_in_kf_cuda_enter
#define kf_cuda_leave stand_in_kf_cuda_leave
#define kf_cuda_divert stand_in_kf_cuda_divert
#define kf_cuda_enqueue stand_in_kf_cuda_enqueue
#define kf_cuda_sequence_run stand_in_kf_cuda_sequence_run
#define kf_cuda_sequence_drop stand_in_kf_cuda_sequence_drop
#include "cuda/sequence.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

// ---- the stand-in ----

static struct counts {
    int streams, captures, graphs, executables; // alive
    int enqueued, instantiated, updated, launched;
    int enqueued_elsewhere; // launches that did not go to the context's stream
} n;
static bool caller_captures, update_fails, instantiate_fails, op_fails;
static cudaStream_t diverted;
static int object; // every handle points to it
static kf_cuda_device device;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    assert_int_equal(flags, cudaStreamNonBlocking);
    *stream = (cudaStream_t)(void *)&object;
    n.streams++;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    assert_ptr_equal(stream, &object);
    n.streams--;
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    assert_ptr_equal(stream, device.stream);
    *status = caller_captures ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    assert_ptr_equal(stream, &object);
    assert_int_equal(mode, cudaStreamCaptureModeRelaxed);
    n.captures++;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    assert_ptr_equal(stream, &object);
    *graph = (cudaGraph_t)(void *)&object;
    n.captures--;
    n.graphs++;
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    assert_ptr_equal(graph, &object);
    n.graphs--;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags) {
    (void)graph, (void)flags;
    if (instantiate_fails) return cudaErrorMemoryAllocation;
    *executable = (cudaGraphExec_t)(void *)&object;
    n.executables++;
    n.instantiated++;
    return cudaSuccess;
}
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t executable, cudaGraph_t graph, cudaGraphExecUpdateResultInfo *result) {
    (void)executable, (void)graph, (void)result;
    if (update_fails) return cudaErrorGraphExecUpdateFailure;
    n.updated++;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    assert_ptr_equal(executable, &object);
    n.executables--;
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    assert_ptr_equal(executable, &object);
    assert_ptr_equal(stream, device.stream);
    n.launched++;
    return cudaSuccess;
}
cudaError_t cudaGetLastError(void) { return cudaSuccess; }

static enum cudaStreamCaptureMode thread_mode;
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    const enum cudaStreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return cudaSuccess;
}

// Of launch.c and backend.c.
kf_status kf_cuda_check(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return KF_OK;
    return kf_fail(error == cudaErrorMemoryAllocation ? KF_OUT_OF_MEMORY : KF_DEVICE_ERROR, "%s", what);
}
kf_status kf_cuda_enter(const kf_cuda_device *of, int *before) {
    assert_ptr_equal(of, &device);
    *before = 0;
    return KF_OK;
}
void kf_cuda_leave(const kf_cuda_device *of, int before) { assert_true(of == &device && before == 0); }
void kf_cuda_divert(cudaStream_t stream) { diverted = stream; }
kf_status kf_cuda_enqueue(kf_op *const *ops, int64_t count, char *workspace) {
    (void)ops, (void)workspace;
    if (op_fails) return kf_fail(KF_DEVICE_ERROR, "the op's own sentence");
    n.enqueued += (int)count;
    if (diverted) n.enqueued_elsewhere += (int)count;
    return KF_OK;
}

// ---- the tests ----

static kf_context context;
static kf_op *ops[3];
static void *kept;

static kf_status run_once(bool changed) {
    const kf_status status = kf_cuda_sequence_run(&context, ops, 3, NULL, changed, &kept);
    assert_null(diverted);
    assert_int_equal(thread_mode, cudaStreamCaptureModeGlobal);
    assert_true(n.streams == 0 && n.captures == 0 && n.graphs == 0);
    return status;
}

static int set_up(void **state) {
    (void)state;
    memset(&n, 0, sizeof n);
    caller_captures = update_fails = instantiate_fails = op_fails = false;
    thread_mode = cudaStreamCaptureModeGlobal;
    device = (kf_cuda_device){.stream = (cudaStream_t)(void *)&device};
    context.device = &device;
    kept = NULL;
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    if (kept) kf_cuda_sequence_drop(&context, kept);
    assert_int_equal(n.executables, 0);
    return 0;
}

static void a_graph_is_made_once(void **state) {
    (void)state;
    assert_int_equal(run_once(true), KF_OK);
    for (int i = 0; i < 5; i++) assert_int_equal(run_once(false), KF_OK);
    assert_int_equal(n.enqueued_elsewhere, 3);
    assert_int_equal(n.enqueued, 3);
    assert_int_equal(n.instantiated, 1);
    assert_int_equal(n.launched, 6);
}

static void a_change_updates_it(void **state) {
    (void)state;
    assert_int_equal(run_once(true), KF_OK);
    assert_int_equal(run_once(true), KF_OK);
    assert_int_equal(n.updated, 1);
    assert_int_equal(n.instantiated, 1);
    update_fails = true;
    assert_int_equal(run_once(true), KF_OK);
    assert_int_equal(n.instantiated, 2);
    assert_int_equal(n.executables, 1);
    assert_int_equal(n.launched, 3);
}

static void the_callers_capture_takes_launches(void **state) {
    (void)state;
    caller_captures = true;
    assert_int_equal(run_once(true), KF_OK); // a first call
    assert_null(kept);
    assert_int_equal(n.enqueued, 3);
    assert_int_equal(n.enqueued_elsewhere + n.instantiated + n.launched, 0);
    caller_captures = false;
    assert_int_equal(run_once(false), KF_OK); // nothing changed since, and yet it must be made
    assert_int_equal(n.instantiated, 1);
    caller_captures = true;
    assert_int_equal(run_once(true), KF_OK); // what changed while the caller captured ...
    caller_captures = false;
    assert_int_equal(run_once(false), KF_OK); // ... is made up for
    assert_int_equal(n.updated, 1);
    assert_int_equal(n.launched, 2);
}

static void a_failure_leaves_nothing(void **state) {
    (void)state;
    op_fails = true;
    assert_int_equal(run_once(true), KF_DEVICE_ERROR);
    assert_string_equal(kf_last_error(), "the op's own sentence");
    op_fails = false;
    instantiate_fails = true;
    assert_int_equal(run_once(true), KF_OUT_OF_MEMORY);
    instantiate_fails = false;
    assert_int_equal(run_once(true), KF_OK);
    update_fails = instantiate_fails = true;
    assert_int_equal(run_once(true), KF_OUT_OF_MEMORY);
    assert_int_equal(n.executables, 0);
    instantiate_fails = false;
    assert_int_equal(run_once(true), KF_OK);
    assert_int_equal(n.launched, 2);
}

static void without_graphs_ops_are_launched(void **state) {
    (void)state;
    device.launch = KF_LAUNCH_NO_GRAPH;
    assert_int_equal(run_once(true), KF_OK);
    assert_int_equal(run_once(false), KF_OK);
    assert_int_equal(n.enqueued, 6);
    assert_int_equal(n.instantiated + n.launched + n.enqueued_elsewhere, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_graph_is_made_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_change_updates_it, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_callers_capture_takes_launches, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_failure_leaves_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(without_graphs_ops_are_launched, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include <stdio.h>

int main(void) {
    puts("skip: CUDA's headers are not here");
    return 77;
}
#endif
