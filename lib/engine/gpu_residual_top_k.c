/* gpu_residual_top_k.c - top_k in a step of a GPU; see gpu_residual.h. The messages of all groups are beside each other,
 * in the order of the groups, as in the memory of every other GPU; a GPU receives those of another one in their place. */
#include "engine/gpu_order.h"
#include "engine/gpu_residual_priv.h"
#include "engine/gpu_types.h"
#include "engine/residual.h"
#include "opts/code.h"

static uint8_t *message_of(const struct engine_replica *r, uint32_t group)
{
    return (uint8_t *)(gpu_of(r)->residual.messages + group * r->engine->residual.message);
}

static int take_group(struct engine_replica *r, uint32_t i, struct err *err)
{
    const struct residual_layout *l = &r->engine->residual;
    struct gpu *g = gpu_of(r);
    int rc = 0;

    for (uint32_t k = 0; rc == 0 && k < l->n; k++)
        rc = g->cuda->math->top_k_encode(
            l->code->fraction, gpu_residual_left(r, i) + l->parts[k].at, l->parts[k].elements,
            message_of(r, gpu_residual_first(r) + i) + l->parts[k].code_at, g->streams.work, err);
    return rc;
}

/* Sends the messages of the own groups to all ranks, and receives theirs. */
static int exchange(struct engine_replica *r, struct err *err)
{
    const struct residual_layout *l = &r->engine->residual;
    struct gpu *g = gpu_of(r);
    struct gpu_order *o = &g->order;
    uint32_t lanes = residual_group_lanes(r->engine);
    size_t bytes = l->message * sizeof(float);

    if (g->comm == NULL || bytes == 0)
        return 0;
    for (uint32_t k = 0; k < o->world; k++)
        o->with[k] = (struct cuda_exchange){
            .from = message_of(r, gpu_residual_first(r)),
            .from_bytes = gpu_residual_groups(r) * bytes,
            .to = message_of(r, o->leaves[k] / lanes),
            .to_bytes = (o->leaves[k + 1] - o->leaves[k]) / lanes * bytes,
        };
    return g->cuda->comm_exchange(g->comm, o->with, g->streams.reduce, err);
}

static int reduce(struct engine_replica *r, struct cuda_stream *s, struct err *err)
{
    const struct residual_layout *l = &r->engine->residual;
    struct gpu *g = gpu_of(r);
    int rc = gpu_residual_reduce_plain(r, 0, err);

    if (rc == 0)
        rc = exchange(r, err);
    for (uint32_t k = 0; rc == 0 && k < l->n; k++)
        rc = g->cuda->math->top_k_sum(
            l->code->fraction, message_of(r, 0) + l->parts[k].code_at, l->message * sizeof(float),
            l->code->groups, g->grads.tree[0] + l->parts[k].offset, l->parts[k].elements, s, err);
    return rc;
}

static double sent(const struct engine_replica *r)
{
    return (double)(gpu_of(r)->order.world - 1) * gpu_residual_groups(r) *
           (double)r->engine->residual.message;
}

const struct gpu_residual_code gpu_residual_top_k = { take_group, reduce, sent };
