/* leader.c - see leader.h. */
#include "ps/leader_priv.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "ps/message.h"
#include "ps/route.h"

/* ---- opening ---- */

static uint32_t count_parts(const struct ps_leader_opts *o)
{
    const struct optim_def *def = optim_get(o->optimizer);
    uint32_t n = 1 + (o->average > 0) + o->staleness;

    for (uint32_t s = 0; s < def->n_slots; s++)
        n += optim_uses(def, o->hyper, s);
    return n;
}

static int open_units(struct ps_leader *l, const struct ps_leader_opts *o, struct err *err)
{
    int rc;

    if (o->bound == 0)
        return 0;
    rc = ps_units_open(&l->units, o->n_lanes, o->bound, err);
    return rc < 0 ? rc : ps_units_open(&l->spare, o->n_lanes, o->bound, err);
}

int ps_leader_open(const struct ps_leader_opts *opts, struct ps_leader **out, struct err *err)
{
    struct ps_leader *l = calloc(1, sizeof(*l));
    int rc;

    if (l == NULL)
        return leader_no_memory(err);
    l->n_tables = opts->n_tables;
    l->optimizer = opts->optimizer;
    l->hyper = *opts->hyper;
    l->average = opts->average;
    l->staleness = opts->staleness;
    l->check_every = opts->check_every;
    rc = open_units(l, opts, err);
    if (rc < 0) {
        ps_leader_close(l);
        return rc;
    }
    l->n_parts = count_parts(opts);
    l->widths = calloc(opts->n_tables, sizeof(*l->widths));
    l->tables = calloc(opts->n_tables, sizeof(*l->tables));
    l->names = calloc(opts->n_tables, sizeof(*l->names));
    l->sections = calloc(PS_TABLES_MAX, sizeof(*l->sections));
    l->checksums = calloc(PS_SHARDS, sizeof(*l->checksums));
    l->squares = calloc(PS_SHARDS, sizeof(*l->squares));
    l->shard_bytes = calloc(PS_SHARDS, sizeof(*l->shard_bytes));
    l->voter = calloc(PS_SHARDS, sizeof(*l->voter));
    l->sources = calloc(PS_SHARDS, sizeof(*l->sources));
    l->readers = calloc(PS_SHARDS, sizeof(*l->readers));
    if (l->widths == NULL || l->tables == NULL || l->names == NULL || l->sections == NULL ||
        l->checksums == NULL || l->squares == NULL || l->voter == NULL || l->sources == NULL ||
        l->readers == NULL || l->shard_bytes == NULL) {
        ps_leader_close(l);
        return leader_no_memory(err);
    }
    for (uint32_t i = 0; i < opts->n_tables; i++) {
        const struct ps_table *t = &opts->tables[i];
        struct table_fill fill = { .kind = TABLE_FROM_FILE };

        if (opts->fills != NULL)
            fill = opts->fills[i];

        l->widths[i] = t->width;
        l->names[i] = t->name;
        l->tables[i] = (struct ps_setup_table){ .rows = t->rows,
                                                .width = t->width,
                                                .flags = (t->lazy ? PS_TABLE_LAZY : 0u) |
                                                         (t->is_dense ? PS_TABLE_DENSE : 0u),
                                                .rate_factor = t->rate_factor,
                                                .weight_decay = t->weight_decay,
                                                .fill = fill.kind,
                                                .stream = fill.stream,
                                                .seed = fill.seed,
                                                .scale = fill.scale,
                                                .admit_after = t->rules.admit_after,
                                                .sweep_steps = t->rules.sweep_steps,
                                                .expire_steps = t->rules.expire_steps,
                                                .max_rows = t->rules.max_rows };
    }
    *out = l;
    return 0;
}

void ps_leader_close(struct ps_leader *l)
{
    if (l == NULL)
        return;
    free(l->widths);
    free(l->tables);
    free(l->names);
    free(l->sections);
    free(l->checksums);
    free(l->squares);
    free(l->shard_bytes);
    free(l->voter);
    free(l->sources);
    free(l->readers);
    ps_units_close(&l->units);
    ps_units_close(&l->spare);
    ps_writer_fini(&l->out);
    free(l);
}

