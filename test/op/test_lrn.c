#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "harness/gradcheck.h"
#include "harness/op_oracle.h"

static const struct lrn_case {
    struct shape shape;
    int64_t size;
    float alpha, beta, bias;
} cases[] = {
    { GRADCHECK_SHAPE(2, 7, 3, 5), 5, 0.5f, 0.75f, 1 },
    { GRADCHECK_SHAPE(2, 7, 3, 5), 2, 0.5f, 0.75f, 2 },
    { GRADCHECK_SHAPE(2, 7, 3, 5), 4, 1, 0.5f, 1 },
    { GRADCHECK_SHAPE(3, 40), 3, 0.7f, 0.75f, 1 },
    { GRADCHECK_SHAPE(1, 3, 9), 1, 1, 1, 1 },
    { GRADCHECK_SHAPE(2, 3, 4), 100, 3, 0.75f, 0.5f }, /* larger than the number of channels */
    { GRADCHECK_SHAPE(2, 1, 2, 3, 4), 5, 1, 0.75f, 1 },
    { GRADCHECK_SHAPE(2, 0, 3), 5, 1, 0.75f, 1 },
    { GRADCHECK_SHAPE(0, 3, 3), 5, 1, 0.75f, 1 },
};

static struct gradcheck_case case_of(const struct lrn_case *c, struct op_attr *attrs)
{
    attrs[0] = (struct op_attr){ .name = "size", .type = OP_ATTR_INT, .i = c->size };
    attrs[1] = (struct op_attr){ .name = "alpha", .type = OP_ATTR_FLOAT, .f = c->alpha };
    attrs[2] = (struct op_attr){ .name = "beta", .type = OP_ATTR_FLOAT, .f = c->beta };
    attrs[3] = (struct op_attr){ .name = "bias", .type = OP_ATTR_FLOAT, .f = c->bias };
    return (struct gradcheck_case){ .op = "LRN", .opset = 13, .attrs = attrs, .n_attrs = 4,
                                    .n_in = 1, .in = { { .shape = c->shape, .lo = -2, .hi = 2 } } };
}

static void expect_defined(const struct lrn_case *c, const struct gradcheck_result *r)
{
    size_t n = (size_t)tensor_elements(&r->in[0]), i;
    int64_t channels = c->shape.dim[1], k;
    double *want = calloc(n + 1, sizeof(*want));
    const float *x = r->in[0].data;
    size_t inner = 1;

    for (k = 2; k < c->shape.rank; k++)
        inner *= (size_t)c->shape.dim[k];
    for (i = 0; i < n; i++) {
        int64_t at = (int64_t)(i / inner) % channels;
        double sum = 0;

        for (k = at - (c->size - 1) / 2; k <= at + c->size / 2; k++)
            if (k >= 0 && k < channels)
                sum += pow((double)x[(ptrdiff_t)i + (k - at) * (ptrdiff_t)inner], 2);
        want[i] = (double)x[i] /
                  pow((double)c->bias + (double)c->alpha / (double)c->size * sum, (double)c->beta);
    }
    gradcheck_near("y", r->out[0].data, want, n, 5e-7);
    free(want);
}

static void output_follows_definition(void **state)
{
    struct op_attr attrs[4];
    size_t i, k;

    (void)state;
    for (i = 0; i < COUNT_OF(cases); i++)
        for (k = 0; k < 4; k++) {
            struct gradcheck_case gc = case_of(&cases[i], attrs);
            struct gradcheck_result r;
            struct err err = { 0 };

            gc.layout = k % 2 == 0 ? TENSOR_PLAIN : TENSOR_CHANNELS_LAST;
            gc.eval = k >= 2;
            if (gradcheck_forward(&gc, &r, &err) < 0)
                fail_msg("%s", err.text);
            expect_defined(&cases[i], &r);
            gradcheck_free(&r);
        }
}

static void gradients_match_differences(void **state)
{
    struct op_attr attrs[4];
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(cases); i++) {
        struct gradcheck_case gc = case_of(&cases[i], attrs);

        gradcheck_run(&gc);
    }
}

static void invalid_attributes_are_rejected(void **state)
{
    struct op_attr attrs[4];
    struct gradcheck_case gc = case_of(&cases[0], attrs);

    (void)state;
    attrs[0].i = 0;
    oracle_refused(&gc, ERR_INPUT, "size is 0, alpha 0.5, beta 0.75, bias 1; expected size >= 1");
    attrs[0].i = 5;
    attrs[3].f = NAN;
    oracle_refused(&gc, ERR_INPUT, "bias nan; expected");
    attrs[3].f = 1;
    gc.in[0].shape.rank = 1;
    oracle_refused(&gc, ERR_INPUT, "input 0 has shape [2]; expected n, channels");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_follows_definition),
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(invalid_attributes_are_rejected),
    };

    return cmocka_run_group_tests_name("op/lrn", tests, NULL, NULL);
}
