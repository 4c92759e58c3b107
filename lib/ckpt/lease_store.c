/* lease_store.c - reads and writes the files of the lease. Every call may hang.
 *
 * Network file systems cache directories. A read of the storage therefore changes the time of the
 * directory first: the response shows the client that the directory was changed by others, so the
 * client reads it again. Files that change are opened for each read, which revalidates their cache
 * too. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/fs.h"
#include "base/text.h"
#include "ckpt/ckpt_priv.h"
#include "ckpt/lease_priv.h"

#define PREFIX "lease-"

enum { PATH_BYTES = 4096, TRIES = 3 };

/* ---- names ---- */

static int path_of(const char *directory, uint64_t token, const char *rest, char out[PATH_BYTES],
                   struct err *err)
{
    int n = snprintf(out, PATH_BYTES, "%s/" PREFIX "%08" PRIu64 "%s", directory, token, rest);

    return n < PATH_BYTES ? 0
                          : err_set(err, ERR_INPUT, "'%.64s...': a path of %d bytes, expected less "
                                    "than %d", directory, n, PATH_BYTES);
}

/* Parses "lease-00000012<rest>" and returns the token; 0: another name. A token has exactly one
 * name. */
static uint64_t token_of(const char *name, const char **rest)
{
    char digits[24], again[32];
    const char *from = name + strlen(PREFIX), *first;
    uint64_t token;
    size_t n;

    if (!text_starts(name, PREFIX))
        return 0;
    n = strspn(from, "0123456789");
    if (n >= sizeof(digits))
        return 0;
    snprintf(digits, sizeof(digits), "%.*s", (int)n, from);
    for (first = digits; first[0] == '0' && first[1] != '\0'; first++) /* text_u64() rejects them */
        continue;
    if (!text_u64(first, LEASE_TOKEN_MAX, &token))
        return 0;
    snprintf(again, sizeof(again), "%08" PRIu64, token);
    *rest = from + n;
    return strcmp(digits, again) == 0 ? token : 0;
}

/* ---- reading ---- */

static int find_newest(const char *directory, uint64_t *out, struct err *err)
{
    const struct dirent *entry;
    const char *rest;
    DIR *d;
    int rc = 0;

    *out = 0;
    (void)utimensat(AT_FDCWD, directory, NULL, 0); /* see above; opendir() reports errors */
    d = fault_hit("lease.list") ? (errno = EIO, NULL) : opendir(directory);
    if (d == NULL && errno == ENOENT)
        return 0; /* no lease was ever acquired */
    if (d == NULL)
        return err_sys(err, errno, "list leases in '%s'", directory);
    while ((errno = 0, entry = readdir(d)) != NULL) {
        uint64_t token = token_of(entry->d_name, &rest);

        if (token > *out && rest[0] == '\0')
            *out = token;
    }
    if (errno != 0)
        rc = err_sys(err, errno, "list leases in '%s'", directory);
    closedir(d);
    return rc;
}

/* Reads at most `room` bytes. The file may be anything, such as a symbolic link or a FIFO; those
 * are ERR_CORRUPT. */
