/* einsum_chain.c - Einsum of any number of tensors as contractions of two.
 *
 * The result of a contraction is a contiguous tensor of the labels that are still needed: those of
 * both factors, then those of the left one, then those of the right one, each in memory order, so
 * that it is a batched matrix product without a copy. Backward reads the results that are factors
 * again; they are saved. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "op/gemm/einsum.h"
#include "op/op_priv.h"

/* ---- plan ---- */

struct chain {
    const struct op_kernels *pair;
    void *state[EINSUM_TERMS];   /* state of each step's contraction */
    size_t value[EINSUM_TERMS];  /* offset of the result: in save; without training in scratch */
    size_t grad[EINSUM_TERMS];   /* offset of its gradient in scratch */
    bool wanted[2 * EINSUM_TERMS]; /* the gradient of this tensor is requested */
    bool saves;
    size_t rest; /* offset of the scratch of the contractions */
};

void einsum_chain_free(void *state)
{
    struct chain *s = state;
    uint32_t i;

    for (i = 0; s != NULL && i < EINSUM_TERMS; i++)
        s->pair->free_state(s->state[i]);
    free(s);
}

int einsum_chain_plan(struct op_plan *p, const struct op_kernels *pair, struct err *err)
{
    const struct einsum *e = p->param;
    struct chain *s = calloc(1, sizeof(*s));
    size_t values = 0, grads = 0, most = 0;
    uint32_t i;
    int rc = 0;

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "Einsum '%s': out of memory", p->node);
    s->pair = pair;
    s->saves = p->training;
    for (i = 0; i < e->n_in; i++)
        s->wanted[i] = op_wants(p, i);
    for (i = 0; i < e->n_steps && rc == 0; i++) {
        const struct einsum_step *at = &e->step[i];
        bool left = s->wanted[at->left], right = at->right != EINSUM_NONE && s->wanted[at->right];
        struct op_plan one = *p;

        one.param = &at->pair;
        one.n_in = at->right != EINSUM_NONE ? 2 : 1;
        one.want_din = (left ? OP_IN(0) : 0) | (right ? OP_IN(1) : 0);
        one.save_bytes = one.scratch_bytes = 0;
        rc = pair->plan(&one, err);
        if (rc < 0)
            break;
        s->state[i] = one.state;
        s->wanted[e->n_in + i] = left || right;
        most = op_max(most, one.scratch_bytes);
        if (i + 1 == e->n_steps)
            continue;
        s->value[i] = values;
        s->grad[i] = grads;
        values += op_round((size_t)at->floats * sizeof(float));
        grads += left || right ? op_round((size_t)at->floats * sizeof(float)) : 0;
    }
    if (rc < 0) {
        einsum_chain_free(s);
        return rc;
    }
    s->rest = s->saves ? grads : values;
    p->save_bytes = s->saves ? values : 0;
    p->scratch_bytes = s->rest + most;
    p->state = s;
    return 0;
}

/* ---- run ---- */

/* The call of one step; the pointers of `call` refer to the other fields. */
struct one {
    struct op_call call;
    struct tensor made[EINSUM_IN + 1], grad[EINSUM_IN + 1]; /* for results of earlier steps */
    const struct tensor *in[EINSUM_IN], *din[EINSUM_IN], *out, *dout;
};

static struct tensor floats_at(void *area, size_t offset, int64_t n)
{
    return (struct tensor){ .dtype = TENSOR_F32, .shape = shape_of(1, n),
                            .data = op_at(area, offset) };
}

static void set_factor(const struct op_call *c, const struct chain *s, uint32_t tensor, uint32_t i,
                       bool backward, struct one *o)
{
    const struct einsum *e = c->param;

    if (tensor < e->n_in) {
        o->in[i] = c->in[tensor];
        o->din[i] = backward ? c->din[tensor] : NULL;
        o->call.din_add |= backward && op_adds(c, tensor) ? OP_IN(i) : 0;
        return;
    }
    tensor -= e->n_in;
    o->made[i] =
        floats_at(s->saves ? c->save : c->scratch, s->value[tensor], e->step[tensor].floats);
    o->grad[i] = floats_at(c->scratch, s->grad[tensor], e->step[tensor].floats);
    o->in[i] = &o->made[i];
    o->din[i] = backward && s->wanted[e->n_in + tensor] ? &o->grad[i] : NULL;
}

static void set_call(const struct op_call *c, uint32_t step, bool backward, struct one *o)
{
    const struct einsum *e = c->param;
    const struct chain *s = c->state;
    const struct einsum_step *at = &e->step[step];
    bool is_last = step + 1 == e->n_steps;

    *o = (struct one){ .call = *c };
    o->call.din_add = 0;
    set_factor(c, s, at->left, 0, backward, o);
    if (at->right != EINSUM_NONE)
        set_factor(c, s, at->right, 1, backward, o);
    o->made[EINSUM_OUT] = floats_at(s->saves ? c->save : c->scratch, s->value[step], at->floats);
    o->grad[EINSUM_OUT] = floats_at(c->scratch, s->grad[step], at->floats);
    o->out = is_last ? c->out[0] : &o->made[EINSUM_OUT];
    o->dout = !backward ? NULL : is_last ? c->dout[0] : &o->grad[EINSUM_OUT];
    o->call.param = &at->pair;
    o->call.state = s->state[step];
    o->call.n_in = at->right != EINSUM_NONE ? 2 : 1;
    o->call.in = o->in;
    o->call.out = &o->out;
    o->call.din = backward ? o->din : NULL;
    o->call.dout = &o->dout;
    o->call.scratch = op_at(c->scratch, s->rest);
}

int einsum_chain_fwd(const struct op_call *c, struct err *err)
{
    const struct einsum *e = c->param;
    const struct chain *s = c->state;
    struct one o;
    uint32_t i;
    int rc = 0;

    for (i = 0; i < e->n_steps && rc == 0; i++) {
        set_call(c, i, false, &o);
        rc = s->pair->fwd(&o.call, err);
    }
    return rc;
}

int einsum_chain_bwd(const struct op_call *c, struct err *err)
{
    const struct einsum *e = c->param;
    const struct chain *s = c->state;
    struct one o;
    uint32_t i;
    int rc = 0;

    for (i = e->n_steps; i-- > 0 && rc == 0;) {
        if (!s->wanted[e->n_in + i])
            continue;
        set_call(c, i, true, &o);
        rc = s->pair->bwd(&o.call, err);
    }
    return rc;
}
