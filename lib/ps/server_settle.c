/* server_settle.c - which shards a server has, and of which step; see server.h. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/fault.h"
#include "optim/optim.h"
#include "ps/server_priv.h"
#include "tensor/fill.h"

enum {
    WAIT_BYTES = 32 << 20, /* of generated rows, before each WAIT */
    SHARD_BYTES = 1 << 20, /* a shard counts as that many more: many small ones take time, too */
};

/* ---- SETUP ---- */

/* A ps_fill_fn. Rows that come from a file are zero until they are copied. */
static int generate(void *arg, uint32_t table, uint64_t first_row, uint64_t n, float *out,
                    struct err *err)
{
    const struct ps_server *s = arg;

    (void)err;
    if (s->rows[table] == 0)
        first_row = (uint64_t)ps_id_of_row(first_row); /* the number that the generator has for an id */
    if (s->fills[table].kind != TABLE_FROM_FILE)
        table_fill_rows(&s->fills[table], s->widths[table], first_row, n, out);
    return 0;
}

/* ps_store_opts.grow */
static int grow(void *arg, const char *table, uint64_t bytes, struct err *err)
{
    const struct ps_server *s = arg;

    return s->opts.grow(s->opts.arg, table, bytes, err);
}

static int open_store(struct ps_server *s, const struct ps_message *m, struct err *err)
{
    struct ps_table *tables = calloc(m->n_tables, sizeof(*tables));
    const char *name = m->names;
    struct ps_store_opts o = { .tables = tables,
                               .n_tables = m->n_tables,
                               .optimizer = optim_get(m->optimizer),
                               .hyper = &m->hyper,
                               .average = m->average,
                               .staleness = m->flag,
                               .thread = s->opts.thread,
                               .n_threads = s->opts.n_threads,
                               .fill = generate,
                               .grow = s->opts.grow != NULL ? grow : NULL,
                               .arg = s };
    int rc = 0;

    free(s->widths);
    free(s->rows);
    free(s->fills);
    s->generates = false;
    s->fills = calloc(m->n_tables, sizeof(*s->fills));
    s->widths = calloc(m->n_tables, sizeof(*s->widths));
    s->rows = calloc(m->n_tables, sizeof(*s->rows));
    if (tables == NULL || s->widths == NULL || s->rows == NULL || s->fills == NULL)
        rc = server_no_memory(err);
    for (uint32_t i = 0; rc == 0 && i < m->n_tables; i++) {
        const struct ps_setup_table *t = &m->tables[i];

        s->widths[i] = t->width;
        s->rows[i] = t->rows;
        s->fills[i] = (struct table_fill){
            .kind = t->fill, .stream = t->stream, .seed = t->seed, .scale = t->scale
        };
        s->generates = s->generates || t->fill != TABLE_FROM_FILE;
        tables[i] = (struct ps_table){ .name = name,
                                       .rows = t->rows,
                                       .width = t->width,
                                       .first_shard = server_first_shard(s, i),
                                       .rate_factor = t->rate_factor,
                                       .weight_decay = t->weight_decay,
                                       .lazy = (t->flags & PS_TABLE_LAZY) != 0,
                                       .is_dense = (t->flags & PS_TABLE_DENSE) != 0,
                                       .rules = { .admit_after = t->admit_after,
                                                  .sweep_steps = t->sweep_steps,
                                                  .expire_steps = t->expire_steps,
                                                  .max_rows = t->max_rows } };
        name += strlen(name) + 1;
    }
    s->n_tables = rc == 0 ? m->n_tables : 0;
    s->staleness = m->flag;
    if (rc == 0)
        rc = ps_store_open(&o, &s->store, err);
    free(tables);
    return rc;
}

int server_setup(struct ps_server *s, uint32_t from, const struct ps_message *m,
                 const uint8_t *data, size_t n, struct err *err)
{
    int rc;

    if (!server_is_idle(s) || from != s->leader)
        return server_unexpected(s, from, "SETUP", m->step, err);
    if (s->store != NULL && s->setup.n == n && memcmp(s->setup.data, data, n) == 0)
        return 0;
    if (server_is_pending(s)) /* of another job */
        ps_store_discard(s->store);
    server_drop_incomplete(s);
    ps_store_close(s->store);
    s->store = NULL;
    s->version = s->history = 0;
    ps_units_close(&s->units);
    rc = server_copy_message(&s->setup, data, n, err);
    if (rc == 0 && m->n_lanes > 0)
        rc = ps_units_open(&s->units, m->n_lanes, m->bound, err);
    return rc < 0 ? rc : open_store(s, m, err);
}

/* ---- QUERY, BEGIN ---- */

int server_query(struct ps_server *s, uint32_t from, struct err *err)
{
    uint64_t shards[PS_SET_WORDS] = { 0 };
    const uint64_t history[2] = { s->history, s->pending_history };
    uint64_t *bytes;
    struct ps_message m = { .kind = PS_HELD,
                            .step = s->version,
                            .first = s->opts.room != NULL ? s->opts.room(s->opts.arg) : UINT64_MAX,
                            .flag = (server_is_pending(s) ? PS_HELD_PENDING : 0u) |
                                    (s->is_skipped ? PS_HELD_SKIPPED : 0u),
                            .hyper = s->hyper };

    if (server_is_idle(s) ? from != s->leader : !s->is_holding)
        return server_unexpected(s, from, "QUERY", s->version, err);
    for (uint32_t i = 0; s->store != NULL && i < PS_SHARDS; i++)
        if (server_has_shard(s, i))
            ps_set_add(shards, i);
    ps_write_begin(&s->out, &m, 0);
    ps_write_set(&s->out, shards);
    ps_write_units(&s->out, history, &s->units);
    bytes = ps_write_room(&s->out, PS_SHARDS * sizeof(*bytes));
    for (uint32_t i = 0; bytes != NULL && i < PS_SHARDS; i++)
        bytes[i] = s->store != NULL ? ps_store_shard_bytes(s->store, i) : 0;
    return server_send(s, from, err);
}

