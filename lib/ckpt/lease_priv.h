/* lease_priv.h - what the files of the lease share.
 *
 *   lease_record.c  the texts: a record, a beat
 *   lease_store.c   what is done with the files; may hang as long as the storage does
 *   lease.c         the thread, and what follows from what it sees */
#ifndef CKPT_LEASE_PRIV_H
#define CKPT_LEASE_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/lease.h"

struct buf;

#define LEASE_TOKEN_MAX ((uint64_t)1 << 53) /* any JSON reader can hold it */

enum {
    LEASE_FORMAT = 1,
    LEASE_RECORD_MAX = 64 << 10, /* more than 4096 ranks take */
    LEASE_BEAT_BYTES = 48,
};

/* ---- lease_record.c ---- */
struct lease_record {
    uint64_t token;
    uint32_t rank;
    uint64_t incarnation;
    char name[LEASE_NAME_BYTES];
    char host[LEASE_NAME_BYTES]; /* "": unknown */
    uint32_t n_members;
    uint32_t members[LEASE_MEMBERS_MAX];
};

void lease_record_print(const struct lease_record *r, struct buf *out);
/* ERR_CORRUPT: it is not one of ours, or not of this number. */
int lease_record_parse(const char *text, size_t n, uint64_t token, struct lease_record *out,
                       struct err *err);
/* One line of always the same length, so that it can be written over the one before. */
void lease_beat_print(uint64_t incarnation, uint64_t count, bool is_released,
                      char out[LEASE_BEAT_BYTES + 1]);
/* Any bytes: does the holder say that it is done? */
bool lease_beat_is_release(const char *bytes, size_t n, uint64_t incarnation);

/* ---- lease_store.c ---- */
/* The newest number, as it was found. */
struct lease_found {
    uint64_t token;             /* 0: none */
    bool is_known;              /* `record` could be read */
    struct lease_record record; /* of `token` */
    char damage[LEASE_TEXT_BYTES]; /* why not */
    char beat[LEASE_BEAT_BYTES];   /* its first bytes */
    size_t beat_bytes;
};
/* Brings *found up to date. Errors: ERR_IO, ...; then *found is as it was. A damaged record is no
 * error. */
int lease_store_look(const char *directory, struct lease_found *found, struct err *err);
/* Makes the record of a number, durable when it returns 0. *begin_ns: clock_ns() before anybody
 * could see it. Errors: ERR_EXISTS (another was faster), of the storage: then it may be there. */
int lease_store_take(const char *directory, const struct lease_record *r, uint64_t *begin_ns,
                     struct err *err);
int lease_store_beat(const char *directory, uint64_t token, uint64_t incarnation, uint64_t count,
                     bool is_released, struct err *err);
/* Removes all of numbers below token - 1, and what those who wanted `token` left, if that number is there. What
 * cannot be removed stays for the next one. */
void lease_store_tidy(const char *directory, uint64_t token);

#endif
