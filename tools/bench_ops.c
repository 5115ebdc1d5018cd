// SPDX-License-Identifier: Apache-2.0
//
// The operations that bench knows: for each its shape, the bytes and operations that it must spend, and a set of random
// tensors.
//
// Bytes are those of every tensor once. Flops are useful ones: attention counts 2 (D + Dv) for each visible pair of
// query and key, a linear layer 2 T N K; the row operations are bound by memory alone and count the arithmetic of their
// formula.
#include <string.h>

#include "bench.h"

// ---- random ----
// data

static uint64_t random_word(uint64_t *state) {
    // splitmix64 (Steele, Lea, Flood 2014)
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

// Random sign and mantissa, magnitudes in [1/4, 1/2) or [1, 2): made as bits, for each format alike.
static void fill_floats(char *data, size_t bytes, kf_dtype dtype, uint64_t *state) {
    uint64_t keep = 0x83FF83FF83FF83FFu | 0x0800080008000800u, base = 0x3400340034003400u; // fp16
    if (dtype.code == KF_CODE_BFLOAT) keep = 0x807F807F807F807Fu | 0x0100010001000100u, base = 0x3E803E803E803E80u;
    if (dtype.bits == 32) keep = 0x807FFFFF807FFFFFu | 0x0100000001000000u, base = 0x3E8000003E800000u;
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = (random_word(state) & keep) | base;
        memcpy(data + i, &word, bytes - i < 8 ? bytes - i : 8);
    }
}

// Blocks of random quants whose fp16 scales are small and finite.
static void fill_blocks(char *data, size_t bytes, int type, int32_t block_bytes, uint64_t *state) {
    enum { FP16_SCALE = 0x211F }; // 0.01
    uint16_t scale = FP16_SCALE;
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = random_word(state);
        memcpy(data + i, &word, bytes - i < 8 ? bytes - i : 8);
    }
    bool two = type == KF_WEIGHT_Q4_1 || type == KF_WEIGHT_Q5_1 || type == KF_WEIGHT_Q4_K || type == KF_WEIGHT_Q5_K;
    size_t at = type == KF_WEIGHT_Q6_K ? (size_t)block_bytes - 2 : 0;
    for (size_t block = 0; block < bytes; block += (size_t)block_bytes) {
        memcpy(data + block + at, &scale, 2);
        if (two) memcpy(data + block + 2, &scale, 2);
    }
}

// ---- sets ----

static kf_dtype dtype_of(const char *name) {
    kf_dtype fp32 = KF_FP32, fp16 = KF_FP16, bf16 = KF_BF16;
    return strcmp(name, "fp16") == 0 ? fp16 : strcmp(name, "bf16") == 0 ? bf16 : fp32;
}

static double dtype_size(const char *name) { return dtype_of(name).bits / 8; }

// The next `bytes` of the set's memory, at a multiple of 64; NULL while counting.
static char *take(bench_set *set, size_t bytes) {
    char *at = set->memory ? set->memory + set->used : NULL;
    set->used += (bytes + 63) / 64 * 64;
    return at;
}

// Tensor `index` of the set, compact, filled.
static const kf_tensor *add(bench_set *set, int index, kf_dtype dtype, int ndim, const int64_t *shape) {
    size_t bytes = dtype.bits / 8;
    for (int i = 0; i < ndim; i++) {
        set->shape[index][i] = shape[i];
        bytes *= (size_t)shape[i];
    }
    char *data = take(set, bytes);
    if (data) fill_floats(data, bytes, dtype, &set->random);
    set->tensor[index] = kf_tensor_cpu(data, dtype, ndim, set->shape[index]);
    return &set->tensor[index];
}

#define ADD(set, index, dtype, ...)                                                                                    \
    add(set, index, dtype, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]){__VA_ARGS__})

// ---- attention ----

enum { ATT_B, ATT_H, ATT_HKV, ATT_NQ, ATT_NK, ATT_D };

