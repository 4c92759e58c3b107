/* save.h - writes checkpoints, on the coordinator between steps.
 *
 * Threads: local replica 0's, within the next step when the state was compared, and after the last
 * step; for train_save() the caller's, when no generation runs. No thread writes the state before
 * this replica has reached the commit gate of the next step, so the copy needs no barrier. */
#ifndef TRAIN_SAVE_H
#define TRAIN_SAVE_H

#include <stdbool.h>
#include <stdint.h>

struct ckpt_failure;
struct err;
struct replica;
struct train;

/* Opens the writer of checkpoints, if it is not open yet. The job has a checkpoint directory. */
int save_open_writer(struct train *t, struct err *err);
/* Is a checkpoint due at once, whatever the step, and can it begin? The first replica's thread. */
bool save_is_wanted(const struct train *t);
/* If the coordinator needs an urgent checkpoint: waits until the previous one is written, a pause is
 * requested, or a limit is reached. The first replica's thread. Errors: ERR_CANCELED. */
int save_wait_for_previous(struct replica *r, struct err *err);
/* Is a checkpoint due after `step`, and can the writer accept it? Then save_if_due() is called when
 * that state may be saved, and for no other step meanwhile. */
bool save_is_due(struct train *t, uint64_t step);
bool save_if_due(struct train *t, uint64_t step); /* true: the writer received a copy */
/* Returns ERR_DEVICE if checkpoints of this task repeatedly fail verification and another member
 * can write them, else 0. */
int save_check_storage(struct train *t, struct err *err);
/* Copies the state of the storage; all zero before this task first writes. Any thread. */
void save_trouble(const struct train *t, struct ckpt_failure *out);
/* Waits at most wait_ms until the checkpoint of `step` is verified; returns earlier with an error
 * if another member can write it. */
int save_now(struct train *t, uint64_t step, uint64_t wait_ms, struct err *err);
/* Called by every replica when a generation pauses: the tables on parameter servers can be read only
 * before it ends, so the coordinator saves now what train_save() may be asked for at rest. Errors: as
 * save_now(). */
int save_before_rest(struct replica *r, uint64_t step, struct err *err);
/* Called when another task coordinates: a checkpoint that is being written is not published. */
void save_stop_publishing(struct train *t);

#endif
