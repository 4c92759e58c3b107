#include "op/window.h"

#include <inttypes.h>
#include <string.h>

#include "base/err.h"

enum { REACH_MAX = 65535 }; /* of kernel, stride, dilation, pad: keeps products within 64 bits and
                               within what the kernel library counts in */

enum pad_rule { PAD_GIVEN, PAD_VALID, PAD_SAME_UPPER, PAD_SAME_LOWER };

/* `name` as n numbers of [lo, REACH_MAX]; `dflt` each when the node does not have it. */
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

/* Output size and pads of axis k.
 *   in -> [pad_lo][ in ][pad_hi], windows of `reach` at 0, stride, 2 stride, ... */
static int settle_axis(const struct op_infer *f, uint32_t k, enum pad_rule rule, bool ceil_mode,
                       struct op_window *w, struct err *err)
{
    int64_t in = w->in[k], stride = w->stride[k];
    int64_t reach = (w->kernel[k] - 1) * w->dilation[k] + 1, room, need;

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
    if (room < 0)
        return op_error(f, 0, err,
                        "a window of %" PRId64 " does not fit axis %u: %" PRId64
                        " elements with pads %" PRId64 " and %" PRId64,
                        reach, k + 2, in, w->pad_lo[k], w->pad_hi[k]);
    w->out[k] = room / stride + 1;
    if (ceil_mode && room % stride != 0 && w->out[k] * stride < in + w->pad_lo[k])
        w->out[k]++; /* one more that starts inside, and not in the padding behind */
    need = (w->out[k] - 1) * stride + reach - in - w->pad_lo[k];
    if (need > w->pad_hi[k])
        w->pad_hi[k] = need;
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
        rc = settle_axis(f, k, rule, ceil_mode, w, err);
    }
    return rc;
}
