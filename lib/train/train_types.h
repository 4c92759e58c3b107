/* train_types.h - options, events, groups and ends of train.h, without functions. */
#ifndef TRAIN_TRAIN_TYPES_H
#define TRAIN_TRAIN_TYPES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/lane_tree.h"
#include "comm/comm.h"
#include "device/device.h"
#include "graph/graph.h"
#include "opts/code.h"
#include "opts/data.h"
#include "opts/optim.h"
#include "opts/ps.h"
#include "opts/train.h"

struct ckpt_event;
struct ckpt_failure;
struct err;
struct trace_profile;
struct train;

enum { TRAIN_MAX_METRICS = 8, TRAIN_PHASE_BYTES = 32 };

struct train_step_report {
    uint64_t step, epoch; /* epoch from 0 */
    double loss;          /* mean over the global batch */
    double learning_rate;
    double grad_norm;                /* before clipping; NaN when this step did not compute it */
    double loss_scale;               /* of the next step; 0: this precision needs none */
    uint64_t steps;                  /* 1; of local SGD: the steps of the period that ends with `step`.
                                        Loss: their mean; samples and times: their sum */
    uint32_t phase, groups;          /* as in a manifest (ckpt/ckpt.h) */
    uint64_t outer_step;
    uint64_t samples;                /* of the global batch with weight 1 */
    uint64_t skipped;                /* bad records that this task left out since it was opened */
    uint64_t ns, data_ns, reduce_ns; /* of this step on the first replica, waiting for data and for
                                        the reduction; the rest is compute */
    uint64_t reduce_work_ns;         /* inside all-reduces, also while it computed */
    /* Coded all-reduces of all replicas of the task: bytes sent to other hosts, and what float32 would
     * have been. */
    uint64_t coded_bytes, coded_plain_bytes;
    uint64_t copy_ns;                /* copying the state for the checkpoint writer, part of ns */
    /* wall time since the previous report of a step: with what is between steps */
    uint64_t since_ns;
    /* Of each device, from the gradient before to this one: the share of the time in which it had
     * no work of this program. NaN: unknown, as after an evaluation. NULL: CPUs. Valid during the
     * call.
     */
    const double *device_idle;
    /* Of the generation, for comm_read_waits(); valid during the call. NULL: there is one replica. */
    const struct comm *comm;
    uint32_t lanes, own_lanes; /* that this task, and its first replica, computed in a step */
    /* Spare lanes of the step (engine.h): lanes of this task that its helper contributed; lanes of the helped task
     * that this one computed, contributed, and compared. The names are valid during the call; NULL: no spare lanes. */
    uint32_t spare_given, spare_offered, spare_used, spare_compared;
    uint64_t spare_given_ns; /* computed in vain for lanes that the helper contributed; part of ns */
    const char *spare_helped, *spare_helper;
    /* [n_feeds] durations of copies of samples to the GPU of the first replica, in milliseconds, that ended since
     * the report before; valid during the call. */
    const float *feed_ms;
    uint32_t n_feeds;
};

struct train_eval_report {
    uint64_t step, epoch;
    uint64_t samples;
    double loss;
    double metrics[TRAIN_MAX_METRICS]; /* in the order of the options */
    uint64_t ns;
};

struct train_event {
    enum {
        TRAIN_PHASE, /* text: "weights", "import", "index", "plan", "connect", "load", "transfer",
                        "train", "evaluate", "save", "export" */
        TRAIN_NOTE,  /* text: a choice or a fact for the log */
        TRAIN_WARN,  /* text: something a person should look at */
        TRAIN_PROGRESS, /* done of all, in the current phase */
        /* step: what all tasks of the generation hold now; the first step comes next */
        TRAIN_CONNECTED,
        TRAIN_RESUMED, /* after the first TRAIN_CONNECTED. step, text: the checkpoint's path, "" if
                          the state came from a peer; step 0: fresh weights */
        /* report; every step, once, also if it was interrupted here and finished elsewhere */
        TRAIN_STEP,
        TRAIN_EVAL,       /* eval; once for a step */
        TRAIN_CHECKPOINT, /* ckpt */
        TRAIN_EXPORTED,   /* text: path */
        TRAIN_PROFILE,    /* profile; the trace is written */
        TRAIN_SKIPPED, /* step, text: loss or gradient are not finite, and why; done: steps skipped
                          in a row, all: by this process. TRAIN_STEP follows */
        TRAIN_OVERFLOWED, /* step, text: the gradient left the range of float16: the step was
                             skipped, the loss scale halved; all: such steps, by this process.
                             TRAIN_STEP follows */
        /* step, text: tasks or replicas hold different numbers; the generation ends */
        TRAIN_DIFFERS,
        /* step, text: this task found that two copies of spare lanes differ; all: these lanes. The generation ends,
         * and the step is computed again */
        TRAIN_WRONG_COPY,
        /* step; done: 1: the coordinator has written the log lines of this step, 0: it has not
         * (train_set_unlogged()). On every other task, before the next TRAIN_STEP and at the end of
         * a generation that does not fail */
        TRAIN_LOGGED,
    } kind;
    uint64_t step;
    const char *text;
    uint64_t done, all;
    const struct train_step_report *report;
    const struct train_eval_report *eval;
    const struct ckpt_event *ckpt;
    const struct trace_profile *profile; /* engine/trace_types.h */
};

