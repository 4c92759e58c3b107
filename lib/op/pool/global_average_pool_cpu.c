/* global_average_pool_cpu.c - per image a sum over rows (channels-last: [space, c]) or over
 * columns (plain: [c, space]). */
#include "op/op_priv.h"
#include "op/pool/pool_priv.h"

/* x as [n][space][c] or [n][c][space]. */
struct image {
    size_t n, c, space;
    bool last; /* channels-last */
};

static struct image image_of(const struct tensor *x)
{
    struct image im = { (size_t)x->shape.dim[0], (size_t)x->shape.dim[1], 1,
                        x->layout == TENSOR_CHANNELS_LAST };
    uint32_t k;

    for (k = 2; k < x->shape.rank; k++)
        im.space *= (size_t)x->shape.dim[k];
    return im;
}

int global_average_pool_cpu_fwd(const struct op_call *c, struct err *err)
{
    struct image im = image_of(c->in[0]);
    const float *x = c->in[0]->data;
    float *y = c->out[0]->data, mean = 1.0f / (float)im.space;
    size_t i;

    (void)err; /* nothing can fail */
    for (i = 0; i < im.n; i++, x += im.c * im.space, y += im.c) {
        if (im.last)
            op_sum_rows(x, im.space, im.c, mean, y, false);
        else
            op_sum_cols(x, im.c, im.space, mean, y, false);
    }
    return 0;
}

CLONES static void fill(float *dx, size_t n, float value, bool add)
{
    size_t i;

    for (i = 0; i < n; i++)
        dx[i] = add ? dx[i] + value : value;
}

int global_average_pool_cpu_bwd(const struct op_call *c, struct err *err)
{
    struct image im;
    const float *dy;
    float *dx, share;
    bool add = (c->din_add & OP_IN(0)) != 0;
    size_t i, k;

    (void)err; /* nothing can fail */
    if (c->dout[0] == NULL || c->din[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    im = image_of(c->din[0]);
    dy = c->dout[0]->data;
    dx = c->din[0]->data;
    share = 1.0f / (float)im.space;
    for (i = 0; i < im.n; i++, dy += im.c) {
        if (im.last)
            for (k = 0; k < im.space; k++, dx += im.c)
                op_put(dx, dy, im.c, share, add);
        else
            for (k = 0; k < im.c; k++, dx += im.space)
                fill(dx, im.space, share * dy[k], add);
    }
    return 0;
}
