/* store_history.c - the older versions of the weights; see store_priv.h.
 *
 * A version is read back from the newest logs to the older ones: the weights of a row `age` steps ago are in
 * the log of the earliest of the last `age` steps that changed the row, and if none of them did, they are the
 * weights of now. So a step costs a copy of the rows that it changes, however many versions are kept. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "ps/store_priv.h"

/* Returns the log of the step `age` - 1 steps ago: what it replaced are the weights `age` steps ago. */
static struct store_log *log_of(const struct ps_store *s, uint32_t shard, uint32_t age)
{
    uint32_t k = s->opts.staleness;

    return &s->logs[(size_t)shard * k + (s->newest_log + age - 1) % k];
}

/* Returns the index of the first row of a log that is not before `at`. */
static size_t find(const struct store_log *log, size_t at)
{
    size_t low = 0, high = log->n;

    if (high > 0 && log->rows[high - 1].at < at)
        return high;
    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (log->rows[middle].at < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool has(const struct store_log *log, size_t i, size_t at)
{
    return i < log->n && log->rows[i].at == at;
}

const float *store_older(const struct ps_store *s, uint32_t shard, size_t at, uint32_t age)
{
    for (; age > 0; age--) {
        const struct store_log *log = log_of(s, shard, age);
        size_t i = find(log, at);

        if (has(log, i, at))
            return log->values + log->rows[i].value;
    }
    return store_place(s, shard) + at;
}

/* Returns the memory at `old` with room for at least n elements; NULL: out of memory. */
static void *grow(void *old, size_t *room, uint64_t n, size_t bytes)
{
    uint64_t more = n > *room + *room / 4 ? n : *room + *room / 4;
    void *grown = more <= SIZE_MAX / bytes ? realloc(old, (size_t)more * bytes) : NULL;

    if (grown != NULL)
        *room = (size_t)more;
    return grown;
}

/* Makes room for this many rows and floats in total. */
static int make_log_room(struct store_log *log, uint64_t rows, uint64_t floats, struct err *err)
{
    void *grown;

    if (rows > log->room_rows) {
        grown = grow(log->rows, &log->room_rows, rows, sizeof(*log->rows));
        if (grown == NULL)
            return err_set(err, ERR_NOMEM, "parameter server: no memory for older rows");
        log->rows = grown;
    }
    if (floats > log->room_values) {
        grown = grow(log->values, &log->room_values, floats, sizeof(*log->values));
        if (grown == NULL)
            return err_set(err, ERR_NOMEM, "parameter server: no memory for older rows");
        log->values = grown;
    }
    return 0;
}

/* Adds a row before entry i. The log has room. */
static void insert(struct store_log *log, size_t i, size_t at, const float *values, size_t width)
{
    memmove(log->rows + i + 1, log->rows + i, (log->n - i) * sizeof(*log->rows));
    log->rows[i] = (struct store_log_row){ .at = at, .value = log->n_values };
    memcpy(log->values + log->n_values, values, width * sizeof(*values));
    log->n++;
    log->n_values += width;
}

/* ---- a step ---- */

/* Adds the rows and floats of a table that a step changes in each shard. */
static void count(const struct ps_store *s, const struct store_table *t, bool all,
                  uint64_t rows[PS_SHARDS], uint64_t floats[PS_SHARDS])
{
    for (uint64_t i = 0; !all && i < t->pending.n; i++) {
        uint32_t shard = ps_shard_of(t->is.first_shard, t->pending.rows[i]);

        rows[shard]++;
        floats[shard] += t->is.width;
    }
    for (uint32_t shard = 0; all && shard < PS_SHARDS; shard++)
        if (store_holds(s, shard)) {
            uint64_t n = ps_local_rows(t->is.rows, t->is.first_shard, shard);

            rows[shard] += n;
            floats[shard] += n * t->is.width;
        }
}

/* Adds the weights of local row `local` to the log of a step; its rows arrive in ascending order. */
static void add(struct ps_store *s, const struct store_table *t, uint32_t shard, uint64_t local)
{
    struct store_log *log = log_of(s, shard, 1);
    size_t at = t->offset + (size_t)local * t->is.width;

    insert(log, log->n, at, store_place(s, shard) + at, t->is.width);
}

static void add_table(struct ps_store *s, const struct store_table *t, bool all)
{
    for (uint64_t i = 0; !all && i < t->pending.n; i++)
        add(s, t, ps_shard_of(t->is.first_shard, t->pending.rows[i]),
            ps_local_of(t->pending.rows[i]));
    for (uint32_t shard = 0; all && shard < PS_SHARDS; shard++)
        for (uint64_t k = 0, n = ps_local_rows(t->is.rows, t->is.first_shard, shard);
             store_holds(s, shard) && k < n; k++)
            add(s, t, shard, k);
}

void store_log_nothing(struct ps_store *s)
{
    uint32_t k = s->opts.staleness;

    if (k == 0)
        return;
    s->newest_log = (s->newest_log + k - 1) % k;
    for (uint32_t shard = 0; shard < PS_SHARDS; shard++)
        log_of(s, shard, 1)->n = log_of(s, shard, 1)->n_values = 0;
}

int store_log_step(struct ps_store *s, const struct optim_hyper *hyper, struct err *err)
{
    uint64_t rows[PS_SHARDS] = { 0 }, floats[PS_SHARDS] = { 0 };
    uint32_t k = s->opts.staleness;
    int rc = 0;

    if (k == 0)
        return 0;
    for (uint32_t i = 0; i < s->n_tables; i++)
        count(s, &s->tables[i], !store_skips_rows(s, &s->tables[i], hyper), rows, floats);
    for (uint32_t shard = 0; rc == 0 && shard < PS_SHARDS; shard++) /* the log that the step replaces */
        rc = make_log_room(log_of(s, shard, k), rows[shard], floats[shard], err);
    if (rc < 0)
        return rc;
    store_log_nothing(s);
    for (uint32_t i = 0; i < s->n_tables; i++)
        add_table(s, &s->tables[i], !store_skips_rows(s, &s->tables[i], hyper));
    return 0;
}

/* ---- the state of a shard ---- */

int store_import_older(struct ps_store *s, uint32_t shard, size_t at, uint32_t age, uint64_t n,
                       size_t width, const float *in, struct err *err)
{
    struct store_log *log = log_of(s, shard, age);
    int rc = make_log_room(log, log->n + n, log->n_values + n * width, err);

    for (uint64_t i = 0; rc == 0 && i < n; i++, at += width, in += width) {
        size_t k = find(log, at);

        if (has(log, k, at))
            memcpy(log->values + log->rows[k].value, in, width * sizeof(*in));
        else if (memcmp(store_older(s, shard, at, age - 1), in, width * sizeof(*in)) != 0)
            insert(log, k, at, in, width);
    }
    return rc;
}

void store_drop_logs(struct ps_store *s, uint32_t shard)
{
    for (uint32_t age = 1; age <= s->opts.staleness; age++) {
        struct store_log *log = log_of(s, shard, age);

        free(log->rows);
        free(log->values);
        *log = (struct store_log){ 0 };
    }
}
