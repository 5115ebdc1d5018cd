// SPDX-License-Identifier: Apache-2.0
//
// keyfold generate: a prompt in, the model's continuation or answer out. The text goes to stdout as it is made,
// statistics to stderr; with --json one object goes to stdout when all is done. See generate.h for its parts.
#include "generate.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tool.h"

// Enough for an answer; a model that repeats itself must end.
enum { DEFAULT_MAX_TOKENS = 512 };

static const char help[] =
    "keyfold generate -m FILE [-p TEXT] [OPTIONS]: text from a GGUF model of the Llama architecture\n"
    "\n"
    "  -m, --model FILE       the model (or the environment variable KEYFOLD_MODEL)\n"
    "  -p, --prompt TEXT      what to continue; absent: standard input, or on a terminal a chat\n"
    "  --ids N,N,...          the prompt as token ids, in place of a text\n"
    "  -n, --tokens N         at most N tokens (512)\n"
    "  --chat                 the prompt is a message, the text its answer (ChatML)\n"
    "  --system TEXT          the chat's system message; \"\" for none (the model's own)\n"
    "  --temp T               temperature; 0 takes the likeliest token (0)\n"
    "  --top-k K, --top-p P, --min-p P\n"
    "                         of the K likeliest; of those that make up P; of those with at least P of the best one's "
    "probability (all)\n"
    "  --seed N               of the random numbers (0)\n"
    "  --threads N            threads (all processors)\n"
    "  --context N            tokens that the cache holds (what the model was trained for)\n"
    "  --device NAME          cpu, cuda, or cuda:N for one of several GPUs (cpu)\n"
    "  --cache TYPE           fp16, bf16 or fp32 (fp16)\n"
    "  --rows TYPE            of the activations that products read: the same types (fp32)\n"
    "  --weights TYPE         converts the weights of the products: the same types (as in the file)\n"
    "  --activations KIND     exact, or int8: faster, less exact (exact)\n"
    "  --chunk N              tokens of a prompt in one step (512)\n"
    "  --ignore-end           go on after the token that ends an answer\n"
    "  --logits FILE          in place of an answer, the logits of every token of the prompt: float32, a row of the\n"
    "                         vocabulary's size for each, in this machine's byte order\n"
    "  --json                 print one object: prompt_ids, ids, text, stop, prefill_tokens_per_s, "
    "decode_tokens_per_s,\n"
    "                         bytes_per_token, gbps, read_gbps\n";

// text NULL: the option was not given.
static int parse_type(const char *option, const char *text, kf_dtype *dtype) {
    static const struct {
        const char *name;
        kf_dtype dtype;
    } types[] = {{"fp16", KF_FP16}, {"bf16", KF_BF16}, {"fp32", KF_FP32}};
    if (text == NULL) return 0;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(text, types[i].name) != 0) continue;
        *dtype = types[i].dtype;
        return 0;
    }
    return kft_usage_error("%s is \"%s\"; fp16, bf16 or fp32 is expected", option, text);
}

static int parse_device(const char *text, kf_device *device) {
    int64_t id = 0;
    const bool cuda = strncmp(text, "cuda", 4) == 0;
    if (strcmp(text, "cpu") != 0 &&
        !(cuda && (text[4] == '\0' || (text[4] == ':' && kft_parse_int(text + 5, 0, INT32_MAX, &id)))))
        return kft_usage_error("--device is \"%s\"; cpu, cuda or cuda:N is expected", text);
    *device = (kf_device){cuda ? KF_DEVICE_CUDA : KF_DEVICE_CPU, (int32_t)id};
    return 0;
}

static bool parse_activations(const char *text, int32_t *activations) {
    if (strcmp(text, "exact") != 0 && strcmp(text, "int8") != 0) return false;
    *activations = text[0] == 'e' ? KF_ACTIVATIONS_EXACT : KF_ACTIVATIONS_INT8;
    return true;
}

// An option: its names, where its value goes (one of the four), and for numbers what is allowed.
typedef struct option {
    const char *name, *short_name;
    const char **text;
    bool *flag;
    int64_t *integer;
    double *real;
    double lo, hi;
} option;

static int take_value(const option *o, const char *value) {
    if (o->text != NULL) {
        *o->text = value;
        return value != NULL ? 0 : kft_usage_error("%s needs a value", o->name);
    }
    if (o->integer != NULL && kft_parse_int(value, (int64_t)o->lo, (int64_t)o->hi, o->integer)) return 0;
    if (o->real != NULL && kft_parse_double(value, o->lo, o->hi, o->real)) return 0;
    return kft_usage_error("%s is \"%s\"; a number from %g to %g is expected", o->name, value != NULL ? value : "",
                           o->lo, o->hi);
}

