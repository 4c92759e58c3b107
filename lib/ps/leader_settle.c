/* leader_settle.c - which shards each server holds, and where it gets their rows from; see leader.h. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "ps/files.h"
#include "ps/leader_priv.h"
#include "ps/message.h"
#include "ps/route.h"

static int report_progress(const struct ps_settlement *s, struct err *err)
{
    return s->on_progress != NULL ? s->on_progress(s->arg, err) : 0;
}

static bool has_valid(const struct held *h, uint32_t shard)
{
    return h->is_valid && ps_set_has(h->shards, shard);
}

/* Returns a server with valid rows of a shard, first of all one of its holders; LEADER_NO_SERVER: none. */
static uint32_t find_source(const struct ps_leader *l, const struct held *held, uint32_t shard)
{
    const uint32_t *holders = ps_route_holders(l->route, shard);

    for (uint32_t h = 0; h < l->route->n_holders; h++)
        if (has_valid(&held[holders[h]], shard))
            return holders[h];
    for (uint32_t i = 0; i < l->route->n_servers; i++)
        if (has_valid(&held[i], shard))
            return i;
    return LEADER_NO_SERVER;
}

/* Every shard may have rows of a dynamic table. */
static bool has_rows(const struct ps_leader *l, uint32_t shard)
{
    for (uint32_t t = 0; t < l->n_tables; t++)
        if (l->tables[t].rows == 0 ||
            ps_local_rows(l->tables[t].rows, ps_first_shard(t), shard) > 0)
            return true;
    return false;
}

/* The rows of a shard that no holder has are copied before the next step; a holder beside another one is
 * filled during the next steps. */
static void plan_shard(struct ps_leader *l, const struct ps_settlement *s, struct held *held,
                       uint32_t shard)
{
    const uint32_t *holders = ps_route_holders(l->route, shard);
    uint32_t source = l->sources[shard];
    bool is_held = false;

    for (uint32_t h = 0; h < l->route->n_holders; h++)
        is_held = is_held || (s->step > 0 && holders[h] == source);
    l->readers[shard] = is_held ? source : holders[0];
    for (uint32_t h = 0; h < l->route->n_holders; h++) {
        struct held *to = &held[holders[h]];

        ps_set_add(to->wanted, shard);
        if (!has_valid(to, shard))
            ps_set_add(is_held ? to->followed : to->copied, shard);
    }
}

/* Returns how many shards of a set are copied from `source`, and adds them to *out. */
static uint32_t take_shards(const struct ps_leader *l, const uint64_t *set, uint32_t source,
                            uint64_t out[PS_SET_WORDS])
{
    uint32_t n = 0;

    memset(out, 0, PS_SET_WORDS * sizeof(*out));
    for (uint32_t s = ps_set_next(set, 0); s < PS_SHARDS; s = ps_set_next(set, s + 1))
        if (l->sources[s] == source) {
            ps_set_add(out, s);
            n++;
        }
    return n;
}

static void plan(struct ps_leader *l, const struct ps_settlement *s, struct held *held)
{
    uint64_t set[PS_SET_WORDS];

    for (uint32_t shard = 0; shard < PS_SHARDS; shard++)
        plan_shard(l, s, held, shard);
    for (uint32_t to = 0; to < l->route->n_servers; to++)
        for (uint32_t from = 0; from < l->route->n_servers; from++)
            held[from].n_followers += (take_shards(l, held[to].copied, from, set) > 0) +
                                      (take_shards(l, held[to].followed, from, set) > 0);
}

/* A server with valid rows keeps a shard that moves away until its first step, so it can be copied. */
static int send_begins(struct ps_leader *l, const struct ps_settlement *s, const struct held *held,
                       const uint64_t history[2], uint32_t *n_committed, struct err *err)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < l->route->n_servers; i++) {
        const struct held *h = &held[i];
        bool is_behind = h->is_valid && h->version + 1 == s->step;
        struct ps_message m = {
            .kind = PS_BEGIN, .step = s->step, .first = l->check_every, .flag = PS_DROP,
            .number = h->n_followers
        };

        if (is_behind) {
            m.flag = s->hyper != NULL ? PS_APPLY : PS_SKIP;
            ++*n_committed;
        }
        if (s->hyper != NULL)
            m.hyper = *s->hyper;
        ps_write_begin(&l->out, &m, 0);
        ps_write_set(&l->out, h->wanted);
        ps_write_set(&l->out, h->copied);
        ps_write_set(&l->out, h->followed);
        ps_write_units(&l->out, history, &l->units);
        rc = leader_send(l, i, err);
    }
    return rc;
}

/* Sends a part of n rows of a shard. */
static int fill_rows(struct ps_leader *l, const struct ps_settlement *s, uint32_t server,
                     uint32_t shard, uint32_t table, uint32_t part, uint64_t at, uint64_t n,
                     struct err *err)
{
    uint32_t width = l->widths[table];
    float *values;
    int rc = 0;

