/* sample.c - decodes one record, or the records of a pack, to a sample: read, parse, concatenate,
 * convert. With a cache the stored form of the sample is kept. The cache has a state per sample:
 * the thread that changes it from EMPTY to FILLING copies the sample to the cache; other threads
 * use the record that they read themselves until it is FULL. */
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
enum { SKIP_MAX = 1000 }; /* consecutive bad records that are skipped */

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
        d->fields = calloc(s->n_columns + 1, sizeof(*d->fields));
        d->room = malloc(s->stored_bytes);
        d->pack = malloc(s->stored_bytes);
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

/* Computes the derived features of a record whose items start at `at` in the sample and which is
 * segment `segment` (from 1). Segment 1 clears the features first. */
static void derive(struct data_decoder *d, uint8_t *room, uint64_t at, int64_t segment)
{
    struct data_set *s = d->s;

    for (uint32_t i = 0; i < s->n_features; i++) {
        int64_t *out = (int64_t *)(void *)(room + s->stored_at[i]);
        uint64_t count, items;

        if (s->of[i] == UINT32_MAX)
            continue;
        count = d->counts[s->of[i]];
        items = count / s->inner[s->of[i]];
        if (segment == 1)
            memset(out, 0, s->stored_size[i]);
        if (s->features[i].derived == DATA_LENGTH)
            *out += (int64_t)count;
        else
            for (uint64_t k = 0; k < items; k++)
                out[at + k] = s->features[i].derived == DATA_SEGMENT ? segment : (int64_t)k;
        d->stored[i] = out;
    }
}

int data_at_record(const struct data_set *s, uint64_t record, int rc, struct err *err)
{
    const struct data_file *f = &s->files[data_file_of(s, record)];
    uint64_t from, to;

    record -= f->first;
    data_record_range(f, record, &from, &to);
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
    int rc = 0;

    for (uint32_t m = 0; rc == 0 && m < s->n_members; m++) {
        atomic_store_explicit(&d->reading, file + m + 1, memory_order_relaxed);
        rc = data_window_record(s, &d->windows[m], file + m, record - first, last - first,
                                &d->retry, &bytes, &n, err);
        atomic_store_explicit(&d->reading, 0, memory_order_relaxed);
        if (rc == 0)
            rc = s->source->parse(d, m, bytes, n, err);
    }
    return rc < 0 ? data_at_record(s, record, rc, err) : 0;
}

/* Reads a sample that is one record. */
static int from_record(struct data_decoder *d, uint64_t record, uint64_t last, struct err *err)
{
    struct data_set *s = d->s;
    int rc = data_read_record(d, record, last, err);

    for (uint32_t i = 0; rc == 0 && i < s->n_features; i++)
        if (s->rows_by[i] != UINT32_MAX && data_place_rows(d, i, err) < 0)
            rc = data_at_record(s, record, ERR_INPUT, err);
    for (uint32_t i = 0; rc == 0 && i < s->n_features; i++)
        if (s->features[i].pad && s->of[i] == UINT32_MAX && s->rows_by[i] == UINT32_MAX &&
            d->counts[i] < s->elements[i])
            data_pad(&s->features[i], d->room + s->stored_at[i], d->counts[i], s->elements[i]);
    if (rc == 0)
        derive(d, d->room, 0, 1);
    return rc;
}

/* Appends the current record to the pack at item *at. */
static int append(struct data_decoder *d, uint64_t *at, int64_t segment, struct err *err)
{
    struct data_set *s = d->s;
    uint64_t items;
    int rc = data_count_items(d, &items, err);

    if (rc == 0 && items > s->packs->length - *at)
        rc = err_set(err, ERR_CORRUPT,
                     "%" PRIu64 " items do not fit into their planned pack: the file "
                     "changed",
                     items);
    for (uint32_t i = 0; rc == 0 && i < s->n_features; i++) {
        size_t bytes = s->inner[i] * tensor_dtype_bytes(s->features[i].stored);

        if (s->of[i] == UINT32_MAX)
            memcpy(d->pack + s->stored_at[i] + *at * bytes, d->stored[i], items * bytes);
    }
    if (rc < 0)
        return rc;
    derive(d, d->pack, *at, segment);
    *at += items;
    return 0;
}

