// SPDX-License-Identifier: Apache-2.0
//
// The checks of attention. Rules for the output, on every row of a small case and on at least 256 rows a head of a large one:
//
//   1. max |o - oracle| <= 2 max |naive - oracle| + 2 ulp(max |oracle| of the row) (fp32: 4), naive being textbook attention in the tensors' dtype
//   2. ||o - oracle|| <= 1e-5, 2e-3, 1e-2 ||oracle|| (fp32, fp16, bf16: the coarsest of the tensors), and twice that for each row
//   3. |o - oracle| <= a + a |oracle|, a = 1e-2 in bf16 (5e-3 with RoPE), 1e-3 otherwise (in fp16 with RoPE on a device 5e-3)
//   4. gaps, guard zones and inputs unchanged, every element written, and the same bits in every way of calling (verify_execute)
#include "verify_attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ------------------------------------------------------------------------------------------------------------ tensors

static attention_case with_defaults(const attention_case *given) {
    attention_case row = *given;
    if (!row.q) row.q = "fp32";
    if (!row.kv) row.kv = row.q;
    if (!row.o) row.o = row.q;
    if (row.looser == 0) row.looser = 1;
    if (row.empty) return row;
    if (!row.B) row.B = 1;
    if (!row.H) row.H = 2;
    if (!row.Hkv) row.Hkv = row.H;
    if (!row.Nq) row.Nq = 16;
    if (!row.Nk) row.Nk = 48;
    if (!row.D) row.D = 64;
    if (!row.Dv) row.Dv = row.D;
    return row;
}

static kf_dtype int_dtype(const attention_case *row) { return verify_dtype(row->Nk % 2 ? "int64" : "int32"); }

static kf_tensor *make_lengths(verify_pool *pool, const attention_case *row) {
    kf_tensor *lengths = verify_tensor(pool, "key_lengths", VERIFY_INPUT, int_dtype(row), VERIFY_COMPACT, 1, &row->B);
    for (int64_t b = 0; lengths && b < row->B; b++) {
        int64_t length = b == 0 && row->B > 1 ? row->Nk : verify_random_between(&pool->random, row->Nk / 2, row->Nk);
        if (b == row->B - 1 && row->B >= 3) length = 0;
        verify_set(lengths, &b, (double)length);
    }
    return lengths;
}

static kf_tensor *make_positions(verify_pool *pool, const attention_case *row) {
    const int64_t shape[2] = {row->B, row->Nq};
    kf_tensor *positions = verify_tensor(pool, "positions", VERIFY_INPUT, int_dtype(row), VERIFY_GAPS, 2, shape);
    for (int64_t e = 0; positions && e < row->B * row->Nq; e++) {
        const int64_t index[2] = {e / row->Nq, e % row->Nq};
        verify_set(positions, index, (double)verify_random_between(&pool->random, -2, row->Nk + 3));
    }
    return positions;
}

// ALiBi's slopes: 2^(-8h/n) for n = 2^k heads; otherwise those of the next lower power of two, then every second one of the next higher.
static void fill_slopes(kf_tensor *slopes, int64_t H) {
    int64_t power = 1;
    while (power * 2 <= H) power *= 2;
    for (int64_t h = 0; h < H; h++) {
        const double exponent =
            h < power ? (double)(h + 1) / (double)power : (double)(2 * (h - power) + 1) / (double)(2 * power);
        verify_set(slopes, &h, exp2(-8 * exponent));
    }
}

// [B or 1, H or 1, Nq or 1, Nk]
static kf_tensor *make_broadcast(verify_pool *pool, const attention_case *row, const char *name, kf_dtype dtype) {
    const uint64_t bits = verify_random(&pool->random);
    const int64_t shape[4] = {bits & 1 ? row->B : 1, bits & 2 ? row->H : 1, bits & 12 ? row->Nq : 1, row->Nk};
    return verify_tensor(pool, name, VERIFY_INPUT, dtype, bits & 16 ? VERIFY_GAPS : VERIFY_COMPACT, 4, shape);
}

