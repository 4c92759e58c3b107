/* record.c - reads files with pread(2), so that any number of threads can share a descriptor. A
 * small record without neighbours to read is copied from a mapping of its file (base/mapping.h),
 * which takes a third of the time; if the copy fails, pread(2) reads the record or reports the
 * error. */
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/mapping.h"
#include "data/data_priv.h"

enum {
    WINDOW_BYTES = 1 << 20,      /* limit of one read of several records */
    WINDOW_BYTES_MIN = 64 << 10, /* first allocation */
    COPY_BYTES_MAX = 8 << 10,    /* larger records are faster with one pread(2) than page by page */
    CACHE_LINE_BYTES = 64,
    CHECK_NS = 20 * 1000 * 1000, /* interval of the checks for a changed file */
};

/* ---- descriptors ---- */

/* Returns true if the file should be checked after this read: a file that was rewritten in place
 * may contain valid records of the same sizes. */
static bool check_is_due(const struct data_file *f)
{
    return clock_ns() - atomic_load_explicit(&f->checked_ns, memory_order_relaxed) >= CHECK_NS;
}

static int check_again(const struct data_set *s, struct data_file *f, int fd, struct err *err)
{
    uint64_t bytes;
    int64_t mtime_ns;
    int rc = data_file_stat(fd, f->path, &bytes, &mtime_ns, err);

    return rc < 0 ? rc : data_file_unchanged(s, f, fd, bytes, mtime_ns, err);
}

/* Returns a descriptor of the file. *is_temporary: the caller closes it, because the limit of open
 * files is reached. */
static int acquire_fd(struct data_set *s, struct data_file *f, bool *is_temporary, struct err *err)
{
    int fd = atomic_load(&f->fd), none = -1;
    uint64_t bytes;
    int64_t mtime_ns;
    int rc;

    *is_temporary = false;
    if (fd >= 0)
        return fd;
    fd = data_file_open(f->path, &bytes, &mtime_ns, err);
    if (fd < 0)
        return fd;
    rc = data_file_unchanged(s, f, fd, bytes, mtime_ns, err);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    *is_temporary = true;
    if (atomic_load(&s->open.n) < s->open.max &&
        atomic_compare_exchange_strong(&f->fd, &none, fd)) {
        atomic_fetch_add(&s->open.n, 1); /* concurrent threads may exceed the limit slightly */
        *is_temporary = false;
    }
    return fd;
}

/* ---- windows ---- */

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

void data_record_range(const struct data_file *f, uint64_t i, uint64_t *from, uint64_t *to)
{
    if (f->starts != NULL) {
        *from = f->starts[i];
        *to = f->starts[i + 1];
    } else {
        *from = f->data_at + i * f->step;
        *to = *from + f->span;
    }
}

void data_window_fini(struct data_window *w)
{
    free(w->bytes);
    *w = (struct data_window){ 0 };
}

/* Ensures a capacity of n bytes; doubles the capacity to avoid frequent reallocation. */
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

void data_record_prefetch(const struct data_set *s, uint64_t record)
{
    const struct data_file *f = &s->files[data_file_of(s, record)];
    uint64_t from, to;

    if (f->mapping == NULL)
        return;
    data_record_range(f, record - f->first, &from, &to);
    for (; to - from <= COPY_BYTES_MAX && from < to; from += CACHE_LINE_BYTES)
        __builtin_prefetch(f->mapping + from);
}

/* Returns the end of the last record up to `last` that fits into WINDOW_BYTES together with record
 * i, which starts at `from`. */
static uint64_t batch_end(const struct data_file *f, uint64_t i, uint64_t last, uint64_t from)
{
    uint64_t low = i, high = last + 1, at, to; /* low fits, high does not */

    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;

        data_record_range(f, middle, &at, &to);
        if (to - from <= WINDOW_BYTES)
            low = middle;
        else
            high = middle;
    }
    data_record_range(f, low, &at, &to);
    return to;
}

/* Reads [from, to) of the file to the window, without retries. */
static int read_window(struct data_set *s, struct data_window *w, uint32_t file, uint64_t from,
                       uint64_t to, struct err *err)
{
    struct data_file *f = &s->files[file];
    bool is_temporary = false, copied = false, due = check_is_due(f);
    int fd = -1, rc = 0;

    if (f->mapping != NULL && to - from <= COPY_BYTES_MAX) {
        if (fault_hit("data.read"))
            return err_sys(err, EIO, "read '%s' at offset %" PRIu64, f->path, from);
        copied = mapping_copy(w->bytes, f->mapping + from, to - from);
    }
    if (!copied || due)
        rc = fd = acquire_fd(s, f, &is_temporary, err);
    if (rc >= 0 && !copied)
        rc = data_file_read(fd, f->path, w->bytes, to - from, from, err);
    if (rc >= 0 && due)
        rc = check_again(s, f, fd, err);
    if (is_temporary)
        close(fd);
    if (rc < 0)
        return rc;
    w->file = file;
    w->from = from;
    w->to = to;
    return 0;
}

int data_window_record(struct data_set *s, struct data_window *w, uint32_t file, uint64_t i,
                       uint64_t last, const struct data_retry *retry, const uint8_t **bytes,
                       size_t *n, struct err *err)
{
    struct data_file *f = &s->files[file];
    uint64_t from, to, end, since = 0;
    uint32_t tries = 0;
    int rc = 0;

    data_record_range(f, i, &from, &to);
    if (w->file != file || from < w->from || to > w->to) {
        end = last > i ? batch_end(f, i, last, from) : to;
        w->from = w->to = 0; /* the window is empty if the read fails */
        rc = grow(w, end - from, err);
        while (rc == 0 && (rc = read_window(s, w, file, from, end, err)) < 0 &&
               data_should_retry(retry, &tries, &since, rc, err))
            rc = 0;
    }
    if (rc < 0)
        return rc;
    *bytes = w->bytes + (from - w->from);
    *n = to - from;
    return 0;
}
