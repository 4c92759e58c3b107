#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "harness/gradcheck.h"

struct matmul {
    struct shape a, b, y;
};

static const struct matmul cases[] = {
    { { 2, { 4, 3 } }, { 2, { 3, 5 } }, { 2, { 4, 5 } } },
    { { 1, { 3 } }, { 1, { 3 } }, { 0, { 0 } } },
    { { 1, { 3 } }, { 2, { 3, 5 } }, { 1, { 5 } } },
    { { 2, { 4, 3 } }, { 1, { 3 } }, { 1, { 4 } } },
    { { 1, { 3 } }, { 3, { 2, 3, 5 } }, { 2, { 2, 5 } } },
    { { 3, { 2, 4, 3 } }, { 1, { 3 } }, { 2, { 2, 4 } } },
    { { 3, { 2, 4, 3 } }, { 2, { 3, 5 } }, { 3, { 2, 4, 5 } } }, /* linear layer */
    { { 4, { 2, 3, 4, 3 } }, { 2, { 3, 5 } }, { 4, { 2, 3, 4, 5 } } },
    { { 4, { 2, 3, 4, 3 } }, { 4, { 1, 1, 3, 5 } }, { 4, { 2, 3, 4, 5 } } },
    { { 3, { 2, 4, 3 } }, { 3, { 2, 3, 5 } }, { 3, { 2, 4, 5 } } }, /* attention */
    { { 4, { 2, 3, 4, 17 } }, { 4, { 2, 3, 17, 4 } }, { 4, { 2, 3, 4, 4 } } },
    { { 2, { 4, 3 } }, { 3, { 2, 3, 5 } }, { 3, { 2, 4, 5 } } },
    { { 3, { 1, 4, 3 } }, { 3, { 2, 3, 5 } }, { 3, { 2, 4, 5 } } },
    { { 3, { 3, 4, 3 } }, { 4, { 2, 1, 3, 5 } }, { 4, { 2, 3, 4, 5 } } },
    { { 4, { 2, 1, 4, 3 } }, { 4, { 1, 3, 3, 5 } }, { 4, { 2, 3, 4, 5 } } },
    { { 5, { 2, 1, 2, 1, 3 } }, { 4, { 3, 1, 3, 1 } }, { 5, { 2, 3, 2, 1, 1 } } },
    { { 3, { 1, 1, 1 } }, { 3, { 1, 1, 1 } }, { 3, { 1, 1, 1 } } },
    { { 3, { 2, 1, 33 } }, { 2, { 33, 1 } }, { 3, { 2, 1, 1 } } },
};

static void set(struct gradcheck_case *gc, const struct matmul *c)
{
    *gc = (struct gradcheck_case){ .op = "MatMul", .opset = 13, .n_in = 2, .seed = 3 };
    gc->in[0].shape = c->a;
    gc->in[1].shape = c->b;
}

/* Element (i, j) of the matrix in t that is broadcast to batch `index` (of y's rank). */
static double at(const struct tensor *t, bool is_left, const int64_t *index, uint32_t batch_rank,
                 int64_t i, int64_t j)
{
    const struct shape *s = &t->shape;
    uint32_t own = s->rank > 2 ? s->rank - 2 : 0, d;
    int64_t place = 0;

    for (d = 0; d < own; d++)
        place = place * s->dim[d] + (s->dim[d] == 1 ? 0 : index[batch_rank - own + d]);
    if (s->rank == 1)
        place = is_left ? j : i;
    else
        place = (place * s->dim[s->rank - 2] + i) * s->dim[s->rank - 1] + j;
    return (double)((const float *)t->data)[place];
}

