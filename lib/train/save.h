/* save.h - checkpoints and the exported model: the work of the coordinator between steps.
 *
 * Threads: local replica 0's, within the next step when the state was compared, and after the last
 * step; for train_save() the caller's, when no generation runs. No thread writes the state before
 * this replica has come to the commit gate of the next step. So the copy needs no barrier. */
#ifndef TRAIN_SAVE_H
#define TRAIN_SAVE_H

#include <stdbool.h>
#include <stdint.h>

struct ckpt_trouble;
struct err;
struct train;

/* When no task holds state: the newest checkpoint, if there is one, becomes the held state. */
int save_load_newest(struct train *t, struct err *err);
/* Is a checkpoint due after `step`, and can the writer accept it? Then save_if_due() is called when
 * that state may be saved, and for no other step meanwhile. */
bool save_is_due(struct train *t, uint64_t step);
bool save_if_due(struct train *t, uint64_t step); /* true: a copy went to the writer */
/* ERR_DEVICE: checkpoints of this task repeatedly read back wrong, and another member can write
 * them. */
int save_check_storage(struct train *t, struct err *err);
/* What is wrong with the storage; all zero before this task first writes. Any thread. */
void save_trouble(const struct train *t, struct ckpt_trouble *out);
/* Waits until the checkpoint of `step` is verified. Gives up early where another member can write
 * it. */
int save_now(struct train *t, uint64_t step, uint64_t wait_ms, struct err *err);
/* Another task coordinates now: what is on its way to the disk is not published. */
void save_leave(struct train *t);
/* Writes the trained model, as the job asks. */
int save_export(struct train *t, struct err *err);

#endif
