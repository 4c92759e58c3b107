/* engine.h - the device work of the replicas of a task, as one table of verbs.
 *
 * lib/train decides: which generation, which step, whether a step is applied, what is saved. An
 * engine computes: gradients of lanes (micro-batches), their all-reduce, the update, checksums,
 * evaluation. Implementations: engine/cpu.h, engine/gpu.h, and a fake for tests.
 *
 *     open
 *       begin -> [transfer, load] -> bind -> open_reader                one generation
 *         run_lanes -> reduce -> (scale) -> inspect | gate | verify_gradient   one step
 *           gradient_norm -> update, or skip_update                     after the commit gate
 *           (checksum | gate | verify_state) -> end_step
 *         evaluate, describe_nonfinite, locate_nonfinite                between the verbs of a step
 *       end
 *     close
 *
 * Objects. A `struct engine` belongs to a task; a `struct engine_replica` to one of its devices.
 * Their fields below are shared by the caller and the implementation, which may append fields of
 * its own.
 *
 * State. The host's memory (memory.h) holds the state: parameters, optimizer slots, average.
 * Replicas on CPUs share that state and each update a part of it. A replica on a GPU holds a copy;
 * the host's state is then a shadow, which sync() brings up to date.
 *
 * Threads. "Task": one thread at a time, while no replica of the task is in another verb, unless
 * the verb says otherwise. "Replica": the thread of that replica. cancel() may be called by any
 * thread.
 *
 * Errors. Every verb that waits returns ERR_CANCELED soon after opts->cancel was set, the
 * communicator was aborted and cancel() was called. After an error of a verb between begin and end
 * the only verbs allowed in that generation are discard and end; the state of the last completed
 * step is still held. update() is the exception: the state of a replica whose update failed is
 * invalid. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/lane_tree.h"
#include "engine/memory.h"
#include "engine/place.h"
#include "engine/residual_layout.h"
#include "opts/train.h"

struct cancel;
struct code_map;
struct code_settings;
struct comm;
struct group_view;
struct data_batch;
struct data_reader_opts;
struct data_set;
struct device;
struct engine;
struct engine_ops;
struct err;
struct gate;
struct graph;
struct optim;
struct optim_hyper;
struct packed;
struct plan_lookup;
struct plan_opts;
struct plans;
struct trace_opts;
struct trace_row;

enum { ENGINE_MAX_METRICS = 8 };

/* Words after the parameters in a gradient arena: reduced with the gradients. The engine writes
 * these; the words from ENGINE_WORDS to opts->control_floats are the caller's, and 0 until it
 * writes them. */
enum engine_word {
    ENGINE_LOSS,    /* sum over the lanes of the scaled loss: the mean over the global batch, times
                       the loss scale */
    ENGINE_WEIGHT,  /* mean_of_weights: the divisor of loss and gradients, likewise scaled */
    ENGINE_TROUBLE, /* devices that read a number which their model cannot use: an index, a label */
    ENGINE_WORDS,
};

enum engine_overlap {
    ENGINE_OVERLAP_AUTO, /* reduce while backward computes, where that pays */
    ENGINE_OVERLAP_NEVER,
    ENGINE_OVERLAP_ALWAYS, /* unless one bucket holds all gradients */
};

enum engine_rows { /* which rows of remote tables a replica reads */
    ENGINE_ROWS_OF_LANES, /* the weights that the lanes of a step read; older ones with staleness */
    ENGINE_ROWS_HELD,     /* the weights of the held state */
    ENGINE_ROWS_AVERAGE,  /* the average of the weights of the held state */
};

/* Embedding tables whose rows are on other tasks. A replica holds the rows that a step reads in
 * compact tables, where a slot takes the place of a row. The verbs are called by the thread of the
 * replica `local`. */
struct engine_remote {
    uint32_t n_tables; /* graph_remotes() */
    /* [n_tables] The compact tables: rows is the number of slots. Set by open(), which lays them
     * out, before the first verb. */
    struct packed_table *tables;
    size_t words; /* of marks of all tables; set by open() */
    /* After `tables` was set. Errors: ERR_NOMEM. */
    int (*open)(void *arg, struct err *err);
    /* Frees all slots. The rows that follow are for this use. */
    void (*begin)(void *arg, uint32_t local, enum engine_rows use);
    /* Replaces each row of the lookups by its slot, and fetches the rows that have none yet.
     * Waits for other tasks. Errors: ERR_PEER, ERR_TIMEOUT, ERR_CANCELED. */
    int (*lookup)(void *arg, uint32_t local, const struct plan_lookup *lookups, uint32_t n,
                  struct err *err);
    float *const *(*values)(void *arg, uint32_t local); /* [n_tables] the compact tables */
    /* Contributes the gradients of the marked slots, the sum over the lanes of the replica.
     * Errors: as lookup(). */
    int (*push)(void *arg, uint32_t local, uint64_t step, const struct packed *rows,
                const float *values, struct err *err);
    void *arg;
};

