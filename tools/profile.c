// SPDX-License-Identifier: Apache-2.0
//
// keyfold profile OP ...: one run of a bench case under Nsight Compute (ncu), and what its counters say, in words.
//
//     ncu --csv --metrics ... keyfold bench OP ... --backend cuda --profiled      (the kernels of one run, after runs that warm up)
//     -> a table of numbers for each kernel -> a sentence for each number
//
// --from FILE reads a table that ncu wrote before, on any machine.
#define _POSIX_C_SOURCE 200809L // popen, readlink
#include "tool.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_COLUMNS = 1024, LINE_BYTES = 1 << 16 };

// What is asked of ncu. Names are those of Nsight Compute; units are base units (ns, bytes).
enum { DURATION, SM, TENSOR, ISSUE, DRAM, DRAM_BYTES, L2, L2_HITS, L1, WARPS, REGISTERS, METRICS };
static const char *const METRIC_NAMES[METRICS] = {
    [DURATION] = "gpu__time_duration.sum",
    [SM] = "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    [TENSOR] = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    [ISSUE] = "smsp__issue_active.avg.pct_of_peak_sustained_active",
    [DRAM] = "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    [DRAM_BYTES] = "dram__bytes.sum",
    [L2] = "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    [L2_HITS] = "lts__t_sector_hit_rate.pct",
    [L1] = "l1tex__throughput.avg.pct_of_peak_sustained_active",
    [WARPS] = "sm__warps_active.avg.pct_of_peak_sustained_active",
    [REGISTERS] = "launch__registers_per_thread",
};

typedef struct profile {
    char kernel[512];
    double value[METRICS]; // negative: ncu gave none
} profile;

// ------------------------------------------------------------------------------------------------------------ reading

// Splits a line of CSV, every field of which is quoted, in place. Returns the number of fields.
static int split(char *line, char *fields[MOST_COLUMNS]) {
    int count = 0;
    for (char *at = line; count < MOST_COLUMNS && *at == '"';) {
        char *to = ++at;
        fields[count++] = to;
        while (*at && !(at[0] == '"' && at[1] != '"')) {
            at += at[0] == '"'; // a quote is doubled
            *to++ = *at++;
        }
        if (*at) at++;
        *to = 0;
        if (*at == ',') at++;
    }
    return count;
}

// "1,463,823.5"
static double number(const char *text) {
    char digits[64];
    size_t n = 0;
    for (; *text && n < sizeof digits - 1; text++) {
        if (*text != ',') digits[n++] = *text;
    }
    digits[n] = 0;
    char *end = NULL;
    const double value = strtod(digits, &end);
    return n && !*end ? value : -1;
}

// Where the columns stand that are of interest: the kernel's name, then the metrics.
typedef struct header {
    int name, metric[METRICS]; // -1: not there
    bool found;
} header;

static void read_header(char *fields[], int count, header *h) {
    h->name = -1;
    for (int m = 0; m < METRICS; m++) h->metric[m] = -1;
    for (int f = 0; f < count; f++) {
        if (strcmp(fields[f], "Kernel Name") == 0) h->name = f;
        for (int m = 0; m < METRICS; m++) {
            if (strcmp(fields[f], METRIC_NAMES[m]) == 0) h->metric[m] = f;
        }
    }
    h->found = h->name >= 0;
}

static bool read_row(char *fields[], int count, const header *h, profile *p) {
    if (h->name >= count || !isdigit((unsigned char)fields[0][0])) return false; // the row of units
    snprintf(p->kernel, sizeof p->kernel, "%s", fields[h->name]);
    for (int m = 0; m < METRICS; m++)
        p->value[m] = h->metric[m] >= 0 && h->metric[m] < count ? number(fields[h->metric[m]]) : -1;
    return true;
}

// ------------------------------------------------------------------------------------------------------------ speaking

// The word for a share of a peak: `high` from 75 %, `middle` from 40 %, else `low`.
static const char *judged(double share, const char *high, const char *middle, const char *low) {
    return share >= 75 ? high : share >= 40 ? middle : low;
}

static void print_line(const char *what, double value, const char *unit, const char *sentence) {
    if (value >= 0) printf("  %-16s %7.1f %-4s %s\n", what, value, unit, sentence);
}

