/* index.c - finds the positions of the records of every file. In most formats a record is found
 * only by reading the file from its start, so several threads index one file each, and the result
 * can be kept in an index file:
 *
 *     struct kept | path, padded to 8 bytes | uint64 starts[n_records + 1] | uint32 crc32c
 *
 * in the byte order of the machine. A kept index that does not match its file, or is of another
 * machine, is built again. */
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cancel.h"
#include "base/clock.h"
#include "base/cpu_quota.h"
#include "base/crc32c.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/mapping.h"
#include "base/thread.h"
#include "base/vec.h"
#include "data/data_priv.h"

enum {
    REPORT_NS = 200 * 1000 * 1000,
    MAPPINGS_MAX = 16384, /* mapped files; a process can have about 65000 mappings in total */
};

#define KEPT_MAGIC UINT64_C(0x3358444944524454) /* "TDRDIDX3" */

struct kept_head {
    uint64_t magic;
    uint64_t kind; /* format and options that determine the index */
    uint64_t bytes;
    int64_t mtime_ns;
    uint64_t n_records;
    uint64_t n_path; /* bytes of the path without padding */
    uint32_t content[DATA_REGIONS]; /* of the bytes that the index reads; see content.c */
};

struct builder {
    const struct data_opts *opts;
    struct data_set *s;
    struct data_file *files;
    uint32_t n_files;
    atomic_uint next; /* first file that no thread has claimed */
    atomic_bool stop; /* a thread failed */

    pthread_mutex_t lock; /* guards the fields below */
    uint64_t bytes_done, bytes_all, records, reported_ns;
    uint32_t failed; /* with rc < 0: file of the error, the lowest index of several */
    int rc;
    struct err err;
};

static bool canceled(const struct builder *b)
{
    return cancel_requested(b->opts->cancel) || atomic_load(&b->stop);
}

static void report(struct builder *b, uint64_t bytes, uint64_t records)
{
    uint64_t now = clock_ns();

    pthread_mutex_lock(&b->lock);
    b->bytes_done += bytes;
    b->records += records;
    if (b->opts->on_progress != NULL &&
        (now - b->reported_ns >= REPORT_NS || b->bytes_done == b->bytes_all)) {
        b->reported_ns = now;
        b->opts->on_progress(b->opts->arg, b->bytes_done, b->bytes_all, b->records);
    }
    pthread_mutex_unlock(&b->lock);
}

/* ---- indexing one file ---- */

static bool scan_progress(void *arg, uint64_t bytes, uint64_t records)
{
    struct builder *b = arg;

    if (canceled(b))
        return false;
    report(b, bytes, records);
    return true;
}

static int scan_file(struct builder *b, struct data_file *f, int fd, uint8_t *block,
                     struct err *err)
{
    struct data_scan w = { .on_progress = scan_progress,
                           .arg = b,
                           .s = b->s,
                           .f = f,
                           .fd = fd,
                           .block = block,
                           .member = (uint32_t)(f - b->files) % b->s->n_members };
    uint64_t n;
    int rc = b->s->source->index(&w, err);

    if (rc == 0 && w.n_starts > 0) { /* the last start is the end of the last record */
        f->n_records = w.n_starts - 1;
        f->starts = realloc(w.starts, w.n_starts * sizeof(*w.starts));
        if (f->starts == NULL) /* shrinking failed: the larger block stays */
            f->starts = w.starts;
        w.starts = NULL;
    }
    if (rc < 0) {
        free(w.starts);
        return rc;
    }
    n = f->n_records > w.reported_n && w.member == 0 ? f->n_records - w.reported_n : 0;
    report(b, f->bytes - w.reported_at, n);
    return 0;
}

/* ---- index files ---- */

/* Returns <directory>/<file name>.<hash of the whole path>.index; NULL: out of memory. */
static char *kept_name(const char *directory, const char *path)
{
    const char *base = strrchr(path, '/');
    uint8_t digest[DIGEST_BYTES];
    char hex[DIGEST_HEX_BYTES], name[NAME_MAX + 1];

    digest_sha256(path, strlen(path), digest);
    digest_hex(digest, hex);
    snprintf(name, sizeof(name), "%.200s.%.16s.index", base != NULL ? base + 1 : path, hex);
    return fs_join(directory, name);
}

static size_t padded(size_t n)
{
    return (n + 7) & ~(size_t)7;
}

/* Validates a kept index. true: `data` is the index of the file `path`, and the fields of `f` are
 * set. */
static bool accept_kept(const struct buf *data, uint64_t kind, const char *path,
                        struct data_file *f)
{
    size_t n_path = strlen(path), n_starts, body;
    const uint64_t *starts;
    uint32_t crc;
    struct kept_head k;

