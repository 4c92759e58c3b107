/* client_dense.c - dense parameters: every step reads all values and sends all gradients. Blocks of 64 rows are
 * consecutive in a parameter, and each is in one shard; see client_priv.h. */
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "base/err.h"
#include "base/text.h"
#include "comm/channel.h"
#include "ps/client_priv.h"
#include "ps/wants.h"
#include "tensor/shards.h"

enum { DENSE_FLOATS = 16 << 20 }; /* requested at a time, with the rest of a parameter */

static uint64_t blocks_of(const struct client_table *t)
{
    return (ps_dense_rows(t->elements) + PS_BLOCK_ROWS - 1) / PS_BLOCK_ROWS;
}

static uint64_t rows_in(const struct client_table *t, uint64_t block)
{
    uint64_t left = ps_dense_rows(t->elements) - block * PS_BLOCK_ROWS;

    return left < PS_BLOCK_ROWS ? left : PS_BLOCK_ROWS;
}

/* Returns the floats of the parameter in the block; *padded: those of its rows. */
static size_t floats_in(const struct client_table *t, uint64_t block, size_t *padded)
{
    size_t left = t->elements - block * PS_BLOCK_ROWS * PS_DENSE_WIDTH;

    *padded = rows_in(t, block) * PS_DENSE_WIDTH;
    return left < *padded ? left : *padded;
}

static struct client_peer *reader_of_block(const struct ps_client *c, const struct client_table *t,
                                           uint64_t block)
{
    return &c->peers[c->readers[shard_of_block(t->first_shard, block)]];
}

/* ---- values ---- */

/* Adds the rows of a parameter to the requests, and their places in `out` to the replies. */
static int pull_dense(struct ps_client *c, uint32_t table, float *out, struct err *err)
{
    const struct client_table *t = &c->tables[table];
    int rc = 0;

    for (uint64_t b = 0; b < blocks_of(t); b++)
        reader_of_block(c, t, b)->n += rows_in(t, b);
    for (uint32_t i = 0; i < c->n_peers; i++) {
        struct client_peer *p = &c->peers[i];

        p->rows = ps_write_room(&p->out, p->n * sizeof(*p->rows));
        if (p->rows == NULL)
            return client_no_memory(err);
    }
    client_write_pulled(c, table);
    for (uint64_t b = 0; rc == 0 && b < blocks_of(t); b++) {
        struct client_peer *p = reader_of_block(c, t, b);
        size_t padded, floats = floats_in(t, b, &padded);

        for (uint64_t k = 0; k < rows_in(t, b); k++)
            *p->rows++ = b * PS_BLOCK_ROWS + k;
        rc = client_add_place(p, out + b * PS_BLOCK_ROWS * PS_DENSE_WIDTH, floats * sizeof(*out),
                              err);
        if (rc == 0 && floats < padded)
            rc = client_add_place(p, c->rest, (padded - floats) * sizeof(*out), err);
    }
    return rc;
}

/* Exchanges the values of the tables [first, end); the messages have empty sections for the others. */
static int fetch_dense(struct ps_client *c, uint32_t first, uint32_t end, float *const *out,
                       struct err *err)
{
    int rc = client_begin_pulls(c, err);

    for (uint32_t i = 0; rc == 0 && i < c->n_tables; i++)
        if (i >= first && i < end)
            rc = pull_dense(c, i, out[i - c->n_sparse], err);
        else
            client_write_pulled(c, i);
    return rc == 0 ? client_receive_rows(c, err) : rc;
}

int ps_client_fetch_dense(struct ps_client *c, float *const *out, struct err *err)
{
    int rc = 0;

    if (c->n_sparse < c->n_tables && c->is_copying && c->version >= c->find_at)
        rc = client_find_holders(c, err);
    for (uint32_t first = c->n_sparse, end; rc == 0 && first < c->n_tables; first = end) {
        size_t floats = 0;

        for (end = first; end < c->n_tables && (end == first || floats < DENSE_FLOATS); end++)
            floats += c->tables[end].elements;
        rc = fetch_dense(c, first, end, out, err);
    }
    return rc;
}

/* ---- gradients ---- */

/* The values stay in the arena of the gradients, from which the kernel copies them. */
int client_push_dense(struct ps_client *c, uint32_t table, const float *values, struct err *err)
{
    static const float zeros[PS_DENSE_WIDTH];
    const struct client_table *t = &c->tables[table];
    uint32_t n = c->route->n_holders;

    for (uint64_t b = 0; b < blocks_of(t); b++)
        for (uint32_t h = 0; h < n; h++)
            c->peers[client_holders_of(c, t, b * PS_BLOCK_ROWS)[h]].n += rows_in(t, b);
    for (uint32_t i = 0; i < c->n_peers; i++) {
        struct client_peer *p = &c->peers[i];

        ps_write_section(&p->out, table, table, 0, p->n);
        p->rows = ps_write_room(&p->out, p->n * sizeof(*p->rows));
        if (p->rows == NULL)
            return client_no_memory(err);
        p->n = 0;
    }
    for (uint64_t b = 0; b < blocks_of(t); b++) {
        const uint32_t *holders = client_holders_of(c, t, b * PS_BLOCK_ROWS);
        size_t padded, floats = floats_in(t, b, &padded);

        for (uint32_t h = 0; h < n; h++) {
            struct client_peer *p = &c->peers[holders[h]];

            for (uint64_t k = 0; k < rows_in(t, b); k++)
                *p->rows++ = b * PS_BLOCK_ROWS + k;
            ps_write_borrow(&p->out, values + b * PS_BLOCK_ROWS * PS_DENSE_WIDTH,
                            floats * sizeof(*values));
            if (floats < padded)
                ps_write_borrow(&p->out, zeros, (padded - floats) * sizeof(*values));
        }
    }
    return 0;
}

int client_check_dense(struct ps_client *c, struct err *err)
{
    char text[32];
    int rc = 0;

    for (uint32_t i = c->n_sparse; i < c->n_tables; i++)
        for (uint64_t b = 0; b < blocks_of(&c->tables[i]); b++)
            for (uint32_t h = 0; h < c->route->n_holders; h++)
                c->peers[client_holders_of(c, &c->tables[i], b * PS_BLOCK_ROWS)[h]].n +=
                    rows_in(&c->tables[i], b);
    for (uint32_t i = 0; i < c->n_peers; i++) {
        uint64_t bytes = c->peers[i].n * (sizeof(uint64_t) + PS_DENSE_WIDTH * sizeof(float));

        c->peers[i].n = 0;
        if (rc < 0 || bytes <= COMM_MESSAGE_MAX)
            continue;
        text_bytes(text, sizeof(text), bytes);
        rc = err_set(err, ERR_UNSUPPORTED,
                     "/parameter_server/dense: a service thread of a ps task would receive %s of gradients in a "
                     "step, the limit is 256 MiB: use more ps tasks, or more service threads in each "
                     "(--devices cpu:N)",
                     text);
    }
    return rc;
}
