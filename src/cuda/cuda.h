// SPDX-License-Identifier: Apache-2.0
//
// The CUDA backend: what its host files share. The runtime (cudart) is linked statically and finds the driver when it is
// first asked, so the library loads on machines that have none; a context is refused there.
//
//     backend.c     contexts (device, stream), the ops, the table of support
//     sequence.c    a sequence as one graph
//     memory.c      the device's memory for callers, copies, waiting
//     launch.c      one wrapper for every launch, errors, the guard that puts the caller's device back
//     attention.c   the plan of an attention, the choice of a kernel from the table, its launches
//     rows.c        softmax, rmsnorm, swiglu, merge_states, embedding: the same; rope.c: rope, kv_append
//     linear.c      the plan of a linear layer, its launches; linear_pack.c: packing of weights on the host; linear_lt.c: cuBLASLt
//     *.cu, *.cuh   the kernels; a table of rows (kf_cuda_*_kernel) at the end of each file is all that the host sees
#ifndef KF_CUDA_CUDA_H
#define KF_CUDA_CUDA_H

#include <cuda_runtime_api.h>

#include "core/internal.h"

// What a context knows of its device; kf_context.device.
typedef struct kf_cuda_device {
    int id;
    int arch; // compute capability times ten, or what the context's options lowered it to
    int multiprocessors;
    int64_t l2_bytes;
    int32_t shared_limit; // bytes of shared memory a block may have on `arch`
    uint32_t launch;      // KF_LAUNCH_*
    cudaStream_t stream;  // the caller's. Work is put on kf_cuda_stream(), which may be another one
} kf_cuda_device;

// Whether the kernels' Hopper parts (clusters, dependent launch) are what runs: sm_90a's code serves compute capability 9.0
// alone; newer devices compile the PTX of compute_80.
static inline bool kf_cuda_is_hopper(const kf_cuda_device *device) { return device->arch == 90; }

static inline const kf_cuda_device *kf_cuda(const kf_context *context) {
    return (const kf_cuda_device *)context->device;
}

// KF_OK, or the status and the sentence for a failed call of the runtime. `what` names the call: "attention: launch".
kf_status kf_cuda_check(cudaError_t error, const char *what);

// Makes the context's device the thread's current one; *before is what kf_cuda_leave puts back.
kf_status kf_cuda_enter(const kf_cuda_device *device, int *before);
void kf_cuda_leave(const kf_cuda_device *device, int before);

typedef struct kf_cuda_launch_shape {
    int64_t blocks;
    int32_t threads, shared; // bytes of dynamic shared memory
    int32_t cluster;         // blocks of a cluster (Hopper); 0 or 1: none
    bool dependent;          // may begin while the kernel before it ends (Hopper): it waits for it on the device
} kf_cuda_launch_shape;

// When an op is planned: loads a kernel on the context's device, whichever is the current one, and allows it that one's shared memory, of
// which it needs `shared` bytes.
kf_status kf_cuda_prepare_kernel(const kf_cuda_device *device, const void *function, int32_t shared, const char *what);

// Where this thread's launches go: the context's stream, or the one that a sequence is captured on. An op that hands a stream
// to a library takes it from here, at every launch.
cudaStream_t kf_cuda_stream(const kf_cuda_device *device);
void kf_cuda_divert(cudaStream_t stream); // this thread's launches go there; NULL: to the contexts' streams again

// How many clusters of `cluster` blocks find room on the idle device at once, if each block has `shared` bytes of dynamic shared memory;
// 0 where that is not known. The kernel was prepared.
int kf_cuda_cluster_room(const void *function, int32_t threads, int32_t shared, int32_t cluster);

// `argument` points to the kernel's one parameter.
kf_status kf_cuda_launch(const kf_cuda_device *device, const void *function, const kf_cuda_launch_shape *shape,
                         const void *argument, const char *what);

// For a tool that wants to know which kernels its calls launch: called before each launch with its threads over all blocks. NULL:
// nobody asks. Set it while nothing is launched.
extern void (*kf_cuda_launch_seen)(const void *function, int64_t threads);

// Enqueues ops one after another. The device is the thread's current one.
kf_status kf_cuda_enqueue(kf_op *const *ops, int64_t count, char *workspace); // backend.c

// sequence.c: kf_backend's run_sequence and drop_sequence.
kf_status kf_cuda_sequence_run(const kf_context *context, kf_op *const *ops, int64_t count, char *workspace,
                               bool changed, void **kept);
void kf_cuda_sequence_drop(const kf_context *context, void *kept);

// memory.c: kf_memory_* and kf_context_synchronize.
kf_status kf_cuda_memory_allocate(const kf_context *context, size_t bytes, bool host, void **memory);
void kf_cuda_memory_free(const kf_context *context, bool host, void *memory);
kf_status kf_cuda_memory_copy(const kf_context *context, void *destination, const void *source, size_t bytes);
kf_status kf_cuda_synchronize(const kf_context *context);

// An operation of the backend: its plan, and what enqueues it.
extern const kf_backend_op kf_cuda_attention_op; // attention.c
kf_status kf_cuda_attention_launch(const kf_op *op, char *workspace);
// Row `index` of the attention kernels' table of support, `available` left out.
bool kf_cuda_attention_support(int32_t index, kf_support_row *row);

// rows.c, rope.c
extern const kf_backend_op kf_cuda_softmax_op, kf_cuda_merge_states_op, kf_cuda_rmsnorm_op, kf_cuda_swiglu_op,
    kf_cuda_rope_op, kf_cuda_kv_append_op, kf_cuda_embedding_op;
kf_status kf_cuda_softmax_launch(const kf_op *op, char *workspace);
kf_status kf_cuda_merge_states_launch(const kf_op *op, char *workspace);
kf_status kf_cuda_rmsnorm_launch(const kf_op *op, char *workspace);
kf_status kf_cuda_swiglu_launch(const kf_op *op, char *workspace);
kf_status kf_cuda_rope_launch(const kf_op *op, char *workspace);
kf_status kf_cuda_kv_append_launch(const kf_op *op, char *workspace);
kf_status kf_cuda_embedding_launch(const kf_op *op, char *workspace);
bool kf_cuda_rows_support(int32_t index, kf_support_row *row); // likewise
// linear.c, linear_pack.c
extern const kf_backend_op kf_cuda_linear_op;
kf_status kf_cuda_linear_launch(const kf_op *op, char *workspace);
bool kf_cuda_linear_support(int32_t index, kf_support_row *row);
kf_status kf_cuda_pack_weight_size(const kf_context *context, const kf_weight *weight, size_t *bytes);
kf_status kf_cuda_pack_weight(const kf_context *context, const kf_weight *weight, void *destination, size_t bytes,
                              kf_weight *packed);
kf_status kf_cuda_packed_check(const kf_weight *weight);      // that it was packed here and is whole
void kf_cuda_pack_rows(const kf_weight *weight, uint8_t *to); // what comes behind the header

#endif
