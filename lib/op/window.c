#include "op/window.h"

#include <inttypes.h>
#include <string.h>

#include "base/err.h"

enum { REACH_MAX = 65535 }; /* maximum kernel, stride, dilation and pad: keeps products within 64
                               bits and within the limits of oneDNN */

enum pad_rule { PAD_GIVEN, PAD_VALID, PAD_SAME_UPPER, PAD_SAME_LOWER };

/* Reads attribute `name`, n numbers in [lo, REACH_MAX]; an absent attribute gives `dflt` for
 * each. */
static int read_ints(const struct op_infer *f, const char *name, size_t n, int64_t lo, int64_t dflt,
                     int64_t *out, struct err *err)
{
    const int64_t *given;
    size_t n_given, i;
    int rc = op_attr_ints(f, name, &given, &n_given, err);

    if (rc < 0)
        return rc;
    if (given != NULL && n_given != n)
        return op_error(f, 0, err, "attribute '%s' has %zu numbers; expected %zu", name, n_given,
                        n);
    for (i = 0; i < n; i++) {
        out[i] = given != NULL ? given[i] : dflt;
        if (out[i] < lo || out[i] > REACH_MAX)
            return op_error(f, 0, err,
                            "attribute '%s' has %" PRId64 " at %zu; expected %" PRId64 " to %d",
                            name, out[i], i, lo, REACH_MAX);
    }
    return 0;
}

static int read_kernel(const struct op_infer *f, const int64_t *kernel, struct op_window *w,
                       struct err *err)
{
    const int64_t *given;
    size_t n, k;
    int rc = op_attr_ints(f, "kernel_shape", &given, &n, err);

    if (rc == 0)
        rc = read_ints(f, "kernel_shape", w->spatial, 1, 1, w->kernel, err);
    if (rc < 0)
        return rc;
    if (kernel == NULL) {
        if (given == NULL)
            return op_error(f, 0, err, "attribute 'kernel_shape' is missing");
        return 0;
    }
    for (k = 0; k < w->spatial; k++) {
        if (given != NULL && given[k] != kernel[k])
            return op_error(f, 0, err,
                            "attribute 'kernel_shape' has %" PRId64 " at %zu, the weights have "
                            "%" PRId64,
                            given[k], k, kernel[k]);
        if (kernel[k] < 1 || kernel[k] > REACH_MAX)
            return op_error(f, 0, err, "the weights have a kernel of %" PRId64 "; expected 1 to %d",
                            kernel[k], REACH_MAX);
        w->kernel[k] = kernel[k];
    }
    return 0;
}

static int read_pads(const struct op_infer *f, struct op_window *w, enum pad_rule *rule,
                     struct err *err)
{
    static const char *const rules[] = { [PAD_GIVEN] = "NOTSET",
                                         [PAD_VALID] = "VALID",
                                         [PAD_SAME_UPPER] = "SAME_UPPER",
                                         [PAD_SAME_LOWER] = "SAME_LOWER" };
    int64_t pads[2 * OP_SPATIAL_MAX];
    const char *name;
    uint32_t k;
    int rc = op_attr_s(f, "auto_pad", "NOTSET", &name, err);

    if (rc == 0)
        rc = read_ints(f, "pads", 2 * w->spatial, 0, 0, pads, err);
    if (rc < 0)
        return rc;
    for (*rule = PAD_GIVEN; strcmp(rules[*rule], name) != 0; (*rule)++)
        if (*rule == PAD_SAME_LOWER)
            return op_error(f, 0, err,
                            "attribute 'auto_pad' is '%s'; expected NOTSET, VALID, SAME_UPPER or "
                            "SAME_LOWER",
                            name);
    for (k = 0; k < w->spatial; k++) {
        w->pad_lo[k] = pads[k];
        w->pad_hi[k] = pads[w->spatial + k];
        if (*rule != PAD_GIVEN && (w->pad_lo[k] != 0 || w->pad_hi[k] != 0))
            return op_error(f, 0, err, "attributes 'pads' and 'auto_pad' = %s exclude each other",
                            name);
    }
    return 0;
}

