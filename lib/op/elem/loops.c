#include "op/elem/loops.h"

#include <string.h>

#include "base/check.h"
#include "op/op_priv.h"

/* Removes axes of size 1, and merges an axis into the next inner axis if its steps continue those
 * of the inner one. Returns the number of remaining axes. */
static uint32_t merge(struct elem_axis *axes, uint32_t n_axes, uint32_t n_operands)
{
    uint32_t n = 0, k, i;

    for (k = 0; k < n_axes; k++) {
        struct elem_axis next = axes[k];
        bool joins = n > 0;

        if (next.size == 1)
            continue;
        for (i = 0; i < n_operands && joins; i++)
            joins = axes[n - 1].step[i] == (ptrdiff_t)next.size * next.step[i];
        if (joins) {
            next.size *= axes[n - 1].size;
            axes[n - 1] = next;
        } else {
            axes[n++] = next;
        }
    }
    return n;
}

static bool is_dense(const struct elem_axis *axes, uint32_t n, uint32_t operand)
{
    ptrdiff_t dense = 1;

    for (; n > 0; n--) {
        if (axes[n - 1].step[operand] != dense)
            return false;
        dense *= (ptrdiff_t)axes[n - 1].size;
    }
    return true;
}

void elem_loops_from(struct elem_loops *s, struct elem_axis *axes, uint32_t n_axes,
                     const size_t *elements, uint32_t n_operands)
{
    size_t total = 1;
    uint32_t n, k;

    CHECK(n_axes <= ELEM_AXES && n_operands <= ELEM_OPERANDS);
    memset(s, 0, sizeof(*s));
    for (k = 0; k < n_axes && total > 0; k++)
        total = axes[k].size > 0 ? total : 0;
    memcpy(s->elements, elements, n_operands * sizeof(*elements));
    if (total == 0) { /* no tile, whatever the other sizes are */
        for (k = 0; k < n_operands; k++)
            s->dense[k] = elements[k] == 0;
        return;
    }
    n = merge(axes, n_axes, n_operands);
    for (k = 0; k < n_operands; k++)
        s->dense[k] = is_dense(axes, n, k);
    for (k = 0; k < n; k++)
        total *= axes[k].size;
    s->total = total;
    s->tile.n = n > 0 ? axes[n - 1].size : 1;
    s->tile.rows = n > 1 ? axes[n - 2].size : 1;
    for (k = 0; k < n_operands; k++) {
        s->tile.at[k].step = n > 0 ? axes[n - 1].step[k] : 1; /* 1: a single element is dense */
        s->tile.at[k].row = n > 1 ? axes[n - 2].step[k] : 0;
    }
    s->n_outer = n > 2 ? n - 2 : 0;
    memcpy(s->outer, axes, s->n_outer * sizeof(*axes));
}

/* Computes the steps of an operand along the axes of the dense tensor. */
static void operand_steps(const struct elem_operand *o, uint32_t dense_rank, ptrdiff_t *step)
{
    ptrdiff_t own[TENSOR_MAX_RANK];
    uint32_t rank = o->t->shape.rank, k;

    op_strides(o->t, own);
    for (k = 0; k < dense_rank; k++)
        step[k] = 0;
    for (k = 0; k < rank; k++)
        if (o->t->shape.dim[k] != 1)
            step[o->axis != NULL ? o->axis[k] : dense_rank - rank + k] = own[k];
}

void elem_loops_make(struct elem_loops *s, const struct tensor *dense,
                     const struct elem_operand *operands, uint32_t n)
{
    struct elem_axis axes[ELEM_AXES] = { { 0 } };
    uint32_t order[TENSOR_MAX_RANK], rank = dense->shape.rank, i, k;
    size_t elements[ELEM_OPERANDS];

    op_memory_order(dense, order);
    for (i = 0; i < n; i++) {
        ptrdiff_t step[TENSOR_MAX_RANK];

        operand_steps(&operands[i], rank, step);
        elements[i] = (size_t)tensor_elements(operands[i].t);
        for (k = 0; k < rank; k++)
            axes[k].step[i] = step[order[k]];
    }
    for (k = 0; k < rank; k++)
        axes[k].size = (size_t)dense->shape.dim[order[k]];
    elem_loops_from(s, axes, rank, elements, n);
}

bool elem_walk_next(struct elem_walk *w)
{
    const struct elem_loops *s = w->s;
    uint32_t k, i;

    w->y += s->tile.rows * s->tile.n;
    for (k = s->n_outer; k-- > 0;) {
        const struct elem_axis *x = &s->outer[k];

        for (i = 0; i < ELEM_OPERANDS; i++)
            w->at[i] += x->step[i];
        if (++w->index[k] < x->size)
            return true;
        w->index[k] = 0;
        for (i = 0; i < ELEM_OPERANDS; i++)
            w->at[i] -= (ptrdiff_t)x->size * x->step[i];
    }
    return false;
}