// Sets a random part of the elements to value.
static void sprinkle(verify_pool *pool, kf_tensor *tensor, int part_of_256, double value) {
    int64_t index[KF_MAX_NDIM];
    for (int64_t e = 0; tensor && e < ref_elements(tensor); e++) {
        if ((int)(verify_random(&pool->random) >> 56) >= part_of_256) continue;
        ref_unravel(tensor, e, index);
        verify_set(tensor, index, value);
    }
}

static void make_optional(attention_tensors *t, const attention_case *row) {
    verify_pool *pool = t->pool;
    const int64_t heads[1] = {row->H}, lse[3] = {row->B, row->H, row->Nq};
    if (!(row->with & NO_LSE)) {
        const verify_layout layout = row->layout == VERIFY_COMPACT ? VERIFY_COMPACT : VERIFY_SHUFFLED;
        t->lse = verify_tensor(pool, "lse", VERIFY_OUTPUT, (kf_dtype)KF_FP32, layout, 3, lse);
    }
    if (row->with & LENGTHS) t->key_lengths = make_lengths(pool, row);
    if (row->with & POSITIONS) t->positions = make_positions(pool, row);
    if (row->with & ALIBI) {
        t->alibi_slopes =
            verify_tensor(pool, "alibi_slopes", VERIFY_INPUT, (kf_dtype)KF_FP32, VERIFY_COMPACT, 1, heads);
        if (t->alibi_slopes) fill_slopes(t->alibi_slopes, row->H);
    }
    if (row->with & SINKS) {
        t->sinks = verify_tensor(pool, "sinks", VERIFY_INPUT, (kf_dtype)KF_FP32, VERIFY_COMPACT, 1, heads);
        verify_fill_normal(pool, t->sinks, 2);
    }
    if (row->with & BIAS) {
        t->bias = make_broadcast(pool, row, "bias", verify_dtype(verify_random(&pool->random) & 1 ? "fp32" : row->q));
        verify_fill_normal(pool, t->bias, 1);
        sprinkle(pool, t->bias, 51, -INFINITY);
    }
    if (row->with & MASK) {
        t->mask = make_broadcast(pool, row, "mask", (kf_dtype)KF_BOOL);
        verify_fill_value(t->mask, 1);
        sprinkle(pool, t->mask, 85, 0);
    }
}

static void make_args(attention_tensors *t, const attention_case *row) {
    kf_attention_args *args = &t->args;
    kf_attention_args_init(args);
    args->q = t->q, args->k = t->k, args->v = t->v, args->o = t->o, args->lse = t->lse;
    args->key_lengths = t->key_lengths, args->positions = t->positions;
    args->alibi_slopes = t->alibi_slopes, args->sinks = t->sinks, args->bias = t->bias, args->mask = t->mask;
    args->scale = row->scale, args->softcap = row->softcap, args->flags = row->flags;
    args->window_left = row->left, args->window_right = row->right, args->rope = row->rope;
}

// On CUDA a value between the windows of rows that stand apart may reach them.
static bool values_may_spread(const verify_run *run, const attention_case *row) {
    return run->device && row->with & POSITIONS && row->flags & KF_ATTENTION_WINDOW_LEFT;
}

// NaN into every key and value that no query of its group sees: what is hidden from all must change nothing.
static void poison_hidden(const verify_run *run, attention_tensors *t, const attention_case *row) {
    const bool keys_alone = values_may_spread(run, row);
    for (int64_t kv = 0; kv < row->B * row->Hkv * row->Nk; kv++) {
        const int64_t b = kv / (row->Hkv * row->Nk), hkv = kv / row->Nk % row->Hkv, j = kv % row->Nk;
        const int64_t group = row->H / row->Hkv;
        bool seen = false;
        for (int64_t r = 0; r < group * row->Nq && !seen; r++) {
            seen = ref_visible(&t->args, b, hkv * group + r / row->Nq, r % row->Nq, j);
        }
        if (seen) continue;
        verify_set_row(t->k, kv, kv & 1 ? NAN : INFINITY);
        if (!keys_alone) verify_set_row(t->v, kv, kv & 2 ? NAN : -INFINITY);
    }
}

