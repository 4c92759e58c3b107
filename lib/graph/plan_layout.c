/* plan_layout.c - selects plain or channels-last layout for each value.
 *
 * Convolutions and related ops require channels-last, element-wise ops accept both, and the others
 * require plain. Nodes are visited in order. Where the layout of an input differs from the required
 * one, a `Reorder` node is inserted, once per value, for all its readers. If both layouts have the
 * same bytes (one channel, or one pixel), that Reorder is a view and has no cost. */
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "graph/plan_priv.h"

bool plan_layout_matters(const struct shape *s)
{
    int64_t pixels = 1;
    uint32_t i;

    if (s->rank < 3)
        return false;
    for (i = 2; i < s->rank; i++)
        pixels *= s->dim[i];
    return s->dim[1] != 1 && pixels != 1;
}

struct layouter {
    struct plan *p;
    const struct op_def *reorder;
};

/* Replaces *value by the same value in this layout. */
static int convert_layout(struct layouter *l, uint32_t *value, enum tensor_layout layout,
                          struct err *err)
{
    struct plan *p = l->p;
    const struct plan_value *v = &p->values.at[*value];
    const char *names[] = { v->name };
    struct plan_node n = { .def = l->reorder, .name = v->name, .n_in = 1, .n_out = 1 };
    uint32_t out;
    int rc;

    if (v->tensor.shape.rank < 3 || v->tensor.layout == layout)
        return 0;
    if (v->other_layout != GRAPH_NONE) {
        *value = v->other_layout;
        return 0;
    }
    n.in = arena_alloc(&p->mem, sizeof(*n.in));
    if (n.in == NULL)
        return plan_no_memory(err);
    n.in[0] = *value;
    rc = plan_add_node(p, &n, names, err);
    if (rc < 0)
        return rc;
    out = n.out[0];
    p->values.at[out].tensor.layout = layout;
    p->values.at[out].is_half = p->values.at[*value].is_half;
    p->values.at[out].other_layout = *value;
    p->values.at[*value].other_layout = out;
    *value = out;
    return plan_fold_node(p, &n, err);
}

/* Returns whether Reorder supports the type, so that the value may have either layout. */
static bool can_reorder(const struct plan *p, const struct tensor *t)
{
    return t->dtype == TENSOR_F32 || t->dtype == TENSOR_BF16 ||
           (t->dtype == TENSOR_F16 && p->device.cuda != NULL);
}

/* The layout of an element-wise node: channels-last if an input for which layouts differ already
 * is, and no other input prevents it: a tensor of another rank has other axes at the same position,
 * and integers stay plain. */
static enum tensor_layout common_layout(const struct plan *p, const struct plan_node *n)
{
    enum tensor_layout layout = TENSOR_PLAIN;
    uint32_t rank = 0, i;

    if (n->out[0] != GRAPH_NONE && !can_reorder(p, &p->values.at[n->out[0]].tensor))
        return TENSOR_PLAIN;
    for (i = 0; i < n->n_in; i++) {
        const struct tensor *t;

        if (n->in[i] == GRAPH_NONE)
            continue;
        t = &p->values.at[n->in[i]].tensor;
        if (!plan_layout_matters(&t->shape))
            continue;
        if ((rank != 0 && rank != t->shape.rank) || !can_reorder(p, t))
            return TENSOR_PLAIN;
        rank = t->shape.rank;
        if (t->layout == TENSOR_CHANNELS_LAST)
            layout = TENSOR_CHANNELS_LAST;
    }
    return layout;
}

/* `first`: the operand is input 0 or output 0, or has the layout of input 0. */
static enum tensor_layout required_layout(const struct plan_node *n, enum tensor_layout common,
                                          bool first, const struct tensor *t)
{
    switch (n->def->layout) {
    case OP_LAYOUT_PLAIN:
        return TENSOR_PLAIN;
    case OP_LAYOUT_ANY:
        return t->shape.rank >= 3 ? common : TENSOR_PLAIN;
    case OP_LAYOUT_CHANNELS:
        return first && t->shape.rank >= 3 ? TENSOR_CHANNELS_LAST : TENSOR_PLAIN;
    }
    CHECK(!"a layout that does not exist");
    return TENSOR_PLAIN;
}

static bool same_bytes(const struct tensor *a, const struct tensor *b)
{
    return a->dtype == b->dtype && tensor_bytes(a) == tensor_bytes(b) &&
           (a->layout == b->layout || !plan_layout_matters(&a->shape));
}

static int lay_out_node(struct layouter *l, struct plan_node *n, struct err *err)
{
    struct plan *p = l->p;
    enum tensor_layout common = common_layout(p, n);
    uint32_t i;
    int rc = 0;

    for (i = 0; i < n->n_in && rc == 0; i++)
        if (n->in[i] != GRAPH_NONE)
            rc = convert_layout(
                l, &n->in[i],
                required_layout(n, common,
                                i == 0 || (n->def->channels_in & graph_input_bit(i)) != 0,
                                &p->values.at[n->in[i]].tensor),
                err);
    if (rc < 0)
        return rc;
    for (i = 0; i < n->n_out; i++) {
        struct plan_value *v;

        if (n->out[i] == GRAPH_NONE)
            continue;
        v = &p->values.at[n->out[i]];
        v->tensor.layout = required_layout(n, common, i == 0, &v->tensor);
        v->index = (uint32_t)p->nodes.n;
    }
    return VEC_PUSH(p->nodes, *n) ? 0 : plan_no_memory(err);
}

int plan_layouts(struct plan *p, struct err *err)
{
    struct layouter l = { .p = p, .reorder = op_find("trainerd", "Reorder", 1) };
    struct plan_node *old;
    size_t n = p->nodes.n, i;
    int rc = 0;

    CHECK(l.reorder != NULL);
    old = arena_array(&p->mem, n, sizeof(*old));
    if (old == NULL)
        return plan_no_memory(err);
    if (n > 0)
        memcpy(old, p->nodes.at, n * sizeof(*old));
    p->nodes.n = 0;
    for (i = 0; i < n && rc == 0; i++)
        rc = lay_out_node(&l, &old[i], err);
    for (i = 0; i < p->n_kept && rc == 0; i++) { /* the caller reads plain tensors */
        rc = convert_layout(&l, &p->kept[i].value, TENSOR_PLAIN, err);
        p->values.at[p->kept[i].value].kept = true;
    }
    for (i = 0; i < p->nodes.n; i++) {
        struct plan_node *node = &p->nodes.at[i];

        node->is_alias =
            (node->def->view || node->def == l.reorder) && node->out[0] != GRAPH_NONE &&
            node->n_out == 1 &&
            same_bytes(&p->values.at[node->in[0]].tensor, &p->values.at[node->out[0]].tensor);
    }
    return rc;
}
