/* remote_settle.c - a generation of tasks with parameter servers begins and ends; see remote.h and remote_priv.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/text.h"
#include "comm/comm.h"
#include "ps/client.h"
#include "ps/leader.h"
#include "ps/port.h"
#include "ps/route.h"
#include "train/remote_priv.h"

enum { PROGRESS_MS = 500 }; /* between two informations of the replicas that wait for a settlement */

const char *remote_name_server(void *arg, uint32_t server)
{
    const struct train *t = arg;
    const struct group_view *v = &t->generation.opts.view;

    for (uint32_t i = 0; i < v->n_members; i++) {
        if (server < v->members[i].n_servers)
            return v->members[i].name;
        server -= v->members[i].n_servers;
    }
    return "a parameter server";
}

/* A ps_source_fn: the initial rows, from the file of the model, which is opened when the first rows are
 * needed. The rows are never all in memory. */
static int read_initial(void *arg, uint32_t table, uint32_t part, uint64_t first, uint64_t n,
                        float *out, struct err *err)
{
    struct remote *m = arg;
    int rc = 0;

    CHECK(part == 0);
    if (table >= m->n) {
        remote_initial_dense(m, table, first, n, out);
        return 0;
    }
    if (m->initial == NULL)
        rc = model_open_initial(&m->train->model, &m->initial, err);
    return rc < 0 ? rc : graph_fill_remote(m->initial, table, first, n, out, err);
}

static void close_initial(struct remote *m)
{
    if (m->initial != NULL)
        model_close_initial(&m->train->model, m->initial);
    m->initial = NULL;
}

static void report_settled(const struct train *t, const struct ps_settled *s)
{
    char text[256];

    if (s->n_copied + s->n_followed + s->n_filled + s->n_committed == 0)
        return;
    snprintf(text, sizeof(text),
             "parameter servers hold step %" PRIu64 ": %u shards filled by this task, %u copied "
             "between servers, %u being copied during the next steps, the step applied on %u servers",
             s->step, s->n_filled, s->n_copied, s->n_followed, s->n_committed);
    events_note(&t->events, text);
}

/* Each row is on fewer servers than the job requests. */
static void warn_of_holders(struct train *t, uint32_t wanted, const struct ps_settled *s)
{
    char room[32], needed[32], text[512];

    text_bytes(room, sizeof(room), s->room);
    text_bytes(needed, sizeof(needed), s->needed);
    snprintf(text, sizeof(text),
             "memory: each row is on %u of %u parameter servers of /parameter_server/replicas, because %s has room for "
             "%s of tables and %u would need %s there; %s; start more ps tasks, or raise the limit: the group then "
             "copies the rows when it next changes",
             s->n_holders, wanted, remote_name_server(t, s->tight), room, s->n_holders + 1, needed,
             s->n_holders == 1 ? "the loss of any of them loses steps" : "fewer may fail without a loss of steps");
    events_warn(&t->events, s->step, text);
}

/* The update of the step that the group holds, for servers that have not made it. */
static struct optim_hyper update_of(const struct train *t, uint64_t step)
{
    struct optim_hyper h = t->opts->optimizer.hyper;

    h.step = step;
    optim_cycle(&t->state.schedule, step, &h);
    h.learning_rate = t->state.facts.learning_rate;
    h.grad_scale = t->state.facts.grad_scale;
    return h;
}

enum settling { /* what the coordinator states in an all-reduce, the maximum of which every replica receives */
    SETTLED,
    IS_SETTLING, /* another all-reduce follows */
    HAS_LOST_ROWS,
};

struct settled_words {
    int64_t state, step, version, has_more, n_holders; /* of all servers; 0 until they are settled */
};

/* n: how many times before; the place of the replica moves, so the membership sees that the group advances. */
static int share(struct replica *r, enum settling state, const struct ps_settled *s, uint32_t n,
                 struct settled_words *out, struct err *err)
{
    struct settled_words *words = (struct settled_words *)engine_control(r->device);
    int rc;

    _Static_assert(sizeof(*words) <= CONTROL_WORDS * sizeof(float), "the control words have room");
    place_chunk(&r->device->place, n);
    *words = (struct settled_words){ state, (int64_t)s->step, (int64_t)s->version, s->has_more,
                                      s->n_holders };
    rc = comm_all_reduce(r->train->generation.comm, r->local, words,
                         sizeof(*words) / sizeof(int64_t), TENSOR_I64, COMM_MAX, err);
    *out = *words;
    memset(words, 0, sizeof(*words));
    return rc;
}

/* Called while servers are filled, which may take longer than the limit of the all-reduce in which the other
 * replicas wait. */
static int share_progress(void *arg, struct err *err)
{
    const struct ps_settled none = { 0 };
    struct remote *m = arg;
    struct settled_words unused;

    if (clock_ns() - m->shared_ns < PROGRESS_MS * UINT64_C(1000000))
        return 0;
    m->shared_ns = clock_ns();
    return share(&m->train->replicas[0], IS_SETTLING, &none, m->n_shared++, &unused, err);
}

