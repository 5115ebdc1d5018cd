// SPDX-License-Identifier: Apache-2.0
//
// The engine of `keyfold verify`. A case is a row of a table in one of verify_<op>.c:
//
//     row -> tensors between guard zones, filled -> oracle -> the kernel, in every way of calling it -> rules
//
// On CUDA the same harness runs: the tensors are mirrored into the device's memory (verify_device.c), the operation runs there, and what
// comes back is judged by the same rules.
//
// To add a case, add a row. To add an operation, write verify_<op>.c with a function that calls verify_case for each of its rows, and
// put it into the table in verify.c.
#ifndef KF_TOOLS_VERIFY_H
#define KF_TOOLS_VERIFY_H

#include "reference/reference.h"

// ----------------------------------------------------------------------------------------------------------- buffers
// (verify_buffers.c) Every tensor lies between a guard zone and a page that may not be touched, on alternating sides:
//
//     | no access | guard zone | data ]| no access |      or      | no access |[ data | guard zone | no access |
//
// The whole region is filled with POISON, a NaN in every float dtype, before the elements are written. After a run guard zones, gaps
// between strides and inputs must be as they were, and no output element may be POISON still.

enum { VERIFY_INPUT = 1, VERIFY_OUTPUT = 2, VERIFY_IN_PLACE = 3, VERIFY_MAX_BUFFERS = 24 };

typedef struct verify_buffer {
    const char *name;
    unsigned role;
    bool sparse; // gigabytes of address space, of which few pages exist: no poison, no snapshot
    kf_tensor tensor;
    int64_t shape[KF_MAX_NDIM], strides[KF_MAX_NDIM];
    unsigned char *map, *region; // the mapping; what of it may be touched
    size_t map_bytes, region_bytes;
    unsigned char *before, *first; // the region before the run, and after the first run
    void *mirror;                  // of the region, in the device's memory
    bool in_arena;                 // the mirror is a part of the pool's arena
} verify_buffer;

typedef struct verify_pool {
    verify_buffer buffer[VERIFY_MAX_BUFFERS];
    int count;
    uint64_t random;        // state of the case's generator: --seed and the case's name
    bool exhausted;         // memory or places ran out: the case is not run
    int threads;            // that fill large tensors
    bool settled;           // the inputs are in the mirrors, and needn't be sent again ...
    bool outputs_alone;     // ... nor brought back
    bool apart;             // every mirror is an allocation of its own, for a tool that looks for what is past its end
    unsigned char *arena;   // of the device: the mirrors of a small pool
    unsigned char *staging; // of the host: the arena's bytes, copied in one go
    size_t arena_bytes;
    const kf_context *device; // whose memory holds the mirrors; NULL: the CPU runs the case where the tensors are
} verify_pool;

uint64_t verify_random(uint64_t *state);                                   // 64 random bits
int64_t verify_random_between(uint64_t *state, int64_t low, int64_t high); // both inclusive
double verify_random_normal(uint64_t *state);                              // mean 0, deviation 1, within +-3.5

// How a tensor lies in memory. All but COMPACT leave gaps.
typedef enum verify_layout {
    VERIFY_COMPACT = 0,
    VERIFY_GAPS,     // row-major, every stride a little longer than it need be
    VERIFY_SWAPPED,  // the two dimensions before the last one change places, as [B, N, H, D] does
    VERIFY_NEGATIVE, // inputs: as GAPS, but every dimension except the last one runs backwards
    VERIFY_SHARED,   // inputs: strides 0 in the first two dimensions
    VERIFY_SHUFFLED, // dimensions except the last one in random order, gaps; inputs: random signs
    VERIFY_LAYOUTS
} verify_layout;

// Makes a tensor in the pool; NULL where none can be made. The tensor is poison until it is filled.
kf_tensor *verify_tensor(verify_pool *pool, const char *name, unsigned role, kf_dtype dtype, verify_layout layout,
                         int ndim, const int64_t *shape);
// The same with strides of the caller's; `sparse` as above.
kf_tensor *verify_tensor_strided(verify_pool *pool, const char *name, unsigned role, kf_dtype dtype, int ndim,
                                 const int64_t *shape, const int64_t *strides, bool sparse);
unsigned char *verify_bytes(verify_pool *pool, const char *name, size_t bytes); // an input of plain bytes
void verify_pool_close(verify_pool *pool);
void verify_pool_free_mirrors(verify_pool *pool);

void verify_fill_normal(verify_pool *pool, kf_tensor *tensor, double deviation);
void verify_fill_uniform(verify_pool *pool, kf_tensor *tensor, double low, double high);
void verify_fill_value(kf_tensor *tensor, double value);
void verify_set(kf_tensor *tensor, const int64_t *index, double value);
void verify_set_row(kf_tensor *tensor, int64_t row, double value); // along the last axis

