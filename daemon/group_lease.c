/* group_lease.c - the lease of a group: changes on the storage become events of the membership, and
 * the threads of training ask here whether they may step and publish checkpoints. */
#include "daemon/group_priv.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/check.h"
#include "base/clock.h"
#include "ckpt/ckpt.h"
#include "ckpt/lease.h"
#include "daemon/complete.h"
#include "daemon/storage.h"
#include "loop/loop.h"

enum {
    RELEASE_MS = 200,     /* limit of the write that marks the lease as released */
    LEASE_WAIT_MS = 3000, /* limit of the wait of a checkpoint for a lease that is being taken */
    LEASE_POLL_MS = 20,   /* interval of the checks during that wait */
    STORAGE_REPORT_MS = 1000, /* interval of the reports of one storage failure */
};

/* ---- membership ---- */

/* A state of the lease on its way to the loop. */
struct lease_change {
    struct run *run;
    struct lease_state state;
    uint32_t members[]; /* [state.n_members] */
};

static void report_lease(struct group *g, const struct lease_state *s)
{
    struct member_lease l = {
        .token = s->token,
        .answered = s->answered >= g->lease.ticket ? g->lease.request : 0,
        .is_mine = s->is_mine,
        .is_over = s->is_expired,
        .is_same_place = s->is_same_address,
        .holder = s->token > 0 && s->holder != LEASE_NO_RANK ? s->holder : MEMBER_NO_RANK,
        .incarnation = strtoull(s->incarnation, NULL, 16),
        .members = s->members,
        .n_members = s->n_members,
        .text = s->is_reachable ? "" : s->text,
    };

    g->lease.is_known = g->lease.is_known || s->is_reachable;
    l.is_known = g->lease.is_known;
    g->lease.token = s->token;
    snprintf(g->lease.text, sizeof(g->lease.text), "%s", s->text);
    rdzv_report(g->rdzv, &(struct member_event){ .kind = MEMBER_EV_LEASE, .lease = &l });
}

static void on_change_posted(void *arg)
{
    struct lease_change *c = arg;

    c->state.members = c->members;
    if (!c->run->exit.is_decided)
        report_lease(c->run->group, &c->state);
    free(c);
}

/* Called on the thread of the lease. */
static void on_lease_change(void *arg, const struct lease_state *s)
{
    struct run *r = arg;
    struct lease_change *c = calloc(1, sizeof(*c) + s->n_members * sizeof(c->members[0]));

    CHECK(c != NULL);
    c->run = r;
    c->state = *s;
    if (s->n_members > 0)
        memcpy(c->members, s->members, s->n_members * sizeof(c->members[0]));
    loop_post(r->loop, on_change_posted, c);
}

void group_lease_acquire(struct run *r, const struct rdzv_action *a)
{
    const struct group_view *record = a->action->view;
    struct group *g = r->group;
    uint32_t *ranks;

    g->lease.request = a->action->request;
    if (a->action->token == UINT64_MAX) {
        g->lease.ticket = lease_refresh(g->lease.lease);
        return;
    }
    ranks = calloc(record->n_members, sizeof(*ranks));
    CHECK(ranks != NULL);
    for (uint32_t i = 0; i < record->n_members; i++)
        ranks[i] = record->members[i].rank;
    g->lease.ticket = lease_acquire(g->lease.lease, a->action->token, ranks, record->n_members);
    free(ranks);
}

void group_lease_release(struct run *r, const struct rdzv_action *a)
{
    (void)a;
    (void)lease_release(
        r->group->lease.lease,
        RELEASE_MS); /* after a failure, the other tasks wait until the lease expires */
}

/* ---- training ---- */

struct completion {
    struct run *run;
    char text[8400];
};

static void on_completed(void *arg)
{
    struct completion *m = arg;

    run_end(m->run, 0, m->text);
    free(m);
}

/* Called on the thread of a replica before the first step of a group smaller than the cluster. The
 * absent tasks may have completed the job while this task was suspended. Returns true if they have;
 * this task then ends with exit code 0. */
