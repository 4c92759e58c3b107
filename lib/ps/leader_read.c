/* leader_read.c - the coordinator reads rows of tables from the servers, at a step boundary; see leader.h. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "ps/leader_priv.h"
#include "ps/port.h"
#include "ps/route.h"

enum { READ_FLOATS = 1 << 20 }; /* that are requested at once */

/* ---- readers ---- */

/* The first holders read from now on if they are complete. */
static int update_readers(struct ps_leader *l, struct err *err)
{
    struct ps_message m = { .kind = PS_QUERY };
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < l->route->n_servers; i++) {
        ps_write_begin(&l->out, &m, 0);
        rc = leader_send(l, i, err);
    }
    l->is_copying = false;
    for (uint32_t i = 0; rc == 0 && i < l->route->n_servers; i++) {
        uint32_t server;

        rc = leader_receive(l, PS_HELD, &server, &m, err);
        for (uint32_t s = 0; rc == 0 && s < PS_SHARDS; s++) {
            if (ps_route_holders(l->route, s)[0] != server)
                continue;
            if (ps_set_has(m.shards, s))
                l->readers[s] = server;
            else
                l->is_copying = true;
        }
    }
    return rc;
}

int ps_leader_find_readers(struct ps_leader *l, const struct ps_port *port,
                           const struct ps_route *route, const uint32_t **out, struct err *err)
{
    leader_begin_call(l, port, route);
    *out = l->readers;
    return l->is_copying ? update_readers(l, err) : 0;
}

/* ---- rows ---- */

struct wanted { /* rows of a part of a table after a step */
    uint64_t version;
    uint32_t table, part;
    const uint64_t *rows; /* [n]; NULL: first, first + 1, ... */
    uint64_t first, n;
};

static uint64_t row_of(const struct wanted *w, uint64_t i)
{
    return w->rows != NULL ? w->rows[i] : w->first + i;
}

/* Returns the server that the row is read from. */
static uint32_t reader_of(const struct ps_leader *l, const struct wanted *w, uint64_t i)
{
    uint32_t first = ps_first_shard_of(w->table, l->tables[w->table].rows);

    return l->readers[ps_shard_of(first, row_of(w, i))];
}

static int request_rows(struct ps_leader *l, const struct wanted *w, uint32_t server,
                        uint64_t *found, struct err *err)
{
    struct ps_message m = { .kind = PS_PULL, .step = w->version };
    int rc = 0;

    *found = 0;
    ps_write_begin(&l->out, &m, 1);
    for (uint64_t i = 0; i < w->n; i++) {
        uint64_t *to;

        if (reader_of(l, w, i) != server)
            continue;
        to = ps_write_room(&l->out, sizeof(*to));
        if (to != NULL)
            *to = row_of(w, i);
        ++*found;
    }
    ps_write_section(&l->out, 0, w->table, w->part, *found);
    if (*found > 0)
        rc = leader_send(l, server, err);
    return rc;
}

static int store_rows(const struct ps_leader *l, uint32_t server, const struct ps_message *m,
                      const struct wanted *w, float *out, struct err *err)
{
    const struct ps_section *x = m->sections;
    bool is_asked =
        m->step == w->version && m->n_sections == 1 && x->table == w->table && x->part == w->part;
    uint32_t width = l->widths[w->table];
    uint64_t k = 0;

    for (uint64_t i = 0; i < w->n && is_asked; i++) {
        if (reader_of(l, w, i) != server)
            continue;
        if (k < x->n)
            memcpy(out + i * width, x->values + k * width, width * sizeof(float));
        k++;
    }
    return is_asked && k == x->n && k > 0
               ? 0
               : err_set(err, ERR_PEER, "server %u: its rows are not those that were requested",
                         server);
}

/* Reads at most READ_FLOATS. */
static int read_some(struct ps_leader *l, const struct wanted *w, float *out, struct err *err)
{
    uint32_t n_owed = 0;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < l->route->n_servers; i++) {
        uint64_t found;

        rc = request_rows(l, w, i, &found, err);
        n_owed += found > 0;
    }
    for (; rc == 0 && n_owed > 0; n_owed--) {
        struct ps_message m;
        uint32_t server;

        rc = leader_receive(l, PS_ROWS, &server, &m, err);
        if (rc == 0)
            rc = store_rows(l, server, &m, w, out, err);
    }
    return rc;
}

