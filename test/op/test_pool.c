#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "harness/gradcheck.h"
#include "harness/op_oracle.h"

/* Always three spatial axes; a case with fewer uses the last ones and has sizes of 1 in front. */
struct pool {
    int spatial;
    int64_t n, c;
    int64_t in[3], kernel[3], stride[3], dilation[3], lo[3], hi[3], out[3]; /* out: expected */
    const char *auto_pad; /* NULL: lo and hi are explicit; else they are the expected values */
    int ceil_mode;
};

#define ONES { 1, 1, 1 }
#define NONE { 0, 0, 0 }
#define S(h_, w_) { 1, h_, w_ } /* a size of two axes */
#define P(h_, w_) { 0, h_, w_ } /* a pad of two axes */

#define INT(name_, i_) (struct op_attr){ .name = name_, .type = OP_ATTR_INT, .i = i_ }
#define INTS(name_, n_, ints_) \
    (struct op_attr){ .name = name_, .type = OP_ATTR_INTS, .n = n_, .ints = ints_ }
#define STRING(name_, s_) (struct op_attr){ .name = name_, .type = OP_ATTR_STRING, .s = s_ }

static const struct pool cases[] = {
    /* spatial, n, c, in, kernel, stride, dilation, lo, hi, out */
    { 2, 2, 1, S(8, 8), S(2, 2), S(2, 2), ONES, NONE, NONE, S(4, 4), NULL, 0 },
    { 2, 2, 17, S(9, 7), S(3, 3), S(2, 2), ONES, P(1, 1), P(1, 1), S(5, 4), NULL, 0 },
    { 2, 1, 3, S(1, 1), S(1, 1), ONES, ONES, NONE, NONE, ONES, NULL, 0 },
    { 2, 1, 16, S(6, 6), S(3, 3), ONES, ONES, P(1, 1), P(1, 1), S(6, 6), NULL, 0 },
    { 2, 1, 3, S(7, 9), S(3, 2), S(2, 3), ONES, P(2, 0), P(0, 1), S(4, 3), NULL, 0 },
    { 2, 1, 3, S(6, 6), S(3, 3), S(2, 2), ONES, NONE, P(1, 1), S(3, 3), NULL, 1 },
    { 2, 1, 3, S(6, 6), S(3, 3), S(2, 2), ONES, NONE, NONE, S(2, 2), NULL, 0 },
    { 2, 1, 3, S(6, 7), S(3, 3), S(2, 2), ONES, NONE, NONE, S(3, 3), NULL, 1 },
    /* without padding: the part of the last window beyond the input is not padding */
    { 2, 1, 3, S(6, 7), S(3, 3), S(2, 2), ONES, NONE, NONE, S(3, 3), "NOTSET", 1 },
    { 2, 1, 3, S(4, 4), S(3, 3), S(2, 2), ONES, NONE, NONE, S(2, 2), "NOTSET", 1 },
    { 1, 1, 3, S(1, 10), S(1, 4), S(1, 3), S(1, 2), NONE, NONE, S(1, 2), "VALID", 1 },
    /* rounding up would start a window in the upper padding: it is omitted */
    { 2, 1, 2, S(3, 4), S(2, 2), S(3, 3), ONES, P(1, 1), P(1, 1), S(2, 2), NULL, 1 },
    /* rounding up: one window, which extends beyond the whole input */
    { 2, 1, 2, S(3, 2), S(5, 6), S(5, 6), ONES, NONE, NONE, S(1, 1), NULL, 1 },
    { 1, 2, 3, S(1, 10), S(1, 12), S(1, 5), ONES, NONE, NONE, S(1, 1), NULL, 1 },
    { 2, 1, 2, S(5, 5), S(3, 3), S(2, 2), ONES, P(1, 1), P(1, 1), S(3, 3), "SAME_UPPER", 0 },
    { 2, 1, 2, S(6, 6), S(3, 3), S(2, 2), ONES, P(0, 0), P(1, 1), S(3, 3), "SAME_UPPER", 0 },
    { 2, 1, 2, S(6, 6), S(3, 3), S(2, 2), ONES, P(1, 1), P(0, 0), S(3, 3), "SAME_LOWER", 0 },
    { 2, 1, 2, S(6, 6), S(3, 3), S(2, 2), ONES, NONE, NONE, S(2, 2), "VALID", 0 },
    { 2, 1, 5, S(8, 7), S(3, 2), ONES, S(2, 3), P(1, 0), P(1, 1), S(6, 5), NULL, 0 },
    { 1, 2, 3, S(1, 11), S(1, 3), S(1, 2), ONES, P(0, 1), P(0, 1), S(1, 6), NULL, 0 },
    { 1, 2, 17, S(1, 8), S(1, 4), S(1, 4), ONES, NONE, NONE, S(1, 2), NULL, 0 },
    { 3, 1, 2, { 4, 5, 3 }, { 2, 3, 2 }, { 2, 1, 1 }, ONES, P(1, 0), P(1, 1), { 2, 5, 3 },
      NULL, 0 },
    { 0 },
};

