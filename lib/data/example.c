#include "data/example.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/text.h"
#include "data/data_priv.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "wire numbers are used as they lie");

/* ---- the wire ---- */

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

struct wire {
    const uint8_t *at, *end;
    const uint8_t *record; /* start of the record, for messages */
};

struct field {
    uint32_t number, type;
    uint64_t value;    /* WIRE_VARINT: the value */
    struct wire bytes; /* other types: the content */
};

static size_t left(const struct wire *w)
{
    return (size_t)(w->end - w->at);
}

static struct wire part(const struct wire *w, size_t n)
{
    return (struct wire){ w->at, w->at + n, w->record };
}

static bool read_varint(struct wire *w, uint64_t *out)
{
    uint64_t v = 0;

    for (unsigned shift = 0; shift < 70 && w->at < w->end; shift += 7) {
        uint8_t b = *w->at++;

        v |= shift < 64 ? (uint64_t)(b & 0x7f) << shift : 0;
        if (b < 0x80) {
            *out = v;
            return true;
        }
    }
    return false;
}

static int malformed(const struct wire *w, const char *what, struct err *err)
{
    return err_set(err, ERR_INPUT, "not a tf.train.Example: %s at byte %zu of the record", what,
                   (size_t)(w->at - w->record));
}

static int next_field_slowly(struct wire *w, struct field *f, struct err *err)
{
    struct wire start = *w;
    uint64_t tag, n = 0;

    if (!read_varint(w, &tag) || tag > UINT32_MAX || tag >> 3 == 0)
        return malformed(&start, "invalid protobuf tag", err);
    f->number = (uint32_t)tag >> 3;
    f->type = (uint32_t)tag & 7;
    switch (f->type) {
    case WIRE_VARINT:
        return read_varint(w, &f->value) ? 1 : malformed(&start, "unterminated number", err);
    case WIRE_64:
        n = 8;
        break;
    case WIRE_32:
        n = 4;
        break;
    case WIRE_BYTES:
        if (!read_varint(w, &n))
            return malformed(&start, "unterminated length", err);
        break;
    default:
        return malformed(&start, "a protobuf field of unknown type", err);
    }
    if (n > left(w))
        return malformed(&start, "a field that is longer than the record", err);
    f->bytes = part(w, n);
    w->at += n;
    return 1;
}

/* Parses the next field. Returns 1, 0 at the end, or ERR_INPUT. The fast path is a bytes field of
 * less than 128 bytes, the most frequent kind. */
static inline int next_field(struct wire *w, struct field *f, struct err *err)
{
    size_t n = left(w);

    if (n == 0)
        return 0;
    if (n < 2 || (w->at[0] & 0x87) != WIRE_BYTES || w->at[0] < 8 || w->at[1] > 0x7f ||
        w->at[1] > n - 2)
        return next_field_slowly(w, f, err);
    f->number = w->at[0] >> 3;
    f->type = WIRE_BYTES;
    n = w->at[1];
    w->at += 2;
    f->bytes = part(w, n);
    w->at += n;
    return 1;
}

static bool is_part(const struct field *f, uint32_t number)
{
    return f->number == number && f->type == WIRE_BYTES;
}

/* ---- finding ---- */

/* Calls `each` for every map entry of the record, with its key and the entry of its value. */
static int each_entry(const void *record, size_t n,
                      void (*each)(void *arg, const struct wire *key,
                                   const struct data_entry *entry),
                      void *arg, struct err *err)
{
    struct wire example = { record, (const uint8_t *)record + n, record }, in, key;
    struct field features, entry, member;
    struct data_entry found;
    uint32_t n_values;
    int rc;

    while ((rc = next_field(&example, &features, err)) > 0) {
        if (!is_part(&features, 1))
            continue;
        while ((rc = next_field(&features.bytes, &entry, err)) > 0) {
            if (!is_part(&entry, 1))
                continue;
            in = entry.bytes;
            key = (struct wire){ in.at, in.at, record }; /* an absent key is empty */
            found = (struct data_entry){ in.at, left(&in), record, false };
            n_values = 0;
            while ((rc = next_field(&in, &member, err)) > 0) {
                if (is_part(&member, 1))
                    key = member.bytes;
                if (is_part(&member, 2) && n_values++ == 0)
                    found =
                        (struct data_entry){ member.bytes.at, left(&member.bytes), record, true };
            }
            if (rc < 0)
                return rc;
            if (n_values > 1) /* the caller concatenates the values */
                found = (struct data_entry){ entry.bytes.at, left(&entry.bytes), record, false };
            each(arg, &key, &found);
        }
        if (rc < 0)
            return rc;
    }
    return rc;
}

