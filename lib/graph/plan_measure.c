/* plan_measure.c - appends losses and metrics to the graph: rows of domain trainerd with the inputs
 * (tensor, target, sample weights). Several losses are summed, each with its factor. */
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/text.h"
#include "graph/plan_priv.h"

/* Rows of losses and metrics have three inputs; the rows of passes do not. */
static bool is_measure(const struct op_def *def)
{
    return def != NULL && def->domain != NULL && def->n_in.min == 3 && def->n_in.max == 3;
}

static int unknown_op(const char *role, const char *name, struct err *err)
{
    const struct op_def *const *rows;
    struct buf list = { 0 };
    size_t n, i;

    rows = op_all(&n);
    for (i = 0; i < n; i++)
        if (is_measure(rows[i]))
            buf_printf(&list, "%s%s", list.len > 0 ? ", " : "", rows[i]->name);
    (void)err_set(err, ERR_UNSUPPORTED, "%s '%s' does not exist; expected one of: %s", role, name,
                  list.data != NULL ? list.data : "none");
    buf_fini(&list);
    return ERR_UNSUPPORTED;
}

/* ---- the axis of the classes ---- */

static bool is_symbol(const Onnx__TensorShapeProto__Dimension *d)
{
    return d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM;
}

static bool is_number(const Onnx__TensorShapeProto__Dimension *d)
{
    return d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE &&
           d->dim_value >= 0; /* Paddle writes -1 for a dynamic one */
}

static bool has_same_size(const Onnx__TensorShapeProto__Dimension *a,
                          const Onnx__TensorShapeProto__Dimension *b)
{
    if (a->value_case != b->value_case)
        return false;
    return (is_symbol(a) && strcmp(a->dim_param, b->dim_param) == 0) ||
           (is_number(a) && a->dim_value == b->dim_value);
}

static bool has_dims(const Onnx__ValueInfoProto *v)
{
    return v->type != NULL && v->type->tensor_type != NULL && v->type->tensor_type->shape != NULL;
}

/* Returns whether a graph input has a dimension of this size, other than the batch: it may count positions. */
static bool is_size_of_input(const Onnx__GraphProto *p, const Onnx__TensorShapeProto__Dimension *d)
{
    size_t i, k;

    for (i = 0; i < p->n_input; i++)
        for (k = 1; has_dims(p->input[i]) && k < p->input[i]->type->tensor_type->shape->n_dim; k++)
            if (has_same_size(p->input[i]->type->tensor_type->shape->dim[k], d))
                return true;
    return false;
}

/* Returns whether the file proves that one dimension of an output counts positions and the other one classes. */
static bool are_positions_and_classes(const Onnx__GraphProto *p,
                                      const Onnx__TensorShapeProto__Dimension *positions,
                                      const Onnx__TensorShapeProto__Dimension *classes)
{
    return is_symbol(positions) && is_size_of_input(p, positions) && is_number(classes) &&
           !is_size_of_input(p, classes);
}

/* Returns the axis of the classes, 1 or -1, if the file proves it; else 0. A network has a fixed
 * number of classes: of the second and the last dimension of an output, one that has the size of an
 * input's dynamic dimension counts positions, so the other one, if it is fixed, counts classes. An
 * unknown size that no input has is no proof. If the other dimension equals a fixed dimension of an input, it may count
 * positions too (a network that selects positions), so nothing is proven. */
static int64_t proven_class_axis(const struct graph *g, uint32_t value)
{
    const Onnx__GraphProto *p = g->file.model->graph;
    uint32_t i;

    for (i = 0; i < g->io.n_outputs && i < p->n_output; i++) {
        const Onnx__TensorShapeProto__Dimension *second, *last;
        uint32_t rank = g->io.outputs[i].shape.rank;

        if (g->io.output_values[i] != value || !g->io.outputs[i].has_shape || rank < 3)
            continue;
        second = p->output[i]->type->tensor_type->shape->dim[1];
        last = p->output[i]->type->tensor_type->shape->dim[rank - 1];
        if (are_positions_and_classes(p, second, last))
            return -1;
        if (are_positions_and_classes(p, last, second))
            return 1;
    }
    return 0;
}