static double work_of(const attention_case *row) {
    return (double)row->B * (double)row->H * (double)row->Nq * (double)row->Nk;
}

static const double LARGE_WORK = 4e6; // pairs (i, j): beyond, the oracle takes a sample of the rows

static bool make_tensors(verify_run *run, const attention_case *row, attention_tensors *t) {
    verify_pool *pool = &run->pool;
    const verify_layout layout = row->layout,
                        output = layout == VERIFY_SHARED || layout == VERIFY_NEGATIVE ? VERIFY_GAPS : layout;
    const int64_t q[4] = {row->B, row->H, row->Nq, row->D}, k[4] = {row->B, row->Hkv, row->Nk, row->D};
    const int64_t v[4] = {row->B, row->Hkv, row->Nk, row->Dv}, o[4] = {row->B, row->H, row->Nq, row->Dv};
    *t = (attention_tensors){.pool = pool};
    t->q = verify_tensor(pool, "q", VERIFY_INPUT, verify_dtype(row->q), layout, 4, q);
    t->k = verify_tensor(pool, "k", VERIFY_INPUT, verify_dtype(row->kv), layout, 4, k);
    t->v = verify_tensor(pool, "v", VERIFY_INPUT, verify_dtype(row->kv), layout, 4, v);
    t->o = verify_tensor(pool, "o", VERIFY_OUTPUT, verify_dtype(row->o), output, 4, o);
    make_optional(t, row);
    if (pool->exhausted) return false;
    verify_fill_normal(pool, t->q, 1);
    verify_fill_normal(pool, t->k, 1);
    verify_fill_normal(pool, t->v, 1);
    make_args(t, row);
    if (layout != VERIFY_SHARED && !(row->with & KEEP_HIDDEN) && work_of(row) < LARGE_WORK && !row->refused)
        poison_hidden(run, t, row);
    if (row->edit) row->edit(t);
    return true;
}

// --------------------------------------------------------------------------------------------------------- the oracle

enum { SAMPLE = 256, EDGE = 32 }; // rows of a head; of them at its beginning and at its end

// Which rows the oracle computes: all, or of each head the first, the last, those at multiples of 16 and random ones between.
static int64_t *choose_rows(verify_run *run, const attention_case *row, int64_t *count) {
    const int64_t heads = row->B * row->H, all = row->Nq;
    const bool sampled = !run->device && work_of(row) >= LARGE_WORK && all > SAMPLE;
    const int64_t each = sampled ? SAMPLE : all;
    int64_t *rows = malloc((size_t)(heads * each + 1) * sizeof *rows);
    for (int64_t r = 0; rows && r < heads * each; r++) {
        const int64_t n = r % each;
        int64_t i = n;
        if (sampled && n >= EDGE && n < all) i = verify_random_between(&run->pool.random, EDGE, all - EDGE - 1);
        if (sampled && n % 3 == 0 && n >= EDGE) i = i / 16 * 16 - (n & 1);
        if (sampled && n >= SAMPLE - EDGE) i = all - SAMPLE + n;
        rows[r] = r / each * all + i;
    }
    *count = heads * each;
    return rows;
}

typedef struct oracle {
    const kf_attention_args *args;
    int64_t *rows, count, Dv;
    double *o, *lse, *naive;
    double *allowed; // rule 1's bound for each row
} oracle;

static bool oracle_part(void *argument, int64_t first, int64_t count) {
    const oracle *w = argument;
    const int64_t *rows = w->rows + first;
    return ref_attention(w->args, rows, count, w->o + first * w->Dv, w->lse + first) &&
           ref_attention_naive(w->args, rows, count, w->naive + first * w->Dv);
}

