#include "comm/comm_priv.h"

#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/ports.h"
#include "base/rng.h"
#include "comm/conn_limit.h"
#include "comm/maps.h"

enum {
    BACKLOG = 1024,
    ADDRESS_BYTES = 80,
    SWEEP_MAX = BACKLOG,    /* connections accepted in one sweep */
    SWEEP_KEEPS = 128,      /* connections kept between two generations; further ones are closed,
                               and their diallers call again */
    HELLO_LIMIT_MS = 2000,  /* limit for the HELLO of a kept connection */
};

struct comm_listener {
    int fd; /* owned */
    char address[ADDRESS_BYTES];
    struct parked parked[COMM_PARKED_MAX]; /* a ring; the fds are owned */
    uint32_t first_parked, n_parked;
    struct maps *maps; /* owned */
    pthread_mutex_t lock; /* guards is_claimed and, while is_claimed is false, the ring */
    bool is_claimed;      /* a handshake uses the ring */
};

const char *comm_host_key(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static char key[128];

    pthread_mutex_lock(&lock);
    if (key[0] == '\0') {
        char boot[64] = "", ns[64] = "";
        FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
        uint64_t id;

        if (f != NULL) {
            if (fgets(boot, sizeof(boot), f) != NULL)
                boot[strcspn(boot, "\n")] = '\0';
            fclose(f);
        }
        if (readlink("/proc/self/ns/net", ns, sizeof(ns) - 1) < 0)
            ns[0] = '\0';
        if (boot[0] != '\0' && ns[0] != '\0')
            snprintf(key, sizeof(key), "%s %s", boot, ns);
        /* without /proc: the process shares with no other, rather than with a wrong one */
        else if (rng_os(&id, sizeof(id)) == 0)
            snprintf(key, sizeof(key), "process %016" PRIx64, id);
        else
            snprintf(key, sizeof(key), "process %ld", (long)getpid());
    }
    pthread_mutex_unlock(&lock);
    return key;
}

