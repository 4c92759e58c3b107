/* lengths.c - determines the number of items of each record, which packing needs before the first
 * step. Several threads read and parse every record once; with an index directory the result is
 * kept there:
 *
 *     uint64 magic | SHA-256 of all inputs (key_of) | uint32 lengths[n_records] | uint32 crc32c */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cancel.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/thread.h"
#include "data/data_priv.h"

enum { CHUNK = 512, REPORT_NS = 200 * 1000 * 1000 };

#define KEPT_MAGIC UINT64_C(0x314e454c44524454) /* "TDRDLEN1" */

struct length_reader {
    struct data_set *s;
    const struct data_opts *opts;
    uint32_t *lengths;
    _Atomic uint64_t next; /* first record that no thread has claimed */
    atomic_bool stop;      /* a thread failed */

    pthread_mutex_t lock; /* guards the fields below */
    uint64_t bytes_done, bytes_all, records, reported_ns;
    uint64_t failed; /* with rc < 0: record of the error, the lowest of several */
    int rc;
    struct err err;
};

/* ---- reading ---- */

static bool canceled(const struct length_reader *v)
{
    return cancel_requested(v->opts->cancel) || atomic_load(&v->stop);
}

static void report(struct length_reader *v, uint64_t bytes, uint64_t records)
{
    uint64_t now = clock_ns();

    pthread_mutex_lock(&v->lock);
    v->bytes_done += bytes;
    v->records += records;
    if (v->opts->on_progress != NULL &&
        (now - v->reported_ns >= REPORT_NS || v->records == v->s->n_records)) {
        v->reported_ns = now;
        v->opts->on_progress(v->opts->arg, v->bytes_done, v->bytes_all, v->records);
    }
    pthread_mutex_unlock(&v->lock);
}

static void fail(struct length_reader *v, uint64_t record, int rc, const struct err *err)
{
    pthread_mutex_lock(&v->lock);
    if (v->rc == 0 || record < v->failed) {
        v->failed = record;
        v->rc = rc;
        v->err = *err;
    }
    pthread_mutex_unlock(&v->lock);
    atomic_store(&v->stop, true);
}

static int read_length(struct length_reader *v, struct data_decoder *d, uint64_t record,
                       uint64_t last, struct err *err)
{
    uint64_t items = 0;
    int rc = data_read_record(d, record, last, err);

    if (rc == 0 && data_count_items(d, &items, err) < 0)
        rc = data_wrap_record(v->s, record, 0, ERR_INPUT, err);
    v->lengths[record] = (uint32_t)items; /* fits: an item has at least one of at most 2^30 bytes */
    if (rc < 0 && data_skip(v->s, rc, err)) {
        v->lengths[record] = DATA_SKIPPED;
        return 0;
    }
    return rc;
}

/* Reads the records [at, end), which are in one file. */
static int read_chunk(struct length_reader *v, struct data_decoder *d, uint64_t at, uint64_t end)
{
    const struct data_file *f = &v->s->files[data_file_of(v->s, at)];
    uint64_t from, to, bytes = 0;
    struct err err;

    for (uint64_t r = at; r < end; r++) {
        int rc = canceled(v) ? err_set(&err, ERR_CANCELED, "canceled")
                             : read_length(v, d, r, end - 1, &err);

        if (rc < 0) {
            if (!atomic_load(&v->stop) || rc != ERR_CANCELED)
                fail(v, r, rc, &err);
            return rc;
        }
        data_record_range(f, r - f->first, &from, &to);
        bytes += to - from;
    }
    report(v, bytes, end - at);
    return 0;
}

static void *work(void *arg)
{
    struct length_reader *v = arg;
    struct data_decoder *d;
    struct err err;
    int rc = data_decoder_new(v->s, &d, &err);
    uint64_t n = v->s->n_records, at;

    if (rc < 0) {
        fail(v, 0, rc, &err);
        return NULL;
    }
    while (rc == 0 && (at = atomic_fetch_add(&v->next, CHUNK)) < n) {
        uint64_t end = at + CHUNK < n ? at + CHUNK : n;

        while (rc == 0 && at < end) {
            const struct data_file *f = &v->s->files[data_file_of(v->s, at)];
            uint64_t file_end = f->first + f->n_records;

            rc = read_chunk(v, d, at, file_end < end ? file_end : end);
            at = file_end;
        }
    }
    data_decoder_free(d);
    return NULL;
}

