// SPDX-License-Identifier: Apache-2.0
//
// How `keyfold verify` calls an operation and judges its outputs (verify.h). Every operation can be used in four ways, which must give
// the same bits: one call; planned and run; its work items by the caller's own threads and in the caller's own order; in a sequence. On
// CUDA, where there are no items for threads: as a graph, of a planned run and of one call.
#include "verify.h"

#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool verify_fail(verify_run *run, const char *format, ...) {
    va_list values;
    va_start(values, format);
    if (!run->failure[0]) vsnprintf(run->failure, sizeof run->failure, format, values);
    va_end(values);
    return false;
}

bool verify_skip(verify_run *run, const char *reason) {
    snprintf(run->skipped, sizeof run->skipped, "%s", reason);
    return true;
}

bool verify_status(verify_run *run, kf_status status, const char *what) {
    if (status == KF_OK) return true;
    if (status == KF_UNSUPPORTED && run->device) {
        verify_skip(run, kf_last_error());
        return false;
    }
    return verify_fail(run, "%s: %s: %s", what, kf_status_string(status), kf_last_error());
}

// ----------------------------------------------------------------------------------------------------------- calling

// All items of all phases, in chunks of uneven size from the last to the first, by workers in turn.
static kf_status run_items(verify_run *run, const kf_context *context, kf_op *op, void *workspace, size_t bytes) {
    kf_context_info info = {.size = sizeof info};
    int32_t phases = 0;
    kf_status status = kf_context_get_info(context, &info);
    if (status == KF_OK) status = kf_op_phase_count(op, &phases);
    if (status == KF_OK) status = kf_op_prepare(op, workspace, bytes);
    for (int32_t phase = 0, worker = 0; status == KF_OK && phase < phases; phase++) {
        int64_t end = 0;
        status = kf_op_item_count(op, phase, &end);
        while (status == KF_OK && end > 0) {
            int64_t count = verify_random_between(&run->pool.random, 1, 5);
            count = count < end ? count : end;
            end -= count;
            status = kf_op_run_items(op, workspace, bytes, worker, phase, end, count);
            worker = (worker + 1) % info.threads;
        }
    }
    return status;
}

static kf_status run_sequence(verify_run *run, const kf_context *context, kf_op *op, bool *intact) {
    kf_sequence *sequence = NULL;
    verify_workspace workspace = {0};
    size_t bytes = 0;
    kf_status status = kf_sequence_create(context, &sequence);
    if (status == KF_OK) status = kf_sequence_add(sequence, op);
    if (status == KF_OK) status = kf_sequence_workspace_size(sequence, &bytes);
    if (status == KF_OK) status = verify_workspace_open(run, bytes, &workspace);
    if (status == KF_OK) status = verify_sequence_run(run, sequence, &workspace);
    if (status == KF_OK) *intact = verify_workspace_intact(&workspace);
    verify_workspace_close(run, &workspace);
    kf_sequence_destroy(sequence);
    return status;
}

static kf_status run_planned(verify_run *run, const kf_context *context, kf_op *op, bool own_order, bool *intact) {
    verify_workspace workspace = {0};
    size_t bytes = 0;
    kf_status status = kf_op_workspace_size(op, &bytes);
    if (status == KF_OK) status = verify_workspace_open(run, bytes, &workspace);
    if (status == KF_OK && !own_order) status = verify_op_run(run, op, &workspace);
    if (status == KF_OK && own_order) status = run_items(run, context, op, workspace.at, bytes);
    if (status == KF_OK) *intact = verify_workspace_intact(&workspace);
    verify_workspace_close(run, &workspace);
    return status;
}

enum way { ONE_CALL, PLANNED, OWN_ORDER, IN_SEQUENCE, CAPTURED, CAPTURED_CALL };
static const char *const WAY_NAMES[] = {"one call",        "kf_op_run", "kf_op_run_items",
                                        "kf_sequence_run", "a graph",   "a graph of one call"};

static kf_status run_way(verify_run *run, const kf_context *context, const kf_args *args, enum way way, bool *intact) {
    kf_op *op = NULL;
    *intact = true;
    if (way == ONE_CALL) return verify_call(run, context, args);
#if KF_HAVE_CUDA
    if (way >= CAPTURED) return verify_captured_run(run, args, way == CAPTURED_CALL, intact);
#endif
    kf_status status = verify_op_create(run, context, args, &op);
    if (status != KF_OK) return status;
    status = way == IN_SEQUENCE ? run_sequence(run, context, op, intact)
                                : run_planned(run, context, op, way == OWN_ORDER, intact);
    kf_op_destroy(op);
    return status;
}

