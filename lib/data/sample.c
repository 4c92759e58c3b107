/* sample.c - a record becomes a sample: read, checked, taken apart, converted. With a cache the
 * stored form is kept, one byte of state a sample: whoever turns it from EMPTY to FILLING copies
 * its sample in; others who come meanwhile use their own reading of the record. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "data/data_priv.h"
#include "data/example.h"

enum data_cached { EMPTY, FILLING, FULL };

struct data_decoder {
    struct data_set *s;
    struct data_window window;
    struct data_entry *found;           /* [n_features] */
    const void **stored;                /* [n_features] the stored form of each, wherever it lies */
    uint8_t *room;                      /* stored_bytes, for what does not lie in the record */
    const struct data_convert **convert; /* [n_features] */
};

int data_decoder_new(struct data_set *s, struct data_decoder **out, struct err *err)
{
    struct data_decoder *d = calloc(1, sizeof(*d));

    if (d != NULL) {
        d->s = s;
        d->found = calloc(s->n_features, sizeof(*d->found));
        d->stored = calloc(s->n_features, sizeof(*d->stored));
        d->convert = calloc(s->n_features, sizeof(*d->convert));
        d->room = malloc(s->stored_bytes);
    }
    if (d == NULL || d->found == NULL || d->stored == NULL || d->convert == NULL ||
        d->room == NULL) {
        data_decoder_free(d);
        return err_set(err, ERR_NOMEM, "decode samples: out of memory");
    }
    for (uint32_t i = 0; i < s->n_features; i++)
        d->convert[i] = data_convert_find(s->features[i].stored, s->features[i].fed);
    *out = d;
    return 0;
}

void data_decoder_free(struct data_decoder *d)
{
    if (d == NULL)
        return;
    data_window_fini(&d->window);
    free(d->found);
    free(d->stored);
    free(d->convert);
    free(d->room);
    free(d);
}

/* d->stored[] from the record. */
static int from_file(struct data_decoder *d, uint64_t record, uint64_t run, struct err *err)
{
    struct data_set *s = d->s;
    const uint8_t *data;
    size_t n;
    int rc;

    rc = data_window_record(s, &d->window, record, run, &data, &n, err);
    if (rc == 0)
        rc = data_example_find(data, n, s->features, s->n_features, d->found, err);
    for (uint32_t i = 0; rc == 0 && i < s->n_features; i++)
        rc = data_example_read(&s->features[i], s->elements[i], &d->found[i],
                               d->room + s->stored_at[i], &d->stored[i], err);
    return rc;
}

static size_t stored_size(const struct data_set *s, uint32_t i)
{
    return s->elements[i] * tensor_dtype_bytes(s->features[i].stored);
}

static void keep(struct data_decoder *d, uint64_t record)
{
    struct data_set *s = d->s;
    uint8_t *sample = s->cache + record * s->stored_bytes;
    unsigned char empty = EMPTY;

    if (!atomic_compare_exchange_strong(&s->cached[record], &empty, FILLING))
        return;
    for (uint32_t i = 0; i < s->n_features; i++)
        memcpy(sample + s->stored_at[i], d->stored[i], stored_size(s, i));
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

    record -= f->first;
    return err_wrap(err, rc, "'%s': record %" PRIu64 " at offset %" PRIu64, f->path, record,
                    f->starts[record]);
}

int data_decode(struct data_decoder *d, uint64_t record, uint64_t run, void *const *batch,
                size_t at, struct err *err)
{
    struct data_set *s = d->s;
    int rc = 0;

    if (s->cache != NULL &&
        atomic_load_explicit(&s->cached[record], memory_order_acquire) == FULL) {
        from_cache(d, record);
    } else {
        rc = from_file(d, record, run, err);
        if (rc == 0 && s->cache != NULL)
            keep(d, record);
    }
    for (uint32_t i = 0; rc == 0 && i < s->n_features; i++)
        rc = d->convert[i]->run(&s->features[i], s->elements[i], d->stored[i],
                                (uint8_t *)batch[i] + at * s->fed_bytes[i], err);
    return rc < 0 ? at_record(s, record, rc, err) : 0;
}
