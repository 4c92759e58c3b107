/* max_pool_cpu.c - two kernels of the library; `save` is its workspace: the tap of the maximum of
 * each window, but not its index in x. If Indices are needed, the windows are searched again. */
#include <stdlib.h>

#include "base/check.h"
#include "base/err.h"
#include "op/dnn.h"
#include "op/half.h"
#include "op/op_priv.h"
#include "op/pool/pool_priv.h"

struct max_pool_state {
    struct dnn *y, *dx;
    size_t spare_bytes; /* head of the scratch: a gradient that is added to another */
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
    struct dnn_pool spec = { .window = &mp->window, .layout = x->layout, .images = x->dtype,
                             .n = x->shape.dim[0], .c = x->shape.dim[1],
                             .training = p->training && (p->want_din & OP_IN(0)) != 0 };
    int rc;

    CHECK(p->out[0].layout == x->layout);
    if (s == NULL)
        return err_set(err, ERR_NOMEM, "%s '%s': out of memory", p->def->name, p->node);
    rc = dnn_max_pool_fwd(&spec, &s->y, err);
    if (rc == 0 && spec.training)
        rc = dnn_max_pool_bwd(&spec, &s->dx, err);
    if (rc < 0) {
        max_pool_cpu_free(s);
        return err_wrap(err, rc, "%s '%s'", p->def->name, p->node);
    }
    if (s->dx != NULL) {
        s->spare_bytes = op_round(tensor_bytes(x));
        p->save_bytes = dnn_arg_bytes(s->y, 2);
    }
    p->scratch_bytes = s->spare_bytes + op_max(dnn_scratch_bytes(s->y), dnn_scratch_bytes(s->dx));
    p->state = s;
    return 0;
}

static float value_at(const struct tensor *x, int64_t i)
{
    return op_is_half(x) ? float_of_bfloat16(((const uint16_t *)x->data)[i])
                         : ((const float *)x->data)[i];
}

/* Index of the first maximum of a window in the plain order of a plane, whose element 0 is element
 * `first` of x; the next element is c further. */
static int64_t winner(const struct op_window *w, const int64_t *e, const struct tensor *x,
                      int64_t first, int64_t c)
{
    struct op_taps t[3];
    int64_t i[3], best = -1;
    float most = 0;
    uint32_t k;

    for (k = 0; k < 3; k++)
        t[k] = op_window_taps(w, k, e[k]);
    for (i[0] = 0; i[0] < t[0].n; i[0]++)
        for (i[1] = 0; i[1] < t[1].n; i[1]++)
            for (i[2] = 0; i[2] < t[2].n; i[2]++) {
                int64_t at = 0;

                for (k = 0; k < 3; k++)
                    at = at * w->in[k] + t[k].at + i[k] * w->dilation[k];
                if (best < 0 || value_at(x, first + at * c) > most) {
                    best = at;
                    most = value_at(x, first + at * c);
                }
            }
    return best;
}

static void put_indices(const struct op_call *c)
{
    const struct max_pool_param *p = c->param;
    struct op_window w = op_window_lift(&p->window, 3);
    int64_t channels = c->in[0]->shape.dim[1], space = w.in[0] * w.in[1] * w.in[2];
    int64_t planes = c->in[0]->shape.dim[0] * channels, i, e[3];
    int64_t *to = c->out[1]->data;

    for (i = 0; i < planes; i++)
        for (e[0] = 0; e[0] < w.out[0]; e[0]++)
            for (e[1] = 0; e[1] < w.out[1]; e[1]++)
                for (e[2] = 0; e[2] < w.out[2]; e[2]++)
                    *to++ = i * space + winner(&w, e, c->in[0],
                                               i / channels * channels * space + i % channels,
                                               channels);
}

int max_pool_cpu_fwd(const struct op_call *c, struct err *err)
{
    struct max_pool_state *s = c->state;
    void *args[DNN_ARGS] = { c->in[0]->data, NULL, c->save };

    if (c->n_out > 1 && c->out[1] != NULL)
        put_indices(c);
    if (c->out[0] == NULL)
        return 0;
    args[1] = c->out[0]->data;
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
