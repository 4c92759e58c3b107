/* plan_range.c - which numbers an input may have: the labels of losses, and the row numbers that a Gather takes directly
 * from an input. The reader of the data refuses others with their place, before an op finds them in a batch. */
#include <math.h>
#include <string.h>

#include "graph/plan_priv.h"
#include "op/loss/loss.h"
#include "op/shape/rows.h"

static void intersect(struct plan_range *r, double least, double greatest, const char *what)
{
    r->least = fmax(r->least, least);
    r->greatest = fmin(r->greatest, greatest);
    r->what = what;
}

static bool is_trainerd(const struct plan_node *n, const char *name)
{
    return n->def->domain != NULL && strcmp(n->def->name, name) == 0;
}

static void add_labels(const struct plan_node *n, struct plan_range *r)
{
    if (is_trainerd(n, "BinaryCrossEntropy"))
        intersect(r, 0, 1, "labels of binary_cross_entropy");
    if (is_trainerd(n, "SoftmaxCrossEntropy") || is_trainerd(n, "NegativeLogLikelihood")) {
        const struct loss_classes *c = n->param;

        r->has_other = c->has_ignored;
        r->other = (double)c->ignored;
        intersect(r, 0, (double)c->classes - 1, "one label for each class of the loss");
    }
}

/* Is the parameter a dynamic table? */
static bool takes_any_id(const struct plan *p, uint32_t param)
{
    return graph_param_is_remote(p->g, param) ? p->g->remotes[param - p->g->n_params].rows == 0
                                              : p->g->values[p->g->param_values[param]].is_dynamic;
}

static void add_rows(const struct plan *p, const struct plan_node *n, struct plan_range *r)
{
    const struct plan_value *table = &p->values.at[n->in[0]];
    const struct rows *rows = n->param;
    double n_rows = (double)table->tensor.shape.dim[0];

    if (!op_is_onnx(n->def, "Gather") || table->kind != PLAN_PARAM || rows->kind != ROWS_AXIS ||
        rows->axis != 0 || takes_any_id(p, table->index))
        return;
    intersect(r, -n_rows, n_rows - 1, table->name);
}

bool plan_input_range(const struct plan *p, uint32_t i, struct plan_range *out)
{
    *out = (struct plan_range){ .least = -INFINITY, .greatest = INFINITY };
    for (size_t k = 0; k < p->nodes.n; k++) {
        const struct plan_node *n = &p->nodes.at[k];

        if (n->n_in < 2 || n->in[1] != p->inputs.values[i])
            continue;
        add_labels(n, out);
        add_rows(p, n, out);
    }
    return out->what != NULL;
}