struct engine_opts {              /* borrowed until close() */
    const struct device *devices; /* [n_devices] of one kind; one replica each */
    uint32_t n_devices;
    const struct cancel *cancel; /* set: the generation ends */

    /* layout */
    uint32_t max_replicas;     /* of a group; above n_devices: peers map the region */
    size_t head_bytes;         /* of the region, for the caller */
    uint32_t control_floats;   /* of a gradient arena, ENGINE_WORDS included */
    struct lane_tree lane_tree; /* along which lanes are added */
    uint32_t lanes, max_lanes; /* of the global batch; of a replica in any group */
    uint32_t max_piece;        /* lanes of the largest share or piece of a replica; a second piece has at
                                  most half of them. 0: replicas have one piece, of at most max_lanes.
                                  Only on CPUs */
    uint32_t lane_batch;       /* samples of a lane */

    /* model and data */
    const struct graph *graph;
    /* with the metrics of an evaluation; purpose and device are the engine's */
    const struct plan_opts *plan;
    const uint32_t *features; /* [n_feeds + n_targets of plan] the data feature of each input */
    struct data_set *data, *eval_data;    /* eval_data: NULL: there are no evaluations */
    const struct data_reader_opts *reader; /* without lanes and steps; prefetch is per lane */
    uint64_t steps_per_epoch, eval_steps;
    uint64_t seed;
    /* the mean is over what counts, not over the samples: see ENGINE_WEIGHT */
    bool mean_of_weights;
    bool evaluate_average; /* evaluate the average of the weights */

    /* optimizer */
    struct optim *optim; /* at work on the graph's parameters, in n_devices parts */
    const struct optim_hyper *hyper;
    double clip_value; /* limit of each gradient element; 0: none */
    bool has_outer;    /* local SGD: select() is used */
    /* Lanes read the delayed parameters of the graph as they were so many steps before the state; 0: those of the
     * state. Only on CPUs, and not with remote parameters or local SGD. */
    uint32_t n_delayed;
    bool delays_dense; /* all trained parameters, not only tables */

    /* reduction and checks */
    enum engine_overlap overlap;
    struct engine_remote *remote; /* NULL: no table is remote; only on CPUs */
    /* With `remote`, on CPUs: other tasks keep all trained parameters. Before the lanes of a step and before an
     * evaluation the caller writes their values to the state, or to the average. push() also contributes their
     * gradients, in arena 0, and no other verb reduces, checks or updates them. */
    bool remote_dense;
    size_t bucket_bytes;  /* 0: chosen */
    /* Spare lanes (cpu_spare.h); the same on all tasks. Only on CPUs, without remote tables, codes and local SGD */
    enum train_spare spare;
    /* GPUs add along the tree over lanes, as CPUs always do, and not in the order that NCCL chooses */
    bool ordered;
    const struct code_settings *code; /* of gradients; NULL or CODE_NONE: none */
    bool whole_gradients; /* of tables too */
    bool check_gradients; /* inspect() computes checksums; compares has peers */
    bool snapshots;       /* checkpoints may be taken: keep memory for them */
    bool traces;          /* steps may be traced */

    /* A choice or a fact for the log, or a warning. Task or replica thread. */
    void (*on_note)(void *arg, bool is_warning, const char *text);
    /* A replica is about to compute this batch of the training data. Replica thread. NULL: not
     * wanted. */
    void (*on_lane)(void *arg, uint32_t local, const struct data_batch *b);
    /* Called by local replica 0 for a batch of training with data_batch.check. */
    void (*on_check)(void *arg, uint64_t step, uint32_t check);
    void *arg;
};

enum { ENGINE_FEEDS = 64 };

struct engine_replica {
    struct engine *engine;
    uint32_t local;            /* index in the task */
    struct arenas *arenas;     /* of engine->memory: gradients, evaluation sums */
    struct place place;        /* of the replica's thread */
    struct place helper_place; /* of a thread that reduces for it; waits locally if there is none */

