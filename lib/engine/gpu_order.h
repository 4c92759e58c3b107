/* gpu_order.h - all-reduce of GPUs along the tree over lanes, so that the bits of a sum do not depend on
 * the number of GPUs (engine_opts.ordered).
 *
 *     x of rank 0   [ slice 0 | slice 1 | slice 2 ]        1. scatter: NCCL sends slice h of every rank to
 *     x of rank 1   [ slice 0 | slice 1 | slice 2 ]           rank h
 *     x of rank 2   [ slice 0 | slice 1 | slice 2 ]        2. rank h adds its slices along the tree
 *                                                          3. gather: rank h sends the sum to all ranks
 *
 * An all-reduce of NCCL moves the same number of bytes, in an order of additions that NCCL chooses. A GPU
 * needs memory for the slices that it receives: as much as a bucket (gpu_buckets.h). Threads: the
 * replica's. */
#ifndef ENGINE_GPU_ORDER_H
#define ENGINE_GPU_ORDER_H

#include "engine/engine.h"
#include "engine/gpu_types.h"

/* An all-reduce of more floats is made in several parts. */
size_t gpu_order_part_floats(const struct engine_replica *r);
/* Returns the bytes of GPU memory for the slices of other GPUs, after gpu_of(r)->grads.floats is set; 0: the
 * sums are NCCL's. The caller allocates order.received, and order.merges with a byte for each replica. Also if the job codes gradients (gpu_codes.h). */
size_t gpu_order_received_bytes(const struct engine_replica *r);
/* Memory of the host. Errors: ERR_NOMEM. */
int gpu_order_open(struct engine_replica *r, struct err *err);
void gpu_order_close(struct engine_replica *r); /* idempotent; not the memory of the GPU */
/* The ranks of a generation: copies the order of additions to the GPU, on the reduce stream. */
int gpu_order_begin(struct engine_replica *r, uint32_t world, struct err *err);
/* Cuts n floats into slices. */
void gpu_order_cut(struct gpu_order *o, size_t n);
static inline size_t gpu_order_floats(const struct gpu_order *o, uint32_t rank) /* of a slice */
{
    return o->borders[rank + 1] - o->borders[rank];
}
/* Reduce stream: all-reduces x [n]. */
int gpu_order_all_reduce(struct engine_replica *r, float *x, size_t n, struct err *err);

#endif