    if (ps_write_copy(&l->out, s->step, shard, s->is_initial ? PS_COPY_INITIAL : 0, table, part, at,
                      n, width, &values) < 0)
        return leader_no_memory(err);
    for (uint64_t k = 0, run; rc == 0 && k < n; k += run) { /* the rows of a block are consecutive */
        run = PS_BLOCK_ROWS - (at + k) % PS_BLOCK_ROWS;
        run = run > n - k ? n - k : run;
        rc = s->source(s->arg, table, part, ps_row_of(ps_first_shard(table), shard, at + k), run,
                       values + k * width, err);
    }
    return rc == 0 ? leader_send(l, server, err) : rc;
}

/* All parts of some rows, then of the next ones. */
static int fill_table(struct ps_leader *l, const struct ps_settlement *s, uint32_t server,
                      uint32_t shard, uint32_t table, struct err *err)
{
    uint64_t all = ps_local_rows(l->tables[table].rows, ps_first_shard(table), shard), n;
    uint32_t n_parts = s->is_initial ? 1 : l->n_parts;
    int rc = 0;

    for (uint64_t at = 0; rc == 0 && at < all; at += n) {
        n = ps_copy_rows(l->widths[table], all - at);
        for (uint32_t p = 0; rc == 0 && p < n_parts; p++)
            rc = fill_rows(l, s, server, shard, table, p, at, n, err);
    }
    return rc;
}

/* The server generates the rows itself. */
static bool is_generated(const struct ps_leader *l, const struct ps_settlement *s, uint32_t table)
{
    return s->step == 0 && l->tables[table].fill != TABLE_FROM_FILE;
}

static int fill(struct ps_leader *l, const struct ps_settlement *s, uint32_t server, uint32_t shard,
                struct err *err)
{
    int rc = 0;

    for (uint32_t t = 0; rc == 0 && t < l->n_tables; t++) {
        if (is_generated(l, s, t))
            continue;
        rc =
            l->tables[t].rows == 0
                ? err_set(err, ERR_UNSUPPORTED,
                          "table '%s' is dynamic: its rows are read from a checkpoint", l->names[t])
                : fill_table(l, s, server, shard, t, err);
    }
    return rc;
}

/* Tells `server` to copy shards of a set from `source`. */
static int send_follow(struct ps_leader *l, const uint64_t *set, uint32_t source, uint32_t server,
                       uint32_t *n, struct err *err)
{
    struct ps_message m = { .kind = PS_FOLLOW, .number = l->route->n_ranks + source };
    uint64_t shards[PS_SET_WORDS];
    uint32_t taken = take_shards(l, set, source, shards);

    if (taken == 0)
        return 0;
    *n += taken;
    ps_write_begin(&l->out, &m, 0);
    ps_write_set(&l->out, shards);
    return leader_send(l, server, err);
}

static int send_follows(struct ps_leader *l, const struct held *held, uint32_t to,
                        struct ps_settled *out, struct err *err)
{
    int rc = 0;

    for (uint32_t from = 0; rc == 0 && from < l->route->n_servers; from++)
        rc = send_follow(l, held[to].copied, from, to, &out->n_copied, err);
    for (uint32_t from = 0; rc == 0 && from < l->route->n_servers; from++)
        rc = send_follow(l, held[to].followed, from, to, &out->n_followed, err);
    return rc;
}

/* loads [n_servers]: out: the shards that each server must read from a checkpoint. */
static int send_copies(struct ps_leader *l, const struct ps_settlement *s, const struct held *held,
                       uint64_t (*loads)[PS_SET_WORDS], struct ps_settled *out, struct err *err)
{
    int rc = 0;

    for (uint32_t to = 0; rc == 0 && to < l->route->n_servers; to++) {
        rc = send_follows(l, held, to, out, err);
        for (uint32_t shard = 0; rc == 0 && shard < PS_SHARDS; shard++)
            if (ps_set_has(held[to].copied, shard) && has_rows(l, shard) &&
                l->sources[shard] == LEADER_NO_SERVER) {
                out->n_filled++;
                if (s->folder != NULL)
                    ps_set_add(loads[to], shard);
                else
                    rc = fill(l, s, to, shard, err);
                if (rc == 0)
                    rc = report_progress(s, err);
            }
    }
    return rc;
}

static bool is_lost(const struct ps_leader *l, const struct ps_settlement *s)
{
    bool lost = false;

    for (uint32_t shard = 0; shard < PS_SHARDS && !leader_has_source(s); shard++)
        lost = lost || (l->sources[shard] == LEADER_NO_SERVER && has_rows(l, shard));
    return lost;
}

