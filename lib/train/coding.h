/* coding.h - whether a job compresses its gradients: decided once, then part of the state.
 *
 *   communication.compression.when   decided
 *   always                           by the job
 *   network                          at the first step that the job applies: on, if the coordinator's group
 *                                    reduces over a network. Agreed by all tasks, kept in the facts of the
 *                                    state and in the manifest of checkpoints, and never decided again
 *
 * A generation that applies no step leaves no decision: the facts change with the state.
 *
 * Threads: the first replica's. */
#ifndef TRAIN_CODING_H
#define TRAIN_CODING_H

#include <stdbool.h>

#include "train/state.h"

struct agreement;
struct ckpt_meta;
struct err;
struct train;
struct train_opts;

/* Refuses jobs that cannot be compressed here. Errors: ERR_INPUT, ERR_UNSUPPORTED. */
int coding_check(const struct train_opts *o, struct err *err);
/* Called when a generation begins and the task holds the agreed state: sets the decision of the engine's
 * group. */
void coding_adopt(struct train *t, const struct agreement *a);
/* The decision as a fact of the state after a step of this generation. */
enum coding coding_fact(const struct train *t);

/* The decision in a manifest: "" undecided, or no compression; "none" off; the code's name: on. */
const char *coding_text(const struct train_opts *o, enum coding c);
enum coding coding_from_text(const struct train_opts *o, const char *text);

/* Groups whose residuals the state has; 0: none. */
uint32_t coding_residual_groups(const struct train_opts *o);
/* Refuses a checkpoint at `path` with residuals that the job cannot continue. One without residuals is accepted:
 * they begin at zero. Errors: ERR_INPUT. */
int coding_check_resume(const struct train_opts *o, const struct ckpt_meta *meta, const char *path,
                        struct err *err);

#endif
