/* read.c - bytes of the model and of its external data.
 *
 * Files are read, not mapped: a mapping of a file that somebody cuts off ends the process with
 * SIGBUS. External locations come from the file and are not trusted: each component is opened
 * relative to the one before it, without following symbolic links, so nothing outside the
 * model's folder can be reached, whatever changes meanwhile. */
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
        return err_set(err, ERR_INPUT, "'%s' has %" PRIu64 " bytes, allowed are %" PRIu64, path,
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
    /* O_NONBLOCK: a FIFO in place of the file is refused, not waited for. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc;

    if (fd < 0)
        return err_sys(err, errno, "open '%s'", path);
    rc = read_whole(fd, path, limit, out, n, err);
    close(fd);
    return rc;
}

/* Opens the next component; closes `dir`. */
static int descend(int dir, const char *location, const char *part, bool last, struct err *err)
{
    int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | (last ? O_NONBLOCK : O_DIRECTORY);
    int fd = openat(dir, part, flags), errnum = errno;

    close(dir);
    if (fd >= 0)
        return fd;
    if (errnum == ELOOP || (errnum == ENOTDIR && !last))
        return err_set(err, ERR_INPUT,
                       "external data '%s': '%s' is a symbolic link or not a folder; keep the data "
                       "as a plain file below the model's folder",
                       location, part);
    return err_sys(err, errnum, "open external data '%s' below the model's folder", location);
}

/* A file descriptor, or an error. */
static int open_external(const char *model_path, const char *location, struct err *err)
{
    char *dir = fs_dirname(model_path), *parts = strdup(location), *part, *next, *rest;
    int fd = -1;

    if (dir == NULL || parts == NULL) {
        fd = err_set(err, ERR_NOMEM, "open external data '%s': out of memory", location);
        goto out;
    }
    part = strtok_r(parts, "/", &rest);
    if (location[0] == '/' || part == NULL) {
        fd =
            err_set(err, ERR_INPUT,
                    "external data '%s': expected a path relative to the model's folder", location);
        goto out;
    }
    fd = open(dir, O_RDONLY | O_CLOEXEC | O_DIRECTORY);
    if (fd < 0) {
        fd = err_sys(err, errno, "open the model's folder '%s'", dir);
        goto out;
    }
    for (; part != NULL && fd >= 0; part = next) {
        next = strtok_r(NULL, "/", &rest);
        if (strcmp(part, "..") == 0) {
            close(fd);
            fd = err_set(err, ERR_INPUT,
                         "external data '%s' leaves the model's folder; keep it below that folder",
                         location);
            break;
        }
        fd = descend(fd, location, part, next == NULL, err);
    }
out:
    free(parts);
    free(dir);
    return fd;
}

int graph_external_size(const char *model_path, const char *location, uint64_t *out,
                        struct err *err)
{
    int fd = open_external(model_path, location, err), rc;

    if (fd < 0)
        return fd;
    rc = file_size(fd, location, out, err);
    close(fd);
    return rc;
}

int graph_read_external(const char *model_path, const char *location, uint64_t offset, void *out,
                        size_t n, struct err *err)
{
    int fd = open_external(model_path, location, err), rc;
    uint64_t size;

    if (fd < 0)
        return fd;
    rc = file_size(fd, location, &size, err); /* a regular file, whatever was there before */
    if (rc == 0)
        rc = read_at(fd, offset, out, n, location, err);
    close(fd);
    return rc;
}
