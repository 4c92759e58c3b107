/* grid_sample.c - GridSample (opset 16: images; 20: volumes too): each point of the output reads
 * the input at a position given by the grid, -1 to 1 along each axis.
 *   x [n, c, (d,) h, w], grid [n, (d',) h', w', 2 or 3] -> y [n, c, (d',) h', w']
 * The last axis of the grid holds w, h (, d) in this order. mode: linear, nearest or cubic;
 * padding_mode: beyond the input, reads zeros, the border, or the reflected input.
 *   dx: each point adds w dy to the elements that it read; summed in double, in point order.
 *   dgrid: dy times the derivative of the weights, summed over the channels in double. Nearest has
 *   none. */
#include "op/resize/grid_sample.h"

#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "op/op_priv.h"

enum { X, GRID };

/* ---- infer ---- */

static int read_choice(const struct op_infer *f, const char *attr, const char *const *names, int n,
                       int dflt, int *out, struct err *err)
{
    const char *text;
    int rc = op_attr_s(f, attr, names[dflt], &text, err), i;

    for (i = 0; rc == 0 && i < n; i++)
        if (strcmp(names[i], text) == 0) {
            *out = i;
            return 0;
        }
    return rc < 0 ? rc
                  : op_error(f, ERR_INPUT, err, "%s is '%.40s'; expected %s, %s or %s", attr, text,
                             names[0], names[1], names[n - 1]);
}

static int read_attrs(struct op_infer *f, struct grid_sample *g, struct err *err)
{
    /* the names of opset 16, then of opset 20 */
    static const char *const modes[] = { "nearest", "bilinear", "bicubic", "linear", "cubic" };
    static const char *const paddings[] = { "zeros", "border", "reflection" };
    int mode = 0, padding = 0, rc = read_choice(f, "mode", modes, 5, 1, &mode, err);
    int64_t align = 0;

    if (rc == 0)
        rc = read_choice(f, "padding_mode", paddings, 3, 0, &padding, err);
    if (rc == 0)
        rc = op_attr_i(f, "align_corners", 0, &align, err);
    g->mode = mode == 0 ? GRID_NEAREST : mode % 2 == 1 ? GRID_LINEAR : GRID_CUBIC;
    g->padding = (enum grid_padding)padding;
    g->align = align != 0;
    return rc;
}

static int infer(struct op_infer *f, struct err *err)
{
    struct grid_sample *g = f->param;
    const struct shape *x, *grid;
    char text_x[192], text_grid[192];
    uint32_t k, most = f->opset >= 20 ? 5 : 4;
    int rc = op_check_input(f, X, TENSOR_F32, -1, err);

    if (rc == 0)
        rc = op_check_input(f, GRID, TENSOR_F32, -1, err);
    if (rc == 0)
        rc = read_attrs(f, g, err);
    if (rc < 0)
        return rc;
    x = &f->in[X]->shape;
    grid = &f->in[GRID]->shape;
    if (x->rank < 4 || x->rank > most || grid->rank != x->rank || grid->dim[0] != x->dim[0] ||
        grid->dim[x->rank - 1] != (int64_t)x->rank - 2)
        return op_error(f, ERR_INPUT, err,
                        "the input has shape %s and the grid %s; expected [n, c, ...] of 4 to "
                        "%" PRIu32 " dimensions and [n, ..., %d]",
                        shape_print(x, text_x, sizeof(text_x)),
                        shape_print(grid, text_grid, sizeof(text_grid)), most, (int)x->rank - 2);
    g->axes = x->rank - 2;
    g->samples = (size_t)x->dim[0];
    g->channels = (size_t)x->dim[1];
    g->inputs = g->points = 1;
    for (k = 0; k < GRID_AXES; k++)
        g->size[k] = 1;
    f->out[0].dtype = TENSOR_F32;
    f->out[0].shape.rank = x->rank;
    f->out[0].shape.dim[0] = x->dim[0];
    f->out[0].shape.dim[1] = x->dim[1];
    for (k = 0; k < g->axes; k++) {
        if (x->dim[2 + k] > 1 << 24) /* a float represents larger integers inexactly */
            return op_error(f, ERR_UNSUPPORTED, err, "an axis of more than 2^24 elements");
        g->size[GRID_AXES - g->axes + k] = x->dim[2 + k];
        g->inputs *= (size_t)x->dim[2 + k];
        g->points *= (size_t)grid->dim[1 + k];
        f->out[0].shape.dim[2 + k] = grid->dim[1 + k];
    }
    return op_check_size(f, err);
}

/* ---- kernels ---- */

