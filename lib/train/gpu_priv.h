/* gpu_priv.h - what gpu.c (memory, generations) and gpu_step.c (steps) share. */
#ifndef TRAIN_GPU_PRIV_H
#define TRAIN_GPU_PRIV_H

#include "data/data.h"
#include "train/gpu.h"
#include "train/train_priv.h"

enum { GPU_SLOTS = 2, GPU_ALIGN = 256 };

/* A lane batch on its way: the host fills `pinned`, the feed stream brings it to `stage`, the lane's calls
 * begin with bringing it from there to the inputs of the plan. */
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

struct gpu_lane { /* the calls of a lane in every GPU_SLOTS-th step: it lies in the same slot then */
    const struct gpu_slot *slot; /* NULL: not run yet */
    struct cuda_graph *graph; /* NULL: not captured yet */
    size_t added;             /* floats that its calls have summed up in buckets */
};

struct gpu_back { /* what a step brings to the host */
    struct cuda_look look;
    struct op_trouble trouble;
    uint64_t computed; /* the last step whose lanes are through here: from then on others are waited for */
    float number; /* on its way to be spoiled */
    float control[];
};

struct gpu {
    const struct cuda_api *cuda;
    struct cuda_stream *work, *feed, *sums;
    struct cuda_event *ready, *summed; /* between work and sums */
    struct gpu_copies *copies;         /* gpu_copy.c; local replica 0 */
    struct gpu_clock *clock;           /* gpu_clock.c */
    struct cuda_event *began, *ended;  /* timed: around the lanes of the first step of a generation */
    bool proves;                       /* that step is not over */
    struct cuda_comm *comm;            /* one generation; NULL: there is nobody to sum up with */
    float *state;                      /* as train.c's, of the GPU */
    float *slots[OPTIM_MAX_SLOTS], *average; /* in it */
    float *grads[MAX_TREE];            /* as the host's, then perhaps which rows of tables were read */
    size_t grads_floats;               /* of each */
    size_t rows_at;                    /* where that begins (plan_tell_rows()); 0: nobody wants it */
    void *plan_work;                   /* of either plan: they never run at once */
    struct cuda_optim *optim;
    struct gpu_slot slot[GPU_SLOTS];
    uint32_t next;                     /* slot */
    struct gpu_lane *lanes;            /* [n_lanes][GPU_SLOTS] of this generation */
    uint32_t n_lanes;
    size_t inputs_bytes;
    struct gpu_back *back;             /* pinned */
    struct cuda_look *look;            /* of the GPU */
    struct op_trouble *trouble;        /* likewise: none in a generation, or it ends by it */
    uint64_t waited_ns;                /* for the sums of the last step, behind its own lanes */
    uint64_t step, first_step;         /* the one at work; of the generation, 0: none yet */
    bool is_lost;                      /* it cannot be stopped: nothing of it may be touched */
    uint64_t held;                     /* the step whose state it holds */
    bool has_state;
};

static inline size_t gpu_round(size_t bytes)
{
    return (bytes + GPU_ALIGN - 1) / GPU_ALIGN * GPU_ALIGN;
}

/* Of all that goes to and from the host behind a reduction, in floats: control words, health's words. */
static inline size_t gpu_control_floats(const struct train *t)
{
    return t->mem.grads - t->mem.params;
}

/* ---- gpu_clock.c ---- */
int gpu_clock_open(struct replica *r, struct err *err);
void gpu_clock_close(struct gpu *g);
/* What follows on the work stream is work of a step; it ends. In turns. */
int gpu_busy(struct replica *r, struct err *err);
int gpu_rest(struct replica *r, struct err *err);
void gpu_clock_read(struct replica *r);   /* the work stream is at rest, behind gpu_rest() */
void gpu_clock_forget(struct replica *r); /* other work comes: the step to come follows on no other */
/* While the step is traced (else they do nothing): what follows on this stream begins; and all since then, or
 * since the last mark, was this. */
int gpu_mark_begin(struct replica *r, enum trace_rows row, struct err *err);
int gpu_mark(struct replica *r, enum trace_rows row, enum trace_what what, uint32_t which, struct err *err);
/* A span on the work stream that holds others: from here to the last mark. */
uint32_t gpu_mark_here(const struct replica *r);
void gpu_mark_whole(struct replica *r, enum trace_what what, uint32_t which, uint32_t from);
int gpu_mark_call(void *arg, uint32_t call, struct err *err); /* plan_watch_fn of a replica */
void gpu_clock_begin(struct replica *r); /* a step, which is traced or not */

/* ---- gpu_copy.c ---- */
int gpu_copies_open(struct replica *r, struct err *err); /* behind all other memory: what is left decides */
void gpu_copies_close(struct gpu *g);
struct cuda_stream *gpu_copies_stream(const struct gpu *g); /* NULL: there is none */

/* Input i of a plan, where it lies in a slot. */
size_t gpu_input_at(const struct replica *r, struct plan *plan, uint32_t i);
uint32_t gpu_n_inputs(const struct train *t);
/* Until all that was put on the work stream is done, or the event has come; cancel and what NCCL has to say
 * are looked at. */
int gpu_wait(struct replica *r, struct cuda_event *e, struct err *err);
int gpu_wait_stream(struct replica *r, struct cuda_stream *s, struct err *err);
int gpu_look_around(struct replica *r, struct err *err); /* what such a wait does meanwhile */
/* ERR_TIMEOUT: others were waited for too long since `since_ns`; with what NCCL knows of it. 0: not yet. */
int gpu_check_peers(const struct replica *r, uint64_t since_ns, struct err *err);
/* Somebody else has given up what others were waited for since then. What NCCL knows of it may be gone in a moment. */
void gpu_tell_wait(const struct replica *r, uint64_t since_ns, const char *what);

#endif
