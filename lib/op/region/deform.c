/* deform.c - DeformColumns: the sampled columns that the filters of DeformConv multiply
 * (graph/lower_deform.c adds the product).
 *   in   x [n, c, h, w], offset [n, 2 groups taps, oh, ow] (down, right of each tap), mask [n,
 *        groups taps, oh, ow]
 *   out  y [n, c taps, oh ow]: mask times x at the displaced tap, bilinear, 0 outside of x
 * dx is summed in double, one sample at a time, and rounded once. */
#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "op/op_priv.h"
#include "op/region/deform.h"
#include "op/window.h"

enum { X, OFFSET, MASK };

/* Checks that input i is [n, channels, oh, ow]. */
static int need_points(const struct op_infer *f, const struct deform *g, uint32_t i,
                       const char *what, int64_t channels, struct err *err)
{
    struct shape want = shape_of(4, f->in[X]->shape.dim[0], channels, g->out[0], g->out[1]);
    char text_want[192], text[192];
    int rc = op_check_input(f, i, TENSOR_F32, -1, err);

    if (rc == 0 && !shape_equal(&f->in[i]->shape, &want))
        rc = op_error(f, ERR_INPUT, err, "the %s has shape %s; expected %s", what,
                      shape_print(&f->in[i]->shape, text, sizeof(text)),
                      shape_print(&want, text_want, sizeof(text_want)));
    return rc;
}

static int read_window(const struct op_infer *f, struct deform *g, struct err *err)
{
    struct op_window w = { 0 };
    int rc = op_window_infer(f, NULL, false, &w, err), k;

    for (k = 0; rc == 0 && k < 2; k++) {
        if (w.in[k] > 1 << 24) /* a float represents larger integers inexactly */
            return op_error(f, ERR_UNSUPPORTED, err, "an axis of more than 2^24 elements");
        g->in[k] = w.in[k];
        g->out[k] = w.out[k];
        g->kernel[k] = w.kernel[k];
        g->stride[k] = w.stride[k];
        g->dilation[k] = w.dilation[k];
        g->pad[k] = w.pad_lo[k];
    }
    return rc;
}

static int infer(struct op_infer *f, struct err *err)
{
    struct deform *g = f->param;
    const struct shape *x;
    int64_t groups = 1, moved;
    int rc = op_check_input(f, X, TENSOR_F32, 4, err);

    if (rc == 0)
        rc = op_attr_i(f, "offset_group", 1, &groups, err);
    if (rc == 0)
        rc = read_window(f, g, err);
    if (rc < 0)
        return rc;
    x = &f->in[X]->shape;
    if (groups < 1 || groups > x->dim[1] || x->dim[1] % groups != 0)
        return op_error(f, ERR_INPUT, err,
                        "offset_group is %" PRId64 "; expected a divisor of the %" PRId64
                        " channels",
                        groups, x->dim[1]);
    g->groups = (size_t)groups;
    g->samples = (size_t)x->dim[0];
    g->channels = (size_t)x->dim[1];
    g->inputs = (size_t)(g->in[0] * g->in[1]);
    g->points = (size_t)(g->out[0] * g->out[1]);
    g->taps = (size_t)(g->kernel[0] * g->kernel[1]);
    if (__builtin_mul_overflow(2 * groups, g->kernel[0] * g->kernel[1], &moved) ||
        x->dim[1] > INT64_MAX / moved)
        return op_error(f, ERR_INPUT, err, "the kernel and offset_group %" PRId64 " are too large",
                        groups);
    g->has_mask = f->n_in > MASK && f->in[MASK] != NULL;
    rc = need_points(f, g, OFFSET, "offset", moved, err);
    if (rc == 0 && g->has_mask)
        rc = need_points(f, g, MASK, "mask", moved / 2, err);
    if (rc < 0)
        return rc;
    f->out[0].dtype = TENSOR_F32;
    f->out[0].shape = shape_of(3, x->dim[0], x->dim[1] * (int64_t)g->taps, (int64_t)g->points);
    return op_check_size(f, err);
}

/* ---- kernels ---- */

static int plan(struct op_plan *p, struct err *err)
{
    const struct deform *g = p->param;

    (void)err;
    if (op_wants(p, X))
        p->scratch_bytes = g->channels * g->inputs * sizeof(double);
    return 0;
}

