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

/* Always three spatial axes; a case with fewer uses the last ones and has sizes of 1 in front. */
struct conv {
    int spatial;
    int64_t n, c, o, group;
    int64_t in[3], kernel[3], stride[3], dilation[3], lo[3], hi[3];
    const char *auto_pad; /* NULL: lo and hi are explicit; else they are the expected values */
    bool bias;
};

#define ONES { 1, 1, 1 }
#define NONE { 0, 0, 0 }
#define S(h_, w_) { 1, h_, w_ } /* a size of two axes */
#define P(h_, w_) { 0, h_, w_ } /* a pad of two axes */

#define INT(name_, i_) (struct op_attr){ .name = name_, .type = OP_ATTR_INT, .i = i_ }
#define INTS(name_, n_, ints_) \
    (struct op_attr){ .name = name_, .type = OP_ATTR_INTS, .n = n_, .ints = ints_ }
#define STRING(name_, s_) (struct op_attr){ .name = name_, .type = OP_ATTR_STRING, .s = s_ }

static const struct conv cases[] = {
    /* spatial, n, c, o, group, in, kernel, stride, dilation, lo, hi */
    { 2, 2, 1, 6, 1, S(8, 8), S(5, 5), ONES, ONES, P(2, 2), P(2, 2), NULL, true },
    { 2, 2, 3, 17, 1, S(9, 7), S(3, 3), ONES, ONES, P(1, 1), P(1, 1), NULL, true },
    { 2, 1, 17, 3, 1, S(6, 5), S(3, 3), ONES, ONES, P(1, 1), P(1, 1), NULL, false },
    { 2, 2, 16, 32, 1, S(8, 8), S(3, 3), ONES, ONES, P(1, 1), P(1, 1), NULL, true },
    { 2, 1, 8, 8, 1, S(1, 1), S(1, 1), ONES, ONES, NONE, NONE, NULL, true },
    { 2, 3, 1, 1, 1, S(1, 1), S(1, 1), ONES, ONES, NONE, NONE, NULL, false },
    { 2, 2, 8, 4, 1, S(7, 7), S(1, 1), S(2, 2), ONES, NONE, NONE, NULL, false },
    { 2, 1, 3, 8, 1, S(15, 13), S(7, 7), S(2, 2), ONES, P(3, 3), P(3, 3), NULL, false },
    { 2, 1, 4, 5, 1, S(9, 6), S(3, 2), S(2, 3), ONES, P(1, 0), P(0, 1), NULL, true },
    { 2, 1, 3, 4, 1, S(8, 8), S(3, 3), ONES, S(2, 3), P(2, 1), P(2, 4), NULL, true },
    { 2, 2, 6, 6, 6, S(6, 6), S(3, 3), ONES, ONES, P(1, 1), P(1, 1), NULL, true },
    { 2, 1, 32, 32, 32, S(7, 7), S(3, 3), S(2, 2), ONES, P(1, 1), P(1, 1), NULL, true },
    { 2, 1, 3, 6, 3, S(5, 5), S(3, 3), ONES, ONES, NONE, NONE, NULL, false },
    { 2, 2, 6, 9, 3, S(5, 4), S(3, 3), ONES, ONES, P(1, 1), P(1, 1), NULL, true },
    { 2, 1, 32, 32, 2, S(4, 4), S(3, 3), ONES, ONES, P(1, 1), P(1, 1), NULL, true },
    { 2, 1, 2, 3, 1, S(3, 3), S(2, 2), ONES, ONES, P(3, 3), P(3, 3), NULL, true },
    { 2, 1, 2, 3, 1, S(6, 6), S(3, 3), S(2, 2), ONES, P(0, 0), P(1, 1), "SAME_UPPER", true },
    { 2, 1, 2, 3, 1, S(6, 6), S(3, 3), S(2, 2), ONES, P(1, 1), P(0, 0), "SAME_LOWER", true },
    { 2, 1, 2, 3, 1, S(5, 7), S(2, 4), ONES, S(2, 1), P(1, 1), P(1, 2), "SAME_UPPER", false },
    { 2, 1, 2, 3, 1, S(6, 6), S(1, 1), S(4, 4), ONES, NONE, NONE, "SAME_UPPER", true },
    { 2, 1, 2, 3, 1, S(6, 5), S(3, 3), S(2, 1), ONES, NONE, NONE, "VALID", true },
    { 1, 2, 3, 5, 1, S(1, 12), S(1, 4), S(1, 2), ONES, P(0, 1), P(0, 2), NULL, true },
    { 1, 2, 16, 16, 1, S(1, 20), S(1, 3), ONES, S(1, 2), P(0, 2), P(0, 2), NULL, true },
    { 1, 1, 4, 4, 4, S(1, 9), S(1, 3), ONES, ONES, NONE, NONE, NULL, false },
    { 3, 1, 2, 3, 1, { 4, 5, 3 }, { 2, 3, 2 }, S(2, 1), ONES, S(0, 1), P(1, 0), NULL, true },
    { 3, 1, 4, 4, 2, { 3, 4, 4 }, { 3, 3, 3 }, ONES, ONES, S(1, 1), S(1, 1), NULL, true },
};

