/* gpu_order.c - see gpu_order.h. */
#include "engine/gpu_order.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/lane_tree.h"
#include "comm/comm.h"
#include "comm/reduce.h"
#include "comm/schedule.h"
#include "engine/gpu_buckets.h"
#include "engine/gpu_types.h"
#include "engine/residual.h"

/* Slices begin at multiples of this number of floats, so that a thread adds 16 bytes at a time. */
enum { GRAIN = 256 };

_Static_assert((int)CUDA_TREE_DEPTH == (int)REDUCE_DEPTH_MAX,
               "the kernel has a stack for every tree");

size_t gpu_order_part_floats(const struct engine_replica *r)
{
    size_t bucket = gpu_bucket_floats(r->engine), all = gpu_of(r)->grads.floats;

    return bucket < all ? bucket : all;
}

/* A slice has at most gpu_order_part_floats() / world + 2 * GRAIN floats, and comes from world - 1 ranks. */
size_t gpu_order_received_bytes(const struct engine_replica *r)
{
    const struct engine_opts *o = r->engine->opts;

    return (o->ordered || r->engine->codes != NULL || residual_exists(r->engine)) &&
                   o->max_replicas > 1
               ? (gpu_order_part_floats(r) + (size_t)2 * GRAIN * o->max_replicas) * sizeof(float)
               : 0;
}

int gpu_order_open(struct engine_replica *r, struct err *err)
{
    struct gpu_order *o = &gpu_of(r)->order;
    uint32_t most = r->engine->opts->max_replicas;

    if (gpu_order_received_bytes(r) == 0)
        return 0;
    o->borders = calloc((size_t)most + 1, sizeof(*o->borders));
    o->leaves = calloc((size_t)most + 1, sizeof(*o->leaves));
    o->host_merges = calloc(most, sizeof(*o->host_merges));
    o->with = calloc(most, sizeof(*o->with));
    return o->with != NULL && o->borders != NULL && o->leaves != NULL && o->host_merges != NULL
               ? 0
               : err_set(err, ERR_NOMEM, "order of additions: out of memory");
}

void gpu_order_close(struct engine_replica *r)
{
    struct gpu_order *o = &gpu_of(r)->order;

    free(o->borders);
    free(o->leaves);
    free(o->host_merges);
    free(o->with);
    o->borders = NULL;
    o->leaves = NULL;
    o->host_merges = NULL;
    o->with = NULL;
}

int gpu_order_begin(struct engine_replica *r, uint32_t world, struct err *err)
{
    const struct lane_tree *tree = &r->engine->opts->lane_tree;
    struct gpu *g = gpu_of(r);
    struct gpu_order *o = &g->order;

    o->world = world;
    if (o->received == NULL)
        return 0;
    CHECK(world <= r->engine->opts->max_replicas);
    lane_tree_leaves(tree, r->engine->group.shares, world, o->leaves + 1);
    for (uint32_t k = 0; k < world; k++)
        o->leaves[k + 1] += o->leaves[k];
    CHECK(o->leaves[r->rank] == lane_tree_leaf(tree, r->first_lane) &&
          o->leaves[r->rank + 1] == lane_tree_leaf(tree, r->first_lane + r->n_lanes));
    reduce_merges(o->leaves, world, o->host_merges);
    return g->cuda->copy(o->merges, o->host_merges, world, g->streams.reduce, err);
}

void gpu_order_cut(struct gpu_order *o, size_t n)
{
    for (uint32_t k = 0; k < o->world; k++)
        o->borders[k + 1] = schedule_cut(o->world, k, n, GRAIN).end;
}

static int scatter(struct engine_replica *r, const float *x, size_t stride, struct err *err)
{
    struct gpu *g = gpu_of(r);
    struct gpu_order *o = &g->order;

    for (uint32_t k = 0; k < o->world; k++)
        o->with[k] = (struct cuda_exchange){
            .from = x + o->borders[k],
            .from_bytes = gpu_order_floats(o, k) * sizeof(*x),
            .to = o->received + stride * (k < r->rank ? k : k - 1),
            .to_bytes = gpu_order_floats(o, r->rank) * sizeof(*x),
        };
    return g->cuda->comm_exchange(g->comm, o->with, g->streams.reduce, err);
}

static int gather(struct engine_replica *r, float *x, struct err *err)
{
    struct gpu *g = gpu_of(r);
    struct gpu_order *o = &g->order;

    for (uint32_t k = 0; k < o->world; k++)
        o->with[k] = (struct cuda_exchange){
            .from = x + o->borders[r->rank],
            .from_bytes = gpu_order_floats(o, r->rank) * sizeof(*x),
            .to = x + o->borders[k],
            .to_bytes = gpu_order_floats(o, k) * sizeof(*x),
        };
    return g->cuda->comm_exchange(g->comm, o->with, g->streams.reduce, err);
}

static int reduce_part(struct engine_replica *r, float *x, size_t n, struct err *err)
{
    struct gpu *g = gpu_of(r);
    struct gpu_order *o = &g->order;
    struct cuda_tree tree = { .others = o->received,
                              .merges = o->merges,
                              .world = o->world,
                              .self = r->rank };
    int rc;

    gpu_order_cut(o, n);
    tree.own = x + o->borders[r->rank];
    tree.n = gpu_order_floats(o, r->rank);
    tree.stride = (tree.n + GRAIN - 1) / GRAIN * GRAIN;
    rc = scatter(r, x, tree.stride, err);
    if (rc == 0)
        rc = g->cuda->math->add_tree(&tree, g->streams.reduce, err);
    return rc < 0 ? rc : gather(r, x, err);
}

int gpu_order_all_reduce(struct engine_replica *r, float *x, size_t n, struct err *err)
{
    size_t most = gpu_order_part_floats(r);
    int rc = 0;

    for (size_t at = 0; rc == 0 && at < n; at += most)
        rc = reduce_part(r, x + at, n - at < most ? n - at : most, err);
    return rc;
}
