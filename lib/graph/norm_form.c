/* norm_form.c - the form of each BatchNormalization: training form or inference form.
 *
 * A node in training form normalizes with the statistics of the batch and updates its running
 * averages; a node in inference form normalizes with the running averages, which do not change. The
 * file states the form: with training_mode from opset 14 on, with the number of outputs before.
 * Current exporters of PyTorch write the inference form for every module, so the form in the file
 * does not state what the module defines, and the job decides (model.batch_norm). The decision
 * changes the attributes of the nodes that plans read; the message that export writes keeps the
 * inference form. The metadata of such a file may state that a module was in eval() at the export;
 * its node keeps the inference form whatever the job decides.
 *
 * PyTorch's module normalizes with the population variance and averages the unbiased one; ONNX and
 * the other frameworks average the population variance. A file cannot state which one applies. If
 * PyTorch wrote it, nodes in training form get the attribute `unbiased`, which only plans and the
 * digest read.
 *
 * A node in inference form may also read statistics that the graph computes from the batch itself
 * (PyTorch: track_running_stats=False). The row passes no gradient to its statistics, so such a
 * node gets the training form, which computes the same numbers and differentiates them. */
#include "graph/graph_priv.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/text.h"
#include "graph/fx.h"

enum {
    X = 0, /* inputs of BatchNormalization */
    SCALE = 1,
    BIAS = 2,
    MEAN = 3,
    VARIANCE = 4,
    TRAINING_OPSET = 14, /* first opset with the attribute training_mode */
};

static const struct op_attr *find_attr(const struct graph_node *n, const char *name)
{
    uint32_t i;

    for (i = 0; i < n->n_attrs; i++)
        if (strcmp(n->attrs[i].name, name) == 0)
            return &n->attrs[i];
    return NULL;
}

static bool is_training_form(const struct graph_node *n)
{
    const struct op_attr *mode = find_attr(n, "training_mode");

    if (n->def->until != 0) /* row before opset 14 */
        return n->n_out > 1;
    return mode != NULL && mode->i != 0;
}

/* Replaces the node's attribute of the same name, or adds it. */
static int set_attr(struct graph *g, struct graph_node *n, struct op_attr attr, struct err *err)
{
    struct op_attr *attrs = arena_array(&g->mem, (size_t)n->n_attrs + 1, sizeof(*attrs));
    uint32_t n_attrs = 0, i;

    if (attrs == NULL)
        return err_set(err, ERR_NOMEM, "BatchNormalization '%s': out of memory", n->name);
    for (i = 0; i < n->n_attrs; i++)
        if (strcmp(n->attrs[i].name, attr.name) != 0)
            attrs[n_attrs++] = n->attrs[i];
    attrs[n_attrs++] = attr;
    n->attrs = attrs;
    n->n_attrs = n_attrs;
    return 0;
}

static struct op_attr integer(const char *name, int64_t value)
{
    return (struct op_attr){ .name = name, .type = OP_ATTR_INT, .i = value };
}

static struct op_attr number(const char *name, float value)
{
    return (struct op_attr){ .name = name, .type = OP_ATTR_FLOAT, .f = value };
}

/* Sets the form; a node of an older row gets the row of opset 14, in which an attribute states the
 * form. */
static int set_form(struct graph *g, struct graph_node *n, bool trains, struct err *err)
{
    const struct op_attr *spatial = find_attr(n, "spatial");
    int rc;

    if (spatial != NULL && spatial->i != 1) /* opset 7 and 8: the row refuses the node */
        return 0;
    rc = set_attr(g, n, integer("training_mode", trains), err);
    if (rc < 0)
        return rc;
    if (n->def->until != 0)
        n->def = op_find(NULL, "BatchNormalization", TRAINING_OPSET);
    return 0;
}

/* ---- origin of a value ---- */

/* The node that computes a value, Identity nodes skipped; NULL: no node does. *value is the value
 * after skipping. */
