#include "base/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/rng.h"
#include "base/text.h"

enum { READ_BYTES = 64 << 10, WAIT_MS = 10000 };

static int open_retry(const char *path, int flags)
{
    int fd;

    do
        fd = FAULT_TRY("fs.open", open(path, flags | O_CLOEXEC, 0666));
    while (fd < 0 && errno == EINTR);
    return fd;
}

static int too_large(const char *path, size_t limit, struct err *err)
{
    char allowed[32];

    text_bytes(allowed, sizeof(allowed), limit);
    return err_set(err, ERR_INPUT, "read '%s': larger than the %s (%zu bytes) allowed here", path,
                   allowed, limit);
}

/* Waits until a FIFO, such as the one of `--job <(...)`, has data or its writer has closed it. */
static int wait_for_writer(int fd, const char *path, struct err *err)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };
    int n;

    do
        n = poll(&p, 1, WAIT_MS);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return err_sys(err, errno, "wait for '%s'", path);
    if (n > 0)
        return 0;
    return err_set(err, ERR_INPUT,
                   "read '%s': this FIFO received no data for %d s; expected a file", path,
                   WAIT_MS / 1000);
}

/* Reads until the end of the file or an error. Does not use the file size: `fd` may be a pipe. */
static int read_all(int fd, const char *path, size_t limit, struct buf *out, struct err *err)
{
    size_t total = 0;
    char piece[READ_BYTES];

    for (;;) {
        ssize_t n = FAULT_TRY("fs.read", read(fd, piece, sizeof(piece)));

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            int rc = wait_for_writer(fd, path, err);

            if (rc < 0)
                return rc;
            continue;
        }
        if (n < 0)
            return err_sys(err, errno, "read '%s'", path);
        if (n == 0)
            return 0;
        if ((size_t)n > limit - total)
            return too_large(path, limit, err);
        total += (size_t)n;
        buf_add(out, piece, (size_t)n);
        if (out->failed)
            return err_set(err, ERR_NOMEM, "read '%s': out of memory after %zu bytes", path, total);
    }
}

int fs_read(const char *path, size_t limit, struct buf *out, struct err *err)
{
    size_t before = out->len;
    struct stat s;
    int fd, rc;

    fd = open_retry(path, O_RDONLY | O_NONBLOCK); /* else opening a FIFO waits for its writer */
    if (fd < 0)
        return err_sys(err, errno, "open '%s'", path);
    if (fstat(fd, &s) < 0)
        rc = err_sys(err, errno, "read '%s'", path);
    else if (S_ISDIR(s.st_mode))
        rc = err_set(err, ERR_INPUT, "read '%s': it is a folder, expected a file", path);
    else
        rc = S_ISFIFO(s.st_mode) ? wait_for_writer(fd, path, err) : 0;
    if (rc == 0)
        rc = read_all(fd, path, limit, out, err);
    close(fd);
    if (rc < 0 && out->data != NULL) { /* restores the earlier content */
        out->len = before;
        out->data[before] = '\0';
    }
    return rc;
}

int fs_write_all(int fd, const void *data, size_t n, const char *path, struct err *err)
{
    const char *at = data;

    while (n > 0) {
        ssize_t written = FAULT_TRY("fs.write", write(fd, at, n));

        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return err_sys(err, errno, "write '%s'", path);
        at += written;
        n -= (size_t)written;
    }
    return 0;
}

/* Sets *out to a name in the directory of `path` that is unique among all hosts that share it. */
static int temporary_name(const char *path, char **out, struct err *err)
{
    uint64_t random;

    if (rng_os(&random, sizeof(random)) < 0)
        return err_set(err, ERR_IO, "replace '%s': getrandom failed", path);
    if (asprintf(out, "%s.tmp-%016" PRIx64, path, random) < 0)
        return err_set(err, ERR_NOMEM, "replace '%s': out of memory", path);
    return 0;
}

int fs_create(const char *path, const void *data, size_t n, struct err *err)
{
    int fd, rc;

    fd = open_retry(path, O_CREAT | O_EXCL | O_WRONLY);
    if (fd < 0)
        return err_sys(err, errno, "create '%s'", path);
    rc = fs_write_all(fd, data, n, path, err);
    if (rc == 0 && FAULT_TRY("fs.sync", fsync(fd)) < 0)
        rc = err_sys(err, errno, "sync '%s'", path);
    if (close(fd) < 0 && rc == 0) /* network file systems report write errors here */
        rc = err_sys(err, errno, "close '%s'", path);
    return rc;
}

