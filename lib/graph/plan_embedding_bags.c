/* plan_embedding_bags.c - converts the EmbeddingBag loops of exporters to one reduction.
 *
 * An exporter writes EmbeddingBag as a Loop over the bags: each iteration slices its rows from the
 * gathered ones (or its indices, and gathers these) and reduces them along axis 0; the results are
 * concatenated. Expanded, that is three nodes per bag. If all bags have one size and cover the rows
 * in order, they equal a Reshape to [bags, size, ...] and one reduction of axis 1:
 *
 *     Reduce(Slice(x, i w, (i + 1) w))          ->  Reduce(Reshape(x, [n, w, ...]), 1)
 *     Reduce(Gather(t, Slice(x, i w, ...)))     ->  Reduce(Gather(t, Reshape(x, [n, w])), 1)
 *
 * ReduceSum divided by the constant w is ReduceMean: exporters write the last bag in this form. The
 * nodes of the iterations then have no reader and are removed. */
#include <string.h>

#include "base/err.h"
#include "graph/plan_priv.h"

struct bag {
    uint32_t rows;          /* the sliced value */
    uint32_t table;         /* the gathered value; GRAPH_NONE: the rows themselves are sliced */
    const char *reduction;  /* "ReduceSum", "ReduceMean", "ReduceMax" */
    int64_t first, end;     /* range of the slice */
};

/* The node that computes a value, if it is this op of ONNX with output 0; else NULL. */
static const struct plan_node *made_by(const struct plan *p, uint32_t value, const char *op)
{
    const struct plan_node *n;

    if (value == GRAPH_NONE || p->values.at[value].kind != PLAN_MADE)
        return NULL;
    n = &p->nodes.at[p->values.at[value].index];
    return n->def->domain == NULL && strcmp(n->def->name, op) == 0 && n->out[0] == value ? n : NULL;
}

/* Reads the single integer of input i. Returns false if it is absent, not known, or several. */
static bool one_int(const struct plan *p, const struct plan_node *n, uint32_t i, int64_t *out)
{
    const struct plan_value *v;

    if (i >= n->n_in || n->in[i] == GRAPH_NONE)
        return false;
    v = &p->values.at[n->in[i]];
    if (v->kind != PLAN_CONST || tensor_elements(&v->tensor) != 1)
        return false;
    if (v->tensor.dtype == TENSOR_I64)
        *out = *(const int64_t *)v->tensor.data;
    else if (v->tensor.dtype == TENSOR_I32)
        *out = *(const int32_t *)v->tensor.data;
    else
        return false;
    return true;
}

static bool reduces_axis_0(const struct plan *p, const struct plan_node *n)
{
    int64_t axis = -1;
    uint32_t i;

    if (one_int(p, n, 1, &axis))
        return axis == 0;
    for (i = 0; i < n->n_attrs && n->n_in == 1; i++)
        if (strcmp(n->attrs[i].name, "axes") == 0 && n->attrs[i].n == 1 && n->attrs[i].ints != NULL)
            return n->attrs[i].ints[0] == 0;
    return false;
}

/* Matches a slice start .. end of axis 0 in steps of 1. */
static bool read_slice(const struct plan *p, uint32_t value, struct bag *b)
{
    const struct plan_node *n = made_by(p, value, "Slice");
    int64_t axis = 0, step = 1, size;

    if (n == NULL || !one_int(p, n, 1, &b->first) || !one_int(p, n, 2, &b->end) ||
        (n->n_in > 3 && n->in[3] != GRAPH_NONE && !one_int(p, n, 3, &axis)) ||
        (n->n_in > 4 && n->in[4] != GRAPH_NONE && !one_int(p, n, 4, &step)) || axis != 0 ||
        step != 1)
        return false;
    b->rows = n->in[0];
    size = p->values.at[b->rows].tensor.shape.dim[0];
    b->end = b->end > size ? size : b->end;
    return b->first >= 0 && b->end > b->first;
}

/* For value / c with a constant c: returns the dividend and sets *divisor to c. Otherwise returns
 * value and sets *divisor to 0. */
static uint32_t dividend_of(const struct plan *p, uint32_t value, float *divisor)
{
    const struct plan_node *n = made_by(p, value, "Div");
    const struct plan_value *v;

    *divisor = 0;
    if (n == NULL)
        return value;
    v = &p->values.at[n->in[1]];
    if (v->kind != PLAN_CONST || v->tensor.dtype != TENSOR_F32 || tensor_elements(&v->tensor) != 1)
        return value;
    *divisor = *(const float *)v->tensor.data;
    return n->in[0];
}

