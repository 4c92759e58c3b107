/* residual.h - codes with residuals in a step: what a replica sends instead of the gradient of coded parameters, and
 * the residuals of its groups of lanes (micro-batches).
 *
 *   when                              top_k                            power_sgd
 *   the last lane of group g is done  x = gradient + residual of g     the same
 *                                     message of g = its largest numbers
 *   reduction, other numbers          all-reduced in float32           all-reduced in float32, with P = sum of x Q
 *   reduction, coded parameters       all messages are gathered; each  Q' = sum of x^T P is all-reduced; the gradient
 *                                     replica decodes and adds them    becomes P Q'^T
 *                                     along the tree over groups
 *   the step is applied               residual of g = what was not     residual of g = x - P (x^T P)^T; Q = Q'
 *                                     sent
 *   the step is not applied           nothing changes                  nothing changes
 *
 * Each replica has one whole group or several, so nothing else has to know the sum of a group. Both kinds of sums
 * follow the tree over groups, so the bits do not depend on the number of tasks. Nothing is reduced while backward
 * computes.
 *
 * The residual of a group is only up to date in the task that has its lanes; the caller copies it to the other tasks
 * (train/copies.h).
 *
 * The functions of a step and of a generation are of CPUs; those of GPUs are in gpu_residual.h.
 *
 * Threads: the replica's, unless stated otherwise. */
#ifndef ENGINE_RESIDUAL_H
#define ENGINE_RESIDUAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine;
struct engine_replica;
struct err;
struct memory_opts;

/* Fills in e->residual, and the floats that its state and exchanges need in *m, whose layout of gradients is known.
 * Task. Errors: ERR_NOMEM. */
int residual_open(struct engine *e, struct memory_opts *m, struct err *err);
void residual_close(struct engine *e); /* idempotent */
/* Reports to on_note what the generation codes, if the job has such a code. Task. */
void residual_note(const struct engine *e);
/* Has the job such a code? Does this generation use it? Any thread. */
bool residual_exists(const struct engine *e);
bool residual_is_on(const struct engine *e);

/* Called at the start of a generation: memory for what the replica does not send. Errors: ERR_NOMEM. */
int residual_begin(struct engine_replica *r, struct err *err);
void residual_end(struct engine_replica *r); /* at its end; idempotent */

/* The replica's lane-th lane completes a group, whose gradient is `grads`. */
void residual_take_group(struct engine_replica *r, uint32_t lane, const float *grads);
/* All-reduces floats [0, end) of gradient arena 0. Errors: as reduce() of the engine. */
int residual_reduce(struct engine_replica *r, size_t end, struct err *err);
/* The step is applied: replaces the residuals of the replica's groups, and the factors Q of the task. */
void residual_apply(struct engine_replica *r);

/* Bytes that the replica sends to other hosts in a step, and those of float32. */
void residual_count(const struct engine_replica *r, uint64_t *sent, uint64_t *plain);

/* Lanes of a group; floats of the residual of a group, and where it is in the state. Any thread. */
uint32_t residual_group_lanes(const struct engine *e);
size_t residual_floats(const struct engine *e);
float *residual_of_group(const struct engine *e, uint32_t group);

#endif
