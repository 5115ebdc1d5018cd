// SPDX-License-Identifier: Apache-2.0
//
// kf_memory_allocate, kf_memory_free, kf_memory_copy, kf_context_synchronize: checked here, done by the context's backend;
// on the CPU, which has no hooks for them, by the heap and memcpy.
#include "core/internal.h"

#include <string.h>

kf_status kf_memory_allocate(const kf_context *context, size_t bytes, void **memory) {
    if (!memory) return kf_fail(KF_INVALID_ARGUMENT, "memory_allocate: memory is NULL");
    *memory = NULL;
    if (!context) return kf_fail(KF_INVALID_ARGUMENT, "memory_allocate: context is NULL");
    if (context->backend->memory_allocate) return context->backend->memory_allocate(context, bytes, memory);
    *memory = kf_alloc(bytes);
    return *memory ? KF_OK : kf_fail(KF_OUT_OF_MEMORY, "memory_allocate: no memory for %zu bytes", bytes);
}

void kf_memory_free(const kf_context *context, void *memory) {
    if (!context || !memory) return;
    if (context->backend->memory_free)
        context->backend->memory_free(context, memory);
    else
        kf_free(memory);
}

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