static bench_work attention_work(const bench_case *c, int32_t isa) {
    double B = (double)c->shape[ATT_B], H = (double)c->shape[ATT_H], Hkv = (double)c->shape[ATT_HKV],
           D = (double)c->shape[ATT_D];
    // Causal: row i sees i + 1 + Nk - Nq keys, where that is positive; an arithmetic series over the rows that see any.
    double Nq = (double)c->shape[ATT_NQ], Nk = (double)c->shape[ATT_NK], seeing = Nq < Nk ? Nq : Nk;
    double pairs = c->causal ? seeing * (Nk + (Nk - seeing + 1)) / 2 : Nq * Nk;
    double rows = B * H * (double)c->shape[ATT_NQ], keys = B * Hkv * (double)c->shape[ATT_NK];
    bool bf16 = strcmp(c->dtype, "bf16") == 0 && isa >= KF_ISA_AVX512BF16;
    return (bench_work){.bytes = (2 * rows + 2 * keys) * D * dtype_size(c->dtype),
                        .flops = B * H * pairs * 4 * D,
                        .memory = KFT_CEILING_READ,
                        .compute = bf16 ? KFT_CEILING_BF16_DOT : KFT_CEILING_FMA};
}

static kf_status attention_make(const bench_case *c, const kf_context *context, bench_set *set) {
    (void)context;
    kf_dtype dtype = dtype_of(c->dtype);
    const int64_t *s = c->shape;
    kf_attention_args *args = &set->args.attention;
    kf_attention_args_init(args);
    args->q = ADD(set, 0, dtype, s[ATT_B], s[ATT_H], s[ATT_NQ], s[ATT_D]);
    args->k = ADD(set, 1, dtype, s[ATT_B], s[ATT_HKV], s[ATT_NK], s[ATT_D]);
    args->v = ADD(set, 2, dtype, s[ATT_B], s[ATT_HKV], s[ATT_NK], s[ATT_D]);
    args->o = ADD(set, 3, dtype, s[ATT_B], s[ATT_H], s[ATT_NQ], s[ATT_D]);
    if (c->causal) args->flags |= KF_ATTENTION_CAUSAL;
    if (c->rope) {
        args->flags |= KF_ATTENTION_ROPE_Q | KF_ATTENTION_ROPE_K;
        args->rope.pairing = KF_ROPE_NEOX;
    }
    return KF_OK;
}

// ---- row ----
// operations

// Each reads and writes `streams` tensors of rows x cols.
static bench_work rows_work(const bench_case *c, double streams, double flops) {
    double elements = (double)c->shape[0] * (double)c->shape[1];
    return (bench_work){elements * streams * dtype_size(c->dtype), elements * flops, KFT_CEILING_COPY,
                        KFT_CEILING_COUNT, 0};
}

// max, subtraction, exponential, sum, product
static bench_work softmax_work(const bench_case *c, int32_t isa) {
    (void)isa;
    return rows_work(c, 2, 5);
}

static kf_status softmax_make(const bench_case *c, const kf_context *context, bench_set *set) {
    (void)context;
    kf_softmax_args_init(&set->args.softmax);
    set->args.softmax.x = ADD(set, 0, dtype_of(c->dtype), c->shape[0], c->shape[1]);
    set->args.softmax.y = ADD(set, 1, dtype_of(c->dtype), c->shape[0], c->shape[1]);
    return KF_OK;
}

// square, sum, two products; the residual's addition. With a residual x and it are read, y and their sum written.
static bench_work rmsnorm_work(const bench_case *c, int32_t isa) {
    (void)isa;
    return c->plain ? rows_work(c, 2, 4) : rows_work(c, 4, 5);
}

static kf_status rmsnorm_make(const bench_case *c, const kf_context *context, bench_set *set) {
    (void)context;
    kf_dtype dtype = dtype_of(c->dtype);
    kf_rmsnorm_args *args = &set->args.rmsnorm;
    kf_rmsnorm_args_init(args);
    args->x = ADD(set, 0, dtype, c->shape[0], c->shape[1]);
    args->weight = ADD(set, 1, dtype, c->shape[1]);
    args->y = ADD(set, 2, dtype, c->shape[0], c->shape[1]);
    if (!c->plain) {
        args->residual = ADD(set, 3, dtype, c->shape[0], c->shape[1]);
        args->sum = ADD(set, 4, dtype, c->shape[0], c->shape[1]);
    }
    return KF_OK;
}

