/* plan_build.c - the part of the graph that a plan needs, with shapes.
 *
 * Backwards from what is asked for (logits, kept tensors, running statistics) to the nodes and
 * inputs that lead there, then forwards: feeds get their shapes, every node infers its own. A
 * node that knows all its inputs is computed here and now and leaves nothing but its result. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/text.h"
#include "graph/plan_priv.h"

struct builder {
    struct plan *p;
    const struct plan_opts *opts;
    bool *needed;        /* [g->n_values] */
    bool *node_needed;   /* [g->n_nodes] */
    uint32_t *map;       /* [g->n_values] plan's value of a graph's value */
    struct shape *feeds; /* [n_feeds] with the batch dimension */
};

/* ---- what is needed ---- */

static int find_tensor(const struct graph *g, const char *name, const char *role, uint32_t *out,
                       struct err *err)
{
    const char **names;
    const char *near;
    uint64_t id;
    uint32_t i;

    if (map_get(&g->by_name, name, &id)) {
        *out = (uint32_t)id;
        return 0;
    }
    names = calloc(g->n_values > 0 ? g->n_values : 1, sizeof(*names));
    if (names == NULL)
        return plan_no_memory(err);
    for (i = 0; i < g->n_values; i++)
        names[i] = g->values[i].name;
    near = text_nearest(name, names, g->n_values);
    if (near == NULL && g->n_outputs > 0)
        (void)err_set(err, ERR_INPUT, "%s: the model has no tensor '%s' (its output is '%s')", role,
                      name, g->outputs[0].name);
    else
        (void)err_set(err, ERR_INPUT, "%s: the model has no tensor '%s'; did you mean '%s'?", role,
                      name, near != NULL ? near : "");
    free(names);
    return ERR_INPUT;
}

static bool moves_statistic(const struct graph *g, const struct graph_node *n)
{
    uint32_t k;

    for (k = 0; k < n->n_in; k++)
        if (n->in[k] != GRAPH_NONE && g->values[n->in[k]].kind == VALUE_PARAM &&
            g->params[g->values[n->in[k]].index].kind == GRAPH_STATISTIC)
            return true;
    return false;
}

/* A statistic moves whether or not the loss depends on its node. */
static bool node_is_needed(const struct builder *b, const struct graph_node *n)
{
    uint32_t k;

    for (k = 0; k < n->n_out; k++)
        if (n->out[k] != GRAPH_NONE && b->needed[n->out[k]])
            return true;
    return b->p->purpose == PLAN_TRAIN && moves_statistic(b->p->g, n);
}

static int find_needed(struct builder *b, struct err *err)
{
    const struct graph *g = b->p->g;
    uint32_t id, i, k;
    int rc = 0;

    if (b->opts->logits != NULL) {
        rc = find_tensor(g, b->opts->logits, "logits", &id, err);
        if (rc == 0)
            b->needed[id] = true;
    }
    for (i = 0; i < b->opts->n_keep && rc == 0; i++) {
        rc = find_tensor(g, b->opts->keep[i], "keep", &id, err);
        if (rc == 0)
            b->needed[id] = true;
    }
    if (rc < 0)
        return rc;
    for (i = g->n_nodes; i-- > 0;) {
        b->node_needed[i] = node_is_needed(b, &g->nodes[i]);
        for (k = 0; b->node_needed[i] && k < g->nodes[i].n_in; k++)
            if (g->nodes[i].in[k] != GRAPH_NONE)
                b->needed[g->nodes[i].in[k]] = true;
    }
    return 0;
}

/* ---- feeds ---- */

static bool with_batch(const struct plan_feed *feed, uint32_t batch, struct shape *out)
{
    if (feed->shape.rank >= TENSOR_MAX_RANK)
        return false;
    out->rank = feed->shape.rank + 1;
    out->dim[0] = batch;
    memcpy(&out->dim[1], feed->shape.dim, feed->shape.rank * sizeof(out->dim[0]));
    return shape_elements(out) > 0;
}