static bool was_completed(struct run *r)
{
    struct completion *m = calloc(1, sizeof(*m));

    CHECK(m != NULL);
    m->run = r;
    if (!complete_already(r->s->conf, NULL, m->text, sizeof(m->text))) {
        free(m);
        return false;
    }
    loop_post(r->loop, on_completed, m);
    return true;
}

bool group_may_step(void *arg)
{
    struct run *r = arg;
    struct group *g = r->group;

    if (atomic_exchange_explicit(&g->lease.checks_completion, false, memory_order_acq_rel))
        g->lease.is_completed = was_completed(r);
    if (g->lease.is_completed)
        return false;
    return !atomic_load_explicit(&g->lease.is_needed, memory_order_acquire) ||
           clock_ns() < lease_hold_until(g->lease.lease);
}

/* A coordinator acquires the lease soon, if it can: waits for that. */
int group_may_save(void *arg, struct err *err)
{
    struct run *r = arg;
    struct group *g = r->group;
    uint64_t begin = clock_ms();

    while (lease_hold_until(g->lease.lease) == 0 && clock_ms() - begin < LEASE_WAIT_MS &&
           !cancel_requested(&r->cancel))
        usleep(LEASE_POLL_MS * 1000);
    if (lease_hold_until(g->lease.lease) == 0)
        return err_set(err, ERR_TIMEOUT, "this task does not hold the lease yet");
    return lease_check(g->lease.lease, err);
}

void group_lease_update(struct run *r)
{
    struct group_lease *l = &r->group->lease;
    const struct member_node *n = rdzv_node(r->group->rdzv);

    if (l->lease == NULL)
        return;
    atomic_store_explicit(&l->is_needed, member_node_needs_lease(n), memory_order_release);
    lease_watch(l->lease, member_node_state(n) == MEMBER_LEADING);
}

bool group_lease_permits_save(const struct group *g)
{
    return g->lease.lease == NULL || lease_hold_until(g->lease.lease) != 0;
}

void group_watch_storage(struct run *r, enum member_node_state state)
{
    struct group *g = r->group;
    struct ckpt_failure ckpt;
    struct storage_seen seen = { .ckpt = &ckpt,
                                 .lease_text = g->lease.text,
                                 .deadline_ms = run_deadline_ms(r) };
    char text[600];

    if (state != MEMBER_LEADING || r->train == NULL ||
        clock_ms() - g->lease.storage_reported_ms < STORAGE_REPORT_MS)
        return;
    train_storage(r->train, &ckpt);
    if (g->lease.lease != NULL) {
        seen.needs_lease =
            r->generation == 0 || atomic_load_explicit(&g->lease.is_needed, memory_order_acquire);
        seen.lease_ms = lease_failing_ms(g->lease.lease);
    }
    if (!storage_has_failed(&seen, text, sizeof(text)))
        return;
    g->lease.storage_reported_ms = clock_ms();
    rdzv_report(g->rdzv, &(struct member_event){ .kind = MEMBER_EV_STORAGE, .text = text });
}

/* ---- opening ---- */

/* The whole cluster, and without shared storage a majority of it, cannot have a second group beside
 * it. */
static bool needs_lease(const struct settled *s)
{
    return s->min_world < s->cluster->world && s->train.checkpoint.directory != NULL;
}

int group_lease_open(struct run *r, struct err *err)
{
    struct group *g = r->group;
    char name[400];
    struct lease_opts o = { .directory = r->s->train.checkpoint.directory,
                            .rank = r->s->cluster->self->rank,
                            .name = name,
                            .host = comm_host_key(),
                            .incarnation = g->incarnation,
                            .hold_ms = MEMBER_HOLD_MS,
                            .watch_ms = MEMBER_EXPIRY_MS,
                            .on_change = on_lease_change,
                            .arg = r };

    snprintf(name, sizeof(name), "%.50s (%.70s)", r->s->task_name, r->s->cluster->self->address);
    return needs_lease(r->s) ? lease_open(&o, &g->lease.lease, err) : 0;
}
