/* rows.c - see rows.h. */
#include "ckpt/rows.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/err.h"
#include "ckpt/ckpt_priv.h"
#include "ckpt/shard_set.h"

struct side { /* weights, or optimizer */
    int fd;             /* owned; of the file of whole tensors; -1: not open */
    char *path;         /* owned */
    struct safetensors whole; /* owned */
    struct ckpt_verified verified; /* owned; of that file */
    struct ckpt_shard_set shards; /* owned */
};

struct ckpt_rows {
    struct ckpt_manifest manifest;
    struct side sides[CKPT_SHARD_KINDS];
};

void ckpt_rows_close(struct ckpt_rows *r)
{
    if (r == NULL)
        return;
    for (int kind = 0; kind < CKPT_SHARD_KINDS; kind++) {
        struct side *s = &r->sides[kind];

        if (s->fd >= 0)
            close(s->fd);
        free(s->path);
        safetensors_fini(&s->whole);
        ckpt_verified_close(&s->verified);
        ckpt_shard_set_close(&s->shards);
    }
    free(r);
}

static bool has_shard_files(const struct ckpt_manifest *m, enum ckpt_shard_kind kind)
{
    char name[CKPT_FILE_NAME_BYTES];

    ckpt_shard_file_name(kind, 0, name);
    return m->has_shards && ckpt_manifest_file(m, name) != NULL;
}

static int open_side(struct ckpt_rows *r, const char *folder, const struct ckpt_manifest *m,
                     enum ckpt_shard_kind kind, struct err *err)
{
    const struct ckpt_file *file = ckpt_manifest_file(m, ckpt_dense_file(m, kind));
    struct side *s = &r->sides[kind];
    int rc = ckpt_open_file(folder, file, &s->path, err);

    if (rc < 0)
        return rc;
    s->fd = rc;
    rc = ckpt_read_header(s->fd, s->path, file->bytes, &s->whole, NULL, err);
    if (rc == 0 && has_shard_files(m, kind))
        rc = ckpt_shard_set_open(
            folder, m, kind, kind == CKPT_SHARD_MODEL ? NULL : &r->sides[CKPT_SHARD_MODEL].shards,
            &s->shards, err);
    return rc;
}

int ckpt_rows_open(const char *folder, struct ckpt_rows **out, struct err *err)
{
    struct ckpt_rows *r = calloc(1, sizeof(*r));
    int rc;

    if (r == NULL)
        return err_set(err, ERR_NOMEM, "'%s': out of memory", folder);
    for (int kind = 0; kind < CKPT_SHARD_KINDS; kind++) {
        r->sides[kind].fd = -1;
        ckpt_shard_set_init(&r->sides[kind].shards);
    }
    rc = ckpt_manifest_read(folder, &r->manifest, err);
    for (int kind = 0; rc == 0 && kind < CKPT_SHARD_KINDS; kind++)
        rc = open_side(r, folder, &r->manifest, kind, err);
    if (rc < 0) {
        ckpt_rows_close(r);
        return rc;
    }
    *out = r;
    return 0;
}

int ckpt_rows_verify(struct ckpt_rows *r, ckpt_verified_fn *on_progress, void *arg, struct err *err)
{
    int rc = 0;

    for (int kind = 0; rc == 0 && kind < CKPT_SHARD_KINDS; kind++) {
        struct side *s = &r->sides[kind];

        rc = ckpt_verified_open(
            s->fd, s->path, ckpt_manifest_file(&r->manifest, ckpt_dense_file(&r->manifest, kind)),
            on_progress, arg, &s->verified, err);
        if (rc == 0 && has_shard_files(&r->manifest, kind))
            rc = ckpt_shard_set_verify(&s->shards, &r->manifest, kind, on_progress, arg, err);
    }
    return rc;
}

uint32_t ckpt_rows_count(const struct ckpt_rows *r, enum ckpt_shard_kind kind)
{
    return (uint32_t)r->sides[kind].whole.n + r->sides[kind].shards.n;
}

void ckpt_rows_describe(const struct ckpt_rows *r, enum ckpt_shard_kind kind, uint32_t i,
                        struct ckpt_rows_tensor *out)
{
    const struct side *s = &r->sides[kind];

    CHECK(i < ckpt_rows_count(r, kind));
    if (i < s->whole.n) {
        const struct safetensors_entry *e = &s->whole.entries[i];
        uint64_t rows = e->shape.rank > 0 ? (uint64_t)e->shape.dim[0] : 1;

        *out = (struct ckpt_rows_tensor){ e->name, e->dtype, e->shape, rows,
                                          rows > 0 ? (size_t)((e->end - e->begin) / rows) : 0, 0, NULL };
    } else {
        const struct ckpt_shard_table *t = &s->shards.tables[i - s->whole.n];

        *out = (struct ckpt_rows_tensor){ t->name, t->dtype,    t->shape,
                                          t->rows, t->row_bytes, t->group, t->n_rows };
    }
}

int ckpt_rows_find(const struct ckpt_rows *r, enum ckpt_shard_kind kind, const char *name,
                   uint32_t *out, struct err *err)
{
    for (uint32_t i = 0; i < ckpt_rows_count(r, kind); i++) {
        struct ckpt_rows_tensor t;

        ckpt_rows_describe(r, kind, i, &t);
        if (strcmp(t.name, name) != 0)
            continue;
        *out = i;
        return 0;
    }
    return err_set(err, ERR_NOENT, "'%s': tensor '%s' is not in the checkpoint",
                   r->sides[kind].path, name);
}

int ckpt_rows_read(const struct ckpt_rows *r, enum ckpt_shard_kind kind, uint32_t i, uint64_t first,
                   uint64_t n, void *out, struct err *err)
{
    const struct side *s = &r->sides[kind];
    struct ckpt_rows_tensor t;

    if (i >= s->whole.n)
        return ckpt_shard_set_read(&s->shards, i - (uint32_t)s->whole.n, first, n, out, err);
    ckpt_rows_describe(r, kind, i, &t);
    CHECK(first <= t.rows && n <= t.rows - first);
    return ckpt_verified_read(&s->verified, s->fd, s->path, out, n * t.row_bytes,
                              s->whole.data_at + s->whole.entries[i].begin + first * t.row_bytes,
                              err);
}

int ckpt_rows_read_flat(const struct ckpt_rows *r, enum ckpt_shard_kind kind, uint32_t i,
                        uint64_t first, uint64_t n, void *out, struct err *err)
{
    const struct side *s = &r->sides[kind];
    const struct safetensors_entry *e;
    size_t bytes;

    if (i >= s->whole.n)
        return err_set(err, ERR_CORRUPT, "'%s': expected tensor '%s' in this file", s->path,
                       s->shards.tables[i - s->whole.n].name);
    e = &s->whole.entries[i];
    bytes = tensor_dtype_bytes(e->dtype);
    CHECK(first <= (e->end - e->begin) / bytes && n <= (e->end - e->begin) / bytes - first);
    return ckpt_verified_read(&s->verified, s->fd, s->path, out, n * bytes,
                              s->whole.data_at + e->begin + first * bytes, err);
}
