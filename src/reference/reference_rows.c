// SPDX-License-Identifier: Apache-2.0
//
// The operations on rows, in float64: softmax, merge of states, RMSNorm, SwiGLU, RoPE, KV append, embedding. Values are rounded only
// where the header says that the operation rounds.
#include "reference/reference.h"

#include <math.h>
#include <stdlib.h>

static int64_t last_axis(const kf_tensor *tensor) { return tensor->shape[tensor->ndim - 1]; }

// y = e^(x - m) / d with m = max x and d = sum e^(x - m).
void ref_softmax(const kf_softmax_args *args, double *y, double *lse) {
    const int64_t rows = ref_leading(args->x, 1), N = last_axis(args->x);
    for (int64_t r = 0; r < rows; r++, y += N) {
        double m = -INFINITY, d = 0;
        ref_row(args->x, r, y);
        for (int64_t c = 0; c < N; c++) m = y[c] > m || isnan(y[c]) ? (isnan(m) ? m : y[c]) : m;
        for (int64_t c = 0; c < N; c++) y[c] = m == -INFINITY ? 0 : exp(y[c] - m);
        for (int64_t c = 0; c < N; c++) d += y[c];
        for (int64_t c = 0; c < N && d != 0; c++) y[c] /= d;
        if (lse) lse[r] = m == -INFINITY ? -INFINITY : m + log(d);
    }
}

// L = ln sum e^lse_s; o = sum e^(lse_s - L) o_s. Parts with lse = -inf hold no keys.
bool ref_merge_states(const kf_merge_states_args *args, double *o, double *lse) {
    const int64_t S = args->o_parts->shape[0], N = last_axis(args->o_parts);
    const int64_t rows = ref_leading(args->o, 1);
    double *part = malloc((size_t)(N + 1) * sizeof(double)), *weight = malloc((size_t)(S + 1) * sizeof(double));
    for (int64_t r = 0; part && weight && r < rows; r++, o += N) {
        double m = -INFINITY, d = 0;
        for (int64_t s = 0; s < S; s++) {
            int64_t index[KF_MAX_NDIM];
            ref_unravel(args->lse_parts, s * rows + r, index);
            weight[s] = ref_at(args->lse_parts, index);
            m = weight[s] > m || isnan(weight[s]) ? (isnan(m) ? m : weight[s]) : m;
        }
        for (int64_t c = 0; c < N; c++) o[c] = 0;
        for (int64_t s = 0; s < S; s++) {
            if (weight[s] == -INFINITY) continue;
            const double e = exp(weight[s] - m);
            d += e;
            ref_row(args->o_parts, s * rows + r, part);
            for (int64_t c = 0; c < N; c++) o[c] += e * part[c];
        }
        for (int64_t c = 0; c < N && d != 0; c++) o[c] /= d;
        if (lse) lse[r] = m == -INFINITY ? -INFINITY : m + log(d);
    }
    const bool done = part && weight;
    free(part);
    free(weight);
    return done;
}

// Rounds *value to dtype. Returns an ulp where a relative error of `error` could make it round the other way, otherwise 0.
static double round_with_slack(kf_dtype dtype, double error, double *value) {
    const double low = ref_round(dtype, *value * (1 - error)), high = ref_round(dtype, *value * (1 + error));
    *value = ref_round(dtype, *value);
    return low == high ? 0 : ref_ulp(dtype, *value);
}

// What fp32 arithmetic loses in a sum of two numbers, and in a product with the reciprocal root besides.
static const double SUM_ERROR = 0x1p-23, PRODUCT_ERROR = 0x1p-20;

