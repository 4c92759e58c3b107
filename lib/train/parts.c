/* parts.c - see parts.h. */
#include "train/parts.h"

#include "engine/memory.h"
#include "ps/wants.h"

void parts_layout(struct parts *p, const struct memory *mem, uint32_t staleness)
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
        at += mem->trained;
    }
    if (mem->opts.has_average) {
        p->average = p->n;
        p->names[p->n] = "average";
        p->at[p->n++] = at;
        at += mem->params;
    }
    p->delayed = p->n;
    p->n_delayed = staleness;
    for (uint32_t i = 0; i < staleness; i++) {
        p->names[p->n] = ps_delayed_names[i];
        p->at[p->n++] = at - mem->opts.delayed_at; /* a delayed parameter has at least that offset */
        at += mem->trained - mem->opts.delayed_at;
    }
    if (mem->opts.has_outer) {
        p->outer = p->n;
        p->names[p->n] = "outer_momentum";
        p->at[p->n++] = at;
        at += mem->trained;
    }
    p->floats = at;
}
