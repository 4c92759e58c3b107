/* server_memory.c - the memory of the shards that BEGIN lists; see server_priv.h. */
#include "ps/server_priv.h"

/* The sums do not overflow: ps_store_open() has refused tables beyond the addresses of a process. */
int server_reserve(const struct ps_server *s, struct err *err)
{
    uint64_t bytes = 0;
    uint32_t n = 0;

    if (s->opts.reserve == NULL)
        return 0;
    for (uint32_t i = 0; i < PS_SHARDS; i++)
        if (ps_set_has(s->own, i) || ps_store_has(s->store, i)) {
            bytes += ps_store_shard_bytes(s->store, i);
            n++;
        }
    return s->opts.reserve(s->opts.arg, bytes, ps_store_memory(s->store, n, bytes), err);
}
