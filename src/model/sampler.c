// SPDX-License-Identifier: Apache-2.0
// Sampling: see sampler.h. Candidates stand in a binary heap with the likeliest on top: making it costs O(count), each
// one taken O(log count), and with top_k, top_p or min_p few are taken. Without any of them no order is needed, and
// none is made.
#include "model/sampler.h"

#include <math.h>

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

struct kfm_sampler {
    kfm_sampling sampling;
    int32_t count;
    uint64_t draws;
    candidate *heap;  // [count]
    candidate *taken; // [count], likeliest first
    double *weight;   // [count], exp((logit − max) / temperature) of taken
};

kfm_sampling kfm_sampling_default(void) { return (kfm_sampling){.top_p = 1}; }

bool kfm_sampler_open(kfm_sampler **out, const kfm_sampling *sampling, int32_t count, kfm_error *error) {
    *out = NULL;
    if (!(sampling->temperature >= 0) || isinf(sampling->temperature))
        return kfm_fail(error, "temperature is %g; 0 (greedy) or a positive number is allowed", sampling->temperature);
    if (sampling->top_k < 0)
        return kfm_fail(error, "top-k is %d; 0 (all) or a positive number is allowed", sampling->top_k);
    if (!(sampling->top_p > 0 && sampling->top_p <= 1))
        return kfm_fail(error, "top-p is %g; above 0 and up to 1 (all) is allowed", sampling->top_p);
    if (!(sampling->min_p >= 0 && sampling->min_p <= 1))
        return kfm_fail(error, "min-p is %g; 0 (all) to 1 is allowed", sampling->min_p);
    if (count < 1) return kfm_fail(error, "a sampler of %d tokens", count);
    kfm_sampler *s = kfm_alloc(1, sizeof *s);
    if (s == NULL) return kfm_fail(error, "out of memory");
    *s = (kfm_sampler){*sampling,
                       count,
                       0,
                       kfm_alloc((uint64_t)count, sizeof *s->heap),
                       kfm_alloc((uint64_t)count, sizeof *s->taken),
                       kfm_alloc((uint64_t)count, sizeof *s->weight)};
    if (s->heap == NULL || s->taken == NULL || s->weight == NULL) {
        kfm_sampler_close(s);
        return kfm_fail(error, "out of memory for the sampling of %d tokens", count);
    }
    *out = s;
    return true;
}

void kfm_sampler_close(kfm_sampler *s) {
    if (s == NULL) return;
    kfm_free(s->heap);
    kfm_free(s->taken);
    kfm_free(s->weight);
    kfm_free(s);
}

// ---- random numbers ----

void kfm_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    enum { ROUNDS = 10 };
    const uint32_t weyl[2] = {0x9e3779b9, 0xbb67ae85}; // golden ratio, √3 − 1
    const uint64_t multiplier[2] = {0xd2511f53, 0xcd9e8d57};
    uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]}, k[2] = {key[0], key[1]};
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t a = multiplier[0] * c[0], b = multiplier[1] * c[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k[1],
                            (uint32_t)a};
        for (int i = 0; i < 4; i++) c[i] = next[i];
        for (int i = 0; i < 2; i++) k[i] += weyl[i];
    }
    for (int i = 0; i < 4; i++) out[i] = c[i];
}

// Uniform in [0, 1), of 32 bits.
static double draw(kfm_sampler *s) {
    uint32_t counter[4] = {(uint32_t)s->draws, (uint32_t)(s->draws >> 32), 0, 0}, out[4];
    uint32_t key[2] = {(uint32_t)s->sampling.seed, (uint32_t)(s->sampling.seed >> 32)};
    kfm_philox(counter, key, out);
    s->draws++;
    return out[0] * 0x1p-32;
}

// ---- candidates, likeliest first ----

static bool likelier(candidate a, candidate b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; }

static void sift_down(candidate *heap, int32_t count, int32_t i) {
    candidate moving = heap[i];
    for (;;) {
        int64_t child = 2 * (int64_t)i + 1;
        if (child >= count) break;
        if (child + 1 < count && likelier(heap[child + 1], heap[child])) child++;
        if (!likelier(heap[child], moving)) break;
        heap[i] = heap[child];
        i = (int32_t)child;
    }
    heap[i] = moving;
}