void verify_pool_snapshot(verify_pool *pool);   // before the first run
void verify_pool_keep_first(verify_pool *pool); // outputs after the first run
void verify_pool_restore(verify_pool *pool);    // as at the snapshot
// The buffer in which something changed that must not (what: "guard zone or gap", "input"), or NULL.
const verify_buffer *verify_pool_damage(const verify_pool *pool, const char **what);
const verify_buffer *verify_pool_differs(const verify_pool *pool); // an output other than kept by keep_first
const verify_buffer *verify_pool_changed(const verify_pool *pool); // a buffer that is not as at the snapshot
// An output element that was not written: its number in row-major order, or -1.
int64_t verify_unwritten(const kf_tensor *tensor);

// -------------------------------------------------------------------------------------------------------------- runs

typedef struct verify_run {
    // What was asked.
    const char *op, *only; // --op, --case; NULL: all
    uint64_t seed;
    int64_t random; // seeded random cases an operation
    int threads;
    bool quick, large, list, names, times;
    bool once;           // one call a case, and the CPU's oracle alone
    bool kernels;        // say at the end which case launches which kernel
    char *listed;        // the names of the cases to run, one a line; NULL: all
    int64_t part, parts; // of the cases, every parts-th one from `part` on
    int64_t limit;       // seconds that a case may take; 0: any number
    int64_t stop;        // seconds after which no case is begun; 0: none
    double begin;
    bool late;         // a case was not begun for that
    const char *after; // run nothing up to this case
    // What is being run.
    const char *backend;
    bool device; // contexts are a CUDA device's
    int number;  // of it; the current device stays 0
    int isa;     // kf_isa; on CUDA a compute capability times ten
    const char *isa_name;
    int64_t seen;            // cases, those of other parts too
    void *stream;            // the one that `captured` is on
    kf_context *context[4];  // by number of threads; [0]: `threads` of them
    kf_context *fixed_split; // `threads` of them, fixed_split on
    kf_context *captured;    // CUDA: its runs are captured into graphs
    const char *name;
    verify_pool pool;
    char failure[1024]; // the sentence of the case's failure
    char skipped[160];  // the reason why the case was not run; "": it was
    bool lost;          // the device reported an error that does not pass
    // What came of it.
    int64_t cases, failed;
    struct {
        char reason[160];
        int64_t count;
    } not_run[64];
} verify_run;

