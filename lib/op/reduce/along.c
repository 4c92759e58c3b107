#include "op/reduce/along.h"

#include "base/err.h"
#include "op/op_priv.h"

int along_infer(const struct op_infer *f, int64_t axis, struct along *a, struct err *err)
{
    const struct shape *x;
    uint32_t i;
    int rc;

    if (f->in[0] == NULL)
        return op_error(f, ERR_INPUT, err, "input 0 is missing");
    x = &f->in[0]->shape;
    rc = op_axis(f, &axis, x->rank, err);
    if (rc < 0)
        return rc;
    *a = (struct along){ 1, (size_t)x->dim[axis], 1, (uint32_t)axis };
    for (i = 0; i < x->rank; i++)
        if (i != a->axis)
            *(i < a->axis ? &a->outer : &a->inner) *= (size_t)x->dim[i];
    if (shape_elements(x) == 0) /* even if the product of the other dimensions overflows */
        a->outer = 0;
    return 0;
}
