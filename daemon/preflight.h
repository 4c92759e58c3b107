/* preflight.h - runs lib/preflight for a task of a cluster: converts the settled options, and reports
 * for trainerd. Threads: the main thread, before the loop runs. */
#ifndef DAEMON_PREFLIGHT_H
#define DAEMON_PREFLIGHT_H

#include <stdint.h>

#include "preflight/preflight.h"

struct err;
struct settled;
struct train_facts;

struct preflight_task_list {
    struct preflight_task *at; /* owned; [n] by rank */
    char (*names)[64];         /* owned; [n] */
    uint32_t n;
};

/* The tasks of the cluster. On success the caller calls preflight_tasks_free(). Errors: ERR_INPUT (no
 * cluster, no training task, or too many tasks), ERR_NOMEM. */
int preflight_tasks(const struct settled *s, struct preflight_task_list *out, struct err *err);
void preflight_tasks_free(struct preflight_task_list *l);

/* Fills the options except limit_ms, yields, is_stopped and the measured facts of the model. */
void preflight_options(const struct settled *s, const struct preflight_task_list *tasks,
                       struct preflight_opts *out);

/* For trainerd: measures for at most `seconds` and logs what differs; the first task that was
 * measured logs the matrix. Ends early if a stop signal is pending, or a task already trains. Faults are
 * logged as warnings, and never prevent the start: training reports those that it cannot tolerate. */
void preflight_before_start(const struct settled *s, double seconds);

#endif