    /* The caller's: a generation. */
    uint32_t rank;
    /* Lanes of the replica: n_lanes in one or two subtrees of the tree over all lanes (comm/pieces.h).
     * The last n_second of them begin at second_lane; 0: there is one subtree, from first_lane on. */
    uint32_t first_lane, n_lanes, second_lane, n_second;
    /* Spare lanes: the last n_block of the replica's lanes may be computed by another; it may compute the n_helped
     * lanes from helped_lane on of another one. 0: none. */
    uint32_t n_block, helped_lane, n_helped;
    /* The caller's: a step. */
    double scale;            /* of the loss; the same in all replicas */
    float loss_scale;        /* scale / samples of the global batch */
    struct trace_row *trace; /* NULL: the step is not traced */
    double remote_squares;   /* sum of squares of the gradients of remote tables; set after reduce() */

    /* The engine's: a step. */
    uint32_t n_buckets;      /* of the all-reduce of a step */
    uint64_t data_ns;        /* waited for samples */
    uint64_t reduce_ns;      /* waited for the all-reduce after the replica's own lanes */
    uint64_t reduce_work_ns; /* inside the all-reduce, in whatever thread */
    /* Coded all-reduces: bytes sent to other hosts, and what float32 would have been. A GPU: to other GPUs. */
    uint64_t coded_bytes, coded_plain_bytes;
    struct engine_spare { /* lanes; 0 without spare lanes */
        uint32_t given;             /* of this replica, which its helper contributed */
        uint64_t given_ns;          /* computed for these lanes in vain, without the waits for samples */
        uint32_t offered;           /* of the helped replica, which this one computed, ... */
        uint32_t used, compared;    /* ... and contributed, or compared with the other copy */
        uint32_t wrong;             /* reduce() has failed: lanes whose two copies this replica found to differ */
        const char *helped, *helper; /* names of their tasks; NULL: no spare lanes */
    } spare;
    float feed_ms[ENGINE_FEEDS]; /* [n_feeds] GPU: durations of copies of samples to it; the caller sets
                                    n_feeds to 0 */
    uint32_t n_feeds;
    struct engine_inspection { /* by inspect() */
        uint32_t own;        /* checksum of the gradient that this replica's update will read */
        /* CPU: checksum of the part of the replica before it, in this one's arena */
        uint32_t other;
        bool bad; /* NaN or infinity */
    } inspection;
    uint32_t state_sum; /* by checksum() */

    struct plans *plans; /* plans.h; NULL: an engine without plans */
    void *device;        /* the implementation's part */
};

/* a generation; filled in by one thread before the gate that precedes begin() */
struct engine_group {
    struct comm *comm; /* NULL: there is no other replica */
    const struct group_view *view;
    uint64_t deadline_ms;
    struct gate *commit_gate; /* of this task's replicas; never broken */
    bool compares;            /* peers compare gradients: replicas of this task need not */
    bool overlap;             /* agreed: reduce while backward computes; before bind() */
    bool codes;               /* agreed: gradients are coded; before bind() */
    const uint32_t *shares;   /* lanes of each rank */
    uint32_t lanes;           /* that a reduction adds up: of the global batch, or of a group */
    /* Up to this step some task may trace. GPUs then launch no captured graphs, because either all
     * GPUs of the group launch them or none. Set before bind(). */
    uint64_t no_graphs_until;
};

struct engine {
    const struct engine_ops *ops;
    const struct engine_opts *opts;
    struct memory memory;
    struct engine_replica **replicas; /* [opts->n_devices] */
    uint32_t n_states;   /* copies of the state that can differ: 1 if replicas share it */
    size_t work_bytes;   /* activations of a replica */
    uint32_t eval_words; /* doubles of evaluation sums: loss, weight, then the metrics' */
    uint32_t metric_words[ENGINE_MAX_METRICS];
    /* [n_devices] the share of the last step's time without work; NULL: unknown */
    double *device_idle;
    bool spares; /* spare lanes are possible (comm_opts.spares); the same on all tasks; set by open() */
    const char *why_no_spares; /* why not; NULL: they are possible, or not wanted */
    struct code_map *codes; /* owned; the blocks of the gradient that are coded; NULL: the job codes none */
    struct residual_layout residual; /* owned; what a code with residuals codes */
    struct engine_group group;
};

enum { ENGINE_SUM_LOSS, ENGINE_SUM_WEIGHT, ENGINE_SUM_METRICS }; /* of evaluation sums */

struct engine_nonfinite { /* of locate_nonfinite() */
    /* the lowest lane of this replica with a non-finite number; opts->lanes: none */
    uint32_t lane;
    double largest;  /* sum over its lanes of the largest number in gradient and loss */
    char text[1000]; /* where the first non-finite number of that lane came from */
};

