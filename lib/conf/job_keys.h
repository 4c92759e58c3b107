/* job_keys.h - the table of the job file's keys.
 *
 * A key is a row: where it stands in the file (parent and name), where its value goes (an offset),
 * what it may be, what it is when absent, and a sentence for people. Reader, print, digest and
 * schema know no key by name; only job_check.c does, for what ties one key to another.
 *
 * Parents are JSON pointers; "*" stands for any item: "/data/features" with the name "*" is a
 * feature, and "/data/features/" followed by "*" is the parent of the feature's own keys. */
#ifndef CONF_JOB_KEYS_H
#define CONF_JOB_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "conf/job_types.h"

enum conf_key_type {
    CONF_KEY_OBJECT, /* its keys are the rows whose parent it is */
    CONF_KEY_STRING, /* const char *, not empty */
    CONF_KEY_PATH,   /* a string, resolved against the job's folder */
    CONF_KEY_BOOL,
    CONF_KEY_ENUM, /* an index into words */
    CONF_KEY_U32,
    CONF_KEY_U64,
    CONF_KEY_F64,
    CONF_KEY_PORTS, /* struct conf_ports: 7000, "7000-7010" or [7000, 7010] */
    CONF_KEY_LIST, /* array of the item row; struct: the items, and a uint32_t count */
    CONF_KEY_MAP,  /* object of any names; an item begins with its name, a const char * */
};

enum conf_key_flags {
    CONF_KEY_REQUIRED = 1,   /* no default; with `when`: required where it applies */
    CONF_KEY_NULLABLE = 2,   /* null is "none" */
    CONF_KEY_ABOVE_MIN = 4,  /* min itself is out of range */
    CONF_KEY_BELOW_MAX = 8,  /* max itself is out of range */
    CONF_KEY_UNIQUE = 16,    /* list: no item twice */
    CONF_KEY_ALLOCATED = 32, /* list: the struct holds a pointer to the items */
    CONF_KEY_FREE = 64,      /* may change in the middle of a run: not part of the digest */
    CONF_KEY_LIVE = 128,     /* may change while the process runs; also free */
};

struct conf_key {
    const char *parent, *name;
    enum conf_key_type type;
    size_t at; /* offset in struct conf, or in the item of the map it is in; 0 for an object */
    unsigned flags;
    uint64_t lo, hi;          /* integers: range; lists and maps: number of items */
    double min, max;          /* CONF_KEY_F64: range */
    const char *const *words; /* CONF_KEY_ENUM, in the order of the C enum */
    uint32_t n_words;
    /* The default as written in JSON, a word without quotes. NULL with neither CONF_KEY_REQUIRED
     * nor `instead`: job_check.c derives it, and doc says how. */
    const char *fallback;
    const char *instead; /* the neighbour that may stand for this one: exactly one is given */
    struct {
        const char *key; /* this key is for some words of that neighbour only; NULL: always */
        uint32_t words;  /* bit i: word i */
    } when;
    size_t count, stride; /* lists and maps: offset of the count, bytes of an item */
    const char *doc;      /* a sentence */
};

enum { CONF_KEY_PATH_BYTES = 64 };

/* The rows of an object in table order: NULL gives the first, NULL comes after the last. */
const struct conf_key *conf_key_next(const char *parent, const struct conf_key *after);
/* NULL: there is no such row. */
const struct conf_key *conf_key_find(const char *parent, const char *name);
/* The only row of that name in the whole table, whatever its parent; else NULL. */
const struct conf_key *conf_key_anywhere(const char *name);
/* Its pointer in the table, the parent of its own rows. */
void conf_key_path(const struct conf_key *k, char out[CONF_KEY_PATH_BYTES]);
/* Whether `when` holds for the struct (or map item) at `base`, whose earlier rows are read. */
bool conf_key_applies(const struct conf_key *k, const void *base);

#endif