/* Receives READY. A server that generates rows sends WAIT before: each message extends the limit. */
static int receive_one_ready(struct ps_leader *l, const struct ps_settlement *s, uint32_t *server,
                             struct ps_message *m, struct err *err)
{
    int rc;

    do {
        rc = leader_receive_any(l, server, m, err);
        if (rc == 0 && m->kind == PS_WAIT)
            rc = report_progress(s, err);
    } while (rc == 0 && m->kind == PS_WAIT);
    return rc == 0 ? leader_check_kind(l, PS_READY, *server, m, err) : rc;
}

/* Receives n READY; *n_ready: servers whose shards are all filled. */
static int receive_ready(struct ps_leader *l, const struct ps_settlement *s, uint32_t n,
                         uint32_t *n_ready, struct err *err)
{
    int rc = 0;

    *n_ready = 0;
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        struct ps_message m;
        uint32_t server;

        rc = receive_one_ready(l, s, &server, &m, err);
        if (rc == 0 && m.step != s->step)
            rc =
                err_set(err, ERR_PEER, "server %u is ready for step %" PRIu64 ", expected %" PRIu64,
                        server, m.step, s->step);
        *n_ready += rc == 0 && m.flag == 1;
    }
    return rc;
}

/* Adds the READY messages that arrive meanwhile to *n_ready. */
static int fill_shards(struct ps_leader *l, const struct ps_settlement *s, const struct held *held,
                       uint32_t *n_ready, struct ps_settled *out, struct err *err)
{
    uint64_t(*loads)[PS_SET_WORDS] = calloc(l->route->n_servers, sizeof(*loads));
    const struct ps_load_opts o = { .step = s->step,
                                    .stall_ms = s->stall_ms,
                                    .folder = s->folder,
                                    .shards = (const uint64_t(*)[PS_SET_WORDS])loads,
                                    .on_progress = s->on_progress,
                                    .name = s->name,
                                    .arg = s->arg };
    uint32_t more = 0;
    int rc;

    if (loads == NULL)
        return leader_no_memory(err);
    rc = send_copies(l, s, held, loads, out, err);
    if (rc == 0 && s->folder != NULL)
        rc = ps_load(l->port, l->route, &o, &more, err);
    *n_ready += more;
    free(loads);
    return rc;
}

/* Decides how many servers hold each shard. */
static void limit_holders(struct ps_leader *l, struct ps_route *route, const struct held *held,
                          struct ps_settled *out)
{
    uint32_t n = leader_fit_holders(l, held, &out->tight, &out->needed);

    out->room = n < route->n_holders ? held[out->tight].room : 0;
    ps_route_limit(route, n);
    out->n_holders = n;
}

/* From here on the step of the settlement is the version that the servers hold. */
static int settle(struct ps_leader *l, const struct ps_settlement *agreed, struct ps_route *route,
                  struct held *held, struct ps_settled *out, struct err *err)
{
    struct ps_settlement own = *agreed, *s = &own;
    struct target target;
    uint64_t history[2];
    uint32_t n_ready;
    int rc = leader_query(l, s, held, &target, err);

    if (rc < 0)
        return rc;
    limit_holders(l, route, held, out);
    for (uint32_t shard = 0; shard < PS_SHARDS; shard++) {
        for (uint32_t i = 0; ps_set_has(l->suspects, shard) && i < route->n_servers; i++)
            ps_set_remove(held[i].shards, shard);
        l->sources[shard] = find_source(l, held, shard);
    }
    if (is_lost(l, s))
        return err_set(err, ERR_REFUSED,
                       "no parameter server that is left holds all rows after step %" PRIu64,
                       s->step);
    s->step = target.version;
    s->hyper = target.hyper;
    history[0] = target.history;
    history[1] = s->generation;
    out->step = l->units.complete;
    out->version = target.version;
    out->has_more = ps_units_newest(&l->units) > out->step;
    plan(l, s, held);
    l->is_copying = true;
    rc = send_begins(l, s, held, history, &out->n_committed, err);
    if (rc == 0) /* a copy must not arrive before BEGIN */
        rc = receive_ready(l, s, l->route->n_servers, &n_ready, err);
    if (rc == 0)
        rc = fill_shards(l, s, held, &n_ready, out, err);
    if (rc == 0)
        rc = receive_ready(l, s, l->route->n_servers - n_ready, &n_ready, err);
    if (rc == 0)
        memset(l->suspects, 0, sizeof(l->suspects));
    return rc;
}

int ps_leader_settle(struct ps_leader *l, const struct ps_port *port, struct ps_route *route,
                     const struct ps_settlement *s, struct ps_settled *out, struct err *err)
{
    struct held *held = calloc(route->n_servers, sizeof(*held));
    int rc;

    if (held == NULL)
        return leader_no_memory(err);
    leader_begin_call(l, port, route);
    rc = settle(l, s, route, held, out, err);
    free(held);
    return rc;
}
