// SPDX-License-Identifier: Apache-2.0
//
// keyfold bench model --backend cuda: what a token's step costs on a GPU, by the way its kernels are launched: each operation by itself,
// or the sequence as one graph, each without and with dependent launch. The four are timed in turns, over the same weights.
//
//   step      a token as generate takes it: token and positions to the device, the step, logits back to the host
//   replay    the step alone, again and again: what the device needs
//   share     bytes of weights and cache a step must read, over replay, against the rate of a copy on the device (read plus
//             written) taken in the same process
//
// With --check nothing is timed: the logits of every mode are held against those of the CPU, exact products over the same weights.
//
// Launching costs 1 - replay(graph, dependent) / step(launch per op).
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_model_random.h"
#include "model/llama.h"

enum { MODES = 4, ROUNDS = 7, STEPS = 32, REPLAYS = 64, PROMPT = 512, MOST_DEPTH = 1 << 20, COPY_BYTES = 1 << 30 };

static const struct {
    const char *name;
    uint32_t launch;
} modes[MODES] = {{"launch per op", KF_LAUNCH_NO_GRAPH | KF_LAUNCH_NO_DEPENDENT},
                  {"launch per op, dependent", KF_LAUNCH_NO_GRAPH},
                  {"graph", KF_LAUNCH_NO_DEPENDENT},
                  {"graph, dependent", 0}};

typedef struct device_bench {
    const char *path, *shape_name; // one of the two
    const bench_model_shape *shape;
    int64_t depth;
    kf_dtype cache, rows, weights;
    const char *cache_name, *rows_name, *weights_name;
    bool json, check;
    // opened
    void *file;
    kfm_gguf *gguf;
    kf_context *context[MODES];
    kfm_llama *model[MODES]; // the first has the weights; the others stand beside it
    kfm_llama_info info;
    float *logits;
    int32_t *tokens;
    double copy_rate;
    kfm_error error;
} device_bench;

// ---- opening ----

static bool open_file(device_bench *b) {
    if (b->path) return kfm_gguf_open(&b->gguf, b->path, &b->error);
    size_t bytes = 0;
    kft_progress("making weights of %s", b->shape->name);
    b->file = bench_model_random(b->shape, b->depth + PROMPT + STEPS, &bytes);
    if (!b->file) return kfm_fail(&b->error, "out of memory for a model of %zu bytes", bytes);
    return kfm_gguf_parse(&b->gguf, b->file, bytes, &b->error);
}

static void show_upload(void *argument, int64_t done, int64_t of) {
    (void)argument;
    kft_progress("weights to the device: layer %lld of %lld", (long long)done, (long long)of);
}

static bool open_mode(device_bench *b, int mode) {
    kf_context_options options;
    kf_context_options_init(&options);
    options.device.type = KF_DEVICE_CUDA;
    options.launch = modes[mode].launch;
    if (kf_context_create(&options, &b->context[mode]) != KF_OK) return kfm_fail(&b->error, "%s", kf_last_error());
    if (mode > 0) return kfm_llama_open_beside(&b->model[mode], b->context[mode], b->model[0], &b->error);
    const kfm_llama_options model = {
        .context = b->depth + PROMPT + STEPS, .cache = b->cache, .rows = b->rows, .weights = b->weights};
    return kfm_llama_open(&b->model[0], b->context[0], b->gguf, &model, show_upload, NULL, &b->error);
}

static bool measure_copy(device_bench *b) {
    const kf_context *context = b->context[0];
    void *from = NULL, *to = NULL;
    bool good = kf_memory_allocate(context, COPY_BYTES, &from) == KF_OK &&
                kf_memory_allocate(context, COPY_BYTES, &to) == KF_OK;
    for (int i = 0; i < ROUNDS && good; i++) {
        const double begin = kft_seconds();
        good = kf_memory_copy(context, to, from, COPY_BYTES) == KF_OK;
        const double rate = 2.0 * COPY_BYTES / (kft_seconds() - begin);
        if (rate > b->copy_rate) b->copy_rate = rate;
    }
    kf_memory_free(context, from);
    kf_memory_free(context, to);
    return good || kfm_fail(&b->error, "%s", kf_last_error());
}

