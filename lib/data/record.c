/* record.c - files by pread(2): any number of threads share a descriptor, and a file that
 * is cut under us is an error and not a SIGBUS. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fault.h"
#include "data/data_priv.h"
#include "data/tfrecord.h"

enum {
    WINDOW_BYTES = 1 << 20, /* read together, if that many are wanted */
    WINDOW_BYTES_MIN = 64 << 10,
};

static int look_at(int fd, const char *path, uint64_t *bytes, int64_t *mtime_ns, struct err *err)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return err_sys(err, errno, "look at '%s'", path);
    if (!S_ISREG(st.st_mode))
        return err_set(err, ERR_INPUT, "'%s' is %s, expected a regular file", path,
                       S_ISDIR(st.st_mode) ? "a directory" : "no file");
    *bytes = (uint64_t)st.st_size;
    *mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    return 0;
}

int data_file_open(const char *path, uint64_t *bytes, int64_t *mtime_ns, struct err *err)
{
    int fd, rc;

    do
        fd = fault_hit("data.open") ? (errno = EIO, -1) : open(path, O_RDONLY | O_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return err_sys(err, errno, "open '%s'", path);
    rc = look_at(fd, path, bytes, mtime_ns, err);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    return fd;
}

int data_file_read(int fd, const char *path, void *out, size_t n, uint64_t offset, struct err *err)
{
    uint8_t *to = out;

    while (n > 0) {
        ssize_t got = fault_hit("data.read") ? (errno = EIO, -1) : pread(fd, to, n, (off_t)offset);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_sys(err, errno, "read '%s' at offset %" PRIu64, path, offset);
        if (got == 0)
            return err_set(err, ERR_CORRUPT,
                           "'%s' ends at offset %" PRIu64 ", expected %zu bytes more: it changed "
                           "while it was in use",
                           path, offset, n);
        to += got;
        offset += (uint64_t)got;
        n -= (size_t)got;
    }
    return 0;
}

void data_file_close(struct data_file *f)
{
    int fd = atomic_exchange(&f->fd, -1);

    if (fd >= 0)
        close(fd);
}

/* Also asked after a read: a file rewritten in place may hold good records of the same sizes. */
static int check_unchanged(const struct data_file *f, uint64_t bytes, int64_t mtime_ns,
                           struct err *err)
{
    if (bytes == f->bytes && mtime_ns == f->mtime_ns)
        return 0;
    return err_set(err, ERR_CORRUPT,
                   "'%s' changed after it was indexed (it had %" PRIu64 " bytes, now %" PRIu64
                   "): start again to index it anew, and leave it alone during a run",
                   f->path, f->bytes, bytes);
}

/* A descriptor of the file. *ours: to be closed after use, for as many as may stay open are. */
static int borrow(struct data_set *s, struct data_file *f, bool *ours, struct err *err)
{
    int fd = atomic_load(&f->fd), none = -1;
    uint64_t bytes;
    int64_t mtime_ns;
    int rc;

    *ours = false;
    if (fd >= 0)
        return fd;
    fd = data_file_open(f->path, &bytes, &mtime_ns, err);
    if (fd < 0)
        return fd;
    rc = check_unchanged(f, bytes, mtime_ns, err);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    *ours = true;
    if (atomic_load(&s->n_open) < s->open_max &&
        atomic_compare_exchange_strong(&f->fd, &none, fd)) {
        atomic_fetch_add(&s->n_open, 1); /* a few threads at once may pass the limit by a few */
        *ours = false;
    }
    return fd;
}

uint32_t data_file_of(const struct data_set *s, uint64_t record)
{
    uint32_t low = 0, high = s->n_files; /* files[low].first <= record < files[high].first */

    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;

        if (s->files[middle].first <= record)
            low = middle;
        else
            high = middle;
    }
    return low;
}

void data_window_fini(struct data_window *w)
{
    free(w->bytes);
    *w = (struct data_window){ 0 };
}

/* Doubling, so that records of many sizes soon find a window that is large enough. */
static int grow(struct data_window *w, uint64_t n, struct err *err)
{
    uint64_t cap = w->cap > 0 ? w->cap : WINDOW_BYTES_MIN;
    uint8_t *bytes;

    if (n <= w->cap)
        return 0;
    while (cap < n)
        cap *= 2;
    bytes = realloc(w->bytes, cap);
    if (bytes == NULL)
        return err_set(err, ERR_NOMEM, "out of memory for %" PRIu64 " bytes of records", cap);
    w->bytes = bytes;
    w->cap = cap;
    return 0;
}

/* Reads record i of the file, and those behind it as far as they are wanted and fit. */
static int fill(struct data_set *s, struct data_window *w, uint32_t file, uint64_t i, uint64_t run,
                struct err *err)
{
    struct data_file *f = &s->files[file];
    uint64_t from = f->starts[i], to = f->starts[i + 1];
    uint64_t last = run < f->n_records - i ? i + run : f->n_records;
    uint64_t bytes;
    int64_t mtime_ns;
    bool ours;
    int fd, rc;

    while (++i < last && f->starts[i + 1] - from <= WINDOW_BYTES)
        to = f->starts[i + 1];
    w->from = w->to = 0; /* nothing is held if we fail */
    rc = grow(w, to - from, err);
    if (rc < 0)
        return rc;
    fd = borrow(s, f, &ours, err);
    if (fd < 0)
        return fd;
    rc = data_file_read(fd, f->path, w->bytes, to - from, from, err);
    if (rc == 0)
        rc = look_at(fd, f->path, &bytes, &mtime_ns, err);
    if (rc == 0)
        rc = check_unchanged(f, bytes, mtime_ns, err);
    if (rc == 0 && i < last) /* the disk may already work on the rest */
        (void)posix_fadvise(fd, (off_t)to, WINDOW_BYTES, POSIX_FADV_WILLNEED); /* a hint */
    if (ours)
        close(fd);
    if (rc < 0)
        return rc;
    w->file = file;
    w->from = from;
    w->to = to;
    return 0;
}

int data_window_record(struct data_set *s, struct data_window *w, uint64_t record, uint64_t run,
                       const uint8_t **data, size_t *n, struct err *err)
{
    uint32_t file = data_file_of(s, record);
    struct data_file *f = &s->files[file];
    uint64_t i = record - f->first, from = f->starts[i], to = f->starts[i + 1], said = 0;
    uint64_t length = to - from - TFRECORD_HEAD_BYTES - TFRECORD_TAIL_BYTES;
    const uint8_t *at;
    int rc = 0;

    if (w->file != file || from < w->from || to > w->to)
        rc = fill(s, w, file, i, run, err);
    if (rc < 0)
        return rc;
    at = w->bytes + (from - w->from);
    rc = tfrecord_head(at, DATA_RECORD_BYTES_MAX, &said, err);
    if (rc == 0 && said != length)
        rc = err_set(err, ERR_CORRUPT, "%" PRIu64 " bytes long, expected %" PRIu64, said, length);
    if (rc == 0)
        rc = tfrecord_check(at + TFRECORD_HEAD_BYTES, length, at + TFRECORD_HEAD_BYTES + length,
                            err);
    if (rc < 0)
        return rc;
    *data = at + TFRECORD_HEAD_BYTES;
    *n = length;
    return 0;
}
