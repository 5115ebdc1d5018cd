// SPDX-License-Identifier: Apache-2.0
// The choice of the next token from logits l.
//
//   temperature 0   the largest logit, the lowest id among equals (greedy)
//   otherwise       p = softmax(l / temperature), over the top_k largest; of these the shortest head whose sum reaches
//   top_p (Holtzman et al., arXiv 1904.09751);
//                   of these the ones with p >= min_p · max p (Nguyen et al., arXiv 2407.01082); one of them drawn by p
//
// Draw n of a seed is word 0 of Philox4x32-10 (Salmon et al., SC 2011, doi 10.1145/2063384.2063405) at counter n under
// the key `seed`: a function of (seed, n), without state, the same on every machine. Tokens with equal logits are
// ordered by id. A NaN logit is never chosen.
#ifndef KFM_SAMPLER_H
#define KFM_SAMPLER_H

#include "model/common.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kfm_sampling {
    double temperature; // 0: greedy
    int32_t top_k;      // 0: all
    double top_p;       // 1: all
    double min_p;       // 0: all
    uint64_t seed;
} kfm_sampling;

typedef struct kfm_sampler kfm_sampler;

// Greedy, seed 0.
kfm_sampling kfm_sampling_default(void);

// For logits of `count` tokens. Refuses a temperature that is negative or no number, top_k < 0, top_p outside (0, 1],
// min_p outside [0, 1].
bool kfm_sampler_open(kfm_sampler **out, const kfm_sampling *sampling, int32_t count, kfm_error *error);
void kfm_sampler_close(kfm_sampler *sampler);

// The token chosen; −1 where no logit is a number. Allocates nothing. The n-th call of a sampler uses draw n.
int32_t kfm_sample(kfm_sampler *sampler, const float *logits);

// Philox4x32-10: out = the block of `counter` under `key`.
void kfm_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

#ifdef __cplusplus
}
#endif
#endif
