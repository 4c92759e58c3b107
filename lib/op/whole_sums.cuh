/* whole_sums.cuh - reproducible sums of floats in any order, by atomic additions of integers: each
 * summand is converted to a multiple of a power of two that depends on the largest gradient, and
 * integers add exactly. An area of sums consists of n integers of 8 bytes, followed by the bits of
 * the largest |dy|. */
#ifndef OP_WHOLE_SUMS_CUH
#define OP_WHOLE_SUMS_CUH

#include <math.h>

#include "op/op_cuda.cuh"

static inline size_t op_sums_bytes(size_t n)
{
    return (n + 1) * sizeof(unsigned long long);
}

static inline unsigned *op_sums_largest(void *area, size_t n)
{
    return (unsigned *)(void *)((char *)area + n * sizeof(unsigned long long));
}

/* Number of binary digits of `most`. */
static inline int op_sums_digits(size_t most)
{
    int bits = 0;

    while (bits < 60 && most >> bits != 0)
        bits++;
    return bits;
}

/* Computes the bits of the largest |dy|. As integers, the bits are ordered like the numbers, and
 * NaN is largest. */
__global__ static void op_sums_largest_kernel(const float *dy, size_t n, unsigned *most)
{
    unsigned m = 0;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        unsigned bits = __float_as_uint(dy[i]) & 0x7fffffffu;

        m = bits > m ? bits : m;
    }
    atomicMax(most, m);
}

/* Returns the factor for the summands, chosen so that the sum of 2^bits summands of the largest
 * size fits 63 bits. Returns NaN if a gradient is not finite: nothing may be added, and all sums
 * become NaN. */
__device__ static inline double op_sums_scale(const unsigned *most, int bits)
{
    float value = __uint_as_float(*most);
    int exponent = 0;

    if (!isfinite(value))
        return (double)NAN;
    (void)frexp((double)value, &exponent); /* value < 2^exponent */
    return ldexp(1.0, 61 - bits - exponent);
}

__device__ static inline void op_sums_add(unsigned long long *to, double scaled)
{
    atomicAdd(to, (unsigned long long)llrint(scaled));
}

__global__ static void op_sums_home_kernel(const unsigned long long *sums, float *dx, size_t n,
                                           bool add, const unsigned *most, int bits)
{
    double scale = op_sums_scale(most, bits);

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        dx[i] = (add ? dx[i] : 0.0f) + (float)((double)(long long)sums[i] / scale);
}

/* Zeroes the area of n sums, and records the largest |dy| of dy [n_dy]. */
static inline int op_sums_start(const struct op_call *c, void *area, size_t n, const float *dy,
                                size_t n_dy, struct err *err)
{
    int rc = cuda_check(cudaMemsetAsync(area, 0, op_sums_bytes(n), op_stream(c)), err,
                        "zero the sums of a gradient");

    if (rc < 0 || n_dy == 0)
        return rc;
    CUDA_LAUNCH(op_sums_largest_kernel, op_blocks(n_dy, OP_THREADS), OP_THREADS, 0, op_stream(c),
                dy, n_dy, op_sums_largest(area, n));
    return cuda_launched(err);
}

/* dx [n] = sums, or += . */
static inline int op_sums_accumulate(const struct op_call *c, void *area, float *dx, size_t n,
                                     bool add, int bits, struct err *err)
{
    if (n == 0)
        return 0;
    CUDA_LAUNCH(op_sums_home_kernel, op_blocks(n, OP_THREADS), OP_THREADS, 0, op_stream(c),
                (const unsigned long long *)area, dx, n, add,
                (const unsigned *)op_sums_largest(area, n), bits);
    return cuda_launched(err);
}

#endif
