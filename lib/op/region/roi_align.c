/* roi_align.c - RoiAlign (opset 10; 16: coordinate_transformation_mode): divides each region of an
 * image into output_height by output_width bins.
 *   y[r, c, bin] = mean (mode max: largest weighted neighbour) of samples of x[batch_indices[r],
 *   c], each bilinear.
 * dx is the sum over all regions, in double, rounded once; regions have no gradient. Mode max takes
 * the maximum over the products of a neighbour and its weight, as ONNX's reference does, not over
 * samples. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "op/op_priv.h"
#include "op/region/roi_align.h"

enum { X, ROIS, BATCH, RATIO_MAX = 1024 };

/* Reads an attribute with two possible values; *is_second: it has the second. */
static int read_choice(const struct op_infer *f, const char *attr, const char *first,
                       const char *second, const char *dflt, bool *is_second, struct err *err)
{
    const char *s = dflt;
    int rc = op_attr_s(f, attr, dflt, &s, err);

    if (rc < 0)
        return rc;
    if (strcmp(s, first) != 0 && strcmp(s, second) != 0)
        return op_error(f, ERR_INPUT, err, "%s is '%.40s'; expected %s or %s", attr, s, first,
                        second);
    *is_second = strcmp(s, second) == 0;
    return 0;
}

static int read_attrs(struct op_infer *f, struct roi_align *g, struct err *err)
{
    bool old = f->def->until != 0; /* opset 10 to 15 */
    int rc = read_choice(f, "mode", "avg", "max", "avg", &g->max, err);

    if (rc == 0)
        rc = read_choice(f, "coordinate_transformation_mode", "output_half_pixel", "half_pixel",
                         old ? "output_half_pixel" : "half_pixel", &g->half_pixel, err);
    if (rc == 0)
        rc = op_attr_i(f, "output_height", 1, &g->bins[0], err);
    if (rc == 0)
        rc = op_attr_i(f, "output_width", 1, &g->bins[1], err);
    if (rc == 0)
        rc = op_attr_i(f, "sampling_ratio", 0, &g->ratio, err);
    if (rc == 0)
        rc = op_attr_f(f, "spatial_scale", 1, &g->scale, err);
    if (rc < 0)
        return rc;
    if (g->bins[0] < 1 || g->bins[1] < 1 || g->bins[0] > 1 << 24 || g->bins[1] > 1 << 24)
        return op_error(f, ERR_INPUT, err,
                        "output_height is %" PRId64 " and output_width %" PRId64
                        "; expected 1 to 2^24",
                        g->bins[0], g->bins[1]);
    if (g->ratio < 0 || g->ratio > RATIO_MAX)
        return op_error(f, ERR_INPUT, err,
                        "sampling_ratio is %" PRId64 "; expected 0 (one sample an element) to %d",
                        g->ratio, RATIO_MAX);
    if (!isfinite(g->scale) || g->scale <= 0)
        return op_error(f, ERR_INPUT, err, "spatial_scale is %g; expected a positive number",
                        (double)g->scale);
    return 0;
}

static int infer(struct op_infer *f, struct err *err)
{
    struct roi_align *g = f->param;
    const struct shape *x, *rois, *batch;
    char text_rois[192], text_batch[192];
    int rc = op_check_input(f, X, TENSOR_F32, 4, err), k;

    if (rc == 0)
        rc = op_check_input(f, ROIS, TENSOR_F32, -1, err);
    if (rc == 0)
        rc = op_check_input(f, BATCH, TENSOR_I64, -1, err);
    if (rc == 0)
        rc = read_attrs(f, g, err);
    if (rc < 0)
        return rc;
    x = &f->in[X]->shape;
    rois = &f->in[ROIS]->shape;
    batch = &f->in[BATCH]->shape;
    if (rois->rank != 2 || rois->dim[1] != 4 || batch->rank != 1 || batch->dim[0] != rois->dim[0])
        return op_error(
            f, ERR_INPUT, err,
            "the regions have shape %s and batch_indices %s; expected [regions, 4] and [regions]",
            shape_print(rois, text_rois, sizeof(text_rois)),
            shape_print(batch, text_batch, sizeof(text_batch)));
    g->samples = (size_t)x->dim[0];
    g->channels = (size_t)x->dim[1];
    g->rois = (size_t)rois->dim[0];
    for (k = 0; k < 2; k++) {
        if (x->dim[2 + k] > 1 << 24) /* a float represents larger integers inexactly */
            return op_error(f, ERR_UNSUPPORTED, err, "an axis of more than 2^24 elements");
        g->size[k] = x->dim[2 + k];
    }
    g->inputs = (size_t)(g->size[0] * g->size[1]);
    g->outputs = (size_t)(g->bins[0] * g->bins[1]);
    f->out[0].dtype = TENSOR_F32;
    f->out[0].shape = shape_of(4, rois->dim[0], x->dim[1], g->bins[0], g->bins[1]);
    return op_check_size(f, err);
}

