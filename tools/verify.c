// SPDX-License-Identifier: Apache-2.0
//
// keyfold verify: holds every operation, on every ISA, against the float64 oracle of src/reference, case by case (verify.h).
//
// Output: one block for each failure, with the command that repeats it; the cases that were not run, by reason; and as the last line
// "verify: N cases, M failed". Exit status 0 only where N > 0 and M = 0.
#define _POSIX_C_SOURCE 200809L // sigaction, clock_gettime
#include "tool.h"
#include "verify.h"

#if KF_HAVE_CUDA
#include "cuda/runtime.h"
#endif

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// ---------------------------------------------------------------------------------------------------------- the table

static const struct {
    const char *op;
    void (*cases)(verify_run *run);
} OPERATIONS[] = {
    {"attention", verify_attention}, {"merge_states", verify_merge_states},
    {"softmax", verify_softmax},     {"rmsnorm", verify_rmsnorm},
    {"swiglu", verify_swiglu},       {"rope", verify_rope},
    {"kv_append", verify_kv_append}, {"embedding", verify_embedding},
    {"linear", verify_linear},       {"sequence", verify_sequences},
#if KF_HAVE_CUDA
    {"device", verify_device},
#endif
};
enum { OPERATION_COUNT = sizeof OPERATIONS / sizeof *OPERATIONS, RANDOM_DEFAULT = 60 };
enum { STATUS_LOST = 3 }; // exit status

// ------------------------------------------------------------------------------------------------------------ one case

static verify_run *faulting; // for the signal handler

static void print_repeat(const verify_run *run, FILE *out) {
    fprintf(out, "    keyfold verify --op %s --backend %s --isa %s --case %s --seed %llu --threads %d%s%s%.0d\n",
            run->op, run->backend, run->isa_name, run->name, (unsigned long long)run->seed, run->threads,
            run->quick ? " --quick" : "", run->number ? " --device " : "", run->number);
}

static void print_failure(const verify_run *run, const char *sentence) {
    kft_progress(NULL);
    printf("FAILED %s on %s/%s\n    %s\n", run->name, run->backend, run->isa_name, sentence);
    print_repeat(run, stdout);
    fflush(stdout);
}

static void print_end(const verify_run *run) {
    kft_progress(NULL);
#if KF_HAVE_CUDA
    if (run->kernels) kft_cuda_print_kernels();
#endif
    for (size_t r = 0; r < sizeof run->not_run / sizeof *run->not_run && run->not_run[r].reason[0]; r++)
        printf("not run: %lld cases (%s)\n", (long long)run->not_run[r].count, run->not_run[r].reason);
    printf("verify: %lld cases, %lld failed\n", (long long)run->cases, (long long)run->failed);
    fflush(stdout);
}

// After a device's fault the process can use it no longer.
static void stop_where_lost(const verify_run *run) {
    if (!run->lost) return;
    printf("verify: the process has lost the device; the cases that follow need a new one: --after %s\n", run->name);
    print_end(run);
    _exit(STATUS_LOST);
}

// Sanitizers have handlers of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// A kernel that reads or writes outside its tensors ends up here, and so does the process.
static void on_fault(int signal_number) {
    print_failure(faulting, signal_number == SIGSEGV || signal_number == SIGBUS
                                ? "a read or write outside the tensors (a fault at a guard page)"
                                : "an illegal instruction or operation");
    printf("verify: %lld cases, %lld failed\n", (long long)faulting->cases + 1, (long long)faulting->failed + 1);
    fflush(stdout);
    _exit(1);
}
#endif

// A kernel that never ends: nothing but the end of the process stops it.
static void on_alarm(int signal_number) {
    (void)signal_number;
    char sentence[96];
    snprintf(sentence, sizeof sentence, "it took longer than %lld s", (long long)faulting->limit);
    print_failure(faulting, sentence);
    faulting->cases++, faulting->failed++;
    faulting->lost = true;
    stop_where_lost(faulting);
}

static void catch_faults(verify_run *run) {
    const struct sigaction hang = {.sa_handler = on_alarm};
    faulting = run;
    sigaction(SIGALRM, &hang, NULL);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    struct sigaction action = {.sa_handler = on_fault};
    const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    for (size_t s = 0; s < sizeof signals / sizeof *signals; s++) sigaction(signals[s], &action, NULL);
#endif
}

