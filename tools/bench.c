// SPDX-License-Identifier: Apache-2.0
//
// keyfold bench [OP]: reads the options, makes cases of them, times and prints each. Without OP the cases are the speed
// table: the work that keyfold is judged by, with the share of the roofline that is asked of each.
#include <string.h>

#include "bench.h"

enum { MAX_LIST = 16 };
// A case larger than this would spend minutes in filling memory alone.
static const double MAX_BYTES = 16e9;
static const double SECONDS = 1.0, QUICK_SECONDS = 0.1;

enum { EVERY_ISA = -1 };

typedef struct bench_options {
    const bench_op *op; // NULL: the speed table, or the model alone
    bool model_alone;
    int64_t shapes[MAX_LIST][BENCH_MAX_DIMS];
    int shape_count;
    const char *dtypes[MAX_LIST];
    int dtype_count;
    bool causal, plain, int8, rope;
    int32_t threads, isa;
    bool cuda, profiled;
    const char *isa_name;
    double seconds;
    bench_format format;
    char dtype_text[200];
    const char *model;
} bench_options;

static int print_help(void) {
    printf(
        "Usage: keyfold bench [OP] [OPTIONS]\n\n"
        "Times OP, one of %s,\nbeside the ceilings of this machine, taken in turn with it. Without OP: the speed "
        "table.\n\n"
        "  --shape N,N,...   attention: B,H,Hkv,Nq,Nk,D   softmax, rmsnorm, swiglu: rows,cols   rope: B,H,N,D\n"
        "                    kv_append: B,Hkv,N,D   embedding: T,V,N   linear: T,N,K   merge: parts,rows,cols;\n"
        "                    may be given more than once\n"
        "  --dtype LIST      fp32, fp16, bf16; linear also q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k\n"
        "  --causal          attention with a causal mask\n"
        "  --rope            attention that rotates q and k at load\n"
        "  --no-residual     rmsnorm without the residual's addition\n"
        "  --int8            linear or a model with 8-bit activations\n"
        "  --unpacked        linear over weights as they stand in a file\n"
        "  --threads N       default: all that the process may use\n"
        "  --backend NAME    cpu (the default) or cuda: cold (sets of tensors in turn, the L2 cache full of what was "
        "only read), by\n"
        "                    graph replay where a run takes under 30 us, beside ceilings for the same bytes; a\n"
        "                    share above 100 %% fails the run\n"
        "  --isa NAME        scalar, avx2, avx512, avx512bf16; default: the highest; all: each of this\n"
        "                    machine in turn. On cuda: 80, 86, 89, 90\n"
        "  --seconds S       time for each row, default %g; --quick: %g\n"
#if KF_HAVE_MODEL
        "  -m, --model FILE  with the speed table: also prompt and decoding of this GGUF model; OP model: these alone\n"
        "  OP model with --backend cuda: a token's step on a GPU; it has a --help of its own\n"
#endif
        "  --profiled        one run between the marks that a profiler looks for; keyfold profile uses it\n"
        "  --json, --csv     instead of a table\n",
        bench_op_names(), SECONDS, QUICK_SECONDS);
    return 0;
}

// ---- options ----

static int parse_shape(bench_options *o, const char *text) {
    if (!o->op) return kft_usage_error("bench: --shape needs an operation before it");
    if (!text) return kft_usage_error("bench: --shape needs a value");
    if (o->shape_count == MAX_LIST) return kft_usage_error("bench: more than %d shapes", MAX_LIST);
    char copy[160];
    int dims = bench_op_dims(o->op), found = 0;
    bool good = strlen(text) < sizeof copy;
    if (good) memcpy(copy, text, strlen(text) + 1);
    for (char *at = copy; good && at; found++) {
        char *comma = strchr(at, ',');
        if (comma) *comma++ = 0;
        good = found < dims && kft_parse_int(at, 1, (int64_t)1 << 40, &o->shapes[o->shape_count][found]);
        at = comma;
    }
    if (!good || found != dims) {
        return kft_usage_error("bench: --shape %s: %s has %d positive numbers, such as the default's", text,
                               o->op->name, dims);
    }
    o->shape_count++;
    return 0;
}

