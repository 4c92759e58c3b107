/* plans.h - the plans of a replica and the readers that feed them: CPU and GPU alike.
 *
 * Threads: the replica's; plans_cancel() any. */
#ifndef ENGINE_PLANS_H
#define ENGINE_PLANS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"

struct data_batch;
struct data_reader;
struct op_run;
struct plan;

struct pass { /* one batch through a plan, on this kind of device */
    int (*feed)(struct engine_replica *r, struct plan *plan, const struct data_batch *b,
                struct err *err);
    /* Forward, and backward into gradient arena 0 if `backward`. Afterwards the plan's results can
     * be read. */
    int (*run)(struct engine_replica *r, struct plan *plan, const struct op_run *run, bool backward,
               struct err *err);
    /* Copies the gradients of arena 0 to arena 0 of the host. */
    int (*fetch_gradients)(struct engine_replica *r, struct err *err);
    bool names_device; /* messages name the device, because the devices of a task fail one by one */
};

struct plans {
    struct plan *train, *eval; /* owned; eval NULL: there are no evaluations */
    const struct pass *pass;
    struct data_reader *reader; /* owned; under lock: plans_cancel() */
    struct data_reader *side;   /* likewise; of an evaluation, of a step that is computed again */
    pthread_mutex_t lock;
};

/* Opens the plans of all replicas; the thread enters each GPU. Also eval_words, metric_words,
 * work_bytes. Errors: those of plan_new(), ERR_NOMEM. On failure plans_close() frees the rest. */
int plans_open(struct engine *e, const struct pass *pass, struct err *err);
void plans_close(struct engine_replica *r);              /* without plans: nothing */
size_t plans_work_bytes(const struct engine_replica *r); /* of the larger plan */

/* Inputs of either plan in the order of the feeds, the targets, the samples' weights. */
uint32_t plans_n_inputs(const struct engine *e);
/* Copies a batch into inputs of a plan; at(arg, i): where input i lies. */
void plans_copy_batch(const struct engine *e, struct plan *plan, const struct data_batch *b,
                      void *(*at)(void *arg, struct plan *plan, uint32_t i), void *arg);

/* Opens the reader of the steps [first, last] of the training data, for this replica's lanes. An
 * engine_ops.open_reader. */
int plans_open_reader(struct engine_replica *r, uint64_t first, uint64_t last, struct err *err);
/* Opens the side reader in the same way. evaluates: of the evaluation data, in file order. */
int plans_open_side(struct engine_replica *r, bool evaluates, uint64_t first, uint64_t last,
                    struct err *err);
/* Opens the side reader for the lanes of step `step` that the replica helps to compute. */
int plans_open_helped(struct engine_replica *r, uint64_t step, struct err *err);
/* Opens a reader of one lane of one step, which the caller closes. */
int plans_open_lane(const struct engine_replica *r, uint64_t step, uint32_t lane,
                    struct data_reader **out, struct err *err);
void plans_close_readers(struct engine_replica *r);
void plans_close_side(struct engine_replica *r);
void plans_cancel(struct engine *e); /* an engine_ops.cancel */
void plans_describe_trace(struct engine *e, struct trace_opts *out);

#endif
