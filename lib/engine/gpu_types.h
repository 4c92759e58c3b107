/* gpu_types.h - the part of a replica on a GPU. */
#ifndef ENGINE_GPU_TYPES_H
#define ENGINE_GPU_TYPES_H

#include "data/data.h"
#include "device/cuda.h"
#include "engine/engine.h"
#include "op/op.h"

enum { GPU_SLOTS = 2, GPU_ALIGN = 256 };

/* A lane batch on its way: the host fills `pinned`, the feed stream copies it to `stage`, and the
 * lane's calls begin with the copy from there to the inputs of the plan. */
struct gpu_slot {
    char *pinned;
    char *stage;             /* of the GPU */
    struct cuda_event *sending, *sent; /* timed; the copy. After `sent`, `pinned` may be filled again */
    bool is_timed;           /* both were recorded */
    struct cuda_event *used; /* after it `stage` may be filled again */
    bool is_full;            /* a batch that no lane has used yet */
    struct data_batch b;     /* of the batch: `samples` is the array below */
    uint64_t *samples;       /* [lane batch] */
    struct op_run *run;      /* pinned; the lane's parameters; run_there: the GPU's copy */
    struct op_run *run_there;
};

/* The calls of a lane (micro-batch) in every GPU_SLOTS-th step, in which it uses the same slot. */
struct gpu_lane {
    const struct gpu_slot *slot; /* NULL: not run yet */
    struct cuda_graph *graph;    /* owned; NULL: not captured yet */
    size_t added;                /* leading floats that its calls all-reduce in buckets */
    uint64_t sent, plain;   /* bytes of these, as in struct gpu_codes */
};

/* Results of a step, in pinned host memory. */
struct gpu_readback {
    struct cuda_scan look;
    struct op_invalid trouble;
    /* The last step whose lanes are complete on this GPU; then the GPU waits for the others. */
    _Atomic uint64_t computed;
    float number; /* in which a fault is injected */
    float control[];
};

/* The streams of the GPU, and the events by which two of them wait for each other. Owned. */
struct gpu_streams {
    struct cuda_stream *work, *feed, *reduce;
    struct cuda_event *ready, *reduced; /* reduce waits for ready, work for reduced */
};

/* The time of the lanes in the first step of a generation, which the log reports once. */
struct gpu_timing {
    struct cuda_event *began, *ended; /* owned; around the lanes, with time stamps */
    bool notes_device;                /* the report is due when that step has ended */
};

/* The batches on their way to the GPU. */
struct gpu_feed {
    struct gpu_slot slot[GPU_SLOTS];
    uint32_t next; /* index of the slot of the next lane */
    size_t bytes;  /* of the inputs of one lane */
};

/* The weights and the state of the optimizer, in memory of the GPU. */
struct gpu_state {
    float *floats;                           /* owned; same layout as the state of the host */
    float *slots[OPTIM_MAX_SLOTS], *average; /* point into `floats` */
    uint64_t held;                           /* the step whose state it holds */
    bool is_held;                            /* `held` is valid */
};

/* The gradients, in memory of the GPU. */
struct gpu_grads {
    /* Owned. Same layout as those of the host; then, if rows_at is not 0, the marks of the rows of
     * embedding tables that the lanes have read. */
    float *tree[MEMORY_MAX_TREE];
    size_t floats;  /* of each */
    size_t rows_at; /* index of the marks in floats (plan_record_rows()); 0: no marks */
    size_t added;   /* leading floats that the calls of the present lane all-reduce in buckets */
};

/* The sums of several GPUs in the order of lanes (gpu_order.h). */
struct gpu_order {
    float *received;      /* owned; of the GPU: slices of other GPUs; NULL: NCCL adds in its own order, or there
                             are no other GPUs */
    uint8_t *merges;      /* owned; of the GPU; [max_replicas] of struct cuda_tree */
    uint8_t *host_merges; /* owned, as are the arrays below */
    uint32_t *leaves;     /* [max_replicas + 1] first leaf of each rank, then the number of leaves (base/lane_tree.h) */
    size_t *borders;      /* [max_replicas + 1] of slices */
    struct cuda_exchange *with; /* [max_replicas] */
    uint32_t world;
};

/* The roundings of gradients (gpu_codes.h). Memory is of the GPU unless stated otherwise. */
struct gpu_codes {
    uint32_t *before;    /* owned; code_map.before; NULL: the job codes no gradients */
    uint8_t *kept;       /* owned; [most][kept_bytes] the codes of the groups of this replica; or NULL */
    size_t kept_bytes;   /* of one group */
    uint8_t *messages;   /* owned; to other GPUs, at four times the border of their slice; or NULL */
    struct cuda_code_leaf *leaves, *host_leaves; /* owned; struct cuda_code_tree; the latter of the host */
    uint32_t n_coded;    /* leaves of coded blocks */
    uint8_t *n_codes;    /* owned; of the host; [max_replicas] of messages of each rank in this generation */
    const uint64_t *step; /* the present step */
    uint64_t sent, plain; /* bytes of the present step to other GPUs, and what float32 would have been */
};

/* Codes with residuals (gpu_residual.h). All memory is of the GPU, and NULL where the code does not need it. */
struct gpu_residual {
    float *left;     /* owned; [groups of the replica][residual_layout.floats] gradient and residual of a group; after
                        the reduction, what was not sent */
    float *exchange; /* owned; the numbers that are not coded; power_sgd: then [groups of the replica][p_floats] */
    float *messages; /* owned; top_k: [all groups][message] */
    float *q;        /* owned; power_sgd: [groups of the replica][q_floats] */
    float *begin_q;  /* owned; power_sgd: [q_floats] Q of this step */
};

/* What the GPU reports about a step. */
struct gpu_report {
    struct gpu_readback *readback; /* owned; pinned host memory */
    struct cuda_scan *look; /* owned; of the GPU */
    /* Owned; of the GPU. A number that the model cannot use ends the generation. */
    struct op_invalid *trouble;
};

/* A replica on a GPU. Only the thread of the replica uses it, except `back->computed`. */
struct gpu {
    const struct cuda_api *cuda;
    struct gpu_streams streams;
    struct gpu_copies *copies; /* gpu_copy.c; owned by local replica 0, else NULL */
    struct gpu_clock *clock;   /* owned; gpu_clock.c */
    struct gpu_timing timing;
    struct cuda_comm *comm; /* owned; of a generation; NULL: there is no other replica */
    struct gpu_state state;
    struct gpu_grads grads;
    struct gpu_order order;
    struct gpu_codes codes;
    struct gpu_residual residual;
    void *plan_work; /* owned; used by the training plan or the validation plan, never by both */
    struct cuda_optim *optim; /* owned */
    struct gpu_feed feed;
    struct gpu_lane *lanes; /* owned; [n_lanes][GPU_SLOTS] of this generation */
    uint32_t n_lanes;
    struct gpu_report report;
    uint64_t step, first_step; /* the present step; the first of the generation, 0: none yet */
    bool is_lost;              /* the GPU did not become idle: its memory must not be used */
};

static inline size_t gpu_round(size_t bytes)
{
    return (bytes + GPU_ALIGN - 1) / GPU_ALIGN * GPU_ALIGN;
}

static inline struct gpu *gpu_of(const struct engine_replica *r)
{
    return r->device;
}

#endif
