/* loader.c - see loader.h. */
#include "ps/loader_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/fault.h"
#include "ps/store.h"
#include "ps/wants.h"

enum { GAP_BYTES = 64 << 10 }; /* read, though not needed, to avoid another operation */

static void free_loader(struct ps_background *b)
{
    struct loader *l = (struct loader *)b;

    ckpt_rows_close(l->from);
    free((char *)(uintptr_t)l->job.folder);
    free((uint64_t *)(uintptr_t)l->job.rows);
    free((uint32_t *)(uintptr_t)l->job.widths);
    free(l->chunk);
    free(l);
}

/* ---- a range of rows ---- */

/* Copies the rows of the range that are in wanted shards to the store. */
static int import_rows(struct loader *l, uint64_t first, uint64_t n)
{
    uint32_t first_shard = ps_first_shard(l->table), width = l->job.widths[l->table];
    int rc = ps_background_enter(&l->base, l->err);

    if (rc < 0)
        return rc;
    for (uint64_t row = first, here; rc == 0 && row < first + n; row += here) {
        uint32_t shard = ps_shard_of(first_shard, row);

        here = PS_BLOCK_ROWS - row % PS_BLOCK_ROWS;
        here = here < first + n - row ? here : first + n - row;
        if (ps_set_has(l->shards, shard))
            rc = ps_store_import(l->job.store, shard, l->table, l->part, ps_local_of(row), here,
                                 l->chunk + (row - first) * width, l->err);
    }
    ps_background_leave(&l->base);
    ps_background_progress(&l->base);
    return rc;
}

/* Reads n rows to the chunk. Zeros follow the last float of a dense parameter. */
static int read_rows(struct loader *l, uint64_t first, uint64_t n)
{
    uint64_t at = first * PS_DENSE_WIDTH, some = n * PS_DENSE_WIDTH;

    if (!l->is_dense)
        return ckpt_rows_read(l->from, l->kind, l->tensor, first, n, l->chunk, l->err);
    if (some > l->elements - at) {
        memset(l->chunk, 0, n * l->row_bytes);
        some = l->elements - at;
    }
    return ckpt_rows_read_flat(l->from, l->kind, l->tensor, at, some, l->chunk, l->err);
}

static int read_range(struct loader *l, uint64_t first, uint64_t end)
{
    uint64_t most = LOADER_CHUNK_BYTES / l->row_bytes, n;
    int rc = 0;

    for (; rc == 0 && first < end; first += n) {
        n = end - first < most ? end - first : most;
        rc = fault_error("ps.load", l->err);
        if (rc == 0)
            rc = read_rows(l, first, n);
        if (rc == 0)
            rc = import_rows(l, first, n);
    }
    return rc;
}

/* ---- a tensor ---- */

/* Reads the wanted blocks of rows, ascending, and joins ranges whose gap is small. */
static int load_tensor(struct loader *l)
{
    uint64_t rows = l->job.rows[l->table], begin = 0, end = 0; /* the range */
    uint64_t gap = GAP_BYTES / l->row_bytes;
    uint32_t first_shard = ps_first_shard(l->table);
    int rc = 0;

    for (uint64_t row = 0; rc == 0 && row < rows; row += PS_BLOCK_ROWS) {
        if (!ps_set_has(l->shards, ps_shard_of(first_shard, row)))
            continue;
        if (row - end > gap || begin == end) {
            rc = read_range(l, begin, end);
            begin = row;
        }
        end = row + PS_BLOCK_ROWS < rows ? row + PS_BLOCK_ROWS : rows;
    }
    return rc == 0 ? read_range(l, begin, end) : rc;
}

/* Uses names of the store. */
static int find_in_turn(struct loader *l)
{
    int rc = ps_background_enter(&l->base, l->err);

    if (rc < 0)
        return rc;
    rc = loader_find_tensor(l);
    ps_background_leave(&l->base);
    return rc;
}

static int load_table(struct loader *l)
{
    int rc = 0;

    if (l->job.rows[l->table] == 0)
        return loader_load_ids(l);
    l->n_rows = l->job.rows[l->table];
    for (l->part = 0; rc == 0 && l->part < l->n_parts; l->part++) {
        rc = find_in_turn(l);
        if (rc == 0)
            rc = load_tensor(l);
    }
    return rc;
}

/* A part of a file was compared with the manifest. */
static int on_verified(void *arg, struct err *err)
{
    struct loader *l = arg;
    int rc = ps_background_enter(&l->base, err);

    if (rc < 0)
        return rc;
    ps_background_leave(&l->base);
    ps_background_progress(&l->base);
    return 0;
}

static int run(struct ps_background *b, struct err *err)
{
    struct loader *l = (struct loader *)b;
    int rc;

    l->err = err;
    rc = ckpt_rows_open(l->job.folder, &l->from, err);
    if (rc == 0)
        rc = ckpt_rows_verify(l->from, on_verified, l, err);
    for (l->table = 0; rc == 0 && l->table < l->job.n_tables; l->table++)
        rc = load_table(l);
    return rc;
}

static const struct ps_background_ops ops = { "reads rows", run, free_loader };

/* ---- the owner ---- */

static void *copy(const void *from, size_t n)
{
    void *to = malloc(n + 1);

    if (to != NULL)
        memcpy(to, from, n);
    return to;
}

struct ps_background *ps_loader_start(const struct ps_load_job *job)
{
    struct loader *l = calloc(1, sizeof(*l));
    struct err why;

    if (l == NULL)
        return NULL;
    l->n_parts = ps_store_n_parts(job->store);
    l->job = *job;
    l->job.folder = job->folder != NULL ? strdup(job->folder) : NULL;
    l->job.rows = copy(job->rows, job->n_tables * sizeof(*job->rows));
    l->job.widths = copy(job->widths, job->n_tables * sizeof(*job->widths));
    l->chunk = malloc(LOADER_CHUNK_BYTES);
    memcpy(l->shards, job->shards, sizeof(l->shards));
    if ((job->folder != NULL && l->job.folder == NULL) || l->job.rows == NULL ||
        l->job.widths == NULL || l->chunk == NULL) {
        free_loader(&l->base);
        return NULL;
    }
    if (l->job.folder == NULL)
        err_set(&why, ERR_NOENT, "the job file of this task has no /checkpoint/directory");
    ps_background_start(&l->base, &ops, l->job.folder == NULL ? &why : NULL);
    return &l->base;
}
