/* einsum_cuda.cu - see einsum.c and einsum_sides.c: a contraction of the chain is a product of
 * product.cu between copies, or computed by contract_cuda.cu. */
#include "op/gemm/contract_cuda.cuh"
#include "op/gemm/product.cuh"

#include <stdlib.h>

extern "C" {
#include "op/gemm/einsum_sides.h"
#include "op/op_priv.h"
}

struct pair_device {
    bool is_product;
    struct einsum_side side[EINSUM_SIDES];
    struct contract unpack[EINSUM_SIDES];
    struct product *y, *d[EINSUM_IN];    /* gradients of left and right */
    size_t area[EINSUM_SIDES], grad, rest; /* offsets in scratch */
    struct contract fwd, bwd[EINSUM_IN]; /* used if it is not a product */
};

static void pair_free(void *state)
{
    struct pair_device *s = (struct pair_device *)state;

    if (s == NULL)
        return;
    product_close(s->y);
    product_close(s->d[0]);
    product_close(s->d[1]);
    free(s);
}

/* ---- plan ---- */

static int open_products(const struct op_plan *p, const struct einsum_roles *r,
                         struct pair_device *s, struct err *err)
{
    const int64_t m = r->size[EINSUM_ROW], n = r->size[EINSUM_COLUMN], k = r->size[EINSUM_INNER];
    const bool ta = s->side[EINSUM_LEFT].trans, tb = s->side[EINSUM_RIGHT].trans;
    const int64_t a_row = ta ? 1 : k, a_col = ta ? m : 1, b_row = tb ? 1 : n, b_col = tb ? k : 1;
    const int64_t batch = r->size[EINSUM_BATCH];
    const enum tensor_dtype f = TENSOR_F32;
    const struct product_problem y = { .m = m, .n = n, .k = k,
                                       .at = { { f, a_row, a_col }, { f, b_row, b_col }, { f, n, 1 } },
                                       .n_axes = 1, .axis = { { batch, { m * k, k * n, m * n } } },
                                       .tf32 = p->tf32 };
    const struct product_problem da = { .m = m, .n = k, .k = n,
                                        .at = { { f, n, 1 }, { f, b_col, b_row }, { f, a_row, a_col } },
                                        .n_axes = 1, .axis = { { batch, { m * n, k * n, m * k } } },
                                        .tf32 = p->tf32 };
    const struct product_problem db = { .m = k, .n = n, .k = m,
                                        .at = { { f, a_col, a_row }, { f, n, 1 }, { f, b_row, b_col } },
                                        .n_axes = 1, .axis = { { batch, { m * k, m * n, k * n } } },
                                        .tf32 = p->tf32 };
    int rc = product_open(&y, &s->y, err);

    if (rc == 0 && op_wants(p, s->side[EINSUM_LEFT].tensor))
        rc = product_open(&da, &s->d[EINSUM_LEFT], err);
    if (rc == 0 && op_wants(p, s->side[EINSUM_RIGHT].tensor))
        rc = product_open(&db, &s->d[EINSUM_RIGHT], err);
    return rc;
}

/* Returns the scratch that the contractions need, in bytes. */
static size_t plan_sums(const struct einsum_pair *p, struct pair_device *s)
{
    size_t most;

    for (uint32_t k = 0; k < p->n; k++) {
        contract_add_axis(&s->fwd, p->size[k], p->step[0][k], p->step[1][k],
                          p->step[EINSUM_OUT][k]);
        for (uint32_t i = 0; i < EINSUM_IN; i++)
            contract_add_axis(&s->bwd[i], p->size[k], p->step[EINSUM_OUT][k], p->step[1 - i][k],
                              p->step[i][k]);
    }
    contract_finish(&s->fwd);
    most = contract_scratch_bytes(&s->fwd);
    for (struct contract &k : s->bwd) {
        contract_finish(&k);
        most = op_max(most, contract_scratch_bytes(&k));
    }
    return most;
}

