/* agree.c - a generation begins: who is there, who holds what, what is owed.
 *
 * The coordinator says what it was given (files, by their digests) and what everybody shall hold; each task
 * compares. Then one reduction over all tasks tells everybody whether anyone is behind, whether an
 * evaluation is still owed for the step that is held, and whether anyone asks for a pause. */
#include "train/train_priv.h"
#include "base/cancel.h"
#include "base/fault.h"

#include <stdio.h>
#include <string.h>

int agree_connect(struct train *t, struct err *err)
{
    const struct train_group *g = &t->group;
    struct comm_opts o = {
        .generation = g->generation,
        .members = t->members,
        .n_members = g->n_members,
        .self = g->self,
        .shares = t->shares,
        .listener = g->listener,
        .arena = &t->mem.region,
        .shared_memory = g->shared_memory,
        /* A peer that gives something up at the deadline says why; that it is late says less. */
        .deadline_ms = g->deadline_ms + g->deadline_ms / 4,
        .on_broken = g->on_broken,
        .arg = t->opts->arg,
        .on_wait = place_peers,
    };
    struct comm *comm;
    struct train_event e = { .kind = TRAIN_NOTE };
    int rc = fault_error("train.connect", err);

    if (rc < 0 || (g->n_members == 1 && t->opts->n_devices == 1))
        return rc; /* nobody to reduce with */
    train_phase(t, "connect", t->held_step);
    memcpy(o.key, g->key, sizeof(o.key));
    rc = comm_open(&o, &comm, err);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&t->lock);
    t->comm = comm; /* from here on whoever ends the generation aborts it */
    if (cancel_asked(&t->cancel))
        comm_abort(comm, "the generation ended");
    pthread_mutex_unlock(&t->lock);
    rc = comm_connect(comm, err);
    if (rc < 0) {
        struct comm_loss lost;

        if (g->on_broken != NULL && comm_connect_loss(comm, &lost))
            g->on_broken(t->opts->arg, &lost, err->text);
        return rc;
    }
    e.text = comm_describe(comm);
    train_tell(t, &e);
    return 0;
}

static int same(const char *what, const char *here, const char *there, struct err *err)
{
    if (strcmp(here, there) == 0)
        return 0;
    return err_set(err, ERR_INPUT, "the %s of this task (digest %.16s) differs from the chief's (%.16s): "
                                   "give every task the same file", what, here, there);
}

static void propose(struct train *t)
{
    struct agreement *a = t->mem.agreement;

    memset(a, 0, sizeof(*a));
    a->step = t->group.newest_step > 0 ? t->group.newest_step : t->held_step;
    snprintf(a->model_digest, sizeof(a->model_digest), "%s", graph_digest(t->graph));
    snprintf(a->data_digest, sizeof(a->data_digest), "%s", data_digest(t->data));
    memcpy(a->weights_digest, t->weights_digest, sizeof(a->weights_digest));
    a->fresh_crc = t->fresh_crc;
    a->overlap = reduce_decide(t);
}

static int compare(const struct train *t, struct err *err)
{
    const struct agreement *a = t->mem.agreement;
    const struct train_group *g = &t->group;
    uint32_t source = g->newest_step > 0 ? g->newest_member : g->coordinator;
    char here[16], there[16];
    int rc = same("model", graph_digest(t->graph), a->model_digest, err);

    snprintf(here, sizeof(here), "%08x", t->fresh_crc);
    snprintf(there, sizeof(there), "%08x", a->fresh_crc);
    if (rc == 0)
        rc = same("file of weights", t->weights_digest, a->weights_digest, err);
    if (rc == 0)
        rc = same("training data", data_digest(t->data), a->data_digest, err);
    if (rc == 0 && a->step == 0) /* everybody begins with its own copy */
        rc = same("initial weights in the model", here, there, err);
    if (rc < 0)
        return rc;
    if (g->newest_step > 0 && a->step != g->newest_step)
        return err_set(err, ERR_PEER, "%s goes on from step %llu, this task was told step %llu",
                       t->members[g->coordinator].name, (unsigned long long)a->step,
                       (unsigned long long)g->newest_step);
    if (t->held_step > a->step || (g->self == source && t->held_step != a->step))
        return err_set(err, ERR_PEER,
                       "the group goes on from step %llu, this task holds the state after step %llu",
                       (unsigned long long)a->step, (unsigned long long)t->held_step);
    return 0;
}

static int vote(struct replica *r, uint64_t step, struct err *err)
{
    struct train *t = r->train;
    /* Where control words will be: it has to lie where peers can see it. */
    int64_t *votes = (int64_t *)(r->grads[0] + t->mem.params);
    int rc = 0;

    _Static_assert(N_VOTES * sizeof(*votes) <= CONTROL_WORDS * sizeof(float), "votes fit there");
    memset(votes, 0, N_VOTES * sizeof(*votes));
    if (r->local == 0) {
        bool behind = t->held_step < step;

        votes[VOTE_BEHIND] = behind;
        votes[VOTE_UNEVALUATED] =
            !behind && eval_due(t, step) && t->facts.evaluated_step < step;
        votes[VOTE_PAUSE] =
            (__atomic_load_n(&t->requests, __ATOMIC_RELAXED) & TRAIN_ASK_PAUSE) != 0;
        votes[VOTE_TRACES] = t->trace != NULL && !t->traced ? t->opts->trace_steps : 0;
        /* Not who gave its state up and now meets somebody who did not: nobody has been at a checkpoint. */
        if (!t->health.lost || t->group.newest_step == 0)
            votes[VOTE_RESTORED_AT] = (int64_t)t->health.restored_at;
    }
    if (t->comm != NULL)
        rc = comm_all_reduce(t->comm, r->local, votes, N_VOTES, TENSOR_I64, COMM_MAX, err);
    memcpy(r->votes, votes, sizeof(r->votes));
    memset(votes, 0, N_VOTES * sizeof(*votes));
    return rc;
}

int agree_on_state(struct replica *r, uint64_t *step, struct err *err)
{
    struct train *t = r->train;
    int rc;

    place_enter(&r->place, PHASE_AGREE);
    rc = fault_error("train.agree", err);
    if (rc < 0)
        return rc;
    if (r->local == 0)
        propose(t);
    rc = generation_gate(r, err);
    if (rc == 0 && t->comm != NULL)
        rc = comm_broadcast(t->comm, r->local, t->mem.agreement, sizeof(*t->mem.agreement),
                            generation_first_rank(t, t->group.coordinator), err);
    if (rc == 0)
        rc = generation_gate(r, err);
    if (rc == 0)
        rc = compare(t, err);
    if (rc < 0)
        return rc;
    *step = t->mem.agreement->step;
    return vote(r, *step, err);
}
