/* probe.c - asks tasks that are missing whether they live, so that everybody can read why one is
 * not there: refused, unknown name, no route; or that it runs and only cannot reach us. */
#include "rdzv/rdzv_priv.h"

#include <stdlib.h>

#include "base/check.h"
#include "proto/health.pb-c.h"

enum { AT_ONCE = 16, DEADLINE_MS = 1500 };

struct knock {
    struct rdzv_probe *probe;
    grpc_channel *channel; /* NULL: this place is free */
    struct rdzv_out *out;
    uint32_t rank;
};

struct rdzv_probe {
    struct rdzv *r;
    struct knock knocks[AT_ONCE];
    uint32_t next; /* rank to be asked; world: the round is over */
};

static void go_on(struct rdzv_probe *p);

static void on_end(void *arg, int code, const char *text)
{
    struct knock *k = arg;
    struct rdzv_probe *p = k->probe;
    struct member_coord *coord = rdzv_service_coord(p->r->service);

    grpc_channel_destroy(k->channel);
    k->channel = NULL;
    member_coord_unreachable(
        coord, k->rank,
        code == GRPC_STATUS_OK
            ? "it runs, but has not joined: it may not reach the coordinator's address"
            : text);
    go_on(p);
}

static void knock(struct rdzv_probe *p, struct knock *k, uint32_t rank)
{
    Grpc__Health__V1__HealthCheckRequest q = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    struct rdzv_out_opts o = { .hub = p->r->hub,
                               .method = "/grpc.health.v1.Health/Check",
                               .request = &q.base,
                               .deadline_ms = DEADLINE_MS,
                               .arg = k,
                               .on_end = on_end };

    k->probe = p;
    k->rank = rank;
    k->channel = rdzv_channel(p->r->cluster.tasks[rank].address);
    o.channel = k->channel;
    k->out = rdzv_out_start(&o);
}

static void go_on(struct rdzv_probe *p)
{
    struct member_coord *coord = rdzv_service_coord(p->r->service);

    for (uint32_t i = 0; i < AT_ONCE; i++) {
        if (p->knocks[i].channel != NULL)
            continue;
        while (p->next < p->r->cluster.world &&
               (p->next == p->r->opts.self ||
                member_coord_task(coord, p->next)->state != MEMBER_TASK_MISSING))
            p->next++;
        if (p->next == p->r->cluster.world)
            return;
        knock(p, &p->knocks[i], p->next++);
    }
}

struct rdzv_probe *rdzv_probe_new(struct rdzv *r)
{
    struct rdzv_probe *p = calloc(1, sizeof(*p));

    CHECK(p != NULL);
    p->r = r;
    p->next = r->cluster.world;
    return p;
}

void rdzv_probe_round(struct rdzv_probe *p)
{
    if (p->next < p->r->cluster.world)
        return; /* the last round is still under way */
    p->next = 0;
    go_on(p);
}

void rdzv_probe_free(struct rdzv_probe *p)
{
    for (uint32_t i = 0; i < AT_ONCE; i++) {
        if (p->knocks[i].channel == NULL)
            continue;
        rdzv_out_forget(p->knocks[i].out);
        grpc_channel_destroy(p->knocks[i].channel);
    }
    free(p);
}
