/* run.h - the life of a task: the place where the two planes meet.
 *
 *        control plane (loop)                         compute plane
 *   rdzv: join ... view ────────┐
 *                               ├─ both there: train_start ── steps ── on_end ──┐
 *   opener thread: train_open ──┘                                               │
 *   rdzv: complete / stopped / failed  <────────────── posted to the loop ──────┘
 *   rdzv: on_end -> exit code
 *
 * Without a cluster there is no rdzv: the view is this task alone. */
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
