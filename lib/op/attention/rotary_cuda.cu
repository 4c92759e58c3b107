/* rotary_cuda.cu - see rotary.c. A thread rotates pairs of elements, in a grid-stride loop. */
#include "op/op_cuda.cuh"

extern "C" {
#include "op/attention/rotary.h"
}

namespace {

struct places {
    uint32_t axes;
    struct op_divisor half, size[TENSOR_MAX_RANK];
    int64_t x[TENSOR_MAX_RANK], cos[TENSOR_MAX_RANK], sin[TENSOR_MAX_RANK];
    int64_t cos_half, sin_half;
    int64_t step, apart; /* step: from one pair to the next; apart: between the elements of a
                            pair */
    uint64_t pairs;
};

struct places places_of(const struct rotary *r)
{
    struct places p = {};

    p.axes = r->axes;
    p.half = op_divisor_of((uint64_t)r->half);
    for (uint32_t k = 0; k < r->axes; k++) {
        p.size[k] = op_divisor_of((uint64_t)(r->size[k] > 0 ? r->size[k] : 1));
        p.x[k] = r->x[k];
        p.cos[k] = r->cos[k];
        p.sin[k] = r->sin[k];
    }
    p.cos_half = r->cos_half;
    p.sin_half = r->sin_half;
    p.step = r->pairs ? 2 : 1;
    p.apart = r->pairs ? 1 : r->half;
    p.pairs = (uint64_t)(r->rows * r->half);
    return p;
}

/* BACK: from dy, with the strides of y, to dx; else from x to y. */
template <typename T, bool BACK>
__global__ void rotate(const T *from, T *to, const float *cos, const float *sin, struct places p,
                       bool add)
{
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.pairs;
         i += (uint64_t)gridDim.x * blockDim.x) {
        uint64_t rest = i, j = op_digit(&rest, p.half), row = rest;
        int64_t x = (int64_t)j * p.step, c = (int64_t)j, s = (int64_t)j, y;

        for (uint32_t k = p.axes; k-- > 0;) {
            int64_t index = (int64_t)op_digit(&rest, p.size[k]);

            x += index * p.x[k];
            c += index * p.cos[k];
            s += index * p.sin[k];
        }
        y = (int64_t)row * 2 * (int64_t)p.half.by + (int64_t)j * p.step;
        float c1 = cos[c], c2 = cos[c + p.cos_half], s1 = sin[s], s2 = sin[s + p.sin_half];
        const T *at = from + (BACK ? y : x);
        T *put = to + (BACK ? x : y);
        float a = op_wide(at[0]), b = op_wide(at[p.apart]);
        float first = BACK ? a * c1 + b * s2 : a * c1 - b * s1;
        float second = BACK ? b * c2 - a * s1 : b * c2 + a * s2;

        put[0] = op_narrow<T>(add ? op_wide(put[0]) + first : first);
        put[p.apart] = op_narrow<T>(add ? op_wide(put[p.apart]) + second : second);
    }
}

template <typename T, bool BACK>
int run(const struct op_call *c, const struct tensor *from, const struct tensor *to, bool add,
        struct err *err)
{
    struct places p = places_of((const struct rotary *)c->param);

    if (p.pairs == 0)
        return 0;
    CUDA_LAUNCH((rotate<T, BACK>), op_blocks(p.pairs, OP_THREADS), OP_THREADS, 0, op_stream(c),
                (const T *)from->data, (T *)to->data, (const float *)c->in[1]->data,
                (const float *)c->in[2]->data, p, add);
    return cuda_launched(err);
}

int forward(const struct op_call *c, struct err *err)
{
    OP_FLOATS(c->out[0]->dtype, return run<T, false>(c, c->in[0], c->out[0], false, err));
}

int backward(const struct op_call *c, struct err *err)
{
    if (c->dout[0] == NULL || c->din[0] == NULL)
        return op_cuda_zero(c, err);
    OP_FLOATS(c->din[0]->dtype,
              return run<T, true>(c, c->dout[0], c->din[0], op_cuda_adds(c, 0), err));
}

} // namespace

OP_CUDA(op_rotary, .fwd = forward, .bwd = backward);
