/* The lease on failing or hanging storage, and between threads and processes in real time. */
#include "ckpt/lease_kit.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "harness/process.h"
#include "harness/refuse.h"
#include "harness/wait.h"

/* ---- storage that fails ---- */

static void lease_on_failing_storage_is_lost_after_hold_ms(void **state)
{
    static const char *const points[] = { "lease.beat@1+", "lease.list@1+", "lease.read@1+" };

    struct task blind;

    (void)state;
    assert_int_equal(mkdir(leases, 0777), 0);
    assert_int_equal(fault_arm("lease.list@1+", NULL), 0);
    task_start(&blind, 9);
    assert_false(refresh(&blind)->is_known);
    assert_false(blind.now.is_reachable);
    fault_arm(NULL, NULL);
    assert_true(refresh(&blind)->is_known);
    task_end(&blind);
    for (size_t i = 0; i < 3; i++) {
        struct task a;
        uint64_t token;

        task_start(&a, 1);
        token = refresh(&a)->token;
        assert_true(acquire(&a, token));
        assert_int_equal(fault_arm(points[i], NULL), 0);
        advance_clock(HOLD_MS / 2);
        assert_true(refresh(&a)->is_mine);
        assert_false(a.now.is_reachable);
        assert_true(a.now.is_known);
        assert_text_has(&a, "Input/output error");
        assert_int_equal(lease_check(a.lease, NULL), i == 0 ? 0 : ERR_IO);
        advance_clock(HOLD_MS / 2);
        assert_false(holds(&a));
        assert_false(refresh(&a)->is_mine);
        fault_arm(NULL, NULL);
        assert_true(refresh(&a)->is_reachable);
        assert_true(a.now.is_expired);
        assert_true(acquire(&a, token + 1));
        task_end(&a);
    }
}

/* Injects a failure at the n-th passage of any point, for every n: the request is answered, a task
 * that is told that it holds the lease is the only holder, and afterwards the lease can be
 * acquired. */
static void lease_request_with_any_failure_is_answered_and_the_lease_stays_available(void **state)
{
    bool fired = true;
    int n;

    (void)state;
    for (n = 1; fired; n++) {
        struct task a, b;
        char spec[32];
        bool mine;

        task_start(&a, 1);
        task_start(&b, 2);
        snprintf(spec, sizeof(spec), "*@%d", n);
        assert_int_equal(fault_arm(spec, NULL), 0);
        mine = acquire(&a, 0);
        fired = fault_fired();
        assert_int_equal(fault_arm(NULL, NULL), 0);
        assert_true(mine == holds(&a));
        assert_true(mine || fired);
        refresh(&b);
        if (b.now.token == 0)
            assert_true(acquire(&b, 0));
        else
            assert_int_equal(b.now.holder, 1); /* the record is complete or does not exist */
        if (!mine && b.now.token == 1 && b.now.holder == 1) {
            assert_true(refresh(&a)->is_expired); /* its own lease, not held */
            assert_true(acquire(&a, 1));
        }
        task_end(&a);
        task_end(&b);
        assert_int_equal(fs_remove_tree(leases, NULL), 0);
    }
    assert_true(n > 12);
}

static void lease_on_a_full_disk_is_kept(void **state)
{
    struct rlimit before, none;
    struct task a, b;

    (void)state;
    task_start(&a, 1);
    task_start(&b, 2);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = before;
    none.rlim_cur = 60; /* room for a heartbeat, but not for a record */
    assert_true(acquire(&a, 0));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    advance_clock(HOLD_MS / 2);
    assert_true(refresh(&a)->is_mine);
    advance_clock(HOLD_MS - 1);
    assert_true(refresh(&a)->is_mine);
    assert_false(acquire(&b, 1));
    assert_text_has(&b, "write '");
    assert_false(b.now.is_reachable);
    assert_int_equal(b.now.token, 1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_true(acquire(&b, 1));
    task_end(&a);
    task_end(&b);
}

/* Acquires the next token, repeatedly on a slow machine, until it is held. Returns the token. */
static uint64_t acquire_in_time(struct task *t)
{
    int tries = 1;

    while (!acquire(t, refresh(t)->token))
        assert_true(tries++ < 20);
    return t->now.token;
}

static void lease_on_hanging_storage_blocks_no_caller(void **state)
{
    static const char *const points[] = { "lease.list=hang@1+", "lease.beat=hang@1+" };

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        uint64_t token, ticket;
        struct task a;

        clock_fake(UINT64_MAX); /* lease_check() uses the clock */
        task_start_ms(&a, 1, 300, 400);
        token = acquire_in_time(&a);
        assert_int_equal(fault_arm(points[i], NULL), 0);
        assert_int_equal(lease_check(a.lease, NULL), ERR_REFUSED); /* after at most 300 ms */
        assert_false(holds(&a));
        ticket = lease_acquire(a.lease, token, NULL, 0);
        assert_false(reached(&a, ticket, 10));
        assert_false(lease_release(a.lease, 10));
        lease_watch(a.lease, true);
        task_end(&a); /* its thread hangs forever */
        fault_arm(NULL, NULL);
    }
}

