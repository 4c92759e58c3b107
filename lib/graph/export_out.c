/* export_out.c - see export_priv.h: a file of the exported model, which is replaced when it is complete. */
#include "graph/export_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/fs.h"
#include "base/rng.h"

enum { BUFFER_BYTES = 256 << 10 };

static void flush(struct export_out *o)
{
    if (o->rc == 0)
        o->rc = fs_write_all(o->fd, o->buffer, o->used, o->temporary, o->err);
    o->used = 0;
}

void export_append(ProtobufCBuffer *base, size_t n, const uint8_t *bytes)
{
    struct export_out *o = (struct export_out *)base;

    if (o->used + n > BUFFER_BYTES)
        flush(o);
    o->written += n;
    if (n >= BUFFER_BYTES) {
        if (o->rc == 0)
            o->rc = fs_write_all(o->fd, bytes, n, o->temporary, o->err);
        return;
    }
    if (n > 0)
        memcpy(o->buffer + o->used, bytes, n);
    o->used += n;
}

void export_out_close(struct export_out *o)
{
    if (o->fd >= 0) {
        close(o->fd);
        (void)unlink(o->temporary); /* the close path cannot report an error */
    }
    free(o->temporary);
    free(o->buffer);
    *o = (struct export_out){ .fd = -1 };
}

int export_out_open(struct export_out *o, const char *path, struct err *err)
{
    uint64_t random;
    int rc;

    *o = (struct export_out){ .base = { export_append }, .fd = -1, .path = path, .err = err };
    rc = rng_os(&random, sizeof(random));
    if (rc < 0)
        return err_set(err, ERR_IO, "cannot read random bytes from the kernel");
    o->buffer = malloc(BUFFER_BYTES);
    if (asprintf(&o->temporary, "%s.tmp-%016" PRIx64, path, random) < 0)
        o->temporary = NULL;
    if (o->buffer == NULL || o->temporary == NULL) {
        export_out_close(o);
        return export_no_memory(err);
    }
    o->fd = open(o->temporary, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    if (o->fd < 0) {
        rc = err_sys(err, errno, "create '%s'", o->temporary);
        export_out_close(o);
        return rc;
    }
    return 0;
}

int export_out_sync(struct export_out *o)
{
    flush(o);
    if (o->rc == 0 && (fault_hit("export.sync") ? (errno = EIO, -1) : fsync(o->fd)) < 0)
        o->rc = err_sys(o->err, errno, "sync '%s'", o->temporary);
    return o->rc;
}

int export_out_publish(struct export_out *o)
{
    char *dir;
    int rc;

    if ((fault_hit("export.rename") ? (errno = EIO, -1) : rename(o->temporary, o->path)) < 0)
        return err_sys(o->err, errno, "rename '%s' to '%s'", o->temporary, o->path);
    close(o->fd);
    o->fd = -1; /* published: export_out_close() must not remove it */
    dir = fs_dirname(o->path);
    if (dir == NULL)
        return export_no_memory(o->err);
    rc = fs_sync_dir(dir, o->err);
    free(dir);
    return rc;
}
