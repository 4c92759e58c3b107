/* classify.c - classifies initializers as parameters or constants, with a reason.
 *
 * The sources in descending priority: the job (model.trainable, then model.frozen); the exporter's
 * metadata (metadata.h); without metadata the form of the graph (form.c). Only initializers that
 * receive a gradient need a decision, because the others cannot be trained. A tensor that training
 * would change incorrectly is refused, with the reason and the remedy. */
#include "graph/param_priv.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/text.h"

enum { LISTED = 8 /* tensors that a message lists */ };

static const char remedy[] =
    "export with torch.onnx.export(model, args, \"model.onnx\", dynamo=True, optimize=False), "
    "which keeps every parameter";

static int no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "find the parameters: out of memory");
}

/* Reports an error, or with opts.collect_questions the question that `inspect` prints. */
static int refuse(struct finder *f, struct err *err, const char *text)
{
    if (text == NULL)
        return no_memory(err);
    if (!f->opts->collect_questions)
        return err_set(err, ERR_INPUT, "%s", text);
    if (f->g->report.question == NULL)
        f->g->report.question = text;
    return 0;
}

/* ---- the job ---- */

struct patterns {
    const char *const *at;
    uint32_t n;
    bool *used;
};

static bool matches(const struct patterns *p, const char *name)
{
    bool found = false;
    uint32_t i;

    for (i = 0; name != NULL && i < p->n; i++)
        if (fnmatch(p->at[i], name, 0) == 0)
            found = p->used[i] = true;
    return found;
}

/* A pattern may match the name in the graph, the name in the file, and all names of tied
 * parameters. */
static bool matches_any(const struct finder *f, const struct patterns *p, const char *name)
{
    const struct graph_metadata *e = &f->g->file.metadata;
    const struct graph_metadata_tensor *t = graph_metadata_of(f->g, name);
    bool found = matches(p, name);
    uint32_t k;

    if (p->n == 0 || t == NULL || t->target == METADATA_NONE)
        return found;
    found = matches(p, t->restored) || found;
    found = matches(p, e->targets[t->target].name) || found;
    for (k = e->targets[t->target].aliases; k != METADATA_NONE; k = e->targets[k].next_alias)
        found = matches(p, e->targets[k].name) || found;
    return found;
}

static struct patterns frozen_of(const struct finder *f)
{
    return (struct patterns){ f->opts->frozen, f->opts->n_frozen, f->frozen_used };
}

static struct patterns trainable_of(const struct finder *f)
{
    return (struct patterns){ f->opts->trainable, f->opts->n_trainable, f->trainable_used };
}

/* ---- one tensor ---- */

/* Returns false if memory runs out. */
static bool find_tied(struct graph *g, const struct graph_metadata_tensor *t,
                      struct graph_classified *out)
{
    const struct graph_metadata *e = &g->file.metadata;
    const char **names;
    uint32_t n = 0, k;

    if (t == NULL || t->kind != METADATA_PARAMETER ||
        e->targets[t->target].aliases == METADATA_NONE)
        return true;
    for (k = e->targets[t->target].aliases; k != METADATA_NONE; k = e->targets[k].next_alias)
        n++;
    names = arena_array(&g->mem, n, sizeof(*names));
    if (names == NULL)
        return false;
    for (k = e->targets[t->target].aliases; k != METADATA_NONE; k = e->targets[k].next_alias)
        names[out->n_tied++] = e->targets[k].name;
    out->tied = names;
    return true;
}

static int add_tensor(struct finder *f, uint32_t value, enum graph_class classification,
                      const char *reason, struct err *err)
{
    const struct graph_value *v = &f->g->values[value];
    const struct graph_metadata_tensor *t = graph_metadata_of(f->g, v->name);
    struct graph_classified tensor = { .name = v->name,
                                   .dtype = v->tensor.dtype,
                                   .shape = v->tensor.shape,
                                   .classification = classification,
                                   .reason = reason,
                                   .name_in_file = t != NULL ? t->restored : NULL };

    if (!find_tied(f->g, t, &tensor) || !VEC_PUSH(f->g->report.classified, tensor))
        return no_memory(err);
    return 0;
}

/* Handles a constant that is used as a weight while the file lacks a parameter: the exporter may
 * have computed the constant from the parameter. */
