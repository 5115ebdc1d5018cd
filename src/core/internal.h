// SPDX-License-Identifier: Apache-2.0
//
// What the layers share behind the public header.
//
//   args (public struct)  --parse-->  problem (views + options)  --plan-->  phases of work items  --run-->  kernels
//
// core checks the arguments and turns them into a problem: every tensor a `kf_view` with its strides filled in, every
// option in its plain form. A backend plans the problem into phases; a phase is a number of independent work items; a
// kernel is a function of one of them. Between phases stands a barrier. Nothing here knows what a kernel does, and
// kernels know nothing of the public structs.
#ifndef KF_CORE_INTERNAL_H
#define KF_CORE_INTERNAL_H

#include "keyfold.h"

// ----------------------------------------------------------------------------------------------------------------
// status

// Formats the thread's last error and returns `status`. The message names the argument, its value and what is allowed.
kf_status kf_fail(kf_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
#if defined(__clang_analyzer__) // which, file by file, can't know that it is never KF_OK
#define kf_fail(status, ...) ((kf_fail)(status, __VA_ARGS__), (status))
#endif

// All allocation goes through these two, so that tests can make any of them fail. kf_free takes NULL.
void *kf_alloc(size_t bytes); // 64-byte aligned; NULL where there is none
void kf_free(void *memory);

// ---------------------------------------------------------------------------------------------------------------
// tensors

typedef enum kf_type {
    KF_TYPE_NONE = 0,
    KF_TYPE_F32,
    KF_TYPE_F16,
    KF_TYPE_BF16,
    KF_TYPE_I32,
    KF_TYPE_I64,
    KF_TYPE_BOOL
} kf_type;

// A checked tensor: data already includes byte_offset, strides are in elements, dimensions of size 1 have stride 0.
// type KF_TYPE_NONE: the optional tensor is absent.
typedef struct kf_view {
    char *data;
    kf_device device;
    int32_t type; // kf_type
    int32_t ndim;
    int64_t shape[KF_MAX_NDIM];
    int64_t stride[KF_MAX_NDIM];
} kf_view;

static inline int64_t kf_absolute(int64_t x) { return x < 0 ? -x : x; } // x > INT64_MIN

static inline bool kf_present(const kf_view *view) { return view->type != KF_TYPE_NONE; }

static inline int64_t kf_type_size(int type) {
    return type == KF_TYPE_F32 || type == KF_TYPE_I32 ? 4 : type == KF_TYPE_I64 ? 8 : type == KF_TYPE_BOOL ? 1 : 2;
}

static inline bool kf_type_is_float(int type) {
    return type == KF_TYPE_F32 || type == KF_TYPE_F16 || type == KF_TYPE_BF16;
}

const char *kf_type_name(int type); // "fp32", "int64", ...

// Element counts fit int64 (checked at parse).
int64_t kf_view_elements(const kf_view *view);

// Integer element i of a 1-D view, or (i, j) of a 2-D one; int32 or int64.
int64_t kf_view_int(const kf_view *view, int64_t i);
int64_t kf_view_int2(const kf_view *view, int64_t i, int64_t j);

// Address of row `row` of a view, rows being counted over all dimensions before `inner` in row-major order.
char *kf_view_row(const kf_view *view, int inner, int64_t row);

// --------------------------------------------------------------------------------------------------------------
// problems Each begins with its views, all of them kf_view, and ends with `options`, free of padding that is not
// zeroed: kf_op_bind compares shapes of the views and the bytes of options.

typedef struct kf_softmax_problem {
    kf_view x, y, lse;
    struct {
        int64_t rows, n;
    } options;
} kf_softmax_problem;

typedef struct kf_attention_problem {
    kf_view q, k, v, o, lse, key_lengths, positions, alibi_slopes, sinks, bias, mask;
    struct kf_attention_options {
        int64_t B, H, Hkv, Nq, Nk, D, Dv;
        int64_t window_left,
            window_right;        // INT64_MAX: no limit. Causal is window_right = 0 (the smaller of the two where both)
        float scale;             // never 0 here
        float softcap;           // 0: off
        uint32_t rope_q, rope_k; // 0 or 1
        kf_rope_params rope;     // defaults filled in
    } options;
} kf_attention_problem;

typedef struct kf_merge_states_problem {
    kf_view o_parts, lse_parts, o, lse;
    struct {
        int64_t parts, rows, n;
    } options;
} kf_merge_states_problem;

typedef struct kf_rmsnorm_problem {
    kf_view x, residual, weight, y, sum;
    struct {
        int64_t rows, n;
        float eps, weight_offset;
        int32_t cast, reserved;
    } options;
} kf_rmsnorm_problem;

typedef struct kf_swiglu_problem {
    kf_view gate, up, y; // packed halves arrive here as two views of one tensor
    struct {
        int64_t rows, n;
    } options;
} kf_swiglu_problem;

typedef struct kf_rope_problem {
    kf_view x, y, positions;
    struct {
        int64_t B, H, N, D;
        int64_t position_offset;
        kf_rope_params rope;
    } options;
} kf_rope_problem;

typedef struct kf_kv_append_problem {
    kf_view k, v, k_cache, v_cache, slots, positions;
    struct {
        int64_t B, H, N, D, Dv, capacity;
        kf_rope_params rope;
    } options;
} kf_kv_append_problem;

typedef struct kf_embedding_problem {
    kf_view ids, y;
    kf_weight table; // compared by type, rows, cols, row_bytes
    struct {
        int64_t T, N;
        float scale;
        int32_t reserved;
    } options;
} kf_embedding_problem;

typedef struct kf_linear_problem {
    kf_view x, bias, y;
    kf_weight weight; // compared by type, packed, rows, cols, row_bytes
    struct {
        int64_t T, N, K;
        int32_t activations, reserved;
    } options;
} kf_linear_problem;

typedef union kf_problem {
    kf_softmax_problem softmax;
    kf_attention_problem attention;
    kf_merge_states_problem merge_states;
    kf_rmsnorm_problem rmsnorm;
    kf_swiglu_problem swiglu;
    kf_rope_problem rope;
    kf_kv_append_problem kv_append;
    kf_embedding_problem embedding;
    kf_linear_problem linear;
} kf_problem;

// ------------------------------------------------------------------------------------------------------------------
// plans

enum { KF_MAX_PHASES = 4, KF_PLAN_WORDS = 192 };

// What a backend's plan decides. It holds no pointers into tensors: binding others leaves it valid.
typedef struct kf_plan {
    int32_t phases;
    int64_t items[KF_MAX_PHASES];
    size_t shared_bytes;         // of workspace that all workers see (packed keys, partial states)
    size_t scratch_bytes;        // of workspace for each worker
    int32_t streams;             // not 0: neighbouring items read neighbouring memory; members take runs of them
    int64_t word[KF_PLAN_WORDS]; // the backend's own: lay a struct over it (kf_static_assert its size)
} kf_plan;

// The workspace as a kernel sees it; both parts 64-byte aligned.
typedef struct kf_worker {
    char *shared;
    char *scratch;
    int32_t index;
    int32_t count; // workers of this run
    bool first;    // this worker's first call in this phase: its scratch holds nothing of the phase yet
} kf_worker;

// One operation of one backend. plan and prepare return a status (with kf_fail's sentence); run_items cannot fail.
typedef struct kf_backend_op {
    // Fills op->plan from op->problem and op->context. Called once.
    kf_status (*plan)(kf_op *op);
    // On the calling thread at the start of each run, before anything is written: checks what is read only now
    // (lengths, slots, ids). It writes nothing: in a sequence all ops are prepared before the first one runs, on one
    // workspace. NULL: nothing to check.
    kf_status (*prepare)(const kf_op *op);
    // Items first .. first + count - 1 of a phase. Several threads call it at the same time, each with its own worker.
    void (*run_items)(const kf_op *op, const kf_worker *worker, int32_t phase, int64_t first, int64_t count);
} kf_backend_op;

typedef struct kf_backend {
    const char *name;
    const kf_backend_op *ops[KF_OP_COUNT]; // NULL: not there
    // Packing of weights; device specific.
    kf_status (*pack_weight_size)(const kf_context *context, const kf_weight *weight, size_t *bytes);
    kf_status (*pack_weight)(const kf_context *context, const kf_weight *weight, void *destination, size_t bytes,
                             kf_weight *packed);
    // Row `index` of kf_support for this backend; false past the end.
    bool (*support)(int32_t index, kf_support_row *row);
    // Device backends only (NULL on the CPU, whose ops are run by the team).
    // Finds the device; sets context->device and the device's part of context->info.
    kf_status (*open)(kf_context *context, const kf_context_options *options);
    void (*close)(kf_context *context);
    // In the place of prepare and run_items: enqueues the ops one after another on the context's stream. It neither allocates
    // nor waits; what is read only at the run (lengths, slots) is read by the device. workspace is device memory.
    kf_status (*run)(const kf_context *context, kf_op *const *ops, int64_t count, char *workspace);
    // The same for a sequence, which keeps at *graph (NULL before the first run) what the backend wants for the next one.
    // `changed`: ops, what they are bound to, or the workspace, are not what they were when it last returned KF_OK.
    kf_status (*run_sequence)(const kf_context *context, kf_op *const *ops, int64_t count, char *workspace,
                              bool changed, void **graph);
    void (*drop_sequence)(const kf_context *context, void *graph);
    // Workspace of a plain call, in the order of the stream. NULL where there is none.
    void *(*take_workspace)(const kf_context *context, size_t bytes);
    void (*give_workspace)(const kf_context *context, void *workspace);
    // kf_memory_* and kf_context_synchronize; arguments are checked, bytes of a copy are not 0.
    kf_status (*memory_allocate)(const kf_context *context, size_t bytes, bool host, void **memory);
    void (*memory_free)(const kf_context *context, bool host, void *memory);
    kf_status (*memory_copy)(const kf_context *context, void *destination, const void *source, size_t bytes);
    kf_status (*synchronize)(const kf_context *context);
} kf_backend;

extern const kf_backend kf_backend_cpu;  // src/cpu/backend.c
extern const kf_backend kf_backend_cuda; // src/cuda/backend.c, where KF_HAVE_CUDA is 1

struct kf_team;
struct kf_cpu_table;

struct kf_context {
    kf_context_info info;
    const kf_backend *backend;
    const struct kf_cpu_table *cpu; // the kernels of info.isa
    struct kf_team *team;
    void *device; // a device backend's own
};

struct kf_op {
    const kf_context *context;
    const kf_backend_op *backend;
    kf_op_kind kind;
    kf_problem problem;
    kf_plan plan;
    uint64_t bound; // kf_bindings() when it was last bound anew; 0: as it was created
};

// ------------------------------------------------------------------------------------------------------------- op
// classes One per operation, in src/core/args_*.c: how its public struct becomes a problem.

typedef struct kf_op_class {
    const char *name;
    const uint32_t *sizes;         // published sizes of the args struct, ascending; 0 ends the list
    const char *const *view_names; // of the kf_views at the start of the problem; NULL ends the list
    size_t options_offset, options_size;
    size_t weight_offset; // of a kf_weight in the problem; 0: none
    uint32_t outputs;     // bit i: view i is written
    uint32_t may_alias;   // bit i: output i may be one of the inputs itself (the same data, shape, strides and dtype)
    // args has the newest size (a shorter one was padded with zeros).
    kf_status (*parse)(const void *args, kf_problem *problem);
} kf_op_class;

extern const kf_op_class *const kf_op_classes[KF_OP_COUNT]; // [KF_OP_NONE] is NULL

// Checks for parse functions. `op` and `name` make the sentence: "attention: k has ...".
kf_status kf_parse_tensor(const char *op, const char *name, const kf_tensor *tensor, uint32_t allowed_types,
                          kf_view *view);
kf_status kf_parse_optional(const char *op, const char *name, const kf_tensor *tensor, uint32_t allowed_types,
                            kf_view *view);
kf_status kf_parse_output(const char *op, const char *name, const kf_tensor *tensor, uint32_t allowed_types,
                          kf_view *view);
// The view, where present, must have this shape; -1 stands for any size.
kf_status kf_parse_shape(const char *op, const char *name, const kf_view *view, int ndim, const int64_t *shape);
kf_status kf_parse_weight(const char *op, const char *name, const kf_weight *weight, kf_weight *out);
kf_status kf_parse_rope(const char *op, const kf_rope_params *rope, int64_t D, kf_rope_params *out);

#define KF_ALLOW(type) (1u << (type))
#define KF_ALLOW_FLOAT (KF_ALLOW(KF_TYPE_F32) | KF_ALLOW(KF_TYPE_F16) | KF_ALLOW(KF_TYPE_BF16))
#define KF_ALLOW_INT (KF_ALLOW(KF_TYPE_I32) | KF_ALLOW(KF_TYPE_I64))

// Returns early with the status of an inner check.
#define KF_TRY(expression)                                                                                             \
    do {                                                                                                               \
        kf_status try_status_ = (expression);                                                                          \
        if (try_status_ != KF_OK) return try_status_;                                                                  \
    } while (0)

#define kf_static_assert(condition, text) _Static_assert(condition, text)

// -------------------------------------------------------------------------------------------------------------------
// team

typedef struct kf_team kf_team;
// A job: called once on every member (index 0 is the caller) with the number of members at work.
typedef void (*kf_team_job)(void *argument, int32_t index, int32_t count);

kf_team *kf_team_create(int32_t threads); // NULL where memory is short; has fewer threads where no more can be made
void kf_team_destroy(kf_team *team);
int32_t kf_team_size(const kf_team *team);
// Runs job on the team and returns when all members are done. Where the team is busy or this is a forked child: on the
// caller alone.
void kf_team_run(kf_team *team, kf_team_job job, void *argument);
// All members of the running job wait for each other. count is what the job was called with.
void kf_team_barrier(kf_team *team, int32_t index, int32_t count);

#endif