bool fs_lacks_inodes(const char *path)
{
    struct statvfs fs;

    return statvfs(path, &fs) == 0 && fs.f_files > 0 && fs.f_favail == 0;
}

bool fs_lacks_links(int errnum)
{
    static const int known[] = { EPERM, EOPNOTSUPP, ENOSYS, EXDEV, EINVAL, EMLINK, EACCES };

    for (size_t i = 0; i < COUNT_OF(known); i++)
        if (errnum == known[i])
            return true;
    return false;
}

static int sync_parent(const char *path, struct err *err)
{
    char *dir = fs_dirname(path);
    int rc;

    if (dir == NULL)
        return err_set(err, ERR_NOMEM, "sync the directory of '%s': out of memory", path);
    rc = fs_sync_dir(dir, err);
    free(dir);
    return rc;
}

int fs_replace(const char *path, const void *data, size_t n, struct err *err)
{
    char *temporary;
    int rc = temporary_name(path, &temporary, err);

    if (rc < 0)
        return rc;
    rc = fs_create(temporary, data, n, err);
    if (rc == 0 && FAULT_TRY("fs.rename", rename(temporary, path)) < 0)
        rc = err_sys(err, errno, "rename '%s' to '%s'", temporary, path);
    if (rc < 0)
        (void)unlink(temporary); /* fails if the file was not created */
    free(temporary);
    return rc < 0 ? rc : sync_parent(path, err);
}

static int make_dir(const char *path, struct err *err)
{
    struct stat st;
    int errnum;

    if (FAULT_TRY("fs.mkdir", mkdir(path, 0777)) == 0)
        return 0;
    errnum = errno; /* for an existing directory: EEXIST, EROFS, EACCES, ..., but not EIO */
    if (errnum != EIO && stat(path, &st) == 0) {
        if (S_ISDIR(st.st_mode))
            return 0;
        return err_set(err, ERR_EXISTS, "create directory '%s': a file of this name exists", path);
    }
    if (errnum == EEXIST && lstat(path, &st) == 0 && S_ISLNK(st.st_mode)) /* stat() failed */
        return err_set(err, ERR_IO, "create directory '%s': it is a link to a path that does not exist: mount the "
                                       "storage, or remove the link", path);
    return err_sys(err, errnum, "create directory '%s'", path);
}

int fs_mkdirs(const char *path, struct err *err)
{
    char *copy = strdup(path), *end;
    int rc = 0;

    if (copy == NULL)
        return err_set(err, ERR_NOMEM, "create directory '%s': out of memory", path);
    /* Creates each prefix that ends before a slash, then the whole path. */
    for (end = copy; rc == 0 && *end != '\0'; end++) {
        if (*end != '/' || end == copy || end[-1] == '/')
            continue;
        *end = '\0';
        rc = make_dir(copy, err);
        *end = '/';
    }
    if (rc == 0)
        rc = make_dir(copy, err);
    free(copy);
    return rc;
}

int fs_sync_dir(const char *path, struct err *err)
{
    int fd = open_retry(path, O_RDONLY | O_DIRECTORY);
    int rc = 0;

    if (fd < 0)
        return err_sys(err, errno, "open directory '%s'", path);
    /* EINVAL: this file system does not support syncing a directory. */
    if (FAULT_TRY("fs.sync", fsync(fd)) < 0 && errno != EINVAL)
        rc = err_sys(err, errno, "sync directory '%s'", path);
    close(fd);
    return rc;
}

/* Handles one entry of the walk: removes a file at its visit, a directory after its content. */
static int remove_entry(const FTSENT *entry, struct err *err)
{
    int rc;

    switch (entry->fts_info) {
    case FTS_D:
        return 0;
    case FTS_DNR:
    case FTS_ERR:
    case FTS_NS:
        if (entry->fts_errno == ENOENT)
            return 0;
        return err_sys(err, entry->fts_errno, "remove '%s'", entry->fts_path);
    case FTS_DP:
        rc = FAULT_TRY("fs.remove", rmdir(entry->fts_accpath));
        break;
    default:
        rc = FAULT_TRY("fs.remove", unlink(entry->fts_accpath));
        break;
    }
    if (rc < 0 && errno != ENOENT) /* another process may be removing the tree too */
        return err_sys(err, errno, "remove '%s'", entry->fts_path);
    return 0;
}

