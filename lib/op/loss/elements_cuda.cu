/* elements_cuda.cu - see elements.c. */
#include "op/loss/loss_cuda.cuh"

namespace {

struct two {
    float x, t;
};

/* The formulas of a row as a type, for templates. A metric has no slope. */
#define LOSS(id_, name_, attr_, value_, slope_)                                                        \
    struct id_ {                                                                                       \
        __device__ static float value(float x, float t, float p) { return loss_##id_(x, t, p); }       \
        __device__ static float slope(float x, float t, float p) { return loss_##id_##_slope(x, t, p); } \
    };
#define METRIC(id_, name_, value_)                                                                     \
    struct id_ {                                                                                       \
        __device__ static float value(float x, float t, float p) { return loss_##id_(x, t, p); }       \
    };
LOSS_ELEMENTS(LOSS, METRIC)
#undef LOSS
#undef METRIC

/* ---- kernels ---- */

/* The mean of the elements of a sample. */
template <typename M> struct element_rows {
    const float *in, *t, *weight;
    float p;
    double n;
    loss_pair *pair;

    using acc = double;
    using item = two;
    struct at {};

    __device__ acc start() const { return 0; }
    __device__ at of(size_t) const { return {}; }
    __device__ item load(size_t i) const { return { in[i], t[i] }; }
    __device__ acc add(acc a, item v, size_t, at) const { return a + (double)M::value(v.x, v.t, p); }
    __device__ acc merge(acc a, acc b) const { return a + b; }
    __device__ void put(size_t i, acc sum) const
    {
        double w = (double)weight[i];

        pair[i] = w == 0 ? loss_pair{ 0, 0 } : loss_pair{ w * (sum / n), w };
    }
};

/* dx = dy loss_scale w / n M'; 0 where w is 0, also if x is NaN. */
template <typename M> struct element_back {
    const float *x, *t, *weight, *dy;
    const struct op_run *run;
    float p, share;

    using number = float;
    struct at {
        float weight, coef;
    };

    __device__ at of(size_t i) const { return { weight[i], *dy * run->loss_scale * weight[i] * share }; }
    __device__ float operator()(at a, float v, float u, size_t) const
    {
        return a.weight == 0.0f ? 0.0f : M::slope(v, u, p) * a.coef;
    }
};

} // namespace

static void walk_of(const struct loss_elements *s, struct reduce_walk *w)
{
    const struct reduce_axis axes[2] = { { s->n, false, 1 }, { s->elements, true, 0 } };

    reduce_walk_make(w, axes, 2, 1);
}

/* Scratch: a pair for each sample, then the scratch of the folds. */
static int plan(struct op_plan *p, struct err *err)
{
    const struct loss_elements *s = (const struct loss_elements *)p->param; /* the first member of every param */
    struct reduce_walk w;
    size_t rows, all = loss_fold_scratch(s->n);

    (void)err;
    walk_of(s, &w);
    rows = loss_round(reduce_scratch(&w, sizeof(double)));
    p->scratch_bytes = loss_round(s->n * sizeof(loss_pair)) + (rows > all ? rows : all);
    return 0;
}

static int sum_up(const struct op_call *c,
                  int (*rows)(const struct op_call *c, const struct loss_elements *s, float p,
                              void *room, struct err *err),
                  const struct loss_elements *s, float p, bool scaled, struct err *err)
{
    void *room = (char *)c->scratch + loss_round(s->n * sizeof(loss_pair));
    loss_stored pairs = { (const loss_pair *)c->scratch };
    int rc = rows(c, s, p, room, err);

    return rc < 0 ? rc : loss_fold_run(c, s->n, pairs, loss_put_of(c, scaled), room, err);
}

template <typename M>
static int rows(const struct op_call *c, const struct loss_elements *s, float p, void *room,
                struct err *err)
{
    element_rows<M> f = { (const float *)c->in[0]->data, (const float *)c->in[1]->data,
                          (const float *)c->in[2]->data, p, (double)s->elements, (loss_pair *)c->scratch };
    struct reduce_walk w;

    walk_of(s, &w);
    return reduce_run(op_stream(c), f, w, room, err);
}

template <typename M> static int forward(const struct op_call *c, struct err *err)
{
    const struct elements *s = (const struct elements *)c->param;

    return sum_up(c, rows<M>, &s->shape, s->p, true, err);
}

template <typename M> static int backward(const struct op_call *c, struct err *err)
{
    const struct elements *s = (const struct elements *)c->param;
    struct reduce_walk w;

    if (c->dout[0] == NULL || c->din[0] == NULL)
        return op_cuda_zero(c, err);
    element_back<M> f = { (const float *)c->in[0]->data, (const float *)c->in[1]->data,
                          (const float *)c->in[2]->data, (const float *)c->dout[0]->data, c->run->device,
                          s->p, (float)(1.0 / (double)s->shape.elements) };
    walk_of(&s->shape, &w);
    return reduce_spread(op_stream(c), f, w, (float *)c->din[0]->data, op_cuda_adds(c, 0), err);
}

template <typename M> static int metric_forward(const struct op_call *c, struct err *err)
{
    const struct elements *s = (const struct elements *)c->param;

    return sum_up(c, rows<M>, &s->shape, s->p, false, err);
}

#define LOSS(id_, name_, attr_, value_, slope_) \
    OP_CUDA(op_##id_, .plan = plan, .fwd = forward<id_>, .bwd = backward<id_>);
#define METRIC(id_, name_, value_) OP_CUDA(op_##id_, .plan = plan, .fwd = metric_forward<id_>);
LOSS_ELEMENTS(LOSS, METRIC)
