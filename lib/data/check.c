/* check.c - records that all tasks compare while steps read a set, and the place of a record.
 *
 * What content.c samples of a large set of a format whose index does not read the content, .npy and tokens, is compared
 * record by record: every `every` steps all tasks read the same record, in the order of a permutation of all records. */
#include <inttypes.h>
#include <stdio.h>

#include "base/crc32c.h"
#include "base/rng.h"
#include "data/data_priv.h"

enum { CHECK_SHARE = 128 /* of so many records that a replica reads, one is compared */ };

uint64_t data_check_every(const struct data_set *s, uint32_t global_batch, uint32_t replicas)
{
    if (s->source->reads_content || s->bytes <= DATA_WHOLE_BYTES)
        return 0;
    return ((uint64_t)CHECK_SHARE * replicas - 1) / global_batch + 1;
}

static uint64_t checked_record(const struct data_set *s, uint64_t step, uint64_t every)
{
    uint64_t number = step / every, n = s->n_records;

    return rng_permute(s->check_seed, number / n, n, number % n);
}

int data_check_record(struct data_decoder *d, uint64_t step, uint64_t every, uint32_t *out,
                      struct err *err)
{
    struct data_set *s = d->s;
    uint64_t record = checked_record(s, step, every);
    uint32_t file = data_file_of(s, record), crc = 0;
    int rc;

    for (uint32_t m = 0; m < s->n_members; m++) {
        uint64_t i = record - s->files[file].first;
        const uint8_t *bytes;
        size_t n;

        atomic_store_explicit(&d->reading, file + m + 1, memory_order_relaxed);
        rc = data_window_record(s, &d->windows[m], file + m, i, i, &d->retry, &bytes, &n, err);
        atomic_store_explicit(&d->reading, 0, memory_order_relaxed);
        if (rc < 0)
            return data_wrap_record(s, record, m, rc, err);
        crc = crc32c(crc, bytes, n);
    }
    *out = (crc & 0xffffff) + 1;
    return 0;
}

/* feature: whose file is named, where each feature has its own; DATA_ANY_FEATURE: the first. */
static void record_place(const struct data_set *s, uint64_t record, uint32_t feature, char *out,
                         size_t room)
{
    const struct data_file *f = &s->files[data_file_of(s, record)];
    bool is_known = feature < s->n_members;

    snprintf(out, room, "record %" PRIu64 " of '%s'%s", record - f->first,
             s->n_members > 1 && is_known ? f[feature].origin : f->origin,
             s->n_members > 1 && !is_known ? " or of the arrays of the other features" : "");
}

void data_check_place(const struct data_set *s, uint64_t step, uint64_t every, char *out,
                      size_t room)
{
    record_place(s, checked_record(s, step, every), DATA_ANY_FEATURE, out, room);
}

void data_sample_place(const struct data_set *s, uint64_t sample, uint32_t feature, char *out,
                       size_t room)
{
    const struct data_packs *p = s->packs;
    uint64_t n = p != NULL ? p->starts[sample + 1] - p->starts[sample] : 1;
    int used =
        n > 1 ? snprintf(out, room, "one of %" PRIu64 " packed records, the first of which is ", n)
              : 0;

    if ((size_t)used < room)
        record_place(s, p != NULL ? p->records[p->starts[sample]] : sample, feature, out + used,
                     room - (size_t)used);
}
