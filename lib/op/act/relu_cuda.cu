/* relu_cuda.cu - see relu.c. */
#include "op/op_cuda.cuh"

struct relu_y {
    __device__ float operator()(float x) const { return x < 0.0f ? 0.0f : x; }
};

struct relu_dx {
    __device__ float operator()(float d, float y) const { return y <= 0.0f ? 0.0f : d; }
};

static int forward(const struct op_call *c, struct err *err)
{
    size_t n = (size_t)tensor_elements(c->out[0]);

    OP_FLOATS(c->out[0]->dtype, return op_each(op_stream(c), (T *)c->out[0]->data, n, false, relu_y(), err,
                                               (const T *)c->in[0]->data));
    return 0;
}

static int backward(const struct op_call *c, struct err *err)
{
    size_t n = (size_t)tensor_elements(c->out[0]);

    OP_FLOATS(c->out[0]->dtype,
              return op_each(op_stream(c), (T *)c->din[0]->data, n, op_cuda_adds(c, 0), relu_dx(), err,
                             (const T *)c->dout[0]->data, (const T *)c->out[0]->data));
    return 0;
}

OP_CUDA(op_relu, .fwd = forward, .bwd = backward);
