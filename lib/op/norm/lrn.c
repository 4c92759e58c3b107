/* lrn.c - LRN (opset 1): y = x s^-beta, s = bias + alpha / size times the sum of x^2 over `size`
 * channels around each one: floor((size - 1) / 2) before it and size / 2 after it, as far as
 * they exist (PyTorch has more channels before it if size is even).
 *   dx_j = dy_j s_j^-beta - 2 alpha beta / size x_j sum_c dy_c x_c s_c^(-beta - 1),
 *   c the channels whose sum includes j
 *
 * With `inner` elements from one channel to the next, a sample is a line of [channels, inner],
 * and the sum over channels is a sum of the line shifted by multiples of `inner`. In a
 * channels-last layout, inner is 1 and a line is one position.
 *
 * The kernels are our own. oneDNN's LRN sums size - 1 channels if size is even. For a beta other
 * than 0.75, and in the plain layout, its backward is a reference kernel (97 to 135 ms instead
 * of 40 ms for [8, 96, 55, 55]), so these loops would have to stay; only for beta 0.75 in a
 * channels-last layout it is faster (1 ms). */
#include <inttypes.h>
#include <math.h>

#include "base/err.h"
#include "op/norm/norm_priv.h"
#include "op/op_priv.h"
#include "op/vmath.h"

struct lines {
    size_t n, length, inner; /* n lines of `length` elements */
};

static int infer(struct op_infer *f, struct err *err)
{
    struct lrn_param *p = f->param;
    char text[192];
    int rc = infer_same_shape(f, err);

    if (rc == 0)
        rc = op_attr_i(f, "size", 0, &p->size, err);
    if (rc == 0)
        rc = op_attr_f(f, "alpha", 1e-4f, &p->alpha, err);
    if (rc == 0)
        rc = op_attr_f(f, "beta", 0.75f, &p->beta, err);
    if (rc == 0)
        rc = op_attr_f(f, "bias", 1, &p->bias, err);
    if (rc < 0)
        return rc;
    if (f->in[0]->shape.rank < 2)
        return op_error(f, ERR_INPUT, err, "input 0 has shape %s; expected n, channels and "
                        "optionally space", shape_print(&f->in[0]->shape, text, sizeof(text)));
    if (p->size < 1 || p->size > INT32_MAX || !(p->bias > 0) || !(p->alpha >= 0) ||
        !isfinite(p->alpha) || !isfinite(p->beta))
        return op_error(f, ERR_INPUT, err, "size is %" PRId64 ", alpha %g, beta %g, bias %g; "
                        "expected size >= 1, alpha >= 0 and bias > 0", p->size, (double)p->alpha,
                        (double)p->beta, (double)p->bias);
    return 0;
}

static struct lines lines_of(const struct tensor *x)
{
    size_t all = (size_t)tensor_elements(x), channels = (size_t)x->shape.dim[1];
    struct lines l = { .inner = 1, .length = channels };
    uint32_t k;

    if (x->layout == TENSOR_PLAIN)
        for (k = 2; k < x->shape.rank; k++)
            l.inner *= (size_t)x->shape.dim[k];
    l.length *= l.inner;
    l.n = l.length > 0 ? all / l.length : 0;
    return l;
}

/* Saves s. The scratch has three lines. */
static int plan(struct op_plan *p, struct err *err)
{
    struct lines l = lines_of(p->in[0]);

    (void)err;
    p->save_bytes = l.n * l.length * sizeof(float);
    p->scratch_bytes = 3 * op_round(l.length * sizeof(float));
    return 0;
}

/* Computes sum [length]: the sum of q over up to `front` channels before and `behind` channels
 * after each one. */
