// SPDX-License-Identifier: Apache-2.0
//
// kf_memory_allocate, kf_memory_free, the same of the host, kf_memory_copy, kf_context_synchronize: checked here, done by the
// context's backend; on the CPU, which has no hooks for them, by the heap and memcpy.
#include "core/internal.h"

#include <string.h>

static kf_status allocate(const kf_context *context, size_t bytes, void **memory, const char *what, bool host) {
    if (!memory) return kf_fail(KF_INVALID_ARGUMENT, "%s: memory is NULL", what);
    *memory = NULL;
    if (!context) return kf_fail(KF_INVALID_ARGUMENT, "%s: context is NULL", what);
    if (context->backend->memory_allocate) return context->backend->memory_allocate(context, bytes, host, memory);
    *memory = kf_alloc(bytes);
    return *memory ? KF_OK : kf_fail(KF_OUT_OF_MEMORY, "%s: no memory for %zu bytes", what, bytes);
}

static void release(const kf_context *context, void *memory, bool host) {
    if (!context || !memory) return;
    if (context->backend->memory_free)
        context->backend->memory_free(context, host, memory);
    else
        kf_free(memory);
}

kf_status kf_memory_allocate(const kf_context *context, size_t bytes, void **memory) {
    return allocate(context, bytes, memory, "memory_allocate", false);
}

void kf_memory_free(const kf_context *context, void *memory) { release(context, memory, false); }

kf_status kf_memory_allocate_host(const kf_context *context, size_t bytes, void **memory) {
    return allocate(context, bytes, memory, "memory_allocate_host", true);
}

void kf_memory_free_host(const kf_context *context, void *memory) { release(context, memory, true); }

kf_status kf_memory_copy(const kf_context *context, void *destination, const void *source, size_t bytes) {
    if (!context) return kf_fail(KF_INVALID_ARGUMENT, "memory_copy: context is NULL");
    if (bytes == 0) return KF_OK;
    if (!destination || !source)
        return kf_fail(KF_INVALID_ARGUMENT, "memory_copy: %s is NULL", destination ? "source" : "destination");
    const uintptr_t to = (uintptr_t)destination, from = (uintptr_t)source;
    if (to < from ? from - to < bytes : to - from < bytes)
        return kf_fail(KF_INVALID_ARGUMENT, "memory_copy: source and destination overlap; they must be apart");
    if (context->backend->memory_copy) return context->backend->memory_copy(context, destination, source, bytes);
    memcpy(destination, source, bytes);
    return KF_OK;
}

kf_status kf_context_synchronize(const kf_context *context) {
    if (!context) return kf_fail(KF_INVALID_ARGUMENT, "context_synchronize: context is NULL");
    return context->backend->synchronize ? context->backend->synchronize(context) : KF_OK;
}
