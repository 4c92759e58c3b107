/* generation.h - one generation of a task: its group, its communicator, its gates, and how it ends
 * early.
 *
 * A generation ends early by the first error of any of its threads, or by train_abort(). Then every
 * wait of the task ends: calls of comm fail, waits of the engine return, gates break. The commit
 * gate is never broken: all replicas of the task finish the work that starts after it.
 *
 * Threads: the verbs marked "any" by any; the others by one thread while no generation runs, or by
 * the first replica. */
#ifndef TRAIN_GENERATION_H
#define TRAIN_GENERATION_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/cancel.h"
#include "base/err.h"
#include "base/gate.h"
#include "train/train_types.h"

struct comm;
struct engine;
struct place;

struct generation {
    struct engine *engine;       /* borrowed; its waits end early too */
    struct train_generation opts; /* of the last train_start(); its view is a copy in `memory` */
    struct arena memory;
    uint32_t *shares;            /* owned; [replicas of the full cluster] lanes of each rank, if they are equal:
                                    the view has no pieces */
    uint32_t *leaves;            /* owned; likewise: leaves of each rank (base/lane_tree.h) */
    struct comm *comm;           /* owned; NULL: not connected, or nothing to connect */
    /* guards comm's lifetime against train_abort(), and the result */
    pthread_mutex_t lock;
    struct gate gate;                            /* broken when the generation ends early */
    struct gate commit_gate;                     /* never broken */
    struct cancel cancel;                        /* set when it ends early */
    _Atomic uint32_t running;                    /* replica threads that have not ended */
    _Atomic unsigned requests;                   /* train_request_kind bits */
    _Atomic uint64_t deadline_ms;
    int (*_Atomic may_save)(void *arg, struct err *err);
    train_end_fn *on_end;
    int result;      /* 0, or the first error's code; under lock */
    bool is_aborted; /* the first error came from train_abort(); under lock */
    struct err error;
    bool is_unsaved; /* the generation ends because the storage failed after the last step */
    /* a peer that may still be alive can write to the engine's region */
    bool has_exposed_region;
};

/* Errors: ERR_NOMEM. generation_fini() frees a zeroed one too. */
int generation_init(struct generation *g, uint32_t max_replicas, struct err *err);
void generation_fini(struct generation *g);
/* Begins a generation: copies the options with the view, and divides the lanes (micro-batches)
 * among its ranks. Errors: ERR_NOMEM. */
int generation_begin(struct generation *g, const struct train_generation *opts,
                     const struct train_opts *o, struct err *err);
uint32_t generation_first_rank(const struct generation *g, uint32_t member); /* of its replicas */
/* this task coordinates, and writes checkpoints */
bool generation_is_coordinator(const struct generation *g);

/* Takes ownership of `comm`; train_abort() then ends waits inside it too. */
void generation_set_comm(struct generation *g, struct comm *comm);
/* Disconnects the peers, and sets has_exposed_region. Called after all threads have ended. */
void generation_disconnect(struct generation *g);

/* Remembers the first error, and ends all waits. Any thread. */
void generation_fail(struct generation *g, const struct err *err);
/* As generation_fail(), but replaces an earlier error: this process cannot continue with its
 * devices. Any thread. */
void generation_fail_device(struct generation *g, const struct err *err);
/* Stores the error as the reason of the end without ending the waits. Any thread. */
void generation_set_error(struct generation *g, const struct err *err);
void generation_abort(struct generation *g, const char *why); /* for train_abort(). Any */
/* Returns ERR_CANCELED if the generation has ended early, else 0. Any thread. */
int generation_check(const struct generation *g, struct err *err);
/* Waits for all replicas of the task. Errors: ERR_CANCELED, in all of them. */
int generation_gate(struct generation *g, struct place *place, struct err *err);

#endif
