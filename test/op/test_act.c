#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "harness/gradcheck.h"

static double relu(double x)
{
    return isnan(x) ? x : fmax(x, 0);
}

static double relu_slope(double x)
{
    return x > 0;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double sigmoid_slope(double x)
{
    return 1 / (2 + exp(x) + exp(-x));
}

static double tanh_slope(double x)
{
    return 1 / (cosh(x) * cosh(x));
}

static const struct activation {
    const char *op;
    double (*f)(double);
    double (*slope)(double);
} activations[] = {
    { "Relu", relu, relu_slope },
    { "Sigmoid", sigmoid, sigmoid_slope },
    { "Tanh", tanh, tanh_slope },
};

static struct gradcheck_case case_of(const char *op, int64_t n)
{
    return (struct gradcheck_case){ .op = op, .opset = 13, .n_in = 1, .seed = 5,
                                    .in = { { .shape = GRADCHECK_SHAPE(n), .lo = -6, .hi = 6,
                                              .apart = true } } };
}

static void values_and_gradients_follow_formula_for_every_length(void **state)
{
    static const int64_t lengths[] = { 0, 1, 2, 15, 16, 17, 63, 100, 1001 };
    double y[1001], dx[1001];
    size_t k, l;

    (void)state;
    for (k = 0; k < COUNT_OF(activations); k++)
        for (l = 0; l < COUNT_OF(lengths); l++) {
            const struct activation *a = &activations[k];
            struct gradcheck_case gc = case_of(a->op, lengths[l]);
            size_t n = (size_t)lengths[l], i;
            struct gradcheck_result r;
            struct err err = { 0 };

            assert_int_equal(gradcheck_backward(&gc, &r, &err), 0);
            for (i = 0; i < n; i++) {
                double x = (double)((float *)r.in[0].data)[i];

                y[i] = a->f(x);
                dx[i] = (double)((float *)r.dout[0].data)[i] * a->slope(x);
            }
            gradcheck_near(a->op, r.out[0].data, y, n, 2e-7);
            gradcheck_near(a->op, r.din[0].data, dx, n, 4e-7);
            gradcheck_free(&r);
        }
}

static void gradients_match_differences_in_any_layout(void **state)
{
    size_t k;

    (void)state;
    for (k = 0; k < COUNT_OF(activations); k++) {
        struct gradcheck_case gc = case_of(activations[k].op, 1);

        gc.in[0].shape = shape_of(4, (int64_t)2, (int64_t)3, (int64_t)5, (int64_t)7);
        gradcheck_run(&gc);
        gc.in[0].shape = shape_of(0);
        gradcheck_run(&gc);
    }
}

static void nan_propagates_and_limits_are_reached(void **state)
{
    static const float x[6] = { NAN, INFINITY, -INFINITY, -0.0f, 1000, -1000 };
    static const double want[][6] = {
        { NAN, INFINITY, 0, 0, 1000, 0 },
        { NAN, 1, 0, 0.5, 1, 0 },
        { NAN, 1, -1, 0, 1, -1 },
    };
    size_t k;

    (void)state;
    for (k = 0; k < COUNT_OF(activations); k++) {
        struct gradcheck_case gc = case_of(activations[k].op, 6);
        struct gradcheck_result r;
        struct err err = { 0 };

        gc.in[0].data = x;
        assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
        gradcheck_near(activations[k].op, r.out[0].data, want[k], 6, 0);
        gradcheck_free(&r);
    }
}

static void relu_with_nan_input_or_gradient_does_not_hide_it(void **state)
{
    static const float x[3] = { NAN, 1, -1 }, dout[3] = { 2, NAN, NAN };
    static const double want[3] = { 2, NAN, 0 };
    struct gradcheck_case gc = case_of("Relu", 3);
    struct gradcheck_result r;
    struct err err = { 0 };

    (void)state;
    gc.in[0].data = x;
    gc.dout[0] = dout;
    assert_int_equal(gradcheck_backward(&gc, &r, &err), 0);
    gradcheck_near("Relu", r.din[0].data, want, 3, 0);
    gradcheck_free(&r);
}

static void missing_dout_gives_zero_gradient(void **state)
{
    static const double zeros[9] = { 0 };
    struct gradcheck_case gc = case_of("Tanh", 9);
    struct gradcheck_result r;
    struct err err = { 0 };

    (void)state;
    gc.no_dout = OP_OUT(0);
    assert_int_equal(gradcheck_backward(&gc, &r, &err), 0);
    gradcheck_near("Tanh", r.din[0].data, zeros, 9, 0);
    gradcheck_free(&r);
}

static void unsupported_types_are_rejected(void **state)
{
    struct gradcheck_case gc = case_of("Relu", 3);
    struct gradcheck_result r;
    struct err err = { 0 };

    (void)state;
    gc.in[0].dtype = TENSOR_I32;
    assert_true(gradcheck_forward(&gc, &r, &err) < 0);
    assert_non_null(strstr(err.text, "int32"));
    assert_non_null(strstr(err.text, "float32"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_and_gradients_follow_formula_for_every_length),
        cmocka_unit_test(gradients_match_differences_in_any_layout),
        cmocka_unit_test(nan_propagates_and_limits_are_reached),
        cmocka_unit_test(relu_with_nan_input_or_gradient_does_not_hide_it),
        cmocka_unit_test(missing_dout_gives_zero_gradient),
        cmocka_unit_test(unsupported_types_are_rejected),
    };

    return cmocka_run_group_tests_name("op/act", tests, NULL, NULL);
}