static int read_prefix(const char *path, char *out, size_t room, size_t *n, struct err *err)
{
    struct stat st;
    int fd = FAULT_TRY("lease.read", open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW)),
        rc = 0;
    ssize_t got = 1;

    *n = 0;
    if (fd < 0 && errno == ELOOP)
        return err_set(err, ERR_CORRUPT, "'%s' is a symbolic link, expected a file", path);
    if (fd < 0 || fstat(fd, &st) < 0)
        rc = err_sys(err, errno, "open '%s'", path);
    else if (!S_ISREG(st.st_mode))
        rc = err_set(err, ERR_CORRUPT, "'%s' is not a regular file", path);
    while (rc == 0 && got > 0 && *n < room) {
        got = FAULT_TRY("lease.read", read(fd, out + *n, room - *n));
        if (got < 0 && errno != EINTR)
            rc = err_sys(err, errno, "read '%s'", path);
        *n += got > 0 ? (size_t)got : 0;
        got = got < 0 ? 1 : got;
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

static int read_record(const char *directory, uint64_t token, struct lease_found *found,
                       struct err *err)
{
    char *text = malloc(LEASE_RECORD_MAX + 1), path[PATH_BYTES];
    struct lease_record *record = malloc(sizeof(*record));
    size_t n;
    int rc = text != NULL && record != NULL ? path_of(directory, token, "", path, err)
                                            : err_set(err, ERR_NOMEM, "lease: out of memory");

    if (rc == 0)
        rc = read_prefix(path, text, LEASE_RECORD_MAX + 1, &n, err);
    if (rc == 0 && n > LEASE_RECORD_MAX)
        rc = err_set(err, ERR_CORRUPT, "'%s' has more than %d bytes, the limit of a record", path,
                     LEASE_RECORD_MAX);
    if (rc == 0) {
        rc = lease_record_parse(text, n, token, record, err);
        if (rc < 0)
            err_wrap(err, rc, "'%s'", path);
    }
    if (rc == 0)
        found->record = *record;
    free(record);
    free(text);
    return rc;
}

/* Reads the first bytes of a heartbeat; *n 0: it is absent or not a file. */
static int read_beat(const char *directory, uint64_t token, char out[LEASE_BEAT_BYTES], size_t *n,
                     struct err *err)
{
    char path[PATH_BYTES];
    int rc = path_of(directory, token, ".beat", path, err);

    if (rc == 0)
        rc = read_prefix(path, out, LEASE_BEAT_BYTES, n, err);
    if (rc == ERR_NOENT || rc == ERR_CORRUPT) {
        *n = 0;
        rc = 0;
    }
    return rc;
}

static int read_once(const char *directory, struct lease_found *found, struct err *err)
{
    char beat[LEASE_BEAT_BYTES];
    size_t beat_bytes = 0;
    uint64_t token;
    int rc = find_newest(directory, &token, err);

    if (rc == 0 && token != 0)
        rc = read_beat(directory, token, beat, &beat_bytes, err);
    if (rc < 0)
        return rc;
    if (token != 0) {
        struct err why = { .text = "" };

        rc = read_record(directory, token, found, &why);
        if (rc < 0 && rc != ERR_CORRUPT) {
            if (err != NULL)
                *err = why;
            return rc;
        }
        found->is_known = rc == 0;
        snprintf(found->damage, sizeof(found->damage), "%.*s",
                 (int)text_utf8_cut(why.text, strnlen(why.text, sizeof(found->damage) - 1)),
                 why.text);
    }
    if (token == 0)
        found->is_known = false;
    found->token = token;
    memcpy(found->beat, beat, beat_bytes);
    found->beat_bytes = beat_bytes;
    return 0;
}

int lease_store_read(const char *directory, struct lease_found *found, struct err *err)
{
    int rc = ERR_NOENT;

    /* A listed record that does not exist any more was removed after a newer record was created. */
    for (int i = 0; rc == ERR_NOENT && i < TRIES; i++)
        rc = read_once(directory, found, err);
    return rc;
}

/* ---- acquiring ---- */

static int write_new(const char *path, const struct buf *text, struct err *err)
{
    int fd = FAULT_TRY("lease.create", open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666)),
        rc;

    if (fd < 0) {
        rc = err_sys(err, errno, "create '%s'", path);
        return rc == ERR_EXISTS ? err_wrap(err, ERR_IO, "a leftover file blocks the new record")
                                : rc;
    }
    rc = fs_write_all(fd, text->data, text->len, path, err);
    if (rc == 0 && FAULT_TRY("lease.sync", fsync(fd)) < 0)
        rc = err_sys(err, errno, "sync '%s'", path);
    if (close(fd) < 0 && rc == 0)
        rc = err_sys(err, errno, "close '%s'", path);
    return rc;
}

/* Creates the record where hard links are not possible. A record that could not be written is removed, so
 * that it does not occupy its token. */
static int create_record(const char *path, const struct buf *text, struct err *err)
{
    int rc = fs_create(path, text->data, text->len, err);

    if (rc < 0 && rc != ERR_EXISTS)
        (void)unlink(path); /* else other tasks wait until the record is expired */
    return rc;
}

