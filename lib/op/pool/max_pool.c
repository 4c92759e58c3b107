/* max_pool.c - MaxPool: the maximum x of each window; padding never is the maximum. The gradient
 * goes to the maximum, the first one of equal elements. Output 1, Indices: the index of the maximum
 * in x, in plain order. GlobalMaxPool: one window over the whole space. */
#include <inttypes.h>

#include "base/err.h"
#include "op/op_priv.h"
#include "op/pool/pool_priv.h"

static int infer(struct op_infer *f, struct err *err)
{
    struct max_pool_param *p = f->param;
    int64_t order = 0;
    int rc = op_attr_i(f, "storage_order", 0, &order, err); /* affects Indices only */

    if (rc == 0)
        rc = pool_infer(f, false, true, &p->window, err);
    if (rc == 0 && f->n_out > 1 && order != 0)
        rc = op_error(f, ERR_UNSUPPORTED, err, "attribute 'storage_order' is %" PRId64
                      "; only 0 works for the second output, Indices", order);
    if (rc == 0 && f->n_out > 1) {
        f->out[1].dtype = TENSOR_I64;
        f->out[1].shape = f->out[0].shape;
    }
    return rc;
}

static int infer_global(struct op_infer *f, struct err *err)
{
    struct max_pool_param *p = f->param;

    return pool_infer(f, true, false, &p->window, err);
}

static const char *const attrs[] = { "auto_pad", "ceil_mode",     "dilations", "kernel_shape",
                                     "pads",     "storage_order", "strides",   NULL };

#define FIELDS                                                                                     \
    .since = 1, .n_in = { 1, 1 }, .param_bytes = sizeof(struct max_pool_param), .diff = OP_IN(0),  \
    .layout = OP_LAYOUT_CHANNELS, .half = OP_HALF_SAME, .half_of = OP_IN(0) | OP_OUT(0),           \
    .cpu = { max_pool_cpu_plan, max_pool_cpu_fwd, max_pool_cpu_bwd, max_pool_cpu_free }

const struct op_def op_max_pool = { FIELDS, .name = "MaxPool", .n_out = { 1, 2 }, .attrs = attrs,
                                    .infer = infer };
const struct op_def op_global_max_pool = { FIELDS, .name = "GlobalMaxPool", .n_out = { 1, 1 },
                                           .infer = infer_global };
