/* server_settle.c - which shards a server has, and of which step; see server.h. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/fault.h"
#include "optim/optim.h"
#include "ps/server_priv.h"
#include "tensor/fill.h"

/* ---- SETUP ---- */

/* A ps_fill_fn. Rows that come from a file are zero until they are copied. */
static int generate(void *arg, uint32_t table, uint64_t first_row, uint64_t n, float *out,
                    struct err *err)
{
    const struct ps_server *s = arg;

    (void)err;
    if (s->fills[table].kind != TABLE_FROM_FILE)
        table_fill_rows(&s->fills[table], s->widths[table], first_row, n, out);
    return 0;
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
                               .thread = s->opts.thread,
                               .n_threads = s->opts.n_threads,
                               .fill = generate,
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
                                       .first_shard = ps_first_shard(i),
                                       .rate_factor = t->rate_factor,
                                       .weight_decay = t->weight_decay,
                                       .lazy = t->lazy == 1 };
        name += strlen(name) + 1;
    }
    s->n_tables = rc == 0 ? m->n_tables : 0;
    if (rc == 0)
        rc = ps_store_open(&o, &s->store, err);
    free(tables);
    return rc;
}

/* Between ps_server_begin() and BEGIN. */
static bool is_idle(const struct ps_server *s)
{
    return !s->is_holding && s->n_copied == 0;
}

int server_setup(struct ps_server *s, uint32_t from, const struct ps_message *m,
                 const uint8_t *data, size_t n, struct err *err)
{
    int rc;

    if (!is_idle(s) || from != s->leader)
        return server_unexpected(s, from, "SETUP", m->step, err);
    if (s->store != NULL && s->setup.n == n && memcmp(s->setup.data, data, n) == 0)
        return 0;
    ps_store_close(s->store); /* of another job */
    s->store = NULL;
    s->version = 0;
    rc = server_copy_message(&s->setup, data, n, err);
    return rc < 0 ? rc : open_store(s, m, err);
}

/* ---- QUERY, BEGIN, COPY, SEND ---- */

int server_query(struct ps_server *s, uint32_t from, struct err *err)
{
    uint64_t shards[PS_SET_WORDS] = { 0 };
    struct ps_message m = { .kind = PS_HELD, .step = s->version, .flag = server_is_pending(s) };

    if (!is_idle(s) || from != s->leader)
        return server_unexpected(s, from, "QUERY", s->version, err);
    for (uint32_t i = 0; s->store != NULL && i < PS_SHARDS; i++)
        if (ps_store_has(s->store, i))
            ps_set_add(shards, i);
    ps_write_begin(&s->out, &m, 0);
    ps_write_set(&s->out, shards);
    return server_send(s, from, err);
}

/* Answers BEGIN, and reports that all copies have arrived. */
static int send_ready(struct ps_server *s, struct err *err)
{
    struct ps_message m = { .kind = PS_READY, .step = s->version, .flag = s->n_copied == 0 };

    s->is_holding = s->n_copied == 0;
    ps_write_begin(&s->out, &m, 0);
    return server_send(s, s->leader, err);
}

static void settle_pending(struct ps_server *s, const struct ps_message *m)
{
    if (!server_is_pending(s))
        return;
    if (m->flag == PS_APPLY && m->step == s->version + 1)
        ps_store_commit(s->store, &m->hyper);
    else
        ps_store_discard(s->store);
    s->version += m->flag != PS_DROP && m->step == s->version + 1;
}

/* At step 0 every server generates these rows itself, and no COPY contains them. */
static bool is_generated(const struct ps_server *s, uint32_t table)
{
    return s->version == 0 && s->fills[table].kind != TABLE_FROM_FILE;
}

/* Sets *at to the next place with rows that are sent, from *at on. Returns false after the last one. */
static bool find_place(const struct ps_server *s, uint32_t shard, struct cursor *at)
{
    uint32_t n_parts = at->is_initial ? 1 : ps_store_n_parts(s->store);

    for (;;) {
        if (at->table == s->n_tables)
            return false;
        if (at->part < n_parts && !is_generated(s, at->table) &&
            at->first < ps_local_rows(s->rows[at->table], ps_first_shard(at->table), shard))
            return true;
        at->first = 0;
        if (++at->part >= n_parts) {
            at->part = 0;
            at->table++;
        }
    }
}

/* Drops the shards that will be copied, and, if the rows are of another step, all that are not this
 * server's. Everything invalid is dropped before the version changes: memory may run out later. */
static int drop_invalid(struct ps_server *s, const struct ps_message *m, struct err *err)
{
    bool is_valid = s->version == m->step;

    for (uint32_t i = 0; i < PS_SHARDS; i++)
        if (!is_valid && ps_store_has(s->store, i) && ps_set_has(m->shards, i) &&
            !ps_set_has(m->copied, i))
            return server_unexpected(s, s->leader, "BEGIN", m->step, err);
    for (uint32_t i = 0; i < PS_SHARDS; i++)
        if (ps_set_has(m->copied, i) || (!is_valid && !ps_set_has(m->shards, i)))
            ps_store_drop_shard(s->store, i);
    s->version = m->step;
    memcpy(s->own, m->shards, sizeof(s->own));
    return 0;
}

