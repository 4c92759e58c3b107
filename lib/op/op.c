#include "op/op.h"

#include <fenv.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "op/dnn.h"
#include "op/op_priv.h"

#define OP(row_) extern const struct op_def row_;
#include "op/op_list.h"
#undef OP

#define OP(row_) &row_,
static const struct op_def *const rows[] = {
#include "op/op_list.h"
};
#undef OP

static const char onnx_domain[] = "ai.onnx";

const struct op_def *const *op_all(size_t *n)
{
    *n = COUNT_OF(rows);
    return rows;
}

uint32_t op_row(const struct op_def *def)
{
    uint32_t i = 0;

    while (rows[i] != def)
        CHECK(++i < COUNT_OF(rows));
    return i;
}

static const char *domain_of(const char *domain)
{
    return domain == NULL || domain[0] == '\0' ? onnx_domain : domain;
}

const struct op_def *op_find(const char *domain, const char *name, uint32_t opset)
{
    size_t i;

    for (i = 0; i < COUNT_OF(rows); i++) {
        const struct op_def *row = rows[i];

        if (strcmp(row->name, name) == 0 && row->since <= opset &&
            (row->until == 0 || opset <= row->until) &&
            strcmp(domain_of(row->domain), domain_of(domain)) == 0)
            return row;
    }
    return NULL;
}

/* ---- errors ---- */

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

int op_need(const struct op_infer *f, uint32_t i, enum tensor_dtype dtype, int rank,
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

int op_fits(const struct op_infer *f, struct err *err)
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
    int rc = op_need(f, 0, TENSOR_F32, -1, err);

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
        rc = op_need(f, i, TENSOR_F32, -1, err);
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
    return op_fits(f, err);
}

/* ---- kernels ---- */

const char *op_kernel_id(void)
{
    return dnn_id();
}

bool op_has_bfloat16(void)
{
    return dnn_has_bfloat16();
}

void op_thread_init(void)
{
    /* Reset the floating-point environment to the state at program start (round to nearest, no
     * traps, denormals not flushed), because a library may have changed it for this thread. */
    (void)fesetenv(FE_DFL_ENV);
    dnn_thread_init();
}