// In fp32 the kernels' exp2(s log2 e) has one rounding of the score more than exp(s).
static double floor_ulps(kf_dtype dtype) { return ref_precision(dtype) == 24 ? 4 : 2; }

// Rule 1. Where the naive result is not finite it says nothing.
static void find_allowed(oracle *w, kf_dtype coarsest, double looser) {
    double naive_error = 0;
    for (int64_t e = 0; e < w->count * w->Dv; e++) {
        const double error = fabs(w->naive[e] - w->o[e]);
        if (isfinite(error)) naive_error = fmax(naive_error, error);
    }
    for (int64_t r = 0; r < w->count; r++) {
        double largest = 0;
        for (int64_t c = 0; c < w->Dv; c++)
            largest = fmax(largest, isfinite(w->o[r * w->Dv + c]) ? fabs(w->o[r * w->Dv + c]) : 0);
        w->allowed[r] = 2 * naive_error + floor_ulps(coarsest) * looser * ref_ulp(coarsest, largest);
    }
}

static void oracle_close(oracle *w) {
    free(w->rows);
    free(w->o);
    free(w->lse);
    free(w->naive);
    free(w->allowed);
}

static kf_dtype coarsest_of(const attention_case *row) {
    return ref_coarser(ref_coarser(verify_dtype(row->q), verify_dtype(row->kv)), verify_dtype(row->o));
}

#if KF_HAVE_CUDA
// On a device, large cases have every element checked, by the oracle's twin there; small ones hold the twin against the oracle.
static bool twin_agrees(verify_run *run, const oracle *w) {
    static const double AGREE = 1e-9; // float64 in another order
    const int64_t elements = w->count * w->Dv;
    double *o = malloc(((size_t)elements + 1) * sizeof(double)),
           *naive = malloc(((size_t)elements + 1) * sizeof(double));
    double *lse = malloc(((size_t)w->count + 1) * sizeof(double)), worst = 0;
    bool good = o && lse && naive && verify_device_oracle(run, w->args, o, lse, naive);
    for (int64_t e = 0; good && e < elements + w->count; e++) {
        const double a = e < elements ? w->o[e] : w->lse[e - elements], b = e < elements ? o[e] : lse[e - elements];
        if (a == b || (isnan(a) && isnan(b))) continue;
        worst = fmax(worst, isnan(a) || isnan(b) ? (double)INFINITY : fabs(a - b) / (1 + fabs(a)));
    }
    if (worst > AGREE) good = verify_fail(run, "the device's oracle differs from the CPU's by %.3g", worst);
    free(o);
    free(lse);
    free(naive);
    return good;
}
#endif

#if KF_HAVE_CUDA
// What takes the CPU's oracle more than a moment is the twin's alone; not where a tool makes the device slow.
static bool is_for_twin(const verify_run *run, const attention_case *row) {
    static const double MOMENT = 2e7; // pairs times head dim
    if (!run->device) return false;
    return work_of(row) >= LARGE_WORK || (!run->once && work_of(row) * (double)row->D >= MOMENT);
}
#endif

static bool find_results(verify_run *run, const attention_case *row, oracle *w) {
#if KF_HAVE_CUDA
    if (is_for_twin(run, row)) return verify_device_oracle(run, w->args, w->o, w->lse, w->naive);
#else
    (void)row;
#endif
    if (!verify_parallel(run->threads, w->count, oracle_part, w)) {
        run->pool.exhausted = true;
        return false;
    }
#if KF_HAVE_CUDA
    if (run->device && !run->once) return twin_agrees(run, w);
#endif
    return true;
}