static bool open_all(device_bench *b) {
    if (!open_file(b)) return false;
    for (int mode = 0; mode < MODES; mode++)
        if (!open_mode(b, mode)) return false;
    kft_progress(NULL);
    b->info = kfm_llama_get_info(b->model[0]);
    const int64_t tokens = b->depth > PROMPT ? b->depth : PROMPT;
    void *logits = NULL;
    if (kf_memory_allocate_host(b->context[0], (size_t)b->info.vocabulary * sizeof *b->logits, &logits) == KF_OK)
        b->logits = logits;
    b->tokens = malloc((size_t)tokens * sizeof *b->tokens);
    if (!b->logits || !b->tokens) return kfm_fail(&b->error, "out of memory for the tokens");
    for (int64_t i = 0; i < tokens; i++) b->tokens[i] = (int32_t)(i * 7919 % b->info.vocabulary); // of no meaning
    return measure_copy(b);
}

static void close_all(device_bench *b) {
    for (int mode = MODES; mode-- > 0;) kfm_llama_close(b->model[mode]);
    kf_memory_free_host(b->context[0], b->logits);
    for (int mode = MODES; mode-- > 0;) kf_context_destroy(b->context[mode]);
    kfm_gguf_close(b->gguf);
    free(b->file);
    free(b->tokens);
}

// ---- timing ----

typedef struct mode_times {
    double step[ROUNDS], replay[ROUNDS], prompt[ROUNDS]; // seconds
} mode_times;

static bool time_round(device_bench *b, int mode, int round, mode_times *t) {
    kfm_llama *m = b->model[mode];
    kfm_llama_rewind(m, 0);
    double begin = kft_seconds();
    if (!kfm_llama_eval(m, b->tokens, PROMPT, b->logits, &b->error)) return false;
    t->prompt[round] = kft_seconds() - begin;
    kfm_llama_rewind(m, 0);
    if (b->depth > 0 && !kfm_llama_eval(m, b->tokens, b->depth, b->logits, &b->error)) return false;
    begin = kft_seconds();
    for (int i = 0; i < STEPS; i++)
        if (!kfm_llama_eval(m, &b->tokens[i], 1, b->logits, &b->error)) return false;
    t->step[round] = (kft_seconds() - begin) / STEPS;
    begin = kft_seconds();
    if (!kfm_llama_repeat(m, REPLAYS, &b->error)) return false;
    t->replay[round] = (kft_seconds() - begin) / REPLAYS;
    return true;
}

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values) {
    qsort(values, ROUNDS, sizeof *values, compare_doubles);
    return values[ROUNDS / 2];
}

static bool time_all(device_bench *b, mode_times *times) {
    for (int mode = 0; mode < MODES; mode++) // plans, graphs, first uses
        if (!time_round(b, mode, 0, &times[mode])) return false;
    for (int round = 0; round < ROUNDS; round++)
        for (int mode = 0; mode < MODES; mode++)
            if (!time_round(b, mode, round, &times[mode])) return false;
    return true;
}

static void print_rows(const device_bench *b, mode_times *times) {
    const kfm_llama_info *info = &b->info;
    const double bytes = (double)info->weight_bytes + ((double)b->depth + STEPS) * (double)info->kv_bytes_per_position;
    const char *name = b->path ? b->path : b->shape->name;
    if (strrchr(name, '/')) name = strrchr(name, '/') + 1;
    if (!b->json)
        printf("%s, weights %s, rows %s, cache %s, depth %lld: %lld operations, %.1f MB a step, copy %.0f GB/s\n%-26s "
               "%9s %9s %9s %7s %9s\n",
               name, b->weights_name, b->rows_name, b->cache_name, (long long)b->depth, (long long)info->operations,
               bytes * 1e-6, b->copy_rate * 1e-9, "", "tokens/s", "step us", "replay us", "share", "prompt/s");
    for (int mode = 0; mode < MODES; mode++) {
        const double step = median(times[mode].step), replay = median(times[mode].replay),
                     prompt = PROMPT / median(times[mode].prompt), share = bytes / replay / b->copy_rate;
        if (!b->json) {
            printf("%-26s %9.0f %9.1f %9.1f %6.1f%% %9.0f\n", modes[mode].name, 1 / step, step * 1e6, replay * 1e6,
                   100 * share, prompt);
            continue;
        }
        printf("%s\n {\"op\": \"model\", \"backend\": \"cuda\", \"model\": ", mode ? "," : "[");
        kft_json_string(stdout, name);
        printf(", \"weights\": \"%s\", \"rows\": \"%s\", \"cache\": \"%s\", \"depth\": %lld, \"launch\": \"%s\", "
               "\"operations\": %lld, \"bytes\": %.0f, \"tokens_per_s\": %.1f, \"step_us\": %.2f, \"replay_us\": %.2f, "
               "\"copy_gbps\": %.1f, \"share\": %.4f, \"prompt\": %d, \"prompt_tokens_per_s\": %.0f}",
               b->weights_name, b->rows_name, b->cache_name, (long long)b->depth, modes[mode].name,
               (long long)info->operations, bytes, 1 / step, step * 1e6, replay * 1e6, b->copy_rate * 1e-9, share,
               PROMPT, prompt);
    }
    if (b->json) puts("\n]");
}

