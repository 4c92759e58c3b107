/* gpu_types.h - the part of a replica on a GPU. */
#ifndef ENGINE_GPU_TYPES_H
#define ENGINE_GPU_TYPES_H

#include "data/data.h"
#include "device/cuda.h"
#include "engine/engine.h"
#include "op/op.h"

enum { GPU_SLOTS = 2, GPU_ALIGN = 256 };

/* A lane batch on its way: the host fills `pinned`, the feed stream brings it to `stage`, the
 * lane's calls begin with bringing it from there to the inputs of the plan. */
struct gpu_slot {
    char *pinned;
    char *stage;                /* of the GPU */
    struct cuda_event *brought; /* `pinned` may be filled again, behind it */
    struct cuda_event *taken;   /* `stage` likewise */
    bool is_full;               /* a batch that no lane has taken yet */
    struct data_batch b;        /* which: samples are ours */
    uint64_t *samples;          /* [lane batch] */
    struct op_run *run;         /* pinned; what the lane is: `there` of the GPU */
    struct op_run *run_there;
};

/* the calls of a lane in every GPU_SLOTS-th step: it lies in the same slot then */
struct gpu_lane {
    const struct gpu_slot *slot; /* NULL: not run yet */
    struct cuda_graph *graph;    /* NULL: not captured yet */
    size_t added;                /* floats that its calls have summed up in buckets */
};

struct gpu_back { /* what a step brings to the host */
    struct cuda_look look;
    struct op_trouble trouble;
    /* the last step whose lanes are through here: from then on others are waited for */
    uint64_t computed;
    float number; /* in which a fault is injected */
    float control[];
};

struct gpu {
    const struct cuda_api *cuda;
    struct cuda_stream *work, *feed, *sums;
    struct cuda_event *ready, *summed; /* between work and sums */
    struct gpu_copies *copies;         /* gpu_copy.c; local replica 0 */
    struct gpu_clock *clock;           /* gpu_clock.c */
    /* timed: around the lanes of the first step of a generation */
    struct cuda_event *began, *ended;
    bool proves;            /* that step is not over */
    struct cuda_comm *comm; /* one generation; NULL: there is nobody to sum up with */
    float *state;           /* as the host's, of the GPU */
    float *slots[OPTIM_MAX_SLOTS], *average; /* in it */
    /* as the host's, then perhaps which rows of tables were read */
    float *grads[MEMORY_MAX_TREE];
    size_t grads_floats; /* of each */
    /* where that begins (plan_tell_rows()); 0: nobody wants it */
    size_t rows_at;
    void *plan_work; /* of either plan: they never run at once */
    struct cuda_optim *optim;
    struct gpu_slot slot[GPU_SLOTS];
    uint32_t next; /* slot */
    /* floats of the lane at work that its calls have summed up in buckets */
    size_t added;
    struct gpu_lane *lanes; /* [n_lanes][GPU_SLOTS] of this generation */
    uint32_t n_lanes;
    size_t inputs_bytes;
    struct gpu_back *back;      /* pinned */
    struct cuda_look *look;     /* of the GPU */
    struct op_trouble *trouble; /* likewise: none in a generation, or it ends by it */
    uint64_t step, first_step;  /* the one at work; of the generation, 0: none yet */
    bool is_lost;               /* it cannot be stopped: nothing of it may be touched */
    uint64_t held;              /* the step whose state it holds */
    bool has_state;
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
