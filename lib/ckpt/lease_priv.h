/* lease_priv.h - declarations shared by the files of the lease.
 *
 *   lease_process.c the process of a holder
 *   lease_record.c  prints and parses a record and a heartbeat
 *   lease_store.c   reads and writes the files; may hang as long as the storage does
 *   lease.c         the thread and the state of the lease */
#ifndef CKPT_LEASE_PRIV_H
#define CKPT_LEASE_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/lease.h"

struct buf;

#define LEASE_TOKEN_MAX ((uint64_t)1 << 53) /* exact in every JSON parser */

enum {
    LEASE_FORMAT = 1,
    LEASE_RECORD_MAX = 64 << 10, /* bytes; more than a record with 4096 ranks */
    LEASE_BEAT_BYTES = 48,
};

/* ---- lease_record.c ---- */
struct lease_record {
    uint64_t token;
    uint32_t rank;
    uint64_t incarnation;
    char name[LEASE_NAME_BYTES];
    char host[LEASE_NAME_BYTES]; /* "": unknown */
    char job[LEASE_NAME_BYTES];  /* "": unknown */
    struct lease_process process;
    uint32_t n_members;
    uint32_t members[LEASE_MEMBERS_MAX];
};

void lease_record_print(const struct lease_record *r, struct buf *out);
/* Errors: ERR_CORRUPT (not a record, or of another token), ERR_NOMEM. */
int lease_record_parse(const char *text, size_t n, uint64_t token, struct lease_record *out,
                       struct err *err);
/* Prints a heartbeat: a line of constant length, which overwrites the previous line. */
void lease_beat_print(uint64_t incarnation, uint64_t count, bool is_released,
                      char out[LEASE_BEAT_BYTES + 1]);
/* Returns true if the bytes, which may be anything, are the heartbeat of a released lease. */
bool lease_beat_is_release(const char *bytes, size_t n, uint64_t incarnation);

/* ---- lease_store.c ---- */
/* The newest token on the storage. */
struct lease_found {
    uint64_t token;                /* 0: none */
    bool is_known;                 /* `record` is valid */
    struct lease_record record;    /* of `token` */
    char damage[LEASE_TEXT_BYTES]; /* if not `is_known`: why the record is invalid */
    char beat[LEASE_BEAT_BYTES];   /* first bytes of the heartbeat */
    size_t beat_bytes;             /* 0: no heartbeat */
};
/* Reads the newest token to *found. An invalid record is not an error. Errors: ERR_IO, ...; *found
 * is then unchanged. */
int lease_store_read(const char *directory, struct lease_found *found, struct err *err);
/* Creates the record of a token; durable when it returns 0. Sets *begin_ns to a clock_ns() before
 * the record was visible. Errors: ERR_EXISTS (another task acquired the token), those of the
 * storage, after which the record may exist. */
int lease_store_acquire(const char *directory, const struct lease_record *r, uint64_t *begin_ns,
                        struct err *err);
/* Writes the heartbeat of a token. Not synced. */
int lease_store_beat(const char *directory, uint64_t token, uint64_t incarnation, uint64_t count,
                     bool is_released, struct err *err);
/* Removes the files of tokens below token - 1, and temporary files of attempts to acquire tokens up
 * to `token`. Ignores errors: the next call tries again. */
void lease_store_prune(const char *directory, uint64_t token);

#endif
