#include "base/fs_probe.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/errno_text.h"
#include "base/fault.h"
#include "base/fs.h"
#include "base/rng.h"

enum { PATH_BYTES = 4096 };
static const char CONTENT[] = "written by trainerd to try this folder\n";

struct probe {
    const char *folder;
    char before[PATH_BYTES], after[PATH_BYTES]; /* names of the probe's folder */
    char file[PATH_BYTES + 8], moved[PATH_BYTES + 8]; /* its file, under both names */
};

/* ---- errors ---- */

/* Returns true if the reason stays the same until an administrator changes the storage. */
static bool is_permanent(int errnum)
{
    switch (errnum) {
    case EACCES:
    case EPERM:
    case EROFS:
    case ENOSYS:
    case EOPNOTSUPP:
    case EINVAL:
    case EXDEV:
    case ENOTDIR:
    case EMFILE: /* gcsfuse: a folder that it cannot rename */
        return true;
    default:
        return false;
    }
}

static int fail(const struct probe *p, int errnum, const char *call, const char *path,
                struct err *err)
{
    struct stat st;

    if (!is_permanent(errnum))
        return err_sys(err, errnum, "%s '%s'", call, path);
    if (errnum == EROFS)
        return err_set(err, ERR_INPUT, "%s '%s': %s; mount it for writing, or name another folder",
                       call, path, errno_text(errnum));
    if (errnum == ENOTDIR)
        return err_set(
            err, ERR_INPUT,
            "%s '%s': %s; remove the file that is in the place of a folder, or name another folder",
            call, path, errno_text(errnum));
    if ((errnum == EACCES || errnum == EPERM) && stat(p->folder, &st) == 0)
        return err_set(err, ERR_INPUT,
                       "%s '%s': %s; this process runs as user %u, and '%s' belongs to user %u with mode %04o: change its owner or "
                       "mode (an NFS server with root_squash maps root to another user), or name another folder",
                       call, path, errno_text(errnum), (unsigned)geteuid(), p->folder,
                       (unsigned)st.st_uid, (unsigned)st.st_mode & 07777);
    return err_set(
        err, ERR_INPUT,
        "%s '%s': %s; this file system lacks a call that is needed: name a folder on another one",
        call, path, errno_text(errnum));
}

/* ---- the calls ---- */

/* Creates the file, and checks that it cannot be created twice. */
static int create_file(const struct probe *p, struct err *err)
{
    enum { FLAGS = O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC };
    int fd = FAULT_TRY("fs.probe", open(p->file, FLAGS, 0666)), again, rc = 0;
    ssize_t n;

    if (fd < 0)
        return fail(p, errno, "create (open)", p->file, err);
    n = FAULT_TRY("fs.probe", write(fd, CONTENT, sizeof(CONTENT) - 1));
    if (n != (ssize_t)sizeof(CONTENT) - 1)
        rc = fail(p, n < 0 ? errno : ENOSPC, "write", p->file, err);
    if (rc == 0 && fsync(fd) < 0)
        rc = fail(p, errno, "fsync", p->file, err);
    if (close(fd) < 0 && rc == 0)
        rc = fail(p, errno, "close", p->file, err);
    if (rc < 0)
        return rc;
    again = open(p->file, FLAGS, 0666);
    if (again < 0)
        return 0;
    close(again);
    return err_set(err, ERR_INPUT,
                   "create (open with O_EXCL) '%s': this file system created the file twice, so two jobs could use it at the same "
                   "time; name a folder on another one", p->file);
}

static int read_file(const struct probe *p, struct err *err)
{
    char found[sizeof(CONTENT)];
    ssize_t n;
    int fd = open(p->moved, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return fail(p, errno, "open", p->moved, err);
    n = read(fd, found, sizeof(found));
    close(fd);
    if (n == (ssize_t)sizeof(CONTENT) - 1 && memcmp(found, CONTENT, sizeof(CONTENT) - 1) == 0)
        return 0;
    return err_set(err, ERR_IO, "read '%s': found %zd other bytes than the %zu that were written",
                   p->moved, n, sizeof(CONTENT) - 1);
}

static int remove_all(const struct probe *p, struct err *err)
{
    if (unlink(p->moved) < 0)
        return fail(p, errno, "unlink", p->moved, err);
    return rmdir(p->after) < 0 ? fail(p, errno, "rmdir", p->after, err) : 0;
}

static int try_calls(const struct probe *p, struct err *err)
{
    int rc;

    if (FAULT_TRY("fs.probe", mkdir(p->before, 0777)) < 0)
        return fail(p, errno, "create a folder (mkdir)", p->before, err);
    rc = create_file(p, err);
    if (rc == 0 && FAULT_TRY("fs.probe", rename(p->before, p->after)) < 0)
        rc = fail(p, errno, "rename a folder (rename)", p->before, err);
    if (rc == 0)
        rc = read_file(p, err);
    if (rc == 0)
        rc = remove_all(p, err);
    if (rc < 0) { /* the first error is reported */
        (void)unlink(p->file);
        (void)unlink(p->moved);
        (void)rmdir(p->before);
        (void)rmdir(p->after);
    }
    return rc;
}

/* ---- the place ---- */

static int try_folder(const char *folder, struct err *err)
{
    struct probe *p;
    uint64_t random;
    int n, rc;

    if (rng_os(&random, sizeof(random)) < 0)
        return err_set(err, ERR_IO, "try '%s': getrandom failed", folder);
    p = calloc(1, sizeof(*p));
    if (p == NULL)
        return err_set(err, ERR_NOMEM, "try '%s': out of memory", folder);
    p->folder = folder;
    n = snprintf(p->before, sizeof(p->before), "%s/.trainerd-probe-%016" PRIx64, folder, random);
    if (n + 2 < PATH_BYTES) {
        snprintf(p->after, sizeof(p->after), "%.4000s-2", p->before);
        snprintf(p->file, sizeof(p->file), "%s/file", p->before);
        snprintf(p->moved, sizeof(p->moved), "%s/file", p->after);
        rc = try_calls(p, err);
    } else {
        rc = err_set(err, ERR_INPUT, "'%.64s...': a path of %d bytes, expected less than %d",
                     folder, n, PATH_BYTES - 2);
    }
    free(p);
    return rc;
}

int fs_probe_folder(const char *path, struct err *err)
{
    char *at = strdup(path), *parent;
    struct stat st;
    int rc;

    while (at != NULL && stat(at, &st) < 0 && errno == ENOENT && strcmp(at, "/") != 0 &&
           strcmp(at, ".") != 0) {
        parent = fs_dirname(at);
        free(at);
        at = parent;
    }
    rc =
        at != NULL ? try_folder(at, err) : err_set(err, ERR_NOMEM, "try '%s': out of memory", path);
    free(at);
    return rc;
}

int fs_probe_file(const char *path, struct err *err)
{
    struct stat st;
    char *folder;
    int rc;

    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return err_set(err, ERR_INPUT, "'%s' is a folder; expected the name of a file", path);
    folder = fs_dirname(path);
    rc = folder != NULL ? fs_probe_folder(folder, err)
                        : err_set(err, ERR_NOMEM, "try '%s': out of memory", path);
    free(folder);
    return rc;
}
