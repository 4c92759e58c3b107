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
#include "harness/op_rig.h"

static const struct pair {
    struct shape a, b;
} pairs[] = {
    { { 0 }, { 0 } },
    { GRADCHECK_SHAPE(1), { 0 } },
    { GRADCHECK_SHAPE(7), GRADCHECK_SHAPE(7) },
    { GRADCHECK_SHAPE(33, 17), GRADCHECK_SHAPE(33, 17) },
    { GRADCHECK_SHAPE(101), { 0 } },
    { { 0 }, GRADCHECK_SHAPE(3, 37) },
    { GRADCHECK_SHAPE(9, 35), GRADCHECK_SHAPE(35) },
    { GRADCHECK_SHAPE(35), GRADCHECK_SHAPE(9, 35) },
    { GRADCHECK_SHAPE(9, 1), GRADCHECK_SHAPE(1, 21) },
    { GRADCHECK_SHAPE(9, 1), GRADCHECK_SHAPE(9, 21) },
    { GRADCHECK_SHAPE(2, 3, 4, 5), GRADCHECK_SHAPE(2, 3, 4, 5) },
    { GRADCHECK_SHAPE(2, 3, 4, 5), GRADCHECK_SHAPE(3, 1, 1) },
    { GRADCHECK_SHAPE(3, 1, 1), GRADCHECK_SHAPE(2, 3, 4, 5) },
    { GRADCHECK_SHAPE(2, 17, 3, 2), GRADCHECK_SHAPE(1, 17, 1, 1) },
    { GRADCHECK_SHAPE(2, 3, 1, 1), GRADCHECK_SHAPE(2, 3, 5, 7) },
    { GRADCHECK_SHAPE(2, 3, 4, 5), GRADCHECK_SHAPE(4, 5) },
    { GRADCHECK_SHAPE(3, 4, 5), GRADCHECK_SHAPE(2, 3, 4, 5) },
    { GRADCHECK_SHAPE(2, 3, 4, 5), GRADCHECK_SHAPE(5) },
    { GRADCHECK_SHAPE(2, 1, 4, 1), GRADCHECK_SHAPE(3, 1, 5) },
    { GRADCHECK_SHAPE(1, 3, 1, 5), GRADCHECK_SHAPE(2, 1, 4, 1) },
    { GRADCHECK_SHAPE(2, 1, 3, 1, 2, 1, 2, 1), GRADCHECK_SHAPE(1, 2, 1, 3, 1, 2, 1, 2) },
    { GRADCHECK_SHAPE(2, 2, 1, 2, 3), GRADCHECK_SHAPE(2, 2, 2, 2, 3) },
    { GRADCHECK_SHAPE(0), GRADCHECK_SHAPE(1) },
    { GRADCHECK_SHAPE(0, 3), GRADCHECK_SHAPE(3) },
    { GRADCHECK_SHAPE(3), GRADCHECK_SHAPE(4, 0, 3) },
    { GRADCHECK_SHAPE(2, 0, 4, 5), GRADCHECK_SHAPE(1, 4, 1) },
};

static struct gradcheck_case case_of(const char *op, const struct pair *p)
{
    return (struct gradcheck_case){ .op = op, .opset = 13, .n_in = 2, .seed = 11,
                                    .in = { { .shape = p->a }, { .shape = p->b } } };
}

/* Element of an operand for the output index `at`: axes are aligned at the last one, an axis of
 * size 1 is broadcast. */
static size_t under(const struct shape *s, const struct shape *out, const int64_t *at)
{
    size_t where = 0;
    uint32_t k;

    for (k = 0; k < s->rank; k++) {
        int64_t i = at[out->rank - s->rank + k];

        where = where * (size_t)s->dim[k] + (size_t)(s->dim[k] == 1 ? 0 : i);
    }
    return where;
}

static void check_forward(const char *op, const struct pair *p, enum tensor_layout layout,
                          bool b_is_plain)
{
    struct gradcheck_case gc = case_of(op, p);
    struct gradcheck_result r;
    struct err err = { 0 };
    size_t n, i;
    double *want;

    gc.layout = layout;
    gc.in[1].plain = b_is_plain;
    assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
    n = (size_t)tensor_elements(&r.out[0]);
    want = calloc(n + 1, sizeof(*want));
    assert_non_null(want);
    for (i = 0; i < n; i++) {
        const struct shape *out = &r.out[0].shape;
        int64_t at[TENSOR_MAX_RANK];
        size_t rest = i;
        double a, b;
        uint32_t k;

        for (k = out->rank; k-- > 0; rest /= (size_t)out->dim[k])
            at[k] = (int64_t)(rest % (size_t)out->dim[k]);
        a = (double)((float *)r.in[0].data)[under(&p->a, out, at)];
        b = (double)((float *)r.in[1].data)[under(&p->b, out, at)];
        want[i] = strcmp(op, "Add") == 0 ? a + b : a * b;
    }
    gradcheck_near(op, r.out[0].data, want, n, 6e-8);
    free(want);
    gradcheck_free(&r);
}

