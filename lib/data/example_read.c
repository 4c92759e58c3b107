/* example_read.c - reads the values of one feature; see example.h. */
#include "data/example.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "data/data_priv.h"
#include "data/proto.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are used as they are in memory");

/* ---- values ---- */

enum kind { KIND_NONE = 0, KIND_BYTES = 1, KIND_FLOAT = 2, KIND_INT64 = 3 }; /* field numbers */
enum { N_KINDS = 4 };

/* The values of one feature found so far. */
struct values {
    const struct data_feature *f;
    size_t want;
    uint8_t *room;
    enum kind kind;
    uint64_t n;              /* number of values */
    struct proto_span bytes; /* the last bytes value */
    const uint8_t *in_place; /* the floats in the record, if they are one complete run; else NULL */
    bool out_of_range;       /* a value is not an int32: */
    uint64_t bad_i;          /* ... the index of the first such value */
    int64_t bad;             /* ... and the value */
};

static void start_kind(struct values *v, enum kind kind)
{
    v->kind = kind;
    v->n = 0;
    v->in_place = NULL;
    v->out_of_range = false;
}

static int add_bytes(struct values *v, const struct proto_field *field, struct err *err)
{
    (void)err;
    if (field->type == PROTO_BYTES) {
        v->bytes = field->bytes;
        v->n++;
    }
    return 0;
}

/* Adds a run of floats, packed or a single float. A run with all wanted values is not copied. */
static int add_floats(struct values *v, const struct proto_field *field, struct err *err)
{
    size_t n = proto_left(&field->bytes) / 4, fits;

    if (field->type != PROTO_BYTES && field->type != PROTO_32)
        return 0;
    if (proto_left(&field->bytes) % 4 != 0)
        return proto_malformed(&field->bytes,
                               "a packed list of floats whose size is not a multiple of 4", err);
    if (n == 0 || v->f->stored != TENSOR_F32) {
        v->n += n;
        return 0;
    }
    if (v->n == 0 && n == v->want) {
        v->in_place = field->bytes.at;
    } else if (v->n < v->want) {
        fits = n < v->want - v->n ? n : v->want - v->n;
        memcpy(v->room + v->n * 4, field->bytes.at, fits * 4);
    }
    v->n += n;
    return 0;
}

enum { BLOCK = DATA_VARINTS_BLOCK, NUMBER_MAX = DATA_VARINTS_LONGEST };

/* Decodes at least one number, unless the input is empty, and at most BLOCK; *n: their count.
 * false: a number is not terminated. */
static bool decode_numbers(struct proto_span *in, uint64_t out[BLOCK], size_t *n)
{
    uint8_t rest[BLOCK + NUMBER_MAX];
    const uint8_t *at = in->at;
    size_t bytes = proto_left(in), used;

    *n = 0;
    if (bytes > NUMBER_MAX) {
        if (bytes < sizeof(rest)) { /* padded with bytes that terminate no number */
            memset(rest, 0xff, sizeof(rest));
            at = memcpy(rest, at, bytes);
        }
        *n = data_varints(at, bytes < sizeof(rest) ? sizeof(rest) : bytes, out, BLOCK, &used);
        in->at += used;
    }
    if (*n == 0 && bytes > 0)
        return proto_read_varint(in, &out[(*n)++]);
    return true;
}

static void append_ints(struct values *v, const uint64_t *x, size_t n)
{
    size_t fits = v->n >= v->want ? 0 : n < v->want - v->n ? n : v->want - v->n;

    if (v->f->stored == TENSOR_I64) {
        memcpy(v->room + v->n * 8, x, fits * 8);
    } else if (v->f->stored == TENSOR_I32) {
        for (size_t i = 0; i < fits; i++) {
            int32_t narrow = (int32_t)x[i];

            memcpy(v->room + (v->n + i) * 4, &narrow, 4);
            if (narrow != (int64_t)x[i] && !v->out_of_range) {
                v->out_of_range = true;
                v->bad_i = v->n + i;
                v->bad = (int64_t)x[i];
            }
        }
    }
    v->n += n;
}