static bool run_checked(verify_run *run, const kf_context *context, const kf_args *args, enum way way) {
    const char *what = "";
    bool intact = true;
    if (!verify_status(run, run_way(run, context, args, way, &intact), WAY_NAMES[way])) return false;
    if (!intact) return verify_fail(run, "%s wrote past the workspace that it asked for", WAY_NAMES[way]);
    const verify_buffer *damaged = verify_pool_damage(&run->pool, &what);
    if (damaged) return verify_fail(run, "%s changed the %s of %s", WAY_NAMES[way], what, damaged->name);
    return true;
}

bool verify_execute_once(verify_run *run, kf_context *context, const kf_args *args) {
    verify_pool_snapshot(&run->pool);
    return run_checked(run, context, args, ONE_CALL);
}

// Another run into outputs that are poison again; the bits must be those of the first one.
static bool run_again(verify_run *run, int context, const kf_args *args, enum way way) {
    verify_pool_restore(&run->pool);
    if (!run_checked(run, run->context[context], args, way)) return false;
    const verify_buffer *differs = verify_pool_differs(&run->pool);
    if (!differs) return true;
    if (run->device) return verify_fail(run, "%s has other bits by %s than by one call", differs->name, WAY_NAMES[way]);
    return verify_fail(run, "%s has other bits by %s with %d threads than by one call with %d", differs->name,
                       WAY_NAMES[way], context, run->threads);
}

// On a device, one case in sixteen is run fifty times: blocks that finish in another order must not show in the bits.
enum { REPEATS = 50, REPEATED_CASES = 16 };

static bool repeat(verify_run *run, const kf_args *args) {
    bool good = true;
    run->pool.outputs_alone = true;
    for (int n = 0; n < REPEATS && good; n++) good = run_again(run, 0, args, PLANNED);
    run->pool.outputs_alone = false;
    return good;
}

bool verify_execute(verify_run *run, const kf_args *args) {
    static const struct {
        int threads;
        enum way way;
    } on_cpu[] = {{1, PLANNED}, {2, OWN_ORDER}, {3, IN_SEQUENCE}},
      on_device[] = {{1, PLANNED}, {2, CAPTURED}, {3, IN_SEQUENCE}, {0, CAPTURED_CALL}};
    const int ways = run->device ? 4 : 3;
    const bool repeated = run->device && verify_random(&run->pool.random) % REPEATED_CASES == 0;
    if (!verify_execute_once(run, run->context[0], args)) return false;
    if (run->once) return true;
    verify_pool_keep_first(&run->pool);
    bool good = true;
    run->pool.settled = true;
    for (int a = 0; a < ways && good; a++) {
        const int threads = run->device ? on_device[a].threads : on_cpu[a].threads;
        good = run_again(run, threads, args, run->device ? on_device[a].way : on_cpu[a].way);
    }
    if (repeated && good) good = repeat(run, args);
    run->pool.settled = false;
    return good;
}

bool verify_execute_large(verify_run *run, const kf_args *args) {
    kf_op *op = NULL;
    verify_workspace workspace = {0};
    size_t bytes = 0;
    if (!verify_execute_once(run, run->context[0], args)) return false;
    if (!run->device || run->once) return true;
    verify_pool_keep_first(&run->pool);
    kf_status status = verify_op_create(run, run->context[0], args, &op);
    if (status == KF_OK) status = kf_op_workspace_size(op, &bytes);
    if (status == KF_OK) status = verify_workspace_open(run, bytes, &workspace);
    const verify_buffer *differs = NULL;
    run->pool.settled = run->pool.outputs_alone = true;
    for (int n = 0; n < REPEATS && status == KF_OK && !differs; n++) {
        verify_pool_restore(&run->pool);
        status = verify_op_run(run, op, &workspace);
        differs = verify_pool_differs(&run->pool);
    }
    run->pool.settled = run->pool.outputs_alone = false;
    verify_workspace_close(run, &workspace);
    kf_op_destroy(op);
    if (!verify_status(run, status, "kf_op_run")) return false;
    return !differs || verify_fail(run, "%s has other bits by kf_op_run than by one call", differs->name);
}

