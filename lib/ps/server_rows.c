/* server_rows.c - rows of a server, for PULL and for readers; see server.h. */
#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "ps/server_priv.h"
#include "ps/store_groups.h"

/* Do all the rows belong to shards that have their rows? Without copies every shard of the store has. */
static int check_rows(const struct ps_server *s, const struct ps_section *x, struct err *err)
{
    for (uint64_t i = 0; s->n_followed > 0 && i < x->n; i++) {
        uint32_t shard = ps_shard_of(server_first_shard(s, x->table), x->rows[i]);

        if (ps_set_has(s->followed, shard))
            return err_set(err, ERR_PEER, "row %" PRIu64 ": the rows of shard %u are still copied",
                           x->rows[i], shard);
    }
    return 0;
}

int server_read_rows(struct ps_server *s, const struct ps_section *x, uint64_t version, float *to,
                     struct err *err)
{
    int rc = check_rows(s, x, err);

    if (rc < 0)
        return rc;
    if (x->part == 0)
        return ps_store_read(s->store, x->table, (uint32_t)(s->version - version), x->rows, x->n,
                             to, err);
    if (version != s->version)
        return err_set(err, ERR_PEER,
                       "part %u of the rows after step %" PRIu64 ": the rows are of step %" PRIu64,
                       x->part, version, s->version);
    for (uint64_t i = 0; rc == 0 && i < x->n; i++)
        rc = ps_store_read_part(s->store, x->table, x->part, x->rows[i],
                                to + i * s->widths[x->table], err);
    return rc;
}

bool server_can_borrow(const struct ps_server *s, const struct ps_section *x, uint64_t version)
{
    return x->part == 0 && version == s->version && !ps_store_is_dynamic(s->store, x->table) &&
           s->widths[x->table] * sizeof(float) >= PS_BORROW_BYTES;
}

int server_borrow_rows(struct ps_server *s, const struct ps_section *x, struct err *err)
{
    size_t row_bytes = s->widths[x->table] * sizeof(float);
    int rc = check_rows(s, x, err);

    for (uint64_t i = 0, n; rc == 0 && i < x->n; i += n) {
        const float *values = ps_store_in_place(s->store, x->table, x->rows[i], err);

        n = 1; /* rows of the block that follow each other */
        while (i + n < x->n && x->rows[i + n] == x->rows[i] + n &&
               x->rows[i + n] % PS_BLOCK_ROWS != 0 && x->rows[i + n] < s->rows[x->table])
            n++;
        if (values == NULL)
            rc = ERR_PEER;
        else
            ps_write_borrow(&s->out, values, n * row_bytes);
    }
    ps_write_padding(&s->out, x->n * s->widths[x->table]);
    return rc;
}

/* ---- a reader ---- */

/* Returns the index; UINT32_MAX: there is no such table. */
static uint32_t find_table(const struct ps_server *s, const char *name)
{
    for (uint32_t i = 0; i < s->n_tables; i++)
        if (strcmp(ps_store_table_name(s->store, i), name) == 0)
            return i;
    return UINT32_MAX;
}

static uint32_t find_part(const struct ps_server *s, const char *name)
{
    uint32_t n = ps_store_n_parts(s->store);

    for (uint32_t i = 0; i < n; i++)
        if (strcmp(ps_store_part_name(s->store, i), name) == 0)
            return i;
    return name[0] == '\0' ? 0 : UINT32_MAX;
}

int ps_server_find(const struct ps_server *s, const char *table, const char *part,
                   struct ps_place *out, struct err *err)
{
    if (s->store == NULL || !s->is_holding)
        return err_set(err, ERR_PEER, "the rows are not complete: no generation is trained");
    out->table = find_table(s, table);
    if (out->table == UINT32_MAX)
        return err_set(err, ERR_NOENT,
                       "table '%.200s' is not on the parameter servers; the first of %u is '%s'",
                       table, s->n_tables, ps_store_table_name(s->store, 0));
    out->part = find_part(s, part);
    if (out->part == UINT32_MAX)
        return err_set(
            err, ERR_NOENT,
            "part '%.200s': expected \"weights\", a slot of the optimizer, or \"average\"", part);
    out->rows = s->rows[out->table];
    out->width = s->widths[out->table];
    out->step = s->version;
    return 0;
}

bool ps_server_has_row(const struct ps_server *s, const struct ps_place *at, uint64_t row)
{
    return server_has_shard(s, ps_shard_of(server_first_shard(s, at->table), row));
}

int ps_server_read_row(struct ps_server *s, const struct ps_place *at, uint64_t row, float *out,
                       bool *is_initial, struct err *err)
{
    const struct ps_section x = { .table = at->table, .part = at->part, .n = 1, .rows = &row };

    *is_initial = ps_store_is_initial(s->store, at->table, row);
    return server_read_rows(s, &x, s->version, out, err);
}
