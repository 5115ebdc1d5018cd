// SPDX-License-Identifier: Apache-2.0
//
// Contexts: which device, which kernels, which team of threads. Also the table of op classes and kf_support.
#define _GNU_SOURCE // sched_getaffinity
#include "core/parse.h"
#include "cpu/cpu.h"

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum { MOST_THREADS = 1024 };

const kf_op_class *const kf_op_classes[KF_OP_COUNT] = {
    [KF_OP_SOFTMAX] = &kf_softmax_class,
    [KF_OP_ATTENTION] = &kf_attention_class,
    [KF_OP_MERGE_STATES] = &kf_merge_states_class,
    [KF_OP_RMSNORM] = &kf_rmsnorm_class,
    [KF_OP_SWIGLU] = &kf_swiglu_class,
    [KF_OP_ROPE] = &kf_rope_class,
    [KF_OP_KV_APPEND] = &kf_kv_append_class,
    [KF_OP_EMBEDDING] = &kf_embedding_class,
    [KF_OP_LINEAR] = &kf_linear_class,
};

void kf_context_options_init(kf_context_options *options) {
    if (!options) return;
    memset(options, 0, sizeof *options);
    options->size = (uint32_t)sizeof *options;
    options->device.type = KF_DEVICE_CPU;
}

kf_isa kf_cpu_isa(void) { return kf_cpu_detect(); }

// KEYFOLD_ISA lowers what CPUID reports; it cannot raise it.
static kf_status automatic_isa(kf_isa *isa) {
    *isa = kf_cpu_detect();
    const char *name = getenv("KEYFOLD_ISA");
    if (!name || !*name) return KF_OK;
    for (int i = KF_ISA_SCALAR; i <= KF_ISA_AVX512BF16; i++)
        if (strcmp(name, kf_isa_string(i)) == 0) {
            if (i < (int)*isa) *isa = (kf_isa)i;
            return KF_OK;
        }
    return kf_fail(
        KF_INVALID_ARGUMENT,
        "context: the environment variable KEYFOLD_ISA is \"%.32s\"; allowed: scalar, avx2, avx512, avx512bf16", name);
}

static kf_status choose_isa(int32_t asked, kf_isa *isa) {
    if (asked == KF_ISA_AUTO) return automatic_isa(isa);
    if (asked < KF_ISA_SCALAR || asked > KF_ISA_AVX512BF16)
        return kf_fail(KF_INVALID_ARGUMENT, "context: isa is %d; allowed: 0 (auto) to %d", (int)asked,
                       KF_ISA_AVX512BF16);
    if (asked > (int)kf_cpu_detect())
        return kf_fail(KF_UNSUPPORTED, "context: isa is %s; this CPU and build have %s", kf_isa_string(asked),
                       kf_isa_string(kf_cpu_detect()));
    *isa = (kf_isa)asked;
    return KF_OK;
}

static int32_t usable_threads(void) {
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
#endif
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 && online <= MOST_THREADS ? (int32_t)online : 1;
}

static void cpu_name(char name[64]) {
    strcpy(name, "CPU");
#if defined(__x86_64__)
    unsigned r[12];
    if ((unsigned)__get_cpuid_max(0x80000000, NULL) < 0x80000004) return;
    for (unsigned i = 0; i < 3; i++)
        __get_cpuid(0x80000002 + i, &r[4 * i], &r[4 * i + 1], &r[4 * i + 2], &r[4 * i + 3]);
    memcpy(name, r, 48);
    name[48] = 0;
    for (size_t n = strlen(name); n && name[n - 1] == ' '; n--) name[n - 1] = 0;
#endif
}

static kf_status read_options(const kf_context_options *given, kf_context_options *out) {
    kf_context_options_init(out);
    if (!given) return KF_OK;
    const uint32_t first_size = offsetof(kf_context_options, launch); // as it was first published
    if ((given->size != first_size && given->size < sizeof *given) || given->size > 4096)
        return kf_fail(KF_INVALID_ARGUMENT, "context: the options struct's size is %u; published: %u, %zu", given->size,
                       first_size, sizeof *given);
    for (uint32_t i = (uint32_t)sizeof *given; i < given->size; i++)
        if (((const char *)given)[i])
            return kf_fail(KF_UNSUPPORTED, "context: an option after byte %u is set; this version knows %zu bytes", i,
                           sizeof *given);
    memcpy(out, given, given->size < sizeof *out ? given->size : sizeof *out);
    if (out->threads < 0 || out->threads > MOST_THREADS)
        return kf_fail(KF_INVALID_ARGUMENT, "context: threads is %d; allowed: 0 (all) to %d", (int)out->threads,
                       MOST_THREADS);
    if (out->device.type == KF_DEVICE_CPU && out->stream)
        return kf_fail(KF_INVALID_ARGUMENT, "context: stream is given; the CPU has none");
    if (out->device.type == KF_DEVICE_CPU && out->launch)
        return kf_fail(KF_INVALID_ARGUMENT, "context: launch is %u; on the CPU it must be 0", out->launch);
    if (out->launch & ~(uint32_t)(KF_LAUNCH_NO_GRAPH | KF_LAUNCH_NO_DEPENDENT))
        return kf_fail(KF_INVALID_ARGUMENT, "context: launch is %u; it has bits that are none of KF_LAUNCH_*",
                       out->launch);
    if (out->reserved) return kf_fail(KF_INVALID_ARGUMENT, "context: reserved is %u; it must be 0", out->reserved);
    return KF_OK;
}

