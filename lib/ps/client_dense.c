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

/* Adds the place of values that a server sends. */
static int add_place(struct client_peer *p, void *to, size_t bytes, struct err *err)
{
    struct iovec *last = p->n_places > 1 ? &p->places[p->n_places - 1] : NULL; /* not the head */

    if (last != NULL && (uint8_t *)last->iov_base + last->iov_len == to) {
        last->iov_len += bytes;
        return 0;
    }
    if (p->n_places == p->room_places) {
        uint32_t room = p->room_places > 0 ? 2 * p->room_places : 64;
        struct iovec *grown = realloc(p->places, room * sizeof(*grown));

        if (grown == NULL)
            return client_no_memory(err);
        p->places = grown;
        p->room_places = room;
    }
    p->places[p->n_places++] = (struct iovec){ to, bytes };
    return 0;
}

/* Begins the replies to PULL: a head and n_tables sections, then values. */
static int begin_replies(struct ps_client *c, uint64_t step, struct err *err)
{
    struct ps_message m = { .kind = PS_ROWS, .step = step };
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < c->n_peers; i++) {
        struct client_peer *p = &c->peers[i];

        ps_write_begin(&p->reply, &m, c->n_tables);
        if (p->head == NULL)
            p->head = malloc(ps_writer_bytes(&p->reply));
        if (p->head == NULL || p->reply.failed)
            return client_no_memory(err);
        p->n_places = 0;
        rc = add_place(p, p->head, ps_writer_bytes(&p->reply), err);
    }
    return rc;
}

static void write_sections(struct ps_client *c, uint32_t table)
{
    for (uint32_t i = 0; i < c->n_peers; i++) {
        struct client_peer *p = &c->peers[i];

        ps_write_section(&p->out, table, table, c->part, p->n);
        ps_write_section(&p->reply, table, table, c->part, p->n);
        p->n_slots += p->n;
        p->n = 0;
    }
}

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
    write_sections(c, table);
    for (uint64_t b = 0; rc == 0 && b < blocks_of(t); b++) {
        struct client_peer *p = reader_of_block(c, t, b);
        size_t padded, floats = floats_in(t, b, &padded);

        for (uint64_t k = 0; k < rows_in(t, b); k++)
            *p->rows++ = b * PS_BLOCK_ROWS + k;
        rc = add_place(p, out + b * PS_BLOCK_ROWS * PS_DENSE_WIDTH, floats * sizeof(*out), err);
        if (rc == 0 && floats < padded)
            rc = add_place(p, c->rest, (padded - floats) * sizeof(*out), err);
    }
    return rc;
}

/* Receives the values of a server into their places. */
static int receive_dense(struct ps_client *c, struct err *err)
{
    struct comm_message in;
    struct client_peer *p;
    struct ps_message m;
    uint32_t from;
    int rc;

    do { /* each message extends the limit */
        rc = c->port.receive(&c->port, &in, err);
        if (rc == 0 && in.data != NULL)
            rc = ps_message_read(in.data, in.bytes, c->widths, c->n_tables, c->sections, &m, err);
        if (rc < 0)
            return rc;
    } while (in.data != NULL && m.kind == PS_WAIT);
    from = in.from - c->route->n_ranks;
    p = &c->peers[from < c->n_peers ? from : 0];
    if (from >= c->n_peers || in.data != NULL || !p->owes ||
        memcmp(p->head, p->reply.data, ps_writer_bytes(&p->reply)) != 0)
        return client_bad_rows(from, err);
    p->owes = false;
    return 0;
}

/* Exchanges the values of the tables [first, end); the messages have empty sections for the others. */
static int fetch_dense(struct ps_client *c, uint32_t first, uint32_t end, float *const *out,
                       struct err *err)
{
    struct ps_message m = client_pull(c);
    uint32_t n_owed = 0;
    int rc = begin_replies(c, m.step, err);

    client_begin_messages(c, &m);
    for (uint32_t i = 0; rc == 0 && i < c->n_tables; i++)
        if (i >= first && i < end)
            rc = pull_dense(c, i, out[i - c->n_sparse], err);
        else
            write_sections(c, i);
    for (uint32_t i = 0; rc == 0 && i < c->n_peers; i++)
        if (c->peers[i].n_slots > 0)
            c->port.place(&c->port, c->route->n_ranks + i, c->peers[i].places,
                          c->peers[i].n_places);
    if (rc == 0)
        rc = client_send_pulls(c, &n_owed, err);
    for (; rc == 0 && n_owed > 0; n_owed--)
        rc = receive_dense(c, err);
    return rc;
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
