/* resize.c - Resize (opset 10, 11; 13, 18, 19) and its predecessor Upsample (7, 9): resamples each
 * axis, one after the other. y[j] = sum of w(i - p) x[i] over the samples i near the position p of
 * j:
 *   nearest  w is 1 for the sample to which nearest_mode rounds p; any type
 *   linear   w(d) = 1 - |d| for |d| < 1
 *   cubic    Keys' kernel with cubic_coeff_a, |d| < 2
 * Beyond the ends the last sample is repeated, or ignored with exclude_outside (the weights are
 * then normalised to sum 1). With antialias and a scale s < 1 the filter is widened: w(s d), again
 * normalised to sum 1. tf_crop_and_resize samples the region of interest; positions outside of the
 * input give extrapolation_value. dx[i] sums w(i - p) dy[j].
 *
 * Positions are computed in float, in the order of ONNX Runtime, so that ties of `nearest` are
 * resolved as where the trained model is served. */
#include <inttypes.h>
#include <math.h>

#include "base/arena.h"
#include "base/check.h"
#include "base/err.h"
#include "op/op_priv.h"
#include "op/resize/resize_priv.h"

/* ---- positions ---- */

static float half_pixel(const struct resize_axis *a, float x)
{
    return (x + 0.5f) / a->scale - 0.5f;
}

/* Position relative to the middle of the output before rounding its length. */
static float half_pixel_symmetric(const struct resize_axis *a, float x)
{
    float whole = a->scale * (float)a->in;
    float shift = (float)a->in / 2 * (1 - (float)a->out / whole);

    return shift + half_pixel(a, x);
}

static float pytorch_half_pixel(const struct resize_axis *a, float x)
{
    return a->out > 1 ? half_pixel(a, x) : 0;
}

static float tf_half_pixel_for_nn(const struct resize_axis *a, float x)
{
    return (x + 0.5f) / a->scale;
}

static float align_corners(const struct resize_axis *a, float x)
{
    return a->out > 1 ? x * (float)(a->in - 1) / (float)(a->out - 1) : 0;
}

static float asymmetric(const struct resize_axis *a, float x)
{
    return x / a->scale;
}

static float tf_crop_and_resize(const struct resize_axis *a, float x)
{
    float last = (float)(a->in - 1);

    if (a->out <= 1)
        return 0.5f * (a->start + a->end) * last;
    return a->start * last + x * (a->end - a->start) * last / (float)(a->out - 1);
}

static const struct {
    const char *name;
    resize_place_fn *place;
} places[] = {
    { "half_pixel", half_pixel },
    { "half_pixel_symmetric", half_pixel_symmetric },
    { "pytorch_half_pixel", pytorch_half_pixel },
    { "tf_half_pixel_for_nn", tf_half_pixel_for_nn },
    { "align_corners", align_corners },
    { "asymmetric", asymmetric },
    { "tf_crop_and_resize", tf_crop_and_resize },
};

/* ---- nearest ---- */

static float prefer_floor(float x)
{
    float below = floorf(x);

    return x - below > 0.5f ? below + 1 : below;
}

static float prefer_ceil(float x)
{
    float below = floorf(x);

    return x - below >= 0.5f ? below + 1 : below;
}

static const struct {
    const char *name;
    resize_round_fn *round;
} rounds[] = {
    { "round_prefer_floor", prefer_floor },
    { "round_prefer_ceil", prefer_ceil },
    { "floor", floorf },
    { "ceil", ceilf },
};

/* ---- filters ---- */