    if (data->len < sizeof(k) + sizeof(crc))
        return false;
    body = data->len - sizeof(crc);
    memcpy(&k, data->data, sizeof(k));
    memcpy(&crc, data->data + body, sizeof(crc));
    if (k.magic != KEPT_MAGIC || k.kind != kind || k.bytes != f->bytes ||
        k.mtime_ns != f->mtime_ns || k.n_path != n_path || k.n_records > f->bytes ||
        body != sizeof(k) + padded(n_path) + (k.n_records + 1) * 8 ||
        crc != crc32c(0, data->data, body) || memcmp(data->data + sizeof(k), path, n_path) != 0)
        return false;
    n_starts = k.n_records + 1;
    starts = (const uint64_t *)(const void *)(data->data + sizeof(k) + padded(n_path));
    if (starts[k.n_records] > f->bytes)
        return false;
    for (size_t i = 1; i < n_starts; i++)
        if (starts[i] <= starts[i - 1] ||
            starts[i] - starts[i - 1] > (uint64_t)DATA_RECORD_BYTES_MAX + 64)
            return false;
    f->starts = malloc(n_starts * sizeof(*starts));
    if (f->starts == NULL)
        return false; /* building the index reports the error */
    memcpy(f->starts, starts, n_starts * sizeof(*starts));
    f->n_records = k.n_records;
    memcpy(f->content, k.content, sizeof(f->content));
    return true;
}

static bool load_kept(const char *name, uint64_t kind, const char *path, struct data_file *f)
{
    size_t n_starts = f->bytes + 1; /* upper limit */
    size_t limit =
        sizeof(struct kept_head) + padded(strlen(path)) + n_starts * 8 + sizeof(uint32_t);
    struct buf data = { 0 };
    bool ok;

    ok = fs_read(name, limit, &data, NULL) == 0 && accept_kept(&data, kind, path, f);
    buf_fini(&data);
    return ok;
}

static int save_kept(const char *name, uint64_t kind, const char *path, const struct data_file *f,
                     struct err *err)
{
    struct kept_head k = { .magic = KEPT_MAGIC,
                           .kind = kind,
                           .bytes = f->bytes,
                           .mtime_ns = f->mtime_ns,
                           .n_records = f->n_records,
                           .n_path = strlen(path) };
    struct buf data = { 0 };
    uint32_t crc;
    int rc;

    memcpy(k.content, f->content, sizeof(k.content));
    buf_add(&data, &k, sizeof(k));
    buf_add(&data, path, k.n_path);
    buf_add(&data, "\0\0\0\0\0\0\0", padded(k.n_path) - k.n_path);
    buf_add(&data, f->starts, (f->n_records + 1) * sizeof(*f->starts));
    crc = crc32c(0, data.data, data.len);
    buf_add(&data, &crc, sizeof(crc));
    rc = data.failed ? err_set(err, ERR_NOMEM, "out of memory")
                     : fs_replace(name, data.data, data.len, err);
    buf_fini(&data);
    return rc < 0 ? err_wrap(err, rc, "keep the index of '%s'", f->path) : 0;
}

/* ---- one file, all files ---- */

static int index_kept(struct builder *b, struct data_file *f, int fd, uint8_t *block,
                      struct err *err)
{
    const struct data_set *s = b->s;
    /* The format, and the options that change the index. */
    uint64_t kind = s->source->index_kind | (uint64_t)s->skip_bad << 32 |
                    (uint64_t)s->columns.has_header << 33 |
                    (uint64_t)(uint8_t)s->columns.delimiter << 40;
    char *path = realpath(f->path, NULL), *name = NULL;
    int rc = 0;

    if (path == NULL)
        return err_sys(err, errno, "find '%s'", f->path);
    name = kept_name(b->opts->origin.index_directory, path);
    if (name == NULL) {
        rc = err_set(err, ERR_NOMEM, "index '%s': out of memory", f->path);
    } else if (load_kept(name, kind, path, f)) {
        report(b, f->bytes, f->n_records);
    } else {
        rc = scan_file(b, f, fd, block, err);
        if (rc == 0)
            rc = save_kept(name, kind, path, f, err);
    }
    free(name);
    free(path);
    return rc;
}

static int open_again(const struct data_retry *p, const char *path, uint64_t *bytes,
                      int64_t *mtime_ns, struct err *err)
{
    uint64_t since = 0;
    uint32_t tries = 0;
    int fd;

    while ((fd = data_file_open(path, bytes, mtime_ns, err)) < 0 &&
           data_should_retry(p, &tries, &since, fd, err))
        continue;
    return fd;
}

static int sample_again(const struct data_set *s, struct data_file *f, int fd, struct err *err)
{
    uint64_t since = 0;
    uint32_t tries = 0;
    int rc;

    while ((rc = data_file_checksum(s, fd, f->path, f->bytes, f->sampled, err)) < 0 &&
           data_should_retry(&s->retry, &tries, &since, rc, err))
        continue;
    return rc;
}

/* Corrects the total for the progress, because an unpacked copy has another size. */
static void recount(struct builder *b, const struct data_file *f)
{
    pthread_mutex_lock(&b->lock);
    b->bytes_all += f->bytes - f->origin_bytes;
    pthread_mutex_unlock(&b->lock);
}

