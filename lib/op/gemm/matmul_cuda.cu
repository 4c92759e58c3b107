/* matmul_cuda.cu - see matmul.c. Describes the three products as axes with strides; product.cu
 * decides which axes become calls, batches or larger matrices. */
#include "op/gemm/contract_cuda.cuh"
#include "op/gemm/product.cuh"

#include <stdlib.h>

extern "C" {
#include "op/gemm/gemm_priv.h"
#include "op/op_priv.h"
}

struct matmul_there {
    struct product *y, *d[2];
    struct product_rows dy; /* aligned copy of dy for both gradients, at the beginning of scratch */
    bool sums;            /* d[1] also computes the column sums of dy, the gradient of the bias */
    struct contract bias; /* computes the gradient of the bias otherwise */
};

static void free_state(void *state)
{
    struct matmul_there *s = (struct matmul_there *)state;

    if (s == NULL)
        return;
    product_close(s->y);
    product_close(s->d[0]);
    product_close(s->d[1]);
    free(s);
}

/* Stride of axis d of the whole batch in an operand; 0: broadcast. */
static int64_t batch_step(const struct shape *whole, const struct shape *part, uint32_t d)
{
    uint32_t skip = whole->rank - part->rank;
    int64_t step = 1;

    if (d < skip || part->dim[d - skip] == 1)
        return 0;
    for (uint32_t k = d - skip + 1; k < part->rank; k++)
        step *= part->dim[k];
    return step;
}

/* Describes y = a b, with a and b as they are multiplied. */
static struct product_problem describe(const struct op_plan *op)
{
    const struct matmul_param *p = (const struct matmul_param *)op->param;
    struct product_problem s = { .m = p->m, .n = p->n, .k = p->k, .tf32 = op->tf32 };

    s.at[LT_A] = { op->in[0]->dtype, p->trans_a ? 1 : p->k, p->trans_a ? p->m : 1 };
    s.at[LT_B] = { op->in[1]->dtype, p->trans_b ? 1 : p->n, p->trans_b ? p->k : 1 };
    s.at[LT_Y] = { op->out[0].dtype, p->n, 1 };
    s.n_axes = p->batch.rank;
    for (uint32_t d = 0; d < p->batch.rank; d++)
        s.axis[d] = { p->batch.dim[d],
                      { batch_step(&p->batch, &p->batch_a, d) * p->m * p->k,
                        batch_step(&p->batch, &p->batch_b, d) * p->k * p->n,
                        batch_step(&p->batch, &p->batch, d) * p->m * p->n } };
    return s;
}

/* Describes the gradient of a factor: da = dy b^T, db = a^T dy. */
static struct product_problem gradient_of(const struct product_problem *y, int which)
{
    struct product_problem s = *y;
    const int from[2][LT_OPERANDS] = { { LT_Y, LT_B, LT_A }, { LT_A, LT_Y, LT_B } };

    s.bias = false;
    if (which == 0) {
        s.n = y->k;
        s.k = y->n;
        s.at[LT_A] = y->at[LT_Y];
        s.at[LT_B] = { y->at[LT_B].type, y->at[LT_B].col, y->at[LT_B].row };
        s.at[LT_Y] = y->at[LT_A];
    } else {
        s.m = y->k;
        s.k = y->m;
        s.at[LT_A] = { y->at[LT_A].type, y->at[LT_A].col, y->at[LT_A].row };
        s.at[LT_B] = y->at[LT_Y];
        s.at[LT_Y] = y->at[LT_B];
    }
    for (uint32_t i = 0; i < y->n_axes; i++)
        for (int k = 0; k < LT_OPERANDS; k++)
            s.axis[i].step[k] = y->axis[i].step[from[which][k]];
    return s;
}

