/* gpu.h - a replica whose device is a GPU.
 *
 * The thread of the replica and all its decisions are those of any other (replica.c, step.c); here is what
 * the GPU does for it. Its memory holds a whole state of its own: each GPU moves all weights by itself, from
 * sums that are the same bits on all. The state of train.c, in the host's memory, is a shadow of local replica
 * 0's: brought up to date when somebody asks for it (a checkpoint, a peer that is behind, the export), and
 * given to the GPUs when it is newer than theirs.
 *
 *     feed stream   batch -> pinned -> stage ...          the next lane's, while this one computes
 *     work stream   stage -> inputs | forward, backward, lanes added up | (again) ... | look | update
 *     sums stream                            bucket 0 | bucket 1 | ...   NCCL, as backward makes them ready
 *     copies stream                                                     a checkpoint's copy of the state, to the host
 *
 * Behind the last bucket the control words, and what a pass over the gradient found, come to the host: the
 * one wait of a step. All that is decided is decided there, as on a CPU; the update is put on the stream
 * behind the commit gate, and nobody waits for it.
 *
 * A lane's calls are captured into a graph when they have run once. Nothing waits without looking at `cancel`:
 * whoever ends the generation sets it, and the thread itself gives the communicator up. */
#ifndef TRAIN_GPU_H
#define TRAIN_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/cuda.h"
#include "op/op.h"

struct data_batch;
struct err;
struct gpu;
struct optim_hyper;
struct plan;
struct replica;
struct train;

/* Memory and streams for a replica with plans and a state laid out; the state is nobody's yet. On success the
 * caller owns r->gpu. Errors: ERR_NOMEM, ERR_DEVICE. */
int gpu_open(struct replica *r, struct err *err);
void gpu_close(struct replica *r); /* NULL is fine */

/* ---- a generation ---- */
int gpu_begin(struct replica *r, struct err *err); /* behind agree_connect(): NCCL, if there are others */
void gpu_end(struct replica *r);                   /* nothing is under way any more */
/* The GPU holds the state of step `held` as the host does. Between gates: all replicas of the task. */
int gpu_give(struct replica *r, uint64_t held, struct err *err);
/* What the GPU holds is the state of step `held` too, which changed nothing; or it is none any more. */
void gpu_hold(struct replica *r, uint64_t held);
void gpu_forget(struct replica *r);
/* Waits for the work stream, and spoils one number of the GPU's: its last bit, or all of it (NaN). For fault points. */
enum gpu_number { GPU_GRADIENT, GPU_WEIGHT };
int gpu_spoil(struct replica *r, enum gpu_number which, bool all, struct err *err);

/* ---- what is held, for the host (gpu_copy.c says who asks) ---- */
/* The host's state is that of what is held. One thread, while no update is under way. Errors: ERR_DEVICE: the GPU
 * does not have it, or does not answer. */
int gpu_shadow(struct train *t, struct err *err);
/* It goes to `to`, the staging area, while the GPU goes on: it is there behind gpu_fetched(). As gpu_shadow(); a
 * CPU's is there at once. */
int gpu_fetch(struct train *t, void *to, struct err *err);
int gpu_fetched(struct train *t, struct err *err); /* any thread. ERR_DEVICE: it does not come */
/* Pinned memory of the host for it, made by the first who asks, and given up by gpu_close() unless it was left
 * to a writer that hangs. ERR_NOMEM, ERR_DEVICE. */
int gpu_staging(struct train *t, void **out, struct err *err);
void gpu_leave_staging(struct train *t);

/* ---- a step ---- */
/* The lanes of this replica, in r->reducer.n_buckets buckets while the last one computes. */
int gpu_lanes(struct replica *r, uint64_t step, struct err *err);
/* The last bucket and the control words, which are in r->grads[0] as on a CPU before and behind it. */
int gpu_reduce(struct replica *r, struct err *err);
/* Gradients, behind that, in jobs whose mean is known only then: they are looked at here, not before. */
int gpu_scale(struct replica *r, float by, struct err *err);
/* How long it waited for others behind its own lanes, in the last gpu_reduce(). */
uint64_t gpu_waited_ns(const struct replica *r);
const struct cuda_look *gpu_looked(const struct replica *r); /* at the gradient to be used */
int gpu_update(struct replica *r, const struct optim_hyper *h, struct err *err);
/* Checksum of the whole state, behind all updates. */
int gpu_weigh(struct replica *r, uint32_t *sum, struct err *err);
/* The gradients are in r->grads[0], for who wants to look at them one by one. */
int gpu_show(struct replica *r, struct err *err);

/* Behind a step that is traced: what its GPU did when, into the trace. Waits until it has done it. */
int gpu_clock_tell(struct replica *r, struct err *err);
uint32_t gpu_pieces(const struct train *t); /* sums of a step on the sums stream, at most */

/* ---- other passes, one batch at a time ---- */
int gpu_feed(struct replica *r, struct plan *plan, const struct data_batch *b, struct err *err);
/* Forward, and backward into gradient arena 0 if `backward`; the results can be asked for. */
int gpu_run(struct replica *r, struct plan *plan, const struct op_run *run, bool backward, struct err *err);

#endif