/* Runs work() on several threads, of which the caller is one. */
static int read_all(struct length_reader *v, struct err *err)
{
    uint64_t chunks = (v->s->n_records - 1) / CHUNK + 1;
    uint32_t n = 0, n_threads = v->opts->threads > 0 ? v->opts->threads : data_cores();
    pthread_t *threads;
    int rc = 0;

    if (n_threads > chunks)
        n_threads = (uint32_t)chunks;
    threads = calloc(n_threads, sizeof(*threads));
    if (threads == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    while (rc == 0 && n + 1 < n_threads) {
        rc = thread_start(&threads[n], "reads the lengths of records", work, v, err);
        if (rc == 0)
            n++;
    }
    if (rc == 0)
        work(v);
    else
        atomic_store(&v->stop, true);
    while (n > 0)
        pthread_join(threads[--n], NULL);
    free(threads);
    if (rc == 0 && v->rc < 0) {
        rc = v->rc;
        if (err != NULL)
            *err = v->err;
    }
    return rc;
}

/* ---- the kept result ---- */

/* Computes the key of the result: the hash of everything that determines the lengths, which are the
 * files, the features and the handling of bad records. */
static int key_of(const struct data_set *s, uint8_t key[DIGEST_BYTES], struct err *err)
{
    struct buf text = { 0 };
    char path[PATH_MAX];
    int rc = 0;

    buf_printf(&text, "%s %d %d '%c' %s\n", s->source->name, s->skip_bad, s->columns.has_header,
               s->columns.delimiter, s->features[s->layout.pack_by].name);
    for (uint32_t i = 0; i < s->n_features; i++) {
        const struct data_feature *f = &s->features[i];

        buf_json(&text, f->name);
        buf_json(&text, f->column != NULL ? f->column : "");
        buf_printf(&text, " %d %d %d %zu %zu\n", f->stored, f->derived, f->truncate,
                   s->layout.elements[i], s->layout.inner[i]);
    }
    for (uint32_t i = 0; rc == 0 && i < s->n_files; i++) {
        const struct data_file *f = &s->files[i];

        if (realpath(f->path, path) == NULL)
            rc = err_sys(err, errno, "find '%s'", f->path);
        buf_json(&text, path);
        buf_printf(&text, " %" PRIu64 " %" PRId64 " %" PRIu64 "\n", f->bytes, f->mtime_ns,
                   f->n_records);
    }
    if (rc == 0 && text.failed)
        rc = err_set(err, ERR_NOMEM, "out of memory");
    if (rc == 0)
        digest_sha256(text.data, text.len, key);
    buf_fini(&text);
    return rc;
}

static bool load_kept(struct data_set *s, const char *name, const uint8_t key[DIGEST_BYTES],
                      uint32_t *lengths)
{
    uint64_t n = s->n_records,
             most = s->layout.elements[s->layout.pack_by] / s->layout.inner[s->layout.pack_by];
    size_t head = sizeof(uint64_t) + DIGEST_BYTES, body = head + n * sizeof(*lengths);
    uint64_t magic = KEPT_MAGIC;
    struct buf data = { 0 };
    uint32_t crc;
    bool ok = fs_read(name, body + sizeof(crc), &data, NULL) == 0 && data.len == body + sizeof(crc);

    if (ok) {
        memcpy(&crc, data.data + body, sizeof(crc));
        ok = memcmp(data.data, &magic, sizeof(magic)) == 0 &&
             memcmp(data.data + sizeof(magic), key, DIGEST_BYTES) == 0 &&
             crc == crc32c(0, data.data, body);
    }
    if (ok)
        memcpy(lengths, data.data + head, n * sizeof(*lengths));
    for (uint64_t r = 0; ok && r < n; r++)
        ok = lengths[r] <= most || lengths[r] == DATA_SKIPPED;
    for (uint64_t r = 0; ok && r < n; r++) /* counted, but not reported again */
        if (lengths[r] == DATA_SKIPPED)
            atomic_fetch_add(&s->n_skipped, 1);
    buf_fini(&data);
    return ok;
}

static int save_kept(const char *name, const uint8_t key[DIGEST_BYTES], uint64_t n,
                     const uint32_t *lengths, struct err *err)
{
    uint64_t magic = KEPT_MAGIC;
    struct buf data = { 0 };
    uint32_t crc;
    int rc;

    buf_add(&data, &magic, sizeof(magic));
    buf_add(&data, key, DIGEST_BYTES);
    buf_add(&data, lengths, n * sizeof(*lengths));
    crc = crc32c(0, data.data, data.len);
    buf_add(&data, &crc, sizeof(crc));
    rc = data.failed ? err_set(err, ERR_NOMEM, "out of memory")
                     : fs_replace(name, data.data, data.len, err);
    buf_fini(&data);
    return rc < 0 ? err_wrap(err, rc, "keep the lengths of records") : 0;
}

int data_record_lengths(struct data_set *s, const struct data_opts *opts, uint32_t *lengths,
                        struct err *err)
{
    struct length_reader v = {
        .s = s, .opts = opts, .lengths = lengths, .lock = PTHREAD_MUTEX_INITIALIZER
    };
    char hex[DIGEST_HEX_BYTES], file[64], *name = NULL;
    uint8_t key[DIGEST_BYTES];
    bool keep = opts->origin.index_directory != NULL;
    int rc = 0;

    for (uint32_t i = 0; i < s->n_files; i++) {
        v.bytes_all += s->files[i].bytes;
        keep = keep && !s->files[i].pinned;
    }
    if (keep) {
        rc = key_of(s, key, err);
        if (rc < 0)
            return rc;
        digest_hex(key, hex);
        snprintf(file, sizeof(file), "%.16s.lengths", hex);
        name = fs_join(opts->origin.index_directory, file);
        if (name == NULL)
            return err_set(err, ERR_NOMEM, "out of memory");
    }
    if (name == NULL || !load_kept(s, name, key, lengths)) {
        rc = read_all(&v, err);
        if (rc == 0 && name != NULL)
            rc = save_kept(name, key, s->n_records, lengths, err);
    }
    pthread_mutex_destroy(&v.lock);
    free(name);
    return rc;
}
