// SPDX-License-Identifier: Apache-2.0
//
// keyfold bench, in its parts: what is timed (bench_ops.c), how (bench_time.c), how it is shown (bench_print.c), and
// the command and its speed table (bench.c).
#ifndef KF_TOOLS_BENCH_H
#define KF_TOOLS_BENCH_H

#include "ceilings.h"
#include "keyfold.h"
#include "tool.h"

enum { BENCH_MAX_DIMS = 6, BENCH_TENSORS = 6 };

struct bench_op;

// One thing to time.
typedef struct bench_case {
    const struct bench_op *op;
    const char *dtype; // "fp32", "fp16", "bf16"; for linear also a block format
    int64_t shape[BENCH_MAX_DIMS];
    bool causal;
    bool plain;           // rmsnorm without a residual; linear over weights that are not packed
    bool int8;            // linear with 8-bit activations
    bool rope;            // attention that rotates q and k at load
    int32_t isa, threads; // 0: the context's defaults
    bool profiled;        // one run, for a profiler
    bool cuda;            // on a CUDA device; isa is then a compute capability times ten
    double asked;         // the share that is asked for; 0: none
} bench_case;

// What the case must move and compute at least.
typedef struct bench_work {
    double bytes, flops;
    kft_ceiling memory;  // the rate that bounds the bytes
    kft_ceiling compute; // the rate that bounds the flops; KFT_CEILING_COUNT: they are not counted against a ceiling
    int reads;           // of the bytes beside a copy's ceiling: parts read for one that is written; 0: 1
} bench_work;

// One set of the case's tensors, filled with random numbers.
typedef struct bench_set {
    union {
        kf_args head;
        kf_softmax_args softmax;
        kf_attention_args attention;
        kf_merge_states_args merge;
        kf_rmsnorm_args rmsnorm;
        kf_swiglu_args swiglu;
        kf_rope_args rope;
        kf_kv_append_args kv_append;
        kf_embedding_args embedding;
        kf_linear_args linear;
    } args;
    kf_tensor tensor[BENCH_TENSORS];
    int64_t shape[BENCH_TENSORS][4];
    kf_weight weight;
    char *memory; // NULL: count the bytes only
    size_t used;
    uint64_t random;
} bench_set;

typedef struct bench_op {
    const char *name;
    const char *dims[BENCH_MAX_DIMS + 1]; // the names of the shape's numbers, then NULL
    int64_t shape[BENCH_MAX_DIMS];        // the default one
    bench_work (*work)(const bench_case *c, int32_t isa);
    // Lays out and fills a set. Called first with memory == NULL, to learn the bytes.
    kf_status (*make)(const bench_case *c, const kf_context *context, bench_set *set);
} bench_op;

// NULL: there is no such operation. bench_op_names: all of them, in one line.
const bench_op *bench_op_find(const char *name);
const char *bench_op_names(void);
int bench_op_dims(const bench_op *op);
bool bench_dtype_known(const bench_op *op, const char *dtype);

typedef struct bench_row {
    const char *op, *backend, *isa, *dtype, *variant;
    const char *dims[BENCH_MAX_DIMS + 1];
    int64_t shape[BENCH_MAX_DIMS];
    bool causal;
    int32_t threads, runs;
    double time_us, time_us_min, time_us_max; // the median of the runs and their range
    double gflops, gbps;
    const char *ceiling_name;
    double ceiling; // median, on CUDA the best, in 1e9 bytes or operations a second
    double ceiling_low, ceiling_high;
    double share, asked;
    double tokens_per_s; // of model rows; 0: not one
    bool replay;         // timed by replaying a graph of many runs
    int32_t sets;        // CUDA: sets of tensors that runs take in turn
    bool warm;           // CUDA: all sets together fit the L2 cache
} bench_row;

// What a round runs: bench_rounds calls it with 0, 1, 2, ... and takes *seconds for its time; false ends the timing.
typedef struct bench_subject {
    bench_work work; // of one run
    bool (*run)(void *argument, int i, double *seconds);
    void *argument;
    kft_ceilings *ceilings;                           // of the CPU; NULL: those that `sample` gives
    double (*sample)(void *argument, kft_ceiling it); // 0: there is none
} bench_subject;

// Runs the subject and its ceilings in turn for about `budget` seconds and fills the measured fields of the row.
bool bench_rounds(const bench_subject *subject, double budget, bench_row *row);

// Times the case for about `seconds`, kernel and ceilings in turn. On failure kf_last_error() says why.
kf_status bench_time(const bench_case *c, double seconds, bench_row *row);
// The row's names, shape and context; what it's measured to be stays open.
void bench_name_row(const bench_case *c, const kf_context_info *info, bench_row *row);

// (cuda/bench_cuda.c) The same on a CUDA device; and one run between the marks that a profiler looks for, after some that warm up.
kf_status bench_time_cuda(const bench_case *c, double seconds, bench_row *row);
kf_status bench_profile_cuda(const bench_case *c);

// Prompt and decoding of a GGUF model: a row each, by print. 0, or an exit status after a message.
int bench_model(const char *path, int32_t threads, bool int8, double seconds,
                void (*print)(void *argument, const bench_row *row), void *argument);

// keyfold bench model --backend cuda: a step of a model on a GPU (bench_model_device.c). argv[0] is "model".
int bench_model_device(int argc, char **argv);

typedef enum bench_format { BENCH_TABLE, BENCH_JSON, BENCH_CSV } bench_format;

void bench_print_begin(bench_format format);
void bench_print_row(bench_format format, const bench_row *row);
void bench_print_end(bench_format format);

#endif
