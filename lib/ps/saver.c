/* saver.c - see saver.h. */
#include "ps/saver_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/fs.h"
#include "ps/store.h"

static void free_saver(struct ps_background *b)
{
    struct saver *s = (struct saver *)b;

    free((char *)(uintptr_t)s->job.folder);
    free((uint64_t *)(uintptr_t)s->job.rows);
    free((uint32_t *)(uintptr_t)s->job.widths);
    free(s->is_dense);
    free(s->path);
    free(s->chunk);
    free(s->sizes);
    saver_free_ids(s);
    free(s);
}

/* ---- files ---- */

static int name_path(struct saver *s)
{
    char name[CKPT_FILE_NAME_BYTES];

    free(s->path);
    ckpt_shard_file_name(s->file / CKPT_SHARD_FILES, s->file % CKPT_SHARD_FILES, name);
    s->path = fs_join(s->job.folder, name);
    return s->path != NULL ? 0 : err_set(s->err, ERR_NOMEM, "'%s': out of memory", name);
}

/* ---- rows ---- */

/* Copies rows of a shard to the chunk. */
static int export_rows(struct saver *s, uint32_t shard, uint32_t table, uint32_t part,
                       uint64_t local, uint64_t n)
{
    int rc = ps_background_enter(&s->base, s->err);

    if (rc < 0)
        return rc;
    rc = ps_store_export(s->job.store, shard, table, part, local, n,
                         (float *)(s->chunk + s->n_chunk), s->err);
    ps_background_leave(&s->base);
    s->n_chunk += rc == 0 ? n * s->row_bytes : 0;
    return rc;
}

/* Adds rows of one block, which lie at byte `at` of the file. */
static int add_rows(struct saver *s, uint32_t shard, uint32_t table, uint32_t part, uint64_t row,
                    uint64_t n, uint64_t at)
{
    uint64_t local = ps_local_of(row), some;
    int rc = 0;

    for (; rc == 0 && n > 0; n -= some, local += some, at += some * s->row_bytes) {
        some = (SAVER_CHUNK_BYTES - s->n_chunk) / s->row_bytes;
        if (some == 0 || (s->n_chunk > 0 && s->chunk_at + s->n_chunk != at)) {
            rc = saver_flush(s);
            some = SAVER_CHUNK_BYTES / s->row_bytes;
        }
        if (s->n_chunk == 0)
            s->chunk_at = at;
        some = some < n ? some : n;
        if (rc == 0)
            rc = export_rows(s, shard, table, part, local, some);
    }
    return rc;
}

/* Writes the rows of a part of a table that are in the file, in ascending order. *at: byte of the first one; then
 * of the next tensor. */
static int write_tensor(struct saver *s, uint32_t table, uint32_t part, uint64_t *at)
{
    uint32_t first_shard = ps_first_shard(table), file = s->file % CKPT_SHARD_FILES;
    uint64_t rows = s->job.rows[table], n;
    int rc = 0;

    s->row_bytes = s->job.widths[table] * sizeof(float);
    for (uint64_t run = 0; rc == 0 && ckpt_shard_next(rows, first_shard, file, &run, &n); run += n)
        for (uint64_t row = run, here; rc == 0 && row < run + n; row += here) {
            uint32_t shard = ps_shard_of(first_shard, row);

            here = PS_BLOCK_ROWS - row % PS_BLOCK_ROWS;
            here = here < run + n - row ? here : run + n - row;
            if (ps_set_has(s->shards, shard))
                rc = add_rows(s, shard, table, part, row, here,
                              *at + ckpt_shard_rows_before(first_shard, file, row) * s->row_bytes);
        }
    *at += ckpt_shard_rows_before(first_shard, file, rows) * s->row_bytes;
    return rc == 0 ? saver_flush(s) : rc;
}

