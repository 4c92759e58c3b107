/* sign_cuda.cu - see sign.c. */
#include "op/act/act_cuda.cuh"

ACT_CUDA_KERNELS(neg, void, false, none)
ACT_CUDA_KERNELS(abs, void, false, in)
ACT_CUDA_KERNELS(sign, void, false, none)

/* id_##_any: forward for floats and integers. */
#define OF_ANY_TYPE(id_)                                                                               \
    namespace {                                                                                        \
    struct id_##_whole {                                                                               \
        __device__ uint64_t operator()(int64_t a) const { return act_##id_##_whole(a); }               \
    };                                                                                                 \
    }                                                                                                  \
    static int id_##_any(const struct op_call *c, struct err *err)                                     \
    {                                                                                                  \
        size_t n = (size_t)tensor_elements(c->in[0]);                                                  \
        const void *x = c->in[0]->data;                                                                \
        void *y = c->out[0]->data;                                                                     \
                                                                                                       \
        if (c->in[0]->dtype == TENSOR_I32)                                                             \
            return op_each(op_stream(c), (uint32_t *)y, n, false, id_##_whole(), err, (const int32_t *)x); \
        if (c->in[0]->dtype == TENSOR_I64)                                                             \
            return op_each(op_stream(c), (uint64_t *)y, n, false, id_##_whole(), err, (const int64_t *)x); \
        return id_##_fwd(c, err);                                                                      \
    }

OF_ANY_TYPE(neg)
OF_ANY_TYPE(abs)
OF_ANY_TYPE(sign)

OP_CUDA(op_neg, .fwd = neg_any, .bwd = neg_bwd);
OP_CUDA(op_abs, .fwd = abs_any, .bwd = abs_bwd);
OP_CUDA(op_sign, .fwd = sign_any, .bwd = sign_bwd);

namespace {
struct is_not {
    __device__ uint8_t operator()(uint8_t x) const { return x == 0; }
};
}

static int not_fwd(const struct op_call *c, struct err *err)
{
    return op_each(op_stream(c), (uint8_t *)c->out[0]->data, (size_t)tensor_elements(c->in[0]),
                   false, is_not(), err, (const uint8_t *)c->in[0]->data);
}

OP_CUDA(op_not, .fwd = not_fwd);
