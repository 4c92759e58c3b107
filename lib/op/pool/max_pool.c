/* max_pool.c - MaxPool: the largest x of each window; padding never wins. The gradient goes to
 * the winner, the first one of equals. */
#include <inttypes.h>

#include "base/err.h"
#include "op/op_priv.h"
#include "op/pool/pool_priv.h"

/* A window that meets no element has no maximum. Only windows that start in the padding in front
 * can: the last one starts inside (op_window_infer). */
static int check_windows(const struct op_infer *f, const struct op_window *w, struct err *err)
{
    uint32_t k;

    for (k = 0; k < w->spatial; k++) {
        int64_t start, step = w->dilation[k], last = (w->kernel[k] - 1) * step;
        int64_t e;

        for (e = 0; e < w->out[k] && (start = e * w->stride[k] - w->pad_lo[k]) < 0; e++) {
            int64_t first = start + (-start + step - 1) / step * step; /* first tap not in front */

            if (first > start + last || first >= w->in[k])
                return op_error(f, 0, err,
                                "window %" PRId64 " along axis %u lies wholly in the padding "
                                "(pads %" PRId64 ", kernel %" PRId64 ", dilation %" PRId64 ")",
                                e, k + 2, w->pad_lo[k], w->kernel[k], step);
        }
        start = (w->out[k] - 1) * w->stride[k] - w->pad_lo[k];
        if (start >= w->in[k])
            return op_error(f, 0, err,
                            "the last window along axis %u lies wholly in the padding (pads "
                            "%" PRId64 ", kernel %" PRId64 ")",
                            k + 2, w->pad_hi[k], w->kernel[k]);
    }
    return 0;
}

static int infer(struct op_infer *f, struct err *err)
{
    struct max_pool_param *p = f->param;
    struct shape *y = &f->out[0].shape;
    int64_t ceil_mode = 0, order = 0;
    const struct shape *x;
    char text[192];
    uint32_t k;
    int rc = op_need(f, 0, TENSOR_F32, -1, err);

    if (rc < 0)
        return rc;
    x = &f->in[0]->shape;
    if (x->rank < 3 || x->rank > OP_SPATIAL_MAX + 2 || x->dim[1] < 1)
        return op_error(f, ERR_UNSUPPORTED, err,
                        "input 0 has shape %s; expected 3 to %d dimensions: n, c and 1 to %d of "
                        "space",
                        shape_print(x, text, sizeof(text)), OP_SPATIAL_MAX + 2, OP_SPATIAL_MAX);
    if (f->n_out > 1)
        return op_error(f, ERR_UNSUPPORTED, err,
                        "the second output, Indices, is not supported; expected one output");
    rc = op_attr_i(f, "ceil_mode", 0, &ceil_mode, err);
    if (rc == 0)
        rc = op_attr_i(f, "storage_order", 0, &order, err); /* of Indices only */
    if (rc == 0)
        rc = op_window_infer(f, NULL, ceil_mode != 0, &p->window, err);
    if (rc == 0)
        rc = check_windows(f, &p->window, err);
    if (rc < 0)
        return rc;
    *y = *x;
    for (k = 0; k < p->window.spatial; k++)
        y->dim[2 + k] = p->window.out[k];
    f->out[0].dtype = TENSOR_F32;
    return op_fits(f, err);
}

static const char *const attrs[] = { "auto_pad", "ceil_mode",     "dilations", "kernel_shape",
                                     "pads",     "storage_order", "strides",   NULL };

const struct op_def op_max_pool = {
    .name = "MaxPool",
    .since = 1,
    .n_in = { 1, 1 },
    .n_out = { 1, 2 },
    .attrs = attrs,
    .param_bytes = sizeof(struct max_pool_param),
    .infer = infer,
    .diff = OP_IN(0),
    .layout = OP_LAYOUT_CHANNELS,
    .cpu = { max_pool_cpu_plan, max_pool_cpu_fwd, max_pool_cpu_bwd, max_pool_cpu_free },
};