struct built {
    struct gradcheck_case gc;
    struct op_attr attrs[6];
    int64_t pads[6];
};

static void set(struct built *b, const struct pool *c)
{
    int first = 3 - c->spatial, k;
    size_t n = (size_t)c->spatial;
    struct shape *x = &b->gc.in[0].shape;

    memset(b, 0, sizeof(*b));
    b->gc = (struct gradcheck_case){ .op = "MaxPool", .opset = 12, .attrs = b->attrs, .n_attrs = 5,
                                     .n_in = 1, .seed = 5 };
    *x = shape_of(2, c->n, c->c);
    for (k = first; k < 3; k++) {
        x->dim[x->rank++] = c->in[k];
        b->pads[k - first] = c->lo[k];
        b->pads[k - first + c->spatial] = c->hi[k];
    }
    b->gc.in[0].apart = true;
    b->attrs[0] = INTS("strides", n, c->stride + first);
    b->attrs[1] = INTS("dilations", n, c->dilation + first);
    b->attrs[2] = INTS("kernel_shape", n, c->kernel + first);
    b->attrs[3] = INT("ceil_mode", c->ceil_mode);
    b->attrs[4] = INTS("pads", 2 * n, b->pads);
    if (c->auto_pad != NULL)
        b->attrs[4] = STRING("auto_pad", c->auto_pad);
}

/* Position of the largest element of a window in its plane. */
static int64_t winner(const struct pool *c, const float *plane, const int64_t *e)
{
    int64_t k[3], best = -1;

    for (k[0] = 0; k[0] < c->kernel[0]; k[0]++)
        for (k[1] = 0; k[1] < c->kernel[1]; k[1]++)
            for (k[2] = 0; k[2] < c->kernel[2]; k[2]++) {
                int64_t at = 0, d;
                bool inside = true;

                for (d = 0; d < 3; d++) {
                    int64_t p = e[d] * c->stride[d] + k[d] * c->dilation[d] - c->lo[d];

                    inside = inside && p >= 0 && p < c->in[d];
                    at = at * c->in[d] + p;
                }
                if (inside && (best < 0 || plane[at] > plane[best]))
                    best = at;
            }
    return best;
}

