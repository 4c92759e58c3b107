/* set.c - creates and frees a data_set and its cache. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/check.h"
#include "base/err.h"
#include "base/text.h"
#include "data/data_priv.h"
#include "data/example.h"
#include "data/order.h"

/* ---- files ---- */

/* Returns half of the descriptor limit, which leaves descriptors for sockets and checkpoints. */
static uint32_t open_max(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur / 2 > 65536)
        return 65536;
    return (uint32_t)(limit.rlim_cur / 2);
}

/* Returns the memory for encoded images, which are cached in encoded form: about the size of the
 * files. */
static uint64_t encoded_bytes(const struct data_set *s)
{
    uint64_t bytes = 0;
    bool any = false;

    for (uint32_t i = 0; i < s->n_features; i++)
        any = any || s->features[i].encoded;
    for (uint32_t i = 0; any && i < s->n_files; i++)
        bytes += s->files[i].bytes;
    return bytes;
}

static int make_cache(struct data_set *s, struct err *err)
{
    uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    char need[32], have[32];
    uint64_t n = data_samples(s);
    size_t bytes;

    if (__builtin_mul_overflow(n, s->layout.stored_bytes + 1, &bytes) ||
        __builtin_add_overflow(bytes, encoded_bytes(s), &bytes))
        bytes = SIZE_MAX;
    if (bytes <= machine) { /* pages are allocated as samples are cached */
        s->cache.samples = calloc(n, s->layout.stored_bytes);
        s->cache.states = calloc(n, sizeof(*s->cache.states));
        if (s->cache.samples != NULL && s->cache.states != NULL)
            return 0;
    }
    text_bytes(need, sizeof(need), bytes);
    text_bytes(have, sizeof(have), machine);
    return err_set(err, ERR_NOMEM,
                   "%" PRIu64 " samples of %zu bytes need %s of memory, and this machine has %s: "
                   "do not cache them",
                   n, s->layout.stored_bytes, need, have);
}

/* ---- the set ---- */

int data_open(const struct data_opts *opts, struct data_set **out, struct err *err)
{
    struct data_set *s = calloc(1, sizeof(*s));
    int rc;

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "data set: out of memory");
    s->open.max = open_max();
    s->source = data_source_of(opts->origin.format);
    s->n_members = s->source->has_members ? opts->n_features : 1;
    s->columns.has_header = opts->origin.csv_header;
    s->columns.delimiter = opts->origin.csv_delimiter != 0 ? opts->origin.csv_delimiter : ',';
    s->check_seed = opts->check_seed;
    s->training = opts->training;
    s->skip_bad = opts->origin.skip_bad;
    s->retry = (struct data_retry){ .deadline_ms = opts->deadline_ms,
                                    .cancel = opts->cancel,
                                    .on_warning = opts->on_warning,
                                    .arg = opts->arg };
    rc = data_copy_features(s, opts, err);
    if (rc == 0) {
        s->ranges = arena_array(&s->mem, s->n_features, sizeof(*s->ranges));
        if (s->ranges == NULL)
            rc = err_set(err, ERR_NOMEM, "features: out of memory");
    }
    if (rc == 0)
        rc = data_names_new(s->features, s->n_features, &s->names, err);
    if (rc == 0)
        rc = data_find_files(s, opts, err);
    if (rc == 0)
        rc = data_index(opts, s, err);
    if (rc == 0)
        rc = data_number_records(s, err);
    if (rc == 0 && opts->origin.pack != NULL)
        rc = data_pack(s, opts, err);
    if (rc == 0 && opts->origin.cache == DATA_CACHE_MEMORY)
        rc = make_cache(s, err);
    s->retry.cancel = NULL; /* cancels data_open() only */
    if (rc < 0) {
        data_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

static void free_cache(struct data_set *s)
{
    for (uint32_t i = 0; s->cache.samples != NULL && i < s->n_features; i++) {
        if (!s->features[i].encoded)
            continue;
        for (uint64_t r = 0; r < s->n_records; r++) {
            struct data_bytes b;

            memcpy(&b, s->cache.samples + r * s->layout.stored_bytes + s->layout.stored_at[i],
                   sizeof(b));
            free((void *)(uintptr_t)b.at); /* NULL if the sample is not cached */
        }
    }
    free(s->cache.samples);
    free(s->cache.states);
}

void data_free(struct data_set *s)
{
    if (s == NULL)
        return;
    free_cache(s);
    data_free_files(s);
    data_packs_free(s->packs);
    data_names_free(s->names);
    arena_fini(&s->mem);
    free(s);
}

void data_set_range(struct data_set *s, uint32_t i, const struct data_range *range)
{
    CHECK(i < s->n_features);
    s->ranges[i] = *range;
}

uint64_t data_records(const struct data_set *s)
{
    return s->n_records;
}

/* Counts groups: for .npy the files of all features are one group. */
uint32_t data_files(const struct data_set *s)
{
    return s->n_files / s->n_members;
}

const char *data_file_name(const struct data_set *s, uint32_t i, uint64_t *records)
{
    const struct data_file *f = &s->files[i * s->n_members];

    *records = f->n_records;
    return f->origin;
}

uint64_t data_skipped(const struct data_set *s)
{
    return atomic_load(&s->n_skipped);
}

const char *data_digest(const struct data_set *s)
{
    return s->digest;
}

uint64_t data_steps_per_epoch(const struct data_set *s, uint32_t global_batch, bool pad)
{
    struct data_order order = {
        .n = data_samples(s), .global_batch = global_batch, .lanes = 1, .pad = pad
    };

    return data_order_steps(&order);
}

int data_sample(struct data_set *s, uint64_t sample, void *const *out, struct err *err)
{
    struct data_sample_key draw = { .sample = sample };
    struct data_decoder *d;
    uint64_t used;
    int rc;

    CHECK(sample < data_samples(s));
    rc = data_decoder_new(s, &d, err);
    if (rc < 0)
        return rc;
    rc = data_decode(d, &draw, sample, out, 0, &used, err);
    data_decoder_free(d);
    return rc;
}
