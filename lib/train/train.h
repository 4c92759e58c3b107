/* train.h - training steps, and the work between steps.
 *
 *   train_open    model, data, plans, memory, fresh weights. Knows no peers.
 *   train_start   one generation: connect, agree on the state, then step until it is done or ended
 *   ...           train_start again, with another group: state and weights stay in memory
 *   train_close
 *
 * Step k, in every replica thread: for each of its lanes forward and backward into a gradient
 * arena, lanes added along the binary tree; the sum over gradients (of embedding tables the rows
 * that were read, tables.c), statistics and a few control words of all replicas, begun while the
 * last lane computes where that pays; norm and clipping; the optimizer over this replica's part of
 * the shared weights. The control words carry the loss and the requests to pause, so all tasks
 * agree on them at the same step without another message. The weights after step k depend on the
 * options and on k, on nothing else: not on failures, nor on how many tasks were left to do the
 * work.
 *
 * Log lines. The coordinator reports step k (TRAIN_STEP, TRAIN_EVAL) before it contributes to the
 * sum of step k + 1, and no task has that sum without the coordinator's contribution. One control
 * word of that sum therefore informs every task whether the coordinator has written its log lines
 * of step k (TRAIN_LOGGED). Only the last step of a generation that fails stays undecided.
 *
 * Completeness of the state. A task holds the complete state after the step that train_held()
 * returns. Before the all-reduce of a step has succeeded in all replicas of the task, the state
 * does not change; after that the update runs to its end, whatever happens. So the steps that the
 * tasks of an ended generation hold differ by at most one. A state from a checkpoint or a peer is
 * read to separate memory (a second copy for that time) and replaces the current state when it is
 * complete and verified. With local SGD (outer.h) all of this holds for a period of steps in place of a
 * step. No other process can write to the memory of the state.
 *
 * Placement of lanes (micro-batches): the gradients of all lanes are summed along one binary tree
 * (base/lane_tree.h), by default ((0+1)+(2+3))+((4+5)+(6+7)) and so on. Each replica of a group computes one
 * subtree (comm_share()), and the all-reduce is the rest of the tree. The order of the additions,
 * and so every bit, is the same for any number of replicas.
 *
 * Threads: open, start, save, close belong to one thread at a time; train_request, train_abort,
 * train_held and train_progress may be called from any. Callbacks come from replica threads (and
 * from those that write checkpoints and traces) and must not block, nor call train_start() or
 * train_close().
 *
 * Fault points (base/fault.h), in the order in which a generation passes them. `fail` ends the
 * generation (from train.update on after the step, which is complete by then):
 *   train.thread         before the thread of a replica is started (fail: the system has none)
 *   train.connect        member by member, before it calls its peers
 *   train.load           member 0, before it looks for a checkpoint
 *   train.agree          before the held steps are compared
 *   train.state_send     before each chunk of the state that is sent
 *   train.state_recv     after each chunk that arrived (fail: a bit changed on the way)
 *   train.evaluate       each batch of a lane; train.evaluated: before the sums are reduced
 *   train.forward        before a step
 *   train.lane           before a lane is computed on a CPU
 *   train.bucket         before each bucket, the last one too (of a GPU: before the lane that sums
 *                        the others, and before the last bucket)
 *   train.inner          local SGD: after each step of a period
 *   train.reduce         after the lanes, before the last contribution; local SGD: before the outer step
 *   train.commit         the reduction is complete, nothing is changed yet
 *   train.update, train.update_middle, train.update_end
 *   train.copies         before the residuals of compression are sent to all tasks
 *   health.flip_gradient, health.flip_row    a bit in the reduced gradient of this task, of a table
 *   health.not_finite    a NaN in that gradient
 *   health.flip_weight   a bit in its weights, after an update; of several GPUs, of the last one
 *   train.save           before a copy of the state is handed to the writer of checkpoints
 *   train.save_rest      at rest, before the held state is saved: the task leaves, or ends at the deadline
 *   train.export         before the model is written
 *   train.ended          the outcome of the generation is decided, and not reported yet */