static const struct graph_node *producer(const struct graph *g, uint32_t *value)
{
    uint32_t i;

    for (i = 0; i < g->n_nodes; i++) { /* a chain of Identity nodes is no longer than the graph */
        const struct graph_node *n;

        if (*value == GRAPH_NONE || g->values[*value].kind != VALUE_NODE)
            return NULL;
        n = &g->nodes[g->values[*value].index];
        if (!op_is_onnx(n->def, "Identity") || n->n_in != 1)
            return n;
        *value = n->in[0];
    }
    return NULL;
}

static bool is_initializer(const struct graph *g, uint32_t value)
{
    return producer(g, &value) == NULL && value != GRAPH_NONE &&
           g->values[value].initializer != GRAPH_NONE;
}

/* The axes of a reduction; NULL: absent or not known at import. */
static const int64_t *axes_of(const struct graph *g, const struct graph_node *n, size_t *count)
{
    const struct op_attr *a = find_attr(n, "axes");
    const struct tensor *t;

    if (a != NULL) {
        *count = a->n;
        return a->ints;
    }
    if (n->n_in < 2 || n->in[1] == GRAPH_NONE || g->values[n->in[1]].kind != VALUE_CONST)
        return NULL;
    t = &g->values[n->in[1]].tensor;
    if (t->dtype != TENSOR_I64 || t->shape.rank != 1)
        return NULL;
    *count = (size_t)t->shape.dim[0];
    return t->data;
}

/* Returns whether `value` is the mean of *of over dimension 0 and dimensions from 2 on. The rank of
 * *of is not known yet: a mean over fewer dimensions has another shape, which the row refuses. */
static bool is_channel_mean(const struct graph *g, uint32_t value, uint32_t *of)
{
    const struct graph_node *n = producer(g, &value);
    const int64_t *axes;
    size_t count = 0, i;
    bool has_first = false;

    if (n == NULL || !op_is_onnx(n->def, "ReduceMean"))
        return false;
    axes = axes_of(g, n, &count);
    for (i = 0; axes != NULL && i < count; i++) {
        if (axes[i] < 0 || axes[i] == 1)
            return false;
        has_first = has_first || axes[i] == 0;
    }
    *of = n->in[0];
    return has_first;
}

/* Returns whether `value` is the square of x minus its channel mean. */
static bool is_squared_deviation(const struct graph *g, uint32_t value, uint32_t x)
{
    const struct graph_node *square = producer(g, &value), *sub;
    uint32_t inner, of;

    if (square == NULL || !op_is_onnx(square->def, "Mul") || square->in[0] != square->in[1])
        return false;
    inner = square->in[0];
    sub = producer(g, &inner);
    return sub != NULL && op_is_onnx(sub->def, "Sub") && sub->in[0] == x &&
           is_channel_mean(g, sub->in[1], &of) && of == x;
}

static bool reads_own_batch(const struct graph *g, const struct graph_node *n)
{
    uint32_t of;

    return is_channel_mean(g, n->in[MEAN], &of) && of == n->in[X] &&
           is_channel_mean(g, n->in[VARIANCE], &of) && is_squared_deviation(g, of, n->in[X]);
}

/* ---- the mode of the module ---- */

enum mode { MODE_UNKNOWN, MODE_TRAIN, MODE_EVAL };

/* The mode of the module when it was exported, from the ATen call in the metadata: in the operator
 * itself ("..._no_training" in eval(), "..._functional" in train()), or in its sixth argument. */
static enum mode mode_of_module(const struct graph_node *n)
{
    static const char *const with_argument[] = { "batch_norm", "native_batch_norm",
                                                 "_native_batch_norm_legit" };
    struct fx fx;
    size_t i;

    fx_parse(n->call, &fx);
    if (fx_is(fx.op, "_native_batch_norm_legit_no_training"))
        return MODE_EVAL;
    if (fx_is(fx.op, "_native_batch_norm_legit_functional"))
        return MODE_TRAIN;
    for (i = 0; i < COUNT_OF(with_argument) && fx.n_args > 5; i++)
        if (fx_is(fx.op, with_argument[i]))
            return fx_is(fx.args[5], "True")    ? MODE_TRAIN
                   : fx_is(fx.args[5], "False") ? MODE_EVAL
                                                : MODE_UNKNOWN;
    return MODE_UNKNOWN;
}

/* ---- before parameters are selected ---- */

