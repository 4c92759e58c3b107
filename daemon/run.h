/* run.h - the life of a task: the place where the two planes meet.
 *
 *   control plane (loop)                          compute plane
 *   rdzv, with the membership inside              train
 *        on_train, on_pause, on_abort, on_save ──>  start, request, abort, save
 *        connected, paused, aborted, complete,
 *        failed, saved                         <──  its ends, posted to the loop
 *        on_lease ──> lease (a thread of its own) ──> rdzv_lease
 *        on_end ──> exit code
 *
 * Generations follow each other in one process; model, data and state stay open. Without a cluster
 * there is no rdzv: one generation of this task alone. */
#ifndef DAEMON_RUN_H
#define DAEMON_RUN_H

#include <stdbool.h>

struct settled;

struct run_opts {
    const struct settled *settled;
    const char *metrics_listen; /* host:port; NULL: no HTTP */
    bool level_is_given;        /* --log-level: the job's log.level does not count */
};

/* Runs the task to its end; returns the exit code (0, 2, 138, 143). */
int run_task(const struct run_opts *opts);

/* Exit code of an error: 2 where a retry cannot help, else 138. */
int run_exit_code(int err_code);

#endif