struct data_names {
    const struct data_feature *features;
    uint32_t n;
    uint32_t mask; /* number of slots - 1; the number is a power of two, at least twice n */
    struct name_slot {
        uint32_t feature; /* + 1; 0: empty */
        struct name {
            uint64_t first, last; /* first and last 8 bytes; for n <= 16 they determine the name */
            size_t n;
            const char *at;
        } name;
    } *slots; /* owned; open addressing with linear probing */
};

static inline struct name name_of(const void *at, size_t n)
{
    struct name name = { .n = n, .at = at };
    const uint8_t *b = at;

    if (n >= 8) {
        memcpy(&name.first, b, 8);
        memcpy(&name.last, b + n - 8, 8);
    } else if (n >= 4) {
        memcpy(&name.first, b, 4);
        memcpy(&name.last, b + n - 4, 4);
    } else if (n > 0) {
        name.first = (uint64_t)b[0] | (uint64_t)b[n / 2] << 8 | (uint64_t)b[n - 1] << 16;
    }
    return name;
}

static inline uint32_t hash_name(const struct name *name)
{
    uint64_t x = name->first ^ name->last * UINT64_C(0x9e3779b97f4a7c15) ^ name->n;

    return (uint32_t)(x * UINT64_C(0xd6e8feb86659fd93) >> 32);
}

static inline bool same_name(const struct name *a, const struct name *b)
{
    return a->first == b->first && a->last == b->last && a->n == b->n &&
           (a->n <= 16 || memcmp(a->at, b->at, a->n) == 0);
}

int data_names_new(const struct data_feature *features, uint32_t n, struct data_names **out,
                   struct err *err)
{
    struct data_names *names = calloc(1, sizeof(*names));
    uint32_t n_slots = 2;

    while (n_slots / 2 < n)
        n_slots *= 2;
    if (names != NULL)
        names->slots = calloc(n_slots, sizeof(*names->slots));
    if (names == NULL || names->slots == NULL) {
        free(names);
        return err_set(err, ERR_NOMEM, "features: out of memory");
    }
    names->features = features;
    names->n = n;
    names->mask = n_slots - 1;
    for (uint32_t i = 0; i < n; i++) {
        struct name name = name_of(features[i].name, strlen(features[i].name));
        uint32_t at = hash_name(&name) & names->mask;

        while (names->slots[at].feature != 0)
            at = (at + 1) & names->mask;
        names->slots[at] = (struct name_slot){ i + 1, name };
    }
    *out = names;
    return 0;
}

void data_names_free(struct data_names *names)
{
    if (names == NULL)
        return;
    free(names->slots);
    free(names);
}

struct look_up {
    const struct data_names *names;
    struct data_entry *found;
};

/* Stores the entry for every feature with this name; several features may have the same name. */
static void match(void *arg, const struct wire *key, const struct data_entry *entry)
{
    const struct look_up *l = arg;
    const struct data_names *names = l->names;
    struct name name = name_of(key->at, left(key));

    for (uint32_t at = hash_name(&name) & names->mask; names->slots[at].feature != 0;
         at = (at + 1) & names->mask) {
        const struct name_slot *slot = &names->slots[at];

        if (same_name(&slot->name, &name))
            l->found[slot->feature - 1] = *entry;
    }
}

enum { NAMES_MAX = 16, NAME_BYTES = 64 };

struct names {
    char text[NAMES_MAX][NAME_BYTES];
    const char *at[NAMES_MAX];
    size_t n, n_all;
};

static void collect(void *arg, const struct wire *key, const struct data_entry *entry)
{
    struct names *names = arg;
    size_t n = left(key) < NAME_BYTES - 1 ? left(key)
                                          : text_utf8_cut((const char *)key->at, NAME_BYTES - 1);

    (void)entry;
    names->n_all++;
    if (names->n == NAMES_MAX)
        return;
    memcpy(names->text[names->n], key->at, n);
    names->text[names->n][n] = '\0';
    for (size_t i = 0; i < n; i++) /* control characters must not reach a message */
        if ((uint8_t)names->text[names->n][i] < 0x20)
            names->text[names->n][i] = '?';
    names->at[names->n] = names->text[names->n];
    names->n++;
}

static int missing(const void *record, size_t n, const char *name, struct err *err)
{
    char list[NAMES_MAX * (NAME_BYTES + 4)] = "none";
    struct names names = { .n = 0 };
    const char *nearest;
    size_t used = 0;

    (void)each_entry(record, n, collect, &names, NULL); /* succeeded before with this record */
    nearest = text_nearest(name, names.at, names.n);
    for (size_t i = 0; i < names.n; i++)
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s'%s'", i > 0 ? ", " : "",
                                 names.at[i]);
    return err_set(err, ERR_INPUT,
                   "feature '%s' is not in the record%s%s%s; features present: %s%s", name,
                   nearest != NULL ? " (did you mean '" : "", nearest != NULL ? nearest : "",
                   nearest != NULL ? "'?)" : "", list, names.n_all > names.n ? ", ..." : "");
}

