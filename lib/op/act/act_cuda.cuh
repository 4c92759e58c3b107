/* act_cuda.cuh - element-wise ops of one operand, on a GPU: see act.h.
 *
 * An activation is a line: its formula forward, of x, and backward, of d (the gradient of the output) and v
 * (what backward reads: the output or the input); p and q are the op's first two attributes. */
#ifndef OP_ACT_ACT_CUDA_CUH
#define OP_ACT_ACT_CUDA_CUH

#include "op/op_cuda.cuh"

/* T: which floats the row takes: `float`, or void for all. */
template <typename Only, typename F> static inline int act_cuda_fwd(const struct op_call *c, F f, struct err *err)
{
    const struct tensor *x = c->in[0], *y = c->out[0];
    size_t n = (size_t)tensor_elements(x);

    if constexpr (std::is_same_v<Only, float>)
        return op_each(op_stream(c), (float *)y->data, n, false, f, err, (const float *)x->data);
    OP_FLOATS(y->dtype, return op_each(op_stream(c), (T *)y->data, n, false, f, err, (const T *)x->data));
}

/* v: what backward reads */
template <typename Only, typename F>
static inline int act_cuda_bwd(const struct op_call *c, const struct tensor *v, F f, struct err *err)
{
    const struct tensor *d = c->dout[0], *g = c->din[0];
    bool add = op_cuda_adds(c, 0);
    size_t n;

    if (d == NULL || g == NULL)
        return op_cuda_zero(c, err);
    n = (size_t)tensor_elements(g);
    if constexpr (std::is_same_v<Only, float>)
        return op_each(op_stream(c), (float *)g->data, n, add, f, err, (const float *)d->data,
                       (const float *)v->data);
    OP_FLOATS(g->dtype, return op_each(op_stream(c), (T *)g->data, n, add, f, err, (const T *)d->data,
                                       (const T *)v->data));
}

static inline float act_cuda_param(const struct op_call *c, size_t i, size_t n)
{
    return i < n ? ((const float *)c->param)[i] : 0.0f;
}

/* id_##_fwd and id_##_bwd. reads_: `out` or `in`, as in bwd_reads of the row; params_: how many float
 * attributes; only_: see act_cuda_fwd(). */
#define ACT_CUDA_FUNCTIONS(id_, only_, params_, fwd_, reads_, bwd_)                                    \
    namespace {                                                                                        \
    struct id_##_y {                                                                                   \
        float p, q;                                                                                    \
        __device__ float operator()(float x) const { return (fwd_); }                                  \
    };                                                                                                 \
    struct id_##_dx {                                                                                  \
        float p, q;                                                                                    \
        __device__ float operator()(float d, [[maybe_unused]] float v) const { return (bwd_); }        \
    };                                                                                                 \
    }                                                                                                  \
    static int id_##_fwd(const struct op_call *c, struct err *err)                                     \
    {                                                                                                  \
        return act_cuda_fwd<only_>(                                                                    \
            c, id_##_y{ act_cuda_param(c, 0, params_), act_cuda_param(c, 1, params_) }, err);          \
    }                                                                                                  \
    static int id_##_bwd(const struct op_call *c, struct err *err)                                     \
    {                                                                                                  \
        return act_cuda_bwd<only_>(                                                                    \
            c, c->reads_[0], id_##_dx{ act_cuda_param(c, 0, params_), act_cuda_param(c, 1, params_) }, \
            err);                                                                                      \
    }

#define ACT_CUDA_ROW(id_, ...)                                                                         \
    ACT_CUDA_FUNCTIONS(id_, __VA_ARGS__)                                                               \
    OP_CUDA(op_##id_, .fwd = id_##_fwd, .bwd = id_##_bwd);

/* Of all floats; of float32 alone; of all, with attributes. */
#define ACT_CUDA(id_, fwd_, reads_, bwd_) ACT_CUDA_ROW(id_, void, 0, fwd_, reads_, bwd_)
#define ACT_CUDA_WIDE(id_, fwd_, reads_, bwd_) ACT_CUDA_ROW(id_, float, 0, fwd_, reads_, bwd_)
#define ACT_CUDA_WITH(id_, params_, fwd_, reads_, bwd_) ACT_CUDA_ROW(id_, void, params_, fwd_, reads_, bwd_)

__device__ static inline float act_sigmoid(float x)
{
    float z = expf(-fabsf(x)); /* in the form that keeps its precision where it is near 0 */

    return (x < 0.0f ? z : 1.0f) / (1.0f + z);
}

#endif
