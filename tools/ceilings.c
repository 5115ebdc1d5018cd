// SPDX-License-Identifier: Apache-2.0
//
// Ceilings of this machine: see ceilings.h. The loops are in ceilings_<isa>.c; here they are given to the context's
// team, each member its own part of a buffer (memory) or its own registers (compute), and timed from fork to join.
#ifdef __linux__
#define _GNU_SOURCE // sched_setaffinity
#endif
#include "ceilings.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ceilings_kernels.h"
#include "core/internal.h"
#include "tool.h"

// A sample's length: long beside a fork and join (2 us), short beside the seconds in which a shared machine changes its
// speed.
static const double SAMPLE_SECONDS = 0.010;
// The memory that a sample walks, in last-level caches: little of what the last sample left behind can be found again.
enum { BUFFER_CACHES = 8, LARGE_PAGE = 2 << 20 };

struct kft_ceilings {
    const kf_context *context;
    kft_ceiling_kernels kernels;
    char *buffer;
    size_t part;  // bytes of each thread; a multiple of 8 blocks
    size_t start; // where in its part the next memory sample begins
    int64_t rounds[KFT_CEILING_COUNT];
    size_t memory_bytes; // of each thread in one sample
#ifdef __linux__
    cpu_set_t allowed; // what the caller might use before it was pinned
#endif
};

typedef struct sample {
    const kft_ceilings *ceilings;
    kft_ceiling ceiling;
    size_t start, bytes;
    int64_t rounds;
} sample;

// What the loops return goes here, so that they have a use.
static _Thread_local volatile float sink;

const char *kft_ceiling_name(kft_ceiling ceiling) {
    static const char *const names[KFT_CEILING_COUNT] = {"copy", "read", "fma", "bf16 dot", "int8 dot"};
    return names[ceiling];
}

// What the kernel says of CPU 0's cache of this level, in bytes; 0 where it says nothing. (sysconf's answer is ten
// times too large in some virtual machines.)
static size_t cache_level_bytes(int index) {
    char path[64];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    char text[32] = "", *unit;
    const bool read = fgets(text, sizeof text, file) != NULL;
    fclose(file);
    const long long size = strtoll(text, &unit, 10); // such as "32768K"
    if (!read || size <= 0) return 0;
    return (size_t)size << (*unit == 'K' ? 10 : *unit == 'M' ? 20 : 0);
}

size_t kft_cache_bytes(void) {
    enum { GUESS = 32 << 20 };
    for (int index = 3; index >= 2; index--) {
        size_t bytes = cache_level_bytes(index);
        if (bytes > 0) return bytes;
    }
    return GUESS;
}

