/* settle_ports.c - the control ports that the other ports of this task leave free. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/err.h"
#include "base/text.h"
#include "daemon/settle.h"

bool settled_is_loopback(const char *host)
{
    return strcasecmp(host, "localhost") == 0 || strcmp(host, "::1") == 0 ||
           text_starts(host, "127.");
}

static bool is_on_this_host(const struct settled *s, const struct cluster_task *t)
{
    const char *own = s->cluster->self->host;

    return strcasecmp(t->host, own) == 0 ||
           (settled_is_loopback(t->host) && settled_is_loopback(own));
}

static const struct cluster_task *task_of_port(const struct settled *s, uint32_t port)
{
    for (uint32_t i = 0; i < s->cluster->n_tasks; i++) {
        const struct cluster_task *t = &s->cluster->tasks[i];

        if (t->host != NULL && t->port == port && is_on_this_host(s, t))
            return t;
    }
    return NULL;
}

/* Refuses ports of which each is the control port of a task of this host. An evaluator has no data port. */
static int check_range(const struct settled *s, struct err *err)
{
    const struct conf_ports *ports = &s->conf->communication.data_port;
    const struct cluster_task *t;

    if (ports->first == 0 || settled_is_evaluator(s))
        return 0;
    for (uint32_t port = ports->first; port <= ports->last; port++)
        if (task_of_port(s, port) == NULL)
            return 0;
    t = task_of_port(s, ports->first);
    return err_set(err, ERR_INPUT,
                   "/communication/data_port: %u is the control port of %s %u (%s:%u), a task of this host%s; expected a port "
                   "that the cluster does not name, one for each task of the host", ports->first,
                   cluster_type_name(t->type), t->index, t->host, t->port,
                   ports->last > ports->first ? ", and so are the others of the range" : "");
}

int settle_ports(struct settled *s, struct err *err)
{
    const struct cluster *c = s->cluster;
    bool is_range = s->conf->communication.data_port.first != 0;
    uint16_t *ports;
    uint32_t n = 0;
    int rc;

    if (s->listen[0] == '\0')
        return 0;
    rc = check_range(s, err);
    if (rc < 0)
        return rc;
    ports = calloc(c->n_tasks, sizeof(*ports));
    if (ports == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < c->n_tasks; i++) {
        const struct cluster_task *t = &c->tasks[i];

        /* where the system chooses, other names of this host are avoided too */
        if (t->host != NULL && (!is_range || is_on_this_host(s, t)))
            ports[n++] = t->port;
    }
    s->control_ports = (struct port_list){ .at = ports, .n = n };
    return 0;
}
