/* job_keys.h - the table of the job file's keys, whose rows are in job_keys_*.c.
 *
 * A row describes a key: its position in the file (parent and name), the offset of its value in the
 * struct, the allowed values, the default, and a sentence of documentation. Reader, printer, digest
 * and schema use only the table; job_check.c also uses keys by name, for rules that concern several
 * keys.
 *
 * Parents are JSON pointers. "*" is the name of every item: the key "*" of "/data/features" is a
 * feature, and the parent of the feature's own keys is "/data/features/" followed by "*". */
#ifndef CONF_JOB_KEYS_H
#define CONF_JOB_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "conf/job_types.h"

enum conf_key_type {
    CONF_KEY_OBJECT, /* its keys are the rows that have it as parent */
    CONF_KEY_STRING, /* const char *, not empty */
    CONF_KEY_PATH,   /* a string, resolved against the job's folder */
    CONF_KEY_BOOL,
    CONF_KEY_ENUM,   /* an enum: the value of one of the words */
    CONF_KEY_EITHER, /* a bool as one of two words, the first of which means false */
    CONF_KEY_U32,
    CONF_KEY_U64,
    CONF_KEY_F64,
    CONF_KEY_PORTS, /* struct conf_ports: 7000, "7000-7010" or [7000, 7010] */
    CONF_KEY_LIST, /* array of items (row "*"); struct: the items, and a uint32_t count */
    /* object with any names; as a list, and an item starts with its name, a const char * */
    CONF_KEY_MAP,
    /* one of the words, or a list as above; struct: an enum at `chosen`, 0: the list */
    CONF_KEY_CHOICE,
    /* an integer above 0, or an object; struct: a uint32_t, 0: the object, whose keys are the rows
     * that have it as parent. Those keys are 0 if the integer is given */
    CONF_KEY_COUNT_OR_OBJECT,
    /* an integer above 0, or one of the words; struct: a uint64_t, and an enum at `chosen`, 0: the integer. With a
     * word the integer is 0 */
    CONF_KEY_COUNT_OR_WORD,
};

enum conf_key_flags {
    CONF_KEY_REQUIRED = 1,   /* no default; with `when`: required if it applies */
    CONF_KEY_NULLABLE = 2,   /* null is allowed and means "none" */
    CONF_KEY_ABOVE_MIN = 4,  /* min itself is out of range */
    CONF_KEY_BELOW_MAX = 8,  /* max itself is out of range */
    CONF_KEY_UNIQUE = 16,    /* list: the items must differ */
    CONF_KEY_ALLOCATED = 32, /* list: the struct has a pointer to the items */
    CONF_KEY_FREE = 64,      /* not part of the digest: may change between two starts of a run */
    CONF_KEY_LIVE = 128,     /* may change while the process runs; also CONF_KEY_FREE */
    /* object: its absence differs from an empty object. struct: a bool, false if it is absent; its
     * keys are then 0 and not printed. List: an empty one is not printed */
    CONF_KEY_OPTIONAL = 256,
    CONF_KEY_PATTERN = 512, /* path: a pattern of glob(3); the name of the job's folder is quoted in it */
};

struct conf_word {
    const char *word;
    unsigned value; /* in C */
};

struct conf_key {
    const char *parent, *name;
    enum conf_key_type type;
    /* offset in struct conf, or in the item of the list or map; 0 for an object that is not optional */
    size_t at;
    unsigned flags;
    uint64_t lo, hi;          /* integers: range; lists and maps: range of the number of items */
    double min, max;          /* CONF_KEY_F64: range */
    const struct conf_word *words; /* CONF_KEY_ENUM, _EITHER, _CHOICE, _COUNT_OR_WORD */
    uint32_t n_words;
    /* The default as JSON, a word without quotes. NULL: the key is required, or has `instead`, or
     * job_check.c derives the default from other keys, as `doc` describes. */
    const char *fallback;
    const char *instead; /* sibling key: exactly one of the two must be given; NULL: none */
    struct { /* the key applies only if a sibling has one of some words */
        const char *key; /* the sibling, an earlier row; NULL: the key always applies */
        uint32_t words;  /* bit v: the word with the value v, which is below 32 */
    } when;
    size_t count, stride; /* lists and maps: offset of the count, size of an item in bytes */
    size_t chosen; /* CONF_KEY_CHOICE, CONF_KEY_COUNT_OR_WORD: offset of the value of the word */
    const char *doc;      /* documentation, complete sentences */
};

enum { CONF_KEY_PATH_BYTES = 64 };

/* Returns the row of an object that follows `after` in the table; `after` NULL: the first row.
 * Returns NULL after the last row. */
const struct conf_key *conf_key_next(const char *parent, const struct conf_key *after);
/* Returns the row of a key; NULL: there is none. */
const struct conf_key *conf_key_find(const char *parent, const char *name);
/* Returns the row with that name if it is the only one outside of lists and maps, or, without such a
 * row, the only one in the whole table; else NULL. */
const struct conf_key *conf_key_find_unique(const char *name);
/* Writes the JSON pointer of a row, which is the parent of the rows below it. */
void conf_key_path(const struct conf_key *k, char out[CONF_KEY_PATH_BYTES]);
/* The word of a value, which must have one. */
const char *conf_key_word(const struct conf_key *k, unsigned value);
/* Sets *value to the value of a word; false: the key has no such word. */
bool conf_key_value(const struct conf_key *k, const char *word, unsigned *value);
/* Whether an optional key is given in the struct at `base`. */
bool conf_key_is_given(const struct conf_key *k, const void *base);
/* The value of the word of CONF_KEY_ENUM, CONF_KEY_CHOICE or CONF_KEY_COUNT_OR_WORD in the struct at `base`; 0: a
 * list, or an integer. */
unsigned conf_key_chosen(const struct conf_key *k, const void *base);
/* Whether `when` holds for the struct (or list item) at `base`. Its earlier rows must be set. */
bool conf_key_applies(const struct conf_key *k, const void *base);

#endif
