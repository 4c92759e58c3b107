/* judge.h - finds the task or the pair that differs from the others. Pure.
 *
 * A fault of a pair is attributed to a task if the task has it with more than half of the others, else
 * it is reported for the pair. Latency and rate of a task are those of its best pair, so that one bad
 * task does not make the others look bad; they are compared with the median of all tasks. */
#ifndef PREFLIGHT_JUDGE_H
#define PREFLIGHT_JUDGE_H

#include <stdint.h>

#include "preflight/types.h"

struct preflight_findings {
    struct preflight_finding *at; /* owned; [n], free() */
    uint32_t n;
};

/* Limits of what counts as equal. */
enum {
    JUDGE_RTT_FACTOR = 4,     /* a round trip above 4 times the median and ... */
    JUDGE_RTT_US = 1000,      /* ... 1 ms is an outlier; below, the scheduler decides */
    JUDGE_RATE_FACTOR = 3,    /* as is a rate below a third of the median */
    JUDGE_PAIR_FACTOR = 8,    /* or, of one direction among many, below an eighth */
    JUDGE_SKEW_US = 500000,   /* and a clock that differs from the median by 0.5 s */
};

/* Appends nothing but fills *out, in the order of tasks and topics. Errors: ERR_NOMEM. */
struct err;
int judge(const struct preflight_table *t, struct preflight_findings *out, struct err *err);

/* Sets *us to the clock of each task [world] minus that of the first task with a row, INT64_MIN for a
 * task whose clock was not compared. Errors: ERR_NOMEM. */
int judge_clocks(const struct preflight_table *t, int64_t *us, struct err *err);
/* The best pair of a task: its shortest round trip in us and its highest rate in bytes/s, 0 if none was
 * measured. A pair is as good as the worse of its two directions. */
uint32_t judge_best_rtt(const struct preflight_table *t, uint32_t task);
uint64_t judge_best_rate(const struct preflight_table *t, uint32_t task);
/* The lowest rate of any measured direction, 0 if none was measured. */
uint64_t judge_slowest(const struct preflight_table *t);

#endif
