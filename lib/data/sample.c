/* sample.c - a record becomes a sample: read, taken apart, converted. With a cache the stored form is
 * kept, one byte of state a sample: whoever turns it from EMPTY to FILLING copies its sample in;
 * others who come meanwhile use their own reading of the record. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "data/csv.h"
#include "data/data_priv.h"
#include "data/example.h"
#include "data/image.h"

enum data_cached { EMPTY, FILLING, FULL };
enum { SKIP_MAX = 1000 }; /* bad records in a row */

static int make_tools(struct data_decoder *d, struct err *err)
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
        d->patience = s->patience;
        d->windows = calloc(s->n_members, sizeof(*d->windows));
        d->found = calloc(s->n_features, sizeof(*d->found));
        d->stored = calloc(s->n_features, sizeof(*d->stored));
        d->counts = calloc(s->n_features, sizeof(*d->counts));
        d->convert = calloc(s->n_features, sizeof(*d->convert));
        d->fields = calloc(s->n_columns + 1, sizeof(*d->fields));
        d->room = malloc(s->stored_bytes);
    }
    if (d == NULL || d->windows == NULL || d->found == NULL || d->stored == NULL ||
        d->counts == NULL || d->convert == NULL || d->fields == NULL || d->room == NULL) {
        data_decoder_free(d);
        return err_set(err, ERR_NOMEM, "decode samples: out of memory");
    }
    rc = make_tools(d, err);
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
    free(d);
}

/* Features that are not stored: how many values another one had. */
static void set_lengths(struct data_decoder *d)
{
    struct data_set *s = d->s;

    for (uint32_t i = 0; i < s->n_features; i++) {
        uint8_t *room = d->room + s->stored_at[i];

        if (s->length_of[i] == UINT32_MAX)
            continue;
        memcpy(room, &d->counts[s->length_of[i]], sizeof(*d->counts));
        d->stored[i] = room;
    }
}

/* d->stored[] from the record. */
static int from_file(struct data_decoder *d, uint64_t record, uint64_t last, struct err *err)
{
    struct data_set *s = d->s;
    uint32_t file = data_file_of(s, record);
    uint64_t first = s->files[file].first;
    const uint8_t *bytes;
    size_t n;
    int rc = 0;

    for (uint32_t m = 0; rc == 0 && m < s->n_members; m++) {
        atomic_store_explicit(&d->reading, file + m + 1, memory_order_relaxed);
        rc = data_window_record(s, &d->windows[m], file + m, record - first, last - first,
                                &d->patience, &bytes, &n, err);
        atomic_store_explicit(&d->reading, 0, memory_order_relaxed);
        if (rc == 0)
            rc = s->source->parse(d, m, bytes, n, err);
    }
    if (rc == 0)
        set_lengths(d);
    return rc;
}

/* Bytes of an encoded image; NULL: out of memory, then the sample is not kept. */
static bool keep_bytes(uint8_t *at, const struct data_bytes *from)
{
    struct data_bytes copy = { NULL, from->n };
    uint8_t *bytes = malloc(from->n > 0 ? from->n : 1);

    if (bytes == NULL)
        return false;
    memcpy(bytes, from->at, from->n);
    copy.at = bytes;
    memcpy(at, &copy, sizeof(copy));
    return true;
}

static void keep(struct data_decoder *d, uint64_t record)
{
    struct data_set *s = d->s;
    uint8_t *sample = s->cache + record * s->stored_bytes;
    unsigned char empty = EMPTY;

    if (!atomic_compare_exchange_strong(&s->cached[record], &empty, FILLING))
        return;
    for (uint32_t i = 0; i < s->n_features; i++) {
        if (!s->features[i].encoded)
            memcpy(sample + s->stored_at[i], d->stored[i], s->stored_size[i]);
        else if (!keep_bytes(sample + s->stored_at[i], d->stored[i]))
            return; /* for ever FILLING: everybody reads the file */
    }
    atomic_store_explicit(&s->cached[record], FULL, memory_order_release);
}

static void from_cache(struct data_decoder *d, uint64_t record)
{
    struct data_set *s = d->s;

    for (uint32_t i = 0; i < s->n_features; i++)
        d->stored[i] = s->cache + record * s->stored_bytes + s->stored_at[i];
}

/* Where a record is, in front of what is wrong with it. */
static int at_record(const struct data_set *s, uint64_t record, int rc, struct err *err)
{
    const struct data_file *f = &s->files[data_file_of(s, record)];
    uint64_t from, to;

    record -= f->first;
    data_record_place(f, record, &from, &to);
    return err_wrap(err, rc, "'%s': record %" PRIu64 " at offset %" PRIu64, f->origin, record, from);
}

static int decode_one(struct data_decoder *d, const struct data_draw *draw, uint64_t last,
                      void *const *batch, size_t at, struct err *err)
{
    struct data_set *s = d->s;
    uint64_t record = draw->record;
    int rc = 0;

    if (s->cache != NULL &&
        atomic_load_explicit(&s->cached[record], memory_order_acquire) == FULL) {
        from_cache(d, record);
    } else {
        rc = from_file(d, record, last, err);
        if (rc == 0 && s->cache != NULL)
            keep(d, record);
    }
    for (uint32_t i = 0; rc == 0 && i < s->n_features; i++) {
        void *out = (uint8_t *)batch[i] + at * s->fed_bytes[i];

        rc = d->convert[i] == NULL
                 ? image_run(d->image, i, draw, d->stored[i], out, err)
                 : d->convert[i]->run(&s->features[i], s->elements[i], d->stored[i], out, err);
    }
    return rc < 0 ? at_record(s, record, rc, err) : 0;
}

/* The first ones, then the 16th, 64th, 256th ... */
static void tell_skipped(struct data_set *s, const struct err *why)
{
    uint64_t n = atomic_fetch_add(&s->n_skipped, 1) + 1;
    char text[ERR_TEXT_BYTES];

    if (s->patience.on_trouble == NULL || (n > 4 && ((n & (n - 1)) != 0 || __builtin_ctzll(n) % 2)))
        return;
    snprintf(text, sizeof(text), "bad record skipped (%" PRIu64 " so far): %s", n, why->text);
    s->patience.on_trouble(s->patience.arg, text);
}

/* A bad record's place is taken by the next good one of the set, whoever reads it and when. */
int data_decode(struct data_decoder *d, const struct data_draw *draw, uint64_t last,
                void *const *batch, size_t at, uint64_t *used, struct err *err)
{
    struct data_set *s = d->s;
    struct data_draw now = *draw;
    struct err why;
    int rc = decode_one(d, &now, last, batch, at, s->skip_bad ? &why : err);

    for (uint32_t i = 0; s->skip_bad && (rc == ERR_CORRUPT || rc == ERR_INPUT); i++) {
        tell_skipped(s, &why);
        if (i == SKIP_MAX || i + 1 >= s->n_records)
            break;
        now.record = (now.record + 1) % s->n_records;
        rc = decode_one(d, &now, now.record, batch, at, &why);
    }
    *used = now.record;
    if (rc < 0 && s->skip_bad && err != NULL)
        *err = why;
    return rc;
}
