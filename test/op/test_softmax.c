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

static const struct sample {
    uint32_t opset;
    int64_t axis; /* 99: no attribute */
    struct shape shape;
    size_t outer, k, inner; /* the expected view */
} samples[] = {
    { 13, 99, GRADCHECK_SHAPE(5, 10), 5, 10, 1 },
    { 13, -1, GRADCHECK_SHAPE(2, 3, 4, 37), 24, 37, 1 },
    { 13, 1, GRADCHECK_SHAPE(2, 3, 4, 5), 2, 3, 20 },
    { 13, 0, GRADCHECK_SHAPE(7, 131), 1, 7, 131 },
    { 13, 2, GRADCHECK_SHAPE(2, 3, 9, 65), 6, 9, 65 },
    { 20, 0, GRADCHECK_SHAPE(33), 1, 33, 1 },
    { 13, 1, GRADCHECK_SHAPE(3, 1), 3, 1, 1 },
    { 13, 1, GRADCHECK_SHAPE(0, 4), 0, 4, 1 },
    { 13, 1, GRADCHECK_SHAPE(3, 0), 3, 0, 1 },
    { 13, 0, GRADCHECK_SHAPE(0, 3), 1, 0, 3 },
    { 11, 99, GRADCHECK_SHAPE(2, 3, 4, 5), 2, 60, 1 },
    { 12, 2, GRADCHECK_SHAPE(2, 3, 4, 5), 6, 20, 1 },
    { 12, -1, GRADCHECK_SHAPE(2, 3, 4, 5), 24, 5, 1 },
    { 12, 0, GRADCHECK_SHAPE(2, 3), 1, 6, 1 },
    { 11, 2, GRADCHECK_SHAPE(2, 3), 6, 1, 1 },
    { 13, 1, GRADCHECK_SHAPE(9, 129), 9, 129, 1 },
    { 13, 1, GRADCHECK_SHAPE(2, 700), 2, 700, 1 },
    { 13, 1, GRADCHECK_SHAPE(2, 1025), 2, 1025, 1 },
    { 13, 0, GRADCHECK_SHAPE(41001), 1, 41001, 1 },
    { 13, 0, GRADCHECK_SHAPE(21001), 1, 21001, 1 },
};

/* `attr` must outlive the case. */
static struct gradcheck_case case_of(const struct sample *s, struct op_attr *attr)
{
    *attr = (struct op_attr){ .name = "axis", .type = OP_ATTR_INT, .i = s->axis };
    return (struct gradcheck_case){ .op = "Softmax", .opset = s->opset, .attrs = attr,
                                    .n_attrs = s->axis == 99 ? 0 : 1, .n_in = 1, .seed = 3,
                                    .in = { { .shape = s->shape, .lo = -3, .hi = 3 } } };
}

static void values_follow_definition_for_each_opset(void **state)
{
    size_t t;

    (void)state;
    for (t = 0; t < COUNT_OF(samples); t++) {
        const struct sample *s = &samples[t];
        struct op_attr attr;
        struct gradcheck_case gc = case_of(s, &attr);
        struct gradcheck_result r;
        struct err err = { 0 };
        size_t n = s->outer * s->k * s->inner, o, i, j;
        double *want = calloc(n + 1, sizeof(*want));

        assert_non_null(want);
        assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
        assert_int_equal(tensor_elements(&r.out[0]), n);
        for (o = 0; o < s->outer; o++)
            for (j = 0; j < s->inner; j++) {
                const float *x = (const float *)r.in[0].data + o * s->k * s->inner + j;
                double *y = want + o * s->k * s->inner + j, sum = 0;

                for (i = 0; i < s->k; i++)
                    sum += exp((double)x[i * s->inner]);
                for (i = 0; i < s->k; i++)
                    y[i * s->inner] = exp((double)x[i * s->inner]) / sum;
            }
        gradcheck_near("Softmax", r.out[0].data, want, n, 2e-7);
        free(want);
        gradcheck_free(&r);
    }
}

static void gradients_match_differences(void **state)
{
    size_t t;

    (void)state;
    for (t = 0; t < COUNT_OF(samples); t++) {
        struct op_attr attr;
        struct gradcheck_case gc = case_of(&samples[t], &attr);

        gc.in[0].lo = -1;
        gc.in[0].hi = 1;
        gc.probes = samples[t].k > 200 ? 3 : 0;
        gradcheck_run(&gc);
    }
}

/* The same six rows along the last axis and, transposed, along the first. */
static void extreme_rows_are_stable_and_nan_affects_only_its_row(void **state)
{
    static const float rows[6][3] = {
        { 1e30f, 1e30f, -1e30f }, { -1e30f, -1e30f, -1e30f }, { -INFINITY, 0, -INFINITY },
        { INFINITY, 0, 0 },       { 0, NAN, 0 },              { -INFINITY, -INFINITY, -INFINITY },
    };
    static const double want[6][3] = {
        { 0.5, 0.5, 0 },   { 1.0 / 3, 1.0 / 3, 1.0 / 3 }, { 0, 1, 0 },
        { NAN, NAN, NAN }, { NAN, NAN, NAN },             { NAN, NAN, NAN },
    };
    static const struct sample last = { 13, 1, GRADCHECK_SHAPE(6, 3), 0, 0, 0 };
    static const struct sample first = { 13, 0, GRADCHECK_SHAPE(3, 6), 0, 0, 0 };
    float turned[3][6];
    double turned_want[3][6];
    struct gradcheck_result r;
    struct gradcheck_case gc;
    struct op_attr attr;
    struct err err = { 0 };
    size_t i, j;

    (void)state;
    gc = case_of(&last, &attr);
    gc.in[0].data = rows;
    assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
    gradcheck_near("rows", r.out[0].data, &want[0][0], 18, 1e-7);
    gradcheck_free(&r);
    for (i = 0; i < 6; i++)
        for (j = 0; j < 3; j++) {
            turned[j][i] = rows[i][j];
            turned_want[j][i] = want[i][j];
        }
    gc = case_of(&first, &attr);
    gc.in[0].data = turned;
    assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
    gradcheck_near("columns", r.out[0].data, &turned_want[0][0], 18, 1e-7);
    gradcheck_free(&r);
}

static void invalid_axis_is_rejected_with_range(void **state)
{
    static const struct sample wrong[] = {
        { 13, 2, GRADCHECK_SHAPE(2, 3), 0, 0, 0 },
        { 13, -3, GRADCHECK_SHAPE(2, 3), 0, 0, 0 },
        { 13, 99, { 0 }, 0, 0, 0 },
        { 11, 3, GRADCHECK_SHAPE(2, 3), 0, 0, 0 },
    };
    size_t t;

    (void)state;
    for (t = 0; t < COUNT_OF(wrong); t++) {
        struct op_attr attr;
        struct gradcheck_case gc = case_of(&wrong[t], &attr);
        struct gradcheck_result r;
        struct err err = { 0 };

        assert_int_equal(gradcheck_forward(&gc, &r, &err), ERR_INPUT);
        assert_non_null(strstr(err.text, "axis is"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_follow_definition_for_each_opset),
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(extreme_rows_are_stable_and_nan_affects_only_its_row),
        cmocka_unit_test(invalid_axis_is_rejected_with_range),
    };

    return cmocka_run_group_tests_name("op/softmax", tests, NULL, NULL);
}
