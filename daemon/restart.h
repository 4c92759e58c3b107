/* restart.h - prepares a complete job to be trained again.
 *
 * The checkpoint directory is renamed and nothing is deleted: the old checkpoints remain at the
 * path that the log states until a person removes them. Only the checkpoints of a complete job are
 * renamed. A process that a supervisor starts again with the same arguments therefore finds
 * checkpoints of the new, incomplete run and continues from them.
 *
 * A task of a group must not rename the directory, because the other tasks start at other times and
 * would find other checkpoints. For a group the directory is renamed once, before any task starts
 * (`trainerctl restart`, `trainerctl local --restart`). */
#ifndef DAEMON_RESTART_H
#define DAEMON_RESTART_H

#include <stddef.h>

struct conf;
struct err;

/* Renames the checkpoint directory of a complete job. No task of the job may run during the call.
 * On success `text` [n] is a log line: the new name, or the reason why nothing was renamed.
 * Errors: ERR_INPUT (the job writes no checkpoints, or no name is free), ERR_IO, ERR_NOMEM. */
int restart_set_aside(const struct conf *c, char *text, size_t n, struct err *err);

#endif
