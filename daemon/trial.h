/* trial.h - whether a change of the group has shortened its steps as predicted, and when the next one may
 * follow. balance.h moves lanes, placement.h places tasks: each is a trial. Pure: time is a parameter.
 *
 * TRIAL_WINDOWS windows after a change the time of a step, their median, is compared with the prediction. If less than half
 * of the gain came, the least time between two changes doubles, up to TRIAL_MAX_SECONDS; else it is `seconds` again. If
 * nothing came, and the time is still no better after that wait, the change is taken back. */
#ifndef DAEMON_TRIAL_H
#define DAEMON_TRIAL_H

#include <stdbool.h>
#include <stdint.h>

enum {
    TRIAL_WINDOWS = 3,
    TRIAL_WARM_UP = 20, /* steps of a generation; windows that begin earlier are ignored */
    TRIAL_MAX_SECONDS = 960,
};

struct trial { /* initially zeroed */
    uint64_t generation, steps; /* of this generation so far */
    uint32_t n_windows;         /* kept, at most TRIAL_WINDOWS */
    double step_seconds[TRIAL_WINDOWS]; /* of the last windows, in order */
    double patience;            /* seconds between changes */
    /* The last change. */
    bool has_changed;
    uint64_t changed_ms;
    bool is_open;         /* not compared with its prediction yet */
    bool may_return;      /* nothing of its gain came */
    double before, after; /* seconds of a step: measured before it, predicted */
};

double trial_median(const double x[TRIAL_WINDOWS]);

/* Begins a generation if this one is new, and keeps no windows of the one before. Returns true then. */
bool trial_enter(struct trial *t, uint64_t generation);
/* Ends the trial without a comparison: others have changed the group meanwhile. */
void trial_drop(struct trial *t);
/* Counts the steps of a window. Returns false if it began in the warm-up, and is to be ignored. seconds: least time between
 * two changes. */
bool trial_counts(struct trial *t, uint64_t steps, double seconds);
/* Keeps the time of a step in a window; the oldest of TRIAL_WINDOWS windows is dropped. Returns true if there are so many. */
bool trial_keep(struct trial *t, double step_seconds);
/* Returns the median of the kept windows. There are TRIAL_WINDOWS. */
double trial_step(const struct trial *t);
/* Compares the last change with its prediction. most: what it saves at most, seconds of a step; INFINITY: not known. */
void trial_verify(struct trial *t, double seconds, double most);
bool trial_has_waited(const struct trial *t, uint64_t now_ms);
/* After the wait: is the change to be taken back? */
bool trial_returns(const struct trial *t);
/* Begins the trial of a change, or takes the last one back. before, after: as above. */
void trial_begin(struct trial *t, uint64_t now_ms, bool returns, double before, double after);

#endif
