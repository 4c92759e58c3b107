/* leader_room.c - how many holders of each shard fit the memory of the servers; see leader_priv.h.
 *
 * A server that is asked for more than it may use ends itself, and its rows are lost. So the number of holders is
 * decided before, of all shards alike: clients compute the holders of a shard from it. */
#include "ps/leader_priv.h"
#include "ps/message.h"
#include "ps/route.h"

static bool is_holder(const struct ps_leader *l, uint32_t shard, uint32_t server,
                      uint32_t n_holders)
{
    const uint32_t *holders = ps_route_holders(l->route, shard);

    for (uint32_t h = 0; h < n_holders; h++)
        if (holders[h] == server)
            return true;
    return false;
}

/* A server keeps valid shards that move away until its first step. */
static uint64_t needed_by(const struct ps_leader *l, const struct held *held, uint32_t server,
                          uint32_t n_holders)
{
    const struct held *h = &held[server];
    uint64_t bytes = 0;

    for (uint32_t shard = 0; shard < PS_SHARDS; shard++)
        if (is_holder(l, shard, server, n_holders) || (h->is_valid && ps_set_has(h->shards, shard)))
            bytes += l->shard_bytes[shard];
    return bytes;
}

uint32_t leader_fit_holders(const struct ps_leader *l, const struct held *held, uint32_t *server,
                            uint64_t *needed)
{
    uint32_t n = l->route->n_holders;

    for (uint32_t i = 0; n > 1 && i < l->route->n_servers; i++)
        for (uint64_t bytes; n > 1 && (bytes = needed_by(l, held, i, n)) > held[i].room; n--) {
            *server = i;
            *needed = bytes;
        }
    return n;
}
