/* evaluator.h - what the files of an evaluator task share.
 *
 *   evaluator.c        on the loop's thread: when the worker runs, and what follows
 *   evaluator_work.c   on the worker's thread: everything that waits for a disk
 *   evaluator_state.c  what is remembered between processes; the choice of the next checkpoint
 *
 * The worker and a generation never run at the same time. */
#ifndef DAEMON_EVALUATOR_H
#define DAEMON_EVALUATOR_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "ckpt/ckpt.h"
#include "daemon/evaluator_state.h"

struct metric;
struct run;
struct summary;

enum evaluator_outcome {
    EVALUATOR_LOADED,   /* the next checkpoint is the held state */
    EVALUATOR_NOTHING,  /* no checkpoint waits for its evaluation */
    EVALUATOR_COMPLETE, /* the last checkpoint of the job is evaluated; the text names it */
    EVALUATOR_FAILED,   /* error; nothing was recorded */
};

struct evaluator {
    pthread_t thread;
    bool has_thread;           /* the worker is to be joined */
    uint64_t due_ms;           /* clock_ms() of the next start of the worker; 0: none is planned */
    uint64_t failing_since_ms; /* 0: the last work succeeded */
    uint64_t delay_ms;
    struct metric *evaluated_step, *best_step, *best_value;

    /* The worker's while it runs. */
    bool has_begun;           /* the state was read */
    int lock;                 /* of the folder; -1: none */
    struct evaluator_state state;
    struct evaluator_damaged damaged;
    struct ckpt_info current; /* the loaded checkpoint */
    struct ckpt_info pinned;  /* the same as a folder of this task, to keep or to remove */
    bool is_pinned;           /* `pinned` is valid */
    bool is_evaluated;        /* run->evaluation is that of `current`, and is to be recorded */
    uint64_t newest_seen;     /* step of the newest checkpoint when the last evaluation began */
    uint64_t drawn_step;      /* the last step with a point in the curves */
    struct summary *curves;   /* NULL: none, or not yet */
};

struct evaluator_done { /* what a worker posts to the loop */
    struct run *run;
    enum evaluator_outcome outcome;
    struct err err;
};

void evaluator_open_metrics(struct run *r); /* on the loop's thread */
/* First reads the state. Records the evaluation of the loaded checkpoint, if there is one, and loads the next. */
enum evaluator_outcome evaluator_work(struct run *r, struct err *err);
/* Removes a pinned checkpoint and closes the curves. */
void evaluator_end(struct run *r);

#endif