/* Checks output and gradient of every plane: the maximum, and dy at its position. */
static void expect_max(const struct pool *c, const struct gradcheck_result *r)
{
    int64_t inside = c->in[0] * c->in[1] * c->in[2], e[3], p;
    size_t n_out = (size_t)tensor_elements(&r->out[0]), n_in = (size_t)tensor_elements(&r->in[0]);
    const float *x = r->in[0].data, *dy = r->dout[0].data;
    double *y = calloc(n_out + 1, sizeof(*y)), *dx = calloc(n_in + 1, sizeof(*dx));
    size_t at = 0;

    assert_int_equal(n_out, c->n * c->c * c->out[0] * c->out[1] * c->out[2]);
    for (p = 0; p < c->n * c->c; p++, x += inside)
        for (e[0] = 0; e[0] < c->out[0]; e[0]++)
            for (e[1] = 0; e[1] < c->out[1]; e[1]++)
                for (e[2] = 0; e[2] < c->out[2]; e[2]++) {
                    int64_t best = winner(c, x, e);

                    assert_true(best >= 0);
                    y[at] = (double)x[best];
                    dx[p * inside + best] += dy != NULL ? (double)dy[at] : 0;
                    at++;
                }
    gradcheck_near("MaxPool", r->out[0].data, y, n_out, 0);
    if (r->din[0].data != NULL)
        gradcheck_near("MaxPool, gradient", r->din[0].data, dx, n_in, 1e-6);
    free(y);
    free(dx);
}

static void max_pool_selects_maximum_and_routes_gradient(void **state)
{
    const struct pool *c;

    (void)state;
    for (c = cases; c->spatial > 0; c++) {
        struct built b;
        struct gradcheck_result r;
        struct err err = { 0 };

        set(&b, c);
        if (gradcheck_backward(&b.gc, &r, &err) < 0)
            fail_msg("case %d: %s", (int)(c - cases), err.text);
        expect_max(c, &r);
        gradcheck_free(&r);
        gradcheck_run(&b.gc);
    }
}

static void max_pool_indices_use_plain_order_of_x(void **state)
{
    const struct pool *c;

    (void)state;
    for (c = cases; c->spatial > 0; c++) {
        int64_t inside = c->in[0] * c->in[1] * c->in[2], e[3], p;
        struct built b;
        struct gradcheck_result r;
        struct err err = { 0 };
        const int64_t *got;

        set(&b, c);
        b.gc.n_out = 2;
        assert_int_equal(gradcheck_backward(&b.gc, &r, &err), 0);
        expect_max(c, &r);
        assert_int_equal(r.out[1].dtype, TENSOR_I64);
        assert_true(shape_equal(&r.out[0].shape, &r.out[1].shape));
        got = r.out[1].data;
        for (p = 0; p < c->n * c->c; p++)
            for (e[0] = 0; e[0] < c->out[0]; e[0]++)
                for (e[1] = 0; e[1] < c->out[1]; e[1]++)
                    for (e[2] = 0; e[2] < c->out[2]; e[2]++)
                        assert_int_equal(
                            *got++, p * inside + winner(c, (float *)r.in[0].data + p * inside, e));
        gradcheck_free(&r);
        b.gc.unread = OP_OUT(0);
        assert_int_equal(gradcheck_forward(&b.gc, &r, &err), 0);
        gradcheck_free(&r);
    }
}

static void max_pool_without_gradient_saves_nothing(void **state)
{
    const struct pool *c;

    (void)state;
    for (c = cases; c->spatial > 0; c++) {
        struct built b;
        struct gradcheck_result r;
        struct err err = { 0 };

        set(&b, c);
        b.gc.eval = true;
        assert_int_equal(gradcheck_forward(&b.gc, &r, &err), 0);
        expect_max(c, &r);
        gradcheck_free(&r);
    }
}

static void max_pool_ignores_padding_beside_negative_numbers(void **state)
{
    static const float minus[4] = { -5, -6, -7, -8 };
    struct pool c = { 2, 1, 1, S(2, 2), S(3, 3), ONES, ONES, P(1, 1), P(1, 1), S(2, 2), NULL, 0 };
    struct built b;
    struct gradcheck_result r;
    struct err err = { 0 };

    (void)state;
    set(&b, &c);
    b.gc.in[0].data = minus;
    assert_int_equal(gradcheck_backward(&b.gc, &r, &err), 0);
    expect_max(&c, &r);
    gradcheck_free(&r);
}

