/* global_average_pool_cpu.c - per image a sum over rows: x [n, space, c]. */
#include "op/op_priv.h"
#include "op/pool/pool_priv.h"

struct image {
    size_t n, c, space;
};

static struct image image_of(const struct tensor *x)
{
    struct image im = { (size_t)x->shape.dim[0], (size_t)x->shape.dim[1], 1 };
    uint32_t k;

    for (k = 2; k < x->shape.rank; k++)
        im.space *= (size_t)x->shape.dim[k];
    return im;
}

int global_average_pool_cpu_fwd(const struct op_call *c, struct err *err)
{
    struct image im = image_of(c->in[0]);
    const float *x = c->in[0]->data;
    float *y = c->out[0]->data;
    size_t i;

    (void)err; /* nothing can fail */
    for (i = 0; i < im.n; i++, x += im.c * im.space, y += im.c)
        op_sum_rows(x, im.space, im.c, 1.0f / (float)im.space, y, false);
    return 0;
}

int global_average_pool_cpu_bwd(const struct op_call *c, struct err *err)
{
    struct image im;
    const float *dy;
    float *dx;
    size_t i, k;

    (void)err; /* nothing can fail */
    if (c->dout[0] == NULL || c->din[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    im = image_of(c->din[0]);
    dy = c->dout[0]->data;
    dx = c->din[0]->data;
    for (i = 0; i < im.n; i++, dy += im.c)
        for (k = 0; k < im.space; k++, dx += im.c)
            op_put(dx, dy, im.c, 1.0f / (float)im.space, op_adds(c, 0));
    return 0;
}
