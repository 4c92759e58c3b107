/* remote.h - tables on parameter servers (ps), for the training tasks of a group.
 *
 *   remote_open        after the model was read: which tables are remote; the engine's access to them
 *   remote_settle      when a generation begins: every server holds its shards of the agreed step
 *   remote_collect     before the last contribution to a step: all servers have its gradient
 *   remote_commit      after the commit gate: the servers apply the step, or skip it
 *   remote_read        the rows of all tables, for a checkpoint or an export
 *   remote_end         the replica leaves the generation in order
 *
 * A step is decided where it is decided without servers: by the all-reduce. The coordinator gives its
 * last contribution only after every server has voted, so a server that holds the step before also
 * holds the gradient of any step that some task has completed.
 *
 * All functions do nothing, and return 0, in a task without remote tables. Threads: replica threads;
 * open and close: those of train_open() and train_close(). */
#ifndef TRAIN_REMOTE_H
#define TRAIN_REMOTE_H

#include <stdbool.h>
#include <stdint.h>

struct engine_remote;
struct err;
struct optim_hyper;
struct remote;
struct replica;
struct step_result;
struct train;

/* t->remote stays NULL if no table is remote. Errors: ERR_UNSUPPORTED (an option that remote tables do
 * not support; the text names it), ERR_NOMEM. */
int remote_open(struct train *t, struct err *err);
void remote_close(struct remote *r);                        /* NULL is allowed */
struct engine_remote *remote_engine(const struct train *t); /* NULL: no remote tables */

/* Every replica, after the state was agreed on. Errors: those of lib/ps; ERR_REFUSED, on every task: the
 * group has lost rows of that state, and must return to the newest checkpoint. */
int remote_settle(struct replica *r, uint64_t held, struct err *err);

/* The first replica of the coordinator; sets control words. Errors: as ps_leader_collect(). */
int remote_collect(struct replica *r, uint64_t step, float *control, struct err *err);
/* Every replica, after the all-reduce. */
void remote_read_control(struct replica *r, const float *control, struct step_result *out);
/* Every replica, after the commit gate; hyper NULL: skipped. A failure ends the generation later: the
 * step is complete on this task. */
void remote_commit(struct replica *r, uint64_t step, const struct optim_hyper *hyper);

/* The first replica of the coordinator, between two steps: writes the rows of all remote tables into the
 * whole state (whole.h). Errors: ERR_PEER: no generation runs, so no server can be asked; those of
 * ps_leader_read(). */
int remote_read(struct train *t, float *whole, struct err *err);
/* The coordinator has read a checkpoint: keeps its whole state, which the remote takes over, for
 * remote_settle(). */
struct device_mem;
void remote_loaded(struct train *t, uint64_t step, struct device_mem *whole);
/* Every replica, at the end of a generation that did not fail. */
int remote_end(struct replica *r, struct err *err);

#endif
