// SPDX-License-Identifier: Apache-2.0
//
// softmax, rmsnorm, swiglu, rope, kv_append: checks, and the way to a problem.
#include "core/parse.h"

#include <math.h>

// Rows and row length of a [*, N] view.
static kf_status rows_of(const char *op, const char *name, const kf_view *view, int64_t *rows, int64_t *n) {
    if (view->ndim < 1)
        return kf_fail(KF_INVALID_ARGUMENT, "%s: %s has no dimensions; 1 or more are required", op, name);
    *n = view->shape[view->ndim - 1];
    *rows = 1;
    for (int i = 0; i < view->ndim - 1; i++) *rows *= view->shape[i];
    return KF_OK;
}

kf_status kf_parse_rope(const char *op, const kf_rope_params *in, int64_t D, kf_rope_params *out) {
    kf_rope_params r = *in;
    if (r.pairing != KF_ROPE_NEOX && r.pairing != KF_ROPE_GPTJ)
        return kf_fail(KF_INVALID_ARGUMENT, "%s: rope.pairing is %d; allowed: 1 (NeoX), 2 (GPT-J)", op, (int)r.pairing);
    if (r.dims == 0) r.dims = (int32_t)D;
    if (r.dims < 2 || r.dims % 2 || r.dims > D || r.dims > 256)
        return kf_fail(KF_INVALID_ARGUMENT, "%s: rope.dims is %d; it must be even, 2 to D = %lld and at most 256", op,
                       (int)r.dims, (long long)D);
    if (r.reserved) return kf_fail(KF_INVALID_ARGUMENT, "%s: rope.reserved is %d; it must be 0", op, (int)r.reserved);
    const struct {
        double *value, fallback;
        const char *name;
    } values[] = {{&r.base, 10000, "base"},
                  {&r.low_freq_factor, 1, "low_freq_factor"},
                  {&r.high_freq_factor, 4, "high_freq_factor"},
                  {&r.beta_fast, 32, "beta_fast"},
                  {&r.beta_slow, 1, "beta_slow"}};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        if (*values[i].value == 0) *values[i].value = values[i].fallback;
        if (!(isfinite(*values[i].value) && *values[i].value > 0))
            return kf_fail(KF_INVALID_ARGUMENT, "%s: rope.%s is %g; it must be finite and above 0", op, values[i].name,
                           *values[i].value);
    }
    if (r.scaling < KF_ROPE_SCALING_NONE || r.scaling > KF_ROPE_SCALING_YARN)
        return kf_fail(KF_INVALID_ARGUMENT,
                       "%s: rope.scaling is %d; allowed: 0 (none), 1 (linear), 2 (llama3), 3 (YaRN)", op,
                       (int)r.scaling);
    if (r.scaling != KF_ROPE_SCALING_NONE && !(isfinite(r.factor) && r.factor > 0))
        return kf_fail(KF_INVALID_ARGUMENT, "%s: rope.factor is %g; it must be finite and above 0", op, r.factor);
    if (r.scaling >= KF_ROPE_SCALING_LLAMA3 && !(isfinite(r.original_context) && r.original_context > 0))
        return kf_fail(KF_INVALID_ARGUMENT, "%s: rope.original_context is %g; it must be finite and above 0", op,
                       r.original_context);
    if (r.scaling == KF_ROPE_SCALING_LLAMA3 && r.high_freq_factor <= r.low_freq_factor)
        return kf_fail(KF_INVALID_ARGUMENT, "%s: rope.high_freq_factor is %g; it must be above low_freq_factor = %g",
                       op, r.high_freq_factor, r.low_freq_factor);
    if (!isfinite(r.attention_factor) || r.attention_factor < 0)
        return kf_fail(KF_INVALID_ARGUMENT, "%s: rope.attention_factor is %g; it must be finite and 0 or more", op,
                       r.attention_factor);
    *out = r;
    return KF_OK;
}