static void max_pool_with_ties_routes_gradient_to_one_element(void **state)
{
    static const float equal[16] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 };
    static const float ones[4] = { 1, 1, 1, 1 };
    struct pool c = { 2, 1, 1, S(4, 4), S(2, 2), S(2, 2), ONES, NONE, NONE, S(2, 2), NULL, 0 };
    struct built b;
    struct gradcheck_result r;
    struct err err = { 0 };
    float sum = 0;
    int i;

    (void)state;
    set(&b, &c);
    b.gc.in[0].data = equal;
    b.gc.dout[0] = ones;
    assert_int_equal(gradcheck_backward(&b.gc, &r, &err), 0);
    for (i = 0; i < 16; i++) {
        float g = ((float *)r.din[0].data)[i];

        assert_true(g == 0.0f || g == 1.0f);
        sum += g;
    }
    assert_true(sum == 4.0f);
    gradcheck_free(&r);
}

static void empty_batch_gives_empty_output(void **state)
{
    struct pool c = cases[1];
    struct built b;

    (void)state;
    c.n = 0;
    set(&b, &c);
    b.gc.in[0].apart = false;
    gradcheck_run(&b.gc);
}

static void expect_refused(const struct built *b, int code, const char *says)
{
    struct gradcheck_result r;
    struct err err = { 0 };

    assert_int_equal(gradcheck_forward(&b->gc, &r, &err), code);
    assert_non_null(strstr(err.text, "MaxPool 'checked' (opset 12): "));
    if (strstr(err.text, says) == NULL)
        fail_msg("'%s' does not say '%s'", err.text, says);
}

static void max_pool_with_invalid_attributes_is_rejected_with_node(void **state)
{
    struct pool c = cases[0];
    struct built b;

    (void)state;
    set(&b, &c);
    b.gc.n_out = 2;
    b.attrs[3] = INT("storage_order", 1);
    expect_refused(&b, ERR_UNSUPPORTED, "'storage_order' is 1; only 0 works for the second output");
    set(&b, &c);
    b.attrs[2].name = "storage_order";
    b.attrs[2].type = OP_ATTR_INT;
    expect_refused(&b, ERR_INPUT, "attribute 'kernel_shape' is missing");
    set(&b, &c);
    b.gc.in[0].shape.rank = 2;
    expect_refused(&b, ERR_UNSUPPORTED, "expected 3 to 5 dimensions");
    c.lo[1] = c.hi[1] = 2;
    set(&b, &c);
    expect_refused(&b, ERR_INPUT, "window 0 along axis 2 lies wholly in the padding");
    c = cases[0];
    c.hi[2] = 2;
    set(&b, &c);
    expect_refused(&b, ERR_INPUT, "the last window along axis 3 lies wholly in the padding");
    /* Taps at -1 and 1 of a single element. */
    c = (struct pool){ 2, 1, 1, S(1, 4), S(2, 2), ONES, S(2, 1), P(1, 0), P(1, 0), ONES, NULL, 0 };
    set(&b, &c);
    expect_refused(&b, ERR_INPUT, "window 0 along axis 2 lies wholly in the padding");
}

/* ---- AveragePool and LpPool ---- */

enum { MEAN_INSIDE, MEAN_PADDED, NORM_1, NORM_2, NORM_3, KINDS };

static void set_kind(struct built *b, const struct pool *c, int kind)
{
    set(b, c);
    b->gc.in[0].apart = false;
    b->gc.op = kind < NORM_1 ? "AveragePool" : "LpPool";
    b->gc.opset = 19;
    b->gc.n_attrs = 6;
    b->attrs[5] =
        kind < NORM_1 ? INT("count_include_pad", kind == MEAN_PADDED) : INT("p", kind - NORM_1 + 1);
}