static int parse_dtypes(bench_options *o, const char *text) {
    if (!text || strlen(text) >= sizeof o->dtype_text) return kft_usage_error("bench: --dtype needs a value");
    memcpy(o->dtype_text, text, strlen(text) + 1);
    o->dtype_count = 0;
    for (char *at = o->dtype_text; at;) {
        char *comma = strchr(at, ',');
        if (comma) *comma++ = 0;
        if (o->dtype_count == MAX_LIST) return kft_usage_error("bench: more than %d dtypes", MAX_LIST);
        o->dtypes[o->dtype_count++] = at;
        at = comma;
    }
    return 0;
}

static int parse_isa(bench_options *o) {
    const char *text = o->isa_name;
    int64_t number = 0;
    if (!text) return 0;
    if (o->cuda && kft_parse_int(text, 80, 1000, &number)) {
        o->isa = (int32_t)number;
        return 0;
    }
    if (!o->cuda && strcmp(text, "all") == 0) {
        o->isa = EVERY_ISA;
        return 0;
    }
    for (int isa = KF_ISA_SCALAR; !o->cuda && isa <= KF_ISA_AVX512BF16; isa++) {
        if (strcmp(text, kf_isa_string(isa)) == 0) {
            o->isa = isa;
            return 0;
        }
    }
    return kft_usage_error("bench: --isa %s is none of %s", text,
                           o->cuda ? "80, 86, 89, 90" : "scalar, avx2, avx512, avx512bf16, all");
}

static int parse_option(bench_options *o, int argc, char **argv, int *i) {
    const char *value = NULL;
    int64_t number = 0;
    if (kft_option(argc, argv, i, "--shape", NULL, &value)) return parse_shape(o, value);
    if (kft_option(argc, argv, i, "--dtype", NULL, &value)) return parse_dtypes(o, value);
    if (kft_option(argc, argv, i, "--isa", NULL, &value)) {
        if (!value) return kft_usage_error("bench: --isa needs a name");
        o->isa_name = value;
        return 0;
    }
    if (kft_option(argc, argv, i, "--backend", NULL, &value)) {
        o->cuda = value && strcmp(value, "cuda") == 0;
        if (o->cuda || (value && strcmp(value, "cpu") == 0)) return 0;
        return kft_usage_error("bench: --backend %s is neither cpu nor cuda", value ? value : "");
    }
    if (kft_option(argc, argv, i, "--threads", "-t", &value)) {
        if (!kft_parse_int(value, 1, 4096, &number))
            return kft_usage_error("bench: --threads %s is not in 1 to 4096", value ? value : "");
        o->threads = (int32_t)number;
        return 0;
    }
    if (kft_option(argc, argv, i, "--seconds", NULL, &value)) {
        if (kft_parse_double(value, 0, 3600, &o->seconds)) return 0;
        return kft_usage_error("bench: --seconds %s is not in 0 to 3600", value ? value : "");
    }
#if KF_HAVE_MODEL
    if (kft_option(argc, argv, i, "--model", "-m", &value)) {
        if (!value) return kft_usage_error("bench: --model needs a file");
        o->model = value;
        return 0;
    }
#endif
    bool *flag = kft_flag(argv, *i, "--causal", NULL)        ? &o->causal
                 : kft_flag(argv, *i, "--rope", NULL)        ? &o->rope
                 : kft_flag(argv, *i, "--no-residual", NULL) ? &o->plain
                 : kft_flag(argv, *i, "--unpacked", NULL)    ? &o->plain
                 : kft_flag(argv, *i, "--int8", NULL)        ? &o->int8
                 : kft_flag(argv, *i, "--profiled", NULL)    ? &o->profiled
                                                             : NULL;
    if (flag) {
        *flag = true;
    } else if (kft_flag(argv, *i, "--json", NULL)) {
        o->format = BENCH_JSON;
    } else if (kft_flag(argv, *i, "--csv", NULL)) {
        o->format = BENCH_CSV;
    } else if (kft_flag(argv, *i, "--quick", NULL)) {
        o->seconds = QUICK_SECONDS;
    } else {
        return kft_usage_error("bench: unknown option \"%s\"; keyfold bench --help lists them", argv[*i]);
    }
    return 0;
}

