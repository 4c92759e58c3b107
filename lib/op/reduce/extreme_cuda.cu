/* extreme_cuda.cu - see extreme.c. */
#include "op/reduce/reduce_cuda.cuh"

namespace {

/* y = maximum or minimum of x; -inf or inf over no elements. NaN if an element is. */
template <bool Greatest> struct extreme {
    const float *x;
    float *y;

    using acc = float;
    using item = float;
    struct at {};

    __device__ acc start() const { return Greatest ? -INFINITY : INFINITY; }
    __device__ at of(size_t) const { return {}; }
    __device__ item load(size_t i) const { return x[i]; }
    __device__ acc merge(acc a, acc b) const { return (Greatest ? b > a : b < a) || b != b ? b : a; }
    __device__ acc add(acc a, item b, size_t, at) const { return merge(a, b); }
    __device__ void put(size_t at, acc a) const { y[at] = a; }
};

__device__ inline bool is_y(float x, float y)
{
    return x == y || (x != x && y != y);
}

/* to = dy / number of x equal to y. */
struct share {
    const float *x, *y, *dy;
    float *to;

    using acc = double;
    using item = float;
    using at = float;

    __device__ acc start() const { return 0; }
    __device__ at of(size_t i) const { return y[i]; }
    __device__ item load(size_t i) const { return x[i]; }
    __device__ acc add(acc a, item v, size_t, at y) const { return a + (is_y(v, y) ? 1 : 0); }
    __device__ acc merge(acc a, acc b) const { return a + b; }
    __device__ void put(size_t i, acc equals) const { to[i] = (float)((double)dy[i] / equals); }
};

/* dx = the share if x equals y. */
struct to_equals {
    const float *x, *t, *share, *y;

    using number = float;
    struct at {
        float share, y;
    };

    __device__ at of(size_t i) const { return { share[i], y[i] }; }
    __device__ float operator()(at a, float v, float, size_t) const { return is_y(v, a.y) ? a.share : 0.0f; }
};

} // namespace

template <bool Greatest> static int forward(const struct op_call *c, struct err *err)
{
    extreme<Greatest> f = { (const float *)c->in[0]->data, (float *)c->out[0]->data };

    if (c->in[0]->dtype != TENSOR_F32)
        return reduce_cuda_whole(c, Greatest ? WHOLE_MAX : WHOLE_MIN, err);
    return reduce_run(op_stream(c), f, *reduce_walk_of(c), reduce_splits(c), err);
}

static int backward(const struct op_call *c, struct err *err)
{
    float *shares = (float *)reduce_of_y(c);
    int rc;

    if (c->dout[0] == NULL || c->din[0] == NULL)
        return op_cuda_zero(c, err);
    share f = { (const float *)c->in[0]->data, (const float *)c->out[0]->data, (const float *)c->dout[0]->data,
                shares };
    to_equals back = { f.x, NULL, shares, f.y };

    rc = reduce_run(op_stream(c), f, *reduce_walk_of(c), reduce_splits(c), err);
    return rc < 0 ? rc
                  : reduce_spread(op_stream(c), back, *reduce_walk_of(c), (float *)c->din[0]->data,
                                  op_cuda_adds(c, 0), err);
}

REDUCE_CUDA(reduce_max, 18, forward<true>, backward);
REDUCE_CUDA(reduce_min, 18, forward<false>, backward);

/* ---- ReduceProd ---- */

namespace {

struct factors { /* the product of the elements that are not 0, and the number of zeros */
    double product, zeros;
};

/* y = the product; if `to` is set, stores its factors instead. */
struct product {
    const float *x;
    float *y;
    factors *to;

    using acc = factors;
    using item = float;
    struct at {};

    __device__ acc start() const { return { 1, 0 }; }
    __device__ at of(size_t) const { return {}; }
    __device__ item load(size_t i) const { return x[i]; }
    __device__ acc merge(acc a, acc b) const { return { a.product * b.product, a.zeros + b.zeros }; }
    __device__ acc add(acc a, item v, size_t, at) const
    {
        return { v == 0.0f ? a.product : a.product * (double)v, v == 0.0f ? a.zeros + 1 : a.zeros };
    }
    __device__ void put(size_t i, acc a) const
    {
        if (to != nullptr)
            to[i] = a;
        else
            y[i] = (float)(a.zeros > 0 ? a.product * 0 : a.product);
    }
};

/* dx = dy times all other elements. */
struct by_others {
    const float *x, *t, *dy;
    const factors *all;

    using number = float;
    struct at {
        factors all;
        float dy;
    };

    __device__ at of(size_t i) const { return { all[i], dy[i] }; }
    __device__ float operator()(at a, float v, float, size_t) const
    {
        double zeros = a.all.zeros - (v == 0.0f ? 1 : 0);
        double others = v == 0.0f ? a.all.product : a.all.product / (double)v;

        return zeros > 0 ? 0.0f : (float)((double)a.dy * others);
    }
};

} // namespace

static int prod_forward(const struct op_call *c, struct err *err)
{
    product f = { (const float *)c->in[0]->data, (float *)c->out[0]->data, NULL };

    if (c->in[0]->dtype != TENSOR_F32)
        return reduce_cuda_whole(c, WHOLE_PROD, err);
    return reduce_run(op_stream(c), f, *reduce_walk_of(c), reduce_splits(c), err);
}

static int prod_backward(const struct op_call *c, struct err *err)
{
    int rc;

    if (c->dout[0] == NULL || c->din[0] == NULL)
        return op_cuda_zero(c, err);
    product f = { (const float *)c->in[0]->data, NULL, (factors *)reduce_of_y(c) };
    by_others back = { f.x, NULL, (const float *)c->dout[0]->data, f.to };

    rc = reduce_run(op_stream(c), f, *reduce_walk_of(c), reduce_splits(c), err);
    return rc < 0 ? rc
                  : reduce_spread(op_stream(c), back, *reduce_walk_of(c), (float *)c->din[0]->data,
                                  op_cuda_adds(c, 0), err);
}

REDUCE_CUDA(reduce_prod, 18, prod_forward, prod_backward);
