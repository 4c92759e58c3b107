/* outputs.h - tries the places to which a job writes, before its first step.
 *
 * Threads: any; called on the thread that opens model and data. */
#ifndef DAEMON_OUTPUTS_H
#define DAEMON_OUTPUTS_H

struct err;
struct settled;

/* Tries the folders of checkpoints and curves and the files of the export, or the folders of an evaluator, with the
 * calls that they need (base/fs_probe.h), each for at most a quarter of train.deadline_seconds. A failure that may pass
 * (no space, a server that does not answer) is logged as a warning: the writes are tried again. Errors: ERR_INPUT, whose
 * text names the key: a retry fails in the same way; those of thread_start(). */
int outputs_check(const struct settled *s, struct err *err);

#endif
