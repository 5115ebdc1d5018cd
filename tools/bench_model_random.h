// SPDX-License-Identifier: Apache-2.0
//
// A model of a known shape with random weights, as a GGUF file in memory: what a step costs depends on the shape alone, and the files
// of the larger models are not everywhere.
#ifndef KF_TOOLS_BENCH_MODEL_RANDOM_H
#define KF_TOOLS_BENCH_MODEL_RANDOM_H

#include <stddef.h>
#include <stdint.h>

typedef struct bench_model_shape {
    const char *name;
    int64_t layers, width, hidden, heads, kv_heads, head_dim, vocabulary;
    int tied; // not 0: the logits' weights are the embedding's table
    float rope_base;
} bench_model_shape;

// NULL: there is no such name. bench_model_shape_names: all of them, in one line.
const bench_model_shape *bench_model_shape_find(const char *name);
const char *bench_model_shape_names(void);

// The file, with bf16 matrices; NULL where memory is short. free() gives it back.
void *bench_model_random(const bench_model_shape *shape, int64_t context, size_t *bytes);

#endif
