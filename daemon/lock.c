#include "daemon/lock.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "ckpt/lease.h"
#include "comm/comm.h"
#include "daemon/report.h"
#include "daemon/run_priv.h"
#include "loop/loop.h"
#include "member/node.h"

enum {
    RELEASE_MS = 200,    /* for the release at the end; without it, others wait for the expiry */
    SAVE_WAIT_MS = 3000, /* a save waits for this time for a lease that is being acquired */
    POLL_MS = 5,
    RETRY_MS = 200,      /* between two requests */
    FAILING_MS = 2000,   /* a storage that fails for this time does not delay the training */
};

/* ---- messages ---- */

/* Describes the holder: "worker 0 (10.0.0.1:2222), process 4711 on host1, holds lease 3 of
 * checkpoint.directory '...' since ...". */
static void describe_holder(const struct run *r, const struct lease_state *s, char *text, size_t n)
{
    snprintf(text, n,
             "checkpoint.directory '%s': %s, process %" PRIu64 " on %s, holds lease %" PRIu64
             " since %s",
             r->s->train.checkpoint.directory, s->name[0] != '\0' ? s->name : "an unknown task",
             s->process.pid, s->process.host[0] != '\0' ? s->process.host : "an unknown host",
             s->token, s->process.since[0] != '\0' ? s->process.since : "an unknown time");
}

static void log_wait(struct run *r, const struct lease_state *s)
{
    char holder[2048], text[2400];

    if (r->lock.logged_token == s->token)
        return;
    r->lock.logged_token = s->token;
    r->lock.checks_completion = true;
    describe_holder(r, s, holder, sizeof(holder));
    snprintf(text, sizeof(text), "%s; waiting until it is released, or not renewed for %d s",
             holder, MEMBER_EXPIRY_MS / 1000);
    report_trouble(r->report, text);
    log_warn("lock", "%s", text);
}

static void report_conflict(struct run *r, const struct lease_state *s)
{
    char holder[2048], text[2400];

    if (r->lock.has_conflict)
        return;
    r->lock.has_conflict = true;
    describe_holder(r, s, holder, sizeof(holder));
    snprintf(text, sizeof(text), "%s and renews it; expected one running job for each directory; end that process, or "
                                 "name another checkpoint.directory", holder);
    r->lock.on_conflict(r, text);
}

/* ---- policy ---- */

static void request(struct run *r)
{
    struct lock *l = &r->lock;

    if (l->is_driven || !l->is_wanted || l->is_mine || !l->may_acquire || l->answered < l->ticket ||
        clock_ms() - l->requested_ms < RETRY_MS)
        return;
    l->requested_ms = clock_ms();
    l->ticket = lease_acquire(l->lease, l->token, l->members, l->n_members);
}

/* Another holder is a conflict if it is of another job, or took the lease of a group whose
 * coordinator this task is: then the same cluster text runs twice. */
static void handle_state(struct run *r, const struct lease_state *s)
{
    struct lock *l = &r->lock;
    bool is_other =
        s->token != 0 && !s->is_mine && !s->is_expired && (s->is_foreign || l->was_mine);

    l->has_state = true;
    l->is_reachable = s->is_reachable;
    l->is_mine = s->is_mine;
    l->was_mine = l->was_mine || (s->is_mine && l->is_wanted);
    l->may_acquire = s->is_known && !is_other;
    l->token = s->token;
    l->answered = s->answered;
    atomic_store_explicit(&l->is_blocked, is_other, memory_order_release);
    if (l->on_state != NULL)
        l->on_state(r, s);
    if (r->exit.is_decided || !(l->is_driven || l->is_wanted))
        return;
    if (is_other && s->is_renewed && s->is_known)
        report_conflict(r, s);
    else if (is_other)
        log_wait(r, s);
    else
        request(r);
}

/* A state of the lease on its way to the loop. */
struct lease_change {
    struct run *run;
    struct lease_state state;
    uint32_t members[]; /* [state.n_members] */
};

static void on_change_posted(void *arg)
{
    struct lease_change *n = arg;

    n->state.members = n->members;
    if (!n->run->exit.is_decided && n->run->lock.lease != NULL)
        handle_state(n->run, &n->state);
    free(n);
}

