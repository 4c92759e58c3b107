/* trainerd.Rotary: against its formula, and its gradient against differences. */
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
#include "harness/op_rig.h"

#define D (int64_t)

struct rotation {
    struct shape x, cos, sin;
    uint32_t n_perm;
    int64_t perm[4];
    bool interleaved; /* rotates adjacent elements; cos and sin have half of the last axis */
};

static const struct rotation cases[] = {
    { GRADCHECK_SHAPE(2, 3, 5, 6), GRADCHECK_SHAPE(1, 1, 5, 6), GRADCHECK_SHAPE(5, 6), 0, { 0 }, false },
    { GRADCHECK_SHAPE(2, 5, 3, 6), GRADCHECK_SHAPE(1, 1, 5, 6), GRADCHECK_SHAPE(2, 1, 5, 6), 4, { 0, 2, 1, 3 }, false },
    { GRADCHECK_SHAPE(3, 34), GRADCHECK_SHAPE(3, 17), GRADCHECK_SHAPE(34), 0, { 0 }, false },
    { GRADCHECK_SHAPE(2), GRADCHECK_SHAPE(1), GRADCHECK_SHAPE(2), 0, { 0 }, false },
    { GRADCHECK_SHAPE(0, 2, 4), GRADCHECK_SHAPE(4), GRADCHECK_SHAPE(2, 1, 2), 3, { 1, 0, 2 }, false },
    { GRADCHECK_SHAPE(2, 5, 3, 6), GRADCHECK_SHAPE(1, 1, 5, 3), GRADCHECK_SHAPE(2, 1, 5, 3), 4, { 0, 2, 1, 3 }, true },
    { GRADCHECK_SHAPE(3, 34), GRADCHECK_SHAPE(3, 17), GRADCHECK_SHAPE(17), 0, { 0 }, true },
};

struct built {
    struct gradcheck_case gc;
    struct op_attr attrs[2];
};

static void set(struct built *b, const struct rotation *r)
{
    memset(b, 0, sizeof(*b));
    b->attrs[0] = (struct op_attr){ .name = "interleaved", .type = OP_ATTR_INT, .i = r->interleaved };
    b->attrs[1] = (struct op_attr){ .name = "perm", .type = OP_ATTR_INTS, .n = r->n_perm, .ints = r->perm };
    b->gc = (struct gradcheck_case){ .domain = "trainerd", .op = "Rotary", .opset = 1, .attrs = b->attrs,
                                     .n_attrs = r->n_perm > 0 ? 2 : 1, .n_in = 3, .seed = 5 };
    b->gc.in[0].shape = r->x;
    b->gc.in[1].shape = r->cos;
    b->gc.in[2].shape = r->sin;
}

/* Element of `t` that is broadcast to index `at` of y; column: along the last axis. */
static double broadcast(const struct tensor *t, const struct shape *y, const int64_t *at,
                        int64_t column)
{
    uint32_t skip = y->rank - t->shape.rank;
    size_t place = 0;

    for (uint32_t k = 0; k < t->shape.rank; k++) {
        int64_t dim = t->shape.dim[k], i = k + 1 == t->shape.rank ? column % dim
                                           : dim == 1             ? 0
                                                                  : at[k + skip];

        place = place * (size_t)dim + (size_t)i;
    }
    return (double)((const float *)t->data)[place];
}

static double element(const struct tensor *x, const struct rotation *r, const int64_t *at,
                      int64_t column)
{
    int64_t in[TENSOR_MAX_RANK];
    size_t place = 0;
    uint32_t rank = x->shape.rank;

    for (uint32_t k = 0; k < rank; k++)
        in[r->n_perm > 0 ? (uint32_t)r->perm[k] : k] = k + 1 == rank ? column : at[k];
    for (uint32_t k = 0; k < rank; k++)
        place = place * (size_t)x->shape.dim[k] + (size_t)in[k];
    return (double)((const float *)x->data)[place];
}

