/* route.c - see route.h. */
#include "ps/route.h"

#include "base/check.h"
#include "base/group_view.h"

enum { PS_MAX = 1024 };

void ps_route_make(const struct group_view *v, uint32_t replicas, struct ps_route *out)
{
    uint32_t ranks[PS_MAX], first[PS_MAX], threads[PS_MAX], n = 0;

    CHECK(replicas >= 1 && replicas <= PS_REPLICAS_MAX);
    out->n_ranks = out->n_servers = out->n_holders = 0;
    for (uint32_t i = 0; i < v->n_members; i++) {
        const struct group_member *m = &v->members[i];

        out->n_ranks += m->n_devices;
        if (m->n_servers == 0)
            continue;
        CHECK(n < PS_MAX);
        ranks[n] = m->rank;
        first[n] = out->n_servers;
        threads[n++] = m->n_servers;
        out->n_servers += m->n_servers;
    }
    if (n == 0)
        return;
    out->n_holders = ps_map_make(ranks, n, replicas, out->servers);
    for (uint32_t i = 0; i < PS_SHARDS * out->n_holders; i++) { /* members become their threads */
        uint32_t member = out->servers[i];

        out->servers[i] = first[member] + ps_thread_of(i / out->n_holders, threads[member]);
    }
}

void ps_route_limit(struct ps_route *r, uint32_t n)
{
    CHECK(n > 0);
    if (n >= r->n_holders)
        return;
    for (uint32_t shard = 1; shard < PS_SHARDS; shard++) /* to a lower place */
        for (uint32_t h = 0; h < n; h++)
            r->servers[shard * n + h] = r->servers[shard * r->n_holders + h];
    r->n_holders = n;
}
