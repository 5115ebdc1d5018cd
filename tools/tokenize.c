// SPDX-License-Identifier: Apache-2.0
//
// keyfold tokenize: the token ids of a text, by a GGUF file's vocabulary. A line a token, or with --json an array of
// ids.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "generate.h"
#include "tool.h"

static const char help[] = "keyfold tokenize -m FILE [-p TEXT] [--plain] [--json]: the token ids of a text\n"
                           "\n"
                           "  -m, --model FILE   the model (or the environment variable KEYFOLD_MODEL)\n"
                           "  -p, --prompt TEXT  the text; absent: standard input\n"
                           "  --plain            special tokens such as <|im_end|> are text\n"
                           "  --json             print an array of ids\n";

// A token's text, with what would break the line or is no whole character as an escape.
static void print_token(kfm_string token) {
    for (size_t i = 0; i < token.length;) {
        const char *p = token.bytes + i;
        int n = kfm_utf8_length(p, token.length - i);
        if (*p == '\n')
            fputs("\\n", stdout);
        else if (*p == '\\')
            fputs("\\\\", stdout);
        else if (n <= 0 || (unsigned char)*p < 0x20 || *p == 0x7f)
            printf("\\x%02x", (unsigned char)*p);
        else
            fwrite(p, 1, (size_t)n, stdout);
        i += n > 0 ? (size_t)n : 1;
    }
}

static void print_table(const kfm_tokenizer *t, const kfm_ids *ids) {
    for (int64_t i = 0; i < ids->count; i++) {
        printf("%6d  ", ids->id[i]);
        print_token(kfm_token_bytes(t, ids->id[i]));
        putchar('\n');
    }
}

static void print_array(const kfm_ids *ids) {
    putchar('[');
    for (int64_t i = 0; i < ids->count; i++) printf("%s%d", i > 0 ? ", " : "", ids->id[i]);
    puts("]");
}

static int run(const char *model, const char *text, size_t length, bool plain, bool json) {
    kfm_gguf *gguf = NULL;
    kfm_tokenizer *tokenizer = NULL;
    kfm_ids ids = {0};
    kfm_error error;
    bool ok = kfm_gguf_open(&gguf, model, &error) && kfm_tokenizer_open(&tokenizer, gguf, &error) &&
              kfm_encode(tokenizer, text, length, !plain, &ids, &error);
    if (ok && json)
        print_array(&ids);
    else if (ok)
        print_table(tokenizer, &ids);
    if (ok && ids.left_out > 0)
        fprintf(stderr, "keyfold: %lld bytes of the text have no token in this vocabulary and are left out\n",
                (long long)ids.left_out);
    kfm_ids_free(&ids);
    kfm_tokenizer_close(tokenizer);
    kfm_gguf_close(gguf);
    return ok ? 0 : kft_error("%s", error.text);
}

int kft_tokenize(int argc, char **argv) {
    const char *model = getenv("KEYFOLD_MODEL"), *text = NULL;
    bool plain = false, json = false;
    for (int i = 1; i < argc; i++) {
        if (kft_flag(argv, i, "--help", "-h")) {
            fputs(help, stdout);
            return 0;
        }
        if (kft_option(argc, argv, &i, "--model", "-m", &model)) {
            if (model == NULL) return kft_usage_error("--model needs a file");
        } else if (kft_option(argc, argv, &i, "--prompt", "-p", &text)) {
            if (text == NULL) return kft_usage_error("--prompt needs a text");
        } else if (kft_flag(argv, i, "--plain", NULL)) {
            plain = true;
        } else if (kft_flag(argv, i, "--json", NULL)) {
            json = true;
        } else {
            return kft_usage_error("tokenize has no option \"%s\"; keyfold tokenize --help lists them", argv[i]);
        }
    }
    if (model == NULL) return kft_usage_error("tokenize needs a model: -m FILE");
    size_t length = text != NULL ? strlen(text) : 0;
    char *piped = text == NULL ? generate_read_all(&length) : NULL;
    if (text == NULL && piped == NULL) return kft_error("standard input could not be read");
    int status = run(model, text != NULL ? text : piped, length, plain, json);
    free(piped);
    return status;
}