static int add_ints(struct values *v, const struct proto_field *field, struct err *err)
{
    struct proto_span in = field->bytes;
    uint64_t x[BLOCK];
    size_t n;

    if (field->type == PROTO_VARINT)
        append_ints(v, &field->value, 1);
    if (field->type != PROTO_BYTES)
        return 0;
    while (in.at < in.end) {
        bool fits = v->f->stored == TENSOR_I64 && v->n + BLOCK <= v->want;
        uint64_t *to = fits ? (uint64_t *)(void *)(v->room + v->n * 8) : x;

        if (fits && proto_left(&in) >= BLOCK + NUMBER_MAX) { /* decodes directly to `room` */
            size_t used;

            v->n += data_varints(in.at, proto_left(&in), to, v->want - v->n, &used);
            in.at += used;
            if (used > 0)
                continue;
        }
        if (!decode_numbers(&in, to, &n))
            return proto_malformed(&in, "unterminated number", err);
        if (fits)
            v->n += n;
        else
            append_ints(v, x, n);
    }
    return 0;
}

static int (*const add_value[N_KINDS])(struct values *v, const struct proto_field *field,
                                       struct err *err) = {
    [KIND_BYTES] = add_bytes,
    [KIND_FLOAT] = add_floats,
    [KIND_INT64] = add_ints,
};

/* Reads the lists of a Feature in wire order; a list of another kind replaces the earlier list. */
static int add_feature(struct values *v, struct proto_span in, struct err *err)
{
    struct proto_field list, value;
    int rc;

    while ((rc = proto_next(&in, &list, err)) > 0) {
        if (list.type != PROTO_BYTES || list.number >= N_KINDS)
            continue;
        if (v->kind != list.number)
            start_kind(v, list.number);
        while ((rc = proto_next(&list.bytes, &value, err)) > 0) {
            if (value.number == 1)
                rc = add_value[v->kind](v, &value, err);
            if (rc < 0)
                return rc;
        }
        if (rc < 0)
            return rc;
    }
    return rc;
}

/* ---- comparison with the declared feature ---- */

static const struct {
    const char *magic, *name;
} encodings[] = { { "\xff\xd8\xff", "JPEG" }, { "\x89PNG", "PNG" } };

static void describe_found(const struct values *v, char *out, size_t n)
{
    size_t bytes = v->kind == KIND_BYTES && v->n > 0 ? proto_left(&v->bytes) : 0;

    if (v->kind == KIND_NONE) {
        snprintf(out, n, "an empty feature");
    } else if (v->kind != KIND_BYTES) {
        snprintf(out, n, "a list of %" PRIu64 " %s values", v->n,
                 v->kind == KIND_FLOAT ? "float" : "int64");
    } else if (v->n != 1) {
        snprintf(out, n, "a list of %" PRIu64 " bytes values", v->n);
    } else {
        const char *encoding = NULL;

        for (size_t i = 0; i < COUNT_OF(encodings); i++)
            if (bytes > 4 &&
                memcmp(v->bytes.at, encodings[i].magic, strlen(encodings[i].magic)) == 0)
                encoding = encodings[i].name;
        snprintf(out, n, "a bytes value of %zu bytes%s%s%s", bytes, encoding != NULL ? " (a " : "",
                 encoding != NULL ? encoding : "",
                 encoding != NULL ? " image; \"encoded\": true decodes it)" : "");
    }
}

static int unexpected(const struct values *v, struct err *err)
{
    char found[160], shape[160];

    describe_found(v, found, sizeof(found));
    shape_print(&v->f->shape, shape, sizeof(shape));
    if (v->f->encoded)
        return err_set(err, ERR_INPUT,
                       "feature '%s': found %s, expected one bytes value with a JPEG or PNG file",
                       v->f->name, found);
    if (v->f->pad || v->f->truncate)
        return err_set(err, ERR_INPUT, "feature '%s': found %s, expected %s %zu %s values",
                       v->f->name, found,
                       !v->f->truncate ? "at most"
                       : !v->f->pad    ? "at least"
                                       : "about",
                       v->want, tensor_dtype_name(v->f->stored));
    if (v->f->stored == TENSOR_U8)
        return err_set(err, ERR_INPUT,
                       "feature '%s': found %s, expected one bytes value of %zu bytes (uint8 %s)",
                       v->f->name, found, v->want, shape);
    if (v->f->stored == TENSOR_F32)
        return err_set(err, ERR_INPUT,
                       "feature '%s': found %s, expected %zu float values or one bytes value of "
                       "%zu bytes (float32 %s)",
                       v->f->name, found, v->want, v->want * 4, shape);
    return err_set(err, ERR_INPUT, "feature '%s': found %s, expected %zu int64 values (%s %s)",
                   v->f->name, found, v->want, tensor_dtype_name(v->f->stored), shape);
}

