/* matmul.c - MatMul as in NumPy: the last two axes are matrices, the axes before are a broadcast
 * batch. A vector on the left is a row, on the right a column, and its axis is absent in y.
 *   da = dy b^T   db = a^T dy, each summed over the batch axes along which it is broadcast.
 * trainerd.MatMul: attributes transA and transB state that the last two axes of an operand, which
 * then has both, are exchanged; a third input [n] is added to every row. */
#include <inttypes.h>

#include "base/err.h"
#include "op/gemm/gemm_priv.h"
#include "op/op_priv.h"

static struct shape batch_of(const struct shape *s)
{
    struct shape batch = *s;

    batch.rank = s->rank > 2 ? s->rank - 2 : 0;
    return batch;
}

/* Returns the shape as it is multiplied. */
static struct shape multiplied_shape(const struct shape *s, bool trans)
{
    struct shape t = *s;

    if (trans) {
        t.dim[t.rank - 2] = s->dim[s->rank - 1];
        t.dim[t.rank - 1] = s->dim[s->rank - 2];
    }
    return t;
}

static int operand(const struct op_infer *f, uint32_t i, bool trans, struct shape *out,
                   struct err *err)
{
    uint32_t least = trans ? 2 : 1;
    int rc = op_check_input(f, i, TENSOR_F32, -1, err);

    if (rc < 0)
        return rc;
    if (f->in[i]->shape.rank < least)
        return op_error(f, 0, err, "input %u has %u dimensions; expected at least %u", i,
                        f->in[i]->shape.rank, least);
    *out = multiplied_shape(&f->in[i]->shape, trans);
    return 0;
}

static int infer_bias(struct op_infer *f, struct matmul_param *p, struct err *err)
{
    int rc;

    p->bias = f->n_in > 2 && f->in[2] != NULL;
    if (!p->bias)
        return 0;
    rc = op_check_input(f, 2, TENSOR_F32, 1, err);
    if (rc == 0 && f->in[2]->shape.dim[0] != p->n)
        return op_error(f, 0, err, "input 2 has %" PRId64 " elements; expected %" PRId64,
                        f->in[2]->shape.dim[0], p->n);
    return rc;
}

static int infer(struct op_infer *f, struct err *err)
{
    struct matmul_param *p = f->param;
    struct shape *y = &f->out[0].shape, as, bs;
    const struct shape *a = &as, *b = &bs;
    char at[192], bt[192];
    int64_t rows, trans_a, trans_b;
    int rc = op_attr_i(f, "transA", 0, &trans_a, err);

    if (rc == 0)
        rc = op_attr_i(f, "transB", 0, &trans_b, err);
    if (rc == 0)
        rc = operand(f, 0, trans_a != 0, &as, err);
    if (rc == 0)
        rc = operand(f, 1, trans_b != 0, &bs, err);
    if (rc < 0)
        return rc;
    p->trans_a = trans_a != 0;
    p->trans_b = trans_b != 0;
    p->m = a->rank == 1 ? 1 : a->dim[a->rank - 2];
    p->k = a->dim[a->rank - 1];
    rows = b->rank == 1 ? b->dim[0] : b->dim[b->rank - 2];
    p->n = b->rank == 1 ? 1 : b->dim[b->rank - 1];
    p->batch_a = batch_of(a);
    p->batch_b = batch_of(b);
    if (rows != p->k || !shape_broadcast(&p->batch_a, &p->batch_b, &p->batch))
        return op_error(f, 0, err, "shapes %s and %s do not fit: %s",
                        shape_print(a, at, sizeof(at)), shape_print(b, bt, sizeof(bt)),
                        rows != p->k ? "columns of the first must be rows of the second"
                                     : "the axes before the last two do not broadcast");
    *y = p->batch;
    if (a->rank > 1)
        y->dim[y->rank++] = p->m;
    if (b->rank > 1)
        y->dim[y->rank++] = p->n;
    f->out[0].dtype = TENSOR_F32;
    rc = infer_bias(f, p, err);
    return rc < 0 ? rc : op_check_size(f, err);
}

static double flops(const struct op_infer *f)
{
    const struct matmul_param *p = f->param;

    return 2.0 * (double)shape_elements(&p->batch) * (double)p->m * (double)p->n * (double)p->k;
}

const struct op_def op_matmul = {
    .name = "MatMul",
    .since = 1,
    .n_in = { 2, 2 },
    .n_out = { 1, 1 },
    .param_bytes = sizeof(struct matmul_param),
    .infer = infer,
    .diff = OP_IN(0) | OP_IN(1),
    .bwd_reads = OP_IN(0) | OP_IN(1),
    .layout = OP_LAYOUT_PLAIN,
    .half = OP_HALF_WANT,
    .half_of = OP_IN(0) | OP_IN(1) | OP_OUT(0),
    .cpu = { matmul_cpu_plan, matmul_cpu_fwd, matmul_cpu_bwd, matmul_cpu_free },
    .flops = flops,
};

static const char *const attrs[] = { "transA", "transB", NULL };

const struct op_def op_product = {
    .domain = "trainerd",
    .name = "MatMul",
    .since = 1,
    .n_in = { 2, 3 },
    .n_out = { 1, 1 },
    .attrs = attrs,
    .param_bytes = sizeof(struct matmul_param),
    .infer = infer,
    .diff = OP_IN(0) | OP_IN(1) | OP_IN(2),
    .bwd_reads = OP_IN(0) | OP_IN(1),
    .layout = OP_LAYOUT_PLAIN,
    .half = OP_HALF_WANT,
    .half_of = OP_IN(0) | OP_IN(1) | OP_OUT(0),
    .cpu = { matmul_cpu_plan, matmul_cpu_fwd, matmul_cpu_bwd, matmul_cpu_free },
    .flops = flops,
};
