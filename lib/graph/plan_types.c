/* plan_types.c - element types for which a row has no kernels.
 *
 * Rows compute in float32, int32, int64 and bool, some in uint64. If a row refuses a node, the
 * planner tries it again between Cast nodes:
 *   integers of 8, 16 and unsigned 32 bits  in int64: exact, and the Cast back wraps as the type does
 *   uint64                          in int64, for rows whose bits do not depend on the sign
 *   float16, bfloat16               in float32, rounded once at the end. Only in graphs that are
 *                                   executed: for training, files are read as float32
 *   float64                         in float32, only in graphs that are executed;
 *                                   plan_rounded() counts these nodes
 * Cases in which a Cast is not exact (a product of uint64 that is divided, an index) remain
 * refused. */
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "graph/plan_priv.h"

enum { LIKE_NONE = -1, LIKE_FIRST = -2 };

/* Outputs that do not have the type of the first input that was cast: they have the type of input
 * `like`, or a type that the row defines. */
static const struct {
    const char *op;
    uint32_t first, last; /* range of outputs */
    int like;
} exceptions[] = {
    { "ArgMax", 0, 0, LIKE_NONE },
    { "ArgMin", 0, 0, LIKE_NONE },
    { "BatchNormalization", 1, 1, 3 },
    { "BatchNormalization", 2, 2, 4 },
    { "LayerNormalization", 1, 2, LIKE_NONE },
    { "MaxPool", 1, 1, LIKE_NONE },
    { "NonMaxSuppression", 0, 0, LIKE_NONE },
    { "NonZero", 0, 0, LIKE_NONE },
    { "OneHot", 0, 0, 2 },
    { "Pow", 0, 0, 0 },
    { "Shape", 0, 0, LIKE_NONE },
    { "Size", 0, 0, LIKE_NONE },
    { "TopK", 1, 1, LIKE_NONE },
    { "Unique", 1, 3, LIKE_NONE },
};

static int type_like(const struct op_def *def, uint32_t out)
{
    size_t i;

    for (i = 0; i < COUNT_OF(exceptions); i++)
        if (strcmp(def->name, exceptions[i].op) == 0 && out >= exceptions[i].first &&
            out <= exceptions[i].last)
            return exceptions[i].like;
    return LIKE_FIRST;
}

static bool is_one_of(const char *name, const char *const *list)
{
    for (; *list != NULL; list++)
        if (strcmp(name, *list) == 0)
            return true;
    return false;
}

/* The type that replaces t in a node of this row; t itself: no replacement. */
static enum tensor_dtype replacement_type(const struct plan *p, const struct op_def *def,
                                          enum tensor_dtype t)
{
    static const char *const signless[] = { "Add", "BitwiseAnd", "BitwiseNot", "BitwiseOr",
                                            "BitwiseXor", "CumSum", "Equal", "Mul", "ReduceSum",
                                            "Sub", "Sum", "Where", NULL };
    static const char *const of_bool[] = { "ReduceMax", "ReduceMin", NULL };
    /* selects one element: float32 is exact */
    static const char *const of_bytes[] = { "MaxPool", NULL };

    switch ((int)t) {
    case TENSOR_U8:
    case TENSOR_I8:
        return is_one_of(def->name, of_bytes) ? TENSOR_F32 : TENSOR_I64;
    case TENSOR_U16:
    case TENSOR_I16:
    case TENSOR_U32:
        return TENSOR_I64;
    case TENSOR_U64:
        return is_one_of(def->name, signless) ? TENSOR_I64 : t;
    case TENSOR_BOOL:
        return is_one_of(def->name, of_bool) ? TENSOR_I64 : t;
    case TENSOR_F16:
    case TENSOR_BF16:
    case TENSOR_F64:
        return p->purpose == PLAN_RUN ? TENSOR_F32 : t;
    default:
        return t;
    }
}

/* Appends a Cast of `value` to `to`; *out receives its result. */
static int cast(struct plan *p, uint32_t value, enum tensor_dtype to, const char *name,
                uint32_t *out, struct err *err)
{
    struct op_attr *attr = arena_alloc(&p->mem, sizeof(*attr));
    struct plan_node n = { .def = op_find(NULL, "Cast", p->g->opset), .name = name, .n_attrs = 1,
                           .n_in = 1, .n_out = 1 };
    int rc;

    CHECK(n.def != NULL);
    n.in = arena_array(&p->mem, 1, sizeof(*n.in));
    if (attr == NULL || n.in == NULL || name == NULL)
        return plan_no_memory(err);
    *attr = (struct op_attr){ .name = "to", .type = OP_ATTR_INT, .i = to };
    n.attrs = attr;
    n.in[0] = value;
    rc = plan_add_node(p, &n, &name, err);
    if (rc == 0)
        rc = plan_mark_and_fold(p, &n, err);
    if (rc == 0)
        *out = n.out[0];
    return rc;
}

