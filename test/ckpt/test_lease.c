#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/fs.h"
#include "ckpt/lease.h"

/* Most tests hold the clock still, and move it: then only what is asked for happens, for a sixth of
 * HOLD_MS does not pass while they run. */
enum { HOLD_MS = 60000, WATCH_MS = 90000, PATIENCE_MS = 20000 };

static char folder[64], leases[80];
static uint64_t now_ms;

static void go(uint64_t ms)
{
    now_ms += ms;
    clock_fake(now_ms * 1000000);
}

static int begin_real(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "%s/test_lease.XXXXXX",
             access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp");
    if (mkdtemp(folder) == NULL)
        return -1;
    snprintf(leases, sizeof(leases), "%s/leases", folder);
    return 0;
}

static int begin(void **state)
{
    now_ms = 1000;
    go(0);
    return begin_real(state);
}

static int end(void **state)
{
    (void)state;
    clock_fake(UINT64_MAX);
    fault_arm(NULL, NULL);
    return fs_remove_tree(folder, NULL);
}

/* ---- a task ---- */

struct task {
    struct lease *lease;
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t news;
    struct lease_state now;
    uint32_t members[8];
    int changes;
};

static void on_change(void *arg, const struct lease_state *s)
{
    struct task *t = arg;

    pthread_mutex_lock(&t->lock);
    t->now = *s;
    for (uint32_t i = 0; i < s->n_members && i < 8; i++)
        t->members[i] = s->members[i];
    t->changes++;
    pthread_cond_broadcast(&t->news);
    pthread_mutex_unlock(&t->lock);
}

static void task_start_ms(struct task *t, uint32_t rank, uint64_t hold_ms, uint64_t watch_ms)
{
    char name[32];
    struct lease_opts o = { .directory = leases, .rank = rank, .name = name,
                            .incarnation = 0xabc000 + rank, .hold_ms = hold_ms,
                            .watch_ms = watch_ms, .on_change = on_change, .arg = t };
    struct err err;

    *t = (struct task){ .changes = 0 };
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->news, NULL);
    snprintf(name, sizeof(name), "worker %u", rank);
    if (lease_open(&o, &t->lease, &err) < 0)
        fail_msg("%s", err.text);
}

static void task_start(struct task *t, uint32_t rank)
{
    task_start_ms(t, rank, HOLD_MS, WATCH_MS);
}

static void task_end(struct task *t)
{
    lease_close(t->lease);
    pthread_cond_destroy(&t->news);
    pthread_mutex_destroy(&t->lock);
}

static bool reached(struct task *t, uint64_t ticket, uint64_t ms)
{
    struct timespec until;
    int rc = 0;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)(ms / 1000);
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&t->lock);
    while (rc == 0 && t->now.answered < ticket)
        rc = pthread_cond_timedwait(&t->news, &t->lock, &until);
    pthread_mutex_unlock(&t->lock);
    return rc == 0;
}

static void answered(struct task *t, uint64_t ticket)
{
    if (!reached(t, ticket, PATIENCE_MS))
        fail_msg("no answer to %d", (int)ticket);
}

static bool take(struct task *t, uint64_t after)
{
    static const uint32_t members[] = { 3, 1, 4 };

    answered(t, lease_take(t->lease, after, members, 3));
    return t->now.is_mine;
}

static const struct lease_state *look(struct task *t)
{
    answered(t, lease_refresh(t->lease));
    return &t->now;
}

enum { GAPS = 5 }; /* a longer pause between two looks counts as a fifth of the watch */

/* Watches for ms, which is more than four fifths of the watch. */
static const struct lease_state *watch(struct task *t, uint64_t ms)
{
    for (int i = 1; i < GAPS; i++) {
        go(WATCH_MS / GAPS);
        look(t);
    }
    go(ms - (GAPS - 1) * (WATCH_MS / GAPS));
    return look(t);
}

static bool holds(const struct task *t)
{
    return clock_ns() < lease_hold_until(t->lease, NULL);
}

static void says(const struct task *t, const char *part)
{
    if (strstr(t->now.text, part) == NULL)
        fail_msg("'%s' does not say '%s'", t->now.text, part);
}

static void put(const char *name, const void *data, size_t n)
{
    char path[160];
    struct err err;

    assert_int_equal(fs_mkdirs(leases, &err), 0);
    snprintf(path, sizeof(path), "%s/%s", leases, name);
    assert_int_equal(fs_replace(path, data, n, &err), 0);
}