// ---- checking ----

enum { CHECKED_PROMPT = 100, CHECKED_STEPS = 8, CHECKED = CHECKED_PROMPT + CHECKED_STEPS };

// The logits of a prompt's every token, and of tokens decoded after it.
static bool eval_checked(device_bench *b, kfm_llama *m, float *logits) {
    kfm_llama_rewind(m, 0);
    if (!kfm_llama_eval_all(m, b->tokens, CHECKED_PROMPT, logits, &b->error)) return false;
    for (int64_t i = CHECKED_PROMPT; i < CHECKED; i++)
        if (!kfm_llama_eval(m, &b->tokens[i], 1, logits + i * b->info.vocabulary, &b->error)) return false;
    return true;
}

static bool eval_on_cpu(device_bench *b, float *logits) {
    kf_context *context = NULL;
    kfm_llama *model = NULL;
    const kfm_llama_options options = {.context = CHECKED, .cache = b->cache, .weights = b->weights};
    if (kf_context_create(NULL, &context) != KF_OK) return kfm_fail(&b->error, "%s", kf_last_error());
    const bool good =
        kfm_llama_open(&model, context, b->gguf, &options, NULL, NULL, &b->error) && eval_checked(b, model, logits);
    kfm_llama_close(model);
    kf_context_destroy(context);
    return good;
}

// One row of what differs: over the prompt's tokens, or over the decoded ones.
static bool compare(const device_bench *b, const char *mode, const char *what, const float *got, const float *expected,
                    int64_t first, int64_t last) {
    const int64_t n = b->info.vocabulary;
    double most = 0, squares = 0, size = 0;
    int64_t same = 0, numbers = 0;
    for (int64_t i = first; i < last; i++) {
        int64_t best[2] = {i * n, i * n};
        for (int64_t k = i * n; k < (i + 1) * n; k++) {
            const double d = (double)got[k] - expected[k];
            numbers += isfinite(got[k]) != 0;
            most = fmax(most, fabs(d));
            squares += d * d;
            size += (double)expected[k] * expected[k];
            if (got[k] > got[best[0]]) best[0] = k;
            if (expected[k] > expected[best[1]]) best[1] = k;
        }
        same += best[0] == best[1];
    }
    const double terms = (double)((last - first) * n);
    printf("%-26s %-8s largest difference %.5f, root mean square %.5f of %.5f, same choice %lld of %lld%s\n", mode,
           what, most, sqrt(squares / terms), sqrt(size / terms), (long long)same, (long long)(last - first),
           numbers == (last - first) * n ? "" : ", NOT NUMBERS");
    return numbers == (last - first) * n;
}

static bool check_all(device_bench *b) {
    const size_t logits = (size_t)(CHECKED * b->info.vocabulary);
    float *expected = malloc(logits * sizeof *expected), *got = malloc(logits * sizeof *got);
    bool good = (expected && got) || kfm_fail(&b->error, "out of memory for logits");
    good = good && eval_on_cpu(b, expected);
    for (int mode = 0; mode < MODES && good; mode++) {
        good = eval_checked(b, b->model[mode], got);
        if (!good) break;
        const bool finite = compare(b, modes[mode].name, "prompt", got, expected, 0, CHECKED_PROMPT);
        good = compare(b, modes[mode].name, "decoded", got, expected, CHECKED_PROMPT, CHECKED) && finite;
        if (!good) kfm_set_error(&b->error, "some logits are not numbers");
    }
    free(expected);
    free(got);
    return good;
}

