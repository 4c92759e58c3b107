/* plan_dropped.c - arguments of a PyTorch call that change training and that its exporter drops.
 *
 * The FX node that the exporter stores with each node (fx.h) still has these arguments, so a plan
 * that needs such a node is refused. A plan that does not need it, for example because the job
 * computes the loss from the logits, is not affected. */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/text.h"
#include "graph/fx.h"
#include "graph/plan_priv.h"

enum effect { OF_LOSS, OF_POOL, OF_TABLE /* only the gradient of a table */ };

static const struct dropped { /* position and name of an argument of an operator */
    const char *aten;
    uint8_t arg;
    const char *name;
    enum effect effect;
} dropped[] = {
    { "cross_entropy_loss", 5, "label_smoothing", OF_LOSS },
    { "avg_pool2d", 6, "divisor_override", OF_POOL },
    { "avg_pool3d", 6, "divisor_override", OF_POOL },
    { "embedding", 3, "scale_grad_by_freq", OF_TABLE },
    { "embedding_bag", 3, "scale_grad_by_freq", OF_TABLE },
    { "_embedding_bag", 3, "scale_grad_by_freq", OF_TABLE },
    { "_embedding_bag_forward_only", 3, "scale_grad_by_freq", OF_TABLE },
};

static bool is_default(struct fx_span value)
{
    return value.n == 0 || fx_is(value, "False") || fx_is(value, "0.0") || fx_is(value, "0") ||
           fx_is(value, "None");
}

/* The value of an argument, by position or by name ("kwargs = {label_smoothing: 0.3}"). */
static struct fx_span value_of(const struct fx *fx, const struct dropped *d)
{
    char key[64];
    const char *at;
    size_t n;

    if (d->arg < fx->n_args)
        return fx->args[d->arg];
    n = (size_t)snprintf(key, sizeof(key), "%s: ", d->name);
    at = memmem(fx->all.at, fx->all.n, key, n);
    if (at == NULL)
        return (struct fx_span){ "", 0 };
    at += n;
    return (struct fx_span){ at, strcspn(at, ",})") };
}

/* The trained table that the node reads; NULL: none. */
static const char *table_of(const struct graph *g, const struct graph_node *n)
{
    uint32_t k;

    for (k = 0; k < n->n_in; k++) {
        const struct graph_value *v;

        if (n->in[k] == GRAPH_NONE)
            continue;
        v = &g->values[n->in[k]];
        if (v->kind == VALUE_PARAM && g->params[v->index].kind == GRAPH_TRAINED)
            return v->name;
    }
    return NULL;
}

static bool is_loss(const struct graph_node *n)
{
    return op_is_onnx(n->def, "SoftmaxCrossEntropyLoss") ||
           op_is_onnx(n->def, "NegativeLogLikelihoodLoss");
}

int plan_check_dropped(const struct plan *p, const struct graph_node *n, struct err *err)
{
    const struct dropped *d = NULL;
    struct fx_span value;
    const char *table;
    struct fx fx;
    size_t i;

    if (p->purpose == PLAN_RUN)
        return 0;
    fx_parse(n->call, &fx);
    for (i = 0; i < COUNT_OF(dropped) && d == NULL; i++)
        d = fx_is(fx.op, dropped[i].aten) ? &dropped[i] : NULL;
    if (d == NULL)
        return 0;
    value = value_of(&fx, d);
    if (is_default(value))
        return 0;
    if (d->effect == OF_POOL && op_is_onnx(n->def, "AveragePool"))
        return err_set(err, ERR_UNSUPPORTED,
                       "%s '%s': by the metadata of the file the module divides the sums of its windows by %.*s "
                       "(%s), and the exporter did not write it; compute avg_pool(..) * (window / %.*s) in the "
                       "module, where window is the number of elements of a window",
                       n->def->name, n->name, (int)value.n, value.at, d->name, (int)value.n, value.at);
    if (d->effect == OF_LOSS && is_loss(n))
        return err_set(err, ERR_UNSUPPORTED,
                       "%s '%s': by the metadata of the file the module computes its loss with %s %.*s, and "
                       "the exporter did not write it; export the model with its logits as output, and train "
                       "with \"loss\": {\"type\": \"softmax_cross_entropy\", \"label_smoothing\": %.*s} in \"model\" of "
                       "the job",
                       n->def->name, n->name, d->name, (int)value.n, value.at, (int)value.n, value.at);
    table = d->effect != OF_TABLE || p->purpose != PLAN_TRAIN ? NULL : table_of(p->g, n);
    if (table == NULL)
        return 0;
    return err_set(err, ERR_UNSUPPORTED,
                   "%s '%s': by the metadata of the file the module divides the gradient of the rows of '%s' by "
                   "how often the batch has them (%s), which the file does not contain; export the module with "
                   "%s=False, or keep the table as it is: \"frozen\": [\"%s\"] in \"model\" of the job",
                   n->def->name, n->name, table, d->name, d->name, table);
}
