/* einsum_cpu.c - two tensors with something to sum over are a batched matrix product,
 *   y [batch, m, n] = a [batch, m, k] b [batch, k, n]
 * every letter being one of these: in both inputs and the output it is of the batch, in both
 * inputs k, in one input and the output m or n. A letter of one input alone is summed over on the
 * way in. Each of the three is used where it lies if its letters are in order (a and b also
 * transposed), else through a copy in scratch. What is no matrix product, or a tiny one, is
 * contract.h's. */
#include <stdlib.h>

#include "base/err.h"
#include "op/dnn.h"
#include "op/gemm/einsum.h"
#include "op/op_priv.h"
#include "op/shape/copy.h"

enum { TINY = 16 /* products of a matrix product that is not worth a call */ };
enum role { BATCH, ROW, COLUMN, INNER, ROLES };
enum { LEFT, RIGHT, RESULT, SIDES };

struct side {
    uint32_t tensor; /* of einsum.step */
    bool direct;     /* used where it lies */
    bool trans;      /* its matrices are [k, m] or [n, k] */
    bool sums;       /* packing sums over a letter */
    ptrdiff_t step[CONTRACT_AXES]; /* packed; 0: not there */
    size_t bytes;    /* of it in scratch; 0 if direct */
    struct copy pack, unpack; /* between where it lies and scratch */
    struct contract sum;      /* in place of pack */
};

struct einsum_state {
    bool is_product;
    struct side side[SIDES];
    struct dnn *y, *d[EINSUM_IN]; /* gradients of LEFT and RIGHT */
    size_t grad_bytes;            /* in scratch, one of them */
    struct contract fwd, bwd[EINSUM_IN]; /* not a product */
    bool is_copy;                        /* nor is anything summed */
    struct copy there, back;
};

void einsum_cpu_free(void *state)
{
    struct einsum_state *s = state;

    if (s == NULL)
        return;
    dnn_free(s->y);
    dnn_free(s->d[LEFT]);
    dnn_free(s->d[RIGHT]);
    free(s);
}

/* ---- letters to roles ---- */

struct roles {
    uint32_t at[ROLES][CONTRACT_AXES], n[ROLES];
    int64_t size[ROLES];
};

/* By steps in `order`, longest first. */
static void add_label(const struct einsum_pair *p, struct roles *r, enum role role, uint32_t label,
                      uint32_t order)
{
    uint32_t *at = r->at[role], k = r->n[role]++;

    for (; k > 0 && p->step[order][at[k - 1]] < p->step[order][label]; k--)
        at[k] = at[k - 1];
    at[k] = label;
    r->size[role] *= (int64_t)p->size[label];
}

static struct roles find_roles(const struct einsum_pair *p, uint32_t left, uint32_t right)
{
    struct roles r = { .size = { 1, 1, 1, 1 } };
    uint32_t k;

    for (k = 0; k < p->n; k++) {
        bool a = p->step[left][k] != 0, b = p->step[right][k] != 0;

        if (p->step[EINSUM_OUT][k] != 0)
            add_label(p, &r, a && b ? BATCH : a ? ROW : COLUMN, k, EINSUM_OUT);
        else if (a && b)
            add_label(p, &r, INNER, k, left);
    }
    return r;
}

/* Steps of a tensor that holds batch, `outer` and `inner` in this order, densely. */
static size_t dense_steps(const struct einsum_pair *p, const struct roles *r, enum role outer,
                          enum role inner, ptrdiff_t *step)
{
    enum role order[] = { BATCH, outer, inner };
    size_t dense = 1;
    uint32_t i, k;

    memset(step, 0, CONTRACT_AXES * sizeof(*step));
    for (i = 3; i-- > 0;)
        for (k = r->n[order[i]]; k-- > 0;) {
            step[r->at[order[i]][k]] = (ptrdiff_t)dense;
            dense *= p->size[r->at[order[i]][k]];
        }
    return dense;
}

static bool lies_so(const struct einsum_pair *p, uint32_t tensor, const ptrdiff_t *step)
{
    return memcmp(p->step[tensor], step, p->n * sizeof(*step)) == 0;
}

static void settle_side(const struct einsum_pair *p, const struct roles *r, uint32_t tensor,
                        enum role outer, enum role inner, struct side *s)
{
    size_t floats;
    uint32_t k;

    *s = (struct side){ .tensor = tensor };
    floats = dense_steps(p, r, inner, outer, s->step);
    s->trans = s->direct = tensor != EINSUM_OUT && lies_so(p, tensor, s->step);
    if (s->direct)
        return;
    (void)dense_steps(p, r, outer, inner, s->step);
    s->direct = lies_so(p, tensor, s->step);
    if (s->direct)
        return;
    s->bytes = op_round(floats * sizeof(float));
    for (k = 0; k < p->n; k++) {
        ptrdiff_t there = p->step[tensor][k];

        if (there == 0)
            continue;
        s->sums = s->sums || s->step[k] == 0;
        contract_add_axis(&s->sum, p->size[k], there, 0, s->step[k]);
        copy_add_axis(&s->unpack, (int64_t)p->size[k], s->step[k], there);
        if (s->step[k] != 0)
            copy_add_axis(&s->pack, (int64_t)p->size[k], there, s->step[k]);
    }
    contract_settle(&s->sum);
    copy_settle(&s->pack);
    copy_settle(&s->unpack);
}