static const char *name_settled(void *arg, uint32_t server)
{
    return remote_name_server(((struct remote *)arg)->train, server);
}

static int settle(struct replica *r, uint64_t held, struct ps_settled *settled, struct err *err)
{
    struct train *t = r->train;
    struct remote *m = t->remote;
    struct optim_hyper hyper = { 0 };
    struct ps_port port = ps_comm_port(t->generation.comm, 0);
    struct ps_settlement s = { .step = held,
                               .generation = t->generation.opts.view.generation,
                               .model = t->model.initial_crc,
                               .stall_ms = t->generation.opts.deadline_ms,
                               .name = name_settled,
                               .on_progress = share_progress,
                               .arg = m };
    uint32_t wanted;
    int rc;

    m->shared_ns = clock_ns();
    m->n_shared = 0;
    if (held > 0 && !t->state.facts.is_skipped) {
        hyper = update_of(t, held);
        s.hyper = &hyper;
    }
    s.is_initial = held == 0;
    if (s.is_initial)
        s.source = read_initial;
    else if (m->loaded_step == held)
        s.folder = m->loaded;
    wanted = m->route.n_holders;
    rc = ps_leader_settle(m->leader, &port, &m->route, &s, settled, err);
    free(m->loaded);
    m->loaded = NULL;
    close_initial(m);
    if (rc == 0)
        report_settled(t, settled);
    if (rc == 0 && settled->room > 0)
        warn_of_holders(t, wanted, settled);
    return rc;
}

/* The coordinator decides how many servers hold each row, of the job and by the memory: ranks that computed different
 * holders would send gradients to different servers. In an asynchronous phase the servers can hold a later step than the tasks, which hold no parameter. */
static int adopt(struct replica *r, const struct settled_words *words, uint64_t *held,
                 struct err *err)
{
    struct train *t = r->train;

    if (words->n_holders < 1 || words->n_holders > PS_REPLICAS_MAX)
        return err_set(err, ERR_PEER,
                       "the coordinator states %" PRId64 " holders of each row, expected 1 to %d",
                       words->n_holders, PS_REPLICAS_MAX);
    *held = (uint64_t)words->step;
    if (r->local == 0) {
        t->remote->reported = state_held(&t->state);
        t->remote->ahead = (uint64_t)words->version - *held;
        t->remote->unit.n = 0;
        t->remote->has_more = words->has_more != 0;
        ps_route_make(&t->generation.opts.view, (uint32_t)words->n_holders, &t->remote->route);
        t->state.facts.step = *held;
        state_hold(&t->state, *held);
    }
    return generation_gate(&t->generation, &r->device->place, err);
}

/* Every replica learns whether rows are lost, when the coordinator has settled the servers. */
static int share_result(struct replica *r, bool is_lost, const struct ps_settled *settled,
                        uint64_t *held, struct err *err)
{
    struct settled_words words;
    uint32_t n = 0;
    int rc;

    do
        rc = share(r, is_lost ? HAS_LOST_ROWS : SETTLED, settled, n++, &words, err);
    while (rc == 0 && words.state == IS_SETTLING);
    if (rc == 0 && words.state == SETTLED)
        return adopt(r, &words, held, err);
    if (rc < 0)
        return rc;
    return err_set(err, ERR_REFUSED,
                   "no parameter server that is left holds all rows after step %" PRIu64
                   "; all tasks return to the newest checkpoint",
                   *held);
}

int remote_settle(struct replica *r, uint64_t *held, struct err *err)
{
    struct train *t = r->train;
    struct remote *m = t->remote;
    const struct lane_tree *tree = &t->opts->lane_tree;
    struct ps_port port = ps_comm_port(t->generation.comm, r->local);
    uint32_t leaf = lane_tree_leaf(tree, r->device->first_lane);
    struct ps_settled settled = { 0 };
    int rc;

    if (m == NULL)
        return 0;
    place_enter(&r->device->place, PHASE_TRANSFER);
    if (r->local == 0)
        ps_route_make(&t->generation.opts.view, t->opts->ps->replicas, &m->route);
    rc = generation_gate(&t->generation, &r->device->place, err);
    if (rc < 0)
        return rc;
    if (m->route.n_holders == 0)
        return err_set(err, ERR_PEER, "the group has no parameter server");
    if (r->local == 0 && generation_is_coordinator(&t->generation))
        rc = settle(r, *held, &settled, err);
    if (rc == 0 || rc == ERR_REFUSED)
        rc = share_result(r, rc == ERR_REFUSED, &settled, held, err);
    if (rc == 0)
        rc = ps_client_begin_generation(
            m->clients[r->local], &port, comm_first_rank(t->generation.comm) + r->local, &m->route,
            leaf, lane_tree_leaf(tree, r->device->first_lane + r->device->n_lanes) - leaf,
            *held + m->ahead, err);
    return rc < 0 ? err_wrap(err, rc, "parameter servers") : 0;
}

int remote_end(struct replica *r, struct err *err)
{
    struct train *t = r->train;

    if (t->remote == NULL)
        return 0;
    return ps_client_end(t->remote->clients[r->local],
                         state_held(&t->state) == t->model.total_steps, err);
}
