/* reload.h - SIGHUP and trainerctl reload: reads the job file again and applies the keys that may change while the job
 * runs.
 *
 * A file that is invalid, or in which any other key differs, is refused as a whole: the log names
 * the place and the remedy, and the job continues unchanged. The table of lib/conf (and --schema)
 * lists the keys that may change; reload.c applies each of them. Each change is a line of the log:
 * /checkpoint/every_steps: 100 -> 20.
 *
 * A separate thread reads the file and opens and closes curve files, so that the loop never waits
 * for a disk. All signals that arrive during a reload cause one more reload after it. */
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

/* ---- differences of two jobs; pure, any thread ---- */
enum { RELOAD_CHANGES_MAX = 16, RELOAD_VALUE_BYTES = 160 };

struct reload_changes {
    uint32_t n;
    struct reload_change {
        char pointer[64];
        char from[RELOAD_VALUE_BYTES], to[RELOAD_VALUE_BYTES]; /* JSON; long values end in "..." */
        bool is_overridden; /* --log-level has priority over the new value */
    } list[RELOAD_CHANGES_MAX];
};
/* Lists the changed keys that may change.
 * Errors: ERR_REFUSED, a key differs that must not change (the text has the first such key, both
 * values and the number of others); ERR_NOMEM. */
int reload_compare(const struct conf *was, const struct conf *now, struct reload_changes *out,
                   struct err *err);

/* ---- reloading; the loop's thread ---- */
struct reload_opts {
    struct loop *loop;
    /* the job at the start of the process; borrowed until reload_close() */
    const struct conf *conf;
    struct report *report;   /* borrowed until reload_stop() */
    bool level_is_given;     /* --log-level was used and has priority over the job */
    /* Reload `number` is finished; loop's thread. `error` NULL: the changes are in force; else the
     * reason of the refusal. NULL: not called. */
    void (*on_done)(void *arg, uint64_t number, const struct reload_changes *changes, const char *error);
    void *arg;
};
/* Errors: ERR_NOMEM. */
int reload_open(const struct reload_opts *opts, struct reload **out, struct err *err);
/* Called when training is open. Applies earlier changes to it. `t` is borrowed until
 * reload_stop(). */
void reload_train(struct reload *r, struct train *t);
/* Called for each SIGHUP and Control.Reload. Starts a reload, or schedules one if a reload is running.
 * Returns the number, from 1, of the reload that reads the file after this call; 0: none can start,
 * because no thread is available (which is logged) or after reload_stop(). */
uint64_t reload_start(struct reload *r);
bool reload_is_running(const struct reload *r);
/* Ends all changes; called before training and reports are closed. Waits at most a second for a
 * disk. NULL is accepted. */
void reload_stop(struct reload *r);
/* Called after reload_stop() and loop_close(). Never waits: if the thread is stuck, the thread
 * frees the memory. NULL is accepted. */
void reload_close(struct reload *r);

#endif