/* ---- kernels ---- */

static int plan(struct op_plan *p, struct err *err)
{
    const struct roi_align *g = p->param;

    (void)err;
    if (op_wants(p, X))
        p->scratch_bytes = g->channels * g->inputs * sizeof(double);
    return 0;
}

static int refuse(const struct op_call *c, size_t at, int64_t value, struct err *err)
{
    const struct roi_align *g = c->param;

    return err_set(err, ERR_INPUT,
                   "RoiAlign: batch_indices[%zu] is %" PRId64 "; expected 0 to %" PRId64
                   ", an image of the batch",
                   at, value, (int64_t)g->samples - 1);
}

static int forward(const struct op_call *c, struct err *err)
{
    const struct roi_align *g = c->param;
    const int64_t *batch = c->in[BATCH]->data;
    float *y = c->out[0]->data;
    size_t r, k, i;

    for (r = 0; r < g->rois; r++)
        if (batch[r] < 0 || batch[r] >= (int64_t)g->samples)
            return refuse(c, r, batch[r], err);
    for (r = 0; r < g->rois; r++) {
        const float *x = (const float *)c->in[X]->data + (size_t)batch[r] * g->channels * g->inputs;
        const float *roi = (const float *)c->in[ROIS]->data + 4 * r;

        for (i = 0; i < g->outputs; i++) {
            struct roi_line h = roi_line_of(g, roi, 0, (int64_t)i / g->bins[1]);
            struct roi_line w = roi_line_of(g, roi, 1, (int64_t)i % g->bins[1]);

            for (k = 0; k < g->channels; k++)
                y[(r * g->channels + k) * g->outputs + i] =
                    g->max ? roi_largest(g, x + k * g->inputs, &h, &w).value
                           : roi_mean(g, x + k * g->inputs, &h, &w);
        }
    }
    return 0;
}

/* Adds the contribution of region r to the gradient of its image: sum [channels, inputs]. */
static void spread(const struct op_call *c, const struct roi_align *g, size_t r, const float *x,
                   double *sum)
{
    const float *roi = (const float *)c->in[ROIS]->data + 4 * r;
    const float *dy = (const float *)c->dout[0]->data + r * g->channels * g->outputs;
    size_t k, i;

    for (i = 0; i < g->outputs; i++) {
        struct roi_line h = roi_line_of(g, roi, 0, (int64_t)i / g->bins[1]);
        struct roi_line w = roi_line_of(g, roi, 1, (int64_t)i % g->bins[1]);

        for (k = 0; k < g->channels; k++) {
            double *to = sum + k * g->inputs, d = (double)dy[k * g->outputs + i];

            if (g->max) {
                struct roi_pick best = roi_largest(g, x + k * g->inputs, &h, &w);

                if (best.at >= 0)
                    to[best.at] += d * (double)best.weight;
            } else {
                d /= (double)roi_count(&h, &w);
                ROI_EACH(g, &h, &w, { to[element] += d * (double)weight; })
            }
        }
    }
}

static int backward(const struct op_call *c, struct err *err)
{
    const struct roi_align *g = c->param;
    const int64_t *batch = c->in[BATCH]->data;
    size_t n = g->channels * g->inputs, s, r, i;
    double *sum = c->scratch;

    (void)err;
    if (c->dout[0] == NULL || c->din[X] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    for (s = 0; s < g->samples; s++) {
        float *dx = (float *)c->din[X]->data + s * n;

        memset(sum, 0, n * sizeof(*sum));
        for (r = 0; r < g->rois; r++)
            if (batch[r] == (int64_t)s)
                spread(c, g, r, (const float *)c->in[X]->data + s * n, sum);
        for (i = 0; i < n; i++)
            dx[i] = (op_adds(c, X) ? dx[i] : 0.0f) + (float)sum[i];
    }
    return 0;
}

static const char *const attrs_10[] = { "mode", "output_height", "output_width", "sampling_ratio", "spatial_scale",
                                        NULL };
static const char *const attrs_16[] = { "coordinate_transformation_mode", "mode", "output_height", "output_width",
                                        "sampling_ratio", "spatial_scale", NULL };

#define FIELDS                                                                                         \
    .name = "RoiAlign", .n_in = { 3, 3 }, .n_out = { 1, 1 }, .param_bytes = sizeof(struct roi_align),  \
    .infer = infer, .diff = OP_IN(X), .bwd_reads = OP_IN(X) | OP_IN(ROIS) | OP_IN(BATCH),              \
    .layout = OP_LAYOUT_PLAIN, .cpu = { plan, forward, backward, NULL }, .refuse = refuse

const struct op_def op_roi_align_10 = { FIELDS, .attrs = attrs_10, .since = 10, .until = 15 };
const struct op_def op_roi_align_16 = { FIELDS, .attrs = attrs_16, .since = 16 };