static void expect_forward(const struct matmul *c)
{
    struct gradcheck_case gc;
    struct gradcheck_result r;
    struct err err = { 0 };
    int64_t m = c->a.rank == 1 ? 1 : c->a.dim[c->a.rank - 2], k = c->a.dim[c->a.rank - 1];
    int64_t n = c->b.rank == 1 ? 1 : c->b.dim[c->b.rank - 1], total, e, x;
    uint32_t ra = c->a.rank > 2 ? c->a.rank - 2 : 0, rb = c->b.rank > 2 ? c->b.rank - 2 : 0;
    uint32_t batch_rank = ra > rb ? ra : rb, d;
    double *want;

    set(&gc, c);
    if (gradcheck_forward(&gc, &r, &err) < 0)
        fail_msg("%s", err.text);
    assert_true(shape_equal(&r.out[0].shape, &c->y));
    total = shape_elements(&c->y);
    want = calloc((size_t)total + 1, sizeof(*want));
    for (e = 0; e < total; e++) {
        int64_t index[TENSOR_MAX_RANK], rest = e / (m * n);

        for (d = batch_rank; d-- > 0;) { /* batch axes are the first of y */
            index[d] = rest % c->y.dim[d];
            rest /= c->y.dim[d];
        }
        for (x = 0; x < k; x++)
            want[e] += at(&r.in[0], true, index, batch_rank, e / n % m, x) *
                       at(&r.in[1], false, index, batch_rank, x, e % n);
    }
    gradcheck_near("MatMul", r.out[0].data, want, (size_t)total, 1e-5);
    gradcheck_free(&r);
    free(want);
}

static void every_broadcast_form_matches_numpy(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(cases); i++)
        expect_forward(&cases[i]);
    expect_forward(
        &(struct matmul){ { 3, { 3, 65, 130 } }, { 2, { 130, 70 } }, { 3, { 3, 65, 70 } } });
    expect_forward(&(struct matmul){
        { 4, { 2, 3, 40, 32 } }, { 4, { 2, 3, 32, 40 } }, { 4, { 2, 3, 40, 40 } } });
    /* Wide products are computed in panels of columns. */
    expect_forward(&(struct matmul){ { 2, { 3, 7 } }, { 2, { 7, 1024 } }, { 2, { 3, 1024 } } });
    expect_forward(
        &(struct matmul){ { 3, { 2, 3, 7 } }, { 2, { 7, 1201 } }, { 3, { 2, 3, 1201 } } });
}

static void gradients_of_every_form_match_differences(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(cases); i++) {
        struct gradcheck_case gc;

        set(&gc, &cases[i]);
        gc.step = 1.0 / 4; /* linear in each input */
        gc.probes = 30;
        gradcheck_run(&gc);
    }
}

/* trainerd.MatMul of transposed operands equals MatMul of the operands; a row is added to every
 * row. */
static void transposed_operands_and_bias_give_same_product(void **state)
{
    static const struct {
        int64_t batch_a, batch_b, m, n, k;
    } sizes[] = { { 0, 0, 4, 5, 3 },  { 2, 0, 4, 5, 3 },    { 2, 2, 7, 1, 17 }, { 2, 1, 1, 6, 3 },
                  { 1, 3, 5, 33, 2 }, { 0, 0, 2, 1024, 3 }, { 0, 0, 1, 515, 2 } };
    size_t i, e;
    int form;

    (void)state;
    for (i = 0; i < COUNT_OF(sizes); i++)
        for (form = 0; form < 8; form++) {
            int64_t m = sizes[i].m, n = sizes[i].n, k = sizes[i].k, ba = sizes[i].batch_a,
                    bb = sizes[i].batch_b;
            bool ta = (form & 1) != 0, tb = (form & 2) != 0, bias = (form & 4) != 0;
            struct op_attr attrs[] = { { .name = "transA", .type = OP_ATTR_INT, .i = ta },
                                       { .name = "transB", .type = OP_ATTR_INT, .i = tb } };
            struct gradcheck_case gc = { .domain = "trainerd",
                                         .op = "MatMul",
                                         .opset = 1,
                                         .attrs = attrs,
                                         .n_attrs = 2,
                                         .n_in = 2 + bias,
                                         .seed = 5,
                                         .step = 1.0 / 4,
                                         .probes = 30 };
            struct gradcheck_result r;
            struct err err = { 0 };
            int64_t b = ba > bb ? ba : bb, total = (b > 0 ? b : 1) * m * n;
            double *want = calloc((size_t)total, sizeof(*want));

            gc.in[0].shape = ba > 0 ? shape_of(3, ba, ta ? k : m, ta ? m : k)
                                    : shape_of(2, ta ? k : m, ta ? m : k);
            gc.in[1].shape = bb > 0 ? shape_of(3, bb, tb ? n : k, tb ? k : n)
                                    : shape_of(2, tb ? n : k, tb ? k : n);
            gc.in[2].shape = shape_of(1, n);
            if (gradcheck_forward(&gc, &r, &err) < 0)
                fail_msg("%s", err.text);
            for (e = 0; e < (size_t)total; e++) {
                int64_t at_b = (int64_t)e / (m * n), row = (int64_t)e / n % m, col = (int64_t)e % n,
                        x;
                const float *pa = (float *)r.in[0].data + (ba > 1 ? at_b : 0) * m * k;
                const float *pb = (float *)r.in[1].data + (bb > 1 ? at_b : 0) * n * k;

                for (x = 0; x < k; x++)
                    want[e] += (double)pa[ta ? x * m + row : row * k + x] *
                               (double)pb[tb ? col * k + x : x * n + col];
                if (bias)
                    want[e] += (double)((float *)r.in[2].data)[col];
            }
            gradcheck_near("MatMul", r.out[0].data, want, (size_t)total, 1e-5);
            gradcheck_free(&r);
            free(want);
            gradcheck_run(&gc);
        }
}

