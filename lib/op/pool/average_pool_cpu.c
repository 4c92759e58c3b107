/* average_pool_cpu.c - sums of lines of channels. A window of more than PART lines is added in
 * parts, so that the error does not grow with its size. For bfloat16, a line of y, and in backward
 * an image of dx, are accumulated as float32 in the scratch. */
#include "op/half.h"
#include "op/pool/box.h"
#include "op/op_priv.h"
#include "op/pool/pool_priv.h"

enum { PART = 32 };

int average_pool_cpu_plan(struct op_plan *p, struct err *err)
{
    const struct average_pool_param *a = p->param;
    struct boxes s = boxes_of(&a->window, p->in[0]);
    size_t line = op_round(s.c * sizeof(float));

    (void)err;
    p->scratch_bytes = line;
    if (op_is_half(p->in[0]))
        p->scratch_bytes = 2 * line + (op_wants(p, 0) ? s.image * sizeof(float) : 0);
    return 0;
}

/* y [c] = scale times the sum over the box of lines of x; part: a line of scratch */
#define BOX_MEAN(name_, type_, load_)                                                              \
    INLINED void name_##_add(float *restrict to, const type_ *x, size_t c)                       \
    {                                                                                              \
        size_t i;                                                                                  \
                                                                                                   \
        for (i = 0; i < c; i++)                                                                    \
            to[i] += load_(x[i]);                                                                  \
    }                                                                                              \
    CLONES static void name_(const void *vx, const struct box *b, size_t c, float scale,           \
                             float *restrict y, float *restrict part)                              \
    {                                                                                              \
        float *to = b->n[0] * b->n[1] * b->n[2] > PART ? part : y;                                 \
        const type_ *x = vx;                                                                       \
        size_t i[3], n = 0, k;                                                                     \
                                                                                                   \
        memset(y, 0, c * sizeof(*y));                                                              \
        memset(part, 0, c * sizeof(*part));                                                        \
        for (i[0] = 0; i[0] < b->n[0]; i[0]++)                                                     \
            for (i[1] = 0; i[1] < b->n[1]; i[1]++)                                                 \
                for (i[2] = 0; i[2] < b->n[2]; i[2]++) {                                           \
                    name_##_add(to,                                                                \
                                x + i[0] * b->step[0] + i[1] * b->step[1] + i[2] * b->step[2], c); \
                    if (to == part && ++n % PART == 0) {                                           \
                        for (k = 0; k < c; k++)                                                    \
                            y[k] += part[k];                                                       \
                        memset(part, 0, c * sizeof(*part));                                        \
                    }                                                                              \
                }                                                                                  \
        for (k = 0; to == part && k < c; k++)                                                      \
            y[k] += part[k];                                                                       \
        for (k = 0; k < c; k++)                                                                    \
            y[k] *= scale;                                                                         \
    }
BOX_MEAN(mean_floats, float, )
BOX_MEAN(mean_halves, uint16_t, float_of_bfloat16)

CLONES static void box_spread(float *dx, const struct box *b, size_t c, float scale,
                              const float *dy)
{
    size_t i[3], k;

    for (i[0] = 0; i[0] < b->n[0]; i[0]++)
        for (i[1] = 0; i[1] < b->n[1]; i[1]++)
            for (i[2] = 0; i[2] < b->n[2]; i[2]++) {
                float *restrict to = dx + i[0] * b->step[0] + i[1] * b->step[1] + i[2] * b->step[2];

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
    float *part = c->scratch, *line = op_at(c->scratch, op_round(s.c * sizeof(float)));
    bool is_half = op_is_half(c->in[0]);
    struct box b;
    size_t to;

    (void)err; /* nothing can fail */
    for (to = 0; box_next(&s, &b); at = s, to += s.c) {
        float *y = op_floats_to(c->out[0], to, line);

        (is_half ? mean_halves : mean_floats)(op_element(c->in[0], b.first), &b, s.c,
                                              share(p, at.e, &b), y, part);
        op_floats_done(c->out[0], to, s.c, y);
    }
    return 0;
}

/* Computes one image of dx at a time: windows overlap, so their shares are accumulated as
 * float32. */
static void bwd_half(const struct op_call *c)
{
    const struct average_pool_param *p = c->param;
    struct boxes s = boxes_of(&p->window, c->din[0]), at = s;
    size_t line = op_round(s.c * sizeof(float)), from = 0;
    float *dy = op_at(c->scratch, line), *dx = op_at(c->scratch, 2 * line);
    struct tensor image = { .dtype = TENSOR_F32, .data = dx }, to = *c->din[0];
    struct box b;

    image.shape = to.shape = shape_of(1, (int64_t)s.image);
    memset(dx, 0, s.image * sizeof(*dx));
    for (; box_next(&s, &b); at = s, from += s.c) {
        box_spread(dx + (b.first - at.i * s.image), &b, s.c, share(p, at.e, &b),
                   op_floats(c->dout[0], from, s.c, dy));
        if (s.i == at.i)
            continue;
        to.data = op_element(c->din[0], at.i * s.image);
        op_store_tensor(&image, &to, op_adds(c, 0));
        memset(dx, 0, s.image * sizeof(*dx));
    }
}

int average_pool_cpu_bwd(const struct op_call *c, struct err *err)
{
    const struct average_pool_param *p = c->param;
    struct boxes s, at;
    const float *dy;
    struct box b;

    (void)err; /* nothing can fail */
    if (c->dout[0] != NULL && c->din[0] != NULL && op_is_half(c->din[0])) {
        bwd_half(c);
        return 0;
    }
    op_bwd_zero(c);
    if (c->dout[0] == NULL || c->din[0] == NULL)
        return 0;
    s = at = boxes_of(&p->window, c->din[0]);
    dy = c->dout[0]->data;
    for (; box_next(&s, &b); at = s, dy += s.c)
        box_spread((float *)c->din[0]->data + b.first, &b, s.c, share(p, at.e, &b), dy);
    return 0;
}