static int classify_constant(struct finder *f, const char *name, bool is_weight,
                             enum graph_class *out, const char **reason, struct err *err)
{
    *reason = "a constant: the signature of the module does not list it";
    if (!is_weight || !f->has_unseen)
        return 0;
    *out = GRAPH_IS_REFUSED;
    *reason = "a constant that is used as a weight, while the file lacks parameters of the module";
    return refuse(f, err,
                  arena_printf(&f->g->mem,
                               "'%s' is used as a weight, and no metadata describes it, while the file "
                               "lacks parameters that the signature lists: the exporter may have computed "
                               "it from them; %s; or, if it is a constant of the module, \"frozen\": [\"%s\"] in "
                               "\"model\" of the job",
                               name, remedy, name));
}

static int classify_by_metadata(struct finder *f, const struct graph_metadata_tensor *t,
                                bool has_gradient, bool is_weight, enum graph_class *out,
                                const char **reason, struct err *err)
{
    *out = GRAPH_IS_CONSTANT;
    switch (t->kind) {
    case METADATA_CONSTANT:
        if (t->refusal == NULL)
            return classify_constant(f, t->name, has_gradient && is_weight, out, reason, err);
        *reason = "a constant: the signature of the module does not list it";
        break;
    case METADATA_BUFFER:
        *out = GRAPH_IS_BUFFER;
        *reason = "a buffer of the module";
        return 0;
    case METADATA_PARAMETER:
        *out = GRAPH_IS_TRAINED;
        *reason = t->reason != NULL     ? t->reason
                  : t->restored != NULL ? "a parameter of the module, restored from another form"
                                        : "a parameter of the module";
        break;
    case METADATA_FOLDED:
    case METADATA_CHANGED:
        *reason = t->refusal != NULL ? t->refusal : "computed from parameters of the module";
        break;
    }
    if (t->refusal == NULL || !has_gradient)
        return 0;
    *out = GRAPH_IS_REFUSED;
    *reason = t->refusal;
    return refuse(f, err,
                  arena_printf(&f->g->mem,
                               "%s; training would change it incorrectly: %s; or, if it must not change, \"frozen\": "
                               "[\"%s\"] in \"model\" of the job",
                               t->refusal, remedy, t->name));
}

/* The first reader of the value, if it passes a gradient, but not to this input; else NULL. */
static const struct graph_node *cut_by(const struct finder *f, uint32_t value, uint32_t *input)
{
    const struct graph_node *n;
    uint32_t k;

    if (f->first_use[value] == UINT64_MAX)
        return NULL;
    n = &f->g->nodes[f->first_use[value] >> 16];
    *input = (uint32_t)(f->first_use[value] & 0xFFFF);
    if (*input >= n->n_in || n->n_bodies > 0 || n->stops_gradient ||
        !graph_passes_gradient(n->def) ||
        ((n->def->diff | n->def->stat) & graph_input_bit(*input)) != 0)
        return NULL;
    for (k = 0; k < n->n_out; k++)
        if (n->out[k] != GRAPH_NONE && (f->use[n->out[k]] & USE_GRADIENT) != 0)
            return n;
    return NULL;
}

/* *reason receives why the value has no gradient. `expected`: the job or the module trains the
 * value, so a note is added. */
static int without_gradient(struct finder *f, uint32_t value, bool expected, const char **reason,
                            struct err *err)
{
    uint32_t input;
    const struct graph_node *n = cut_by(f, value, &input);

    *reason = "it receives no gradient";
    if (n == NULL)
        return 0;
    *reason = arena_printf(&f->g->mem, "%s '%s' does not differentiate its input %" PRIu32,
                           n->def->name, n->name, input);
    if (*reason == NULL)
        return no_memory(err);
    return !expected ? 0
                     : graph_note(f->g, err, "'%s' is a parameter, but is not trained: %s",
                                  f->g->values[value].name, *reason);
}

static void classify_by_form(const struct finder *f, uint32_t value, enum graph_class *out,
                             const char **reason)
{
    *out = GRAPH_IS_CONSTANT;
    switch (form_classify(f, value, reason)) {
    case FORM_PARAMETER:
        *out = GRAPH_IS_TRAINED;
        break;
    case FORM_CONSTANT:
        break;
    case FORM_UNCLEAR:
        *out = GRAPH_IS_REFUSED;
        break;
    }
}

