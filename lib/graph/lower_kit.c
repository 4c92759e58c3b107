#include "graph/lower_kit.h"

#include <inttypes.h>

#include "base/arena.h"
#include "base/err.h"

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
    int64_t *wide;

    *values = NULL;
    *n = 0;
    if (l->rc < 0 || t == NULL)
        return l->rc == 0;
    if ((t->dtype != TENSOR_I64 && t->dtype != TENSOR_I32) || t->shape.rank > 1)
        LOWER_ERROR(l, ERR_INPUT,
                    "input %" PRIu32 " is %s of %" PRIu32 " dimensions; expected a list of int64",
                    i, tensor_dtype_name(t->dtype), t->shape.rank);
    else if (t->data == NULL)
        LOWER_ERROR(l, ERR_UNSUPPORTED, "input %" PRIu32 " is computed by the graph; expected a constant of "
                    "the model, because the shape depends on it", i);
    if (l->rc < 0)
        return false;
    *n = (size_t)tensor_elements(t);
    *values = t->data;
    if (t->dtype == TENSOR_I64)
        return true;
    wide = arena_array(&l->p->mem, *n, sizeof(*wide));
    if (wide == NULL) {
        l->rc = plan_no_memory(l->err);
        return false;
    }
    for (size_t k = 0; k < *n; k++)
        wide[k] = ((const int32_t *)t->data)[k];
    *values = wide;
    return true;
}

bool kit_check_axis(struct lowering *l, int64_t *axis, uint32_t rank)
{
    if (l->rc == 0 && (*axis < -(int64_t)rank || *axis >= (int64_t)rank))
        LOWER_ERROR(l, ERR_INPUT, "axis %" PRId64 " of %" PRIu32 " axes", *axis, rank);
    if (*axis < 0)
        *axis += rank;
    return l->rc == 0;
}

int64_t kit_axis(struct lowering *l, const char *name, int64_t dflt, uint32_t rank)
{
    int64_t axis = 0;

    if (l->rc == 0)
        l->rc = op_attr_i(&l->attrs, name, dflt, &axis, l->err);
    return kit_check_axis(l, &axis, rank) ? axis : 0;
}
