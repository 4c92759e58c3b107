/* store_refuse.c - the errors of requests for rows that a store does not have. */
#include <inttypes.h>

#include "base/err.h"
#include "ps/store_priv.h"

int store_bad_row(const struct store_table *t, uint64_t row, struct err *err)
{
    if (row >= t->is.rows && !store_is_dynamic(t))
        return err_set(err, ERR_PEER,
                       "parameter server: table '%s': row %" PRIu64 " of %" PRIu64 " rows",
                       t->is.name, row, t->is.rows);
    return err_set(err, ERR_PEER,
                   "parameter server: table '%s': row %" PRIu64 " is in shard %" PRIu32
                   ", which this server does not hold",
                   t->is.name, row, ps_shard_of(t->is.first_shard, row));
}

int store_unknown_table(const struct ps_store *s, uint32_t table, struct err *err)
{
    return err_set(err, ERR_PEER, "parameter server: table %" PRIu32 " of %" PRIu32, table,
                   s->n_tables);
}

int store_unknown_part(const struct ps_store *s, uint32_t part, struct err *err)
{
    return err_set(err, ERR_PEER, "parameter server: part %" PRIu32 " of %" PRIu32, part,
                   s->n_parts + s->opts.staleness);
}

int store_too_old(const struct ps_store *s, uint32_t age, struct err *err)
{
    return err_set(err, ERR_PEER,
                   "parameter server: weights before the last %" PRIu32
                   " steps; the staleness is %" PRIu32,
                   age, s->opts.staleness);
}
