// SPDX-License-Identifier: Apache-2.0
//
// Rows of bench as a table for people, as a JSON array of objects, or as CSV. Rows appear as they are measured.
#include <stdio.h>
#include <string.h>

#include "bench.h"

// Rates of one run that differ by more than this are named in the row's note: the share then leans on a machine that
// was not steady.
static const double STEADY = 0.10;

static bool unsteady(const bench_row *row) {
    return row->ceiling > 0 && row->ceiling_high - row->ceiling_low > STEADY * row->ceiling;
}

// What must be known beside the numbers; "" where there is nothing.
static void write_note(const bench_row *row, char *text, size_t bytes) {
    text[0] = 0;
    if (row->share > 1) snprintf(text, bytes, "a share above 1 is suspect");
    if (row->warm) snprintf(text + strlen(text), bytes - strlen(text), "%sin the L2 cache", text[0] ? "; " : "");
    if (unsteady(row)) {
        size_t n = strlen(text);
        snprintf(text + n, bytes - n, "%s%s ceiling varied: %.3g to %.3g", n ? "; " : "", row->ceiling_name,
                 row->ceiling_low, row->ceiling_high);
    }
}

static void write_shape(const bench_row *row, const char *separator, char *text, size_t bytes) {
    text[0] = 0;
    for (int i = 0; row->dims[i]; i++) {
        size_t n = strlen(text);
        snprintf(text + n, bytes - n, "%s%lld", i ? separator : "", (long long)row->shape[i]);
    }
}

static int rows_printed;

void bench_print_begin(bench_format format) {
    rows_printed = 0;
    if (format == BENCH_JSON) fputs("[", stdout);
}

// With the first row: a run that fails before it says why, and nothing else.
static void print_head(bench_format format) {
    if (format == BENCH_CSV) {
        puts("op,variant,backend,isa,dtype,shape,causal,threads,runs,time_us,time_us_min,time_us_max,gflops,gbps,"
             "ceiling_name,ceiling,"
             "ceiling_low,ceiling_high,share,asked,tokens_per_s,replay");
    }
    if (format == BENCH_TABLE) {
        printf("%-20s %-5s %-10s %-22s %2s %10s %10s %10s %8s %7s %-8s %8s %6s %6s\n", "op", "dtype", "isa", "shape",
               "T", "us", "min", "max", "GFLOP/s", "GB/s", "ceiling", "is", "share", "asked");
    }
}

static void print_json(const bench_row *row) {
    char note[160];
    write_note(row, note, sizeof note);
    printf("%s\n {\"op\": \"%s\", \"variant\": \"%s\", \"backend\": \"%s\", \"isa\": \"%s\", \"dtype\": \"%s\", "
           "\"shape\": {",
           rows_printed ? "," : "", row->op, row->variant, row->backend, row->isa, row->dtype);
    for (int i = 0; row->dims[i]; i++) printf("%s\"%s\": %lld", i ? ", " : "", row->dims[i], (long long)row->shape[i]);
    printf("}, \"causal\": %s, \"threads\": %d, \"runs\": %d, \"time_us\": %.3f, \"time_us_min\": %.3f, "
           "\"time_us_max\": %.3f, "
           "\"gflops\": %.4g, \"gbps\": %.4g, \"ceiling_name\": \"%s\", \"ceiling\": %.5g, \"ceiling_low\": %.5g, "
           "\"ceiling_high\": %.5g, "
           "\"share\": %.4f",
           row->causal ? "true" : "false", row->threads, row->runs, row->time_us, row->time_us_min, row->time_us_max,
           row->gflops, row->gbps, row->ceiling_name, row->ceiling, row->ceiling_low, row->ceiling_high, row->share);
    if (row->asked > 0) printf(", \"asked\": %.2f", row->asked);
    if (row->tokens_per_s > 0) printf(", \"tokens_per_s\": %.2f", row->tokens_per_s);
    if (row->sets) printf(", \"replay\": %s, \"sets\": %d", row->replay ? "true" : "false", row->sets);
    printf(", \"note\": \"%s\"}", note);
}

static void print_csv(const bench_row *row) {
    char shape[120];
    write_shape(row, "x", shape, sizeof shape);
    printf("%s,\"%s\",%s,%s,%s,%s,%d,%d,%d,%.3f,%.3f,%.3f,%.4g,%.4g,%s,%.5g,%.5g,%.5g,%.4f,", row->op, row->variant,
           row->backend, row->isa, row->dtype, shape, row->causal, row->threads, row->runs, row->time_us,
           row->time_us_min, row->time_us_max, row->gflops, row->gbps, row->ceiling_name, row->ceiling,
           row->ceiling_low, row->ceiling_high, row->share);
    if (row->asked > 0) printf("%.2f", row->asked);
    putchar(',');
    if (row->tokens_per_s > 0) printf("%.2f", row->tokens_per_s);
    printf(",%d\n", row->replay);
}

static void print_table(const bench_row *row) {
    char shape[120], name[60], note[160], asked[16] = "";
    write_shape(row, ",", shape, sizeof shape);
    write_note(row, note, sizeof note);
    snprintf(name, sizeof name, "%s%s%s%s", row->op, row->causal ? " causal" : "", row->variant[0] ? " " : "",
             row->variant);
    if (row->asked > 0) snprintf(asked, sizeof asked, "%.0f %%", 100 * row->asked);
    printf("%-20s %-5s %-10s %-22s %2d %10.1f %10.1f %10.1f %8.4g %7.4g %-8s %8.4g %4.0f %% %6s", name, row->dtype,
           row->isa, shape, row->threads, row->time_us, row->time_us_min, row->time_us_max, row->gflops, row->gbps,
           row->ceiling_name, row->ceiling, 100 * row->share, asked);
    if (row->tokens_per_s > 0) printf("  %.1f tokens/s", row->tokens_per_s);
    if (row->replay) printf("  replay");
    printf("%s%s\n", note[0] ? "  " : "", note);
}

void bench_print_row(bench_format format, const bench_row *row) {
    if (!rows_printed) print_head(format);
    if (format == BENCH_JSON) print_json(row);
    if (format == BENCH_CSV) print_csv(row);
    if (format == BENCH_TABLE) print_table(row);
    rows_printed++;
    fflush(stdout);
}

void bench_print_end(bench_format format) {
    if (format == BENCH_JSON) puts(rows_printed ? "\n]" : "]");
}
