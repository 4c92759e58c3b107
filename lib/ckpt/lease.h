/* lease.h - a lease on shared storage, whose holder is the only task that may act for a job.
 *
 *   <directory>/lease-<8 digits>        the record of a token: holder and group; created once and
 *                                       complete, never changed
 *   <directory>/lease-<8 digits>.beat   the heartbeat of the holder: one line that changes with
 *                                       each renewal, or marks the lease as released
 *
 * The number in the name is the fencing token; the newest token is the lease. A task acquires the
 * lease by creating the record of the next token, which only one task can: the record is a hard
 * link to a complete file, which is exclusive on NFS too; on a file system without hard links it is created
 * with O_EXCL, and other tasks may see it before it is complete, as a damaged record. The caller decides when to
 * acquire. This file ensures that a token has at most one holder, and that a holder knows how long it may act:
 *
 *   held      until hold_ms after the start of the last successful renewal, by the holder's clock.
 *             A later renewal has no effect: a lost lease stays lost, and the same task needs a new
 *             token.
 *   expired   by the clock of an observer: released, or unchanged for watch_ms > hold_ms in at
 *             least five reads.
 *
 * A task that acquires only expired leases therefore never acts together with the former holder, if
 * both clocks run at about the same rate during hold_ms (the margin is watch_ms - hold_ms). A task
 * that acquires earlier, by a majority vote, fences the former holder: it sees the higher token at
 * its next renewal, and before it publishes anything (lease_check()). Neither wall-clock time nor
 * file times are used. The monotonic clock stops while a host is suspended: after resume, the
 * former holder believes for the rest of hold_ms that it holds the lease, but lease_check()
 * prevents it from publishing.
 *
 * Another job: each record names its job. The tasks of a job acquire the lease from each other, as
 * above. The lease of another job, also of another process that trains alone, is never acquired
 * before it is expired, or before its process is seen to have ended on this host. A directory is
 * therefore written by one running job.
 *
 * Crash of the storage: record and directory are synced before a token counts as acquired, so a
 * token is never acquired twice. Heartbeats are not synced: after a crash a heartbeat may be older,
 * or absent. An observer treats that as a change, so it waits for watch_ms again.
 *
 * A damaged, foreign or oversized file with such a name occupies its token: the holder is unknown,
 * and the lease is expired when nothing has changed for watch_ms. Files with other names are
 * ignored. The record is read every time: a holder whose record was removed or changed manually has
 * lost the lease, also if another task acquired the same token in the meantime.
 *
 * Threads: the lease's own thread accesses the storage and may hang as long as the storage does; no
 * call waits for it without a limit. All functions may be called from any thread, except
 * lease_close(). */
#ifndef CKPT_LEASE_H
#define CKPT_LEASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/lease_process.h"

struct err;
struct lease;

enum {
    LEASE_TEXT_BYTES = 256,
    LEASE_NAME_BYTES = 128,
    LEASE_MEMBERS_MAX = 4096,
};
#define LEASE_NO_RANK UINT32_MAX /* rank of an unknown holder */

struct lease_state {
    uint64_t answered; /* all requests with a ticket up to this one are complete */
    bool is_known;     /* the storage was read at least once; else the other fields are empty */
    uint64_t token;    /* newest token on the storage; 0: none */
    bool is_mine;      /* this task holds it, until lease_hold_until() */
    bool is_expired;   /* released, not renewed for watch_ms, or lost by this task; false for
                          token 0 */
    uint32_t holder;   /* rank; LEASE_NO_RANK: the record cannot be read */
    char incarnation[17];        /* of the holder, 16 hex digits; "": unknown */
    char name[LEASE_NAME_BYTES]; /* of the holder, for messages; "": unknown */
    bool is_foreign; /* the record is of another job: `holder` and `members` are unknown */
    bool is_renewed; /* the holder is another process, which renewed the lease while this task read it */
    struct lease_process process; /* of the holder */
    bool is_same_address; /* the holder has the name and the host of this task: only one of them can
                             listen */
    uint32_t n_members; /* size of the recorded group; 0: unknown */
    const uint32_t *members; /* [n_members] ranks of the recorded group; valid during the call */
    bool is_reachable; /* the last access succeeded; else the other fields may be outdated */
    char text[LEASE_TEXT_BYTES]; /* description for a person: the holder, or the error */
};

