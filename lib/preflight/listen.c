/* listen.c - opens the control and the data port. */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <unistd.h>

#include "base/err.h"
#include "base/ports.h"
#include "preflight/own_name.h"
#include "preflight/preflight_priv.h"

enum { BACKLOG = 1024 };

/* Returns a listening socket, or -errno. */
static int listen_at(const struct sockaddr_storage *a, socklen_t bytes)
{
    int fd = socket(a->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1, why;

    if (fd < 0)
        return -errno;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (a->ss_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
    if (bind(fd, (const struct sockaddr *)a, bytes) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    why = errno;
    close(fd);
    return -why;
}

static void set_port(struct sockaddr_storage *a, uint16_t port)
{
    if (a->ss_family == AF_INET6)
        ((struct sockaddr_in6 *)a)->sin6_port = htons(port);
    else
        ((struct sockaddr_in *)a)->sin_port = htons(port);
}

/* Listens on every address of the host at the port, which is set if 0. Returns 0, or -errno if it
 * listens on none. */
static int listen_all(struct preflight *p, struct resolved *found, uint16_t *port, bool is_data)
{
    uint32_t before = p->n_listeners;
    int why = EADDRNOTAVAIL;

    for (uint32_t i = 0; i < found->n && p->n_listeners < LISTENERS; i++) {
        int fd;

        set_port(&found->at[i], *port);
        fd = listen_at(&found->at[i], found->bytes[i]);
        if (fd < 0) {
            why = -fd;
            continue;
        }
        *port = port_of_socket(fd);
        p->is_data[p->n_listeners] = is_data;
        p->listeners[p->n_listeners++] = fd;
    }
    return p->n_listeners > before ? 0 : -why;
}

/* Opens the data port: the first free one of the range that is no control port. Returns 0, or -errno. */
static int listen_data(struct preflight *p, struct resolved *found)
{
    const struct preflight_opts *o = p->o;
    uint32_t before = p->n_listeners, tries = o->data_first == 0 ? PORT_TRIES : 1;
    int rc = -EADDRINUSE;

    for (uint32_t k = o->data_first; k <= o->data_last && rc == -EADDRINUSE; k++) {
        if (k != 0 && port_list_has(o->control_ports, (uint16_t)k))
            continue;
        for (uint32_t i = 0; i < tries; i++) {
            uint16_t port = (uint16_t)k;

            rc = listen_all(p, found, &port, true);
            p->facts.data_port = rc == 0 ? port : 0;
            if (rc < 0 || !port_list_has(o->control_ports, port))
                break;
            while (p->n_listeners > before)
                close(p->listeners[--p->n_listeners]);
            rc = -EADDRINUSE;
        }
    }
    return rc;
}

/* Returns true, and the reason, if the name of this task has loopback addresses alone. */
static bool has_loopback_name(const struct preflight_opts *o, char fault[PREFLIGHT_TEXT_BYTES])
{
    const char *others[PREFLIGHT_WORLD_MAX];
    char why[512];
    uint32_t n = 0;

    for (uint32_t i = 0; i < o->world; i++)
        if (i != o->self)
            others[n++] = o->tasks[i].host;
    if (own_name_check(o->tasks[o->self].host, others, n, NAME_MS, why, sizeof(why)) !=
        OWN_NAME_LOOPBACK)
        return false;
    snprintf(fault, PREFLIGHT_TEXT_BYTES, "%s", why);
    return true;
}

int listen_open(struct preflight *p, struct err *err)
{
    const struct preflight_opts *o = p->o;
    const struct preflight_task *self = &o->tasks[o->self];
    char *fault = p->facts.listen_fault;
    uint16_t port = self->port;
    struct resolved found;
    int rc;

    if (!o->binds_any && has_loopback_name(o, fault))
        return 0;
    resolve_host(o->binds_any ? NULL : self->host, port, NAME_MS, &found);
    rc = found.n > 0 ? listen_all(p, &found, &port, false) : 0;
    if (rc == -EADDRINUSE)
        return err_set(err, ERR_IO, "listen on %s: address already in use; expected a free port, because a preflight runs "
                                    "before the task; `ss -ltnp 'sport = :%u'` shows the process", self->address, port);
    if (found.n == 0)
        snprintf(fault, PREFLIGHT_TEXT_BYTES, "%.120s has no address: %s", self->host, found.why);
    else if (rc == -EADDRNOTAVAIL)
        snprintf(fault, PREFLIGHT_TEXT_BYTES, "%.120s is not an address of this host",
                 self->address);
    else if (rc < 0)
        snprintf(fault, PREFLIGHT_TEXT_BYTES, "cannot listen on %.120s (error %d)", self->address,
                 -rc);
    if (fault[0] != '\0')
        return 0;
    rc = listen_data(p, &found);
    if (rc < 0)
        return err_set(err, ERR_IO, "listen on %s, data ports %u to %u (communication.data_port): no port can be used "
                                    "(error %d)", self->host, o->data_first, o->data_last, -rc);
    return 0;
}
