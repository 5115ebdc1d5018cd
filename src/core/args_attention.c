// SPDX-License-Identifier: Apache-2.0
//
// kf_attention_args and kf_merge_states_args: checks, and the way to a problem.
#include "core/parse.h"

#include <math.h>
#include <string.h>

static kf_status parse_later_places(const kf_attention_args *a) {
    const struct {
        const kf_tensor *tensor;
        const char *name;
    } later[] = {{a->query_offsets, "query_offsets"},
                 {a->key_offsets, "key_offsets"},
                 {a->page_table, "page_table"},
                 {a->k_scale, "k_scale"},
                 {a->v_scale, "v_scale"}};
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        if (later[i].tensor)
            return kf_fail(KF_UNSUPPORTED, "attention: %s is given; this version does not know it", later[i].name);
    uint32_t known = KF_ATTENTION_CAUSAL | KF_ATTENTION_WINDOW_LEFT | KF_ATTENTION_WINDOW_RIGHT | KF_ATTENTION_ROPE_Q |
                     KF_ATTENTION_ROPE_K;
    if (a->flags & ~known)
        return kf_fail(KF_UNSUPPORTED, "attention: flags is 0x%x; bits 0x%x are not known", a->flags,
                       a->flags & ~known);
    if (a->reserved) return kf_fail(KF_INVALID_ARGUMENT, "attention: reserved is %u; it must be 0", a->reserved);
    return KF_OK;
}

static kf_status parse_head_dim(const char *name, int64_t D) {
    if (D >= 8 && D <= 256 && D % 8 == 0) return KF_OK;
    return kf_fail(KF_UNSUPPORTED,
                   "attention: the head dimension of %s is %lld; multiples of 8 from 8 to 256 are supported", name,
                   (long long)D);
}

// Sizes: from q, k, v to B, H, Hkv, Nq, Nk, D, Dv.
static kf_status parse_sizes(kf_attention_problem *p) {
    struct kf_attention_options *n = &p->options;
    KF_TRY(kf_parse_shape("attention", "q", &p->q, 4, (const int64_t[]){-1, -1, -1, -1}));
    n->B = p->q.shape[0], n->H = p->q.shape[1], n->Nq = p->q.shape[2], n->D = p->q.shape[3];
    KF_TRY(kf_parse_shape("attention", "k", &p->k, 4, (const int64_t[]){n->B, -1, -1, n->D}));
    n->Hkv = p->k.shape[1], n->Nk = p->k.shape[2];
    KF_TRY(kf_parse_shape("attention", "v", &p->v, 4, (const int64_t[]){n->B, n->Hkv, n->Nk, -1}));
    n->Dv = p->v.shape[3];
    KF_TRY(parse_head_dim("q and k", n->D));
    KF_TRY(parse_head_dim("v", n->Dv));
    if (n->Hkv == 0 ? n->H != 0 : n->H % n->Hkv != 0)
        return kf_fail(KF_INVALID_ARGUMENT,
                       "attention: H = %lld query heads are not a multiple of Hkv = %lld key and value heads",
                       (long long)n->H, (long long)n->Hkv);
    if (p->v.type != p->k.type)
        return kf_fail(KF_INVALID_ARGUMENT, "attention: v is %s and k is %s; they must be the same",
                       kf_type_name(p->v.type), kf_type_name(p->k.type));
    if (p->o.type != p->q.type && p->o.type != KF_TYPE_F32)
        return kf_fail(KF_INVALID_ARGUMENT, "attention: o is %s; allowed: q's %s, or fp32", kf_type_name(p->o.type),
                       kf_type_name(p->q.type));
    return KF_OK;
}

// A [B or 1, H or 1, Nq or 1, Nk] tensor becomes [B, H, Nq, Nk] with strides of 0.
static kf_status parse_broadcast(const char *name, kf_view *view, const int64_t shape[4]) {
    if (!kf_present(view)) return KF_OK;
    int64_t expected[4];
    for (int i = 0; i < 4; i++) expected[i] = i < 3 && view->ndim == 4 && view->shape[i] == 1 ? 1 : shape[i];
    KF_TRY(kf_parse_shape("attention", name, view, 4, expected));
    memcpy(view->shape, shape, sizeof expected);
    return KF_OK;
}