static bool oracle_open(verify_run *run, const attention_case *row, const kf_attention_args *args, oracle *w) {
    *w = (oracle){.args = args, .Dv = row->Dv};
    w->rows = choose_rows(run, row, &w->count);
    const size_t rows = (size_t)w->count + 1, elements = (size_t)(w->count * w->Dv) + 1;
    w->o = malloc(elements * sizeof(double));
    w->naive = malloc(elements * sizeof(double));
    w->lse = malloc(rows * sizeof(double));
    w->allowed = malloc(rows * sizeof(double));
    if (!w->rows || !w->o || !w->naive || !w->lse || !w->allowed) {
        run->pool.exhausted = true;
        return false;
    }
    if (!find_results(run, row, w)) return false;
    find_allowed(w, coarsest_of(row), row->looser);
    return true;
}

// ------------------------------------------------------------------------------------------------------------- rules

static bool compare(verify_run *run, const attention_case *row, const attention_tensors *t, const oracle *w) {
    const int precision = ref_precision(coarsest_of(row));
    const bool rotated = row->flags & (KF_ATTENTION_ROPE_Q | KF_ATTENTION_ROPE_K);
    const double tolerance = rotated && (precision == 8 || (run->device && precision == 11)) ? 5e-3
                             : precision == 8                                                ? 1e-2
                                                                                             : 1e-3;
    const verify_bound twice_naive = {
        .rule = "twice the naive error and 2 ulp", .row = w->allowed, .spreads = row->spreads && run->device};
    const verify_bound seeds = {.rule = "atol and rtol",
                                .absolute = tolerance * row->looser,
                                .relative = tolerance * row->looser,
                                .spreads = row->spreads && run->device};
    // Scores of 16-bit inputs are summed in fp32 as well; only what is rotated at load may be rounded to 16 bits again.
    const double lse_error = !rotated || precision == 24 ? 1e-5 : precision == 11 ? 2e-3 : 2e-2;
    const verify_bound lse = {
        .rule = "log-sum-exp", .absolute = lse_error * row->looser, .relative = 2e-6 * row->looser};
    const bool good =
        verify_elements(run, "o", t->o, w->rows, w->count, w->o, &twice_naive) &&
        verify_elements(run, "o", t->o, w->rows, w->count, w->o, &seeds) &&
        verify_norm(run, "o", t->o, w->rows, w->count, w->o, row->looser * verify_norm_bound(coarsest_of(row)));
    if (!good || !t->lse) return good;
    return verify_scalars(run, "lse", t->lse, w->rows, w->count, w->lse, &lse);
}

// ------------------------------------------------------------------------------------------------------------- checks

bool check_attention(verify_run *run, const void *pointer) {
    const attention_case row = with_defaults(pointer);
    attention_tensors t;
    oracle w = {0};
    if (!make_tensors(run, &row, &t)) return false;
    if (row.refused) return verify_refused(run, &t.args.head, row.refused);
    static const double LARGE = 1e9; // pairs times head dim
    const bool large = work_of(&row) * (double)row.D >= LARGE;
    const bool good = (large ? verify_execute_large(run, &t.args.head) : verify_execute(run, &t.args.head)) &&
                      oracle_open(run, &row, &t.args, &w) && compare(run, &row, &t, &w);
    oracle_close(&w);
    return good;
}

static bool run_and_compare(verify_run *run, const attention_case *row, const attention_tensors *t, kf_op *op,
                            verify_workspace *workspace) {
    oracle w = {0};
    bool good =
        verify_status(run, verify_op_run(run, op, workspace), "kf_op_run") && oracle_open(run, row, &t->args, &w);
    good = good && compare(run, row, t, &w);
    oracle_close(&w);
    return good;
}

