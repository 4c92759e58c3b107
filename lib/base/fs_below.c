/* fs_below.c - opens a file whose name comes from another file.
 *
 * Opens each component relative to its parent, without following symbolic links. A directory that
 * is renamed during the walk therefore cannot bypass the check. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fs.h"

/* Opens the component `part` of the directory descriptor `dir`, and closes `dir`. Returns the
 * descriptor. */
static int descend(int dir, const char *what, const char *location, const char *part, bool last,
                   struct err *err)
{
    int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | (last ? O_NONBLOCK : O_DIRECTORY);
    int fd = openat(dir, part, flags), errnum = errno;

    close(dir);
    if (fd >= 0)
        return fd;
    if (errnum == ELOOP || (errnum == ENOTDIR && !last))
        return err_set(err, ERR_INPUT,
                       "%s '%s': '%s' is a symbolic link or not a folder; keep the data as a plain "
                       "file below that folder (cp -rL copies what links point to)",
                       what, location, part);
    return err_sys(err, errnum, "open %s '%s'", what, location);
}

int fs_open_below(const char *dir, const char *location, const char *what, struct err *err)
{
    char *parts = strdup(location), *part, *next, *rest = NULL;
    int fd;

    if (parts == NULL)
        return err_set(err, ERR_NOMEM, "open %s '%s': out of memory", what, location);
    part = strtok_r(parts, "/", &rest);
    if (location[0] == '/' || part == NULL)
        fd = err_set(err, ERR_INPUT, "%s '%s': expected a path relative to the folder '%s'", what,
                     location, dir);
    else if ((fd = open(dir, O_RDONLY | O_CLOEXEC | O_DIRECTORY)) < 0)
        fd = err_sys(err, errno, "open the folder '%s'", dir);
    for (; part != NULL && fd >= 0; part = next) {
        next = strtok_r(NULL, "/", &rest);
        if (strcmp(part, "..") == 0) {
            close(fd);
            fd =
                err_set(err, ERR_INPUT, "%s '%s' leaves the folder '%s'; keep it below that folder",
                        what, location, dir);
            break;
        }
        fd = descend(fd, what, location, part, next == NULL, err);
    }
    free(parts);
    return fd;
}
