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
    struct cuda_event *sent; /* after it `pinned` may be filled again */
    struct cuda_event *used; /* after it `stage` may be filled again */
    bool is_full;            /* a batch that no lane has used yet */
    struct data_batch b;     /* of the batch: `samples` is the array below */
    uint64_t *samples;       /* [lane batch] */
    struct op_run *run;      /* pinned; the lane's parameters; run_there: the GPU's copy */
    struct op_run *run_there;
};

/* the calls of a lane in every GPU_SLOTS-th step, when it uses the same slot */
struct gpu_lane {
    const struct gpu_slot *slot; /* NULL: not run yet */
    struct cuda_graph *graph;    /* NULL: not captured yet */
    size_t added;                /* floats that its calls have summed up in buckets */
};

struct gpu_back { /* results of a step, on the host */
    struct cuda_scan look;
    struct op_invalid trouble;
    /* the last step whose lanes are complete on this GPU: then it waits for others */
    _Atomic uint64_t computed;
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
    bool notes_device;      /* that step has not ended yet: the note about it is due */
    struct cuda_comm *comm; /* of a generation; NULL: there is no other replica */
    float *state;           /* as the host's, of the GPU */
    float *slots[OPTIM_MAX_SLOTS], *average; /* in it */
    /* as the host's, then perhaps which rows of tables were read */
    float *grads[MEMORY_MAX_TREE];
    size_t grads_floats; /* of each */
    /* where that part begins (plan_record_rows()); 0: not needed */
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
    struct gpu_back *back;  /* pinned */
    struct cuda_scan *look; /* of the GPU */
    struct op_invalid
        *trouble; /* of the GPU; a number that the model cannot use ends the generation */
    uint64_t step, first_step; /* the present step; the first of the generation, 0: none yet */
    bool is_lost;              /* the GPU did not become idle: its memory must not be used */
    uint64_t held;             /* the step whose state it holds */
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
