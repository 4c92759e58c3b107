#include "base/fs_probe.h"

#include <dirent.h>
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
    char record[PATH_BYTES + 8]; /* the second name of the file, as a lease has one */
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
    case EMFILE: /* of rename and mkdir; gcsfuse: a folder that it cannot rename */
        return true;
    default:
        return false;
    }
}

static int fail(const struct probe *p, int errnum, const char *call, const char *path,
                struct err *err)
{
    struct stat st;

    if (errnum == ENOSPC && fs_lacks_inodes(p->folder))
        return err_set(err, ERR_FULL,
                       "%s '%s': %s: the file system has no inode left: remove files", call, path,
                       errno_text(errnum));
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

/* Reports the failure of a call that needs a descriptor, which this process or host may lack. */
static int fail_open(const struct probe *p, int errnum, const char *call, const char *path,
                     struct err *err)
{
    if (errnum != EMFILE && errnum != ENFILE)
        return fail(p, errnum, call, path, err);
    return err_set(
        err, ERR_IO,
        "%s '%s': %s: the storage is not the cause: this %s has no file descriptor left: raise %s",
        call, path, errno_text(errnum), errnum == EMFILE ? "process" : "host",
        errnum == EMFILE ? "RLIMIT_NOFILE (ulimit -n)" : "fs.file-max");
}

/* Creates the file, and checks that it cannot be created twice. */
static int create_file(const struct probe *p, struct err *err)
{
    enum { FLAGS = O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC };
    int fd = FAULT_TRY("fs.probe", open(p->file, FLAGS, 0666)), again, rc = 0;
    ssize_t n;

    if (fd < 0)
        return fail_open(p, errno, "create (open)", p->file, err);
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

/* The calls of a lease: a record is a second name of a file, and other tasks list the folder. */
static int try_lease(const struct probe *p, struct err *err)
{
    int fd, rc = 0;
    DIR *d;

    if (FAULT_TRY("fs.probe", link(p->file, p->record)) == 0) {
        if (unlink(p->record) < 0)
            return fail(p, errno, "unlink", p->record, err);
    } else if (!fs_lacks_links(errno)) { /* without links the lease creates files */
        return fail(p, errno, "create a hard link (link)", p->record, err);
    }
    d = opendir(p->folder);
    if (d == NULL)
        return fail_open(p, errno, "list (opendir)", p->folder, err);
    fd = dirfd(d);
    if (FAULT_TRY("fs.probe", fsync(fd)) < 0 && errno != EINVAL) /* EINVAL: folders need no sync there */
        rc = fail(p, errno, "sync a folder (fsync)", p->folder, err);
    closedir(d);
    return rc;
}

static int read_file(const struct probe *p, struct err *err)
{
    char found[sizeof(CONTENT)];
    ssize_t n;
    int fd = open(p->moved, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return fail_open(p, errno, "open", p->moved, err);
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
    if (rc == 0)
        rc = try_lease(p, err);
    if (rc == 0 && FAULT_TRY("fs.probe", rename(p->before, p->after)) < 0)
        rc = fail(p, errno, "rename a folder (rename)", p->before, err);
    if (rc == 0)
        rc = read_file(p, err);
    if (rc == 0)
        rc = remove_all(p, err);
    if (rc < 0) { /* the first error is reported */
        (void)unlink(p->record);
        (void)unlink(p->file);
        (void)unlink(p->moved);
        (void)rmdir(p->before);
        (void)rmdir(p->after);
    }
    return rc;
}

/* ---- the place ---- */

/* In such a folder files can be created, but neither renamed nor removed, also those of the probe. */
static int check_attributes(const char *folder, struct err *err)
{
    struct statx st;
    bool only_grows;

    if (statx(AT_FDCWD, folder, 0, STATX_BASIC_STATS, &st) < 0 ||
        (st.stx_attributes & (STATX_ATTR_APPEND | STATX_ATTR_IMMUTABLE)) == 0)
        return 0; /* the calls report an error of stat */
    only_grows = (st.stx_attributes & STATX_ATTR_APPEND) != 0;
    return err_set(
        err, ERR_INPUT,
        "the folder '%s' is %s (chattr +%c), so %s; remove the attribute (chattr -%c), or name another folder",
        folder, only_grows ? "append-only" : "immutable", only_grows ? 'a' : 'i',
        only_grows ? "nothing in it can be renamed or removed" : "nothing in it can be created",
        only_grows ? 'a' : 'i');
}

static int try_folder(const char *folder, struct err *err)
{
    struct probe *p;
    uint64_t random;
    int n, rc;

    rc = check_attributes(folder, err);
    if (rc < 0)
        return rc;
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
        snprintf(p->record, sizeof(p->record), "%s/link", p->before);
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
