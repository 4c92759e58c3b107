/* plan_double.c - float64 in formulas.
 *
 * Exporters write scalars of a formula (the scale of an attention, an epsilon) as float64
 * constants, compute with them and cast the result to float32. The rows have no kernels for
 * float64, so a node whose inputs are all known while planning is computed here in float64, as
 * NumPy and ONNX Runtime do. Rows that move numbers without computing (Cast, Reshape, Concat,
 * Gather, Where) support float64 themselves. Every other node that reads float64 is refused, with a
 * remedy: an activation in float64 would have to be computed in float32, and a gradient does not
 * pass through the Cast. */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "graph/plan_priv.h"

typedef double unary_fn(double x);
typedef double binary_fn(double a, double b);

static double negate(double x) { return -x; }
static double reciprocal(double x) { return 1 / x; }
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double relu(double x) { return x > 0 ? x : x == x ? 0 : x; }
static double sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : x; }
static double nearest(double x) { return rint(x); }

static double add(double a, double b) { return a + b; }
static double sub(double a, double b) { return a - b; }
static double mul(double a, double b) { return a * b; }
static double divide(double a, double b) { return a / b; }
/* If either operand is NaN, the result is NaN, as in NumPy. */
static double greatest(double a, double b) { return a > b || a != a ? a : b; }
static double least(double a, double b) { return a < b || a != a ? a : b; }
static double equal(double a, double b) { return a == b; }
static double greater(double a, double b) { return a > b; }
static double greater_or_equal(double a, double b) { return a >= b; }
static double less(double a, double b) { return a < b; }
static double less_or_equal(double a, double b) { return a <= b; }

static const struct {
    const char *op;
    unary_fn *unary;   /* function of one input, or NULL */
    binary_fn *binary; /* function of two inputs, or NULL; applied to a list from left to right if
                          the row has one */
} functions[] = {
    { "Neg", negate, NULL },
    { "Abs", fabs, NULL },
    { "Sqrt", sqrt, NULL },
    { "Exp", exp, NULL },
    { "Log", log, NULL },
    { "Reciprocal", reciprocal, NULL },
    { "Floor", floor, NULL },
    { "Ceil", ceil, NULL },
    { "Round", nearest, NULL },
    { "Sign", sign, NULL },
    { "Sin", sin, NULL },
    { "Cos", cos, NULL },
    { "Tan", tan, NULL },
    { "Tanh", tanh, NULL },
    { "Erf", erf, NULL },
    { "Sigmoid", sigmoid, NULL },
    { "Relu", relu, NULL },
    { "Add", NULL, add },
    { "Sub", NULL, sub },
    { "Mul", NULL, mul },
    { "Div", NULL, divide },
    { "Pow", NULL, pow },
    { "Max", NULL, greatest },
    { "Min", NULL, least },
    { "Sum", NULL, add },
    { "Equal", NULL, equal },
    { "Greater", NULL, greater },
    { "GreaterOrEqual", NULL, greater_or_equal },
    { "Less", NULL, less },
    { "LessOrEqual", NULL, less_or_equal },
};

static bool reads_double(const struct plan *p, const struct plan_node *n)
{
    uint32_t i;

    for (i = 0; i < n->n_in; i++)
        if (n->in[i] != GRAPH_NONE && p->values.at[n->in[i]].tensor.dtype == TENSOR_F64)
            return true;
    return false;
}

/* COUNT_OF(functions): the op is not among them, or an input is not known. */
static size_t function_of(const struct plan *p, const struct plan_node *n)
{
    size_t f = 0;
    uint32_t i;

    while (f < COUNT_OF(functions) &&
           (n->def->domain != NULL || strcmp(functions[f].op, n->def->name) != 0))
        f++;
    for (i = 0; i < n->n_in; i++)
        if (n->in[i] == GRAPH_NONE || !plan_is_known(&p->values.at[n->in[i]]))
            return COUNT_OF(functions);
    return f;
}

bool plan_folds_double(const struct plan *p, const struct plan_node *n)
{
    return reads_double(p, n) && function_of(p, n) < COUNT_OF(functions);
}

/* ---- inference ---- */

int plan_infer_double(const struct plan_node *n, struct op_infer *f, struct err *err)
{
    const struct tensor *const *in = f->in;
    const struct tensor **float_inputs = arena_array(f->mem, f->n_in, sizeof(*float_inputs));
    struct tensor *copy = arena_array(f->mem, f->n_in, sizeof(*copy));
    uint32_t i;
    int rc;

    if (float_inputs == NULL || copy == NULL)
        return plan_no_memory(err);
    for (i = 0; i < f->n_in; i++) { /* the row gets float32 inputs without known values */
        copy[i] = *in[i];
        float_inputs[i] = in[i];
        if (in[i]->dtype != TENSOR_F64 && in[i]->dtype != TENSOR_F32)
            continue;
        copy[i].dtype = TENSOR_F32;
        copy[i].data = NULL;
        float_inputs[i] = &copy[i];
    }
    f->in = float_inputs;
    rc = n->def->infer(f, err);
    f->in = in;
    /* Pow has the type of its base; all others have one type of operands. */
    for (i = 0; i < f->n_out && rc == 0; i++)
        if (f->out[i].dtype == TENSOR_F32)
            f->out[i].dtype = in[0]->dtype;
    return rc;
}

