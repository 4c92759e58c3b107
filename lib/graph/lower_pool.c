/* lower_pool.c - lowers pools with more than three spatial axes, in the form in which jax2onnx
 * writes a window over [batch, rows, columns, channels]: kernel [1, 2, 2, 1]. An axis with kernel
 * 1, stride 1 and no padding is not pooled, so it is moved next to the channels and merged with
 * them; a pool of at most three axes remains. */
#include "graph/plan_lower.h"

#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "op/window.h"

enum { FIRST = 2, /* first spatial axis */ LISTS = 4 };

/* Attributes with one number per axis; `pads` has two. */
static const char *const lists[LISTS] = { "kernel_shape", "strides", "dilations", "pads" };

struct wide_pool {
    struct lowering *l;
    uint32_t rank, n_kept;
    int64_t kept[TENSOR_MAX_RANK]; /* pooled axes, ascending */
    int64_t perm[TENSOR_MAX_RANK]; /* n, c, axes that are not pooled, pooled axes */
    const int64_t *list[LISTS];   /* NULL: absent */
};

bool plan_is_wide_pool(const struct plan_builder *b, const struct graph_node *from)
{
    const char *op = from->def->name;

    if (from->def->domain != NULL || from->n_in < 1 || from->in[0] == GRAPH_NONE)
        return false;
    if (strcmp(op, "MaxPool") != 0 && strcmp(op, "AveragePool") != 0 && strcmp(op, "LpPool") != 0)
        return false;
    return b->p->values.at[b->map[from->in[0]]].tensor.shape.rank > OP_SPATIAL_MAX + FIRST;
}

static void read_lists(struct wide_pool *w)
{
    struct lowering *l = w->l;
    uint32_t k, space = w->rank - FIRST;
    size_t n;

    for (k = 0; k < LISTS && l->rc == 0; k++) {
        size_t wanted = strcmp(lists[k], "pads") == 0 ? 2 * space : space;

        l->rc = op_attr_ints(&l->attrs, lists[k], &w->list[k], &n, l->err);
        if (l->rc < 0)
            return;
        if (n == 0)
            w->list[k] = NULL;
        else if (n != wanted)
            LOWER_ERROR(l, ERR_INPUT, "%s has %zu numbers; expected %zu for %u spatial axes",
                        lists[k], n, wanted, space);
    }
    if (l->rc == 0 && w->list[0] == NULL)
        LOWER_ERROR(l, ERR_INPUT, "kernel_shape is absent");
}

static bool is_pooled(const struct wide_pool *w, uint32_t axis)
{
    uint32_t k = axis - FIRST, space = w->rank - FIRST;

    return w->list[0][k] != 1 || (w->list[1] != NULL && w->list[1][k] != 1) ||
           (w->list[3] != NULL && (w->list[3][k] != 0 || w->list[3][space + k] != 0));
}

static void sort_axes(struct wide_pool *w)
{
    uint32_t axis, n = FIRST;

    w->perm[0] = 0;
    w->perm[1] = 1;
    for (axis = FIRST; axis < w->rank; axis++) {
        if (is_pooled(w, axis))
            w->kept[w->n_kept++] = axis;
        else
            w->perm[n++] = axis;
    }
    if (w->n_kept == 0) { /* no axis is pooled: one axis remains */
        w->kept[w->n_kept++] = w->rank - 1;
        n--;
    }
    memcpy(w->perm + n, w->kept, w->n_kept * sizeof(*w->kept));
    if (w->n_kept > OP_SPATIAL_MAX)
        LOWER_ERROR(w->l, ERR_UNSUPPORTED, "pools %u spatial axes; expected at most %d", w->n_kept,
                    OP_SPATIAL_MAX);
}

/* The pool over the axes in `kept`. */
static uint32_t narrow_pool(struct wide_pool *w, uint32_t x)
{
    struct lowering *l = w->l;
    struct lower_node n = { .domain = NULL, .op = l->from->def->name, .n_in = 1, .in = { x } };
    uint32_t i, k, space = w->rank - FIRST;

    for (i = 0; i < l->from->n_attrs && n.n_attrs < LOWER_MAX_ATTRS; i++) {
        struct op_attr *a = &n.attrs[n.n_attrs++];
        int64_t numbers[2 * OP_SPATIAL_MAX];

        *a = l->from->attrs[i];
        if (a->type != OP_ATTR_INTS)
            continue;
        for (k = 0; k < w->n_kept; k++) {
            numbers[k] = a->ints[w->kept[k] - FIRST];
            if (a->n == 2 * space)
                numbers[w->n_kept + k] = a->ints[space + w->kept[k] - FIRST];
        }
        a->n = a->n == 2 * space ? 2 * w->n_kept : w->n_kept;
        a->ints = lower_ints(l, numbers, a->n);
    }
    return lower_add(l, &n);
}

void lower_wide_pool(struct lowering *l)
{
    struct wide_pool w = { .l = l };
    struct shape moved, merged = { .rank = FIRST };
    int64_t back[TENSOR_MAX_RANK];
    uint32_t x = lower_in(l, 0), i, n;
    bool is_moved = false;

    w.rank = lower_tensor(l, x)->shape.rank;
    if (lower_is_needed(l, 1))
        LOWER_ERROR(l, ERR_UNSUPPORTED, "output 1 (Indices) of a pool over %u axes is used",
                    w.rank - FIRST);
    if (l->rc == 0)
        read_lists(&w);
    if (l->rc == 0)
        sort_axes(&w);
    if (l->rc < 0)
        return;
    for (i = 0; i < w.rank; i++) {
        is_moved = is_moved || w.perm[i] != i;
        back[w.perm[i]] = i;
    }
    if (is_moved)
        x = lower_transpose(l, x, w.perm, w.rank);
    if (l->rc < 0)
        return;
    moved = lower_tensor(l, x)->shape;
    merged.dim[0] = moved.dim[0];
    merged.dim[1] = moved.dim[1];
    n = w.rank - w.n_kept; /* number of axes before the pooled ones */
    for (i = FIRST; i < n; i++)
        merged.dim[1] *= moved.dim[i];
    for (i = n; i < w.rank; i++)
        merged.dim[merged.rank++] = moved.dim[i];
    x = narrow_pool(&w, lower_reshape(l, x, merged.dim, merged.rank));
    if (l->rc < 0)
        return;
    for (i = n; i < w.rank; i++)
        moved.dim[i] = lower_tensor(l, x)->shape.dim[FIRST + i - n];
    x = lower_reshape(l, x, moved.dim, w.rank);
    lower_out(l, 0, is_moved ? lower_transpose(l, x, back, w.rank) : x);
}
