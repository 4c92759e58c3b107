/* shape_cuda.cuh - what kernels share that move numbers without computing: numbers by their size, whole
 * gradients, and places along several axes. */
#ifndef OP_SHAPE_SHAPE_CUDA_CUH
#define OP_SHAPE_SHAPE_CUDA_CUH

#include <string.h>

#include "op/op_cuda.cuh"

/* Calls body with U, an unsigned integer of as many bytes: OP_SIZES(size, { ... U ... }). */
#define OP_SIZES(size_, ...)                                                                           \
    switch (size_) {                                                                                   \
    case 1: { using U = uint8_t; __VA_ARGS__; break; }                                                 \
    case 2: { using U = uint16_t; __VA_ARGS__; break; }                                                \
    case 8: { using U = uint64_t; __VA_ARGS__; break; }                                                \
    default: { using U = uint32_t; __VA_ARGS__; break; }                                               \
    }

/* A backward that no gradient reaches, and the beginning of one that only adds: zero wherever din is not
 * to be added to. */
static inline int shape_cuda_zero(const struct op_call *c, struct err *err)
{
    int rc = 0;

    for (uint32_t i = 0; i < c->n_in && rc == 0; i++)
        if (c->din[i] != NULL && !op_cuda_adds(c, i))
            rc = cuda_fill(c->din[i]->data, 0, tensor_bytes(c->din[i]), c->run->queue, err);
    return rc;
}

struct shape_same {
    __device__ float operator()(float x) const { return x; }
};

/* dx += x, of dx's type. */
static inline int shape_cuda_add(const struct op_call *c, const struct tensor *dx, const void *x,
                                 struct err *err)
{
    OP_FLOATS(dx->dtype, return op_each(op_stream(c), (T *)dx->data, (size_t)tensor_elements(dx), true,
                                        shape_same(), err, (const T *)x));
    return 0;
}

/* y [n] becomes what is at `there` of the GPU, or `here`. */
template <typename U> __global__ void shape_fill(U *y, size_t n, const U *there, U here)
{
    U value = there != NULL ? *there : here;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        y[i] = value;
}

/* Every element of y; there and here NULL: zero. */
static inline int shape_cuda_fill(const struct op_call *c, const struct tensor *y, const void *there,
                                  const void *here, struct err *err)
{
    size_t size = tensor_dtype_bytes(y->dtype), n = (size_t)tensor_elements(y);

    if (there == NULL && here == NULL)
        return cuda_fill(y->data, 0, n * size, c->run->queue, err);
    if (n == 0)
        return 0;
    OP_SIZES(size, {
        U value = 0;

        if (here != NULL)
            memcpy(&value, here, sizeof(value));
        CUDA_LAUNCH((shape_fill<U>), op_blocks(n, OP_THREADS), OP_THREADS, 0, op_stream(c), (U *)y->data, n,
                    (const U *)there, value);
    });
    return cuda_launched(err);
}

/* ---- places ---- */

/* Division of 0 <= x < 2^31 by 1 <= d < 2^31 as a multiplication (Granlund and Montgomery). For 64 bits
 * the processor divides. */
template <typename I> struct shape_divisor;
template <> struct shape_divisor<uint32_t> {
    uint32_t d, mul, shift;

    shape_divisor() = default;
    explicit shape_divisor(size_t by) : d((uint32_t)by), mul(0), shift(0)
    {
        while (((uint64_t)1 << shift) < d)
            shift++;
        mul = (uint32_t)((((uint64_t)1 << 32) * (((uint64_t)1 << shift) - d)) / d + 1);
    }
    __device__ uint32_t operator()(uint32_t x) const { return (__umulhi(x, mul) + x) >> shift; }
};
template <> struct shape_divisor<uint64_t> {
    uint64_t d;

    shape_divisor() = default;
    explicit shape_divisor(size_t by) : d(by) {}
    __device__ uint64_t operator()(uint64_t x) const { return x / d; }
};

/* One kernel for each: SHAPE_INDEX(n, { ... I ... }). Few things are counted in 32 bits, grid's steps
 * included. */
#define SHAPE_INDEX(n_, ...)                                                                           \
    if ((n_) < (size_t)1 << 30) {                                                                      \
        using I = uint32_t;                                                                            \
        __VA_ARGS__;                                                                                   \
    } else {                                                                                           \
        using I = uint64_t;                                                                            \
        __VA_ARGS__;                                                                                   \
    }

#endif