// Options that go with one operation only.
static int check_options(const bench_options *o) {
    const char *name = o->op ? o->op->name : "";
    if (o->causal && strcmp(name, "attention") != 0) return kft_usage_error("bench: --causal goes with attention");
    if (o->rope && strcmp(name, "attention") != 0) return kft_usage_error("bench: --rope goes with attention");
    if (o->int8 && strcmp(name, "linear") != 0 && !o->model)
        return kft_usage_error("bench: --int8 goes with linear or a model");
    if (o->model_alone && !o->model) return kft_usage_error("bench: model needs -m FILE");
    if (o->plain && strcmp(name, "linear") != 0 && strcmp(name, "rmsnorm") != 0) {
        return kft_usage_error("bench: --no-residual goes with rmsnorm, --unpacked with linear");
    }
    if (!o->op && (o->dtype_count || (o->isa && !o->cuda)))
        return kft_usage_error("bench: --dtype and --isa need an operation");
    if (o->cuda && o->model) return kft_usage_error("bench: --model is for the CPU");
    if (o->profiled && !(o->cuda && o->op)) return kft_usage_error("bench: --profiled goes with an operation on cuda");
    if (o->cuda && !KF_HAVE_CUDA) return kft_error("bench: this build has no CUDA backend");
    if (o->op && o->model) return kft_usage_error("bench: --model goes with the speed table, which has no operation");
    for (int i = 0; i < o->dtype_count; i++) {
        if (!bench_dtype_known(o->op, o->dtypes[i]))
            return kft_usage_error("bench: %s has no dtype \"%s\"", name, o->dtypes[i]);
    }
    return 0;
}

static int parse_options(bench_options *o, int argc, char **argv) {
    int i = 1;
    if (KF_HAVE_MODEL && i < argc && strcmp(argv[i], "model") == 0) {
        o->model_alone = true;
        i++;
    } else if (i < argc && argv[i][0] != '-') {
        o->op = bench_op_find(argv[i]);
        if (!o->op) return kft_usage_error("bench: \"%s\" is none of %s", argv[i], bench_op_names());
        i++;
    }
    for (; i < argc; i++) {
        int status = parse_option(o, argc, argv, &i);
        if (status) return status;
    }
    const int status = parse_isa(o);
    return status ? status : check_options(o);
}

// ---- cases ----

static kf_status time_case(const bench_case *c, double seconds, bench_row *row) {
#if KF_HAVE_CUDA
    if (c->profiled) return bench_profile_cuda(c);
    if (c->cuda) return bench_time_cuda(c, seconds, row);
#endif
    return bench_time(c, seconds, row);
}

// What a table goes on after: the backend does not have the case; it beats its ceiling.
enum { NOT_THERE = -1, SUSPECT = -2 };

static int run_case(const bench_case *c, double seconds, bench_format format) {
    if (c->op->work(c, KF_ISA_SCALAR).bytes > MAX_BYTES) {
        return kft_error("bench: %s of this shape needs more than %.0f GB", c->op->name, MAX_BYTES * 1e-9);
    }
    bench_row row;
    kf_status status = time_case(c, seconds, &row);
    if (status != KF_OK) {
        kft_progress(NULL);
        if (status == KF_UNSUPPORTED && c->cuda) {
            fprintf(stderr, "not there: %s %s: %s\n", c->op->name, c->dtype, kf_last_error());
            return NOT_THERE;
        }
        return kft_error("bench: %s", status == KF_OUT_OF_MEMORY ? "memory is short" : kf_last_error());
    }
    if (c->profiled) return 0;
    bench_print_row(format, &row);
    if (!c->cuda || row.share <= 1) return 0;
    kft_error("bench: %s %s is faster than its ceiling; one of the two is measured wrongly", row.op, row.dtype);
    return SUSPECT;
}

// Every shape with every dtype.
static int run_shapes(const bench_options *o, int32_t isa) {
    static const char *const fp32 = "fp32";
    int status = 0, shapes = o->shape_count ? o->shape_count : 1, dtypes = o->dtype_count ? o->dtype_count : 1;
    for (int s = 0; s < shapes && !status; s++) {
        for (int d = 0; d < dtypes && !status; d++) {
            bench_case c = {.op = o->op,
                            .causal = o->causal,
                            .plain = o->plain,
                            .int8 = o->int8,
                            .rope = o->rope,
                            .isa = isa,
                            .cuda = o->cuda,
                            .profiled = o->profiled,
                            .threads = o->threads};
            c.dtype = o->dtype_count ? o->dtypes[d] : fp32;
            memcpy(c.shape, o->shape_count ? o->shapes[s] : o->op->shape, sizeof c.shape);
            status = run_case(&c, o->seconds, o->format);
        }
    }
    return status ? 1 : 0;
}