static int shape_mismatch(const struct plan_feed *feed, const struct graph_io *io,
                          const struct shape *have, uint32_t batch, struct err *err)
{
    char want[192], is[192];
    uint32_t i;
    bool only_batch =
        io->shape.rank == have->rank && io->shape.dim[0] >= 0 && io->shape.dim[0] != (int64_t)batch;

    for (i = 1; only_batch && i < io->shape.rank; i++)
        only_batch = io->shape.dim[i] < 0 || io->shape.dim[i] == have->dim[i];
    shape_print(&io->shape, want, sizeof(want));
    shape_print(have, is, sizeof(is));
    if (only_batch)
        return err_set(err, ERR_INPUT,
                       "model input '%s' has shape %s: its batch is fixed at %" PRId64
                       ", but a lane has %" PRIu32
                       " samples; export the model with a dynamic batch "
                       "(dynamic_axes={'%s': {0: 'batch'}}), or give each lane %" PRId64 " samples",
                       io->name, want, io->shape.dim[0], batch, io->name, io->shape.dim[0]);
    return err_set(
        err, ERR_INPUT,
        "model input '%s' has shape %s (-1: any), but feature '%s' gives %s (batch first)",
        io->name, want, feed->source != NULL ? feed->source : feed->name, is);
}

static int check_feed(struct builder *b, uint32_t i, const struct graph_io *io, struct err *err)
{
    const struct plan_feed *feed = &b->opts->feeds[i];
    const struct shape *have = &b->feeds[i];
    const char *source = feed->source != NULL ? feed->source : feed->name;
    uint32_t k;
    bool fits;

    if (feed->dtype != io->dtype)
        return err_set(err, ERR_INPUT, "model input '%s' is %s, but feature '%s' is %s", io->name,
                       tensor_dtype_name(io->dtype), source, tensor_dtype_name(feed->dtype));
    if (io->shape.rank == 0)
        return err_set(err, ERR_INPUT, "model input '%s' is a scalar: it has no batch dimension",
                       io->name);
    fits = have->rank == io->shape.rank;
    for (k = 0; fits && k < have->rank; k++)
        fits = io->shape.dim[k] < 0 || io->shape.dim[k] == have->dim[k];
    return fits ? 0 : shape_mismatch(feed, io, have, b->opts->batch, err);
}

static int find_input(const struct graph *g, const char *name, uint32_t *out, struct err *err)
{
    struct buf list = { 0 };
    uint32_t i;

    for (i = 0; i < g->n_inputs; i++) {
        if (strcmp(g->inputs[i].name, name) == 0) {
            *out = i;
            return 0;
        }
        if (i < 8)
            buf_printf(&list, "%s'%.100s'", i > 0 ? ", " : "", g->inputs[i].name);
    }
    (void)err_set(err, ERR_INPUT, "the model has no input '%s'; its inputs are: %s", name,
                  list.data != NULL ? list.data : "none");
    buf_fini(&list);
    return ERR_INPUT;
}

static int add_input(struct builder *b, uint32_t i, const char *name, enum tensor_dtype dtype,
                     const struct shape *shape, struct err *err)
{
    struct tensor t = { .dtype = dtype, .shape = *shape };
    uint32_t id = plan_add_value(b->p, name, PLAN_FEED, i, &t);

    if (id == GRAPH_NONE)
        return plan_no_memory(err);
    b->p->input_values[i] = id;
    b->p->values.at[id].kept = true; /* forward may be run again on the same batch */
    return 0;
}

static int add_feed(struct builder *b, uint32_t i, struct err *err)
{
    const struct graph *g = b->p->g;
    const struct plan_feed *feed = &b->opts->feeds[i];
    uint32_t input, value;
    int rc = find_input(g, feed->name, &input, err);

    if (rc < 0)
        return rc;
    value = g->input_values[input];
    if (b->map[value] != GRAPH_NONE)
        return err_set(err, ERR_INPUT, "model input '%s' is fed twice", feed->name);
    if (!with_batch(feed, b->opts->batch, &b->feeds[i]))
        return err_set(err, ERR_INPUT,
                       "model input '%s': the feature's shape has no elements, or "
                       "too many dimensions",
                       feed->name);
    rc = check_feed(b, i, &g->inputs[input], err);
    if (rc == 0)
        rc = add_input(b, i, g->inputs[input].name, feed->dtype, &b->feeds[i], err);
    if (rc == 0)
        b->map[value] = b->p->input_values[i];
    return rc;
}

static int add_feeds(struct builder *b, struct err *err)
{
    const struct plan_opts *o = b->opts;
    const struct graph *g = b->p->g;
    struct shape shape = shape_of(1, (int64_t)o->batch);
    uint32_t i;
    int rc = 0;

    for (i = 0; i < o->n_feeds && rc == 0; i++)
        rc = add_feed(b, i, err);
    for (i = 0; i < g->n_inputs && rc == 0; i++)
        if (b->needed[g->input_values[i]] && b->map[g->input_values[i]] == GRAPH_NONE)
            rc = err_set(err, ERR_INPUT, "model input '%s' is not fed: name a feature for it",
                         g->inputs[i].name);
    b->p->input_values[o->n_feeds] = GRAPH_NONE;
    if (rc == 0)
        rc = add_input(b, o->n_feeds + 1, "(sample weights)", TENSOR_F32, &shape, err);
    if (rc < 0 || o->labels.name == NULL)
        return rc;
    if (!with_batch(&o->labels, o->batch, &shape))
        return err_set(err, ERR_INPUT,
                       "labels '%s': the shape has no elements, or too many "
                       "dimensions",
                       o->labels.name);
    return add_input(b, o->n_feeds, "(labels)", o->labels.dtype, &shape, err);
}