int plan_refuse_double(const struct plan *p, const struct plan_node *n, int rc, struct err *err)
{
    struct err why;

    if (rc == 0 || err == NULL || !reads_double(p, n))
        return rc;
    why = *err;
    return err_set(err, ERR_UNSUPPORTED,
                   "%s; float64 is computed for constants of a formula only: remove .double() or "
                   "torch.float64 from the module, or export it after model.float()",
                   why.text);
}

int plan_check_double(const struct plan *p, const struct plan_node *n, struct err *err)
{
    const struct tensor *x, *y;

    if (plan_folds_double(p, n)) /* no kernel can compute it later */
        return err_set(err, ERR_UNSUPPORTED,
                       "%s '%s': its float64 operands are too large to be computed while planning; "
                       "export the model after model.float()",
                       n->def->name, n->name);
    if (p->purpose == PLAN_RUN || n->in[0] == GRAPH_NONE ||
        (!op_is_onnx(n->def, "Cast") && !op_is_onnx(n->def, "CastLike")))
        return 0;
    x = &p->values.at[n->in[0]].tensor;
    y = &p->values.at[n->out[0]].tensor;
    if (x->dtype != TENSOR_F32 || y->dtype != TENSOR_F64)
        return 0;
    return err_set(err, ERR_UNSUPPORTED,
                   "%s '%s' converts '%s', which is computed in float32, to float64; float64 is "
                   "supported for constants of a formula only: remove .double() or torch.float64 "
                   "from the module, or export it after model.float()",
                   n->def->name, n->name, p->values.at[n->in[0]].name);
}

/* ---- computation ---- */

static double load(const struct tensor *t, size_t i)
{
    switch ((int)t->dtype) {
    case TENSOR_F64: return ((const double *)t->data)[i];
    case TENSOR_F32: return (double)((const float *)t->data)[i];
    case TENSOR_I64: return (double)((const int64_t *)t->data)[i];
    case TENSOR_I32: return (double)((const int32_t *)t->data)[i];
    default: return (double)((const uint8_t *)t->data)[i]; /* infer accepts no other type */
    }
}

static void store(const struct tensor *t, size_t i, double v)
{
    if (t->dtype == TENSOR_F64)
        ((double *)t->data)[i] = v;
    else if (t->dtype == TENSOR_F32)
        ((float *)t->data)[i] = (float)v;
    else
        ((uint8_t *)t->data)[i] = v != 0; /* result of a comparison */
}

/* The element of `in` that broadcasting maps to element i of `out`. */
static size_t source_of(const struct shape *in, const struct shape *out, size_t i)
{
    size_t at = 0, step = 1;
    uint32_t k;

    for (k = 0; k < out->rank; k++) {
        size_t dim = (size_t)out->dim[out->rank - 1 - k], here = i % dim;

        i /= dim;
        if (k < in->rank && in->dim[in->rank - 1 - k] != 1)
            at += here * step;
        if (k < in->rank)
            step *= (size_t)in->dim[in->rank - 1 - k];
    }
    return at;
}

int plan_compute_double(const struct plan *p, const struct plan_node *n, struct err *err)
{
    const struct tensor *y = &p->values.at[n->out[0]].tensor;
    size_t f = function_of(p, n), elements = (size_t)tensor_elements(y), i;
    uint32_t k;

    CHECK(f < COUNT_OF(functions) && y->data != NULL);
    if (y->dtype != TENSOR_F64 && y->dtype != TENSOR_F32 && y->dtype != TENSOR_BOOL)
        return err_set(err, ERR_UNSUPPORTED, "%s '%s': %s computed from float64", n->def->name,
                       n->name, tensor_dtype_name(y->dtype));
    for (i = 0; i < elements; i++) {
        const struct tensor *x = &p->values.at[n->in[0]].tensor;
        double v = load(x, source_of(&x->shape, &y->shape, i));

        if (functions[f].unary != NULL)
            v = functions[f].unary(v);
        for (k = 1; k < n->n_in && functions[f].binary != NULL; k++) {
            x = &p->values.at[n->in[k]].tensor;
            v = functions[f].binary(v, load(x, source_of(&x->shape, &y->shape, i)));
        }
        store(y, i, v);
    }
    return 0;
}
