/* gated_cuda.cu - see gated.c. */
#include "op/act/act_cuda.cuh"

extern "C" {
#include "op/act/params.h"
}

namespace {

#define GATE(id_)                                                                                      \
    struct id_##_gate {                                                                                \
        __device__ static float y(float x) { return act_##id_##_y(x, 0, 0); }                          \
        __device__ static float slope(float x) { return act_##id_##_slope(x); }                        \
    };
GATE(sigmoid)
GATE(swish)
GATE(gelu_exact)
GATE(gelu_tanh)

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

/* At most one of the two gradients shares memory with dy; that gradient is computed last. */
template <typename G> int bwd(const struct op_call *c, struct err *err)
{
    const struct tensor *d = c->dout[0], *a = c->in[0], *b = c->in[1];
    size_t n = (size_t)tensor_elements(a);
    int rc = 0;

    if (d == NULL)
        return op_cuda_zero(c, err);
    for (int round = 0; round < 2 && rc == 0; round++) {
        bool is_a = (round == 0) == (c->din[1] != NULL && c->din[1]->data == d->data);
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
    case GATE_GELU: return what_<gelu_exact_gate>(c, err);                   \
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
