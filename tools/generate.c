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
    "  --cache TYPE           fp16, bf16 or fp32 (fp16)\n"
    "  --activations KIND     exact, or int8: faster, less exact (exact)\n"
    "  --chunk N              tokens of a prompt in one step (512)\n"
    "  --ignore-end           go on after the token that ends an answer\n"
    "  --json                 print one object: prompt_ids, ids, text, stop, prefill_tokens_per_s, "
    "decode_tokens_per_s,\n"
    "                         bytes_per_token, gbps, read_gbps\n";

static bool parse_cache(const char *text, kf_dtype *dtype) {
    static const struct {
        const char *name;
        kf_dtype dtype;
    } types[] = {{"fp16", KF_FP16}, {"bf16", KF_BF16}, {"fp32", KF_FP32}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (text == NULL || strcmp(text, types[i].name) != 0) continue;
        *dtype = types[i].dtype;
        return true;
    }
    return false;
}

static bool parse_activations(const char *text, int32_t *activations) {
    if (text == NULL || (strcmp(text, "exact") != 0 && strcmp(text, "int8") != 0)) return false;
    *activations = text[0] == 'e' ? KF_ACTIVATIONS_EXACT : KF_ACTIVATIONS_INT8;
    return true;
}

// A number's option: its name, where it goes, and what is allowed.
typedef struct number_option {
    const char *name, *short_name;
    int64_t *integer; // one of the two
    double *real;
    double lo, hi;
} number_option;

static int take_number(const number_option *o, const char *value) {
    if (o->integer != NULL && kft_parse_int(value, (int64_t)o->lo, (int64_t)o->hi, o->integer)) return 0;
    if (o->real != NULL && kft_parse_double(value, o->lo, o->hi, o->real)) return 0;
    return kft_usage_error("%s is \"%s\"; a number from %g to %g is expected", o->name, value != NULL ? value : "",
                           o->lo, o->hi);
}

// Exit status 0, or that of a wrong command line.
static int parse(int argc, char **argv, generate_options *o) {
    int64_t top_k = 0, seed = 0;
    const number_option numbers[] = {
        {"--tokens", "-n", &o->max_tokens, NULL, 0, 1 << 30}, {"--temp", NULL, NULL, &o->sampling.temperature, 0, 1000},
        {"--top-k", NULL, &top_k, NULL, 0, INT32_MAX},        {"--top-p", NULL, NULL, &o->sampling.top_p, 1e-9, 1},
        {"--min-p", NULL, NULL, &o->sampling.min_p, 0, 1},    {"--seed", NULL, &seed, NULL, 0, 0x1p53},
        {"--threads", NULL, &o->threads, NULL, 1, 1024},      {"--context", NULL, &o->context, NULL, 1, 1 << 28},
        {"--chunk", NULL, &o->chunk, NULL, 1, 1 << 16},
    };
    enum { NUMBERS = sizeof numbers / sizeof numbers[0] };
    for (int i = 1; i < argc; i++) {
        const char *value;
        int number = 0, status = 0;
        while (number < NUMBERS &&
               !kft_option(argc, argv, &i, numbers[number].name, numbers[number].short_name, &value))
            number++;
        if (number < NUMBERS)
            status = take_number(&numbers[number], value);
        else if (kft_option(argc, argv, &i, "--model", "-m", &o->model))
            status = o->model != NULL ? 0 : kft_usage_error("--model needs a file");
        else if (kft_option(argc, argv, &i, "--prompt", "-p", &o->prompt))
            status = o->prompt != NULL ? 0 : kft_usage_error("--prompt needs a text");
        else if (kft_option(argc, argv, &i, "--system", NULL, &o->system))
            status = o->system != NULL ? 0 : kft_usage_error("--system needs a text");
        else if (kft_option(argc, argv, &i, "--cache", NULL, &value))
            status =
                parse_cache(value, &o->cache)
                    ? 0
                    : kft_usage_error("--cache is \"%s\"; fp16, bf16 or fp32 is expected", value != NULL ? value : "");
        else if (kft_option(argc, argv, &i, "--activations", NULL, &value))
            status =
                parse_activations(value, &o->activations)
                    ? 0
                    : kft_usage_error("--activations is \"%s\"; exact or int8 is expected", value != NULL ? value : "");
        else if (kft_flag(argv, i, "--chat", NULL))
            o->chat = true;
        else if (kft_flag(argv, i, "--json", NULL))
            o->json = true;
        else if (kft_flag(argv, i, "--ignore-end", NULL))
            o->ignore_end = true;
        else
            status = kft_usage_error("generate has no option \"%s\"; keyfold generate --help lists them", argv[i]);
        if (status != 0) return status;
    }
    o->sampling.top_k = (int32_t)top_k;
    o->sampling.seed = (uint64_t)seed;
    if (o->model == NULL) o->model = getenv("KEYFOLD_MODEL");
    return o->model != NULL ? 0 : kft_usage_error("generate needs a model: -m FILE");
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

// The prompt's tokens: a conversation of one message, or the text as it is, special tokens recognised.
static bool encode_prompt(generate_session *s, const char *prompt, size_t length, kfm_error *error) {
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
    bool chat = options->prompt == NULL && isatty(STDIN_FILENO);
    if (chat && options->json) return kft_usage_error("--json needs a prompt: -p TEXT");
    size_t length = options->prompt != NULL ? strlen(options->prompt) : 0;
    char *piped = options->prompt == NULL && !chat ? generate_read_all(&length) : NULL;
    if (options->prompt == NULL && !chat && piped == NULL) return kft_error("standard input could not be read");
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
    generate_options options = {.max_tokens = DEFAULT_MAX_TOKENS, .sampling = kfm_sampling_default(), .cache = KF_FP16};
    for (int i = 1; i < argc; i++)
        if (kft_flag(argv, i, "--help", "-h")) {
            fputs(help, stdout);
            return 0;
        }
    int status = parse(argc, argv, &options);
    return status != 0 ? status : run(&options);
}