static int set_training_form(struct graph *g, struct graph_node *n, struct err *err)
{
    if (!is_initializer(g, n->in[MEAN]) || !is_initializer(g, n->in[VARIANCE]))
        return err_set(err, ERR_UNSUPPORTED,
                       "BatchNormalization '%s': model.batch_norm is \"train\", but its running "
                       "averages are computed by the graph; expected two initializers, which training "
                       "can update; use \"batch_norm\": \"frozen\", or export the module with "
                       "optimize=False",
                       n->name);
    return set_form(g, n, true, err);
}

static bool is_norm(const struct graph_node *n)
{
    return op_is_onnx(n->def, "BatchNormalization") && n->n_in > VARIANCE &&
           n->in[X] != GRAPH_NONE && n->in[SCALE] != GRAPH_NONE && n->in[BIAS] != GRAPH_NONE &&
           n->in[MEAN] != GRAPH_NONE && n->in[VARIANCE] != GRAPH_NONE;
}

/* ---- modules that are called several times ---- */

/* The copies of an average have no reader any more. A value without a reader could become a loss,
 * and the average then a weight: this stops the gradient. */
static void stop_gradient(struct graph *g, uint32_t value)
{
    while (value != GRAPH_NONE && g->values[value].kind == VALUE_NODE) {
        struct graph_node *n = &g->nodes[g->values[value].index];

        n->stops_gradient = true;
        value = n->in[0];
    }
}

/* PyTorch's exporter writes the averages of the second call as Identity copies of those of the
 * first call. */
static int read_averages_directly(struct graph *g, struct graph_node *n, struct err *err)
{
    uint32_t mean = n->in[MEAN], variance = n->in[VARIANCE], *in;

    if (producer(g, &mean) != NULL || producer(g, &variance) != NULL ||
        (mean == n->in[MEAN] && variance == n->in[VARIANCE]))
        return 0;
    in = arena_array(&g->mem, n->n_in, sizeof(*in));
    if (in == NULL)
        return err_set(err, ERR_NOMEM, "BatchNormalization '%s': out of memory", n->name);
    memcpy(in, n->in, n->n_in * sizeof(*in));
    stop_gradient(g, n->in[MEAN]);
    stop_gradient(g, n->in[VARIANCE]);
    in[MEAN] = mean;
    in[VARIANCE] = variance;
    n->in = in;
    return 0;
}

static bool have_same_averages(const struct graph_node *a, const struct graph_node *b)
{
    return is_norm(b) && is_training_form(b) && a->in[MEAN] == b->in[MEAN] &&
           a->in[VARIANCE] == b->in[VARIANCE];
}

/* K nodes with momentum m update one average in turn: node k of them, counted from 0, contributes
 * its statistics with weight m^(K-1-k) (1 - m), and the old average keeps m^K. This equals one
 * average with momentum m^K and, for each node, the share m^(K-1-k) (1 - m) / (1 - m^K). The set is
 * handled once, for `first`, its first node. */
static int share_averages(struct graph *g, uint32_t first, struct err *err)
{
    const struct op_attr *a = find_attr(&g->nodes[first], "momentum");
    float momentum = a != NULL ? a->f : 0.9f, all = 1.0f, weight = 1.0f;
    uint32_t i, n = 0;
    int rc = 0;

    if (!is_initializer(g, g->nodes[first].in[MEAN]) ||
        find_attr(&g->nodes[first], "share") != NULL || !(momentum >= 0 && momentum < 1))
        return 0;
    for (i = first; i < g->n_nodes; i++)
        if (have_same_averages(&g->nodes[first], &g->nodes[i])) {
            const struct op_attr *other = find_attr(&g->nodes[i], "momentum");

            if ((other != NULL ? other->f : 0.9f) != momentum) /* param.c refuses the second node */
                return 0;
            all *= momentum;
            n++;
        }
    for (i = g->n_nodes; n > 1 && i-- > first && rc == 0;)
        if (have_same_averages(&g->nodes[first], &g->nodes[i])) {
            rc = set_attr(g, &g->nodes[i], number("share", weight * (1 - momentum) / (1 - all)),
                          err);
            if (rc == 0)
                rc = set_attr(g, &g->nodes[i], number("momentum", all), err);
            weight *= momentum;
        }
    return rc;
}

