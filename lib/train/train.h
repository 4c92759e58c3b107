/* train.h - the step, and everything that happens between steps.
 *
 *   train_open    model, data, plans, memory; on the chief the newest checkpoint. Knows no peers.
 *   train_start   one generation: connect, agree on the state, then step until done
 *   train_close
 *
 * Step k, in every replica thread: for each of its lanes forward and backward into a gradient arena,
 * lanes added along the binary tree; the sum over gradients (of embedding tables the rows that were
 * read, tables.c), statistics and a few control words of all replicas, begun while the last lane
 * computes where that pays; norm and clipping; the optimizer over this replica's part of the shared
 * weights. The control words carry the loss and the requests to stop, so all tasks agree on them at
 * the same step without another message. The weights after step k depend on the options and on k, on nothing else.
 *
 * Threads: open, start, join, close belong to one thread at a time; train_request, train_abort and
 * train_progress may be called from any. Callbacks come from replica threads (and from
 * those that write checkpoints and traces) and must not block. */
#ifndef TRAIN_TRAIN_H
#define TRAIN_TRAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/comm.h"
#include "data/data.h"
#include "device/device.h"
#include "graph/graph.h"
#include "optim/optim.h"

struct ckpt_event;
struct err;
struct train;

enum { TRAIN_MAX_METRICS = 8 };

struct train_step_report {
    uint64_t step, epoch;      /* epoch from 0 */
    double loss;               /* mean over the global batch */
    double learning_rate;
    double grad_norm;          /* before clipping; NaN when this step did not compute it */
    uint64_t samples;          /* of the global batch with weight 1 */
    uint64_t skipped;          /* bad records that this task left out since it was opened */
    uint64_t ns, data_ns, reduce_ns; /* of this step on the first replica, waiting for data and for the
                                        reduction; the rest is compute */
    uint64_t reduce_work_ns;   /* inside all-reduces, also while it computed */
    uint64_t since_ns;         /* wall time since the previous report of a step: with what is between steps */
};

struct train_eval_report {
    uint64_t step, epoch;
    uint64_t samples;
    double loss;
    double metrics[TRAIN_MAX_METRICS]; /* in the order of the options */
    uint64_t ns;
};

struct train_profile { /* where the time of the traced steps went; the parts add up to step_seconds */
    const char *path;              /* of the trace */
    uint64_t first_step, steps;
    uint32_t replicas;             /* of this task; the figures are means over steps and replicas */
    double step_seconds;
    const struct train_profile_part {
        const char *what;      /* an op; "sum of gradients"; or "data", "lane sums", "reduction" (waiting
                                  for it), "update", "other" */
        const char *direction; /* of an op: "forward", "backward"; else "" */
        double seconds;        /* of a step */
    } *parts; /* largest first */
    uint32_t n_parts;
};

struct train_event {
    enum {
        TRAIN_PHASE,      /* text: "index", "import", "plan", "load", "connect", "train", "evaluate", "save", "export" */
        TRAIN_NOTE,       /* text: a choice or a fact for the log */
        TRAIN_WARN,       /* text: something a person should look at */
        TRAIN_PROGRESS,   /* done of all, in the current phase */
        TRAIN_RESUMED,    /* step, text: the checkpoint's path; step 0: fresh weights */
        TRAIN_STEP,       /* report; every step */
        TRAIN_EVAL,       /* eval */
        TRAIN_CHECKPOINT, /* ckpt */
        TRAIN_EXPORTED,   /* text: path */
        TRAIN_PROFILE,    /* profile; the trace is written */
    } kind;
    uint64_t step;
    const char *text;
    uint64_t done, all;
    const struct train_step_report *report;
    const struct train_eval_report *eval;
    const struct ckpt_event *ckpt;
    const struct train_profile *profile;
};

struct train_input { /* a feature that feeds a graph input */
    const char *feature, *input;
};

struct train_params { /* parameters with numbers of their own, by name; the first group that matches counts */
    const char *const *match; /* fnmatch patterns; each must match a trained parameter */
    uint32_t n_match;
    double rate_factor;       /* times the learning rate */
    double weight_decay;
    bool adapts;              /* lars, lamb: with a ratio of norms */
    bool lazy;                /* tables: rows that a step does not read are left as they are; must match
                                 tables alone, and the optimizer may need no norms */
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
    const char *onnx;
    const char *const *frozen;
    uint32_t n_frozen;
    const struct train_input *inputs;
    uint32_t n_inputs;
    const struct train_target *targets; /* what losses and metrics count by number */
    uint32_t n_targets;
    const struct plan_measure *losses;
    uint32_t n_losses;
    enum tensor_dtype precision; /* of the plans: 0, TENSOR_F32 or TENSOR_BF16 (plan_opts) */
    bool mean_of_weights; /* one loss: its mean is over what counts (class weights, ignored labels),
                             not over the samples */
    const struct train_metric *metrics;
    uint32_t n_metrics;

