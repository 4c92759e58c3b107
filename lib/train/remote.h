/* remote.h - tables and dense parameters on parameter servers (ps), for the training tasks of a group.
 *
 *   remote_open        after the model was read: which tables are remote; the engine's access to them
 *   remote_settle      when a generation begins: every server holds its shards of the agreed step
 *   remote_read_dense  before the lanes of a step, an evaluation, an export
 *   remote_collect     before the last contribution to a step: all servers have its gradient
 *   remote_commit      after the commit gate: the servers apply the step, or skip it
 *   remote_count       the rows of dynamic tables in each shard, before a checkpoint
 *   remote_write       the servers write the rows of all tables to the files of a checkpoint
 *   remote_gather      the dense parameters, for a checkpoint
 *   remote_reader      rows of tables, for an export
 *   remote_loaded      a checkpoint was read, from which the servers read their rows
 *   remote_next, remote_begin_unit, remote_apply_unit  one unit of an asynchronous phase
 *   remote_end         the replica leaves the generation in order
 *
 * A step is decided where it is decided without servers: by the all-reduce. The coordinator gives its
 * last contribution only after every server has voted, so a server that holds the step before also
 * holds the gradient of any step that some task has completed.
 *
 * All functions do nothing, and return 0, in a task without remote parameters. Threads: replica threads;
 * open and close: those of train_open() and train_close(). */
#ifndef TRAIN_REMOTE_H
#define TRAIN_REMOTE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "optim/optim.h"

struct ckpt_info;
struct ckpt_row_files;
struct ckpt_sizes;
struct err;
struct graph_row_reader;
struct ps_next;
struct ps_unit;
struct remote;
struct replica;
struct step_result;
struct train;

/* t->remote stays NULL if no parameter is remote. Errors: ERR_UNSUPPORTED (an option that remote tables do
 * not support; the text names it), ERR_NOMEM. */
int remote_open(struct train *t, struct err *err);
void remote_close(struct remote *r);                        /* NULL is allowed */
struct engine_remote *remote_engine(const struct train *t); /* NULL: no remote parameters */
bool remote_has_tables(const struct train *t);              /* shard files are written */

/* Every replica, after the state was agreed on. *held: the agreed step; in an asynchronous phase it becomes the
 * later step that the servers hold. Errors: those of lib/ps; ERR_REFUSED, on every task: the group has lost rows of
 * that state, and must return to the newest checkpoint. */
int remote_settle(struct replica *r, uint64_t *held, struct err *err);

/* Every replica, at a step boundary: the dense parameters of this use are in the state, those of the average in the
 * average. Errors: those of lib/ps; ERR_CANCELED. */
int remote_read_dense(struct replica *r, enum engine_rows use, struct err *err);
/* The same, by the first replica of the coordinator alone. */
int remote_fetch_dense(struct train *t, enum engine_rows use, struct err *err);

/* The first replica of the coordinator; sets control words. Errors: as ps_leader_collect(). */
int remote_collect(struct replica *r, uint64_t step, float *control, struct err *err);
/* Every replica, after the all-reduce. */
void remote_read_control(struct replica *r, const float *control, struct step_result *out);
/* Every replica, after the commit gate; hyper NULL: skipped. A failure ends the generation later: the
 * step is complete on this task. */
void remote_commit(struct replica *r, uint64_t step, const struct optim_hyper *hyper);

/* ---- an asynchronous phase, of tasks with one replica; ps/client.h describes the protocol. Errors: those of
 * lib/ps ---- */

/* The coordinator: as ps_client_limit(). */
int remote_limit(struct replica *r, uint64_t step, struct err *err);
/* As ps_client_next(), for the lanes of the replica. */
int remote_next(struct replica *r, uint64_t step, uint64_t after, struct ps_next *out,
                struct err *err);
/* The newest step that this task held before the settlement: the servers may know facts of later ones. */
uint64_t remote_reported(const struct replica *r);
/* Has the settlement found lanes of steps after the held one? Then it is no state of the job before the tasks have stopped after
 * a later step. */
bool remote_has_more(const struct train *t);
/* All ranks have stopped after `step`, which is the version `version` of the servers. */
void remote_stop(struct replica *r, uint64_t step, uint64_t version);
/* The lanes that follow are those of a unit: they read the newest values, and their gradients are pushed as its
 * gradient. */
int remote_begin_unit(struct replica *r, const struct ps_unit *unit, struct err *err);
struct remote_update {
    struct optim_hyper hyper; /* without clipping */
    double clip_norm;         /* 0: none */
    double loss;              /* mean over the samples of the unit */
};
/* After its lanes: the servers apply the unit, or skip it if loss or gradient are not finite. */
int remote_apply_unit(struct replica *r, const struct remote_update *u, struct err *err);

/* The first replica of the coordinator, between two steps; no step ends meanwhile. The servers write all rows of
 * remote tables, as ckpt_writer_opts.write_rows(). Errors: those of ps_save(). */
int remote_write(struct train *t, struct ckpt_row_files *files, struct err *err);
/* Before it, in the same place: the sizes of the dynamic tables. *n: of tables; 0: none is dynamic, and *out is NULL.
 * The caller frees *out. Errors: those of ps_count(). */
int remote_count(struct train *t, struct ckpt_sizes **out, uint32_t *n, struct err *err);
/* The same thread, likewise. Writes all parts of the dense parameters to `to`, the memory of a checkpoint (parts.h).
 * Errors: ERR_CANCELED: a connection failed. */
int remote_gather(struct train *t, float *to, struct err *err);
/* Errors: ERR_PEER: no generation runs, so no server can be asked. */
int remote_can_write(const struct train *t, struct err *err);
/* Reads rows of remote tables, for an export, at the same time. averages: their moving average. */
void remote_reader(struct train *t, bool averages, struct graph_row_reader *out);
/* The coordinator has read its part of this checkpoint: in remote_settle() the servers read theirs. Errors:
 * ERR_NOMEM. */
int remote_loaded(struct train *t, const struct ckpt_info *info, struct err *err);
/* Every replica, at the end of a generation that did not fail. */
int remote_end(struct replica *r, struct err *err);

#endif
