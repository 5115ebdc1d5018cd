// SPDX-License-Identifier: Apache-2.0
//
// A case of attention: a row of the tables in verify_attention_cases.c. What is zero takes the default that stands beside it, so a row
// names what is special about it and nothing else.
#ifndef KF_TOOLS_VERIFY_ATTENTION_H
#define KF_TOOLS_VERIFY_ATTENTION_H

#include "verify.h"

// Optional tensors (attention_case.with).
enum {
    ALIBI = 1 << 0, // the usual slopes
    SINKS = 1 << 1,
    BIAS = 1 << 2,      // a fifth of it -inf; its first three dimensions full or 1 at random
    MASK = 1 << 3,      // a third of it false; likewise
    LENGTHS = 1 << 4,   // key_lengths: full, random, and 0 for the last sequence of three and more
    POSITIONS = 1 << 5, // of the queries, in no order
    NO_LSE = 1 << 6,
    KEEP_HIDDEN = 1 << 7, // keys that no query sees are left as they are (otherwise they are NaN)
};

typedef struct attention_tensors {
    verify_pool *pool;
    kf_tensor *q, *k, *v, *o, *lse, *key_lengths, *positions, *alibi_slopes, *sinks, *bias, *mask;
    kf_attention_args args;
} attention_tensors;

typedef struct attention_case {
    const char *name;
    int64_t B, H, Hkv, Nq, Nk, D, Dv; // 1, 2, H, 16, 48, 64, D
    const char *q, *kv, *o;           // dtypes: fp32, q's, q's
    uint32_t flags;                   // KF_ATTENTION_CAUSAL, ...
    int64_t left, right;              // of the window, where flags have it
    float scale, softcap;             // as in the args
    uint32_t with;                    // ALIBI, ...
    kf_rope_params rope;
    verify_layout layout;               // of q, k, v, o
    void (*edit)(attention_tensors *t); // makes the data hostile, after they were filled
    double looser;                      // multiplies the bounds that take scores for a few units large; 1
    bool empty;                         // dimensions of 0 are meant (they take no defaults)
    bool spreads;      // on CUDA NaN and infinity of v may reach rows of the same tile that do not see it
    kf_status refused; // the call must be refused with this status
} attention_case;

// The checks.
bool check_attention(verify_run *run, const void *row); // against the oracle, in all ways
bool check_attention_rebind(verify_run *run,
                            const void *row); // one op, bound to other tensors, run with other key lengths
bool check_attention_in_batch(verify_run *run,
                              const void *row); // fixed_split: a sequence alone has the bits that it has in a batch
bool check_attention_merged(verify_run *run, const void *row); // the keys in three parts, then merge_states
bool check_attention_sparse(verify_run *run,
                            const void *row); // strides of 2^30 elements in memory that is mostly not there

void verify_attention_reports(verify_run *run); // the cases of verify_attention_reports.c

#endif