struct train_target { /* a feature with right answers */
    const char *feature;
    enum tensor_dtype dtype; /* what the rows that use it want */
};

struct train_metric {
    const char *name; /* for people: "accuracy" */
    struct plan_measure measure;
    enum train_figure {
        TRAIN_MEAN,     /* sum / weight */
        TRAIN_EXP_MEAN, /* e to that: the perplexity of a cross entropy */
        TRAIN_AREA,     /* under the ROC curve, from the histograms of AreaUnderCurve */
    } figure;
};

struct train_opts { /* everything is borrowed until train_close() */
    struct train_model model;
    const struct train_target *targets; /* what losses and metrics count by number */
    uint32_t n_targets;
    const struct plan_measure *losses;
    uint32_t n_losses;
    bool mean_of_weights; /* one loss: its mean is over what counts (class weights, ignored labels),
                             not over the samples */
    const struct train_metric *metrics;
    uint32_t n_metrics;

    struct train_data data;
    const struct data_feature *features; /* `fed` is settled here */
    uint32_t n_features;
    /* how long a read may last, with retries; 0: no limit, no retry */
    uint64_t data_deadline_ms;

    struct train_run run;
    bool only_evaluates; /* the task never trains */
    uint32_t global_batch, lanes; /* settled by the caller: lanes divides global_batch */
    struct lane_tree lane_tree;   /* along which lanes are added; zeroed: the plain tree */
    uint32_t replicas;            /* of the full cluster; at most lanes */
    uint32_t min_replicas;        /* of the smallest group that may train; 0: replicas */
    /* Replicas may have unequal pieces of lanes (comm/pieces.h), which takes one more arena of gradients.
     * On CPUs, without parameter servers, compressed gradients and local SGD. */
    bool balances;
    /* of tables too: the same weights, slower; for comparisons. Not with lazy */
    bool whole_gradients;

    struct optim_settings optimizer;
    const struct train_params *groups;
    uint32_t n_groups;
    struct train_health health;

    /* The group has parameter servers, which hold the tables that these settings select. NULL: all
     * tables are in this task. */
    const struct ps_settings *ps;
    /* The job describes parameter servers, whether or not the group has them. The norm of the gradient of
     * the tables that these settings select is then added shard by shard, so that a job has the same bits
     * with and without parameter servers. NULL: it does not. */
    const struct ps_settings *ps_tables; /* also: the staleness with which lanes read these tables */

    const struct device *devices;
    uint32_t n_devices;

    struct train_checkpoint checkpoint;
    struct train_export export;
    const char *job_digest, *job_name;
    enum train_overlap {
        TRAIN_OVERLAP_AUTO, /* while backward computes, where that pays: lib/engine/cpu_reduce.c */
        TRAIN_OVERLAP_NEVER,
        TRAIN_OVERLAP_ALWAYS, /* unless one bucket holds all */
    } overlap;                /* that of rank 0 counts */
    size_t bucket_bytes;      /* the same on all tasks; 0: chosen */
    /* Spare lanes; the same on all tasks. Not where `balances` is not possible */
    enum train_spare spare;
    bool deterministic;       /* GPUs add along the tree over lanes (engine_opts.ordered) */
    struct code_settings code; /* of gradients; zeroed: none */

