/* port.h - how the client and the leader exchange messages with servers: an end of a communicator,
 * or of a test in one thread. Threads: those of the end. */
#ifndef PS_PORT_H
#define PS_PORT_H

#include <stdint.h>

struct comm;
struct comm_message;
struct err;
struct iovec;

struct ps_port {
    /* As comm_send() and comm_receive() with the deadline of the communicator (comm/channel.h). */
    int (*send)(const struct ps_port *p, uint32_t to, const struct iovec *parts, uint32_t n,
                struct err *err);
    int (*receive)(const struct ps_port *p, struct comm_message *out, struct err *err);
    /* As comm_place(). NULL: the user of the port has no dense parameters. */
    void (*place)(const struct ps_port *p, uint32_t from, const struct iovec *places, uint32_t n);
    void *arg; /* borrowed */
    uint32_t local;
};

/* The port of the rank `local` of this member; comm is borrowed. */
struct ps_port ps_comm_port(struct comm *comm, uint32_t local);

#endif
