/* decoder.c - the buffers with which one thread decodes samples, and the reading of one record into them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/err.h"
#include "data/csv.h"
#include "data/data_priv.h"
#include "data/example.h"
#include "data/image.h"

static int select_conversions(struct data_decoder *d, struct err *err)
{
    struct data_set *s = d->s;
    bool any = false;

    for (uint32_t i = 0; i < s->n_features; i++) {
        bool image = data_is_image(&s->features[i]);

        any = any || image;
        if (!image)
            d->convert[i] = data_convert_find(s->features[i].stored, s->features[i].fed);
    }
    return any ? image_new(s, &d->image, err) : 0;
}

int data_decoder_new(struct data_set *s, struct data_decoder **out, struct err *err)
{
    struct data_decoder *d = calloc(1, sizeof(*d));
    int rc;

    if (d != NULL) {
        d->s = s;
        d->retry = s->retry;
        d->windows = calloc(s->n_members, sizeof(*d->windows));
        d->found = calloc(s->n_features, sizeof(*d->found));
        d->stored = calloc(s->n_features, sizeof(*d->stored));
        d->counts = calloc(s->n_features, sizeof(*d->counts));
        d->convert = calloc(s->n_features, sizeof(*d->convert));
        d->fields = calloc(s->columns.n + 1, sizeof(*d->fields));
        d->room = malloc(s->layout.stored_bytes);
        d->pack = malloc(s->layout.stored_bytes);
    }
    if (d == NULL || d->windows == NULL || d->found == NULL || d->stored == NULL ||
        d->counts == NULL || d->convert == NULL || d->fields == NULL || d->room == NULL ||
        d->pack == NULL) {
        data_decoder_free(d);
        return err_set(err, ERR_NOMEM, "decode samples: out of memory");
    }
    rc = select_conversions(d, err);
    if (rc < 0) {
        data_decoder_free(d);
        return rc;
    }
    *out = d;
    return 0;
}

void data_decoder_free(struct data_decoder *d)
{
    if (d == NULL)
        return;
    for (uint32_t m = 0; d->windows != NULL && m < d->s->n_members; m++)
        data_window_fini(&d->windows[m]);
    image_free(d->image);
    free(d->windows);
    free(d->found);
    free(d->stored);
    free(d->counts);
    free(d->convert);
    free(d->fields);
    free(d->room);
    free(d->pack);
    free(d);
}

/* Returns the number of the line that contains offset `at`, from 1; 0: the file cannot be read. Reads the file up to `at`. */
static uint64_t line_at(const struct data_file *f, uint64_t at)
{
    enum { ROOM = 64 << 10 };
    uint64_t bytes, lines = 1, done = 0;
    int64_t mtime_ns;
    char *block = malloc(ROOM);
    int fd =
        f->pinned ? dup(atomic_load(&f->fd)) : data_file_open(f->path, &bytes, &mtime_ns, NULL);

    while (block != NULL && fd >= 0 && done < at) {
        size_t n = at - done < ROOM ? (size_t)(at - done) : ROOM;

        if (data_file_read(fd, f->path, block, n, done, NULL) < 0)
            break;
        for (size_t i = 0; i < n; i++)
            lines += block[i] == '\n';
        done += n;
    }
    free(block);
    if (fd >= 0)
        close(fd);
    return done == at && block != NULL && fd >= 0 ? lines : 0;
}

int data_wrap_record(const struct data_set *s, uint64_t record, uint32_t member, int rc,
                     struct err *err)
{
    uint32_t file = data_file_of(s, record);
    const struct data_file *f = &s->files[file + member];
    uint64_t from, to;

    record -= s->files[file].first;
    data_record_range(f, record, &from, &to);
    if (s->source->has_lines && !s->skip_bad) { /* not for each of many bad records */
        uint64_t line = line_at(f, from);

        if (line > 0)
            return err_wrap(err, rc, "'%s': line %" PRIu64 ": record %" PRIu64, f->origin, line,
                            record);
    }
    return err_wrap(err, rc, "'%s': record %" PRIu64 " at offset %" PRIu64, f->origin, record,
                    from);
}

int data_read_record(struct data_decoder *d, uint64_t record, uint64_t last, struct err *err)
{
    struct data_set *s = d->s;
    uint32_t file = data_file_of(s, record);
    uint64_t first = s->files[file].first;
    const uint8_t *bytes;
    size_t n;
    int rc;

    for (uint32_t m = 0; m < s->n_members; m++) {
        atomic_store_explicit(&d->reading, file + m + 1, memory_order_relaxed);
        rc = data_window_record(s, &d->windows[m], file + m, record - first, last - first,
                                &d->retry, &bytes, &n, err);
        atomic_store_explicit(&d->reading, 0, memory_order_relaxed);
        d->file = &s->files[file + m];
        if (rc == 0)
            rc = s->source->parse(d, m, bytes, n, err);
        if (rc < 0)
            return data_wrap_record(s, record, m, rc, err);
    }
    return 0;
}

/* Reports the first four bad records, then the 16th, 64th, 256th ... */
bool data_skip(struct data_set *s, int rc, const struct err *why)
{
    char text[ERR_TEXT_BYTES];
    uint64_t n;

    if (!s->skip_bad || (rc != ERR_CORRUPT && rc != ERR_INPUT))
        return false;
    n = atomic_fetch_add(&s->n_skipped, 1) + 1;
    if (s->retry.on_warning == NULL || (n > 4 && ((n & (n - 1)) != 0 || __builtin_ctzll(n) % 2)))
        return true;
    snprintf(text, sizeof(text), "bad record skipped (%" PRIu64 " so far): %s", n, why->text);
    s->retry.on_warning(s->retry.arg, text);
    return true;
}

int data_count_items(const struct data_decoder *d, uint64_t *items, struct err *err)
{
    const struct data_set *s = d->s;
    uint32_t by = s->layout.pack_by;

    *items = d->counts[by] / s->layout.inner[by];
    for (uint32_t i = 0; i < s->n_features; i++)
        if (s->layout.of[i] == UINT32_MAX && d->counts[i] != *items * s->layout.inner[i])
            return err_set(err, ERR_INPUT,
                           "feature '%s' has %" PRIu64 " values, expected %" PRIu64
                           " for the %" PRIu64
                           " items of feature '%s', by which records are packed",
                           s->features[i].name, d->counts[i], *items * s->layout.inner[i], *items,
                           s->features[by].name);
    return 0;
}