static int run_op(const bench_options *o) {
    if (o->isa != EVERY_ISA) return run_shapes(o, o->isa);
    int status = 0;
    for (int32_t isa = KF_ISA_SCALAR; isa <= (int32_t)kf_cpu_isa() && !status; isa++) status = run_shapes(o, isa);
    return status;
}

typedef struct speed_row {
    const char *op, *dtype;
    int64_t shape[BENCH_MAX_DIMS];
    bool causal;
    int32_t isa; // the highest to use; 0: any
    double asked;
    int32_t asked_of; // the share is asked where this ISA or a higher one runs; 0: any
} speed_row;

static const speed_row speed_rows[] = {
    // prefill
    {"attention", "fp32", {1, 8, 8, 2048, 2048, 64}, false, 0, 0.80, 0},
    {"attention", "fp32", {1, 8, 8, 2048, 2048, 64}, true, 0, 0.70, 0},
    {"attention", "fp32", {1, 32, 8, 2048, 2048, 128}, true, 0, 0.75, 0},
    {"attention", "bf16", {1, 8, 8, 2048, 2048, 64}, false, 0, 0.65, KF_ISA_AVX512BF16},
    {"attention", "bf16", {1, 8, 8, 2048, 2048, 64}, true, 0, 0.55, KF_ISA_AVX512BF16},
    {"attention", "bf16", {1, 32, 8, 2048, 2048, 128}, true, 0, 0.60, KF_ISA_AVX512BF16},
    {"attention", "fp16", {1, 8, 8, 2048, 2048, 64}, false, 0, 0.65, KF_ISA_AVX2},
    {"attention", "fp16", {1, 8, 8, 2048, 2048, 64}, true, 0, 0.65, KF_ISA_AVX2},
    {"attention", "fp16", {1, 32, 8, 2048, 2048, 128}, true, 0, 0.65, KF_ISA_AVX2},
    {"attention", "fp16", {1, 8, 8, 2048, 2048, 80}, false, 0, 0.65, KF_ISA_AVX2},
    {"attention", "fp16", {1, 8, 8, 2048, 2048, 256}, false, 0, 0.65, KF_ISA_AVX2},
    {"attention", "fp32", {1, 8, 8, 2048, 2048, 64}, false, KF_ISA_AVX2, 0.65, KF_ISA_AVX2},
    {"attention", "fp32", {1, 8, 8, 2048, 2048, 64}, true, KF_ISA_AVX2, 0.65, KF_ISA_AVX2},
    {"attention", "fp32", {1, 32, 8, 2048, 2048, 128}, true, KF_ISA_AVX2, 0.65, KF_ISA_AVX2},
    {"attention", "fp32", {1, 8, 8, 2048, 2048, 80}, false, KF_ISA_AVX2, 0.65, KF_ISA_AVX2},
    {"attention", "fp32", {1, 8, 8, 2048, 2048, 256}, false, KF_ISA_AVX2, 0.65, KF_ISA_AVX2},
    // decode: one query, all threads on one sequence
    {"attention", "bf16", {1, 32, 8, 1, 32768, 128}, false, 0, 0.80, KF_ISA_AVX2},
    {"attention", "fp16", {1, 32, 8, 1, 32768, 128}, false, 0, 0.70, KF_ISA_AVX2},
    // around it
    {"rmsnorm", "bf16", {4096, 4096}, false, 0, 0.80, KF_ISA_AVX2},
    {"swiglu", "bf16", {4096, 4096}, false, 0, 0.80, KF_ISA_AVX2},
    {"softmax", "fp32", {4096, 4096}, false, 0, 0.80, KF_ISA_AVX2},
    {"softmax", "bf16", {4096, 4096}, false, 0, 0.60, KF_ISA_AVX2},
    {"rope", "bf16", {1, 32, 4096, 128}, false, 0, 0, 0},
    {"merge", "fp32", {8, 16384, 128}, false, 0, 0, 0},
    {"linear", "q4_1", {1, 4096, 4096}, false, 0, 0, 0},
    {"linear", "q4_1", {512, 1536, 576}, false, 0, 0, 0},
    {"linear", "bf16", {1, 4096, 4096}, false, 0, 0, 0},
};