static int plan(struct op_plan *p, struct err *err)
{
    const struct grid_sample *g = p->param;

    (void)err;
    if (op_wants(p, X))
        p->scratch_bytes = g->channels * g->inputs * sizeof(double);
    return 0;
}

static const float *grid_at(const struct op_call *c, const struct grid_sample *g, size_t sample,
                            size_t point)
{
    return (const float *)c->in[GRID]->data + (sample * g->points + point) * g->axes;
}

static int forward(const struct op_call *c, struct err *err)
{
    const struct grid_sample *g = c->param;
    struct grid_taps t[GRID_AXES];
    size_t s, p, k;

    (void)err;
    for (s = 0; s < g->samples; s++)
        for (p = 0; p < g->points; p++) {
            const float *x = (const float *)c->in[X]->data + s * g->channels * g->inputs;
            float *y = (float *)c->out[0]->data + s * g->channels * g->points + p;

            grid_point(g, grid_at(c, g, s, p), t);
            for (k = 0; k < g->channels; k++, x += g->inputs, y += g->points) {
                float sum = 0;

                GRID_EACH(g, t, { sum += x[element] * (t[0].w[i] * t[1].w[j] * t[2].w[l]); })
                *y = sum;
            }
        }
    return 0;
}

/* Computes dx of one sample: sums each channel, then rounds once. */
static void input_grads(const struct op_call *c, const struct grid_sample *g, size_t s)
{
    double *sum = c->scratch;
    float *dx = (float *)c->din[X]->data + s * g->channels * g->inputs;
    bool add = op_adds(c, X);
    struct grid_taps t[GRID_AXES];
    size_t n = g->channels * g->inputs, p, k;

    memset(sum, 0, n * sizeof(*sum));
    for (p = 0; p < g->points; p++) {
        const float *dy = (const float *)c->dout[0]->data + s * g->channels * g->points + p;
        double *to = sum;

        grid_point(g, grid_at(c, g, s, p), t);
        for (k = 0; k < g->channels; k++, to += g->inputs, dy += g->points)
            GRID_EACH(g, t,
                      { to[element] += (double)*dy * (double)(t[0].w[i] * t[1].w[j] * t[2].w[l]); })
    }
    for (k = 0; k < n; k++)
        dx[k] = (add ? dx[k] : 0.0f) + (float)sum[k];
}

static void grid_grads(const struct op_call *c, const struct grid_sample *g, size_t s)
{
    bool add = op_adds(c, GRID);
    struct grid_taps t[GRID_AXES];
    size_t p, k;

    for (p = 0; p < g->points; p++) {
        const float *x = (const float *)c->in[X]->data + s * g->channels * g->inputs;
        const float *dy = (const float *)c->dout[0]->data + s * g->channels * g->points + p;
        float *to = (float *)c->din[GRID]->data + (s * g->points + p) * g->axes;
        double sum[GRID_AXES] = { 0 };

        grid_point(g, grid_at(c, g, s, p), t);
        for (k = 0; k < g->channels; k++, x += g->inputs, dy += g->points)
            GRID_EACH(g, t, {
                double v = (double)*dy * (double)x[element];

                sum[0] += v * (double)(t[0].slope[i] * t[1].w[j] * t[2].w[l]);
                sum[1] += v * (double)(t[0].w[i] * t[1].slope[j] * t[2].w[l]);
                sum[2] += v * (double)(t[0].w[i] * t[1].w[j] * t[2].slope[l]);
            })
        for (k = 0; k < g->axes; k++)
            to[k] = (add ? to[k] : 0.0f) + (float)sum[GRID_AXES - 1 - k];
    }
}

static int backward(const struct op_call *c, struct err *err)
{
    const struct grid_sample *g = c->param;
    size_t s;

    (void)err;
    if (c->dout[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    for (s = 0; s < g->samples; s++) {
        if (c->din[X] != NULL)
            input_grads(c, g, s);
        if (c->din[GRID] != NULL)
            grid_grads(c, g, s);
    }
    return 0;
}

static const char *const attrs[] = { "align_corners", "mode", "padding_mode", NULL };

#define FIELDS                                                                                     \
    .name = "GridSample", .n_in = { 2, 2 }, .n_out = { 1, 1 }, .attrs = attrs,                     \
    .param_bytes = sizeof(struct grid_sample), .infer = infer, .diff = OP_IN(X) | OP_IN(GRID),     \
    .bwd_reads = OP_IN(X) | OP_IN(GRID), .layout = OP_LAYOUT_PLAIN,                                \
    .cpu = { plan, forward, backward, NULL }

const struct op_def op_grid_sample_16 = { FIELDS, .since = 16, .until = 19 };
const struct op_def op_grid_sample_20 = { FIELDS, .since = 20 };
