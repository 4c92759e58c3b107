/* reduce_cuda.cuh - shared by the GPU kernels of Reduce*. Each op is a fold of walk.cuh over the
 * axes from infer, for any layout of x and y. */
#ifndef OP_REDUCE_REDUCE_CUDA_CUH
#define OP_REDUCE_REDUCE_CUDA_CUH

#include "op/reduce/walk.cuh"

extern "C" {
#include "op/reduce/params.h"
#include "op/reduce/whole.h"
}

enum { REDUCE_ACC = 16 }; /* size in bytes of the largest result of a fold */

/* The state is a struct reduce_walk in host memory. Scratch: REDUCE_ACC bytes per element of y,
 * then the splits. */
int reduce_cuda_plan(struct op_plan *p, struct err *err);
void reduce_cuda_free(void *state);

static inline const struct reduce_walk *reduce_walk_of(const struct op_call *c)
{
    return (const struct reduce_walk *)c->state;
}

/* Scratch with at most REDUCE_ACC bytes per element of y. */
static inline void *reduce_of_y(const struct op_call *c)
{
    return c->scratch;
}

static inline void *reduce_splits(const struct op_call *c)
{
    return (char *)c->scratch + (reduce_walk_of(c)->ys * REDUCE_ACC + 63) / 64 * 64;
}

/* int32 and int64, as in reduce_whole(). */
int reduce_cuda_whole(const struct op_call *c, enum reduce_whole how, struct err *err);

/* Defines both rows of an id: the axes are an input from opset split_ on. */
#define REDUCE_CUDA(id_, split_, fwd_, bwd_)                                                          \
    OP_CUDA(op_##id_##_##split_, .plan = reduce_cuda_plan, .fwd = fwd_, .bwd = bwd_,                   \
            .free_state = reduce_cuda_free);                                                          \
    OP_CUDA(op_##id_##_1, .plan = reduce_cuda_plan, .fwd = fwd_, .bwd = bwd_, .free_state = reduce_cuda_free)

#endif
