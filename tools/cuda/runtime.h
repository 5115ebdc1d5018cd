// SPDX-License-Identifier: Apache-2.0
//
// What the tools need of the CUDA runtime beside keyfold's own header: streams and graphs. Built where the CUDA backend is; streams and
// graphs are void * here, so that no tool needs the toolkit's headers. A status that is not KF_OK comes with a sentence in
// kft_cuda_error().
#ifndef KF_TOOLS_CUDA_RUNTIME_H
#define KF_TOOLS_CUDA_RUNTIME_H

#include "keyfold.h"

const char *kft_cuda_error(void);

int kft_cuda_device_count(void);
int kft_cuda_current_device(void); // -1: an error
void kft_cuda_use_device(int device);

// On the current device; NULL where none can be made. It doesn't wait for the legacy default stream.
void *kft_cuda_stream(void);
void kft_cuda_stream_destroy(void *stream);

// Notes the kernels of the backend that are launched from now on as those of `name`, which is copied.
void kft_cuda_watch_kernels(const char *name);
// A line for each kernel: "kernel THREADS NAME KERNEL", NAME being the one with the fewest threads over all blocks; cases without keys, rows or
// outputs, and those of many kernels, where nothing else launches it.
void kft_cuda_print_kernels(void);

// The marks between which a profiler looks.
void kft_cuda_profiler(bool on);

// Captures what `enqueue` puts on the stream into *graph, ready to be launched. enqueue's own status is returned where it isn't KF_OK.
kf_status kft_cuda_capture(void *stream, kf_status (*enqueue)(void *argument), void *argument, void **graph);
kf_status kft_cuda_graph_launch(void *graph, void *stream);
void kft_cuda_graph_destroy(void *graph); // NULL is ignored

#endif
