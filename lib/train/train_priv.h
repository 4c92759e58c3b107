/* train_priv.h - what the files of train/ share.
 *
 *   train.c       open, close: the object
 *   generation.c  starting and ending one: threads, lanes, the communicator's life
 *   memory.c      the state, which is private; what peers of the host can write to
 *   replica.c     the thread of a replica: join the generation, step, what is due between steps
 *   agree.c       who holds what, and what is owed
 *   transfer.c    the state, from a task that has it to those that are behind
 *   step.c        one step
 *   tables.c      the part of it that is about tables: which rows have a gradient
 *   reduce.c      the sum over all replicas, while the last lane computes
 *   update.c      the optimizer's part of it
 *   loss_scale.c  how far float16 gradients are lifted, and what an overflow does
 *   gpu.c, gpu_step.c, gpu_copy.c, gpu_clock.c  what a GPU does for a replica (gpu.h)
 *   health.c      can a step's numbers be trusted? (checksum.c; locate.c: where did one that is none
 *                 come from?)
 *   eval.c        one evaluation
 *   save.c        checkpoints and export, on member 0
 *   live.c        options that may change meanwhile
 *   progress.c    where everybody is, for a watchdog
 *   sample_log.c  which samples went into which step, on disk
 *   trace.c       a few steps on a time line (trace_write.c: the file, and where the time went)
 */
#ifndef TRAIN_TRAIN_PRIV_H
#define TRAIN_TRAIN_PRIV_H

#include <pthread.h>

#include "base/cancel.h"
#include "base/err.h"
#include "base/gate.h"
#include "ckpt/ckpt.h"
#include "ckpt/weights.h"
#include "engine/place.h"
#include "tensor/packed.h"
#include "train/health.h"
#include "train/loss_scale.h"
#include "train/sample_log.h"
#include "engine/trace.h"
#include "train/train.h"

/* Behind the parameters in every gradient arena: reduced with them. */
enum control_word {
    CONTROL_LOSS,   /* sum over the lanes of the scaled loss: the mean over the global batch, times the
                       loss scale */
    CONTROL_WEIGHT, /* mean_of_weights: what loss and gradients are divided by, likewise scaled */
    CONTROL_TROUBLE, /* GPUs that met a number which their model cannot use: an index, a label */
    CONTROL_PAUSE,  /* tasks that ask for a pause */
    CONTROL_WEIGH,  /* a checkpoint is due behind the step: weights are to be compared */
    CONTROL_WORDS = 16, /* behind them health_words() */
};
enum { MAX_TREE = 33, LEAST_GRADS_BYTES = 4096 /* of an arena, however small the model: texts fit in */ };

/* Member 0's goes to all when a generation starts. */
struct agreement {
    uint64_t step; /* that everybody shall hold */
    char model_digest[65];
    char data_digest[65];
    char weights_digest[CKPT_WEIGHTS_DIGEST_BYTES]; /* of the file of weights; "": none */
    uint32_t fresh_crc; /* of the initial weights */
    bool overlap;       /* reduce while computing */
};

/* Then everybody gets the largest of what the tasks say: is there any that ... */
enum vote {
    VOTE_BEHIND,      /* holds less? */
    VOTE_UNEVALUATED, /* holds the step, and has not told the evaluation that is due behind it? */
    VOTE_PAUSE,       /* asks for a pause? */
    VOTE_TRACES,      /* wants to trace, and how many steps? */
    VOTE_RESTORED_AT, /* remembers that everybody went back to a checkpoint, and for which step? 0: none */
    N_VOTES,
};

/* Belongs to the state after a step, and is not in its memory. */
struct facts {
    uint64_t step;
    uint64_t evaluated_step; /* the last evaluation that was told, and heard by a plateau schedule */
    double loss, grad_norm;  /* of the step, for its report */
    uint32_t skips_in_row;   /* steps up to this one that were skipped */
    struct loss_scale scale; /* of the step behind it */
    struct optim_plateau plateau;
};