// s = x + residual; y = s rsqrt(mean s^2 + eps) (offset + weight), rounded in between where `cast` says so.
static void normalise_row(const kf_rmsnorm_args *args, int64_t N, const double *weight, double *y, double *slack) {
    const kf_dtype sum_dtype = args->sum ? args->sum->dtype : args->x->dtype;
    double squares = 0;
    for (int64_t c = 0; c < N; c++) {
        slack[c] = args->cast != KF_CAST_END ? round_with_slack(sum_dtype, SUM_ERROR, &y[c]) : 0;
        squares += y[c] * y[c];
    }
    const double scale = 1 / sqrt(squares / (double)N + (double)args->eps);
    for (int64_t c = 0; c < N; c++) {
        y[c] *= scale;
        slack[c] *= scale;
        if (args->cast == KF_CAST_LLAMA) slack[c] += round_with_slack(args->x->dtype, PRODUCT_ERROR, &y[c]);
        y[c] *= weight[c];
        slack[c] *= fabs(weight[c]);
    }
}

bool ref_rmsnorm(const kf_rmsnorm_args *args, double *y, double *sum, double *slack) {
    const int64_t rows = ref_leading(args->x, 1), N = last_axis(args->x);
    double *residual = calloc((size_t)N + 1, sizeof(double)), *weight = malloc((size_t)(N + 1) * sizeof(double));
    double *own = malloc((size_t)(N + 1) * sizeof(double));
    const bool open = residual && weight && own;
    for (int64_t c = 0; open && c < N; c++) weight[c] = 1;
    if (open && args->weight) ref_row(args->weight, 0, weight);
    for (int64_t c = 0; open && args->weight && c < N; c++) weight[c] += (double)args->weight_offset;
    for (int64_t r = 0; open && r < rows; r++, y += N) {
        ref_row(args->x, r, y);
        if (args->residual) ref_row(args->residual, r, residual);
        for (int64_t c = 0; c < N; c++) y[c] += residual[c];
        for (int64_t c = 0; c < N && sum; c++) sum[r * N + c] = y[c];
        normalise_row(args, N, weight, y, slack ? slack + r * N : own);
    }
    free(residual);
    free(weight);
    free(own);
    return open;
}

// y = gate / (1 + e^-gate) * up.
void ref_swiglu(const kf_swiglu_args *args, double *y) {
    const int64_t rows = ref_leading(args->y, 1), N = last_axis(args->y);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < N; c++, y++) {
            int64_t index[KF_MAX_NDIM];
            ref_unravel(args->y, r * N + c, index);
            const int last = args->y->ndim - 1;
            const double gate = ref_at(args->gate_up ? args->gate_up : args->gate, index);
            if (args->gate_up) index[last] += N;
            const double up = ref_at(args->gate_up ? args->gate_up : args->up, index);
            *y = gate / (1 + exp(-gate)) * up;
        }
    }
}

void ref_rope(const kf_rope_args *args, double *y) {
    const int64_t H = args->x->shape[1], N = args->x->shape[2], D = args->x->shape[3];
    for (int64_t r = 0; r < ref_leading(args->x, 1); r++, y += D) {
        const int64_t index[2] = {r / (H * N), r % N};
        const double p = args->positions ? ref_at(args->positions, index) : (double)(args->position_offset + r % N);
        ref_row(args->x, r, y);
        ref_rotate(&args->rope, D, p, y);
    }
}

void ref_kv_append(const kf_kv_append_args *args, double *k, double *v) {
    const int64_t H = args->k->shape[1], N = args->k->shape[2], D = args->k->shape[3], Dv = args->v->shape[3];
    for (int64_t r = 0; r < ref_leading(args->k, 1); r++, k += D, v += Dv) {
        const int64_t index[2] = {r / (H * N), r % N};
        const double slot = (args->slots ? ref_at(args->slots, index) : 0) + (double)index[1];
        ref_row(args->k, r, k);
        ref_row(args->v, r, v);
        ref_rotate(&args->rope, D, args->positions ? ref_at(args->positions, index) : slot, k);
    }
}

// y[t] = scale * table[ids[t]].
bool ref_embedding(const kf_embedding_args *args, double *y) {
    const int64_t T = args->ids->shape[0], N = args->table->cols;
    const double scale = args->scale != 0 ? (double)args->scale : 1;
    for (int64_t t = 0; t < T; t++, y += N) {
        ref_weight_row(args->table, (int64_t)ref_at(args->ids, &t), y, NULL);
        for (int64_t c = 0; c < N; c++) y[c] *= scale;
    }
    return true;
}