/* Refuses "train" for a file in which every module was in eval(): the job and the file contradict
 * each other. */
static int check_modes(const struct graph *g, const struct graph_opts *opts, struct err *err)
{
    const char *first = NULL;
    uint32_t n = 0, i;

    for (i = 0; i < g->n_nodes; i++) {
        if (!is_norm(&g->nodes[i]))
            continue;
        if (is_training_form(&g->nodes[i]) || mode_of_module(&g->nodes[i]) != MODE_EVAL)
            return 0;
        if (n++ == 0)
            first = g->nodes[i].name;
    }
    if (n == 0 || opts->batch_norm != GRAPH_NORM_TRAIN)
        return 0;
    return err_set(err, ERR_INPUT,
                   "BatchNormalization '%s': model.batch_norm is \"train\", but by the metadata of the file "
                   "every BatchNorm (%" PRIu32 ") was in eval() when it was exported, in which its running "
                   "averages normalise and do not change; use \"batch_norm\": \"frozen\", or export the module "
                   "in train()",
                   first, n);
}

int graph_set_norm_forms(struct graph *g, const struct graph_opts *opts, struct err *err)
{
    bool by_torch = text_starts(g->file.producer, "pytorch");
    uint32_t i;
    int rc = check_modes(g, opts, err);

    for (i = 0; i < g->n_nodes && rc == 0; i++) {
        struct graph_node *n = &g->nodes[i];

        if (!is_norm(n))
            continue;
        if (!is_training_form(n) && reads_own_batch(g, n))
            rc = set_form(g, n, true, err);
        else if (opts->batch_norm == GRAPH_NORM_TRAIN && !is_training_form(n) &&
                 mode_of_module(n) != MODE_EVAL)
            rc = set_training_form(g, n, err);
        else if (opts->batch_norm == GRAPH_NORM_FROZEN && is_training_form(n) &&
                 is_initializer(g, n->in[MEAN]))
            rc = set_form(g, n, false, err);
        if (rc == 0 && by_torch && is_training_form(n) && is_initializer(g, n->in[VARIANCE]))
            rc = set_attr(g, n, integer("unbiased", 1), err);
        if (rc == 0 && is_training_form(n))
            rc = read_averages_directly(g, n, err);
    }
    for (i = 0; i < g->n_nodes && rc == 0; i++)
        if (is_norm(&g->nodes[i]) && is_training_form(&g->nodes[i]))
            rc = share_averages(g, i, err);
    return rc;
}

/* ---- after parameters are selected ---- */

static const struct graph_param *trained(const struct graph *g, uint32_t value)
{
    const struct graph_value *v = &g->values[value];

    return v->kind == VALUE_PARAM && g->params[v->index].kind == GRAPH_TRAINED
               ? &g->params[v->index]
               : NULL;
}

/* Sets has_grad[value] if a trained parameter is upstream, through inputs that pass a gradient. */
static void find_upstream(const struct graph *g, bool *has_grad)
{
    uint32_t i, k;

    for (i = 0; i < g->n_values; i++)
        has_grad[i] = trained(g, i) != NULL;
    for (i = 0; i < g->n_nodes; i++) {
        const struct graph_node *n = &g->nodes[i];
        bool needs = false;

        for (k = 0; k < n->n_in && !needs && graph_passes_gradient(n->def); k++)
            needs = n->in[k] != GRAPH_NONE && (n->def->diff & graph_input_bit(k)) != 0 &&
                    has_grad[n->in[k]];
        for (k = 0; k < n->n_in && !needs && n->n_bodies > 0; k++)
            needs = n->in[k] != GRAPH_NONE && has_grad[n->in[k]];
        for (k = 0; k < n->n_captured && !needs; k++)
            needs = has_grad[n->captured[k]];
        for (k = 0; needs && k < n->n_out; k++)
            if (n->out[k] != GRAPH_NONE)
                has_grad[n->out[k]] = true;
    }
}

static bool is_frozen(const struct graph_opts *opts, const char *name)
{
    uint32_t i;

    for (i = 0; i < opts->n_frozen; i++)
        if (fnmatch(opts->frozen[i], name, 0) == 0)
            return true;
    return false;
}