struct built {
    struct gradcheck_case gc;
    struct op_attr attrs[6];
    int64_t pads[6];
};

static void set(struct built *b, const struct conv *c)
{
    int first = 3 - c->spatial, k;
    size_t n = (size_t)c->spatial;
    struct shape *x = &b->gc.in[0].shape, *w = &b->gc.in[1].shape;

    memset(b, 0, sizeof(*b));
    b->gc = (struct gradcheck_case){ .op = "Conv", .opset = 13, .attrs = b->attrs, .n_attrs = 5,
                                     .n_in = c->bias ? 3 : 2, .seed = 11 };
    *x = shape_of(2, c->n, c->c);
    *w = shape_of(2, c->o, c->c / c->group);
    for (k = first; k < 3; k++) {
        x->dim[x->rank++] = c->in[k];
        w->dim[w->rank++] = c->kernel[k];
        b->pads[k - first] = c->lo[k];
        b->pads[k - first + c->spatial] = c->hi[k];
    }
    b->gc.in[2].shape = shape_of(1, c->o);
    b->attrs[0] = INTS("strides", n, c->stride + first);
    b->attrs[1] = INTS("dilations", n, c->dilation + first);
    b->attrs[2] = INTS("kernel_shape", n, c->kernel + first);
    b->attrs[3] = INT("group", c->group);
    b->attrs[4] = INTS("pads", 2 * n, b->pads);
    if (c->auto_pad != NULL)
        b->attrs[4] = STRING("auto_pad", c->auto_pad);
}

static int64_t out_size(const struct conv *c, int k)
{
    int64_t reach = (c->kernel[k] - 1) * c->dilation[k] + 1;

    return (c->in[k] + c->lo[k] + c->hi[k] - reach) / c->stride[k] + 1;
}

/* Computes one output element, by the definition. */
static double convolve(const struct conv *c, const float *x, const float *w, int64_t n, int64_t o,
                       const int64_t *e)
{
    int64_t per = c->c / c->group, first = o / (c->o / c->group) * per, i, k[3];
    double sum = 0;

    for (i = 0; i < per; i++)
        for (k[0] = 0; k[0] < c->kernel[0]; k[0]++)
            for (k[1] = 0; k[1] < c->kernel[1]; k[1]++)
                for (k[2] = 0; k[2] < c->kernel[2]; k[2]++) {
                    int64_t p[3], xi = n * c->c + first + i, wi = o * per + i;
                    bool inside = true;
                    int d;

                    for (d = 0; d < 3; d++) {
                        p[d] = e[d] * c->stride[d] + k[d] * c->dilation[d] - c->lo[d];
                        inside = inside && p[d] >= 0 && p[d] < c->in[d];
                        xi = xi * c->in[d] + p[d];
                        wi = wi * c->kernel[d] + k[d];
                    }
                    if (inside)
                        sum += (double)x[xi] * (double)w[wi];
                }
    return sum;
}