static int settle_pending(struct ps_server *s, const struct ps_message *m, struct err *err)
{
    bool is_step = m->flag != PS_DROP && m->step == s->version + 1;
    int rc = 0;

    if (!server_is_pending(s))
        return 0;
    if (!is_step)
        ps_store_discard(s->store);
    else if (m->flag == PS_APPLY)
        rc = ps_store_commit(s->store, &m->hyper, s->pending_step, err);
    else
        ps_store_skip(s->store);
    if (is_step && rc == 0) {
        s->version++;
        s->hyper = m->hyper;
        s->is_skipped = m->flag == PS_SKIP;
    }
    return rc;
}

static bool will_be_copied(const struct ps_message *m, uint32_t shard)
{
    return ps_set_has(m->copied, shard) || ps_set_has(m->followed, shard);
}

/* Drops the shards that will be copied, and, if the rows are of another step, all that are not this
 * server's. Everything invalid is dropped before the version changes: memory may run out later. */
static int drop_invalid(struct ps_server *s, const struct ps_message *m, struct err *err)
{
    bool is_valid = s->version == m->step;

    for (uint32_t i = 0; i < PS_SHARDS; i++)
        if (!is_valid && ps_store_has(s->store, i) && ps_set_has(m->shards, i) &&
            !will_be_copied(m, i))
            return server_unexpected(s, s->leader, "BEGIN", m->step, err);
    for (uint32_t i = 0; i < PS_SHARDS; i++)
        if (will_be_copied(m, i) || (!is_valid && !ps_set_has(m->shards, i)))
            ps_store_drop_shard(s->store, i);
    s->version = m->step;
    memcpy(s->own, m->shards, sizeof(s->own));
    return 0;
}

static int add_shard(struct ps_server *s, uint32_t shard, bool generates, struct err *err)
{
    int rc = generates ? fault_error("ps.fill", err) : 0;

    return rc < 0 ? rc : ps_store_add_shard(s->store, shard, generates, err);
}

/* The rows that are not generated will be copied to the server. */
static void await_rows(struct ps_server *s, const struct ps_message *m, uint32_t shard)
{
    s->cursors[shard] = (struct cursor){ 0 };
    if (!server_find_place(s, shard, &s->cursors[shard]))
        return; /* no table has rows there that are sent */
    if (ps_set_has(m->followed, shard)) {
        ps_set_add(s->followed, shard);
        s->n_followed++;
    } else {
        ps_set_add(s->copied, shard);
        s->n_copied++;
    }
}

/* Rows of some GB take longer than the limit of a message: the coordinator learns that this server works, and the
 * server, that the generation has ended. *bytes: generated since the last WAIT. */
static int report_generated(struct ps_server *s, uint64_t *bytes, struct err *err)
{
    const struct ps_message m = { .kind = PS_WAIT, .step = s->version };

    if (*bytes < WAIT_BYTES)
        return 0;
    *bytes = 0;
    ps_write_begin(&s->out, &m, 0);
    return server_send(s, s->leader, err);
}

static int hold_shards(struct ps_server *s, const struct ps_message *m, struct err *err)
{
    bool generates = s->version == 0 && s->generates;
    uint64_t bytes = 0;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < PS_SHARDS; i++) {
        uint64_t before = ps_store_bytes(s->store);

        if (!ps_set_has(s->own, i) || ps_store_has(s->store, i))
            continue;
        if (i % s->opts.n_threads != s->opts.thread)
            return err_set(err, ERR_PEER, "BEGIN: shard %u belongs to another thread", i);
        rc = add_shard(s, i, generates, err);
        if (rc < 0)
            return rc;
        await_rows(s, m, i);
        bytes += generates ? SHARD_BYTES + ps_store_bytes(s->store) - before : 0;
        rc = report_generated(s, &bytes, err);
    }
    return rc;
}

int server_begin(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err)
{
    int rc;

    if (s->store == NULL || !server_is_idle(s) || from != s->leader || m->flag > PS_SKIP)
        return server_unexpected(s, from, "BEGIN", m->step, err);
    rc = fault_error("ps.begin", err);
    if (rc < 0)
        return rc;
    s->n_followers = m->number;
    s->check_every = m->first;
    rc = ps_units_read(&s->units, m->ledger, m->ledger_bytes, err);
    if (rc == 0)
        rc = settle_pending(s, m, err);
    if (rc < 0)
        return rc;
    s->history = m->history[0];
    s->generation = m->history[1];
    server_drop_incomplete(s);
    rc = drop_invalid(s, m, err);
    if (rc == 0)
        rc = server_reserve(s, err);
    if (rc == 0)
        rc = hold_shards(s, m, err);
    return rc < 0 ? rc : server_send_ready(s, err);
}
