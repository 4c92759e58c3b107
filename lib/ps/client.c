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

/* Adds the rows of a table's slots without values to the requests, and their places to the replies. */
static int pull_slots(struct ps_client *c, uint32_t table, struct err *err)
{
    const struct client_table *t = &c->tables[table];
    size_t bytes = t->width * sizeof(*t->values);
    int rc = 0;

    for (size_t s = t->slots.fetched; s < t->slots.n; s++)
        reader_of(c, t, t->slots.rows[s])->n++;
    for (uint32_t i = 0; i < c->n_peers; i++) {
        struct client_peer *p = &c->peers[i];

        p->rows = ps_write_room(&p->out, p->n * sizeof(*p->rows));
        if (p->rows == NULL)
            return client_no_memory(err);
        p->has_padding = p->n * t->width % 2 != 0;
    }
    client_write_pulled(c, table);
    for (size_t s = t->slots.fetched; rc == 0 && s < t->slots.n; s++) {
        uint64_t row = t->slots.rows[s];
        struct client_peer *p = reader_of(c, t, row);

        *p->rows++ = row;
        rc = client_add_place(p, t->values + s * t->width, bytes, err);
    }
    for (uint32_t i = 0; rc == 0 && i < c->n_peers; i++)
        if (c->peers[i].has_padding)
            rc = client_add_place(&c->peers[i], c->rest, sizeof(*c->rest), err);
    return rc;
}

/* The messages have empty sections for dense parameters. */
int ps_client_fetch(struct ps_client *c, struct err *err)
{
    bool is_complete = true;
    int rc = 0;

    for (uint32_t i = 0; i < c->n_tables; i++)
        is_complete = is_complete && c->tables[i].slots.fetched == c->tables[i].slots.n;
    if (is_complete)
        return 0;
    if (c->is_copying && c->version >= c->find_at)
        rc = client_find_holders(c, err);
    if (rc == 0)
        rc = client_begin_pulls(c, err);
    for (uint32_t i = 0; rc == 0 && i < c->n_tables; i++)
        if (i < c->n_sparse)
            rc = pull_slots(c, i, err);
        else
            client_write_pulled(c, i);
    if (rc == 0)
        rc = client_receive_rows(c, err);
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
