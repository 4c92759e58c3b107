/* parts.c - see parts.h. */
#include "train/parts.h"

#include "engine/memory.h"

void parts_layout(struct parts *p, const struct memory *mem)
{
    const struct optim_def *optim = mem->opts.optimizer;
    size_t at = mem->params;

    *p = (struct parts){ 0 };
    p->names[p->n++] = "weights";
    for (uint32_t s = 0; s < optim->n_slots; s++) {
        if (!optim_uses(optim, mem->opts.hyper, s))
            continue;
        p->names[p->n] = optim->slots[s].name;
        p->at[p->n++] = at;
        at += mem->slot;
    }
    if (mem->opts.has_average) {
        p->average = p->n;
        p->names[p->n] = "average";
        p->at[p->n++] = at;
        at += mem->params;
    }
    if (mem->opts.has_outer) {
        p->outer = p->n;
        p->names[p->n] = "outer_momentum";
        p->at[p->n++] = at;
    }
}