static void lease_thread_that_returns_after_close_reports_nothing(void **state)
{
    int n_threads = wait_n_threads();
    struct task a;

    (void)state;
    task_start(&a, 1);
    assert_int_equal(fault_arm("lease.link=hold", NULL), 0);
    lease_acquire(a.lease, 0, NULL, 0);
    WAIT_UNTIL(fault_fired());
    task_end(&a);
    assert_int_equal(fault_arm(NULL, NULL), 0);
    WAIT_UNTIL(wait_n_threads() <= n_threads); /* a sanitizer detects accesses of the thread */
    assert_int_equal(a.changes, 0);
}

/* The new holder removes the temporary file that the other task is about to link. */
static void lease_acquire_lost_to_another_reports_the_winner_without_an_error(void **state)
{
    struct task a, b;
    uint64_t ticket;

    (void)state;
    task_start(&a, 1);
    task_start(&b, 2);
    assert_int_equal(fault_arm("lease.link=hold", NULL), 0);
    ticket = lease_acquire(a.lease, 0, NULL, 0);
    WAIT_UNTIL(fault_fired());
    assert_true(acquire(&b, 0));
    assert_int_equal(fault_arm(NULL, NULL), 0);
    wait_for_answer(&a, ticket);
    assert_false(a.now.is_mine);
    assert_true(a.now.is_reachable);
    assert_text_has(&a, "lease 1 of worker 2");
    task_end(&a);
    task_end(&b);
}