bool verify_refused(verify_run *run, const kf_args *args, kf_status wanted) {
    verify_pool_snapshot(&run->pool);
    const kf_status status = verify_call(run, run->context[0], args);
    if (status != wanted) {
        return verify_fail(run, "must be refused with %s, gave %s", kf_status_string(wanted), kf_status_string(status));
    }
    if (!kf_last_error()[0]) return verify_fail(run, "was refused without a sentence");
    const verify_buffer *changed = verify_pool_changed(&run->pool);
    return changed ? verify_fail(run, "was refused, but %s changed", changed->name) : true;
}

bool verify_refused_at_run(verify_run *run, const kf_args *args, kf_status wanted) {
    return run->device ? verify_execute_once(run, run->context[0], args) : verify_refused(run, args, wanted);
}

// ----------------------------------------------------------------------------------------------------------- threads

typedef struct range {
    bool (*work)(void *argument, int64_t first, int64_t count);
    void *argument;
    int64_t first, count;
    bool done;
} range;

static void *run_range(void *pointer) {
    range *r = pointer;
    r->done = r->count == 0 || r->work(r->argument, r->first, r->count);
    return NULL;
}

enum { MAX_ORACLE_THREADS = 64 };

bool verify_parallel(int threads, int64_t count, bool (*work)(void *argument, int64_t first, int64_t count),
                     void *argument) {
    range ranges[MAX_ORACLE_THREADS] = {{0}};
    pthread_t ids[MAX_ORACLE_THREADS];
    bool made[MAX_ORACLE_THREADS] = {false}, done = true;
    threads = threads > MAX_ORACLE_THREADS ? MAX_ORACLE_THREADS : threads;
    for (int t = 0; t < threads; t++) {
        const int64_t first = count * t / threads, end = count * (t + 1) / threads;
        ranges[t] = (range){work, argument, first, end - first, false};
        made[t] = t > 0 && pthread_create(&ids[t], NULL, run_range, &ranges[t]) == 0;
        if (t > 0 && !made[t]) run_range(&ranges[t]);
    }
    run_range(&ranges[0]);
    for (int t = 0; t < threads; t++) {
        if (made[t]) pthread_join(ids[t], NULL);
        done = done && ranges[t].done;
    }
    return done;
}

// ------------------------------------------------------------------------------------------------------------- rules

// "o[0, 1, 5, 33]"
static const char *element_name(const char *name, const kf_tensor *tensor, int64_t flat, char *text, size_t bytes) {
    int64_t index[KF_MAX_NDIM] = {0};
    int length = snprintf(text, bytes, "%s[", name);
    ref_unravel(tensor, flat, index);
    for (int a = 0; a < tensor->ndim && length < (int)bytes; a++) {
        length += snprintf(text + length, bytes - (size_t)length, a ? ", %lld" : "%lld", (long long)index[a]);
    }
    if (length < (int)bytes) snprintf(text + length, bytes - (size_t)length, "]");
    return text;
}

// How far out of its bound an element is: <= 1 passes.
static double badness(double got, double want, double bound) {
    if (isnan(want)) return isnan(got) ? 0 : (double)INFINITY;
    if (isnan(got)) return (double)INFINITY;
    if (isinf(want) || isinf(got)) return got == want ? 0 : (double)INFINITY;
    const double error = fabs(got - want);
    return error == 0 ? 0 : error / bound;
}

enum { FP16_LARGEST = 65504 }; // the smallest of the dtypes' largest numbers

// What is past the dtype's largest number is stored as infinity; the rest is held as it is.
static double stored(kf_dtype dtype, double want) {
    return fabs(want) > FP16_LARGEST && isinf(ref_round(dtype, want)) ? ref_round(dtype, want) : want;
}

// Rows of `got` beside `want`, by several threads; each adds what it found.
typedef struct comparison {
    const kf_tensor *got;
    const int64_t *rows;
    const double *want;
    const verify_bound *bound; // of elements
    double norm;               // of rows
    pthread_mutex_t lock;
    double worst, worst_got, worst_want, worst_bound; // of all elements, the first of the worst
    int64_t worst_at;
    double error, size; // sums of squares over all rows
    int64_t bad_row;    // the first whose own error is too large; -1
    double bad_error;
} comparison;

static int64_t last_axis(const kf_tensor *tensor) { return tensor->ndim ? tensor->shape[tensor->ndim - 1] : 1; }

static void read_row(const comparison *c, int64_t r, double *row) {
    if (c->got->ndim)
        ref_row(c->got, c->rows ? c->rows[r] : r, row);
    else
        row[0] = ref_at(c->got, NULL);
}

