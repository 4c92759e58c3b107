#include "base/ports.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int listen_at(const struct sockaddr *at, socklen_t bytes, int backlog)
{
    int fd = socket(at->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1, off = 0,
        why;

    if (fd < 0)
        return -errno;
    /* closed connections must not block the port */
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (at->sa_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    if (bind(fd, at, bytes) == 0 && listen(fd, backlog) == 0)
        return fd;
    why = errno;
    close(fd);
    return -why;
}

int listen_any(uint16_t port, int backlog)
{
    struct sockaddr_in6 both = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
    struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = htons(port) };
    int fd = listen_at((const struct sockaddr *)&both, sizeof(both), backlog);

    if (fd >= 0 || fd == -EADDRINUSE)
        return fd;
    return listen_at((const struct sockaddr *)&v4, sizeof(v4), backlog);
}

void address_unmap(struct sockaddr_storage *a, socklen_t *bytes)
{
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)a;
    struct sockaddr_in v4 = { .sin_family = AF_INET };

    if (a->ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr))
        return;
    v4.sin_port = v6->sin6_port;
    memcpy(&v4.sin_addr, v6->sin6_addr.s6_addr + 12, sizeof(v4.sin_addr));
    memcpy(a, &v4, sizeof(v4));
    *bytes = sizeof(v4);
}

uint16_t port_of_socket(int fd)
{
    struct sockaddr_storage a = { 0 };
    socklen_t bytes = sizeof(a);

    if (getsockname(fd, (struct sockaddr *)&a, &bytes) < 0)
        return 0;
    return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                         : ((struct sockaddr_in *)&a)->sin_port);
}

/* A socket whose port is in the list stays open until another port is found, so that the system does not
 * choose its port again. */
static int let_system_choose(const struct port_list *others, int (*open)(void *arg, uint16_t port),
                             void *arg)
{
    int held[PORT_TRIES], n = 0, fd = -EADDRINUSE;

    for (; n < PORT_TRIES; n++) {
        fd = open(arg, 0);
        if (fd < 0 || !port_list_has(others, port_of_socket(fd)))
            break;
        held[n] = fd;
        fd = -EADDRINUSE;
    }
    while (n-- > 0)
        close(held[n]);
    return fd;
}

int port_choose(uint16_t first, uint16_t last, const struct port_list *others,
                int (*open)(void *arg, uint16_t port), void *arg)
{
    int fd = -EADDRINUSE;

    if (first == 0)
        return let_system_choose(others, open, arg);
    for (uint32_t port = first; port <= last && fd == -EADDRINUSE; port++)
        if (!port_list_has(others, (uint16_t)port))
            fd = open(arg, (uint16_t)port);
    return fd;
}
