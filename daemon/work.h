/* work.h - what a task of a group does in its generations: it trains (work_train), or it serves rows as
 * a parameter server (work_ps). The files of a running task call training only through this table,
 * except where only training tasks come: r->train.
 *
 *   open     on a thread of its own, once; may block, and polls r->cancel
 *   opened   on the loop, after a successful open(), before the task joins a generation
 *   start    one generation; `on_end` comes once, from a thread of the work, after a successful start
 *   request, abort, progress, held: from any thread
 *   save     on a thread of its own, between generations
 *   close    on the loop; joins the threads of the work
 *
 * The callbacks of the work get train_opts.arg, which is the run. What a parameter server does
 * differently from training:
 * - held() is 0, and so is `held` of on_end: it holds rows, and no step;
 * - request(TRAIN_REQUEST_PAUSE) is accepted and need not do anything: the training tasks end the
 *   generation, and the parameter server reports TRAIN_PAUSED after all of them have;
 * - it is told neither to save nor to write a checkpoint, since it never coordinates;
 * - TRAIN_CONNECTED (to train_opts.on_event) when its channels are open, as for training;
 * - progress() gives a phase without limit; the membership compares no position of it. */
#ifndef DAEMON_WORK_H
#define DAEMON_WORK_H

#include <stdint.h>

#include "rdzv/rdzv.h"
#include "train/train.h"

struct err;
struct run;

struct work_ops {
    const char *what; /* for the thread and the stages of the shutdown: "model and data" */
    /* On success the caller closes *out. On failure *out is NULL. Errors: as train_open(). */
    int (*open)(struct run *r, void **out, struct err *err);
    void (*opened)(struct run *r); /* r->work is set */
    /* Errors: as train_start(); then nothing runs, and on_end does not come. */
    int (*start)(void *work, const struct train_generation *g, train_end_fn *on_end,
                 struct err *err);
    void (*request)(void *work, unsigned kinds); /* TRAIN_REQUEST_... */
    void (*abort)(void *work, const char *why);  /* harmless if no generation runs */
    uint64_t (*held)(const void *work);
    void (*progress)(const void *work, struct train_progress *out);
    int (*save)(void *work, uint64_t wait_ms, struct err *err); /* NULL: never called */
    /* As rdzv_opts.read_rows; any thread; work NULL: not open yet. NULL: this work holds no rows. */
    int (*read_rows)(void *work, const struct rdzv_rows_request *q, struct rdzv_rows *out,
                     struct err *err);
    void (*close)(void *work);                                  /* NULL is allowed */
};

extern const struct work_ops work_train, work_ps;

struct ps_facts;
struct ps_table_facts;
void work_ps_facts(const void *work, struct ps_facts *out); /* of work_ps; any thread */
/* As ps_tables(); of work_ps; any thread. */
uint32_t work_ps_tables(const void *work, struct ps_table_facts *out, uint32_t most);

#endif
