/* client_message.c - messages of the client, and the servers that it asks for rows; see client_priv.h. */
#include <inttypes.h>
#include <string.h>
#include <sys/uio.h>

#include "base/err.h"
#include "comm/channel.h"
#include "ps/client_priv.h"

int client_no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "client of parameter servers: out of memory");
}

struct ps_message client_pull(const struct ps_client *c)
{
    uint64_t age = c->in_step ? c->staleness : 0;

    if (c->unit_step > 0)
        return (struct ps_message){
            .kind = PS_PULL, .step = c->unit_step, .flag = PS_PULL_UNIT, .first = c->version
        };
    return (struct ps_message){ .kind = PS_PULL,
                                .step = c->version > age ? c->version - age : 0,
                                .flag = c->in_step ? PS_PULL_STEP : PS_PULL_HELD };
}

void client_begin_messages(struct ps_client *c, const struct ps_message *m)
{
    for (uint32_t i = 0; i < c->n_peers; i++)
        ps_write_begin(&c->peers[i].out, m, c->n_tables);
}

int client_send_to(struct ps_client *c, uint32_t i, struct err *err)
{
    struct ps_writer *w = &c->peers[i].out;
    uint32_t n;
    const struct iovec *parts = ps_writer_parts(w, &n);

    if (parts == NULL)
        return client_no_memory(err);
    return c->port.send(&c->port, c->route->n_ranks + i, parts, n, err);
}

const uint32_t *client_holders_of(const struct ps_client *c, const struct client_table *t,
                                  uint64_t row)
{
    return ps_route_holders(c->route, ps_shard_of(t->first_shard, row));
}

/* A server answers QUERY at once, and may not have applied the newest step yet. */
static bool is_due(const struct ps_client *c, const struct ps_message *m)
{
    return m->kind != PS_HELD || m->step == c->version || m->step + 1 == c->version ||
           c->unit_step > 0;
}

/* Receives a message of a server that owes one. */
int client_receive(struct ps_client *c, enum ps_kind kind, uint32_t *from, struct ps_message *m,
                   struct err *err)
{
    struct comm_message in;
    int rc;

    do { /* each message extends the limit */
        rc = c->port.receive(&c->port, &in, err);
        if (rc == 0)
            rc = ps_message_read(in.data, in.bytes, c->widths, c->n_tables, c->sections, m, err);
        if (rc < 0)
            return rc;
    } while (m->kind == PS_WAIT);
    *from = in.from - c->route->n_ranks;
    if (*from >= c->n_peers || m->kind != kind || !c->peers[*from].owes || !is_due(c, m))
        return err_set(err, ERR_PEER, "server %u: message kind %d of step %" PRIu64
                                      ", expected kind %d of step %" PRIu64,
                       *from, m->kind, m->step, kind, client_pull(c).step);
    c->peers[*from].owes = false;
    return 0;
}

int client_send_to_all(struct ps_client *c, const struct ps_message *m, struct err *err)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < c->n_peers; i++) {
        ps_write_begin(&c->peers[i].out, m, 0);
        rc = client_send_to(c, i, err);
    }
    return rc;
}

/* Sets the server that sends the rows of each shard. */
static int choose_readers(struct ps_client *c, struct err *err)
{
    uint32_t n = c->route->n_holders;

    c->is_copying = false;
    for (uint32_t s = 0; s < PS_SHARDS; s++) {
        const uint32_t *holders = ps_route_holders(c->route, s);
        uint32_t k = 0;

        while (k < n && !ps_set_has(c->peers[holders[(c->rank + k) % n]].held, s))
            k++;
        if (k == n)
            return err_set(err, ERR_PEER, "no server has all rows of shard %u", s);
        c->readers[s] = holders[(c->rank + k) % n];
        c->is_copying = c->is_copying || k > 0;
    }
    return 0;
}

int client_find_holders(struct ps_client *c, struct err *err)
{
    struct ps_message m = { .kind = PS_QUERY };
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < c->n_peers; i++) {
        ps_write_begin(&c->peers[i].out, &m, 0);
        c->peers[i].owes = true;
        rc = client_send_to(c, i, err);
    }
    for (uint32_t i = 0; rc == 0 && i < c->n_peers; i++) {
        uint32_t from;

        rc = client_receive(c, PS_HELD, &from, &m, err);
        if (rc == 0)
            memcpy(c->peers[from].held, m.shards, sizeof(c->peers[from].held));
    }
    c->find_at = c->version + c->find_steps;
    c->find_steps *= 2;
    return rc == 0 ? choose_readers(c, err) : rc;
}