struct engine_ops {
    const char *name;

    /* ---- task ---- */
    /* Memory, plans and streams of all devices; no device holds the state. Each choice goes to
     * on_note. On success the caller owns *out; on failure nothing is left. Errors: ERR_NOMEM,
     * ERR_INPUT, ERR_UNSUPPORTED, ERR_DEVICE. */
    int (*open)(const struct engine_opts *opts, struct engine **out, struct err *err);
    /* No generation runs. Memory of a device that end() reported as lost stays allocated. */
    void (*close)(struct engine *e);
    /* Ends waits for samples, now and in readers that are opened until the generation ends. Any
     * thread. */
    void (*cancel)(struct engine *e);
    /* Replaces the region, because a peer that may still be alive can write to it. Errors:
     * ERR_NOMEM. */
    int (*replace_region)(struct engine *e, struct err *err);
    /* Would this task, as it is connected now, reduce while backward computes? */
    bool (*overlaps)(const struct engine *e);
    /* Fills in plans (room for n_devices), lanes, pieces and on_gpus. */
    void (*describe_trace)(struct engine *e, struct trace_opts *out);

    /* ---- task: the held state ---- */
    /* The host's state becomes that after step `held`. Waits. Between steps or generations.
     * Errors: ERR_DEVICE: the device that held the state failed. */
    int (*sync)(struct engine *e, uint64_t held, struct err *err);
    /* Copies that state to `to`, without a wait for a device; complete after wait_snapshot(). The
     * first replica's thread, also while the lanes of the next step are computed. One at a time. As
     * sync(). */
    int (*snapshot)(struct engine *e, uint64_t held, void *to, struct err *err);
    /* Any thread. Errors: ERR_DEVICE: the copy does not arrive. */
    int (*wait_snapshot)(struct engine *e, struct err *err);
    /* Memory from which snapshot() copies without a wait; *out NULL: any memory will do. The engine
     * owns it, unless abandon_staging() was called: a writer that hangs still reads it. Errors:
     * ERR_NOMEM, ERR_DEVICE. */
    int (*staging)(struct engine *e, void **out, struct err *err);
    void (*abandon_staging)(struct engine *e);
    /* The state that the devices hold is invalid. */
    void (*discard)(struct engine *e);

    /* ---- replica: residuals (residual.h), between two steps. NULL: the devices hold no state of their own ---- */
    /* The host's state receives the residuals of the replica's groups; from local replica 0 all but the residuals. It
     * is that after step `held`. Waits. Errors: ERR_DEVICE, ERR_CANCELED, ERR_PEER. */
    int (*fetch_residuals)(struct engine_replica *r, uint64_t held, struct err *err);
    /* The host's state has the residuals of all groups: the device takes them. Waits. Errors: as fetch_residuals(). */
    int (*store_residuals)(struct engine_replica *r, struct err *err);

    /* ---- replica: a generation ---- */
    /* Connects the devices. Enters PHASE_NCCL where that is a wait. Errors: ERR_NOMEM, ERR_DEVICE,
     * ERR_TIMEOUT, ERR_CANCELED. */
    int (*begin)(struct engine_replica *r, struct err *err);
    /* The host holds the state of step `held` (0: fresh): the device takes it, unless it holds that
     * state already. Starts the thread that reduces, if so it was agreed. */
    int (*bind)(struct engine_replica *r, uint64_t held, struct err *err);
    /* Starts to prefetch the samples of the steps [first, last]. */
    int (*open_reader)(struct engine_replica *r, uint64_t first, uint64_t last, struct err *err);
    /* Also after a failure, and without begin(). Stops the helper thread, disconnects, waits for
     * work in progress. Errors: ERR_DEVICE: the device does not come to rest; it is lost to this
     * process. */
    int (*end)(struct engine_replica *r, struct err *err);

    /* ---- replica: local SGD ---- */
    /* The verbs of a step that follow read and write the model at `model` (memory.h); NULL: the held
     * state. Tasks with one replica. NULL: the engine does not support local SGD. */
    void (*select)(struct engine_replica *r, float *model);