// negation, exponential, addition, division, product
static bench_work swiglu_work(const bench_case *c, int32_t isa) {
    (void)isa;
    bench_work work = rows_work(c, 3, 5);
    work.reads = 2;
    return work;
}

static kf_status swiglu_make(const bench_case *c, const kf_context *context, bench_set *set) {
    (void)context;
    kf_dtype dtype = dtype_of(c->dtype);
    kf_swiglu_args_init(&set->args.swiglu);
    set->args.swiglu.gate = ADD(set, 0, dtype, c->shape[0], c->shape[1]);
    set->args.swiglu.up = ADD(set, 1, dtype, c->shape[0], c->shape[1]);
    set->args.swiglu.y = ADD(set, 2, dtype, c->shape[0], c->shape[1]);
    return KF_OK;
}

// Four products and two additions a pair; the angles are made once a position.
static bench_work rope_work(const bench_case *c, int32_t isa) {
    (void)isa;
    double elements = (double)c->shape[0] * (double)c->shape[1] * (double)c->shape[2] * (double)c->shape[3];
    return (bench_work){elements * 2 * dtype_size(c->dtype), elements * 3, KFT_CEILING_COPY, KFT_CEILING_COUNT, 0};
}

static kf_status rope_make(const bench_case *c, const kf_context *context, bench_set *set) {
    (void)context;
    const int64_t *s = c->shape;
    kf_rope_args_init(&set->args.rope);
    set->args.rope.x = ADD(set, 0, dtype_of(c->dtype), s[0], s[1], s[2], s[3]);
    set->args.rope.y = ADD(set, 1, dtype_of(c->dtype), s[0], s[1], s[2], s[3]);
    set->args.rope.rope.pairing = KF_ROPE_NEOX;
    return KF_OK;
}

// k and v read and written once; k is rotated as rope's rows are.
static bench_work kv_append_work(const bench_case *c, int32_t isa) {
    (void)isa;
    double elements = (double)c->shape[0] * (double)c->shape[1] * (double)c->shape[2] * (double)c->shape[3];
    return (bench_work){elements * 4 * dtype_size(c->dtype), elements * 3, KFT_CEILING_COPY, KFT_CEILING_COUNT, 0};
}

// Into a cache as long as the rows that come.
static kf_status kv_append_make(const bench_case *c, const kf_context *context, bench_set *set) {
    (void)context;
    const kf_dtype dtype = dtype_of(c->dtype);
    const int64_t *s = c->shape;
    kf_kv_append_args *args = &set->args.kv_append;
    kf_kv_append_args_init(args);
    args->k = ADD(set, 0, dtype, s[0], s[1], s[2], s[3]);
    args->v = ADD(set, 1, dtype, s[0], s[1], s[2], s[3]);
    args->k_cache = ADD(set, 2, dtype, s[0], s[1], s[2], s[3]);
    args->v_cache = ADD(set, 3, dtype, s[0], s[1], s[2], s[3]);
    args->rope.pairing = KF_ROPE_NEOX;
    return KF_OK;
}

// One product and one addition for each element of each part.
static bench_work merge_work(const bench_case *c, int32_t isa) {
    (void)isa;
    double parts = (double)c->shape[0], rows = (double)c->shape[1], n = (double)c->shape[2];
    double size = dtype_size(c->dtype);
    return (bench_work){rows * (parts * (n * size + 4) + n * size), rows * parts * n * 2, KFT_CEILING_READ,
                        KFT_CEILING_COUNT, 0};
}