static kf_status softmax_parse(const void *args, kf_problem *problem) {
    const kf_softmax_args *a = args;
    kf_softmax_problem *p = &problem->softmax;
    KF_TRY(kf_parse_tensor("softmax", "x", a->x, KF_ALLOW_FLOAT, &p->x));
    KF_TRY(kf_parse_output("softmax", "y", a->y, KF_ALLOW_FLOAT, &p->y));
    if (a->lse) KF_TRY(kf_parse_output("softmax", "lse", a->lse, KF_ALLOW(KF_TYPE_F32), &p->lse));
    KF_TRY(rows_of("softmax", "x", &p->x, &p->options.rows, &p->options.n));
    KF_TRY(kf_parse_shape("softmax", "y", &p->y, p->x.ndim, p->x.shape));
    return kf_parse_shape("softmax", "lse", &p->lse, p->x.ndim - 1, p->x.shape);
}

static kf_status rmsnorm_parse(const void *args, kf_problem *problem) {
    const kf_rmsnorm_args *a = args;
    kf_rmsnorm_problem *p = &problem->rmsnorm;
    KF_TRY(kf_parse_tensor("rmsnorm", "x", a->x, KF_ALLOW_FLOAT, &p->x));
    KF_TRY(kf_parse_optional("rmsnorm", "residual", a->residual, KF_ALLOW_FLOAT, &p->residual));
    KF_TRY(kf_parse_optional("rmsnorm", "weight", a->weight, KF_ALLOW_FLOAT, &p->weight));
    KF_TRY(kf_parse_output("rmsnorm", "y", a->y, KF_ALLOW_FLOAT, &p->y));
    if (a->sum) KF_TRY(kf_parse_output("rmsnorm", "sum", a->sum, KF_ALLOW_FLOAT, &p->sum));
    KF_TRY(rows_of("rmsnorm", "x", &p->x, &p->options.rows, &p->options.n));
    KF_TRY(kf_parse_shape("rmsnorm", "residual", &p->residual, p->x.ndim, p->x.shape));
    KF_TRY(kf_parse_shape("rmsnorm", "weight", &p->weight, 1, &p->options.n));
    KF_TRY(kf_parse_shape("rmsnorm", "y", &p->y, p->x.ndim, p->x.shape));
    KF_TRY(kf_parse_shape("rmsnorm", "sum", &p->sum, p->x.ndim, p->x.shape));
    if (!(isfinite(a->eps) && a->eps >= 0))
        return kf_fail(KF_INVALID_ARGUMENT, "rmsnorm: eps is %g; it must be finite and 0 or more", (double)a->eps);
    if (!isfinite(a->weight_offset))
        return kf_fail(KF_INVALID_ARGUMENT, "rmsnorm: weight_offset is %g; it must be finite",
                       (double)a->weight_offset);
    if (a->cast < KF_CAST_END || a->cast > KF_CAST_LLAMA)
        return kf_fail(KF_INVALID_ARGUMENT, "rmsnorm: cast is %d; allowed: 0 (end), 1 (sum), 2 (llama)", (int)a->cast);
    if (a->reserved) return kf_fail(KF_INVALID_ARGUMENT, "rmsnorm: reserved is %d; it must be 0", (int)a->reserved);
    p->options.eps = a->eps;
    p->options.weight_offset = a->weight_offset;
    p->options.cast = a->cast;
    return KF_OK;
}

