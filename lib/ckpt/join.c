/* join.c - see join.h. */
#include "ckpt/join.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fs.h"
#include "ckpt/ckpt_priv.h"
#include "ckpt/export.h"
#include "ckpt/rows.h"

struct join {
    const char *from, *to;
    struct ckpt_rows *rows; /* owned */
    struct ckpt_manifest m; /* of the copy */
};

struct source { /* of a tensor */
    const struct ckpt_rows *rows;
    enum ckpt_shard_kind kind;
    uint32_t i;
};

/* ckpt_export_tensor.read */
static int read_rows(void *arg, uint64_t first, uint64_t n, void *out, struct err *err)
{
    const struct source *s = arg;

    return ckpt_rows_read(s->rows, s->kind, s->i, first, n, out, err);
}

static int no_memory(const char *path, struct err *err)
{
    return err_set(err, ERR_NOMEM, "'%s': out of memory", path);
}

/* Scalars are read now. */
static int describe(struct source *s, struct ckpt_export_tensor *out, struct err *err)
{
    struct ckpt_rows_tensor t;

    ckpt_rows_describe(s->rows, s->kind, s->i, &t);
    *out = (struct ckpt_export_tensor){ .name = t.name,
                                        .tensor = { .dtype = t.dtype, .shape = t.shape } };
    if (t.shape.rank > 0) {
        out->read = read_rows;
        out->arg = s;
        return 0;
    }
    out->tensor.data = malloc(t.rows * t.row_bytes + 1);
    if (out->tensor.data == NULL)
        return no_memory(t.name, err);
    return ckpt_rows_read(s->rows, s->kind, s->i, 0, t.rows, out->tensor.data, err);
}

static int export_kind(struct join *j, enum ckpt_shard_kind kind, const char *path, struct err *err)
{
    uint32_t n = ckpt_rows_count(j->rows, kind);
    struct ckpt_export_tensor *tensors = calloc((size_t)n + 1, sizeof(*tensors));
    struct source *sources = calloc((size_t)n + 1, sizeof(*sources));
    int rc = tensors != NULL && sources != NULL ? 0 : no_memory(path, err);

    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        sources[i] = (struct source){ j->rows, kind, i };
        rc = describe(&sources[i], &tensors[i], err);
    }
    if (rc == 0)
        rc = ckpt_export(path, tensors, n, TENSOR_F32, err);
    for (uint32_t i = 0; tensors != NULL && i < n; i++)
        free(tensors[i].tensor.data);
    free(tensors);
    free(sources);
    return rc;
}

/* Computes the entry of a file in the manifest. */
static int sum_file(const char *path, struct ckpt_file *out, struct err *err)
{
    XXH3_state_t *hash = XXH3_createState();
    char *chunk = malloc(CKPT_CHUNK_BYTES);
    int fd = ckpt_open_regular(path, &out->bytes, err), rc = fd < 0 ? fd : 0;

    if (rc == 0 && (hash == NULL || chunk == NULL))
        rc = no_memory(path, err);
    if (rc == 0)
        XXH3_128bits_reset(hash);
    for (uint64_t left = out->bytes, n; rc == 0 && left > 0; left -= n) {
        n = left < CKPT_CHUNK_BYTES ? left : CKPT_CHUNK_BYTES;
        rc = ckpt_read_all(fd, path, chunk, n, err);
        if (rc == 0)
            XXH3_128bits_update(hash, chunk, n);
    }
    if (rc == 0)
        ckpt_hash_print(XXH3_128bits_digest(hash), out->hash);
    if (fd >= 0)
        close(fd);
    XXH3_freeState(hash);
    free(chunk);
    return rc;
}

static int join_kind(struct join *j, enum ckpt_shard_kind kind, struct err *err)
{
    struct ckpt_file *file = &j->m.files[j->m.n_files++];
    char *path;
    int rc;

    snprintf(file->name, sizeof(file->name), "%s", ckpt_dense_file(&j->m, kind));
    path = fs_join(j->to, file->name);
    rc = path != NULL ? export_kind(j, kind, path, err) : no_memory(j->to, err);
    if (rc == 0)
        rc = sum_file(path, file, err);
    free(path);
    return rc;
}

static int join_all(struct join *j, const struct ckpt_meta *meta, struct err *err)
{
    int rc = ckpt_rows_open(j->from, &j->rows, err);

    j->m.meta = *meta;
    for (int kind = 0; rc == 0 && kind < CKPT_SHARD_KINDS; kind++)
        rc = join_kind(j, kind, err);
    if (rc == 0)
        rc = ckpt_write_manifest(j->to, &j->m, err);
    return rc == 0 ? fs_sync_dir(j->to, err) : rc;
}

int ckpt_join(const char *from, const char *to, struct ckpt_info *out, struct err *err)
{
    struct join j = { .from = from, .to = to };
    int rc = ckpt_verify(from, NULL, NULL, out, err);

    if (rc < 0)
        return rc;
    if (mkdir(to, 0777) < 0)
        return err_sys(err, errno, "create directory '%s'", to);
    rc = join_all(&j, &out->meta, err);
    if (rc < 0)
        (void)fs_remove_tree(to, NULL); /* it has no manifest, so readers skip it */
    ckpt_rows_close(j.rows);
    return rc;
}
