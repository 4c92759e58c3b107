/* run_priv.h - what the files of a running task share.
 *
 *   run.c     life, signals, ticks, opening and closing; a task without a cluster
 *   group.c   a task of a cluster: membership, training and lease, joined
 *   alone.c   a task without one */
#ifndef DAEMON_RUN_PRIV_H
#define DAEMON_RUN_PRIV_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/cancel.h"
#include "base/err.h"
#include "daemon/run.h"
#include "daemon/settle.h"
#include "rdzv/rdzv.h"
#include "train/train.h"

struct group;
struct sensors;

enum {
    EXIT_COMPLETE = 0,
    EXIT_INPUT = 2,
    EXIT_RETRY = 138,
    EXIT_STOPPED = 143,
};

struct run {
    const struct settled *s;
    struct loop *loop;
    struct loop_timer *tick;
    struct metrics *metrics;
    struct metrics_http *http;
    struct report *report;
    struct reload *reload;
    struct sensors *sensors;   /* NULL on CPUs */
    struct rdzv_gpu *gpus;     /* [n_devices], owned: what they last said; NULL on CPUs */
    struct rdzv_progress progress; /* the loop's copy */
    struct train_opts train_opts;
    struct group *group; /* NULL without a cluster */

    pthread_t opener;
    bool is_opening;     /* the opener thread is to be joined */
    struct cancel cancel; /* tells other threads to give up */
    struct train *train; /* NULL until opened */
    bool has_opened, has_ended, is_stopping;
    uint64_t stop_ms;    /* since when it is stopping */
    uint64_t generation; /* at work; 0: training is at rest */
    uint64_t generation_count;
    pthread_t saver;
    bool is_saving;      /* until has_saved() runs */
    bool has_saver;      /* the saver thread is to be joined */

    uint32_t signals, ticks;
    uint32_t n_wrong;    /* times that this task's numbers were not those of the others, or of its other replicas */
    bool checkpoint_asked;
    uint64_t checkpoint_after; /* answer Control.Checkpoint when a step >= this is verified, or one fails */
    int exit_code;
    char exit_text[ERR_TEXT_BYTES];
};

/* ---- run.c ---- */

void run_end(struct run *r, int code, const char *text);
/* Starts a generation; what it ends with comes back to run_ended(). */
int run_train(struct run *r, const struct train_group *g, struct err *err);
void run_save(struct run *r); /* on a thread of its own; then group_saved() or alone_saved() */
uint64_t run_deadline_ms(const struct run *r);
/* This task's numbers were the wrong ones. Once can happen. A machine that does it again and again holds
 * everybody up, and whoever starts it again waits longer each time: true, `text` [n] says so: leave. */
bool run_is_wrong_again(struct run *r, const char *why, char *text, size_t n);
uint64_t run_grace_ms(const struct run *r); /* for the running step, and as long again for the save behind it */

struct run_ended {
    struct run *run;
    uint64_t generation, held;
    enum train_end end;
    int code;
    char text[ERR_TEXT_BYTES];
};

/* ---- group.c ---- */

int group_open(struct run *r, struct err *err); /* data plane, lease, and begins to join */
void group_opened(struct run *r);               /* training can begin */
void group_failed(struct run *r, int code, const char *text); /* before there was a generation */
void group_connected(struct run *r, uint64_t generation);
void group_ended(struct run *r, const struct run_ended *m);
void group_saved(struct run *r, int rc, const char *text);
void group_stop(struct run *r);
void group_progress(const struct run *r, struct rdzv_progress *p); /* what the group adds: the lease */
void group_tick(struct run *r);
void group_stored(struct run *r); /* a checkpoint was written and verified */
void group_checkpoint_done(struct run *r, uint64_t step, const char *path, const char *error); /* error NULL: none */
/* For the sentence of the service: 0 tasks without a group. */
uint32_t group_present(const struct run *r, uint64_t *generation);
void group_close(struct run *r);       /* links end; before train_close() nothing may be asked */
void group_free(struct run *r);        /* behind train_close(), before loop_close() */

/* ---- alone.c ---- */

void alone_opened(struct run *r);
void alone_ended(struct run *r, const struct run_ended *m);
void alone_saved(struct run *r, int rc, const char *text);
void alone_stop(struct run *r);
void alone_tick(struct run *r);

#endif