/* Refuses an average that is also a weight or depends on one, since no gradient passes through
 * these inputs. */
static int check_averages(const struct graph *g, const struct graph_node *n, const bool *has_grad,
                          struct err *err)
{
    uint32_t k;

    for (k = MEAN; k <= VARIANCE; k++) {
        const char *name = g->values[n->in[k]].name;

        if (trained(g, n->in[k]) != NULL)
            return err_set(err, ERR_INPUT,
                           "BatchNormalization '%s': initializer '%s' is a running average and a "
                           "weight at once: the exporter merged tensors of equal value; expected one "
                           "of its own; export the module with optimize=False",
                           n->name, name);
        if (has_grad[n->in[k]])
            return err_set(err, ERR_UNSUPPORTED,
                           "BatchNormalization '%s': its %s '%s' is computed from trained values, and "
                           "the op passes no gradient to it; expected an initializer, or the mean and "
                           "the variance of its own input over all dimensions but the second; write "
                           "the normalisation with its elementary ops",
                           n->name, k == MEAN ? "mean" : "variance", name);
    }
    return 0;
}

/* At export, TensorFlow folds the constant ops of a "batchnorm" scope: gamma / sqrt(variance +
 * epsilon), and beta minus its product with the mean. Such parameters are refused or reported as a
 * question. */
static int check_folded(struct graph *g, const struct graph_opts *opts, struct err *err)
{
    uint32_t i;

    for (i = 0; i < g->n_params; i++) {
        const char *name = g->params[i].name, *text;

        if (g->params[i].kind != GRAPH_TRAINED || strstr(name, "/batchnorm/") == NULL ||
            strstr(name, "ReadVariableOp") != NULL)
            continue;
        text = arena_printf(&g->mem,
                            "'%.200s' is a batch normalisation that the exporter has folded into a constant: "
                            "neither its running averages nor gamma and beta are in the file, so that training "
                            "it is not what the module defines; expected the weights themselves: export with the "
                            "script of `trainerctl recipe tensorflow`, or keep the constants of all folded "
                            "normalisations as they are (\"frozen\" in \"model\" of the job)",
                            name);
        if (text == NULL)
            return err_set(err, ERR_NOMEM, "BatchNormalization: out of memory");
        if (!opts->collect_questions)
            return err_set(err, ERR_INPUT, "%s", text);
        g->report.question = text;
        return 0;
    }
    return 0;
}

struct asked { /* nodes whose form the job has to decide */
    const struct graph_node *first;
    uint32_t n, n_eval, n_train; /* all; those of modules that were in eval() and in train() */
};

/* What the metadata state about the nodes, for the question. NULL: out of memory. */
static const char *modes_of(struct graph *g, const struct asked *a)
{
    if (a->n_eval == 0 && a->n_train == a->n)
        return "; by its metadata the module was in train() when it was exported: \"train\" computes the same";
    if (a->n_eval == a->n)
        return "; by its metadata the module was in eval() when it was exported";
    if (a->n_eval == 0)
        return "";
    return arena_printf(&g->mem,
                        "; by their metadata %" PRIu32 " of them were in eval() when they were exported, which "
                        "\"train\" does not change",
                        a->n_eval);
}

static int report_question(struct graph *g, const struct asked *a, const struct graph_opts *opts,
                           struct err *err)
{
    const char *modes = modes_of(g, a);
    const char *text = arena_printf(
        &g->mem,
        "model.batch_norm: %" PRIu32 " BatchNormalization node%s (first '%s') %s in inference form and "
        "would train, and the file can mean two things: \"train\": each batch is normalised by its own "
        "statistics, and the running averages are updated (training from scratch; what a module in train() "
        "computes); \"frozen\": the running averages of the file normalise and do not change, scale and "
        "bias train (fine-tuning; a module in eval()); decide with one of these lines in \"model\" of the job: "
        "\"batch_norm\": \"train\"  or  \"batch_norm\": \"frozen\"%s",
        a->n, a->n == 1 ? "" : "s", a->first->name, a->n == 1 ? "is" : "are",
        modes != NULL ? modes : "");