static int index_file(struct builder *b, struct data_file *f, uint8_t *block, struct err *err)
{
    uint64_t bytes;
    int64_t mtime_ns;
    int fd, local, rc;

    fd = open_again(&b->s->retry, f->path, &bytes, &mtime_ns, err);
    if (fd < 0)
        return fd;
    if (bytes != f->bytes || mtime_ns != f->mtime_ns) {
        close(fd);
        return err_set(err, ERR_CHANGED,
                       "'%s' changed while it was being indexed: restart, and do not change it "
                       "during a run",
                       f->origin);
    }
    local = data_unpack(b->opts, b->s->source, &b->s->retry, f, fd, block, err);
    if (local != fd)
        close(fd);
    if (local < 0)
        return local;
    recount(b, f);
    atomic_store(&f->known_mtime_ns, f->mtime_ns);
    rc = sample_again(b->s, f, local, err);
    if (rc < 0) {
        close(local);
        return rc;
    }
    if (b->opts->origin.index_directory != NULL && b->s->source->index_kind != 0 && !f->pinned)
        rc = index_kept(b, f, local, block, err);
    else
        rc = scan_file(b, f, local, block, err);
    data_content_mix(f->content, f->sampled);
    if (rc == 0 && f - b->files < MAPPINGS_MAX)
        f->mapping = mapping_new(local, f->bytes);
    if (f->pinned)
        atomic_store(&f->fd, local);
    else
        close(local);
    return rc;
}

static void fail(struct builder *b, uint32_t file, int rc, const struct err *err)
{
    pthread_mutex_lock(&b->lock);
    /* ERR_CANCELED of threads that stop because of another failure is not recorded. */
    if (b->rc == 0 || (rc != ERR_CANCELED && (b->rc == ERR_CANCELED || file < b->failed))) {
        b->failed = file;
        b->rc = rc;
        b->err = *err;
    }
    pthread_mutex_unlock(&b->lock);
    atomic_store(&b->stop, true);
}

static void *work(void *arg)
{
    struct builder *b = arg;
    uint8_t *block = malloc(DATA_BLOCK_BYTES);
    struct err err;
    uint32_t i;
    int rc;

    if (block == NULL)
        fail(b, 0, err_set(&err, ERR_NOMEM, "index: out of memory"), &err);
    while (block != NULL && (i = atomic_fetch_add(&b->next, 1)) < b->n_files) {
        rc = canceled(b) ? err_set(&err, ERR_CANCELED, "index: canceled")
                         : index_file(b, &b->files[i], block, &err);
        if (rc < 0) {
            fail(b, i, rc, &err);
            break;
        }
    }
    free(block);
    return NULL;
}

uint32_t data_cores(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof(set), &set) == 0 ? cpu_quota_limit((uint32_t)CPU_COUNT(&set))
                                                        : 1;
}

/* Runs work() on n_threads threads, of which the caller is one. */
static int run_all(struct builder *b, uint32_t n_threads, struct err *err)
{
    pthread_t *threads = calloc(n_threads, sizeof(*threads));
    uint32_t n = 0;
    int rc = 0;

    if (threads == NULL)
        return err_set(err, ERR_NOMEM, "index: out of memory");
    while (rc == 0 && n + 1 < n_threads) {
        rc = thread_start(&threads[n], "indexes records", work, b, err);
        if (rc == 0)
            n++;
    }
    if (rc == 0)
        work(b);
    else
        atomic_store(&b->stop, true);
    while (n > 0)
        pthread_join(threads[--n], NULL);
    free(threads);
    return rc;
}

/* Reads sizes and times of all files before any content. */
static int stat_all(struct builder *b, struct err *err)
{
    for (uint32_t i = 0; i < b->n_files; i++) {
        struct data_file *f = &b->files[i];
        int fd = open_again(&b->s->retry, f->path, &f->bytes, &f->mtime_ns, err);

        if (fd < 0)
            return fd;
        close(fd);
        f->origin_bytes = f->bytes;
        b->bytes_all += f->bytes;
    }
    b->s->bytes = b->bytes_all;
    return 0;
}

int data_index(const struct data_opts *opts, struct data_set *s, struct err *err)
{
    struct builder b = { .opts = opts, .s = s, .files = s->files, .n_files = s->n_files,
                         .lock = PTHREAD_MUTEX_INITIALIZER };
    uint32_t n_threads = opts->threads > 0 ? opts->threads : data_cores();
    int rc;

    rc = stat_all(&b, err);
    if (rc == 0 && opts->origin.index_directory != NULL)
        rc = fs_mkdirs(opts->origin.index_directory, err);
    if (rc == 0 && opts->origin.cache == DATA_CACHE_DISK)
        rc = fs_mkdirs(opts->origin.cache_directory, err);
    if (rc == 0)
        rc = run_all(&b, n_threads < s->n_files ? n_threads : s->n_files, err);
    pthread_mutex_destroy(&b.lock);
    if (rc == 0 && b.rc < 0) {
        rc = b.rc;
        if (err != NULL)
            *err = b.err;
    }
    if (rc == 0 && s->source->finish != NULL)
        rc = s->source->finish(s, err);
    return rc;
}
