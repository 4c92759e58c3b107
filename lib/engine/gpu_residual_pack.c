/* gpu_residual_pack.c - places of groups in the memory of a GPU, and the numbers of a gradient that are not coded; see
 * gpu_residual_priv.h. */
#include "engine/gpu_order.h"
#include "engine/gpu_residual_priv.h"
#include "engine/gpu_types.h"
#include "engine/residual.h"

uint32_t gpu_residual_groups(const struct engine_replica *r)
{
    return r->n_lanes / residual_group_lanes(r->engine);
}

uint32_t gpu_residual_first(const struct engine_replica *r)
{
    return r->first_lane / residual_group_lanes(r->engine);
}

float *gpu_residual_left(const struct engine_replica *r, uint32_t i)
{
    return gpu_of(r)->residual.left + i * r->engine->residual.floats;
}

float *gpu_residual_in_state(const struct engine_replica *r, uint32_t group)
{
    const struct engine *e = r->engine;
    size_t begin = e->memory.state_bytes / sizeof(float) - residual_layout_state(&e->residual);

    return gpu_of(r)->state.floats + begin + group * e->residual.floats; /* they are the end of the state */
}

size_t gpu_residual_plain(const struct engine_replica *r)
{
    size_t plain = gpu_of(r)->grads.floats - r->engine->residual.floats;

    return (plain + RESIDUAL_GRAIN - 1) / RESIDUAL_GRAIN * RESIDUAL_GRAIN;
}

/* ---- numbers that are not coded ---- */

/* Copies the numbers that are not coded, from arena 0 or back. */
static int copy_plain(struct engine_replica *r, bool back, struct err *err)
{
    const struct residual_layout *l = &r->engine->residual;
    struct gpu *g = gpu_of(r);
    float *packed = g->residual.exchange;
    size_t at = 0, next = 0, stop;
    int rc = 0;

    for (uint32_t k = 0; rc == 0 && k <= l->n; k++, at = next) {
        float *x = g->grads.tree[0] + at;

        stop = residual_gap(l, k, g->grads.floats, &next);
        if (stop > at)
            rc = g->cuda->copy(back ? x : packed, back ? packed : x, (stop - at) * sizeof(float),
                               g->streams.reduce, err);
        packed += stop - at;
    }
    return rc;
}

int gpu_residual_all_reduce(struct engine_replica *r, float *x, size_t n, struct err *err)
{
    return gpu_of(r)->comm != NULL && n > 0 ? gpu_order_all_reduce(r, x, n, err) : 0;
}

int gpu_residual_reduce_plain(struct engine_replica *r, size_t more, struct err *err)
{
    struct gpu *g = gpu_of(r);
    int rc = g->comm != NULL ? copy_plain(r, false, err) : 0;

    if (rc == 0)
        rc = gpu_residual_all_reduce(r, g->residual.exchange, gpu_residual_plain(r) + more, err);
    return rc < 0 || g->comm == NULL ? rc : copy_plain(r, true, err);
}