// Calls `work` for all rows; false where memory is missing. Few elements are not worth other threads.
static bool compare_rows(const verify_run *run, comparison *c, int64_t count, bool (*work)(void *, int64_t, int64_t)) {
    enum { ELEMENTS_A_THREAD = 1 << 16 };
    const int64_t most = count * last_axis(c->got) / ELEMENTS_A_THREAD + 1;
    pthread_mutex_init(&c->lock, NULL);
    const bool done = verify_parallel(run->threads < most ? run->threads : (int)most, count, work, c);
    pthread_mutex_destroy(&c->lock);
    return done;
}

// What element k (counted in want) may be off by, without the last rounding.
static double allowance(const verify_bound *bound, int64_t r, int64_t k, double want) {
    double allowed = bound->absolute + bound->relative * fabs(want);
    if (bound->row) allowed += bound->row[r];
    return bound->size ? allowed + bound->share * bound->size[k] : allowed;
}

static bool elements_of_rows(void *argument, int64_t first, int64_t count) {
    comparison *c = argument;
    const verify_bound *bound = c->bound;
    const int64_t n = last_axis(c->got);
    double *row = malloc((size_t)(n + 1) * sizeof(double)), worst = 1, worst_got = 0, worst_want = 0, worst_bound = 0;
    int64_t worst_at = -1;
    for (int64_t r = first; row && r < first + count; r++) {
        read_row(c, r, row);
        for (int64_t e = 0; e < n; e++) {
            const double w = stored(c->got->dtype, c->want[r * n + e]);
            double allowed = allowance(bound, r, r * n + e, w);
            if (isfinite(allowed) && fabs(row[e] - w) <= allowed) continue; // nearly all
            // The last rounding is of a number that may lie this far beside w, past a power of two too.
            allowed += bound->ulps * ref_ulp(c->got->dtype, fabs(w) + (isfinite(allowed) ? allowed : 0));
            const double bad = bound->spreads && isnan(row[e]) ? 0 : badness(row[e], w, allowed);
            if (bad <= worst) continue;
            worst = bad, worst_at = (c->rows ? c->rows[r] : r) * n + e;
            worst_got = row[e], worst_want = w, worst_bound = allowed;
        }
    }
    pthread_mutex_lock(&c->lock);
    if (worst_at >= 0 && (worst > c->worst || (worst == c->worst && worst_at < c->worst_at))) {
        c->worst = worst, c->worst_at = worst_at;
        c->worst_got = worst_got, c->worst_want = worst_want, c->worst_bound = worst_bound;
    }
    pthread_mutex_unlock(&c->lock);
    free(row);
    return row != NULL;
}

bool verify_elements(verify_run *run, const char *name, const kf_tensor *got, const int64_t *rows, int64_t count,
                     const double *want, const verify_bound *bound) {
    comparison c = {.got = got, .rows = rows, .want = want, .bound = bound, .worst = 1, .worst_at = -1};
    char text[128];
    const int64_t unwritten = verify_unwritten(got);
    if (unwritten >= 0) {
        return verify_fail(run, "%s was not written", element_name(name, got, unwritten, text, sizeof text));
    }
    if (last_axis(got) && !compare_rows(run, &c, count, elements_of_rows))
        return verify_fail(run, "not enough memory to compare");
    if (c.worst_at < 0) return true;
    return verify_fail(run, "%s: got %.9g, want %.9g, error %.3g, bound %.3g (%s)",
                       element_name(name, got, c.worst_at, text, sizeof text), c.worst_got, c.worst_want,
                       fabs(c.worst_got - c.worst_want), c.worst_bound, bound->rule);
}

// Rows with NaN or infinity are held element by element.
static bool norms_of_rows(void *argument, int64_t first, int64_t count) {
    comparison *c = argument;
    const int64_t n = last_axis(c->got);
    const double smallest = ref_ulp(c->got->dtype, 0); // of subnormal numbers every element may be off by one
    double *row = malloc((size_t)(n + 1) * sizeof(double)), all_error = 0, all_size = 0, bad_error = 0;
    int64_t bad_row = -1;
    for (int64_t r = first; row && r < first + count; r++) {
        double error = 0, size = 0;
        read_row(c, r, row);
        for (int64_t e = 0; e < n; e++) {
            const double w = stored(c->got->dtype, c->want[r * n + e]);
            error += (row[e] - w) * (row[e] - w);
            size += w * w;
        }
        if (!isfinite(size + error)) continue;
        all_error += error, all_size += size;
        if (bad_row < 0 && n >= 8 && sqrt(error) > 2 * c->norm * sqrt(size) + smallest * sqrt((double)n))
            bad_row = c->rows ? c->rows[r] : r, bad_error = sqrt(error / size);
    }
    pthread_mutex_lock(&c->lock);
    c->error += all_error, c->size += all_size;
    if (bad_row >= 0 && (c->bad_row < 0 || bad_row < c->bad_row)) c->bad_row = bad_row, c->bad_error = bad_error;
    pthread_mutex_unlock(&c->lock);
    free(row);
    return row != NULL;
}

