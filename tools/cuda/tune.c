// SPDX-License-Identifier: Apache-2.0
//
// keyfold tune: times the tiles of src/cuda/tiles.h on the device and writes src/cuda/tuned.h, by which a plan chooses. The tiles are in a
// build made for it (`make tune`); other builds hold those that the table names.
//
//     class    a head dimension, causal or not, and up to how many tiles of 128 queries a multiprocessor
//     choice   of each class the tile with the smallest product of its times over the class's shapes; the last class's tile
//              where no other is GAIN times as fast. A tile that is nowhere LEAST times as fast as the best of the others chosen is
//              left out. So few tiles are built
//
// A shape whose keys a plan splits, whatever the table says, has no say. A time is the smallest of ROUNDS, a round being as many runs in a row as take a few milliseconds; the tiles take turns.
#include "cuda/tune.h"
#include "keyfold.h"
#include "runtime.h"
#include "tool.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if KF_TUNE

enum { ROUNDS = 5, CLASSES = 5, CLASS_SHAPES = 3, MOST_TILES = 16, TILE_QUERIES = 128 };
static const double ROUND_SECONDS = 3e-3, GAIN = 1.02, LEAST = 1.05;

typedef struct shape {
    int64_t B, H, N;
} shape;

static const struct tune_class {
    int64_t most; // thousandths: tiles of 128 queries by multiprocessors of an H200 (132)
    shape shapes[CLASS_SHAPES];
} classes[CLASSES] = {
    {500, {{1, 8, 512}, {1, 2, 4096}}},
    {1000, {{1, 8, 2048}, {16, 8, 128}}},
    {2000, {{1, 16, 2048}, {8, 8, 512}}},
    {4000, {{1, 32, 2048}, {16, 8, 512}}},
    {INT64_MAX, {{2, 16, 4096}, {32, 16, 512}, {1, 8, 16384}}},
};
static const int64_t dims[] = {64, 128};
enum {
    DIMS = sizeof dims / sizeof *dims,
    LARGEST = 32 * 16 * 512 * 128 > 2 * 16 * 4096 * 128 ? 32 * 16 * 512 * 128 : 2 * 16 * 4096 * 128
};

typedef struct bench {
    kf_context *context;
    void *memory[4]; // q, k, v, o
    void *workspace;
    size_t workspace_bytes;
} bench;

// Values of about N(0, 1) in bf16: sums of uniform ones.
static bool fill(bench *b) {
    uint16_t *values = malloc((size_t)LARGEST * 2);
    uint64_t state = 1;
    bool good = values != NULL;
    for (int i = 0; good && i < 4; i++) {
        for (int64_t e = 0; e < LARGEST; e++) {
            float sum = -2;
            for (int u = 0; u < 4; u++) {
                state = state * 6364136223846793005u + 1442695040888963407u;
                sum += (float)(state >> 40) * 0x1p-24f;
            }
            sum *= 1.7320508f;
            uint32_t bits;
            memcpy(&bits, &sum, sizeof bits);
            values[e] = (uint16_t)(bits >> 16);
        }
        good = kf_memory_allocate(b->context, (size_t)LARGEST * 2, &b->memory[i]) == KF_OK &&
               kf_memory_copy(b->context, b->memory[i], values, (size_t)LARGEST * 2) == KF_OK;
    }
    free(values);
    return good;
}