// A check returns true where everything holds; otherwise it has called verify_fail (which returns false) or verify_skip (true).
typedef bool verify_check(verify_run *run, const void *row);
bool verify_fail(verify_run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool verify_skip(verify_run *run, const char *reason);
// True for KF_OK. What a device's backend does not have is a reason to skip; anything else is a failure, "what: the sentence".
bool verify_status(verify_run *run, kf_status status, const char *what);

// Runs one case, named "op/...", unless the options leave it out.
void verify_case(verify_run *run, verify_check *check, const void *row, const char *name, ...)
    __attribute__((format(printf, 4, 5)));

// Runs the operation in every way (one call; planned; items in an order of our own; in a sequence) with 1, 2 and 3 threads on what is in
// the pool. Fails where a status is not KF_OK, anything outside the outputs changed, or two ways give different bits. Leaves the outputs.
bool verify_execute(verify_run *run, const kf_args *args);
// One call with one context; the same checks.
bool verify_execute_once(verify_run *run, kf_context *context, const kf_args *args);
// For what is too large for every way: one call; on a device, unless each case is called once, planned runs that must give its bits.
bool verify_execute_large(verify_run *run, const kf_args *args);
// The call must be refused with this status, a sentence, and nothing written.
bool verify_refused(verify_run *run, const kf_args *args, kf_status status);
// The same for what the CPU refuses at the run (ids, slots) and a device, which reads it, bounds: there nothing but the outputs changes.
bool verify_refused_at_run(verify_run *run, const kf_args *args, kf_status status);

// The parameters of any operation.
typedef union verify_args {
    kf_args head;
    kf_softmax_args softmax;
    kf_attention_args attention;
    kf_merge_states_args merge_states;
    kf_rmsnorm_args rmsnorm;
    kf_swiglu_args swiglu;
    kf_rope_args rope;
    kf_kv_append_args kv_append;
    kf_embedding_args embedding;
    kf_linear_args linear;
} verify_args;

// (verify_device.c) Calls, on tensors of the pool: where they are on the CPU; otherwise the pool goes to the device, the call's tensors are
// those there, and when it is done the pool comes back.
kf_status verify_call(verify_run *run, const kf_context *context,
                      const kf_args *args); // kf_attention(...), by args->kind
kf_status verify_op_create(verify_run *run, const kf_context *context, const kf_args *args, kf_op **op);
kf_status verify_op_bind(verify_run *run, kf_op *op, const kf_args *args);
// A workspace of exactly `bytes` at an odd address, full of 0xFF (NaN), with a guard zone at either side.
typedef struct verify_workspace {
    unsigned char *memory;
    void *mirror;
    void *at; // for the call: in memory, or in the mirror
    size_t bytes;
} verify_workspace;
kf_status verify_workspace_open(verify_run *run, size_t bytes, verify_workspace *workspace);
bool verify_workspace_intact(const verify_workspace *workspace);
void verify_workspace_close(verify_run *run, verify_workspace *workspace);
kf_status verify_op_run(verify_run *run, kf_op *op, verify_workspace *workspace);
kf_status verify_sequence_run(verify_run *run, kf_sequence *sequence, verify_workspace *workspace);
// CUDA: the run is captured into a graph, on run->captured, and the graph is launched. plain_call: one call is captured, not a planned op.
kf_status verify_captured_run(verify_run *run, const kf_args *args, bool plain_call, bool *intact);
// CUDA: a planned run is captured once; for each step `change` changes inputs, and the graph must give the bits of a call. The pool's
// snapshot is taken before.
bool verify_captured_steps(verify_run *run, const kf_args *args, int steps, void (*change)(void *argument, int step),
                           void *argument);
// The device's twin of the oracle for all rows, on the mirrors as they are; false where it failed.
bool verify_device_oracle(verify_run *run, const kf_attention_args *args, double *o, double *lse, double *naive);
// (cuda/verify_cases.c) The cases of memory, streams and tensors of other devices.
void verify_device(verify_run *run);

// Splits [0, count) over `threads` threads. Each call of `work` gets a range; false from any of them is returned.
bool verify_parallel(int threads, int64_t count, bool (*work)(void *argument, int64_t first, int64_t count),
                     void *argument);

// ------------------------------------------------------------------------------------------------------------- rules
// Rows along the last axis; rows == NULL: 0 .. count - 1. `want` is [count, n]. Where want is NaN, got must be, and where it is infinite,
// got must equal it.

typedef struct verify_bound {
    const char *rule; // its name, for the message
    double absolute;  // |got - want| <= absolute + relative |want| + ulps ulp(want) + row[r] + share * size[r, c]
    double relative;
    double ulps;        // of the output's dtype
    const double *row;  // [count] or NULL
    const double *size; // [count, n] or NULL
    double share;
    kf_dtype norm; // verify_rounded_once: the dtype that the relative norm is bound by; {0}: the output's
    bool spreads;  // NaN may stand where a number is wanted (verify_elements)
} verify_bound;

bool verify_elements(verify_run *run, const char *name, const kf_tensor *got, const int64_t *rows, int64_t count,
                     const double *want, const verify_bound *bound);
// The same for a tensor [*] whose every element is a row of its own.
bool verify_scalars(verify_run *run, const char *name, const kf_tensor *got, const int64_t *rows, int64_t count,
                    const double *want, const verify_bound *bound);
// ||got - want|| <= bound ||want|| over all finite rows together, and <= 2 bound for each row by itself.
bool verify_norm(verify_run *run, const char *name, const kf_tensor *got, const int64_t *rows, int64_t count,
                 const double *want, double bound);
double verify_norm_bound(kf_dtype dtype); // 1e-5, 2e-3, 1e-2 for fp32, fp16, bf16
// For operations that compute in fp32 and round once: `bound` (which has half an ulp in it), the relative norm, and 1e-3 + 1e-3 |want|
// (1e-2 in bf16). rows: all of the tensor.
bool verify_rounded_once(verify_run *run, const char *name, const kf_tensor *got, const double *want,
                         const verify_bound *bound);
double *verify_doubles(verify_run *run, int64_t count); // malloc; NULL (and the case not run) where there is none

kf_dtype verify_dtype(const char *name); // "fp32", "fp16", "bf16", "int32", "int64", "bool"
const char *verify_dtype_name(kf_dtype dtype);

// (verify_weights.c) The weight types, and a weight [rows, cols] of random blocks; row_gap bytes lie between its rows.
typedef struct verify_weight_type {
    int type;
    const char *name;
    int values, bytes; // of a block
    int scales[2];     // where fp16 scales stand in a block; -1: none
} verify_weight_type;
enum { VERIFY_WEIGHT_TYPES = 11 };
extern const verify_weight_type VERIFY_WEIGHTS[VERIFY_WEIGHT_TYPES];
bool verify_weight(verify_pool *pool, const verify_weight_type *type, int64_t rows, int64_t cols, int64_t row_gap,
                   kf_weight *weight);

// The cases of each operation.
void verify_attention(verify_run *run);
void verify_merge_states(verify_run *run);
void verify_softmax(verify_run *run);
void verify_rmsnorm(verify_run *run);
void verify_swiglu(verify_run *run);
void verify_rope(verify_run *run);
void verify_kv_append(verify_run *run);
void verify_embedding(verify_run *run);
void verify_linear(verify_run *run);
void verify_sequences(verify_run *run);

#endif
