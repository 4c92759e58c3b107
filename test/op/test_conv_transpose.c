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
#include "harness/op_oracle.h"

/* Always three spatial axes; a case with fewer uses the last ones and has sizes of 1 in front. */
struct deconv {
    int spatial;
    int64_t n, c, o, group; /* o: channels of y */
    int64_t in[3], kernel[3], stride[3], dilation[3], lo[3], hi[3], more[3];
    int64_t out[3];       /* expected */
    const char *auto_pad; /* lo and hi are then the expected values */
    bool shaped;          /* with output_shape = out; lo and hi are then the expected values */
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

static const struct deconv cases[] = {
    /* spatial, n, c, o, group, in, kernel, stride, dilation, lo, hi, output_padding, out */
    { 2, 2, 3, 5, 1, S(4, 3), S(2, 2), S(2, 2), ONES, NONE, NONE, NONE, S(8, 6), NULL, 0, true },
    { 2, 1, 16, 8, 1, S(5, 5), S(3, 3), S(2, 2), ONES, P(1, 1), P(1, 1), P(1, 1), S(10, 10), NULL,
      0, true },
    { 2, 1, 17, 1, 1, S(3, 4), S(4, 4), S(2, 2), ONES, P(1, 1), P(1, 1), NONE, S(6, 8), NULL, 0,
      true },
    { 2, 2, 1, 3, 1, S(1, 1), S(1, 1), ONES, ONES, NONE, NONE, NONE, S(1, 1), NULL, 0, false },
    { 2, 1, 4, 6, 2, S(3, 3), S(3, 2), S(1, 2), ONES, P(1, 0), P(0, 1), NONE, S(4, 5), NULL, 0,
      true },
    { 2, 2, 6, 6, 6, S(4, 4), S(3, 3), S(2, 2), ONES, P(1, 1), P(1, 1), P(1, 0), S(8, 7), NULL, 0,
      true },
    { 2, 1, 2, 3, 1, S(3, 4), S(3, 2), S(2, 1), S(2, 3), P(2, 1), P(1, 0), NONE, S(6, 6), NULL, 0,
      false },
    /* stride larger than the kernel: only the bias fills the gaps */
    { 2, 1, 2, 3, 1, S(3, 3), S(1, 2), S(3, 4), ONES, NONE, NONE, P(2, 0), S(9, 10), NULL, 0,
      true },
    { 2, 1, 2, 3, 1, S(3, 3), S(3, 3), S(2, 2), ONES, NONE, P(1, 1), NONE, S(6, 6), "SAME_UPPER",
      0, true },
    { 2, 1, 2, 3, 1, S(3, 3), S(3, 3), S(2, 2), ONES, P(1, 1), NONE, NONE, S(6, 6), "SAME_LOWER",
      0, true },
    { 2, 1, 2, 3, 1, S(3, 3), S(3, 3), S(2, 2), ONES, NONE, NONE, NONE, S(7, 7), "VALID", 0,
      true },
    { 2, 1, 2, 3, 1, S(3, 3), S(3, 4), S(2, 2), ONES, P(1, 2), P(0, 1), NONE, S(6, 5), NULL, 1,
      true },
    { 2, 1, 2, 3, 1, S(3, 3), S(2, 2), S(3, 2), ONES, NONE, NONE, P(1, 1), S(9, 7), NULL, 1,
      false },
    { 1, 2, 3, 4, 1, S(1, 6), S(1, 4), S(1, 2), ONES, P(0, 1), P(0, 1), NONE, S(1, 12), NULL, 0,
      true },
    { 1, 2, 4, 4, 4, S(1, 5), S(1, 3), S(1, 3), ONES, NONE, NONE, NONE, S(1, 15), NULL, 0, true },
    { 3, 1, 2, 3, 1, { 2, 3, 2 }, { 2, 3, 2 }, { 2, 1, 2 }, ONES, P(1, 0), P(0, 1), NONE,
      { 4, 4, 3 }, NULL, 0, true },
};

struct built {
    struct gradcheck_case gc;
    struct op_attr attrs[8];
    int64_t pads[6];
};

static void set(struct built *b, const struct deconv *c)
{
    int first = 3 - c->spatial, k;
    size_t n = (size_t)c->spatial;
    struct shape *x = &b->gc.in[0].shape, *w = &b->gc.in[1].shape;

    memset(b, 0, sizeof(*b));
    b->gc = (struct gradcheck_case){ .op = "ConvTranspose", .opset = 11, .attrs = b->attrs,
                                     .n_attrs = 7, .n_in = c->bias ? 3 : 2, .seed = 13 };
    *x = shape_of(2, c->n, c->c);
    *w = shape_of(2, c->c, c->o / c->group);
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
    b->attrs[4] = INTS("output_padding", n, c->more + first);
    b->attrs[5] =
        c->auto_pad != NULL ? STRING("auto_pad", c->auto_pad) : STRING("auto_pad", "NOTSET");
    b->attrs[6] =
        c->shaped ? INTS("output_shape", n, c->out + first) : INTS("pads", 2 * n, b->pads);
    if (c->auto_pad != NULL)
        b->gc.n_attrs = 6;
}

/* Computes y by the definition: every element of x is spread over a window. */
static void spread(const struct deconv *c, const float *x, const float *w, const float *bias,
                   double *y)
{
    int64_t space = c->out[0] * c->out[1] * c->out[2], per = c->o / c->group, n, i, o, d[3], k[3];
    int a;

    for (i = 0; i < c->n * c->o * space; i++)
        y[i] = bias != NULL ? (double)bias[i / space % c->o] : 0;
    for (n = 0; n < c->n; n++)
        for (i = 0; i < c->c; i++)
            for (d[0] = 0; d[0] < c->in[0]; d[0]++)
                for (d[1] = 0; d[1] < c->in[1]; d[1]++)
                    for (d[2] = 0; d[2] < c->in[2]; d[2]++, x++)
                        for (o = 0; o < per; o++)
                            for (k[0] = 0; k[0] < c->kernel[0]; k[0]++)
                                for (k[1] = 0; k[1] < c->kernel[1]; k[1]++)
                                    for (k[2] = 0; k[2] < c->kernel[2]; k[2]++) {
                                        int64_t at = n * c->o + i / (c->c / c->group) * per + o;
                                        int64_t wi = i * per + o;
                                        bool inside = true;

                                        for (a = 0; a < 3; a++) {
                                            int64_t e = d[a] * c->stride[a] +
                                                        k[a] * c->dilation[a] - c->lo[a];

                                            inside = inside && e >= 0 && e < c->out[a];
                                            at = at * c->out[a] + e;
                                            wi = wi * c->kernel[a] + k[a];
                                        }
                                        if (inside)
                                            y[at] += (double)*x * (double)w[wi];
                                    }
}

static void every_form_follows_definition(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(cases); i++) {
        const struct deconv *c = &cases[i];
        size_t total = (size_t)(c->n * c->o * c->out[0] * c->out[1] * c->out[2]);
        double *want = calloc(total + 1, sizeof(*want));
        struct built b;
        struct gradcheck_result r;
        struct err err = { 0 };

        set(&b, c);
        if (gradcheck_forward(&b.gc, &r, &err) < 0)
            fail_msg("case %zu: %s", i, err.text);
        assert_int_equal(tensor_elements(&r.out[0]), total);
        assert_int_equal(r.out[0].shape.dim[1], c->o);
        assert_int_equal(r.out[0].shape.dim[r.out[0].shape.rank - 1], c->out[2]);
        spread(c, r.in[0].data, r.in[1].data, r.in[2].data, want);
        gradcheck_near("ConvTranspose", r.out[0].data, want, total, 1e-5);
        gradcheck_free(&r);
        free(want);
    }
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
    struct deconv c = cases[1];
    struct built b;

