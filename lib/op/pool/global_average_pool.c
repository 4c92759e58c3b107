/* global_average_pool.c - GlobalAveragePool: x [n, c, d1..] -> y [n, c, 1..], the mean over space.
 *   dx = dy / elements of space */
#include "base/err.h"
#include "op/op_priv.h"
#include "op/pool/pool_priv.h"

static int infer(struct op_infer *f, struct err *err)
{
    struct shape *y = &f->out[0].shape;
    char text[192];
    uint32_t k;
    int rc = infer_same_shape(f, err);

    if (rc < 0)
        return rc;
    if (y->rank < 3)
        return op_error(f, 0, err, "input 0 has shape %s; expected at least 3 dimensions",
                        shape_print(y, text, sizeof(text)));
    for (k = 2; k < y->rank; k++) {
        if (y->dim[k] < 1)
            return op_error(f, 0, err, "input 0 has shape %s: nothing to average along axis %u",
                            shape_print(&f->in[0]->shape, text, sizeof(text)), k);
        y->dim[k] = 1;
    }
    return 0;
}

const struct op_def op_global_average_pool = {
    .name = "GlobalAveragePool",
    .since = 1,
    .n_in = { 1, 1 },
    .n_out = { 1, 1 },
    .infer = infer,
    .diff = OP_IN(0),
    .layout = OP_LAYOUT_CHANNELS,
    .half = OP_HALF_SAME,
    .half_of = OP_IN(0) | OP_OUT(0),
    .cpu = { .plan = global_average_pool_cpu_plan,
             .fwd = global_average_pool_cpu_fwd,
             .bwd = global_average_pool_cpu_bwd },
};
