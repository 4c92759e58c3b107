/* trainerd.Gated: against its formula in double precision, and its gradients against
 * differences. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "harness/gradcheck.h"

static double sigmoid(double a)
{
    return 1 / (1 + exp(-a));
}

static double swish(double a)
{
    return a * sigmoid(a);
}

static double gelu(double a)
{
    return a * 0.5 * (1 + erf(a / sqrt(2)));
}

static double gelu_tanh(double a)
{
    return a * 0.5 * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (a + 0.044715 * a * a * a)));
}

static const struct {
    const char *name;
    double (*of)(double a);
} functions[] = { { "sigmoid", sigmoid }, { "swish", swish }, { "gelu", gelu }, { "gelu_tanh", gelu_tanh } };

static struct gradcheck_case case_of(struct op_attr *function, const char *name, struct shape s)
{
    struct gradcheck_case gc = { .domain = "trainerd", .op = "Gated", .opset = 1, .attrs = function, .n_attrs = 1,
                                 .n_in = 2, .seed = 7 };

    *function = (struct op_attr){ .name = "function", .type = OP_ATTR_STRING, .s = name };
    gc.in[0] = (struct gradcheck_tensor){ .shape = s, .lo = -6, .hi = 6 };
    gc.in[1] = (struct gradcheck_tensor){ .shape = s };
    return gc;
}

static void output_follows_formula(void **state)
{
    static const struct shape shapes[] = { GRADCHECK_SHAPE(3, 7), GRADCHECK_SHAPE(2, 1500), GRADCHECK_SHAPE(0, 4),
                                           GRADCHECK_SHAPE(2, 3, 2, 2), { .rank = 0 } };

    (void)state;
    for (size_t k = 0; k < COUNT_OF(functions); k++)
        for (size_t i = 0; i < COUNT_OF(shapes); i++) {
            struct op_attr function;
            struct gradcheck_case gc = case_of(&function, functions[k].name, shapes[i]);
            struct gradcheck_result g;
            struct err err = { 0 };
            size_t n, j;
            double *want;

            if (gradcheck_forward(&gc, &g, &err) < 0)
                fail_msg("%s: %s", functions[k].name, err.text);
            n = (size_t)tensor_elements(&g.out[0]);
            want = calloc(n + 1, sizeof(*want));
            for (j = 0; j < n; j++)
                want[j] = functions[k].of((double)((const float *)g.in[0].data)[j]) *
                          (double)((const float *)g.in[1].data)[j];
            gradcheck_near(functions[k].name, g.out[0].data, want, n, 2e-6);
            free(want);
            gradcheck_free(&g);
            gradcheck_run(&gc);
        }
}

static void bfloat16_computes_in_float32(void **state)
{
    struct op_attr function;
    struct gradcheck_case gc = case_of(&function, "swish", (struct shape)GRADCHECK_SHAPE(2, 1500));
    struct gradcheck_result wide, half;
    struct err err = { 0 };

    (void)state;
    gc.rounded = OP_IN(0) | OP_IN(1);
    assert_int_equal(gradcheck_forward(&gc, &wide, &err), 0);
    gc.rounded = 0;
    gc.half = OP_IN(0) | OP_IN(1) | OP_OUT(0);
    assert_int_equal(gradcheck_forward(&gc, &half, &err), 0);
    for (size_t i = 0; i < 3000; i++) {
        double a = (double)((const float *)wide.out[0].data)[i],
               b = (double)((const float *)half.out[0].data)[i];

        assert_true(fabs(a - b) <= fabs(a) / 200 + 1e-6);
    }
    gradcheck_free(&wide);
    gradcheck_free(&half);
}

static void unknown_functions_and_inconsistent_shapes_are_rejected(void **state)
{
    struct op_attr function;
    struct gradcheck_case gc = case_of(&function, "sine", (struct shape)GRADCHECK_SHAPE(2, 3));
    struct gradcheck_result g;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(gradcheck_forward(&gc, &g, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "function 'sine'"));
    gc = case_of(&function, "gelu", (struct shape)GRADCHECK_SHAPE(2, 3));
    gc.in[1].shape = (struct shape)GRADCHECK_SHAPE(3);
    assert_int_equal(gradcheck_forward(&gc, &g, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "input 1 has shape [3]; expected [2, 3]"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_follows_formula),
        cmocka_unit_test(bfloat16_computes_in_float32),
        cmocka_unit_test(unknown_functions_and_inconsistent_shapes_are_rejected),
    };

    return cmocka_run_group_tests_name("op/gated", tests, NULL, NULL);
}
