// SPDX-License-Identifier: Apache-2.0
//
// keyfold info: what this build is, what this machine has, what is supported. The table of support comes from
// kf_support, so that it cannot differ from what the library does; --ceilings measures the machine as bench does.
#include <stdlib.h>
#include <string.h>

#include "ceilings.h"
#include "tool.h"

#if KF_HAVE_CUDA
#include "cuda/cuda_ceilings.h"
#include "cuda/runtime.h"
#endif

#ifndef KF_BUILD_FLAGS
#define KF_BUILD_FLAGS ""
#endif
#ifndef KF_CUDA_ARCHITECTURES
#define KF_CUDA_ARCHITECTURES ""
#endif

#if defined(__clang__)
static const char compiler[] = "clang " __clang_version__;
#else
static const char compiler[] = "gcc " __VERSION__;
#endif

enum { CEILING_SAMPLES = 9 };

// The features that some kernel uses or may come to use, as the compiler's run-time library reads CPUID.
#if defined(__x86_64__)
#define FEATURE(name)                                                                                                  \
    { #name, __builtin_cpu_supports(#name) != 0 }
#endif

typedef struct feature {
    const char *name;
    bool present;
} feature;

static int cpu_features(feature *out) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    feature found[] = {FEATURE(sse2),     FEATURE(avx2),     FEATURE(fma),        FEATURE(avx512f),   FEATURE(avx512bw),
                       FEATURE(avx512dq), FEATURE(avx512vl), FEATURE(avx512vnni), FEATURE(avx512bf16)};
    memcpy(out, found, sizeof found);
    return (int)(sizeof found / sizeof found[0]);
#else
    (void)out;
    return 0;
#endif
}

enum { MAX_FEATURES = 16 };

static void print_features(bool json) {
    feature features[MAX_FEATURES];
    int count = cpu_features(features);
    for (int i = 0, shown = 0; i < count; i++) {
        if (!features[i].present) continue;
        printf(json ? "%s\"%s\"" : "%s%s", shown++ ? (json ? ", " : " ") : "", features[i].name);
    }
}

// ---- support ----

// "avx2"; on CUDA the compute capability times ten, such as "sm80"; "" where it does not apply.
static const char *isa_name(const char *backend, int isa, char text[16]) {
    if (!isa) return "";
    if (strcmp(backend, "cuda") != 0) return kf_isa_string(isa);
    snprintf(text, 16, "sm%d", isa);
    return text;
}

static void print_support_table(void) {
    printf("\nSupported:\n  %-14s %-8s %-11s %-9s %-34s %s\n", "operation", "backend", "isa", "here", "dtypes",
           "notes");
    kf_support_row row = {.size = sizeof row};
    char isa[16];
    for (int32_t i = 0; kf_support(i, &row) == KF_OK; i++) {
        printf("  %-14s %-8s %-11s %-9s %-34s %s\n", kf_op_kind_string(row.kind), row.backend,
               isa_name(row.backend, row.isa, isa), row.available ? "yes" : "no", row.dtypes, row.notes);
    }
}

static void print_support_json(void) {
    fputs("  \"support\": [", stdout);
    kf_support_row row = {.size = sizeof row};
    char isa[16];
    for (int32_t i = 0; kf_support(i, &row) == KF_OK; i++) {
        printf("%s\n    {\"op\": \"%s\", \"backend\": \"%s\", \"isa\": \"%s\", \"available\": %s, \"dtypes\": ",
               i ? "," : "", kf_op_kind_string(row.kind), row.backend, isa_name(row.backend, row.isa, isa),
               row.available ? "true" : "false");
        kft_json_string(stdout, row.dtypes);
        fputs(", \"notes\": ", stdout);
        kft_json_string(stdout, row.notes);
        putchar('}');
    }
    fputs("\n  ]", stdout);
}

// ---- ceilings ----

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Of the CPU or of a CUDA device.
typedef struct source {
    kft_ceilings *cpu;
#if KF_HAVE_CUDA
    kft_cuda_ceilings *cuda;
    void *stream;
#endif
} source;

#if KF_HAVE_CUDA
// A gigabyte: what a read or a copy reaches where its length no longer counts.
static const double DEVICE_BYTES = 1e9;
#endif

static bool open_source(source *s, const kf_context *context, bool cuda) {
#if KF_HAVE_CUDA
    if (cuda) {
        s->stream = kft_cuda_stream();
        s->cuda = s->stream ? kft_cuda_ceilings_open(s->stream) : NULL;
        return s->cuda && kft_cuda_ceiling_prepare(s->cuda, KFT_CEILING_COPY, DEVICE_BYTES, 1, false) &&
               kft_cuda_ceiling_prepare(s->cuda, KFT_CEILING_READ, DEVICE_BYTES, 1, false);
    }
#else
    (void)cuda;
#endif
    s->cpu = kft_ceilings_open(context);
    return s->cpu;
}

static void close_source(source *s) {
#if KF_HAVE_CUDA
    kft_cuda_ceilings_close(s->cuda);
    kft_cuda_stream_destroy(s->stream);
#endif
    kft_ceilings_close(s->cpu);
}

static double sample(source *s, kft_ceiling kind) {
#if KF_HAVE_CUDA
    if (s->cuda) return kft_cuda_ceiling_sample(s->cuda, kind);
#endif
    return kft_ceiling_exists(s->cpu, kind) ? kft_ceiling_sample(s->cpu, kind) : 0;
}