static int open_all(const struct op_plan *op, struct matmul_there *s, struct err *err)
{
    const struct matmul_param *p = (const struct matmul_param *)op->param;
    struct product_problem y = describe(op);
    int rc;

    y.bias = p->bias;
    rc = product_open(&y, &s->y, err);
    if (p->n > 0 && op->in[0]->dtype == y.at[LT_Y].type) /* dy is multiplied without conversion */
        s->dy =
            product_rows_of(y.at[LT_Y].type, shape_elements(&p->batch) * p->m, p->n, p->n, p->k);
    if (s->dy.wide > 0) {
        y.at[LT_Y].row = s->dy.wide;
        for (uint32_t i = 0; i < y.n_axes; i++)
            y.axis[i].step[LT_Y] = y.axis[i].step[LT_Y] / p->n * s->dy.wide;
    }
    for (int i = 0; i < 2 && rc == 0; i++) {
        const struct product_problem d = gradient_of(&y, i);

        if (op_wants(op, (uint32_t)i))
            rc = i == 1 && op_wants(op, 2) ? product_open_sums(&d, &s->d[1], &s->sums, err)
                                           : product_open(&d, &s->d[i], err);
    }
    return rc;
}

static int plan(struct op_plan *op, struct err *err)
{
    const struct matmul_param *p = (const struct matmul_param *)op->param;
    struct matmul_there *s = (struct matmul_there *)calloc(1, sizeof(*s));
    int rc;

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "MatMul '%s': out of memory", op->node);
    rc = open_all(op, s, err);
    if (rc < 0) {
        free_state(s);
        return err_wrap(err, rc, "MatMul '%s'", op->node);
    }
    if (p->bias) {
        contract_add_axis(&s->bias, (size_t)(shape_elements(&p->batch) * p->m), p->n, 0, 0);
        contract_add_axis(&s->bias, (size_t)p->n, 1, 0, 1);
        contract_finish(&s->bias);
    }
    op->scratch_bytes =
        op_max(product_scratch_bytes(s->y), p->bias ? contract_scratch_bytes(&s->bias) : 0);
    if (op->training)
        op->scratch_bytes = op_max(op->scratch_bytes, product_rows_bytes(&s->dy) +
                                                          op_max(product_scratch_bytes(s->d[0]),
                                                                 product_scratch_bytes(s->d[1])));
    op->state = s;
    return 0;
}

static int forward(const struct op_call *c, struct err *err)
{
    const struct matmul_param *p = (const struct matmul_param *)c->param;
    struct matmul_there *s = (struct matmul_there *)c->state;

    return product_run(s->y, c->in[0]->data, c->in[1]->data, c->out[0]->data,
                       p->bias ? (const float *)c->in[2]->data : NULL, 1.0f, false, c->scratch,
                       op_stream(c), err);
}

static int backward(const struct op_call *c, struct err *err)
{
    struct matmul_there *s = (struct matmul_there *)c->state;
    const void *dy;
    void *rest;
    int rc = 0;

    if (c->dout[0] == NULL)
        return op_cuda_zero(c, err);
    dy = c->dout[0]->data;
    rest = op_at(c->scratch, product_rows_bytes(&s->dy));
    if (s->dy.wide > 0 && (c->din[0] != NULL || c->din[1] != NULL)) {
        rc = product_rows_run(&s->dy, dy, c->dout[0]->dtype, c->scratch, c->dout[0]->dtype, false,
                              op_stream(c), err);
        dy = c->scratch;
    }
    if (rc == 0 && c->din[0] != NULL)
        rc = product_run(s->d[0], dy, c->in[1]->data, c->din[0]->data, NULL, 1.0f,
                         op_cuda_adds(c, 0), rest, op_stream(c), err);
    if (rc == 0 && c->din[1] != NULL)
        rc = product_run_tail(s->d[1], c->in[0]->data, dy, c->din[1]->data, NULL, NULL,
                              s->sums ? (float *)c->din[2]->data : NULL, op_cuda_adds(c, 2), 1.0f,
                              op_cuda_adds(c, 1), rest, op_stream(c), err);
    if (rc == 0 && op_cuda_wants(c, 2) && !s->sums)
        rc = contract_launch(&s->bias, c->dout[0]->data, c->dout[0]->dtype, NULL, 1.0f,
                             (float *)c->din[2]->data, op_cuda_adds(c, 2), c->scratch, op_stream(c),
                             err);
    return rc;
}

OP_CUDA(op_matmul, .plan = plan, .fwd = forward, .bwd = backward, .free_state = free_state);
OP_CUDA(op_product, .plan = plan, .fwd = forward, .bwd = backward, .free_state = free_state);
