/* sum_cuda.cu - see sum.c. Sums are double, because the kernels are limited by memory, not by
 * arithmetic. */
#include "op/reduce/exp_sum.cuh"
#include "op/reduce/reduce_cuda.cuh"

namespace {

enum finish { AS_IS, MEAN, ROOT, LOG };

struct just_x {
    __device__ float operator()(float x) const { return x; }
};

struct absolute {
    __device__ float operator()(float x) const { return fabsf(x); }
};

struct square {
    __device__ float operator()(float x) const { return x * x; }
};

/* y = `how` applied to the sum of M(x). */
template <typename M> struct sum_of {
    const float *x;
    float *y;
    enum finish how;
    double n;

    using acc = double;
    using item = float;
    struct at {};

    __device__ acc start() const { return 0; }
    __device__ at of(size_t) const { return {}; }
    __device__ item load(size_t i) const { return x[i]; }
    __device__ acc add(acc a, item v, size_t, at) const { return a + (double)M()(v); }
    __device__ acc merge(acc a, acc b) const { return a + b; }
    __device__ void put(size_t at, acc sum) const
    {
        y[at] = (float)(how == MEAN   ? sum / n
                        : how == ROOT ? sqrt(sum)
                        : how == LOG  ? log(sum)
                                      : sum);
    }
};

/* y = ln of the sum of e^x, in one pass. */
struct log_sum_exp {
    const float *x;
    float *y;

    using acc = exp_sum;
    using item = float;
    struct at {};

    __device__ acc start() const { return exp_sum_start(); }
    __device__ at of(size_t) const { return {}; }
    __device__ item load(size_t i) const { return x[i]; }
    __device__ acc add(acc a, item v, size_t, at) const { return exp_sum_add(a, v); }
    __device__ acc add_pack(acc a, const op_pack<float> &p, size_t, at) const { return exp_sum_add_pack(a, p); }
    __device__ acc merge(acc a, acc b) const { return exp_sum_merge(a, b); }
    __device__ void put(size_t at, acc a) const { y[at] = (float)((double)exp_sum_shift(a.max) + log(a.sum)); }
};

} // namespace

template <typename M, enum finish How, enum reduce_whole Whole>
static int forward(const struct op_call *c, struct err *err)
{
    const struct reduce *r = (const struct reduce *)c->param;
    sum_of<M> f = { (const float *)c->in[0]->data, (float *)c->out[0]->data, How, (double)r->n };

    if (c->in[0]->dtype != TENSOR_F32)
        return reduce_cuda_whole(c, Whole, err);
    return reduce_run(op_stream(c), f, *reduce_walk_of(c), reduce_splits(c), err);
}

static int log_sum_exp_forward(const struct op_call *c, struct err *err)
{
    log_sum_exp f = { (const float *)c->in[0]->data, (float *)c->out[0]->data };

    return reduce_run(op_stream(c), f, *reduce_walk_of(c), reduce_splits(c), err);
}

/* ---- backward ---- */

namespace {

struct as_it_is {
    static constexpr bool X = false, Y = false;

    __device__ float operator()(float dy, float, float) const { return dy; }
};

struct by_sign {
    static constexpr bool X = true, Y = false;

    __device__ float operator()(float dy, float x, float) const
    {
        return x > 0.0f ? dy : x < 0.0f ? -dy : 0.0f * x;
    }
};

struct by_two_x {
    static constexpr bool X = true, Y = false;

    __device__ float operator()(float dy, float x, float) const { return dy * (2.0f * x); }
};

struct by_share {
    static constexpr bool X = true, Y = true;

    __device__ float operator()(float dy, float x, float y) const { return y == 0.0f ? 0.0f : dy * (x / y); }
};

struct by_exp {
    static constexpr bool X = true, Y = true;

    __device__ float operator()(float dy, float x, float y) const { return dy * expf(x - y); }
};

struct by_inverse {
    static constexpr bool X = false, Y = true;

    __device__ float operator()(float dy, float, float y) const { return dy * expf(-y); }
};

struct at_y {
    float dy, y;
};

/* dx = M(dy scale, x, y). */
template <typename M> struct spread {
    const float *x, *t, *dy, *y;
    float scale;

    using number = float;

    __device__ at_y of(size_t i) const { return { dy[i] * scale, M::Y ? y[i] : 0.0f }; }
    __device__ float operator()(at_y at, float v, float, size_t) const { return M()(at.dy, v, at.y); }
};

} // namespace

template <typename M, enum finish How> static int backward(const struct op_call *c, struct err *err)
{
    const struct reduce *r = (const struct reduce *)c->param;
    spread<M> f = {};

    if (c->dout[0] == NULL || c->din[0] == NULL)
        return op_cuda_zero(c, err);
    f.x = M::X ? (const float *)c->in[0]->data : NULL;
    f.dy = (const float *)c->dout[0]->data;
    f.y = M::Y ? (const float *)c->out[0]->data : NULL;
    f.scale = How == MEAN ? (float)(1.0 / (double)r->n) : 1.0f;
    return reduce_spread(op_stream(c), f, *reduce_walk_of(c), (float *)c->din[0]->data,
                         op_cuda_adds(c, 0), err);
}

REDUCE_CUDA(reduce_sum, 13, (forward<just_x, AS_IS, WHOLE_SUM>), (backward<as_it_is, AS_IS>));
REDUCE_CUDA(reduce_mean, 18, (forward<just_x, MEAN, WHOLE_MEAN>), (backward<as_it_is, MEAN>));
REDUCE_CUDA(reduce_l1, 18, (forward<absolute, AS_IS, WHOLE_SUM>), (backward<by_sign, AS_IS>));
REDUCE_CUDA(reduce_sum_square, 18, (forward<square, AS_IS, WHOLE_SUM>), (backward<by_two_x, AS_IS>));
REDUCE_CUDA(reduce_l2, 18, (forward<square, ROOT, WHOLE_SUM>), (backward<by_share, AS_IS>));
REDUCE_CUDA(reduce_log_sum, 18, (forward<just_x, LOG, WHOLE_SUM>), (backward<by_inverse, AS_IS>));
REDUCE_CUDA(reduce_log_sum_exp, 18, log_sum_exp_forward, (backward<by_exp, AS_IS>));