/* One output of a plane. `behind`: upper padding, without the growth by ceil_mode. */
static double pooled(const struct pool *c, const float *plane, const int64_t *e, int kind)
{
    double sum = 0, count = 0;
    int64_t k[3];
    int d;

    for (k[0] = 0; k[0] < c->kernel[0]; k[0]++)
        for (k[1] = 0; k[1] < c->kernel[1]; k[1]++)
            for (k[2] = 0; k[2] < c->kernel[2]; k[2]++) {
                int64_t at = 0;
                bool inside = true, padded = true;
                double v;

                for (d = 0; d < 3; d++) {
                    int64_t p = e[d] * c->stride[d] + k[d] * c->dilation[d] - c->lo[d];

                    inside = inside && p >= 0 && p < c->in[d];
                    padded = padded && p < c->in[d] + c->hi[d];
                    at = at * c->in[d] + p;
                }
                count += kind == MEAN_PADDED ? padded : inside;
                v = inside ? (double)plane[at] : 0;
                sum += kind < NORM_1 ? v : pow(fabs(v), kind - NORM_1 + 1);
            }
    return kind < NORM_1 ? sum / count : pow(sum, 1.0 / (kind - NORM_1 + 1));
}

static void expect_pooled(const struct pool *c, const struct gradcheck_result *r, int kind)
{
    size_t n = (size_t)tensor_elements(&r->out[0]), at = 0;
    double *want = calloc(n + 1, sizeof(*want));
    const float *x = r->in[0].data;
    int64_t e[3], p;

    assert_int_equal(n, c->n * c->c * c->out[0] * c->out[1] * c->out[2]);
    for (p = 0; p < c->n * c->c; p++, x += c->in[0] * c->in[1] * c->in[2])
        for (e[0] = 0; e[0] < c->out[0]; e[0]++)
            for (e[1] = 0; e[1] < c->out[1]; e[1]++)
                for (e[2] = 0; e[2] < c->out[2]; e[2]++)
                    want[at++] = pooled(c, x, e, kind);
    gradcheck_near("pool", r->out[0].data, want, n, 2e-6);
    free(want);
}

static void average_and_lp_pools_follow_definition(void **state)
{
    const struct pool *c;
    int kind;

    (void)state;
    for (c = cases; c->spatial > 0; c++)
        for (kind = 0; kind < KINDS; kind++) {
            struct built b;
            struct gradcheck_result r;
            struct err err = { 0 };

            set_kind(&b, c, kind);
            if (gradcheck_forward(&b.gc, &r, &err) < 0)
                fail_msg("case %d: %s", (int)(c - cases), err.text);
            expect_pooled(c, &r, kind);
            gradcheck_free(&r);
            b.gc.probes = 24;
            b.gc.in[0].apart = kind >= NORM_1; /* |x| has a kink at 0 */
            b.gc.step = kind == NORM_1 ? 1.0 / 256 : 0;
            gradcheck_run(&b.gc);
        }
}

static void large_window_keeps_precision(void **state)
{
    struct pool c = { 2, 1, 3, S(70, 65), S(70, 65), ONES, ONES, NONE, NONE, ONES, NULL, 0 };
    int kind;

    (void)state;
    for (kind = 0; kind < KINDS; kind++) {
        struct built b;
        struct gradcheck_result r;
        struct err err = { 0 };

        set_kind(&b, &c, kind);
        b.gc.in[0].lo = 0.5;
        b.gc.in[0].hi = 1.5;
        assert_int_equal(gradcheck_forward(&b.gc, &r, &err), 0);
        expect_pooled(&c, &r, kind);
        gradcheck_free(&r);
    }
}

static void lp_pool_of_zeros_has_zero_output_and_gradient(void **state)
{
    static const float zeros[16] = { 0 };
    struct pool c = { 2, 1, 1, S(4, 4), S(2, 2), S(2, 2), ONES, NONE, NONE, S(2, 2), NULL, 0 };
    int kind, i;

    (void)state;
    for (kind = NORM_1; kind < KINDS; kind++) {
        struct built b;
        struct gradcheck_result r;
        struct err err = { 0 };

        set_kind(&b, &c, kind);
        b.gc.in[0].data = zeros;
        assert_int_equal(gradcheck_backward(&b.gc, &r, &err), 0);
        for (i = 0; i < 4; i++)
            assert_true(((float *)r.out[0].data)[i] == 0);
        for (i = 0; i < 16; i++)
            assert_true(((float *)r.din[0].data)[i] == 0);
        gradcheck_free(&r);
    }
}

