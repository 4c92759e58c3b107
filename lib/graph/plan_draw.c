/* plan_draw.c - detects random numbers that all samples of a batch would share.
 *
 * RandomNormal and RandomUniform have a fixed shape, and PyTorch's current exporter writes the Like
 * forms of a constant (graph_node.draws_fixed). A module that draws one tensor per sample, exported
 * with a batch of 1, has this 1 in the shape. Broadcasting then gives every sample the same
 * numbers, which is not visible in the result. A plan with samples therefore refuses an op that
 * broadcasts such a tensor over them. A draw without a batch dimension ([5] added to [n, 5]) is
 * shared according to the shapes of the module and is accepted. */
#include <string.h>

#include "base/err.h"
#include "graph/plan_priv.h"

static bool is_among(const struct plan_node *n, const char *const *names)
{
    for (; n->def->domain == NULL && *names != NULL; names++)
        if (strcmp(n->def->name, *names) == 0)
            return true;
    return false;
}

/* Ops that work element by element with broadcasting. */
static bool broadcasts(const struct plan_node *n)
{
    static const char *const names[] = { "Add",   "Sub",     "Mul", "Div",  "Pow",         "Max",
                                         "Min",   "Mean",    "Sum", "Less", "LessOrEqual", "Greater",
                                         "Equal", "And",     "Or",  "Xor",  "Where",       "GreaterOrEqual",
                                         "PRelu", "Mod",     NULL };

    return is_among(n, names);
}

/* If an input of the file has a batch of 1 and the plan has too, sharing is intended. */
static bool is_for_one_sample(const struct plan *p)
{
    const struct graph *g = p->g;
    uint32_t i;

    for (i = 0; p->batch == 1 && i < g->io.n_inputs; i++)
        if (g->io.inputs[i].has_shape && g->io.inputs[i].shape.rank > 0 &&
            g->io.inputs[i].shape.dim[0] == 1)
            return true;
    return false;
}

/* Returns whether an input enumerates the samples of the batch along axis 0. */
static bool reads_samples(const struct plan *p, const struct plan_node *n, uint32_t rank)
{
    uint32_t i;

    for (i = 0; i < n->n_in; i++) {
        const struct plan_value *v = n->in[i] != GRAPH_NONE ? &p->values.at[n->in[i]] : NULL;

        if (v != NULL && v->by_sample && v->tensor.shape.rank == rank &&
            v->tensor.shape.dim[0] == (int64_t)p->batch)
            return true;
    }
    return false;
}

static int refuse(const struct plan_node *n, const struct plan_value *draw, struct err *err)
{
    char shape[192];

    return err_set(err, ERR_UNSUPPORTED,
                   "%s '%s' broadcasts random numbers of '%s', which draws a fixed shape, over the batch: "
                   "%s has 1 in place of the batch, as an export with a batch of 1 writes it, and all samples "
                   "would share one draw; expected a draw for each sample: write the noise with "
                   "torch.rand_like() or torch.randn_like() of a tensor of the batch (RandomUniformLike, "
                   "RandomNormalLike), or make it an input of the model; a draw that samples do share "
                   "needs no dimension for the batch",
                   n->def->name, n->name, draw->one_draw,
                   shape_print(&draw->tensor.shape, shape, sizeof(shape)));
}

int plan_track_draws(struct plan *p, const struct plan_node *n, struct err *err)
{
    const char *of = NULL;
    uint32_t i;

    if (n->draws_fixed)
        of = n->name;
    for (i = 0; i < n->n_in; i++) {
        const struct plan_value *v = n->in[i] != GRAPH_NONE ? &p->values.at[n->in[i]] : NULL;

        if (v == NULL || v->one_draw == NULL)
            continue;
        if (broadcasts(n) && reads_samples(p, n, v->tensor.shape.rank) && !is_for_one_sample(p))
            return refuse(n, v, err);
        of = v->one_draw;
    }
    for (i = 0; of != NULL && i < n->n_out; i++) {
        struct plan_value *v = n->out[i] != GRAPH_NONE ? &p->values.at[n->out[i]] : NULL;

        if (v != NULL && !v->by_sample && v->tensor.shape.rank > 0 && v->tensor.shape.dim[0] == 1)
            v->one_draw = of;
    }
    return 0;
}