static kf_status choose_backend(kf_device device, const kf_backend **backend) {
    *backend = device.type == KF_DEVICE_CPU ? &kf_backend_cpu : NULL;
#if KF_HAVE_CUDA
    if (device.type == KF_DEVICE_CUDA) *backend = &kf_backend_cuda;
#endif
    if (*backend) return KF_OK;
    if (device.type == KF_DEVICE_CUDA) return kf_fail(KF_UNSUPPORTED, "context: this build has no CUDA backend");
    return kf_fail(KF_UNSUPPORTED, "context: device type is %d; allowed: 1 (CPU), 2 (CUDA)", (int)device.type);
}

static kf_status open_cpu(kf_context *made, const kf_context_options *o) {
    kf_isa isa = KF_ISA_SCALAR;
    KF_TRY(choose_isa(o->isa, &isa));
    made->team = kf_team_create(o->threads ? o->threads : usable_threads());
    if (!made->team) return kf_fail(KF_OUT_OF_MEMORY, "context_create: no memory for the team of threads");
    made->cpu = kf_cpu_table_get(isa);
    made->info.threads = kf_team_size(made->team);
    made->info.isa = isa;
    cpu_name(made->info.name);
    return KF_OK;
}

kf_status kf_context_create(const kf_context_options *options, kf_context **context) {
    if (!context) return kf_fail(KF_INVALID_ARGUMENT, "context_create: context is NULL");
    *context = NULL;
    kf_context_options o;
    const kf_backend *backend = NULL;
    KF_TRY(read_options(options, &o));
    KF_TRY(choose_backend(o.device, &backend));
    kf_context *made = kf_alloc(sizeof *made);
    if (!made) return kf_fail(KF_OUT_OF_MEMORY, "context_create: no memory for %zu bytes", sizeof *made);
    memset(made, 0, sizeof *made);
    made->backend = backend;
    made->info =
        (kf_context_info){.size = sizeof made->info, .threads = 1, .device = o.device, .fixed_split = o.fixed_split};
    kf_status status = backend->open ? backend->open(made, &o) : open_cpu(made, &o);
    if (status == KF_OK)
        *context = made;
    else
        kf_free(made);
    return status;
}

void kf_context_destroy(kf_context *context) {
    if (!context) return;
    if (context->backend->close) context->backend->close(context);
    kf_team_destroy(context->team);
    kf_free(context);
}

kf_status kf_context_get_info(const kf_context *context, kf_context_info *info) {
    if (!context || !info)
        return kf_fail(KF_INVALID_ARGUMENT, "context_get_info: %s is NULL", context ? "info" : "context");
    if (info->size != sizeof *info)
        return kf_fail(KF_INVALID_ARGUMENT, "context_get_info: info->size is %u; published: %zu", info->size,
                       sizeof *info);
    *info = context->info;
    return KF_OK;
}

kf_status kf_support(int32_t index, kf_support_row *row) {
    if (!row) return kf_fail(KF_INVALID_ARGUMENT, "support: row is NULL");
    if (row->size != sizeof *row)
        return kf_fail(KF_INVALID_ARGUMENT, "support: row->size is %u; published: %zu", row->size, sizeof *row);
    if (index >= 0 && kf_backend_cpu.support(index, row)) return KF_OK;
#if KF_HAVE_CUDA
    int32_t rows_before = 0;
    kf_support_row unused = {.size = sizeof unused};
    while (kf_backend_cpu.support(rows_before, &unused)) rows_before++;
    if (index >= rows_before && kf_backend_cuda.support(index - rows_before, row)) return KF_OK;
#endif
    return kf_fail(KF_INVALID_ARGUMENT, "support: index is %d; there is no such row", (int)index);
}
