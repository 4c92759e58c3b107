/* gpu_sums.c - see gpu_sums.h. */
#include "engine/gpu_sums.h"

#include "engine/codes.h"
#include "engine/common.h"
#include "engine/gpu_buckets.h"
#include "engine/gpu_clock.h"
#include "engine/gpu_codes.h"
#include "engine/gpu_order.h"
#include "engine/gpu_residual.h"
#include "engine/gpu_types.h"
#include "engine/residual.h"

int gpu_add_lanes(struct engine_replica *r, uint32_t lane, uint32_t top, size_t begin, size_t end,
                  struct err *err)
{
    struct gpu *g = gpu_of(r);
    uint32_t merges = lane_merges(r, lane);
    int rc = 0;

    for (uint32_t m = 0; rc == 0 && m <= merges; m++, top--) {
        rc = gpu_codes_round_group(r, lane, m, g->grads.tree[top - 1], begin, end, err);
        if (rc == 0)
            rc = gpu_residual_take_group(r, lane, m, g->grads.tree[top - 1], err);
        if (rc == 0 && m < merges)
            rc = g->cuda->math->add(g->grads.tree[top - 2] + begin, g->grads.tree[top - 1] + begin,
                                    end - begin, g->streams.work, err);
    }
    return rc < 0 || merges == 0 ? rc : gpu_span_end(r, TRACE_WORK, TRACE_SUMS, lane, err);
}

static int sum_of_ranks(struct engine_replica *r, size_t begin, size_t end, struct err *err)
{
    struct gpu *g = gpu_of(r);
    float *x = g->grads.tree[0] + begin;

    if (residual_is_on(r->engine))
        return gpu_residual_reduce(r, err);
    if (codes_are_on(r->engine))
        return gpu_codes_all_reduce(r, begin, end, err);
    if (r->engine->opts->ordered)
        return gpu_order_all_reduce(r, x, end - begin, err);
    return g->cuda->comm_all_reduce(g->comm, x, end - begin, g->streams.reduce, err);
}

int gpu_all_reduce(struct engine_replica *r, size_t begin, size_t end, struct err *err)
{
    struct gpu *g = gpu_of(r);
    int rc = g->cuda->record(g->streams.ready, g->streams.work, err);

    if (rc == 0)
        rc = g->cuda->wait(g->streams.reduce, g->streams.ready, err);
    if (rc == 0)
        rc = gpu_span_begin(r, TRACE_REDUCE, err);
    if (rc == 0)
        rc = sum_of_ranks(r, begin, end, err);
    return rc < 0 ? rc
                  : gpu_span_end(r, TRACE_REDUCE, TRACE_REDUCTION,
                                 (uint32_t)(begin / gpu_bucket_floats(r->engine)), err);
}

int gpu_wait_all_reduce(struct engine_replica *r, struct err *err)
{
    struct gpu *g = gpu_of(r);
    int rc = g->cuda->record(g->streams.reduced, g->streams.reduce, err);

    if (rc == 0)
        rc = g->cuda->wait(g->streams.work, g->streams.reduced, err);
    return rc < 0 ? rc : gpu_span_end(r, TRACE_WORK, TRACE_REDUCTION, 0, err);
}