void *kft_buffer_alloc(size_t bytes) {
    bytes = (bytes + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
    void *buffer = aligned_alloc(LARGE_PAGE, bytes ? bytes : LARGE_PAGE);
    if (!buffer) return NULL;
#ifdef MADV_HUGEPAGE
    (void)madvise(buffer, bytes, MADV_HUGEPAGE); // a wish: ordinary pages do as well
#endif
    memset(buffer, 0, bytes);
    return buffer;
}

void kft_buffer_free(void *buffer) { free(buffer); }

static const kft_compute_loop *compute_loop(const kft_ceilings *c, kft_ceiling ceiling) {
    return ceiling == KFT_CEILING_FMA        ? &c->kernels.fma
           : ceiling == KFT_CEILING_BF16_DOT ? &c->kernels.bf16_dot
                                             : &c->kernels.int8_dot;
}

bool kft_ceiling_exists(const kft_ceilings *c, kft_ceiling ceiling) {
    return ceiling <= KFT_CEILING_READ || compute_loop(c, ceiling)->ops > 0;
}

static void run_sample(void *argument, int32_t index, int32_t count) {
    (void)count;
    const sample *s = argument;
    const kft_ceilings *c = s->ceilings;
    char *part = c->buffer + (size_t)index * c->part;
    if (s->ceiling == KFT_CEILING_READ) {
        sink = c->kernels.read(part + s->start, s->bytes);
    } else if (s->ceiling == KFT_CEILING_COPY) {
        // From one half of the part to the other: s->bytes are read and written together.
        c->kernels.copy(part + c->part / 2 + s->start / 2, part + s->start / 2, s->bytes / 2);
    } else {
        sink = compute_loop(c, s->ceiling)->run(s->rounds);
    }
}

// Runs it once; bytes or operations a second. *seconds says how long it took.
static double timed(kft_ceilings *c, kft_ceiling ceiling, double *seconds) {
    sample s = {c, ceiling, c->start, c->memory_bytes, c->rounds[ceiling]};
    double begin = kft_seconds();
    kf_team_run(c->context->team, run_sample, &s);
    *seconds = kft_seconds() - begin;
    double work = (double)kf_team_size(c->context->team);
    if (ceiling <= KFT_CEILING_READ) {
        work *= (double)s.bytes;
        // The next memory sample begins where this one ended.
        c->start = c->start + 2 * s.bytes <= c->part ? c->start + s.bytes : 0;
    } else {
        work *= (double)s.rounds * (double)compute_loop(c, ceiling)->ops;
    }
    return work / *seconds;
}

double kft_ceiling_sample(kft_ceilings *c, kft_ceiling ceiling) {
    if (!kft_ceiling_exists(c, ceiling)) return 0;
    double seconds, rate = timed(c, ceiling, &seconds);
    return rate;
}

// Sets the sample sizes so that one takes about SAMPLE_SECONDS.
static void set_lengths(kft_ceilings *c) {
    double seconds;
    c->memory_bytes = c->part / 8;
    timed(c, KFT_CEILING_READ, &seconds);
    timed(c, KFT_CEILING_READ, &seconds);
    double wanted = (double)c->memory_bytes * SAMPLE_SECONDS / seconds;
    enum { STEP = 8 * KFT_BLOCK }; // four streams, or two halves, of whole blocks
    size_t bytes = wanted < (double)c->part ? (size_t)wanted : c->part;
    bytes = bytes / STEP * STEP;
    c->memory_bytes = bytes < STEP ? STEP : bytes;
    c->start = 0;
    for (kft_ceiling ceiling = KFT_CEILING_FMA; ceiling < KFT_CEILING_COUNT; ceiling++) {
        if (!kft_ceiling_exists(c, ceiling)) continue;
        c->rounds[ceiling] = 20000;
        timed(c, ceiling, &seconds); // wakes the threads and the clock
        timed(c, ceiling, &seconds);
        c->rounds[ceiling] = (int64_t)(20000 * SAMPLE_SECONDS / seconds) + 1;
    }
}

// The best of a few samples.
static double best_rate(kft_ceilings *c, kft_ceiling ceiling) {
    double best = 0, seconds;
    for (int i = 0; i < 4; i++) {
        double rate = timed(c, ceiling, &seconds);
        if (rate > best) best = rate;
    }
    return best;
}

static void choose_memory_loops(kft_ceilings *c) {
    double plain = best_rate(c, KFT_CEILING_READ);
    kft_ceiling_kernels other = c->kernels, first = c->kernels;
    other.read = first.read_streams;
    other.copy = first.copy_stream;
    double plain_copy = best_rate(c, KFT_CEILING_COPY);
    c->kernels = other;
    double streams = best_rate(c, KFT_CEILING_READ), stream_copy = best_rate(c, KFT_CEILING_COPY);
    if (streams < plain) c->kernels.read = first.read;
    if (stream_copy < plain_copy) c->kernels.copy = first.copy;
}

static kft_ceiling_kernels kernels_of(int isa) {
#if defined(__x86_64__)
    if (isa >= KF_ISA_AVX512BF16) {
        kft_ceiling_kernels kernels = kft_ceilings_avx512;
        kernels.bf16_dot = kft_ceilings_avx512bf16.bf16_dot;
        kernels.int8_dot = kft_ceilings_avx512bf16.int8_dot;
        return kernels;
    }
    if (isa == KF_ISA_AVX512) return kft_ceilings_avx512;
    if (isa == KF_ISA_AVX2) return kft_ceilings_avx2;
#else
    (void)isa;
#endif
    return kft_ceilings_scalar;
}

// Member i of the team stays on the i-th CPU that the process may use: a scheduler that puts two of them on one CPU for
// a while would halve a rate.
static void pin(void *argument, int32_t index, int32_t count) {
#ifdef __linux__
    const cpu_set_t *allowed = &((const kft_ceilings *)argument)->allowed;
    if (count > CPU_COUNT(allowed)) return;
    int cpu = 0;
    for (int seen = -1; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, allowed) && ++seen == index) break;
    }
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    (void)sched_setaffinity(0, sizeof one, &one);
#else
    (void)argument, (void)index, (void)count;
#endif
}

static void pin_team(kft_ceilings *c) {
#ifdef __linux__
    // Kept for the caller, who is set free at the end: contexts made later count the CPUs it may use.
    if (sched_getaffinity(0, sizeof c->allowed, &c->allowed) != 0) CPU_ZERO(&c->allowed);
#endif
    kf_team_run(c->context->team, pin, c);
}

static void unpin_caller(const kft_ceilings *c) {
#ifdef __linux__
    if (CPU_COUNT(&c->allowed) > 0) (void)sched_setaffinity(0, sizeof c->allowed, &c->allowed);
#else
    (void)c;
#endif
}

kft_ceilings *kft_ceilings_open(const kf_context *context) {
    kft_ceilings *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    size_t threads = (size_t)kf_team_size(context->team);
    c->context = context;
    c->kernels = kernels_of(context->info.isa);
    c->part = BUFFER_CACHES * kft_cache_bytes() / threads / LARGE_PAGE * LARGE_PAGE;
    if (c->part < 16 * LARGE_PAGE) c->part = 16 * LARGE_PAGE;
    c->buffer = kft_buffer_alloc(threads * c->part);
    if (!c->buffer) {
        free(c);
        return NULL;
    }
    pin_team(c);
    set_lengths(c);
    choose_memory_loops(c);
    return c;
}

void kft_ceilings_close(kft_ceilings *c) {
    if (!c) return;
    unpin_caller(c);
    kft_buffer_free(c->buffer);
    free(c);
}
