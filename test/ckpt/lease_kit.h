/* lease_kit.h - for the tests of the lease: a task with a lease, and a fake clock. */
#ifndef TEST_CKPT_LEASE_KIT_H
#define TEST_CKPT_LEASE_KIT_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/fs.h"
#include "ckpt/lease.h"
#include "harness/in_memory.h"

/* Most tests freeze the clock and advance it. Then only requested steps run, because HOLD_MS / 6
 * does not pass in real time during a test. */
enum { HOLD_MS = 60000, WATCH_MS = 90000, TIMEOUT_MS = 20000 };

static char folder[64], leases[80];
static uint64_t now_ms;

static inline void advance_clock(uint64_t ms)
{
    now_ms += ms;
    clock_fake(now_ms * 1000000);
}

static inline int begin_real(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "%s/test_lease.XXXXXX", in_memory());
    if (mkdtemp(folder) == NULL)
        return -1;
    snprintf(leases, sizeof(leases), "%s/leases", folder);
    return 0;
}

static inline int begin(void **state)
{
    now_ms = 1000;
    advance_clock(0);
    return begin_real(state);
}

static inline int end(void **state)
{
    (void)state;
    clock_fake(UINT64_MAX);
    fault_arm(NULL, NULL);
    return fs_remove_tree(folder, NULL);
}

/* ---- a task ---- */

struct task {
    struct lease *lease;
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t news;
    struct lease_state now;
    uint32_t members[8];
    int changes;
};

static inline void on_change(void *arg, const struct lease_state *s)
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

static const char *lease_host; /* host of the tasks started next; NULL: unknown */
static const char *lease_job;  /* job of the tasks started next; NULL: none */

static inline void task_start_ms(struct task *t, uint32_t rank, uint64_t hold_ms, uint64_t watch_ms)
{
    char name[32];
    struct lease_opts o = { .directory = leases, .rank = rank, .name = name, .host = lease_host, .job = lease_job,
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

static inline void task_start(struct task *t, uint32_t rank)
{
    task_start_ms(t, rank, HOLD_MS, WATCH_MS);
}

static inline void task_end(struct task *t)
{
    lease_close(t->lease);
    pthread_cond_destroy(&t->news);
    pthread_mutex_destroy(&t->lock);
}

static inline bool reached(struct task *t, uint64_t ticket, uint64_t ms)
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

static inline void wait_for_answer(struct task *t, uint64_t ticket)
{
    if (!reached(t, ticket, TIMEOUT_MS))
        fail_msg("no answer to %d", (int)ticket);
}

static inline bool acquire(struct task *t, uint64_t after)
{
    static const uint32_t members[] = { 3, 1, 4 };

    wait_for_answer(t, lease_acquire(t->lease, after, members, 3));
    return t->now.is_mine;
}

static inline const struct lease_state *refresh(struct task *t)
{
    wait_for_answer(t, lease_refresh(t->lease));
    return &t->now;
}

enum { GAPS = 5 }; /* a pause between two reads counts for at most a fifth of WATCH_MS */

/* Observes for `ms`, which is more than four fifths of WATCH_MS. */
static inline const struct lease_state *watch(struct task *t, uint64_t ms)
{
    for (int i = 1; i < GAPS; i++) {
        advance_clock(WATCH_MS / GAPS);
        refresh(t);
    }
    advance_clock(ms - (GAPS - 1) * (WATCH_MS / GAPS));
    return refresh(t);
}

static inline bool holds(const struct task *t)
{
    return clock_ns() < lease_hold_until(t->lease);
}

static inline void assert_text_has(const struct task *t, const char *part)
{
    if (strstr(t->now.text, part) == NULL)
        fail_msg("'%s' does not say '%s'", t->now.text, part);
}

static inline void put(const char *name, const void *data, size_t n)
{
    char path[160];
    struct err err;

    assert_int_equal(fs_mkdirs(leases, &err), 0);
    snprintf(path, sizeof(path), "%s/%s", leases, name);
    assert_int_equal(fs_replace(path, data, n, &err), 0);
}

static inline int files(void)
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

#endif
