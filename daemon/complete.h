/* complete.h - decides whether the job is already complete. A task that is started again after the
 * end of the job exits without joining the group, because the other tasks may no longer exist.
 *
 * A job is complete if its newest checkpoint has the digest of this job, is of the last step and
 * verifies, and if the exported model files exist where the job requests an export. If an export is
 * missing, the group must form again to write it. A job without checkpoints is never complete. */
#ifndef DAEMON_COMPLETE_H
#define DAEMON_COMPLETE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckpt_meta;
struct conf;
struct err;
struct train_opts;

/* Returns true if a checkpoint is of the last step of the job. */
bool complete_is_last_step(const struct conf *c, const struct ckpt_meta *m);
/* Returns true if the job is complete; `text` [n] then names the checkpoint and the remedy. Reads
 * the manifests, and all bytes of a checkpoint only if it is of the last step; `on_progress` is
 * called meanwhile, as by ckpt_verify(). Returns false if a file cannot be read; the function that
 * opens the checkpoint for training then reports the error. */
bool complete_already(const struct conf *c,
                      void (*on_progress)(void *arg, uint64_t done, uint64_t all), char *text,
                      size_t n);
/* Returns true if checkpoint.directory has the checkpoint of the last step: its manifest, and its files with
 * their sizes, which are not read. Else `text` [n] states what was found. The job has the directory. Fault
 * point: complete.find, before the directory is read; `fail`: as if the checkpoint were absent. */
bool complete_find(const struct conf *c, char *text, size_t n);
/* complete_already() or complete_find() on a thread of its own, because a storage may hang for any time. */
struct complete_check;
enum complete_state { COMPLETE_UNKNOWN, COMPLETE_NO, COMPLETE_YES };
enum complete_depth { COMPLETE_FIND, COMPLETE_VERIFY };
/* Starts a check. The job is copied. On success the caller owns *out. Errors: ERR_IO, ERR_NOMEM. */
int complete_check_start(const struct conf *c, enum complete_depth depth,
                         struct complete_check **out, struct err *err);
/* Any thread; never blocks for long. The result is known: `text` [n] is that of the function. */
enum complete_state complete_check_state(struct complete_check *k, char *text, size_t n);
/* Ends the use of a check; one that hangs frees itself when it ends. NULL is allowed. */
void complete_check_free(struct complete_check *k);

/* Checks that the checkpoints of a complete job belong to the current content of the model file.
 * Reads the model. Errors: ERR_INPUT, the model differs; the text has the remedy. Other codes: the
 * model cannot be read. */
int complete_check_model(const struct train_opts *train, struct err *err);

#endif
