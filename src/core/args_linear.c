// SPDX-License-Identifier: Apache-2.0
//
// Weights, embedding, linear: checks, and the way to a problem.
#include "core/parse.h"

#include <math.h>

// GGUF's block sizes (gguf specification, ggml's type traits).
static const struct weight_type {
    int type;
    const char *name;
    int32_t values, bytes;
} weight_types[] = {
    {KF_WEIGHT_F32, "f32", 1, 4},       {KF_WEIGHT_F16, "f16", 1, 2},       {KF_WEIGHT_BF16, "bf16", 1, 2},
    {KF_WEIGHT_Q4_0, "q4_0", 32, 18},   {KF_WEIGHT_Q4_1, "q4_1", 32, 20},   {KF_WEIGHT_Q5_0, "q5_0", 32, 22},
    {KF_WEIGHT_Q5_1, "q5_1", 32, 24},   {KF_WEIGHT_Q8_0, "q8_0", 32, 34},   {KF_WEIGHT_Q4_K, "q4_k", 256, 144},
    {KF_WEIGHT_Q5_K, "q5_k", 256, 176}, {KF_WEIGHT_Q6_K, "q6_k", 256, 210},
};

static const struct weight_type *find_type(int type) {
    for (size_t i = 0; i < sizeof weight_types / sizeof *weight_types; i++)
        if (weight_types[i].type == type) return &weight_types[i];
    return NULL;
}

const char *kf_weight_type_string(int type) {
    const struct weight_type *found = find_type(type);
    return found ? found->name : "unknown";
}

kf_status kf_weight_block(int type, int32_t *values, int32_t *bytes) {
    const struct weight_type *found = find_type(type);
    if (!found)
        return kf_fail(KF_INVALID_ARGUMENT, "weight: type is %d; it is none of GGUF's that this version knows", type);
    if (!values || !bytes) return kf_fail(KF_INVALID_ARGUMENT, "weight: values or bytes is NULL");
    *values = found->values;
    *bytes = found->bytes;
    return KF_OK;
}

kf_status kf_parse_weight(const char *op, const char *name, const kf_weight *weight, kf_weight *out) {
    if (!weight) return kf_fail(KF_INVALID_ARGUMENT, "%s: %s is NULL; a weight is required", op, name);
    kf_weight w = *weight;
    const struct weight_type *type = find_type(w.type);
    if (!type)
        return kf_fail(KF_UNSUPPORTED, "%s: %s has type %d; it is none of GGUF's that this version knows", op, name,
                       (int)w.type);
    if (w.rows < 0 || w.cols < 0)
        return kf_fail(KF_INVALID_ARGUMENT, "%s: %s has %lld rows and %lld columns; both are 0 or more", op, name,
                       (long long)w.rows, (long long)w.cols);
    if (w.cols % type->values)
        return kf_fail(KF_INVALID_ARGUMENT, "%s: %s has %lld columns; %s needs a multiple of %d", op, name,
                       (long long)w.cols, type->name, type->values);
    if (w.device.type == 0) w.device.type = KF_DEVICE_CPU;
    int64_t compact, total;
    if (__builtin_mul_overflow(w.cols / type->values, (int64_t)type->bytes, &compact) ||
        __builtin_mul_overflow(compact, w.rows ? w.rows : 1, &total) || total > INT64_MAX / 16)
        return kf_fail(KF_INVALID_ARGUMENT, "%s: the sizes of %s multiply to more than 2^63 bytes", op, name);
    if (w.packed) {
        if (w.row_bytes)
            return kf_fail(KF_INVALID_ARGUMENT, "%s: %s is packed and row_bytes is %lld; it must be 0", op, name,
                           (long long)w.row_bytes);
        *out = w;
        return KF_OK;
    }
    if (w.row_bytes == 0) w.row_bytes = compact;
    if (w.row_bytes < compact)
        return kf_fail(KF_INVALID_ARGUMENT, "%s: %s has row_bytes = %lld; a row of %lld columns in %s needs %lld", op,
                       name, (long long)w.row_bytes, (long long)w.cols, type->name, (long long)compact);
    int64_t needed = 0;
    if (w.rows > 0 &&
        (__builtin_mul_overflow(w.rows - 1, w.row_bytes, &needed) || __builtin_add_overflow(needed, compact, &needed)))
        return kf_fail(KF_INVALID_ARGUMENT, "%s: the rows of %s reach past 2^63 bytes", op, name);
    if (w.data && w.bytes < (size_t)needed)
        return kf_fail(KF_INVALID_ARGUMENT, "%s: %s has %zu bytes; %lld rows of %lld columns in %s need %lld", op, name,
                       w.bytes, (long long)w.rows, (long long)w.cols, type->name, (long long)needed);
    *out = w;
    return KF_OK;
}

static kf_status parse_embedding(const void *args, kf_problem *problem) {
    const kf_embedding_args *a = args;
    kf_embedding_problem *p = &problem->embedding;
    KF_TRY(kf_parse_weight("embedding", "table", a->table, &p->table));
    KF_TRY(kf_parse_tensor("embedding", "ids", a->ids, KF_ALLOW_INT, &p->ids));
    KF_TRY(kf_parse_output("embedding", "y", a->y, KF_ALLOW_FLOAT, &p->y));
    KF_TRY(kf_parse_shape("embedding", "ids", &p->ids, 1, (const int64_t[]){-1}));
    p->options.T = p->ids.shape[0];
    p->options.N = p->table.cols;
    KF_TRY(kf_parse_shape("embedding", "y", &p->y, 2, (const int64_t[]){p->options.T, p->options.N}));
    if (p->table.packed)
        return kf_fail(KF_UNSUPPORTED, "embedding: table is packed; give the weight as it was before packing");
    if (!isfinite(a->scale))
        return kf_fail(KF_INVALID_ARGUMENT, "embedding: scale is %g; it must be finite (0: 1)", (double)a->scale);
    if (a->reserved) return kf_fail(KF_INVALID_ARGUMENT, "embedding: reserved is %d; it must be 0", (int)a->reserved);
    p->options.scale = a->scale != 0 ? a->scale : 1;
    return KF_OK;
}

