/* mlp_parts.c - see mlp.h. */
#include "op/gemm/mlp.h"

#include "op/op_priv.h"

void mlp_fini(struct mlp *s)
{
    if (s->up_state != NULL)
        s->product->free_state(s->up_state);
    if (s->down_state != NULL)
        s->product->free_state(s->down_state);
}

static struct matmul_param product_of(int64_t m, int64_t k, int64_t n, bool trans_b, bool bias)
{
    return (struct matmul_param){ .m = m, .n = n, .k = k, .trans_b = trans_b, .bias = bias };
}

static const struct tensor *input(const struct op_plan *p, uint32_t i)
{
    return i < p->n_in ? p->in[i] : NULL;
}

/* Plans one of the products: from -> to, with weights and bias at input `first` of the node. */
static int plan_part(struct mlp *s, const struct op_plan *p, const struct matmul_param *param,
                     uint32_t first, uint32_t wanted, const struct tensor *from,
                     const struct tensor *to, void **state, size_t *scratch, struct err *err)
{
    const struct tensor *in[] = { from, input(p, first), input(p, first + 1) };
    struct op_plan part = { .def = p->def,
                            .node = p->node,
                            .param = param,
                            .training = p->training && wanted != 0,
                            .tf32 = p->tf32,
                            .want_din = wanted,
                            .n_in = 3,
                            .n_out = 1,
                            .in = in,
                            .out = to };
    int rc = s->product->plan(&part, err);

    *state = part.state;
    if (part.scratch_bytes > *scratch)
        *scratch = part.scratch_bytes;
    return rc;
}

int mlp_init(struct mlp *s, struct op_plan *p, const struct op_kernels *product,
             const struct op_kernels *function, size_t z_bytes, struct err *err)
{
    const struct mlp_param *m = p->param;
    struct tensor x = *p->in[MLP_X], y = p->out[0], h = { .dtype = y.dtype };
    uint32_t up = p->want_din & (OP_IN(MLP_X) | OP_IN(MLP_W1) | OP_IN(MLP_B1));
    uint32_t down = (p->want_din & (OP_IN(MLP_W2) | OP_IN(MLP_B2))) >> 2;
    size_t bytes, most = 0;
    int rc;

    *s = (struct mlp){ .p = m, .product = product, .function = function, .training = p->training };
    s->x = x.shape = shape_of(2, m->m, m->k);
    s->hidden = h.shape = shape_of(2, m->m, m->hidden);
    s->y = y.shape = shape_of(2, m->m, m->n);
    s->hidden_type = h.dtype;
    s->gelu.is_tanh = true;
    s->up = product_of(m->m, m->k, m->hidden, m->trans1, input(p, MLP_B1) != NULL);
    s->down = product_of(m->m, m->hidden, m->n, m->trans2, input(p, MLP_B2) != NULL);
    bytes = op_round(tensor_bytes(&h));
    s->h_at = z_bytes > 0 ? op_round(z_bytes) : m->is_relu ? 0 : bytes;
    p->save_bytes = p->training ? s->h_at + bytes : 0;
    s->slope_at = p->training ? 0 : s->h_at + bytes;
    s->scratch_at = p->training && up != 0 ? bytes : s->slope_at;
    rc = plan_part(s, p, &s->up, MLP_W1, up, &x, &h, &s->up_state, &most, err);
    if (rc == 0)
        rc = plan_part(s, p, &s->down, MLP_W2, down | (up != 0 && z_bytes == 0 ? OP_IN(0) : 0), &h,
                       &y, &s->down_state, &most, err);
    p->scratch_bytes = s->scratch_at + most;
    return rc;
}

/* ---- addresses ---- */

void *mlp_z(const struct mlp *s, const struct op_call *c)
{
    return s->training ? c->save : c->scratch;
}

void *mlp_h(const struct mlp *s, const struct op_call *c)
{
    return op_at(mlp_z(s, c), s->h_at);
}

void *mlp_slope(const struct mlp *s, const struct op_call *c)
{
    return op_at(c->scratch, s->slope_at);
}

void *mlp_scratch(const struct mlp *s, const struct op_call *c)
{
    return op_at(c->scratch, s->scratch_at);
}

bool mlp_wants_hidden(const struct op_call *c)
{
    return c->din[MLP_X] != NULL || c->din[MLP_W1] != NULL || c->din[MLP_B1] != NULL;
}

static struct tensor hidden_at(const struct mlp *s, void *data)
{
    return (struct tensor){ .dtype = s->hidden_type, .shape = s->hidden, .data = data };
}

/* Returns t with the given matrix shape; NULL if t is NULL. */
static const struct tensor *matrix(const struct tensor *t, const struct shape *shape,
                                   struct tensor *room)
{
    if (t == NULL)
        return NULL;
    *room = *t;
    room->shape = *shape;
    return room;
}