static kf_status parse_shapes(kf_attention_problem *p) {
    const struct kf_attention_options *n = &p->options;
    const int64_t scores[4] = {n->B, n->H, n->Nq, n->Nk};
    KF_TRY(kf_parse_shape("attention", "o", &p->o, 4, (const int64_t[]){n->B, n->H, n->Nq, n->Dv}));
    KF_TRY(kf_parse_shape("attention", "lse", &p->lse, 3, scores));
    KF_TRY(kf_parse_shape("attention", "key_lengths", &p->key_lengths, 1, &n->B));
    KF_TRY(kf_parse_shape("attention", "positions", &p->positions, 2, (const int64_t[]){n->B, n->Nq}));
    KF_TRY(kf_parse_shape("attention", "alibi_slopes", &p->alibi_slopes, 1, &n->H));
    KF_TRY(kf_parse_shape("attention", "sinks", &p->sinks, 1, &n->H));
    KF_TRY(parse_broadcast("bias", &p->bias, scores));
    return parse_broadcast("mask", &p->mask, scores);
}

static kf_status parse_window(const kf_attention_args *a, struct kf_attention_options *n) {
    n->window_left = n->window_right = INT64_MAX;
    if (a->flags & KF_ATTENTION_WINDOW_LEFT) n->window_left = a->window_left;
    if (a->flags & KF_ATTENTION_WINDOW_RIGHT) n->window_right = a->window_right;
    if (n->window_left < 0)
        return kf_fail(KF_INVALID_ARGUMENT, "attention: window_left is %lld; it must be 0 or more",
                       (long long)n->window_left);
    if (n->window_right < 0)
        return kf_fail(KF_INVALID_ARGUMENT, "attention: window_right is %lld; it must be 0 or more",
                       (long long)n->window_right);
    if (a->flags & KF_ATTENTION_CAUSAL) n->window_right = 0;
    return KF_OK;
}

static kf_status parse_scores(const kf_attention_args *a, struct kf_attention_options *n) {
    if (!isfinite(a->scale))
        return kf_fail(KF_INVALID_ARGUMENT, "attention: scale is %g; it must be finite (0: 1 / sqrt(D))",
                       (double)a->scale);
    if (!isfinite(a->softcap) || a->softcap < 0)
        return kf_fail(KF_INVALID_ARGUMENT, "attention: softcap is %g; it must be finite and 0 (off) or more",
                       (double)a->softcap);
    n->scale = a->scale != 0 ? a->scale : (float)(1 / sqrt((double)n->D));
    n->softcap = a->softcap;
    n->rope_q = (a->flags & KF_ATTENTION_ROPE_Q) != 0;
    n->rope_k = (a->flags & KF_ATTENTION_ROPE_K) != 0;
    if (!n->rope_q && !n->rope_k) return KF_OK;
    if (a->rope.pairing == KF_ROPE_OFF)
        return kf_fail(KF_INVALID_ARGUMENT,
                       "attention: a ROPE flag is set and rope.pairing is 0; it must be 1 (NeoX) or 2 (GPT-J)");
    return kf_parse_rope("attention", &a->rope, n->D, &n->rope);
}

static kf_status parse_attention(const void *args, kf_problem *problem) {
    const kf_attention_args *a = args;
    kf_attention_problem *p = &problem->attention;
    KF_TRY(parse_later_places(a));
    KF_TRY(kf_parse_tensor("attention", "q", a->q, KF_ALLOW_FLOAT, &p->q));
    KF_TRY(kf_parse_tensor("attention", "k", a->k, KF_ALLOW_FLOAT, &p->k));
    KF_TRY(kf_parse_tensor("attention", "v", a->v, KF_ALLOW_FLOAT, &p->v));
    KF_TRY(kf_parse_output("attention", "o", a->o, KF_ALLOW_FLOAT, &p->o));
    if (a->lse) KF_TRY(kf_parse_output("attention", "lse", a->lse, KF_ALLOW(KF_TYPE_F32), &p->lse));
    KF_TRY(kf_parse_optional("attention", "key_lengths", a->key_lengths, KF_ALLOW_INT, &p->key_lengths));
    KF_TRY(kf_parse_optional("attention", "positions", a->positions, KF_ALLOW_INT, &p->positions));
    KF_TRY(kf_parse_optional("attention", "alibi_slopes", a->alibi_slopes, KF_ALLOW(KF_TYPE_F32), &p->alibi_slopes));
    KF_TRY(kf_parse_optional("attention", "sinks", a->sinks, KF_ALLOW(KF_TYPE_F32), &p->sinks));
    KF_TRY(kf_parse_optional("attention", "bias", a->bias, KF_ALLOW_FLOAT, &p->bias));
    KF_TRY(kf_parse_optional("attention", "mask", a->mask, KF_ALLOW(KF_TYPE_BOOL), &p->mask));
    KF_TRY(parse_sizes(p));
    KF_TRY(parse_shapes(p));
    KF_TRY(parse_window(a, &p->options));
    return parse_scores(a, &p->options);
}

