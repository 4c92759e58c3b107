/* plan_warn.c - warnings about a job that computes, but does not train what its author expects. */
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "graph/plan_priv.h"
#include "op/loss/loss.h"

static int warn(struct plan *p, char *text, struct err *err)
{
    return text == NULL || !VEC_PUSH(p->warnings, text) ? plan_no_memory(err) : 0;
}

/* Returns the node that computes the values of a tensor, without the nodes that only copy or arrange them; NULL: no
 * node. */
static const struct graph_node *node_of(const struct graph *g, uint32_t value)
{
    static const char *const passes[] = { "Identity", "Reshape",   "Flatten",   "Squeeze",
                                          "Cast",     "Unsqueeze", "Transpose", "Dropout" };
    const struct graph_node *n = NULL;

    while (g->values[value].kind == VALUE_NODE) {
        size_t i = 0;

        n = &g->nodes[g->values[value].index];
        while (i < COUNT_OF(passes) && strcmp(n->def->name, passes[i]) != 0)
            i++;
        if (i == COUNT_OF(passes))
            return n;
        value = n->in[0];
    }
    return NULL;
}

int plan_warn_scores(struct plan *p, const struct plan_measure *m, uint32_t value, struct err *err)
{
    static const struct {
        const char *loss, *node, *remedy;
    } rows[] = {
        { "SoftmaxCrossEntropy", "Softmax", "name the input of that node as logits" },
        { "SoftmaxCrossEntropy", "Sigmoid",
          "name the input of that node as logits, or train with binary_cross_entropy" },
        { "BinaryCrossEntropy", "Sigmoid", "name the input of that node as logits" },
        { "BinaryCrossEntropy", "Softmax",
          "name the input of that node as logits of softmax_cross_entropy" },
        { "NegativeLogLikelihood", "Softmax",
          "name the input of that node as logits of softmax_cross_entropy" },
        { "NegativeLogLikelihood", "Sigmoid",
          "name the input of that node as logits of softmax_cross_entropy or binary_cross_entropy" },
    };
    const struct graph_node *n = node_of(p->g, value);
    char *text;

    for (size_t i = 0; n != NULL && i < COUNT_OF(rows); i++) {
        if (strcmp(rows[i].loss, m->op) != 0 || strcmp(rows[i].node, n->def->name) != 0)
            continue;
        text = arena_printf(&p->mem,
                            "the loss %s expects %s, but %s '%s' computes '%s', which are probabilities: "
                            "the numbers of the loss are others than intended; %s, '%s'",
                            m->op,
                            strcmp(m->op, "NegativeLogLikelihood") == 0 ? "logarithms of probabilities"
                                                                        : "logits",
                            n->def->name, n->name, m->tensor, rows[i].remedy,
                            p->g->values[n->in[0]].name);
        return warn(p, text, err);
    }
    return 0;
}

/* A softmax over one class is 1, whatever the score is. */
static int warn_one_class(struct plan *p, struct err *err)
{
    int rc = 0;

    for (size_t i = 0; i < p->nodes.n && rc == 0; i++) {
        const struct plan_node *n = &p->nodes.at[i];
        const struct loss_classes *c = n->param;

        if (n->def->domain != NULL && strcmp(n->def->name, "SoftmaxCrossEntropy") == 0 &&
            c->classes == 1)
            rc = warn(p,
                      arena_printf(&p->mem, "nothing is trained: the logits have one class; for one score per sample "
                                            "train with binary_cross_entropy"),
                      err);
    }
    return rc;
}

int plan_warn_untrained(struct plan *p, struct err *err)
{
    const struct graph *g = p->g;

    if (p->purpose != PLAN_TRAIN)
        return 0;
    if (p->values.at[p->loss.value].has_grad)
        return warn_one_class(p, err);
    if (g->arena.trained_floats == 0 && g->n_remotes == 0)
        return warn(p,
                    arena_printf(&p->mem, "nothing is trained: the model has no trained parameters; check "
                                          "/model/frozen and /model/trainable"),
                    err);
    return warn(p,
                arena_printf(&p->mem,
                             "nothing is trained: the loss does not depend on any trained parameter; check which "
                             "tensor /model/loss names: trainerctl inspect lists the tensors of the model"),
                err);
}
