/* complete.h - is there anything left to do? A task that is started again after the job is complete need not
 * meet the others, who may be gone, to say so.
 *
 * Complete is a job whose newest checkpoint is of this very job (by digest), of its last step and verifies,
 * and whose trained model, if one is asked for, is there: while it is missing somebody must export, so the
 * group meets. Without checkpoints nothing is remembered. */
#ifndef DAEMON_COMPLETE_H
#define DAEMON_COMPLETE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct conf;
struct err;
struct train_opts;

/* true: `text` says so and names the checkpoint. Reads manifests, and only a checkpoint of the last step whole,
 * telling `on_progress` (as ckpt_verify() does). What cannot be read is no answer: false, and who opens the
 * checkpoint for training says what is wrong. */
bool complete_already(const struct conf *c, void (*on_progress)(void *arg, uint64_t done, uint64_t all), char *text,
                      size_t n);
/* Whether the checkpoints of a complete job are of the model that its file holds now. Reads the model.
 * ERR_INPUT: they are of another model; the text has the remedy. Other errors: the model cannot be read. */
int complete_check_model(const struct train_opts *train, struct err *err);

#endif
