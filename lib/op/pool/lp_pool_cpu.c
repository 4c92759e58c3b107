/* lp_pool_cpu.c - like average_pool_cpu.c, with a power before the sum and its root after the
 * sum. */
#include <math.h>

#include "op/op_priv.h"
#include "op/pool/box.h"
#include "op/pool/pool_priv.h"
#include "op/vmath.h"

enum { PART = 32 };

int lp_pool_cpu_plan(struct op_plan *p, struct err *err)
{
    (void)err;
    p->scratch_bytes = (size_t)p->in[0]->shape.dim[1] * sizeof(float);
    return 0;
}

/* to += |x|^p */
INLINED void add_power(float *restrict to, const float *x, size_t c, float p)
{
    size_t i;

    if (p == 1)
        for (i = 0; i < c; i++)
            to[i] += fabsf(x[i]);
    else if (p == 2)
        for (i = 0; i < c; i++)
            to[i] += x[i] * x[i];
    else
        for (i = 0; i < c; i++)
            to[i] += vm_pow(fabsf(x[i]), p);
}

/* y += part, part = 0 */
INLINED void flush(float *restrict y, float *restrict part, size_t c)
{
    size_t i;

    for (i = 0; i < c; i++) {
        y[i] += part[i];
        part[i] = 0;
    }
}

CLONES static void box_norm(const float *x, const struct box *b, size_t c, float p,
                            float *restrict y, float *restrict part)
{
    size_t i[3], n = 0, k;

    memset(y, 0, c * sizeof(*y));
    memset(part, 0, c * sizeof(*part));
    for (i[0] = 0; i[0] < b->n[0]; i[0]++)
        for (i[1] = 0; i[1] < b->n[1]; i[1]++)
            for (i[2] = 0; i[2] < b->n[2]; i[2]++) {
                add_power(part, x + i[0] * b->step[0] + i[1] * b->step[1] + i[2] * b->step[2], c,
                          p);
                if (++n % PART == 0)
                    flush(y, part, c);
            }
    flush(y, part, c);
    if (p == 2)
        for (k = 0; k < c; k++)
            y[k] = sqrtf(y[k]);
    else if (p != 1)
        for (k = 0; k < c; k++)
            y[k] = vm_pow(y[k], 1.0f / p);
}

/* g = dy / y^(p-1) */
CLONES static void outer(const float *y, const float *dy, size_t c, float p, float *restrict g)
{
    size_t k;

    if (p == 2)
        for (k = 0; k < c; k++)
            g[k] = y[k] > 0 ? dy[k] / y[k] : 0;
    else
        for (k = 0; k < c; k++)
            g[k] = y[k] > 0 ? dy[k] * vm_pow(y[k], 1.0f - p) : 0;
}

INLINED float sign(float x)
{
    return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f;
}

/* dx += g sign(x) |x|^(p-1) */
CLONES static void box_spread(const float *x, float *dx, const struct box *b, size_t c, float p,
                              const float *g)
{
    size_t i[3], k;

    for (i[0] = 0; i[0] < b->n[0]; i[0]++)
        for (i[1] = 0; i[1] < b->n[1]; i[1]++)
            for (i[2] = 0; i[2] < b->n[2]; i[2]++) {
                size_t at = i[0] * b->step[0] + i[1] * b->step[1] + i[2] * b->step[2];
                float *restrict to = dx + at;

                if (p == 1)
                    for (k = 0; k < c; k++)
                        to[k] += g[k] * sign(x[at + k]);
                else if (p == 2)
                    for (k = 0; k < c; k++)
                        to[k] += g[k] * x[at + k];
                else
                    for (k = 0; k < c; k++)
                        to[k] += g[k] * sign(x[at + k]) * vm_pow(fabsf(x[at + k]), p - 1.0f);
            }
}

int lp_pool_cpu_fwd(const struct op_call *c, struct err *err)
{
    const struct lp_pool_param *p = c->param;
    struct boxes s = boxes_of(&p->window, c->in[0]);
    const float *x = c->in[0]->data;
    float *y = c->out[0]->data;
    struct box b;

    (void)err; /* nothing can fail */
    for (; box_next(&s, &b); y += s.c)
        box_norm(x + b.first, &b, s.c, p->p, y, c->scratch);
    return 0;
}

int lp_pool_cpu_bwd(const struct op_call *c, struct err *err)
{
    const struct lp_pool_param *p = c->param;
    const float *x = c->in[0]->data, *y, *dy;
    struct boxes s = boxes_of(&p->window, c->in[0]);
    struct box b;

    (void)err; /* nothing can fail */
    op_bwd_zero(c);
    if (c->dout[0] == NULL || c->din[0] == NULL)
        return 0;
    y = c->out[0]->data;
    dy = c->dout[0]->data;
    for (; box_next(&s, &b); y += s.c, dy += s.c) {
        outer(y, dy, s.c, p->p, c->scratch);
        box_spread(x + b.first, (float *)c->din[0]->data + b.first, &b, s.c, p->p, c->scratch);
    }
    return 0;
}