    (void)state;
    c.n = 0;
    set(&b, &c);
    gradcheck_run(&b.gc);
}

static void missing_attributes_have_defaults(void **state)
{
    struct deconv c = { 2, 1, 2, 3, 1, S(4, 5), S(2, 3), ONES, ONES, NONE, NONE, NONE, S(5, 7),
                        NULL, false, true };
    struct gradcheck_result r;
    struct err err = { 0 };
    struct built b;
    double want[3 * 5 * 7];

    (void)state;
    set(&b, &c);
    b.gc.n_attrs = 0;
    assert_int_equal(gradcheck_forward(&b.gc, &r, &err), 0);
    spread(&c, r.in[0].data, r.in[1].data, r.in[2].data, want);
    gradcheck_near("ConvTranspose", r.out[0].data, want, COUNT_OF(want), 1e-5);
    gradcheck_free(&r);
}

static void invalid_attributes_are_rejected_with_node(void **state)
{
    static const int64_t two[] = { 2, 2 }, three[] = { 1, 1, 1 }, zero[] = { 0, 6 };
    struct built b;

    (void)state;
    set(&b, &cases[0]);
    b.gc.in[1].shape.dim[0] = 4;
    oracle_refused(&b.gc, ERR_INPUT, "ConvTranspose 'checked' (opset 11): input [2, 3, 4, 3] and "
                                     "weights [4, 5, 2, 2] do not fit");
    set(&b, &cases[0]);
    b.attrs[3].i = 2;
    oracle_refused(&b.gc, ERR_INPUT, "attribute 'group' is 2; expected a divisor of the 3");
    set(&b, &cases[0]);
    b.gc.in[2].shape.dim[0] = 4;
    oracle_refused(&b.gc, ERR_INPUT, "the bias has 4 elements; expected 5");
    set(&b, &cases[0]);
    b.attrs[4].ints = two;
    oracle_refused(&b.gc, ERR_UNSUPPORTED, "2 elements along axis 2 that no window reaches");
    b.attrs[4] = INTS("output_padding", 3, three);
    oracle_refused(&b.gc, ERR_INPUT, "attribute 'output_padding' has 3 numbers; expected 2");
    set(&b, &cases[11]);
    b.attrs[6].ints = zero;
    oracle_refused(&b.gc, ERR_INPUT, "attribute 'output_shape' has 0 at 0");
    b.attrs[6].n = 1;
    oracle_refused(&b.gc, ERR_INPUT, "attribute 'output_shape' has 1 numbers; expected 2");
    set(&b, &cases[3]);
    b.pads[0] = 1;
    oracle_refused(&b.gc, ERR_INPUT, "the output would have 0 elements along axis 2");
    set(&b, &cases[0]);
    b.gc.in[0].shape.rank = 2;
    oracle_refused(&b.gc, ERR_UNSUPPORTED, "expected 3 to 5 dimensions");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_follows_definition),
        cmocka_unit_test(gradients_of_every_form_match_differences),
        cmocka_unit_test(empty_batch_gives_empty_output_and_zero_weight_gradients),
        cmocka_unit_test(missing_attributes_have_defaults),
        cmocka_unit_test(invalid_attributes_are_rejected_with_node),
    };

    return cmocka_run_group_tests_name("op/conv_transpose", tests, NULL, NULL);
}
