/* server_shards.c - which rows a server has; see server.h. */
#include <string.h>

#include "ps/server_priv.h"
#include "tensor/fill.h"

bool server_is_idle(const struct ps_server *s)
{
    return !s->is_holding && s->n_copied == 0;
}

bool server_has_shard(const struct ps_server *s, uint32_t shard)
{
    return ps_store_has(s->store, shard) && !ps_set_has(s->copied, shard) &&
           !ps_set_has(s->followed, shard);
}

/* At step 0 every server generates these rows itself, and no COPY contains them. */
static bool is_generated(const struct ps_server *s, uint32_t table)
{
    return s->version == 0 && s->fills[table].kind != TABLE_FROM_FILE;
}

bool server_find_place(const struct ps_server *s, uint32_t shard, struct cursor *at)
{
    if (at->part == (at->is_initial ? 1 : ps_store_n_parts(s->store))) {
        at->part = 0;
        at->first += at->n;
    }
    for (; at->table < s->n_tables; at->table++, at->first = 0)
        if (!is_generated(s, at->table) &&
            (s->rows[at->table] == 0 ||
             at->first < ps_local_rows(s->rows[at->table], ps_first_shard(at->table), shard)))
            return true;
    return false;
}

void server_pass_ids(struct cursor *at, uint64_t last, bool is_end)
{
    if (is_end)
        at->table++;
    at->first = is_end ? 0 : last + 1;
}

void server_drop_incomplete(struct ps_server *s)
{
    for (uint32_t i = ps_set_next(s->followed, 0); i < PS_SHARDS;
         i = ps_set_next(s->followed, i + 1))
        ps_store_drop_shard(s->store, i);
    memset(s->followed, 0, sizeof(s->followed));
    s->n_followed = 0;
}

int server_send_ready(struct ps_server *s, struct err *err)
{
    struct ps_message m = { .kind = PS_READY, .step = s->version, .flag = s->n_copied == 0 };

    s->is_holding = s->n_copied == 0;
    ps_write_begin(&s->out, &m, 0);
    return server_send(s, s->leader, err);
}
