#include "graph/lower_kit.h"

#include <inttypes.h>

#include "base/err.h"
#include "op/op_priv.h"

const struct tensor *kit_input(struct lowering *l, uint32_t i, enum tensor_dtype t)
{
    uint32_t value = l->rc == 0 ? lower_in(l, i) : GRAPH_NONE;
    const struct tensor *x = value != GRAPH_NONE ? lower_tensor(l, value) : NULL;

    if (l->rc < 0)
        return NULL;
    if (x == NULL)
        LOWER_ERROR(l, ERR_INPUT, "input %" PRIu32 " is missing", i);
    else if (t != TENSOR_NONE && x->dtype != t)
        LOWER_ERROR(l, ERR_UNSUPPORTED, "input %" PRIu32 " is %s; expected %s", i,
                    tensor_dtype_name(x->dtype), tensor_dtype_name(t));
    return l->rc == 0 ? x : NULL;
}

bool kit_known(struct lowering *l, uint32_t i, const int64_t **values, size_t *n)
{
    uint32_t value = l->rc == 0 ? lower_in(l, i) : GRAPH_NONE;
    const struct tensor *t = value != GRAPH_NONE ? lower_tensor(l, value) : NULL;
    struct tensor copy;
    const struct tensor *in[1] = { &copy };
    struct op_infer f = l->attrs;

    *values = NULL;
    *n = 0;
    if (l->rc < 0 || t == NULL)
        return l->rc == 0;
    copy = *t;
    f.in = in;
    f.n_in = 1;
    f.mem = &l->p->mem;
    l->rc = op_const_ints(&f, 0, values, n, l->err);
    return l->rc == 0;
}

bool kit_check_axis(struct lowering *l, int64_t *axis, uint32_t rank)
{
    if (l->rc == 0)
        l->rc = op_axis(&l->attrs, axis, rank, l->err);
    return l->rc == 0;
}

int64_t kit_axis(struct lowering *l, const char *name, int64_t dflt, uint32_t rank)
{
    int64_t axis = 0;

    if (l->rc == 0)
        l->rc = op_attr_i(&l->attrs, name, dflt, &axis, l->err);
    return kit_check_axis(l, &axis, rank) ? axis : 0;
}
