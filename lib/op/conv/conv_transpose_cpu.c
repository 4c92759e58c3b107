/* conv_transpose_cpu.c - ConvTranspose by the kernels of the convolution from y to x, in other
 * roles:
 *   y    its input gradient, with x as the gradient of the output; and the bias
 *   dx   its forward, applied to dy
 *   dw   its weight gradient, with dy as the input and x as the gradient of the output */
#include <stdlib.h>

#include "base/check.h"
#include "base/err.h"
#include "op/conv/conv_priv.h"
#include "op/dnn.h"
#include "op/half.h"
#include "op/op_priv.h"

enum { WIDTH = 128 };

struct conv_transpose_state {
    struct dnn *y, *dx, *dw;
    bool has_bias;
    /* beginning of scratch: a gradient that is accumulated; in forward the repeated bias, and a
     * piece of y as float32 */
    size_t spare_bytes;
    size_t o, group;    /* channels of y; size of the repeated bias in floats */
};

void conv_transpose_cpu_free(void *state)
{
    struct conv_transpose_state *s = state;

    if (s == NULL)
        return;
    dnn_free(s->y);
    dnn_free(s->dx);
    dnn_free(s->dw);
    free(s);
}

int conv_transpose_cpu_plan(struct op_plan *p, struct err *err)
{
    const struct conv_param *cp = p->param;
    const struct tensor *x = p->in[0], *w = p->in[1];
    struct conv_transpose_state *s = calloc(1, sizeof(*s));
    struct dnn_conv spec = { .window = &cp->window, .layout = x->layout, .images = x->dtype,
                             .n = x->shape.dim[0], .c = p->out[0].shape.dim[1],
                             .o = x->shape.dim[1], .group = cp->group };
    int rc;

    CHECK(p->out[0].layout == x->layout && x->layout == TENSOR_CHANNELS_LAST);
    if (s == NULL)
        return err_set(err, ERR_NOMEM, "ConvTranspose '%s': out of memory", p->node);
    s->has_bias = p->n_in > 2 && p->in[2] != NULL;
    rc = dnn_conv_bwd_x(&spec, &s->y, err);
    if (rc == 0 && op_wants(p, 0))
        rc = dnn_conv_fwd(&spec, &s->dx, err);
    if (rc == 0 && op_wants(p, 1))
        rc = dnn_conv_bwd_w(&spec, &s->dw, err);
    if (rc < 0) {
        conv_transpose_cpu_free(s);
        return err_wrap(err, rc, "ConvTranspose '%s'", p->node);
    }
    s->o = (size_t)spec.c;
    s->group = s->o * (s->o < WIDTH ? WIDTH / s->o : 1);
    if (s->has_bias)
        s->spare_bytes = 2 * op_round(s->group * sizeof(float)); /* and a piece of y of that size */
    if (s->dw != NULL)
        s->spare_bytes = op_max(s->spare_bytes, op_round(tensor_bytes(w)));
    if (s->dx != NULL)
        s->spare_bytes = op_max(s->spare_bytes, op_round(tensor_bytes(x)));
    p->scratch_bytes =
        s->spare_bytes +
        op_max(dnn_scratch_bytes(s->y), op_max(dnn_scratch_bytes(s->dx), dnn_scratch_bytes(s->dw)));
    p->state = s;
    return 0;
}

/* y [n] += bias [group], repeated */
CLONES static void add_bias(float *restrict y, size_t n, const float *bias, size_t group)
{
    size_t at, i, w;

    for (at = 0; at < n; at += group) {
        w = n - at < group ? n - at : group;
        for (i = 0; i < w; i++)
            y[at + i] += bias[i];
    }
}

int conv_transpose_cpu_fwd(const struct op_call *c, struct err *err)
{
    struct conv_transpose_state *s = c->state;
    void *args[DNN_ARGS] = { c->in[0]->data, c->in[1]->data, c->out[0]->data };
    size_t n = (size_t)tensor_elements(c->out[0]), at, m;
    float *bias = c->scratch, *room = op_at(c->scratch, op_round(s->group * sizeof(float))), *y;
    int rc = dnn_run(s->y, args, op_at(c->scratch, s->spare_bytes), err);

    if (rc < 0 || !s->has_bias)
        return rc;
    for (at = 0; at < s->group; at += s->o)
        memcpy(bias + at, c->in[2]->data, s->o * sizeof(*bias));
    for (at = 0; at < n; at += m) {
        m = !op_is_half(c->out[0]) || n - at < s->group ? n - at : s->group;
        y = op_floats_on(c->out[0], at, m, room);
        add_bias(y, m, bias, s->group);
        op_floats_done(c->out[0], at, m, y);
    }
    return 0;
}

int conv_transpose_cpu_bwd(const struct op_call *c, struct err *err)
{
    struct conv_transpose_state *s = c->state;
    void *rest = op_at(c->scratch, s->spare_bytes), *dy;
    int rc = 0;

    if (c->dout[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    dy = c->dout[0]->data;
    if (c->din[1] != NULL) {
        void *dw = op_din_at(c, 1, c->scratch);
        void *args[DNN_ARGS] = { dy, c->in[0]->data, dw };

        rc = dnn_run(s->dw, args, rest, err);
        if (rc == 0)
            op_din_done(c, 1, dw, 1.0f);
    }
    if (rc == 0 && c->din[0] != NULL) {
        void *dx = op_din_at(c, 0, c->scratch);
        void *args[DNN_ARGS] = { dy, c->in[1]->data, dx };

        rc = dnn_run(s->dx, args, rest, err);
        if (rc == 0)
            op_din_done(c, 0, dx, 1.0f);
    }
    if (rc == 0 && s->has_bias && c->din[2] != NULL && op_is_half(c->dout[0]))
        op_sum_rows_half(dy, (size_t)tensor_elements(c->dout[0]) / s->o, s->o, 1.0f,
                         c->din[2]->data, op_adds(c, 2));
    else if (rc == 0 && s->has_bias && c->din[2] != NULL)
        op_sum_rows(dy, (size_t)tensor_elements(c->dout[0]) / s->o, s->o, 1.0f, c->din[2]->data,
                    op_adds(c, 2));
    return rc;
}
