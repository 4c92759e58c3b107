/* prelu.c - PRelu: y = x <= 0 ? slope x : x.   dx = dy (x <= 0 ? slope : 1), dslope = dy x where
 * x <= 0, summed where the slope repeats. Opset 7: the slope is broadcast to x, never x to it. */
#include "op/elem/elem.h"

#include <stdlib.h>

#include "base/err.h"

ELEM_FWD(prelu_f32, float, elem_prelu_y(ELEM_A, ELEM_B))
ELEM_BWD(prelu_dx, 0, elem_prelu_da(ELEM_D, ELEM_A, ELEM_B))
ELEM_BWD(prelu_dslope, 1, elem_prelu_db(ELEM_D, ELEM_A))

static const struct elem_kernels kernels = { .f32 = prelu_f32, .bwd = { prelu_dx, prelu_dslope } };
ELEM_ROW(prelu)

static int infer(struct op_infer *f, struct err *err)
{
    char x[192], slope[192];
    int rc = prelu_infer(f, err);

    if (rc == 0 && !shape_equal(&f->out[0].shape, &f->in[0]->shape))
        rc = op_error(f, ERR_INPUT, err, "slope %s does not broadcast to the input %s",
                      shape_print(&f->in[1]->shape, slope, sizeof(slope)),
                      shape_print(&f->in[0]->shape, x, sizeof(x)));
    return rc;
}

const struct op_def op_prelu = {
    .name = "PRelu",
    .since = 7,
    .n_in = { 2, 2 },
    .n_out = { 1, 1 },
    .infer = infer,
    .diff = OP_IN(0) | OP_IN(1),
    .bwd_reads = OP_IN(0) | OP_IN(1),
    .in_place = true,
    .layout = OP_LAYOUT_ANY,
    .cpu = { elem_plan, prelu_fwd, prelu_bwd, free },
};