/* Computes output size and pads of axis k.
 *   in -> [pad_lo][ in ][pad_hi], windows of `reach` at 0, stride, 2 stride, ... */
static int infer_axis(const struct op_infer *f, uint32_t k, enum pad_rule rule, bool ceil_mode,
                      struct op_window *w, struct err *err)
{
    int64_t in = w->in[k], stride = w->stride[k];
    int64_t reach = (w->kernel[k] - 1) * w->dilation[k] + 1, room, need;

    w->grown[k] = 0;
    if (in < 1 || in > INT32_MAX)
        return op_error(f, 0, err, "input 0 has %" PRId64 " elements along axis %u", in, k + 2);
    if (rule == PAD_SAME_UPPER || rule == PAD_SAME_LOWER) {
        int64_t pad;

        w->out[k] = (in + stride - 1) / stride;
        pad = (w->out[k] - 1) * stride + reach - in;
        pad = pad > 0 ? pad : 0;
        w->pad_lo[k] = (pad + (rule == PAD_SAME_LOWER)) / 2;
        w->pad_hi[k] = pad - w->pad_lo[k];
        return 0;
    }
    room = in + w->pad_lo[k] + w->pad_hi[k] - reach;
    /* rounding up allows one window to extend beyond the padding */
    if (room < 0 && !(ceil_mode && room + stride > 0))
        return op_error(f, 0, err,
                        "a window of %" PRId64 " does not fit axis %u: %" PRId64
                        " elements with pads %" PRId64 " and %" PRId64,
                        reach, k + 2, in, w->pad_lo[k], w->pad_hi[k]);
    w->out[k] = room / stride + 1;
    if (ceil_mode && room > 0 && room % stride != 0 && w->out[k] * stride < in + w->pad_lo[k])
        w->out[k]++; /* the additional window starts inside the input, not in the upper padding */
    need = (w->out[k] - 1) * stride + reach - in - w->pad_lo[k];
    if (need > w->pad_hi[k]) {
        w->grown[k] = need - w->pad_hi[k];
        w->pad_hi[k] = need;
    }
    return 0;
}

int op_window_infer(const struct op_infer *f, const int64_t *kernel, bool ceil_mode,
                    struct op_window *w, struct err *err)
{
    const struct shape *x = &f->in[0]->shape;
    enum pad_rule rule;
    uint32_t k;
    int rc;

    w->spatial = x->rank - 2;
    rc = read_kernel(f, kernel, w, err);
    if (rc == 0)
        rc = read_ints(f, "strides", w->spatial, 1, 1, w->stride, err);
    if (rc == 0)
        rc = read_ints(f, "dilations", w->spatial, 1, 1, w->dilation, err);
    if (rc == 0)
        rc = read_pads(f, w, &rule, err);
    for (k = 0; rc == 0 && k < w->spatial; k++) {
        w->in[k] = x->dim[k + 2];
        rc = infer_axis(f, k, rule, ceil_mode, w, err);
    }
    return rc;
}

/* Computes w->in (the size of the output) and the pads of the transposed axis k. `shape`: requested
 * size; 0: computed. */
