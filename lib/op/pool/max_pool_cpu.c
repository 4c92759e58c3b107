/* max_pool_cpu.c - two kernels of the library; `save` is its workspace: who won each window. */
#include <stdlib.h>

#include "base/check.h"
#include "base/err.h"
#include "op/dnn.h"
#include "op/op_priv.h"
#include "op/pool/pool_priv.h"

struct max_pool_state {
    struct dnn *y, *dx;
    size_t spare_bytes; /* head of scratch: a gradient that is to be added */
};

void max_pool_cpu_free(void *state)
{
    struct max_pool_state *s = state;

    if (s == NULL)
        return;
    dnn_free(s->y);
    dnn_free(s->dx);
    free(s);
}

int max_pool_cpu_plan(struct op_plan *p, struct err *err)
{
    const struct max_pool_param *mp = p->param;
    const struct tensor *x = p->in[0];
    struct max_pool_state *s = calloc(1, sizeof(*s));
    struct dnn_pool spec = { .window = &mp->window, .layout = x->layout, .n = x->shape.dim[0],
                             .c = x->shape.dim[1],
                             .training = p->training && (p->want_din & OP_IN(0)) != 0 };
    int rc;

    CHECK(p->out[0].layout == x->layout);
    if (s == NULL)
        return err_set(err, ERR_NOMEM, "MaxPool '%s': out of memory", p->node);
    rc = dnn_max_pool_fwd(&spec, &s->y, err);
    if (rc == 0 && spec.training)
        rc = dnn_max_pool_bwd(&spec, &s->dx, err);
    if (rc < 0) {
        max_pool_cpu_free(s);
        return err_wrap(err, rc, "MaxPool '%s'", p->node);
    }
    if (s->dx != NULL) {
        s->spare_bytes = op_round(tensor_bytes(x));
        p->save_bytes = dnn_arg_bytes(s->y, 2);
    }
    p->scratch_bytes =
        s->spare_bytes + op_max(dnn_scratch_bytes(s->y), dnn_scratch_bytes(s->dx));
    p->state = s;
    return 0;
}

int max_pool_cpu_fwd(const struct op_call *c, struct err *err)
{
    struct max_pool_state *s = c->state;
    void *args[DNN_ARGS] = { c->in[0]->data, c->out[0]->data, c->save };

    return dnn_run(s->y, args, op_at(c->scratch, s->spare_bytes), err);
}

int max_pool_cpu_bwd(const struct op_call *c, struct err *err)
{
    struct max_pool_state *s = c->state;
    void *args[DNN_ARGS] = { NULL, op_din_at(c, 0, c->scratch), c->save };
    int rc;

    if (c->dout[0] == NULL || c->din[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    args[0] = c->dout[0]->data;
    rc = dnn_run(s->dx, args, op_at(c->scratch, s->spare_bytes), err);
    if (rc == 0)
        op_din_done(c, 0, args[1], 1.0f);
    return rc;
}