static kf_op *plan(bench *b, const shape *s, int64_t D, bool causal) {
    const int64_t sizes[4] = {s->B, s->H, s->N, D};
    kf_tensor tensor[4];
    kf_attention_args args;
    kf_op *op = NULL;
    size_t bytes = 0;
    for (int i = 0; i < 4; i++)
        tensor[i] = (kf_tensor){
            .data = b->memory[i], .device = {KF_DEVICE_CUDA, 0}, .ndim = 4, .dtype = KF_BF16, .shape = sizes};
    kf_attention_args_init(&args);
    args.q = &tensor[0], args.k = &tensor[1], args.v = &tensor[2], args.o = &tensor[3];
    args.flags = causal ? KF_ATTENTION_CAUSAL : 0;
    if (kf_op_create(b->context, &args.head, &op) != KF_OK || kf_op_workspace_size(op, &bytes) != KF_OK) return op;
    if (bytes > b->workspace_bytes) {
        kf_memory_free(b->context, b->workspace);
        b->workspace = NULL, b->workspace_bytes = bytes;
        if (kf_memory_allocate(b->context, bytes, &b->workspace) != KF_OK) b->workspace_bytes = 0;
    }
    return op;
}

// Seconds of one run; < 0 where it failed.
static double time_of(bench *b, kf_op *op, int64_t runs) {
    if (kf_context_synchronize(b->context) != KF_OK) return -1;
    const double begin = kft_seconds();
    for (int64_t r = 0; r < runs; r++)
        if (kf_op_run(op, b->workspace, b->workspace_bytes) != KF_OK) return -1;
    if (kf_context_synchronize(b->context) != KF_OK) return -1;
    return (kft_seconds() - begin) / (double)runs;
}

// The smallest time of each tile for a shape, in seconds. False where something failed.
static bool time_tiles(bench *b, const shape *s, int64_t D, bool causal, int tiles, double *best) {
    kf_op *ops[MOST_TILES] = {NULL};
    int64_t runs = 1;
    bool good = true;
    for (int t = 0; t < tiles && good; t++) {
        kf_cuda_tune_force(t);
        ops[t] = plan(b, s, D, causal);
        good = ops[t] != NULL;
        best[t] = INFINITY;
    }
    kf_cuda_tune_force(-1);
    for (int round = -2; round < ROUNDS && good; round++) { // the first ones warm up and say how many runs fill a round
        for (int t = 0; t < tiles && good; t++) {
            const double seconds = time_of(b, ops[t], runs);
            good = seconds > 0;
            if (round >= 0) best[t] = fmin(best[t], seconds);
            if (round == -1 && t == 0) runs = (int64_t)fmax(1, ROUND_SECONDS / seconds);
        }
    }
    for (int t = 0; t < tiles; t++) kf_op_destroy(ops[t]);
    return good;
}

// What was measured of a class: the sum over its shapes of the logarithms of each tile's times.
typedef struct measured {
    double score[MOST_TILES];
    int shapes;
} measured;

typedef struct choices {
    measured of[DIMS][2][CLASSES];
    int chosen[DIMS][2][CLASSES];
    bool used[DIMS][MOST_TILES];
    int tiles[DIMS];
} choices;

static int choose(const measured *m, int tiles, int usual) {
    int best = 0;
    for (int t = 1; t < tiles; t++)
        if (m->score[t] < m->score[best]) best = t;
    if (usual >= 0 && m->score[usual] - m->score[best] < log(GAIN) * m->shapes) return usual;
    return m->shapes || usual < 0 ? best : usual;
}

// Whether the plan, left alone, splits the keys of this shape.
static bool is_split(bench *b, const shape *s, int64_t D, bool causal) {
    size_t bytes = 0;
    kf_op *op = plan(b, s, D, causal);
    const bool split = op && kf_op_workspace_size(op, &bytes) == KF_OK && bytes > 0;
    kf_op_destroy(op);
    return split;
}

static bool measure_class(bench *b, const struct tune_class *class, int64_t D, bool causal, int tiles, measured *m) {
    double seconds[MOST_TILES];
    for (int n = 0; n < CLASS_SHAPES && class->shapes[n].B; n++) {
        const shape *s = &class->shapes[n];
        printf("D=%-4lld%-7s%2lldx%lldx%-6lld", (long long)D, causal ? "causal" : "full", (long long)s->B,
               (long long)s->H, (long long)s->N);
        if (is_split(b, s, D, causal)) {
            printf("  the plan splits its keys\n");
            continue;
        }
        if (!time_tiles(b, s, D, causal, tiles, seconds)) return false;
        m->shapes++;
        for (int t = 0; t < tiles; t++) {
            kf_cuda_tile tile;
            kf_cuda_tune_tile((int32_t)D, t, &tile);
            printf("  %dx%d/%d %8.1f", tile.rows, tile.keys, tile.warps, seconds[t] * 1e6);
            m->score[t] += log(seconds[t]);
        }
        printf(" us\n");
        fflush(stdout);
    }
    return true;
}

