/* fuse_gradient.c - whether a gradient flows into a value, before plan_grad.c decides it for all. */
#include "graph/plan_fuse.h"

static bool learns(const struct plan *p, const struct plan_value *v)
{
    return p->feed_grads ? v->kind == PLAN_FEED && v->tensor.dtype == TENSOR_F32
                         : v->kind == PLAN_PARAM && p->g->params[v->index].kind == GRAPH_TRAINED;
}

int fuse_wants_gradient(const struct fuser *f, uint32_t value, bool *out, struct err *err)
{
    const struct plan *p = f->p;
    struct arena mem = { 0 };
    bool *on_the_way = arena_array(&mem, p->values.n, sizeof(*on_the_way));
    uint32_t i, k;

    if (on_the_way == NULL)
        return plan_no_memory(err);
    *out = learns(p, &p->values.at[value]);
    on_the_way[value] = true;
    i = f->maker[value] == GRAPH_NONE ? 0 : f->maker[value] + 1;
    while (i-- > 0 && !*out) {
        const struct plan_node *n = &p->nodes.at[i];
        bool passes = false;

        for (k = 0; k < n->n_out; k++)
            passes = passes || (n->out[k] != GRAPH_NONE && on_the_way[n->out[k]]);
        for (k = 0; passes && n->def->cpu.bwd != NULL && k < n->n_in; k++) {
            if (n->in[k] == GRAPH_NONE || (n->def->diff & graph_input_bit(k)) == 0)
                continue;
            on_the_way[n->in[k]] = true;
            *out = *out || learns(p, &p->values.at[n->in[k]]);
        }
    }
    arena_fini(&mem);
    return 0;
}
