/* mlp_cuda.cu - see mlp.c. If the library supports it, the epilogue of the first product applies
 * the function and stores what its derivative needs, and the product that computes the gradient of
 * h multiplies it by the derivative: no kernel reads or writes [m, hidden] for the function alone.
 * Otherwise each part is a kernel. */
#include "op/gemm/product.cuh"

#include <stdlib.h>

extern "C" {
#include "op/gemm/mlp.h"
#include "op/op_priv.h"

extern const struct op_kernels op_product_cuda, op_gelu_cuda, op_relu_cuda;
}

struct mlp_device {
    struct mlp parts;
    struct product *up, *slope; /* compute h and the gradient of z; NULL: by the parts */
};

static void free_state(void *state)
{
    struct mlp_device *s = (struct mlp_device *)state;

    if (s == NULL)
        return;
    mlp_fini(&s->parts);
    product_close(s->up);
    product_close(s->slope);
    free(s);
}

static void part_again(struct mlp_device *s)
{
    product_close(s->up);
    product_close(s->slope);
    s->up = s->slope = NULL;
}

/* Opens both products with epilogues, or neither. */
static int open_tails(const struct op_plan *p, struct mlp_device *s, struct err *err)
{
    const struct mlp_param *m = (const struct mlp_param *)p->param;
    const enum tensor_dtype ht = p->out[0].dtype;
    const bool bias = p->in[MLP_B1] != NULL,
               goes_up = op_wants(p, MLP_X) || op_wants(p, MLP_W1) || op_wants(p, MLP_B1);
    struct product_problem up = { .m = m->m, .n = m->hidden, .k = m->k, .bias = bias, .tf32 = p->tf32,
                                  .tail = m->is_relu ? LT_RELU : LT_GELU };
    struct product_problem slope = { .m = m->m, .n = m->hidden, .k = m->n, .tf32 = p->tf32,
                                     .tail = m->is_relu ? LT_DRELU : LT_DGELU };
    int rc;

    /* The library's GELU approximates tanh with an error of 5e-6 on an H100, too large for
     * float32. */
    if (!m->is_relu && ht == TENSOR_F32 && !p->tf32)
        return 0;
    up.at[LT_A] = { p->in[MLP_X]->dtype, m->k, 1 };
    up.at[LT_B] = { p->in[MLP_W1]->dtype, m->trans1 ? 1 : m->hidden, m->trans1 ? m->k : 1 };
    up.at[LT_Y] = { ht, m->hidden, 1 };
    slope.at[LT_A] = { ht, m->n, 1 };
    slope.at[LT_B] = { p->in[MLP_W2]->dtype, m->trans2 ? m->hidden : 1, m->trans2 ? 1 : m->n };
    slope.at[LT_Y] = { ht, m->hidden, 1 };
    rc = product_open(&up, &s->up, err);
    if (rc == 0 && goes_up)
        rc = product_open(&slope, &s->slope, err);
    if (rc < 0)
        part_again(s);
    return rc == ERR_UNSUPPORTED ? 0 : rc;
}

static int plan(struct op_plan *p, struct err *err)
{
    const struct mlp_param *m = (const struct mlp_param *)p->param;
    struct mlp_device *s = (struct mlp_device *)calloc(1, sizeof(*s));
    size_t z_bytes = lt_aux_bytes(m->is_relu ? LT_RELU : LT_GELU, m->m, m->hidden, p->out[0].dtype),
           most;
    int rc;

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "Mlp '%s': out of memory", p->node);
    rc = open_tails(p, s, err);
    if (rc == 0)
        rc = mlp_init(&s->parts, p, &op_product_cuda, m->is_relu ? &op_relu_cuda : &op_gelu_cuda,
                      s->up != NULL ? z_bytes : 0, err);
    if (rc < 0) {
        free_state(s);
        return err_wrap(err, rc, "Mlp '%s'", p->node);
    }
    most =
        s->parts.scratch_at + op_max(product_scratch_bytes(s->up), product_scratch_bytes(s->slope));
    p->scratch_bytes = op_max(p->scratch_bytes, most);
    p->state = s;
    return 0;
}

static int forward(const struct op_call *c, struct err *err)
{
    struct mlp_device *s = (struct mlp_device *)c->state;
    const struct tensor *bias = c->in[MLP_B1];
    int rc;

    if (s->up == NULL)
        rc = mlp_up(&s->parts, c, err);
    else
        rc = product_run_tail(s->up, c->in[MLP_X]->data, c->in[MLP_W1]->data, mlp_h(&s->parts, c),
                              bias != NULL ? (const float *)bias->data : NULL, mlp_z(&s->parts, c),
                              NULL, false, 1.0f, false, mlp_scratch(&s->parts, c), op_stream(c),
                              err);
    return rc == 0 ? mlp_down(&s->parts, c, err) : rc;
}

static int backward(const struct op_call *c, struct err *err)
{
    struct mlp_device *s = (struct mlp_device *)c->state;
    bool goes_up;
    int rc;

    if (c->dout[0] == NULL)
        return op_cuda_zero(c, err);
    goes_up = mlp_wants_hidden(c);
    rc = mlp_down_bwd(&s->parts, c, goes_up && s->slope == NULL, err);
    if (rc == 0 && s->slope != NULL && goes_up)
        rc = product_run_tail(s->slope, c->dout[0]->data, c->in[MLP_W2]->data,
                              mlp_slope(&s->parts, c), NULL, mlp_z(&s->parts, c), NULL, false, 1.0f,
                              false, mlp_scratch(&s->parts, c), op_stream(c), err);
    return rc == 0 && goes_up ? mlp_up_bwd(&s->parts, c, err) : rc;
}

OP_CUDA(op_mlp, .plan = plan, .fwd = forward, .bwd = backward, .free_state = free_state);
