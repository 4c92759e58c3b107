/* The lease on storage that fails or hangs, and between threads and processes in real time. */
#include "ckpt/lease_kit.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/mman.h>
#include <sys/wait.h>

/* ---- storage that fails ---- */

static void storage_that_fails_costs_the_lease_after_the_time_to_hold(void **state)
{
    static const char *const points[] = { "lease.beat@1+", "lease.list@1+", "lease.read@1+" };

    struct task blind;

    (void)state;
    assert_int_equal(mkdir(leases, 0777), 0);
    assert_int_equal(fault_arm("lease.list@1+", NULL), 0);
    task_start(&blind, 9);
    assert_false(look(&blind)->is_known);
    assert_false(blind.now.is_reachable);
    fault_arm(NULL, NULL);
    assert_true(look(&blind)->is_known);
    task_end(&blind);
    for (size_t i = 0; i < 3; i++) {
        struct task a;
        uint64_t token;

        task_start(&a, 1);
        token = look(&a)->token;
        assert_true(take(&a, token));
        assert_int_equal(fault_arm(points[i], NULL), 0);
        go(HOLD_MS / 2);
        assert_true(look(&a)->is_mine);
        assert_false(a.now.is_reachable);
        assert_true(a.now.is_known);
        says(&a, "Input/output error");
        assert_int_equal(lease_check(a.lease, NULL), i == 0 ? 0 : ERR_IO);
        go(HOLD_MS / 2);
        assert_false(holds(&a));
        assert_false(look(&a)->is_mine);
        fault_arm(NULL, NULL);
        assert_true(look(&a)->is_reachable);
        assert_true(a.now.is_over);
        assert_true(take(&a, token + 1));
        task_end(&a);
    }
}

/* The n-th passage of any point fails, for every n: the wish is answered, and whoever is told that
 * it holds the lease is the only one; afterwards it can be had. */
static void whatever_fails_a_wish_is_answered_and_the_lease_can_be_had(void **state)
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
        mine = take(&a, 0);
        fired = fault_fired();
        assert_int_equal(fault_arm(NULL, NULL), 0);
        assert_true(mine == holds(&a));
        assert_true(mine || fired);
        look(&b);
        if (b.now.token == 0)
            assert_true(take(&b, 0));
        else
            assert_int_equal(b.now.holder, 1); /* whole, or not there */
        if (!mine && b.now.token == 1 && b.now.holder == 1) {
            assert_true(look(&a)->is_over); /* ours, and nobody holds it */
            assert_true(take(&a, 1));
        }
        task_end(&a);
        task_end(&b);
        assert_int_equal(fs_remove_tree(leases, NULL), 0);
    }
    assert_true(n > 12);
}

static void a_disk_that_is_full_costs_the_holder_nothing(void **state)
{
    struct rlimit before, none;
    struct task a, b;

    (void)state;
    task_start(&a, 1);
    task_start(&b, 2);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = before;
    none.rlim_cur = 60; /* a beat, and no record */
    assert_true(take(&a, 0));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    go(HOLD_MS / 2);
    assert_true(look(&a)->is_mine);
    go(HOLD_MS - 1);
    assert_true(look(&a)->is_mine);
    assert_false(take(&b, 1));
    says(&b, "write '");
    assert_false(b.now.is_reachable);
    assert_int_equal(b.now.token, 1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_true(take(&b, 1));
    task_end(&a);
    task_end(&b);
}

/* The newest number and one more, until the machine lets us have one in time. Returns it. */
static uint64_t take_in_time(struct task *t)
{
    int tries = 1;

    while (!take(t, look(t)->token))
        assert_true(tries++ < 20);
    return t->now.token;
}

static void storage_that_hangs_holds_up_nobody(void **state)
{
    static const char *const points[] = { "lease.list=hang@1+", "lease.beat=hang@1+" };

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        uint64_t token, ticket;
        struct task a;

        clock_fake(UINT64_MAX); /* lease_check() waits by it */
        task_start_ms(&a, 1, 300, 400);
        token = take_in_time(&a);
        assert_int_equal(fault_arm(points[i], NULL), 0);
        assert_int_equal(lease_check(a.lease, NULL), ERR_REFUSED); /* after 300 ms at most */
        assert_false(holds(&a));
        ticket = lease_take(a.lease, token, NULL, 0);
        assert_false(reached(&a, ticket, 10));
        assert_false(lease_release(a.lease, 10));
        lease_watch(a.lease, true);
        task_end(&a); /* its thread stays in there, for good */
        fault_arm(NULL, NULL);
    }
}