static kf_status merge_make(const bench_case *c, const kf_context *context, bench_set *set) {
    (void)context;
    kf_dtype dtype = dtype_of(c->dtype), fp32 = KF_FP32;
    kf_merge_states_args_init(&set->args.merge);
    set->args.merge.o_parts = ADD(set, 0, dtype, c->shape[0], c->shape[1], c->shape[2]);
    set->args.merge.lse_parts = ADD(set, 1, fp32, c->shape[0], c->shape[1]);
    set->args.merge.o = ADD(set, 2, dtype, c->shape[1], c->shape[2]);
    return KF_OK;
}

// ---- linear ----

enum { LIN_T, LIN_N, LIN_K };

static int weight_type(const char *dtype) {
    // Dense types by the names that the other operations have for them.
    if (strcmp(dtype, "fp32") == 0) return KF_WEIGHT_F32;
    if (strcmp(dtype, "fp16") == 0) return KF_WEIGHT_F16;
    static const int types[] = {KF_WEIGHT_BF16, KF_WEIGHT_Q4_0, KF_WEIGHT_Q4_1, KF_WEIGHT_Q5_0, KF_WEIGHT_Q5_1,
                                KF_WEIGHT_Q8_0, KF_WEIGHT_Q4_K, KF_WEIGHT_Q5_K, KF_WEIGHT_Q6_K};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(dtype, kf_weight_type_string(types[i])) == 0) return types[i];
    }
    return -1;
}

static bool is_dense(int type) { return type == KF_WEIGHT_F32 || type == KF_WEIGHT_F16 || type == KF_WEIGHT_BF16; }

// x and y have the weight's dtype where it is a dense one; beside blocks what models have: fp32 on the CPU, bf16 on CUDA.
static kf_dtype activation_dtype(const bench_case *c) {
    const kf_dtype fp32 = KF_FP32, bf16 = KF_BF16;
    return is_dense(weight_type(c->dtype)) ? dtype_of(c->dtype) : c->cuda ? bf16 : fp32;
}

static size_t weight_bytes(const bench_case *c) {
    int32_t values = 1, bytes = 0;
    kf_weight_block(weight_type(c->dtype), &values, &bytes);
    return (size_t)c->shape[LIN_N] * ((size_t)c->shape[LIN_K] / (size_t)values) * (size_t)bytes;
}

static bench_work linear_work(const bench_case *c, int32_t isa) {
    double T = (double)c->shape[LIN_T], N = (double)c->shape[LIN_N], K = (double)c->shape[LIN_K];
    int type = weight_type(c->dtype);
    kft_ceiling compute = KFT_CEILING_FMA;
    if (type == KF_WEIGHT_BF16 && isa >= KF_ISA_AVX512BF16) compute = KFT_CEILING_BF16_DOT;
    if (!is_dense(type) && c->int8 && isa >= KF_ISA_AVX2) compute = KFT_CEILING_INT8_DOT;
    return (bench_work){.bytes = (double)weight_bytes(c) + T * (K + N) * activation_dtype(c).bits / 8,
                        .flops = 2 * T * N * K,
                        .memory = KFT_CEILING_READ,
                        .compute = compute};
}

static kf_status linear_make(const bench_case *c, const kf_context *context, bench_set *set) {
    kf_dtype x_dtype = activation_dtype(c);
    kf_linear_args *args = &set->args.linear;
    kf_linear_args_init(args);
    args->x = ADD(set, 0, x_dtype, c->shape[LIN_T], c->shape[LIN_K]);
    args->y = ADD(set, 1, x_dtype, c->shape[LIN_T], c->shape[LIN_N]);
    args->activations = c->int8 ? KF_ACTIVATIONS_INT8 : KF_ACTIVATIONS_EXACT;
    kf_weight *weight = &set->weight;
    *weight = (kf_weight){
        .type = weight_type(c->dtype), .rows = c->shape[LIN_N], .cols = c->shape[LIN_K], .bytes = weight_bytes(c)};
    int32_t values, block_bytes;
    kf_status status = kf_weight_block(weight->type, &values, &block_bytes);
    char *data = take(set, weight->bytes);
    weight->data = data;
    if (data && is_dense(weight->type)) {
        fill_floats(data, weight->bytes, x_dtype, &set->random);
    } else if (data) {
        fill_blocks(data, weight->bytes, weight->type, block_bytes, &set->random);
    }
    if (status == KF_OK && !c->plain) {
        size_t bytes = 0;
        status = kf_pack_weight_size(context, weight, &bytes);
        if (status != KF_OK) return status;
        char *packed = take(set, bytes);
        if (packed) status = kf_pack_weight(context, weight, packed, bytes, weight);
    }
    args->weight = weight;
    return status;
}

