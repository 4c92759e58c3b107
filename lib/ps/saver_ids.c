/* saver_ids.c - see saver_priv.h. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/err.h"
#include "ps/saver_priv.h"
#include "ps/store_groups.h"

static uint32_t **list_of(const struct saver *s, uint32_t table, enum ckpt_group group,
                          uint32_t shard)
{
    return &s->lists[(size_t)table * SAVER_LISTS + group * CKPT_FILE_SHARDS +
                     shard % CKPT_FILE_SHARDS];
}

void saver_free_ids(struct saver *s)
{
    for (size_t i = 0; s->lists != NULL && i < (size_t)s->job.n_tables * SAVER_LISTS; i++)
        free(s->lists[i]);
    free(s->lists);
}

static int list_one(struct saver *s, uint32_t table, enum ckpt_group group, uint32_t shard)
{
    uint32_t **list = list_of(s, table, group, shard), n;
    int rc;

    free(*list);
    *list = NULL;
    rc = ps_background_enter(&s->base, s->err);
    if (rc < 0)
        return rc;
    n = ps_store_group_rows(s->job.store, shard, table, group);
    rc = n == s->sizes[table].rows[group][shard]
             ? ps_store_list_group(s->job.store, shard, table, group, list, s->err)
             : err_set(s->err, ERR_PEER,
                       "table %" PRIu32 ", shard %" PRIu32 ": %" PRIu32
                       " rows, but the coordinator counted %" PRIu32,
                       table, shard, n, s->sizes[table].rows[group][shard]);
    ps_background_leave(&s->base);
    return rc;
}

int saver_list_ids(struct saver *s)
{
    uint32_t first = s->file % CKPT_SHARD_FILES * CKPT_FILE_SHARDS;
    int rc = 0;

    for (uint32_t t = 0; rc == 0 && t < s->job.n_sizes; t++)
        for (uint32_t shard = first;
             s->job.rows[t] == 0 && rc == 0 && shard < first + CKPT_FILE_SHARDS; shard++)
            for (int g = 0; rc == 0 && g < CKPT_GROUPS && ps_set_has(s->shards, shard); g++)
                rc = list_one(s, t, g, shard);
    return rc;
}

/* Writes n listed rows from byte `at` of the file on. */
static int write_listed(struct saver *s, uint32_t shard, uint32_t table, uint32_t column,
                        const uint32_t *order, uint32_t n, uint64_t at)
{
    uint32_t most = (uint32_t)(SAVER_CHUNK_BYTES / s->row_bytes), some;
    int rc = 0;

    for (; rc == 0 && n > 0; n -= some, order += some, at += some * s->row_bytes) {
        if (s->n_chunk > 0 &&
            (s->chunk_at + s->n_chunk != at || s->n_chunk + s->row_bytes > SAVER_CHUNK_BYTES))
            rc = saver_flush(s);
        if (s->n_chunk == 0)
            s->chunk_at = at;
        some = most - (uint32_t)(s->n_chunk / s->row_bytes);
        some = some < n ? some : n;
        if (rc == 0)
            rc = ps_background_enter(&s->base, s->err);
        if (rc < 0)
            return rc;
        ps_store_export_column(s->job.store, shard, table, column, order, some,
                               s->chunk + s->n_chunk);
        ps_background_leave(&s->base);
        s->n_chunk += some * s->row_bytes;
    }
    return rc;
}

/* Writes one tensor of a dynamic table: the rows of the wanted shards, at their places. */
static int write_column(struct saver *s, uint32_t table, enum ckpt_group group, uint32_t column,
                        size_t row_bytes, uint64_t *at)
{
    uint32_t file = s->file % CKPT_SHARD_FILES, first = file * CKPT_FILE_SHARDS;
    const struct ckpt_sizes *sizes = &s->sizes[table];
    int rc = 0;

    s->row_bytes = row_bytes;
    for (uint32_t shard = first; rc == 0 && shard < first + CKPT_FILE_SHARDS; shard++) {
        if (ps_set_has(s->shards, shard))
            rc = write_listed(s, shard, table, column, *list_of(s, table, group, shard),
                              sizes->rows[group][shard], *at);
        *at += sizes->rows[group][shard] * row_bytes;
    }
    return rc == 0 ? saver_flush(s) : rc;
}

int saver_write_integers(struct saver *s, uint64_t *at)
{
    static const struct {
        enum ckpt_shard_kind kind;
        enum ckpt_group group;
        uint32_t column;
    } tensors[] = { { CKPT_SHARD_MODEL, CKPT_TRAINED, PS_COLUMN_IDS },
                    { CKPT_SHARD_OPTIMIZER, CKPT_TRAINED, PS_COLUMN_LAST_STEPS },
                    { CKPT_SHARD_OPTIMIZER, CKPT_TRAINED, PS_COLUMN_COUNTS },
                    { CKPT_SHARD_OPTIMIZER, CKPT_CANDIDATES, PS_COLUMN_IDS },
                    { CKPT_SHARD_OPTIMIZER, CKPT_CANDIDATES, PS_COLUMN_LAST_STEPS },
                    { CKPT_SHARD_OPTIMIZER, CKPT_CANDIDATES, PS_COLUMN_COUNTS } };
    uint32_t kind = s->file / CKPT_SHARD_FILES;
    int rc = 0;

    for (uint32_t t = 0; rc == 0 && t < s->job.n_sizes; t++)
        for (size_t i = 0; rc == 0 && s->job.rows[t] == 0 && i < COUNT_OF(tensors); i++)
            if (tensors[i].kind == kind)
                rc = write_column(s, t, tensors[i].group, tensors[i].column, sizeof(int64_t), at);
    return rc;
}

int saver_write_part(struct saver *s, uint32_t table, uint32_t part, uint64_t *at)
{
    return write_column(s, table, CKPT_TRAINED, PS_COLUMN_PART + part,
                        s->job.widths[table] * sizeof(float), at);
}
