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

static void place(const struct ps_port *p, uint32_t from, const struct iovec *places, uint32_t n)
{
    comm_place(p->arg, p->local, from, places, n);
}

struct ps_port ps_comm_port(struct comm *comm, uint32_t local)
{
    return (struct ps_port){ .send = send, .receive = receive, .place = place, .arg = comm, .local = local };
}