/* ---- votes ---- */

static int compare(struct ps_leader *l, uint32_t server, const struct ps_message *m,
                   struct err *err)
{
    for (uint32_t s = 0; s < PS_SHARDS; s++) {
        const uint32_t *holders = ps_route_holders(l->route, s);
        bool holds = false;

        for (uint32_t h = 0; h < l->route->n_holders; h++)
            holds = holds || holders[h] == server;
        if (!holds)
            continue;
        if (l->voter[s] == LEADER_NO_SERVER) {
            l->voter[s] = server;
            l->checksums[s] = m->checksums[s];
            l->squares[s] = m->squares[s];
        } else if (l->checksums[s] != m->checksums[s]) {
            return err_set(err, ERR_DEVICE,
                           "servers %u and %u hold different gradients of shard %u, with checksums "
                           "%06x and %06x: a processor or memory of one of them computed or stored "
                           "a wrong value",
                           l->voter[s], server, s, l->checksums[s], m->checksums[s]);
        }
    }
    return 0;
}

/* Compares the checksums of the rows of two holders. If they differ, nothing shows which holder is right, so the rows of both
 * become invalid. */
static int compare_states(struct ps_leader *l, uint32_t server, const struct ps_message *m,
                          struct ps_votes *out, struct err *err)
{
    uint32_t first = ps_checked_shard(m->step, l->check_every);

    for (uint32_t i = 0; first < PS_SHARDS && i < PS_CHECK_SHARDS; i++) {
        if (m->states[i] != 0 && l->states[i] == 0) {
            l->states[i] = m->states[i];
            l->stated_by[i] = server;
        }
        if (m->states[i] == 0 || m->states[i] == l->states[i])
            continue;
        ps_set_add(l->suspects, first + i);
        out->differ = true;
        out->shard = first + i;
        out->servers[0] = l->stated_by[i];
        out->servers[1] = server;
        return err_set(err, ERR_PEER,
                       "servers %u and %u have different rows of shard %u before step %" PRIu64,
                       l->stated_by[i], server, first + i, m->step);
    }
    return 0;
}

int ps_leader_collect(struct ps_leader *l, const struct ps_port *port, const struct ps_route *route,
                      uint64_t step, struct ps_votes *out, struct err *err)
{
    int rc = 0;

    leader_begin_call(l, port, route);
    for (uint32_t s = 0; s < PS_SHARDS; s++) {
        l->voter[s] = LEADER_NO_SERVER;
        l->squares[s] = 0;
    }
    memset(l->states, 0, sizeof(l->states));
    *out = (struct ps_votes){ .is_finite = true };
    for (uint32_t i = 0; rc == 0 && i < route->n_servers; i++) {
        struct ps_message m;
        uint32_t server;

        rc = leader_receive(l, PS_VOTE, &server, &m, err);
        if (rc == 0 && m.step != step)
            rc = err_set(err, ERR_PEER, "server %u: vote on step %" PRIu64 ", expected %" PRIu64,
                         server, m.step, step);
        if (rc == 0)
            rc = compare(l, server, &m, err);
        if (rc == 0)
            rc = compare_states(l, server, &m, out, err);
        if (rc == 0 && m.flag > (PS_VOTE_FINITE | PS_VOTE_SAVE))
            rc = err_set(err, ERR_PEER, "server %u: vote with flag %u", server, m.flag);
        out->is_finite = out->is_finite && rc == 0 && (m.flag & PS_VOTE_FINITE) != 0;
        out->wants_save = out->wants_save || (rc == 0 && (m.flag & PS_VOTE_SAVE) != 0);
    }
    for (uint32_t s = 0; s < PS_SHARDS; s++)
        out->squares += l->squares[s];
    return rc;
}
