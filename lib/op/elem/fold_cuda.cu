/* fold_cuda.cu - see fold.c. The first two operands make y; each further one is then folded in. */
#include "op/elem/row_cuda.cuh"

namespace {

/* a is y so far, b an operand. */
struct greatest {
    template <typename T> __device__ T operator()(T a, T b) const { return ELEM_MAX(a, b); }
};

struct least {
    template <typename T> __device__ T operator()(T a, T b) const { return ELEM_MIN(a, b); }
};

struct total {
    float scale; /* 1, but 1 / n for the last operand of Mean */

    __device__ float operator()(float a, float b) const { return (a + b) * scale; }
};

struct count {
    __device__ float operator()(float y, float x) const { return ELEM_EQUAL(y, x) ? 1.0f : 0.0f; }
};

struct share { /* n: the number of operands that equal y */
    __device__ float operator()(float d, float n, float y, float x) const { return ELEM_EQUAL(y, x) ? d / n : 0.0f; }
};

struct part {
    float scale;

    __device__ float operator()(float d) const { return d * scale; }
};

struct fold { /* op_plan.state */
    size_t parts_at;          /* in the scratch: partial sums of several blocks, after the counts */
    struct elem_loops both;   /* over the first two operands */
    struct elem_loops each[]; /* over operand i alone */
};

}

static int plan(struct op_plan *p, struct err *err)
{
    struct fold *s = (struct fold *)calloc(1, sizeof(*s) + p->n_in * sizeof(s->each[0]));
    const struct elem_operand both[] = { { p->in[0], NULL }, { p->in[p->n_in > 1 ? 1 : 0], NULL } };
    size_t parts = 0;

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "%s '%s': out of memory", p->def->name, p->node);
    elem_loops_make(&s->both, &p->out[0], both, 2);
    for (uint32_t i = 0; i < p->n_in; i++) {
        const struct elem_operand one = { p->in[i], NULL };

        elem_loops_make(&s->each[i], &p->out[0], &one, 1);
        parts = op_max(parts, elem_cuda_scratch(&s->each[i], 0));
    }
    s->parts_at = op_round(tensor_bytes(&p->out[0]));
    if (p->training)
        p->scratch_bytes = s->parts_at + parts;
    p->state = s;
    return 0;
}

static struct total with_scale(total, float scale)
{
    return { scale };
}

template <typename F> static F with_scale(F f, float)
{
    return f;
}

/* mean: the result after the last operand is scaled. */
template <typename V, typename F>
static int forward(const struct op_call *c, F f, bool mean, struct err *err)
{
    const struct fold *s = (const struct fold *)c->state;
    const elem_in<V> y = { c->out[0], ELEM_DENSE };
    int rc = 0;

    if (c->n_in == 1)
        return c->out[0]->data == c->in[0]->data
                   ? 0
                   : elem_cuda_run(&s->each[0], op_stream(c), c->out[0], false, op_same(), err,
                                   elem_in<V>{ c->in[0], 0 });
    for (uint32_t i = 1; rc == 0 && i < c->n_in; i++) {
        F with = with_scale(f, mean && i + 1 == c->n_in ? 1.0f / (float)c->n_in : 1.0f);

        rc = i == 1 ? elem_cuda_run(&s->both, op_stream(c), c->out[0], false, with, err,
                                    elem_in<V>{ c->in[0], 0 }, elem_in<V>{ c->in[1], 1 })
                    : elem_cuda_run(&s->each[i], op_stream(c), c->out[0], false, with, err, y,
                                    elem_in<V>{ c->in[i], 0 });
    }
    return rc;
}

template <typename F> static int forward_any(const struct op_call *c, F f, struct err *err)
{
    enum tensor_dtype t = c->in[0]->dtype;

    return t == TENSOR_I32   ? forward<int32_t>(c, f, false, err)
           : t == TENSOR_I64 ? forward<int64_t>(c, f, false, err)
           : t == TENSOR_U64 ? forward<uint64_t>(c, f, false, err)
                             : forward<float>(c, f, false, err);
}

/* Computes the gradient of operand i: f of d and of the streams `in`. */
template <typename F, typename... V>
static int gradient(const struct op_call *c, uint32_t i, F f, struct err *err,
                    const elem_in<V> &...in)
{
    const struct fold *s = (const struct fold *)c->state;
    const elem_in<float> d = { c->dout[0], ELEM_DENSE };

    return elem_cuda_grad(&s->each[i], op_stream(c), 0, c->din[i], (char *)c->scratch + s->parts_at,
                          op_cuda_adds(c, i), f, err, d, in...);
}

/* Divides the gradient among the operands that equal y. Their number is at the head of the
 * scratch. */
static int backward_shared(const struct op_call *c, struct err *err)
{
    const struct fold *s = (const struct fold *)c->state;
    struct tensor n = *c->out[0];
    const elem_in<float> y = { c->out[0], ELEM_DENSE }, counts = { &n, ELEM_DENSE };
    int rc = 0;

    if (c->dout[0] == NULL)
        return op_cuda_zero(c, err);
    n.data = c->scratch;
    for (uint32_t i = 0; rc == 0 && i < c->n_in; i++)
        rc = elem_cuda_run(&s->each[i], op_stream(c), &n, i > 0, count(), err, y, elem_in<float>{ c->in[i], 0 });
    for (uint32_t i = 0; rc == 0 && i < c->n_in; i++)
        if (c->din[i] != NULL)
            rc = gradient(c, i, share(), err, counts, y, elem_in<float>{ c->in[i], 0 });
    return rc;
}

static int backward_scaled(const struct op_call *c, float scale, struct err *err)
{
    int rc = 0;

    if (c->dout[0] == NULL)
        return op_cuda_zero(c, err);
    for (uint32_t i = 0; rc == 0 && i < c->n_in; i++)
        if (c->din[i] != NULL)
            rc = gradient(c, i, part{ scale }, err);
    return rc;
}

#define FOLD(id_, fwd_, bwd_)                                                                          \
    static int id_##_fwd(const struct op_call *c, struct err *err)                                     \
    {                                                                                                  \
        return (fwd_);                                                                                 \
    }                                                                                                  \
    static int id_##_bwd(const struct op_call *c, struct err *err)                                     \
    {                                                                                                  \
        return (bwd_);                                                                                 \
    }                                                                                                  \
    OP_CUDA(op_##id_, .plan = plan, .fwd = id_##_fwd, .bwd = id_##_bwd, .free_state = free);

FOLD(max_8, forward_any(c, greatest(), err), backward_shared(c, err))
FOLD(min_8, forward_any(c, least(), err), backward_shared(c, err))
FOLD(sum_8, forward<float>(c, total{ 1.0f }, false, err), backward_scaled(c, 1.0f, err))
FOLD(mean_8, forward<float>(c, total{ 1.0f }, true, err), backward_scaled(c, 1.0f / (float)c->n_in, err))