// On CUDA: the shapes that the peers were measured at. No share is asked: the peers are the measure.
static const speed_row cuda_rows[] = {
    // prefill
    {.op = "attention", .dtype = "bf16", .shape = {1, 8, 8, 512, 512, 64}},
    {.op = "attention", .dtype = "bf16", .shape = {1, 8, 8, 2048, 2048, 64}},
    {.op = "attention", .dtype = "bf16", .shape = {4, 32, 32, 4096, 4096, 128}},
    {.op = "attention", .dtype = "bf16", .shape = {1, 8, 8, 8192, 8192, 128}},
    {.op = "attention", .dtype = "bf16", .shape = {2, 16, 16, 16384, 16384, 64}},
    {.op = "attention", .dtype = "bf16", .shape = {1, 8, 8, 512, 512, 64}, .causal = true},
    {.op = "attention", .dtype = "bf16", .shape = {1, 8, 8, 2048, 2048, 64}, .causal = true},
    {.op = "attention", .dtype = "bf16", .shape = {4, 32, 32, 4096, 4096, 128}, .causal = true},
    {.op = "attention", .dtype = "bf16", .shape = {1, 8, 8, 8192, 8192, 128}, .causal = true},
    {.op = "attention", .dtype = "bf16", .shape = {2, 16, 16, 16384, 16384, 64}, .causal = true},
    {.op = "attention", .dtype = "bf16", .shape = {2, 16, 16, 4096, 4096, 64}, .causal = true},
    {.op = "attention", .dtype = "fp16", .shape = {4, 32, 32, 4096, 4096, 128}, .causal = true},
    {.op = "attention", .dtype = "fp32", .shape = {1, 8, 8, 2048, 2048, 64}, .causal = true},
    // decode
    {.op = "attention", .dtype = "bf16", .shape = {1, 32, 32, 1, 8192, 128}},
    {.op = "attention", .dtype = "bf16", .shape = {1, 32, 8, 1, 8192, 128}},
    {.op = "attention", .dtype = "bf16", .shape = {1, 32, 8, 1, 1024, 128}},
    {.op = "attention", .dtype = "bf16", .shape = {16, 32, 8, 1, 8192, 128}},
    {.op = "attention", .dtype = "bf16", .shape = {64, 32, 8, 1, 8192, 128}},
    // around it
    {.op = "rmsnorm", .dtype = "bf16", .shape = {1, 4096}},
    {.op = "rmsnorm", .dtype = "bf16", .shape = {4096, 4096}},
    {.op = "rmsnorm", .dtype = "bf16", .shape = {16384, 2048}},
    {.op = "rmsnorm", .dtype = "bf16", .shape = {8192, 8192}},
    {.op = "rmsnorm", .dtype = "bf16", .shape = {32768, 4096}},
    {.op = "swiglu", .dtype = "bf16", .shape = {4096, 11008}},
    {.op = "swiglu", .dtype = "bf16", .shape = {8192, 14336}},
    {.op = "swiglu", .dtype = "bf16", .shape = {32768, 5632}},
    {.op = "softmax", .dtype = "bf16", .shape = {4096, 4096}},
    {.op = "softmax", .dtype = "bf16", .shape = {16, 1048576}},
    {.op = "softmax", .dtype = "fp32", .shape = {4096, 32000}},
    {.op = "rope", .dtype = "bf16", .shape = {1, 32, 4096, 128}},
    {.op = "kv_append", .dtype = "bf16", .shape = {1, 32, 8192, 128}},
    {.op = "kv_append", .dtype = "bf16", .shape = {2, 8, 4096, 128}},
    {.op = "embedding", .dtype = "bf16", .shape = {4096, 32000, 2048}},
    {.op = "merge", .dtype = "fp32", .shape = {8, 16384, 128}},
    // one token of TinyLlama: q and o, gate and up, down, the vocabulary
    {.op = "linear", .dtype = "bf16", .shape = {1, 2048, 2048}},
    {.op = "linear", .dtype = "bf16", .shape = {1, 11264, 2048}},
    {.op = "linear", .dtype = "bf16", .shape = {1, 2048, 5632}},
    {.op = "linear", .dtype = "bf16", .shape = {1, 32000, 2048}},
    {.op = "linear", .dtype = "q4_0", .shape = {1, 2048, 2048}},
    {.op = "linear", .dtype = "q4_0", .shape = {1, 11264, 2048}},
    {.op = "linear", .dtype = "q4_0", .shape = {1, 2048, 5632}},
    {.op = "linear", .dtype = "q4_0", .shape = {1, 32000, 2048}},
    {.op = "linear", .dtype = "bf16", .shape = {2048, 5632, 2048}},
    {.op = "linear", .dtype = "q4_0", .shape = {2048, 5632, 2048}},
};