/* ---- nodes ---- */

static int add_constants(struct builder *b, struct err *err)
{
    const struct graph *g = b->p->g;
    uint32_t i;

    for (i = 0; i < g->n_values; i++) {
        const struct graph_value *v = &g->values[i];
        struct tensor t = v->tensor;

        if (!b->needed[i] || (v->kind != VALUE_CONST && v->kind != VALUE_PARAM))
            continue;
        if (v->kind == VALUE_PARAM)
            t.data = NULL; /* it changes: nothing may be decided by its values */
        b->map[i] = plan_add_value(b->p, v->name, v->kind == VALUE_PARAM ? PLAN_PARAM : PLAN_CONST,
                                   v->index, &t);
        if (b->map[i] == GRAPH_NONE)
            return plan_no_memory(err);
    }
    return 0;
}

/* Kernels count on at least one element. */
static int check_elements(const struct plan *p, const struct plan_node *n, struct err *err)
{
    char shape[192];
    uint32_t i;

    for (i = 0; i < n->n_out; i++) {
        const struct tensor *t = n->out[i] != GRAPH_NONE ? &p->values.at[n->out[i]].tensor : NULL;

        if (t != NULL && tensor_elements(t) == 0)
            return err_set(err, ERR_UNSUPPORTED,
                           "%s '%s': output %" PRIu32 " of shape %s has no "
                           "elements",
                           n->def->name, n->name, i, shape_print(&t->shape, shape, sizeof(shape)));
    }
    return 0;
}

static int add_graph_node(struct builder *b, const struct graph_node *from, struct err *err)
{
    const struct graph *g = b->p->g;
    struct plan *p = b->p;
    struct plan_node n = { .def = from->def,
                           .name = from->name,
                           .attrs = from->attrs,
                           .n_attrs = from->n_attrs,
                           .n_in = from->n_in,
                           .n_out = from->n_out,
                           .stream = from->stream };
    const char **names = arena_array(&p->mem, n.n_out, sizeof(*names));
    uint32_t i;
    int rc;

    n.in = arena_array(&p->mem, n.n_in, sizeof(*n.in));
    if (names == NULL || n.in == NULL)
        return plan_no_memory(err);
    for (i = 0; i < n.n_in; i++)
        n.in[i] = from->in[i] != GRAPH_NONE ? b->map[from->in[i]] : GRAPH_NONE;
    for (i = 0; i < n.n_out; i++)
        names[i] = from->out[i] != GRAPH_NONE ? g->values[from->out[i]].name : NULL;
    rc = plan_add_node(p, &n, names, err);
    if (rc < 0)
        return rc;
    for (i = 0; i < n.n_out; i++)
        if (from->out[i] != GRAPH_NONE)
            b->map[from->out[i]] = n.out[i];
    if (!plan_can_fold(p, &n))
        return check_elements(p, &n, err);
    p->nodes.n--; /* its result is all that stays */
    return plan_fold(p, &n, err);
}

/* ---- loss and metrics ---- */

static int unknown_op(const char *role, const char *name, struct err *err)
{
    const struct op_def *const *rows;
    struct buf list = { 0 };
    size_t n, i;

    rows = op_all(&n);
    for (i = 0; i < n; i++)
        if (rows[i]->domain != NULL && rows[i]->n_in.min == 3)
            buf_printf(&list, "%s%s", list.len > 0 ? ", " : "", rows[i]->name);
    (void)err_set(err, ERR_UNSUPPORTED, "%s '%s' does not exist; there are: %s", role, name,
                  list.data != NULL ? list.data : "none");
    buf_fini(&list);
    return ERR_UNSUPPORTED;
}

