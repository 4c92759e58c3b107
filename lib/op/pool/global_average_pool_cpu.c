/* global_average_pool_cpu.c - for each image a sum over rows: x [n, space, c]. */
#include "op/half.h"
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

int global_average_pool_cpu_plan(struct op_plan *p, struct err *err)
{
    (void)err;
    if (op_is_half(p->in[0])) /* a line of channels */
        p->scratch_bytes = (size_t)p->in[0]->shape.dim[1] * sizeof(float);
    return 0;
}

int global_average_pool_cpu_fwd(const struct op_call *c, struct err *err)
{
    struct image im = image_of(c->in[0]);
    const struct tensor *x = c->in[0], *y = c->out[0];
    float share = 1.0f / (float)im.space, *line = c->scratch;
    size_t i;

    (void)err; /* nothing can fail */
    for (i = 0; i < im.n; i++) {
        const void *at = op_element(x, i * im.c * im.space);

        if (op_is_half(x)) {
            op_sum_rows_half(at, im.space, im.c, share, line, false);
            op_narrow(line, im.c, op_element(y, i * im.c));
        } else {
            op_sum_rows(at, im.space, im.c, share, op_element(y, i * im.c), false);
        }
    }
    return 0;
}

int global_average_pool_cpu_bwd(const struct op_call *c, struct err *err)
{
    struct tensor dx;
    struct image im;
    size_t i, k;

    (void)err; /* nothing can fail */
    if (c->dout[0] == NULL || c->din[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    im = image_of(c->din[0]);
    dx = *c->din[0];
    for (i = 0; i < im.n; i++)
        for (k = 0; k < im.space; k++) {
            dx.data = op_element(c->din[0], (i * im.space + k) * im.c);
            op_store_as(&dx, op_element(c->dout[0], i * im.c), im.c, 1.0f / (float)im.space,
                        op_adds(c, 0));
        }
    return 0;
}
