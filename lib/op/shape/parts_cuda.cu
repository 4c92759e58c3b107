/* parts_cuda.cu - see parts.h: Transpose, DepthToSpace, SpaceToDepth, Concat, Split, Slice, Pad.
 * The plan of the CPU computes the parts; each part is a launch. */
#include <stdlib.h>

#include "op/shape/copy_cuda.cuh"

extern "C" {
#include "op/shape/pad.h"
#include "op/shape/parts.h"
}

static int plan(struct op_plan *p, struct err *err)
{
    int rc = p->def->cpu.plan(p, err);
    const struct parts *s = (const struct parts *)p->state;

    for (uint32_t i = 0; rc == 0 && p->training && i < s->n; i++) {
        size_t bytes = copy_cuda_scratch(&s->at[i].bwd);

        p->scratch_bytes = bytes > p->scratch_bytes ? bytes : p->scratch_bytes;
    }
    return rc;
}

static int move(const struct op_call *c, const void *here, struct err *err)
{
    const struct parts *s = (const struct parts *)c->state;
    const struct tensor *value = s->fill_in < c->n_in ? c->in[s->fill_in] : NULL;
    int rc = 0;

    for (uint32_t i = 0; s->fills && i < c->n_out && rc == 0; i++)
        if (c->out[i] != NULL)
            rc = shape_cuda_fill(c, c->out[i], value != NULL ? value->data : NULL, here, err);
    for (uint32_t i = 0; i < s->n && rc == 0; i++) {
        const struct part *p = &s->at[i];

        if (c->out[p->out] != NULL)
            rc = copy_cuda_run(op_stream(c), &p->fwd, c->in[p->in]->data, c->out[p->out]->data,
                               c->in[p->in]->dtype, false, NULL, err);
    }
    return rc;
}

static int forward(const struct op_call *c, struct err *err)
{
    return move(c, NULL, err);
}

static int forward_pad_2(const struct op_call *c, struct err *err)
{
    return move(c, &((const struct pad *)c->param)->value, err);
}

static int backward(const struct op_call *c, struct err *err)
{
    const struct parts *s = (const struct parts *)c->state;
    bool gaps = s->gaps;
    int rc = 0;

    for (uint32_t i = 0; i < c->n_out; i++)
        gaps = gaps || c->dout[i] == NULL;
    if (gaps)
        rc = op_cuda_zero(c, err);
    for (uint32_t i = 0; i < s->n && rc == 0; i++) {
        const struct part *p = &s->at[i];
        const struct tensor *dx = c->din[p->in], *dy = c->dout[p->out];

        if (dx != NULL && dy != NULL)
            rc = copy_cuda_run(op_stream(c), &p->bwd, dy->data, dx->data, dx->dtype,
                               gaps || op_cuda_adds(c, p->in), c->scratch, err);
    }
    return rc;
}

OP_CUDA(op_transpose, .plan = plan, .fwd = forward, .bwd = backward, .free_state = free);
OP_CUDA(op_depth_to_space, .plan = plan, .fwd = forward, .bwd = backward, .free_state = free);
OP_CUDA(op_space_to_depth, .plan = plan, .fwd = forward, .bwd = backward, .free_state = free);
OP_CUDA(op_concat, .plan = plan, .fwd = forward, .bwd = backward, .free_state = free);
OP_CUDA(op_split_18, .plan = plan, .fwd = forward, .bwd = backward, .free_state = free);
OP_CUDA(op_split_13, .plan = plan, .fwd = forward, .bwd = backward, .free_state = free);
OP_CUDA(op_split_2, .plan = plan, .fwd = forward, .bwd = backward, .free_state = free);
OP_CUDA(op_slice, .plan = plan, .fwd = forward, .bwd = backward, .free_state = free);
OP_CUDA(op_slice_1, .plan = plan, .fwd = forward, .bwd = backward, .free_state = free);
OP_CUDA(op_pad_18, .plan = plan, .fwd = forward, .bwd = backward, .free_state = free);
OP_CUDA(op_pad_11, .plan = plan, .fwd = forward, .bwd = backward, .free_state = free);
OP_CUDA(op_pad_2, .plan = plan, .fwd = forward_pad_2, .bwd = backward, .free_state = free);