static int hold_shards(struct ps_server *s, struct err *err)
{
    for (uint32_t i = 0; i < PS_SHARDS; i++) {
        int rc;

        if (!ps_set_has(s->own, i) || ps_store_has(s->store, i))
            continue;
        if (i % s->opts.n_threads != s->opts.thread)
            return err_set(err, ERR_PEER, "BEGIN: shard %u belongs to another thread", i);
        rc = ps_store_add_shard(s->store, i, s->version == 0 && s->generates, err);
        if (rc < 0)
            return rc;
        s->cursors[i] = (struct cursor){ 0 };
        if (!find_place(s, i, &s->cursors[i]))
            continue; /* no table has rows there that are sent */
        ps_set_add(s->copied, i);
        s->n_copied++;
    }
    return 0;
}

int server_begin(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err)
{
    int rc;

    if (s->store == NULL || !is_idle(s) || from != s->leader || m->flag > PS_SKIP)
        return server_unexpected(s, from, "BEGIN", m->step, err);
    rc = fault_error("ps.begin", err);
    if (rc < 0)
        return rc;
    settle_pending(s, m);
    rc = drop_invalid(s, m, err);
    if (rc == 0)
        rc = hold_shards(s, err);
    return rc < 0 ? rc : send_ready(s, err);
}

/* The first message of a shard decides whether its rows are initial. */
static bool is_next_copy(const struct cursor *at, const struct ps_message *m)
{
    const struct ps_section *x = m->sections;

    return m->n_sections == 1 && x->table == at->table && x->part == at->part &&
           m->first == at->first && x->n > 0 && m->flag <= 1 &&
           (!at->has_begun || (m->flag == 1) == at->is_initial);
}

static int import(struct ps_server *s, const struct ps_message *m, struct err *err)
{
    const struct ps_section *x = m->sections;

    if (m->flag == 1)
        return ps_store_import_initial(s->store, m->number, x->table, m->first, x->n, x->values,
                                       err);
    return ps_store_import(s->store, m->number, x->table, x->part, m->first, x->n, x->values, err);
}

int server_copy(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err)
{
    uint32_t shard = m->number;
    struct cursor *at = &s->cursors[shard < PS_SHARDS ? shard : 0];
    int rc;

    if (from < s->n_ranks && from != s->leader)
        return server_unexpected(s, from, "COPY", s->version, err);
    if (shard >= PS_SHARDS || !ps_set_has(s->copied, shard) || !is_next_copy(at, m))
        return err_set(err, ERR_PEER,
                       "COPY of shard %u from point %u is not the next one (table %u, part %u, "
                       "row %" PRIu64 ")",
                       shard, from, at->table, at->part, at->first);
    rc = fault_error("ps.copy", err);
    if (rc == 0)
        rc = import(s, m, err);
    if (rc < 0)
        return rc;
    at->has_begun = true;
    at->is_initial = m->flag == 1;
    at->first += m->sections[0].n;
    if (find_place(s, shard, at))
        return 0;
    s->copied[shard / 64] &= ~((uint64_t)1 << shard % 64);
    return --s->n_copied > 0 ? 0 : send_ready(s, err);
}

static int send_shard(struct ps_server *s, uint32_t to, uint32_t shard, struct err *err)
{
    struct cursor at = { 0 };

    while (find_place(s, shard, &at)) {
        uint32_t width = s->widths[at.table];
        uint64_t all = ps_local_rows(s->rows[at.table], ps_first_shard(at.table), shard);
        uint64_t n = ps_copy_rows(width, all - at.first);
        float *values;
        int rc;

        if (ps_write_copy(&s->out, shard, false, at.table, at.part, at.first, n, width, &values) <
            0)
            return server_no_memory(err);
        rc = ps_store_export(s->store, shard, at.table, at.part, at.first, n, values, err);
        if (rc == 0)
            rc = fault_error("ps.send", err);
        if (rc == 0)
            rc = server_send(s, to, err);
        if (rc < 0)
            return rc;
        at.first += n;
    }
    return 0;
}

int server_send_shards(struct ps_server *s, uint32_t from, const struct ps_message *m,
                       struct err *err)
{
    int rc = 0;

    if (s->store == NULL || from != s->leader || m->number < s->n_ranks ||
        m->number >= s->n_ranks + s->n_servers || m->number == s->self)
        return server_unexpected(s, from, "SEND", m->step, err);
    for (uint32_t i = 0; rc == 0 && i < PS_SHARDS; i++) {
        if (!ps_set_has(m->shards, i))
            continue;
        rc = ps_store_has(s->store, i) && !ps_set_has(s->copied, i)
                 ? send_shard(s, m->number, i, err)
                 : err_set(err, ERR_PEER, "SEND: shard %u is not held", i);
    }
    return rc;
}
