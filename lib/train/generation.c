/* generation.c - one generation of a task: from train_start() to on_end.
 *
 * The threads of a generation end by themselves, each when it is through or when something failed;
 * the last one lets the peers go and tells how it ended. What is left then, and stays for the next
 * generation, is the state, and what is said about it (train_priv.h: facts). */
#include <stdlib.h>
#include <string.h>

#include "base/cancel.h"
#include "base/check.h"
#include "base/fault.h"
#include "base/thread.h"
#include "train/train_priv.h"

enum { QUIET_MS = 20 }; /* how long peers that are alive may take to let go of our memory */

/* ---- ending early ---- */

static void remember(struct train *t, const struct err *err, bool aborted)
{
    if (t->result != 0)
        return;
    t->result = err->code;
    t->error = *err;
    t->aborted = aborted;
}

void train_remember(struct train *t, const struct err *err)
{
    pthread_mutex_lock(&t->lock);
    remember(t, err, false);
    pthread_mutex_unlock(&t->lock);
}

static void end_early(struct train *t, const struct err *err, bool aborted)
{
    pthread_mutex_lock(&t->lock);
    remember(t, err, aborted);
    cancel_set(&t->cancel, true);
    if (t->comm != NULL)
        comm_abort(t->comm, err->text);
    for (uint32_t i = 0; i < t->opts->n_devices; i++) {
        if (t->replicas[i].reader != NULL)
            data_reader_cancel(t->replicas[i].reader);
        if (t->replicas[i].side_reader != NULL)
            data_reader_cancel(t->replicas[i].side_reader);
    }
    pthread_mutex_unlock(&t->lock);
    gate_break(&t->gate);
}

int reader_open(struct train *t, struct data_set *data, const struct data_reader_opts *opts,
                struct data_reader **at, struct err *err)
{
    struct data_reader *reader;
    int rc = data_reader_open(data, opts, &reader, err);

    if (rc < 0)
        return rc;
    pthread_mutex_lock(&t->lock);
    *at = reader;
    if (train_canceled(t))
        data_reader_cancel(reader);
    pthread_mutex_unlock(&t->lock);
    return 0;
}

void reader_close(struct train *t, struct data_reader **at)
{
    struct data_reader *reader;

    pthread_mutex_lock(&t->lock);
    reader = *at;
    *at = NULL;
    pthread_mutex_unlock(&t->lock);
    data_reader_close(reader);
}

void train_fail(struct train *t, const struct err *err)
{
    end_early(t, err, false);
}

void train_lose(struct train *t, const struct err *err)
{
    pthread_mutex_lock(&t->lock);
    t->result = err->code;
    t->error = *err;
    t->aborted = false;
    pthread_mutex_unlock(&t->lock);
    train_fail(t, err);
}

void train_abort(struct train *t, const char *why)
{
    struct err err;

    (void)err_set(&err, ERR_CANCELED, "%s", why);
    end_early(t, &err, true);
}

int train_check_canceled(const struct train *t, struct err *err)
{
    return train_canceled(t) ? err_set(err, ERR_CANCELED, "the generation ended") : 0;
}

int generation_gate(struct replica *r, struct err *err)
{
    if (!place_meet(&r->place, &r->train->gate))
        return err_set(err, ERR_CANCELED, "the generation ended");
    return 0;
}

/* ---- starting ---- */

static char *copy(const char *s)
{
    return strdup(s != NULL ? s : "");
}

static void free_members(struct train *t)
{
    for (uint32_t i = 0; t->members != NULL && i < t->group.n_members; i++) {
        free((char *)t->members[i].name);
        free((char *)t->members[i].host);
        free((char *)t->members[i].address);
    }
    free(t->members);
    t->members = NULL;
}

static int copy_group(struct train *t, const struct train_group *g, struct err *err)
{
    t->group = *g;
    t->members = calloc(g->n_members, sizeof(*t->members));
    if (t->members == NULL)
        return err_set(err, ERR_NOMEM, "generation: out of memory");
    for (uint32_t i = 0; i < g->n_members; i++) {
        struct comm_member *m = &t->members[i];

        m->n_ranks = g->members[i].n_ranks;
        m->name = copy(g->members[i].name);
        m->host = copy(g->members[i].host);
        m->address = copy(g->members[i].address);
        if (m->name == NULL || m->host == NULL || m->address == NULL) {
            free_members(t);
            return err_set(err, ERR_NOMEM, "generation: out of memory");
        }
    }
    t->group.members = t->members;
    return 0;
}

static uint32_t count_ranks(const struct train_group *g, uint32_t end)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < end; i++)
        n += g->members[i].n_ranks;
    return n;
}

uint32_t generation_first_rank(const struct train *t, uint32_t member)
{
    return count_ranks(&t->group, member);
}

static int check_group(const struct train *t, const struct train_group *g, struct err *err)
{
    const struct train_opts *o = t->opts;
    uint32_t world = count_ranks(g, g->n_members);
    uint32_t least = o->min_replicas > 0 ? o->min_replicas : o->replicas;

    CHECK(g->self < g->n_members && g->coordinator < g->n_members && (g->newest_step == 0 || g->newest_member < g->n_members));
    if (g->members[g->self].n_ranks != o->n_devices)
        return err_set(err, ERR_INPUT, "the group counts on %u replicas of %s, which has %u",
                       g->members[g->self].n_ranks, g->members[g->self].name, o->n_devices);
    if (world > o->replicas)
        return err_set(err, ERR_INPUT, "the group has %u replicas, this job was planned for %u", world,
                       o->replicas);
    if (world < least)
        return err_set(err, ERR_INPUT, "the group has %u replicas, this job was planned for %u%s",
                       world, least, least < o->replicas ? " or more" : "");
    if (g->newest_step < t->held_step)
        return err_set(err, ERR_PEER,
                       "the group goes on from step %llu, but %s holds the state after step %llu: "
                       "nothing that was done is thrown away",
                       (unsigned long long)g->newest_step, g->members[g->self].name,
                       (unsigned long long)t->held_step);
    return 0;
}