static const struct tensor *at(const struct tensor *const *t, uint32_t n, uint32_t i)
{
    return t != NULL && i < n ? t[i] : NULL;
}

/* ---- calls ---- */

static struct op_call part_of(const struct mlp *s, const struct op_call *c, bool is_up)
{
    return (struct op_call){ .param = is_up ? &s->up : &s->down,
                             .state = is_up ? s->up_state : s->down_state,
                             .n_in = 3,
                             .n_out = 1,
                             .scratch = mlp_scratch(s, c),
                             .stream = c->stream,
                             .run = c->run };
}

static int function_fwd(const struct mlp *s, const struct op_call *c, struct err *err)
{
    const struct tensor z = hidden_at(s, mlp_z(s, c)), h = hidden_at(s, mlp_h(s, c));
    const struct tensor *in = &z, *out = &h;
    const struct op_call call = { .param = &s->gelu, .n_in = 1, .n_out = 1, .in = &in, .out = &out,
                                  .run = c->run };

    return s->function->fwd(&call, err);
}

int mlp_up(const struct mlp *s, const struct op_call *c, struct err *err)
{
    struct tensor x;
    const struct tensor z = hidden_at(s, mlp_z(s, c)), *out = &z;
    const struct tensor *in[] = { matrix(c->in[MLP_X], &s->x, &x), c->in[MLP_W1],
                                  at(c->in, c->n_in, MLP_B1) };
    struct op_call call = part_of(s, c, true);
    int rc;

    call.in = in;
    call.out = &out;
    rc = s->product->fwd(&call, err);
    return rc == 0 ? function_fwd(s, c, err) : rc;
}

int mlp_down(const struct mlp *s, const struct op_call *c, struct err *err)
{
    struct tensor y;
    const struct tensor h = hidden_at(s, mlp_h(s, c)), *out = matrix(c->out[0], &s->y, &y);
    const struct tensor *in[] = { &h, c->in[MLP_W2], at(c->in, c->n_in, MLP_B2) };
    struct op_call call = part_of(s, c, false);

    call.in = in;
    call.out = &out;
    return s->product->fwd(&call, err);
}

/* Replaces the gradient of h by that of z, in place. */
static int function_bwd(const struct mlp *s, const struct op_call *c, struct err *err)
{
    const struct tensor z = hidden_at(s, mlp_z(s, c)), h = hidden_at(s, mlp_h(s, c)),
                        d = hidden_at(s, mlp_slope(s, c)), *in = &z, *out = &h, *slope = &d;
    const struct op_call call = { .param = &s->gelu, .n_in = 1, .n_out = 1, .in = &in, .out = &out,
                                  .dout = &slope, .din = &slope, .run = c->run };

    return s->function->bwd(&call, err);
}

int mlp_down_bwd(const struct mlp *s, const struct op_call *c, bool to_h, struct err *err)
{
    struct tensor y, dy;
    const struct tensor h = hidden_at(s, mlp_h(s, c)), dh = hidden_at(s, mlp_slope(s, c));
    const struct tensor *in[] = { &h, c->in[MLP_W2], at(c->in, c->n_in, MLP_B2) };
    const struct tensor *out = matrix(c->out[0], &s->y, &y), *dout = matrix(c->dout[0], &s->y, &dy);
    const struct tensor *din[] = { to_h ? &dh : NULL, c->din[MLP_W2], at(c->din, c->n_in, MLP_B2) };
    struct op_call call = part_of(s, c, false);
    int rc = 0;

    call.in = in;
    call.out = &out;
    call.dout = &dout;
    call.din = din;
    call.din_add = (c->din_add & (OP_IN(MLP_W2) | OP_IN(MLP_B2))) >> 2;
    if (din[0] != NULL || din[1] != NULL || din[2] != NULL)
        rc = s->product->bwd(&call, err);
    return rc == 0 && to_h ? function_bwd(s, c, err) : rc;
}

int mlp_up_bwd(const struct mlp *s, const struct op_call *c, struct err *err)
{
    struct tensor x, dx;
    const struct tensor z = hidden_at(s, mlp_z(s, c)), dz = hidden_at(s, mlp_slope(s, c));
    const struct tensor *out = &z, *dout = &dz;
    const struct tensor *in[] = { matrix(c->in[MLP_X], &s->x, &x), c->in[MLP_W1],
                                  at(c->in, c->n_in, MLP_B1) };
    const struct tensor *din[] = { matrix(c->din[MLP_X], &s->x, &dx), c->din[MLP_W1],
                                   at(c->din, c->n_in, MLP_B1) };
    struct op_call call = part_of(s, c, true);

    call.in = in;
    call.out = &out;
    call.dout = &dout;
    call.din = din;
    call.din_add = c->din_add & (OP_IN(MLP_X) | OP_IN(MLP_W1) | OP_IN(MLP_B1));
    return s->product->bwd(&call, err);
}
