/* server.c - see server.h. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "ps/server_priv.h"
#include "base/fault.h"

/* ---- opening ---- */

int ps_server_open(const struct ps_server_opts *opts, struct ps_server **out, struct err *err)
{
    struct ps_server *s = calloc(1, sizeof(*s));

    if (s == NULL)
        return server_no_memory(err);
    s->opts = *opts;
    if (s->opts.batch_floats == 0)
        s->opts.batch_floats = 512 << 10;
    s->verdict = calloc(1, sizeof(*s->verdict));
    s->cursors = calloc(PS_SHARDS, sizeof(*s->cursors));
    s->sections = calloc(PS_TABLES_MAX, sizeof(*s->sections));
    if (s->verdict == NULL || s->cursors == NULL || s->sections == NULL) {
        ps_server_close(s);
        return server_no_memory(err);
    }
    *out = s;
    return 0;
}

static void free_ranks(struct ps_server *s)
{
    for (uint32_t i = 0; i < s->n_ranks; i++) {
        free(s->ranks[i].push.data);
        free(s->ranks[i].later.data);
    }
    server_turns_close(s);
    free(s->ranks);
    free(s->pushes);
    free(s->push_sections);
    s->ranks = NULL;
    s->pushes = NULL;
    s->push_sections = NULL;
    s->n_ranks = 0;
}

void ps_server_close(struct ps_server *s)
{
    if (s == NULL)
        return;
    server_stop_work(s);
    free_ranks(s);
    ps_store_close(s->store);
    ps_units_close(&s->units);
    free(s->setup.data);
    free(s->widths);
    free(s->rows);
    free(s->fills);
    free(s->verdict);
    free(s->cursors);
    server_copies_close(s);
    free(s->sections);
    free(s->parts);
    ps_writer_fini(&s->out);
    free(s);
}

int ps_server_begin(struct ps_server *s, uint32_t n_ranks, uint32_t n_servers, uint32_t self,
                    uint32_t leader, struct err *err)
{
    free_ranks(s);
    s->ranks = calloc(n_ranks, sizeof(*s->ranks));
    s->pushes = calloc(n_ranks, sizeof(*s->pushes));
    s->push_sections = calloc((size_t)n_ranks * PS_TABLES_MAX, sizeof(*s->push_sections));
    if (s->ranks == NULL || s->pushes == NULL || s->push_sections == NULL) {
        free(s->ranks);
        s->ranks = NULL;
        return server_no_memory(err);
    }
    s->n_ranks = n_ranks;
    s->self = self;
    s->leader = leader;
    s->n_pushed = s->n_committed = s->n_ended = 0;
    s->is_complete = s->is_holding = s->has_unit = false;
    return server_turns_begin(s, err) < 0 ? ERR_NOMEM : server_copies_begin(s, n_servers, err);
}

void ps_server_end(struct ps_server *s)
{
    server_stop_work(s);
    server_copies_end(s);
    s->is_holding = false;
    s->n_pushed = s->n_committed = 0;
    s->has_unit = false;
    for (uint32_t i = 0; i < s->n_ranks; i++) {
        struct rank *r = &s->ranks[i];

        r->has_pushed = r->has_committed = r->waits = r->orders = r->asks = false;
    }
}

/* ---- messages ---- */

static int on_end(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err)
{
    int rc;

    if (s->ranks[from].has_ended || m->flag > 1)
        return server_unexpected(s, from, "END", m->step, err);
    rc = fault_error("ps.end", err);
    if (rc < 0)
        return rc;
    s->ranks[from].has_ended = true;
    s->is_complete = s->is_complete || m->flag == 1;
    return s->n_ended++ == 0 ? server_copies_abandon(s, err) : 0;
}

/* A step may wait for the last rows of its version. */
static int on_copy(struct ps_server *s, uint32_t from, const struct ps_message *m,
                   const uint8_t *data, size_t n, struct err *err)
{
    int rc = server_copy(s, from, m, data, n, err);

    return rc == 0 && s->commit_waits && !s->is_asked ? server_apply(s, err) : rc;
}

static int handle(struct ps_server *s, uint32_t from, const struct ps_message *m,
                  const uint8_t *data, size_t n, struct err *err)
{
    switch (m->kind) {
    case PS_SETUP:
        return server_setup(s, from, m, data, n, err);
    case PS_QUERY:
        return server_query(s, from, err);
    case PS_BEGIN:
        return server_begin(s, from, m, err);
    case PS_FOLLOW:
        return server_follow(s, from, m, err);
    case PS_FETCH:
        return server_fetch(s, from, m, data, n, err);
    case PS_COPY:
    case PS_COPY_IDS:
        return on_copy(s, from, m, data, n, err);
    case PS_PULL:
        return server_pull(s, from, m, data, n, err);
    case PS_PUSH:
        return server_push(s, from, m, data, n, err);
    case PS_COMMIT:
        return server_commit(s, from, m, err);
    case PS_LIMIT:
        return server_limit(s, from, m, err);
    case PS_NEXT:
        return server_next(s, from, m, err);
    case PS_ORDER:
        return server_order(s, from, m, err);
    case PS_END:
        return on_end(s, from, m, err);
    case PS_SAVE:
        return server_save(s, from, m, data, n, err);
    case PS_COUNT:
        return server_count(s, from, m, data, n, err);
    case PS_LIST:
        return server_list(s, from, m, data, n, err);
    case PS_LOAD:
        return server_load(s, from, m, err);
    case PS_POLL:
        return server_poll(s, from, m, err);
    default:
        return err_set(err, ERR_PEER, "a server does not expect a message of kind %d", m->kind);
    }
}

int ps_server_handle(struct ps_server *s, uint32_t from, const uint8_t *data, size_t bytes,
                     struct err *err)
{
    struct ps_message m;
    int rc = ps_message_read(data, bytes, s->widths, s->n_tables, s->sections, &m, err);

    if (rc == 0 && from >= s->n_ranks && m.kind != PS_COPY && m.kind != PS_COPY_IDS &&
        m.kind != PS_FETCH)
        rc = err_set(err, ERR_PEER, "a server sends only FETCH, COPY and COPY_IDS, found kind %d",
                     m.kind);
    return rc < 0 ? rc : handle(s, from, &m, data, bytes, err);
}

enum ps_server_end ps_server_ended(const struct ps_server *s)
{
    if (s->n_ended < s->n_ranks || !server_copies_ended(s))
        return PS_RUNNING;
    return s->is_complete ? PS_COMPLETE : PS_PAUSED;
}

void ps_server_stats(const struct ps_server *s, struct ps_server_stats *out)
{
    *out = (struct ps_server_stats){ .version = s->version,
                                     .step = s->units.complete,
                                     .n_copied = ps_server_copying(s),
                                     .bytes = s->store != NULL ? ps_store_bytes(s->store) : 0,
                                     .rows_read = s->rows_read,
                                     .rows_updated = s->rows_updated };
    memcpy(out->rows_stale, s->rows_stale, sizeof(out->rows_stale));
    for (uint32_t i = 0; s->store != NULL && i < PS_SHARDS; i++)
        out->n_shards += ps_store_has(s->store, i);
    if (s->store != NULL)
        out->memory = ps_store_memory(s->store, out->n_shards, out->bytes);
}

uint32_t ps_server_tables(const struct ps_server *s, struct ps_table_facts *out, uint32_t most)
{
    return s->store != NULL ? ps_store_facts(s->store, out, most) : 0;
}

uint32_t ps_server_copying(const struct ps_server *s)
{
    return s->n_copied + s->n_followed;
}

uint64_t ps_server_version(const struct ps_server *s)
{
    return s->version;
}