static int write_file(struct saver *s)
{
    bool is_model = s->file < CKPT_SHARD_FILES;
    uint64_t at = s->data_at[s->file];
    int rc = name_path(s);

    if (rc == 0)
        rc = saver_list_ids(s);
    if (rc < 0)
        return rc;
    s->fds[s->file] = open(s->path, O_WRONLY | O_CLOEXEC);
    if (s->fds[s->file] < 0)
        return err_sys(s->err, errno, "open '%s'", s->path);
    rc = saver_write_integers(s, &at);
    for (uint32_t t = 0; rc == 0 && t < s->job.n_tables; t++)
        for (uint32_t p = is_model ? 0 : 1; rc == 0 && p < (is_model ? 1 : s->n_parts); p++)
            rc = s->is_dense[t]        ? 0
                 : s->job.rows[t] == 0 ? saver_write_part(s, t, p, &at)
                                       : write_tensor(s, t, p, &at);
    /* starts the write-back of this file during the next ones; fsync() reports the result */
    (void)sync_file_range(s->fds[s->file], 0, 0, SYNC_FILE_RANGE_WRITE); /* a hint */
    return rc;
}

static int sync_file(struct saver *s)
{
    int rc = name_path(s), fd = s->fds[s->file];

    if (rc < 0)
        return rc;
    if (FAULT_TRY("ps.save_sync", fsync(fd)) < 0)
        return err_sys(s->err, errno, "sync '%s'", s->path);
    s->fds[s->file] = -1;
    if (close(fd) < 0) /* network file systems report write errors here */
        return err_sys(s->err, errno, "close '%s'", s->path);
    ps_background_progress(&s->base);
    return 0;
}

static int write_all(struct saver *s)
{
    int rc = 0;

    for (s->file = 0; rc == 0 && s->file < SAVER_FILES; s->file++)
        if (s->data_at[s->file] != 0)
            rc = write_file(s);
    for (s->file = 0; rc == 0 && s->file < SAVER_FILES; s->file++)
        if (s->data_at[s->file] != 0)
            rc = sync_file(s);
    return rc;
}

static int run(struct ps_background *b, struct err *err)
{
    struct saver *s = (struct saver *)b;
    int rc;

    s->err = err;
    rc = write_all(s);
    for (uint32_t i = 0; i < SAVER_FILES; i++)
        if (s->fds[i] >= 0)
            close(s->fds[i]);
    return rc;
}

static const struct ps_background_ops ops = { "writes rows", run, free_saver };

/* ---- the owner ---- */

static void *copy(const void *from, size_t n)
{
    void *to = malloc(n + 1);

    if (to != NULL && n > 0)
        memcpy(to, from, n);
    return to;
}

struct ps_background *ps_saver_start(const struct ps_save_job *job)
{
    struct saver *s = calloc(1, sizeof(*s));
    struct err why;

    if (s == NULL)
        return NULL;
    s->n_parts = ps_store_n_parts(job->store);
    s->job = *job;
    s->job.folder = job->folder != NULL ? strdup(job->folder) : NULL;
    s->job.rows = copy(job->rows, job->n_tables * sizeof(*job->rows));
    s->job.widths = copy(job->widths, job->n_tables * sizeof(*job->widths));
    s->is_dense = calloc((size_t)job->n_tables + 1, sizeof(*s->is_dense));
    for (uint32_t i = 0; s->is_dense != NULL && i < job->n_tables; i++)
        s->is_dense[i] = ps_store_is_dense(job->store, i);
    s->chunk = malloc(SAVER_CHUNK_BYTES);
    s->sizes = copy(job->sizes, job->n_sizes * sizeof(*job->sizes));
    if (job->n_sizes > 0)
        s->lists = calloc((size_t)job->n_tables * SAVER_LISTS, sizeof(*s->lists));
    memcpy(s->data_at, job->data_at, sizeof(s->data_at));
    memcpy(s->shards, job->shards, sizeof(s->shards));
    for (uint32_t i = 0; i < SAVER_FILES; i++)
        s->fds[i] = -1;
    if ((job->folder != NULL && s->job.folder == NULL) || s->job.rows == NULL ||
        s->job.widths == NULL || s->is_dense == NULL || s->chunk == NULL || s->sizes == NULL ||
        (job->n_sizes > 0 && s->lists == NULL)) {
        free_saver(&s->base);
        return NULL;
    }
    /* a checkpoint that cannot be written is no reason to end the generation */
    if (s->job.folder == NULL)
        err_set(&why, ERR_NOENT, "the job file of this task has no /checkpoint/directory");
    ps_background_start(&s->base, &ops, s->job.folder == NULL ? &why : NULL);
    return &s->base;
}

void ps_saver_sums(const struct ps_background *b, uint64_t *out)
{
    memcpy(out, ((const struct saver *)b)->sums, sizeof(((const struct saver *)b)->sums));
}
