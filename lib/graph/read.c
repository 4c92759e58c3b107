/* read.c - reads the model file and maps its external data.
 *
 * The model is read. Its external data is mapped, because it may be as large as memory: initial
 * values stay in the mapping until the arena of parameters is filled from it, and are copied once.
 * Locations come from the model and are not trusted (fs_open_below()). A file that is truncated
 * while it is mapped causes an error and does not end the process (base/mapping.h). */
#include "graph/graph_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fs.h"
#include "base/mapping.h"

enum { MAX_EXTERNAL_FILES = 10000 }; /* old exporters write one file per tensor */

static int read_at(int fd, uint64_t offset, void *out, size_t n, const char *path, struct err *err)
{
    uint8_t *at = out;

    while (n > 0) {
        ssize_t got = pread(fd, at, n, (off_t)offset);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_sys(err, errno, "read '%s'", path);
        if (got == 0)
            return err_set(err, ERR_INPUT, "'%s' ends at byte %" PRIu64 ", %zu bytes too early",
                           path, offset, n);
        at += got;
        offset += (uint64_t)got;
        n -= (size_t)got;
    }
    return 0;
}

static int file_size(int fd, const char *path, uint64_t *out, struct err *err)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return err_sys(err, errno, "read '%s'", path);
    if (!S_ISREG(st.st_mode))
        return err_set(err, ERR_INPUT, "'%s' is not a regular file", path);
    *out = (uint64_t)st.st_size;
    return 0;
}

static int read_whole(int fd, const char *path, uint64_t limit, uint8_t **out, size_t *n,
                      struct err *err)
{
    uint64_t size;
    uint8_t *bytes;
    int rc = file_size(fd, path, &size, err);

    if (rc < 0)
        return rc;
    if (size > limit)
        return err_set(err, ERR_INPUT, "'%s' has %" PRIu64 " bytes; the limit is %" PRIu64, path,
                       size, limit);
    bytes = malloc(size > 0 ? size : 1);
    if (bytes == NULL)
        return err_set(err, ERR_NOMEM, "read '%s': out of memory for %" PRIu64 " bytes", path,
                       size);
    rc = read_at(fd, 0, bytes, size, path, err);
    if (rc < 0) {
        free(bytes);
        return rc;
    }
    *out = bytes;
    *n = size;
    return 0;
}

int graph_read_file(const char *path, uint64_t limit, uint8_t **out, size_t *n, struct err *err)
{
    /* O_NONBLOCK: a FIFO in place of the file is refused instead of blocking the call. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc;

    if (fd < 0)
        return err_sys(err, errno, "open '%s'", path);
    rc = read_whole(fd, path, limit, out, n, err);
    close(fd);
    return rc;
}

/* Returns a file descriptor or a negative error code. */
static int open_external(const char *model_path, const char *location, struct err *err)
{
    char *dir = fs_dirname(model_path);
    int fd;

    if (dir == NULL)
        return err_set(err, ERR_NOMEM, "open external data '%s': out of memory", location);
    fd = fs_open_below(dir, location, "external data", err);
    free(dir);
    return fd;
}

static int map_file(const char *model_path, const char *location, struct mapping **out,
                    struct err *err)
{
    int fd = open_external(model_path, location, err), rc;
    uint64_t size;

    if (fd < 0)
        return fd;
    rc = file_size(fd, location, &size, err);
    if (rc == 0)
        rc = mapping_open(fd, size, location, out, err);
    close(fd);
    return rc;
}

int graph_external_map(struct graph_external *o, const char *location, const struct mapping **out,
                       struct err *err)
{
    struct mapping *m;
    size_t i;
    int rc;

    for (i = o->files.n; i-- > 0;) /* backward: consecutive tensors are usually in the same file */
        if (strcmp(mapping_path(o->files.at[i]), location) == 0) {
            *out = o->files.at[i];
            return 0;
        }
    if (o->files.n == MAX_EXTERNAL_FILES)
        return err_set(err, ERR_INPUT, "external data is in more than %d files; store it in one",
                       MAX_EXTERNAL_FILES);
    rc = map_file(o->model_path, location, &m, err);
    if (rc < 0)
        return rc;
    if (!VEC_PUSH(o->files, m)) {
        mapping_close(m);
        return err_set(err, ERR_NOMEM, "map external data '%s': out of memory", location);
    }
    *out = m;
    return 0;
}

int graph_external_check(const struct graph_external *o, struct err *err)
{
    size_t i;
    int rc = 0;

    for (i = 0; i < o->files.n && rc == 0; i++)
        rc = mapping_check(o->files.at[i], err);
    return rc < 0 ? err_wrap(err, rc, "external data") : 0;
}

void graph_external_close(struct graph_external *o)
{
    size_t i;

    for (i = 0; i < o->files.n; i++)
        mapping_close(o->files.at[i]);
    VEC_FINI(o->files);
}
