/* window_geometry.c - window functions that read no attributes; GPU kernels use them too. */
#include "op/window.h"

struct op_window op_window_lift(const struct op_window *w, uint32_t spatial)
{
    struct op_window l = { .spatial = spatial };
    uint32_t more = spatial - w->spatial, k;

    for (k = 0; k < more; k++)
        l.in[k] = l.out[k] = l.kernel[k] = l.stride[k] = l.dilation[k] = 1;
    for (; k < spatial; k++) {
        l.in[k] = w->in[k - more];
        l.out[k] = w->out[k - more];
        l.kernel[k] = w->kernel[k - more];
        l.stride[k] = w->stride[k - more];
        l.dilation[k] = w->dilation[k - more];
        l.pad_lo[k] = w->pad_lo[k - more];
        l.pad_hi[k] = w->pad_hi[k - more];
        l.grown[k] = w->grown[k - more];
    }
    return l;
}

struct op_taps op_window_taps(const struct op_window *w, uint32_t k, int64_t e)
{
    int64_t start = e * w->stride[k] - w->pad_lo[k], step = w->dilation[k];
    /* index of the first tap inside the input */
    int64_t first = start < 0 ? (-start + step - 1) / step : 0;
    int64_t room = w->in[k] - 1 - start; /* distance from the start of the window to the last
                                            element */
    int64_t last = room < 0 ? -1 : room / step < w->kernel[k] - 1 ? room / step : w->kernel[k] - 1;

    return (struct op_taps){ start + first * step, last >= first ? last - first + 1 : 0 };
}