// ---- the command ----

static int print_help(void) {
    printf("Usage: keyfold bench model --backend cuda (-m FILE | --shape NAME) [OPTIONS]\n\n"
           "Times a token's step of a model on a GPU, its kernels launched in four ways.\n\n"
           "  -m, --model FILE   a GGUF file\n"
           "  --shape NAME       random bf16 weights in the shape of one of %s\n"
           "  --depth N          tokens before those that are timed (0)\n"
           "  --cache TYPE       fp16 or bf16 (fp16)\n"
           "  --rows TYPE        of the activations that products read: fp32, fp16 or bf16 (fp32)\n"
           "  --weights TYPE     converts the weights: fp32, fp16 or bf16 (as in the file)\n"
           "  --check            instead of timing, hold the logits against the CPU's\n"
           "  --json             instead of a table\n",
           bench_model_shape_names());
    return 0;
}

static bool parse_type(const char *text, const char **name, kf_dtype *dtype) {
    static const struct {
        const char *name;
        kf_dtype dtype;
    } types[] = {{"fp16", KF_FP16}, {"bf16", KF_BF16}, {"fp32", KF_FP32}};
    for (size_t i = 0; text && i < sizeof types / sizeof types[0]; i++)
        if (strcmp(text, types[i].name) == 0) {
            *name = types[i].name;
            *dtype = types[i].dtype;
            return true;
        }
    return false;
}

static int parse_option(device_bench *b, int argc, char **argv, int *i) {
    const char *value = NULL;
    if (kft_option(argc, argv, i, "--model", "-m", &b->path) ||
        kft_option(argc, argv, i, "--shape", NULL, &b->shape_name))
        return 0;
    if (kft_option(argc, argv, i, "--backend", NULL, &value)) return 0; // it led here
    if (kft_option(argc, argv, i, "--depth", NULL, &value))
        return kft_parse_int(value, 0, MOST_DEPTH, &b->depth)
                   ? 0
                   : kft_usage_error("bench: --depth %s is not in 0 to %d", value ? value : "", MOST_DEPTH);
    const struct {
        const char *option, **name;
        kf_dtype *dtype;
    } types[] = {{"--cache", &b->cache_name, &b->cache},
                 {"--rows", &b->rows_name, &b->rows},
                 {"--weights", &b->weights_name, &b->weights}};
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++)
        if (kft_option(argc, argv, i, types[t].option, NULL, &value))
            return parse_type(value, types[t].name, types[t].dtype)
                       ? 0
                       : kft_usage_error("bench: %s %s is none of fp32, fp16, bf16", types[t].option,
                                         value ? value : "");
    if (kft_flag(argv, *i, "--check", NULL)) return b->check = true, 0;
    if (!kft_flag(argv, *i, "--json", NULL))
        return kft_usage_error("bench: unknown option \"%s\"; keyfold bench model --backend cuda --help lists them",
                               argv[*i]);
    b->json = true;
    return 0;
}

static int parse_options(device_bench *b, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const int status = parse_option(b, argc, argv, &i);
        if (status) return status;
    }
    if (!b->path == !b->shape_name) return kft_usage_error("bench: model --backend cuda needs -m FILE or --shape NAME");
    if (b->path) return 0;
    b->shape = bench_model_shape_find(b->shape_name);
    return b->shape ? 0 : kft_usage_error("bench: --shape %s is none of %s", b->shape_name, bench_model_shape_names());
}

int bench_model_device(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (kft_flag(argv, i, "--help", "-h")) return print_help();
    device_bench *b = calloc(1, sizeof *b);
    mode_times *times = calloc(MODES, sizeof *times);
    int status = b && times ? 0 : kft_error("bench: memory is short");
    if (status == 0) {
        b->cache_name = "fp16", b->rows_name = "fp32", b->weights_name = "as in the file";
        status = parse_options(b, argc, argv);
    }
    if (status == 0) {
        const bool good = open_all(b) && (b->check ? check_all(b) : time_all(b, times));
        if (good && !b->check) print_rows(b, times);
        status = good ? 0 : kft_error("bench: %s", b->error.text);
    }
    if (b) close_all(b);
    free(b);
    free(times);
    return status;
}