static int infer_transposed_axis(const struct op_infer *f, uint32_t k, enum pad_rule rule,
                                 int64_t more, int64_t shape, struct op_window *w, struct err *err)
{
    int64_t stride = w->stride[k], reach = (w->kernel[k] - 1) * w->dilation[k] + 1;
    int64_t whole = (w->out[k] - 1) * stride + reach + more, pad;

    if (rule == PAD_SAME_UPPER || rule == PAD_SAME_LOWER)
        shape = shape > 0 ? shape : w->out[k] * stride;
    if (shape > 0) {
        pad = whole > shape ? whole - shape : 0;
        /* opset 10 and the current opset put the odd element on different sides */
        if (pad % 2 != 0 && f->def->until != 0)
            return op_error(f, ERR_UNSUPPORTED, err,
                            "'auto_pad' or 'output_shape' with a pad of %" PRId64 " for both sides "
                            "of axis %u is ambiguous before opset 11: export it with 'pads'",
                            pad, k + 2);
        w->pad_lo[k] = rule == PAD_SAME_UPPER ? pad / 2 : pad - pad / 2;
        w->pad_hi[k] = pad - w->pad_lo[k];
    }
    w->in[k] = shape > 0 ? shape : whole - w->pad_lo[k] - w->pad_hi[k];
    if (w->in[k] < 1 || w->in[k] > INT32_MAX)
        return op_error(f, 0, err, "the output would have %" PRId64 " elements along axis %u",
                        w->in[k], k + 2);
    if ((w->in[k] + w->pad_lo[k] + w->pad_hi[k] - reach) / stride + 1 != w->out[k])
        return op_error(f, ERR_UNSUPPORTED, err,
                        "the output has %" PRId64 " elements along axis %u that no window reaches "
                        "('output_padding', 'output_shape'); expected fewer than the stride, %"
                        PRId64,
                        w->in[k] + w->pad_lo[k] + w->pad_hi[k] - whole + more, k + 2, stride);
    return 0;
}

int op_window_infer_transposed(const struct op_infer *f, const int64_t *kernel, struct op_window *w,
                               struct err *err)
{
    const struct shape *x = &f->in[0]->shape;
    int64_t more[OP_SPATIAL_MAX], shape[OP_SPATIAL_MAX];
    const int64_t *given;
    enum pad_rule rule;
    size_t n;
    uint32_t k;
    int rc;

    w->spatial = x->rank - 2;
    rc = read_kernel(f, kernel, w, err);
    if (rc == 0)
        rc = read_ints(f, "strides", w->spatial, 1, 1, w->stride, err);
    if (rc == 0)
        rc = read_ints(f, "dilations", w->spatial, 1, 1, w->dilation, err);
    if (rc == 0)
        rc = read_ints(f, "output_padding", w->spatial, 0, 0, more, err);
    if (rc == 0)
        rc = read_pads(f, w, &rule, err);
    if (rc == 0)
        rc = op_attr_ints(f, "output_shape", &given, &n, err);
    if (rc == 0 && given != NULL && n != w->spatial)
        rc = op_error(f, 0, err, "attribute 'output_shape' has %zu numbers; expected %u", n,
                      w->spatial);
    for (k = 0; rc == 0 && k < w->spatial; k++) {
        shape[k] = given != NULL ? given[k] : 0;
        if (given != NULL && (shape[k] < 1 || shape[k] > INT32_MAX))
            return op_error(f, 0, err, "attribute 'output_shape' has %" PRId64 " at %u", shape[k],
                            k);
        w->out[k] = x->dim[k + 2];
        if (w->out[k] < 1 || w->out[k] > INT32_MAX)
            return op_error(f, 0, err, "input 0 has %" PRId64 " elements along axis %u", w->out[k],
                            k + 2);
        rc = infer_transposed_axis(f, k, rule, more[k], shape[k], w, err);
    }
    return rc;
}

int op_window_whole(const struct op_infer *f, struct op_window *w, struct err *err)
{
    const struct shape *x = &f->in[0]->shape;
    uint32_t k;

    *w = (struct op_window){ .spatial = x->rank - 2 };
    for (k = 0; k < w->spatial; k++) {
        w->in[k] = w->kernel[k] = x->dim[k + 2];
        w->out[k] = w->stride[k] = w->dilation[k] = 1;
        if (w->in[k] < 1 || w->in[k] > REACH_MAX)
            return op_error(f, 0, err, "input 0 has %" PRId64 " elements along axis %u; expected 1 "
                            "to %d", w->in[k], k + 2, REACH_MAX);
    }
    return 0;
}