static int print_ceilings(const kf_context *context, bool cuda, bool json) {
    kft_progress("measuring ceilings");
    source from = {.cpu = NULL};
    if (!open_source(&from, context, cuda)) {
        close_source(&from);
        return kft_error("info: memory is short for measuring ceilings");
    }
    if (json) fputs(",\n  \"ceilings\": {", stdout);
    if (!json) puts("\nCeilings (median of samples, lowest to highest):");
    int shown = 0;
    for (kft_ceiling kind = 0; kind < KFT_CEILING_COUNT; kind++) {
        double rate[CEILING_SAMPLES];
        for (int i = 0; i < CEILING_SAMPLES; i++) rate[i] = sample(&from, kind) * 1e-9;
        qsort(rate, CEILING_SAMPLES, sizeof rate[0], ascending);
        if (!(rate[CEILING_SAMPLES - 1] > 0)) continue; // there is no such ceiling here
        const char *unit = kind <= KFT_CEILING_READ ? "GB/s" : kind == KFT_CEILING_INT8_DOT ? "GOP/s" : "GFLOP/s";
        const char *name = cuda && kind == KFT_CEILING_BF16_DOT ? "product" : kft_ceiling_name(kind);
        kft_progress(NULL);
        if (json) {
            printf("%s\n    \"%s\": {\"rate\": %.5g, \"low\": %.5g, \"high\": %.5g, \"unit\": \"%s\"}",
                   shown++ ? "," : "", name, rate[CEILING_SAMPLES / 2], rate[0], rate[CEILING_SAMPLES - 1], unit);
        } else {
            printf("  %-9s %8.1f %-8s (%.1f to %.1f)\n", name, rate[CEILING_SAMPLES / 2], unit, rate[0],
                   rate[CEILING_SAMPLES - 1]);
        }
    }
    if (json) fputs("\n  }", stdout);
    close_source(&from);
    return 0;
}

// ---- command ----

static int print_info(const kf_context *context, bool json, bool ceilings) {
    kf_context_info info = {.size = sizeof info};
    if (kf_context_get_info(context, &info) != KF_OK) return kft_error("info: %s", kf_last_error());
    const bool cuda = info.device.type == KF_DEVICE_CUDA;
    char text[16];
    const char *isa = isa_name(cuda ? "cuda" : "cpu", info.isa, text);
    int status = 0;
    if (json) {
        printf("{\n  \"version\": \"%s\",\n  \"compiler\": ", kf_version_string());
        kft_json_string(stdout, compiler);
        fputs(",\n  \"flags\": ", stdout);
        kft_json_string(stdout, KF_BUILD_FLAGS);
        fputs(",\n  \"device\": ", stdout);
        kft_json_string(stdout, info.name);
        printf(",\n  \"threads\": %d,\n  \"cache_bytes\": %zu,\n  \"cpu_features\": [", info.threads,
               kft_cache_bytes());
        print_features(true);
        printf("],\n  \"isa\": \"%s\",\n  \"isa_highest\": \"%s\",\n  \"cuda_architectures\": \"%s\",\n", isa,
               kf_isa_string((int)kf_cpu_isa()), KF_CUDA_ARCHITECTURES);
        print_support_json();
        if (ceilings) status = print_ceilings(context, cuda, true);
        puts("\n}");
        return status;
    }
    printf("keyfold %s\nbuilt with  %s %s\ndevice      %s", kf_version_string(), compiler, KF_BUILD_FLAGS, info.name);
    if (!cuda) printf(", %d threads, last cache %.1f MiB", info.threads, (double)kft_cache_bytes() / (1 << 20));
    printf("\nCPU has     ");
    print_features(false);
    printf("\nISA in use  %s (highest of the CPU: %s)\nCUDA inside %s\n", isa, kf_isa_string((int)kf_cpu_isa()),
           KF_CUDA_ARCHITECTURES[0] ? KF_CUDA_ARCHITECTURES : "none");
    if (ceilings) status = print_ceilings(context, cuda, false);
    print_support_table();
    return status;
}

static int print_help(void) {
    puts("Usage: keyfold info [--backend cpu|cuda] [--ceilings] [--threads N] [--json]\n\n"
         "Version, build, CPU features, the ISA in use, the GPU architectures inside, and what is supported.\n"
         "  --backend    whose device and rates are shown (default: cpu)\n"
         "  --ceilings   measure memory and compute rates, on the CPU with N threads (default: all)");
    return 0;
}

int kft_info(int argc, char **argv) {
    bool json = false, ceilings = false;
    kf_context_options options;
    kf_context_options_init(&options);
    for (int i = 1; i < argc; i++) {
        const char *value = NULL;
        int64_t threads = 0;
        if (kft_flag(argv, i, "--help", "-h")) return print_help();
        if (kft_flag(argv, i, "--json", NULL)) {
            json = true;
        } else if (kft_flag(argv, i, "--ceilings", NULL)) {
            ceilings = true;
        } else if (kft_option(argc, argv, &i, "--backend", NULL, &value)) {
            if (!value || (strcmp(value, "cpu") != 0 && strcmp(value, "cuda") != 0))
                return kft_usage_error("info: --backend %s is neither cpu nor cuda", value ? value : "");
            options.device.type = strcmp(value, "cuda") == 0 ? KF_DEVICE_CUDA : KF_DEVICE_CPU;
        } else if (kft_option(argc, argv, &i, "--threads", "-t", &value)) {
            if (!kft_parse_int(value, 1, 4096, &threads))
                return kft_usage_error("info: --threads %s is not in 1 to 4096", value ? value : "");
            options.threads = (int32_t)threads;
        } else {
            return kft_usage_error("info: unknown option \"%s\"; keyfold info --help lists them", argv[i]);
        }
    }
    kf_context *context = NULL;
    if (kf_context_create(&options, &context) != KF_OK) return kft_error("info: %s", kf_last_error());
    int status = print_info(context, json, ceilings);
    kf_context_destroy(context);
    return status;
}
