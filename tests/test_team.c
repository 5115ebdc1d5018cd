// SPDX-License-Identifier: Apache-2.0
//
// The team of threads: every member runs, barriers hold, nesting and forking work, failing thread creation leaves a
// smaller team, and failing allocations come back as KF_OUT_OF_MEMORY. Linked with --wrap for posix_memalign and
// pthread_create.
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <errno.h>
#include <cmocka.h>

#include "core/internal.h"

static _Atomic int allocations_left = 1 << 30, threads_left = 1 << 30;

int __real_posix_memalign(void **memory, size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t bytes) {
    if (atomic_fetch_sub(&allocations_left, 1) <= 0) return ENOMEM;
    return __real_posix_memalign(memory, alignment, bytes);
}
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
    if (atomic_fetch_sub(&threads_left, 1) <= 0) return EAGAIN;
    return __real_pthread_create(thread, attributes, start, argument);
}

enum { PHASES = 200 };

typedef struct work {
    kf_team *team;
    int sums[PHASES]; // written by all members with a barrier between: ThreadSanitizer sees a missing one
    _Atomic int members;
    bool wrong;
} work;

static void phases(void *argument, int32_t index, int32_t count) {
    work *w = argument;
    atomic_fetch_add(&w->members, 1);
    for (int phase = 0; phase < PHASES; phase++) {
        if (phase % count == index) w->sums[phase] = phase ? w->sums[phase - 1] + 1 : 1;
        kf_team_barrier(w->team, index, count);
        if (w->sums[phase] != phase + 1) w->wrong = true;
        kf_team_barrier(w->team, index, count);
    }
}

static void barriers_hold(void **state) {
    (void)state;
    for (int threads = 1; threads <= 5; threads++) {
        kf_team *team = kf_team_create(threads);
        assert_non_null(team);
        assert_int_equal(kf_team_size(team), threads);
        for (int round = 0; round < 20; round++) {
            work w = {.team = team};
            kf_team_run(team, phases, &w);
            assert_int_equal(w.members, threads);
            assert_false(w.wrong);
        }
        kf_team_destroy(team);
    }
}

static void count_members(void *argument, int32_t index, int32_t count) {
    (void)index;
    atomic_fetch_add((_Atomic int *)argument, count);
}

// Members asleep (the spin is long over) wake up for the next job.
static void sleepers_wake(void **state) {
    (void)state;
    kf_team *team = kf_team_create(3);
    for (int round = 0; round < 5; round++) {
        _Atomic int sum = 0;
        nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
        kf_team_run(team, count_members, &sum);
        assert_int_equal(sum, 9);
    }
    kf_team_destroy(team);
}

typedef struct nested {
    kf_team *team;
    _Atomic int alone;
} nested;

static void run_inside(void *argument, int32_t index, int32_t count) {
    nested *n = argument;
    (void)index;
    (void)count;
    _Atomic int sum = 0;
    kf_team_run(n->team, count_members, &sum); // the team is busy: alone
    if (sum == 1) atomic_fetch_add(&n->alone, 1);
}

static void a_busy_team_leaves_the_caller_alone(void **state) {
    (void)state;
    nested n = {.team = kf_team_create(2)};
    kf_team_run(n.team, run_inside, &n);
    assert_int_equal(n.alone, 2);
    kf_team_destroy(n.team);
}

static void a_forked_child_works_alone(void **state) {
    (void)state;
    kf_team *team = kf_team_create(3);
    _Atomic int before = 0;
    kf_team_run(team, count_members, &before);
    pid_t child = fork();
    if (child == 0) {
        _Atomic int sum = 0;
        kf_team_run(team, count_members, &sum);
        kf_team_destroy(team);
        _exit(sum == 1 ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    kf_team_destroy(team);
}

static void fewer_threads_where_no_more_can_be_made(void **state) {
    (void)state;
    threads_left = 2;
    kf_team *team = kf_team_create(8);
    threads_left = 1 << 30;
    assert_int_equal(kf_team_size(team), 3);
    _Atomic int sum = 0;
    kf_team_run(team, count_members, &sum);
    assert_int_equal(sum, 9);
    kf_team_destroy(team);
}

// Each allocation of the whole life of a context, op and sequence fails once; each failure is reported and nothing
// leaks (see the AddressSanitizer run).
static kf_status whole_life(void) {
    static const kf_dtype fp32 = KF_FP32;
    float x[64] = {1, 2, 3}, y[64];
    int64_t shape[2] = {4, 16};
    kf_tensor tx = kf_tensor_cpu(x, fp32, 2, shape), ty = kf_tensor_cpu(y, fp32, 2, shape);
    kf_softmax_args args;
    kf_softmax_args_init(&args);
    args.x = &tx, args.y = &ty;
    kf_context *context = NULL;
    kf_op *op = NULL;
    kf_sequence *sequence = NULL;
    void *workspace = NULL;
    size_t bytes = 0;
    kf_status status = kf_context_create(NULL, &context);
    if (status == KF_OK) status = kf_softmax(context, &args);
    if (status == KF_OK) status = kf_op_create(context, &args.head, &op);
    if (status == KF_OK) status = kf_sequence_create(context, &sequence);
    for (int i = 0; status == KF_OK && i < 40; i++) status = kf_sequence_add(sequence, op);
    if (status == KF_OK) status = kf_sequence_workspace_size(sequence, &bytes);
    if (status == KF_OK) workspace = malloc(bytes + 1);
    if (status == KF_OK) status = kf_sequence_run(sequence, workspace, bytes);
    free(workspace);
    kf_sequence_destroy(sequence);
    kf_op_destroy(op);
    kf_context_destroy(context);
    return status;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    int failures = 0;
    for (int allowed = 0;; allowed++, failures++) {
        allocations_left = allowed;
        kf_status status = whole_life();
        allocations_left = 1 << 30;
        if (status == KF_OK) break;
        assert_int_equal(status, KF_OUT_OF_MEMORY);
        assert_true(kf_last_error()[0] != 0);
        assert_true(allowed < 1000);
    }
    assert_true(failures >= 5);
    print_message("%d allocations failed one at a time, each reported\n", failures);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(barriers_hold),
        cmocka_unit_test(sleepers_wake),
        cmocka_unit_test(a_busy_team_leaves_the_caller_alone),
        cmocka_unit_test(a_forked_child_works_alone),
        cmocka_unit_test(fewer_threads_where_no_more_can_be_made),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