bool check_attention_rebind(verify_run *run, const void *pointer) {
    const attention_case row = with_defaults(pointer);
    attention_tensors a, b;
    kf_op *op = NULL;
    size_t bytes = 0;
    if (!make_tensors(run, &row, &a) || !make_tensors(run, &row, &b)) return false;
    verify_workspace workspace = {0};
    kf_status status = verify_op_create(run, run->context[0], &a.args.head, &op);
    if (status == KF_OK) status = kf_op_workspace_size(op, &bytes);
    if (status == KF_OK) status = verify_workspace_open(run, bytes, &workspace);
    bool good = verify_status(run, status, "kf_op_create") && run_and_compare(run, &row, &a, op, &workspace) &&
                verify_status(run, verify_op_bind(run, op, &b.args.head), "kf_op_bind") &&
                run_and_compare(run, &row, &b, op, &workspace);
    // The same tensors, other lengths: a decode step after another.
    for (int64_t length = 0; good && b.key_lengths && length <= row.Nk; length += row.Nk / 3 + 1) {
        for (int64_t n = 0; n < row.B; n++) verify_set(b.key_lengths, &n, (double)((length + n) % (row.Nk + 1)));
        verify_fill_normal(&run->pool, b.k, 1);
        verify_fill_normal(&run->pool, b.v, 1);
        poison_hidden(run, &b, &row);
        good = run_and_compare(run, &row, &b, op, &workspace);
    }
    verify_workspace_close(run, &workspace);
    kf_op_destroy(op);
    return good;
}

// Sequence b of a tensor whose first dimension is the batch, as a batch of one.
static kf_tensor sequence_of(const kf_tensor *tensor, int64_t b, int64_t *shape) {
    kf_tensor one = *tensor;
    memcpy(shape, tensor->shape, (size_t)tensor->ndim * sizeof *shape);
    one.byte_offset = 0;
    int64_t index[KF_MAX_NDIM] = {b};
    one.data = ref_address(tensor, index);
    shape[0] = 1;
    one.shape = shape;
    return one;
}

bool check_attention_in_batch(verify_run *run, const void *pointer) {
    const attention_case row = with_defaults(pointer);
    attention_tensors t;
    oracle w = {0};
    if (!make_tensors(run, &row, &t)) return false;
    bool good = verify_execute_once(run, run->fixed_split, &t.args.head) && oracle_open(run, &row, &t.args, &w) &&
                compare(run, &row, &t, &w);
    oracle_close(&w);
    verify_pool_keep_first(&run->pool);
    verify_pool_restore(&run->pool);
    for (int64_t b = 0; good && b < row.B; b++) {
        kf_attention_args args = t.args;
        int64_t shape[6][KF_MAX_NDIM];
        const kf_tensor q = sequence_of(t.q, b, shape[0]), k = sequence_of(t.k, b, shape[1]),
                        v = sequence_of(t.v, b, shape[2]);
        const kf_tensor o = sequence_of(t.o, b, shape[3]), lse = sequence_of(t.lse, b, shape[4]);
        kf_tensor lengths = {0};
        if (t.key_lengths) lengths = sequence_of(t.key_lengths, b, shape[5]);
        args.q = &q, args.k = &k, args.v = &v, args.o = &o, args.lse = &lse;
        args.key_lengths = t.key_lengths ? &lengths : NULL;
        good = verify_status(run, verify_call(run, run->fixed_split, &args.head), "a sequence alone");
    }
    const verify_buffer *differs = verify_pool_differs(&run->pool);
    if (good && differs)
        return verify_fail(run, "%s: a sequence alone has other bits than in the batch, with fixed_split",
                           differs->name);
    return good;
}

// Keys first .. first + count - 1 of k or v.
static kf_tensor keys_of(const kf_tensor *tensor, int64_t first, int64_t count, int64_t *shape) {
    kf_tensor part = *tensor;
    const int64_t index[4] = {0, 0, first, 0};
    memcpy(shape, tensor->shape, 4 * sizeof *shape);
    part.byte_offset = 0;
    part.data = ref_address(tensor, index);
    shape[2] = count;
    part.shape = shape;
    return part;
}

enum { PARTS = 3 };