static int print_address(int fd, char out[ADDRESS_BYTES], struct err *err)
{
    struct sockaddr_storage a = { 0 };
    socklen_t n = sizeof(a);
    char host[64], port[8];

    if (getsockname(fd, (struct sockaddr *)&a, &n) < 0)
        return err_sys(err, errno, "read the bound address");
    if (getnameinfo((struct sockaddr *)&a, n, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return err_set(err, ERR_IO, "print the bound address");
    snprintf(out, ADDRESS_BYTES, a.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
    return 0;
}

/* Returns a bound and listening socket, or -errno. */
static int listen_at(const struct addrinfo *a)
{
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1, why;

    if (fd < 0)
        return -errno;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
        bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    why = errno;
    close(fd);
    return -why;
}

/* Resolves the host of a listener, whose port is set later. */
static int resolve(const char *host, struct addrinfo **out, struct err *err)
{
    struct addrinfo hints = { .ai_family = AF_UNSPEC,
                              .ai_socktype = SOCK_STREAM,
                              .ai_flags = AI_PASSIVE };
    int rc = getaddrinfo(host, NULL, &hints, out);

    if (rc == 0)
        return 0;
    return err_set(err, rc == EAI_MEMORY ? ERR_NOMEM : ERR_IO,
                   "listen at '%s': %s; the name of this task does not resolve on its own host yet; register it, "
                   "or correct the cluster", host, gai_strerror(rc));
}

/* For port_choose(): listens on the first address of the list that permits it; NULL: on every one. */
static int listen_port(void *addresses, uint16_t port)
{
    int fd = -EADDRNOTAVAIL;

    if (addresses == NULL)
        return listen_any(port, BACKLOG);
    for (struct addrinfo *a = addresses; a != NULL && fd < 0; a = a->ai_next) {
        if (a->ai_family == AF_INET6)
            ((struct sockaddr_in6 *)(void *)a->ai_addr)->sin6_port = htons(port);
        else
            ((struct sockaddr_in *)(void *)a->ai_addr)->sin_port = htons(port);
        fd = listen_at(a);
    }
    return fd;
}

int comm_listener_open(const char *host, uint16_t first_port, uint16_t last_port,
                       const struct port_list *others, struct comm_listener **out, struct err *err)
{
    struct addrinfo *addresses = NULL;
    struct comm_listener *l;
    int rc = host != NULL ? resolve(host, &addresses, err) : 0, fd;

    if (rc < 0)
        return rc;
    fd = port_choose(first_port, last_port, others, listen_port, addresses);
    if (addresses != NULL)
        freeaddrinfo(addresses);
    if (host == NULL)
        host = "0.0.0.0";
    if (fd == -EADDRINUSE && first_port < last_port)
        return err_set(err, ERR_IO, "data plane: listen at '%s' ports %u to %u (communication.data_port): Address already "
                       "in use: no port of the range is free and no control port of a task of this host; widen the range",
                       host, first_port, last_port);
    if (fd == -EADDRNOTAVAIL)
        return err_set(err, ERR_INPUT, "listen at '%s': not an address of this host; the cluster must name this host for "
                       "this task, or use --bind any", host);
    if (fd < 0) {
        err_sys(err, -fd, "listen at '%s' port %u%s", host, first_port,
                first_port != 0 ? " (communication.data_port)" : "");
        return err_wrap(err, ERR_IO, "data plane");
    }
    l = calloc(1, sizeof(*l));
    if (l == NULL) {
        close(fd);
        return err_set(err, ERR_NOMEM, "listen at '%s': out of memory", host);
    }
    l->fd = fd;
    pthread_mutex_init(&l->lock, NULL);
    l->maps = maps_new();
    rc = l->maps != NULL ? print_address(fd, l->address, err)
                         : err_set(err, ERR_NOMEM, "listen at '%s': out of memory", host);
    if (rc < 0) {
        comm_listener_close(l);
        return rc;
    }
    *out = l;
    return 0;
}

const char *comm_listener_address(const struct comm_listener *l)
{
    return l->address;
}

void comm_listener_close(struct comm_listener *l)
{
    struct parked p;

    if (l == NULL)
        return;
    while (listener_unpark(l, &p))
        close(p.fd);
    close(l->fd);
    maps_free(l->maps);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

struct maps *listener_maps(const struct comm_listener *l)
{
    return l->maps;
}

int listener_fd(const struct comm_listener *l)
{
    return l->fd;
}

static struct parked *parked_at(const struct comm_listener *l, size_t i)
{
    return (struct parked *)&l->parked[(l->first_parked + i) % COMM_PARKED_MAX];
}

static const char *parked_source(const void *arg, size_t i, uint64_t *since)
{
    *since = i; /* the ring is in the order of arrival */
    return parked_at(arg, i)->from;
}

/* Closes one connection; those before it move up by one place. */
static void make_room(struct comm_listener *l)
{
    size_t victim = conn_limit_victim(l->n_parked, parked_source, l);

    close(parked_at(l, victim)->fd);
    for (size_t i = victim; i > 0; i--)
        *parked_at(l, i) = *parked_at(l, i - 1);
    l->first_parked = (l->first_parked + 1) % COMM_PARKED_MAX;
    l->n_parked--;
}

void listener_park(struct comm_listener *l, const struct parked *p)
{
    if (l->n_parked == COMM_PARKED_MAX)
        make_room(l);
    l->parked[(l->first_parked + l->n_parked++) % COMM_PARKED_MAX] = *p;
}

bool listener_unpark(struct comm_listener *l, struct parked *out)
{
    if (l->n_parked == 0)
        return false;
    *out = l->parked[l->first_parked];
    l->first_parked = (l->first_parked + 1) % COMM_PARKED_MAX;
    l->n_parked--;
    return true;
}

void listener_claim(struct comm_listener *l, bool is_claimed)
{
    pthread_mutex_lock(&l->lock);
    l->is_claimed = is_claimed;
    pthread_mutex_unlock(&l->lock);
}

int listener_accept(int fd, char *from, size_t n_from)
{
    struct sockaddr_storage a = { 0 };
    socklen_t bytes = sizeof(a);
    char host[48] = "this host", port[8] = "0";
    int out = accept4(fd, (struct sockaddr *)&a, &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (out < 0)
        return -1;
    address_unmap(&a, &bytes);
    if (a.ss_family != AF_UNIX)
        (void)getnameinfo((struct sockaddr *)&a, bytes, host, sizeof(host), port, sizeof(port),
                          NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(from, n_from, "%s:%s", host, port);
    return out;
}

/* Reads what has arrived of the HELLO. Returns false for a test of a path, for other bytes, or if
 * the connection has ended. */
static bool may_become_link(struct parked *p)
{
    struct handshake_hello h;
    ssize_t n = recv(p->fd, p->hello + p->done, sizeof(p->hello) - p->done, 0);

    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        return false;
    p->done += n > 0 ? (size_t)n : 0;
    return p->done < sizeof(p->hello) ||
           (handshake_hello_read(p->hello, &h, NULL) && h.kind != HANDSHAKE_TEST);
}

/* Keeps the connection for the next generation, or closes it. */
static void keep(struct comm_listener *l, struct parked *p)
{
    bool is_whole = p->done == sizeof(p->hello) || may_become_link(p);
    bool has_expired = p->done < sizeof(p->hello) && clock_ms() - p->since_ms > HELLO_LIMIT_MS;

    if (is_whole && !has_expired && l->n_parked < SWEEP_KEEPS)
        listener_park(l, p);
    else
        close(p->fd);
}

void comm_listener_sweep(struct comm_listener *l)
{
    struct parked p;

    pthread_mutex_lock(&l->lock);
    for (uint32_t i = l->n_parked; i > 0 && !l->is_claimed; i--) {
        (void)listener_unpark(l, &p);
        keep(l, &p);
    }
    for (int i = 0; i < SWEEP_MAX && !l->is_claimed; i++) {
        p = (struct parked){ .since_ms = clock_ms() };
        p.fd = listener_accept(l->fd, p.from, sizeof(p.from));
        if (p.fd < 0)
            break;
        keep(l, &p);
    }
    pthread_mutex_unlock(&l->lock);
}

int listener_parse(const char *address, struct sockaddr_storage *out, uint32_t *n_out,
                   struct err *err)
{
    struct addrinfo hints = { .ai_family = AF_UNSPEC,
                              .ai_socktype = SOCK_STREAM,
                              .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV };
    const char *colon = strrchr(address, ':'), *at = address;
    struct addrinfo *found = NULL;
    char host[ADDRESS_BYTES];
    size_t n = colon != NULL ? (size_t)(colon - address) : 0;
    bool brackets = n >= 2 && address[0] == '[' && address[n - 1] == ']';

    if (brackets)
        at++, n -= 2;
    if (n == 0 || n >= sizeof(host) || (!brackets && memchr(at, ':', n) != NULL))
        return err_set(err, ERR_INPUT, "'%s': expected ip:port or [ip]:port", address);
    memcpy(host, at, n);
    host[n] = '\0';
    if (getaddrinfo(host, colon + 1, &hints, &found) != 0)
        return err_set(err, ERR_INPUT, "'%s': expected ip:port or [ip]:port", address);
    memcpy(out, found->ai_addr, found->ai_addrlen);
    *n_out = found->ai_addrlen;
    freeaddrinfo(found);
    return 0;
}
