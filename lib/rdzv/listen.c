/* listen.c - see listen.h. */
#include "rdzv/listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "base/ports.h"

static int explain(int error, const char *where, struct err *err)
{
    switch (error) {
    case EADDRINUSE:
        return err_set(err, ERR_IO,
                       "listen on %s: address already in use, perhaps by another run of this "
                       "task; `ss -ltnp 'sport = :%s'` shows the process",
                       where, strrchr(where, ':') + 1);
    case EADDRNOTAVAIL:
        return err_set(err, ERR_INPUT,
                       "listen on %s: not an address of this host; the cluster must name "
                       "this host for this task, or bind to 0.0.0.0",
                       where);
    default:
        return err_sys(err, error, "listen on %s", where);
    }
}

/* Returns a listening socket, or -1 with errno. */
static int listen_on(const struct addrinfo *at)
{
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1,
        only_v6 = 0, error;

    if (fd < 0)
        return -1;
    /* closed connections must not block the port */
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (at->ai_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only_v6, sizeof(only_v6));
    if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0)
        return fd;
    error = errno;
    close(fd);
    errno = error;
    return -1;
}

int listen_on_all(const char *where, int sockets[LISTENERS_MAX], uint32_t *n, struct err *err)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE }, *found = NULL;
    const char *colon = strrchr(where, ':');
    char host[320];
    int rc, error = 0;

    *n = 0;
    snprintf(host, sizeof(host), "%.*s", (int)(colon - where), where);
    if (host[0] == '[') {
        memmove(host, host + 1, strlen(host));
        host[strcspn(host, "]")] = '\0';
    }
    if (strcmp(host, "0.0.0.0") == 0) {
        int fd = listen_any((uint16_t)atoi(colon + 1), SOMAXCONN);

        if (fd < 0)
            return explain(-fd, where, err);
        sockets[(*n)++] = fd;
        return 0;
    }
    rc = getaddrinfo(host, colon + 1, &hints, &found);
    if (rc != 0)
        return err_set(err, ERR_IO,
                       "listen on %s: %s; the name of this task does not resolve on its own host yet; register it, or "
                       "correct the cluster",
                       where, gai_strerror(rc));
    for (const struct addrinfo *at = found; at != NULL && *n < LISTENERS_MAX; at = at->ai_next) {
        int fd = listen_on(at);

        if (fd >= 0)
            sockets[(*n)++] = fd;
        else if (error != EADDRINUSE)
            error = errno;
    }
    freeaddrinfo(found);
    return *n > 0 && error != EADDRINUSE ? 0 : explain(error, where, err);
}
