/* loader_ids.c - reads the rows of a dynamic table from a checkpoint; see loader_priv.h.
 *
 * A shard has two groups of rows, each ascending by id (ckpt/shard_files.h). Both are read in parts, merged, and
 * added to the store in ascending order. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/fault.h"
#include "ckpt/ids.h"
#include "ps/loader_priv.h"
#include "ps/store.h"
#include "ps/store_groups.h"

struct stream { /* of a group */
    struct ckpt_ids of;
    int64_t *ids, *last_steps, *counts; /* owned [most] */
    float *values;                      /* owned [n_parts][most][width], of trained rows; else NULL */
    uint64_t next, end;                 /* rows of the shard that are not read yet */
    uint64_t n, at;                     /* that were read; that were used */
};

struct tables { /* of a table */
    struct loader *l;
    char *name;                  /* owned */
    uint32_t tensors[PS_PARTS_MAX];
    struct stream streams[CKPT_GROUPS];
    uint64_t most;               /* rows that are read, or added, at once */
    uint64_t *rows, *last_steps, *counts; /* owned [most] */
    float *values;               /* owned [most][n_parts][width] */
};

static int no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "rows of a checkpoint: out of memory");
}

static void close_tables(struct tables *t)
{
    for (int g = 0; g < CKPT_GROUPS; g++) {
        free(t->streams[g].ids);
        free(t->streams[g].last_steps);
        free(t->streams[g].counts);
        free(t->streams[g].values);
    }
    free(t->name);
    free(t->rows);
    free(t->last_steps);
    free(t->counts);
    free(t->values);
}

static int allocate(struct tables *t)
{
    uint32_t width = t->l->job.widths[t->l->table];
    size_t floats = (size_t)t->l->n_parts * width;
    bool failed = false;

    t->most = LOADER_CHUNK_BYTES / (floats * sizeof(float)) + 1;
    for (int g = 0; g < CKPT_GROUPS; g++) {
        struct stream *s = &t->streams[g];

        s->ids = calloc(t->most, sizeof(*s->ids));
        s->last_steps = calloc(t->most, sizeof(*s->last_steps));
        s->counts = calloc(t->most, sizeof(*s->counts));
        failed = failed || s->ids == NULL || s->last_steps == NULL || s->counts == NULL;
    }
    t->streams[CKPT_TRAINED].values = calloc(t->most, floats * sizeof(float));
    t->rows = calloc(t->most, sizeof(*t->rows));
    t->last_steps = calloc(t->most, sizeof(*t->last_steps));
    t->counts = calloc(t->most, sizeof(*t->counts));
    t->values = calloc(t->most, floats * sizeof(float));
    return failed || t->streams[CKPT_TRAINED].values == NULL || t->rows == NULL ||
                   t->last_steps == NULL || t->counts == NULL || t->values == NULL
               ? no_memory(t->l->err)
               : 0;
}

/* Finds all tensors of the table. */
static int find_tensors(struct tables *t)
{
    struct loader *l = t->l;
    int rc = ps_background_enter(&l->base, l->err);

    if (rc < 0)
        return rc;
    t->name = strdup(ps_store_table_name(l->job.store, l->table));
    if (t->name == NULL)
        rc = no_memory(l->err);
    for (int g = 0; rc == 0 && g < CKPT_GROUPS; g++)
        rc = ckpt_ids_open(l->from, t->name, g, &t->streams[g].of, l->err);
    l->n_rows = t->streams[CKPT_TRAINED].of.n;
    for (l->part = 0; rc == 0 && l->part < l->n_parts; l->part++) {
        rc = loader_find_tensor(l);
        t->tensors[l->part] = l->tensor;
    }
    ps_background_leave(&l->base);
    return rc;
}

/* ---- reading ---- */

/* Reads the next rows of a group, unless there are some. */
static int fill(struct tables *t, struct stream *s)
{
    struct loader *l = t->l;
    size_t width = l->job.widths[l->table];
    int rc;

    if (s->at < s->n || s->next == s->end)
        return 0;
    s->at = 0;
    s->n = s->end - s->next < t->most ? s->end - s->next : t->most;
    rc = fault_error("ps.load", l->err);
    if (rc == 0)
        rc = ckpt_ids_read(&s->of, s->next, s->n, s->ids, s->last_steps, s->counts, l->err);
    for (uint32_t p = 0; rc == 0 && s->values != NULL && p < l->n_parts; p++)
        rc = ckpt_rows_read(l->from, p == 0 ? CKPT_SHARD_MODEL : CKPT_SHARD_OPTIMIZER,
                            t->tensors[p], s->next, s->n, s->values + p * t->most * width, l->err);
    s->next += s->n;
    return rc;
}

