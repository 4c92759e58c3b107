/* plan_grad.c - determines where gradients flow.
 *
 * Forward: a value needs a gradient if a trained parameter (or, with feed_grads, a feed) is
 * upstream through inputs that pass one. Backward from the loss: a value has a gradient if a node
 * that runs backward writes it. A view has no backward call: its input and its output share one
 * gradient, to which every reader of either contributes.
 *
 * An input that its op does not differentiate (the value of a Pad, the weights of a loss)
 * interrupts a path of a gradient: plan_notes() reports each kind of them once. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "graph/plan_priv.h"

bool plan_needs_stat(const struct plan *p, const struct plan_node *n, uint32_t i)
{
    const struct plan_value *v;

    if (p->purpose != PLAN_TRAIN || n->in[i] == GRAPH_NONE ||
        (n->def->stat & graph_input_bit(i)) == 0)
        return false;
    v = &p->values.at[n->in[i]];
    return v->kind == PLAN_PARAM && p->g->params[v->index].kind == GRAPH_STATISTIC;
}

static bool is_trained(const struct plan *p, const struct plan_value *v)
{
    return p->inputs.feed_grads
               ? v->kind == PLAN_FEED && v->tensor.dtype == TENSOR_F32
               : v->kind == PLAN_PARAM && p->g->params[v->index].kind == GRAPH_TRAINED;
}

int plan_is_trained(const struct plan *p, uint32_t value, bool *out, struct err *err)
{
    struct arena mem = { 0 };
    bool *on_path = arena_array(&mem, p->values.n, sizeof(*on_path));
    size_t i;
    uint32_t k;

    if (on_path == NULL)
        return plan_no_memory(err);
    *out = is_trained(p, &p->values.at[value]);
    on_path[value] = true;
    for (i = p->nodes.n; i-- > 0 && !*out;) {
        const struct plan_node *n = &p->nodes.at[i];
        bool passes = false;

        for (k = 0; k < n->n_out; k++)
            passes = passes || (n->out[k] != GRAPH_NONE && on_path[n->out[k]]);
        for (k = 0; passes && n->def->cpu.bwd != NULL && k < n->n_in; k++) {
            if (n->in[k] == GRAPH_NONE || (n->def->diff & graph_input_bit(k)) == 0)
                continue;
            on_path[n->in[k]] = true;
            *out = *out || is_trained(p, &p->values.at[n->in[k]]);
        }
    }
    arena_fini(&mem);
    return 0;
}

static bool passes_grad(const struct plan *p, const struct plan_node *n, uint32_t i)
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

        v->needs_grad = p->inputs.feed_grads
                            ? v->kind == PLAN_FEED && carries_grad(v)
                            : v->kind == PLAN_PARAM && p->g->params[v->index].kind == GRAPH_TRAINED;
    }
    for (i = 0; i < p->nodes.n; i++) {
        const struct plan_node *n = &p->nodes.at[i];
        bool needs = false;

        for (k = 0; k < n->n_in && !needs; k++)
            needs = passes_grad(p, n, k);
        for (k = 0; needs && k < n->n_out; k++)
            if (n->out[k] != GRAPH_NONE && carries_grad(&p->values.at[n->out[k]]))
                p->values.at[n->out[k]].needs_grad = true;
    }
}

static bool has_output_grad(const struct plan *p, const struct plan_node *n)
{
    uint32_t k;

    for (k = 0; k < n->n_out; k++)
        if (n->out[k] != GRAPH_NONE && p->values.at[n->out[k]].has_grad &&
            tensor_elements(&p->values.at[n->out[k]].tensor) > 0)
            return true;
    return false;
}

bool plan_needs_grad(const struct plan *p, const struct plan_node *n, uint32_t i)
{
    return has_output_grad(p, n) && passes_grad(p, n, i);
}

static void find_flow(struct plan *p, struct plan_node *n)
{
    bool has_stat = false, wanted = false, has_grad_out = has_output_grad(p, n);
    uint32_t k;

    for (k = 0; k < n->n_in; k++) {
        if (has_grad_out && passes_grad(p, n, k))
            wanted = p->values.at[n->in[k]].has_grad = true;
        has_stat = has_stat || plan_needs_stat(p, n, k);
    }
    n->runs_bwd = !n->is_alias && (wanted || has_stat);
}

/* ---- inputs that are not differentiated ---- */

