/* conv_cuda.cu - Conv and ConvTranspose are the same three passes over the same three operands in
 * different roles: x and y of the convolution are input and output, or the reverse.
 *
 *                Conv       ConvTranspose
 *   forward      CONV_Y     CONV_X          and the bias is added
 *   backward     CONV_X     CONV_Y          the gradient of the input
 *                CONV_W     CONV_W          of the weights; and of the bias: a sum over all
 * pixels */
#include <stdlib.h>

#include "op/conv/copy.cuh"
#include "op/conv/pass.cuh"
#include "op/op_cols.cuh"

extern "C" {
#include "op/conv/conv_priv.h"
}

struct conv_device {
    enum conv_operand in, out;               /* the roles of input 0 and output 0 */
    struct conv_pass *passes[CONV_OPERANDS]; /* owned; NULL: not requested */
    bool has_bias;
    struct op_cols bias; /* the output as rows of channels */
};

static void free_state(void *state)
{
    struct conv_device *s = (struct conv_device *)state;

    if (s == NULL)
        return;
    for (int k = 0; k < CONV_OPERANDS; k++)
        conv_pass_close(s->passes[k]);
    free(s);
}

static int open_passes(struct op_plan *p, struct conv_device *s, struct err *err)
{
    const struct conv_param *param = (const struct conv_param *)p->param;
    const struct shape *x = s->in == CONV_X ? &p->in[0]->shape : &p->out[0].shape;
    const struct shape *y = s->in == CONV_X ? &p->out[0].shape : &p->in[0]->shape;
    bool wanted[CONV_OPERANDS];
    int rc = 0;

    wanted[s->out] = true;
    wanted[s->in] = op_cuda_plan_wants(p, 0);
    wanted[CONV_W] = op_cuda_plan_wants(p, 1);
    for (int k = CONV_OPERANDS; rc == 0 && k-- > 0;) {
        struct conv_pass_spec spec = {
            (enum conv_operand)k, p->in[0]->dtype, x->dim[0], x->dim[1], y->dim[1], param->group,
            &param->window, k != s->out, p->tf32,
        };

        if (wanted[k])
            rc = conv_pass_open(&spec, &s->passes[k], err);
    }
    return rc;
}

static int plan(struct op_plan *p, enum conv_operand in, enum conv_operand out, struct err *err)
{
    struct conv_device *s = (struct conv_device *)calloc(1, sizeof(*s));
    const struct tensor *y = &p->out[0];
    size_t o = (size_t)y->shape.dim[1];
    int rc;

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "%s '%s': out of memory", p->def->name, p->node);
    s->in = in;
    s->out = out;
    s->has_bias = p->n_in > 2 && p->in[2] != NULL;
    s->bias = op_cols_of(1, o > 0 ? (size_t)tensor_elements(y) / o : 0, o);
    rc = open_passes(p, s, err);
    if (rc < 0) {
        free_state(s);
        return err_wrap(err, rc, "%s '%s'", p->def->name, p->node);
    }
    p->scratch_bytes = s->has_bias ? op_cols_scratch(&s->bias) : 0;
    for (int k = 0; k < CONV_OPERANDS; k++) {
        size_t bytes = conv_pass_scratch_bytes(s->passes[k]);

        p->scratch_bytes = bytes > p->scratch_bytes ? bytes : p->scratch_bytes;
    }
    p->state = s;
    return 0;
}

static int plan_conv(struct op_plan *p, struct err *err)
{
    return plan(p, CONV_X, CONV_Y, err);
}

static int plan_transposed(struct op_plan *p, struct err *err)
{
    return plan(p, CONV_Y, CONV_X, err);
}

static int forward(const struct op_call *c, struct err *err)
{
    const struct conv_device *s = (const struct conv_device *)c->state;
    void *at[CONV_OPERANDS];
    int rc;

    at[s->in] = c->in[0]->data;
    at[CONV_W] = c->in[1]->data;
    at[s->out] = c->out[0]->data;
    rc = conv_pass_run(s->passes[s->out], at, false, c->scratch, op_stream(c), err);
    if (rc == 0 && s->has_bias)
        rc = conv_add_bias(c->out[0]->data, c->out[0]->dtype, s->bias.rows, s->bias.cols,
                           (const float *)c->in[2]->data, op_stream(c), err);
    return rc;
}

/* Computes the gradient of input i, which is the operand `which`. */
static int bwd_pass(const struct op_call *c, uint32_t i, enum conv_operand which, struct err *err)
{
    const struct conv_device *s = (const struct conv_device *)c->state;
    void *at[CONV_OPERANDS];

    if (!op_cuda_wants(c, i))
        return 0;
    at[s->in] = c->in[0]->data;
    at[CONV_W] = c->in[1]->data;
    at[s->out] = c->dout[0]->data;
    at[which] = c->din[i]->data;
    return conv_pass_run(s->passes[which], at, op_cuda_adds(c, i), c->scratch, op_stream(c), err);
}

static int backward(const struct op_call *c, struct err *err)
{
    const struct conv_device *s = (const struct conv_device *)c->state;
    const struct tensor *dy = c->dout[0];
    int rc;

    if (dy == NULL)
        return op_cuda_zero(c, err);
    rc = bwd_pass(c, 1, CONV_W, err);
    if (rc == 0)
        rc = bwd_pass(c, 0, s->in, err);
    if (rc == 0 && s->has_bias && op_cuda_wants(c, 2))
        OP_FLOATS(dy->dtype,
                  rc = op_cols_run(&s->bias, (const T *)dy->data, 1.0f, (float *)c->din[2]->data,
                                   op_cuda_adds(c, 2), c->scratch, op_stream(c), err))
    return rc;
}

OP_CUDA(op_conv, .plan = plan_conv, .fwd = forward, .bwd = backward, .free_state = free_state);
OP_CUDA(op_conv_transpose, .plan = plan_transposed, .fwd = forward, .bwd = backward,
        .free_state = free_state);
OP_CUDA(op_conv_transpose_1, .plan = plan_transposed, .fwd = forward, .bwd = backward,
        .free_state = free_state);