static void a_thread_that_comes_back_after_the_closing_tells_nobody(void **state)
{
    struct timespec rest = { .tv_nsec = 700 * 1000000 };
    bool in_time = false;
    struct task a;

    (void)state;
    clock_fake(UINT64_MAX);
    for (int tries = 0; !in_time; tries++) { /* closed before it came back */
        uint64_t begin_ns = clock_ns();

        assert_true(tries < 20);
        assert_int_equal(fs_remove_tree(leases, NULL), 0);
        task_start(&a, 1);
        assert_int_equal(fault_arm("lease.link=delay:600", NULL), 0);
        lease_take(a.lease, 0, NULL, 0);
        while (!fault_fired())
            nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
        task_end(&a);
        in_time = clock_ns() - begin_ns < 600u * 1000000;
        nanosleep(&rest, NULL); /* a sanitizer sees what it touches now */
    }
    assert_int_equal(a.changes, 0);
}

/* The winner tidies away what the other was about to give its name. */
static void who_was_slower_is_told_of_the_winner_and_of_no_trouble(void **state)
{
    struct task a, b;
    uint64_t ticket;

    (void)state;
    task_start(&a, 1);
    task_start(&b, 2);
    assert_int_equal(fault_arm("lease.link=delay:300@1", NULL), 0);
    ticket = lease_take(a.lease, 0, NULL, 0);
    while (!fault_fired())
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    assert_true(take(&b, 0));
    answered(&a, ticket);
    assert_false(a.now.is_mine);
    assert_true(a.now.is_reachable);
    says(&a, "lease 1 of worker 2");
    task_end(&a);
    task_end(&b);
}

/* A take that was slower than the time to hold is a number that nobody holds. */
static void a_number_that_came_too_late_is_not_ours(void **state)
{
    struct task a;

    (void)state;
    clock_fake(UINT64_MAX);
    task_start_ms(&a, 1, 300, 400);
    assert_int_equal(fault_arm("fs.sync=delay:350@1", NULL), 0); /* of the directory */
    assert_false(take(&a, 0));
    assert_int_equal(a.now.token, 1);
    assert_true(a.now.is_over);
    take_in_time(&a);
    task_end(&a);
}

/* ---- threads and processes, in real time ---- */

enum { COMPETITORS = 6 };

/* What all of them share: who acts as the holder. */
static struct {
    uint64_t acting;                 /* 1 + rank; 0: nobody */
    uint64_t disturbed[COMPETITORS]; /* how often another wanted to act while this one did */
    uint64_t clashes, grants;
} shared;

/* Two clash if both were in force: the one who came, when it found the other; the other, when it
 * had ended. A thread that was asleep while its time ran out is no clash: it looks before it acts. */
static void act(struct task *t, uint32_t rank)
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
    nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    __atomic_store_n(&shared.acting, 0, __ATOMIC_SEQ_CST);
    if (before != __atomic_load_n(&shared.disturbed[rank], __ATOMIC_SEQ_CST) && clock_ns() < until)
        __atomic_fetch_add(&shared.clashes, 1, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&shared.grants, 1, __ATOMIC_SEQ_CST);
}

/* Takes what is over, acts while it holds, gives up or falls silent now and then. */
static void compete(uint32_t rank, int rounds)
{
    struct timespec nap = { .tv_nsec = 2 * 1000000 };
    struct task t;
    uint64_t seed = rank * 7 + 1;

    task_start_ms(&t, rank, 60, 120);
    lease_watch(t.lease, true);
    for (int i = 0; i < rounds; i++) {
        struct lease_state now;

        pthread_mutex_lock(&t.lock);
        now = t.now;
        pthread_mutex_unlock(&t.lock);
        if (!now.is_mine && (now.token == 0 || now.is_over))
            answered(&t, lease_take(t.lease, now.token, NULL, 0));
        act(&t, rank);
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        if (seed >> 33 < 1u << 26)
            lease_release(t.lease, 0);
        nanosleep(&nap, NULL);
    }
    lease_release(t.lease, PATIENCE_MS);
    task_end(&t);
}

static void *competitor(void *arg)
{
    compete((uint32_t)(uintptr_t)arg, 250);
    return NULL;
}

static void of_many_threads_one_acts(void **state)
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

/* Until when a child may act; it is in memory that both see. */
static _Atomic uint64_t *child_until;

static pid_t child(uint32_t rank, uint64_t hold_ms)
{
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        struct task t;
        struct timespec nap = { .tv_nsec = 5 * 1000000 };

        alarm(30);
        task_start_ms(&t, rank, hold_ms, 2 * hold_ms);
        if (!take(&t, 0)) { /* too late */
            *child_until = 1;
            _exit(0);
        }
        do {
            *child_until = lease_hold_until(t.lease);
            nanosleep(&nap, NULL);
        } while (holds(&t));
        look(&t);
        /* Fenced: it says so, and may publish nothing. */
        _exit(lease_check(t.lease, NULL) == ERR_REFUSED && !t.now.is_mine ? 0 : 2);
    }
    return pid;
}

