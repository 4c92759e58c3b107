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

int settle_ports(struct settled *s, struct err *err)
{
    const struct cluster *c = s->cluster;
    bool is_range = s->conf->communication.data_port.first != 0;
    uint16_t *ports;
    uint32_t n = 0;

    if (s->listen[0] == '\0')
        return 0;
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
