/* group_lease.c - the lease of a group: changes on the storage become events of the membership, and
 * the threads of training ask here whether they may step and publish checkpoints. */
#include "daemon/group_priv.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "ckpt/ckpt.h"
#include "ckpt/lease.h"
#include "daemon/complete.h"
#include "daemon/report.h"
#include "daemon/storage.h"

enum {
    RELEASE_MS = 200,         /* limit of the write that marks the lease as released */
    COMPLETION_MS = 500,      /* a storage that answers in this time saves steps after the last one */
    STORAGE_REPORT_MS = 1000, /* interval of the reports of one storage failure */
};

/* ---- membership ---- */

static void on_lease_state(struct run *r, const struct lease_state *s)
{
    struct group *g = r->group;
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
        /* a lease of another job delays the next request, as a failure does */
        .text = s->is_reachable && (!s->is_foreign || s->is_expired) ? "" : s->text,
    };

    g->lease.is_known = g->lease.is_known || s->is_reachable;
    l.is_known = g->lease.is_known;
    g->lease.token = s->token;
    snprintf(g->lease.text, sizeof(g->lease.text), "%s", s->text);
    if (r->lock.is_driven)
        rdzv_report(g->rdzv, &(struct member_event){ .kind = MEMBER_EV_LEASE, .lease = &l });
}

void group_lease_acquire(struct run *r, const struct rdzv_action *a)
{
    const struct group_view *record = a->action->view;
    struct group *g = r->group;
    uint32_t *ranks, n;

    g->lease.request = a->action->request;
    if (a->action->token == UINT64_MAX) {
        g->lease.ticket = lease_refresh(r->lock.lease);
        return;
    }
    n = group_view_n_trainers(record); /* they precede the parameter servers */
    ranks = calloc(n, sizeof(*ranks));
    CHECK(ranks != NULL);
    for (uint32_t i = 0; i < n; i++)
        ranks[i] = record->members[i].rank;
    g->lease.ticket = lease_acquire(r->lock.lease, a->action->token, ranks, n);
    free(ranks);
}

void group_lease_release(struct run *r, const struct rdzv_action *a)
{
    bool is_end = member_node_state(rdzv_node(r->group->rdzv)) == MEMBER_ENDED;

    (void)a;
    /* the loop of a task that goes on does not wait; after a failure, the other tasks wait until the lease expires */
    (void)lease_release(r->lock.lease, is_end ? RELEASE_MS : 0);
}

/* ---- training ---- */

void group_check_completion(struct run *r, bool is_wanted)
{
    struct group_lease *l = &r->group->lease;
    struct err err;

    complete_check_free(l->completion);
    l->completion = NULL;
    l->completion_due_ms = clock_ms() + COMPLETION_MS;
    if (is_wanted && r->lock.lease != NULL &&
        complete_check_start(r->s->conf, COMPLETE_VERIFY, &l->completion, &err) < 0)
        log_warn("checkpoint", "%s", err.text);
}

/* Returns true while the next step must wait for the check, or the job is complete. A storage that
 * hangs delays the steps for COMPLETION_MS; the result may also arrive later. */
static bool completion_stops(struct run *r)
{
    struct group_lease *l = &r->group->lease;
    char text[8400];
    enum complete_state state;

    if (l->completion == NULL)
        return l->is_completed;
    state = complete_check_state(l->completion, text, sizeof(text));
    if (state == COMPLETE_UNKNOWN)
        return clock_ms() < l->completion_due_ms;
    complete_check_free(l->completion);
    l->completion = NULL;
    l->is_completed = state == COMPLETE_YES;
    if (l->is_completed)
        run_end_complete(r, text);
    return l->is_completed;
}

bool group_may_step(void *arg)
{
    struct run *r = arg;
    struct group *g = r->group;

    /* the absent tasks may have completed the job while this task was suspended */
    if (completion_stops(r) || !lock_may_step(r))
        return false;
    return !atomic_load_explicit(&g->lease.is_needed, memory_order_acquire) ||
           clock_ns() < lease_hold_until(r->lock.lease);
}

int group_may_save(void *arg, struct err *err)
{
    return lock_may_save(arg, err);
}

void group_lease_update(struct run *r)
{
    struct group_lease *l = &r->group->lease;
    const struct member_node *n = rdzv_node(r->group->rdzv);

    if (!r->lock.is_driven)
        return;
    atomic_store_explicit(&l->is_needed, member_node_needs_lease(n), memory_order_release);
    lease_watch(r->lock.lease, member_node_state(n) == MEMBER_LEADING);
}

bool group_lease_permits_save(const struct run *r)
{
    return !r->lock.is_driven || lease_hold_until(r->lock.lease) != 0;
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
    if (r->lock.is_driven) {
        seen.needs_lease =
            r->generation == 0 || atomic_load_explicit(&g->lease.is_needed, memory_order_acquire);
        seen.lease_ms = lease_failing_ms(r->lock.lease);
    }
    if (!storage_has_failed(&seen, text, sizeof(text)))
        return;
    g->lease.storage_reported_ms = clock_ms();
    rdzv_report(g->rdzv, &(struct member_event){ .kind = MEMBER_EV_STORAGE, .text = text });
}

/* ---- opening ---- */

/* Another running job holds the lease: no retry of this task can help. */
static void on_conflict(struct run *r, const char *text)
{
    const struct member_loss none = { .peer = MEMBER_NO_RANK };

    report_trouble(r->report, text);
    rdzv_report(r->group->rdzv, &(struct member_event){ .kind = MEMBER_EV_FAILED,
                                                        .generation = r->generation,
                                                        .failure = MEMBER_FAIL_INPUT,
                                                        .loss = &none,
                                                        .text = text });
}

/* The whole cluster, and without shared storage a majority of it, cannot have a second group beside
 * it. */
static bool needs_lease(const struct settled *s)
{
    return s->min_world < s->cluster->world && s->train.checkpoint.directory != NULL;
}

/* Writes the name of the job for its lease: equal for the tasks of one running cluster. If all tasks
 * are on one host, the host belongs to the name: an address such as 127.0.0.1 is valid on every host,
 * and the same cluster text may run on several. */
static void print_job(const struct cluster *c, char *out, size_t n)
{
    bool is_one_host = true;

    for (uint32_t i = 1; i < c->world; i++)
        is_one_host = is_one_host && strcmp(c->ranks[i]->host, c->ranks[0]->host) == 0;
    snprintf(out, n, "%s%s%s", c->hash, is_one_host ? " " : "", is_one_host ? comm_host_key() : "");
}

int group_lease_open(struct run *r, struct err *err)
{
    char name[128], job[128];
    struct lock_opts o = { .name = name,
                           .job = job,
                           .incarnation = r->group->incarnation,
                           .is_driven = needs_lease(r->s),
                           .on_state = on_lease_state,
                           .on_conflict = on_conflict };

    snprintf(name, sizeof(name), "%.50s (%.70s)", r->s->task_name, r->s->cluster->self->address);
    print_job(r->s->cluster, job, sizeof(job));
    return lock_open(r, &o, err);
}
