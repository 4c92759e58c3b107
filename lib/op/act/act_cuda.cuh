/* act_cuda.cuh - element-wise ops of one operand, on a GPU: see act.h.
 *
 * The activations of act_list.h become ACT_CUDA(id, reads), with a formula of act_formula.h. */
#ifndef OP_ACT_ACT_CUDA_CUH
#define OP_ACT_ACT_CUDA_CUH

#include "op/op_cuda.cuh"

#include "op/act/act_formula.h"
#include "op/act/act_list.h"

/* Only: which floats the row accepts: `float`, or void for all. */
template <typename Only, typename F>
static inline int act_cuda_fwd(const struct op_call *c, F f, struct err *err)
{
    const struct tensor *x = c->in[0], *y = c->out[0];
    size_t n = (size_t)tensor_elements(x);

    if constexpr (std::is_same_v<Only, float>)
        return op_each(op_stream(c), (float *)y->data, n, false, f, err, (const float *)x->data);
    OP_FLOATS(y->dtype,
              return op_each(op_stream(c), (T *)y->data, n, false, f, err, (const T *)x->data));
}

/* v: the tensor that backward reads */
template <typename Only, typename F>
static inline int act_cuda_bwd(const struct op_call *c, const struct tensor *v, F f,
                               struct err *err)
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
    OP_FLOATS(g->dtype, return op_each(op_stream(c), (T *)g->data, n, add, f, err,
                                       (const T *)d->data, (const T *)v->data));
}

/* Attribute i of a row that has attributes. */
static inline float act_cuda_param(const struct op_call *c, size_t i, bool has)
{
    return has ? ((const float *)c->param)[i] : 0.0f;
}

/* id_##_fwd and id_##_bwd of a formula. has_: are there attributes? reads_: as in act.h. */
#define ACT_CUDA_KERNELS(id_, only_, has_, reads_)                                                     \
    namespace {                                                                                        \
    struct id_##_y {                                                                                   \
        float p, q;                                                                                    \
        __device__ float operator()(float x) const { return act_##id_##_y(x, p, q); }                  \
    };                                                                                                 \
    struct id_##_dx {                                                                                  \
        float p, q;                                                                                    \
        __device__ float operator()(float d, float v) const { return act_##id_##_dx(d, v, p, q); }     \
    };                                                                                                 \
    }                                                                                                  \
    static int id_##_fwd(const struct op_call *c, struct err *err)                                     \
    {                                                                                                  \
        return act_cuda_fwd<only_>(c, id_##_y{ act_cuda_param(c, 0, has_), act_cuda_param(c, 1, has_) }, err); \
    }                                                                                                  \
    static int id_##_bwd(const struct op_call *c, struct err *err)                                     \
    {                                                                                                  \
        return act_cuda_bwd<only_>(                                                                    \
            c, ACT_READS_##reads_(c),                                                                  \
            id_##_dx{ act_cuda_param(c, 0, has_), act_cuda_param(c, 1, has_) }, err);                  \
    }

#define ACT_CUDA_ROW(id_, ...)                                                                         \
    ACT_CUDA_KERNELS(id_, __VA_ARGS__)                                                                 \
    OP_CUDA(op_##id_, .fwd = id_##_fwd, .bwd = id_##_bwd);

/* For all floats; for float32 alone; for all, with attributes. */
#define ACT_CUDA(id_, reads_) ACT_CUDA_ROW(id_, void, false, reads_)
#define ACT_CUDA_WIDE(id_, reads_) ACT_CUDA_ROW(id_, float, false, reads_)
#define ACT_CUDA_WITH(id_, reads_) ACT_CUDA_ROW(id_, void, true, reads_)

#endif
