// SPDX-License-Identifier: Apache-2.0
//
// kf_attention against a double loop over the definition, under every ISA of the machine: shapes that meet every path
// (tiles, few rows, splits), every option, kinds of public bug reports, hostile values, and the same bits at any number
// of threads.
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "keyfold.h"
#include "math/half.h"

enum { F32, F16, BF16 };
static const kf_dtype dtypes[] = {KF_FP32, KF_FP16, KF_BF16};

typedef struct spec {
    const char *name;
    int64_t B, H, Hkv, Nq, Nk, D, Dv;
    int q_type, k_type, out_f32;
    int causal, left, right; // windows: 1 + their width, 0: none
    int lengths, positions, alibi, sinks, bias, mask, lse;
    float softcap, scale, q_size; // q_size: scores' spread
    int poison;                   // NaN and inf in what no row sees
} spec;

// All buffers of a case. Values are kept as floats that the dtype holds exactly.
typedef struct data {
    float *q, *k, *v, *o, *lse, *alibi, *sinks, *bias;
    void *qt, *kt, *vt, *ot;
    uint8_t *mask;
    int32_t *lengths;
    int64_t *positions;
    int64_t nq, nk, nv, no, nl, ns;
} data;

static uint64_t seed;
static float uniform(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(seed >> 40) * 0x1p-24f;
}
static float normal(void) { return uniform() + uniform() + uniform() + uniform() - 2.0f; }

static int64_t size_of(int type) { return type == F32 ? 4 : 2; }

// Rounds x to the type in place, and returns it in that type.
static void *typed(float *x, int64_t n, int type) {
    void *out = malloc((size_t)(n * 4 + 1));
    for (int64_t i = 0; i < n; i++) {
        if (type == F32) ((float *)out)[i] = x[i];
        if (type == F16) x[i] = kf_fp16_to_float(((uint16_t *)out)[i] = kf_float_to_fp16(x[i]));
        if (type == BF16) x[i] = kf_bf16_to_float(((uint16_t *)out)[i] = kf_float_to_bf16(x[i]));
    }
    return out;
}