static double tent(double x, double a)
{
    (void)a;
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

static double keys(double x, double a)
{
    x = fabs(x);
    if (x <= 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

static const struct {
    const char *name;
    resize_filter_fn *filter;
    double radius;
} modes[] = {
    { "nearest", NULL, 0 },
    { "linear", tent, 1 },
    { "cubic", keys, 2 },
};

/* ---- attributes ---- */

static int read_mode(struct op_infer *f, struct err *err)
{
    struct resize_param *p = f->param;
    const char *mode;
    size_t i;
    int rc = op_attr_s(f, "mode", "nearest", &mode, err);

    for (i = 0; rc == 0 && i < COUNT_OF(modes); i++)
        if (strcmp(mode, modes[i].name) == 0) {
            p->filter = modes[i].filter;
            p->radius = modes[i].radius;
            return 0;
        }
    return rc < 0 ? rc : op_error(f, ERR_INPUT, err, "mode is '%s'; expected nearest, linear or "
                                  "cubic", mode);
}

static int read_place(struct op_infer *f, struct err *err)
{
    struct resize_param *p = f->param;
    const char *mode;
    size_t i;
    int rc = op_attr_s(f, "coordinate_transformation_mode", "half_pixel", &mode, err);

    for (i = 0; rc == 0 && i < COUNT_OF(places); i++)
        if (strcmp(mode, places[i].name) == 0) {
            p->place = places[i].place;
            return 0;
        }
    return rc < 0 ? rc : op_error(f, ERR_INPUT, err, "coordinate_transformation_mode is '%s'; "
                                  "expected half_pixel, half_pixel_symmetric, pytorch_half_pixel, "
                                  "align_corners, asymmetric or tf_crop_and_resize", mode);
}

static int read_round(struct op_infer *f, struct err *err)
{
    struct resize_param *p = f->param;
    const char *mode;
    size_t i;
    int rc = op_attr_s(f, "nearest_mode", "round_prefer_floor", &mode, err);

    for (i = 0; rc == 0 && i < COUNT_OF(rounds); i++)
        if (strcmp(mode, rounds[i].name) == 0) {
            p->round = rounds[i].round;
            return 0;
        }
    return rc < 0 ? rc : op_error(f, ERR_INPUT, err, "nearest_mode is '%s'; expected "
                                  "round_prefer_floor, round_prefer_ceil, floor or ceil", mode);
}

static int read_filter(struct op_infer *f, struct err *err)
{
    struct resize_param *p = f->param;
    int64_t exclude = 0, antialias = 0;
    int rc = op_attr_f(f, "cubic_coeff_a", -0.75f, &p->cubic_a, err);

    if (rc == 0)
        rc = op_attr_f(f, "extrapolation_value", 0, &p->outside, err);
    if (rc == 0)
        rc = op_attr_i(f, "exclude_outside", 0, &exclude, err);
    if (rc == 0)
        rc = op_attr_i(f, "antialias", 0, &antialias, err);
    if (rc == 0 && !isfinite(p->cubic_a))
        rc = op_error(f, ERR_INPUT, err, "cubic_coeff_a is %g", (double)p->cubic_a);
    p->exclude_outside = exclude != 0;
    p->antialias = antialias != 0;
    return rc;
}

/* ---- inputs ---- */

/* Reads input i: a list of float32 that is a constant; an absent or empty input gives n = 0. */
static int const_floats(const struct op_infer *f, uint32_t i, const float **values, size_t *n,
                        struct err *err)
{
    const struct tensor *t = i < f->n_in ? f->in[i] : NULL;
    int64_t k, all = t != NULL ? tensor_elements(t) : 0;
    int rc;

    *values = NULL;
    *n = 0;
    if (all == 0)
        return 0;
    rc = op_check_input(f, i, TENSOR_F32, 1, err);
    if (rc < 0)
        return rc;
    if (t->data == NULL)
        return op_error(f, ERR_UNSUPPORTED, err, "input %" PRIu32 " is computed by the graph; it "
                        "must be a constant of the model, as it determines the shape", i);
    for (k = 0; k < all; k++)
        if (!isfinite(((const float *)t->data)[k]))
            return op_error(f, ERR_INPUT, err, "input %" PRIu32 " has %g at %" PRId64, i,
                            (double)((const float *)t->data)[k], k);
    *values = t->data;
    *n = (size_t)all;
    return 0;
}

/* The axes to which the entries of scales, sizes and roi refer. */
struct chosen {
    size_t n;
    uint32_t axis[TENSOR_MAX_RANK];
};

static int choose_axes(const struct op_infer *f, struct chosen *c, struct err *err)
{
    uint32_t rank = f->in[0]->shape.rank, seen = 0;
    const int64_t *axes;
    size_t n, k;
    int rc = op_attr_ints(f, "axes", &axes, &n, err);

    c->n = axes != NULL ? n : rank;
    for (k = 0; k < c->n && rc == 0; k++) {
        int64_t axis = axes != NULL ? axes[k] : (int64_t)k;

        rc = op_axis(f, &axis, rank, err);
        if (rc == 0 && (seen & (1u << axis)) != 0)
            rc = op_error(f, ERR_INPUT, err, "axis %" PRId64 " is repeated", axis);
        if (rc < 0)
            return rc;
        seen |= 1u << axis;
        c->axis[k] = (uint32_t)axis;
    }
    return rc;
}

static int one_for_each(const struct op_infer *f, const char *what, size_t n, size_t each,
                        const struct chosen *c, struct err *err)
{
    if (n == each * c->n)
        return 0;
    return op_error(f, ERR_INPUT, err, "%zu values of %s for %zu axes; expected %zu", n, what, c->n,
                    each * c->n);
}

static int read_scales(struct op_infer *f, const float *scales, size_t n, const struct chosen *c,
                       struct err *err)
{
    struct resize_param *p = f->param;
    size_t k;
    int rc = one_for_each(f, "scales", n, 1, c, err);

    for (k = 0; k < c->n && rc == 0; k++) {
        struct resize_axis *a = &p->axis[c->axis[k]];
        float out = (float)a->in * scales[k];

        if (a->cropped)
            out *= a->end - a->start;
        if (!isfinite(scales[k]) || scales[k] <= 0 || !(out >= 0) || out >= 0x1p40f)
            return op_error(f, ERR_INPUT, err, "axis %" PRIu32 " of %" PRId64 " elements cannot be "
                            "scaled by %g", c->axis[k], a->in, (double)scales[k]);
        a->scale = scales[k];
        a->out = (int64_t)floorf(out);
    }
    return rc;
}

/* The sizes are those of a box: uses one scale for all axes, so that the output fits in it or
 * covers it. */
static int keep_aspect(struct op_infer *f, const struct chosen *c, struct err *err)
{
    struct resize_param *p = f->param;
    const char *policy;
    bool smaller;
    float scale;
    size_t k;
    int rc = op_attr_s(f, "keep_aspect_ratio_policy", "stretch", &policy, err);

    if (rc < 0 || strcmp(policy, "stretch") == 0)
        return rc;
    smaller = strcmp(policy, "not_larger") == 0;
    if (!smaller && strcmp(policy, "not_smaller") != 0)
        return op_error(f, ERR_INPUT, err, "keep_aspect_ratio_policy is '%s'; expected stretch, "
                        "not_larger or not_smaller", policy);
    for (k = 1, scale = c->n > 0 ? p->axis[c->axis[0]].scale : 1; k < c->n; k++) {
        float s = p->axis[c->axis[k]].scale;

        scale = smaller ? fminf(scale, s) : fmaxf(scale, s);
    }
    for (k = 0; k < c->n; k++) {
        struct resize_axis *a = &p->axis[c->axis[k]];
        float out = floorf((float)a->in * scale + 0.5f);

        if (out >= 0x1p40f)
            return op_error(f, ERR_INPUT, err, "axis %" PRIu32 " of %" PRId64 " elements cannot be "
                            "scaled by %g", c->axis[k], a->in, (double)scale);
        a->scale = scale;
        a->out = (int64_t)out;
    }
    return 0;
}

static int read_sizes(struct op_infer *f, const int64_t *sizes, size_t n, const struct chosen *c,
                      struct err *err)
{
    struct resize_param *p = f->param;
    size_t k;
    int rc = one_for_each(f, "sizes", n, 1, c, err);

    for (k = 0; k < c->n && rc == 0; k++) {
        struct resize_axis *a = &p->axis[c->axis[k]];

        if (sizes[k] < 0 || sizes[k] > (int64_t)1 << 40 || (sizes[k] > 0 && a->in == 0))
            return op_error(f, ERR_INPUT, err, "axis %" PRIu32 " of %" PRId64 " elements cannot "
                            "be resized to %" PRId64, c->axis[k], a->in, sizes[k]);
        a->out = sizes[k];
        a->scale = a->in == a->out ? 1 : (float)a->out / (float)a->in;
    }
    return rc < 0 ? rc : keep_aspect(f, c, err);
}

static int read_roi(struct op_infer *f, const struct chosen *c, struct err *err)
{
    struct resize_param *p = f->param;
    const float *roi;
    size_t n, k;
    int rc = const_floats(f, 1, &roi, &n, err);

    if (rc == 0)
        rc = one_for_each(f, "roi", n, 2, c, err);
    for (k = 0; k < c->n && rc == 0; k++) {
        struct resize_axis *a = &p->axis[c->axis[k]];

        a->start = roi[k];
        a->end = roi[c->n + k];
        a->cropped = a->start != 0 || a->end != 1;
    }
    return rc;
}

/* If the length of an output is rounded, the standard, its test data and the implementations
 * disagree whether positions use the length before or after rounding. Such models are rejected. */
static int check_whole(const struct op_infer *f, const char *when, struct err *err)
{
    const struct resize_param *p = f->param;
    uint32_t k;

    for (k = 0; k < f->in[0]->shape.rank; k++) {
        const struct resize_axis *a = &p->axis[k];

        if (fabsf(a->scale * (float)a->in - (float)a->out) > 1e-3f)
            return op_error(
                f, ERR_UNSUPPORTED, err,
                "axis %" PRIu32 " of %" PRId64 " elements is "
                "scaled by %g, which gives a fractional number of elements; %s implementations "
                "differ here: export it with sizes (size= of interpolate) instead of "
                "scales (scale_factor=), with opset 11 or later",
                k, a->in, (double)a->scale, when);
    }
    return 0;
}

static int begin(struct op_infer *f, struct err *err)
{
    struct resize_param *p = f->param;
    const struct tensor *x = f->in[0];
    uint32_t k;
    int rc = read_mode(f, err);

    if (rc < 0)
        return rc;
    if (x == NULL)
        return op_error(f, ERR_INPUT, err, "input 0 is missing");
    if (p->filter != NULL) {
        rc = op_check_input(f, 0, TENSOR_F32, -1, err);
        if (rc < 0)
            return rc;
    }
    for (k = 0; k < x->shape.rank; k++)
        p->axis[k] = (struct resize_axis){ x->shape.dim[k], x->shape.dim[k], 1, 0, 1, false };
    return 0;
}

static int finish(struct op_infer *f, struct err *err)
{
    const struct resize_param *p = f->param;
    uint32_t k;

    for (k = 0; k < f->in[0]->shape.rank; k++) {
        const struct resize_axis *a = &p->axis[k];

        if ((a->scale != 1 || a->cropped) && (a->in > RESIZE_LONGEST || a->out > RESIZE_LONGEST))
            return op_error(f, ERR_UNSUPPORTED, err, "axis %" PRIu32 " of %" PRId64 " elements "
                            "is resized to %" PRId64 "; at most %d are supported", k, a->in, a->out,
                            RESIZE_LONGEST);
        if (p->antialias && a->scale * (float)a->in < 0.5f && a->out > 0)
            return op_error(f, ERR_UNSUPPORTED, err, "the antialias filter of scale %g is wider "
                            "than axis %" PRIu32 " of %" PRId64 " elements", (double)a->scale, k,
                            a->in);
    }
    f->out[0].dtype = f->in[0]->dtype;
    f->out[0].shape = f->in[0]->shape;
    for (k = 0; k < f->out[0].shape.rank; k++)
        f->out[0].shape.dim[k] = p->axis[k].out;
    return op_check_size(f, err);
}

static int infer(struct op_infer *f, struct err *err)
{
    struct resize_param *p = f->param;
    const float *scales = NULL;
    const int64_t *sizes = NULL;
    size_t n_scales = 0, n_sizes = 0;
    struct chosen c;
    int rc = begin(f, err);

    if (rc == 0)
        rc = read_place(f, err);
    if (rc == 0)
        rc = read_round(f, err);
    if (rc == 0)
        rc = read_filter(f, err);
    if (rc == 0)
        rc = choose_axes(f, &c, err);
    if (rc == 0 && p->place == tf_crop_and_resize)
        rc = op_check_input(f, 0, TENSOR_F32, -1, err);
    if (rc == 0 && p->place == tf_crop_and_resize)
        rc = read_roi(f, &c, err);
    if (rc == 0 && p->place != tf_crop_and_resize)
        p->outside = 0;
    if (rc == 0)
        rc = const_floats(f, 2, &scales, &n_scales, err);
    if (rc == 0)
        rc = op_const_ints(f, 3, &sizes, &n_sizes, err);
    if (rc == 0 && c.n > 0 && (n_scales > 0) == (n_sizes > 0))
        rc = op_error(f, ERR_INPUT, err, "%s scales and sizes; expected one of them",
                      n_scales > 0 ? "both" : "neither");
    if (rc == 0)
        rc = n_sizes > 0 ? read_sizes(f, sizes, n_sizes, &c, err)
                         : read_scales(f, scales, n_scales, &c, err);
    if (rc == 0 && n_scales > 0 && p->place == align_corners)
        rc = check_whole(f, "with align_corners", err);
    return rc < 0 ? rc : finish(f, err);
}

/* Infers Upsample, and Resize of opset 10: only scales; positions start at the corner of the first
 * element. */
static int infer_10(struct op_infer *f, struct err *err)
{
    struct resize_param *p = f->param;
    const float *scales = NULL;
    struct chosen c;
    size_t n = 0;
    int rc = begin(f, err);

    if (rc == 0 && p->radius > 1)
        rc = op_error(f, ERR_INPUT, err, "mode is 'cubic'; expected nearest or linear");
    p->place = asymmetric;
    p->round = floorf;
    if (rc == 0)
        rc = choose_axes(f, &c, err);
    if (rc == 0)
        rc = f->def->n_in.max > 1 ? const_floats(f, 1, &scales, &n, err)
                                  : op_attr_floats(f, "scales", &scales, &n, err);
    if (rc == 0)
        rc = read_scales(f, scales, n, &c, err);
    if (rc == 0)
        rc = check_whole(f, "before opset 11", err);
    return rc < 0 ? rc : finish(f, err);
}

static const char *const attrs_7[] = { "mode", "scales", NULL };
static const char *const attrs_10[] = { "mode", NULL };
static const char *const attrs_11[] = { "coordinate_transformation_mode", "cubic_coeff_a",
                                        "exclude_outside", "extrapolation_value", "mode",
                                        "nearest_mode", NULL };
static const char *const attrs_18[] = { "antialias", "axes", "coordinate_transformation_mode",
                                        "cubic_coeff_a", "exclude_outside", "extrapolation_value",
                                        "keep_aspect_ratio_policy", "mode", "nearest_mode", NULL };

#define FIELDS                                                                                     \
    .n_out = { 1, 1 }, .param_bytes = sizeof(struct resize_param), .diff = OP_IN(0),               \
    .layout = OP_LAYOUT_ANY,                                                                       \
    .cpu = { resize_cpu_plan, resize_cpu_fwd, resize_cpu_bwd, resize_cpu_free }
#define RESIZE FIELDS, .name = "Resize", .n_in = { 1, 4 }, .infer = infer

const struct op_def op_resize_11 = { RESIZE, .since = 11, .until = 17, .attrs = attrs_11 };
const struct op_def op_resize_18 = { RESIZE, .since = 18, .attrs = attrs_18 };
const struct op_def op_resize_10 = { FIELDS, .name = "Resize", .since = 10, .until = 10,
                                     .n_in = { 2, 2 }, .attrs = attrs_10, .infer = infer_10 };
const struct op_def op_upsample_9 = { FIELDS, .name = "Upsample", .since = 9, .until = 9,
                                      .n_in = { 2, 2 }, .attrs = attrs_10, .infer = infer_10 };
const struct op_def op_upsample_7 = { FIELDS, .name = "Upsample", .since = 7, .until = 8,
                                      .n_in = { 1, 1 }, .attrs = attrs_7, .infer = infer_10 };
