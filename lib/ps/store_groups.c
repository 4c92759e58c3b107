/* store_groups.c - see store_groups.h. */
#include "ps/store_groups.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "ps/store_priv.h"

bool ps_store_is_dynamic(const struct ps_store *s, uint32_t table)
{
    return table < s->n_tables && store_is_dynamic(&s->tables[table]);
}

bool ps_store_has_ids(const struct ps_store *s)
{
    for (uint32_t i = 0; i < s->n_tables; i++)
        if (store_is_dynamic(&s->tables[i]))
            return true;
    return false;
}

bool ps_store_is_initial(const struct ps_store *s, uint32_t table, uint64_t row)
{
    const struct ps_id *id = NULL;

    if (!ps_store_is_dynamic(s, table))
        return false;
    id = ps_dynamic_find(&s->tables[table].dynamic[ps_shard_of(PS_BY_ID, row)], row);
    return id == NULL || id->at == PS_NO_FLOATS;
}

static const struct ps_dynamic *rows_of(const struct ps_store *s, uint32_t shard, uint32_t table)
{
    CHECK(ps_store_has(s, shard) && ps_store_is_dynamic(s, table));
    return &s->tables[table].dynamic[shard];
}

uint32_t ps_store_group_rows(const struct ps_store *s, uint32_t shard, uint32_t table,
                             enum ckpt_group group)
{
    const struct ps_dynamic *d = rows_of(s, shard, table);

    return group == CKPT_TRAINED ? d->n_rows : d->n_ids - d->n_rows;
}

int ps_store_list_group(const struct ps_store *s, uint32_t shard, uint32_t table,
                        enum ckpt_group group, uint32_t **order, struct err *err)
{
    const struct ps_dynamic *d = rows_of(s, shard, table);
    uint32_t *list = malloc(((size_t)d->n_ids + 1) * sizeof(*list)), n = 0;
    bool is_last;

    if (list == NULL)
        return err_set(err, ERR_NOMEM, "parameter server: out of memory");
    (void)ps_dynamic_list(d, 0, UINT32_MAX, list, &is_last);
    for (uint32_t i = 0; i < d->n_ids; i++)
        if ((d->ids[list[i]].at != PS_NO_FLOATS) == (group == CKPT_TRAINED))
            list[n++] = list[i];
    *order = list;
    return 0;
}

void ps_store_export_column(const struct ps_store *s, uint32_t shard, uint32_t table,
                            uint32_t column, const uint32_t *order, uint32_t n, void *out)
{
    const struct ps_dynamic *d = rows_of(s, shard, table);
    size_t width = s->tables[table].is.width;
    int64_t *integers = out;
    float *floats = out;

    for (uint32_t i = 0; i < n; i++) {
        const struct ps_id *id = &d->ids[order[i]];

        switch (column) {
        case PS_COLUMN_IDS:
            integers[i] = ps_id_of_row(id->row);
            break;
        case PS_COLUMN_LAST_STEPS:
            integers[i] = (int64_t)id->last_step;
            break;
        case PS_COLUMN_COUNTS:
            integers[i] = id->count;
            break;
        default:
            memcpy(floats + i * width, ps_dynamic_floats(d, id) + (column - PS_COLUMN_PART) * width,
                   width * sizeof(*floats));
        }
    }
}

uint32_t ps_store_group_count(const struct ps_store *s, uint32_t table, enum ckpt_group group,
                              int64_t count)
{
    uint32_t after = s->tables[table].is.rules.admit_after;

    if (group == CKPT_TRAINED)
        return count < after ? after : (uint32_t)count;
    return count < after || after == 1 ? (uint32_t)count : after - 1;
}