/* The representations of each stored type. */
static const struct form {
    enum kind list;    /* a list of `want` values of this kind; KIND_NONE: not as a list */
    size_t bytes_each; /* one bytes value of want * bytes_each bytes; 0: not as bytes */
} forms[] = {
    [TENSOR_U8] = { KIND_NONE, 1 },
    [TENSOR_F32] = { KIND_FLOAT, 4 },
    [TENSOR_I64] = { KIND_INT64, 0 },
    [TENSOR_I32] = { KIND_INT64, 0 },
};

/* Accepts one bytes value with the raw elements. */
static int accept_raw(const struct data_feature *f, const struct values *v, size_t each, void *room,
                      const void **stored, uint64_t *count, struct err *err)
{
    size_t bytes = proto_left(&v->bytes), n = bytes / each;

    if (bytes % each != 0 || (n < v->want && !f->pad) || (n > v->want && !f->truncate))
        return unexpected(v, err);
    *count = n < v->want ? n : v->want;
    *stored = v->bytes.at;
    if (n < v->want) {
        memcpy(room, v->bytes.at, bytes);
        *stored = room;
    }
    return 0;
}

static int accept_list(const struct data_feature *f, const struct values *v, enum kind kind,
                       void *room, const void **stored, uint64_t *count, struct err *err)
{
    bool is_empty = v->kind == KIND_NONE || v->n == 0; /* a Feature {} means an absent list */

    if ((v->kind != kind && !(is_empty && f->pad)) || (v->n < v->want && !f->pad) ||
        (v->n > v->want && !f->truncate))
        return unexpected(v, err);
    *count = v->n < v->want ? v->n : v->want;
    if (v->out_of_range)
        return err_set(err, ERR_INPUT,
                       "feature '%s': value %" PRIu64 " is %" PRId64 ", expected an int32", f->name,
                       v->bad_i, v->bad);
    *stored = v->in_place != NULL ? v->in_place : room;
    return 0;
}

static int accept_encoded(const struct values *v, void *room, const void **stored, struct err *err)
{
    struct data_bytes *bytes = room;

    if (v->kind != KIND_BYTES || v->n != 1)
        return unexpected(v, err);
    *bytes = (struct data_bytes){ v->bytes.at, proto_left(&v->bytes) };
    *stored = bytes;
    return 0;
}

/* The fast path for the most frequent form, a Feature with one short packed list. Returns false for
 * any other form or content, which the general path then reads or reports. */
static bool read_short(const struct data_feature *f, size_t elements,
                       const struct data_entry *entry, void *room, const void **stored)
{
    const uint8_t *at = entry->at;
    size_t n = entry->n, run = n - 4; /* bytes after two tags and two lengths of one byte each */
    uint64_t v = 0;

    if (!entry->is_feature || n < 5 || n > 129 || f->encoded ||
        at[0] != (forms[f->stored].list << 3 | PROTO_BYTES) || at[1] != n - 2 ||
        at[2] != (1 << 3 | PROTO_BYTES) || at[3] != run)
        return false;
    at += 4;
    if (f->stored == TENSOR_F32 && run == 4 * elements) {
        *stored = at;
        return true;
    }
    if (f->stored != TENSOR_I64 || elements != 1 || run > NUMBER_MAX)
        return false;
    for (size_t i = 0; i < run; i++) {
        if ((at[i] < 0x80) != (i + 1 == run))
            return false;
        v |= (uint64_t)(at[i] & 0x7f) << 7 * i;
    }
    memcpy(room, &v, sizeof(v));
    *stored = room;
    return true;
}

int data_example_read(const struct data_feature *f, size_t elements, const struct data_entry *entry,
                      void *room, const void **stored, uint64_t *count, struct err *err)
{
    const struct form *form = &forms[f->stored]; /* data_open() rejects all other types */
    struct values v = { .f = f, .want = elements, .room = room };
    struct proto_span in = { entry->at, entry->at + entry->n, entry->record };
    struct proto_field member;
    int rc = 0;

    if (read_short(f, elements, entry, room, stored)) {
        *count = elements;
        return 0;
    }
    if (entry->is_feature)
        rc = add_feature(&v, in, err);
    while (entry->at != NULL && !entry->is_feature && (rc = proto_next(&in, &member, err)) > 0) {
        if (proto_is_message(&member, 2))
            rc = add_feature(&v, member.bytes, err);
        if (rc < 0)
            break;
    }
    if (rc < 0)
        return err_wrap(err, rc, "feature '%s'", f->name);
    *count = 1;
    if (f->encoded)
        return accept_encoded(&v, room, stored, err);
    if (v.kind == KIND_BYTES && v.n == 1 && form->bytes_each > 0)
        return accept_raw(f, &v, form->bytes_each, room, stored, count, err);
    return accept_list(f, &v, form->list, room, stored, count, err);
}
