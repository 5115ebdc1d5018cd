// SPDX-License-Identifier: Apache-2.0
//
// keyfold SUBCOMMAND ...: finds the subcommand in a table and runs it.
#include "tool.h"

#include <string.h>

#include "keyfold.h"

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} command;

static const command commands[] = {
    {"info", kft_info, "version, CPU features, what is supported; --ceilings measures the machine"},
    {"bench", kft_bench, "times an operation beside the machine's ceilings; without one, the speed table"},
    {"profile", kft_profile, "what a GPU's counters say of an operation, through Nsight Compute"},
#if KF_HAVE_CUDA
    {"tune", kft_tune, "times the CUDA prefill's tiles and writes the table that plans choose by"},
#endif
    {"verify", kft_verify, "holds every kernel against the float64 oracle"},
#if KF_HAVE_MODEL // needs PCRE2
    {"generate", kft_generate, "text from a GGUF model, streamed; a chat on a terminal without a prompt"},
    {"tokenize", kft_tokenize, "the token ids of a text"},
#endif
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void print_help(FILE *out) {
    fputs("keyfold: attention in C\n\nUsage: keyfold COMMAND [OPTIONS]\n\n", out);
    for (int i = 0; i < COMMANDS; i++) fprintf(out, "  %-9s %s\n", commands[i].name, commands[i].help);
    fputs("\nkeyfold COMMAND --help lists a command's options. keyfold --version prints the version.\n", out);
}

static int run(int argc, char **argv) {
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    if (kft_flag(argv, 1, "--help", "-h") || strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return 0;
    }
    if (kft_flag(argv, 1, "--version", "-V")) {
        printf("keyfold %s\n", kf_version_string());
        return 0;
    }
    for (int i = 0; i < COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
    }
    return kft_usage_error("unknown command \"%s\"; keyfold --help lists the commands", argv[1]);
}

int main(int argc, char **argv) {
    int status = run(argc, argv);
    // A full disk or a closed pipe must not pass for success.
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == 0)
        status = kft_error("standard output could not be written");
    return status;
}
