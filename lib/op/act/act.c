#include "op/act/act.h"

#include "op/half.h"

int act_infer(struct op_infer *f, const float *defaults, struct err *err)
{
    const char *const *name = f->def->attrs;
    float *p = f->param;
    int rc = infer_same_shape(f, err);

    for (; rc == 0 && *name != NULL; name++, defaults++, p++)
        rc = op_attr_f(f, *name, *defaults, p, err);
    return rc;
}

void act_fwd(const struct op_call *c, act_y_fn *y)
{
    const struct tensor *in = c->in[0], *out = c->out[0];
    size_t n = (size_t)tensor_elements(in), at, m;
    float room[OP_CHUNK], *to;

    for (at = 0; at < n; at += m) {
        m = op_chunk(n - at, op_is_half(in));
        to = op_floats_to(out, at, room);
        y(m, op_floats(in, at, m, room), to, c->param);
        op_floats_done(out, at, m, to);
    }
}

void act_bwd(const struct op_call *c, const struct tensor *v, act_dx_fn *dx)
{
    const struct tensor *d = c->dout[0], *g = c->din[0];
    float room[3][OP_CHUNK], *to;
    size_t n, at, m;

    if (d == NULL || g == NULL) {
        op_bwd_zero(c);
        return;
    }
    n = (size_t)tensor_elements(g);
    for (at = 0; at < n; at += m) {
        m = op_chunk(n - at, op_is_half(g));
        to = op_floats_on(g, at, op_adds(c, 0) ? m : 0, room[2]);
        dx(m, op_floats(d, at, m, room[0]), op_floats(v, at, m, room[1]), to, c->param,
           op_adds(c, 0));
        op_floats_done(g, at, m, to);
    }
}