// The best of the tiles that some class has chosen, `but` one; -1: there is none.
static int best_used(const measured *m, const bool *used, int tiles, int but) {
    int best = -1;
    for (int t = 0; t < tiles; t++)
        if (used[t] && t != but && (best < 0 || m->score[t] < m->score[best])) best = t;
    return best;
}

// Leaves tile t out where every class that chose it loses less than LEAST by the best of the others.
static void leave_out(choices *c, int d, int t) {
    for (int pass = 0; pass < 2; pass++) // looks, then does
        for (int row = 0; row < 2 * CLASSES; row++) {
            int *chosen = &c->chosen[d][row / CLASSES][row % CLASSES];
            const measured *m = &c->of[d][row / CLASSES][row % CLASSES];
            if (*chosen != t) continue;
            const int other = best_used(m, c->used[d], c->tiles[d], t);
            if (other < 0 || m->score[other] - m->score[t] >= log(LEAST) * m->shapes) return;
            if (pass) *chosen = other;
        }
    c->used[d][t] = false;
}

static void write_tiles(FILE *out, int64_t D, const bool *used, int tiles) {
    fprintf(out, "#define KF_TUNED_TILES_%lld(X)", (long long)D);
    for (int t = 0; t < tiles; t++) {
        kf_cuda_tile tile;
        kf_cuda_tune_tile((int32_t)D, t, &tile);
        if (used[t]) fprintf(out, " X(%d, %d, %d, %d)", tile.rows, tile.keys, tile.warps, tile.blocks);
    }
    fprintf(out, "\n");
}

static void write_table(FILE *out, const bench *b, const choices *c, const char *commit) {
    kf_context_info info = {.size = sizeof info};
    char date[32] = "";
    const time_t now = time(NULL);
    struct tm day;
    if (gmtime_r(&now, &day)) strftime(date, sizeof date, "%Y-%m-%d", &day);
    kf_context_get_info(b->context, &info);
    fprintf(
        out,
        "// SPDX-License-Identifier: Apache-2.0\n//\n"
        "// Which tiles a prefill takes, as `keyfold tune` measured them. Written by it; a hand that changes a line "
        "should say so here.\n//\n"
        "//     source   %s, commit %s, %s: make tune && build-tune/keyfold tune\n//\n"
        "// KF_TUNED_TILES_D(X): the tiles that the choices of head dimensions up to D name, which every build holds:\n"
        "// X(queries, keys, warps, blocks a multiprocessor). KF_CUDA_CHOICES: the first line whose D is the kernel's "
        "and whose `most` is\n"
        "// not below the shape's tiles of 128 queries in thousandths of the multiprocessors names the tile.\n"
        "#ifndef KF_CUDA_TUNED_H\n#define KF_CUDA_TUNED_H\n\n#include <stdint.h>\n\n",
        info.name, commit, date);
    for (int d = 0; d < DIMS; d++) write_tiles(out, dims[d], c->used[d], c->tiles[d]);
    fprintf(out, "\ntypedef struct kf_cuda_choice {\n    int32_t D, causal; // causal: 0 or 1\n    int64_t most;\n"
                 "    int32_t rows, keys, warps;\n} kf_cuda_choice;\n\n#define KF_CUDA_CHOICES");
    for (int row = 0; row < DIMS * 2 * CLASSES; row++) {
        const int d = row / (2 * CLASSES), causal = row / CLASSES % 2, k = row % CLASSES;
        kf_cuda_tile tile;
        kf_cuda_tune_tile((int32_t)dims[d], c->chosen[d][causal][k], &tile);
        fprintf(out, " \\\n    {%lld, %d, ", (long long)dims[d], causal);
        if (k == CLASSES - 1)
            fprintf(out, "INT64_MAX");
        else
            fprintf(out, "%lld", (long long)classes[k].most);
        fprintf(out, ", %d, %d, %d},", tile.rows, tile.keys, tile.warps);
    }
    fprintf(out, "\n\n#endif\n");
}

