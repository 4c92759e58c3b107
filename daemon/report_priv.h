/* report_priv.h - what the files of the report share.
 *
 *   report.c         what training says: log, metrics, figures
 *   report_now.c     phase, trouble and other values that the rest of the daemon sets
 *   report_lines.c   the log lines of steps and evaluations
 *   report_curves.c  TensorBoard curves
 *   report_read.c    what others read: the progress line, figures for heartbeats
 *   report_history.c the course of the run: curve, evaluations, checkpoints; their part of Status */
#ifndef DAEMON_REPORT_PRIV_H
#define DAEMON_REPORT_PRIV_H

#include <pthread.h>

#include "daemon/curve.h"
#include "daemon/report.h"
#include "rdzv/rdzv.h"
#include "train/train.h"

struct ckpt_event;

/* Sums over the steps since the figures were last taken. */
struct window {
    uint64_t begin_ns, steps, samples, ns, data_ns, reduce_ns, reduce_work_ns, copy_ns;
    double idle; /* of GPUs, added up over n_idle devices and steps */
    uint64_t n_idle;
};

/* What the log line of a step holds. */
struct step_line {
    uint64_t step, epoch, total_steps;
    double loss, learning_rate, grad_norm, loss_scale; /* as in struct train_step_report */
    uint32_t groups;     /* of local SGD; 0: the step is synchronous */
    uint64_t outer_step;
    double samples_per_second;
    double share_data, share_compute, share_reduce; /* of the time since the line before */
    double reduce_work; /* part of that time in reductions, also while the replica computed */
    double device_idle; /* part of that time without work, mean over GPUs; NaN: unknown */
};

/* Lines of one step which the coordinator may not have written (report_lines.c). */
struct kept_lines {
    uint64_t step;
    bool has_step, has_eval;
    struct step_line line;
    struct train_eval_report eval;
};

/* Spare lanes since the last line about them. */
struct spare_lines {
    uint64_t used, compared, given; /* lanes, as in struct train_step_report */
    uint64_t step;                  /* the last one that is counted */
    char helped[64], helper[64];    /* names of the tasks */
    uint64_t written_ms;            /* that line; 0: none yet */
};

enum {
    REPORT_CHECKPOINTS = 16,
    SPARE_LINE_MS = 10000, /* least time between two lines about spare lanes */
};

/* A checkpoint that this task wrote or tried to write. */
struct kept_checkpoint {
    uint64_t step, bytes, ns, time_us;
    const char *state; /* as in CheckpointStatus; static */
    char path[1024], reason[256];
};

/* The TensorBoard curves (report_curves.c). */
struct report_curves {
    pthread_mutex_t lock;    /* guards what follows; never held for a disk */
    struct summary *summary; /* NULL: none, or not yet */
    struct summary_run *run; /* owned; NULL: the curves have no description */
    char *directory;         /* owned; NULL: none */
    uint32_t moves;          /* number of changes of the directory */
    bool draws;              /* this task writes curves */
    bool loss_is_logged;     /* the log has stated that points are missing */
};

/* Prometheus. The registry owns the metrics. */
struct report_metrics {
    struct metric *step, *epoch, *loss, *rate, *norm, *speed, *eval_loss, *eval_metric[TRAIN_MAX_METRICS];
    struct metric *complete, *total_steps;
    struct metric *steps_total, *samples_total, *skipped_total;
    struct metric *skipped_steps, *overflowed_steps, *loss_scale, *divergences, *changed_messages;
    struct metric *phase, *groups, *outer_step; /* NULL: the job has no phases */
    struct metric *coded_bytes, *coded_saved_bytes; /* NULL: the job does not compress gradients */
    struct metric *spare_given, *spare_offered, *spare_used, *spare_compared, *spare_wrong; /* NULL: no spare lanes */
};

/* The same for the time of a step, and for checkpoints. */
struct report_time_metrics {
    struct metric *step_seconds, *data_seconds, *reduce_seconds, *reduce_work_seconds, *copy_seconds;
    struct metric *saved_step, *saved_time, *save_seconds, *save_failures;
};

struct report {
    struct report_opts opts;
    pthread_mutex_t lock; /* guards what follows, up to `kept` */
    struct rdzv_progress now;
    uint64_t steps_per_epoch;
    uint64_t started_ms;
    uint64_t first_step, first_step_ns; /* for the time that is left */
    uint64_t done, all;                 /* of the current phase */
    struct window window;
    struct window logged; /* since the last step line */
    struct train_eval_report eval;
    bool has_eval;
    struct curve curve;
    struct kept_checkpoint checkpoints[REPORT_CHECKPOINTS]; /* a ring */
    uint64_t n_checkpoints;                                 /* ever added to it */
    uint64_t phase_logged_ms; /* the loop's: last line about a long phase */
    uint32_t log_every; /* atomic */
    uint32_t is_lead;   /* atomic */

    struct kept_lines kept; /* of the thread that reports a generation */
    struct spare_lines spare; /* likewise */
    struct report_curves curves;
    struct report_metrics metrics;
    struct report_time_metrics times;
};

static inline bool report_is_coordinator(const struct report *r)
{
    return __atomic_load_n(&r->is_lead, __ATOMIC_RELAXED) != 0;
}

static inline double report_ratio(uint64_t part, uint64_t whole)
{
    return whole > 0 ? (double)part / (double)whole : 0;
}

/* ---- report_lines.c: called for the events of a generation ---- */
/* The coordinator writes the line. Another task keeps it until lines_logged(), or writes it at
 * level debug. */
void lines_step(struct report *r, const struct step_line *line);
void lines_eval(struct report *r, const struct train_eval_report *e);
/* On other tasks: the coordinator has written the lines of `step`, or has not. */
void lines_logged(struct report *r, uint64_t step, bool is_written);

/* Spare lanes: writes a line at once for the first use, then at most every ten seconds. */
void lines_spare(struct report *r, const struct train_step_report *s);

/* ---- report_now.c ---- */
void report_at_rest(struct report *r); /* no step is made: speed and step time are 0 */

/* ---- report_history.c ---- */
void history_step(struct report *r, const struct train_step_report *s); /* under `lock` */
void history_eval(struct report *r, const struct train_eval_report *e); /* under `lock` */
void history_checkpoint(struct report *r, const struct ckpt_event *e);

/* ---- report_curves.c ---- */
void curves_begin(struct report *r); /* of no step yet: curves_open() */
void curves_end(struct report *r);
void curves_open(struct report *r, uint64_t step); /* behind this step, if this task leads */
void curves_point(struct report *r, uint64_t step, const char *tag, float value);
/* device_idle: NaN: not known. */
void curves_step(struct report *r, const struct train_step_report *s, double speed,
                 double device_idle);
void curves_check(struct report *r); /* says if points were lost */

#endif