struct cut { /* all nodes of an op whose input `input` interrupts a path */
    const struct op_def *def;
    uint32_t input, n;
    const char *node, *value; /* of the first node */
};

enum { CUTS_MAX = 16 };

static bool is_cut(const struct plan *p, const struct plan_node *n, uint32_t k)
{
    const uint32_t bit = graph_input_bit(k);

    return n->in[k] != GRAPH_NONE && p->values.at[n->in[k]].needs_grad && !passes_grad(p, n, k) &&
           !n->stops_gradient && !n->def->random && !n->def->of_shape &&
           (n->def->of_type & bit) == 0 && !(p->training && (n->def->stat & bit) != 0) &&
           tensor_elements(&p->values.at[n->in[k]].tensor) > 0;
}

/* Kinds beyond CUTS_MAX are not reported. */
static void add_cut(const struct plan *p, const struct plan_node *n, uint32_t k, struct cut *cuts,
                    uint32_t *n_cuts)
{
    uint32_t i;

    for (i = 0; i < *n_cuts && (cuts[i].def != n->def || cuts[i].input != k);)
        i++;
    if (i == CUTS_MAX)
        return;
    if (i == *n_cuts)
        cuts[(*n_cuts)++] = (struct cut){ .def = n->def, .input = k };
    cuts[i].node = n->name; /* nodes are visited from the last to the first */
    cuts[i].value = p->values.at[n->in[k]].name;
    cuts[i].n++;
}

/* Walks backward from the loss, through every floating-point input, whether or not a gradient
 * passes it. */
static void find_cuts(const struct plan *p, bool *on_path, struct cut *cuts, uint32_t *n_cuts)
{
    size_t i;
    uint32_t k;

    on_path[p->loss.value] = true;
    for (i = p->nodes.n; i-- > 0;) {
        const struct plan_node *n = &p->nodes.at[i];
        bool is_on = false;

        for (k = 0; k < n->n_out; k++)
            is_on = is_on || (n->out[k] != GRAPH_NONE && on_path[n->out[k]]);
        for (k = 0; is_on && k < n->n_in; k++) {
            if (n->in[k] == GRAPH_NONE || !carries_grad(&p->values.at[n->in[k]]))
                continue;
            on_path[n->in[k]] = true;
            if (is_cut(p, n, k))
                add_cut(p, n, k, cuts, n_cuts);
        }
    }
}

static int note_cuts(struct plan *p, struct err *err)
{
    struct arena mem = { 0 };
    bool *on_path = arena_array(&mem, p->values.n, sizeof(*on_path));
    struct cut cuts[CUTS_MAX];
    uint32_t n = 0, i;
    int rc = 0;

    if (on_path == NULL)
        return plan_no_memory(err);
    find_cuts(p, on_path, cuts, &n);
    arena_fini(&mem);
    for (i = 0; i < n && rc == 0; i++) {
        char more[64] = "", *text;

        if (cuts[i].n > 1)
            snprintf(more, sizeof(more), " (and %" PRIu32 " more of this op)", cuts[i].n - 1);
        text = arena_printf(&p->mem,
                            "%s '%s'%s does not differentiate its input %" PRIu32 ", '%s': the gradients of the "
                            "values from which '%s' is computed lack this contribution",
                            cuts[i].def->name, cuts[i].node, more, cuts[i].input, cuts[i].value, cuts[i].value);
        if (text == NULL || !VEC_PUSH(p->notes, text))
            rc = plan_no_memory(err);
    }
    return rc;
}

int plan_gradients(struct plan *p, struct err *err)
{
    size_t i;
    int rc;

    if ((p->purpose != PLAN_TRAIN && !p->inputs.feed_grads) || p->loss.value == GRAPH_NONE)
        return 0;
    find_needs(p);
    p->values.at[p->loss.value].has_grad = p->values.at[p->loss.value].needs_grad;
    for (i = p->nodes.n; i-- > 0;)
        find_flow(p, &p->nodes.at[i]);
    for (i = 0; i < p->nodes.n; i++) {
        const struct plan_node *n = &p->nodes.at[i];

        if (n->is_alias && passes_grad(p, n, 0))
            p->values.at[n->out[0]].grad_root = p->values.at[n->in[0]].grad_root;
    }
    rc = note_cuts(p, err);
    return rc < 0 ? rc : plan_warn_untrained(p, err);
}