static void print_profile(const profile *p) {
    const double *v = p->value;
    char text[200];
    printf("%s\n", p->kernel);
    print_line("time", v[DURATION] < 0 ? -1 : v[DURATION] * 1e-3, "us", "with a cold cache, as ncu runs it");
    print_line("SM", v[SM], "%",
               judged(v[SM], "the multiprocessors are busy: some unit in them is the limit",
                      "the multiprocessors' busiest unit works half of the time: latency or memory holds it up",
                      "the multiprocessors mostly wait"));
    print_line("tensor pipe", v[TENSOR], "%",
               judged(v[TENSOR], "the tensor cores are the limit", "the tensor cores share the time with other work",
                      v[TENSOR] < 1 ? "no matrix products" : "matrix products are a small part of it"));
    print_line("issue slots", v[ISSUE], "%",
               judged(v[ISSUE],
                      "the schedulers send an instruction in nearly every cycle: fewer instructions would help",
                      "the schedulers find a ready warp half of the time",
                      "the schedulers mostly find no warp that is ready"));
    if (v[DRAM_BYTES] >= 0 && v[DURATION] > 0)
        snprintf(text, sizeof text, "%.4g MB, %.0f GB/s: %s", v[DRAM_BYTES] * 1e-6, v[DRAM_BYTES] / v[DURATION],
                 judged(v[DRAM], "memory's bandwidth is the limit", "memory is half busy",
                        "memory's bandwidth does not limit it"));
    else
        snprintf(text, sizeof text, "%s",
                 judged(v[DRAM], "memory's bandwidth is the limit", "memory is half busy",
                        "memory's bandwidth does not limit it"));
    print_line("DRAM", v[DRAM], "%", text);
    print_line("L2", v[L2], "%",
               judged(v[L2], "the L2 cache is at its limit", "the L2 cache is half busy", "the L2 cache has room"));
    print_line("L2 hits", v[L2_HITS], "%",
               judged(v[L2_HITS], "most of what is asked for is in the L2 cache", "half of it is in the L2 cache",
                      "most of it comes from memory, as what is read once must"));
    print_line("L1 and shared", v[L1], "%",
               judged(v[L1], "the L1 cache and shared memory are at their limit",
                      "the L1 cache and shared memory are half busy", "the L1 cache and shared memory have room"));
    snprintf(text, sizeof text, "of the warps there is room for (%.0f registers a thread)%s", v[REGISTERS],
             v[WARPS] < 15 ? ": few, which must hide latency by themselves" : "");
    print_line("occupancy", v[WARPS], "%", v[REGISTERS] >= 0 ? text : "of the warps there is room for");
}

// ------------------------------------------------------------------------------------------------------------ command

// Reads ncu's output and prints each kernel; what isn't a table is kept, to be shown where no table comes.
static int print_table(FILE *in) {
    static char line[LINE_BYTES], said[2048];
    char *fields[MOST_COLUMNS];
    header h = {.found = false};
    int kernels = 0;
    while (fgets(line, sizeof line, in)) {
        if (line[0] != '"') {
            const bool complains = strncmp(line, "==ERROR==", 9) == 0 || strncmp(line, "keyfold: ", 9) == 0;
            if (complains && strlen(said) + strlen(line) < sizeof said)
                memcpy(said + strlen(said), line, strlen(line) + 1);
            continue;
        }
        const int count = split(line, fields);
        profile p;
        if (count && strcmp(fields[0], "ID") == 0) {
            read_header(fields, count, &h);
        } else if (h.found && count && read_row(fields, count, &h, &p)) {
            print_profile(&p);
            kernels++;
        }
    }
    if (!kernels && said[0]) fputs(said, stderr);
    return kernels;
}

// ncu and bench with the words of the command line, none of which may be anything for the shell.
static bool make_command(int argc, char **argv, const char *self, char *command, size_t bytes) {
    size_t n = (size_t)snprintf(command, bytes,
                                "ncu --csv --page raw --print-units base --clock-control none "
                                "--profile-from-start off --metrics ");
    for (int m = 0; m < METRICS; m++)
        n += (size_t)snprintf(command + n, bytes - n, "%s%s", m ? "," : "", METRIC_NAMES[m]);
    n += (size_t)snprintf(command + n, bytes - n, " '%s' bench", self);
    for (int i = 1; i < argc; i++) {
        for (const char *at = argv[i]; *at; at++) {
            if (!isalnum((unsigned char)*at) && !strchr("-,_.=", *at)) return false;
        }
        n += (size_t)snprintf(command + n, bytes - n, " %s", argv[i]);
        if (n >= bytes) return false;
    }
    return n + (size_t)snprintf(command + n, bytes - n, " --backend cuda --profiled 2>&1") < bytes;
}

static int run_ncu(int argc, char **argv) {
    char self[1024], command[4096];
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0) return kft_error("profile: the command's own path is not known");
    self[length] = 0;
    if (strchr(self, '\'') || !make_command(argc, argv, self, command, sizeof command))
        return kft_usage_error("profile: a word of the command line can't be passed on to bench");
    if (system("ncu --version >/dev/null 2>&1") != 0)
        return kft_error("profile: ncu (Nsight Compute) is not installed; --from FILE reads what it wrote elsewhere");
    FILE *ncu = popen(command, "r");
    if (!ncu) return kft_error("profile: ncu can't be started");
    const int kernels = print_table(ncu), status = pclose(ncu);
    if (kernels) return 0;
    return kft_error("profile: ncu gave no table (status %d); it needs a GPU, and the right to read its counters",
                     WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

static int read_file(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) return kft_error("profile: %s can't be read", path);
    const int kernels = print_table(file);
    fclose(file);
    return kernels ? 0 : kft_error("profile: %s holds no table of ncu --csv --page raw", path);
}

static int print_help(void) {
    puts("Usage: keyfold profile OP [bench's options] | --from FILE\n\n"
         "One run of a bench case on the GPU under Nsight Compute, and what its counters say: multiprocessors, tensor "
         "cores,\n"
         "memory, caches, occupancy.\n"
         "  OP, --shape, --dtype, --causal, ...   as keyfold bench has them\n"
         "  --from FILE                           reads what ncu --csv --page raw --print-units base wrote, on any "
         "machine");
    return 0;
}

int kft_profile(int argc, char **argv) {
    const char *path = NULL;
    if (argc < 2) return kft_usage_error("profile: which operation? keyfold profile --help says more");
    for (int i = 1; i < argc; i++) {
        if (kft_flag(argv, i, "--help", "-h")) return print_help();
        if (!kft_option(argc, argv, &i, "--from", NULL, &path)) continue;
        return path ? read_file(path) : kft_usage_error("profile: --from needs a file");
    }
    return run_ncu(argc, argv);
}
