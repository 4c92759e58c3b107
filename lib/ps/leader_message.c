/* leader_message.c - messages of the coordinator; see leader_priv.h. */
#include <sys/uio.h>

#include "base/err.h"
#include "comm/channel.h"
#include "ps/leader_priv.h"
#include "ps/port.h"
#include "ps/route.h"

int leader_no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "parameter servers: out of memory");
}

void leader_begin_call(struct ps_leader *l, const struct ps_port *port,
                       const struct ps_route *route)
{
    l->port = port;
    l->route = route;
}

int leader_send(struct ps_leader *l, uint32_t server, struct err *err)
{
    struct iovec part = { .iov_base = l->out.data, .iov_len = l->out.n };

    if (l->out.failed)
        return leader_no_memory(err);
    return l->port->send(l->port, l->route->n_ranks + server, &part, 1, err);
}

int leader_receive_any(struct ps_leader *l, uint32_t *server, struct ps_message *m, struct err *err)
{
    struct comm_message in;
    int rc = l->port->receive(l->port, &in, err);

    if (rc == 0)
        rc = ps_message_read(in.data, in.bytes, l->widths, l->n_tables, l->sections, m, err);
    if (rc == 0)
        *server = in.from - l->route->n_ranks;
    return rc;
}

int leader_check_kind(const struct ps_leader *l, enum ps_kind kind, uint32_t server,
                      const struct ps_message *m, struct err *err)
{
    if (server < l->route->n_servers && m->kind == kind)
        return 0;
    return err_set(err, ERR_PEER, "server %u: message kind %d, expected %d", server, m->kind, kind);
}

int leader_receive(struct ps_leader *l, enum ps_kind kind, uint32_t *server, struct ps_message *m,
                   struct err *err)
{
    int rc = leader_receive_any(l, server, m, err);

    return rc == 0 ? leader_check_kind(l, kind, *server, m, err) : rc;
}
