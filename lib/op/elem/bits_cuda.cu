/* bits_cuda.cu - see bits.c. */
#include "op/elem/row_cuda.cuh"

extern "C" {
#include "op/elem/bits.h"
}

#define BITS(id_, operator_)                                                                           \
    ELEM_CUDA_Y(id_##_y, (U)a operator_(U) b)                                                          \
    static int id_##_fwd(const struct op_call *c, struct err *err)                                     \
    {                                                                                                  \
        return c->in[0]->dtype == TENSOR_I32 ? elem_cuda_of<int32_t>(c, id_##_y(), err)                \
                                             : elem_cuda_of<int64_t>(c, id_##_y(), err);               \
    }                                                                                                  \
    OP_CUDA(op_##id_, .plan = elem_cuda_plan, .fwd = id_##_fwd, .free_state = free);

BITS(bitwise_and, &)
BITS(bitwise_or, |)
BITS(bitwise_xor, ^)

ELEM_CUDA_Y(shifted_left, b < 64 ? a << b : 0)
ELEM_CUDA_Y(shifted_right, b < 64 ? a >> b : 0)

static int shift_fwd(const struct op_call *c, struct err *err)
{
    return ((const struct bit_shift *)c->param)->to_left
               ? elem_cuda_of<uint64_t>(c, shifted_left(), err)
               : elem_cuda_of<uint64_t>(c, shifted_right(), err);
}
OP_CUDA(op_bit_shift, .plan = elem_cuda_plan, .fwd = shift_fwd, .free_state = free);

namespace {
struct inverted {
    __device__ uint8_t operator()(uint8_t x) const { return (uint8_t)~x; }
};
}

static int not_fwd(const struct op_call *c, struct err *err)
{
    return op_each(op_stream(c), (uint8_t *)c->out[0]->data, tensor_bytes(c->in[0]), false,
                   inverted(), err, (const uint8_t *)c->in[0]->data);
}
OP_CUDA(op_bitwise_not, .fwd = not_fwd);
