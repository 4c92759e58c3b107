#include "op/act/softmax.h"

#include "base/err.h"
#include "op/op.h"

static int infer_at(struct op_infer *f, int64_t dflt, struct err *err)
{
    struct softmax *s = f->param;
    const struct shape *x;
    int64_t axis, rank, i, last;
    char text[192];
    int rc = infer_same_shape(f, err);

    if (rc == 0)
        rc = op_attr_i(f, "axis", dflt, &axis, err);
    if (rc < 0)
        return rc;
    x = &f->in[0]->shape;
    rank = x->rank;
    last = f->def->until == 0 ? rank - 1 : rank; /* an axis equal to the rank flattens to k = 1 */
    if (axis < -rank || axis > last)
        return op_error(f, ERR_INPUT, err, "axis is %lld; expected %lld to %lld for shape %s",
                        (long long)axis, (long long)-rank, (long long)last,
                        shape_print(x, text, sizeof(text)));
    if (axis < 0)
        axis += rank;
    *s = (struct softmax){ 1, 1, 1 };
    for (i = 0; i < rank; i++) {
        bool summed = f->def->until == 0 ? i == axis : i >= axis;

        *(summed ? &s->k : i < axis ? &s->outer : &s->inner) *= (size_t)x->dim[i];
    }
    return 0;
}

int softmax_infer_13(struct op_infer *f, struct err *err)
{
    return infer_at(f, -1, err);
}

int softmax_infer_1(struct op_infer *f, struct err *err)
{
    return infer_at(f, 1, err);
}
