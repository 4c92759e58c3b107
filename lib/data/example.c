/* example.c - finds the features of a record; see example.h. */
#include "data/example.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "data/data_priv.h"
#include "data/proto.h"

/* Calls `each` for every map entry of the record, with its key and the entry of its value. */
static int each_entry(const void *record, size_t n,
                      void (*each)(void *arg, const struct proto_span *key,
                                   const struct data_entry *entry),
                      void *arg, struct err *err)
{
    struct proto_span example = { record, (const uint8_t *)record + n, record }, in, key;
    struct proto_field features, entry, member;
    struct data_entry found;
    uint32_t n_values;
    int rc;

    while ((rc = proto_next(&example, &features, err)) > 0) {
        if (!proto_is_message(&features, 1))
            continue;
        while ((rc = proto_next(&features.bytes, &entry, err)) > 0) {
            if (!proto_is_message(&entry, 1))
                continue;
            in = entry.bytes;
            key = (struct proto_span){ in.at, in.at, record }; /* an absent key is empty */
            found = (struct data_entry){ in.at, proto_left(&in), record, false };
            n_values = 0;
            while ((rc = proto_next(&in, &member, err)) > 0) {
                if (proto_is_message(&member, 1))
                    key = member.bytes;
                if (proto_is_message(&member, 2) && n_values++ == 0)
                    found = (struct data_entry){ member.bytes.at, proto_left(&member.bytes), record,
                                                 true };
            }
            if (rc < 0)
                return rc;
            if (n_values > 1) /* the caller concatenates the values */
                found =
                    (struct data_entry){ entry.bytes.at, proto_left(&entry.bytes), record, false };
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
static void match(void *arg, const struct proto_span *key, const struct data_entry *entry)
{
    const struct look_up *l = arg;
    const struct data_names *names = l->names;
    struct name name = name_of(key->at, proto_left(key));

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

static void collect(void *arg, const struct proto_span *key, const struct data_entry *entry)
{
    struct names *names = arg;
    size_t n = proto_left(key) < NAME_BYTES - 1
                   ? proto_left(key)
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
