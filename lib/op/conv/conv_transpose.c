/* conv_transpose.c - ConvTranspose:
 *   x [n, c, d1..], w [c, o / group, k1..], b [o] -> y [n, o, e1..]
 *   y[n, o, e] = b[o] + sum of w[c, o, k] x[n, c, d] over all c, k and d with
 *   e = d * stride + k * dilation - pad
 * It computes the input gradient of a convolution from y to x with the same weights (Conv). */
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
    if (x->dim[1] < 1 || x->dim[1] != w->dim[0] || w->dim[1] < 1)
        return op_error(f, ERR_INPUT, err,
                        "input %s and weights %s do not fit: the weights begin with the channels "
                        "of the input", xt, wt);
    if (p->group < 1 || w->dim[0] % p->group != 0 || w->dim[1] > INT32_MAX / p->group)
        return op_error(f, ERR_INPUT, err, "attribute 'group' is %" PRId64
                        "; expected a divisor of the %" PRId64 " channels of weights %s", p->group,
                        w->dim[0], wt);
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
        rc = conv_check_bias(f, f->in[1]->shape.dim[1] * p->group, err);
    if (rc == 0)
        rc = op_window_infer_transposed(f, f->in[1]->shape.dim + 2, &p->window, err);
    if (rc < 0)
        return rc;
    *y = f->in[0]->shape;
    y->dim[1] = f->in[1]->shape.dim[1] * p->group;
    for (k = 0; k < p->window.spatial; k++)
        y->dim[2 + k] = p->window.in[k];
    f->out[0].dtype = TENSOR_F32;
    return op_check_size(f, err);
}

/* Each input element is multiplied by all weights of its channel. */
static double flops(const struct op_infer *f)
{
    const struct shape *w = &f->in[1]->shape;

    return 2.0 * (double)shape_elements(&f->in[0]->shape) * (double)shape_elements(w) /
           (double)w->dim[0];
}

static const char *const attrs[] = { "auto_pad",       "dilations",    "group", "kernel_shape",
                                     "output_padding", "output_shape", "pads",  "strides",
                                     NULL };

#define FIELDS                                                                                     \
    .name = "ConvTranspose", .n_in = { 2, 3 }, .n_out = { 1, 1 }, .attrs = attrs,                  \
    .param_bytes = sizeof(struct conv_param), .infer = infer,                                      \
    .diff = OP_IN(0) | OP_IN(1) | OP_IN(2), .bwd_reads = OP_IN(0) | OP_IN(1),                      \
    .layout = OP_LAYOUT_CHANNELS, .half = OP_HALF_WANT, .half_of = OP_IN(0) | OP_OUT(0),           \
    .cpu = { conv_transpose_cpu_plan, conv_transpose_cpu_fwd, conv_transpose_cpu_bwd,              \
             conv_transpose_cpu_free },                                                            \
    .flops = flops

const struct op_def op_conv_transpose = { FIELDS, .since = 11 };
const struct op_def op_conv_transpose_1 = { FIELDS, .since = 1, .until = 10 };
