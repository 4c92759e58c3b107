/* client.c - see client.h. */
#include "ps/client_priv.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

/* ---- opening ---- */

static int open_tables(struct ps_client *c, const struct ps_client_opts *o, struct err *err)
{
    size_t most = 1;

    for (uint32_t i = 0; i < o->n_tables; i++) {
        struct client_table *t = &c->tables[i];
        int rc;

        t->width = c->widths[i] = o->widths[i];
        t->first_shard = o->first_shards[i];
        t->elements = i < c->n_sparse ? 0 : o->elements[i - c->n_sparse];
        rc = ps_slots_init(&t->slots, o->rooms[i], err);
        if (rc < 0)
            return rc;
        t->values = c->values[i] =
            aligned_alloc(64, (o->rooms[i] * t->width * sizeof(float) + 127) / 64 * 64);
        if (t->values == NULL)
            return client_no_memory(err);
        most = o->rooms[i] > most ? o->rooms[i] : most;
    }
    c->order = malloc(most * sizeof(*c->order));
    c->spare = malloc(most * sizeof(*c->spare));
    return c->order != NULL && c->spare != NULL ? 0 : client_no_memory(err);
}

int ps_client_open(const struct ps_client_opts *opts, struct ps_client **out, struct err *err)
{
    struct ps_client *c = calloc(1, sizeof(*c));
    int rc = 0;

    if (c == NULL)
        return client_no_memory(err);
    CHECK(opts->n_tables <= PS_TABLES_MAX);
    c->n_tables = opts->n_tables;
    c->n_sparse = opts->n_tables - opts->n_dense;
    c->staleness = opts->staleness;
    c->tables = calloc(opts->n_tables, sizeof(*c->tables));
    c->widths = calloc(opts->n_tables, sizeof(*c->widths));
    c->values = calloc(opts->n_tables, sizeof(*c->values));
    c->sections = calloc(PS_TABLES_MAX, sizeof(*c->sections));
    c->readers = calloc(PS_SHARDS, sizeof(*c->readers));
    if (c->tables == NULL || c->widths == NULL || c->values == NULL || c->sections == NULL ||
        c->readers == NULL)
        rc = client_no_memory(err);
    if (rc == 0)
        rc = open_tables(c, opts, err);
    if (rc < 0) {
        ps_client_close(c);
        return rc;
    }
    *out = c;
    return 0;
}

static void free_peers(struct ps_client *c)
{
    for (uint32_t i = 0; i < c->n_peers; i++) {
        ps_writer_fini(&c->peers[i].out);
        ps_writer_fini(&c->peers[i].reply);
        free(c->peers[i].places);
        free(c->peers[i].head);
        free(c->peers[i].slots);
    }
    free(c->peers);
    c->peers = NULL;
    c->n_peers = 0;
}

void ps_client_close(struct ps_client *c)
{
    if (c == NULL)
        return;
    free_peers(c);
    for (uint32_t i = 0; c->tables != NULL && i < c->n_tables; i++) {
        ps_slots_fini(&c->tables[i].slots);
        free(c->tables[i].values);
    }
    free(c->tables);
    free(c->widths);
    free(c->values);
    free(c->order);
    free(c->spare);
    free(c->sections);
    free(c->readers);
    free(c);
}

int ps_client_begin_generation(struct ps_client *c, const struct ps_port *port, uint32_t rank,
                               const struct ps_route *route, uint32_t first_leaf, uint32_t n_leaves,
                               uint64_t version, struct err *err)
{
    free_peers(c);
    c->peers = calloc(route->n_servers, sizeof(*c->peers));
    if (c->peers == NULL)
        return client_no_memory(err);
    c->n_peers = route->n_servers;
    c->port = *port;
    c->route = route;
    c->first_leaf = first_leaf;
    c->n_leaves = n_leaves;
    c->version = version;
    c->rank = rank;
    c->is_copying = true;
    c->find_at = version;
    c->find_steps = 1;
    ps_client_begin(c, 0);
    return client_check_dense(c, err);
}

void ps_client_begin(struct ps_client *c, uint32_t part)
{
    c->part = part;
    c->in_step = false;
    c->unit_step = 0;
    for (uint32_t i = 0; i < c->n_tables; i++)
        ps_slots_clear(&c->tables[i].slots);
}

void ps_client_begin_step(struct ps_client *c)
{
    ps_client_begin(c, 0);
    c->in_step = true;
}

void ps_client_resolve(struct ps_client *c, uint32_t table, int64_t *rows, size_t n)
{
    for (size_t i = 0; c->tables[table].first_shard == PS_BY_ID && i < n; i++)
        rows[i] = (int64_t)ps_row_of_id(rows[i]);
    ps_slots_resolve(&c->tables[table].slots, rows, n);
}

float *const *ps_client_values(struct ps_client *c)
{
    return c->values;
}

