/* gemm.c - Gemm: y = alpha a' b' + beta c, where a' and b' are a and b or their transposes.
 *   da' = alpha dy b'^T   db' = alpha a'^T dy   dc = beta dy, summed over the axes along which c is
 *                                               broadcast. */
#include <inttypes.h>

#include "base/err.h"
#include "op/gemm/gemm_priv.h"
#include "op/op_priv.h"

static int read_attrs(const struct op_infer *f, struct gemm_param *p, struct err *err)
{
    int64_t trans_a = 0, trans_b = 0;
    int rc = op_attr_f(f, "alpha", 1.0f, &p->alpha, err);

    if (rc == 0)
        rc = op_attr_f(f, "beta", 1.0f, &p->beta, err);
    if (rc == 0)
        rc = op_attr_i(f, "transA", 0, &trans_a, err);
    if (rc == 0)
        rc = op_attr_i(f, "transB", 0, &trans_b, err);
    p->trans_a = trans_a != 0;
    p->trans_b = trans_b != 0;
    return rc;
}

/* Computes the strides of c: [], [n], [1], or [m or 1, n or 1]. */
static int read_c(const struct op_infer *f, struct gemm_param *p, struct err *err)
{
    const struct shape *s;
    char text[192];
    int64_t rows, cols;
    int rc = op_check_input(f, 2, TENSOR_F32, -1, err);

    if (rc < 0)
        return rc;
    s = &f->in[2]->shape;
    rows = s->rank == 2 ? s->dim[0] : 1;
    cols = s->rank == 0 ? 1 : s->dim[s->rank - 1];
    if (s->rank > 2 || (rows != 1 && rows != p->m) || (cols != 1 && cols != p->n))
        return op_error(f, 0, err,
                        "input 2 has shape %s, which does not broadcast to [%" PRId64 ", %" PRId64
                        "]",
                        shape_print(s, text, sizeof(text)), p->m, p->n);
    p->c_row = rows == 1 ? 0 : cols;
    p->c_col = cols == 1 ? 0 : 1;
    return 0;
}

static int infer(struct op_infer *f, struct err *err)
{
    struct gemm_param *p = f->param;
    const struct shape *a, *b;
    char at[192], bt[192];
    int rc = op_check_input(f, 0, TENSOR_F32, 2, err);

    if (rc == 0)
        rc = op_check_input(f, 1, TENSOR_F32, 2, err);
    if (rc == 0)
        rc = read_attrs(f, p, err);
    if (rc < 0)
        return rc;
    a = &f->in[0]->shape;
    b = &f->in[1]->shape;
    p->m = a->dim[p->trans_a ? 1 : 0];
    p->k = a->dim[p->trans_a ? 0 : 1];
    p->n = b->dim[p->trans_b ? 0 : 1];
    if (b->dim[p->trans_b ? 1 : 0] != p->k)
        return op_error(f, 0, err,
                        "shapes %s (transA %d) and %s (transB %d) do not fit: %" PRId64
                        " columns against %" PRId64 " rows",
                        shape_print(a, at, sizeof(at)), p->trans_a, shape_print(b, bt, sizeof(bt)),
                        p->trans_b, p->k, b->dim[p->trans_b ? 1 : 0]);
    if (f->n_in > 2 && f->in[2] != NULL) {
        rc = read_c(f, p, err);
        if (rc < 0)
            return rc;
    }
    f->out[0].dtype = TENSOR_F32;
    f->out[0].shape = shape_of(2, p->m, p->n);
    return op_check_size(f, err);
}

static double flops(const struct op_infer *f)
{
    const struct gemm_param *p = f->param;

    return 2.0 * (double)p->m * (double)p->n * (double)p->k;
}

static const char *const attrs[] = { "alpha", "beta", "transA", "transB", NULL };

const struct op_def op_gemm = {
    .name = "Gemm",
    .since = 7,
    .n_in = { 2, 3 },
    .n_out = { 1, 1 },
    .attrs = attrs,
    .param_bytes = sizeof(struct gemm_param),
    .infer = infer,
    .diff = OP_IN(0) | OP_IN(1) | OP_IN(2),
    .bwd_reads = OP_IN(0) | OP_IN(1),
    .layout = OP_LAYOUT_PLAIN,
    .half = OP_HALF_WANT,
    .half_of = OP_IN(0) | OP_IN(1) | OP_OUT(0),
    .cpu = { gemm_cpu_plan, gemm_cpu_fwd, gemm_cpu_bwd, gemm_cpu_free },
    .flops = flops,
};
