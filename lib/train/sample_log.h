/* sample_log.h - which samples went into which step: a text file per task, to prove from outside
 * that none is lost and none is used twice, whoever died when.
 *
 *   open TIME PID                           a process began to append
 *   give GROUP STEP LANE SAMPLE...          it is about to give its part of the step, for this lane
 *   done GROUP STEP TIME                    the step is agreed and will be applied here
 *
 * GROUP is the generation, a point, and 8 hex digits that no other group has: generations begin at
 * 1 again when nobody is left who remembers them. TIME is in microseconds since 1970. A SAMPLE is
 * its number in the order of the files (a pack's, with data.pack), in the order of the batch, those
 * of weight zero left out. A line that ends in "# torn" was cut off by the death of its writer; so
 * was a last one without a newline.
 *
 * The files of all tasks together settle every step. "give" is written before the task's last
 * contribution to the sum of a step: so whoever finished the sum finished it with lanes that stand
 * in some file, also if their tasks were killed at once, or gave up the step. "done" is written
 * behind the commit gate and before the update: so whoever holds the state after the step has said
 * so. A step counts as applied in group g if a "done" names it; then all lanes of (g, step) are
 * there, or something is wrong. What has no "done" was applied nowhere and comes again in a later
 * group, and so may a step whose every holder died; the lanes of all that did it must name the same
 * samples. The one that counts is found from the end: a group took its state from a member that had
 * done the step before its first, or from a checkpoint. Which group is later needs no clock: in the
 * file of a task that was in both it stands behind the other.
 *
 * Each replica appends with one write() a step, and a kill between two steps leaves whole lines.
 * Threads: sample_log_batch() and sample_log_give() belong to the replica's thread, the rest to
 * any. All take NULL: no log is wanted. */
#ifndef TRAIN_SAMPLE_LOG_H
#define TRAIN_SAMPLE_LOG_H

#include <stddef.h>
#include <stdint.h>

struct data_batch;
struct err;
struct sample_log;

struct sample_log_opts {
    const char *path;    /* appended to; made if it is not there; copied */
    uint32_t replicas;   /* that write here */
    uint32_t lanes;      /* of a replica, at most */
    uint32_t lane_batch; /* samples of a lane */
};

/* Errors: ERR_NOENT, ERR_REFUSED, ERR_INPUT (not a file), ERR_IO, ERR_NOMEM. */
int sample_log_open(const struct sample_log_opts *opts, struct sample_log **out, struct err *err);
void sample_log_close(struct sample_log *l);

/* The next group, before its threads begin. `key` is what its members alone have in common. Lanes
 * that were not given are forgotten. */
void sample_log_group(struct sample_log *l, uint64_t generation, const void *key, size_t n_key);
/* Notes a lane that `replica` is about to compute. */
void sample_log_batch(struct sample_log *l, uint32_t replica, const struct data_batch *b);
/* Appends what was noted, before the replica's last contribution. Errors: ERR_FULL, ERR_IO, also of
 * an earlier call; then the step must not go on. */
int sample_log_give(struct sample_log *l, uint32_t replica, struct err *err);
/* Behind the commit gate, by one replica of the process, before the update. A failure is that of
 * the next sample_log_give(): this step is agreed. */
void sample_log_done(struct sample_log *l, uint64_t step);

#endif
