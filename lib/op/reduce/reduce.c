#include "op/reduce/reduce.h"

#include <stdlib.h>

#include "base/err.h"

const char *const reduce_attrs_input[] = { "keepdims", "noop_with_empty_axes", NULL };
const char *const reduce_attrs_attr[] = { "keepdims", "axes", NULL };

int reduce_infer(struct op_infer *f, struct err *err)
{
    bool by_input = f->def->attrs == reduce_attrs_input, given;
    struct reduce *r = f->param;
    const struct tensor *x = f->in[0];
    struct shape *y = &f->out[0].shape;
    int64_t keep = 1, noop = 0;
    uint32_t k;
    int rc = op_attr_i(f, "keepdims", 1, &keep, err);

    if (rc == 0)
        rc = op_attr_i(f, "noop_with_empty_axes", 0, &noop, err);
    if (rc < 0)
        return rc;
    if (x == NULL)
        return op_error(f, ERR_INPUT, err, "input 0 is missing");
    rc = op_axes(f, 1, by_input ? NULL : "axes", x->shape.rank, &r->set, &given, err);
    if (rc < 0)
        return rc;
    r->nothing = !given && noop != 0;
    if (!given && noop == 0)
        r->set = (1u << x->shape.rank) - 1;
    f->out[0].dtype = x->dtype;
    r->n = 1;
    for (k = 0; k < x->shape.rank; k++) {
        bool goes = (r->set & (1u << k)) != 0;

        if (goes)
            r->n *= (size_t)x->shape.dim[k];
        if (goes && keep == 0)
            continue;
        r->axis[y->rank] = (uint8_t)k;
        y->dim[y->rank++] = goes ? 1 : x->shape.dim[k];
    }
    return 0;
}

int reduce_plan(struct op_plan *p, struct err *err)
{
    const struct reduce *r = p->param;
    const struct elem_operand y = { &p->out[0], r->axis };
    const struct elem_operand both[2] = { y, y };
    struct reduce_state *s = calloc(1, sizeof(*s));
    size_t n = (size_t)tensor_elements(&p->out[0]);

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "%s '%s': out of memory", p->def->name, p->node);
    elem_loops_make(&s->fwd, p->in[0], both, 2);
    s->bwd = s->fwd;
    s->sums_at = op_round(n * sizeof(float));
    p->scratch_bytes = op_round(s->sums_at + n * sizeof(double));
    p->state = s;
    return 0;
}

void reduce_sum(const struct op_call *c, elem_bwd_fn *add, const float *shift, double *acc)
{
    const struct reduce_state *s = c->state;
    struct elem_walk w = { .s = &s->fwd };
    const float *x = c->in[0]->data;
    size_t n = (size_t)tensor_elements(c->out[0]), i;

    for (i = 0; i < n; i++)
        acc[i] = 0;
    if (s->fwd.total == 0)
        return;
    do {
        const float *here = shift != NULL ? shift + w.at[0] : x; /* x: unused by the loop */
        const void *at[ELEM_OPERANDS] = { here, here };

        add(&s->fwd.tile, ELEM_SUM, x + w.y, at, NULL, acc + w.at[0]);
    } while (elem_walk_next(&w));
}

void reduce_spread(const struct op_call *c, elem_bwd_fn *bwd, const float *dy, const float *y)
{
    const struct reduce_state *s = c->state;
    enum elem_into into = op_adds(c, 0) ? ELEM_ADD : ELEM_SET;
    struct elem_walk w = { .s = &s->bwd };
    const float *x = c->in[0]->data;
    float *g = c->din[0]->data;

    if (s->bwd.total == 0)
        return;
    do {
        const void *at[ELEM_OPERANDS] = { dy + w.at[0], y + w.at[1] };

        bwd(&s->bwd.tile, into, x + w.y, at, g + w.y, NULL);
    } while (elem_walk_next(&w));
}
