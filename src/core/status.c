// SPDX-License-Identifier: Apache-2.0
//
// Status, the thread's last error, memory, version: what every other file leans on.
#include "core/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char last_error[512];

// In brackets, for the analyzer has a macro of this name (internal.h).
kf_status(kf_fail)(kf_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}

const char *kf_last_error(void) { return last_error; }

const char *kf_version_string(void) { return KF_VERSION; }

const char *kf_status_string(kf_status status) {
    switch (status) {
    case KF_OK: return "KF_OK";
    case KF_INVALID_ARGUMENT: return "KF_INVALID_ARGUMENT";
    case KF_UNSUPPORTED: return "KF_UNSUPPORTED";
    case KF_OUT_OF_MEMORY: return "KF_OUT_OF_MEMORY";
    case KF_NO_DEVICE: return "KF_NO_DEVICE";
    case KF_DEVICE_ERROR: return "KF_DEVICE_ERROR";
    }
    return "unknown status";
}

const char *kf_isa_string(int isa) {
    static const char *const names[] = {"auto", "scalar", "avx2", "avx512", "avx512bf16"};
    return isa >= 0 && isa < (int)(sizeof names / sizeof *names) ? names[isa] : "unknown";
}

const char *kf_op_kind_string(int kind) {
    return kind > KF_OP_NONE && kind < KF_OP_COUNT ? kf_op_classes[kind]->name : "unknown";
}

void *kf_alloc(size_t bytes) {
    void *memory = NULL;
    if (bytes > SIZE_MAX - 64) return NULL;
    return posix_memalign(&memory, 64, bytes ? bytes : 64) == 0 ? memory : NULL;
}

void kf_free(void *memory) { free(memory); }