/* Where everything is, in floats unless said otherwise. */
struct memory {
    struct device_mem own;     /* the state; private: no peer can write to it */
    struct device_mem region;  /* the rest; shared unless there will never be a peer */
    size_t region_bytes;       /* of which [0, replicas_at) is the agreement, */
    size_t replicas_at;        /* then each replica's part: */
    size_t grads_bytes, sums_bytes, marks_bytes; /* of one of each */
    size_t params, trained;    /* floats of a parameter arena; of its trained part */
    size_t dense;              /* floats of a gradient arena that backward makes ready in order; behind
                                  them, up to `trained`, values of the rows of tables that have marks */
    const struct packed_table *tables; /* the graph's */
    uint32_t n_tables;         /* 0 also if gradients are wanted whole */
    size_t table_words;        /* of marks */
    size_t slot;               /* floats of one slot */
    size_t state_bytes;        /* parameters, slots, average: what a checkpoint holds */
    size_t grads;              /* floats of one gradient arena, control words included */
    uint32_t depth;            /* gradient arenas of a replica: levels of its lane tree, at most */
    float *state;              /* parameters, then slots, then the average */
    float *slots[OPTIM_MAX_SLOTS]; /* NULL: the optimizer does not use this one */
    float *average;            /* a parameter arena: averages of the trained, copies of the statistics; or NULL */
    struct agreement *agreement;
};

/* Reduces for a replica while that computes. */
struct reducer {
    uint32_t n_buckets;    /* of a step; 1: no thread */
    size_t added;          /* the replica's: floats of the last lane that are added to the others */
    size_t end;            /* the replica's: floats of the arena closed up, where the last bucket ends */
    uint64_t work_ns;      /* inside all-reduces of this step; whoever reduces */
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;  /* guards what follows */
    pthread_cond_t changed;
    uint32_t given, done;  /* buckets of this step */
    bool stop;
    int rc;                /* 0, or the first failure, which is `err` */
    struct err err;
    struct trace_row *trace; /* of this step */
    uint64_t step;           /* likewise */
    struct place place;
};


struct replica {
    struct train *train;
    struct gpu *gpu;           /* NULL: its device is a CPU */
    uint32_t local;            /* index in this process */
    uint32_t first_lane, n_lanes; /* in this generation: a subtree of the tree over all lanes */
    uint32_t rank;
    pthread_t thread;
    bool started;
    struct plan *plan, *eval_plan;
    struct device_mem work, eval_work;
    float *grads[MAX_TREE];    /* gradient arenas of the lane tree, in the region */
    struct packed rows[MAX_TREE]; /* of each of them: the rows of tables that have a gradient */
    struct packed all_rows;    /* while reducing: the marks of all replicas */
    double *sums[MAX_TREE];    /* evaluation accumulators likewise, eval_words each */
    struct data_reader *reader;      /* under lock: reader_open(), reader_close() */
    struct data_reader *side_reader; /* likewise; of an evaluation, of a step that is computed again */
    struct reducer reducer;
    int64_t votes[N_VOTES];
    double scale;              /* of the loss, in the step at work; the same in all replicas */
    struct place place;
    uint64_t data_ns, reduce_ns; /* of the current step; reduce_ns: waiting for it */
    struct trace_row *trace;   /* NULL but in and between traced steps */
};

/* Options that may change at any time: train_set_checkpoint(), train_set_norm(). */
struct live {
    uint64_t save_every_steps, save_every_ns, norm_every_steps; /* atomic; 0: not */
    uint32_t max_to_keep;                                       /* atomic */
    /* norm_every_steps as it goes for step k, at [k & 1]: local replica 0 writes that of the next step
     * before the gate that ends this one, so that all replicas decide alike. */
    uint64_t norm_every[2];
};

struct step_result { /* agreed: the same on every task */
    double loss;
    bool pause;
    bool weigh; /* weights are to be compared behind the step */
    bool trouble; /* a GPU met a number which cannot be: the step is not made */
};

