/* einsum_cpu.c - a contraction as a batched matrix product of the library between copies
 * (einsum_sides.c), or by contract.h. */
#include <stdlib.h>

#include "base/err.h"
#include "op/dnn.h"
#include "op/gemm/einsum_sides.h"
#include "op/op_priv.h"

struct einsum_state {
    bool is_product;
    struct einsum_side side[EINSUM_SIDES];
    struct dnn *y, *d[EINSUM_IN]; /* gradients of EINSUM_LEFT and EINSUM_RIGHT */
    size_t grad_bytes;            /* size in scratch of one gradient */
    struct contract fwd, bwd[EINSUM_IN]; /* used if it is not a product */
    bool is_copy;                        /* nothing is summed either */
    struct copy copy, copy_bwd;
};

static void pair_free(void *state)
{
    struct einsum_state *s = state;

    if (s == NULL)
        return;
    dnn_free(s->y);
    dnn_free(s->d[EINSUM_LEFT]);
    dnn_free(s->d[EINSUM_RIGHT]);
    free(s);
}

/* ---- plan ---- */

/* With a, b as in memory, and g the gradient of y:
 *   da = g b^T   or, if a is transposed,   da^T = b g^T
 *   db = a^T g   or, if b is transposed,   db^T = g^T a */
static int plan_product(const struct op_plan *p, const struct einsum_roles *r,
                        struct einsum_state *s, struct err *err)
{
    int64_t m = r->size[EINSUM_ROW], n = r->size[EINSUM_COLUMN], k = r->size[EINSUM_INNER];
    bool ta = s->side[EINSUM_LEFT].trans, tb = s->side[EINSUM_RIGHT].trans;
    struct dnn_matmul y = { .batch = r->size[EINSUM_BATCH], .m = m, .n = n, .k = k, .trans_a = ta,
                            .trans_b = tb };
    struct dnn_matmul da = { .batch = y.batch, .m = m, .n = k, .k = n, .trans_b = !tb };
    struct dnn_matmul db = { .batch = y.batch, .m = k, .n = n, .k = m, .trans_a = !ta };
    int rc = dnn_matmul(&y, &s->y, err);

    if (ta)
        da = (struct dnn_matmul){ .batch = y.batch, .m = k, .n = m, .k = n, .trans_a = tb,
                                  .trans_b = true };
    if (tb)
        db = (struct dnn_matmul){ .batch = y.batch, .m = n, .n = k, .k = m, .trans_a = true,
                                  .trans_b = ta };
    if (rc == 0 && op_wants(p, s->side[EINSUM_LEFT].tensor))
        rc = dnn_matmul(&da, &s->d[EINSUM_LEFT], err);
    if (rc == 0 && op_wants(p, s->side[EINSUM_RIGHT].tensor))
        rc = dnn_matmul(&db, &s->d[EINSUM_RIGHT], err);
    return rc;
}

static void plan_general(const struct einsum_pair *p, uint32_t n_in, struct einsum_state *s)
{
    uint32_t k, i;

    s->is_copy = n_in == 1;
    for (k = 0; k < p->n; k++) {
        s->is_copy = s->is_copy && p->step[EINSUM_OUT][k] != 0;
        copy_add_axis(&s->copy, (int64_t)p->size[k], p->step[0][k], p->step[EINSUM_OUT][k]);
    }
    copy_finish(&s->copy);
    s->copy_bwd = copy_back(&s->copy);
    for (k = 0; k < p->n; k++)
        contract_add_axis(&s->fwd, p->size[k], p->step[0][k], p->step[1][k],
                          p->step[EINSUM_OUT][k]);
    contract_finish(&s->fwd);
    for (i = 0; i < EINSUM_IN; i++) {
        for (k = 0; k < p->n; k++)
            contract_add_axis(&s->bwd[i], p->size[k], p->step[EINSUM_OUT][k], p->step[1 - i][k],
                              p->step[i][k]);
        contract_finish(&s->bwd[i]);
    }
}

static int pair_plan(struct op_plan *p, struct err *err)
{
    const struct einsum_pair *e = p->param;
    struct einsum_state *s = calloc(1, sizeof(*s));
    struct einsum_roles r;
    uint32_t i;
    int rc = 0;

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "Einsum '%s': out of memory", p->node);
    r = einsum_sides(e, s->side);
    s->is_product = einsum_is_product(e, p->n_in, &r);
    if (s->is_product)
        rc = plan_product(p, &r, s, err);
    else
        plan_general(e, p->n_in, s);
    if (rc < 0) {
        pair_free(s);
        return err_wrap(err, rc, "Einsum '%s'", p->node);
    }
    for (i = 0; i < EINSUM_IN; i++)
        if (s->d[i] != NULL)
            s->grad_bytes = op_max(s->grad_bytes, op_round(dnn_arg_bytes(s->d[i], 2)));
    for (i = 0; i < EINSUM_SIDES && s->is_product; i++)
        p->scratch_bytes += s->side[i].bytes;
    p->scratch_bytes += s->grad_bytes + op_max(dnn_scratch_bytes(s->y),
                                               op_max(dnn_scratch_bytes(s->d[EINSUM_LEFT]),
                                                      dnn_scratch_bytes(s->d[EINSUM_RIGHT])));
    p->state = s;
    return 0;
}

/* ---- run ---- */

struct areas { /* areas of scratch */
    float *side[EINSUM_SIDES], *grad;
    void *rest;
};

static struct areas areas_at(const struct einsum_state *s, void *scratch)
{
    struct areas a;
    size_t at = 0;
    uint32_t i;

