/* agree.c - see agree.h. */
#include "train/agree.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/fault.h"
#include "comm/comm.h"
#include "data/data.h"
#include "train/agree_message.h"
#include "train/task.h"

int agree_connect(struct train *t, struct err *err)
{
    const struct train_generation *g = &t->generation.opts;
    struct comm_opts o = {
        .view = g->view,
        .shares = g->view.n_pieces == 0 ? t->generation.leaves : NULL,
        /* codes with residuals use the calls of float32 */
        .groups = code_keeps_residuals(t->opts->code.kind) ? 0 : t->opts->code.groups,
        .listener = g->listener,
        .arena = &t->engine->memory.region,
        .shared_memory = g->shared_memory,
        .encrypts = g->encrypts,
        .spares = t->engine->spares,
        /* Longer than the deadline: a peer that fails at the deadline states the cause. */
        .deadline_ms = g->deadline_ms + g->deadline_ms / 4,
        .on_broken = g->on_broken,
        .arg = t->opts->arg,
        .on_wait = place_peers,
    };
    struct comm *comm;
    int rc = fault_error("train.connect", err);

    if (rc < 0 || (g->view.n_members == 1 && t->opts->n_devices == 1))
        return rc; /* there is no other replica */
    events_phase(&t->events, "connect", state_held(&t->state));
    memcpy(o.key, g->key, sizeof(o.key));
    rc = comm_open(&o, &comm, err);
    if (rc < 0)
        return rc;
    generation_set_comm(&t->generation, comm);
    rc = comm_connect(comm, err);
    if (rc < 0) {
        struct comm_loss lost;

        if (g->on_broken != NULL && comm_connect_loss(comm, &lost))
            g->on_broken(t->opts->arg, &lost, err->text);
        return rc;
    }
    events_note(&t->events, comm_describe(comm));
    return 0;
}

static int same(const char *what, const char *here, const char *there, struct err *err)
{
    if (strcmp(here, there) == 0)
        return 0;
    return err_set(err, ERR_INPUT,
                   "the %s of this task (digest %.16s) differs from the chief's (%.16s): "
                   "give every task the same file",
                   what, here, there);
}

/* Compares the content of the files. ERR_CORRUPT ends this task alone with 138, as a damaged record does: the copies of
 * the other hosts may be good. */
static int same_content(const char *what, const struct data_set *s, const uint32_t *here,
                        const uint32_t *there, const char *coordinator, struct err *err)
{
    uint32_t part = model_differing_part(here, there);
    char place[1100];

    if (part == AGREE_CONTENT_PARTS)
        return 0;
    data_content_place(s, part, place, sizeof(place));
    return err_set(err, ERR_CORRUPT,
                   "the %s data of this task differs from that of %s in %s (checksum %08x, expected %08x): give "
                   "every task the same files; compare the output of sha256sum on both hosts",
                   what, coordinator, place, here[part], there[part]);
}

/* The agreement as this replica sends or receives it; in the head of the engine's region, which peers can
 * reach. */
static uint8_t *message_of(const struct replica *r)
{
    return (uint8_t *)r->train->engine->memory.head + (size_t)r->local * AGREE_BYTES;
}

/* Called by local replica 0, whose message the coordinator broadcasts. */
static void propose(const struct replica *r)
{
    const struct train *t = r->train;
    struct agreement a = { .step = t->generation.opts.view.newest_step > 0
                                       ? t->generation.opts.view.newest_step
                                       : state_held(&t->state),
                           .initial_crc = t->model.initial_crc,
                           .overlap = t->engine->ops->overlaps(t->engine),
                           .uses_network = t->generation.comm != NULL &&
                                           comm_uses_network(t->generation.comm) };

    snprintf(a.model_digest, sizeof(a.model_digest), "%s", t->model.digest);
    snprintf(a.data_digest, sizeof(a.data_digest), "%s", t->model.data_digest);
    snprintf(a.weights_digest, sizeof(a.weights_digest), "%s", t->model.weights.digest);
    memcpy(a.content, t->model.content, sizeof(a.content));
    agree_message_write(&a, message_of(r));
}

