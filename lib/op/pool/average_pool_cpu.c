/* average_pool_cpu.c - sums of lines of channels. A window of more than PART lines is added up in
 * parts, so that the error does not grow with it. */
#include "op/pool/box.h"
#include "op/op_priv.h"
#include "op/pool/pool_priv.h"

enum { PART = 32 };

int average_pool_cpu_plan(struct op_plan *p, struct err *err)
{
    (void)err;
    p->scratch_bytes = (size_t)p->in[0]->shape.dim[1] * sizeof(float);
    return 0;
}

/* to += x */
OP_INLINE void add(float *restrict to, const float *x, size_t c)
{
    size_t i;

    for (i = 0; i < c; i++)
        to[i] += x[i];
}

/* y [c] = scale times the sum over the box; part: a line of scratch */
CLONES static void box_mean(const float *x, const struct box *b, size_t c, float scale,
                            float *restrict y, float *restrict part)
{
    float *to = b->n[0] * b->n[1] * b->n[2] > PART ? part : y;
    size_t i[3], n = 0, k;

    memset(y, 0, c * sizeof(*y));
    memset(part, 0, c * sizeof(*part));
    for (i[0] = 0; i[0] < b->n[0]; i[0]++)
        for (i[1] = 0; i[1] < b->n[1]; i[1]++)
            for (i[2] = 0; i[2] < b->n[2]; i[2]++) {
                add(to, x + i[0] * b->step[0] + i[1] * b->step[1] + i[2] * b->step[2], c);
                if (to == part && ++n % PART == 0) {
                    add(y, part, c);
                    memset(part, 0, c * sizeof(*part));
                }
            }
    if (to == part)
        add(y, part, c);
    for (k = 0; k < c; k++)
        y[k] *= scale;
}

CLONES static void box_spread(float *dx, const struct box *b, size_t c, float scale,
                              const float *dy)
{
    size_t i[3], k;

    for (i[0] = 0; i[0] < b->n[0]; i[0]++)
        for (i[1] = 0; i[1] < b->n[1]; i[1]++)
            for (i[2] = 0; i[2] < b->n[2]; i[2]++) {
                float *restrict to =
                    dx + i[0] * b->step[0] + i[1] * b->step[1] + i[2] * b->step[2];

                for (k = 0; k < c; k++)
                    to[k] += scale * dy[k];
            }
}

/* 1 / divisor of the window e. */
static float share(const struct average_pool_param *p, const int64_t *e, const struct box *b)
{
    double n = 1;
    uint32_t k;

    for (k = 0; k < 3; k++) {
        const struct op_window *w = &p->window;
        int64_t start = e[k] * w->stride[k] - w->pad_lo[k], step = w->dilation[k];
        int64_t room = (p->end[k] - 1 - start) / step + 1; /* taps up to the end of the padding */

        n *= !p->count_pad ? (double)b->n[k] : (double)(room < w->kernel[k] ? room : w->kernel[k]);
    }
    return (float)(1 / n);
}

int average_pool_cpu_fwd(const struct op_call *c, struct err *err)
{
    const struct average_pool_param *p = c->param;
    struct boxes s = boxes_of(&p->window, c->in[0]), at = s;
    const float *x = c->in[0]->data;
    float *y = c->out[0]->data;
    struct box b;

    (void)err; /* nothing can fail */
    for (; box_next(&s, &b); at = s, y += s.c)
        box_mean(x + b.first, &b, s.c, share(p, at.e, &b), y, c->scratch);
    return 0;
}

int average_pool_cpu_bwd(const struct op_call *c, struct err *err)
{
    const struct average_pool_param *p = c->param;
    struct boxes s, at;
    const float *dy;
    struct box b;

    (void)err; /* nothing can fail */
    op_bwd_zero(c);
    if (c->dout[0] == NULL || c->din[0] == NULL)
        return 0;
    s = at = boxes_of(&p->window, c->din[0]);
    dy = c->dout[0]->data;
    for (; box_next(&s, &b); at = s, dy += s.c)
        box_spread((float *)c->din[0]->data + b.first, &b, s.c, share(p, at.e, &b), dy);
    return 0;
}