static void invalid_pools_are_rejected_with_node(void **state)
{
    struct pool c = cases[0];
    struct built b;

    (void)state;
    c.lo[1] = c.hi[1] = 2;
    set_kind(&b, &c, MEAN_INSIDE);
    oracle_refused(&b.gc, ERR_INPUT, "AveragePool 'checked' (opset 19): window 0 along axis 2 lies "
                                     "wholly in the padding");
    set_kind(&b, &cases[0], NORM_1);
    b.attrs[5].i = 0;
    oracle_refused(&b.gc, ERR_INPUT, "LpPool 'checked' (opset 19): attribute 'p' is 0");
    b.gc.in[0].shape.rank = 2;
    b.attrs[5].i = 1;
    oracle_refused(&b.gc, ERR_UNSUPPORTED, "expected 3 to 5 dimensions");
}

/* A window that is entirely padding is a mean of zeros, or a norm of no elements. */
static void window_of_padding_only_is_zero(void **state)
{
    struct pool c = { 1, 1, 1, S(1, 2), S(1, 2), S(1, 2), ONES, P(0, 2), P(0, 2), S(1, 3), NULL,
                      0 };
    int kind;

    (void)state;
    for (kind = MEAN_PADDED; kind < KINDS; kind++) {
        struct built b;
        struct gradcheck_result r;
        struct err err = { 0 };

        set_kind(&b, &c, kind);
        assert_int_equal(gradcheck_forward(&b.gc, &r, &err), 0);
        assert_true(((float *)r.out[0].data)[0] == 0 && ((float *)r.out[0].data)[2] == 0);
        gradcheck_free(&r);
    }
}

/* ---- global pools ---- */

static void global_pools_match_pools_of_one_window(void **state)
{
    static const struct shape shapes[] = {
        { 4, { 2, 3, 5, 7 } }, { 4, { 1, 17, 1, 1 } }, { 4, { 2, 70, 9, 9 } }, { 3, { 2, 3, 11 } },
        { 5, { 1, 4, 2, 3, 2 } }, { 4, { 0, 3, 4, 4 } },
    };
    size_t i, k, m;
    int p;

    (void)state;
    for (i = 0; i < COUNT_OF(shapes); i++)
        for (p = 0; p <= 3; p++) { /* 0: the maximum */
            const struct shape *s = &shapes[i];
            struct op_attr attr = INT("p", p);
            struct gradcheck_case gc = { .op = p == 0 ? "GlobalMaxPool" : "GlobalLpPool",
                                         .opset = 13, .attrs = &attr, .n_attrs = p == 0 ? 0 : 1,
                                         .n_in = 1, .seed = 2, .probes = 24 };
            size_t planes = (size_t)(s->dim[0] * s->dim[1]), inside = 1;
            struct gradcheck_result r;
            struct err err = { 0 };
            double *want = calloc(planes + 1, sizeof(*want));

            for (k = 2; k < s->rank; k++)
                inside *= (size_t)s->dim[k];
            gc.in[0].shape = *s;
            gc.in[0].apart = s->dim[0] > 0;
            assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
            assert_int_equal(tensor_elements(&r.out[0]), planes);
            assert_int_equal(r.out[0].shape.rank, s->rank);
            for (k = 0; k < planes; k++) {
                want[k] = p == 0 ? -INFINITY : 0;
                for (m = 0; m < inside; m++) {
                    double x = (double)((float *)r.in[0].data)[k * inside + m];

                    want[k] = p == 0 ? fmax(want[k], x) : want[k] + pow(fabs(x), p);
                }
                want[k] = p < 2 ? want[k] : pow(want[k], 1.0 / p);
            }
            gradcheck_near(gc.op, r.out[0].data, want, planes, 2e-6);
            gradcheck_free(&r);
            free(want);
            gradcheck_run(&gc);
        }
}

