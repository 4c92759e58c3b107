/* axes.c - reads axes from attributes and constant inputs. */
#include <inttypes.h>

#include "base/arena.h"
#include "base/err.h"
#include "op/op_priv.h"

int op_axis(const struct op_infer *f, int64_t *axis, uint32_t rank, struct err *err)
{
    if (*axis < -(int64_t)rank || *axis >= (int64_t)rank)
        return op_error(f, ERR_INPUT, err, "axis is %" PRId64 "; expected %" PRId64 " to %" PRId64
                        " for %" PRIu32 " dimensions", *axis, -(int64_t)rank, (int64_t)rank - 1,
                        rank);
    if (*axis < 0)
        *axis += rank;
    return 0;
}

static int widen(const struct op_infer *f, const struct tensor *t, const int64_t **values, size_t n,
                 struct err *err)
{
    int64_t *wide = arena_array(f->mem, n + 1, sizeof(*wide));
    size_t i;

    if (wide == NULL)
        return op_error(f, ERR_NOMEM, err, "out of memory");
    for (i = 0; i < n; i++)
        wide[i] = ((const int32_t *)t->data)[i];
    *values = wide;
    return 0;
}

int op_const_ints(const struct op_infer *f, uint32_t i, const int64_t **values, size_t *n,
                  struct err *err)
{
    const struct tensor *t = i < f->n_in ? f->in[i] : NULL;

    *values = NULL;
    *n = 0;
    if (t == NULL)
        return 0;
    if (t->dtype != TENSOR_I64 && t->dtype != TENSOR_I32)
        return op_error(f, ERR_INPUT, err, "input %" PRIu32 " is %s; expected int64 or int32", i,
                        tensor_dtype_name(t->dtype));
    if (t->shape.rank > 1)
        return op_error(f, ERR_INPUT, err, "input %" PRIu32 " has %" PRIu32
                        " dimensions; expected a list", i, t->shape.rank);
    if (t->data == NULL)
        return op_error(f, ERR_UNSUPPORTED, err, "input %" PRIu32 " is computed by the graph; it "
                        "must be a constant of the model, as it determines the shape", i);
    *n = (size_t)tensor_elements(t);
    *values = t->data;
    return t->dtype == TENSOR_I64 ? 0 : widen(f, t, values, *n, err);
}

int op_axes(const struct op_infer *f, uint32_t i, const char *attr, uint32_t rank, uint32_t *set,
            bool *given, struct err *err)
{
    const int64_t *axes = NULL;
    size_t n = 0, k;
    int rc = op_const_ints(f, i, &axes, &n, err);

    if (rc == 0 && axes == NULL && attr != NULL)
        rc = op_attr_ints(f, attr, &axes, &n, err);
    *set = 0;
    *given = n > 0;
    for (k = 0; k < n && rc == 0; k++) {
        int64_t axis = axes[k];

        rc = op_axis(f, &axis, rank, err);
        if (rc == 0 && (*set & (1u << axis)) != 0)
            rc = op_error(f, ERR_INPUT, err, "axis %" PRId64 " is repeated", axis);
        if (rc == 0)
            *set |= 1u << axis;
    }
    return rc;
}

int op_attr_tensor(const struct op_infer *f, const char *name, const struct tensor **out,
                   struct err *err)
{
    uint32_t i;

    *out = NULL;
    for (i = 0; i < f->n_attrs; i++) {
        const struct op_attr *a = &f->attrs[i];

        if (strcmp(a->name, name) != 0)
            continue;
        if (a->type != OP_ATTR_TENSOR || a->tensor == NULL)
            return op_error(f, ERR_INPUT, err, "attribute '%s' is not a tensor", name);
        *out = a->tensor;
    }
    return 0;
}
