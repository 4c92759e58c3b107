/* gpu_residual_priv.h - what the files of codes with residuals on GPUs share: one table of functions for each code, and
 * the places of groups. See gpu_residual.h. */
#ifndef ENGINE_GPU_RESIDUAL_PRIV_H
#define ENGINE_GPU_RESIDUAL_PRIV_H

#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"

struct cuda_stream;

struct gpu_residual_code {
    /* Work stream: the sum x of the replica's i-th group is complete. */
    int (*take_group)(struct engine_replica *r, uint32_t i, struct err *err);
    /* Stream s: all-reduces arena 0. */
    int (*reduce)(struct engine_replica *r, struct cuda_stream *s, struct err *err);
    /* Floats of coded parameters that the replica sends in a step. */
    double (*sent)(const struct engine_replica *r);
};

extern const struct gpu_residual_code gpu_residual_top_k, gpu_residual_power_sgd;

/* Groups of the replica, and the first one. */
uint32_t gpu_residual_groups(const struct engine_replica *r);
uint32_t gpu_residual_first(const struct engine_replica *r);
/* x of the replica's i-th group. */
float *gpu_residual_left(const struct engine_replica *r, uint32_t i);
/* In the GPU's state: the residual of a group; with the number of groups, Q. */
float *gpu_residual_in_state(const struct engine_replica *r, uint32_t group);
/* Exchange floats for the numbers that are not coded. */
size_t gpu_residual_plain(const struct engine_replica *r);
/* Reduce stream: all-reduces the numbers that are not coded, and `more` exchange floats after them. Nothing to do in a
 * replica without others. */
int gpu_residual_reduce_plain(struct engine_replica *r, size_t more, struct err *err);
/* Likewise x [n]. */
int gpu_residual_all_reduce(struct engine_replica *r, float *x, size_t n, struct err *err);

#endif