/* ---- GlobalAveragePool ---- */

static const struct shape averaged[] = {
    { 4, { 2, 1, 8, 8 } }, { 4, { 2, 3, 5, 7 } },  { 4, { 1, 17, 1, 1 } }, { 4, { 2, 130, 7, 7 } },
    { 3, { 2, 3, 11 } },   { 5, { 1, 4, 2, 3, 2 } }, { 4, { 0, 3, 4, 4 } },
};

static void global_average_pool_is_spatial_mean(void **state)
{
    size_t i, k, m;

    (void)state;
    for (i = 0; i < COUNT_OF(averaged); i++) {
        struct gradcheck_case gc = { .op = "GlobalAveragePool", .opset = 13, .n_in = 1, .seed = 2,
                                     .step = 1.0 / 4, .probes = 40 };
        const struct shape *s = &averaged[i];
        size_t planes = (size_t)(s->dim[0] * s->dim[1]), inside = 1;
        struct gradcheck_result r;
        struct err err = { 0 };
        double *want = calloc(planes + 1, sizeof(*want));

        for (k = 2; k < s->rank; k++)
            inside *= (size_t)s->dim[k];
        gc.in[0].shape = *s;
        assert_int_equal(gradcheck_forward(&gc, &r, &err), 0);
        assert_int_equal(r.out[0].shape.rank, s->rank);
        assert_int_equal(tensor_elements(&r.out[0]), planes);
        for (k = 0; k < planes; k++)
            for (m = 0; m < inside; m++)
                want[k] += (double)((float *)r.in[0].data)[k * inside + m] / (double)inside;
        gradcheck_near("GlobalAveragePool", r.out[0].data, want, planes, 2e-7);
        gradcheck_free(&r);
        free(want);
        gradcheck_run(&gc);
    }
}

static void global_average_pool_without_space_is_rejected(void **state)
{
    struct gradcheck_case gc = { .op = "GlobalAveragePool", .opset = 13, .n_in = 1 };
    struct gradcheck_result r;
    struct err err = { 0 };

    (void)state;
    gc.in[0].shape = shape_of(2, (int64_t)2, (int64_t)3);
    assert_int_equal(gradcheck_forward(&gc, &r, &err), ERR_INPUT);
    assert_non_null(
        strstr(err.text, "GlobalAveragePool 'checked' (opset 13): input 0 has shape [2, 3]"));
    gc.in[0].shape = shape_of(4, (int64_t)2, (int64_t)3, (int64_t)0, (int64_t)4);
    assert_int_equal(gradcheck_forward(&gc, &r, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "nothing to average along axis 2"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(max_pool_selects_maximum_and_routes_gradient),
        cmocka_unit_test(max_pool_indices_use_plain_order_of_x),
        cmocka_unit_test(max_pool_without_gradient_saves_nothing),
        cmocka_unit_test(max_pool_ignores_padding_beside_negative_numbers),
        cmocka_unit_test(max_pool_with_ties_routes_gradient_to_one_element),
        cmocka_unit_test(empty_batch_gives_empty_output),
        cmocka_unit_test(max_pool_with_invalid_attributes_is_rejected_with_node),
        cmocka_unit_test(average_and_lp_pools_follow_definition),
        cmocka_unit_test(large_window_keeps_precision),
        cmocka_unit_test(lp_pool_of_zeros_has_zero_output_and_gradient),
        cmocka_unit_test(invalid_pools_are_rejected_with_node),
        cmocka_unit_test(window_of_padding_only_is_zero),
        cmocka_unit_test(global_pools_match_pools_of_one_window),
        cmocka_unit_test(global_average_pool_is_spatial_mean),
        cmocka_unit_test(global_average_pool_without_space_is_rejected),
    };

    return cmocka_run_group_tests_name("op/pool", tests, NULL, NULL);
}