struct train {
    const struct train_opts *opts;
    struct graph *graph;
    struct ckpt_weights *weights;    /* owned; NULL: none, or they were read */
    struct graph_weights weights_of; /* the same for the import */
    char weights_digest[CKPT_WEIGHTS_DIGEST_BYTES]; /* "": none */
    struct data_set *data, *eval_data;
    struct memory mem;
    struct replica *replicas; /* [n_devices] */
    uint32_t lane_batch;
    uint32_t max_lanes;            /* of a replica, in any group that may train */
    uint32_t *shares;              /* [opts->replicas]: lanes of each rank in this generation */
    uint64_t steps_per_epoch, total_steps, eval_steps;
    struct optim_schedule schedule;
    char (*slot_names)[512];
    struct ckpt_tensor *model_tensors, *slot_tensors;
    uint32_t n_model, n_slots;
    struct ckpt_writer *writer;    /* NULL until this task first needs it, as member 0 */
    uint64_t writer_retry_ns;      /* not before: it could not be opened */
    uint64_t held_step;            /* atomic; state in memory; 0: fresh */
    uint64_t shadow_step;          /* on GPUs: the step whose state the host's memory has */
    struct facts facts;            /* of it, but for `plateau`, which is the schedule's */
    uint32_t fresh_crc;
    bool told_resumed;
    char resumed_path[4096];
    uint32_t *feature_of_input;    /* graph input i is fed by data feature feature_of_input[i] */
    uint32_t *feature_of_target; /* likewise target i */
    struct trace *trace;         /* NULL: not asked for */
    struct sample_log *samples;  /* likewise */
    double *device_idle;         /* [n_devices] train_step_report: each replica's before its commit gate */
    struct live live;
    uint32_t eval_words;         /* sums of an evaluation: loss, weight, the metrics' */

    /* one generation */
    struct train_group group;
    struct comm_member *members;
    struct comm *comm;
    pthread_mutex_t lock;          /* guards comm's and readers' lifetime against train_abort, and the result */
    struct gate gate;              /* broken when the generation ends early */
    struct gate solid;             /* never: for what must be finished once it was begun */
    struct health health;
    struct optim *optim;           /* the optimizer at work on this graph's parameters */
    uint32_t running;              /* atomic: replica threads that have not ended */
    struct cancel cancel;
    unsigned requests;             /* atomic: train_request_kind bits */
    train_end_fn *on_end;
    int (*may_save)(void *arg, struct err *err); /* atomic */
    uint64_t deadline_ms;          /* atomic */
    int result;                    /* 0, or the first error's code; under lock */
    bool aborted;                  /* ... which is train_abort()'s; under lock */
    struct err error;
    bool tracing, traced;          /* the trace was started: in this generation, ever */
    uint64_t plain_until;          /* GPUs repeat no captured calls up to this step: some task may trace it, and
                                      NCCL wants its sums captured by all or by none */
    bool renew_region;             /* a peer that may still be alive can write to ours */
    uint64_t last_report_ns, last_save_ns, last_saved_step;
    bool save_due;
    bool was_leading;              /* in the generation before */
    bool is_unsaved;               /* this generation ends because the storage failed behind the last step */
    bool was_discarded;            /* atomic; a state that was handed over is not on the disk */
    uint64_t save_steps[2];        /* copies of their states are due, by parity; 0: of none */
};

/* memory.c */
int memory_open(struct train *t, struct err *err);
void memory_close(struct train *t);
/* A fresh region in place of the one that a peer may still write to. */
int memory_renew_region(struct train *t, struct err *err);
/* Room for another state, which takes the place of the present one when it is whole; until then it is
 * the caller's to close. memory_take(): before plans are bound, no other thread looks at the state. */
int memory_aside(const struct train *t, struct device_mem *out, struct err *err);
void memory_take(struct train *t, struct device_mem *aside);
/* Lanes are added on a stack that works as a binary counter: behind lane i of n, merge the two topmost
 * entries this many times. So what is added to what depends on lane numbers alone: four lanes
 * give (0+1)+(2+3); behind the last lane whatever is left is merged from the right. */