/* Left and right are the inputs, or the other way round where the output then lies as it should. */
static struct roles settle_sides(const struct einsum_pair *p, struct einsum_state *s)
{
    struct roles r;
    uint32_t left;

    for (left = 0; left < EINSUM_IN; left++) {
        r = find_roles(p, left, 1 - left);
        settle_side(p, &r, EINSUM_OUT, ROW, COLUMN, &s->side[RESULT]);
        if (s->side[RESULT].direct)
            break;
    }
    if (left == EINSUM_IN) {
        left = 0;
        r = find_roles(p, left, 1 - left);
        settle_side(p, &r, EINSUM_OUT, ROW, COLUMN, &s->side[RESULT]);
    }
    settle_side(p, &r, left, ROW, INNER, &s->side[LEFT]);
    settle_side(p, &r, 1 - left, INNER, COLUMN, &s->side[RIGHT]);
    return r;
}

/* ---- plan ---- */

/* With a, b as they are in memory, g the gradient of y:
 *   da = g b^T   or, where a is transposed,   da^T = b g^T
 *   db = a^T g   or, where b is transposed,   db^T = g^T a  */
static int plan_product(const struct op_plan *p, const struct roles *r, struct einsum_state *s,
                        struct err *err)
{
    int64_t m = r->size[ROW], n = r->size[COLUMN], k = r->size[INNER];
    bool ta = s->side[LEFT].trans, tb = s->side[RIGHT].trans;
    struct dnn_matmul y = { .batch = r->size[BATCH], .m = m, .n = n, .k = k, .trans_a = ta,
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
    if (rc == 0 && op_wants(p, s->side[LEFT].tensor))
        rc = dnn_matmul(&da, &s->d[LEFT], err);
    if (rc == 0 && op_wants(p, s->side[RIGHT].tensor))
        rc = dnn_matmul(&db, &s->d[RIGHT], err);
    return rc;
}

static void plan_general(const struct einsum_pair *p, uint32_t n_in, struct einsum_state *s)
{
    uint32_t k, i;

    s->is_copy = n_in == 1;
    for (k = 0; k < p->n; k++) {
        s->is_copy = s->is_copy && p->step[EINSUM_OUT][k] != 0;
        copy_add_axis(&s->there, (int64_t)p->size[k], p->step[0][k], p->step[EINSUM_OUT][k]);
    }
    copy_settle(&s->there);
    s->back = copy_back(&s->there);
    for (k = 0; k < p->n; k++)
        contract_add_axis(&s->fwd, p->size[k], p->step[0][k], p->step[1][k],
                          p->step[EINSUM_OUT][k]);
    contract_settle(&s->fwd);
    for (i = 0; i < EINSUM_IN; i++) {
        for (k = 0; k < p->n; k++)
            contract_add_axis(&s->bwd[i], p->size[k], p->step[EINSUM_OUT][k], p->step[1 - i][k],
                              p->step[i][k]);
        contract_settle(&s->bwd[i]);
    }
}

static bool is_product(const struct einsum_pair *p, uint32_t n_in, const struct roles *r)
{
    uint32_t k;

    for (k = 0; k < p->n; k++)
        if (p->size[k] == 0)
            return false;
    return n_in == 2 && r->size[INNER] > 1 && r->size[ROW] * r->size[COLUMN] > 1 &&
           r->size[ROW] * r->size[COLUMN] * r->size[INNER] >= TINY;
}

int einsum_cpu_plan(struct op_plan *p, struct err *err)
{
    const struct einsum_pair *e = p->param;
    struct einsum_state *s = calloc(1, sizeof(*s));
    struct roles r;
    uint32_t i;
    int rc = 0;

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "Einsum '%s': out of memory", p->node);
    r = settle_sides(e, s);
    s->is_product = is_product(e, p->n_in, &r);
    if (s->is_product)
        rc = plan_product(p, &r, s, err);
    else
        plan_general(e, p->n_in, s);
    if (rc < 0) {
        einsum_cpu_free(s);
        return err_wrap(err, rc, "Einsum '%s'", p->node);
    }
    for (i = 0; i < EINSUM_IN; i++)
        if (s->d[i] != NULL)
            s->grad_bytes = op_max(s->grad_bytes, op_round(dnn_arg_bytes(s->d[i], 2)));
    for (i = 0; i < SIDES && s->is_product; i++)
        p->scratch_bytes += s->side[i].bytes;
    p->scratch_bytes += s->grad_bytes +
                        op_max(dnn_scratch_bytes(s->y), op_max(dnn_scratch_bytes(s->d[LEFT]),
                                                               dnn_scratch_bytes(s->d[RIGHT])));
    p->state = s;
    return 0;
}