static void expect_forward(const struct conv *c)
{
    struct built b;
    struct gradcheck_result r;
    struct err err = { 0 };
    int64_t size[3] = { out_size(c, 0), out_size(c, 1), out_size(c, 2) }, n, o, e[3];
    size_t total = (size_t)(c->n * c->o * size[0] * size[1] * size[2]), at = 0;
    double *want = calloc(total + 1, sizeof(*want));

    set(&b, c);
    if (gradcheck_forward(&b.gc, &r, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(tensor_elements(&r.out[0]), total);
    assert_int_equal(r.out[0].shape.dim[1], c->o);
    for (n = 0; n < c->n; n++)
        for (o = 0; o < c->o; o++)
            for (e[0] = 0; e[0] < size[0]; e[0]++)
                for (e[1] = 0; e[1] < size[1]; e[1]++)
                    for (e[2] = 0; e[2] < size[2]; e[2]++)
                        want[at++] = convolve(c, r.in[0].data, r.in[1].data, n, o, e) +
                                     (c->bias ? (double)((float *)r.in[2].data)[o] : 0);
    gradcheck_near("Conv", r.out[0].data, want, total, 2e-5);
    gradcheck_free(&r);
    free(want);
}

static void every_form_follows_definition(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(cases); i++)
        expect_forward(&cases[i]);
}

static void first_layers_with_few_channels_follow_definition(void **state)
{
    static const struct conv first[] = {
        { 2, 2, 1, 32, 1, S(28, 28), S(3, 3), ONES, ONES, P(1, 1), P(1, 1), NULL, true },
        { 2, 1, 3, 64, 1, S(56, 56), S(7, 7), S(2, 2), ONES, P(3, 3), P(3, 3), NULL, false },
        { 2, 4, 1, 16, 1, S(8, 8), S(3, 3), ONES, ONES, P(1, 1), P(1, 1), NULL, true },
    };
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(first); i++)
        expect_forward(&first[i]);
}

static void gradients_of_every_form_match_differences(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(cases); i++) {
        struct built b;

        set(&b, &cases[i]);
        b.gc.step = 1.0 / 4; /* linear in each input */
        b.gc.probes = 24;
        gradcheck_run(&b.gc);
    }
}

static void empty_batch_gives_empty_output_and_zero_weight_gradients(void **state)
{
    struct conv c = cases[1];
    struct built b;

    (void)state;
    c.n = 0;
    expect_forward(&c);
    set(&b, &c);
    gradcheck_run(&b.gc);
}

static void missing_attributes_have_defaults(void **state)
{
    struct conv c = { 2, 1, 2, 3, 1, S(4, 4), S(2, 2), ONES, ONES, NONE, NONE, NULL, true };
    struct built b;
    struct gradcheck_result with, without;
    struct err err = { 0 };

    (void)state;
    set(&b, &c);
    assert_int_equal(gradcheck_forward(&b.gc, &with, &err), 0);
    b.gc.n_attrs = 0;
    assert_int_equal(gradcheck_forward(&b.gc, &without, &err), 0);
    assert_true(shape_equal(&with.out[0].shape, &without.out[0].shape));
    assert_memory_equal(with.out[0].data, without.out[0].data, tensor_bytes(&with.out[0]));
    gradcheck_free(&with);
    gradcheck_free(&without);
}

static void expect_refused(const struct built *b, int code, const char *says)
{
    struct gradcheck_result r;
    struct err err = { 0 };

    assert_int_equal(gradcheck_forward(&b->gc, &r, &err), code);
    assert_non_null(strstr(err.text, "Conv 'checked' (opset 13): "));
    if (strstr(err.text, says) == NULL)
        fail_msg("'%s' does not say '%s'", err.text, says);
}