static void lease_without_hard_links_has_one_holder(void **state)
{
    static const int errnums[] = { EPERM, EOPNOTSUPP, ENOSYS };
    int status;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(errnums); i++) {
        pid_t child = process_fork();

        if (child == 0) {
            struct task a, b;
            uint64_t token;

            refuse_calls(REFUSE_LINK, errnums[i]);
            task_start(&a, 1);
            task_start(&b, 2);
            token = refresh(&a)->token;
            EXPECT(acquire(&a, token), "%s", a.now.text);
            EXPECT(!acquire(&b, token), "the record of the next token exists");
            EXPECT(b.now.is_reachable && strstr(b.now.text, "of worker 1") != NULL, "%s",
                   b.now.text);
            EXPECT(lease_check(a.lease, NULL) == 0, "%s", a.now.text);
            EXPECT(acquire(&b, token + 1), "%s", b.now.text);
            EXPECT(!refresh(&a)->is_mine, "%s", a.now.text);
            task_end(&a);
            task_end(&b);
            process_end();
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
}

/* An acquisition that takes longer than hold_ms yields a token without a holder. */
static void lease_acquired_after_hold_ms_is_not_held(void **state)
{
    struct task a;
    uint64_t ticket;

    (void)state;
    task_start(&a, 1);
    assert_int_equal(fault_arm("fs.sync=hold", NULL), 0); /* the sync of the directory */
    ticket = lease_acquire(a.lease, 0, NULL, 0);
    WAIT_UNTIL(fault_fired());
    advance_clock(HOLD_MS + 1);
    assert_int_equal(fault_arm(NULL, NULL), 0);
    wait_for_answer(&a, ticket);
    assert_false(a.now.is_mine);
    assert_int_equal(a.now.token, 1);
    assert_true(a.now.is_expired);
    assert_true(acquire(&a, 1));
    task_end(&a);
}

/* ---- threads and processes, in real time ---- */

enum { COMPETITORS = 6 };

/* Shared by all competitors. */
static struct {
    uint64_t acting;                 /* 1 + rank of the acting task; 0: none */
    uint64_t disturbed[COMPETITORS]; /* times another task began to act while this one acted */
    uint64_t clashes, grants;
} shared;

/* Two tasks conflict if both held the lease: the second when it found the first acting, and the
 * first after it had acted. A thread that slept until its lease expired is not a conflict: it
 * checks the time before it acts. */
static void act_as_holder(struct task *t, uint32_t rank)
{
    uint64_t found = 0, until = lease_hold_until(t->lease), before;

    if (clock_ns() >= until)
        return;
    before = __atomic_load_n(&shared.disturbed[rank], __ATOMIC_SEQ_CST);
    if (!__atomic_compare_exchange_n(&shared.acting, &found, rank + 1, false, __ATOMIC_SEQ_CST,
                                     __ATOMIC_SEQ_CST)) {
        if (clock_ns() < until)
            __atomic_fetch_add(&shared.disturbed[found - 1], 1, __ATOMIC_SEQ_CST);
        return;
    }
    wait_disturb(2000000);
    __atomic_store_n(&shared.acting, 0, __ATOMIC_SEQ_CST);
    if (before != __atomic_load_n(&shared.disturbed[rank], __ATOMIC_SEQ_CST) && clock_ns() < until)
        __atomic_fetch_add(&shared.clashes, 1, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&shared.grants, 1, __ATOMIC_SEQ_CST);
}

/* Acquires expired leases, acts while it holds one, and sometimes releases it or stops renewing. */
static void compete(uint32_t rank, int rounds)
{
    struct task t;
    uint64_t seed = rank * 7 + 1;

    task_start_ms(&t, rank, 60, 120);
    lease_watch(t.lease, true);
    for (int i = 0; i < rounds; i++) {
        struct lease_state now;

        pthread_mutex_lock(&t.lock);
        now = t.now;
        pthread_mutex_unlock(&t.lock);
        if (!now.is_mine && (now.token == 0 || now.is_expired))
            wait_for_answer(&t, lease_acquire(t.lease, now.token, NULL, 0));
        act_as_holder(&t, rank);
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        if (seed >> 33 < 1u << 26)
            lease_release(t.lease, 0);
        wait_disturb(4000000);
    }
    lease_release(t.lease, TIMEOUT_MS);
    task_end(&t);
}

static void *competitor(void *arg)
{
    compete((uint32_t)(uintptr_t)arg, 250);
    return NULL;
}

static void lease_with_competing_threads_has_one_holder_at_a_time(void **state)
{
    pthread_t threads[COMPETITORS];

    (void)state;
    memset(&shared, 0, sizeof(shared));
    for (uintptr_t i = 0; i < COMPETITORS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, competitor, (void *)i), 0);
    for (size_t i = 0; i < COMPETITORS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(shared.clashes, 0);
    assert_true(shared.grants > 10);
}

/* lease_hold_until() of the child, in shared memory. */
static _Atomic uint64_t *child_until;

static pid_t child(uint32_t rank, uint64_t hold_ms)
{
    pid_t pid = process_fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        struct task t;

        alarm(WAIT_GUARD_S);
        task_start_ms(&t, rank, hold_ms, 2 * hold_ms);
        if (!acquire(&t, 0)) { /* too late */
            *child_until = 1;
            _exit(0);
        }
        WAIT_UNTIL((*child_until = lease_hold_until(t.lease)) <= clock_ns());
        refresh(&t);
        /* The child was fenced: lease_check() must fail. */
        _exit(lease_check(t.lease, NULL) == ERR_REFUSED && !t.now.is_mine ? 0 : 2);
    }
    return pid;
}