// The option at argv[*i], past whose value *i is moved.
static int take_option(const option *options, int argc, char **argv, int *i) {
    for (const option *o = options; o->name != NULL; o++) {
        const char *value;
        if (o->flag != NULL && kft_flag(argv, *i, o->name, o->short_name)) {
            *o->flag = true;
            return 0;
        }
        if (o->flag == NULL && kft_option(argc, argv, i, o->name, o->short_name, &value)) return take_value(o, value);
    }
    return kft_usage_error("generate has no option \"%s\"; keyfold generate --help lists them", argv[*i]);
}

// What can't be right together, whatever the model.
static int check(const generate_options *o) {
    if (o->model == NULL) return kft_usage_error("generate needs a model: -m FILE");
    if (o->ids != NULL && (o->prompt != NULL || o->chat))
        return kft_usage_error("--ids is the whole prompt; it does not go with --prompt and --chat");
    if (o->logits != NULL && o->json) return kft_usage_error("--logits writes a file, and --json prints an answer");
    return 0;
}

// Exit status 0, or that of a wrong command line.
static int parse(int argc, char **argv, generate_options *o) {
    int64_t top_k = 0, seed = 0;
    const char *cache = "fp16", *activations = "exact", *device = "cpu", *rows = NULL, *weights = NULL;
    const option options[] = {
        {"--model", "-m", .text = &o->model},
        {"--prompt", "-p", .text = &o->prompt},
        {"--ids", NULL, .text = &o->ids},
        {"--system", NULL, .text = &o->system},
        {"--device", NULL, .text = &device},
        {"--cache", NULL, .text = &cache},
        {"--rows", NULL, .text = &rows},
        {"--weights", NULL, .text = &weights},
        {"--activations", NULL, .text = &activations},
        {"--logits", NULL, .text = &o->logits},
        {"--chat", NULL, .flag = &o->chat},
        {"--json", NULL, .flag = &o->json},
        {"--ignore-end", NULL, .flag = &o->ignore_end},
        {"--tokens", "-n", .integer = &o->max_tokens, .lo = 0, .hi = 1 << 30},
        {"--top-k", NULL, .integer = &top_k, .lo = 0, .hi = INT32_MAX},
        {"--seed", NULL, .integer = &seed, .lo = 0, .hi = 0x1p53},
        {"--threads", NULL, .integer = &o->threads, .lo = 1, .hi = 1024},
        {"--context", NULL, .integer = &o->context, .lo = 1, .hi = 1 << 28},
        {"--chunk", NULL, .integer = &o->chunk, .lo = 1, .hi = 1 << 16},
        {"--temp", NULL, .real = &o->sampling.temperature, .lo = 0, .hi = 1000},
        {"--top-p", NULL, .real = &o->sampling.top_p, .lo = 1e-9, .hi = 1},
        {"--min-p", NULL, .real = &o->sampling.min_p, .lo = 0, .hi = 1},
        {.name = NULL},
    };
    for (int i = 1; i < argc; i++) {
        int status = take_option(options, argc, argv, &i);
        if (status != 0) return status;
    }
    o->sampling.top_k = (int32_t)top_k;
    o->sampling.seed = (uint64_t)seed;
    int status = parse_type("--cache", cache, &o->cache);
    if (status == 0) status = parse_type("--rows", rows, &o->rows);
    if (status == 0) status = parse_type("--weights", weights, &o->weights);
    if (status == 0) status = parse_device(device, &o->device);
    if (status != 0) return status;
    if (!parse_activations(activations, &o->activations))
        return kft_usage_error("--activations is \"%s\"; exact or int8 is expected", activations);
    if (o->model == NULL) o->model = getenv("KEYFOLD_MODEL");
    return check(o);
}

// ---- one prompt ----

char *generate_read_all(size_t *bytes) {
    char *text = NULL;
    size_t count = 0, n = 1;
    while (n > 0) {
        enum { PIECE = 1 << 16 };
        char *grown = realloc(text, count + PIECE + 1);
        if (grown == NULL) break;
        text = grown;
        n = fread(text + count, 1, PIECE, stdin);
        count += n;
    }
    if (text == NULL || n > 0 || ferror(stdin)) {
        free(text);
        return NULL;
    }
    text[count] = '\0';
    *bytes = count;
    return text;
}