/* Reserves scratch for the tensors that are not used in place; returns the additional scratch of
 * the copies. */
static size_t plan_scratch(struct pair_device *s)
{
    size_t bytes = 0, most = 0, grad = 0;

    for (uint32_t i = 0; i < EINSUM_SIDES; i++) {
        const struct einsum_side *d = &s->side[i];

        s->area[i] = bytes;
        bytes += d->bytes;
        grad = i < EINSUM_IN ? op_max(grad, d->bytes) : grad;
        for (uint32_t k = 0; k < d->unpack.n; k++)
            contract_add_axis(&s->unpack[i], d->unpack.axis[k].size, d->unpack.axis[k].from, 0,
                              d->unpack.axis[k].to);
        contract_finish(&s->unpack[i]);
        if (!d->direct)
            most = op_max(most, contract_scratch_bytes(&d->sum));
    }
    s->grad = bytes;
    s->rest = bytes + grad;
    return most;
}

static int pair_plan(struct op_plan *p, struct err *err)
{
    const struct einsum_pair *e = (const struct einsum_pair *)p->param;
    struct pair_device *s = (struct pair_device *)calloc(1, sizeof(*s));
    struct einsum_roles r;
    size_t most;
    int rc = 0;

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "Einsum '%s': out of memory", p->node);
    r = einsum_sides(e, s->side);
    s->is_product = einsum_is_product(e, p->n_in, &r);
    if (s->is_product) {
        most = plan_scratch(s);
        rc = open_products(p, &r, s, err);
    } else {
        most = plan_sums(e, s);
    }
    if (rc < 0) {
        pair_free(s);
        return err_wrap(err, rc, "Einsum '%s'", p->node);
    }
    most = op_max(op_max(most, product_scratch_bytes(s->y)),
                  op_max(product_scratch_bytes(s->d[0]), product_scratch_bytes(s->d[1])));
    p->scratch_bytes = s->rest + most;
    p->state = s;
    return 0;
}

/* ---- run ---- */

static int sum(const struct op_call *c, const struct contract *k, const float *x, const float *y,
               float *out, bool add, struct err *err)
{
    const struct pair_device *s = (const struct pair_device *)c->state;

    return contract_launch(k, x, TENSOR_F32, y, 1.0f, out, add, op_at(c->scratch, s->rest),
                           op_stream(c), err);
}

static int multiply(const struct op_call *c, struct product *p, const float *a, const float *b,
                    float *y, bool add, struct err *err)
{
    const struct pair_device *s = (const struct pair_device *)c->state;

    return product_run(p, a, b, y, NULL, 1.0f, add, op_at(c->scratch, s->rest), op_stream(c), err);
}

/* Returns in *out the matrices of a side: `t` itself, or packed. */
static int matrices(const struct op_call *c, uint32_t which, const struct tensor *t, float **out,
                    struct err *err)
{
    const struct pair_device *s = (const struct pair_device *)c->state;
    float *area = (float *)op_at(c->scratch, s->area[which]);

    *out = s->side[which].direct ? (float *)t->data : area;
    return s->side[which].direct
               ? 0
               : sum(c, &s->side[which].sum, (const float *)t->data, NULL, area, false, err);
}

static int pair_fwd(const struct op_call *c, struct err *err)
{
    const struct pair_device *s = (const struct pair_device *)c->state;
    const struct einsum_side *side = s->side;
    float *a = NULL, *b = NULL, *y = (float *)c->out[0]->data, *area;
    int rc;

    if (!s->is_product)
        return sum(c, &s->fwd, (const float *)c->in[0]->data,
                   c->n_in > 1 ? (const float *)c->in[1]->data : NULL, y, false, err);
    rc = matrices(c, EINSUM_LEFT, c->in[side[EINSUM_LEFT].tensor], &a, err);
    if (rc == 0)
        rc = matrices(c, EINSUM_RIGHT, c->in[side[EINSUM_RIGHT].tensor], &b, err);
    if (rc < 0 || side[EINSUM_RESULT].direct)
        return rc < 0 ? rc : multiply(c, s->y, a, b, y, false, err);
    area = (float *)op_at(c->scratch, s->area[EINSUM_RESULT]);
    rc = multiply(c, s->y, a, b, area, false, err);
    return rc < 0 ? rc : sum(c, &s->unpack[EINSUM_RESULT], area, NULL, y, false, err);
}