bool check_attention_merged(verify_run *run, const void *pointer) {
    const attention_case row = with_defaults(pointer);
    attention_tensors t;
    oracle w = {0};
    if (!make_tensors(run, &row, &t)) return false;
    const int64_t o_shape[5] = {PARTS, row.B, row.H, row.Nq, row.Dv};
    kf_tensor *o_parts =
        verify_tensor(&run->pool, "o_parts", VERIFY_OUTPUT, (kf_dtype)KF_FP32, VERIFY_GAPS, 5, o_shape);
    kf_tensor *lse_parts =
        verify_tensor(&run->pool, "lse_parts", VERIFY_OUTPUT, (kf_dtype)KF_FP32, VERIFY_GAPS, 4, o_shape);
    if (run->pool.exhausted) return false;
    bool good = true;
    verify_pool_snapshot(&run->pool);
    for (int64_t s = 0; good && s < PARTS; s++) {
        // Part s of the keys; exactly one part holds the sinks.
        const int64_t first = row.Nk * s / PARTS, count = row.Nk * (s + 1) / PARTS - first;
        int64_t shape[2][KF_MAX_NDIM];
        const kf_tensor k = keys_of(t.k, first, count, shape[0]), v = keys_of(t.v, first, count, shape[1]);
        const int64_t index[5] = {s};
        kf_tensor o = *o_parts, lse = *lse_parts;
        o.data = ref_address(o_parts, index), o.byte_offset = 0, o.ndim--, o.shape++, o.strides++;
        lse.data = ref_address(lse_parts, index), lse.byte_offset = 0, lse.ndim--, lse.shape++, lse.strides++;
        kf_attention_args args = t.args;
        args.k = &k, args.v = &v, args.o = &o, args.lse = &lse, args.sinks = s ? NULL : t.args.sinks;
        good = verify_status(run, verify_call(run, run->context[0], &args.head), "a part of the keys");
    }
    kf_merge_states_args merge;
    kf_merge_states_args_init(&merge);
    merge.o_parts = o_parts, merge.lse_parts = lse_parts, merge.o = t.o, merge.lse = t.lse;
    good = good && verify_status(run, verify_call(run, run->context[0], &merge.head), "merge_states") &&
           oracle_open(run, &row, &t.args, &w) && compare(run, &row, &t, &w);
    oracle_close(&w);
    return good;
}

bool check_attention_sparse(verify_run *run, const void *pointer) {
    static const int64_t FAR = (int64_t)1 << 30; // elements between two sequences
    const attention_case row = with_defaults(pointer);
    verify_pool *pool = &run->pool;
    attention_tensors t = {.pool = pool};
    oracle w = {0};
    const int64_t q[4] = {row.B, row.H, row.Nq, row.D}, k[4] = {row.B, row.Hkv, row.Nk, row.D};
    const int64_t q_strides[4] = {FAR, row.Nq * row.D, row.D, 1}, k_strides[4] = {FAR, row.D, row.Hkv * row.D, 1};
    t.q = verify_tensor_strided(pool, "q", VERIFY_INPUT, verify_dtype(row.q), 4, q, q_strides, true);
    t.k = verify_tensor_strided(pool, "k", VERIFY_INPUT, verify_dtype(row.kv), 4, k, k_strides, true);
    t.v = verify_tensor_strided(pool, "v", VERIFY_INPUT, verify_dtype(row.kv), 4, k, k_strides, true);
    t.o = verify_tensor_strided(pool, "o", VERIFY_OUTPUT, verify_dtype(row.o), 4, q, q_strides, true);
    make_optional(&t, &row);
    if (pool->exhausted) return verify_skip(run, "not enough address space");
    verify_fill_normal(pool, t.q, 1);
    verify_fill_normal(pool, t.k, 1);
    verify_fill_normal(pool, t.v, 1);
    verify_fill_value(t.o, NAN);
    make_args(&t, &row);
    const bool good = verify_execute_once(run, run->context[0], &t.args.head) && oracle_open(run, &row, &t.args, &w) &&
                      compare(run, &row, &t, &w);
    oracle_close(&w);
    return good;
}
