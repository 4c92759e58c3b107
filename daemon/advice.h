/* advice.h - compares the windows of the tasks of a group with the limits of the job, and names the
 * cause of what is beyond them. Pure: time is a parameter.
 *
 * A warning begins when a value is beyond its limit in two successive windows, and ends when the
 * excess is below 0.75 of that of the limit: of shares and times the excess is the value, of
 * lane_spread value - 1, of device_use 1 - value. While it lasts, its sentence has the numbers of the
 * last window; it is issued again, for the logs, at most every repeat_seconds. A sentence with another
 * culprit is issued at once: it is news.
 *
 * A cause is named if it is certain: the runner-up is at least 10 % smaller. Else the culprit is
 * "no single task". */
#ifndef DAEMON_ADVICE_H
#define DAEMON_ADVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "opts/advice.h"
#include "rdzv/window.h"

struct advice_task {
    const char *name;                 /* "worker 1"; borrowed */
    const struct rdzv_window *window; /* borrowed; NULL: the task has none, and is ignored */
};

/* The tasks of the cluster by rank; the waits of a window refer to these. */
struct advice_group {
    const struct advice_task *tasks; /* [n] */
    uint32_t n;
};

/* The last issue of each of the culprits of one kind that were named last. */
enum { ADVICE_ISSUES = 8 };
struct advice_issues { /* initially zeroed */
    struct {
        uint64_t time_us; /* 0: never */
        char culprit[RDZV_CULPRIT_BYTES];
    } at[ADVICE_ISSUES];
};

struct advice_state { /* initially zeroed */
    struct {
        uint32_t n_beyond; /* successive windows beyond the limit */
        bool is_active;
        struct advice_issues issues;
    } kinds[ADVICE_KINDS];
};

const char *advice_kind_name(enum advice_kind kind);
/* Judges one window of each task, measured at about the same time. Writes the present advice to `out`
 * [ADVICE_KINDS] and returns its number. now_us: us since 1970, for the time of issue. */
uint32_t advice_judge(struct advice_state *s, const struct advice_limits *limits,
                      const struct advice_group *g, uint64_t now_us, struct rdzv_advice *out);
/* Records the issue of a sentence; the culprit with the oldest issue is forgotten. Returns false if it is
 * recorded already. */
bool advice_record(struct advice_issues *i, const struct rdzv_advice *x);
/* States that this sentence was issued by another leader. A kind of a later version is ignored. */
void advice_was_issued(struct advice_state *s, const struct rdzv_advice *x);

#endif
