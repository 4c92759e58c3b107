/* remote_unit.c - units of an asynchronous phase; see remote.h and remote_priv.h. */
#include <math.h>

#include "base/err.h"
#include "base/fault.h"
#include "optim/optim.h"
#include "ps/client.h"
#include "ps/leader.h"
#include "ps/port.h"
#include "train/remote_priv.h"

static struct ps_client *client_of(const struct replica *r)
{
    return r->train->remote->clients[r->local];
}

int remote_limit(struct replica *r, uint64_t step, struct err *err)
{
    int rc = ps_client_limit(client_of(r), step, err);

    return rc < 0 ? err_wrap(err, rc, "parameter servers") : 0;
}

int remote_next(struct replica *r, uint64_t step, uint64_t after, struct ps_next *out,
                struct err *err)
{
    const struct engine_replica *d = r->device;
    int rc = ps_client_next(client_of(r), step, d->first_lane, d->n_lanes, after, out, err);

    return rc < 0 ? err_wrap(err, rc, "parameter servers") : 0;
}

uint64_t remote_reported(const struct replica *r)
{
    return r->train->remote->reported;
}

bool remote_has_more(const struct train *t)
{
    return t->remote != NULL && t->remote->has_more;
}

void remote_stop(struct replica *r, uint64_t step, uint64_t version)
{
    r->train->remote->ahead = version - step;
    r->train->remote->reported = step;
    r->train->remote->has_more = false;
}

int remote_begin_unit(struct replica *r, const struct ps_unit *unit, struct err *err)
{
    r->train->remote->unit = *unit;
    return remote_read_dense(r, ENGINE_ROWS_OF_LANES, err);
}

/* Decides the update of the unit from the votes of all servers. */
static bool decide(const struct remote_update *u, const struct ps_votes *votes,
                   struct optim_hyper *hyper, struct ps_unit_facts *facts)
{
    *hyper = u->hyper;
    facts->loss = u->loss;
    facts->norm = sqrt(votes->squares) * (double)u->hyper.grad_scale;
    facts->is_skipped = !votes->is_finite || !isfinite(u->loss);
    if (u->clip_norm > 0)
        hyper->grad_scale *= optim_clip(facts->norm, u->clip_norm);
    return !facts->is_skipped;
}

int remote_apply_unit(struct replica *r, const struct remote_update *u, struct err *err)
{
    struct remote *m = r->train->remote;
    struct ps_port port = ps_comm_port(r->train->generation.comm, r->local);
    struct ps_unit_facts facts;
    struct optim_hyper hyper;
    struct ps_votes votes;
    uint64_t version;
    bool applies;
    int rc = ps_client_order(client_of(r), &version, err);

    m->unit.n = 0;
    if (rc == 0)
        rc = ps_leader_collect(m->leader, &port, &m->route, version, &votes, err);
    if (rc < 0)
        return err_wrap(err, rc, "votes of the parameter servers");
    applies = decide(u, &votes, &hyper, &facts);
    rc = fault_error("train.unit", err);
    if (rc == 0)
        rc = ps_client_commit_unit(client_of(r), version, applies ? &hyper : NULL, &facts, err);
    return rc < 0 ? err_wrap(err, rc, "parameter servers") : 0;
}