uint32_t tree_merges(uint32_t i, uint32_t n);
uint32_t lane_merges(const struct replica *r, uint32_t i); /* after lane i of a replica */
void tree_add_f32(float *dst, const float *src, size_t n);
void tree_add_f64(double *dst, const double *src, size_t n);

/* tables.c */
void tables_open(struct train *t); /* what memory_open() has to know */
void tables_tell(const struct train *t); /* what is done about them, as a note */
/* Of gradient arena `to` of the lane tree, += arena `from`: floats [begin, end) of the dense part, or
 * with end = mem.grads all behind `begin`: values of tables, statistics, control words. */
void tables_add(struct replica *r, uint32_t to, uint32_t from, size_t begin, size_t end);
/* Before replicas are reduced: gradient arena 0 has the rows that any of them has, and all that it
 * holds lies in floats [0, *end) without a gap. All replicas call it; *end is the same for all. */
int tables_close_up(struct replica *r, size_t *end, struct err *err);
void tables_open_up(struct replica *r, size_t end); /* statistics and control words are in place again */

/* step.c: one step of this replica. */
int step_run(struct replica *r, uint64_t step, struct step_result *out, struct err *err);
/* reduce.c: one life for each generation */
/* Rank 0 decides for all, when it knows how they are linked. */
bool reduce_decide(const struct train *t);
uint32_t reduce_buckets(const struct train *t); /* of a step, if it is reduced in buckets */
/* Starts the replica's thread, if so it was agreed. */
int reduce_open(struct replica *r, struct err *err);
/* No bucket is under way, or the communicator has failed. */
void reduce_close(struct replica *r);
void reduce_begin(struct replica *r, uint64_t step);
/* A plan_ready_fn for the last lane; arg: the replica. */
void reduce_ready(void *arg, size_t offset, size_t n);
/* What is due behind a lane (the replica's `lane`-th, in arena top - 1) along the tree, of the floats
 * up to `end` that are not added yet. */
void reduce_add_lanes(struct replica *r, uint32_t lane, uint32_t top, size_t end);
/* Behind the last lane, the control words written: waits for what is under way, reduces the rest. */
int reduce_rest(struct replica *r, struct err *err);

/* generation.c */
/* Remembers the first failure and lets every thread of this process out of its waits. */
void train_fail(struct train *t, const struct err *err);
/* The same, and whatever else it was to end for: this process cannot go on with its devices. */
void train_lose(struct train *t, const struct err *err);
/* Only the first half: what it will have ended for, whoever ends it first. */
void train_remember(struct train *t, const struct err *err);
void generation_join(struct train *t); /* its threads, if any were started */
void generation_close(struct train *t); /* what it has left behind */
/* A reader that lies at a replica is canceled when the generation ends early. */
int reader_open(struct train *t, struct data_set *data, const struct data_reader_opts *opts,
                struct data_reader **at, struct err *err);
void reader_close(struct train *t, struct data_reader **at); /* *at NULL is fine */
void generation_over(struct train *t); /* in the last thread: the peers are let go, on_end is told */
int generation_gate(struct replica *r, struct err *err); /* all replicas of the task, or none */
static inline bool train_canceled(const struct train *t)
{
    return cancel_asked(&t->cancel);
}
int train_check_canceled(const struct train *t, struct err *err); /* ERR_CANCELED */

/* agree.c */
int agree_connect(struct train *t, struct err *err); /* for the whole process */
/* Compares files, tells *step, fills in r->votes. */
int agree_on_state(struct replica *r, uint64_t *step, struct err *err);

/* transfer.c */
/* All replicas of all tasks, if any task is behind `step`. */
int transfer_state(struct replica *r, uint64_t step, struct err *err);

/* update.c */
int update_open(struct train *t, struct err *err); /* groups, and the optimizer at work on them */
/* Tables of which it leaves alone what a step did not read. */
uint32_t update_resting_tables(const struct train *t);
/* Behind the reduction of step `step`: this replica's part of weights and slots. Nothing interrupts it:
 * an error (of a fault point) is told when all is done. *norm: of the gradient, NaN if this step did
 * not need it. */