#ifndef TRAIN_TRAIN_H
#define TRAIN_TRAIN_H

#include "train/train_types.h"

struct cancel;
struct ckpt_info;

/* Blocking; progress through on_event. `cancel` is polled. Errors: ERR_INPUT, ERR_UNSUPPORTED (exit
 * 2); ERR_IO, ERR_NOMEM, ... (138); ERR_CANCELED. */
int train_open(const struct train_opts *opts, const struct cancel *cancel, struct train **out,
               struct err *err);
void train_close(struct train *t); /* joins its threads; NULL is fine */

/* The digest of the model that the options name, as in manifests, without data and devices. Reads
 * the model. Errors: as train_open(). */
int train_model_digest(const struct train_opts *opts, char out[65], struct err *err);

/* Can a trace be written there? train_open() asks too; here it is known before anybody is met. NULL
 * is fine. Errors: ERR_INPUT. */
int train_check_trace(const char *path, struct err *err);

/* Values that may change while the task runs; the options state the first ones. Any thread, at any
 * time; used from the next step boundary on. */
void train_set_checkpoint(struct train *t, uint64_t every_steps, double every_seconds,
                          uint32_t max_to_keep);
void train_set_norm(struct train *t, uint64_t every_steps); /* norm_every_steps */

/* States that the log of this task has not taken a line about `step` (its report or evaluation). If
 * this task coordinates, the others receive TRAIN_LOGGED with done 0. From on_event and on_end. */
void train_set_unlogged(struct train *t, uint64_t step);

/* What was settled, for --check and the log. */
void train_facts(const struct train *t, struct train_facts *out);

const struct graph *train_graph(const struct train *t); /* valid until train_close() */

/* Starts the replica threads and returns. No generation may be running: the first, or `on_end` of
 * the one before has returned. `on_end` comes once, from one of the threads, when all are done with
 * the generation and the peers are disconnected; `held` is train_held(). What happens first:
 * members that are behind newest_step receive the state of newest_member; with newest_step 0 the
 * coordinator reads the newest checkpoint and gives it to the others, and without one all have the
 * fresh weights of the model file. An evaluation or a checkpoint that a broken or paused generation
 * owed for the step that is held is made up for. Errors (nothing runs, on_end does not come):
 * ERR_INPUT (fewer replicas than min_replicas, more than replicas), ERR_PEER (a newest_step older
 * than what is held here), ERR_NOMEM, the system's (no thread to be had). */
int train_start(struct train *t, const struct train_generation *g, train_end_fn *on_end,
                struct err *err);

/* Behind TRAIN_DIVERGED: the number of the member that differs. */
uint32_t train_diverged(const struct train *t);

void train_request(struct train *t, unsigned kinds);
/* Ends the generation at once: calls inside the communicator fail; a step whose reduction succeeded
 * here is finished, any other leaves no trace. Harmless when none runs. */
void train_abort(struct train *t, const char *why);

/* The newest step whose state is whole here; 0: fresh weights, or nothing. */
uint64_t train_held(const struct train *t);

/* At rest: replaces the held state with that of the checkpoint folder `path`, whose checksums are
 * verified, for a generation with only_evaluates; on failure the held state is unchanged. *out: its
 * manifest. The task must not train afterwards. Errors: ERR_INPUT (of another model, or of step 0), ERR_CORRUPT, ERR_NOENT, ERR_IO,
 * ERR_NOMEM. */
int train_load(struct train *t, const char *path, struct ckpt_info *out, struct err *err);

/* At rest (no generation runs): a checkpoint of the held state, on disk and verified when 0 comes
 * back. Nothing to do if that step is there already, nothing is held, or the job keeps no
 * checkpoints. Blocks for at most about wait_ms. Errors: ERR_TIMEOUT, ERR_FULL, ERR_IO, what
 * may_save said, ... */
int train_save(struct train *t, uint64_t wait_ms, struct err *err);

void train_progress(const struct train *t, struct train_progress *out);
/* What is wrong with the storage of checkpoints; all zero before this task first writes. At any
 * time. */
void train_storage(struct train *t, struct ckpt_failure *out);

#endif
