/* store_commit.c - the update of the rows with the pending gradient. */
#include <string.h>

#include "base/check.h"
#include "ps/store_priv.h"

/* Updates only the rows that have a gradient. */
static void update_pending(const struct ps_store *s, const struct store_table *t,
                           const struct optim_hyper *own)
{
    enum { GROUP = 256 };
    const struct pending *p = &t->pending;
    size_t at[GROUP], width = t->is.width;

    for (uint64_t done = 0; done < p->n; done += GROUP) {
        size_t n = p->n - done < GROUP ? (size_t)(p->n - done) : GROUP;

        for (size_t i = 0; i < n; i++)
            at[i] = store_at(s, t, p->rows[done + i]);
        optim_update_rows(s->opts.optimizer, own, &s->state, at, n, width,
                          p->values + done * width);
    }
}

/* Sorts the pending rows by shard: those of a shard are p->rows[order[i]], ascending, for i from
 * first[shard] to first[shard + 1] - 1. */
static void sort_by_shard(const struct store_table *t, uint32_t *order,
                          uint32_t first[PS_SHARDS + 1])
{
    const struct pending *p = &t->pending;
    uint32_t next[PS_SHARDS];

    memset(first, 0, (PS_SHARDS + 1) * sizeof(*first));
    for (uint64_t i = 0; i < p->n; i++)
        first[ps_shard_of(t->is.first_shard, p->rows[i]) + 1]++;
    for (uint32_t shard = 0; shard < PS_SHARDS; shard++)
        first[shard + 1] += first[shard];
    memcpy(next, first, sizeof(next));
    for (uint64_t i = 0; i < p->n; i++)
        order[next[ps_shard_of(t->is.first_shard, p->rows[i])]++] = (uint32_t)i;
}

/* Updates all rows of a shard's table: those without a gradient have a gradient of zero. order [n]:
 * the pending rows of the shard. */
static void update_shard(const struct ps_store *s, const struct store_table *t, uint32_t shard,
                         const struct optim_hyper *own, const uint32_t *order, uint32_t n)
{
    uint64_t rows = ps_local_rows(t->is.rows, t->is.first_shard, shard);
    uint64_t group = store_sweep_rows(t);
    size_t width = t->is.width, base = store_base(s, t, shard);

    for (uint64_t local = 0, here; local < rows; local += here) {
        const uint32_t *begin = order, *end = order + n;

        here = rows - local < group ? rows - local : group;
        for (; order < end && ps_local_of(t->pending.rows[*order]) < local + here; order++)
            memcpy(s->whole + (ps_local_of(t->pending.rows[*order]) - local) * width,
                   t->pending.values + *order * width, width * sizeof(float));
        n -= (uint32_t)(order - begin);
        optim_update_range(s->opts.optimizer, own, &s->state, base + local * width, here * width,
                           s->whole);
        if (s->opts.average > 0)
            optim_move_average(&s->state, base + local * width, here * width, s->opts.average);
        for (; begin < order; begin++)
            memset(s->whole + (ps_local_of(t->pending.rows[*begin]) - local) * width, 0,
                   width * sizeof(float));
    }
}

static void move_averages(const struct ps_store *s, const struct store_table *t)
{
    for (uint32_t shard = 0; shard < PS_SHARDS; shard++)
        if (store_holds(s, shard))
            optim_move_average(&s->state, store_base(s, t, shard),
                               ps_local_rows(t->is.rows, t->is.first_shard, shard) * t->is.width,
                               s->opts.average);
}

static void update_all(struct ps_store *s, const struct store_table *t,
                       const struct optim_hyper *own)
{
    uint32_t first[PS_SHARDS + 1];

    sort_by_shard(t, s->order, first);
    for (uint32_t shard = 0; shard < PS_SHARDS; shard++)
        if (store_holds(s, shard))
            update_shard(s, t, shard, own, s->order + first[shard],
                         first[shard + 1] - first[shard]);
}

int ps_store_commit(struct ps_store *s, const struct optim_hyper *hyper, uint64_t step,
                    struct err *err)
{
    int rc;

    CHECK(s->is_pending);
    rc = store_log_step(s, hyper, err);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < s->n_tables; i++) {
        const struct store_table *t = &s->tables[i];
        struct optim_hyper own = optim_own_hyper(hyper, t->is.rate_factor, t->is.weight_decay);

        if (store_is_dynamic(t)) {
            uint32_t first[PS_SHARDS + 1];

            sort_by_shard(t, s->order, first);
            store_dynamic_update(s, i, &own, step, s->order, first);
        } else if (optim_skips_rows(s->opts.optimizer, &own, t->is.lazy)) {
            update_pending(s, t, &own);
            if (s->opts.average > 0)
                move_averages(s, t);
        } else {
            update_all(s, t, &own);
        }
    }
    ps_store_discard(s);
    return 0;
}

void ps_store_skip(struct ps_store *s)
{
    CHECK(s->is_pending);
    store_log_nothing(s);
    ps_store_discard(s);
}
