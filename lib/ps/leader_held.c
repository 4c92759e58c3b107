/* leader_held.c - which state the servers of a generation hold; see leader.h. */
#include <string.h>

#include "base/err.h"
#include "ps/leader_priv.h"
#include "ps/route.h"

static int send_queries(struct ps_leader *l, const struct ps_settlement *s, struct err *err)
{
    const struct ps_message setup = { .kind = PS_SETUP,
                                      .number = s->model,
                                      .flag = l->staleness,
                                      .hyper = l->hyper,
                                      .optimizer = l->optimizer,
                                      .average = l->average,
                                      .tables = l->tables,
                                      .n_tables = l->n_tables,
                                      .n_lanes = l->units.n_lanes,
                                      .bound = l->units.bound };
    const struct ps_message query = { .kind = PS_QUERY };
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < l->route->n_servers; i++) {
        ps_write_begin(&l->out, &setup, 0);
        ps_write_setup(&l->out, &setup, l->names);
        rc = leader_send(l, i, err);
        ps_write_begin(&l->out, &query, 0);
        if (rc == 0)
            rc = leader_send(l, i, err);
    }
    return rc;
}

/* Is the newest update of `a` newer than that of `b`? */
static bool is_newer(const struct held *a, const struct held *b)
{
    return a->history[0] > b->history[0] ||
           (a->history[0] == b->history[0] && a->version > b->version);
}

/* l->units becomes the ledger of the server with the newest update. */
static int receive_held(struct ps_leader *l, struct held *held, const struct held **newest,
                        struct err *err)
{
    struct ps_message reply;
    struct ps_units ledger;
    uint32_t server;
    struct held *h;
    int rc = leader_receive(l, PS_HELD, &server, &reply, err);

    if (rc == 0)
        rc = ps_units_read(&l->spare, reply.ledger, reply.ledger_bytes, err);
    if (rc < 0)
        return rc;
    h = &held[server];
    h->version = reply.step;
    h->complete = l->spare.complete;
    h->is_pending = (reply.flag & PS_HELD_PENDING) != 0;
    h->is_skipped = (reply.flag & PS_HELD_SKIPPED) != 0;
    h->hyper = reply.hyper;
    memcpy(h->history, reply.history, sizeof(h->history));
    memcpy(h->shards, reply.shards, sizeof(h->shards));
    h->room = reply.first;
    for (uint32_t i = 0; i < PS_SHARDS; i++) /* a server that lacks the shard does not know its dynamic rows */
        if (reply.bytes[i] > l->shard_bytes[i])
            l->shard_bytes[i] = reply.bytes[i];
    if (*newest != NULL && !is_newer(h, *newest))
        return 0;
    *newest = h;
    ledger = l->units;
    l->units = l->spare;
    l->spare = ledger;
    return 0;
}

/* Synchronous steps: the same step is the same bits. A pending step is applied if its update is known, and not
 * from a checkpoint. */
static void decide_step(struct ps_leader *l, const struct ps_settlement *s, struct held *held,
                        struct target *out)
{
    *out = (struct target){ .version = s->step, .hyper = s->hyper };
    ps_units_begin(&l->units, s->step);
    for (uint32_t i = 0; i < l->route->n_servers; i++)
        held[i].is_valid =
            held[i].version == s->step ||
            (held[i].version + 1 == s->step && held[i].is_pending && !leader_has_source(s));
}

/* The rows come from a checkpoint, or are initial: rows of an earlier history do not count. */
static void decide_source(struct ps_leader *l, const struct ps_settlement *s, struct held *held,
                          struct target *out)
{
    *out = (struct target){ .version = s->step, .history = s->generation };
    ps_units_begin(&l->units, s->step);
    for (uint32_t i = 0; i < l->route->n_servers; i++)
        held[i].is_valid = s->is_initial && held[i].version == 0;
}

/* The newest update decides. The training tasks may know that a synchronous step was applied after it. */
static void decide_update(struct ps_leader *l, const struct ps_settlement *s, struct held *held,
                          const struct held *newest, struct target *out)
{
    bool is_next = newest->complete + 1 == s->step && newest->is_pending;

    if (is_next) {
        *out = (struct target){ newest->version + 1, newest->history[1], s->hyper };
        ps_units_begin(&l->units, s->step);
    } else {
        *out = (struct target){ newest->version, newest->history[0],
                                newest->is_skipped ? NULL : &newest->hyper };
    }
    for (uint32_t i = 0; i < l->route->n_servers; i++) {
        struct held *h = &held[i];

        h->is_valid =
            l->units.complete >= s->step &&
            ((h->version == out->version && h->history[0] == out->history) ||
             (h->version + 1 == out->version && h->is_pending && h->history[1] == out->history));
    }
}

int leader_query(struct ps_leader *l, const struct ps_settlement *s, struct held *held,
                 struct target *out, struct err *err)
{
    const struct held *newest = NULL;
    int rc = send_queries(l, s, err);

    memset(l->shard_bytes, 0, PS_SHARDS * sizeof(*l->shard_bytes));
    for (uint32_t i = 0; rc == 0 && i < l->route->n_servers; i++)
        rc = receive_held(l, held, &newest, err);
    if (rc < 0)
        return rc;
    if (l->units.n_lanes == 0)
        decide_step(l, s, held, out);
    else if (leader_has_source(s))
        decide_source(l, s, held, out);
    else
        decide_update(l, s, held, newest, out);
    return 0;
}