static void invalid_attributes_are_rejected_with_node_and_name(void **state)
{
    static const int64_t zero[] = { 0, 1 }, minus[] = { -1, 0, 0, 0 }, big[] = { 1, 65536 };
    static const int64_t three[] = { 1, 1, 1 }, other[] = { 3, 2 };
    static const struct {
        int attr; /* index of the attribute that is replaced */
        struct op_attr by;
        const char *says;
    } bad[] = {
        { 0, INTS("strides", 2, zero), "attribute 'strides' has 0 at 0" },
        { 0, INTS("strides", 3, three), "'strides' has 3 numbers; expected 2" },
        { 0, INT("strides", 1), "'strides' is INT; expected INTS" },
        { 1, INTS("dilations", 2, big), "'dilations' has 65536 at 1" },
        { 2, INTS("kernel_shape", 2, other), "the weights have 3" },
        { 3, INT("group", 0), "'group' is 0" },
        { 3, INT("group", 2), "'group' is 2" },
        { 3, INT("group", INT64_MIN), "'group' is -" },
        { 4, INTS("pads", 4, minus), "'pads' has -1 at 0" },
        { 5, STRING("auto_pad", "SAME"), "'auto_pad' is 'SAME'" },
        { 5, STRING("auto_pad", "VALID"), "exclude each other" },
    };
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(bad); i++) {
        struct built b;

        set(&b, &cases[1]);
        b.attrs[bad[i].attr] = bad[i].by;
        b.gc.n_attrs = 6;
        if (bad[i].attr != 5)
            b.attrs[5] = STRING("auto_pad", "NOTSET");
        expect_refused(&b, ERR_INPUT, bad[i].says);
    }
}

static void inconsistent_shapes_are_rejected_with_both_shapes(void **state)
{
    struct conv c = cases[1];
    struct built b;

    (void)state;
    set(&b, &c);
    b.gc.in[1].shape.dim[1] = 4;
    expect_refused(&b, ERR_INPUT, "weights [17, 4, 3, 3]");
    set(&b, &c);
    b.gc.in[2].shape.dim[0] = 16;
    expect_refused(&b, ERR_INPUT, "the bias has 16 elements; expected 17");
    set(&b, &c);
    b.gc.in[0].shape.dim[2] = 0;
    expect_refused(&b, ERR_INPUT, "input 0 has 0 elements along axis 2");
    c.in[1] = 1;
    c.lo[1] = c.hi[1] = 0;
    set(&b, &c);
    expect_refused(&b, ERR_INPUT, "a window of 3 does not fit axis 2: 1 elements");
    set(&b, &cases[1]);
    b.gc.in[0].shape = shape_of(2, (int64_t)2, (int64_t)3);
    expect_refused(&b, ERR_UNSUPPORTED, "expected 3 to 5 dimensions");
    set(&b, &cases[1]);
    b.gc.in[0].shape =
        shape_of(6, (int64_t)1, (int64_t)3, (int64_t)1, (int64_t)1, (int64_t)1, (int64_t)1);
    expect_refused(&b, ERR_UNSUPPORTED, "expected 3 to 5 dimensions");
    set(&b, &cases[1]);
    b.gc.in[1].dtype = TENSOR_F64;
    expect_refused(&b, ERR_INPUT, "input 1 is float64");
    c = cases[10];
    set(&b, &c);
    b.gc.in[1].shape.dim[0] = 0;
    expect_refused(&b, ERR_INPUT, "'group' is 6");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_follows_definition),
        cmocka_unit_test(first_layers_with_few_channels_follow_definition),
        cmocka_unit_test(gradients_of_every_form_match_differences),
        cmocka_unit_test(empty_batch_gives_empty_output_and_zero_weight_gradients),
        cmocka_unit_test(missing_attributes_have_defaults),
        cmocka_unit_test(invalid_attributes_are_rejected_with_node_and_name),
        cmocka_unit_test(inconsistent_shapes_are_rejected_with_both_shapes),
    };

    return cmocka_run_group_tests_name("op/conv", tests, NULL, NULL);
}