int update_run(struct replica *r, uint64_t step, double *norm, struct err *err);
/* In place of an update: the state after `step` is that before it. Of a step that overflowed, the loss scale
 * is halved. All replicas come here. */
void update_skip(struct replica *r, uint64_t step, bool overflowed);
/* The average of weights that were never averaged, or of those just read: what is not in a checkpoint. */
void update_fill_average(struct train *t, bool fresh);

/* Samples of weight 1 in the global batch of a step. */
uint64_t step_samples(const struct train *t, uint64_t step);
/* run->loss_scale of the lanes of the step at work. */
float step_loss_scale(const struct replica *r, uint64_t step);
/* The report of a step, from local replica 0. `begin_ns` 0: it was finished elsewhere. */
void step_tell(struct replica *r, const struct facts *facts, uint64_t begin_ns);
/* Next lane batch of `reader` into the inputs of `plan`. */
int step_feed(struct replica *r, struct plan *plan, struct data_reader *reader, struct err *err);
/* How a replica reads its lanes of the training data, steps first to last. */
struct data_reader_opts replica_reads(const struct replica *r, uint64_t first, uint64_t last);
void step_fill(struct replica *r, struct plan *plan, const struct data_batch *b);

/* eval.c */
bool eval_due(const struct train *t, uint64_t step);
/* Told and counted once for a step, however often it runs. */
int eval_run(struct replica *r, uint64_t step, struct err *err);

/* save.c */
int save_open(struct train *t, struct err *err); /* names everything */
/* Member 0, when nobody holds state: the newest checkpoint, if there is one, becomes what is held. */
int save_load_newest(struct train *t, struct err *err);
/* On member 0: is a checkpoint due behind `step`, and can the writer take it? Then save_if_due() is
 * called when that state may be saved, and no other one is meanwhile. */
bool save_is_due(struct train *t, uint64_t step);
bool save_if_due(struct train *t, uint64_t step); /* true: a copy went to the writer */
/* ERR_DEVICE: checkpoints of this task read back wrong again and again, and another member can write them. */
int save_check_storage(struct train *t, struct err *err);
uint32_t generation_first_rank(const struct train *t, uint32_t member); /* generation.c: of its replicas */
/* Until the checkpoint of `step` is verified. It gives up early where another member of the group can write it. */
int save_now(struct train *t, uint64_t step, uint64_t wait_ms, struct err *err);
bool train_leads(const struct train *t); /* this task coordinates the present generation, and writes */
int save_export(struct train *t, struct err *err);

/* ---- weights.c ---- */
/* Opens the file of weights, if the job names one, and sets opts->weights. Errors: those of
 * ckpt_weights_open(), ERR_IO. */
int weights_open(struct train *t, struct graph_opts *opts, struct err *err);
/* Ends its mapping: the initial values of the graph have been copied or released. */
void weights_close(struct train *t);
/* Writes the tensors of the module with their current values. */
int weights_export(struct train *t, const char *path, struct err *err);
/* Another task is member 0 now: what is on its way to the disk is not published any more. */
void save_leave(struct train *t);

/* live.c */
void live_open(struct train *t); /* as the options say */
/* Is the norm of this step's gradient wanted? The same for all local replicas. */
bool live_norm_is_due(const struct train *t, uint64_t step);
void live_end_step(struct train *t, uint64_t step); /* local replica 0, before the gate that ends it */
bool live_save_is_due(const struct train *t, uint64_t step); /* by its number */
bool live_save_is_late(const struct train *t);               /* by the time since the last one */
void live_set_keep(const struct train *t); /* on the writer, which is open */

/* replica.c */
void *replica_main(void *arg);

/* train.c */
bool train_on_gpus(const struct train *t); /* all devices of a task are of a kind */
int train_start_over(struct train *t, struct err *err); /* the state becomes that of the model file */
struct facts train_fresh_facts(const struct train *t);
void train_tell(const struct train *t, const struct train_event *e);
void train_phase(const struct train *t, const char *phase, uint64_t step);

#endif