static kf_status swiglu_parse(const void *args, kf_problem *problem) {
    const kf_swiglu_args *a = args;
    kf_swiglu_problem *p = &problem->swiglu;
    KF_TRY(kf_parse_output("swiglu", "y", a->y, KF_ALLOW_FLOAT, &p->y));
    KF_TRY(rows_of("swiglu", "y", &p->y, &p->options.rows, &p->options.n));
    int last = p->y.ndim - 1;
    if (a->gate_up) {
        if (a->gate || a->up)
            return kf_fail(KF_INVALID_ARGUMENT,
                           "swiglu: gate_up is given together with gate or up; give one or the other");
        int64_t packed[KF_MAX_NDIM];
        memcpy(packed, p->y.shape, sizeof packed);
        packed[last] *= 2;
        KF_TRY(kf_parse_tensor("swiglu", "gate_up", a->gate_up, KF_ALLOW_FLOAT, &p->gate));
        KF_TRY(kf_parse_shape("swiglu", "gate_up", &p->gate, p->y.ndim, packed));
        p->gate.shape[last] = p->options.n;
        if (p->options.n <= 1) p->gate.stride[last] = 0;
        p->up = p->gate;
        if (p->up.data) p->up.data += p->options.n * kf_type_size(p->up.type);
        return KF_OK;
    }
    KF_TRY(kf_parse_tensor("swiglu", "gate", a->gate, KF_ALLOW_FLOAT, &p->gate));
    KF_TRY(kf_parse_tensor("swiglu", "up", a->up, KF_ALLOW(p->gate.type), &p->up));
    KF_TRY(kf_parse_shape("swiglu", "gate", &p->gate, p->y.ndim, p->y.shape));
    return kf_parse_shape("swiglu", "up", &p->up, p->y.ndim, p->y.shape);
}

static kf_status rope_parse(const void *args, kf_problem *problem) {
    const kf_rope_args *a = args;
    kf_rope_problem *p = &problem->rope;
    KF_TRY(kf_parse_tensor("rope", "x", a->x, KF_ALLOW_FLOAT, &p->x));
    KF_TRY(kf_parse_output("rope", "y", a->y, KF_ALLOW_FLOAT, &p->y));
    KF_TRY(kf_parse_optional("rope", "positions", a->positions, KF_ALLOW_INT, &p->positions));
    KF_TRY(kf_parse_shape("rope", "x", &p->x, 4, (const int64_t[]){-1, -1, -1, -1}));
    KF_TRY(kf_parse_shape("rope", "y", &p->y, 4, p->x.shape));
    p->options.B = p->x.shape[0], p->options.H = p->x.shape[1], p->options.N = p->x.shape[2],
    p->options.D = p->x.shape[3];
    KF_TRY(kf_parse_shape("rope", "positions", &p->positions, 2, (const int64_t[]){p->options.B, p->options.N}));
    if (p->options.D % 2 || p->options.D < 2)
        return kf_fail(KF_INVALID_ARGUMENT, "rope: the head dimension is %lld; it must be even and 2 or more",
                       (long long)p->options.D);
    p->options.position_offset = a->position_offset;
    kf_rope_params rope = a->rope;
    if (rope.dims == 0 && p->options.D > 256)
        return kf_fail(KF_UNSUPPORTED, "rope: rope.dims is 0, meaning D = %lld; at most 256 dimensions are rotated",
                       (long long)p->options.D);
    return kf_parse_rope("rope", &rope, p->options.D, &p->options.rope);
}