/* Adds the axis that the file proves to a loss or metric of classes, unless the job states it. */
static void add_class_axis(const struct plan *p, uint32_t tensor, struct plan_node *n,
                           struct op_attr *attrs)
{
    int64_t axis = op_has_attr(n->def, "class_axis") ? proven_class_axis(p->g, tensor) : 0;
    uint32_t i;

    for (i = 0; i < n->n_attrs; i++)
        if (strcmp(attrs[i].name, "class_axis") == 0)
            return;
    if (axis != 0)
        attrs[n->n_attrs++] =
            (struct op_attr){ .name = "class_axis", .type = OP_ATTR_INT, .i = axis };
}

/* ---- losses and metrics ---- */

/* Copies attributes, because infer may keep pointers to them. */
static int copy_attrs(struct plan *p, const struct plan_measure *m, uint32_t tensor,
                      struct plan_node *n, struct err *err)
{
    struct op_attr *attrs = arena_array(&p->mem, (size_t)m->n_attrs + 1, sizeof(*attrs));
    uint32_t i;

    if (attrs == NULL)
        return plan_no_memory(err);
    for (i = 0; i < m->n_attrs; i++) {
        float *floats = arena_array(&p->mem, m->attrs[i].n, sizeof(*floats));

        attrs[i] = m->attrs[i];
        attrs[i].name = arena_strdup(&p->mem, m->attrs[i].name);
        CHECK(attrs[i].type == OP_ATTR_FLOAT || attrs[i].type == OP_ATTR_INT ||
              attrs[i].type == OP_ATTR_FLOATS);
        if (floats == NULL || attrs[i].name == NULL)
            return plan_no_memory(err);
        if (attrs[i].n > 0)
            memcpy(floats, m->attrs[i].floats, attrs[i].n * sizeof(*floats));
        attrs[i].floats = floats;
    }
    n->attrs = attrs;
    n->n_attrs = m->n_attrs;
    add_class_axis(p, tensor, n, attrs);
    return 0;
}

/* Appends a loss or a metric; *out receives its two outputs. */
static int add_measure(struct plan_builder *b, const char *role, const struct plan_measure *m,
                       struct plan_sums *out, struct err *err)
{
    struct plan *p = b->p;
    struct plan_node n = {
        .def = op_find("trainerd", m->op, 1), .name = role, .n_in = 3, .n_out = 2
    };
    const char *names[] = { role, "(weight)" };
    uint32_t tensor;
    int rc;

    if (!is_measure(n.def))
        return unknown_op(role, m->op, err);
    if (m->tensor == NULL)
        return err_set(err, ERR_INPUT, "%s '%s' needs the name of a tensor", role, m->op);
    if (m->target >= b->opts->n_targets)
        return err_set(err, ERR_INPUT, "%s '%s' needs labels, but there are none", role, m->op);
    rc = plan_find_tensor(p->g, m->tensor, role, &tensor, err);
    if (rc == 0 && p->purpose == PLAN_TRAIN)
        rc = plan_warn_scores(p, m, tensor, err);
    if (rc == 0)
        rc = copy_attrs(p, m, tensor, &n, err);
    if (rc < 0)
        return rc;
    n.in = arena_array(&p->mem, 3, sizeof(*n.in));
    if (n.in == NULL)
        return plan_no_memory(err);
    n.in[0] = b->map[tensor];
    n.in[1] = p->inputs.values[b->opts->n_feeds + m->target];
    n.in[2] = p->inputs.values[b->opts->n_feeds + b->opts->n_targets];
    rc = plan_add_node(p, &n, names, err);
    if (rc < 0)
        return rc;
    *out = (struct plan_sums){ .value = n.out[0], .weight = n.out[1] };
    return 0;
}

/* Appends a row of domain trainerd that sums any number of values, each with a factor. */
static int add_sum(struct plan_builder *b, const char *op, uint32_t *in, uint32_t n_in,
                   const float *factors, uint32_t *out, struct err *err)
{
    struct plan *p = b->p;
    struct op_attr *attr = arena_alloc(&p->mem, sizeof(*attr));
    struct plan_node n = {
        .def = op_find("trainerd", op, 1), .name = "loss", .attrs = attr, .n_in = n_in, .n_out = 1
    };
    const char *names[] = { "loss" };
    int rc;

    CHECK(n.def != NULL);
    if (attr == NULL)
        return plan_no_memory(err);
    *attr =
        (struct op_attr){ .name = "factors", .type = OP_ATTR_FLOATS, .floats = factors, .n = n_in };
    n.n_attrs = factors != NULL ? 1 : 0;
    n.in = in;
    rc = plan_add_node(p, &n, names, err);
    if (rc == 0)
        *out = n.out[0];
    return rc;
}

