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
 * nodes of the iterations then have no reader and are removed.
 *
 * With padding_idx a bag is Reduce(Gather(x, positions)), where a selection has the ids of the positions
 * (plan_padded_bags.c). The rows of the padding are replaced before the reduction, in x [n, w, ...]:
 *
 *     sum    ReduceSum(Where(ids = padding, 0, x), 1)
 *     mean   that sum, divided by the number of rows that are no padding; a bag of padding alone is 0
 *     max    ReduceMax(Where(ids = padding, -FLT_MAX, x), 1); a bag of padding alone is 0 */
#include <float.h>
#include <string.h>

#include "base/err.h"
#include "graph/plan_priv.h"

struct bag {
    uint32_t rows;          /* the sliced value */
    uint32_t table;         /* the gathered value; GRAPH_NONE: the rows themselves are sliced */
    const char *reduction;  /* "ReduceSum", "ReduceMean", "ReduceMax" */
    const struct plan_selection *selection; /* NULL: the bag has no padding */
    int64_t first, end;     /* range of the slice */
};

/* NULL: the value is no selection. */
static const struct plan_selection *selection_of(const struct plan *p, uint32_t positions)
{
    for (size_t i = p->building.selections.n; i-- > 0;)
        if (p->building.selections.at[i].positions == positions)
            return &p->building.selections.at[i];
    return NULL;
}

