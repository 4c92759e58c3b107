/* conv.c - Conv: x [n, c, d1..], w [o, c / group, k1..], b [o] -> y [n, o, e1..].
 *   y[n, o, e] = b[o] + sum over c, k of w[o, c, k] x[n, c, e * stride + k * dilation - pad] */
#include <inttypes.h>

#include "base/err.h"
#include "op/conv/conv_priv.h"
#include "op/op_priv.h"

static int check_channels(const struct op_infer *f, const struct conv_param *p, struct err *err)
{
    const struct shape *x = &f->in[0]->shape, *w = &f->in[1]->shape;
    char xt[192], wt[192];

    shape_print(x, xt, sizeof(xt));
    shape_print(w, wt, sizeof(wt));
    if (p->group < 1 || p->group > w->dim[0] || w->dim[0] % p->group != 0)
        return op_error(f, 0, err,
                        "attribute 'group' is %" PRId64 "; expected a divisor of the %" PRId64
                        " filters of weights %s",
                        p->group, w->dim[0], wt);
    if (x->dim[1] < 1 || x->dim[1] % p->group != 0 || x->dim[1] / p->group != w->dim[1])
        return op_error(f, 0, err,
                        "input %s and weights %s do not fit with group %" PRId64
                        ": each filter reads %" PRId64 " channels",
                        xt, wt, p->group, w->dim[1]);
    return 0;
}

int conv_check_images(const struct op_infer *f, struct err *err)
{
    const struct shape *x;
    char text[192];
    int rc = op_check_input(f, 0, TENSOR_F32, -1, err);

    if (rc < 0)
        return rc;
    x = &f->in[0]->shape;
    if (x->rank < 3 || x->rank > OP_SPATIAL_MAX + 2)
        return op_error(f, ERR_UNSUPPORTED, err,
                        "input 0 has shape %s; expected 3 to %d dimensions: n, c and 1 to %d of "
                        "space",
                        shape_print(x, text, sizeof(text)), OP_SPATIAL_MAX + 2, OP_SPATIAL_MAX);
    return op_check_input(f, 1, TENSOR_F32, (int)x->rank, err);
}

int conv_check_bias(const struct op_infer *f, int64_t o, struct err *err)
{
    int rc;

    if (f->n_in < 3 || f->in[2] == NULL)
        return 0;
    /* graph/repair.c removes such a bias if it is zero. */
    if (f->in[2]->shape.rank == 2 && f->in[2]->shape.dim[0] == o)
        return op_error(f, ERR_INPUT, err,
                        "the bias has shape [%" PRId64 ", %" PRId64 "]; expected [%" PRId64
                        "]: torch.onnx.export of PyTorch 2.15 writes Conv3d(bias=False) so with "
                        "optimize=False: export with optimize=True, or give the module a bias",
                        o, f->in[2]->shape.dim[1], o);
    rc = op_check_input(f, 2, TENSOR_F32, 1, err);
    if (rc < 0)
        return rc;
    if (f->in[2]->shape.dim[0] != o)
        return op_error(f, 0, err, "the bias has %" PRId64 " elements; expected %" PRId64,
                        f->in[2]->shape.dim[0], o);
    return 0;
}

static int infer(struct op_infer *f, struct err *err)
{
    struct conv_param *p = f->param;
    struct shape *y = &f->out[0].shape;
    uint32_t k;
    int rc = conv_check_images(f, err);

    if (rc == 0)
        rc = op_attr_i(f, "group", 1, &p->group, err);
    if (rc == 0)
        rc = check_channels(f, p, err);
    if (rc == 0)
        rc = conv_check_bias(f, f->in[1]->shape.dim[0], err);
    if (rc == 0)
        rc = op_window_infer(f, f->in[1]->shape.dim + 2, false, &p->window, err);
    if (rc < 0)
        return rc;
    *y = f->in[0]->shape;
    y->dim[1] = f->in[1]->shape.dim[0];
    for (k = 0; k < p->window.spatial; k++)
        y->dim[2 + k] = p->window.out[k];
    f->out[0].dtype = TENSOR_F32;
    return op_check_size(f, err);
}

/* Each output element is a dot product with one filter. */
static double flops(const struct op_infer *f)
{
    const struct shape *w = &f->in[1]->shape;

    return 2.0 * (double)shape_elements(&f->out[0].shape) * (double)shape_elements(w) /
           (double)w->dim[0];
}

static const char *const attrs[] = { "auto_pad", "dilations", "group",  "kernel_shape",
                                     "pads",     "strides",   NULL };

const struct op_def op_conv = {
    .name = "Conv",
    .since = 1,
    .n_in = { 2, 3 },
    .n_out = { 1, 1 },
    .attrs = attrs,
    .param_bytes = sizeof(struct conv_param),
    .infer = infer,
    .diff = OP_IN(0) | OP_IN(1) | OP_IN(2),
    .bwd_reads = OP_IN(0) | OP_IN(1),
    .layout = OP_LAYOUT_CHANNELS,
    .half = OP_HALF_WANT,
    .half_of = OP_IN(0) | OP_OUT(0),
    .cpu = { conv_cpu_plan, conv_cpu_fwd, conv_cpu_bwd, conv_cpu_free },
    .flops = flops,
};
