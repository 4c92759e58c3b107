#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "harness/gradcheck.h"
#include "harness/op_rig.h"

struct gemm {
    int64_t m, n, k;
    int trans_a, trans_b;
    float alpha, beta;
    int c_rank; /* -1: absent */
    int64_t c[3];
};

static void set(struct gradcheck_case *gc, struct op_attr attrs[4], const struct gemm *g)
{
    attrs[0] = (struct op_attr){ .name = "alpha", .type = OP_ATTR_FLOAT, .f = g->alpha };
    attrs[1] = (struct op_attr){ .name = "beta", .type = OP_ATTR_FLOAT, .f = g->beta };
    attrs[2] = (struct op_attr){ .name = "transA", .type = OP_ATTR_INT, .i = g->trans_a };
    attrs[3] = (struct op_attr){ .name = "transB", .type = OP_ATTR_INT, .i = g->trans_b };
    *gc = (struct gradcheck_case){ .op = "Gemm", .opset = 13, .attrs = attrs, .n_attrs = 4,
                                   .n_in = g->c_rank < 0 ? 2 : 3, .seed = 1 };
    gc->in[0].shape = g->trans_a ? shape_of(2, g->k, g->m) : shape_of(2, g->m, g->k);
    gc->in[1].shape = g->trans_b ? shape_of(2, g->n, g->k) : shape_of(2, g->k, g->n);
    if (g->c_rank >= 0) {
        gc->in[2].shape.rank = (uint32_t)g->c_rank;
        memcpy(gc->in[2].shape.dim, g->c, (size_t)g->c_rank * sizeof(int64_t));
    }
}

/* Element of c for row i and column j, for any shape of c. */
static double c_at(const struct tensor *c, int64_t i, int64_t j)
{
    const float *v = c->data;
    int64_t rows = c->shape.rank == 2 ? c->shape.dim[0] : 1;
    int64_t cols = c->shape.rank == 0 ? 1 : c->shape.dim[c->shape.rank - 1];

    return (double)v[(rows == 1 ? 0 : i) * cols + (cols == 1 ? 0 : j)];
}

static void expect_forward(const struct gemm *g)
{
    struct gradcheck_case gc;
    struct gradcheck_result r;
    struct op_attr attrs[4];
    struct err err = { 0 };
    double *want = calloc((size_t)(g->m * g->n) + 1, sizeof(*want));
    const float *a, *b;
    int64_t i, j, k;

    set(&gc, attrs, g);
    if (gradcheck_forward(&gc, &r, &err) < 0)
        fail_msg("%s", err.text);
    a = r.in[0].data;
    b = r.in[1].data;
    for (i = 0; i < g->m; i++) {
        for (j = 0; j < g->n; j++) {
            double sum = 0;

            for (k = 0; k < g->k; k++)
                sum += (double)(g->trans_a ? a[k * g->m + i] : a[i * g->k + k]) *
                       (double)(g->trans_b ? b[j * g->k + k] : b[k * g->n + j]);
            sum *= (double)g->alpha;
            if (g->c_rank >= 0)
                sum += (double)g->beta * c_at(&r.in[2], i, j);
            want[i * g->n + j] = sum;
        }
    }
    assert_int_equal(r.out[0].shape.rank, 2);
    assert_int_equal(r.out[0].shape.dim[0], g->m);
    assert_int_equal(r.out[0].shape.dim[1], g->n);
    gradcheck_near("Gemm", r.out[0].data, want, (size_t)(g->m * g->n), 1e-5);
    gradcheck_free(&r);
    free(want);
}

static const struct gemm cases[] = {
    { 4, 5, 3, 0, 1, 1, 1, 1, { 5 } },           /* nn.Linear */
    { 4, 5, 3, 0, 0, 1, 1, 1, { 5 } },           /* Conv1D of GPT-2 */
    { 4, 5, 3, 1, 0, 1, 1, 2, { 1, 5 } },
    { 4, 5, 3, 1, 1, 1, 1, 2, { 4, 5 } },
    { 4, 5, 3, 0, 1, 0.5f, 2.0f, 1, { 5 } },
    { 4, 5, 3, 1, 1, -1.5f, 0.25f, 2, { 4, 1 } },
    { 4, 5, 3, 1, 0, 2.0f, 1, 2, { 4, 5 } },
    { 4, 5, 3, 0, 0, 1, 3.0f, 0, { 0 } },        /* scalar c */
    { 4, 5, 3, 0, 0, 1, 1, 1, { 1 } },
    { 4, 5, 3, 0, 1, 1, 1, 2, { 1, 1 } },
    { 4, 5, 3, 0, 1, 1, 0, 1, { 5 } },           /* beta 0 */
    { 4, 5, 3, 0, 1, 1, 1, -1, { 0 } },          /* no c */
    { 4, 5, 3, 1, 0, 0.5f, 1, -1, { 0 } },
    { 1, 1, 1, 0, 0, 1, 1, 1, { 1 } },
    { 1, 7, 17, 0, 1, 1, 1, 2, { 1, 7 } },
    { 7, 1, 17, 0, 1, 1, 1, 2, { 7, 1 } },
    { 7, 1, 17, 1, 1, 1, 1, 1, { 1 } },
    { 17, 33, 1, 0, 1, 1, 1, 1, { 33 } },
    { 2, 65, 129, 0, 1, 1, 1, 1, { 65 } },
};