static int files(void)
{
    struct dirent *e;
    DIR *d = opendir(leases);
    int n = 0;

    assert_non_null(d);
    while ((e = readdir(d)) != NULL)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* ---- with the clock held ---- */

static void the_first_one_gets_it_and_the_second_is_told_whose_it_is(void **state)
{
    struct task a, b;
    uint64_t token = 9;

    (void)state;
    task_start(&a, 1);
    task_start(&b, 2);
    assert_int_equal(lease_hold_until(a.lease, &token), 0);
    assert_int_equal(token, 0);
    look(&a);
    assert_int_equal(a.now.token, 0);
    assert_false(a.now.is_mine || a.now.is_over);
    assert_true(a.now.is_reachable);
    says(&a, "no lease was taken yet");
    assert_true(access(leases, F_OK) < 0); /* looking leaves nothing */
    assert_true(take(&a, 0));
    says(&a, "lease 1 is ours");
    assert_int_equal(lease_hold_until(a.lease, &token), (now_ms + HOLD_MS) * 1000000);
    assert_int_equal(token, 1);
    assert_int_equal(lease_check(a.lease, NULL), 0);
    assert_false(take(&b, 0));
    assert_int_equal(b.now.token, 1);
    assert_int_equal(b.now.holder, 1);
    assert_string_equal(b.now.incarnation, "0000000000abc001");
    assert_string_equal(b.now.name, "worker 1");
    assert_int_equal(b.now.n_members, 3);
    assert_int_equal(b.members[0], 3);
    assert_int_equal(b.members[2], 4);
    assert_false(b.now.is_over);
    says(&b, "lease 1 of worker 1");
    says(&b, "is held");
    assert_int_equal(lease_check(b.lease, NULL), ERR_REFUSED);
    task_end(&a);
    task_end(&b);
}

static void every_wish_is_answered_and_only_the_next_number_is_given(void **state)
{
    struct task a, b;
    uint64_t first, second;

    (void)state;
    task_start(&a, 1);
    task_start(&b, 2);
    assert_false(take(&a, 5)); /* there is no 5 */
    assert_int_equal(a.now.token, 0);
    assert_true(take(&a, 0));
    assert_false(take(&b, 0));
    assert_true(take(&b, 1)); /* not waited for a: the caller knows why */
    assert_int_equal(b.now.token, 2);
    first = lease_take(a.lease, 1, NULL, 0); /* of two wishes the later one counts */
    second = lease_take(a.lease, 2, NULL, 0);
    assert_true(second > first);
    answered(&a, second);
    assert_true(a.now.is_mine);
    assert_int_equal(a.now.token, 3);
    assert_int_equal(a.now.n_members, 0);
    task_end(&a);
    task_end(&b);
}

static void the_holder_records_another_group_under_the_next_number(void **state)
{
    static const uint32_t two[] = { 7, 8 };
    struct task a, b;
    uint64_t token;

    (void)state;
    task_start(&a, 1);
    task_start(&b, 2);
    assert_true(take(&a, 0));
    go(HOLD_MS - 1);
    answered(&a, lease_take(a.lease, 1, two, 2));
    assert_true(a.now.is_mine);
    assert_int_equal(lease_hold_until(a.lease, &token), (now_ms + HOLD_MS) * 1000000);
    assert_int_equal(token, 2);
    assert_int_equal(lease_check(a.lease, NULL), 0);
    look(&b);
    assert_int_equal(b.now.token, 2);
    assert_int_equal(b.now.n_members, 2);
    assert_int_equal(b.members[1], 8);
    assert_true(take(&a, 1)); /* an old wish costs nothing */
    assert_int_equal(a.now.token, 2);
    task_end(&a);
    task_end(&b);
}

static void a_holder_that_renews_keeps_it_for_ever(void **state)
{
    struct task a, b;

    (void)state;
    task_start(&a, 1);
    task_start(&b, 2);
    assert_true(take(&a, 0));
    for (int i = 0; i < 20; i++) {
        go(HOLD_MS / 2);
        assert_true(look(&a)->is_mine);
        assert_false(look(&b)->is_over);
        assert_true(holds(&a));
    }
    task_end(&a);
    task_end(&b);
}

/* Whatever the moments at which the two look, they never hold it together. */
static void a_silent_holder_has_lost_it_before_it_is_over_for_another(void **state)
{
    (void)state;
    for (uint64_t gap = 611; gap < 24000; gap += 3701) {
        uint64_t token = 0, looks, counts = gap < WATCH_MS / GAPS ? gap : WATCH_MS / GAPS;
        struct task a, b;

        task_start(&a, 1);
        task_start(&b, 2);
        token = look(&b)->token;
        assert_true(take(&a, token));
        for (looks = 0; !look(&b)->is_over; looks++) { /* a never looks again */
            assert_true(looks * counts <= WATCH_MS);
            go(gap);
        }
        assert_true(looks * counts >= WATCH_MS);
        assert_false(holds(&a));
        says(&b, "not renewed any more");
        assert_true(take(&b, token + 1));
        assert_false(look(&a)->is_mine);
        assert_int_equal(a.now.token, token + 2);
        assert_int_equal(lease_check(a.lease, NULL), ERR_REFUSED);
        assert_true(lease_release(b.lease, PATIENCE_MS));
        task_end(&a);
        task_end(&b);
    }
}

static void what_was_lost_once_stays_lost_and_needs_a_new_number(void **state)
{
    struct task a;

    (void)state;
    task_start(&a, 1);
    assert_true(take(&a, 0));
    go(HOLD_MS);
    assert_false(holds(&a)); /* without a look at the storage */
    assert_false(look(&a)->is_mine);
    assert_true(a.now.is_over); /* at once: it is ours */
    says(&a, "lost");
    assert_int_equal(a.now.token, 1);
    assert_true(take(&a, 1));
    assert_int_equal(a.now.token, 2);
    task_end(&a);
}

/* A host that was frozen: its clock went on, and it saw two renewals far apart, or none. */
static void a_long_pause_of_the_watcher_is_no_silence_of_the_holder(void **state)
{
    struct task a, b;

    (void)state;
    task_start(&a, 1);
    task_start(&b, 2);
    assert_true(take(&a, 0));
    look(&b);
    go(10 * WATCH_MS);
    assert_false(look(&b)->is_over);
    assert_true(watch(&b, WATCH_MS)->is_over);
    task_end(&a);
    task_end(&b);
}

static void what_is_released_is_over_at_once(void **state)
{
    struct task a, b;

    (void)state;
    task_start(&a, 1);
    task_start(&b, 2);
    assert_true(take(&a, 0));
    assert_false(look(&b)->is_over);
    assert_true(lease_release(a.lease, PATIENCE_MS));
    assert_int_equal(lease_hold_until(a.lease, NULL), 0);
    assert_true(look(&b)->is_over);
    says(&b, "released");
    assert_false(look(&a)->is_mine);
    assert_true(a.now.is_over);
    assert_true(take(&b, 1));
    assert_true(lease_release(a.lease, PATIENCE_MS)); /* of nothing */
    assert_true(look(&b)->is_mine);
    task_end(&a);
    task_end(&b);
}

static void who_takes_without_waiting_fences_the_holder(void **state)
{
    struct task a, b;
    struct err err;

    (void)state;
    task_start(&a, 1);
    task_start(&b, 2);
    assert_true(take(&a, 0));
    assert_true(take(&b, look(&b)->token));
    assert_true(holds(&a)); /* it has not looked yet; but it can publish nothing */
    assert_int_equal(lease_check(a.lease, &err), ERR_REFUSED);
    assert_non_null(strstr(err.text, "not ours"));
    assert_false(holds(&a));
    assert_int_equal(look(&a)->holder, 2);
    says(&a, "lease 2 of worker 2");
    task_end(&a);
    task_end(&b);
}

static void nonsense_takes_its_number_and_is_over_when_it_is_old(void **state)
{
    static const char *const nonsense[] = { "\xff{", "", "{}", "{\"token\": 7}" };
    static char huge[200000];
    char path[160];

    (void)state;
    for (int i = 0; i < 8; i++) {
        uint64_t number = 7 + 10 * (uint64_t)i;
        struct task a;
        char name[32];

        snprintf(name, sizeof(name), "lease-%08d", (int)number);
        snprintf(path, sizeof(path), "%s/%s", leases, name);
        if (i < 4)
            put(name, nonsense[i], strlen(nonsense[i]));
        else if (i == 4)
            put(name, huge, sizeof(huge));
        else if (i == 5)
            assert_int_equal(mkdir(path, 0777), 0);
        else if (i == 6)
            assert_int_equal(symlink("/dev/zero", path), 0);
        else
            assert_int_equal(mkfifo(path, 0666), 0);
        put("lease-oops", "x", 1);
        put("lease-00000999x", "x", 1);
        put("lease-999", "x", 1);
        put("lease-99999999999999999999999999", "x", 1);
        put("lease-18446744073709551615", "x", 1);
        task_start(&a, 1);
        look(&a);
        assert_int_equal(a.now.token, number);
        assert_int_equal(a.now.holder, LEASE_NOBODY);
        assert_int_equal(a.now.n_members, 0);
        assert_false(a.now.is_over);
        says(&a, name);
        assert_false(watch(&a, WATCH_MS - 1)->is_over);
        go(1);
        assert_true(look(&a)->is_over);
        assert_true(take(&a, number));
        assert_true(lease_release(a.lease, PATIENCE_MS));
        task_end(&a);
    }
}

static void a_record_is_believed_only_whole_and_under_its_own_number(void **state)
{
    char path[160], other[160], text[1024];
    struct task a, b;
    size_t n;
    FILE *f;

    (void)state;
    task_start(&a, 1);
    assert_true(take(&a, 0));
    task_end(&a);
    snprintf(path, sizeof(path), "%s/lease-00000001", leases);
    snprintf(other, sizeof(other), "%s/lease-00000002", leases);
    f = fopen(path, "rb");
    assert_non_null(f);
    n = fread(text, 1, sizeof(text), f);
    fclose(f);
    put("lease-00000002", text, n); /* a copy under another name */
    task_start(&b, 2);
    assert_int_equal(look(&b)->token, 2);
    says(&b, "its name says 2");
    assert_int_equal(unlink(other), 0);
    for (size_t i = 0; i < n; i++) { /* any byte changed, any byte missing */
        text[i] ^= 1;
        put("lease-00000001", text, n);
        text[i] ^= 1;
        answered(&b, lease_refresh(b.lease));
        assert_int_equal(b.now.holder, LEASE_NOBODY);
        put("lease-00000001", text, i);
        assert_int_equal(look(&b)->holder, LEASE_NOBODY);
    }
    put("lease-00000001", text, n);
    assert_int_equal(look(&b)->holder, 1);
    task_end(&b);
}

static void few_files_are_left(void **state)
{
    struct task a, b;

    (void)state;
    put("lease-00000001.new-00000000000000ff", "x", 1); /* of one that was killed */
    put("other", "x", 1);
    task_start(&a, 1);
    for (uint64_t i = 0; i < 20; i++)
        assert_true(take(&a, i));
    assert_int_equal(files(), 2 * 2 + 1); /* records and beats of the newest two */
    task_start(&b, 2);
    assert_false(take(&b, 7)); /* number 8 was taken, even if nothing tells it any more */
    assert_int_equal(b.now.token, 20);
    assert_int_equal(files(), 2 * 2 + 1);
    task_end(&b);
    task_end(&a);
}

static void settings_that_cannot_be_safe_are_refused(void **state)
{
    struct task t;
    struct lease_opts o = { .directory = folder, .name = "a", .hold_ms = 50, .watch_ms = 50,
                            .on_change = on_change, .arg = &t };
    struct lease *l = NULL;
    struct err err;

    (void)state;
    assert_int_equal(lease_open(&o, &l, &err), ERR_INPUT);
    o.hold_ms = 5;
    assert_int_equal(lease_open(&o, &l, &err), ERR_INPUT);
    assert_null(l);
    lease_close(NULL);
}

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
    uint64_t found = 0, until = lease_hold_until(t->lease, NULL), before;

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
            *child_until = lease_hold_until(t.lease, NULL);
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
        TEST(the_first_one_gets_it_and_the_second_is_told_whose_it_is),
        TEST(every_wish_is_answered_and_only_the_next_number_is_given),
        TEST(the_holder_records_another_group_under_the_next_number),
        TEST(a_holder_that_renews_keeps_it_for_ever),
        TEST(a_silent_holder_has_lost_it_before_it_is_over_for_another),
        TEST(what_was_lost_once_stays_lost_and_needs_a_new_number),
        TEST(a_long_pause_of_the_watcher_is_no_silence_of_the_holder),
        TEST(what_is_released_is_over_at_once),
        TEST(who_takes_without_waiting_fences_the_holder),
        TEST(nonsense_takes_its_number_and_is_over_when_it_is_old),
        TEST(a_record_is_believed_only_whole_and_under_its_own_number),
        TEST(few_files_are_left),
        TEST(settings_that_cannot_be_safe_are_refused),
        TEST(storage_that_fails_costs_the_lease_after_the_time_to_hold),
        TEST(whatever_fails_a_wish_is_answered_and_the_lease_can_be_had),
        TEST(a_disk_that_is_full_costs_the_holder_nothing),
        TEST(storage_that_hangs_holds_up_nobody),
        TEST(a_thread_that_comes_back_after_the_closing_tells_nobody),
        TEST(a_number_that_came_too_late_is_not_ours),
        REAL(of_many_threads_one_acts),
        REAL(a_process_that_is_stopped_loses_it_and_knows_when_it_goes_on),
        TEST(killed_anywhere_the_next_one_gets_it),
        REAL(nothing_is_touched_while_nobody_asks),
    };

    return cmocka_run_group_tests_name("ckpt/lease", tests, NULL, NULL);
}
