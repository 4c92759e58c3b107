/* memory.h - the host's memory of a task: the state, and the region for gradients.
 *
 *   own      state: parameters | slot 0 | slot 1 | ... | average | delayed 1 | ... | outer momentum | residuals
 *   region   head: the caller's
 *            per replica: `depth` gradient arenas (parameters' layout | control words |
 *                         values of the marked slots of remote tables)
 *                         `depth` rows of evaluation sums
 *                         `depth` + 1 sets of marks of tables
 *                         `depth` sets of marks of remote tables
 *                         floats that codes with residuals exchange
 *
 * The state is the content of a checkpoint, and is sent to a task with an older one. It is private:
 * no peer can write to it, not even a peer that was believed dead and wakes up; and it can have
 * huge pages. The region is shared with the peers of the host, so that nothing is copied to be
 * reduced. Nothing in it outlives a generation: it can be replaced by a fresh region.
 *
 * Delayed i are the delayed parameters, the last trained ones, as they were i steps before.
 *
 * With local SGD the caller has models: copies of the state without the outer momentum. Between
 * two outer steps the pointers `state`, `slots` and `average` select one of them.
 *
 * Threads: one at a time; engine.h states when the contents belong to which thread. */
#ifndef ENGINE_MEMORY_H
#define ENGINE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/device.h"
#include "optim/optim.h"
#include "tensor/packed.h"

struct err;

enum {
    MEMORY_MAX_TREE = 33,
    MEMORY_LEAST_GRADS_BYTES = 4096 /* of an arena, however small the model */
};

struct memory_opts {
    uint32_t n_replicas; /* of this task */
    bool is_shared;      /* peers map the region */
    size_t head_bytes;
    /* Floats: of a parameter arena, of its trained part, of the part of that which backward makes
     * ready in order. After the dense part lie values of the rows of tables that have marks. */
    size_t params, trained, dense;
    size_t control;                    /* floats after the parameters in a gradient arena */
    const struct packed_table *tables; /* the graph's; borrowed */
    uint32_t n_tables;                 /* 0 also if gradients are whole */
    size_t table_words;                /* of marks */
    const struct packed_table *remote; /* compact tables (engine.h); borrowed */
    uint32_t n_remote;
    size_t remote_words; /* of marks */
    uint32_t depth;                    /* gradient arenas of a replica */
    uint32_t eval_words;               /* doubles */
    const struct optim_def *optimizer;
    const struct optim_hyper *hyper;
    bool has_average;
    bool has_outer; /* local SGD: the state has an outer momentum */
    size_t residual_floats, exchange_floats; /* codes with residuals: of the state, of the region (residual.h) */
    uint32_t n_delayed; /* older versions of the parameters [delayed_at, trained) */
    size_t delayed_at;
    bool no_slots; /* other tasks keep the slots of the optimizer */
};

struct arenas {                          /* of a replica, in the region */
    float *grads[MEMORY_MAX_TREE];       /* of the lane tree */
    struct packed rows[MEMORY_MAX_TREE]; /* of each: the rows of tables that have a gradient */
    struct packed all_rows;              /* during the reduction: the marks of all replicas */
    struct packed remote[MEMORY_MAX_TREE]; /* of each: the slots that have a gradient */
    double *sums[MEMORY_MAX_TREE];       /* of evaluations, eval_words each */
    float *exchange; /* [exchange_floats] */
};

struct memory {
    struct memory_opts opts;
    struct device_mem own, region;
    size_t region_bytes, replicas_at;            /* the first replica's part begins there */
    size_t grads_bytes, sums_bytes, marks_bytes, remote_bytes; /* of one of each */
    size_t exchange_bytes;
    size_t params, trained, dense;               /* as in the options */
    size_t grads; /* floats of a gradient arena, control words included */
    size_t remote_at; /* floats before the values of remote tables in a gradient arena */
    size_t slot;  /* floats of a slot of the optimizer here */
    size_t state_bytes;
    size_t model_bytes; /* of the state without the outer momentum */
    /* gradient arenas of a replica: levels of its lane tree, at most, and one for spare lanes. The sum of a second piece, of at most
       half as many lanes, is in arena 1 */
    uint32_t depth;
    float *state;                  /* parameters, then slots, then the average */
    float *slots[OPTIM_MAX_SLOTS]; /* NULL: the optimizer does not use this slot */
    float *average; /* a parameter arena: averages of the trained parameters, copies of
                       the statistics; NULL: none is kept */
    float *delayed; /* delayed 1; NULL: none are kept */
    size_t delayed_floats; /* of one version */
    float *outer;   /* momentum of the outer optimizer, of the trained parameters, in the held state;
                       NULL: none */
    float *residual; /* [residual_floats]; NULL: none */
    /* the step of this state; older than that of the devices until engine sync() */
    uint64_t step;
    void *head;            /* of the region */
    struct arenas *arenas; /* [n_replicas] owned */
};

/* All zero, apart from the layout. On failure *m can be closed. Errors: ERR_NOMEM, ERR_IO. */
int engine_memory_open(struct memory *m, const struct memory_opts *opts, struct err *err);
void engine_memory_close(struct memory *m); /* a zeroed one is allowed */
/* A fresh region in place of a region that a peer may still write to. */
int engine_memory_replace_region(struct memory *m, struct err *err);
/* Allocates memory for a second state, which the caller owns. engine_memory_use_spare() makes it
 * the state of the task, after `step`; *spare is empty then. */
int engine_memory_open_spare(const struct memory *m, struct device_mem *out, struct err *err);
void engine_memory_use_spare(struct memory *m, struct device_mem *spare, uint64_t step);
/* Selects the model at `model` [model_bytes]; NULL: the held state. */
void engine_memory_select(struct memory *m, float *model);
/* Returns where the parameters would begin if the delayed ones of `age` steps before were in their place. */
float *engine_memory_delayed(const struct memory *m, uint32_t age);
/* Before a step changes the parameters, or is skipped: they become delayed 1, and so on. */
void engine_memory_delay(struct memory *m);
/* All older versions are the parameters of now: before the first step. */
void engine_memory_fill_delayed(struct memory *m);
/* The average of statistics is a copy of them; fresh: of all parameters. What no checkpoint holds.
 */
void engine_memory_fill_average(struct memory *m, bool fresh);

#endif