int fs_remove_tree(const char *path, struct err *err)
{
    char *const roots[] = { (char *)path, NULL };
    FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    FTSENT *entry;
    int rc = 0;

    if (walk == NULL)
        return err_sys(err, errno, "remove '%s'", path);
    while (rc == 0 && (errno = 0, entry = fts_read(walk)) != NULL)
        rc = remove_entry(entry, err);
    if (rc == 0 && errno != 0)
        rc = err_sys(err, errno, "remove '%s'", path);
    fts_close(walk);
    return rc;
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_word(char c)
{
    return is_letter(c) || (c >= '0' && c <= '9');
}

/* ---- the forms of a path that other programs read in another way ----
 * Each function returns the length of the form at `at`, 0: the text there is a plain path. */

static size_t url_bytes(const char *at)
{
    size_t n = 0;

    while (is_word(at[n]) || (n > 0 && strchr("+.-", at[n]) != NULL && at[n] != '\0'))
        n++;
    return n > 1 && at[n] == ':' && at[n + 1] == '/' ? n : 0;
}

static size_t file_url_bytes(const char *at)
{
    size_t n = url_bytes(at);

    return n == 4 && strncasecmp(at, "file", n) == 0 ? n : 0;
}

/* "C:\run", "C:/run" and "\\host\run". */
static size_t windows_bytes(const char *at)
{
    if (at[0] == '\\' && at[1] == '\\')
        return 2;
    return is_letter(at[0]) && at[1] == ':' && (at[2] == '\\' || at[2] == '/') ? 2 : 0;
}

static size_t home_bytes(const char *at)
{
    return at[0] == '~' ? 1 : 0;
}

static size_t variable_bytes(const char *at)
{
    if (at[0] != '$' || at[1] == '\0' || (!is_word(at[1]) && strchr("_{(", at[1]) == NULL))
        return 0;
    return 1 + strcspn(at + 1, "/$");
}

/* "%h" of systemd, "%j" of Slurm, "%USERNAME%" of Windows. "100%done", "5%" and "%CE%BB" are plain names. */
static size_t specifier_bytes(const char *at)
{
    size_t n = 1;

    if (at[0] != '%' || !is_letter(at[1]))
        return 0;
    if (!is_word(at[2]))
        return 2;
    while (is_letter(at[n]) || at[n] == '_')
        n++;
    return at[n] == '%' && n > 3 ? n + 1 : 0;
}

static const struct form {
    size_t (*find)(const char *at);
    bool is_whole; /* the path is of this form; false: a part of it, at any byte */
    const char *what, *remedy;
} forms[] = {
    { file_url_bytes, true, "is a URL", "expected a path: write it without 'file://'" },
    { url_bytes, true, "is a URL",
      "expected a path of a mounted file system: mount the storage on every host and write the path of the mount, or write './' "
      "in front for a folder of this name" },
    { windows_bytes, true, "is a path of Windows",
      "expected a path of this machine, such as /data/run; write './' in front for a file of this name" },
    { home_bytes, true, "begins with '~', which is not expanded", "write the absolute path, or './~...' for a file of this name" },
    { variable_bytes, false, "is not expanded", "write its value" },
    { specifier_bytes, false, "is not expanded", "write its value" },
};

int fs_check_path(const char *path, struct err *err)
{
    for (size_t i = 0; i < COUNT_OF(forms); i++) {
        const struct form *f = &forms[i];

        if (f->is_whole && f->find(path) > 0)
            return err_set(err, ERR_INPUT, "'%.200s' %s; %s", path, f->what, f->remedy);
        for (const char *at = path; !f->is_whole && *at != '\0'; at++) {
            size_t n = f->find(at);

            if (n > 0)
                return err_set(err, ERR_INPUT, "'%.200s': '%.*s' %s; %s", path,
                               n < 80 ? (int)n : 80, at, f->what, f->remedy);
        }
    }
    return 0;
}

char *fs_join(const char *dir, const char *name)
{
    size_t n = strlen(dir);
    char *path;

    if (name[0] == '/')
        return strdup(name);
    if (asprintf(&path, "%s%s%s", dir, n > 0 && dir[n - 1] != '/' ? "/" : "", name) < 0)
        return NULL;
    return path;
}

char *fs_dirname(const char *path)
{
    size_t n = strlen(path);

    while (n > 1 && path[n - 1] == '/') /* "a/b/" is equivalent to "a/b" */
        n--;
    while (n > 0 && path[n - 1] != '/')
        n--;
    if (n == 0)
        return strdup(".");
    while (n > 1 && path[n - 1] == '/') /* the root keeps its slash */
        n--;
    return strndup(path, n);
}