CLONES static void sum_around(const float *q, const struct lines *l, int64_t front, int64_t behind,
                              float *restrict sum)
{
    int64_t channels = (int64_t)(l->length / l->inner), d;
    size_t k;

    front = front < channels ? front : channels - 1;
    behind = behind < channels ? behind : channels - 1;
    memset(sum, 0, l->length * sizeof(*sum));
    for (d = -front; d <= behind; d++) {
        size_t shift = (size_t)(d < 0 ? -d : d) * l->inner, n = l->length - shift;
        const float *from = d < 0 ? q : q + shift;
        float *restrict to = d < 0 ? sum + shift : sum;

        for (k = 0; k < n; k++)
            to[k] += from[k];
    }
}

CLONES static void squares(const float *x, float *restrict q, size_t n)
{
    size_t k;

    for (k = 0; k < n; k++)
        q[k] = x[k] * x[k];
}

/* s: before the call the sums of squares; then s of the formula. */
CLONES static void divide(const float *x, float *s, float *y, size_t n, float bias, float factor,
                          float beta)
{
    size_t k;

    OP_EACH
    for (k = 0; k < n; k++) {
        s[k] = bias + factor * s[k];
        y[k] = x[k] * vm_pow(s[k], -beta);
    }
}

/* dp = dy s^-beta and r = dp x / s */
CLONES static void shares(const float *x, const float *dy, const float *s, float *restrict dp,
                          float *restrict r, size_t n, float beta)
{
    size_t k;

    for (k = 0; k < n; k++) {
        dp[k] = dy[k] * vm_pow(s[k], -beta);
        r[k] = dp[k] * x[k] / s[k];
    }
}

CLONES static void gradient(const float *x, const float *dp, const float *sum, float *dx, size_t n,
                            float factor, bool add)
{
    size_t k;

    OP_EACH
    for (k = 0; k < n; k++) {
        float d = dp[k] - factor * x[k] * sum[k];

        dx[k] = add ? dx[k] + d : d;
    }
}

static int fwd(const struct op_call *c, struct err *err)
{
    const struct lrn_param *p = c->param;
    struct lines l = lines_of(c->in[0]);
    float *q = c->scratch, *s = c->save, *y = c->out[0]->data;
    const float *x = c->in[0]->data;
    size_t i;

    (void)err; /* nothing can fail */
    for (i = 0; i < l.n; i++, x += l.length, y += l.length, s += l.length) {
        squares(x, q, l.length);
        sum_around(q, &l, (p->size - 1) / 2, p->size / 2, s);
        divide(x, s, y, l.length, p->bias, p->alpha / (float)p->size, p->beta);
    }
    return 0;
}

static int bwd(const struct op_call *c, struct err *err)
{
    const struct lrn_param *p = c->param;
    struct lines l = lines_of(c->in[0]);
    size_t line = op_round(l.length * sizeof(float)), i;
    float *dp = c->scratch, *r = op_at(c->scratch, line), *sum = op_at(c->scratch, 2 * line);
    float factor = 2 * p->alpha * p->beta / (float)p->size;
    const float *x = c->in[0]->data, *s = c->save, *dy;
    float *dx;

    (void)err; /* nothing can fail */
    if (c->dout[0] == NULL || c->din[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    dy = c->dout[0]->data;
    dx = c->din[0]->data;
    for (i = 0; i < l.n; i++) {
        shares(x, dy, s, dp, r, l.length, p->beta);
        sum_around(r, &l, p->size / 2, (p->size - 1) / 2, sum);
        gradient(x, dp, sum, dx, l.length, factor, op_adds(c, 0));
        x += l.length;
        dy += l.length;
        s += l.length;
        dx += l.length;
    }
    return 0;
}

static const char *const attrs[] = { "alpha", "beta", "bias", "size", NULL };

const struct op_def op_lrn = {
    .name = "LRN",
    .since = 1,
    .n_in = { 1, 1 },
    .n_out = { 1, 1 },
    .attrs = attrs,
    .param_bytes = sizeof(struct lrn_param),
    .infer = infer,
    .diff = OP_IN(0),
    .bwd_reads = OP_IN(0),
    .layout = OP_LAYOUT_ANY,
    .cpu = { plan, fwd, bwd, NULL },
};