static kf_status parse_linear(const void *args, kf_problem *problem) {
    const kf_linear_args *a = args;
    kf_linear_problem *p = &problem->linear;
    KF_TRY(kf_parse_tensor("linear", "x", a->x, KF_ALLOW_FLOAT, &p->x));
    KF_TRY(kf_parse_weight("linear", "weight", a->weight, &p->weight));
    KF_TRY(kf_parse_optional("linear", "bias", a->bias, KF_ALLOW_FLOAT, &p->bias));
    KF_TRY(kf_parse_output("linear", "y", a->y, KF_ALLOW_FLOAT, &p->y));
    p->options.N = p->weight.rows;
    p->options.K = p->weight.cols;
    KF_TRY(kf_parse_shape("linear", "x", &p->x, 2, (const int64_t[]){-1, p->options.K}));
    p->options.T = p->x.shape[0];
    KF_TRY(kf_parse_shape("linear", "y", &p->y, 2, (const int64_t[]){p->options.T, p->options.N}));
    KF_TRY(kf_parse_shape("linear", "bias", &p->bias, 1, &p->options.N));
    if (a->activations != KF_ACTIVATIONS_EXACT && a->activations != KF_ACTIVATIONS_INT8)
        return kf_fail(KF_INVALID_ARGUMENT, "linear: activations is %d; allowed: 0 (exact), 1 (int8)",
                       (int)a->activations);
    if (a->reserved) return kf_fail(KF_INVALID_ARGUMENT, "linear: reserved is %d; it must be 0", (int)a->reserved);
    p->options.activations = a->activations;
    return KF_OK;
}

static const uint32_t embedding_sizes[] = {sizeof(kf_embedding_args), 0};
static const char *const embedding_views[] = {"ids", "y", NULL};
const kf_op_class kf_embedding_class = {
    .name = "embedding",
    .sizes = embedding_sizes,
    .view_names = embedding_views,
    .options_offset = offsetof(kf_embedding_problem, options),
    .options_size = sizeof((kf_embedding_problem *)0)->options,
    .weight_offset = offsetof(kf_embedding_problem, table),
    .outputs = 1u << 1,
    .parse = parse_embedding,
};

static const uint32_t linear_sizes[] = {sizeof(kf_linear_args), 0};
static const char *const linear_views[] = {"x", "bias", "y", NULL};
const kf_op_class kf_linear_class = {
    .name = "linear",
    .sizes = linear_sizes,
    .view_names = linear_views,
    .options_offset = offsetof(kf_linear_problem, options),
    .options_size = sizeof((kf_linear_problem *)0)->options,
    .weight_offset = offsetof(kf_linear_problem, weight),
    .outputs = 1u << 2,
    .parse = parse_linear,
};

void kf_embedding_args_init(kf_embedding_args *args) { KF_ARGS_INIT(args, KF_OP_EMBEDDING); }
void kf_linear_args_init(kf_linear_args *args) { KF_ARGS_INIT(args, KF_OP_LINEAR); }

kf_status kf_embedding(const kf_context *context, const kf_embedding_args *args) {
    return kf_run_once(context, args ? &args->head : NULL, KF_OP_EMBEDDING);
}
kf_status kf_linear(const kf_context *context, const kf_linear_args *args) {
    return kf_run_once(context, args ? &args->head : NULL, KF_OP_LINEAR);
}

kf_status kf_pack_weight_size(const kf_context *context, const kf_weight *weight, size_t *bytes) {
    kf_weight checked;
    if (!context || !bytes)
        return kf_fail(KF_INVALID_ARGUMENT, "pack_weight_size: %s is NULL", context ? "bytes" : "context");
    KF_TRY(kf_parse_weight("pack_weight_size", "weight", weight, &checked));
    if (checked.packed) return kf_fail(KF_INVALID_ARGUMENT, "pack_weight_size: weight is packed already");
    if (!context->backend->pack_weight_size)
        return kf_fail(KF_UNSUPPORTED, "pack_weight_size: the %s backend packs no weights", context->backend->name);
    return context->backend->pack_weight_size(context, &checked, bytes);
}

kf_status kf_pack_weight(const kf_context *context, const kf_weight *weight, void *destination, size_t bytes,
                         kf_weight *packed) {
    kf_weight checked;
    size_t needed = 0;
    if (!context || !destination || !packed)
        return kf_fail(KF_INVALID_ARGUMENT, "pack_weight: %s is NULL",
                       !context       ? "context"
                       : !destination ? "destination"
                                      : "packed");
    KF_TRY(kf_parse_weight("pack_weight", "weight", weight, &checked));
    KF_TRY(kf_pack_weight_size(context, weight, &needed));
    if (!checked.data && checked.rows && checked.cols)
        return kf_fail(KF_INVALID_ARGUMENT, "pack_weight: weight has no data (NULL)");
    if ((uintptr_t)destination % 64)
        return kf_fail(KF_INVALID_ARGUMENT, "pack_weight: destination is at %p; it must be aligned to 64 bytes",
                       destination);
    if (bytes < needed)
        return kf_fail(KF_INVALID_ARGUMENT, "pack_weight: destination has %zu bytes; %zu are needed", bytes, needed);
    return context->backend->pack_weight(context, &checked, destination, bytes, packed);
}
