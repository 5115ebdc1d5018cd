// SPDX-License-Identifier: Apache-2.0
// Memory where the model computes: the heap on the CPU, the context's device otherwise. llama.c and llama_step.c call it.
#define _DEFAULT_SOURCE // madvise
#include "model/llama_internal.h"

#include <string.h>
#include <sys/mman.h>

// Large blocks ask for large pages: a step streams through all weights.
enum { HUGE_PAGE = 2 << 20 };

static void *allocate_on_cpu(size_t bytes) {
    size_t alignment = bytes >= HUGE_PAGE ? HUGE_PAGE : KFM_ALIGNMENT;
    void *memory = kfm_alloc_aligned(bytes, alignment);
#ifdef MADV_HUGEPAGE
    if (memory != NULL && alignment == HUGE_PAGE)
        madvise(memory, bytes, MADV_HUGEPAGE); // advice: where it is not taken, all works as well
#endif
    return memory;
}

void *kfm_llama_allocate(const kfm_llama *m, size_t bytes, kfm_error *error) {
    void *memory = NULL;
    if (!kfm_llama_on_device(m))
        memory = allocate_on_cpu(bytes);
    else if (kf_memory_allocate(m->context, bytes, &memory) != KF_OK)
        memory = NULL;
    if (memory == NULL) kfm_set_error(error, "out of memory for %zu bytes", bytes);
    return memory;
}

void kfm_llama_free(const kfm_llama *m, void *memory) {
    if (kfm_llama_on_device(m))
        kf_memory_free(m->context, memory);
    else
        kfm_free(memory);
}

bool kfm_llama_reserve(const kfm_llama *m, void **memory, size_t *held, size_t bytes, kfm_error *error) {
    if (bytes <= *held && *memory != NULL) return true;
    void *grown = kfm_llama_allocate(m, bytes, error);
    if (grown == NULL) return false;
    kfm_llama_free(m, *memory);
    *memory = grown;
    *held = bytes;
    return true;
}

bool kfm_llama_copy(const kfm_llama *m, void *to, const void *from, size_t bytes, kfm_error *error) {
    if (kfm_llama_on_device(m))
        return kf_memory_copy(m->context, to, from, bytes) == KF_OK || kfm_fail(error, "%s", kf_last_error());
    if (bytes > 0) memcpy(to, from, bytes);
    return true;
}