int data_example_find(const struct data_names *names, const void *record, size_t n,
                      struct data_entry *found, struct err *err)
{
    struct look_up l = { names, found };
    int rc;

    memset(found, 0, names->n * sizeof(*found));
    rc = each_entry(record, n, match, &l, err);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < names->n; i++) {
        const struct data_feature *f = &names->features[i];

        if (found[i].at == NULL && !f->pad && f->derived == DATA_STORED)
            return missing(record, n, f->name, err);
    }
    return 0;
}

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
    struct wire bytes;       /* the last bytes value */
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

static int add_bytes(struct values *v, const struct field *field, struct err *err)
{
    (void)err;
    if (field->type == WIRE_BYTES) {
        v->bytes = field->bytes;
        v->n++;
    }
    return 0;
}

/* Adds a run of floats, packed or a single float. A run with all wanted values is not copied. */
static int add_floats(struct values *v, const struct field *field, struct err *err)
{
    size_t n = left(&field->bytes) / 4, fits;

    if (field->type != WIRE_BYTES && field->type != WIRE_32)
        return 0;
    if (left(&field->bytes) % 4 != 0)
        return malformed(&field->bytes, "a packed list of floats whose size is not a multiple of 4",
                      err);
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
static bool decode_numbers(struct wire *in, uint64_t out[BLOCK], size_t *n)
{
    uint8_t rest[BLOCK + NUMBER_MAX];
    const uint8_t *at = in->at;
    size_t bytes = left(in), used;

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
        return read_varint(in, &out[(*n)++]);
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

static int add_ints(struct values *v, const struct field *field, struct err *err)
{
    struct wire in = field->bytes;
    uint64_t x[BLOCK];
    size_t n;

    if (field->type == WIRE_VARINT)
        append_ints(v, &field->value, 1);
    if (field->type != WIRE_BYTES)
        return 0;
    while (in.at < in.end) {
        bool fits = v->f->stored == TENSOR_I64 && v->n + BLOCK <= v->want;
        uint64_t *to = fits ? (uint64_t *)(void *)(v->room + v->n * 8) : x;

        if (fits && left(&in) >= BLOCK + NUMBER_MAX) { /* decodes directly to `room` */
            size_t used;

            v->n += data_varints(in.at, left(&in), to, v->want - v->n, &used);
            in.at += used;
            if (used > 0)
                continue;
        }
        if (!decode_numbers(&in, to, &n))
            return malformed(&in, "unterminated number", err);
        if (fits)
            v->n += n;
        else
            append_ints(v, x, n);
    }
    return 0;
}

static int (*const add_value[N_KINDS])(struct values *v, const struct field *field,
                                       struct err *err) = {
    [KIND_BYTES] = add_bytes,
    [KIND_FLOAT] = add_floats,
    [KIND_INT64] = add_ints,
};

/* Reads the lists of a Feature in wire order; a list of another kind replaces the earlier list. */
static int add_feature(struct values *v, struct wire in, struct err *err)
{
    struct field list, value;
    int rc;

    while ((rc = next_field(&in, &list, err)) > 0) {
        if (list.type != WIRE_BYTES || list.number >= N_KINDS)
            continue;
        if (v->kind != list.number)
            start_kind(v, list.number);
        while ((rc = next_field(&list.bytes, &value, err)) > 0) {
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
    size_t bytes = v->kind == KIND_BYTES && v->n > 0 ? left(&v->bytes) : 0;

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
                       !v->f->truncate ? "at most" : !v->f->pad ? "at least" : "about", v->want,
                       tensor_dtype_name(v->f->stored));
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
    size_t bytes = left(&v->bytes), n = bytes / each;

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
    *bytes = (struct data_bytes){ v->bytes.at, left(&v->bytes) };
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
        at[0] != (forms[f->stored].list << 3 | WIRE_BYTES) || at[1] != n - 2 ||
        at[2] != (1 << 3 | WIRE_BYTES) || at[3] != run)
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
    struct wire in = { entry->at, entry->at + entry->n, entry->record };
    struct field member;
    int rc = 0;

    if (read_short(f, elements, entry, room, stored)) {
        *count = elements;
        return 0;
    }
    if (entry->is_feature)
        rc = add_feature(&v, in, err);
    while (entry->at != NULL && !entry->is_feature && (rc = next_field(&in, &member, err)) > 0) {
        if (is_part(&member, 2))
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