/* ---- PULL and ROWS ---- */

static struct client_peer *reader_of(const struct ps_client *c, const struct client_table *t,
                                     uint64_t row)
{
    return &c->peers[c->readers[ps_shard_of(t->first_shard, row)]];
}

static bool make_slots_room(struct client_peer *p, size_t n)
{
    size_t room = p->room_slots > 0 ? p->room_slots : 1024;
    uint32_t *grown;

    while (room < n)
        room *= 2;
    if (room == p->room_slots)
        return true;
    grown = realloc(p->slots, room * sizeof(*grown));
    if (grown == NULL)
        return false;
    p->slots = grown;
    p->room_slots = room;
    return true;
}

/* Adds the section of a table to each message: the rows of slots without values. */
static int write_pull(struct ps_client *c, uint32_t table, struct err *err)
{
    const struct client_table *t = &c->tables[table];

    for (size_t s = t->slots.fetched; s < t->slots.n; s++)
        reader_of(c, t, t->slots.rows[s])->n++;
    for (uint32_t i = 0; i < c->n_peers; i++) {
        struct client_peer *p = &c->peers[i];

        ps_write_section(&p->out, table, table, c->part, p->n);
        p->rows = ps_write_room(&p->out, p->n * sizeof(*p->rows));
        if (p->rows == NULL || !make_slots_room(p, p->n_slots + p->n))
            return client_no_memory(err);
        p->n = 0;
    }
    for (size_t s = t->slots.fetched; s < t->slots.n; s++) {
        uint64_t row = t->slots.rows[s];
        struct client_peer *p = reader_of(c, t, row);

        *p->rows++ = row;
        p->slots[p->n_slots++] = (uint32_t)s;
    }
    return 0;
}

/* Every message has a section for each table, which may be empty. */
static int write_pulls(struct ps_client *c, struct err *err)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < c->n_sparse; i++)
        rc = write_pull(c, i, err);
    for (uint32_t i = c->n_sparse; i < c->n_tables; i++)
        client_write_nothing(c, i);
    return rc;
}

/* Copies the rows to their slots, in the order of the request, which is still in `out`. */
static int store_rows(struct ps_client *c, uint32_t from, const struct ps_message *m,
                      struct err *err)
{
    struct client_peer *p = &c->peers[from];
    size_t at = 0;

    if (m->n_sections != c->n_tables)
        return client_bad_rows(from, err);
    for (uint32_t i = 0; i < m->n_sections; i++) {
        const struct ps_section *x = &m->sections[i];
        struct client_table *t = &c->tables[x->table];

        if (x->table != i || x->part != c->part || x->n != ps_written_rows(&p->out, i))
            return client_bad_rows(from, err);
        for (uint64_t k = 0; k < x->n; k++) {
            uint32_t slot = p->slots[at++];

            memcpy(t->values + (size_t)slot * t->width, x->values + k * t->width,
                   t->width * sizeof(float));
        }
    }
    return 0;
}

static int receive_rows(struct ps_client *c, struct err *err)
{
    struct ps_message m;
    uint32_t from;
    int rc = client_receive(c, PS_ROWS, &from, &m, err);

    return rc == 0 ? store_rows(c, from, &m, err) : rc;
}

int ps_client_fetch(struct ps_client *c, struct err *err)
{
    struct ps_message m = client_pull(c);
    bool is_complete = true;
    uint32_t n_owed;
    int rc = 0;

    for (uint32_t i = 0; i < c->n_tables; i++)
        is_complete = is_complete && c->tables[i].slots.fetched == c->tables[i].slots.n;
    if (is_complete)
        return 0;
    if (c->is_copying && c->version >= c->find_at)
        rc = client_find_holders(c, err);
    client_begin_messages(c, &m);
    if (rc == 0)
        rc = write_pulls(c, err);
    if (rc == 0)
        rc = client_send_pulls(c, &n_owed, err);
    for (; rc == 0 && n_owed > 0; n_owed--)
        rc = receive_rows(c, err);
    for (uint32_t i = 0; rc == 0 && i < c->n_tables; i++)
        c->tables[i].slots.fetched = c->tables[i].slots.n;
    return rc;
}

/* ---- COMMIT and END ---- */

int ps_client_commit(struct ps_client *c, uint64_t version, const struct optim_hyper *hyper,
                     struct err *err)
{
    struct ps_message m = { .kind = PS_COMMIT, .step = version, .flag = hyper == NULL };

    if (hyper != NULL)
        m.hyper = *hyper;
    c->version = version;
    return client_send_to_all(c, &m, err);
}

int ps_client_end(struct ps_client *c, bool is_complete, struct err *err)
{
    struct ps_message m = { .kind = PS_END, .step = c->version, .flag = is_complete };

    return client_send_to_all(c, &m, err);
}
