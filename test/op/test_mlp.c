/* trainerd.Mlp: two products with a function between them, against the ops that it replaces. */
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
#include "harness/lacking.h"
#include "harness/op_oracle.h"
#include "harness/op_rig.h"

#define D (int64_t)

enum { X, W1, B1, W2, B2 };

static const double GPU_TOLERANCE = 2e-6; /* another algorithm of the products */

struct mlp {
    int64_t m, k, hidden, n;
    const char *function;
    bool trans1, trans2, has_b1, has_b2;
};

static const struct mlp cases[] = {
    { 5, 6, 8, 4, "gelu", false, false, true, true },   { 7, 3, 5, 9, "gelu", true, false, true, false },
    { 4, 16, 24, 8, "gelu", false, true, false, true }, { 33, 48, 129, 7, "gelu", true, true, true, true },
    { 5, 6, 8, 4, "relu", false, false, true, true },   { 6, 5, 130, 3, "relu", true, true, false, false },
    { 1, 1, 1, 1, "gelu", false, false, true, true },   { 0, 6, 8, 4, "gelu", false, false, true, true },
    { 3, 0, 8, 4, "gelu", false, false, true, true },
};

struct built {
    struct gradcheck_case gc;
    struct op_attr attrs[3];
};

static void set(struct built *b, const struct mlp *l)
{
    memset(b, 0, sizeof(*b));
    b->attrs[0] = (struct op_attr){ .name = "function", .type = OP_ATTR_STRING, .s = l->function };
    b->attrs[1] = (struct op_attr){ .name = "trans1", .type = OP_ATTR_INT, .i = l->trans1 };
    b->attrs[2] = (struct op_attr){ .name = "trans2", .type = OP_ATTR_INT, .i = l->trans2 };
    b->gc = (struct gradcheck_case){ .domain = "trainerd", .op = "Mlp", .opset = 1, .attrs = b->attrs,
                                     .n_attrs = 3, .n_in = 5, .seed = 3, .probes = 25 };
    b->gc.in[X].shape = shape_of(3, D 1, l->m, l->k);
    b->gc.in[W1].shape = l->trans1 ? shape_of(2, l->hidden, l->k) : shape_of(2, l->k, l->hidden);
    b->gc.in[W2].shape = l->trans2 ? shape_of(2, l->n, l->hidden) : shape_of(2, l->hidden, l->n);
    b->gc.in[B1].shape = shape_of(1, l->hidden);
    b->gc.in[B2].shape = shape_of(1, l->n);
    b->gc.in[B1].absent = !l->has_b1;
    b->gc.in[B2].absent = !l->has_b2;
}

/* Compares with y of the parts, each computed by its own op. */
static void expect_parts(const struct mlp *l, const struct gradcheck_result *r, double tol)
{
    struct op_attr trans = { .name = "transB", .type = OP_ATTR_INT, .i = l->trans1 };
    struct op_attr tanh_of = { .name = "approximate", .type = OP_ATTR_STRING, .s = "tanh" };
    struct gradcheck_case part = { .domain = "trainerd", .op = "MatMul", .opset = 1, .attrs = &trans,
                                   .n_attrs = 1, .n_in = l->has_b1 ? 3 : 2 };
    struct gradcheck_case function = { .op = l->function[0] == 'r' ? "Relu" : "Gelu", .opset = 20,
                                       .attrs = &tanh_of, .n_attrs = l->function[0] == 'r' ? 0 : 1, .n_in = 1 };
    struct gradcheck_result a, b, c;
    struct err err = { 0 };
    size_t n = (size_t)tensor_elements(&r->out[0]), i;
    double *want = calloc(n + 1, sizeof(*want));

    part.in[0] = (struct gradcheck_tensor){ .shape = r->in[X].shape, .data = r->in[X].data };
    part.in[1] = (struct gradcheck_tensor){ .shape = r->in[W1].shape, .data = r->in[W1].data };
    part.in[2] = (struct gradcheck_tensor){ .shape = r->in[B1].shape, .data = r->in[B1].data };
    assert_int_equal(gradcheck_forward(&part, &a, &err), 0);
    function.in[0] = (struct gradcheck_tensor){ .shape = a.out[0].shape, .data = a.out[0].data };
    assert_int_equal(gradcheck_forward(&function, &b, &err), 0);
    trans.i = l->trans2;
    part.n_in = l->has_b2 ? 3 : 2;
    part.in[0] = (struct gradcheck_tensor){ .shape = b.out[0].shape, .data = b.out[0].data };
    part.in[1] = (struct gradcheck_tensor){ .shape = r->in[W2].shape, .data = r->in[W2].data };
    part.in[2] = (struct gradcheck_tensor){ .shape = r->in[B2].shape, .data = r->in[B2].data };
    assert_int_equal(gradcheck_forward(&part, &c, &err), 0);
    for (i = 0; i < n; i++)
        want[i] = (double)((const float *)c.out[0].data)[i];
    gradcheck_near("y", r->out[0].data, want, n, tol);
    free(want);
    gradcheck_free(&a);
    gradcheck_free(&b);
    gradcheck_free(&c);
}