int ps_leader_read(struct ps_leader *l, const struct ps_port *port, const struct ps_route *route,
                   uint64_t version, uint32_t table, uint32_t part, const uint64_t *rows,
                   uint64_t first, uint64_t n, float *out, struct err *err)
{
    uint32_t width = l->widths[table];
    struct wanted w = { .version = version, .table = table, .part = part };
    int rc = 0;

    CHECK((l->tables[table].rows == 0) == (rows != NULL) || n == 0);
    leader_begin_call(l, port, route);
    for (uint64_t at = 0; rc == 0 && at < n; at += w.n) {
        w.n = width < READ_FLOATS ? READ_FLOATS / width : 1;
        w.n = w.n > n - at ? n - at : w.n;
        w.first = first + at;
        w.rows = rows != NULL ? rows + at : NULL;
        rc = read_some(l, &w, out + at * width, err);
    }
    return rc;
}

/* ---- listing ---- */

static int compare_rows(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static int request_list(struct ps_leader *l, uint64_t version, uint32_t table, uint32_t server,
                        struct err *err)
{
    struct ps_message m = { .kind = PS_LIST, .step = version, .number = table };
    uint64_t shards[PS_SET_WORDS] = { 0 };

    for (uint32_t s = 0; s < PS_SHARDS; s++)
        if (l->readers[s] == server)
            ps_set_add(shards, s);
    ps_write_begin(&l->out, &m, 0);
    ps_write_set(&l->out, shards);
    return leader_send(l, server, err);
}

/* Adds the rows that a server has listed. */
static int add_listed(const struct ps_leader *l, uint32_t server, const struct ps_message *m,
                      uint64_t version, uint32_t table, uint64_t **rows, uint64_t *n,
                      struct err *err)
{
    const struct ps_section *x = m->sections;
    uint64_t *grown;

    if (m->step != version || m->n_sections != 1 || x->table != table)
        return err_set(err, ERR_PEER, "server %u: its list is not the one that was requested",
                       server);
    for (uint64_t i = 0; i < x->n; i++)
        if (l->readers[ps_shard_of(PS_BY_ID, x->rows[i])] != server)
            return err_set(err, ERR_PEER, "server %u: it lists rows of other servers", server);
    grown = realloc(*rows, (*n + x->n + 1) * sizeof(*grown));
    if (grown == NULL)
        return leader_no_memory(err);
    if (x->n > 0)
        memcpy(grown + *n, x->rows, x->n * sizeof(*grown));
    *rows = grown;
    *n += x->n;
    return 0;
}

int ps_leader_list(struct ps_leader *l, const struct ps_port *port, const struct ps_route *route,
                   uint64_t version, uint32_t table, uint64_t **rows, uint64_t *n, struct err *err)
{
    int rc = 0;

    CHECK(l->tables[table].rows == 0);
    leader_begin_call(l, port, route);
    *rows = NULL;
    *n = 0;
    for (uint32_t i = 0; rc == 0 && i < route->n_servers; i++)
        rc = request_list(l, version, table, i, err);
    for (uint32_t i = 0; rc == 0 && i < route->n_servers; i++) {
        struct ps_message m;
        uint32_t server;

        rc = leader_receive(l, PS_LISTED, &server, &m, err);
        if (rc == 0)
            rc = add_listed(l, server, &m, version, table, rows, n, err);
    }
    if (rc < 0) {
        free(*rows);
        *rows = NULL;
        return rc;
    }
    if (*n > 1)
        qsort(*rows, *n, sizeof(**rows), compare_rows);
    for (uint64_t i = 1; i < *n; i++)
        if ((*rows)[i] == (*rows)[i - 1]) {
            free(*rows);
            *rows = NULL;
            return err_set(err, ERR_PEER, "a server lists a row twice");
        }
    return 0;
}