/* Creates the record as a hard link. If the response of a server is lost, the client repeats the
 * request and gets EEXIST although the link was created; the link count then shows the success. */
static int link_record(const char *temporary, const char *path, const struct buf *text,
                       struct err *err)
{
    struct stat st;
    int errnum;

    if (FAULT_TRY("lease.link", link(temporary, path)) == 0)
        return 0;
    errnum = errno;
    if (stat(temporary, &st) == 0 && st.st_nlink == 2)
        return 0;
    if (errnum == ENOENT && stat(path, &st) == 0) /* the new holder removed the temporary file */
        errnum = EEXIST;
    if (fs_lacks_links(errnum))
        return create_record(path, text, err);
    return err_sys(err, errnum, "create '%s'", path);
}

int lease_store_acquire(const char *directory, const struct lease_record *r, uint64_t *begin_ns,
                        struct err *err)
{
    char path[PATH_BYTES], temporary[PATH_BYTES], rest[40];
    struct buf text = { 0 };
    int rc = fs_mkdirs(directory, err);

    /* A file has the name of the directory. ERR_EXISTS would mean that another task holds the lease. */
    if (rc == ERR_EXISTS)
        rc = err_wrap(err, ERR_IO, "the lease");
    snprintf(rest, sizeof(rest), ".new-%016" PRIx64, r->incarnation);
    if (rc == 0)
        rc = path_of(directory, r->token, "", path, err);
    if (rc == 0)
        rc = path_of(directory, r->token, rest, temporary, err);
    if (rc < 0)
        return rc;
    (void)unlink(temporary); /* of an earlier attempt; may be a second name of a record */
    lease_record_print(r, &text);
    rc = text.failed ? err_set(err, ERR_NOMEM, "lease: out of memory")
                     : write_new(temporary, &text, err);
    if (rc == 0) /* created now, so that a disk that is full later does not prevent renewals */
        rc = lease_store_beat(directory, r->token, r->incarnation, 0, false, err);
    if (rc == ERR_FULL && fs_lacks_inodes(directory))
        rc = err_wrap(err, rc, "the file system has no inode left: remove files");
    *begin_ns = clock_ns();
    if (rc == 0)
        rc = link_record(temporary, path, &text, err);
    (void)unlink(temporary); /* else lease_store_prune() removes it */
    if (rc == 0)
        rc = fs_sync_dir(directory, err);
    buf_fini(&text);
    return rc;
}

int lease_store_beat(const char *directory, uint64_t token, uint64_t incarnation, uint64_t count,
                     bool is_released, struct err *err)
{
    char path[PATH_BYTES], line[LEASE_BEAT_BYTES + 1];
    int fd, rc = path_of(directory, token, ".beat", path, err);
    ssize_t n;

    if (rc < 0)
        return rc;
    lease_beat_print(incarnation, count, is_released, line);
    fd = FAULT_TRY("lease.beat",
                   open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0666));
    if (fd < 0)
        return err_sys(err, errno, "renew '%s'", path);
    n = FAULT_TRY("lease.beat", pwrite(fd, line, LEASE_BEAT_BYTES, 0));
    if (n != LEASE_BEAT_BYTES)
        rc = err_sys(err, n < 0 ? errno : ENOSPC, "renew '%s'", path);
    if (close(fd) < 0 && rc == 0) /* NFS sends the data to the server here */
        rc = err_sys(err, errno, "renew '%s'", path);
    return rc;
}

void lease_store_prune(const char *directory, uint64_t token)
{
    const struct dirent *entry;
    const char *rest;
    char *path;
    DIR *d = fault_hit("lease.tidy") ? NULL : opendir(directory);

    if (d == NULL)
        return;
    while ((entry = readdir(d)) != NULL) {
        uint64_t number = token_of(entry->d_name, &rest);

        if (number == 0 || number > token || (number + 1 >= token && !text_starts(rest, ".new-")))
            continue;
        path = fs_join(directory, entry->d_name);
        if (path != NULL)
            (void)unlink(path); /* best effort, see lease_priv.h */
        free(path);
    }
    closedir(d);
}
