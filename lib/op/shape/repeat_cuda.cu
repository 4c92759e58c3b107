/* repeat_cuda.cu - see repeat.c: Expand and Tile are a copy with strides of 0 in x; its reverse
 * sums. */
#include <stdlib.h>

#include "op/shape/copy_cuda.cuh"

extern "C" {
#include "op/elem/loops.h"
}

struct repeat { /* state of the plan (op_plan.state) */
    struct copy fwd, bwd;
};

static void add_axis(struct repeat *r, size_t size, ptrdiff_t from, ptrdiff_t *to)
{
    if (size > 1) {
        r->fwd.axis[r->fwd.n++] = copy_axis{ size, from, *to };
        r->bwd.axis[r->bwd.n++] = copy_axis{ size, *to, from };
    }
    *to *= (ptrdiff_t)size;
}

/* Converts the loops of the CPU's plan, in which y is the dense tensor. */
static void from_loops(struct repeat *r, const struct elem_loops *l)
{
    ptrdiff_t to = 1;

    r->fwd.is_empty = r->bwd.is_empty = l->total == 0;
    if (l->total == 0)
        return;
    add_axis(r, l->tile.n, l->tile.at[0].step, &to);
    add_axis(r, l->tile.rows, l->tile.at[0].row, &to);
    for (uint32_t k = l->n_outer; k-- > 0;)
        add_axis(r, l->outer[k].size, l->outer[k].step[0], &to);
}

static int plan(struct op_plan *p, struct err *err)
{
    int rc = p->def->cpu.plan(p, err);
    struct repeat *r;

    if (rc < 0)
        return rc;
    r = (struct repeat *)calloc(1, sizeof(*r));
    if (r != NULL)
        from_loops(r, (const struct elem_loops *)p->state);
    p->def->cpu.free_state(p->state);
    p->state = r;
    if (r == NULL)
        return err_set(err, ERR_NOMEM, "%s '%s': out of memory", p->def->name, p->node);
    p->scratch_bytes = op_cuda_plan_wants(p, 0) ? copy_cuda_scratch(&r->bwd) : 0;
    return 0;
}

static int forward(const struct op_call *c, struct err *err)
{
    const struct repeat *r = (const struct repeat *)c->state;

    return copy_cuda_run(op_stream(c), &r->fwd, c->in[0]->data, c->out[0]->data, c->out[0]->dtype,
                         false, NULL, err);
}

static int backward(const struct op_call *c, struct err *err)
{
    const struct repeat *r = (const struct repeat *)c->state;

    if (c->dout[0] == NULL || c->din[0] == NULL || r->bwd.is_empty)
        return op_cuda_zero(c, err);
    return copy_cuda_run(op_stream(c), &r->bwd, c->dout[0]->data, c->din[0]->data, c->din[0]->dtype,
                         op_cuda_adds(c, 0), c->scratch, err);
}

OP_CUDA(op_expand, .plan = plan, .fwd = forward, .bwd = backward, .free_state = free);
OP_CUDA(op_tile, .plan = plan, .fwd = forward, .bwd = backward, .free_state = free);