int classify_value(struct finder *f, uint32_t value, enum graph_class *out, struct err *err)
{
    const struct graph_value *v = &f->g->values[value];
    const struct graph_metadata_tensor *t = graph_metadata_of(f->g, v->name);
    const struct patterns frozen = frozen_of(f), trainable = trainable_of(f);
    bool has_gradient = (f->use[value] & USE_GRADIENT) != 0;
    bool is_trainable = matches_any(f, &trainable, v->name);
    bool is_frozen = matches_any(f, &frozen, v->name);
    const char *reason = NULL;
    int rc = 0;

    if (!has_gradient && (f->use[value] & USE_STATISTIC) != 0) {
        *out = is_frozen && !is_trainable ? GRAPH_IS_FROZEN : GRAPH_IS_STATISTIC;
        reason = "a running average of a normalisation";
    } else if (has_gradient && is_trainable) {
        *out = GRAPH_IS_TRAINED;
        reason = "model.trainable";
    } else if (has_gradient && is_frozen) {
        *out = GRAPH_IS_FROZEN;
        reason = "model.frozen";
    } else if (t != NULL) {
        rc = classify_by_metadata(f, t, has_gradient, form_is_weight(f, value), out, &reason, err);
    } else if (f->g->file.metadata.has_signature) {
        *out = GRAPH_IS_CONSTANT;
        reason = "a constant: the signature of the module does not list it";
    } else if (!has_gradient) {
        *out = GRAPH_IS_CONSTANT;
        rc = without_gradient(f, value, is_trainable, &reason, err);
    } else {
        classify_by_form(f, value, out, &reason);
    }
    if (rc == 0 && *out == GRAPH_IS_TRAINED && !has_gradient) {
        *out = GRAPH_IS_CONSTANT;
        rc = without_gradient(f, value, true, &reason, err);
    }
    /* Also applies to parameters of the signature, which does not include requires_grad. */
    if (rc == 0 && *out == GRAPH_IS_TRAINED && !is_trainable && form_is_sinusoid(v)) {
        *out = GRAPH_IS_REFUSED;
        reason = "a table of positions of sines and cosines, which most modules do not change "
                 "(requires_grad=False) and some train";
    }
    if (*out == GRAPH_IS_TRAINED)
        f->use[value] |= USE_TRAINED;
    return rc < 0 ? rc : add_tensor(f, value, *out, reason, err);
}

int classify_inner(struct finder *f, uint32_t value, struct err *err)
{
    const struct graph_value *v = &f->g->values[value];
    const struct patterns frozen = frozen_of(f);
    const char *reason = NULL;
    char shape[192];

    if ((f->use[value] & USE_GRADIENT) == 0 || tensor_elements(&v->tensor) < 2 ||
        !form_may_have_inner_weights(f->g))
        return 0;
    if (matches(&frozen, v->name))
        return add_tensor(f, value, GRAPH_IS_FROZEN, "model.frozen", err);
    if (form_classify(f, value, &reason) == FORM_CONSTANT)
        return 0;
    return refuse(f, err,
                  arena_printf(&f->g->mem,
                               "'%s' %s (%s) is a constant inside the body of a Loop, Scan or If, or the "
                               "output of a Constant node, which cannot be trained; export the network with its "
                               "weights as inputs of the graph (the scripts of `trainerctl recipe keras`, "
                               "`tensorflow` and `jax` do); or, if it is a constant of the formula, \"frozen\": "
                               "[\"%s\"] in \"model\" of the job",
                               v->name, shape_print(&v->tensor.shape, shape, sizeof(shape)), reason,
                               v->name));
}

/* ---- all tensors ---- */

static int check_patterns(const struct finder *f, const struct patterns *p, const char *key,
                          struct err *err)
{
    struct arena mem = { 0 };
    const char **names = arena_array(&mem, f->g->report.classified.n, sizeof(*names));
    uint32_t n = 0, i;
    int rc = 0;

