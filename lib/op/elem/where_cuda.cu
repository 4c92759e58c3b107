/* where_cuda.cu - see where.c. */
#include "op/elem/row_cuda.cuh"

namespace {

struct choice {
    template <typename T> __device__ T operator()(uint8_t c, T a, T b) const { return c != 0 ? a : b; }
};

struct side {
    bool wanted; /* the condition for which this operand is the output */

    __device__ float operator()(float d, uint8_t c) const { return (c != 0) == wanted ? d : 0.0f; }
};

}

/* For elements of the size of T, of any type. */
template <typename T> static int choose(const struct op_call *c, struct err *err)
{
    return elem_cuda_run((const struct elem_loops *)c->state, op_stream(c), c->out[0], false,
                         choice(), err, elem_operand_of<uint8_t>(c, 0), elem_operand_of<T>(c, 1),
                         elem_operand_of<T>(c, 2));
}

static int forward(const struct op_call *c, struct err *err)
{
    size_t size = tensor_dtype_bytes(c->out[0]->dtype);

    return size == 1   ? choose<uint8_t>(c, err)
           : size == 2 ? choose<uint16_t>(c, err)
           : size == 4 ? choose<uint32_t>(c, err)
                       : choose<uint64_t>(c, err);
}

static int backward(const struct op_call *c, struct err *err)
{
    int rc;

    if (c->dout[0] == NULL)
        return op_cuda_zero(c, err);
    rc = elem_cuda_din(c, 1, side{ true }, err, elem_operand_of<uint8_t>(c, 0));
    return rc < 0 ? rc : elem_cuda_din(c, 2, side{ false }, err, elem_operand_of<uint8_t>(c, 0));
}

OP_CUDA(op_where, .plan = elem_cuda_plan, .fwd = forward, .bwd = backward, .free_state = free);
