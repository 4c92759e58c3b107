/* source.c - the table of record formats. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/err.h"
#include "base/file_kind.h"
#include "data/data_priv.h"
#include "data/example.h"
#include "data/tfrecord.h"

enum { FRAME_BYTES = TFRECORD_HEAD_BYTES + TFRECORD_TAIL_BYTES };

/* ---- tfrecord ---- */

static int tfrecord_fits(const struct data_set *s, struct err *err)
{
    for (uint32_t i = 0; i < s->n_features; i++)
        if (data_is_token_type(s->features[i].stored))
            return data_refuse_feature(&s->features[i], "a TFRecord file",
                                       "an Example contains uint8 bytes, float32 and int64 lists",
                                       err);
    return 0;
}

static bool tfrecord_is_plain(const uint8_t *head, size_t n)
{
    uint64_t length;

    return n >= TFRECORD_HEAD_BYTES && tfrecord_head(head, UINT64_MAX, &length, NULL) == 0;
}

static int tfrecord_parse(struct data_decoder *d, uint32_t member, const uint8_t *bytes, size_t n,
                          struct err *err)
{
    struct data_set *s = d->s;
    uint64_t length = n - FRAME_BYTES, length_field = 0;
    int rc;

    (void)member;
    rc = tfrecord_head(bytes, DATA_RECORD_BYTES_MAX, &length_field, err);
    if (rc == 0 && length_field != length)
        rc = err_set(err, ERR_CORRUPT, "%" PRIu64 " bytes long, expected %" PRIu64, length_field,
                     length);
    if (rc == 0)
        rc = tfrecord_check(bytes + TFRECORD_HEAD_BYTES, length,
                            bytes + TFRECORD_HEAD_BYTES + length, err);
    if (rc == 0)
        rc = data_example_find(s->names, bytes + TFRECORD_HEAD_BYTES, length, d->found, err);
    for (uint32_t i = 0; rc == 0 && i < s->n_features; i++)
        if (s->features[i].derived == DATA_STORED)
            rc = data_example_read(&s->features[i], s->layout.elements[i], &d->found[i],
                                   d->room + s->layout.stored_at[i], &d->stored[i], &d->counts[i],
                                   err);
    return rc;
}

/* ---- tokens ---- */

static const char tokens_name[] = "tokens", labels_name[] = "labels";

static int tokens_fit(const struct data_set *s, struct err *err)
{
    for (uint32_t i = 0; i < s->n_features; i++) {
        const struct data_feature *f = &s->features[i];

        if (strcmp(f->name, tokens_name) != 0 && strcmp(f->name, labels_name) != 0)
            return data_refuse_feature(
                f, "a token file", "its features are 'tokens' and 'labels' (the following tokens)",
                err);
        if (!data_is_token_type(f->stored) || f->stored != s->features[0].stored)
            return data_refuse_feature(f, "a token file",
                                       "expected uint16 or uint32, the same for both", err);
        if (s->layout.elements[i] != s->layout.elements[0] || f->pad || f->truncate ||
            f->derived != DATA_STORED)
            return data_refuse_feature(f, "a token file",
                                       "tokens and labels must be windows of the same length", err);
    }
    return 0;
}

static bool has_labels(const struct data_set *s)
{
    for (uint32_t i = 0; i < s->n_features; i++)
        if (strcmp(s->features[i].name, labels_name) == 0)
            return true;
    return false;
}

/* Files that are not plain tokens are recognized by their first bytes, because any bytes are tokens. */
static int refuse_header(struct data_scan *w, struct err *err)
{
    static const char *const llm_c[] = { "\x88\xd8\x34\x01\x01\0\0\0", "\xa1\xd9\x34\x01\x07\0\0\0" }; /* 20240520, version 1; 20240801, version 7 */
    const char *type = tensor_dtype_name(w->s->features[0].stored);
    uint64_t held = 0;
    const uint8_t *bytes;
    char expected[64];
    int rc = w->f->bytes >= 8 ? data_scan_fetch(w, 0, 8, FILE_KIND_BYTES, &bytes, &held, err) : 0;

    for (size_t i = 0; rc == 0 && held >= 8 && i < COUNT_OF(llm_c); i++)
        if (memcmp(bytes, llm_c[i], 8) == 0)
            return err_set(err, ERR_INPUT,
                           "'%s' begins with the header of llm.c, 1024 bytes; expected tokens of %s from the first byte on; "
                           "remove it: tail -c +1025 FILE", w->f->origin, type);
    snprintf(expected, sizeof(expected), "tokens of %s from the first byte on", type);
    return rc < 0 ? rc
                  : data_scan_refuse_kind(
                        w, expected, "write the tokens with array.tofile(), not with numpy.save()",
                        err);
}

static int tokens_index(struct data_scan *w, struct err *err)
{
    size_t width = tensor_dtype_bytes(w->s->features[0].stored), length = w->s->layout.elements[0];
    uint64_t tokens = w->f->bytes / width, ahead = has_labels(w->s);

    if (w->f->bytes % width != 0)
        return err_set(
            err, ERR_INPUT, "'%s' has %" PRIu64 " bytes, expected a multiple of %zu: tokens of %s",
            w->f->origin, w->f->bytes, width, tensor_dtype_name(w->s->features[0].stored));
    w->f->data_at = 0;
    w->f->step = length * width;
    w->f->span = (length + ahead) * width;
    w->f->n_records = tokens > ahead ? (tokens - ahead) / length : 0;
    return refuse_header(w, err);
}

static int tokens_parse(struct data_decoder *d, uint32_t member, const uint8_t *bytes, size_t n,
                        struct err *err)
{
    struct data_set *s = d->s;

    (void)member;
    (void)n;
    (void)err;
    for (uint32_t i = 0; i < s->n_features; i++)
        d->stored[i] = bytes + (strcmp(s->features[i].name, labels_name) == 0
                                    ? tensor_dtype_bytes(s->features[i].stored)
                                    : 0);
    return 0;
}

/* ---- the table ---- */

static int csv_fits(const struct data_set *s, struct err *err)
{
    for (uint32_t i = 0; i < s->n_features; i++)
        if (s->features[i].encoded || data_is_token_type(s->features[i].stored))
            return data_refuse_feature(&s->features[i], "a CSV file",
                               "expected numbers: uint8, int32, int64 or "
                               "float32",
                               err);
    return 0;
}

/* Text begins with a control character only if it is compressed with gzip, but "x^" also begins a zlib stream. */
static bool csv_is_plain(const uint8_t *head, size_t n)
{
    (void)n;
    return head[0] != 0x1f;
}

static const struct data_source sources[] = {
    [DATA_TFRECORD] = { .name = "tfrecord", .index_kind = 1, .is_plain = tfrecord_is_plain, .reads_content = true,
                        .check = tfrecord_fits, .index = tfrecord_index,
                        .parse = tfrecord_parse },
    [DATA_CSV] = { .name = "csv", .index_kind = 2, .is_plain = csv_is_plain, .reads_content = true, .has_lines = true, .check = csv_fits,
                   .index = csv_index, .finish = csv_finish, .parse = csv_parse },
    [DATA_NPY] = { .name = "npy", .has_members = true, .check = arrays_fit, .index = arrays_index,
                   .parse = arrays_parse },
    [DATA_TOKENS] = { .name = "tokens", .check = tokens_fit, .index = tokens_index,
                      .parse = tokens_parse },
};

const struct data_source *data_source_of(enum data_format format)
{
    CHECK((size_t)format < COUNT_OF(sources));
    return &sources[format];
}
