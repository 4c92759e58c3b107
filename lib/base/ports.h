/* ports.h - a socket that listens on every address of this host, and ports that are left free.
 * Threads: any. */
#ifndef BASE_PORTS_H
#define BASE_PORTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/* Ports that a task must not choose: other tasks of this host will listen there. */
struct port_list {
    const uint16_t *at; /* [n] borrowed */
    uint32_t n;
};

/* `l` NULL: an empty list. */
static inline bool port_list_has(const struct port_list *l, uint16_t port)
{
    for (uint32_t i = 0; l != NULL && i < l->n; i++)
        if (l->at[i] == port)
            return true;
    return false;
}

/* Returns a non-blocking socket that listens at `port` (0: the system chooses) on every address, IPv6
 * and IPv4, or on every IPv4 address if the host has no IPv6. An IPv4 client has an address like
 * ::ffff:10.0.0.1. Returns -errno on failure. */
int listen_any(uint16_t port, int backlog);

/* Replaces an address like ::ffff:10.0.0.1, of an IPv4 client of listen_any(), by that of IPv4. */
void address_unmap(struct sockaddr_storage *a, socklen_t *bytes);

/* Returns the port of a socket; 0: it is not bound. */
uint16_t port_of_socket(int fd);

enum { PORT_TRIES = 64 };

/* Returns a listening socket of `open`, which listens at a port and returns the socket or -errno. Tries
 * the ports from `first` to `last` that are not in the list `others`, until one is free; both 0: the
 * system chooses a port that is not in the list. Returns -errno of the last try; -EADDRINUSE: no port is
 * left. */
int port_choose(uint16_t first, uint16_t last, const struct port_list *others,
                int (*open)(void *arg, uint16_t port), void *arg);

#endif