// Logits that are numbers go into `heap`, unordered; −inf is a number that is never drawn.
static int32_t gather(kfm_sampler *s, const float *logits) {
    int32_t n = 0;
    for (int32_t id = 0; id < s->count; id++)
        if (!isnan(logits[id])) s->heap[n++] = (candidate){logits[id], id};
    return n;
}

static int32_t greedy(const kfm_sampler *s, const float *logits) {
    int32_t best = -1;
    for (int32_t id = 0; id < s->count; id++)
        if (!isnan(logits[id]) && (best < 0 || logits[id] > logits[best])) best = id;
    return best;
}

// exp((logit − max) / temperature): 1 for the largest, also where that is infinite.
static double weigh(const kfm_sampler *s, float logit, float max) {
    return logit == max ? 1 : exp(((double)logit - max) / s->sampling.temperature);
}

// The likeliest of n candidates in the heap goes to place `at` of taken.
static void take(kfm_sampler *s, int32_t *n, int32_t at, float max) {
    s->taken[at] = s->heap[0];
    s->weight[at] = weigh(s, s->heap[0].logit, max);
    s->heap[0] = s->heap[--*n];
    if (*n > 0) sift_down(s->heap, *n, 0);
}

// Whether a candidate of this weight, after others that sum up to `sum` of `total`, is cut off by top_p or min_p.
static bool cut_off(const kfm_sampling *options, double weight, double sum, double total) {
    return sum > 0 && (weight < options->min_p || (options->top_p < 1 && sum >= options->top_p * total));
}

// top_k < n: take k, whose sum is what top_p is a share of, and keep the head of them.
static int32_t select_of_top_k(kfm_sampler *s, int32_t n, float max) {
    double total = 0, sum = 0;
    int32_t kept = 0;
    for (int32_t i = 0; i < s->sampling.top_k; i++) {
        take(s, &n, i, max);
        total += s->weight[i];
    }
    for (; kept < s->sampling.top_k && !cut_off(&s->sampling, s->weight[kept], sum, total); kept++)
        sum += s->weight[kept];
    return kept;
}

// All n are candidates: the sum needs no order, and one after the other is taken until the rest is cut off.
static int32_t select_of_all(kfm_sampler *s, int32_t n, float max) {
    double total = 0, sum = 0;
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++) total += weigh(s, s->heap[i].logit, max);
    for (; n > 0 && !cut_off(&s->sampling, weigh(s, s->heap[0].logit, max), sum, total); kept++) {
        take(s, &n, kept, max);
        sum += s->weight[kept];
    }
    return kept;
}

// No option cuts anything off: no order is needed.
static int32_t select_unordered(kfm_sampler *s, int32_t n) {
    float max = s->heap[0].logit;
    for (int32_t i = 1; i < n; i++) max = s->heap[i].logit > max ? s->heap[i].logit : max;
    for (int32_t i = 0; i < n; i++) {
        s->taken[i] = s->heap[i];
        s->weight[i] = weigh(s, s->heap[i].logit, max);
    }
    return n;
}

// Moves the candidates that top_k, top_p and min_p leave into `taken` with their weights, and returns their number. n
// is at least 1.
static int32_t select_candidates(kfm_sampler *s, int32_t n) {
    const kfm_sampling *options = &s->sampling;
    bool few = options->top_k > 0 && options->top_k < n;
    if (!few && options->top_p >= 1 && options->min_p <= 0) return select_unordered(s, n);
    for (int32_t i = n / 2; i-- > 0;) sift_down(s->heap, n, i);
    return few ? select_of_top_k(s, n, s->heap[0].logit) : select_of_all(s, n, s->heap[0].logit);
}

int32_t kfm_sample(kfm_sampler *s, const float *logits) {
    if (s->sampling.temperature == 0) return greedy(s, logits);
    double u = draw(s); // also where there is no choice: draw n belongs to call n
    int32_t n = gather(s, logits);
    if (n == 0) return -1;
    n = select_candidates(s, n);
    double total = 0, sum = 0;
    for (int32_t i = 0; i < n; i++) total += s->weight[i];
    for (int32_t i = 0; i < n; i++) {
        sum += s->weight[i];
        if (u * total < sum) return s->taken[i].id;
    }
    return s->taken[n - 1].id; // u * total was rounded up to total
}
