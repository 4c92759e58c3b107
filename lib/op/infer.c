/* infer.c - what the rows need to infer shapes: errors, checks, attributes, and common infer functions. The rows call
 * infer.c; op.c has the table of the rows, so the rows never depend on the table. */
#include <stdarg.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "op/op_priv.h"

/* ---- errors and checks ---- */

int op_error(const struct op_infer *f, int code, struct err *err, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    code = err_setv(err, code == 0 ? ERR_INPUT : code, fmt, ap);
    va_end(ap);
    if (f->def->domain != NULL) /* our own op: no opset */
        return err_wrap(err, code, "%s '%s'", f->def->name, f->node);
    return err_wrap(err, code, "%s '%s' (opset %u)", f->def->name, f->node, f->opset);
}

int op_check_input(const struct op_infer *f, uint32_t i, enum tensor_dtype dtype, int rank,
                   struct err *err)
{
    const struct tensor *t = i < f->n_in ? f->in[i] : NULL;
    char shape[192];

    if (t == NULL)
        return op_error(f, 0, err, "input %u is missing; expected %s", i, tensor_dtype_name(dtype));
    if (t->dtype != dtype)
        return op_error(f, 0, err, "input %u is %s; expected %s", i, tensor_dtype_name(t->dtype),
                        tensor_dtype_name(dtype));
    if (rank >= 0 && t->shape.rank != (uint32_t)rank)
        return op_error(f, 0, err, "input %u has shape %s; expected %d dimensions", i,
                        shape_print(&t->shape, shape, sizeof(shape)), rank);
    return 0;
}

int op_check_size(const struct op_infer *f, struct err *err)
{
    char shape[192];

    if (tensor_bytes(&f->out[0]) != SIZE_MAX)
        return 0;
    return op_error(f, 0, err, "the output of shape %s exceeds the address space",
                    shape_print(&f->out[0].shape, shape, sizeof(shape)));
}

/* ---- attributes ---- */

static const char *attr_type_name(enum op_attr_type t)
{
    static const char *const names[] = {
        [OP_ATTR_FLOAT] = "FLOAT",   [OP_ATTR_INT] = "INT",   [OP_ATTR_STRING] = "STRING",
        [OP_ATTR_TENSOR] = "TENSOR", [OP_ATTR_FLOATS] = "FLOATS", [OP_ATTR_INTS] = "INTS",
        [OP_ATTR_STRINGS] = "STRINGS",
    };

    return (size_t)t < COUNT_OF(names) && names[t] != NULL ? names[t] : "another type";
}

/* Finds attribute `name` and checks its type. *out NULL: absent. */
static int attr_find(const struct op_infer *f, const char *name, enum op_attr_type type,
                     const struct op_attr **out, struct err *err)
{
    uint32_t i;

    *out = NULL;
    for (i = 0; i < f->n_attrs; i++) {
        const struct op_attr *a = &f->attrs[i];

        if (strcmp(a->name, name) != 0)
            continue;
        if (a->type != type)
            return op_error(f, 0, err, "attribute '%s' is %s; expected %s", name,
                            attr_type_name(a->type), attr_type_name(type));
        *out = a;
        return 0;
    }
    return 0;
}

int op_attr_i(const struct op_infer *f, const char *name, int64_t dflt, int64_t *out,
              struct err *err)
{
    const struct op_attr *a;
    int rc = attr_find(f, name, OP_ATTR_INT, &a, err);

    if (rc < 0)
        return rc;
    *out = a != NULL ? a->i : dflt;
    return 0;
}

int op_attr_f(const struct op_infer *f, const char *name, float dflt, float *out, struct err *err)
{
    const struct op_attr *a;
    int rc = attr_find(f, name, OP_ATTR_FLOAT, &a, err);

    if (rc < 0)
        return rc;
    *out = a != NULL ? a->f : dflt;
    return 0;
}

int op_attr_s(const struct op_infer *f, const char *name, const char *dflt, const char **out,
              struct err *err)
{
    const struct op_attr *a;
    int rc = attr_find(f, name, OP_ATTR_STRING, &a, err);

    if (rc < 0)
        return rc;
    *out = a != NULL ? a->s : dflt;
    return 0;
}

int op_attr_ints(const struct op_infer *f, const char *name, const int64_t **out, size_t *n,
                 struct err *err)
{
    const struct op_attr *a;
    int rc = attr_find(f, name, OP_ATTR_INTS, &a, err);

    if (rc < 0)
        return rc;
    *out = a != NULL ? a->ints : NULL;
    *n = a != NULL ? a->n : 0;
    return 0;
}

int op_attr_floats(const struct op_infer *f, const char *name, const float **out, size_t *n,
                   struct err *err)
{
    const struct op_attr *a;
    int rc = attr_find(f, name, OP_ATTR_FLOATS, &a, err);

    if (rc < 0)
        return rc;
    *out = a != NULL ? a->floats : NULL;
    *n = a != NULL ? a->n : 0;
    return 0;
}

int op_attr_strings(const struct op_infer *f, const char *name, const char *const **out, size_t *n,
                    struct err *err)
{
    const struct op_attr *a;
    int rc = attr_find(f, name, OP_ATTR_STRINGS, &a, err);

    if (rc < 0)
        return rc;
    *out = a != NULL ? a->strings : NULL;
    *n = a != NULL ? a->n : 0;
    return 0;
}

/* ---- common inference functions ---- */

int infer_same_shape(struct op_infer *f, struct err *err)
{
    int rc = op_check_input(f, 0, TENSOR_F32, -1, err);

    if (rc < 0)
        return rc;
    f->out[0].dtype = TENSOR_F32;
    f->out[0].shape = f->in[0]->shape;
    return 0;
}

int infer_broadcast(struct op_infer *f, struct err *err)
{
    char a[192], b[192];
    uint32_t i;
    int rc;

    for (i = 0; i < 2; i++) {
        rc = op_check_input(f, i, TENSOR_F32, -1, err);
        if (rc < 0)
            return rc;
    }
    if (!shape_broadcast(&f->in[0]->shape, &f->in[1]->shape, &f->out[0].shape))
        return op_error(f, 0, err,
                        "shapes %s and %s do not broadcast: from the last axis backwards, "
                        "dimensions must be equal or 1",
                        shape_print(&f->in[0]->shape, a, sizeof(a)),
                        shape_print(&f->in[1]->shape, b, sizeof(b)));
    f->out[0].dtype = TENSOR_F32;
    return op_check_size(f, err);
}