static float *random_array(int64_t n, float size) {
    float *x = malloc((size_t)(n + 1) * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = size * normal();
    return x;
}

static data make(const spec *s) {
    data d = {0};
    seed = 0x9e3779b97f4a7c15u ^ (uint64_t)(s->Nq * 131 + s->Nk * 7 + s->D);
    d.nq = s->B * s->H * s->Nq * s->D, d.nk = s->B * s->Hkv * s->Nk * s->D, d.nv = s->B * s->Hkv * s->Nk * s->Dv;
    d.no = s->B * s->H * s->Nq * s->Dv, d.nl = s->B * s->H * s->Nq, d.ns = s->B * s->H * s->Nq * s->Nk;
    d.q = random_array(d.nq, s->q_size > 0 ? s->q_size : 1.7f), d.k = random_array(d.nk, 1.7f),
    d.v = random_array(d.nv, 1.7f);
    d.alibi = random_array(s->H, 0.2f), d.sinks = random_array(s->H, 2.0f), d.bias = random_array(d.ns, 1.0f);
    d.mask = malloc((size_t)d.ns + 1), d.lengths = malloc((size_t)s->B * 4 + 4),
    d.positions = malloc((size_t)(s->B * s->Nq) * 8 + 8);
    for (int64_t i = 0; i < d.ns; i++) {
        d.mask[i] = uniform() < 0.7f;
        if (uniform() < 0.1f) d.bias[i] = -INFINITY;
    }
    for (int64_t b = 0; b < s->B; b++)
        d.lengths[b] = s->lengths ? (int32_t)(uniform() * (float)(s->Nk + 1)) : (int32_t)s->Nk;
    if (s->lengths && s->B > 1) d.lengths[1] = 0;
    for (int64_t i = 0; i < s->B * s->Nq; i++)
        d.positions[i] =
            s->positions ? (int64_t)(uniform() * (float)(s->Nk + 8)) - 4 : i % s->Nq + d.lengths[i / s->Nq] - s->Nq;
    d.o = malloc((size_t)d.no * 4 + 4), d.lse = malloc((size_t)d.nl * 4 + 4), d.ot = malloc((size_t)d.no * 4 + 4);
    return d;
}

static void drop(data *d) {
    void *all[] = {d->q,    d->k,       d->v,         d->o,  d->lse, d->alibi, d->sinks, d->bias,
                   d->mask, d->lengths, d->positions, d->qt, d->kt,  d->vt,    d->ot};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static int visible(const spec *s, const data *d, int64_t b, int64_t h, int64_t i, int64_t j) {
    int64_t p = d->positions[b * s->Nq + i], at = ((b * s->H + h) * s->Nq + i) * s->Nk + j;
    if (j >= d->lengths[b] || (s->causal && j > p)) return 0;
    if ((s->left && j < p - (s->left - 1)) || (s->right && j > p + (s->right - 1))) return 0;
    return (!s->mask || d->mask[at]) && (!s->bias || d->bias[at] != -INFINITY);
}

static double logit(const spec *s, const data *d, int64_t b, int64_t h, int64_t i, int64_t j) {
    const float *q = d->q + ((b * s->H + h) * s->Nq + i) * s->D,
                *k = d->k + ((b * s->Hkv + h / (s->H / s->Hkv)) * s->Nk + j) * s->D;
    double x = 0;
    for (int64_t c = 0; c < s->D; c++) x += (double)q[c] * (double)k[c];
    x *= s->scale != 0 ? (double)s->scale : 1 / sqrt((double)s->D);
    if (s->softcap > 0) x = (double)s->softcap * tanh(x / (double)s->softcap);
    if (s->alibi) x -= (double)d->alibi[h] * fabs((double)(d->positions[b * s->Nq + i] - j));
    if (s->bias) x += (double)d->bias[((b * s->H + h) * s->Nq + i) * s->Nk + j];
    return x;
}

// One row of the definition: o[Dv], returns the LSE.
static double row(const spec *s, const data *d, int64_t b, int64_t h, int64_t i, double *o) {
    double m = s->sinks ? (double)d->sinks[h] : -INFINITY, sum = 0;
    double *x = malloc((size_t)(s->Nk + 1) * sizeof *x);
    for (int64_t j = 0; j < s->Nk; j++) {
        x[j] = visible(s, d, b, h, i, j) ? logit(s, d, b, h, i, j) : -INFINITY;
        if (x[j] > m) m = x[j];
    }
    for (int64_t c = 0; c < s->Dv; c++) o[c] = 0;
    if (s->sinks) sum = exp((double)d->sinks[h] - m);
    for (int64_t j = 0; j < s->Nk; j++) {
        if (!visible(s, d, b, h, i, j)) continue;
        double p = exp(x[j] - m);
        const float *v = d->v + ((b * s->Hkv + h / (s->H / s->Hkv)) * s->Nk + j) * s->Dv;
        sum += p;
        for (int64_t c = 0; c < s->Dv; c++) o[c] += p * (double)v[c];
    }
    free(x);
    if (sum == 0) return -INFINITY;
    for (int64_t c = 0; c < s->Dv; c++) o[c] /= sum;
    return m + log(sum);
}

static void shape4(int64_t *shape, int64_t a, int64_t b, int64_t c, int64_t d) {
    shape[0] = a, shape[1] = b, shape[2] = c, shape[3] = d;
}

static kf_status run(const spec *s, data *d, int isa, int threads) {
    int64_t sq[4], sk[4], sv[4], so[4], ss[4];
    shape4(sq, s->B, s->H, s->Nq, s->D), shape4(sk, s->B, s->Hkv, s->Nk, s->D), shape4(sv, s->B, s->Hkv, s->Nk, s->Dv);
    shape4(so, s->B, s->H, s->Nq, s->Dv), shape4(ss, s->B, s->H, s->Nq, s->Nk);
    int64_t sp[2] = {s->B, s->Nq};
    kf_dtype f32 = KF_FP32, i32 = KF_INT32, i64 = KF_INT64, boolean = KF_BOOL;
    kf_tensor q = kf_tensor_cpu(d->qt, dtypes[s->q_type], 4, sq), k = kf_tensor_cpu(d->kt, dtypes[s->k_type], 4, sk);
    kf_tensor v = kf_tensor_cpu(d->vt, dtypes[s->k_type], 4, sv),
              o = kf_tensor_cpu(d->ot, s->out_f32 ? f32 : dtypes[s->q_type], 4, so);
    kf_tensor lse = kf_tensor_cpu(d->lse, f32, 3, so), lengths = kf_tensor_cpu(d->lengths, i32, 1, &s->B);
    kf_tensor positions = kf_tensor_cpu(d->positions, i64, 2, sp), alibi = kf_tensor_cpu(d->alibi, f32, 1, &s->H);
    kf_tensor sinks = kf_tensor_cpu(d->sinks, f32, 1, &s->H), bias = kf_tensor_cpu(d->bias, f32, 4, ss);
    kf_tensor mask = kf_tensor_cpu(d->mask, boolean, 4, ss);
    kf_attention_args a;
    kf_attention_args_init(&a);
    a.q = &q, a.k = &k, a.v = &v, a.o = &o, a.scale = s->scale, a.softcap = s->softcap;
    if (s->lse) a.lse = &lse;
    if (s->lengths) a.key_lengths = &lengths;
    if (s->positions) a.positions = &positions;
    if (s->alibi) a.alibi_slopes = &alibi;
    if (s->sinks) a.sinks = &sinks;
    if (s->bias) a.bias = &bias;
    if (s->mask) a.mask = &mask;
    if (s->causal) a.flags |= KF_ATTENTION_CAUSAL;
    if (s->left) a.flags |= KF_ATTENTION_WINDOW_LEFT, a.window_left = s->left - 1;
    if (s->right) a.flags |= KF_ATTENTION_WINDOW_RIGHT, a.window_right = s->right - 1;
    kf_context_options options;
    kf_context *context;
    kf_context_options_init(&options);
    options.threads = threads, options.isa = isa;
    assert_int_equal(kf_context_create(&options, &context), KF_OK);
    memset(d->ot, 0xff, (size_t)d->no * 4);
    memset(d->lse, 0xff, (size_t)d->nl * 4);
    kf_status status = kf_attention(context, &a);
    kf_context_destroy(context);
    return status;
}

// The output as floats.
static void fetch(const spec *s, data *d) {
    for (int64_t i = 0; i < d->no; i++) {
        if (s->out_f32 || s->q_type == F32)
            d->o[i] = ((float *)d->ot)[i];
        else if (s->q_type == F16)
            d->o[i] = kf_fp16_to_float(((uint16_t *)d->ot)[i]);
        else
            d->o[i] = kf_bf16_to_float(((uint16_t *)d->ot)[i]);
    }
}

// Relative L2 over the case, and every LSE.
static void compare(const spec *s, data *d) {
    double error = 0, norm = 0,
           bound = s->q_type == BF16 && s->k_type == BF16 ? 1e-2
                   : s->q_type != F32 && !s->out_f32      ? 4e-3
                                                          : 1e-5;
    double o[256];
    for (int64_t b = 0; b < s->B; b++)
        for (int64_t h = 0; h < s->H; h++)
            for (int64_t i = 0; i < s->Nq; i++) {
                double lse = row(s, d, b, h, i, o);
                int64_t at = (b * s->H + h) * s->Nq + i;
                for (int64_t c = 0; c < s->Dv; c++) {
                    double got = (double)d->o[at * s->Dv + c];
                    if (!isfinite(got))
                        fail_msg("%s: o[%d][%d][%d][%d] is %g", s->name, (int)b, (int)h, (int)i, (int)c, got);
                    if (lse == -INFINITY && got != 0) fail_msg("%s: an empty row holds %g", s->name, got);
                    error += (got - o[c]) * (got - o[c]), norm += o[c] * o[c];
                }
                if (!s->lse) continue;
                double got = (double)d->lse[at];
                if (lse == -INFINITY ? got != lse : !(fabs(got - lse) <= bound * (2 + fabs(lse))))
                    fail_msg("%s: lse[%d][%d][%d] is %g, not %g", s->name, (int)b, (int)h, (int)i, got, lse);
            }
    if (!(sqrt(error) <= bound * sqrt(norm) + 1e-30)) fail_msg("%s: relative L2 error %g", s->name, sqrt(error / norm));
}

// What no row of a KV head sees becomes NaN or infinity, in k and v.
static void poison(const spec *s, data *d) {
    for (int64_t b = 0; b < s->B; b++)
        for (int64_t n = 0; n < s->Hkv; n++)
            for (int64_t j = 0; j < s->Nk; j++) {
                int seen = 0;
                for (int64_t h = n * (s->H / s->Hkv); h < (n + 1) * (s->H / s->Hkv); h++)
                    for (int64_t i = 0; i < s->Nq; i++) seen |= visible(s, d, b, h, i, j);
                if (seen) continue;
                for (int64_t c = 0; c < s->D; c++) d->k[((b * s->Hkv + n) * s->Nk + j) * s->D + c] = NAN;
                for (int64_t c = 0; c < s->Dv; c++)
                    d->v[((b * s->Hkv + n) * s->Nk + j) * s->Dv + c] = c % 2 ? NAN : INFINITY;
            }
}

static void convert(const spec *s, data *d) {
    if (s->poison) poison(s, d);
    d->qt = typed(d->q, d->nq, s->q_type), d->kt = typed(d->k, d->nk, s->k_type), d->vt = typed(d->v, d->nv, s->k_type);
}

#define BASE .lse = 1
#define EVERYTHING                                                                                                     \
    .causal = 1, .lengths = 1, .alibi = 1, .sinks = 1, .bias = 1, .mask = 1, .softcap = 5.0f, .out_f32 = 1, .poison = 1
static const spec specs[] = {
    {"one key", 1, 1, 1, 1, 1, 8, 8, BASE},
    {"tiles, full", 1, 2, 2, 70, 300, 64, 64, BASE},
    {"tiles, causal", 1, 2, 1, 130, 530, 32, 32, BASE, .causal = 1},
    {"tiles, causal, bf16", 1, 2, 1, 130, 530, 64, 64, BF16, BF16, BASE, .causal = 1},
    {"tiles, causal, fp16", 1, 2, 1, 130, 530, 40, 72, F16, F16, BASE, .causal = 1},
    {"tiles, split keys", 1, 1, 1, 40, 3000, 16, 16, BASE, .causal = 1},
    {"tiles, bf16 keys under fp32 queries", 1, 4, 2, 33, 257, 80, 80, F32, BF16, BASE, .out_f32 = 1},
    {"head dims 8 and 256", 1, 2, 2, 30, 65, 8, 256, BASE},
    {"head dims 256 and 8", 1, 2, 2, 30, 65, 256, 8, BF16, BF16, BASE, .out_f32 = 1},
    {"head dims 96 and 192, bf16", 1, 2, 2, 30, 333, 96, 192, BF16, BF16, BASE},
    {"head dims 192 and 120, bf16", 1, 3, 3, 30, 333, 192, 120, BF16, BF16, BASE},
    {"decode", 1, 8, 2, 1, 1000, 128, 128, BASE},
    {"decode, bf16", 2, 8, 2, 1, 1000, 128, 128, BF16, BF16, BASE, .lengths = 1},
    {"decode, fp16, 9 / 3 heads", 2, 9, 3, 1, 777, 64, 64, F16, F16, BASE, .lengths = 1},
    {"decode, fp16 keys, fp32 queries", 1, 9, 3, 1, 777, 64, 64, F32, F16, BASE},
    {"decode, 4 queries", 2, 6, 2, 4, 600, 72, 40, F32, F16, BASE, .causal = 1, .out_f32 = 1, .lengths = 1},
    {"decode, 16 rows, bf16", 2, 16, 1, 1, 600, 72, 40, BF16, BF16, BASE, .lengths = 1, .out_f32 = 1},
    {"decode, 13 rows, window", 1, 13, 1, 1, 600, 64, 64, BF16, BF16, BASE, .left = 1 + 200},
    {"causal, more queries than keys (FI 4452)", 1, 2, 2, 50, 20, 64, 64, BASE, .causal = 1},
    {"causal, q 3, k 128 (FA 282)", 1, 2, 1, 3, 128, 64, 64, BASE, .causal = 1},
    {"no keys (FA PR 2568)", 2, 2, 1, 5, 0, 256, 256, BASE},
    {"no keys, sinks", 2, 4, 2, 30, 0, 64, 64, BASE, .sinks = 1},
    {"window of 1", 1, 2, 2, 60, 60, 64, 64, BASE, .causal = 1, .left = 1 + 0},
    {"window left, rows whose first tile is masked", 1, 2, 2, 600, 600, 32, 32, BASE, .causal = 1, .left = 1 + 17},
    {"window right", 1, 2, 2, 100, 400, 32, 32, BASE, .right = 1 + 5, .left = 1 + 300},
    {"ragged lengths", 3, 3, 1, 40, 300, 64, 64, BASE, .lengths = 1, .causal = 1, .poison = 1},
    {"ragged lengths, decode, NaN beyond (FA 1745)", 3, 3, 1, 1, 300, 64, 64, BF16, BF16, BASE, .lengths = 1,
     .poison = 1},
    {"inf and NaN outside of the window (FI 358)", 1, 2, 1, 300, 300, 64, 64, BASE, .causal = 1, .left = 1 + 3,
     .poison = 1},
    {"given positions", 2, 4, 2, 40, 200, 64, 64, BASE, .causal = 1, .positions = 1},
    {"given positions, decode, window", 2, 4, 2, 2, 700, 64, 64, BASE, .causal = 1, .positions = 1, .left = 1 + 100},
    {"ALiBi, 5 heads", 1, 5, 5, 40, 200, 64, 64, BASE, .alibi = 1},
    {"ALiBi, decode", 2, 6, 3, 1, 700, 64, 64, BASE, .alibi = 1, .lengths = 1},
    {"softcap before the mask (FI PR 350)", 1, 2, 2, 40, 200, 64, 64, BASE, .softcap = 2.0f, .causal = 1},
    {"sinks", 1, 4, 2, 40, 200, 64, 64, BASE, .sinks = 1, .causal = 1},
    {"sinks, split keys", 1, 8, 2, 1, 2000, 64, 64, BASE, .sinks = 1},
    {"bias with -inf", 2, 4, 2, 30, 133, 64, 64, BASE, .bias = 1},
    {"boolean mask", 2, 4, 2, 30, 133, 64, 64, BASE, .mask = 1},
    {"boolean mask and bias, decode", 2, 4, 2, 3, 533, 64, 64, BASE, .mask = 1, .bias = 1},
    {"everything", 2, 6, 2, 45, 310, 72, 40, F32, BF16, BASE, .left = 1 + 100, EVERYTHING},
    {"everything, decode", 2, 6, 2, 2, 710, 72, 40, F32, F16, BASE, .left = 1 + 500, EVERYTHING},
    {"negative scale", 1, 2, 2, 30, 100, 64, 64, BASE, .scale = -0.2f},
    {"negative scale, decode", 1, 2, 2, 1, 100, 64, 64, BASE, .scale = -0.2f},
    {"negative scale, ALiBi", 1, 2, 2, 30, 100, 64, 64, BASE, .scale = -0.2f, .alibi = 1},
    {"keys a multiple of 256 (ggml 1621)", 1, 8, 2, 1, 512, 128, 128, F16, F16, BASE, .out_f32 = 1},
};
enum { SPECS = sizeof specs / sizeof *specs };

static void against_the_definition(void **state) {
    (void)state;
    for (int c = 0; c < SPECS; c++)
        for (int isa = KF_ISA_SCALAR; isa <= (int)kf_cpu_isa(); isa++) {
            data d = make(&specs[c]);
            convert(&specs[c], &d);
            if (run(&specs[c], &d, isa, 2) != KF_OK) fail_msg("%s: %s", specs[c].name, kf_last_error());
            fetch(&specs[c], &d);
            compare(&specs[c], &d);
            drop(&d);
        }
}

static void same_bits_at_any_number_of_threads(void **state) {
    (void)state;
    for (int c = 0; c < SPECS; c++)
        for (int isa = KF_ISA_SCALAR; isa <= (int)kf_cpu_isa(); isa++) {
            data d = make(&specs[c]);
            convert(&specs[c], &d);
            size_t bytes = (size_t)d.no * (size_t)(specs[c].out_f32 ? 4 : size_of(specs[c].q_type));
            void *first = malloc(bytes + 1);
            assert_int_equal(run(&specs[c], &d, isa, 1), KF_OK);
            memcpy(first, d.ot, bytes);
            assert_int_equal(run(&specs[c], &d, isa, 7), KF_OK);
            if (memcmp(first, d.ot, bytes) != 0) fail_msg("%s: bits differ", specs[c].name);
            free(first);
            drop(&d);
        }
}

// NaN or infinity at key j (in k or v), or in query i: exactly the rows that see it are NaN, in v's case in its column alone.
static void hostile_values_reach_who_sees_them(void **state) {
    (void)state;
    const spec shapes[] = {
        {"hostile tiles", 1, 4, 2, 60, 300, 64, 64, BASE, .causal = 1},
        {"hostile tiles, bf16", 1, 4, 2, 60, 300, 64, 64, BF16, BF16, BASE, .causal = 1, .out_f32 = 1},
        {"hostile tiles, mask", 1, 4, 2, 60, 300, 64, 64, BASE, .mask = 1},
        {"hostile few", 1, 4, 2, 5, 300, 64, 64, BASE, .causal = 1},
        {"hostile few, bf16, bias", 1, 4, 2, 5, 300, 64, 64, BF16, BF16, BASE, .bias = 1, .out_f32 = 1},
        {"hostile few, window", 1, 4, 2, 5, 700, 64, 64, F32, F16, BASE, .causal = 1, .left = 1 + 3}};
    const float bad[] = {NAN, INFINITY};
    for (size_t c = 0; c < sizeof shapes / sizeof *shapes; c++)
        for (int isa = KF_ISA_SCALAR; isa <= (int)kf_cpu_isa(); isa++)
            for (int what = 0; what < 4; what++) {
                const spec *s = &shapes[c];
                data d = make(s);
                int64_t j = s->Nk - 3, i = 2, column = 17;
                if (what == 0) d.k[j * s->D + 5] = NAN;
                if (what == 1 || what == 2) d.v[j * s->Dv + column] = bad[what - 1];
                if (what == 3) d.q[i * s->D] = NAN;
                convert(s, &d);
                assert_int_equal(run(s, &d, isa, 2), KF_OK);
                fetch(s, &d);
                for (int64_t h = 0; h < s->H; h++)
                    for (int64_t r = 0; r < s->Nq; r++)
                        for (int64_t x = 0; x < s->Dv; x++) {
                            int sees = h < s->H / s->Hkv && visible(s, &d, 0, h, r, j);
                            int hit = what == 3 ? h == 0 && r == i : what == 0 ? sees : sees && x == column;
                            float got = d.o[(h * s->Nq + r) * s->Dv + x];
                            if (hit ? isfinite(got) : !isfinite(got))
                                fail_msg("%s, isa %d, kind %d: o[%d][%d][%d] is %g", s->name, isa, what, (int)h, (int)r,
                                         (int)x, (double)got);
                        }
                drop(&d);
            }
}

// Logits far below zero are ordinary ones (FI 4267, FI 4450).
static void far_logits(void **state) {
    (void)state;
    const spec shapes[] = {{"logits below -5e4", 1, 16, 1, 1, 64, 128, 128, BASE},
                           {"one key at -524288", 1, 1, 1, 1, 1, 128, 128, BASE},
                           {"tiles, logits below -5e4", 1, 16, 1, 3, 64, 128, 128, BASE}};
    for (int c = 0; c < 3; c++)
        for (int isa = KF_ISA_SCALAR; isa <= (int)kf_cpu_isa(); isa++) {
            const spec *s = &shapes[c];
            data d = make(s);
            for (int64_t i = 0; i < d.nq; i++) d.q[i] = -64.0f;
            for (int64_t i = 0; i < d.nk; i++) d.k[i] = c == 1 ? 724.0773f : 64.0f + (float)(i / s->D % 5) * 0.001f;
            convert(s, &d);
            assert_int_equal(run(s, &d, isa, 2), KF_OK);
            fetch(s, &d);
            double o[256], lse;
            for (int64_t r = 0; r < s->H * s->Nq; r++) {
                lse = row(s, &d, 0, r / s->Nq, r % s->Nq, o);
                assert_true(fabs((double)d.lse[r] - lse) <= 1e-6 * fabs(lse));
                // A raw logit of 5e5 has steps of 1/32 in fp32: weights may be off by as much.
                for (int64_t x = 0; x < s->Dv; x++) assert_true(fabs((double)d.o[r * s->Dv + x] - o[x]) < 0.05);
            }
            drop(&d);
        }
}

// Rows of k that all have the same address, and reversed ones: strides 0 and below.
static void strides_of_any_kind(void **state) {
    (void)state;
    enum { N = 100, D = 64 };
    int64_t shape[4] = {1, 1, N, D}, zero[4] = {0, 0, 0, 1}, reversed[4] = {0, 0, -(D + 3), 1},
            wide[4] = {0, 0, D + 3, 1};
    kf_dtype f32 = KF_FP32;
    float *x = random_array(N * (D + 3), 1.0f), *o = malloc(N * (D + 3) * sizeof *o);
    for (int isa = KF_ISA_SCALAR; isa <= (int)kf_cpu_isa(); isa++) {
        kf_context_options options;
        kf_context *context;
        kf_context_options_init(&options);
        options.isa = isa;
        assert_int_equal(kf_context_create(&options, &context), KF_OK);
        kf_tensor q = kf_tensor_cpu(x, f32, 4, shape), k = q, v = q, out = kf_tensor_cpu(o, f32, 4, shape);
        q.strides = wide, k.strides = zero, v.strides = reversed, v.data = x + (N - 1) * (D + 3), out.strides = wide;
        for (int i = 0; i < N * (D + 3); i++) o[i] = 77.0f;
        kf_attention_args a;
        kf_attention_args_init(&a);
        a.q = &q, a.k = &k, a.v = &v, a.o = &out;
        assert_int_equal(kf_attention(context, &a), KF_OK);
        for (int c = 0; c < D + 3; c++) {
            double mean = 0; // equal keys: the mean of all values
            for (int j = 0; j < N; j++) mean += (double)x[j * (D + 3) + c] / N;
            for (int i = 0; i < N - 1; i++)
                assert_true(c < D ? fabs((double)o[i * (D + 3) + c] - mean) < 1e-6 : o[i * (D + 3) + c] == 77.0f);
        }
        kf_context_destroy(context);
    }
    free(x), free(o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_the_definition),
        cmocka_unit_test(same_bits_at_any_number_of_threads),
        cmocka_unit_test(hostile_values_reach_who_sees_them),
        cmocka_unit_test(far_logits),
        cmocka_unit_test(strides_of_any_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
