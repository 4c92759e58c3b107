#include "harness/op_oracle.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "harness/op_record.h"

static const char *name_of(const struct gradcheck_case *gc)
{
    return gc->op != NULL ? gc->op : gc->def->name;
}

static const struct op_def *def_of(const struct gradcheck_case *gc)
{
    return gc->def != NULL ? gc->def : op_find(gc->domain, gc->op, gc->opset);
}

static bool is_wanted(const struct gradcheck_case *gc)
{
    const struct op_def *def = def_of(gc);

    return def == NULL || op_record_wants(def); /* NULL: gradcheck_forward() fails the test */
}

/* Returns the value of a 16-bit float, by its definition. */
static double half(int fraction, int bias, uint16_t code)
{
    double part = (double)(code % (1 << fraction)) / (1 << fraction);
    int exponent = code % 0x8000 >> fraction;
    double v = exponent == 0 ? part * pow(2, 1 - bias) : (1 + part) * pow(2, exponent - bias);

    if (exponent == 0x7FFF >> fraction)
        v = part != 0 ? NAN : INFINITY;
    return code >= 0x8000 ? -v : v;
}

double oracle_at(const struct tensor *t, size_t i)
{
    switch ((int)t->dtype) {
    case TENSOR_F32: return (double)((const float *)t->data)[i];
    case TENSOR_F64: return ((const double *)t->data)[i];
    case TENSOR_I64: return (double)((const int64_t *)t->data)[i];
    case TENSOR_I32: return ((const int32_t *)t->data)[i];
    case TENSOR_U64: return (double)((const uint64_t *)t->data)[i];
    case TENSOR_F16: return half(10, 15, ((const uint16_t *)t->data)[i]);
    case TENSOR_BF16: return half(7, 127, ((const uint16_t *)t->data)[i]);
    case TENSOR_U8:
    case TENSOR_BOOL: return ((const uint8_t *)t->data)[i];
    default: fail_msg("the oracle does not know %s", tensor_dtype_name(t->dtype));
    }
    return 0;
}

size_t oracle_under(const struct shape *s, const struct shape *out, size_t i)
{
    size_t where = 0, step = 1;
    uint32_t k;

    for (k = 0; k < s->rank; k++) { /* from the last axis backwards */
        size_t dim = (size_t)s->dim[s->rank - 1 - k];
        size_t out_dim = (size_t)out->dim[out->rank - 1 - k];

        where += dim == 1 ? 0 : i % out_dim * step;
        step *= dim;
        i /= out_dim;
    }
    return where;
}

static void forward(const struct gradcheck_case *gc, struct gradcheck_result *r)
{
    struct err err = { 0 };

    if (gradcheck_forward(gc, r, &err) < 0)
        fail_msg("%s: %s", name_of(gc), err.text);
}

void oracle_elementwise(const struct gradcheck_case *gc, double (*f)(const double *x, uint32_t n),
                        double tol)
{
    struct gradcheck_result r;
    size_t n, i;
    uint32_t k;

    if (!is_wanted(gc))
        return;
    forward(gc, &r);
    n = (size_t)tensor_elements(&r.out[0]);
    for (i = 0; i < n; i++) {
        double x[GRADCHECK_MAX], want, got = oracle_at(&r.out[0], i);

        for (k = 0; k < gc->n_in; k++)
            x[k] = r.in[k].data == NULL
                       ? NAN
                       : oracle_at(&r.in[k], oracle_under(&r.in[k].shape, &r.out[0].shape, i));
        want = f(x, gc->n_in);
        if (isnan(want) ? !isnan(got)
                        : got != want && !(fabs(got - want) <= tol * (1 + fabs(want))))
            fail_msg("%s: element %zu of %zu is %.9g, expected %.9g", name_of(gc), i, n, got, want);
    }
    op_record(def_of(gc), OP_RECORD_ORACLE);
    gradcheck_free(&r);
}

void oracle_refused(const struct gradcheck_case *gc, int code, const char *part)
{
    struct gradcheck_result r;
    struct err err = { 0 };
    int rc = gradcheck_forward(gc, &r, &err);

    if (rc == 0)
        fail_msg("%s: accepted; expected a refusal with \"%s\"", name_of(gc), part);
    if (rc != code || strstr(err.text, part) == NULL)
        fail_msg("%s: refused with %d \"%s\"; expected %d and \"%s\"", name_of(gc), rc, err.text,
                 code, part);
}

static void expect_shape(const struct gradcheck_case *gc, const struct shape *got,
                         const struct shape *want)
{
    char text_got[192], text_want[192];

    if (!shape_equal(got, want))
        fail_msg("%s: shape %s, expected %s", name_of(gc),
                 shape_print(got, text_got, sizeof(text_got)),
                 shape_print(want, text_want, sizeof(text_want)));
}

void oracle_ints(const struct gradcheck_case *gc, const struct shape *shape, const int64_t *want)
{
    struct gradcheck_result r;
    size_t n, i;

    if (!is_wanted(gc))
        return;
    forward(gc, &r);
    expect_shape(gc, &r.out[0].shape, shape);
    n = (size_t)tensor_elements(&r.out[0]);
    for (i = 0; i < n; i++) {
        int64_t got = r.out[0].dtype == TENSOR_I64 || r.out[0].dtype == TENSOR_U64
                          ? ((int64_t *)r.out[0].data)[i]
                          : (int64_t)oracle_at(&r.out[0], i);

        if (got != want[i])
            fail_msg("%s: element %zu is %lld, expected %lld", name_of(gc), i, (long long)got,
                     (long long)want[i]);
    }
    op_record(def_of(gc), OP_RECORD_ORACLE);
    gradcheck_free(&r);
}

void oracle_floats(const struct gradcheck_case *gc, const struct shape *shape, const float *want)
{
    struct gradcheck_result r;
    size_t n, i;

    if (!is_wanted(gc))
        return;
    forward(gc, &r);
    expect_shape(gc, &r.out[0].shape, shape);
    assert_int_equal(r.out[0].dtype, TENSOR_F32);
    n = (size_t)tensor_elements(&r.out[0]);
    for (i = 0; i < n; i++) {
        float got = ((float *)r.out[0].data)[i];

        if (memcmp(&got, &want[i], sizeof(got)) != 0 && !(isnan(got) && isnan(want[i])))
            fail_msg("%s: element %zu is %.9g, expected %.9g", name_of(gc), i, (double)got,
                     (double)want[i]);
    }
    op_record(def_of(gc), OP_RECORD_ORACLE);
    gradcheck_free(&r);
}
