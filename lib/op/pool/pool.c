#include <inttypes.h>

#include "base/err.h"
#include "op/op_priv.h"
#include "op/pool/pool_priv.h"

/* Refuses windows without any element of x. Only windows that start in the leading padding can have
 * none; the last window starts inside, unless the trailing padding exceeds the window
 * (op_window_infer). */
static int check_windows(const struct op_infer *f, const struct op_window *w, struct err *err)
{
    uint32_t k;

    for (k = 0; k < w->spatial; k++) {
        int64_t e, last = w->out[k] - 1;

        for (e = 0; e < w->out[k] && e * w->stride[k] < w->pad_lo[k]; e++)
            if (op_window_taps(w, k, e).n == 0)
                return op_error(f, 0, err,
                                "window %" PRId64 " along axis %u lies wholly in the padding "
                                "(pads %" PRId64 ", kernel %" PRId64 ", dilation %" PRId64 ")",
                                e, k + 2, w->pad_lo[k], w->kernel[k], w->dilation[k]);
        if (op_window_taps(w, k, last).n == 0)
            return op_error(f, 0, err,
                            "the last window along axis %u lies wholly in the padding (pads "
                            "%" PRId64 ", kernel %" PRId64 ")",
                            k + 2, w->pad_hi[k], w->kernel[k]);
    }
    return 0;
}

int pool_infer(struct op_infer *f, bool whole, bool touch, struct op_window *w, struct err *err)
{
    struct shape *y = &f->out[0].shape;
    int64_t ceil_mode = 0;
    const struct shape *x;
    char text[192];
    uint32_t k;
    int rc = op_check_input(f, 0, TENSOR_F32, -1, err);

    if (rc < 0)
        return rc;
    x = &f->in[0]->shape;
    if (x->rank < 3 || x->rank > OP_SPATIAL_MAX + 2 || x->dim[1] < 1)
        return op_error(f, ERR_UNSUPPORTED, err,
                        "input 0 has shape %s; expected 3 to %d dimensions: n, c and 1 to %d of "
                        "space",
                        shape_print(x, text, sizeof(text)), OP_SPATIAL_MAX + 2, OP_SPATIAL_MAX);
    if (whole) {
        rc = op_window_whole(f, w, err);
    } else {
        rc = op_attr_i(f, "ceil_mode", 0, &ceil_mode, err);
        if (rc == 0)
            rc = op_window_infer(f, NULL, ceil_mode != 0, w, err);
    }
    if (rc == 0 && touch)
        rc = check_windows(f, w, err);
    if (rc < 0)
        return rc;
    *y = *x;
    for (k = 0; k < w->spatial; k++)
        y->dim[2 + k] = w->out[k];
    f->out[0].dtype = TENSOR_F32;
    return op_check_size(f, err);
}