    const char *trace; /* a file for a trace of a few steps of this process (train/trace.h), all of
                          one generation; NULL: none */
    uint32_t trace_steps;
    /* a file that says which samples went into which step (train/sample_log.h); NULL: none */
    const char *sample_log;

    void (*on_event)(void *arg, const struct train_event *e);
    void *arg;
};

/* What was settled, for --check and the log. */
struct train_facts {
    uint64_t records, eval_records;
    uint64_t steps_per_epoch, total_steps;
    uint64_t parameters;              /* trained numbers */
    uint64_t state_bytes, work_bytes; /* weights + slots; activations of one replica */
    uint64_t model_bytes;             /* of the state without the outer momentum of local SGD */
    double learning_rate;             /* peak */
    uint64_t resumed_step;
    struct graph_weights_facts weights; /* all 0: the job names no file of weights */
};
struct train_generation { /* one generation; copied, with the view */
    struct group_view view;
    uint8_t key[COMM_KEY_BYTES]; /* secret of the communicator, derived from the key of the view */
    struct comm_listener *listener; /* borrowed; NULL with a single member */
    bool shared_memory;
    bool encrypts; /* links over TCP are under TLS */
    /* A generation of this task alone that evaluates the held state and makes no step; it ends with
     * TRAIN_PAUSED or TRAIN_COMPLETE. TRAIN_CONNECTED has the step before the evaluated one. */
    bool only_evaluates;
    uint64_t deadline_ms;
    void (*on_broken)(void *arg, const struct comm_loss *loss, const char *why);
    /* NULL, or asked by the first replica of the coordinator before it gives its last contribution
     * to a step. While it says no, nobody can finish the step; it is asked again every few
     * milliseconds. */
    bool (*may_step)(void *arg);
    /* NULL, or asked by the thread that writes checkpoints right before one is published; an error
     * is why not. It is the group of the last train_start() that is asked for. */
    int (*may_save)(void *arg, struct err *err);
};

enum train_end {
    /* all steps; on the coordinator the last checkpoint is verified, the model exported */
    TRAIN_COMPLETE,
    TRAIN_UNSAVED,  /* all steps, and the storage of this task, the coordinator, fails: nothing is
                       lost while another task holds the state. Code and text */
    TRAIN_PAUSED,   /* requested: all tasks hold the state after the same step */
    TRAIN_ABORTED,  /* by train_abort() */
    TRAIN_FAILED,   /* code and text; ERR_PEER: a link broke; ERR_INPUT: also policy TRAIN_STOP;
                       ERR_DEVICE: also tasks that differ without a majority, held is 0 then */
    TRAIN_DIVERGED, /* train_diverged() holds other numbers than the majority. If it is this task,
                       held is 0; unless its replicas differed before they used it: then nothing is
                       lost */
    /* policy TRAIN_RESTORE, on all tasks: held is 0, and the group continues with newest_step 0 */
    TRAIN_ROLL_BACK,
};
typedef void train_end_fn(void *arg, enum train_end end, uint64_t held, int code, const char *text);

enum train_request_kind {
    TRAIN_REQUEST_PAUSE = 1, /* all tasks end this generation after the same step; forgotten when
                            the next one starts. At the job's last step it has no effect */
    TRAIN_REQUEST_CHECKPOINT = 2, /* save at the next boundary (the coordinator) */
};
/* Where a generation is: that of this task's threads, those of replicas and those that reduce for
 * them, which is furthest behind. For a watchdog: a task whose `place` stays for longer than
 * limit_ms does not move. */
struct train_progress {
    uint64_t step; /* being made; between steps the one that is held */
    /* The same for all tasks at the same point of the same step, or on the way to the first step of
     * a generation, and grows: the task with the lowest number holds up the others. */
    uint64_t place;
    const char *phase; /* static, shorter than TRAIN_PHASE_BYTES: "connect", "load", "agree",
                          "transfer", "wait for samples", "forward and backward", "reduce",
                          "update", "evaluate", ...; "rest": no generation runs */
    /* clock_ns() when that thread entered it, or continued after a wait for others in it */
    uint64_t since_ns;
    /* The phase should not take longer: stuck_factor times the longest recent time, without waits
     * for others, at least three seconds, at most the deadline of the job; that deadline in the
     * first steps of a generation. 0: no limit, because the phase may take any time (a checkpoint),
     * has a deadline of its own (reading), or waits for other tasks. */
    uint64_t limit_ms;
};

#endif