static bool read_bag(const struct plan *p, uint32_t value, struct bag *b)
{
    static const char *const reductions[] = { "ReduceSum", "ReduceMean", "ReduceMax" };
    const struct plan_node *n = NULL, *gather;
    float divisor;
    int i;

    value = dividend_of(p, value, &divisor);
    for (i = 0; i < 3 && n == NULL; i++) {
        n = made_by(p, value, reductions[i]);
        b->reduction = reductions[i];
    }
    if (n == NULL || !reduces_axis_0(p, n))
        return false;
    b->table = GRAPH_NONE;
    gather = made_by(p, n->in[0], "Gather");
    if (gather != NULL) {
        for (i = 0; i < (int)gather->n_attrs; i++)
            if (strcmp(gather->attrs[i].name, "axis") == 0 && gather->attrs[i].i != 0)
                return false;
        if (p->values.at[gather->in[1]].tensor.shape.rank != 1)
            return false;
        b->table = gather->in[0];
    }
    if (!read_slice(p, gather != NULL ? gather->in[1] : n->in[0], b))
        return false;
    if (divisor != 0) {
        if (strcmp(b->reduction, "ReduceSum") != 0 || divisor != (float)(b->end - b->first))
            return false;
        b->reduction = "ReduceMean";
    }
    return true;
}

/* Returns whether all bags have one kind and size, are in order, and cover all rows. */
static bool are_bags(const struct plan *p, const uint32_t *items, uint32_t n, struct bag *b)
{
    struct bag other;
    int64_t width;
    uint32_t i;

    if (n < 2 || !read_bag(p, items[0], b) || b->first != 0)
        return false;
    width = b->end;
    if (p->values.at[b->rows].tensor.shape.rank >= TENSOR_MAX_RANK ||
        p->values.at[b->rows].tensor.shape.dim[0] != width * (int64_t)n)
        return false;
    for (i = 1; i < n; i++)
        if (!read_bag(p, items[i], &other) || other.rows != b->rows || other.table != b->table ||
            strcmp(other.reduction, b->reduction) != 0 || other.first != (int64_t)i * width ||
            other.end != other.first + width)
            return false;
    return true;
}

/* [n w, ...] -> [n, w, ...] */
static int reshape_rows(struct plan *p, const char *name, uint32_t n, uint32_t *value,
                        struct err *err)
{
    const struct shape s = p->values.at[*value].tensor.shape;
    int64_t dim[TENSOR_MAX_RANK];
    uint32_t in[2] = { *value, GRAPH_NONE };

    dim[0] = n;
    dim[1] = s.dim[0] / n;
    memcpy(dim + 2, s.dim + 1, (s.rank - 1) * sizeof(*dim));
    in[1] = plan_add_ints(p, "(shape)", dim, s.rank + 1);
    return in[1] != GRAPH_NONE ? plan_add_op(p, "Reshape", name, NULL, 0, in, 2, value, 1, err)
                               : plan_no_memory(err);
}

int plan_embedding_bags(struct plan *p, const char *name, const uint32_t *items, uint32_t n,
                        bool stacks, uint32_t *out, bool *done, struct err *err)
{
    static const int64_t one = 1;
    struct op_attr attrs[] = { { .name = "keepdims", .type = OP_ATTR_INT, .i = 0 },
                               { .name = "axes", .type = OP_ATTR_INTS, .ints = &one, .n = 1 } };
    struct bag b;
    uint32_t value, in[2];
    bool has_input;
    int rc;

    *done = false;
    if (!are_bags(p, items, n, &b))
        return 0;
    /* Concatenated items are [1, ...], stacked ones [...]: the result is [n, ...] in both cases. */
    if (p->values.at[items[0]].tensor.shape.rank + stacks !=
        p->values.at[b.table != GRAPH_NONE ? b.table : b.rows].tensor.shape.rank)
        return 0;
    value = b.rows;
    rc = reshape_rows(p, name, n, &value, err);
    if (rc == 0 && b.table != GRAPH_NONE) {
        in[0] = b.table;
        in[1] = value;
        rc = plan_add_op(p, "Gather", name, NULL, 0, in, 2, &value, 1, err);
    }
    if (rc < 0)
        return rc;
    has_input = p->g->opset >= (strcmp(b.reduction, "ReduceSum") == 0 ? 13 : 18);
    in[0] = value;
    if (has_input && (in[1] = plan_add_ints(p, "(axes)", &one, 1)) == GRAPH_NONE)
        return plan_no_memory(err);
    rc = plan_add_op(p, b.reduction, name, attrs, has_input ? 1 : 2, in, has_input ? 2 : 1, out, 1,
                     err);
    *done = rc == 0;
    return rc;
}