/* Reads a sample that is a pack of records. A bad record that is skipped leaves no gap. */
static int from_pack(struct data_decoder *d, uint64_t pack, struct err *err)
{
    struct data_set *s = d->s;
    const uint32_t *record = s->packs->records + s->packs->starts[pack];
    const uint32_t *end = s->packs->records + s->packs->starts[pack + 1];
    int64_t segment = 1;
    uint64_t at = 0;
    struct err why;
    int rc = 0;

    for (; record < end; record++) {
        rc = data_read_record(d, *record, *record, &why);
        if (rc == 0)
            rc = append(d, &at, segment, &why) < 0 ? data_at_record(s, *record, why.code, &why) : 0;
        if (rc == 0)
            segment++;
        else if (!data_skip(s, rc, &why))
            break;
    }
    if (record == end && segment > 1)
        rc = 0;
    if (rc < 0) { /* a record failed, or all records were skipped */
        if (err != NULL)
            *err = why;
        return rc;
    }
    for (uint32_t i = 0; i < s->n_features; i++) {
        uint8_t *room = d->pack + s->stored_at[i];

        if (s->of[i] == UINT32_MAX)
            data_pad(&s->features[i], room, at * s->inner[i], s->elements[i]);
        d->stored[i] = room;
    }
    return 0;
}

/* Copies an encoded image to the cache; false: out of memory. */
static bool cache_bytes(uint8_t *at, const struct data_bytes *from)
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

static void cache_sample(struct data_decoder *d, uint64_t number)
{
    struct data_set *s = d->s;
    uint8_t *sample = s->cache + number * s->stored_bytes;
    unsigned char empty = EMPTY;

    if (!atomic_compare_exchange_strong(&s->cached[number], &empty, FILLING))
        return;
    for (uint32_t i = 0; i < s->n_features; i++) {
        if (!s->features[i].encoded)
            memcpy(sample + s->stored_at[i], d->stored[i], s->stored_size[i]);
        else if (!cache_bytes(sample + s->stored_at[i], d->stored[i]))
            return; /* stays FILLING: the sample is always read from the file */
    }
    atomic_store_explicit(&s->cached[number], FULL, memory_order_release);
}

static void from_cache(struct data_decoder *d, uint64_t sample)
{
    struct data_set *s = d->s;

    for (uint32_t i = 0; i < s->n_features; i++)
        d->stored[i] = s->cache + sample * s->stored_bytes + s->stored_at[i];
}

static int decode_one(struct data_decoder *d, const struct data_draw *draw, uint64_t last,
                      void *const *batch, size_t at, struct err *err)
{
    struct data_set *s = d->s;
    uint64_t sample = draw->sample;
    int rc = 0;

    if (s->cache != NULL &&
        atomic_load_explicit(&s->cached[sample], memory_order_acquire) == FULL) {
        from_cache(d, sample);
    } else {
        rc = s->packs != NULL ? from_pack(d, sample, err) : from_record(d, sample, last, err);
        if (rc < 0)
            return rc;
        if (s->cache != NULL)
            cache_sample(d, sample);
    }
    for (uint32_t i = 0; rc == 0 && i < s->n_features; i++) {
        void *out = (uint8_t *)batch[i] + at * s->fed_bytes[i];

        rc = d->convert[i] == NULL
                 ? image_run(d->image, i, draw, d->stored[i], out, err)
                 : d->convert[i]->run(&s->features[i], s->elements[i], d->stored[i], out, err);
    }
    if (rc < 0 && s->packs != NULL)
        return err_wrap(err, rc, "sample %" PRIu64, sample);
    return rc < 0 ? data_at_record(s, sample, rc, err) : 0;
}

/* Reports the first four bad records, then the 16th, 64th, 256th ... */
bool data_skip(struct data_set *s, int rc, const struct err *why)
{
    char text[ERR_TEXT_BYTES];
    uint64_t n;

    if (!s->skip_bad || (rc != ERR_CORRUPT && rc != ERR_INPUT))
        return false;
    n = atomic_fetch_add(&s->n_skipped, 1) + 1;
    if (s->retry.on_trouble == NULL || (n > 4 && ((n & (n - 1)) != 0 || __builtin_ctzll(n) % 2)))
        return true;
    snprintf(text, sizeof(text), "bad record skipped (%" PRIu64 " so far): %s", n, why->text);
    s->retry.on_trouble(s->retry.arg, text);
    return true;
}

/* A bad sample is replaced by the next good sample of the set, which is the same for every
 * reader. */
int data_decode(struct data_decoder *d, const struct data_draw *draw, uint64_t last,
                void *const *batch, size_t at, uint64_t *used, struct err *err)
{
    struct data_set *s = d->s;
    struct data_draw now = *draw;
    uint64_t n = data_samples(s);
    struct err why;
    int rc = decode_one(d, &now, last, batch, at, &why);

    for (uint32_t i = 0; rc < 0 && data_skip(s, rc, &why) && i < SKIP_MAX && i + 1 < n; i++) {
        now.sample = (now.sample + 1) % n;
        rc = decode_one(d, &now, now.sample, batch, at, &why);
    }
    *used = now.sample;
    if (rc < 0 && err != NULL)
        *err = why;
    return rc;
}