    for (i = 0; i < EINSUM_SIDES; i++) {
        a.side[i] = op_at(scratch, at);
        at += s->side[i].bytes;
    }
    a.grad = op_at(scratch, at);
    a.rest = op_at(scratch, at + s->grad_bytes);
    return a;
}

/* Returns the matrices of a side: `t` itself, or packed into `area`. */
static float *matrices(const struct einsum_side *s, const struct tensor *t, float *area)
{
    if (s->direct)
        return t->data;
    if (s->sums)
        contract_run(&s->sum, t->data, NULL, area, false);
    else
        copy_run(&s->pack, t->data, area, sizeof(float));
    return area;
}

static int pair_fwd(const struct op_call *c, struct err *err)
{
    const struct einsum_state *s = c->state;
    const struct einsum_side *y = &s->side[EINSUM_RESULT];
    struct areas a;
    void *args[DNN_ARGS];
    int rc;

    if (s->is_copy) {
        copy_run(&s->copy, c->in[0]->data, c->out[0]->data, sizeof(float));
        return 0;
    }
    if (!s->is_product) {
        contract_run(&s->fwd, c->in[0]->data, c->n_in > 1 ? c->in[1]->data : NULL, c->out[0]->data,
                     false);
        return 0;
    }
    a = areas_at(s, c->scratch);
    args[0] =
        matrices(&s->side[EINSUM_LEFT], c->in[s->side[EINSUM_LEFT].tensor], a.side[EINSUM_LEFT]);
    args[1] =
        matrices(&s->side[EINSUM_RIGHT], c->in[s->side[EINSUM_RIGHT].tensor], a.side[EINSUM_RIGHT]);
    args[2] = y->direct ? c->out[0]->data : a.side[EINSUM_RESULT];
    rc = dnn_run(s->y, args, a.rest, err);
    if (rc == 0 && !y->direct)
        copy_run(&y->unpack, args[2], c->out[0]->data, sizeof(float));
    return rc;
}

/* Accumulates the gradient of a side into din. */
static void store_gradient(const struct op_call *c, const struct einsum_side *s, const float *grad)
{
    const struct einsum_pair *p = c->param;
    const struct tensor *din = c->din[s->tensor];
    bool add = op_adds(c, s->tensor);

    if (s->direct) {
        op_store(din->data, grad, (size_t)tensor_elements(din), 1.0f, add);
        return;
    }
    if (p->diagonal[s->tensor] && !add)
        memset(din->data, 0, tensor_bytes(din));
    if (add)
        copy_run_add(&s->unpack, grad, din->data);
    else
        copy_run(&s->unpack, grad, din->data, sizeof(float));
}

static int product_bwd(const struct op_call *c, struct err *err)
{
    const struct einsum_state *s = c->state;
    struct areas a = areas_at(s, c->scratch);
    float *m[EINSUM_SIDES] = { NULL };
    uint32_t i;
    int rc = 0;

    m[EINSUM_RESULT] = matrices(&s->side[EINSUM_RESULT], c->dout[0], a.side[EINSUM_RESULT]);
    for (i = 0; i < EINSUM_IN && rc == 0; i++) {
        const struct einsum_side *mine = &s->side[i], *other = &s->side[1 - i];
        bool straight = mine->direct && !op_adds(c, mine->tensor), first;
        void *args[DNN_ARGS];

        if (c->din[mine->tensor] == NULL)
            continue;
        m[1 - i] = matrices(other, c->in[other->tensor], a.side[1 - i]);
        /* the gradient of y is the first factor */
        first = i == EINSUM_LEFT ? !mine->trans : mine->trans;
        args[0] = first ? m[EINSUM_RESULT] : m[1 - i];
        args[1] = first ? m[1 - i] : m[EINSUM_RESULT];
        args[2] = straight ? c->din[mine->tensor]->data : a.grad;
        rc = dnn_run(s->d[i], args, a.rest, err);
        if (rc == 0 && !straight)
            store_gradient(c, mine, a.grad);
    }
    return rc;
}

static int pair_bwd(const struct op_call *c, struct err *err)
{
    const struct einsum_state *s = c->state;
    const struct einsum_pair *p = c->param;
    uint32_t i;

    if (s->is_product)
        return product_bwd(c, err);
    for (i = 0; i < c->n_in; i++) {
        if (c->din[i] == NULL)
            continue;
        if (p->diagonal[i] && !op_adds(c, i))
            memset(c->din[i]->data, 0, tensor_bytes(c->din[i]));
        if (s->is_copy && op_adds(c, i))
            copy_run_add(&s->copy_bwd, c->dout[0]->data, c->din[i]->data);
        else if (s->is_copy)
            copy_run(&s->copy_bwd, c->dout[0]->data, c->din[i]->data, sizeof(float));
        else
            contract_run(&s->bwd[i], c->dout[0]->data, c->n_in > 1 ? c->in[1 - i]->data : NULL,
                         c->din[i]->data, op_adds(c, i));
    }
    return 0;
}

/* ---- the chain ---- */

int einsum_cpu_plan(struct op_plan *p, struct err *err)
{
    static const struct op_kernels pair = { pair_plan, pair_fwd, pair_bwd, pair_free };

    return einsum_chain_plan(p, &pair, err);
}

int einsum_cpu_bwd(const struct op_call *c, struct err *err)
{
    if (c->dout[0] != NULL)
        return einsum_chain_bwd(c, err);
    op_bwd_zero(c);
    return 0;
}
