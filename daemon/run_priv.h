/* run_priv.h - the interface between the files of a running task. All functions run on the loop's
 * thread.
 *
 *   work_*.c     what a task does in its generations: training, or service as a parameter server (work.h)
 *   run_state.c  starts generations and saves; ends the task
 *   group*.c     a task of a cluster: connects membership, training and lease (group_priv.h)
 *   alone.c      a task without a cluster
 *   lock.c       one running job for each checkpoint directory
 *   evaluator*.c an evaluator, which follows the checkpoints of a job (evaluator.h)
 *   run.c        life cycle, signals, ticks, opening and closing; calls group.c, alone.c or evaluator.c
 *                through struct run_mode */
#ifndef DAEMON_RUN_PRIV_H
#define DAEMON_RUN_PRIV_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/cancel.h"
#include "base/err.h"
#include "daemon/launcher.h"
#include "daemon/lock.h"
#include "daemon/run.h"
#include "daemon/settle.h"
#include "rdzv/rdzv.h"
#include "train/train.h"

struct Trainerd__V1__StatusReply;
struct advisor;
struct arena;
struct evaluator;
struct group;
struct memory_watch;
struct reload;
struct reload_changes;
struct run_mode;
struct sensors;
struct status_pages;
struct work_ops;

enum {
    EXIT_COMPLETE = 0,
    EXIT_INPUT = 2,
    EXIT_RETRY = 138,
    EXIT_STOPPED = 143,
};

/* Opening model and data, on a thread of its own. */
struct run_opening {
    pthread_t thread;
    bool has_thread; /* the thread is to be joined */
    bool is_done;    /* training is open */
    /* why this task cannot write the results of the job; "": it can. Written by the thread */
    char refused[1024];
};

/* run_save(), on a thread of its own. */
struct run_saving {
    pthread_t thread;
    bool has_thread; /* the thread is to be joined */
    bool is_open;    /* from run_save() until handle_saved() runs */
};

/* One of stop_signals() was received, or the launcher has ended. */
struct run_stop {
    bool is_requested;
    uint64_t since_ms; /* clock_ms() */
};

/* A Control.Checkpoint call waits for its reply. */
struct run_checkpoint {
    bool is_requested;
    uint64_t after_step; /* reply when a step >= this is verified, or when a checkpoint fails */
};

struct run_exit {
    bool is_decided; /* later messages are ignored */
    int code;
    char text[ERR_TEXT_BYTES];
};

struct run_gpus { /* zeroed on CPUs */
    struct sensors *sensors;
    struct rdzv_gpu *readings; /* owned [n_devices]: last readings */
};

/* What this task serves over HTTP. */
struct run_http {
    struct metrics *metrics;
    struct metrics_http *server; /* NULL: no HTTP */
    struct status_pages *pages;  /* of `server`; NULL without HTTP */
    char page[264]; /* host:port at which other hosts reach the page, or of the loopback interface if it listens there
                       alone; "": no page */
};

struct run {
    const struct settled *s;
    const struct run_mode *mode;
    struct group *group; /* NULL without a cluster */
    struct evaluator *evaluator; /* NULL: a task that trains */
    struct lock lock;    /* the lease on checkpoint.directory */
    struct launcher launcher; /* this task ends with it */
    struct loop *loop;
    struct loop_timer *tick;
    uint32_t signals, ticks; /* stop signals that counted; ticks of the loop */
    uint64_t signal_ms;      /* clock_ms() of the first stop signal; valid if signals > 0 */
    uint32_t idle_ticks; /* without a generation since training was opened; IDLE_TICKS at most */

    struct run_http http;
    struct report *report;
    struct reload *reload;
    struct memory_watch *memory;
    struct advisor *advisor;
    struct run_gpus gpus;
    struct rdzv_progress progress; /* updated by every tick; only the loop's thread reads it */

    struct train_opts train_opts;
    const struct work_ops *ops; /* what this task does in a generation */
    void *work;                 /* of `ops`; NULL until opened */
    struct train *train;        /* the same on a task that trains; NULL on a ps task, and until opened */
    uint64_t started_ms; /* clock_ms() at the start of the run */
    uint64_t generation; /* the running generation; 0: training is idle */
    uint64_t generation_count;
    struct train_eval_report evaluation; /* the last one; read it while training is idle */
    uint32_t n_diverged; /* how often this task's results differed from those of the other tasks,
                            or the results of its replicas from each other */