static void forward_follows_broadcasting_in_any_layout(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(pairs); i++) {
        check_forward("Add", &pairs[i], TENSOR_PLAIN, false);
        check_forward("Add", &pairs[i], TENSOR_CHANNELS_LAST, false);
        check_forward("Mul", &pairs[i], TENSOR_PLAIN, false);
        check_forward("Mul", &pairs[i], TENSOR_CHANNELS_LAST, false);
        check_forward("Mul", &pairs[i], TENSOR_CHANNELS_LAST, true);
    }
}

static void gradients_match_differences(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(pairs); i++) {
        struct gradcheck_case add = case_of("Add", &pairs[i]), mul = case_of("Mul", &pairs[i]);

        gradcheck_run(&add);
        gradcheck_run(&mul);
        mul.in[1].plain = true; /* a parameter beside channels-last activations */
        gradcheck_run(&mul);
    }
}

/* Sums that several blocks of a GPU share, and several sums per block. */
static void gradients_of_long_sums_match_differences(void **state)
{
    static const struct pair longer[] = {
        { GRADCHECK_SHAPE(1100, 64), GRADCHECK_SHAPE(64) },
        { GRADCHECK_SHAPE(700, 37), GRADCHECK_SHAPE(37) },
        { GRADCHECK_SHAPE(3, 2500), GRADCHECK_SHAPE(3, 1) },
        { GRADCHECK_SHAPE(3, 6001), { 0 } },
        { GRADCHECK_SHAPE(2, 8, 30, 30), GRADCHECK_SHAPE(8, 1, 1) },
        { GRADCHECK_SHAPE(5, 4, 300), GRADCHECK_SHAPE(5, 1, 300) },
    };
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(longer); i++) {
        struct gradcheck_case gc = case_of("Mul", &longer[i]);

        gc.probes = 2;
        gradcheck_run(&gc);
    }
}

static void bias_gradient_over_many_rows_keeps_precision(void **state)
{
    enum { ROWS = 60001, COLS = 3 };
    const struct pair p = { GRADCHECK_SHAPE(ROWS, COLS), GRADCHECK_SHAPE(COLS) };
    struct gradcheck_case gc = case_of("Add", &p);
    float *dout = malloc(sizeof(float) * ROWS * COLS);
    double want[COLS] = { 0 };
    struct gradcheck_result r;
    struct err err = { 0 };
    size_t i;

    (void)state;
    assert_non_null(dout);
    for (i = 0; i < (size_t)ROWS * COLS; i++) {
        dout[i] = 1.0f + 0.1f * (float)(i % 13);
        want[i % COLS] += (double)dout[i];
    }
    gc.dout[0] = dout;
    assert_int_equal(gradcheck_backward(&gc, &r, &err), 0);
    gradcheck_near("db", r.din[1].data, want, COLS, rig_on_gpu() ? 3e-7 : 6e-8);
    free(dout);
    gradcheck_free(&r);
}

static void scalar_gradient_over_odd_lengths_is_exact(void **state)
{
    int64_t n;

    (void)state;
    for (n = 1; n < 40; n++) {
        const struct pair p = { { 0 }, GRADCHECK_SHAPE(n) };
        struct gradcheck_case gc = case_of("Mul", &p);
        struct gradcheck_result r;
        struct err err = { 0 };
        double want = 0;
        int64_t i;

        assert_int_equal(gradcheck_backward(&gc, &r, &err), 0);
        for (i = 0; i < n; i++)
            want += (double)((float *)r.dout[0].data)[i] * (double)((float *)r.in[1].data)[i];
        gradcheck_near("da", r.din[0].data, &want, 1, 3e-7);
        gradcheck_free(&r);
    }
}

static void missing_dout_gives_zero_gradient(void **state)
{
    static const double zeros[12] = { 0 };
    const struct pair p = { GRADCHECK_SHAPE(3, 4), GRADCHECK_SHAPE(4) };
    struct gradcheck_case gc = case_of("Mul", &p);
    struct gradcheck_result r;
    struct err err = { 0 };

    (void)state;
    gc.no_dout = OP_OUT(0);
    assert_int_equal(gradcheck_backward(&gc, &r, &err), 0);
    gradcheck_near("da", r.din[0].data, zeros, 12, 0);
    gradcheck_near("db", r.din[1].data, zeros, 4, 0);
    gradcheck_free(&r);
}

