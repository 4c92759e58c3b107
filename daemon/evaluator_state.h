/* evaluator_state.h - what an evaluator remembers between two processes: evaluator.json in its folder.
 * Also the choice of the next checkpoint. Threads: one at a time. */
#ifndef DAEMON_EVALUATOR_STATE_H
#define DAEMON_EVALUATOR_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/keep.h"

struct err;

struct evaluator_state {
    char job_digest[65];     /* of the last evaluated checkpoint; "": none */
    uint64_t evaluated_step; /* of it; 0: none */
    bool has_best;
    uint64_t best_step;
    double best; /* finite; of the metric below */
    char metric[64];
    bool higher_is_better;
};

/* Reads the state from the folder. An absent file, and one of another metric or mode (*is_other is
 * set then), leave *s empty except for metric and mode, which the caller has set. Errors: ERR_INPUT
 * (the file is damaged; the text has the remedy), ERR_IO, ERR_NOMEM. */
int evaluator_state_read(const char *folder, struct evaluator_state *s, bool *is_other,
                         struct err *err);
/* Replaces the file atomically. Errors: ERR_IO, ERR_FULL, ERR_NOMEM. */
int evaluator_state_write(const char *folder, const struct evaluator_state *s, struct err *err);

/* Locks the folder for this process, until *fd is closed or the process ends. *fd -1: the file system
 * has no locks. Errors: ERR_EXISTS (another process holds the lock), ERR_IO, ERR_NOMEM. */
int evaluator_lock(const char *folder, int *fd, struct err *err);

/* Forgets the evaluations; keeps metric and mode. */
void evaluator_state_reset(struct evaluator_state *s);
/* Records the value after a step. Returns true if it is the best one; a value that is not finite
 * never is. */
bool evaluator_state_record(struct evaluator_state *s, const char *job_digest, uint64_t step,
                            double value);

/* Checkpoints that did not verify: skipped until their folder is replaced. */
struct evaluator_damaged {
    struct ckpt_entry at[64];
    uint32_t n, next; /* entries in use; the one that is overwritten next */
};

void evaluator_damaged_add(struct evaluator_damaged *d, const struct ckpt_entry *e);

/* Chooses the checkpoint to evaluate next: the oldest one after `evaluated_step`; but the newest one
 * if two or more were published after `newest_seen`, the newest checkpoint when the last evaluation
 * began: evaluations are slower than the job then. newest_seen 0: no evaluation yet. *skipped: the
 * number of older ones that are skipped. Returns the index into entries [n], or -1: none. */
ptrdiff_t evaluator_choose(const struct ckpt_entry *entries, size_t n, uint64_t evaluated_step,
                           uint64_t newest_seen, const struct evaluator_damaged *damaged,
                           size_t *skipped);

#endif