/* Appends a loss that the graph computes as a scalar. */
static int add_own_loss(struct plan_builder *b, const struct plan_measure *m, struct plan_sums *out,
                        struct err *err)
{
    struct plan *p = b->p;
    uint32_t *in = arena_array(&p->mem, 2, sizeof(*in)), tensor;
    int rc;

    if (in == NULL)
        return plan_no_memory(err);
    if (m->tensor == NULL)
        return err_set(err, ERR_INPUT, "a loss of the graph itself needs the name of a tensor");
    rc = plan_find_tensor(p->g, m->tensor, "loss", &tensor, err);
    if (rc < 0)
        return rc;
    in[0] = b->map[tensor];
    in[1] = p->inputs.values[b->opts->n_feeds + b->opts->n_targets];
    *out = (struct plan_sums){ .weight = GRAPH_NONE };
    return add_sum(b, "MeanLoss", in, 2, NULL, &out->value, err);
}

static int add_losses(struct plan_builder *b, struct err *err)
{
    const struct plan_opts *o = b->opts;
    struct plan *p = b->p;
    uint32_t *parts = arena_array(&p->mem, o->n_losses, sizeof(*parts)), i;
    float *factors = arena_array(&p->mem, o->n_losses, sizeof(*factors));
    int rc = 0;

    if (parts == NULL || factors == NULL)
        return plan_no_memory(err);
    for (i = 0; i < o->n_losses && rc == 0; i++) {
        const struct plan_measure *m = &o->losses[i];
        struct plan_sums sums;

        rc = m->op != NULL ? add_measure(b, "loss", m, &sums, err) : add_own_loss(b, m, &sums, err);
        if (rc < 0)
            return rc;
        parts[i] = p->loss.value = sums.value;
        factors[i] = m->weight != 0 ? m->weight : 1.0f;
        p->loss.weight = o->n_losses == 1 ? sums.weight : GRAPH_NONE;
    }
    if (o->n_losses == 0 || (o->n_losses == 1 && factors[0] == 1.0f))
        return 0;
    return add_sum(b, "WeightedSum", parts, o->n_losses, factors, &p->loss.value, err);
}

static int sum_outputs(struct plan_builder *b, struct err *err)
{
    struct plan *p = b->p;
    const struct graph *g = p->g;
    uint32_t *in = arena_array(&p->mem, g->io.n_outputs, sizeof(*in)), n = 0, i;

    if (in == NULL)
        return plan_no_memory(err);
    for (i = 0; i < g->io.n_outputs; i++) {
        uint32_t value = b->map[g->io.output_values[i]];

        if (p->values.at[value].tensor.dtype == TENSOR_F32)
            in[n++] = value;
    }
    if (n == 0)
        return p->purpose == PLAN_RUN
                   ? 0
                   : err_set(err, ERR_INPUT, "the model has no float32 output to sum up");
    return add_sum(b, "WeightedSum", in, n, NULL, &p->loss.value, err);
}

int plan_measures(struct plan_builder *b, struct err *err)
{
    const struct plan_opts *o = b->opts;
    struct plan *p = b->p;
    uint32_t n_metrics = p->purpose == PLAN_EVAL ? o->n_metrics : 0, i;
    int rc;

    if (o->n_losses == 0 && !o->sum_outputs && p->purpose == PLAN_TRAIN)
        return err_set(err, ERR_INPUT, "training needs a loss");
    CHECK(o->n_losses == 0 || !o->sum_outputs);
    rc = o->sum_outputs ? sum_outputs(b, err) : add_losses(b, err);
    p->metrics = arena_array(&p->mem, n_metrics, sizeof(*p->metrics));
    if (p->metrics == NULL)
        return plan_no_memory(err);
    for (i = 0; i < n_metrics && rc == 0; i++)
        rc = add_measure(b, "metric", &o->metrics[i], &p->metrics[i], err);
    p->n_metrics = n_metrics;
    return rc;
}