static bool is_listed(const char *list, const char *name) {
    const size_t length = strlen(name);
    for (const char *at = list; (at = strstr(at, name)); at += length) {
        if ((at == list || at[-1] == '\n') && (at[length] == '\n' || at[length] == 0)) return true;
    }
    return false;
}

// Cases in a folder "large" are left out by --quick; those in "shape" are scaled down there.
static bool is_large(const char *name) { return strstr(name, "/large/") || strstr(name, "/shape/"); }
static bool is_left_out(const verify_run *run, const char *name) { return run->quick && strstr(name, "/large/"); }

// --case NAME: that case, or all those below the folder NAME.
static bool is_wanted(const verify_run *run, const char *name) {
    if (run->listed && !is_listed(run->listed, name)) return false;
    if (run->large && !is_large(name)) return false;
    if (!run->only) return true;
    const size_t length = strlen(run->only);
    if (strncmp(name, run->only, length) != 0) return false;
    return name[length] == 0 || name[length] == '/' || (length && run->only[length - 1] == '/');
}

// FNV-1a, so that a case's data depend on its name and the seed alone.
static uint64_t hash_name(const char *name, uint64_t seed) {
    uint64_t hash = 0xCBF29CE484222325u ^ seed * 0x9E3779B97F4A7C15u;
    for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 0x100000001B3u;
    return hash;
}

static void count_not_run(verify_run *run, const char *reason) {
    const size_t places = sizeof run->not_run / sizeof *run->not_run;
    size_t r = 0;
    while (r < places && run->not_run[r].reason[0] && strcmp(run->not_run[r].reason, reason) != 0) r++;
    if (r == places) snprintf(run->not_run[--r].reason, sizeof run->not_run[r].reason, "other reasons");
    if (!run->not_run[r].reason[0]) snprintf(run->not_run[r].reason, sizeof run->not_run[r].reason, "%s", reason);
    run->not_run[r].count++;
}

