/* port.c - see port.h. */
#include "ps/port.h"

#include "comm/channel.h"

static int send(const struct ps_port *p, uint32_t to, const struct iovec *parts, uint32_t n,
                struct err *err)
{
    return comm_send(p->arg, p->local, to, parts, n, err);
}

static int receive(const struct ps_port *p, struct comm_message *out, struct err *err)
{
    return comm_receive(p->arg, p->local, out, 0, err);
}

struct ps_port ps_comm_port(struct comm *comm, uint32_t local)
{
    return (struct ps_port){ .send = send, .receive = receive, .arg = comm, .local = local };
}