static kf_status parse_merge_states(const void *args, kf_problem *problem) {
    const kf_merge_states_args *a = args;
    kf_merge_states_problem *p = &problem->merge_states;
    KF_TRY(kf_parse_tensor("merge_states", "o_parts", a->o_parts, KF_ALLOW_FLOAT, &p->o_parts));
    KF_TRY(kf_parse_tensor("merge_states", "lse_parts", a->lse_parts, KF_ALLOW(KF_TYPE_F32), &p->lse_parts));
    KF_TRY(kf_parse_output("merge_states", "o", a->o, KF_ALLOW_FLOAT, &p->o));
    if (a->lse) KF_TRY(kf_parse_output("merge_states", "lse", a->lse, KF_ALLOW(KF_TYPE_F32), &p->lse));
    int n = p->o_parts.ndim;
    if (n < 2)
        return kf_fail(KF_INVALID_ARGUMENT, "merge_states: o_parts has %d dimensions; [S, *, Dv] has 2 or more", n);
    KF_TRY(kf_parse_shape("merge_states", "lse_parts", &p->lse_parts, n - 1, p->o_parts.shape));
    KF_TRY(kf_parse_shape("merge_states", "o", &p->o, n - 1, p->o_parts.shape + 1));
    KF_TRY(kf_parse_shape("merge_states", "lse", &p->lse, n - 2, p->o_parts.shape + 1));
    p->options.parts = p->o_parts.shape[0];
    p->options.n = p->o_parts.shape[n - 1];
    p->options.rows = 1;
    for (int i = 1; i < n - 1; i++) p->options.rows *= p->o_parts.shape[i];
    return KF_OK;
}

static const uint32_t attention_sizes[] = {sizeof(kf_attention_args), 0};
static const char *const attention_views[] = {
    "q", "k", "v", "o", "lse", "key_lengths", "positions", "alibi_slopes", "sinks", "bias", "mask", NULL};
const kf_op_class kf_attention_class = {
    .name = "attention",
    .sizes = attention_sizes,
    .view_names = attention_views,
    .options_offset = offsetof(kf_attention_problem, options),
    .options_size = sizeof((kf_attention_problem *)0)->options,
    .outputs = 1u << 3 | 1u << 4,
    .parse = parse_attention,
};

static const uint32_t merge_states_sizes[] = {sizeof(kf_merge_states_args), 0};
static const char *const merge_states_views[] = {"o_parts", "lse_parts", "o", "lse", NULL};
const kf_op_class kf_merge_states_class = {
    .name = "merge_states",
    .sizes = merge_states_sizes,
    .view_names = merge_states_views,
    .options_offset = offsetof(kf_merge_states_problem, options),
    .options_size = sizeof((kf_merge_states_problem *)0)->options,
    .outputs = 1u << 2 | 1u << 3,
    .parse = parse_merge_states,
};

void kf_attention_args_init(kf_attention_args *args) { KF_ARGS_INIT(args, KF_OP_ATTENTION); }
void kf_merge_states_args_init(kf_merge_states_args *args) { KF_ARGS_INIT(args, KF_OP_MERGE_STATES); }

kf_status kf_attention(const kf_context *context, const kf_attention_args *args) {
    return kf_run_once(context, args ? &args->head : NULL, KF_OP_ATTENTION);
}
kf_status kf_merge_states(const kf_context *context, const kf_merge_states_args *args) {
    return kf_run_once(context, args ? &args->head : NULL, KF_OP_MERGE_STATES);
}
