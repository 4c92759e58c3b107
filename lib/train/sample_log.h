/* sample_log.h - a text file for each task with the samples of each step. The files prove to an
 * external reader that no sample is lost and none is used twice, whichever tasks were killed at
 * which time.
 *
 *   open TIME PID                           a process starts to append
 *   give GROUP STEP LANE SAMPLE...          the task is about to contribute this lane to the step
 *   done GROUP STEP TIME                    the step is agreed and will be applied by this task
 *   lost N                                  the storage stalled, and N lines of this place were dropped
 *
 * GROUP is the generation, a point, and 8 hexadecimal digits that no other group has: generations
 * start at 1 again when all tasks that knew the number have ended. TIME is in microseconds since
 * 1970. SAMPLE is the number of a sample in the order of the files (with data.pack that of a pack);
 * the samples are in the order of the batch, without those of weight zero. A line that ends in
 * "# torn" was truncated by the end of its writer, and so was a last line without a newline.
 *
 * The files of all tasks together determine every step. "give" is written before the task's last
 * contribution to the all-reduce of a step. So the lanes of every finished all-reduce are in the
 * files, also if their tasks were killed immediately or aborted the step. "done" is written after
 * the commit gate and before the update. So a task that holds the state after the step has written
 * "done". Both hold while the storage answers within SAMPLE_FILE_WAIT_MS (sample_file.h). A storage that
 * stalls does not delay the steps: the lines wait in a queue of 16 MiB, which a kill loses, and lines that
 * do not fit are counted in a line "lost", which an examination of the files must not ignore.
 *
 * A step counts as applied in group g if a "done" names it; then all lanes of (g, step) must be in
 * the files. A step without "done" was not applied and is repeated in a later group; so is,
 * possibly, a step whose holders were all killed. All repetitions must name the same samples. The
 * repetition that counts follows from the end: a group received its state from a member that had
 * finished the previous step, or from a checkpoint. The order of groups needs no clock: in the file
 * of a task that was in both groups the later one is below the other.
 *
 * A kill between two steps leaves whole lines. Threads: sample_log_batch() and sample_log_write() are called by the replica's thread, the
 * others by any. All functions accept NULL: no log. */
#ifndef TRAIN_SAMPLE_LOG_H
#define TRAIN_SAMPLE_LOG_H

#include <stddef.h>
#include <stdint.h>

struct data_batch;
struct err;
struct sample_log;

struct sample_log_opts {
    const char *path;    /* created if it does not exist, else appended to; copied */
    uint32_t replicas;   /* number of replicas of this task */
    uint32_t lanes;      /* maximum number of lanes of a replica */
    uint32_t lane_batch; /* number of samples of a lane */
    /* Lines are lost; `text` is a sentence for the log. Called by the thread that drops the first line of a gap,
     * and by sample_log_close(). May be NULL. */
    void (*on_loss)(void *arg, const char *text);
    void *arg;
};

/* Errors: ERR_NOENT, ERR_REFUSED, ERR_INPUT (not a file), ERR_IO, ERR_NOMEM. */
int sample_log_open(const struct sample_log_opts *opts, struct sample_log **out, struct err *err);
void sample_log_close(struct sample_log *l);

/* Sets the next group. Called before its threads start. `key` is unique to the group. Discards
 * lanes that were not written. */
void sample_log_group(struct sample_log *l, uint64_t generation, const void *key, size_t n_key);
/* Stores the samples of a lane that `replica` is about to compute. */
void sample_log_batch(struct sample_log *l, uint32_t replica, const struct data_batch *b);
/* Appends the "give" lines of the stored lanes. Called before the replica's last contribution.
 * Errors: ERR_FULL, ERR_IO, also those of an earlier call; the step must then not continue. */
int sample_log_write(struct sample_log *l, uint32_t replica, struct err *err);
/* Appends the "done" line. Called after the commit gate and before the update, by one replica of
 * the process. The next sample_log_write() reports a failure, because this step is already
 * agreed. */
void sample_log_done(struct sample_log *l, uint64_t step);

#endif
