/* run.h - the life cycle of a task; connects the control plane and the compute plane.
 *
 *   control plane (loop)                          compute plane
 *   rdzv, with the membership inside              train
 *        on_train, on_pause, on_abort, on_save ──>  start, request, abort, save
 *        connected, paused, aborted, complete,
 *        failed, saved                         <──  train_end results, posted to the loop
 *        on_lease ──> lease (its own thread)   ──>  rdzv_lease
 *        on_end ──> exit code
 *
 * A process runs one generation after another; model, data and state stay open between them.
 * Without a cluster there is no rdzv, and the group of a generation is this task alone. */
#ifndef DAEMON_RUN_H
#define DAEMON_RUN_H

#include <stdbool.h>

struct launcher;
struct settled;

struct run_opts {
    const struct settled *settled;
    const struct launcher *launcher; /* the task ends with it */
    const char *metrics_listen; /* host:port; NULL: no HTTP */
    const char *metrics_hosts;  /* further names of the server, separated by commas; NULL: none */
    /* --log-level was used and has priority over log.level of the job */
    bool level_is_given;
};

/* Runs the task to its end on the calling thread, which becomes the loop's thread. Called once for
 * each process. Returns the exit code (0, 2, 138, 143). */
int run_task(const struct run_opts *opts);

/* Maps an error code to an exit code: 2 if a retry cannot help, else 138. */
int run_exit_code(int err_code);

#endif