static int compare(const struct train *t, const struct agreement *a, struct err *err)
{
    const struct group_view *v = &t->generation.opts.view;
    uint32_t source = v->newest_step > 0 ? v->newest_member : v->coordinator;
    const char *coordinator = v->members[v->coordinator].name;
    char here[16], there[16];
    int rc = same("model", t->model.digest, a->model_digest, err);

    snprintf(here, sizeof(here), "%08x", t->model.initial_crc);
    snprintf(there, sizeof(there), "%08x", a->initial_crc);
    if (rc == 0)
        rc = same("file of weights", t->model.weights.digest, a->weights_digest, err);
    if (rc == 0)
        rc = same("training data", t->model.data_digest, a->data_digest, err);
    if (rc == 0)
        rc = same_content("training", t->model.data, t->model.content[0], a->content[0],
                          coordinator, err);
    if (rc == 0)
        rc = same_content("evaluation", t->model.eval_data, t->model.content[1], a->content[1],
                          coordinator, err);
    if (rc == 0 && a->step == 0) /* every task starts with its own copy */
        rc = same("initial weights in the model", here, there, err);
    if (rc < 0)
        return rc;
    if (v->newest_step > 0 && a->step != v->newest_step)
        return err_set(
            err, ERR_PEER, "%s continues from step %llu, but this task was started with step %llu",
            coordinator, (unsigned long long)a->step, (unsigned long long)v->newest_step);
    if (state_held(&t->state) > a->step || (v->self == source && state_held(&t->state) != a->step))
        return err_set(
            err, ERR_PEER,
            "the group continues from step %llu, but this task holds the state after step %llu",
            (unsigned long long)a->step, (unsigned long long)state_held(&t->state));
    return 0;
}

static int vote(struct replica *r, uint64_t step, struct err *err)
{
    struct train *t = r->train;
    /* The later place of the control words, because peers must be able to access it. */
    int64_t *votes = (int64_t *)engine_control(r->device);
    int rc = 0;

    _Static_assert(N_VOTES * sizeof(*votes) <= CONTROL_WORDS * sizeof(float), "votes fit there");
    memset(votes, 0, N_VOTES * sizeof(*votes));
    if (r->local == 0) {
        bool behind = state_held(&t->state) < step;

        votes[VOTE_BEHIND] = behind;
        votes[VOTE_UNEVALUATED] = !behind && phases_evaluate(&t->phases, &t->model, step) &&
                                  t->state.facts.evaluated_step < step;
        votes[VOTE_PAUSE] = (atomic_load_explicit(&t->generation.requests, memory_order_relaxed) &
                             TRAIN_REQUEST_PAUSE) != 0;
        votes[VOTE_TRACES] = t->trace != NULL && !t->was_traced ? t->opts->trace_steps : 0;
        /* Not if this task discarded its state and another task still holds it: then no task has
         * loaded a checkpoint. */
        if (!t->health.state_invalid || t->generation.opts.view.newest_step == 0)
            votes[VOTE_RESTORED_AT] = (int64_t)t->health.restored_at;
    }
    if (t->generation.comm != NULL)
        rc = comm_all_reduce(t->generation.comm, r->local, votes, N_VOTES, TENSOR_I64, COMM_MAX,
                             err);
    memcpy(r->votes, votes, sizeof(r->votes));
    memset(votes, 0, N_VOTES * sizeof(*votes));
    return rc;
}

int agree_on_state(struct replica *r, struct agreement *out, struct err *err)
{
    struct train *t = r->train;
    uint32_t coordinator = t->generation.opts.view.coordinator;
    int rc;

    place_enter(&r->device->place, PHASE_AGREE);
    rc = fault_error("train.agree", err);
    if (rc < 0)
        return rc;
    if (r->local == 0)
        propose(r);
    rc = generation_gate(&t->generation, &r->device->place, err);
    if (rc == 0 && t->generation.comm != NULL)
        rc = comm_broadcast(t->generation.comm, r->local, message_of(r), AGREE_BYTES,
                            generation_first_rank(&t->generation, coordinator), err);
    if (rc == 0)
        rc = generation_gate(&t->generation, &r->device->place, err);
    if (rc == 0)
        rc = agree_message_read(t->generation.comm != NULL ? message_of(r) : t->engine->memory.head,
                                t->generation.opts.view.members[coordinator].name, out, err);
    if (rc == 0)
        rc = compare(t, out, err);
    if (rc < 0)
        return rc;
    return vote(r, out->step, err);
}