/* ---- run ---- */

struct areas { /* of scratch */
    float *side[SIDES], *grad;
    void *rest;
};

static struct areas areas_at(const struct einsum_state *s, void *scratch)
{
    struct areas a;
    size_t at = 0;
    uint32_t i;

    for (i = 0; i < SIDES; i++) {
        a.side[i] = op_at(scratch, at);
        at += s->side[i].bytes;
    }
    a.grad = op_at(scratch, at);
    a.rest = op_at(scratch, at + s->grad_bytes);
    return a;
}

/* Where the matrices of a side are: `t` itself, or packed into `area`. */
static float *matrices(const struct side *s, const struct tensor *t, float *area)
{
    if (s->direct)
        return t->data;
    if (s->sums)
        contract_run(&s->sum, t->data, NULL, area, false);
    else
        copy_run(&s->pack, t->data, area, sizeof(float));
    return area;
}

int einsum_cpu_fwd(const struct op_call *c, struct err *err)
{
    const struct einsum_state *s = c->state;
    const struct side *y = &s->side[RESULT];
    struct areas a;
    void *args[DNN_ARGS];
    int rc;

    if (s->is_copy) {
        copy_run(&s->there, c->in[0]->data, c->out[0]->data, sizeof(float));
        return 0;
    }
    if (!s->is_product) {
        contract_run(&s->fwd, c->in[0]->data, c->n_in > 1 ? c->in[1]->data : NULL,
                     c->out[0]->data, false);
        return 0;
    }
    a = areas_at(s, c->scratch);
    args[0] = matrices(&s->side[LEFT], c->in[s->side[LEFT].tensor], a.side[LEFT]);
    args[1] = matrices(&s->side[RIGHT], c->in[s->side[RIGHT].tensor], a.side[RIGHT]);
    args[2] = y->direct ? c->out[0]->data : a.side[RESULT];
    rc = dnn_run(s->y, args, a.rest, err);
    if (rc == 0 && !y->direct)
        copy_run(&y->unpack, args[2], c->out[0]->data, sizeof(float));
    return rc;
}

/* Brings the gradient of a side home. */
static void put_gradient(const struct op_call *c, const struct side *s, const float *grad)
{
    const struct einsum_pair *p = c->param;
    const struct tensor *din = c->din[s->tensor];
    bool add = op_adds(c, s->tensor);

    if (s->direct) {
        op_put(din->data, grad, (size_t)tensor_elements(din), 1.0f, add);
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
    float *m[SIDES] = { NULL };
    uint32_t i;
    int rc = 0;

    m[RESULT] = matrices(&s->side[RESULT], c->dout[0], a.side[RESULT]);
    for (i = 0; i < EINSUM_IN && rc == 0; i++) {
        const struct side *mine = &s->side[i], *other = &s->side[1 - i];
        bool straight = mine->direct && !op_adds(c, mine->tensor), first;
        void *args[DNN_ARGS];

        if (c->din[mine->tensor] == NULL)
            continue;
        m[1 - i] = matrices(other, c->in[other->tensor], a.side[1 - i]);
        first = i == LEFT ? !mine->trans : mine->trans; /* the gradient of y is the first factor */
        args[0] = first ? m[RESULT] : m[1 - i];
        args[1] = first ? m[1 - i] : m[RESULT];
        args[2] = straight ? c->din[mine->tensor]->data : a.grad;
        rc = dnn_run(s->d[i], args, a.rest, err);
        if (rc == 0 && !straight)
            put_gradient(c, mine, a.grad);
    }
    return rc;
}

int einsum_cpu_bwd(const struct op_call *c, struct err *err)
{
    const struct einsum_state *s = c->state;
    const struct einsum_pair *p = c->param;
    uint32_t i;

    if (c->dout[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    if (s->is_product)
        return product_bwd(c, err);
    for (i = 0; i < c->n_in; i++) {
        if (c->din[i] == NULL)
            continue;
        if (p->diagonal[i] && !op_adds(c, i))
            memset(c->din[i]->data, 0, tensor_bytes(c->din[i]));
        if (s->is_copy && op_adds(c, i))
            copy_run_add(&s->back, c->dout[0]->data, c->din[i]->data);
        else if (s->is_copy)
            copy_run(&s->back, c->dout[0]->data, c->din[i]->data, sizeof(float));
        else
            contract_run(&s->bwd[i], c->dout[0]->data,
                         c->n_in > 1 ? c->in[1 - i]->data : NULL, c->din[i]->data,
                         op_adds(c, i));
    }
    return 0;
}
