/* server_unit.c - the gradient of one unit becomes an update (units.h); see server.h.
 *
 *     rank                         every server
 *     PUSH of its unit             keeps it
 *     ORDER, with the TICKET       computes the gradient; VOTE to the rank
 *     COMMIT, after all votes      updates, or skips; marks the lanes as applied (server_step.c)
 *
 * The sequencer gives one TICKET at a time, so all servers apply the units in the same order: every holder of
 * a shard has the same bits, and either all servers apply a unit or none. Messages of different ranks may
 * overtake each other by one version: an ORDER waits for the COMMIT before it. */
#include "base/err.h"
#include "base/fault.h"
#include "ps/server_priv.h"

int server_unit_push(struct ps_server *s, uint32_t from, const struct ps_message *m,
                     const uint8_t *data, size_t n, struct err *err)
{
    const struct ps_unit unit = { m->step, m->number, (uint32_t)m->first };
    struct rank *r = &s->ranks[from];
    int rc;

    if (s->is_holding && s->has_unit && s->unit_rank == from && !r->waits) {
        r->waits = true; /* its COMMIT waits for copied rows */
        return server_keep(s, r, &r->later, data, n, err);
    }
    if (!s->is_holding || r->has_pushed || m->first > s->units.n_lanes ||
        !ps_units_is_free(&s->units, &unit))
        return server_unexpected(s, from, "PUSH", m->step, err);
    rc = fault_error("ps.push", err);
    if (rc == 0)
        rc = server_keep(s, r, &r->push, data, n, err);
    if (rc < 0)
        return rc;
    r->has_pushed = true;
    r->unit = unit;
    return server_is_sequencer(s) ? server_turns_add(s, from, err) : 0;
}

static int sum_unit(struct ps_server *s, uint32_t from, struct err *err)
{
    s->ranks[from].orders = false;
    s->has_unit = true;
    s->unit_rank = from;
    return server_sum(s, from, 1, from, err);
}

int server_order(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err)
{
    struct rank *r = &s->ranks[from];

    if (s->is_holding && s->has_unit && m->step == s->version + 2 && !r->orders) {
        r->orders = true;
        return 0;
    }
    if (!s->is_holding || s->has_unit || server_is_pending(s) || !r->has_pushed ||
        m->step != s->version + 1)
        return server_unexpected(s, from, "ORDER", m->step, err);
    return sum_unit(s, from, err);
}

int server_unit_continue(struct ps_server *s, struct err *err)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && !s->has_unit && i < s->n_ranks; i++)
        if (s->ranks[i].orders)
            rc = s->ranks[i].has_pushed ? sum_unit(s, i, err)
                                        : server_unexpected(s, i, "ORDER", s->version + 1, err);
    return rc == 0 && server_is_sequencer(s) ? server_turns_applied(s, err) : rc;
}

void server_unit_applied(struct ps_server *s)
{
    struct rank *r = &s->ranks[s->unit_rank];

    ps_units_apply(&s->units, &r->unit, &s->unit_facts);
    r->has_pushed = s->has_unit = false;
}
