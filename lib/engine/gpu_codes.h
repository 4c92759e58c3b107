/* gpu_codes.h - roundings of gradients on GPUs, and the all-reduce with codes in place of float32
 * (engine_opts.code). Places and bytes of the roundings are those of CPUs (codes.h); numbers are added along
 * the tree over lanes (micro-batches), so results depend on the job, and not on the number of GPUs.
 *
 *   a replica has     rounds after its last lane of a group    sends to the owners of slices
 *   a part of a group nothing                                  float32
 *   whole groups      each group, whose code it keeps          the code of each group; float32 if the codes
 *                                                              are not fewer bytes
 *
 * The steps are those of gpu_order.h: the owner of a slice adds what it received along the tree, rounds the sum
 * of a group that is completed there, rounds the sum of all groups, and sends its code to all. A replica that
 * has all lanes makes the same roundings, and sends nothing.
 *
 * All work is enqueued on streams, and can be captured: the number of the step, a part of the key of random
 * roundings, is read from the memory of the GPU. Threads: the replica's. */
#ifndef ENGINE_GPU_CODES_H
#define ENGINE_GPU_CODES_H

#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"

/* Bytes of GPU memory of gpu_codes_open(), after gpu_of(r)->grads.floats is set; 0: nothing is coded. */
size_t gpu_codes_bytes(const struct engine_replica *r);
/* Bytes of GPU memory for gradients: the arenas, and the buffers of all-reduces. */
size_t gpu_codes_gradient_bytes(const struct engine_replica *r);
/* Fills in gpu_of(r)->codes, and clears the arenas of gradients, if the job codes gradients. Errors: ERR_NOMEM, ERR_DEVICE. */
int gpu_codes_open(struct engine_replica *r, struct err *err);
void gpu_codes_close(struct engine_replica *r); /* idempotent */
/* The ranks of a generation: after gpu_order_begin(). Errors: ERR_DEVICE. */
int gpu_codes_begin(struct engine_replica *r, struct err *err);

/* Work stream: if the replica's lane-th lane ends a group which is whole in the replica, rounds floats [begin, end)
 * of its sum. merges: those of the lane tree that were made after the lane. */
int gpu_codes_round_group(struct engine_replica *r, uint32_t lane, uint32_t merges, float *sum,
                          size_t begin, size_t end, struct err *err);
/* Work stream: rounds the sum of all groups, in a replica that has all lanes. */
int gpu_codes_round_all(struct engine_replica *r, struct err *err);
/* Reduce stream: all-reduces floats [begin, end) of arena 0. */
int gpu_codes_all_reduce(struct engine_replica *r, size_t begin, size_t end, struct err *err);

#endif