static bool tune(bench *b, choices *c) {
    for (int d = 0; d < DIMS; d++) {
        kf_cuda_tile tile;
        while (c->tiles[d] < MOST_TILES && kf_cuda_tune_tile((int32_t)dims[d], c->tiles[d], &tile)) c->tiles[d]++;
        for (int causal = 0; causal < 2; causal++)
            for (int k = CLASSES - 1, usual = -1; k >= 0; k--) {
                measured *m = &c->of[d][causal][k];
                int *chosen = &c->chosen[d][causal][k];
                if (!measure_class(b, &classes[k], dims[d], causal, c->tiles[d], m)) return false;
                *chosen = choose(m, c->tiles[d], usual);
                if (usual < 0) usual = *chosen;
                c->used[d][*chosen] = true;
            }
        for (int t = c->tiles[d] - 1; t >= 0; t--)
            if (c->used[d][t]) leave_out(c, d, t);
    }
    return true;
}

static int tune_device(const char *path, const char *commit) {
    bench b = {NULL};
    choices c = {.tiles = {0}};
    kf_context_options options;
    kf_context_options_init(&options);
    options.device.type = KF_DEVICE_CUDA;
    if (kf_context_create(&options, &b.context) != KF_OK) return kft_error("tune: %s", kf_last_error());
    const bool good = fill(&b) && tune(&b, &c);
    int status = good ? 0 : kft_error("tune: %s", kf_last_error());
    FILE *out = good ? fopen(path, "w") : NULL;
    if (out) write_table(out, &b, &c, commit);
    if (good && (!out || ferror(out))) status = kft_error("tune: %s: %s", path, strerror(errno));
    if (out && fclose(out) != 0) status = kft_error("tune: %s: %s", path, strerror(errno));
    for (int i = 0; i < 4; i++) kf_memory_free(b.context, b.memory[i]);
    kf_memory_free(b.context, b.workspace);
    kf_context_destroy(b.context);
    return status;
}

#endif

static const char HELP[] =
    "Usage: keyfold tune [OPTIONS]\n\n"
    "Times every tile of the CUDA prefill on this machine's device and writes the table that plans choose by.\n"
    "Needs a build that holds them: make tune.\n\n"
    "  --out FILE       the table (default src/cuda/tuned.h)\n"
    "  --commit NAME    what the table says of the source\n";

int kft_tune(int argc, char **argv) {
    const char *path = "src/cuda/tuned.h", *commit = "unknown", *value = NULL;
    for (int i = 1; i < argc; i++) {
        if (kft_flag(argv, i, "--help", "-h")) return fputs(HELP, stdout), 0;
        if (kft_option(argc, argv, &i, "--out", NULL, &value)) {
            if (!value) return kft_usage_error("tune: --out needs a file");
            path = value;
        } else if (kft_option(argc, argv, &i, "--commit", NULL, &value)) {
            if (!value) return kft_usage_error("tune: --commit needs a name");
            commit = value;
        } else {
            return kft_usage_error("tune: unknown option \"%s\"; keyfold tune --help lists them", argv[i]);
        }
    }
#if KF_TUNE
    return tune_device(path, commit);
#else
    return kft_error("tune: this build holds only the tiles of its table, so %s would name no other (commit %s); `make "
                     "tune` builds all",
                     path, commit);
#endif
}
