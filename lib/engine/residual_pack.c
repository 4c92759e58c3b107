/* residual_pack.c - the residuals in the state, and the numbers of a gradient that are not coded; see residual_priv.h. */
#include <string.h>

#include "comm/comm.h"
#include "engine/residual.h"
#include "engine/residual_priv.h"

float *residual_of_group(const struct engine *e, uint32_t group)
{
    return e->memory.residual + group * e->residual.floats;
}

int residual_exchange(struct engine_replica *r, size_t count, struct err *err)
{
    const struct engine_group *g = &r->engine->group;

    if (g->comm == NULL)
        return 0;
    return comm_all_reduce(g->comm, r->local, r->arenas->exchange, count, TENSOR_F32, COMM_SUM,
                           err);
}

/* ---- numbers that are not coded ---- */

size_t residual_pack(const struct residual_layout *l, const float *grads, size_t end, float *to)
{
    size_t at = 0, next = 0, n = 0, stop;

    for (uint32_t k = 0; k <= l->n; k++, at = next) {
        stop = residual_gap(l, k, end, &next);
        memcpy(to + n, grads + at, (stop - at) * sizeof(*to));
        n += stop - at;
    }
    return n;
}

void residual_unpack(const struct residual_layout *l, const float *from, size_t end, float *grads)
{
    size_t at = 0, next = 0, stop;

    for (uint32_t k = 0; k <= l->n; k++, at = next) {
        stop = residual_gap(l, k, end, &next);
        memcpy(grads + at, from, (stop - at) * sizeof(*from));
        from += stop - at;
    }
}