// ---- embedding ----

enum { EMB_T, EMB_V, EMB_N };

// Each id's row is read and written; the ids themselves are few bytes.
static bench_work embedding_work(const bench_case *c, int32_t isa) {
    (void)isa;
    const double elements = (double)c->shape[EMB_T] * (double)c->shape[EMB_N];
    return (bench_work){elements * 2 * dtype_size(c->dtype) + 4 * (double)c->shape[EMB_T], elements, KFT_CEILING_COPY,
                        KFT_CEILING_COUNT, 0};
}

// Ids all over the table, most of them once.
static kf_status embedding_make(const bench_case *c, const kf_context *context, bench_set *set) {
    (void)context;
    static const int64_t STRIDE = 7919; // a prime
    const kf_dtype dtype = dtype_of(c->dtype), int32 = KF_INT32;
    const int64_t T = c->shape[EMB_T], V = c->shape[EMB_V], N = c->shape[EMB_N];
    kf_embedding_args *args = &set->args.embedding;
    kf_embedding_args_init(args);
    args->ids = ADD(set, 0, int32, T);
    args->y = ADD(set, 1, dtype, T, N);
    int32_t *ids = set->tensor[0].data;
    for (int64_t t = 0; ids && t < T; t++) ids[t] = (int32_t)(t * STRIDE % V);
    kf_weight *table = &set->weight;
    *table =
        (kf_weight){.type = weight_type(c->dtype), .rows = V, .cols = N, .bytes = (size_t)(V * N) * dtype.bits / 8};
    char *data = take(set, table->bytes);
    table->data = data;
    if (data) fill_floats(data, table->bytes, dtype, &set->random);
    args->table = table;
    return KF_OK;
}

// ---- table ----

static const bench_op ops[] = {
    {"attention", {"B", "H", "Hkv", "Nq", "Nk", "D"}, {1, 8, 8, 2048, 2048, 64}, attention_work, attention_make},
    {"softmax", {"rows", "cols"}, {4096, 4096}, softmax_work, softmax_make},
    {"rmsnorm", {"rows", "cols"}, {4096, 4096}, rmsnorm_work, rmsnorm_make},
    {"swiglu", {"rows", "cols"}, {4096, 4096}, swiglu_work, swiglu_make},
    {"rope", {"B", "H", "N", "D"}, {1, 32, 4096, 128}, rope_work, rope_make},
    {"kv_append", {"B", "Hkv", "N", "D"}, {1, 32, 4096, 128}, kv_append_work, kv_append_make},
    {"embedding", {"T", "V", "N"}, {4096, 32000, 2048}, embedding_work, embedding_make},
    {"linear", {"T", "N", "K"}, {1, 4096, 4096}, linear_work, linear_make},
    {"merge", {"parts", "rows", "cols"}, {8, 16384, 128}, merge_work, merge_make},
};
enum { OPS = sizeof ops / sizeof ops[0] };

const bench_op *bench_op_find(const char *name) {
    for (int i = 0; i < OPS; i++) {
        if (strcmp(name, ops[i].name) == 0) return &ops[i];
    }
    return NULL;
}

const char *bench_op_names(void) {
    return "attention, softmax, rmsnorm, swiglu, rope, kv_append, embedding, linear, merge";
}

int bench_op_dims(const bench_op *op) {
    int n = 0;
    while (op->dims[n]) n++;
    return n;
}

bool bench_dtype_known(const bench_op *op, const char *dtype) {
    if (op->make == linear_make) return weight_type(dtype) >= 0;
    return strcmp(dtype, "fp32") == 0 || strcmp(dtype, "fp16") == 0 || strcmp(dtype, "bf16") == 0;
}