static void nan_and_infinity_propagate(void **state)
{
    static const float a[4] = { NAN, INFINITY, INFINITY, 1 }, b[4] = { 1, 1, -INFINITY, NAN };
    static const double sum[4] = { NAN, INFINITY, NAN, NAN };
    static const double product[4] = { NAN, INFINITY, -INFINITY, NAN };
    const struct pair p = { GRADCHECK_SHAPE(4), GRADCHECK_SHAPE(4) };
    struct gradcheck_case add = case_of("Add", &p), mul = case_of("Mul", &p);
    struct gradcheck_result r;
    struct err err = { 0 };

    (void)state;
    add.in[0].data = mul.in[0].data = a;
    add.in[1].data = mul.in[1].data = b;
    assert_int_equal(gradcheck_forward(&add, &r, &err), 0);
    gradcheck_near("Add", r.out[0].data, sum, 4, 0);
    gradcheck_free(&r);
    assert_int_equal(gradcheck_forward(&mul, &r, &err), 0);
    gradcheck_near("Mul", r.out[0].data, product, 4, 0);
    gradcheck_free(&r);
}

static void integers_wrap_and_have_no_gradient(void **state)
{
    static const int64_t a[3] = { INT64_MAX, -5, 1 << 20 }, b = 2;
    static const int64_t sum[3] = { INT64_MIN + 1, -3, (1 << 20) + 2 };
    static const int32_t c[3] = { INT32_MAX, -5, 1 << 20 }, d[3] = { 2, 3, 1 << 12 };
    static const int32_t product[3] = { -2, -15, 0 };
    const struct pair p = { GRADCHECK_SHAPE(3), { 0 } };
    const struct pair q = { GRADCHECK_SHAPE(3), GRADCHECK_SHAPE(3) };
    struct gradcheck_case add = case_of("Add", &p), mul = case_of("Mul", &q);
    struct gradcheck_result r;
    struct err err = { 0 };

    (void)state;
    add.in[0].dtype = add.in[1].dtype = TENSOR_I64;
    add.in[0].data = a;
    add.in[1].data = &b;
    assert_int_equal(gradcheck_backward(&add, &r, &err), 0);
    assert_int_equal(r.out[0].dtype, TENSOR_I64);
    assert_memory_equal(r.out[0].data, sum, sizeof(sum));
    assert_null(r.din[0].data);
    gradcheck_free(&r);
    mul.in[0].dtype = mul.in[1].dtype = TENSOR_I32;
    mul.in[0].data = c;
    mul.in[1].data = d;
    assert_int_equal(gradcheck_forward(&mul, &r, &err), 0);
    assert_memory_equal(r.out[0].data, product, sizeof(product));
    gradcheck_free(&r);
}

static void inconsistent_shapes_are_rejected_with_both_shapes(void **state)
{
    const struct pair p = { GRADCHECK_SHAPE(2, 3), GRADCHECK_SHAPE(2) };
    const struct pair q = { GRADCHECK_SHAPE(2), GRADCHECK_SHAPE(2) };
    struct gradcheck_case gc = case_of("Add", &p);
    struct gradcheck_result r;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(gradcheck_forward(&gc, &r, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "Add 'checked'"));
    assert_non_null(strstr(err.text, "[2, 3] and [2] do not broadcast"));
    gc = case_of("Mul", &q);
    gc.in[1].dtype = TENSOR_I64;
    assert_int_equal(gradcheck_forward(&gc, &r, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "float32 and int64"));
    gc.in[0].dtype = gc.in[1].dtype = TENSOR_U8;
    assert_int_equal(gradcheck_forward(&gc, &r, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "uint8"));
    assert_non_null(strstr(err.text, "float32, int32, int64"));
    gc.in[1].absent = true;
    assert_int_equal(gradcheck_forward(&gc, &r, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "input 1 is missing"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_follows_broadcasting_in_any_layout),
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(gradients_of_long_sums_match_differences),
        cmocka_unit_test(bias_gradient_over_many_rows_keeps_precision),
        cmocka_unit_test(scalar_gradient_over_odd_lengths_is_exact),
        cmocka_unit_test(missing_dout_gives_zero_gradient),
        cmocka_unit_test(nan_and_infinity_propagate),
        cmocka_unit_test(integers_wrap_and_have_no_gradient),
        cmocka_unit_test(inconsistent_shapes_are_rejected_with_both_shapes),
    };

    return cmocka_run_group_tests_name("op/elem", tests, NULL, NULL);
}