struct lease_opts {
    const char *directory; /* created when a lease is acquired; copied */
    uint32_t rank;         /* of this task */
    const char *name;      /* of this task, for messages: "worker 1 (10.0.0.2:2222)"; copied */
    const char *job; /* equal for the tasks of a job, which differs from every other running job; copied */
    const char *host; /* equal for processes that cannot listen on the same address; NULL: unknown; copied */
    uint64_t incarnation;  /* of this process; unique */
    uint64_t hold_ms, watch_ms;
    /* Called on the lease's thread when the state changed or a request is complete. It may call all
     * functions except lease_close(), lease_check() and lease_release() with a time to wait. */
    void (*on_change)(void *arg, const struct lease_state *s);
    void *arg;
};

/* Starts the lease's thread, which does not access the storage before the first request. On success
 * the caller owns *out. Errors: ERR_NOMEM, ERR_IO (no thread), ERR_INPUT (hold_ms < 10, or not less
 * than watch_ms). */
int lease_open(const struct lease_opts *opts, struct lease **out, struct err *err);
/* Stops the thread and frees the lease, without releasing it on the storage. on_change is not
 * called after the return. If the storage hangs, returns after 100 ms, and the thread frees the
 * lease when the storage returns. NULL is allowed. */
void lease_close(struct lease *l);

/* Each of the next functions sends a request to the thread and returns its ticket. on_change is
 * called when the request is complete (`answered`), also if it failed. Failed requests are not
 * retried. */

/* Requests to acquire the token after_token + 1 for this group, if after_token is still the newest
 * (0: no token exists), whether the lease is expired or not. The holder itself records another
 * group this way and keeps the old token until it has the new one. The result is in the state:
 * is_mine with the new token, or not. A lease of another job is acquired only if it is expired.
 * Replaces an earlier request that the thread has not started.
 * members [n], n <= LEASE_MEMBERS_MAX; copied. */
uint64_t lease_acquire(struct lease *l, uint64_t after_token, const uint32_t *members, uint32_t n);
/* Requests a read of the storage, and a renewal if this task holds the lease. */
uint64_t lease_refresh(struct lease *l);
/* Releases the lease at once (lease_hold_until() becomes 0), and requests to record that on the
 * storage. Waits for at most wait_ms; true: the request is complete. Cancels a request to acquire
 * that has not started. */
bool lease_release(struct lease *l, uint64_t wait_ms);

/* on: reads the storage every hold_ms / 6 while this task does not hold the lease. Initially
 * off. */
void lease_watch(struct lease *l, bool on);

/* Returns the clock_ns() until which this task may act as the holder; 0: it does not hold the
 * lease. Takes no locks. */
uint64_t lease_hold_until(const struct lease *l);

/* Returns the time in milliseconds since which the storage fails or does not respond; 0: the last
 * operation succeeded and none is pending. Takes no locks. */
uint64_t lease_failing_ms(const struct lease *l);

/* Copies the error of the last operation of the storage; "": it succeeded. */
void lease_error(struct lease *l, char out[LEASE_TEXT_BYTES]);

/* Called before an action that only the holder may perform: waits until a read of the storage that
 * began after this call confirms that this task's token is the newest. Waits only while the lease
 * is held, so hold_ms at most. Errors: ERR_REFUSED (fenced, or not held), ERR_IO (the storage could
 * not be read; the caller may retry). */
int lease_check(struct lease *l, struct err *err);

#endif
