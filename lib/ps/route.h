/* route.h - which points of a communicator hold a shard in a generation. Pure.
 * Threads: any; read-only after ps_route_make(). */
#ifndef PS_ROUTE_H
#define PS_ROUTE_H

#include <stddef.h>
#include <stdint.h>

#include "ps/map.h"

struct group_view;

enum { PS_REPLICAS_MAX = 8 };

struct ps_route {
    uint32_t n_ranks;   /* of the training tasks: the points [0, n_ranks) */
    uint32_t n_servers; /* the points [n_ranks, n_ranks + n_servers) */
    uint32_t n_holders; /* of each shard */
    /* [PS_SHARDS * n_holders] the servers, counted from 0, that hold a shard; best score first */
    uint32_t servers[PS_SHARDS * PS_REPLICAS_MAX];
};

/* `replicas`: the wanted number of holders, 1 to PS_REPLICAS_MAX; fewer if the view has fewer
 * parameter servers. Without one, n_holders is 0. */
void ps_route_make(const struct group_view *v, uint32_t replicas, struct ps_route *out);

/* Keeps the first n holders of each shard; no effect if there are no more. n > 0. */
void ps_route_limit(struct ps_route *r, uint32_t n);

static inline const uint32_t *ps_route_holders(const struct ps_route *r, uint32_t shard)
{
    return &r->servers[(size_t)shard * r->n_holders];
}

#endif