static kf_status kv_append_parse(const void *args, kf_problem *problem) {
    const kf_kv_append_args *a = args;
    kf_kv_append_problem *p = &problem->kv_append;
    KF_TRY(kf_parse_tensor("kv_append", "k", a->k, KF_ALLOW_FLOAT, &p->k));
    KF_TRY(kf_parse_tensor("kv_append", "v", a->v, KF_ALLOW_FLOAT, &p->v));
    KF_TRY(kf_parse_output("kv_append", "k_cache", a->k_cache, KF_ALLOW_FLOAT, &p->k_cache));
    KF_TRY(kf_parse_output("kv_append", "v_cache", a->v_cache, KF_ALLOW_FLOAT, &p->v_cache));
    KF_TRY(kf_parse_optional("kv_append", "slots", a->slots, KF_ALLOW_INT, &p->slots));
    KF_TRY(kf_parse_optional("kv_append", "positions", a->positions, KF_ALLOW_INT, &p->positions));
    KF_TRY(kf_parse_shape("kv_append", "k", &p->k, 4, (const int64_t[]){-1, -1, -1, -1}));
    int64_t B = p->k.shape[0], H = p->k.shape[1], N = p->k.shape[2], D = p->k.shape[3];
    KF_TRY(kf_parse_shape("kv_append", "v", &p->v, 4, (const int64_t[]){B, H, N, -1}));
    KF_TRY(kf_parse_shape("kv_append", "k_cache", &p->k_cache, 4, (const int64_t[]){B, H, -1, D}));
    int64_t Dv = p->v.shape[3], capacity = p->k_cache.shape[2];
    KF_TRY(kf_parse_shape("kv_append", "v_cache", &p->v_cache, 4, (const int64_t[]){B, H, capacity, Dv}));
    KF_TRY(kf_parse_shape("kv_append", "slots", &p->slots, 1, &B));
    KF_TRY(kf_parse_shape("kv_append", "positions", &p->positions, 2, (const int64_t[]){B, N}));
    p->options.B = B, p->options.H = H, p->options.N = N, p->options.D = D, p->options.Dv = Dv,
    p->options.capacity = capacity;
    if (a->rope.pairing == KF_ROPE_OFF) return KF_OK;
    return kf_parse_rope("kv_append", &a->rope, D, &p->options.rope);
}

#define KF_CLASS(op, kind, written, aliases)                                                                           \
    const kf_op_class kf_##op##_class = {                                                                              \
        .name = #op,                                                                                                   \
        .sizes = (const uint32_t[]){sizeof(kf_##op##_args), 0},                                                        \
        .view_names = op##_views,                                                                                      \
        .options_offset = offsetof(kf_##op##_problem, options),                                                        \
        .options_size = sizeof((kf_##op##_problem *)0)->options,                                                       \
        .outputs = (written),                                                                                          \
        .may_alias = (aliases),                                                                                        \
        .parse = op##_parse,                                                                                           \
    };                                                                                                                 \
    void kf_##op##_args_init(kf_##op##_args *args) { op##_init(args); }                                                \
    kf_status kf_##op(const kf_context *context, const kf_##op##_args *args) {                                         \
        return kf_run_once(context, args ? &args->head : NULL, kind);                                                  \
    }

static const char *const softmax_views[] = {"x", "y", "lse", NULL};
static const char *const rmsnorm_views[] = {"x", "residual", "weight", "y", "sum", NULL};
static const char *const swiglu_views[] = {"gate", "up", "y", NULL};
static const char *const rope_views[] = {"x", "y", "positions", NULL};
static const char *const kv_append_views[] = {"k", "v", "k_cache", "v_cache", "slots", "positions", NULL};

static void softmax_init(kf_softmax_args *args) { KF_ARGS_INIT(args, KF_OP_SOFTMAX); }
static void swiglu_init(kf_swiglu_args *args) { KF_ARGS_INIT(args, KF_OP_SWIGLU); }
static void kv_append_init(kf_kv_append_args *args) { KF_ARGS_INIT(args, KF_OP_KV_APPEND); }
static void rmsnorm_init(kf_rmsnorm_args *args) {
    KF_ARGS_INIT(args, KF_OP_RMSNORM);
    args->eps = 1e-5f;
}
static void rope_init(kf_rope_args *args) {
    KF_ARGS_INIT(args, KF_OP_ROPE);
    args->rope.pairing = KF_ROPE_NEOX;
}

KF_CLASS(softmax, KF_OP_SOFTMAX, 1u << 1 | 1u << 2, 1u << 1)
KF_CLASS(rmsnorm, KF_OP_RMSNORM, 1u << 3 | 1u << 4, 1u << 3 | 1u << 4)
KF_CLASS(swiglu, KF_OP_SWIGLU, 1u << 2, 1u << 2)
KF_CLASS(rope, KF_OP_ROPE, 1u << 1, 1u << 1)
KF_CLASS(kv_append, KF_OP_KV_APPEND, 1u << 2 | 1u << 3, 0)
