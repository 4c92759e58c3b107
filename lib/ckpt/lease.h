/* lease.h - who may speak for a job, decided by the storage that all its tasks share.
 *
 *   <directory>/lease-<8 digits>        the record of a number: who took it, for which group; made
 *                                       once, complete, and never changed
 *   <directory>/lease-<8 digits>.beat   its holder is alive: one line that changes with each
 *                                       renewal, or says that the lease is released
 *
 * The number is the fencing token; the newest number is the lease. Taking it is making the record
 * of the next number, which only one can: a hard link to a finished file, exclusive on NFS too. WHEN
 * to take is the caller's decision; here it is only made sure that there is never more than one who
 * has a number, and that a holder knows for how long it may act:
 *
 *   hold    until (before the last renewal that worked) + hold_ms, by the holder's own clock. A
 *           renewal that comes later than that does not count: what was lost once stays lost, and
 *           the same task needs a new number too.
 *   over    by a watcher's own clock: released, or unchanged for watch_ms > hold_ms, in five looks at least.
 *
 * So whoever takes only what is over never acts together with the former holder, if clocks run about
 * equally fast while hold_ms passes (watch_ms - hold_ms is the margin). Whoever takes earlier, by a
 * majority, fences the former holder: it sees the higher number at its next renewal, and before it
 * publishes anything (lease_check()). Neither wall clock nor times of files are used. The clock stands
 * still while a host sleeps (suspended): what wakes up believes for the rest of hold_ms that it holds,
 * and publishes nothing either, for the same reason.
 *
 * Crash of the storage: record and directory are synced before a number counts as taken, so a number
 * is never given twice. Beats are not synced: after a crash one may be older than it was, or gone;
 * to a watcher that is a change like any other, so it waits once more.
 *
 * A damaged, foreign or huge file of such a name takes its number all the same: somebody's, unknown
 * whose, over when nothing has changed for watch_ms. Other names are not looked at. The record is read
 * with every look: a holder whose record was removed or changed by a hand has lost the lease, also if
 * another has taken the same number meanwhile.
 *
 * Threads: one of its own does all that touches the storage and may hang as long as that does; no
 * call here waits for it without a bound. Calls: any thread, but lease_close(). */
#ifndef CKPT_LEASE_H
#define CKPT_LEASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct lease;

enum {
    LEASE_TEXT_BYTES = 256,
    LEASE_NAME_BYTES = 128,
    LEASE_MEMBERS_MAX = 4096,
};
#define LEASE_NOBODY UINT32_MAX /* as a rank: unknown */

struct lease_state {
    uint64_t answered; /* all that was asked with a ticket up to this one is dealt with */
    bool is_known;     /* the storage was read at least once; else the rest is empty */
    uint64_t token;    /* newest number on the storage; 0: none */
    bool is_mine;      /* we took it and have not lost it; lease_hold_until() says for how long */
    bool is_over;      /* released, not renewed for watch_ms, or ours but lost; false for token 0 */
    uint32_t holder;   /* rank; LEASE_NOBODY if its record cannot be read */
    char incarnation[17]; /* of the holder, 16 hex digits; "" if unknown */
    char name[LEASE_NAME_BYTES]; /* of the holder, for people; "" if unknown */
    bool is_same_place;      /* the holder has our name and runs, or ran, on this host: not both of us can listen */
    uint32_t n_members;      /* of the group that the holder recorded; 0 if unknown */
    const uint32_t *members; /* their ranks, as they were given; valid during the call */
    bool is_reachable;       /* all that was done last worked; if not, the rest may be older */
    char text[LEASE_TEXT_BYTES]; /* how it is, for people: whose it is, or what is wrong */
};

struct lease_opts {
    const char *directory; /* made when a lease is taken; copied */
    uint32_t rank;         /* ours */
    const char *name;      /* "worker 1 (10.0.0.2:2222)", for people; copied */
    const char *host;      /* equal for processes that cannot listen on the same address; NULL: unknown; copied */
    uint64_t incarnation;  /* of this process: no two share it */
    uint64_t hold_ms, watch_ms;
    /* From the lease's thread: something of the state has changed, or something asked for is dealt
     * with. It may call what does not wait: all but lease_close(),
     * lease_check() and lease_release() with a time to wait. */
    void (*on_change)(void *arg, const struct lease_state *s);
    void *arg;
};

/* Nothing is touched before something is asked. Errors: ERR_NOMEM, ERR_IO (no thread), ERR_INPUT
 * (hold_ms < 10, or not less than watch_ms). */
int lease_open(const struct lease_opts *opts, struct lease **out, struct err *err);
/* Releases nothing. on_change is not called any more when this returns, which is at once but where
 * the storage hangs: then after a tenth of a second, and the thread frees what is left when it
 * comes back. NULL is fine. */
void lease_close(struct lease *l);

/* Each of these asks the thread for something, soon, and gives a ticket: on_change is called in any
 * case once it is dealt with (`answered`), whatever came of it. Nothing is tried again by itself. */

/* Takes number after_token + 1 for this group, if after_token is still the newest (0: none is there
 * yet), be it over or not, ours or not: the holder records another group in this way, and keeps the
 * old number until it has the new one. The outcome is in the state: is_mine with the new token, or
 * not. A wish that the thread has not begun with is replaced by a later one. n <=
 * LEASE_MEMBERS_MAX; copied. */
uint64_t lease_take(struct lease *l, uint64_t after_token, const uint32_t *members, uint32_t n);
/* Looks now, and renews if it is ours. */
uint64_t lease_refresh(struct lease *l);
/* Gives up what we hold, at once (lease_hold_until() is 0), and says so on the storage. Waits for
 * that for at most wait_ms; true: it is dealt with. A wish to take that has not begun is forgotten. */
bool lease_release(struct lease *l, uint64_t wait_ms);

/* on: looks every hold_ms / 6 while the lease is not ours. Off at first. */
void lease_watch(struct lease *l, bool on);

/* clock_ns() up to which we may act as the holder; 0: not at all. No locks. */
uint64_t lease_hold_until(const struct lease *l);

/* For how long the storage has failed or not answered, in milliseconds; 0: the last operation worked and none is late.
 * No locks. */
uint64_t lease_trouble_ms(const struct lease *l);

/* Before something is published that only the holder may: a look at the storage that began after
 * this call says that ours is still the newest number, and we hold it. Waits for that as long as
 * we hold it and no longer, so hold_ms at most. Errors: ERR_REFUSED (fenced, or not held), ERR_IO
 * (it could not be seen; it may be tried again). */
int lease_check(struct lease *l, struct err *err);

#endif