    if (names == NULL)
        return no_memory(err);
    for (i = 0; i < f->g->report.classified.n; i++)
        if (f->g->report.classified.at[i].classification != GRAPH_IS_CONSTANT)
            names[n++] = f->g->report.classified.at[i].name;
    for (i = 0; i < p->n && rc == 0; i++) {
        const char *near = text_nearest(p->at[i], names, n);

        if (p->used[i])
            continue;
        rc = near != NULL
                 ? err_set(err, ERR_INPUT, "%s pattern '%s' matches no parameter; did you mean '%s'?",
                           key, p->at[i], near)
                 : err_set(err, ERR_INPUT,
                           "%s pattern '%s' matches none of the %" PRIu32
                           " parameters (the first is '%s')",
                           key, p->at[i], n, n > 0 ? names[0] : "");
    }
    arena_fini(&mem);
    return rc;
}

/* Reports parameters that nodes read according to their metadata but that no tensor of the file
 * contains, and parameters that may have been removed together with their reader. Notes other
 * parameters that no checkpoint will have. */
static int check_lost(struct finder *f, struct err *err)
{
    const struct graph_metadata *e = &f->g->file.metadata;
    const struct patterns frozen = frozen_of(f);
    const char *first = NULL;
    uint32_t n_absent = 0, i;
    int rc = 0;

    for (i = 0; i < e->n_targets && rc == 0; i++) {
        const struct graph_metadata_target *t = &e->targets[i];
        bool is_frozen = matches(&frozen, t->name);

        if (!t->is_parameter || t->is_held || t->is_folded || t->alias_of != METADATA_NONE ||
            is_frozen)
            continue;
        if (t->is_mentioned)
            rc = refuse(f, err,
                        arena_printf(&f->g->mem,
                                     "nodes of the graph read the parameter '%s' of the module, and no tensor "
                                     "of the file contains it: the exporter removed or merged it; %s",
                                     t->name, remedy));
        else if (e->n_vanished > 0)
            rc = refuse(f, err,
                        arena_printf(&f->g->mem,
                                     "the signature lists the parameter '%s', no tensor of the file contains it, "
                                     "and the exporter removed or merged a node ('%s') that may have read it; %s; or, if the module does not use '%s' or ties it to "
                                     "another parameter, \"frozen\": [\"%s\"] in \"model\" of the job",
                                     t->name, e->vanished, remedy, t->name, t->name));
        else if (n_absent++ == 0)
            first = t->name;
    }
    if (rc < 0 || n_absent == 0)
        return rc;
    return graph_note(f->g, err,
                      "%" PRIu32 " parameters that the signature lists are in no tensor of the file (first '%s'), so "
                      "no checkpoint has them: the module does not use them, or it has them under a second name; "
                      "for a second name add to \"model\" of the job: \"tied\": {\"%s\": \"NAME IN THE FILE\"}",
                      n_absent, first, first);
}

/* ---- detached and merged nodes ---- */

/* Does the node read a parameter of which its FX node does not state the placeholder? */
static bool reads_indirectly(const struct graph *g, uint32_t value, const Onnx__NodeProto *n)
{
    const struct graph_metadata *e = &g->file.metadata;
    const struct graph_metadata_tensor *t = graph_metadata_of(g, g->values[value].name);
    struct fx_span span;
    struct fx fx;
    size_t at = 0;

    if (t == NULL || t->target == METADATA_NONE || !e->targets[t->target].is_parameter)
        return false;
    fx_parse(graph_fx_text(n), &fx);
    while (fx_next_name(fx.all, &at, &span))
        if (fx_is(span, e->targets[t->target].placeholder))
            return false;
    return true;
}

struct cut { /* a node that differs from the module in what stops the gradient */
    const struct graph_node *node;
    struct fx_span merged; /* the result of a merged node; empty: of a detach() */
};

/* Examines the inputs of node n. `depends`: [n_values] trained, or computed from a trained tensor. */
static bool differs(const struct graph *g, const struct graph_node *n, const bool *depends,
                    struct cut *out)
{
    const Onnx__GraphProto *p = g->file.model->graph;
    const struct graph_metadata *e = &g->file.metadata;
    const Onnx__NodeProto *proto = p->node[n->proto];
    bool loses_detach = graph_loses_detach(e, proto);
    uint32_t k;

