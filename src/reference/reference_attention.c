// SPDX-License-Identifier: Apache-2.0
//
// Attention, one query row at a time:
//
//     s_j = cap(q . k_j * scale) - slope |p - j| + bias_j      over the visible keys j
//     m = max s_j (the sink among them),  d = sum e^(s_j - m),  o = sum e^(s_j - m) v_j / d,  lse = m + ln d
//
// in float64 (ref_attention), and in the dtype of the tensors (ref_attention_naive), which is the yardstick for errors: max |out - oracle|
// may be twice max |naive - oracle| (Dao et al., FlashAttention's tests).
#include "reference/reference.h"

#include <math.h>
#include <stdlib.h>

// What one row needs besides its scores: decoded once for each KV head, rows come in any order but mostly head by head.
typedef struct workspace {
    const kf_attention_args *args;
    int64_t B, H, Hkv, Nq, Nk, D, Dv;
    double scale;
    int64_t cached;          // b * Hkv + hkv of k and v below; -1: none
    double *q, *k, *v, *s;   // [D], [Nk, D], [Nk, Dv], [Nk]
    unsigned char *sees;     // [Nk]
    const kf_dtype *rounded; // not NULL: q and k are rounded to it after rotation (the naive path)
} workspace;

static bool workspace_open(workspace *w, const kf_attention_args *args) {
    *w = (workspace){.args = args, .cached = -1};
    w->B = args->q->shape[0], w->H = args->q->shape[1], w->Nq = args->q->shape[2], w->D = args->q->shape[3];
    w->Hkv = args->k->shape[1], w->Nk = args->k->shape[2], w->Dv = args->v->shape[3];
    w->scale = args->scale != 0 ? (double)args->scale : 1 / sqrt((double)w->D);
    w->q = malloc((size_t)(w->D + 1) * sizeof(double));
    w->k = malloc((size_t)(w->Nk * w->D + 1) * sizeof(double));
    w->v = malloc((size_t)(w->Nk * w->Dv + 1) * sizeof(double));
    w->s = malloc((size_t)(w->Nk + 1) * sizeof(double));
    w->sees = malloc((size_t)(w->Nk + 1));
    return w->q && w->k && w->v && w->s && w->sees;
}

static void workspace_close(workspace *w) {
    free(w->q);
    free(w->k);
    free(w->v);
    free(w->s);
    free(w->sees);
}

static int64_t key_length(const kf_attention_args *args, int64_t b) {
    return args->key_lengths ? (int64_t)ref_at(args->key_lengths, &b) : args->k->shape[2];
}

static int64_t position(const kf_attention_args *args, int64_t b, int64_t i) {
    const int64_t index[2] = {b, i};
    return args->positions ? (int64_t)ref_at(args->positions, index) : i + key_length(args, b) - args->q->shape[2];
}

// Element (b, h, i, j) of the bias or the mask, whose first three dimensions may be 1.
static double broadcast_at(const kf_tensor *tensor, int64_t b, int64_t h, int64_t i, int64_t j) {
    const int64_t index[4] = {tensor->shape[0] == 1 ? 0 : b, tensor->shape[1] == 1 ? 0 : h,
                              tensor->shape[2] == 1 ? 0 : i, j};
    return ref_at(tensor, index);
}

bool ref_visible(const kf_attention_args *args, int64_t b, int64_t h, int64_t i, int64_t j) {
    const int64_t p = position(args, b, i);
    if (j >= key_length(args, b)) return false;
    if (args->flags & KF_ATTENTION_CAUSAL && j > p) return false;
    if (args->flags & KF_ATTENTION_WINDOW_LEFT && (double)j < (double)p - (double)args->window_left) return false;
    if (args->flags & KF_ATTENTION_WINDOW_RIGHT && (double)j > (double)p + (double)args->window_right) return false;
    if (args->mask && broadcast_at(args->mask, b, h, i, j) == 0) return false;
    if (args->bias && broadcast_at(args->bias, b, h, i, j) == -INFINITY) return false;
    return true;
}

// Row n of (b, h) of a [B, H, N, D] tensor, rotated where `rope` is not NULL.
static void load_row(const workspace *w, const kf_tensor *tensor, int64_t b, int64_t h, int64_t n,
                     const kf_rope_params *rope, double at, double *x) {
    ref_row(tensor, (b * tensor->shape[1] + h) * tensor->shape[2] + n, x);
    if (rope && w->rounded)
        ref_rotate_fp32(rope, w->D, at, x);
    else if (rope)
        ref_rotate(rope, w->D, at, x);
}

static void load_keys(workspace *w, int64_t b, int64_t hkv) {
    if (w->cached == b * w->Hkv + hkv) return;
    const kf_rope_params *rope = w->args->flags & KF_ATTENTION_ROPE_K ? &w->args->rope : NULL;
    const int64_t length = key_length(w->args, b);
    for (int64_t j = 0; j < length; j++) {
        double *k = w->k + j * w->D;
        load_row(w, w->args->k, b, hkv, j, rope, (double)j, k);
        load_row(w, w->args->v, b, hkv, j, NULL, 0, w->v + j * w->Dv);
        for (int64_t e = 0; w->rounded && e < w->D; e++) k[e] = ref_round(*w->rounded, k[e]);
    }
    w->cached = b * w->Hkv + hkv;
}

static void load_query(workspace *w, int64_t b, int64_t h, int64_t i) {
    const kf_rope_params *rope = w->args->flags & KF_ATTENTION_ROPE_Q ? &w->args->rope : NULL;
    load_row(w, w->args->q, b, h, i, rope, (double)position(w->args, b, i), w->q);
    for (int64_t c = 0; w->rounded && c < w->D; c++) w->q[c] = ref_round(*w->rounded, w->q[c]);
}