static void every_form_follows_definition(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(cases); i++)
        expect_forward(&cases[i]);
    expect_forward(&(struct gemm){ 64, 10, 784, 0, 1, 1, 1, 1, { 10 } });
    expect_forward(&(struct gemm){ 300, 50, 40, 1, 1, 0.5f, 1, 2, { 300, 1 } });
}

static void gradients_of_every_form_match_differences(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(cases); i++) {
        struct gradcheck_case gc;
        struct op_attr attrs[4];

        set(&gc, attrs, &cases[i]);
        gc.step = 1.0 / 4; /* linear in each input */
        gc.probes = 40;
        gradcheck_run(&gc);
    }
}

/* Sums over an axis without elements are zero, and so are the results that depend on them. */
static void empty_axes_give_zeros(void **state)
{
    static const struct gemm empty[] = {
        { 0, 5, 3, 0, 1, 1, 1, 1, { 5 } },
        { 4, 5, 0, 0, 1, 1, 1, 1, { 5 } },
        { 4, 5, 0, 1, 0, 2, 1, -1, { 0 } },
        { 4, 0, 3, 0, 1, 1, 1, 2, { 4, 1 } },
    };
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(empty); i++) {
        struct gradcheck_case gc;
        struct op_attr attrs[4];

        expect_forward(&empty[i]);
        set(&gc, attrs, &empty[i]);
        gradcheck_run(&gc);
    }
}

static void bias_gradient_over_many_rows_keeps_precision(void **state)
{
    enum { ROWS = 20000, COLS = 3 };
    struct gradcheck_case gc;
    struct gradcheck_result r;
    struct op_attr attrs[4];
    struct err err = { 0 };
    float *dout = malloc(ROWS * COLS * sizeof(*dout));
    double want[COLS] = { 0 };
    size_t i;

    (void)state;
    for (i = 0; i < ROWS * COLS; i++) {
        dout[i] = 1.0f + (float)(i % 7) * 1e-3f;
        want[i % COLS] += (double)dout[i];
    }
    set(&gc, attrs, &(struct gemm){ ROWS, COLS, 1, 0, 1, 1, 1, 1, { COLS } });
    gc.dout[0] = dout;
    assert_int_equal(gradcheck_backward(&gc, &r, &err), 0);
    /* cuBLASLt sums the columns in another order: 9e-7 on an H100. */
    gradcheck_near("bias", r.din[2].data, want, COLS, rig_on_gpu() ? 3e-6 : 2e-7);
    gradcheck_free(&r);
    free(dout);
}

static void expect_refused(const struct gradcheck_case *gc, int code, const char *a, const char *b)
{
    struct gradcheck_result r;
    struct err err = { 0 };

    assert_int_equal(gradcheck_forward(gc, &r, &err), code);
    assert_non_null(strstr(err.text, "Gemm 'checked' (opset 13): "));
    if (strstr(err.text, a) == NULL || strstr(err.text, b) == NULL)
        fail_msg("'%s' does not say '%s' and '%s'", err.text, a, b);
}

static void inconsistent_shapes_are_rejected_with_node_and_shapes(void **state)
{
    struct gradcheck_case gc;
    struct op_attr attrs[4];
    struct gemm g = cases[0];

    (void)state;
    set(&gc, attrs, &g);
    gc.in[1].shape = shape_of(2, (int64_t)5, (int64_t)4);
    expect_refused(&gc, ERR_INPUT, "[4, 3]", "[5, 4]");
    set(&gc, attrs, &g);
    gc.in[0].shape = shape_of(3, (int64_t)4, (int64_t)3, (int64_t)1);
    expect_refused(&gc, ERR_INPUT, "input 0", "expected 2 dimensions");
    set(&gc, attrs, &g);
    gc.in[2].shape = shape_of(1, (int64_t)4);
    expect_refused(&gc, ERR_INPUT, "input 2 has shape [4]", "[4, 5]");
    set(&gc, attrs, &g);
    gc.in[2].shape = shape_of(3, (int64_t)1, (int64_t)4, (int64_t)5);
    expect_refused(&gc, ERR_INPUT, "input 2 has shape [1, 4, 5]", "broadcast");
    set(&gc, attrs, &g);
    gc.in[1].dtype = TENSOR_F64;
    expect_refused(&gc, ERR_INPUT, "input 1 is float64", "expected float32");
    set(&gc, attrs, &g);
    gc.in[1].absent = true;
    expect_refused(&gc, ERR_INPUT, "input 1 is missing", "float32");
    set(&gc, attrs, &g);
    attrs[0].type = OP_ATTR_INT;
    expect_refused(&gc, ERR_INPUT, "attribute 'alpha' is INT", "expected FLOAT");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_follows_definition),
        cmocka_unit_test(gradients_of_every_form_match_differences),
        cmocka_unit_test(empty_axes_give_zeros),
        cmocka_unit_test(bias_gradient_over_many_rows_keeps_precision),
        cmocka_unit_test(inconsistent_shapes_are_rejected_with_node_and_shapes),
    };

    return cmocka_run_group_tests_name("op/gemm", tests, NULL, NULL);
}
