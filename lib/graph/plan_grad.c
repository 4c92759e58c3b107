/* plan_grad.c - where gradients flow.
 *
 * Forwards: a value needs a gradient if a trained parameter (or, where asked for, a feed) is
 * upstream through inputs that can carry one. Backwards from the loss: a value has one if a node
 * that runs backward writes it. A view runs nothing backward: its input and its output share one
 * gradient, to which every reader of either contributes. */
#include "base/check.h"
#include "graph/plan_priv.h"

bool plan_wants_stat(const struct plan *p, const struct plan_node *n, uint32_t i)
{
    const struct plan_value *v;

    if (p->purpose != PLAN_TRAIN || n->in[i] == GRAPH_NONE ||
        (n->def->stat & graph_input_bit(i)) == 0)
        return false;
    v = &p->values.at[n->in[i]];
    return v->kind == PLAN_PARAM && p->g->params[v->index].kind == GRAPH_STATISTIC;
}

static bool learns(const struct plan *p, const struct plan_value *v)
{
    return p->feed_grads ? v->kind == PLAN_FEED && v->tensor.dtype == TENSOR_F32
                         : v->kind == PLAN_PARAM && p->g->params[v->index].kind == GRAPH_TRAINED;
}

int plan_wants_gradient(const struct plan *p, uint32_t value, bool *out, struct err *err)
{
    struct arena mem = { 0 };
    bool *on_the_way = arena_array(&mem, p->values.n, sizeof(*on_the_way));
    size_t i;
    uint32_t k;

    if (on_the_way == NULL)
        return plan_no_memory(err);
    *out = learns(p, &p->values.at[value]);
    on_the_way[value] = true;
    for (i = p->nodes.n; i-- > 0 && !*out;) {
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

static bool carries(const struct plan *p, const struct plan_node *n, uint32_t i)
{
    return n->def->cpu.bwd != NULL && !n->stops_gradient && n->in[i] != GRAPH_NONE &&
           (n->def->diff & graph_input_bit(i)) != 0 && p->values.at[n->in[i]].needs_grad &&
           tensor_elements(&p->values.at[n->in[i]].tensor) > 0;
}

static bool carries_grad(const struct plan_value *v)
{
    return v->tensor.dtype == TENSOR_F32 || v->is_half;
}

static void find_needs(struct plan *p)
{
    size_t i;
    uint32_t k;

    for (i = 0; i < p->values.n; i++) {
        struct plan_value *v = &p->values.at[i];

        v->needs_grad = p->feed_grads
                            ? v->kind == PLAN_FEED && carries_grad(v)
                            : v->kind == PLAN_PARAM && p->g->params[v->index].kind == GRAPH_TRAINED;
    }
    for (i = 0; i < p->nodes.n; i++) {
        const struct plan_node *n = &p->nodes.at[i];
        bool needs = false;

        for (k = 0; k < n->n_in && !needs; k++)
            needs = carries(p, n, k);
        for (k = 0; needs && k < n->n_out; k++)
            if (n->out[k] != GRAPH_NONE && carries_grad(&p->values.at[n->out[k]]))
                p->values.at[n->out[k]].needs_grad = true;
    }
}

static bool arrives(const struct plan *p, const struct plan_node *n)
{
    uint32_t k;

    for (k = 0; k < n->n_out; k++)
        if (n->out[k] != GRAPH_NONE && p->values.at[n->out[k]].has_grad &&
            tensor_elements(&p->values.at[n->out[k]].tensor) > 0)
            return true;
    return false;
}

bool plan_wants_grad(const struct plan *p, const struct plan_node *n, uint32_t i)
{
    return arrives(p, n) && carries(p, n, i);
}

static void find_flow(struct plan *p, struct plan_node *n)
{
    bool measures = false, wanted = false, arriving = arrives(p, n);
    uint32_t k;

    for (k = 0; k < n->n_in; k++) {
        if (arriving && carries(p, n, k))
            wanted = p->values.at[n->in[k]].has_grad = true;
        measures = measures || plan_wants_stat(p, n, k);
    }
    n->runs_bwd = !n->is_alias && (wanted || measures);
}

void plan_gradients(struct plan *p)
{
    size_t i;

    if ((p->purpose != PLAN_TRAIN && !p->feed_grads) || p->loss_value == GRAPH_NONE)
        return;
    find_needs(p);
    p->values.at[p->loss_value].has_grad = p->values.at[p->loss_value].needs_grad;
    for (i = p->nodes.n; i-- > 0;)
        find_flow(p, &p->nodes.at[i]);
    for (i = 0; i < p->nodes.n; i++) {
        const struct plan_node *n = &p->nodes.at[i];

        if (n->is_alias && carries(p, n, 0))
            p->values.at[n->out[0]].grad_root = p->values.at[n->in[0]].grad_root;
    }
}
