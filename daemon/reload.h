/* reload.h - SIGHUP: the job file is read again, and what may change while the job runs changes.
 *
 * A file that is wrong, or that differs in anything else, is refused as a whole with place and remedy, and
 * the job goes on as before. Which keys may change stands in the table of lib/conf (and in --schema); what
 * is done about each, in reload.c. Each change is a line of the log: /checkpoint/every_steps: 100 -> 20.
 *
 * The file is read, and curves are opened and ended, on a thread of its own: the loop never waits for a disk.
 * Signals that come meanwhile are one more reading behind this one. */
#ifndef DAEMON_RELOAD_H
#define DAEMON_RELOAD_H

#include <stdbool.h>
#include <stdint.h>

struct conf;
struct err;
struct loop;
struct reload;
struct report;
struct train;

/* ---- what differs; pure ---- */
enum { RELOAD_CHANGES_MAX = 16, RELOAD_VALUE_BYTES = 160 };

struct reload_changes {
    uint32_t n;
    struct reload_change {
        char pointer[64];
        char from[RELOAD_VALUE_BYTES], to[RELOAD_VALUE_BYTES]; /* JSON, cut if long */
    } list[RELOAD_CHANGES_MAX];
};
/* Errors: ERR_REFUSED, something differs that may not (the first such key, both values, how many more);
 * ERR_NOMEM. */
int reload_compare(const struct conf *was, const struct conf *now, struct reload_changes *out, struct err *err);

/* ---- doing it; the loop's thread ---- */
struct reload_opts {
    struct loop *loop;
    const struct conf *conf; /* what the process began with; borrowed */
    struct report *report;
    bool level_is_given;     /* --log-level goes before the job */
};
int reload_open(const struct reload_opts *opts, struct reload **out, struct err *err);
/* Training is open: what was changed before goes to it too. Borrowed until reload_stop(). */
void reload_train(struct reload *r, struct train *t);
void reload_now(struct reload *r); /* SIGHUP */
bool reload_under_way(const struct reload *r);
/* Nothing changes any more: before training and reports are closed. Waits a second for a disk. NULL is
 * fine, here and below. */
void reload_stop(struct reload *r);
void reload_close(struct reload *r); /* behind loop_close() */

#endif