/* Zeroes the gradient outside the diagonal of an input that is read along a diagonal. */
static int clear_rest(const struct op_call *c, uint32_t i, struct err *err)
{
    const struct einsum_pair *p = (const struct einsum_pair *)c->param;
    const struct tensor *din = c->din[i];

    if (!p->diagonal[i] || op_cuda_adds(c, i) || tensor_bytes(din) == 0)
        return 0;
    return cuda_check(cudaMemsetAsync(din->data, 0, tensor_bytes(din), op_stream(c)), err,
                      "clear a gradient");
}

static int product_bwd(const struct op_call *c, struct err *err)
{
    const struct pair_device *s = (const struct pair_device *)c->state;
    float *m[EINSUM_SIDES] = { NULL }, *grad = (float *)op_at(c->scratch, s->grad);
    int rc = matrices(c, EINSUM_RESULT, c->dout[0], &m[EINSUM_RESULT], err);

    for (uint32_t i = 0; i < EINSUM_IN && rc == 0; i++) {
        const struct einsum_side *mine = &s->side[i], *other = &s->side[1 - i];
        const bool add = op_cuda_adds(c, mine->tensor);
        float *to;

        if (c->din[mine->tensor] == NULL)
            continue;
        to = mine->direct ? (float *)c->din[mine->tensor]->data : grad;
        rc = matrices(c, 1 - i, c->in[other->tensor], &m[1 - i], err);
        if (rc == 0)
            rc = i == EINSUM_LEFT ? multiply(c, s->d[i], m[EINSUM_RESULT], m[EINSUM_RIGHT], to,
                                             mine->direct && add, err)
                                  : multiply(c, s->d[i], m[EINSUM_LEFT], m[EINSUM_RESULT], to,
                                             mine->direct && add, err);
        if (rc < 0 || mine->direct)
            continue;
        rc = clear_rest(c, mine->tensor, err);
        if (rc == 0)
            rc = sum(c, &s->unpack[i], grad, NULL, (float *)c->din[mine->tensor]->data, add, err);
    }
    return rc;
}

static int pair_bwd(const struct op_call *c, struct err *err)
{
    const struct pair_device *s = (const struct pair_device *)c->state;
    int rc = 0;

    if (s->is_product)
        return product_bwd(c, err);
    for (uint32_t i = 0; i < c->n_in && rc == 0; i++) {
        if (c->din[i] == NULL)
            continue;
        rc = clear_rest(c, i, err);
        if (rc == 0)
            rc = sum(c, &s->bwd[i], (const float *)c->dout[0]->data,
                     c->n_in > 1 ? (const float *)c->in[1 - i]->data : NULL,
                     (float *)c->din[i]->data, op_cuda_adds(c, i), err);
    }
    return rc;
}

/* ---- the chain ---- */

static int plan(struct op_plan *p, struct err *err)
{
    static const struct op_kernels pair = { pair_plan, pair_fwd, pair_bwd, pair_free };

    return einsum_chain_plan(p, &pair, err);
}

static int backward(const struct op_call *c, struct err *err)
{
    return c->dout[0] == NULL ? op_cuda_zero(c, err) : einsum_chain_bwd(c, err);
}

OP_CUDA(op_einsum, .plan = plan, .fwd = einsum_chain_fwd, .bwd = backward, .free_state = einsum_chain_free);
