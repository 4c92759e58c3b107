/* advice_priv.h - what the files of the advice share: advice.c judges, advice_reduce.c finds who causes
 * waits for the all-reduce, advice_values.c compares values of tasks. */
#ifndef DAEMON_ADVICE_PRIV_H
#define DAEMON_ADVICE_PRIV_H

#include "daemon/advice.h"

#define ADVICE_NO_SINGLE_TASK "no single task"

/* The two tasks with the largest values. */
struct advice_rank {
    uint32_t first, second; /* ranks; n of the group: no such task */
    double largest, next;   /* their values; 0: no such task */
};
/* value(arg, rank) of each task that has a window. */
struct advice_rank advice_rank(const struct advice_group *g,
                               double (*value)(const void *arg, uint32_t rank), const void *arg);
/* Returns true if the runner-up is at least 10 % smaller. */
bool advice_is_certain(double largest, double next);
/* Returns the lower median of value(arg, rank) of the tasks that have a window. */
double advice_median(const struct advice_group *g, double (*value)(const void *arg, uint32_t rank),
                     const void *arg);
double advice_seconds_per_lane(const void *group, uint32_t rank);
/* Waits for processors. A step of busy hosts takes longer in turns on each of them; no link and no clock is then to blame.
 *
 * Returns true if such waits of the tasks other than `except` (rank; UINT32_MAX: none) explain most of `seconds` of a step:
 * those of the two tasks that wait longest, since one step rarely meets more. */
bool advice_is_busy(const struct advice_group *g, double seconds, uint32_t except);
/* Fills in culprit, text and remedy: the processors of one task, if it waits three times as long as any other. */
void advice_explain_busy(const struct advice_group *g, struct rdzv_advice *out);
/* Appends a text to a field of the sentence; a text that is too long is cut. */
void advice_add(char *out, size_t n_out, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* advice_reduce.c: waits for the all-reduce, as parts of a step, without those for tasks that are late in turns on busy
 * hosts. */
struct advice_rank advice_reduce_waits(const struct advice_group *g);
/* Fills in culprit, text and remedy. */
void advice_explain_reduce(const struct advice_group *g, double limit, struct rdzv_advice *out);

#endif
