/* lease.h - who may speak for a job, decided by the storage that all its tasks share.
 *
 *   <directory>/lease-<8 digits>    one JSON object: {"token", "holder", "incarnation", "count",
 *                                   "released"}
 *
 * The number is the token. Taking the lease is making the file of the next number, which only one
 * can (a hard link to a finished file: atomic on NFS too). The holder renews: `count` goes up. It
 * is over for the holder as soon as a higher number is there, or when it could not renew for
 * hold_ms, counted from before the last renewal that worked. A contender takes the next number when
 * the present holder said that it is done, when it saw no renewal for watch_ms > hold_ms by its own
 * clock, or at once by force: when it knows that the holder is gone, or has a majority behind it.
 * So no two processes whose clocks run about equally fast believe that they hold it, but after a
 * force; then the old holder is fenced at its next look, and before it publishes anything
 * (lease_check()).
 *
 * All that touches the storage happens in lease_step(), which may hang as long as the storage does:
 * it belongs on a thread of its own. lease_is_held() looks at memory and clock alone. Threads:
 * lease_step() and lease_check() take turns by themselves; the rest: any. */
#ifndef CKPT_LEASE_H
#define CKPT_LEASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct lease;

enum { LEASE_TEXT = 256 };

struct lease_opts {
    const char *directory;   /* made if it is not there; copied */
    const char *holder;      /* "worker 1 (10.0.0.2:2222)", for people; copied */
    const char *incarnation; /* of this process: hex digits; copied */
    uint64_t hold_ms, watch_ms;
};

enum lease_news {
    LEASE_NOTHING,
    LEASE_GRANTED, /* ours; token is new */
    LEASE_WAITING, /* somebody else's, or out of reach: text says; once for each reason */
    LEASE_LOST,    /* was ours: text says why */
};

/* Errors: ERR_NOMEM, ERR_INPUT (hold_ms >= watch_ms, an empty name). Nothing is touched yet. */
int lease_new(const struct lease_opts *opts, struct lease **out, struct err *err);
void lease_free(struct lease *l); /* releases nothing; NULL is fine */

/* From now on: get it. force: without waiting for the holder. */
void lease_want(struct lease *l, bool force);
/* Not any more. A lease that is held is marked as released in the next step. */
void lease_drop(struct lease *l);

/* Does what is due. *text [LEASE_TEXT] for people; *wait_ms: when to come again, at the latest.
 * Trouble with the storage is news too (WAITING, LOST), never an error. */
enum lease_news lease_step(struct lease *l, char *text, uint64_t *wait_ms);

bool lease_is_held(const struct lease *l); /* and renewed less than hold_ms ago */
uint64_t lease_token(const struct lease *l); /* of the last grant; 0: none yet */
/* Looks at the storage: 0 if the lease is held and no higher number is there. Before something is
 * published that must not be published twice. Errors: ERR_REFUSED (fenced, or not held), ERR_IO. */
int lease_check(struct lease *l, struct err *err);

#endif