    const char *train_glob, *eval_glob; /* eval may be NULL */
    const struct data_part *parts;      /* a mixture to train on in place of train_glob, which then is for messages */
    uint32_t n_parts;
    enum data_format format;
    bool csv_header;
    char csv_delimiter;
    const struct data_feature *features; /* `fed` is settled here */
    uint32_t n_features;
    const char *pack; /* the feature that records are packed by; NULL: a sample is a record */
    bool shuffle, cache_memory, pad, skip_bad;
    const char *index_directory, *cache_directory;
    uint64_t data_deadline_ms; /* how long reading may take, and is tried again; 0: no limit, no trying */
    uint32_t data_threads; /* of the task; 0: chosen */
    uint32_t prefetch;     /* global batches ahead */

    uint64_t seed;
    uint64_t epochs, steps; /* one of them is 0 */
    uint32_t global_batch, lanes; /* settled by the caller: lanes divides global_batch */
    uint32_t replicas;      /* of the full cluster; each has lanes / replicas lanes, and it divides */
    double clip_norm, clip_value; /* the value first; 0: not */
    uint32_t eval_every_epochs;
    bool whole_gradients;   /* of tables too: the same weights, slower; for comparisons. Not with lazy */
    uint32_t norm_every_steps; /* compute the gradient norm at steps that this divides; 0: only for clipping */

    const struct optim_def *optimizer;
    struct optim_hyper hyper;           /* learning_rate and step are filled per step */
    struct optim_schedule schedule;     /* total_steps is filled here */
    const struct train_params *groups;
    uint32_t n_groups;
    double average;                     /* decay of the moving average of the weights; 0: none is kept */
    bool evaluate_average, export_average; /* evaluation, exported model: from the average */

    const struct device *devices;
    uint32_t n_devices;

    bool is_chief;                  /* reads and writes checkpoints, exports */
    const char *checkpoint_directory; /* NULL: none */
    uint64_t checkpoint_every_steps;
    double checkpoint_every_seconds;
    uint32_t max_to_keep;
    const char *export_onnx;        /* NULL: none */
    const char *job_digest, *job_name;
    enum train_overlap {
        TRAIN_OVERLAP_AUTO,   /* while backward computes, where that pays: lib/train/reduce.c */
        TRAIN_OVERLAP_NEVER,
        TRAIN_OVERLAP_ALWAYS, /* unless one bucket holds all */
    } overlap;                      /* rank 0's goes */
    size_t bucket_bytes;            /* the same on all tasks; 0: chosen */

    const char *trace;              /* a file for a trace of a few steps of this process (train/trace.h); NULL: none */
    uint32_t trace_steps;
    const char *sample_log;         /* a file that says which samples went into which step (train/sample_log.h); NULL: none */

    void (*on_event)(void *arg, const struct train_event *e);
    void *arg;
};

/* Blocking; progress through on_event. `cancel` is polled. Errors: ERR_INPUT, ERR_UNSUPPORTED (exit 2);
 * ERR_IO, ERR_NOMEM, ... (138); ERR_CANCELED. */
int train_open(const struct train_opts *opts, const volatile int *cancel, struct train **out,
               struct err *err);
void train_close(struct train *t); /* joins its threads; NULL is fine */

/* Can a trace be written there? train_open() asks too; here it is known before anybody is met. NULL is
 * fine. Errors: ERR_INPUT. */
int train_check_trace(const char *path, struct err *err);

/* What was settled, for --check and the log. */
struct train_facts {
    uint64_t records, eval_records;
    uint64_t steps_per_epoch, total_steps;
    uint64_t parameters;           /* trained numbers */
    uint64_t state_bytes, work_bytes; /* weights + slots; activations of one replica */
    double learning_rate;          /* peak */
    uint64_t resumed_step;
};
void train_facts(const struct train *t, struct train_facts *out);
const char *train_graph_digest(const struct train *t);

struct train_group { /* one generation */
    uint64_t generation;
    const struct comm_member *members;
    uint32_t n_members, self;
    uint8_t key[COMM_KEY_BYTES];
    struct comm_listener *listener; /* NULL with a single member */
    bool shared_memory;
    uint64_t deadline_ms;
    void (*on_broken)(void *arg, uint32_t member, const char *why);
};

enum train_end { TRAIN_COMPLETE, TRAIN_STOPPED, TRAIN_FAILED };

/* Starts the replica threads and returns. `on_end` comes once, from one of them, when all are done
 * with the generation: complete (all steps, last checkpoint verified, model exported), stopped (agreed, saved;
 * step, whether a stop was asked `everywhere`, and by whom in the text), or failed with the error. */
int train_start(struct train *t, const struct train_group *g,
                void (*on_end)(void *arg, enum train_end end, uint64_t step, bool everywhere,
                               int code, const char *text),
                struct err *err);

enum train_request_kind {
    TRAIN_ASK_STOP = 1,        /* this task wants to leave: all stop and save at the same step */
    TRAIN_ASK_STOP_ALL = 2,    /* the job ends everywhere */
    TRAIN_ASK_CHECKPOINT = 4,  /* save at the next boundary (the chief) */
};
void train_request(struct train *t, unsigned kinds);
/* Ends the generation at once: calls inside the communicator fail, nothing is applied or saved. */
void train_abort(struct train *t, const char *why);

#endif