/* Returns the factor of a tap, and its position in *p. */
static float read_tap(const struct op_call *c, const struct deform *g, size_t s, size_t group,
                      size_t tap, size_t point, struct deform_place *p)
{
    const float *offset =
        (const float *)c->in[OFFSET]->data + deform_offset(g, s, group, tap, point);

    deform_place_of(g, tap, point, offset[0], offset[g->points], p);
    return g->has_mask ? ((const float *)c->in[MASK]->data)[deform_mask(g, s, group, tap, point)]
                       : 1.0f;
}

static int forward(const struct op_call *c, struct err *err)
{
    const struct deform *g = c->param;
    size_t each = g->channels / g->groups, s, q, t, i, k;

    (void)err;
    for (s = 0; s < g->samples; s++)
        for (q = 0; q < g->groups; q++)
            for (t = 0; t < g->taps; t++)
                for (i = 0; i < g->points; i++) {
                    struct deform_place p;
                    float m = read_tap(c, g, s, q, t, i, &p);

                    for (k = s * g->channels + q * each; k < s * g->channels + (q + 1) * each; k++)
                        ((float *)c->out[0]->data)[(k * g->taps + t) * g->points + i] =
                            m * deform_sum(&p, (const float *)c->in[X]->data + k * g->inputs, p.w);
                }
    return 0;
}

static void store(const struct op_call *c, uint32_t i, size_t at, double value)
{
    float *to;

    if (i >= c->n_in || c->din[i] == NULL)
        return;
    to = (float *)c->din[i]->data + at;
    *to = (op_adds(c, i) ? *to : 0.0f) + (float)value;
}

/* Computes the gradients through one tap of one point, for all channels of group q. sum: dx of the
 * sample, or NULL. */
static void tap_grads(const struct op_call *c, const struct deform *g, size_t s, size_t q, size_t t,
                      size_t i, double *sum)
{
    size_t each = g->channels / g->groups, k;
    struct deform_place p;
    float m = read_tap(c, g, s, q, t, i, &p);
    double down = 0, right = 0, mask = 0;
    int n;

    for (k = q * each; k < (q + 1) * each; k++) {
        const float *x = (const float *)c->in[X]->data + (s * g->channels + k) * g->inputs;
        double d = (double)((const float *)c->dout[0]
                                ->data)[((s * g->channels + k) * g->taps + t) * g->points + i];

        mask += d * (double)deform_sum(&p, x, p.w);
        d *= (double)m;
        down += d * (double)deform_sum(&p, x, p.down);
        right += d * (double)deform_sum(&p, x, p.right);
        for (n = 0; sum != NULL && n < p.n; n++)
            sum[k * g->inputs + p.element[n]] += d * (double)p.w[n];
    }
    store(c, OFFSET, deform_offset(g, s, q, t, i), down);
    store(c, OFFSET, deform_offset(g, s, q, t, i) + g->points, right);
    store(c, MASK, deform_mask(g, s, q, t, i), mask);
}

static int backward(const struct op_call *c, struct err *err)
{
    const struct deform *g = c->param;
    size_t n = g->channels * g->inputs, s, q, t, i;
    double *sum = c->din[X] != NULL ? c->scratch : NULL;

    (void)err;
    if (c->dout[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    for (s = 0; s < g->samples; s++) {
        float *dx = sum != NULL ? (float *)c->din[X]->data + s * n : NULL;

        if (sum != NULL)
            memset(sum, 0, n * sizeof(*sum));
        for (q = 0; q < g->groups; q++)
            for (t = 0; t < g->taps; t++)
                for (i = 0; i < g->points; i++)
                    tap_grads(c, g, s, q, t, i, sum);
        for (i = 0; sum != NULL && i < n; i++)
            dx[i] = (op_adds(c, X) ? dx[i] : 0.0f) + (float)sum[i];
    }
    return 0;
}

static const char *const attrs[] = { "dilations", "kernel_shape", "offset_group", "pads", "strides", NULL };

const struct op_def op_deform_columns = {
    .domain = "trainerd",
    .name = "DeformColumns",
    .since = 1,
    .n_in = { 2, 3 },
    .n_out = { 1, 1 },
    .attrs = attrs,
    .param_bytes = sizeof(struct deform),
    .infer = infer,
    .diff = OP_IN(X) | OP_IN(OFFSET) | OP_IN(MASK),
    .bwd_reads = OP_IN(X) | OP_IN(OFFSET) | OP_IN(MASK),
    .layout = OP_LAYOUT_PLAIN,
    .cpu = { plan, forward, backward, NULL },
};
