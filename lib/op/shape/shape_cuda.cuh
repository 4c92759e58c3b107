/* shape_cuda.cuh - shared by GPU kernels that move numbers without computing: they treat numbers of
 * equal size alike. */
#ifndef OP_SHAPE_SHAPE_CUDA_CUH
#define OP_SHAPE_SHAPE_CUDA_CUH

#include <string.h>

#include "op/op_cuda.cuh"

/* Runs the body with U defined as the unsigned integer of that size: OP_SIZES(size, { ... U ...
 * }). */
#define OP_SIZES(size_, ...)                                                                           \
    switch (size_) {                                                                                   \
    case 1: { using U = uint8_t; __VA_ARGS__; break; }                                                 \
    case 2: { using U = uint16_t; __VA_ARGS__; break; }                                                \
    case 8: { using U = uint64_t; __VA_ARGS__; break; }                                                \
    default: { using U = uint32_t; __VA_ARGS__; break; }                                               \
    }

/* dx += x; x has the type of dx. Errors: ERR_DEVICE. */
static inline int shape_cuda_add(const struct op_call *c, const struct tensor *dx, const void *x,
                                 struct err *err)
{
    OP_FLOATS(dx->dtype, return op_each(op_stream(c), (T *)dx->data, (size_t)tensor_elements(dx),
                                        true, op_same(), err, (const T *)x));
    return 0;
}

/* y [n] = *on_device (device memory), or `on_host` if on_device is NULL. */
template <typename U> __global__ void shape_fill(U *y, size_t n, const U *on_device, U on_host)
{
    U value = on_device != NULL ? *on_device : on_host;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        y[i] = value;
}

/* Fills all elements of y; on_device and on_host NULL: with zero. Errors: ERR_DEVICE. */
static inline int shape_cuda_fill(const struct op_call *c, const struct tensor *y,
                                  const void *on_device, const void *on_host, struct err *err)
{
    size_t size = tensor_dtype_bytes(y->dtype), n = (size_t)tensor_elements(y);

    if (on_device == NULL && on_host == NULL)
        return cuda_fill(y->data, 0, n * size, c->run->queue, err);
    if (n == 0)
        return 0;
    OP_SIZES(size, {
        U value = 0;

        if (on_host != NULL)
            memcpy(&value, on_host, sizeof(value));
        CUDA_LAUNCH((shape_fill<U>), op_blocks(n, OP_THREADS), OP_THREADS, 0, op_stream(c), (U *)y->data, n,
                    (const U *)on_device, value);
    });
    return cuda_launched(err);
}

#endif
