/* conv_cpu.c - three kernels of the library. It takes x and y channels-last as they are, and
 * converts the weights inside the call where it wants them blocked. */
#include <stdlib.h>

#include "base/check.h"
#include "base/err.h"
#include "op/conv/conv_priv.h"
#include "op/dnn.h"
#include "op/op_priv.h"

enum { WEIGHTS = OP_IN(1) | OP_IN(2) };

struct conv_state {
    struct dnn *y, *dx, *dw; /* dw: with the gradient of the bias */
    bool has_bias;
    /* Head of scratch: a gradient that is to be added, or that nobody wants but that comes with
     * another: [dx] or [dw][dbias]. */
    size_t spare_dw, spare_bytes;
};

void conv_cpu_free(void *state)
{
    struct conv_state *s = state;

    if (s == NULL)
        return;
    dnn_free(s->y);
    dnn_free(s->dx);
    dnn_free(s->dw);
    free(s);
}

int conv_cpu_plan(struct op_plan *p, struct err *err)
{
    const struct conv_param *cp = p->param;
    const struct tensor *x = p->in[0], *w = p->in[1];
    struct conv_state *s = calloc(1, sizeof(*s));
    struct dnn_conv spec = { .window = &cp->window, .layout = x->layout, .images = x->dtype,
                             .n = x->shape.dim[0], .c = x->shape.dim[1], .o = w->shape.dim[0],
                             .group = cp->group };
    int rc;

    CHECK(p->out[0].layout == x->layout && p->out[0].dtype == x->dtype);
    if (s == NULL)
        return err_set(err, ERR_NOMEM, "Conv '%s': out of memory", p->node);
    s->has_bias = spec.bias = p->n_in > 2 && p->in[2] != NULL;
    rc = dnn_conv_fwd(&spec, &s->y, err);
    if (rc == 0 && p->training && (p->want_din & OP_IN(0)) != 0)
        rc = dnn_conv_bwd_x(&spec, &s->dx, err);
    if (rc == 0 && p->training && (p->want_din & WEIGHTS) != 0)
        rc = dnn_conv_bwd_w(&spec, &s->dw, err);
    if (rc < 0) {
        conv_cpu_free(s);
        return err_wrap(err, rc, "Conv '%s'", p->node);
    }
    if (s->dw != NULL) {
        s->spare_dw = op_round(tensor_bytes(w));
        s->spare_bytes = s->spare_dw + op_round((size_t)spec.o * sizeof(float));
    }
    if (s->dx != NULL)
        s->spare_bytes = op_max(s->spare_bytes, op_round(tensor_bytes(x)));
    p->scratch_bytes = s->spare_bytes +
                       op_max(dnn_scratch_bytes(s->y),
                              op_max(dnn_scratch_bytes(s->dx), dnn_scratch_bytes(s->dw)));
    p->state = s;
    return 0;
}

int conv_cpu_fwd(const struct op_call *c, struct err *err)
{
    struct conv_state *s = c->state;
    void *args[DNN_ARGS] = { c->in[0]->data, c->in[1]->data, c->out[0]->data,
                             s->has_bias ? c->in[2]->data : NULL };

    return dnn_run(s->y, args, op_at(c->scratch, s->spare_bytes), err);
}

int conv_cpu_bwd(const struct op_call *c, struct err *err)
{
    struct conv_state *s = c->state;
    void *rest = op_at(c->scratch, s->spare_bytes);
    int rc;

    if (c->dout[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    if (c->din[1] != NULL || (s->has_bias && c->din[2] != NULL)) {
        void *dw = op_din_at(c, 1, c->scratch);
        void *db = op_din_at(c, 2, op_at(c->scratch, s->spare_dw));
        void *args[DNN_ARGS] = { c->in[0]->data, c->dout[0]->data, dw, db };

        rc = dnn_run(s->dw, args, rest, err);
        if (rc < 0)
            return rc;
        op_din_done(c, 1, dw, 1.0f);
        op_din_done(c, 2, db, 1.0f);
    }
    if (c->din[0] != NULL) {
        void *dx = op_din_at(c, 0, c->scratch);
        void *args[DNN_ARGS] = { c->dout[0]->data, c->in[1]->data, dx };

        rc = dnn_run(s->dx, args, rest, err);
        if (rc < 0)
            return rc;
        op_din_done(c, 0, dx, 1.0f);
    }
    return 0;
}