static bool is_at_end(const struct stream *s)
{
    return s->at == s->n && s->next == s->end;
}

/* Moves a row from a group to place i of the rows to add. */
static int use(struct tables *t, enum ckpt_group group, uint64_t i)
{
    struct loader *l = t->l;
    struct stream *s = &t->streams[group];
    size_t width = l->job.widths[l->table];
    float *values = t->values + i * l->n_parts * width;
    int rc = 0;

    if (s->counts[s->at] < 1 || s->counts[s->at] > UINT32_MAX || s->last_steps[s->at] < 1)
        return err_set(l->err, ERR_CORRUPT, "table '%s', id %" PRId64 ": count %" PRId64
                       ", last step %" PRId64 ": out of range",
                       t->name, s->ids[s->at], s->counts[s->at], s->last_steps[s->at]);
    t->rows[i] = ps_row_of_id(s->ids[s->at]);
    t->last_steps[i] = (uint64_t)s->last_steps[s->at];
    t->counts[i] = ps_store_group_count(l->job.store, l->table, group, s->counts[s->at]);
    for (uint32_t p = 0; rc == 0 && p < l->n_parts; p++, values += width) {
        if (s->values != NULL)
            memcpy(values, s->values + (p * t->most + s->at) * width, width * sizeof(*values));
        else
            rc = ps_store_read_part(l->job.store, l->table, p, t->rows[i], values, l->err);
    }
    s->at++;
    return rc;
}

/* Adds the next rows of a shard. The caller may use the store. */
static int add_some(struct tables *t, uint32_t shard, bool *is_last)
{
    struct loader *l = t->l;
    struct stream *a = &t->streams[CKPT_TRAINED], *b = &t->streams[CKPT_CANDIDATES];
    struct ps_ids in = { .rows = t->rows,
                         .last_steps = t->last_steps,
                         .counts = t->counts,
                         .values = t->values };
    int rc = 0;

    while (rc == 0 && in.n < t->most && (a->at < a->n || is_at_end(a)) &&
           (b->at < b->n || is_at_end(b)) && !(is_at_end(a) && is_at_end(b))) {
        bool is_trained = is_at_end(b) || (!is_at_end(a) && a->ids[a->at] < b->ids[b->at]);

        rc = use(t, is_trained ? CKPT_TRAINED : CKPT_CANDIDATES, in.n++);
    }
    *is_last = is_at_end(a) && is_at_end(b);
    if (rc == 0)
        rc = ps_store_import_ids(l->job.store, shard, l->table,
                                 ps_store_next_row(l->job.store, shard, l->table), &in, *is_last,
                                 l->err);
    return rc;
}

static int load_shard(struct tables *t, uint32_t shard)
{
    struct loader *l = t->l;
    bool is_last = false;
    int rc = 0;

    for (int g = 0; rc == 0 && g < CKPT_GROUPS; g++) {
        struct stream *s = &t->streams[g];

        s->n = s->at = 0;
        rc = ckpt_ids_find(&s->of, shard, &s->next, l->err);
        if (rc == 0)
            rc = ckpt_ids_find(&s->of, shard + 1, &s->end, l->err);
    }
    while (rc == 0 && !is_last) {
        for (int g = 0; rc == 0 && g < CKPT_GROUPS; g++)
            rc = fill(t, &t->streams[g]);
        if (rc == 0)
            rc = ps_background_enter(&l->base, l->err);
        if (rc < 0)
            break;
        rc = add_some(t, shard, &is_last);
        ps_background_leave(&l->base);
        ps_background_progress(&l->base);
    }
    return rc;
}

int loader_load_ids(struct loader *l)
{
    struct tables t = { .l = l };
    int rc = allocate(&t);

    if (rc == 0)
        rc = find_tensors(&t);
    for (uint32_t shard = 0; rc == 0 && shard < PS_SHARDS; shard++)
        if (ps_set_has(l->shards, shard))
            rc = load_shard(&t, shard);
    close_tables(&t);
    return rc;
}