// The prompt's tokens: those that were given, a conversation of one message, or the text as it is, special tokens
// recognised.
static bool encode_prompt(generate_session *s, const char *prompt, size_t length, kfm_error *error) {
    if (s->options.ids != NULL) return generate_parse_ids(s->options.ids, &s->pending, error);
    const kfm_tokenizer *t = s->tokenizer;
    const char *system = s->options.system != NULL ? s->options.system : kfm_chat_default_system(t);
    int32_t bos = kfm_tokenizer_bos(t);
    if (bos >= 0 && !kfm_ids_push(&s->pending, bos, error)) return false;
    if (!s->options.chat) return kfm_encode(t, prompt, length, true, &s->pending, error);
    if (system != NULL && system[0] != '\0' &&
        !kfm_chat_message(t, "system", system, strlen(system), &s->pending, error))
        return false;
    return kfm_chat_message(t, "user", prompt, length, &s->pending, error) && kfm_chat_answer(t, &s->pending, error);
}

static void print_ids(const char *name, const int32_t *ids, int64_t count) {
    printf("\"%s\": [", name);
    for (int64_t i = 0; i < count; i++) printf("%s%d", i > 0 ? ", " : "", ids[i]);
    printf("], ");
}

// A JSON string of whole UTF-8 characters, in which a zero byte may stand too.
static void print_text(const char *text, size_t n) {
    putchar('"');
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

static void print_json(const generate_session *s, const int32_t *prompt, int64_t prompt_count,
                       const generate_statistics *r) {
    static const char *const stops[] = {"end", "length", "context", "interrupt"};
    putchar('{');
    print_ids("prompt_ids", prompt, prompt_count);
    print_ids("ids", s->ids.id, s->ids.count);
    printf("\"text\": ");
    print_text(s->text, s->text_bytes);
    printf(", \"stop\": \"%s\", \"prefill_tokens_per_s\": %.2f, \"decode_tokens_per_s\": %.2f, \"bytes_per_token\": "
           "%.0f, \"gbps\": %.3f, \"read_gbps\": %.3f}\n",
           stops[s->stop], r->prefill_rate, r->decode_rate, r->bytes_per_token, r->bytes_per_s * 1e-9, r->read * 1e-9);
}

static bool run_prompt(generate_session *s, const char *prompt, size_t length, kfm_error *error) {
    const generate_options *o = &s->options;
    if (!encode_prompt(s, prompt, length, error)) return false;
    if (s->pending.left_out > 0)
        fprintf(stderr, "keyfold: %lld bytes of the prompt have no token in this vocabulary and are left out\n",
                (long long)s->pending.left_out);
    if (o->logits != NULL) return generate_logits(s, error);
    int64_t count = s->pending.count;
    int32_t *ids = malloc(((size_t)count + 1) * sizeof *ids);
    if (ids == NULL) return kfm_fail(error, "out of memory for %lld tokens", (long long)count);
    if (count > 0) memcpy(ids, s->pending.id, (size_t)count * sizeof *ids);
    generate_catch_interrupt();
    bool ok = generate_answer(s, !o->json, error);
    if (!o->json && s->text_bytes > 0 && s->text[s->text_bytes - 1] != '\n') putchar('\n');
    fflush(stdout);
    if (ok) {
        generate_statistics statistics = generate_measure(s);
        if (o->json)
            print_json(s, ids, count, &statistics);
        else
            generate_print_statistics(s, &statistics);
    }
    free(ids);
    if (ok && s->stop == STOP_CONTEXT)
        return kfm_fail(error,
                        "the context is full: it holds %lld tokens, and the text goes on; --context makes it longer",
                        (long long)kfm_llama_position(s->model));
    return ok;
}

static int run(const generate_options *options) {
    kfm_error error = {""};
    generate_session session;
    bool given = options->prompt != NULL || options->ids != NULL, chat = !given && isatty(STDIN_FILENO);
    if (chat && (options->json || options->logits != NULL))
        return kft_usage_error("%s needs a prompt: -p TEXT", options->json ? "--json" : "--logits");
    size_t length = options->prompt != NULL ? strlen(options->prompt) : 0;
    char *piped = !given && !chat ? generate_read_all(&length) : NULL;
    if (!given && !chat && piped == NULL) return kft_error("standard input could not be read");
    bool opened = generate_open(&session, options, &error);
    int status = 1;
    if (opened && chat)
        status = generate_chat(&session);
    else if (opened && run_prompt(&session, piped != NULL ? piped : options->prompt, length, &error))
        status = 0;
    if (error.text[0] != '\0') kft_error("%s", error.text);
    generate_close(&session);
    free(piped);
    return status;
}

int kft_generate(int argc, char **argv) {
    generate_options options = {.max_tokens = DEFAULT_MAX_TOKENS, .sampling = kfm_sampling_default()};
    for (int i = 1; i < argc; i++)
        if (kft_flag(argv, i, "--help", "-h")) {
            fputs(help, stdout);
            return 0;
        }
    int status = parse(argc, argv, &options);
    return status != 0 ? status : run(&options);
}