    /* ---- replica: a step ---- */
    /* Gradients, statistics and loss of the replica's lanes, summed in arena 0 along the tree, those of
     * a second piece in arena 1; the engine's control words are written, the caller's are 0. Enters PHASE_DATA and PHASE_LANE. May
     * already reduce what is final. Errors: ERR_IO, ERR_CORRUPT, ERR_INPUT, ERR_DEVICE, ERR_PEER,
     * ERR_CANCELED. */
    int (*run_lanes)(struct engine_replica *r, uint64_t step, struct err *err);
    /* Reads n lanes of the data without computing them; run_lanes() continues after them. NULL: the engine does not
     * support asynchronous phases. Errors: ERR_IO, ERR_CORRUPT, ERR_INPUT, ERR_CANCELED. */
    int (*skip_lanes)(struct engine_replica *r, uint32_t n, struct err *err);
    /* The caller has written its control words (replica 0). All-reduces the rest: afterwards arena
     * 0, or the device, holds the sum over all replicas of the group, and the control words are in
     * arena 0. Enters PHASE_REDUCE. Errors: ERR_PEER, ERR_TIMEOUT, ERR_INPUT, ERR_DEVICE,
     * ERR_CANCELED. */
    int (*reduce)(struct engine_replica *r, uint64_t step, struct err *err);
    /* With mean_of_weights, after each reduce(): multiplies the gradients. */
    int (*scale)(struct engine_replica *r, float by, struct err *err);
    /* A pass over the gradient that the update will read, into r->inspection. */
    void (*inspect)(struct engine_replica *r);
    /* After a gate that follows inspect(). All replicas see the same. *sum: checksum of the task's
     * gradient; *finite: it holds no NaN or infinity. Errors: ERR_DEVICE: the replicas of this task
     * hold different gradients; the text says which. Nothing has been changed. */
    int (*verify_gradient)(struct engine_replica *r, uint64_t step, uint32_t *sum, bool *finite,
                           struct err *err);
    /* Clips the elements of the gradient to clip_value, then sets *norm to the L2 norm of the
     * gradient without the loss scale; NaN if `wanted` is false. The replicas of the task wait for
     * each other at the commit gate. */
    void (*gradient_norm)(struct engine_replica *r, bool wanted, double *norm);
    /* Applies the optimizer and moves the statistics: this replica's part. Replicas may meet at the
     * commit gate; the caller meets once more. Errors: ERR_DEVICE: this replica's state is invalid.
     */
    int (*update)(struct engine_replica *r, const struct optim_hyper *h, struct err *err);
    /* Called in place of update(): the held state is also the state after `step`. */
    void (*skip_update)(struct engine_replica *r, uint64_t step);
    /* Checksum of this replica's part of the state, or of its copy, into r->state_sum. Waits. */
    int (*checksum)(struct engine_replica *r, struct err *err);
    /* After a gate that follows checksum(). *sum: of the task's state. Errors: ERR_DEVICE: copies
     * of this task differ; the text says which. */
    int (*verify_state)(struct engine_replica *r, uint64_t step, uint32_t *sum, struct err *err);
    /* After all verbs of a step: writes the device's spans into r->trace. */
    int (*end_step)(struct engine_replica *r, struct err *err);

    /* ---- replica: other passes over data ---- */
    /* Loss and metrics of this replica's lanes of the evaluation data, summed along the tree in
     * arenas->sums[0], those of a second piece in sums[1]. Enters PHASE_EVALUATION_DATA and PHASE_EVALUATE. */
    int (*evaluate)(struct engine_replica *r, struct err *err);
    /* Appends the name of a reduced gradient or statistic that contains NaN or infinity to `text`
     * [n]; appends nothing if all are finite. Arena 0 contains the gradients afterwards. */
    int (*describe_nonfinite)(struct engine_replica *r, const char *separator, char *text, size_t n,
                              struct err *err);
    /* Computes the replica's lanes of `step` again and finds the first non-finite number.
     * Overwrites arena 0. */
    int (*locate_nonfinite)(struct engine_replica *r, uint64_t step, struct engine_nonfinite *out,
                            struct err *err);
};

/* Returns the number of the i-th lane that the replica computes in a step. */
static inline uint32_t engine_lane(const struct engine_replica *r, uint32_t i)
{
    uint32_t n_first = r->n_lanes - r->n_second;

    return i < n_first ? r->first_lane + i : r->second_lane + (i - n_first);
}

/* Arena 0 of a replica: peers can read and write it. Free for the caller between bind() and the
 * first run_lanes(), in transfers before bind(), and after locate_nonfinite(); it must be zero
 * again before run_lanes(). */
static inline void *engine_scratch(const struct engine_replica *r)
{
    return r->arenas->grads[0];
}

static inline float *engine_control(const struct engine_replica *r)
{
    return r->arenas->grads[0] + r->engine->memory.params;
}

#endif