    if (text == NULL || modes == NULL)
        return err_set(err, ERR_NOMEM, "BatchNormalization: out of memory");
    if (!opts->collect_questions)
        return err_set(err, ERR_INPUT, "%s", text);
    g->report.question = text;
    return 0;
}

/* A Dropout in eval() is not in the file. Its possible loss is inferred from the form in which a
 * normalization was exported, or from an exporter that only writes networks for inference. */
static int note_dropout(struct graph *g, struct err *err)
{
    const char *exporter = strstr(g->file.producer, "tf2onnx") != NULL    ? "tf2onnx"
                           : strstr(g->file.producer, "jax2onnx") != NULL ? "jax2onnx"
                                                                          : NULL;
    const char *in_eval = NULL;
    uint32_t i;

    for (i = 0; i < g->n_nodes; i++) {
        const struct graph_node *n = &g->nodes[i];

        if (op_is_onnx(n->def, "Dropout"))
            return 0;
        if (is_norm(n) && in_eval == NULL && mode_of_module(n) == MODE_EVAL)
            in_eval = n->name;
    }
    if (in_eval != NULL)
        return graph_note(g, err,
                          "by the metadata of '%s' the module was in eval() when it was exported: if it has "
                          "Dropout, the file does not have it; export it in train() to train with Dropout",
                          in_eval);
    if (exporter != NULL && g->arena.trained_floats > 0)
        return graph_note(g, err,
                          "%s writes networks for inference: if this one has Dropout, the file does not have "
                          "it, and it trains without",
                          exporter);
    return 0;
}

static int note_forms(struct graph *g, const struct graph_opts *opts, uint32_t n_frozen_nodes,
                      const char *frozen_name, struct err *err)
{
    if (n_frozen_nodes == 0)
        return 0;
    return graph_note(g, err,
                      "the running averages of %" PRIu32 " BatchNormalization nodes (first '%s') do "
                      "not change: the nodes are in inference form%s",
                      n_frozen_nodes, frozen_name,
                      opts->batch_norm == GRAPH_NORM_FROZEN  ? " (model.batch_norm is \"frozen\")"
                      : opts->batch_norm == GRAPH_NORM_TRAIN ? ", and by their metadata their modules were in "
                                                               "eval(), which \"batch_norm\": \"train\" does not "
                                                               "change"
                                                             : "");
}

int graph_check_norm_forms(struct graph *g, const struct graph_opts *opts, struct err *err)
{
    struct arena mem = { 0 };
    bool *has_grad = arena_array(&mem, g->n_values, sizeof(*has_grad));
    struct asked asked = { .first = NULL };
    const char *frozen_name = NULL;
    uint32_t n_frozen_nodes = 0, i;
    int rc = has_grad != NULL ? 0 : err_set(err, ERR_NOMEM, "BatchNormalization: out of memory");

    if (rc == 0)
        find_upstream(g, has_grad);
    for (i = 0; i < g->n_nodes && rc == 0; i++) {
        const struct graph_node *n = &g->nodes[i];
        bool trains;

        if (!is_norm(n) || is_training_form(n))
            continue;
        rc = check_averages(g, n, has_grad, err);
        if (n_frozen_nodes++ == 0)
            frozen_name = n->name;
        trains = trained(g, n->in[SCALE]) != NULL || trained(g, n->in[BIAS]) != NULL ||
                 (has_grad[n->in[X]] && !is_frozen(opts, g->values[n->in[SCALE]].name) &&
                  !(n->is_restored && g->values[n->in[SCALE]].initializer != GRAPH_NONE));
        if (!trains || opts->batch_norm != GRAPH_NORM_ASK)
            continue;
        if (asked.n++ == 0)
            asked.first = n;
        asked.n_eval += mode_of_module(n) == MODE_EVAL;
        asked.n_train += mode_of_module(n) == MODE_TRAIN;
    }
    arena_fini(&mem);
    if (rc == 0)
        rc = check_folded(g, opts, err);
    if (rc == 0)
        rc = note_dropout(g, err);
    if (rc == 0 && asked.n > 0)
        return report_question(g, &asked, opts, err);
    return rc == 0 ? note_forms(g, opts, n_frozen_nodes, frozen_name, err) : rc;
}