/* Each rank gets the lanes (micro-batches) of its share, in the order of the ranks. */
static void share_lanes(struct train *t)
{
    const struct train_group *g = &t->group;
    uint32_t first_rank = count_ranks(g, g->self), lane = 0;

    comm_share(t->opts->lanes, count_ranks(g, g->n_members), t->shares);
    for (uint32_t i = 0; i < first_rank; i++)
        lane += t->shares[i];
    for (uint32_t i = 0; i < t->opts->n_devices; i++) {
        struct replica *r = &t->replicas[i];

        r->rank = first_rank + i;
        r->first_lane = lane;
        r->n_lanes = t->shares[r->rank];
        lane += r->n_lanes;
    }
}

void generation_join(struct train *t)
{
    for (uint32_t i = 0; t->replicas != NULL && i < t->opts->n_devices; i++)
        if (t->replicas[i].started) {
            pthread_join(t->replicas[i].thread, NULL);
            t->replicas[i].started = false;
        }
}

void generation_close(struct train *t)
{
    generation_join(t);
    free_members(t);
}

static void let_peers_go(struct train *t)
{
    struct comm *comm;

    pthread_mutex_lock(&t->lock);
    comm = t->comm;
    t->comm = NULL;
    pthread_mutex_unlock(&t->lock);
    /* A peer that was stopped in the middle of a call writes on when it is continued. */
    if (!comm_close_quiet(comm, QUIET_MS))
        t->renew_region = true;
}

/* All of them, or none is left: those that have begun give up, and there is no last one to tell of it. */
static int start_threads(struct train *t, struct err *err)
{
    for (uint32_t i = 0; i < t->opts->n_devices; i++) {
        struct replica *r = &t->replicas[i];
        int rc = fault_error("train.thread", err);

        if (rc == 0) {
            place_start(&r->place, t->held_step, PLACE_WORKS);
            place_start(&r->reducer.place, t->held_step, PLACE_WAITS_LOCAL);
            rc = thread_start(&r->thread, "trains a replica", replica_main, r, err);
            r->started = rc == 0;
        }
        if (rc == 0)
            continue;
        train_fail(t, err);
        generation_join(t);
        let_peers_go(t);
        __atomic_store_n(&t->running, 0, __ATOMIC_RELEASE);
        return rc;
    }
    return 0;
}

int train_start(struct train *t, const struct train_group *g, train_end_fn *on_end, struct err *err)
{
    const struct train_opts *o = t->opts;
    int rc = check_group(t, g, err);

    if (rc < 0)
        return rc;
    generation_close(t); /* the one before */
    CHECK(t->comm == NULL && __atomic_load_n(&t->running, __ATOMIC_ACQUIRE) == 0);
    rc = copy_group(t, g, err);
    if (rc < 0)
        return rc;
    share_lanes(t);
    sample_log_group(t->samples, g->generation, g->key, sizeof(g->key));
    __atomic_store_n(&t->may_save, g->may_save, __ATOMIC_RELEASE);
    __atomic_store_n(&t->deadline_ms, g->deadline_ms, __ATOMIC_RELAXED);
    __atomic_and_fetch(&t->requests, ~(unsigned)TRAIN_ASK_PAUSE, __ATOMIC_RELAXED);
    t->on_end = on_end;
    t->result = 0;
    health_begin(t);
    t->aborted = t->tracing = t->is_unsaved = false;
    cancel_set(&t->cancel, false);
    gate_init(&t->gate, o->n_devices, o->n_devices <= device_cores());
    gate_init(&t->solid, o->n_devices, o->n_devices <= device_cores());
    __atomic_store_n(&t->running, o->n_devices, __ATOMIC_RELEASE);
    return start_threads(t, err);
}

void train_request(struct train *t, unsigned kinds)
{
    __atomic_or_fetch(&t->requests, kinds, __ATOMIC_RELAXED);
}

uint64_t train_held(const struct train *t)
{
    return __atomic_load_n(&t->held_step, __ATOMIC_ACQUIRE);
}

/* ---- the end ---- */

void generation_over(struct train *t)
{
    uint64_t held = train_held(t);
    bool failed, aborted;
    struct err err;

    if (t->tracing)
        trace_end(t->trace, held == t->total_steps ? t->group.deadline_ms : 0);
    let_peers_go(t);
    pthread_mutex_lock(&t->lock);
    failed = t->result < 0;
    aborted = t->aborted;
    err = t->error;
    pthread_mutex_unlock(&t->lock);
    if (failed)
        t->on_end(t->opts->arg, aborted ? TRAIN_ABORTED : t->is_unsaved ? TRAIN_UNSAVED : health_end(t), held, err.code,
                  err.text);
    else
        t->on_end(t->opts->arg, held == t->total_steps ? TRAIN_COMPLETE : TRAIN_PAUSED, held, 0, "");
}
