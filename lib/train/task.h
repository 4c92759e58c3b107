/* task.h - what the files of the protocol share: the object behind train.h, and the thread of a
 * replica.
 *
 * Types alone. Files below the protocol (model, state, generation, division, events, live, groups, weights,
 * tensors, loss_scale, sample_log, phases, outer_math) do not include it. The files of the protocol, each of which may
 * include those above it and never the reverse:
 *
 *   step_report  reports a step, and whether the coordinator has written its log lines
 *   agree        which state each task holds, and which work is pending
 *   coding       whether gradients are compressed
 *   transfer     sends the state to the tasks that hold an older one
 *   copies       copies of the state to which a task returns, if only one task has each residual
 *   eval         one evaluation
 *   remote       tables on parameter servers
 *   save         checkpoints, on the coordinator
 *   export       the trained model, on the coordinator
 *   apply        applies or skips a step
 *   locate       locates the first non-finite number
 *   health       compares checksums and checks for non-finite numbers
 *   step         one step
 *   outer_nonfinite  a step of a group that is not finite
 *   outer        one period of local SGD
 *   async        the steps of an asynchronous phase up to the next stop
 *   replica      the thread of a replica: joins the generation, steps, work between steps
 *   progress     the places of all threads, for a watchdog
 *   start        begins and ends a generation
 *   train        opens and closes; the entry points of train.h */
#ifndef TRAIN_TASK_H
#define TRAIN_TASK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "ckpt/ckpt.h"
#include "engine/engine.h"
#include "train/generation.h"
#include "train/health_types.h"
#include "train/live.h"
#include "train/model.h"
#include "train/events.h"
#include "train/phases.h"
#include "train/state.h"
#include "train/train_types.h"

struct copies;
struct outer;
struct remote;
struct sample_log;
struct trace;

/* The caller's control words (engine.h), reduced with the gradients. */
enum control_word {
    CONTROL_PAUSE = ENGINE_WORDS, /* number of tasks that request a pause */
    /* number of tasks for which states must be compared after the step: by the key of the job, or for a checkpoint */
    CONTROL_CHECKSUM,
    CONTROL_UNLOGGED,   /* 1: the coordinator has not written a log line of the previous step */
    CONTROL_REMOTE_BAD, /* the gradient of a remote table is not finite */
    /* 4 words: sum of squares of the gradients of remote tables; from the coordinator alone */
    CONTROL_REMOTE_SQUARES,
    CONTROL_LOCAL_BAD = CONTROL_REMOTE_SQUARES + 4, /* local SGD: tasks with a step that is not finite */
    CONTROL_COPIES = CONTROL_LOCAL_BAD + 1, /* the coordinator wants copies of the state after the step */
    CONTROL_WORDS = 16, /* after them health_words() */
};

/* When a generation begins, every task receives the maximum over all tasks: does any task ... */
enum vote {
    VOTE_BEHIND, /* hold an older step? */
    /* hold the step without having reported its due evaluation? */
    VOTE_UNEVALUATED,
    VOTE_PAUSE,  /* request a pause? */
    VOTE_TRACES, /* want to trace, and how many steps? */
    /* know of a rollback of all tasks to a checkpoint, and at which step? 0: none */
    VOTE_RESTORED_AT,
    N_VOTES,
};

struct replica { /* the thread that drives one device */
    struct train *train;
    struct engine_replica *device; /* the engine's */
    uint32_t local;                /* index in this task */
    pthread_t thread;
    bool started;
    int64_t votes[N_VOTES];
};

struct saving {                  /* save.c; the first replica's */
    struct ckpt_writer *_Atomic writer;  /* owned; NULL until this task first needs it, as coordinator */
    /* time before which opening the writer is not retried; 0: no failure */
    uint64_t retry_ns;
    uint64_t last_ns, last_step; /* of the last checkpoint that the writer received; step 0: none */
    bool is_due;                 /* a checkpoint is pending, at the next step that allows it */
    bool is_urgent;              /* and a ps has little memory left: steps wait for the previous one */
    bool was_leading;            /* in the previous generation */
    _Atomic bool was_discarded;  /* a state that the writer received was not published */
    bool is_reported;            /* the failure of the last hand over is an event of the writer */
    uint32_t failures;           /* of the writer, when it was last examined */
    uint64_t steps[2];           /* steps whose states must be copied; 0: none */
};

struct train {
    const struct train_opts *opts;
    struct events events;
    struct model model;
    struct state state;
    struct generation generation;
    struct health health;
    struct live live;
    struct saving saving;
    /* owned; the optimizer at work on this graph's parameters; NULL in a fake */
    struct optim *optim;
    struct data_reader_opts *reads; /* owned; how replicas read */
    struct engine_opts engine_opts;
    struct engine *engine;       /* owned */
    struct replica *replicas;    /* owned; [n_devices] */
    struct trace *trace;         /* owned; NULL: not wanted */
    bool is_tracing, was_traced; /* the trace was started: in this generation, ever */
    struct sample_log *samples;  /* owned; NULL: not wanted */
    struct remote *remote;       /* owned; NULL: no remote tables */
    struct phases phases;
    struct outer *outer;         /* owned; NULL: no phase with local SGD */
    struct copies *copies;       /* owned; NULL: the job keeps no residuals */
};

struct step_result { /* agreed: the same on every task */
    double loss;
    bool pause;
    bool checksum; /* states must be compared after the step */
    bool copies;   /* the coordinator wants copies of the state after the step */
    bool remote_bad; /* the gradient of a remote table is not finite */
    bool trouble;  /* a device read an index or label out of range: the step is not applied */
};

static inline const struct engine_ops *ops_of(const struct replica *r)
{
    return r->train->engine->ops;
}

#endif
