/* sample.c - decodes one record, or the records of a pack, to a sample: read, parse, concatenate,
 * convert. With a cache the stored form of the sample is kept. The cache has a state per sample:
 * the thread that changes it from EMPTY to FILLING copies the sample to the cache; other threads
 * use the record that they read themselves until it is FULL. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "data/data_priv.h"
#include "data/image.h"

enum data_cached { EMPTY, FILLING, FULL };
enum { SKIP_MAX = 1000 }; /* consecutive bad records that are skipped */

/* Computes the derived features of a record whose items start at `at` in the sample and which is
 * segment `segment` (from 1). Segment 1 clears the features first. */
static void derive(struct data_decoder *d, uint8_t *room, uint64_t at, int64_t segment)
{
    struct data_set *s = d->s;

    for (uint32_t i = 0; i < s->n_features; i++) {
        int64_t *out = (int64_t *)(void *)(room + s->layout.stored_at[i]);
        uint64_t count, items;

        if (s->layout.of[i] == UINT32_MAX)
            continue;
        count = d->counts[s->layout.of[i]];
        items = count / s->layout.inner[s->layout.of[i]];
        if (segment == 1)
            memset(out, 0, s->layout.stored_size[i]);
        if (s->features[i].derived == DATA_LENGTH)
            *out += (int64_t)count;
        else
            for (uint64_t k = 0; k < items; k++)
                out[at + k] = s->features[i].derived == DATA_SEGMENT ? segment : (int64_t)k;
        d->stored[i] = out;
    }
}

/* Reads a sample that is one record. */
static int from_record(struct data_decoder *d, uint64_t record, uint64_t last, struct err *err)
{
    struct data_set *s = d->s;
    int rc = data_read_record(d, record, last, err);

    for (uint32_t i = 0; rc == 0 && i < s->n_features; i++)
        if (s->layout.rows_by[i] != UINT32_MAX && data_pad_rows(d, i, err) < 0)
            rc = data_wrap_record(s, record, 0, ERR_INPUT, err);
    for (uint32_t i = 0; rc == 0 && i < s->n_features; i++)
        if (s->features[i].pad && s->layout.of[i] == UINT32_MAX &&
            s->layout.rows_by[i] == UINT32_MAX && d->counts[i] < s->layout.elements[i])
            data_pad(&s->features[i], d->room + s->layout.stored_at[i], d->counts[i],
                     s->layout.elements[i]);
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
        size_t bytes = s->layout.inner[i] * tensor_dtype_bytes(s->features[i].stored);

        if (s->layout.of[i] == UINT32_MAX)
            memcpy(d->pack + s->layout.stored_at[i] + *at * bytes, d->stored[i], items * bytes);
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
            rc = append(d, &at, segment, &why) < 0 ? data_wrap_record(s, *record, 0, why.code, &why)
                                                   : 0;
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
        uint8_t *room = d->pack + s->layout.stored_at[i];

        if (s->layout.of[i] == UINT32_MAX)
            data_pad(&s->features[i], room, at * s->layout.inner[i], s->layout.elements[i]);
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
    uint8_t *sample = s->cache.samples + number * s->layout.stored_bytes;
    unsigned char empty = EMPTY;

    if (!atomic_compare_exchange_strong(&s->cache.states[number], &empty, FILLING))
        return;
    for (uint32_t i = 0; i < s->n_features; i++) {
        if (!s->features[i].encoded)
            memcpy(sample + s->layout.stored_at[i], d->stored[i], s->layout.stored_size[i]);
        else if (!cache_bytes(sample + s->layout.stored_at[i], d->stored[i]))
            return; /* stays FILLING: the sample is always read from the file */
    }
    atomic_store_explicit(&s->cache.states[number], FULL, memory_order_release);
}

static void from_cache(struct data_decoder *d, uint64_t sample)
{
    struct data_set *s = d->s;

    for (uint32_t i = 0; i < s->n_features; i++)
        d->stored[i] = s->cache.samples + sample * s->layout.stored_bytes + s->layout.stored_at[i];
}

static double number_at(enum tensor_dtype type, const void *x, size_t i)
{
    switch (type) {
    case TENSOR_I64:
        return (double)((const int64_t *)x)[i];
    case TENSOR_I32:
        return ((const int32_t *)x)[i];
    case TENSOR_F32:
        return (double)((const float *)x)[i];
    default:
        return ((const uint8_t *)x)[i];
    }
}

/* Checks the numbers of feature i of a sample in the batch. */
static int check_range(const struct data_set *s, uint32_t i, const void *x, struct err *err)
{
    const struct data_range *r = &s->ranges[i];

    for (size_t k = 0; k < s->layout.elements[i]; k++) {
        double v = number_at(s->features[i].fed, x, k);

        if (!(v >= r->least && v <= r->greatest) && !(r->has_other && v == r->other)) /* NaN too */
            return err_set(err, ERR_INPUT,
                           "feature '%s': value %zu is %.17g, expected %.17g to %.17g (%s)",
                           s->features[i].name, k, v, r->least, r->greatest, r->what);
    }
    return 0;
}

static int decode_one(struct data_decoder *d, const struct data_sample_key *draw, uint64_t last,
                      void *const *batch, size_t at, struct err *err)
{
    struct data_set *s = d->s;
    uint64_t sample = draw->sample;
    int rc = 0;

    if (s->cache.samples != NULL &&
        atomic_load_explicit(&s->cache.states[sample], memory_order_acquire) == FULL) {
        from_cache(d, sample);
    } else {
        rc = s->packs != NULL ? from_pack(d, sample, err) : from_record(d, sample, last, err);
        if (rc < 0)
            return rc;
        if (s->cache.samples != NULL)
            cache_sample(d, sample);
    }
    for (uint32_t i = 0; rc == 0 && i < s->n_features; i++) {
        void *out = (uint8_t *)batch[i] + at * s->layout.fed_bytes[i];

        rc = d->convert[i] == NULL ? image_preprocess(d->image, i, draw, d->stored[i], out, err)
                                   : d->convert[i]->run(&s->features[i], s->layout.elements[i],
                                                        d->stored[i], out, err);
        if (rc == 0 && s->ranges[i].what != NULL)
            rc = check_range(s, i, out, err);
        if (rc < 0 && s->packs == NULL)
            return data_wrap_record(s, sample, s->n_members > 1 ? i : 0, rc, err);
    }
    return rc < 0 ? err_wrap(err, rc, "sample %" PRIu64, sample) : 0;
}

/* A bad sample is replaced by the next good sample of the set, which is the same for every
 * reader. */
int data_decode(struct data_decoder *d, const struct data_sample_key *draw, uint64_t last,
                void *const *batch, size_t at, uint64_t *used, struct err *err)
{
    struct data_set *s = d->s;
    struct data_sample_key now = *draw;
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
