/* matmul.c - MatMul as NumPy's: the last two axes are matrices, those before are a broadcast
 * batch; a vector on the left is a row, on the right a column, and its axis is gone from y.
 *   da = dy b^T   db = a^T dy, each summed over the batch axes it was broadcast along. */
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

static int infer(struct op_infer *f, struct err *err)
{
    struct matmul_param *p = f->param;
    struct shape *y = &f->out[0].shape;
    const struct shape *a, *b;
    char at[192], bt[192];
    int64_t rows;
    uint32_t i;
    int rc;

    for (i = 0; i < 2; i++) {
        rc = op_need(f, i, TENSOR_F32, -1, err);
        if (rc < 0)
            return rc;
        if (f->in[i]->shape.rank == 0)
            return op_error(f, 0, err, "input %u is a scalar; expected at least 1 dimension", i);
    }
    a = &f->in[0]->shape;
    b = &f->in[1]->shape;
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
    return op_fits(f, err);
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