bool verify_norm(verify_run *run, const char *name, const kf_tensor *got, const int64_t *rows, int64_t count,
                 const double *want, double bound) {
    comparison c = {.got = got, .rows = rows, .want = want, .norm = bound, .bad_row = -1};
    const int64_t n = last_axis(got);
    if (n && !compare_rows(run, &c, count, norms_of_rows)) return verify_fail(run, "not enough memory to compare");
    if (c.bad_row >= 0)
        return verify_fail(run, "%s row %lld: relative L2 error %.3g, bound %.3g", name, (long long)c.bad_row,
                           c.bad_error, 2 * bound);
    if (sqrt(c.error) <= bound * sqrt(c.size) + ref_ulp(got->dtype, 0) * sqrt((double)(count * n))) return true;
    return verify_fail(run, "%s: relative L2 error %.3g, bound %.3g", name, sqrt(c.error / c.size), bound);
}

double verify_norm_bound(kf_dtype dtype) {
    const int precision = ref_precision(dtype);
    return precision == 24 ? 1e-5 : precision == 11 ? 2e-3 : 1e-2;
}

bool verify_scalars(verify_run *run, const char *name, const kf_tensor *got, const int64_t *rows, int64_t count,
                    const double *want, const verify_bound *bound) {
    kf_tensor column = *got;
    int64_t shape[KF_MAX_NDIM] = {0}, strides[KF_MAX_NDIM] = {0};
    memcpy(shape, got->shape, (size_t)got->ndim * sizeof *shape);
    memcpy(strides, got->strides, (size_t)got->ndim * sizeof *strides);
    shape[got->ndim] = strides[got->ndim] = 1;
    column.ndim++, column.shape = shape, column.strides = strides;
    return verify_elements(run, name, &column, rows, count, want, bound);
}

bool verify_rounded_once(verify_run *run, const char *name, const kf_tensor *got, const double *want,
                         const verify_bound *bound) {
    // A value that is rounded to a coarser dtype on its way may fall to that dtype's other neighbour: where the oracle could not
    // tell which, bound->size says by how much.
    const kf_dtype coarsest = bound->norm.bits ? bound->norm : got->dtype;
    const double seeds = ref_precision(coarsest) == 8 ? 1e-2 : 1e-3;
    const verify_bound tolerance = {
        .rule = "atol and rtol", .absolute = seeds, .relative = seeds, .size = bound->size, .share = bound->share};
    const int64_t rows = ref_leading(got, 1);
    return verify_elements(run, name, got, NULL, rows, want, bound) &&
           verify_elements(run, name, got, NULL, rows, want, &tolerance) &&
           verify_norm(run, name, got, NULL, rows, want, verify_norm_bound(coarsest));
}

double *verify_doubles(verify_run *run, int64_t count) {
    double *values = malloc((size_t)(count + 1) * sizeof(double));
    if (!values) run->pool.exhausted = true;
    return values;
}

// ------------------------------------------------------------------------------------------------------------ dtypes

static const struct {
    const char *name;
    kf_dtype dtype;
} DTYPES[] = {{"fp32", KF_FP32},   {"fp16", KF_FP16},   {"bf16", KF_BF16},
              {"int32", KF_INT32}, {"int64", KF_INT64}, {"bool", KF_BOOL}};

kf_dtype verify_dtype(const char *name) {
    for (size_t d = 0; d < sizeof DTYPES / sizeof *DTYPES; d++) {
        if (strcmp(name, DTYPES[d].name) == 0) return DTYPES[d].dtype;
    }
    return DTYPES[0].dtype;
}

const char *verify_dtype_name(kf_dtype dtype) {
    for (size_t d = 0; d < sizeof DTYPES / sizeof *DTYPES; d++) {
        if (ref_same_dtype(dtype, DTYPES[d].dtype)) return DTYPES[d].name;
    }
    return "unknown";
}