static void empty_axes_give_zeros(void **state)
{
    static const struct matmul empty[] = {
        { { 2, { 4, 0 } }, { 2, { 0, 5 } }, { 2, { 4, 5 } } },
        { { 3, { 0, 4, 3 } }, { 2, { 3, 5 } }, { 3, { 0, 4, 5 } } },
        { { 3, { 0, 4, 3 } }, { 3, { 1, 3, 5 } }, { 3, { 0, 4, 5 } } },
        { { 3, { 1, 4, 3 } }, { 3, { 0, 3, 5 } }, { 3, { 0, 4, 5 } } },
        { { 3, { 2, 0, 3 } }, { 3, { 2, 3, 5 } }, { 3, { 2, 0, 5 } } },
        { { 3, { 2, 1, 0 } }, { 4, { 3, 1, 0, 2 } }, { 4, { 3, 2, 1, 2 } } },
    };
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(empty); i++) {
        struct gradcheck_case gc;

        expect_forward(&empty[i]);
        set(&gc, &empty[i]);
        gradcheck_run(&gc);
    }
}

static void inconsistent_shapes_are_rejected_with_node_and_shapes(void **state)
{
    static const struct {
        struct matmul c;
        const char *says;
    } bad[] = {
        { { { 2, { 4, 3 } }, { 2, { 4, 5 } }, { 0, { 0 } } }, "[4, 3] and [4, 5]" },
        { { { 3, { 2, 4, 3 } }, { 3, { 3, 3, 5 } }, { 0, { 0 } } }, "do not broadcast" },
        { { { 0, { 0 } }, { 2, { 3, 5 } }, { 0, { 0 } } }, "input 0 has 0 dimensions" },
        { { { 2, { 3, 5 } }, { 0, { 0 } }, { 0, { 0 } } }, "input 1 has 0 dimensions" },
    };
    static const int64_t far = INT64_C(1) << 31;
    struct tensor left = { TENSOR_F32, TENSOR_PLAIN, shape_of(2, far, (int64_t)1), NULL }, out;
    struct tensor right = { TENSOR_F32, TENSOR_PLAIN, shape_of(2, (int64_t)1, far * 4), NULL };
    const struct tensor *in[] = { &left, &right };
    char param[512] = { 0 };
    struct op_infer f = { .def = op_find(NULL, "MatMul", 13),
                          .node = "huge",
                          .opset = 13,
                          .n_in = 2,
                          .in = in,
                          .n_out = 1,
                          .out = &out,
                          .param = param };
    struct err refused = { 0 };
    size_t i;

    (void)state;
    assert_true(f.def->param_bytes <= sizeof(param));
    assert_int_equal(f.def->infer(&f, &refused), ERR_INPUT);
    assert_non_null(
        strstr(refused.text, "'huge' (opset 13): the output of shape [2147483648, 8589934592]"));
    for (i = 0; i < COUNT_OF(bad); i++) {
        struct gradcheck_case gc;
        struct gradcheck_result r;
        struct err err = { 0 };

        set(&gc, &bad[i].c);
        assert_int_equal(gradcheck_forward(&gc, &r, &err), ERR_INPUT);
        assert_non_null(strstr(err.text, "MatMul 'checked' (opset 13): "));
        assert_non_null(strstr(err.text, bad[i].says));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_broadcast_form_matches_numpy),
        cmocka_unit_test(gradients_of_every_form_match_differences),
        cmocka_unit_test(transposed_operands_and_bias_give_same_product),
        cmocka_unit_test(empty_axes_give_zeros),
        cmocka_unit_test(inconsistent_shapes_are_rejected_with_node_and_shapes),
    };

    return cmocka_run_group_tests_name("op/matmul", tests, NULL, NULL);
}
