#include "data/write.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fs.h"
#include "data/tfrecord.h"

enum { FLUSH_BYTES = 1 << 20, BYTES_LIST = 1, FLOAT_LIST = 2, INT64_LIST = 3 };

/* ---- encoding of tf.train.Example: a length precedes its content, so it is computed first ---- */

static size_t varint_bytes(uint64_t v)
{
    size_t n = 1;

    for (; v >= 0x80; v >>= 7)
        n++;
    return n;
}

static void varint(struct buf *b, uint64_t v)
{
    uint8_t bytes[10];
    size_t n = 0;

    for (; v >= 0x80; v >>= 7)
        bytes[n++] = (uint8_t)(v | 0x80);
    bytes[n++] = (uint8_t)v;
    buf_add(b, bytes, n);
}

/* Returns the size of a bytes field with n bytes. Its tag is one byte, because all field numbers
 * here are below 16. */
static size_t member_bytes(size_t n)
{
    return 1 + varint_bytes(n) + n;
}

static void head(struct buf *b, uint32_t number, size_t n)
{
    varint(b, number << 3 | 2);
    varint(b, n);
}

/* Appends entry { 1: name, 2: feature { kind: list { 1: n bytes } } } up to the n bytes, which the
 * caller appends. */
static void begin(struct buf *list, const char *name, uint32_t kind, size_t n)
{
    size_t name_bytes = strlen(name), values = member_bytes(n), feature = member_bytes(values);

    head(list, 1, member_bytes(name_bytes) + member_bytes(feature));
    head(list, 1, name_bytes);
    buf_add(list, name, name_bytes);
    head(list, 2, feature);
    head(list, kind, values);
    head(list, 1, n);
}

void data_write_bytes(struct buf *list, const char *name, const void *bytes, size_t n)
{
    begin(list, name, BYTES_LIST, n);
    buf_add(list, bytes, n);
}

void data_write_floats(struct buf *list, const char *name, const float *x, size_t n)
{
    begin(list, name, FLOAT_LIST, n * sizeof(*x));
    buf_add(list, x, n * sizeof(*x));
}

void data_write_ints(struct buf *list, const char *name, const int64_t *x, size_t n)
{
    size_t bytes = 0;

    for (size_t i = 0; i < n; i++)
        bytes += varint_bytes((uint64_t)x[i]);
    begin(list, name, INT64_LIST, bytes);
    for (size_t i = 0; i < n; i++)
        varint(list, (uint64_t)x[i]);
}

/* ---- shards ---- */

struct shard {
    char *path, *temporary; /* owned */
    int fd;                 /* -1: not open */
    struct buf pending;
};

struct data_writer {
    struct shard *shards; /* owned */
    uint32_t n_shards;
    uint64_t n_records;
    struct buf example;
    bool committed;
};

static int open_shard(struct data_writer *w, const char *prefix, uint32_t i, struct err *err)
{
    struct shard *s = &w->shards[i];

    s->fd = -1;
    if (asprintf(&s->path, "%s-%05" PRIu32 "-of-%05" PRIu32 ".tfrecord", prefix, i, w->n_shards) <
        0)
        s->path = NULL;
    if (s->path == NULL || asprintf(&s->temporary, "%s.%ld.tmp", s->path, (long)getpid()) < 0) {
        s->temporary = NULL;
        return err_set(err, ERR_NOMEM, "write '%s': out of memory", prefix);
    }
    s->fd = open(s->temporary, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
    return s->fd < 0 ? err_sys(err, errno, "create '%s'", s->temporary) : 0;
}

int data_writer_open(const char *prefix, uint32_t n_shards, struct data_writer **out,
                     struct err *err)
{
    struct data_writer *w = calloc(1, sizeof(*w));
    char *folder = fs_dirname(prefix);
    int rc = 0;

    if (w != NULL)
        w->shards = calloc(n_shards, sizeof(*w->shards));
    if (w == NULL || w->shards == NULL || folder == NULL)
        rc = err_set(err, ERR_NOMEM, "write '%s': out of memory", prefix);
    if (rc == 0)
        rc = fs_mkdirs(folder, err);
    free(folder);
    for (uint32_t i = 0; w != NULL && i < n_shards && w->shards != NULL; i++)
        w->shards[i].fd = -1;
    if (w != NULL)
        w->n_shards = n_shards;
    for (uint32_t i = 0; rc == 0 && i < n_shards; i++)
        rc = open_shard(w, prefix, i, err);
    if (rc < 0) {
        data_writer_close(w);
        return rc;
    }
    *out = w;
    return 0;
}

static int flush(struct shard *s, struct err *err)
{
    int rc;

    if (s->pending.failed)
        return err_set(err, ERR_NOMEM, "write '%s': out of memory", s->path);
    rc = fs_write_all(s->fd, s->pending.data, s->pending.len, s->temporary, err);
    buf_reset(&s->pending);
    return rc;
}

int data_writer_add(struct data_writer *w, struct buf *list, struct err *err)
{
    struct shard *s = &w->shards[w->n_records++ % w->n_shards];

    buf_reset(&w->example);
    head(&w->example, 1, list->len);
    buf_add(&w->example, list->data, list->len);
    if (list->failed || w->example.failed)
        return err_set(err, ERR_NOMEM, "write '%s': out of memory", s->path);
    tfrecord_append(&s->pending, w->example.data, w->example.len);
    buf_reset(list);
    return s->pending.len >= FLUSH_BYTES ? flush(s, err) : 0;
}

int data_writer_commit(struct data_writer *w, struct err *err)
{
    char *folder;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < w->n_shards; i++) {
        rc = flush(&w->shards[i], err);
        if (rc == 0 && fsync(w->shards[i].fd) < 0)
            rc = err_sys(err, errno, "sync '%s'", w->shards[i].temporary);
    }
    for (uint32_t i = 0; rc == 0 && i < w->n_shards; i++)
        if (rename(w->shards[i].temporary, w->shards[i].path) < 0)
            rc = err_sys(err, errno, "rename '%s'", w->shards[i].temporary);
    if (rc < 0)
        return rc;
    w->committed = true;
    folder = fs_dirname(w->shards[0].path);
    rc = folder == NULL ? err_set(err, ERR_NOMEM, "out of memory") : fs_sync_dir(folder, err);
    free(folder);
    return rc;
}

uint64_t data_writer_records(const struct data_writer *w)
{
    return w->n_records;
}

void data_writer_close(struct data_writer *w)
{
    if (w == NULL)
        return;
    for (uint32_t i = 0; w->shards != NULL && i < w->n_shards; i++) {
        struct shard *s = &w->shards[i];

        if (s->fd >= 0)
            close(s->fd);
        if (s->fd >= 0 && !w->committed)
            unlink(s->temporary);
        free(s->path);
        free(s->temporary);
        buf_fini(&s->pending);
    }
    buf_fini(&w->example);
    free(w->shards);
    free(w);
}
