/* mlp.c - trainerd.Mlp: y = f(x w1 + b1) w2 + b2, where f is Relu or the tanh Gelu (attribute
 * function: "relu", "gelu"); x [.., k], w1 [k, hidden], w2 [hidden, n], which are stored transposed
 * if trans1 or trans2 is set; b1 [hidden] and b2 [n] may be absent.
 *   with z = x w1 + b1, h = f(z):   dz = f'(z) dy w2^T, the rest as in MatMul
 * Graph passes create it for GPUs, where the products compute f and its derivative in their
 * epilogues. */
#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "op/gemm/mlp.h"
#include "op/op_priv.h"

static int read_attrs(const struct op_infer *f, struct mlp_param *p, struct err *err)
{
    const char *function = NULL;
    int64_t trans1 = 0, trans2 = 0;
    int rc = op_attr_s(f, "function", "gelu", &function, err);

    if (rc == 0)
        rc = op_attr_i(f, "trans1", 0, &trans1, err);
    if (rc == 0)
        rc = op_attr_i(f, "trans2", 0, &trans2, err);
    if (rc < 0)
        return rc;
    p->trans1 = trans1 != 0;
    p->trans2 = trans2 != 0;
    p->is_relu = strcmp(function, "relu") == 0;
    if (!p->is_relu && strcmp(function, "gelu") != 0)
        return op_error(f, ERR_INPUT, err, "function is '%s'; expected relu or gelu", function);
    return 0;
}

/* Checks weights of `rows` rows (as they are multiplied) and returns their columns. */
static int weights(const struct op_infer *f, uint32_t i, int64_t rows, bool trans, int64_t *cols,
                   struct err *err)
{
    int rc = op_check_input(f, i, TENSOR_F32, 2, err);

    if (rc < 0)
        return rc;
    if (f->in[i]->shape.dim[trans ? 1 : 0] != rows)
        return op_error(f, ERR_INPUT, err,
                        "input %" PRIu32 " has %" PRId64 " rows; expected %" PRId64, i,
                        f->in[i]->shape.dim[trans ? 1 : 0], rows);
    *cols = f->in[i]->shape.dim[trans ? 0 : 1];
    return 0;
}

static int bias(const struct op_infer *f, uint32_t i, int64_t n, struct err *err)
{
    int rc;

    if (i >= f->n_in || f->in[i] == NULL)
        return 0;
    rc = op_check_input(f, i, TENSOR_F32, 1, err);
    if (rc == 0 && f->in[i]->shape.dim[0] != n)
        return op_error(f, ERR_INPUT, err,
                        "input %" PRIu32 " has %" PRId64 " elements; expected %" PRId64, i,
                        f->in[i]->shape.dim[0], n);
    return rc;
}

static int infer(struct op_infer *f, struct err *err)
{
    struct mlp_param *p = f->param;
    const struct shape *x;
    uint32_t k;
    int rc = op_check_input(f, MLP_X, TENSOR_F32, -1, err);

    if (rc == 0)
        rc = read_attrs(f, p, err);
    if (rc < 0)
        return rc;
    x = &f->in[MLP_X]->shape;
    if (x->rank < 1)
        return op_error(f, ERR_INPUT, err, "input 0 is one number; expected rows");
    p->k = x->dim[x->rank - 1];
    for (p->m = 1, k = 0; k + 1 < x->rank; k++)
        p->m *= x->dim[k];
    rc = weights(f, MLP_W1, p->k, p->trans1, &p->hidden, err);
    if (rc == 0)
        rc = weights(f, MLP_W2, p->hidden, p->trans2, &p->n, err);
    if (rc == 0)
        rc = bias(f, MLP_B1, p->hidden, err);
    if (rc == 0)
        rc = bias(f, MLP_B2, p->n, err);
    if (rc < 0)
        return rc;
    f->out[0].dtype = TENSOR_F32;
    f->out[0].shape = *x;
    f->out[0].shape.dim[x->rank - 1] = p->n;
    return op_check_size(f, err);
}

static double flops(const struct op_infer *f)
{
    const struct mlp_param *p = f->param;

    return 2.0 * (double)p->m * (double)p->hidden * ((double)p->k + (double)p->n);
}

static const char *const attrs[] = { "function", "trans1", "trans2", NULL };

const struct op_def op_mlp = {
    .domain = "trainerd",
    .name = "Mlp",
    .since = 1,
    .n_in = { 4, 5 },
    .n_out = { 1, 1 },
    .attrs = attrs,
    .param_bytes = sizeof(struct mlp_param),
    .infer = infer,
    .diff = OP_IN(MLP_X) | OP_IN(MLP_W1) | OP_IN(MLP_B1) | OP_IN(MLP_W2) | OP_IN(MLP_B2),
    .bwd_reads = OP_IN(MLP_X) | OP_IN(MLP_W1) | OP_IN(MLP_W2),
    .layout = OP_LAYOUT_PLAIN,
    .half = OP_HALF_WANT,
    .half_of = OP_IN(MLP_X) | OP_IN(MLP_W1) | OP_IN(MLP_W2) | OP_OUT(0),
    .cpu = { mlp_cpu_plan, mlp_cpu_fwd, mlp_cpu_bwd, mlp_cpu_free },
    .flops = flops,
};