static int cast_inputs(struct plan *p, const struct plan_node *from, struct plan_node *to,
                       struct err *err)
{
    uint32_t i;
    int rc = 0;

    to->in = arena_array(&p->mem, from->n_in, sizeof(*to->in));
    if (to->in == NULL)
        return plan_no_memory(err);
    for (i = 0; i < from->n_in && rc == 0; i++) {
        const struct plan_value *v = from->in[i] != GRAPH_NONE ? &p->values.at[from->in[i]] : NULL;
        enum tensor_dtype t =
            v != NULL ? replacement_type(p, from->def, v->tensor.dtype) : TENSOR_NONE;

        to->in[i] = from->in[i];
        if (v != NULL && t != v->tensor.dtype)
            rc = cast(p, from->in[i], t,
                      arena_printf(&p->mem, "%s as %s", v->name, tensor_dtype_name(t)), &to->in[i],
                      err);
    }
    return rc;
}

/* The type that output i of the node must have; `t` is the type from the row. */
static enum tensor_dtype type_of_output(const struct plan *p, const struct plan_node *from,
                                        uint32_t i, enum tensor_dtype t)
{
    int like = type_like(from->def, i);
    uint32_t k;

    for (k = 0; k < from->n_in; k++) {
        enum tensor_dtype was =
            from->in[k] != GRAPH_NONE ? p->values.at[from->in[k]].tensor.dtype : TENSOR_NONE;

        if ((like == LIKE_FIRST || like == (int)k) && was != TENSOR_NONE &&
            replacement_type(p, from->def, was) == t && was != t)
            return was;
    }
    return t;
}

static bool has_replacement(const struct plan *p, const struct plan_node *n)
{
    uint32_t i;

    for (i = 0; i < n->n_in; i++)
        if (n->in[i] != GRAPH_NONE) {
            enum tensor_dtype t = p->values.at[n->in[i]].tensor.dtype;

            if (replacement_type(p, n->def, t) != t)
                return true;
        }
    return false;
}

static bool reads_double(const struct plan *p, const struct plan_node *n)
{
    uint32_t i;

    for (i = 0; i < n->n_in; i++)
        if (n->in[i] != GRAPH_NONE && p->values.at[n->in[i]].tensor.dtype == TENSOR_F64)
            return true;
    return false;
}

/* Appends the node with its inputs cast, and its outputs cast back. */
static int add_with_casts(struct plan *p, struct plan_node *n, const char *const *out_names,
                          struct err *err)
{
    const char **names = arena_array(&p->mem, n->n_out, sizeof(*names));
    enum tensor_dtype *types = arena_array(&p->mem, n->n_out, sizeof(*types));
    struct plan_node inner = *n;
    struct tensor *out;
    uint32_t i;
    int rc;

    if (names == NULL || types == NULL)
        return plan_no_memory(err);
    rc = cast_inputs(p, n, &inner, err);
    if (rc == 0)
        rc = plan_infer_node(p, &inner, &out, err);
    for (i = 0; i < n->n_out && rc == 0; i++) {
        types[i] = type_of_output(p, n, i, out[i].dtype);
        names[i] = out_names[i];
        if (out_names[i] != NULL && out_names[i][0] != '\0' && types[i] != out[i].dtype)
            names[i] =
                arena_printf(&p->mem, "%s as %s", out_names[i], tensor_dtype_name(out[i].dtype));
    }
    if (rc == 0)
        rc = plan_add_node(p, &inner, names, err);
    if (rc == 0)
        rc = plan_mark_and_fold(p, &inner, err);
    n->out = arena_array(&p->mem, n->n_out, sizeof(*n->out));
    if (rc == 0 && n->out == NULL)
        rc = plan_no_memory(err);
    for (i = 0; i < n->n_out && rc == 0; i++) {
        n->out[i] = inner.out[i];
        if (inner.out[i] != GRAPH_NONE && p->values.at[inner.out[i]].tensor.dtype != types[i])
            rc = cast(p, inner.out[i], types[i], out_names[i], &n->out[i], err);
    }
    return rc;
}

int plan_add_cast(struct plan_builder *b, struct plan_node *n, const char *const *out_names, int rc,
                  struct err *err)
{
    struct plan *p = b->p;
    struct err own;

    if ((rc != ERR_INPUT && rc != ERR_UNSUPPORTED) || n->def->domain != NULL ||
        !has_replacement(p, n) || op_find(NULL, "Cast", p->g->opset) == NULL)
        return rc;
    if (add_with_casts(p, n, out_names, &own) < 0)
        return rc;
    if (reads_double(p, n) && p->types.n_rounded++ == 0)
        p->types.first_rounded = n->name;
    if (err != NULL)
        *err = (struct err){ 0 };
    return 0;
}

uint32_t plan_rounded(const struct plan *p, const char **first)
{
    *first = p->types.first_rounded;
    return p->types.n_rounded;
}
