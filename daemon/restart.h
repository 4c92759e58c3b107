/* restart.h - train a job again that is complete.
 *
 * The folder of checkpoints is renamed, and nothing is deleted: the last good checkpoint stays where the
 * log says until a person removes it. Only checkpoints of a complete job are moved. So a process that a
 * supervisor starts again with the same arguments finds checkpoints of the new run, which is not complete,
 * and goes on from them.
 * A task of a group must not decide this: the others start at other times and would find other
 * checkpoints. There the folder is moved once, before any task starts (`trainerctl restart`,
 * `trainerctl local --restart`). */
#ifndef DAEMON_RESTART_H
#define DAEMON_RESTART_H

#include <stddef.h>

struct conf;
struct err;

/* Moves the checkpoints of a complete job aside. `text`, always: what was done, or why nothing had to be,
 * for the log. No task of the job may run. Errors: ERR_INPUT (the job writes no checkpoints), ERR_IO, ERR_NOMEM. */
int restart_set_aside(const struct conf *c, char *text, size_t n, struct err *err);

#endif