/* false: the machine was so busy that the child lost it by itself before it was stopped. */
static bool stop_a_holder(uint64_t hold_ms)
{
    struct timespec nap = { .tv_nsec = 5 * 1000000 };
    uint64_t seen, token;
    bool in_time = true;
    struct task b;
    int status;
    pid_t pid;

    *child_until = 0;
    pid = child(1, hold_ms);
    task_start_ms(&b, 2, hold_ms, 2 * hold_ms);
    lease_watch(b.lease, true);
    seen = clock_ns();
    while (*child_until == 0 && clock_ns() - seen < 10u * 1000000000u)
        nanosleep(&nap, NULL);
    in_time = *child_until != 0;
    seen = clock_ns(); /* it renews: longer than watch_ms it is not over */
    while (in_time && clock_ns() - seen < 2 * hold_ms * 1000000 + 100 * 1000000)
        if (look(&b)->is_over) { /* by our clock; so it must have been so by that of the holder */
            assert_true(clock_ns() >= *child_until);
            in_time = false;
        } else {
            nanosleep(&nap, NULL);
        }
    assert_int_equal(kill(pid, SIGSTOP), 0);
    seen = clock_ns();
    while (!look(&b)->is_over) {
        assert_true(clock_ns() - seen < 10u * 1000000000u);
        nanosleep(&nap, NULL);
    }
    assert_int_equal(b.now.holder, 1);
    token = b.now.token;
    in_time = take(&b, token) && in_time;
    assert_int_equal(kill(pid, SIGCONT), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(look(&b)->token, token + 1);
    in_time = b.now.is_mine && in_time;
    task_end(&b);
    return in_time;
}

static void a_process_that_is_stopped_loses_it_and_knows_when_it_goes_on(void **state)
{
    uint64_t hold_ms = 300;

    (void)state;
    child_until = mmap(NULL, sizeof(*child_until), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                       -1, 0);
    assert_true(child_until != MAP_FAILED);
    while (!stop_a_holder(hold_ms)) {
        print_message("%d ms to hold were too few: once more\n", (int)hold_ms);
        hold_ms *= 3;
        assert_true(hold_ms < 5000);
        assert_int_equal(fs_remove_tree(leases, NULL), 0);
    }
    munmap(child_until, sizeof(*child_until));
}

/* A holder that is killed leaves its number; every n-th passage, while it takes and renews. */
static void killed_anywhere_the_next_one_gets_it(void **state)
{
    bool killed = true;
    int n;

    (void)state;
    for (n = 1; killed; n++) {
        int status;
        struct task b;
        pid_t pid = fork();

        assert_true(pid >= 0);
        if (pid == 0) {
            struct task a;
            char spec[32];

            alarm(30);
            task_start(&a, 1);
            snprintf(spec, sizeof(spec), "*=kill@%d", n);
            fault_arm(spec, NULL);
            take(&a, 0);
            look(&a);
            lease_release(a.lease, PATIENCE_MS);
            _exit(0);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        killed = WIFSIGNALED(status);
        task_start(&b, 2);
        look(&b);
        if (b.now.token != 0) {
            assert_int_equal(b.now.holder, 1);
            assert_true(killed || b.now.is_over); /* released */
            assert_true(watch(&b, WATCH_MS)->is_over);
        }
        assert_true(take(&b, b.now.token));
        task_end(&b);
        assert_int_equal(fs_remove_tree(leases, NULL), 0);
    }
    assert_true(n > 12);
}

static void nothing_is_touched_while_nobody_asks(void **state)
{
    struct timespec nap = { .tv_nsec = 100 * 1000000 };
    struct task a;
    uint64_t before;

    (void)state;
    task_start_ms(&a, 1, 30, 60);
    assert_int_equal(fault_arm("nothing", NULL), 0); /* passages are counted */
    nanosleep(&nap, NULL);
    assert_int_equal(fault_passed(), 0);
    lease_watch(a.lease, true);
    for (int naps = 0; fault_passed() <= 3; naps++) {
        assert_true(naps < 100);
        nanosleep(&nap, NULL);
    }
    lease_watch(a.lease, false);
    look(&a);
    before = fault_passed();
    nanosleep(&nap, NULL);
    assert_int_equal(fault_passed(), before);
    task_end(&a);
}

int main(void)
{
#define TEST(f_) cmocka_unit_test_setup_teardown(f_, begin, end)
#define REAL(f_) cmocka_unit_test_setup_teardown(f_, begin_real, end)
    const struct CMUnitTest tests[] = {
        TEST(storage_that_fails_costs_the_lease_after_the_time_to_hold),
        TEST(whatever_fails_a_wish_is_answered_and_the_lease_can_be_had),
        TEST(a_disk_that_is_full_costs_the_holder_nothing),
        TEST(storage_that_hangs_holds_up_nobody),
        TEST(a_thread_that_comes_back_after_the_closing_tells_nobody),
        TEST(who_was_slower_is_told_of_the_winner_and_of_no_trouble),
        TEST(a_number_that_came_too_late_is_not_ours),
        REAL(of_many_threads_one_acts),
        REAL(a_process_that_is_stopped_loses_it_and_knows_when_it_goes_on),
        TEST(killed_anywhere_the_next_one_gets_it),
        REAL(nothing_is_touched_while_nobody_asks),
    };

    return cmocka_run_group_tests_name("ckpt/lease_storage", tests, NULL, NULL);
}
