#include "daemon/net_test.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "daemon/settle.h"
#include "member/node.h"
#include "preflight/pair.h"
#include "rdzv/rdzv.h"

_Static_assert((int)RDZV_TICKET_BYTES == (int)MESSAGE_TICKET_BYTES, "tickets are passed on");

struct net_test {
    const struct settled *s;
    struct pair_server *server; /* owned; the last one; NULL: none yet */
    atomic_bool stop;
};

struct net_test *net_test_new(const struct settled *s)
{
    struct net_test *t = calloc(1, sizeof(*t));

    CHECK(t != NULL);
    t->s = s;
    return t;
}

/* Replaces the port of an earlier measurement. */
static int open_port(struct net_test *t, struct rdzv_netcheck_result *out, struct err *err)
{
    const struct conf_ports *ports = &t->s->conf->communication.data_port;
    int rc;

    pair_close(t->server);
    t->server = NULL;
    rc = pair_serve(t->s->binds_any ? NULL : t->s->cluster->self->host, (uint16_t)ports->first,
                    (uint16_t)ports->last, &t->s->control_ports, &t->server, err);
    if (rc < 0)
        return rc;
    out->port = pair_port(t->server);
    memcpy(out->ticket, pair_ticket(t->server), sizeof(out->ticket));
    return 0;
}

int net_test_perform(struct net_test *t, const struct rdzv_netcheck *q,
                     struct rdzv_netcheck_result *out, struct err *err)
{
    struct pair_result r;
    int rc;

    if (q->peer == MEMBER_NO_RANK)
        return open_port(t, out, err);
    rc = pair_measure(t->s->cluster->ranks[q->peer]->host, q->port, q->ticket, q->ms, q->bytes,
                      &t->stop, &r, err);
    if (rc < 0)
        return rc;
    out->rtt_us = r.rtt_us;
    out->rate = r.rate;
    return 0;
}

void net_test_stop(struct net_test *t)
{
    atomic_store(&t->stop, true);
}

void net_test_free(struct net_test *t)
{
    if (t == NULL)
        return;
    pair_close(t->server);
    free(t);
}