    *out = (struct cut){ .node = n };
    for (k = 0; k < n->n_in; k++) {
        const struct graph_value *v;

        if (n->in[k] == GRAPH_NONE || !depends[n->in[k]])
            continue;
        v = &g->values[n->in[k]];
        if (loses_detach && (v->kind == VALUE_NODE || reads_indirectly(g, n->in[k], proto)))
            return true;
        if (v->kind == VALUE_NODE && g->nodes[v->index].proto < p->n_node &&
            graph_reads_merged(e, proto, p->node[g->nodes[v->index].proto], &out->merged))
            return true;
    }
    return false;
}

/* Reports a node whose FX node reads a detached tensor while the file has the tensor itself: the
 * gradient would flow where the module stops it. Reports also a node that reads the result of two
 * merged nodes: one of them may have read a detached tensor, or a parameter of equal values. */
static int check_detach(struct finder *f, struct err *err)
{
    const struct graph *g = f->g;
    struct arena mem = { 0 };
    bool *depends = arena_array(&mem, g->n_values, sizeof(*depends));
    struct cut cut = { .node = NULL };
    bool found = false;
    uint32_t i, k;

    if (depends == NULL)
        return no_memory(err);
    for (i = 0; i < g->n_values; i++)
        depends[i] = (f->use[i] & USE_TRAINED) != 0;
    for (i = 0; i < g->n_nodes && !found; i++) {
        const struct graph_node *n = &g->nodes[i];
        bool any = false;

        for (k = 0; k < n->n_in; k++)
            any = any || (n->in[k] != GRAPH_NONE && depends[n->in[k]]);
        for (k = 0; k < n->n_out; k++)
            if (n->out[k] != GRAPH_NONE)
                depends[n->out[k]] = any && !n->stops_gradient;
        found = any && n->proto < g->file.model->graph->n_node && differs(g, n, depends, &cut);
    }
    arena_fini(&mem);
    if (!found)
        return 0;
    if (cut.merged.n > 0)
        return refuse(f, err,
                      arena_printf(&f->g->mem,
                                   "%s '%s' reads '%.*s' of the module, which the exporter merged with an equal "
                                   "node: they may have read different parameters of equal values, or a detach() "
                                   "that the exporter removed; %s",
                                   cut.node->def->name, cut.node->name, (int)cut.merged.n, cut.merged.at,
                                   remedy));
    return refuse(f, err,
                  arena_printf(&f->g->mem,
                               "%s '%s' reads a tensor that the module detaches, and the exporter removed the "
                               "detach(): the gradient would flow where the module stops it; %s",
                               cut.node->def->name, cut.node->name, remedy));
}

static int ask_unclear(struct finder *f, struct err *err)
{
    struct buf names = { 0 };
    uint32_t n = 0, i;
    const struct graph_classified *first = NULL;
    char shape[192];
    const char *text;

    for (i = 0; i < f->g->report.classified.n; i++) {
        const struct graph_classified *t = &f->g->report.classified.at[i];

        if (t->classification != GRAPH_IS_REFUSED)
            continue;
        if (n++ == 0)
            first = t;
        if (n <= LISTED) {
            buf_str(&names, n > 1 ? ", " : "");
            buf_json(&names, t->name);
        }
    }
    if (n == 0)
        return 0;
    text = names.failed
               ? NULL
               : arena_printf(&f->g->mem,
                              "%" PRIu32 " tensor%s (first '%s' %s: %s) may be parameters that train or constants "
                              "of the formula (a table of positions, a mask, a normalisation of the input), and "
                              "the file does not state which; decide with a line in \"model\" of the job: "
                              "\"trainable\": [%s]  for parameters, or  \"frozen\": [%s]  for constants",
                              n, n == 1 ? "" : "s", first->name,
                              shape_print(&first->shape, shape, sizeof(shape)), first->reason,
                              names.data, names.data);
    buf_fini(&names);
    return refuse(f, err, text);
}

int classify_finish(struct finder *f, struct err *err)
{
    const struct patterns frozen = frozen_of(f), trainable = trainable_of(f);
    int rc = f->g->file.metadata.has_signature ? check_lost(f, err) : 0;

    if (rc == 0)
        rc = ask_unclear(f, err);
    if (rc == 0 && f->g->file.metadata.has_signature)
        rc = check_detach(f, err);
    if (rc == 0)
        rc = check_patterns(f, &trainable, "trainable", err);
    return rc == 0 ? check_patterns(f, &frozen, "frozen", err) : rc;
}