/* A loss or metric: (logits, labels, weights) -> one number. */
static int add_measure(struct builder *b, const char *role, const char *name, uint32_t logits,
                       uint32_t *out, struct err *err)
{
    struct plan *p = b->p;
    struct plan_node n = {
        .def = op_find("trainerd", name, 1), .name = role, .n_in = 3, .n_out = 1
    };
    const char *names[] = { role };
    int rc;

    if (n.def == NULL || n.def->n_in.min != 3)
        return unknown_op(role, name, err);
    if (p->input_values[b->opts->n_feeds] == GRAPH_NONE)
        return err_set(err, ERR_INPUT, "%s '%s' needs labels, and there are none", role, name);
    n.in = arena_array(&p->mem, 3, sizeof(*n.in));
    if (n.in == NULL)
        return plan_no_memory(err);
    n.in[0] = logits;
    n.in[1] = p->input_values[b->opts->n_feeds];
    n.in[2] = p->input_values[b->opts->n_feeds + 1];
    rc = plan_add_node(p, &n, names, err);
    if (rc < 0)
        return rc;
    CHECK(tensor_elements(&p->values.at[n.out[0]].tensor) == 1);
    *out = n.out[0];
    return 0;
}

static int add_measures(struct builder *b, struct err *err)
{
    const struct plan_opts *o = b->opts;
    struct plan *p = b->p;
    uint32_t n_metrics = p->purpose == PLAN_EVAL ? o->n_metrics : 0, logits, i;
    int rc = 0;

    p->loss_value = GRAPH_NONE;
    if (o->loss == NULL && p->purpose == PLAN_TRAIN)
        return err_set(err, ERR_INPUT, "training needs a loss");
    if (o->loss == NULL && n_metrics == 0)
        return 0;
    if (o->logits == NULL)
        return err_set(err, ERR_INPUT, "loss and metrics need the name of the logits");
    rc = find_tensor(p->g, o->logits, "logits", &logits, err);
    if (rc < 0)
        return rc;
    logits = b->map[logits];
    if (o->loss != NULL)
        rc = add_measure(b, "loss", o->loss, logits, &p->loss_value, err);
    p->metric_values = arena_array(&p->mem, n_metrics, sizeof(*p->metric_values));
    if (p->metric_values == NULL)
        return plan_no_memory(err);
    for (i = 0; i < n_metrics && rc == 0; i++)
        rc = add_measure(b, "metric", o->metrics[i], logits, &p->metric_values[i], err);
    p->n_metrics = n_metrics;
    return rc;
}

static int add_kept(struct builder *b, struct err *err)
{
    struct plan *p = b->p;
    uint32_t i, id;
    int rc = 0;

    p->kept = arena_array(&p->mem, b->opts->n_keep, sizeof(*p->kept));
    if (p->kept == NULL)
        return plan_no_memory(err);
    for (i = 0; i < b->opts->n_keep && rc == 0; i++) {
        rc = find_tensor(p->g, b->opts->keep[i], "keep", &id, err);
        if (rc == 0)
            p->kept[p->n_kept++] =
                (struct plan_kept){ .name = p->g->values[id].name, .value = b->map[id] };
    }
    return rc;
}

static int build(struct builder *b, struct err *err)
{
    const struct graph *g = b->p->g;
    uint32_t i;
    int rc = find_needed(b, err);

    if (rc == 0)
        rc = add_feeds(b, err);
    if (rc == 0)
        rc = add_constants(b, err);
    for (i = 0; i < g->n_nodes && rc == 0; i++)
        if (b->node_needed[i])
            rc = add_graph_node(b, &g->nodes[i], err);
    if (rc == 0)
        rc = add_measures(b, err);
    return rc == 0 ? add_kept(b, err) : rc;
}

int plan_build(struct plan *p, const struct plan_opts *opts, struct err *err)
{
    const struct graph *g = p->g;
    struct builder b = { .p = p, .opts = opts };
    struct arena mem = { 0 };
    uint32_t i;
    int rc;

    if (opts->batch == 0)
        return err_set(err, ERR_INPUT, "a lane has no samples: expected a batch of at least 1");
    p->n_inputs = opts->n_feeds + 2;
    p->input_values = arena_array(&p->mem, p->n_inputs, sizeof(*p->input_values));
    b.needed = arena_array(&mem, g->n_values, sizeof(*b.needed));
    b.map = arena_array(&mem, g->n_values, sizeof(*b.map));
    b.node_needed = arena_array(&mem, g->n_nodes, sizeof(*b.node_needed));
    b.feeds = arena_array(&mem, opts->n_feeds, sizeof(*b.feeds));
    if (p->input_values == NULL || b.needed == NULL || b.map == NULL || b.node_needed == NULL ||
        b.feeds == NULL) {
        arena_fini(&mem);
        return plan_no_memory(err);
    }
    for (i = 0; i < g->n_values; i++)
        b.map[i] = GRAPH_NONE;
    rc = build(&b, err);
    arena_fini(&mem);
    return rc;
}
