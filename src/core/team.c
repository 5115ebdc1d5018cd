// SPDX-License-Identifier: Apache-2.0
//
// A team of threads: a job is called once on every member and the caller is one of them. The members wait for jobs, for
// each other at barriers, and the caller for the end, all by the same rule: spin a while on one word, then sleep on one
// condition variable.
//
// Why not OpenMP: libgomp prints, exits and aborts, hangs in forked children and blinds ThreadSanitizer. Measured on 2
// cores of Zen 4 (see docs/design.md): a fork and join costs 1.4-1.9 us, a spinning barrier 0.16 us.
#include "core/internal.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define relax() _mm_pause()
#else
#define relax() ((void)0)
#endif

// About 50 us on Zen 4 (a pause is 65 cycles there): longer than the time between two operations of a model's step,
// shorter than what another program would miss.
enum { SPINS = 3000 };

struct kf_team {
    _Atomic uint32_t generation; // counts jobs; members wait for it to change
    _Atomic uint32_t phase;      // counts barriers passed
    _Atomic int32_t arrived;     // members at the barrier
    _Atomic uint32_t finished;   // counts jobs that the members have left
    _Atomic int32_t working;     // members, the caller not counted, still in the job
    _Atomic int32_t sleepers;
    _Atomic int32_t busy;
    _Atomic int32_t quit;
    kf_team_job job;
    void *argument;
    pid_t owner; // a forked child has this memory but not these threads
    int32_t size;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct member {
        kf_team *team;
        pthread_t thread;
        int32_t index;
    } member[];
};

// Returns once *word differs from `old`.
static void wait_for_change(kf_team *team, _Atomic uint32_t *word, uint32_t old) {
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != old) return;
        relax();
    }
    pthread_mutex_lock(&team->mutex);
    // Announced before the last look, and announce() looks after its change: one of the two sees the other.
    atomic_fetch_add(&team->sleepers, 1);
    while (atomic_load(word) == old) pthread_cond_wait(&team->changed, &team->mutex);
    atomic_fetch_sub(&team->sleepers, 1);
    pthread_mutex_unlock(&team->mutex);
}

static void announce(kf_team *team, _Atomic uint32_t *word) {
    atomic_fetch_add(word, 1);
    if (atomic_load(&team->sleepers) == 0) return;
    pthread_mutex_lock(&team->mutex);
    pthread_cond_broadcast(&team->changed);
    pthread_mutex_unlock(&team->mutex);
}

static void *member_main(void *argument) {
    struct member *self = argument;
    kf_team *team = self->team;
    for (uint32_t seen = 0;; seen++) {
        wait_for_change(team, &team->generation, seen);
        if (atomic_load(&team->quit)) return NULL;
        team->job(team->argument, self->index, team->size);
        if (atomic_fetch_sub(&team->working, 1) == 1) announce(team, &team->finished);
    }
}

// Members take no signals: they are the program's.
static int32_t start_members(kf_team *team, int32_t threads) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int32_t started = 1;
    for (; started < threads; started++) {
        struct member *m = &team->member[started - 1];
        m->team = team;
        m->index = started;
        if (pthread_create(&m->thread, NULL, member_main, m) != 0) break;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

kf_team *kf_team_create(int32_t threads) {
    kf_team *team = kf_alloc(sizeof *team + (size_t)threads * sizeof team->member[0]);
    if (!team) return NULL;
    *team = (kf_team){.owner = getpid(), .size = 1};
    if (pthread_mutex_init(&team->mutex, NULL) != 0) goto no_mutex;
    if (pthread_cond_init(&team->changed, NULL) != 0) goto no_condition;
    team->size = start_members(team, threads);
    return team;
no_condition:
    pthread_mutex_destroy(&team->mutex);
no_mutex:
    kf_free(team);
    return NULL;
}

void kf_team_destroy(kf_team *team) {
    if (!team) return;
    if (team->owner == getpid()) {
        atomic_store(&team->quit, 1);
        announce(team, &team->generation);
        for (int32_t i = 0; i < team->size - 1; i++) pthread_join(team->member[i].thread, NULL);
        pthread_cond_destroy(&team->changed);
        pthread_mutex_destroy(&team->mutex);
    }
    kf_free(team);
}

int32_t kf_team_size(const kf_team *team) { return team->size; }

void kf_team_run(kf_team *team, kf_team_job job, void *argument) {
    if (team->size == 1 || team->owner != getpid() || atomic_exchange(&team->busy, 1)) {
        job(argument, 0, 1);
        return;
    }
    uint32_t finished = atomic_load(&team->finished);
    team->job = job;
    team->argument = argument;
    atomic_store(&team->working, team->size - 1);
    announce(team, &team->generation);
    job(argument, 0, team->size);
    wait_for_change(team, &team->finished, finished);
    atomic_store(&team->busy, 0);
}

void kf_team_barrier(kf_team *team, int32_t index, int32_t count) {
    (void)index;
    if (count == 1) return;
    uint32_t phase = atomic_load(&team->phase);
    if (atomic_fetch_add(&team->arrived, 1) == count - 1) {
        atomic_store(&team->arrived, 0);
        announce(team, &team->phase);
    } else {
        wait_for_change(team, &team->phase, phase);
    }
}
