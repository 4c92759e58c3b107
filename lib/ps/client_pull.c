/* client_pull.c - PULL and ROWS: the values that a server sends go to their places; see client_priv.h. */
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "base/err.h"
#include "comm/channel.h"
#include "ps/client_priv.h"

int client_add_place(struct client_peer *p, void *to, size_t bytes, struct err *err)
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

int client_begin_pulls(struct ps_client *c, struct err *err)
{
    struct ps_message pull = client_pull(c), m = { .kind = PS_ROWS, .step = pull.step };
    int rc = 0;

    client_begin_messages(c, &pull);
    for (uint32_t i = 0; rc == 0 && i < c->n_peers; i++) {
        struct client_peer *p = &c->peers[i];

        p->n_pulled = 0;
        ps_write_begin(&p->reply, &m, c->n_tables);
        if (p->head == NULL)
            p->head = malloc(ps_writer_bytes(&p->reply));
        if (p->head == NULL || p->reply.failed)
            return client_no_memory(err);
        p->n_places = 0;
        rc = client_add_place(p, p->head, ps_writer_bytes(&p->reply), err);
    }
    return rc;
}

void client_write_pulled(struct ps_client *c, uint32_t table)
{
    for (uint32_t i = 0; i < c->n_peers; i++) {
        struct client_peer *p = &c->peers[i];

        ps_write_section(&p->out, table, table, c->part, p->n);
        ps_write_section(&p->reply, table, table, c->part, p->n);
        p->n_pulled += p->n;
        p->n = 0;
    }
}

/* Sends PULL to the servers from which rows are requested; *n_owed: how many. */
static int send_pulls(struct ps_client *c, uint32_t *n_owed, struct err *err)
{
    int rc = 0;

    *n_owed = 0;
    for (uint32_t i = 0; rc == 0 && i < c->n_peers; i++) {
        struct client_peer *p = &c->peers[i];

        p->owes = p->n_pulled > 0;
        if (!p->owes)
            continue;
        c->port.place(&c->port, c->route->n_ranks + i, p->places, p->n_places);
        rc = client_send_to(c, i, err);
        ++*n_owed;
    }
    return rc;
}

/* Receives the values of a server. */
static int receive_values(struct ps_client *c, struct err *err)
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
        return err_set(err, ERR_PEER, "server %u: its rows are not those that were requested",
                       from);
    p->owes = false;
    return 0;
}

int client_receive_rows(struct ps_client *c, struct err *err)
{
    uint32_t n_owed;
    int rc = send_pulls(c, &n_owed, err);

    for (; rc == 0 && n_owed > 0; n_owed--)
        rc = receive_values(c, err);
    return rc;
}