    struct run_opening opening;
    struct run_saving saving;
    struct run_stop stop;
    struct run_checkpoint checkpoint;
    struct run_exit exit;
    struct cancel cancel; /* set when the task ends: cancels the work of the other threads */
};

/* ---- run.c ---- */

/* The callback of the work: training, or the service of a parameter server. Called on its threads. */
void run_event(struct run *r, const struct train_event *e);

/* ---- run_state.c ---- */

/* Decides the exit code and stops the loop. Only the first call has an effect. */
void run_end(struct run *r, int code, const char *text);
/* Copies the figures of the report, the sensors and training to r->progress; also done at every tick. */
void run_update_progress(struct run *r);
/* Starts a generation. Its result is delivered to r->mode->ended().
 * Errors: those of train_start(). */
int run_train(struct run *r, const struct train_generation *g, struct err *err);
/* Saves the state on a separate thread, then calls r->mode->saved(). Training is
 * idle. */
void run_save(struct run *r);
/* Called by a replica's thread. Returns true if another process completed the job: this task ends
 * with exit code 0. Reads the storage, which may hang. */
bool run_was_completed(struct run *r);
/* Any thread: another process completed the job; this task ends with exit code 0. */
void run_end_complete(struct run *r, const char *text);
uint64_t run_deadline_ms(const struct run *r); /* train.deadline_seconds */
/* Called when this task's results were the divergent ones (`why` is the error). A single divergence
 * may be transient; a machine that diverges repeatedly delays the whole group. Returns true if the
 * limit is reached: the caller must end the task with `text` [n]. The supervisor restarts the task
 * after a growing delay. */
bool run_diverged_again(struct run *r, const char *why, char *text, size_t n);
/* train.grace_seconds: the time for the running step, and again for the save after it. */
uint64_t run_grace_ms(const struct run *r);

struct run_ended {
    struct run *run;
    uint64_t generation, held;
    enum train_end end;
    int code;
    char text[ERR_TEXT_BYTES];
};

/* ---- group.c, alone.c ---- */

/* How the task runs: in a group, alone, or as an evaluator. The functions are called on the loop's thread and, except
 * open, close and free, only until the exit code is decided. A task without a group leaves failed, connected, stored,
 * progress and present NULL: then a failure ends the process, and one task is present. */
struct run_mode {
    /* Starts to form the group of the first generation; training opens on another thread. */
    int (*open)(struct run *r, struct err *err);
    /* Training is open, or could not be opened. */
    void (*opened)(struct run *r);
    void (*failed)(struct run *r, int code, const char *text);
    /* Results of run_train(): all members are connected; the generation has ended. */
    void (*connected)(struct run *r, uint64_t generation);
    void (*ended)(struct run *r, const struct run_ended *m);
    /* Result of run_save(). rc 0: saved. */
    void (*saved)(struct run *r, int rc, const char *text);
    /* A checkpoint was written and verified. */
    void (*stored)(struct run *r);
    /* Called when a stop is requested (struct run_stop). */
    void (*stop)(struct run *r);
    void (*tick)(struct run *r);
    /* Sets the fields of *p that only the group knows: the state of the lease. */
    void (*progress)(const struct run *r, struct rdzv_progress *p);
    /* Returns the number of present tasks for the service status, and sets *generation. 0: no group. */
    uint32_t (*present)(const struct run *r, uint64_t *generation);
    /* Fills in *s, which is initialized, as rdzv_describe() does, and calls status_complete(). */
    void (*describe)(struct run *r, struct Trainerd__V1__StatusReply *s, struct arena *a);
    /* Replies to Control.Checkpoint. `error` NULL: success. */
    void (*checkpoint_done)(struct run *r, uint64_t step, const char *path, const char *error);
    /* A reload is finished; replies to Control.Reload. `error` NULL: the changes were applied. NULL: there is no control port. */
    void (*reload_done)(struct run *r, uint64_t number, const struct reload_changes *changes, const char *error);
    /* Closes the links; NULL: there are no links. Called before train_close(); no other function is called afterwards, except free. */
    void (*close)(struct run *r);
    /* Frees the memory. Called after train_close() and before loop_close(). */
    void (*free)(struct run *r);
};

extern const struct run_mode group_mode, alone_mode, evaluator_mode;

#endif