/* The node that computes a value, if it is this op of ONNX with output 0; else NULL. */
static const struct plan_node *made_by(const struct plan *p, uint32_t value, const char *op)
{
    const struct plan_node *n;

    if (value == GRAPH_NONE || p->values.at[value].kind != PLAN_MADE)
        return NULL;
    n = &p->nodes.at[p->values.at[value].index];
    return op_is_onnx(n->def, op) && n->out[0] == value ? n : NULL;
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
    b->selection = NULL;
    gather = made_by(p, n->in[0], "Gather");
    if (gather != NULL && (b->selection = selection_of(p, gather->in[1])) != NULL) {
        b->rows = gather->in[0];
        b->first = b->selection->first;
        b->end = b->selection->end;
        return divisor == 0;
    }
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

static bool are_alike(const struct plan_selection *a, const struct plan_selection *b)
{
    return a == NULL || b == NULL
               ? a == b
               : a->ids == b->ids && a->padding == b->padding && a->from_end == b->from_end;
}

/* Returns whether all bags have one kind and size, are in order, and cover all rows. */
static bool are_bags(const struct plan *p, const uint32_t *items, uint32_t n, struct bag *b)
{
    struct bag other;
    int64_t width;
    uint32_t i;

    if (!read_bag(p, items[0], b) || b->first != 0 || (n < 2 && b->selection == NULL))
        return false;
    width = b->end;
    if (p->values.at[b->rows].tensor.shape.rank >= TENSOR_MAX_RANK ||
        p->values.at[b->rows].tensor.shape.dim[0] != width * (int64_t)n)
        return false;
    for (i = 1; i < n; i++)
        if (!read_bag(p, items[i], &other) || other.rows != b->rows || other.table != b->table ||
            strcmp(other.reduction, b->reduction) != 0 || other.first != (int64_t)i * width ||
            other.end != other.first + width || !are_alike(other.selection, b->selection))
            return false;
    return b->selection == NULL ||
           (p->values.at[b->rows].tensor.dtype == TENSOR_F32 &&
            p->values.at[b->selection->ids].tensor.shape.dim[0] == width * (int64_t)n);
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

/* Reduces axis 1, without that axis. The axes of a reduction are an input, and in earlier opsets an attribute. */
static int reduce_axis_1(struct plan *p, const char *name, const char *op, uint32_t x,
                         uint32_t *out, struct err *err)
{
    static const int64_t one = 1;
    const struct op_attr attrs[] = { { .name = "keepdims", .type = OP_ATTR_INT, .i = 0 },
                                     { .name = "axes", .type = OP_ATTR_INTS, .ints = &one, .n = 1 } };
    bool has_input = p->g->opset >= (strcmp(op, "ReduceSum") == 0 ? 13 : 18);
    uint32_t in[2] = { x, GRAPH_NONE };

    if (has_input && (in[1] = plan_add_ints(p, "(axes)", &one, 1)) == GRAPH_NONE)
        return plan_no_memory(err);
    return plan_add_op(p, op, name, attrs, has_input ? 1 : 2, in, has_input ? 2 : 1, out, 1, err);
}

/* ---- bags with padding ---- */

/* Adds nodes to a plan; after a failure the calls do nothing. */
struct adder {
    struct plan *p;
    const char *name;
    struct err *err;
    int rc;
};

static uint32_t add(struct adder *a, const char *op, const struct op_attr *attr, uint32_t x,
                    uint32_t y, uint32_t z)
{
    const uint32_t in[3] = { x, y, z };
    uint32_t out = GRAPH_NONE, n = z != GRAPH_NONE ? 3 : y != GRAPH_NONE ? 2 : 1;

    if (a->rc == 0)
        a->rc = plan_add_op(a->p, op, a->name, attr, attr != NULL, in, n, &out, 1, a->err);
    return out;
}

static uint32_t add_constant(struct adder *a, const struct tensor *t)
{
    uint32_t value = a->rc == 0 ? plan_add_value(a->p, "(padding)", PLAN_CONST, 0, t) : GRAPH_NONE;

    if (a->rc == 0 && value == GRAPH_NONE)
        a->rc = plan_no_memory(a->err);
    return value;
}

static uint32_t add_float(struct adder *a, const float *x)
{
    return add_constant(a, &(struct tensor){ .dtype = TENSOR_F32, .data = (void *)x });
}

static uint32_t add_int(struct adder *a, const int64_t *x)
{
    return add_constant(a, &(struct tensor){ .dtype = TENSOR_I64, .data = (void *)x });
}

static uint32_t add_reduction(struct adder *a, const char *op, uint32_t x)
{
    uint32_t out = GRAPH_NONE;

    if (a->rc == 0)
        a->rc = reduce_axis_1(a->p, a->name, op, x, &out, a->err);
    return out;
}

/* Returns whether each id is the padding: [n w] -> [n, w, 1, ...], of the rank of the rows [n, w, ...]. */
static uint32_t add_mask(struct adder *a, const struct plan_selection *s, uint32_t n, uint32_t rank)
{
    int64_t dim[TENSOR_MAX_RANK] = { n, (int64_t)(s->end - s->first) };
    uint32_t shape, ids, mask;

    for (uint32_t i = 2; i < rank; i++)
        dim[i] = 1;
    shape = plan_add_ints(a->p, "(shape)", dim, rank);
    if (shape == GRAPH_NONE)
        a->rc = plan_no_memory(a->err);
    ids = add(a, "Reshape", NULL, s->ids, shape, GRAPH_NONE);
    mask = add(a, "Equal", NULL, ids, add_int(a, &s->padding), GRAPH_NONE);
    return add(a, "Or", NULL, mask,
               add(a, "Equal", NULL, ids, add_int(a, &s->from_end), GRAPH_NONE), GRAPH_NONE);
}

/* x [n, w, ...]: the rows of the bags. */
static int reduce_padded(struct plan *p, const char *name, const struct bag *b, uint32_t n,
                         uint32_t x, uint32_t *out, struct err *err)
{
    static const float zero = 0, one = 1, least = -FLT_MAX, half = 0.5f;
    struct adder a = { .p = p, .name = name, .err = err };
    bool is_max = strcmp(b->reduction, "ReduceMax") == 0;
    uint32_t mask = add_mask(&a, b->selection, n, p->values.at[x].tensor.shape.rank), count, result;

    x = add(&a, "Where", NULL, mask, add_float(&a, is_max ? &least : &zero), x);
    result = add_reduction(&a, is_max ? "ReduceMax" : "ReduceSum", x);
    if (a.rc == 0 && strcmp(b->reduction, "ReduceSum") != 0) {
        count =
            add_reduction(&a, "ReduceSum",
                          add(&a, "Where", NULL, mask, add_float(&a, &zero), add_float(&a, &one)));
        if (is_max)
            result = add(&a, "Where", NULL,
                         add(&a, "Less", NULL, count, add_float(&a, &half), GRAPH_NONE),
                         add_float(&a, &zero), result);
        else
            result = add(&a, "Div", NULL, result,
                         add(&a, "Max", NULL, count, add_float(&a, &one), GRAPH_NONE), GRAPH_NONE);
    }
    if (a.rc == 0)
        *out = result;
    return a.rc;
}

/* ---- all bags ---- */

int plan_embedding_bags(struct plan *p, const char *name, const uint32_t *items, uint32_t n,
                        bool stacks, uint32_t *out, bool *done, struct err *err)
{
    struct bag b;
    uint32_t value, in[2];
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
    if (rc == 0)
        rc = b.selection != NULL ? reduce_padded(p, name, &b, n, value, out, err)
                                 : reduce_axis_1(p, name, b.reduction, value, out, err);
    *done = rc == 0;
    return rc;
}

int plan_check_selections(const struct plan *p, struct err *err)
{
    for (size_t i = 0; i < p->nodes.n && p->building.selections.n > 0; i++)
        for (uint32_t k = 0; k < p->nodes.at[i].n_in; k++) {
            const struct plan_selection *s = selection_of(p, p->nodes.at[i].in[k]);

            if (s != NULL)
                return err_set(err, ERR_UNSUPPORTED,
                               "Loop '%s': an EmbeddingBag with padding_idx whose bags are not all of one size, or that "
                               "is computed in another way than PyTorch's exporter writes: use nn.Embedding, and "
                               "multiply its rows by a mask before the sum",
                               s->name);
        }
    return 0;
}