// --part i/n takes every n-th case, --after NAME what follows that one.
static bool is_ours(verify_run *run, const char *name) {
    const bool mine = run->seen++ % run->parts == run->part;
    if (!run->after) return mine;
    if (strcmp(run->after, name) == 0) run->after = NULL;
    return false;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void verify_case(verify_run *run, verify_check *check, const void *row, const char *format, ...) {
    char name[256];
    va_list values;
    va_start(values, format);
    vsnprintf(name, sizeof name, format, values);
    va_end(values);
    if (!is_wanted(run, name) || !is_ours(run, name)) return;
    const bool late = run->stop && !run->list && seconds() - run->begin > (double)run->stop;
    if (late || is_left_out(run, name)) {
        run->late = run->late || late;
        count_not_run(run, late ? "the time was up" : "large shapes, left out by --quick");
        return;
    }
    run->name = name;
    if (run->list) {
        printf("%s\n", name);
        run->cases++;
        return;
    }
    kft_progress("%s %s (%lld done, %lld failed)", run->isa_name, name, (long long)run->cases, (long long)run->failed);
    if (run->names) printf("%s\n", name), fflush(stdout);
    run->pool = (verify_pool){.random = hash_name(name, run->seed), .threads = run->threads, .apart = run->once};
    run->failure[0] = 0;
    run->skipped[0] = 0;
#if KF_HAVE_CUDA
    if (run->kernels) kft_cuda_watch_kernels(name);
#endif
    const double begin = seconds();
    alarm((unsigned)run->limit);
    bool good = check(run, row);
    alarm(0);
#if KF_HAVE_CUDA
    if (run->device && good && !run->skipped[0] && kft_cuda_current_device() != 0)
        good = verify_fail(run, "a call left device %d as the current one", kft_cuda_current_device());
#endif
    if (run->times) printf("time %.2f s %s\n", seconds() - begin, name);
    if (run->pool.exhausted) {
        if (run->names) printf("not enough memory: %s\n", name);
        good = verify_skip(run, "not enough memory");
    }
    verify_pool_close(&run->pool);
    if (run->skipped[0]) {
        count_not_run(run, run->skipped);
        return;
    }
    run->cases++;
    if (!good) {
        run->failed++;
        print_failure(run, run->failure);
        stop_where_lost(run);
    }
}

// ------------------------------------------------------------------------------------------------------------- one ISA

static kf_context *make_context(const verify_run *run, int threads, bool fixed_split, void *stream) {
    kf_context_options options;
    kf_context *context = NULL;
    kf_context_options_init(&options);
    options.device = (kf_device){run->device ? KF_DEVICE_CUDA : KF_DEVICE_CPU, run->number};
    options.isa = run->isa;
    options.threads = threads;
    options.fixed_split = fixed_split;
    options.stream = stream;
    return kf_context_create(&options, &context) == KF_OK ? context : NULL;
}

static bool open_contexts(verify_run *run) {
    for (int t = 0; t < 4; t++) {
        run->context[t] = make_context(run, t ? t : run->threads, false, NULL);
        if (!run->context[t]) return false;
    }
    run->fixed_split = make_context(run, run->threads, true, NULL);
#if KF_HAVE_CUDA
    if (run->device && run->number) kft_cuda_use_device(run->number);
    if (run->device) run->stream = kft_cuda_stream();
    if (run->device && run->number) kft_cuda_use_device(0);
    if (run->device) run->captured = make_context(run, run->threads, false, run->stream);
#endif
    return run->fixed_split && (!run->device || (run->stream && run->captured));
}

static void close_contexts(verify_run *run) {
    for (int t = 0; t < 4; t++) kf_context_destroy(run->context[t]);
    kf_context_destroy(run->fixed_split);
    kf_context_destroy(run->captured);
#if KF_HAVE_CUDA
    if (run->stream) kft_cuda_stream_destroy(run->stream);
#endif
}

// "avx2", or "90".
static void name_isa(verify_run *run) {
    static char number[8];
    kf_context_info info = {.size = sizeof info};
    if (kf_context_get_info(run->context[0], &info) != KF_OK) return;
    snprintf(number, sizeof number, "%d", info.isa);
    run->isa_name = run->device ? number : kf_isa_string(info.isa);
}

static int verify_isa(verify_run *run) {
    if (run->list) {
        run->isa_name = "";
    } else if (!open_contexts(run)) {
        close_contexts(run);
        return kft_error("verify: no context on %s: %s", run->backend, kf_last_error());
    } else {
        name_isa(run);
    }
    const char *asked = run->op;
    for (int o = 0; o < OPERATION_COUNT; o++) {
        if (asked && strcmp(asked, OPERATIONS[o].op) != 0) continue;
        run->op = OPERATIONS[o].op;
        OPERATIONS[o].cases(run);
    }
    run->op = asked;
    close_contexts(run);
    return 0;
}

// ------------------------------------------------------------------------------------------------------------- options

static const char HELP[] =
    "Usage: keyfold verify [OPTIONS]\n\n"
    "Runs every operation against the float64 oracle.\n\n"
    "  --op NAME        one operation: attention, merge_states, softmax, rmsnorm, swiglu, rope, kv_append, embedding,\n"
    "                   linear, sequence, device\n"
    "  --backend NAME   cpu (the default) or cuda\n"
    "  --isa NAME       scalar, avx2, avx512, avx512bf16; all: every one of this machine (default: the highest). On "
    "cuda the\n"
    "                   compute capability to be held to: 80, 86, 89, 90\n"
    "  --device N       on cuda: the device's number (default 0; the current device is 0 throughout)\n"
    "  --case NAME      one case, or all cases below a folder of names\n"
    "  --seed N         the data's seed (default 1)\n"
    "  --random N       random cases an operation (default 60)\n"
    "  --threads N      threads of the main run (default 2); 1, 2 and 3 are held against it in any case\n"
    "  --quick          large shapes scaled down or left out\n"
    "  --large          large shapes alone: what --quick scales down or leaves out\n"
    "  --part I/N       every Nth case, from the one of number I (0 to N - 1), so that N processes share the work\n"
    "  --after NAME     the cases that follow that one\n"
    "  --cases FILE     the cases named in FILE, one a line\n"
    "  --once           one call a case, as a tool like compute-sanitizer wants it\n"
    "  --kernels        on cuda: names at the end each kernel that was launched, and the smallest case that does\n"
    "  --limit SECONDS  a case that takes longer has failed, and ends the run (default 0: none)\n"
    "  --stop-after SECONDS   begins no case after that, which fails the run (default 0: none)\n"
    "  --names          names each case before it runs, and those for which there was not enough memory\n"
    "  --times          says of each case how long it took\n"
    "  --list           names the cases and runs nothing\n\n"
    "Exit status: 0: all passed; 1: a case failed, or none was run; 2: wrong options; 3: a device's fault ended the "
    "run.\n";

static bool known_operation(const char *name) {
    for (int o = 0; o < OPERATION_COUNT; o++) {
        if (strcmp(name, OPERATIONS[o].op) == 0) return true;
    }
    return false;
}

// The ISA of `name` (NULL: the one that contexts choose), 0 for "all", -1 for none, NO_CONTEXT where there is none to ask. On CUDA its
// number; 0 for the device's.
enum { NO_CONTEXT = -2 };
static int isa_of(const verify_run *run, const char *name) {
    int64_t number = 0;
    if (run->device) return !name ? 0 : kft_parse_int(name, 1, 1000, &number) ? (int)number : -1;
    if (!name) {
        kf_context *context = make_context(run, 1, false, NULL);
        kf_context_info info = {.size = sizeof info};
        const kf_status status = context ? kf_context_get_info(context, &info) : KF_UNSUPPORTED;
        kf_context_destroy(context);
        return status == KF_OK ? info.isa : NO_CONTEXT;
    }
    for (int isa = KF_ISA_SCALAR; isa <= KF_ISA_AVX512BF16; isa++) {
        if (strcmp(name, kf_isa_string(isa)) == 0) return isa;
    }
    return strcmp(name, "all") == 0 ? 0 : -1;
}

// The file's text; kept to the process's end. NULL where it can't be read.
static char *read_cases(const char *path) {
    FILE *file = path ? fopen(path, "r") : NULL;
    char *text = NULL;
    if (file && fseek(file, 0, SEEK_END) == 0) {
        const long bytes = ftell(file);
        rewind(file);
        text = bytes >= 0 ? calloc((size_t)bytes + 1, 1) : NULL;
        if (text && fread(text, 1, (size_t)bytes, file) != (size_t)bytes) text[0] = 0;
    }
    if (file) fclose(file);
    return text;
}

static bool parse_part(const char *text, verify_run *run) {
    char part[24] = "";
    const char *slash = text ? strchr(text, '/') : NULL;
    if (!slash || (size_t)(slash - text) >= sizeof part) return false;
    memcpy(part, text, (size_t)(slash - text));
    return kft_parse_int(slash + 1, 1, 1 << 20, &run->parts) && kft_parse_int(part, 0, run->parts - 1, &run->part);
}

// What an option without a value sets; NULL for any other.
static bool *flag_of(verify_run *run, char **argv, int i) {
    return kft_flag(argv, i, "--quick", NULL)     ? &run->quick
           : kft_flag(argv, i, "--large", NULL)   ? &run->large
           : kft_flag(argv, i, "--times", NULL)   ? &run->times
           : kft_flag(argv, i, "--list", NULL)    ? &run->list
           : kft_flag(argv, i, "--names", NULL)   ? &run->names
           : kft_flag(argv, i, "--once", NULL)    ? &run->once
           : kft_flag(argv, i, "--kernels", NULL) ? &run->kernels
                                                  : NULL;
}

// The numbers, among others. Exit status 0, or that of a wrong command line.
static int parse_number(int argc, char **argv, int *i, verify_run *run) {
    const char *value = NULL;
    int64_t number = 0;
    if (kft_option(argc, argv, i, "--part", NULL, &value))
        return parse_part(value, run) ? 0 : kft_usage_error("verify: --part needs I/N with 0 <= I < N");
    if (kft_option(argc, argv, i, "--stop-after", NULL, &value)) {
        if (!kft_parse_int(value, 0, 86400, &run->stop))
            return kft_usage_error("verify: --stop-after needs a number of seconds");
    } else if (kft_option(argc, argv, i, "--limit", NULL, &value)) {
        if (!kft_parse_int(value, 0, 86400, &run->limit))
            return kft_usage_error("verify: --limit needs a number of seconds");
    } else if (kft_option(argc, argv, i, "--seed", NULL, &value)) {
        if (!kft_parse_int(value, 0, INT64_MAX, &number))
            return kft_usage_error("verify: --seed needs a number from 0");
        run->seed = (uint64_t)number;
    } else if (kft_option(argc, argv, i, "--device", NULL, &value)) {
        if (!kft_parse_int(value, 0, 1024, &number)) return kft_usage_error("verify: --device needs a number from 0");
        run->number = (int)number;
    } else if (kft_option(argc, argv, i, "--random", NULL, &value)) {
        if (!kft_parse_int(value, 0, 1000000, &run->random))
            return kft_usage_error("verify: --random needs a number to 1000000");
    } else if (kft_option(argc, argv, i, "--threads", NULL, &value)) {
        if (!kft_parse_int(value, 1, 1024, &number))
            return kft_usage_error("verify: --threads needs a number from 1 to 1024");
        run->threads = (int)number;
    } else {
        return kft_usage_error("verify: unknown option \"%s\"; keyfold verify --help lists them", argv[*i]);
    }
    return 0;
}

static int parse_option(int argc, char **argv, int *i, verify_run *run, const char **isa_name) {
    const char *value = NULL;
    if (kft_option(argc, argv, i, "--op", NULL, &value)) {
        run->op = value;
        return value && known_operation(value)
                   ? 0
                   : kft_usage_error("verify: --op %s: no such operation", value ? value : "");
    }
    if (kft_option(argc, argv, i, "--backend", NULL, &value)) {
        run->backend = value;
        run->device = value && strcmp(value, "cuda") == 0;
        if (run->device || (value && strcmp(value, "cpu") == 0)) return 0;
        return kft_usage_error("verify: --backend %s: cpu and cuda are there", value ? value : "");
    }
    if (kft_option(argc, argv, i, "--cases", NULL, &value)) {
        run->listed = read_cases(value);
        return run->listed ? 0 : kft_usage_error("verify: --cases %s: the file can't be read", value ? value : "");
    }
    if (kft_option(argc, argv, i, "--isa", NULL, isa_name))
        return *isa_name ? 0 : kft_usage_error("verify: --isa needs a name");
    if (kft_option(argc, argv, i, "--case", NULL, &run->only))
        return run->only ? 0 : kft_usage_error("verify: --case needs a name");
    if (kft_option(argc, argv, i, "--after", NULL, &run->after))
        return run->after ? 0 : kft_usage_error("verify: --after needs a case's name");
    return parse_number(argc, argv, i, run);
}

// Reads the command line into run. Returns -1 to go on, otherwise the exit status.
static int parse(int argc, char **argv, verify_run *run, int *isa) {
    const char *isa_name = NULL;
    for (int i = 1; i < argc; i++) {
        if (kft_flag(argv, i, "--help", "-h")) return fputs(HELP, stdout), 0;
        bool *flag = flag_of(run, argv, i);
        if (flag) *flag = true;
        const int status = flag ? 0 : parse_option(argc, argv, &i, run, &isa_name);
        if (status) return status;
    }
    if (!run->device && (run->number || run->kernels))
        return kft_usage_error("verify: %s goes with --backend cuda", run->number ? "--device" : "--kernels");
    *isa = isa_of(run, isa_name);
    if (*isa == NO_CONTEXT) return kft_error("verify: %s", kf_last_error());
    if (*isa < 0)
        return kft_usage_error("verify: --isa %s is none of %s", isa_name,
                               run->device ? "80, 86, 89, 90" : "scalar, avx2, avx512, avx512bf16, all");
    return -1;
}

// A case named "op/random/N" is run even where N is beyond --random.
static void include_random_case(verify_run *run) {
    const char *number = run->only ? strstr(run->only, "/random/") : NULL;
    int64_t index = 0;
    if (number && kft_parse_int(number + strlen("/random/"), 0, 1000000, &index) && index >= run->random)
        run->random = index + 1;
}

int kft_verify(int argc, char **argv) {
    static verify_run run; // large; the signal handler reads it
    run = (verify_run){.seed = 1, .random = RANDOM_DEFAULT, .threads = 2, .parts = 1, .backend = "cpu"};
    int isa = 0;
    int status = parse(argc, argv, &run, &isa);
    if (status >= 0) return status;
    include_random_case(&run);
    run.begin = seconds();
    catch_faults(&run);
    const bool one = isa || run.list || run.device;
    const int first = one ? isa : KF_ISA_SCALAR, last = one ? isa : (int)kf_cpu_isa();
    for (int i = first; i <= last; i++) {
        run.isa = i;
        status = verify_isa(&run);
        if (status > 0) return status;
    }
    print_end(&run);
    return run.cases > 0 && run.failed == 0 && !run.late ? 0 : 1;
}
