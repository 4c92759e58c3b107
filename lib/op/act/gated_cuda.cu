/* gated_cuda.cu - see gated.c. */
#include "op/act/act_cuda.cuh"
#include "op/act/gelu_cuda.cuh"

extern "C" {
#include "op/act/params.h"
}

namespace {

struct sigmoid_gate {
    __device__ static float y(float x) { return act_sigmoid(x); }
    __device__ static float slope(float x)
    {
        float s = act_sigmoid(x);

        return s * (1.0f - s);
    }
};

struct swish_gate {
    __device__ static float y(float x) { return x * act_sigmoid(x); }
    __device__ static float slope(float x)
    {
        float s = act_sigmoid(x);

        return s * (1.0f + x * (1.0f - s));
    }
};

struct gelu_gate {
    __device__ static float y(float x) { return x * gelu_normal(x); }
    __device__ static float slope(float x) { return gelu_slope(x); }
};

struct gelu_tanh_gate {
    __device__ static float y(float x) { return x * (0.5f * (1.0f + gelu_tanh(x))); }
    __device__ static float slope(float x) { return gelu_tanh_slope(x); }
};

template <typename G> struct gated_y {
    __device__ float operator()(float a, float b) const { return G::y(a) * b; }
};

template <typename G> struct gated_da {
    __device__ float operator()(float d, float a, float b) const { return G::slope(a) * b * d; }
};

template <typename G> struct gated_db {
    __device__ float operator()(float d, float a) const { return G::y(a) * d; }
};

template <typename G> int fwd(const struct op_call *c, struct err *err)
{
    const struct tensor *a = c->in[0], *b = c->in[1], *y = c->out[0];

    OP_FLOATS(y->dtype, return op_each(op_stream(c), (T *)y->data, (size_t)tensor_elements(y), false, gated_y<G>{},
                                       err, (const T *)a->data, (const T *)b->data));
}

/* The gradient that may lie where dy does comes last; not both do. */
template <typename G> int bwd(const struct op_call *c, struct err *err)
{
    const struct tensor *d = c->dout[0], *a = c->in[0], *b = c->in[1];
    size_t n = (size_t)tensor_elements(a);
    int rc = 0;

    if (d == NULL)
        return op_cuda_zero(c, err);
    for (int turn = 0; turn < 2 && rc == 0; turn++) {
        bool is_a = (turn == 0) == (c->din[1] != NULL && c->din[1]->data == d->data);
        const struct tensor *g = c->din[is_a ? 0 : 1];

        if (g == NULL)
            continue;
        OP_FLOATS(g->dtype,
                  if (is_a) rc = op_each(op_stream(c), (T *)g->data, n, op_cuda_adds(c, 0), gated_da<G>{}, err,
                                         (const T *)d->data, (const T *)a->data, (const T *)b->data);
                  else rc = op_each(op_stream(c), (T *)g->data, n, op_cuda_adds(c, 1), gated_db<G>{}, err,
                                    (const T *)d->data, (const T *)a->data));
    }
    return rc;
}

#define GATED_SWITCH(what_)                                            \
    switch (((const struct gated *)c->param)->gate) {                  \
    case GATE_SIGMOID: return what_<sigmoid_gate>(c, err);             \
    case GATE_SWISH: return what_<swish_gate>(c, err);                 \
    case GATE_GELU: return what_<gelu_gate>(c, err);                   \
    case GATE_GELU_TANH: break;                                        \
    }                                                                  \
    return what_<gelu_tanh_gate>(c, err);

int forward(const struct op_call *c, struct err *err)
{
    GATED_SWITCH(fwd)
}

int backward(const struct op_call *c, struct err *err)
{
    GATED_SWITCH(bwd)
}

} // namespace

OP_CUDA(op_gated, .fwd = forward, .bwd = backward);