// Rows that the backend does not have are named and left out; a share above 100 % fails the run, at its end.
static int run_cuda_table(const bench_options *o) {
    int status = 0;
    for (size_t i = 0; i < sizeof cuda_rows / sizeof cuda_rows[0]; i++) {
        const speed_row *row = &cuda_rows[i];
        bench_case c = {
            .op = bench_op_find(row->op), .dtype = row->dtype, .causal = row->causal, .isa = o->isa, .cuda = true};
        memcpy(c.shape, row->shape, sizeof c.shape);
        const int found = run_case(&c, o->seconds, o->format);
        if (found > 0) return found;
        if (found == SUSPECT) status = 1;
    }
    return status;
}

static int run_table(const bench_options *o) {
    if (o->cuda) return run_cuda_table(o);
    kf_context *context = NULL;
    kf_context_info info = {.size = sizeof info};
    if (kf_context_create(NULL, &context) != KF_OK) return kft_error("bench: %s", kf_last_error());
    kf_context_get_info(context, &info);
    kf_context_destroy(context);
    int status = 0;
    for (size_t i = 0; i < sizeof speed_rows / sizeof speed_rows[0] && !status; i++) {
        const speed_row *row = &speed_rows[i];
        if (row->isa > info.isa) continue; // this machine, or KEYFOLD_ISA, has no such row
        bench_case c = {.op = bench_op_find(row->op),
                        .dtype = row->dtype,
                        .causal = row->causal,
                        .isa = row->isa,
                        .threads = o->threads};
        c.asked = info.isa >= row->asked_of ? row->asked : 0;
        memcpy(c.shape, row->shape, sizeof c.shape);
        status = run_case(&c, o->seconds, o->format);
    }
    return status;
}

#if KF_HAVE_MODEL
static void print_model_row(void *argument, const bench_row *row) {
    bench_print_row(((const bench_options *)argument)->format, row);
}

static int run_model(bench_options *o) {
    return bench_model(o->model, o->threads, o->int8, o->seconds, print_model_row, o);
}
#else
static int run_model(bench_options *o) {
    (void)o;
    return 0;
}
#endif

#if KF_HAVE_MODEL
// A model on a GPU is timed by other means and has options of its own.
static bool is_model_on_device(int argc, char **argv) {
    const char *backend = NULL;
    for (int i = 2; i < argc && !backend; i++) kft_option(argc, argv, &i, "--backend", NULL, &backend);
    return argc > 1 && strcmp(argv[1], "model") == 0 && backend && strcmp(backend, "cuda") == 0;
}
#endif

int kft_bench(int argc, char **argv) {
#if KF_HAVE_MODEL
    if (is_model_on_device(argc, argv)) return bench_model_device(argc - 1, argv + 1);
#endif
    for (int i = 1; i < argc; i++) {
        if (kft_flag(argv, i, "--help", "-h")) return print_help();
    }
    bench_options options = {.seconds = SECONDS};
    int status = parse_options(&options, argc, argv);
    if (status) return status;
    bench_print_begin(options.format);
    if (!options.model_alone) status = options.op ? run_op(&options) : run_table(&options);
    if (status == 0 && options.model) status = run_model(&options);
    bench_print_end(options.format);
    return status;
}