/* Stops a child that holds a lease; false: on a busy machine the child lost the lease before. */
static bool try_stop_holder(uint64_t hold_ms)
{
    uint64_t first, token;
    bool in_time, is_expired = false;
    struct task b;
    int status;
    pid_t pid;

    *child_until = 0;
    pid = child(1, hold_ms);
    task_start_ms(&b, 2, hold_ms, 2 * hold_ms);
    lease_watch(b.lease, true);
    WAIT_UNTIL(*child_until != 0);
    first = *child_until; /* 1: the child was too late */
    /* while the child renews, the lease does not expire */
    if (first > 1)
        WAIT_UNTIL((is_expired = refresh(&b)->is_expired) ||
                   *child_until > first + 3 * hold_ms * 1000000);
    if (is_expired) /* for this observer, so also for the holder */
        assert_true(clock_ns() >= *child_until);
    in_time = first > 1 && !is_expired;
    assert_int_equal(kill(pid, SIGSTOP), 0);
    WAIT_UNTIL(refresh(&b)->is_expired);
    assert_int_equal(b.now.holder, 1);
    token = b.now.token;
    in_time = acquire(&b, token) && in_time;
    assert_int_equal(kill(pid, SIGCONT), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(refresh(&b)->token, token + 1);
    in_time = b.now.is_mine && in_time;
    task_end(&b);
    return in_time;
}

static void lease_of_a_stopped_process_is_lost_and_the_process_knows_it(void **state)
{
    uint64_t hold_ms = 300;

    (void)state;
    child_until =
        mmap(NULL, sizeof(*child_until), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(child_until != MAP_FAILED);
    while (!try_stop_holder(hold_ms)) {
        print_message("%d ms to hold were too few: once more\n", (int)hold_ms);
        hold_ms *= 3;
        assert_true(hold_ms < 5000);
        assert_int_equal(fs_remove_tree(leases, NULL), 0);
    }
    munmap(child_until, sizeof(*child_until));
}

/* A holder is killed at its n-th passage, for every n, while it acquires and renews. */
static void lease_of_a_process_killed_anywhere_can_be_acquired(void **state)
{
    bool killed = true;
    int n;

    (void)state;
    for (n = 1; killed; n++) {
        int status;
        struct task b;
        pid_t pid = process_fork();

        assert_true(pid >= 0);
        if (pid == 0) {
            struct task a;
            char spec[32];

            alarm(WAIT_GUARD_S);
            task_start(&a, 1);
            snprintf(spec, sizeof(spec), "*=kill@%d", n);
            fault_arm(spec, NULL);
            acquire(&a, 0);
            refresh(&a);
            lease_release(a.lease, TIMEOUT_MS);
            _exit(0);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        killed = WIFSIGNALED(status);
        task_start(&b, 2);
        refresh(&b);
        if (b.now.token != 0) {
            assert_int_equal(b.now.holder, 1);
            assert_true(killed || b.now.is_expired); /* released */
            assert_true(watch(&b, WATCH_MS)->is_expired);
        }
        assert_true(acquire(&b, b.now.token));
        task_end(&b);
        assert_int_equal(fs_remove_tree(leases, NULL), 0);
    }
    assert_true(n > 12);
}

static void lease_without_requests_accesses_no_storage(void **state)
{
    enum { SEVERAL_INTERVALS_NS = 100 * 1000000 };
    struct task a;
    uint64_t before;

    (void)state;
    task_start_ms(&a, 1, 30, 60);
    assert_int_equal(fault_arm("nothing", NULL), 0); /* only counts passages */
    wait_disturb(SEVERAL_INTERVALS_NS);
    assert_int_equal(fault_n_passages(), 0);
    lease_watch(a.lease, true);
    WAIT_UNTIL(fault_n_passages() > 3);
    lease_watch(a.lease, false);
    refresh(&a);
    before = fault_n_passages();
    wait_disturb(SEVERAL_INTERVALS_NS);
    assert_int_equal(fault_n_passages(), before);
    task_end(&a);
}

int main(void)
{
#define TEST(f_) cmocka_unit_test_setup_teardown(f_, begin, end)
#define REAL(f_) cmocka_unit_test_setup_teardown(f_, begin_real, end)
    const struct CMUnitTest tests[] = {
        TEST(lease_on_failing_storage_is_lost_after_hold_ms),
        TEST(lease_request_with_any_failure_is_answered_and_the_lease_stays_available),
        TEST(lease_on_a_full_disk_is_kept),
        TEST(lease_on_hanging_storage_blocks_no_caller),
        TEST(lease_thread_that_returns_after_close_reports_nothing),
        TEST(lease_acquire_lost_to_another_reports_the_winner_without_an_error),
        TEST(lease_without_hard_links_has_one_holder),
        TEST(lease_acquired_after_hold_ms_is_not_held),
        REAL(lease_with_competing_threads_has_one_holder_at_a_time),
        REAL(lease_of_a_stopped_process_is_lost_and_the_process_knows_it),
        TEST(lease_of_a_process_killed_anywhere_can_be_acquired),
        REAL(lease_without_requests_accesses_no_storage),
    };

    return cmocka_run_group_tests_name("ckpt/lease_storage", tests, NULL, NULL);
}