static void check_all(void)
{
    size_t i;

    for (i = 0; i < COUNT_OF(cases); i++) {
        struct gradcheck_result r;
        struct err err = { 0 };
        struct built b;

        set(&b, &cases[i]);
        if (gradcheck_forward(&b.gc, &r, &err) < 0)
            fail_msg("case %zu: %s", i, err.text);
        expect_parts(&cases[i], &r, rig_on_gpu() ? GPU_TOLERANCE : 0);
        gradcheck_free(&r);
        /* one step in a thousand would cross the kink */
        b.gc.in[X].apart = cases[i].function[0] == 'r';
        b.gc.step = 1e-3;
        b.gc.tol = 1e-2;
        gradcheck_run(&b.gc);
        b.gc.not_wanted = OP_IN(X) | OP_IN(W1) | OP_IN(B1);
        gradcheck_run(&b.gc);
        b.gc.not_wanted = 0;
        b.gc.eval = true;
        assert_int_equal(gradcheck_forward(&b.gc, &r, &err), 0);
        expect_parts(&cases[i], &r, rig_on_gpu() ? GPU_TOLERANCE : 0);
        gradcheck_free(&r);
    }
}

static void output_matches_separate_ops(void **state)
{
    (void)state;
    check_all();
}

/* Without epilogues in the library, our own kernel computes the function. */
static void output_without_library_epilogues_matches_separate_ops(void **state)
{
    (void)state;
    if (!rig_on_gpu())
        skip();
    assert_int_equal(setenv("EMULATED_CUBLASLT", "plain@0", 1), 0);
    check_all();
    assert_int_equal(unsetenv("EMULATED_CUBLASLT"), 0);
}

static double squared(const struct tensor *a, const struct tensor *b)
{
    double sum = 0;
    size_t i;

    for (i = 0; i < (size_t)tensor_elements(a); i++) {
        double x = (double)((const float *)a->data)[i],
               y = b != NULL ? (double)((const float *)b->data)[i] : 0;

        sum += (x - y) * (x - y);
    }
    return sum;
}

static void half_precision_output_matches_float32(void **state)
{
    size_t i, k;

    (void)state;
    if (!op_has_bfloat16() && !rig_on_gpu())
        skip_lacking("the processor has no avx512_bf16");
    for (i = 0; i < COUNT_OF(cases); i++) {
        struct gradcheck_result half, wide;
        struct err err = { 0 };
        struct built b;

        set(&b, &cases[i]);
        b.gc.rounded = OP_IN(X);
        assert_int_equal(gradcheck_backward(&b.gc, &wide, &err), 0);
        b.gc.rounded = 0;
        b.gc.half = OP_IN(X) | OP_OUT(0);
        if (gradcheck_backward(&b.gc, &half, &err) < 0)
            fail_msg("case %zu: %s", i, err.text);
        for (k = 0; k < 6; k++) {
            const struct tensor *a = k < 5 ? &half.din[k] : &half.out[0],
                                *w = k < 5 ? &wide.din[k] : &wide.out[0];

            if (a->data != NULL && squared(a, w) > 4e-4 * squared(w, NULL))
                fail_msg("case %zu: operand %zu is off by %g of %g", i, k, squared(a, w),
                         squared(w, NULL));
        }
        gradcheck_free(&half);
        gradcheck_free(&wide);
    }
}

static void nan_propagates_only_within_its_row(void **state)
{
    size_t i, k;

    (void)state;
    for (i = 0; i < 7; i++) {
        struct gradcheck_result r;
        struct err err = { 0 };
        struct built b;
        float *x;

        set(&b, &cases[i]);
        x = calloc((size_t)(cases[i].m * cases[i].k), sizeof(*x));
        x[0] = NAN;
        b.gc.in[X].data = x;
        if (gradcheck_forward(&b.gc, &r, &err) < 0)
            fail_msg("case %zu: %s", i, err.text);
        for (k = 0; k < (size_t)(cases[i].m * cases[i].n); k++)
            if (isnan(((const float *)r.out[0].data)[k]) != (k < (size_t)cases[i].n))
                fail_msg("case %zu: element %zu is %g", i, k,
                         (double)((const float *)r.out[0].data)[k]);
        gradcheck_free(&r);
        free(x);
    }
}

static void inconsistent_inputs_are_rejected_with_node(void **state)
{
    struct built b;

    (void)state;
    set(&b, &cases[0]);
    b.attrs[0].s = "tanh";
    oracle_refused(&b.gc, ERR_INPUT, "function is 'tanh'; expected relu or gelu");
    set(&b, &cases[0]);
    b.gc.in[W1].shape = shape_of(2, D 7, D 8);
    oracle_refused(&b.gc, ERR_INPUT, "input 1 has 7 rows; expected 6");
    set(&b, &cases[0]);
    b.gc.in[B2].shape = shape_of(1, D 5);
    oracle_refused(&b.gc, ERR_INPUT, "input 4 has 5 elements; expected 4");
    set(&b, &cases[0]);
    b.gc.in[X].shape = shape_of(0);
    oracle_refused(&b.gc, ERR_INPUT, "input 0 is one number");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_matches_separate_ops),
        cmocka_unit_test(output_without_library_epilogues_matches_separate_ops),
        cmocka_unit_test(half_precision_output_matches_float32),
        cmocka_unit_test(nan_propagates_only_within_its_row),
        cmocka_unit_test(inconsistent_inputs_are_rejected_with_node),
    };

    return cmocka_run_group_tests_name("op/mlp", tests, NULL, NULL);
}
