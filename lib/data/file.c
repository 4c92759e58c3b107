/* file.c - opens, reads and closes a file of records. A read that fails is retried until the deadline of the caller. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/text.h"
#include "data/data_priv.h"

enum { PAUSE_MS_MIN = 10, PAUSE_MS_MAX = 1000 };

int data_file_stat(int fd, const char *path, uint64_t *bytes, int64_t *mtime_ns, struct err *err)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return err_sys(err, errno, "stat '%s'", path);
    if (!S_ISREG(st.st_mode))
        return err_set(err, ERR_INPUT, "'%s' is %s, expected a regular file", path,
                       S_ISDIR(st.st_mode) ? "a directory" : "a special file");
    *bytes = (uint64_t)st.st_size;
    *mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    return 0;
}

int data_file_open(const char *path, uint64_t *bytes, int64_t *mtime_ns, struct err *err)
{
    int fd, rc;

    do
        /* O_NONBLOCK: opening a FIFO must not wait for a writer */
        fd = fault_hit("data.open") ? (errno = EIO, -1)
                                    : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return err_sys(err, errno, "open '%s'", path);
    rc = data_file_stat(fd, path, bytes, mtime_ns, err);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    return fd;
}

int data_file_read_at(const char *point, int fd, const char *path, void *out, size_t n,
                      uint64_t offset, struct err *err)
{
    uint8_t *to = out;

    while (n > 0) {
        ssize_t got = fault_hit(point) ? (errno = EIO, -1) : pread(fd, to, n, (off_t)offset);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_sys(err, errno, "read '%s' at offset %" PRIu64, path, offset);
        if (got == 0)
            return err_set(err, ERR_CHANGED,
                           "'%s' ends at offset %" PRIu64 ", expected %zu bytes more: it changed "
                           "while it was in use",
                           path, offset, n);
        to += got;
        offset += (uint64_t)got;
        n -= (size_t)got;
    }
    return 0;
}

int data_file_read(int fd, const char *path, void *out, size_t n, uint64_t offset, struct err *err)
{
    return data_file_read_at("data.read", fd, path, out, n, offset, err);
}

void data_file_close(struct data_file *f)
{
    int fd = atomic_exchange(&f->fd, -1);

    if (fd >= 0)
        close(fd);
}

static bool is_canceled(const struct data_retry *p)
{
    return cancel_requested(p->cancel) ||
           (p->canceled != NULL && atomic_load_explicit(p->canceled, memory_order_relaxed));
}

/* ERR_IO and ERR_NOENT are retried, because a failed disk or mount and an absent file may become
 * available again; errors of the content are not. */
bool data_should_retry(const struct data_retry *p, uint32_t *tries, uint64_t *since_ns, int rc,
                       struct err *err)
{
    uint64_t pause_ms, now = clock_ns(), end;
    char text[ERR_TEXT_BYTES], limit[32];

    if (p == NULL || p->deadline_ms == 0 || (rc != ERR_IO && rc != ERR_NOENT))
        return false;
    if (*tries == 0)
        *since_ns = now;
    end = *since_ns + p->deadline_ms * 1000000;
    text_duration(limit, sizeof(limit), p->deadline_ms * 1000000);
    if (now >= end) {
        err_wrap(err, rc, "%" PRIu32 " attempts in %s", *tries + 1, limit);
        return false;
    }
    if (*tries == 0 && p->on_warning != NULL) {
        snprintf(text, sizeof(text), "%s; retrying for %s", err != NULL ? err->text : "read failed",
                 limit);
        p->on_warning(p->arg, text);
    }
    pause_ms = PAUSE_MS_MIN << (*tries < 7 ? *tries : 7);
    if (pause_ms > PAUSE_MS_MAX)
        pause_ms = PAUSE_MS_MAX;
    ++*tries;
    if (now + pause_ms * 1000000 < end)
        end = now + pause_ms * 1000000;
    while (clock_ns() < end && !is_canceled(p))
        nanosleep(&(struct timespec){ .tv_nsec = PAUSE_MS_MIN * 1000000 }, NULL);
    return !is_canceled(p);
}

int data_file_read_again(const struct data_retry *p, int fd, const char *path, void *out, size_t n,
                         uint64_t offset, struct err *err)
{
    uint64_t since = 0;
    uint32_t tries = 0;
    int rc;

    while ((rc = data_file_read(fd, path, out, n, offset, err)) < 0 &&
           data_should_retry(p, &tries, &since, rc, err))
        continue;
    return rc;
}