static void expect_formula(const struct rotation *r, const struct gradcheck_result *g)
{
    const struct shape *y = &g->out[0].shape;
    size_t n = (size_t)tensor_elements(&g->out[0]), i;
    double *want = calloc(n + 1, sizeof(*want));
    int64_t width = y->dim[y->rank - 1];

    for (i = 0; i < n; i++) {
        int64_t at[TENSOR_MAX_RANK], column;
        size_t rest = i;

        for (uint32_t k = y->rank; k-- > 0;) {
            at[k] = (int64_t)(rest % (size_t)y->dim[k]);
            rest /= (size_t)y->dim[k];
        }
        column = at[y->rank - 1];
        if (r->interleaved) {
            int64_t other = column ^ 1, pair = column / 2;

            want[i] = element(&g->in[0], r, at, column) * broadcast(&g->in[1], y, at, pair) +
                      (column < other ? -1 : 1) * element(&g->in[0], r, at, other) *
                          broadcast(&g->in[2], y, at, pair);
            continue;
        }
        want[i] = element(&g->in[0], r, at, column) * broadcast(&g->in[1], y, at, column);
        if (column < width / 2)
            want[i] -=
                element(&g->in[0], r, at, column + width / 2) * broadcast(&g->in[2], y, at, column);
        else
            want[i] +=
                element(&g->in[0], r, at, column - width / 2) * broadcast(&g->in[2], y, at, column);
    }
    gradcheck_near("y", g->out[0].data, want, n, 1e-6);
    free(want);
}

static void rows_are_rotated_by_angles(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct gradcheck_result g;
        struct err err = { 0 };
        struct built b;

        set(&b, &cases[i]);
        if (gradcheck_forward(&b.gc, &g, &err) < 0)
            fail_msg("case %zu: %s", i, err.text);
        for (uint32_t k = 0; k < cases[i].n_perm; k++)
            assert_int_equal(g.out[0].shape.dim[k], cases[i].x.dim[cases[i].perm[k]]);
        expect_formula(&cases[i], &g);
        gradcheck_free(&g);
        gradcheck_run(&b.gc);
    }
}

static void bfloat16_rotates_in_float32(void **state)
{
    struct gradcheck_result g;
    struct err err = { 0 };
    struct built b;

    (void)state;
    set(&b, &cases[1]);
    b.gc.half = OP_IN(0) | OP_OUT(0);
    assert_int_equal(gradcheck_backward(&b.gc, &g, &err), 0);
    assert_true(g.din[0].data != NULL);
    gradcheck_free(&g);
}

static void refused(const struct rotation *r, const char *why)
{
    struct gradcheck_result g;
    struct err err = { 0 };
    struct built b;

    set(&b, r);
    assert_int_equal(gradcheck_forward(&b.gc, &g, &err), ERR_INPUT);
    if (strstr(err.text, why) == NULL)
        fail_msg("expected '%s', found '%s'", why, err.text);
}

static void inconsistent_shapes_are_rejected(void **state)
{
    (void)state;
    refused(&(struct rotation){ GRADCHECK_SHAPE(2, 5), GRADCHECK_SHAPE(5), GRADCHECK_SHAPE(5), 0, { 0 }, false },
            "expected an even last axis");
    refused(&(struct rotation){ GRADCHECK_SHAPE(2, 6), GRADCHECK_SHAPE(3, 6), GRADCHECK_SHAPE(6), 0, { 0 }, false },
            "input 1 has shape [3, 6]");
    refused(&(struct rotation){ GRADCHECK_SHAPE(2, 6), GRADCHECK_SHAPE(6), GRADCHECK_SHAPE(2), 0, { 0 }, false },
            "input 2 has shape [2]");
    refused(&(struct rotation){ GRADCHECK_SHAPE(2, 6), GRADCHECK_SHAPE(6), GRADCHECK_SHAPE(6), 2, { 1, 0 }, false },
            "the last in its place");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_rotated_by_angles),
        cmocka_unit_test(bfloat16_rotates_in_float32),
        cmocka_unit_test(inconsistent_shapes_are_rejected),
    };

    return cmocka_run_group_tests_name("op/rotary", tests, NULL, NULL);
}
