/* trilu_cuda.cu - see trilu.c. */
#include "op/shape/shape_cuda.cuh"

extern "C" {
#include "op/shape/trilu.h"
}

namespace {

/* y = or += x if column - row is on the kept side of k (device memory; NULL: 0), else 0 or
 * unchanged. A thread processes elements in a grid-stride loop. x and y may be the same memory. */
template <typename T, bool ADD>
__global__ void keep_side(const T *x, T *y, size_t n, struct op_divisor cols,
                          struct op_divisor rows, const int64_t *k, bool upper)
{
    int64_t diagonal = k != NULL ? *k : 0, most = (int64_t)(rows.by + cols.by);

    /* larger values have the same result */
    diagonal = diagonal < -most ? -most : diagonal > most ? most : diagonal;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint64_t rest = i;
        int64_t column = (int64_t)op_digit(&rest, cols), row = (int64_t)op_digit(&rest, rows);
        bool stays = upper ? column - row >= diagonal : column - row <= diagonal;

        if (ADD) {
            if (stays)
                y[i] += x[i];
        } else {
            y[i] = stays ? x[i] : T(0);
        }
    }
}

template <typename T, bool ADD>
int run(const struct op_call *c, const void *x, void *y, struct err *err)
{
    const struct shape *s = &c->in[0]->shape;
    size_t n = (size_t)tensor_elements(c->in[0]);
    const struct tensor *k = c->n_in > 1 ? c->in[1] : NULL;

    if (n == 0)
        return 0;
    CUDA_LAUNCH((keep_side<T, ADD>), op_blocks(n, OP_THREADS), OP_THREADS, 0, op_stream(c),
                (const T *)x, (T *)y, n, op_divisor_of((uint64_t)s->dim[s->rank - 1]),
                op_divisor_of((uint64_t)s->dim[s->rank - 2]),
                k != NULL ? (const int64_t *)k->data : NULL,
                ((const struct trilu *)c->param)->upper != 0);
    return cuda_launched(err);
}

int forward(const struct op_call *c, struct err *err)
{
    OP_SIZES(tensor_dtype_bytes(c->in[0]->dtype),
             return run<U, false>(c, c->in[0]->data, c->out[0]->data, err));
    return 0;
}

int backward(const struct op_call *c, struct err *err)
{
    if (c->dout[0] == NULL || c->din[0] == NULL)
        return op_cuda_zero(c, err);
    if (op_cuda_adds(c, 0))
        return run<float, true>(c, c->dout[0]->data, c->din[0]->data, err);
    return run<float, false>(c, c->dout[0]->data, c->din[0]->data, err);
}

} // namespace

OP_CUDA(op_trilu, .fwd = forward, .bwd = backward);