// A score after the product: scale, cap, ALiBi, bias, in this order, each step rounded where `rounded` is not NULL.
static double finish_score(const workspace *w, int64_t b, int64_t h, int64_t i, int64_t j, double product) {
    const kf_attention_args *args = w->args;
    double s = w->rounded ? ref_round(*w->rounded, (double)((float)product * (float)w->scale)) : product * w->scale;
    if (args->softcap > 0) s = (double)args->softcap * tanh(s / (double)args->softcap);
    if (args->alibi_slopes) s -= ref_at(args->alibi_slopes, &h) * fabs((double)(position(args, b, i) - j));
    if (args->bias) s += broadcast_at(args->bias, b, h, i, j);
    return w->rounded ? ref_round(*w->rounded, s) : s;
}

static double product_f64(const double *a, const double *b, int64_t n) {
    double sum = 0;
    for (int64_t c = 0; c < n; c++) sum += a[c] * b[c];
    return sum;
}

static double product_f32(const double *a, const double *b, int64_t n) {
    float sum = 0;
    for (int64_t c = 0; c < n; c++) sum += (float)a[c] * (float)b[c];
    return (double)sum;
}

// Fills s and sees for one row. Returns the largest visible score, the sink among them; -inf where there is none; NaN where one is NaN.
static double score_row(workspace *w, int64_t b, int64_t h, int64_t i) {
    double m = w->args->sinks ? ref_at(w->args->sinks, &h) : -INFINITY;
    load_keys(w, b, h / (w->H / w->Hkv));
    load_query(w, b, h, i);
    for (int64_t j = 0; j < w->Nk; j++) {
        w->sees[j] = ref_visible(w->args, b, h, i, j);
        if (!w->sees[j]) continue;
        const double *k = w->k + j * w->D;
        w->s[j] = finish_score(w, b, h, i, j, w->rounded ? product_f32(w->q, k, w->D) : product_f64(w->q, k, w->D));
        if (w->s[j] > m || isnan(w->s[j])) m = isnan(m) ? m : w->s[j];
    }
    return m;
}

static void attend_f64(workspace *w, int64_t b, int64_t h, int64_t i, double *o, double *lse) {
    const double m = score_row(w, b, h, i);
    double d = w->args->sinks && m != -INFINITY ? exp(ref_at(w->args->sinks, &h) - m) : 0;
    for (int64_t c = 0; c < w->Dv; c++) o[c] = 0;
    for (int64_t j = 0; j < w->Nk && m != -INFINITY; j++) {
        if (!w->sees[j]) continue;
        const double e = exp(w->s[j] - m);
        const double *v = w->v + j * w->Dv;
        d += e;
        for (int64_t c = 0; c < w->Dv; c++) o[c] += e * v[c];
    }
    for (int64_t c = 0; c < w->Dv && d != 0; c++) o[c] /= d;
    if (lse) *lse = m == -INFINITY ? -INFINITY : m + log(d);
}

// Sums, exponentials and quotients are fp32 numbers here; scores, probabilities and outputs are rounded to the dtype besides.
static void attend_naive(workspace *w, int64_t b, int64_t h, int64_t i, double *o) {
    const kf_dtype dtype = *w->rounded;
    const float m = (float)score_row(w, b, h, i);
    float d = w->args->sinks && m != -INFINITY ? (float)exp((double)((float)ref_at(w->args->sinks, &h) - m)) : 0;
    float sum[256] = {0}; // Dv is at most 256
    for (int64_t j = 0; j < w->Nk && m != -INFINITY; j++) {
        if (!w->sees[j]) continue;
        const float e = (float)exp((double)((float)w->s[j] - m));
        w->s[j] = (double)e;
        d += e;
    }
    for (int64_t j = 0; j < w->Nk && m != -INFINITY; j++) {
        if (!w->sees[j]) continue;
        const float p = (float)ref_round(dtype, (double)((float)w->s[j] / d));
        const double *v = w->v + j * w->Dv;
        for (int64_t c = 0; c < w->Dv; c++) sum[c] += p * (float)v[c];
    }
    for (int64_t c = 0; c < w->Dv; c++) o[c] = ref_round(w->args->o->dtype, ref_round(dtype, (double)sum[c]));
}

static bool attend_rows(const kf_attention_args *args, const kf_dtype *rounded, const int64_t *rows, int64_t count,
                        double *o, double *lse) {
    workspace w;
    const bool open = workspace_open(&w, args);
    w.rounded = rounded;
    for (int64_t r = 0; open && r < count; r++) {
        const int64_t row = rows ? rows[r] : r;
        const int64_t b = row / (w.H * w.Nq), h = row / w.Nq % w.H, i = row % w.Nq;
        if (rounded)
            attend_naive(&w, b, h, i, o + r * w.Dv);
        else
            attend_f64(&w, b, h, i, o + r * w.Dv, lse ? lse + r : NULL);
    }
    workspace_close(&w);
    return open;
}

bool ref_attention(const kf_attention_args *args, const int64_t *rows, int64_t count, double *o, double *lse) {
    return attend_rows(args, NULL, rows, count, o, lse);
}

bool ref_attention_naive(const kf_attention_args *args, const int64_t *rows, int64_t count, double *o) {
    const kf_dtype dtype = ref_coarser(args->q->dtype, args->k->dtype);
    return attend_rows(args, &dtype, rows, count, o, NULL);
}