/* Called on the lease's thread. */
static void on_change(void *arg, const struct lease_state *s)
{
    struct run *r = arg;
    struct lease_change *n = calloc(1, sizeof(*n) + s->n_members * sizeof(n->members[0]));

    CHECK(n != NULL);
    n->run = r;
    n->state = *s;
    if (s->n_members > 0)
        memcpy(n->members, s->members, s->n_members * sizeof(n->members[0]));
    loop_post(r->loop, on_change_posted, n);
}

/* ---- interface ---- */

int lock_open(struct run *r, const struct lock_opts *opts, struct err *err)
{
    struct lock *l = &r->lock;
    struct lease_opts o = { .directory = r->s->train.checkpoint.directory,
                            .rank = r->s->cluster->self->rank,
                            .name = opts->name,
                            .job = opts->job,
                            .host = comm_host_key(),
                            .incarnation = opts->incarnation,
                            .hold_ms = MEMBER_HOLD_MS,
                            .watch_ms = MEMBER_EXPIRY_MS,
                            .on_change = on_change,
                            .arg = r };
    int rc;

    l->is_driven = opts->is_driven;
    l->on_state = opts->on_state;
    l->on_conflict = opts->on_conflict;
    if (o.directory == NULL)
        return 0;
    rc = lease_open(&o, &l->lease, err);
    if (rc == 0 && !l->is_driven && o.rank == 0)
        l->ticket = lease_refresh(l->lease); /* the state is known before the first step */
    return rc;
}

void lock_acquire(struct run *r, const struct group_member *members, uint32_t n)
{
    struct lock *l = &r->lock;

    if (l->lease == NULL || l->is_driven)
        return;
    if (n > LEASE_MEMBERS_MAX)
        n = 0; /* unknown members count as the whole cluster */
    free(l->members);
    l->members = calloc(n + 1, sizeof(*l->members));
    CHECK(l->members != NULL);
    for (uint32_t i = 0; i < n; i++)
        l->members[i] = members[i].rank;
    l->n_members = n;
    l->is_wanted = true;
    l->was_mine = l->is_mine;
    if (!l->has_state)
        atomic_store_explicit(&l->is_blocked, true, memory_order_release);
    lease_watch(l->lease, true);
    l->ticket = lease_refresh(l->lease);
}

void lock_release(struct run *r)
{
    struct lock *l = &r->lock;

    if (l->lease == NULL || l->is_driven || !l->is_wanted)
        return;
    l->is_wanted = l->was_mine = false;
    lease_watch(l->lease, false);
    (void)lease_release(l->lease, 0); /* the next coordinator does not wait for it: it is of the same job */
}

void lock_retry(struct run *r)
{
    if (r->lock.lease != NULL)
        request(r);
}

bool lock_must_wait(const struct run *r)
{
    const struct lock *l = &r->lock;

    if (l->lease == NULL || l->is_mine || lease_failing_ms(l->lease) >= FAILING_MS)
        return false;
    return !l->has_state || l->is_reachable;
}

void lock_close(struct run *r)
{
    struct lock *l = &r->lock;

    if (l->lease != NULL && lease_hold_until(l->lease) != 0)
        (void)lease_release(l->lease, RELEASE_MS); /* on failure, others wait for the expiry */
    lease_close(l->lease);
    free(l->members);
    l->lease = NULL;
    l->members = NULL;
}

bool lock_may_step(struct run *r)
{
    return !atomic_load_explicit(&r->lock.is_blocked, memory_order_acquire) ||
           lease_failing_ms(r->lock.lease) >= FAILING_MS;
}

int lock_may_save(struct run *r, struct err *err)
{
    struct lease *l = r->lock.lease;
    uint64_t begin = clock_ms();
    char error[LEASE_TEXT_BYTES];

    while (lease_hold_until(l) == 0 && clock_ms() - begin < SAVE_WAIT_MS &&
           !cancel_requested(&r->cancel))
        usleep(POLL_MS * 1000);
    lease_error(l, error);
    if (lease_hold_until(l) == 0)
        return err_set(err, ERR_TIMEOUT, "this task does not hold the lease yet%s%s",
                       error[0] != '\0' ? ": " : "", error);
    return lease_check(l, err);
}
