/* exp_sum.cuh - the greatest of many numbers and the sum of e^(x - greatest), in one pass: whenever a greater
 * one comes, what was summed so far is made to fit it. Without infinities the sum is never above the
 * count. A NaN makes the sum NaN; the greatest passes it over. */
#ifndef OP_REDUCE_EXP_SUM_CUH
#define OP_REDUCE_EXP_SUM_CUH

#include "op/op_cuda.cuh"

struct exp_sum {
    float max;  /* -inf: of nothing */
    double sum; /* of e^(x - shift of max) */
};

/* What is taken off: 0 for infinities, as inf - inf would be NaN. */
__device__ static inline float exp_sum_shift(float max)
{
    return isinf(max) ? 0.0f : max;
}

/* e^x, of x up to 0, with 5 instructions for the 8 of expf(). Its error grows with -x, relative to a value that
 * shrinks faster: less than 2^-24 of what e^0 is. */
__device__ static inline float exp_sum_e(float x)
{
    return exp2f(x * 1.44269504f);
}

__device__ static inline exp_sum exp_sum_start()
{
    return { -INFINITY, 0 };
}

/* To a greatest that is not less. */
__device__ static inline double exp_sum_moved(exp_sum a, float max)
{
    if (a.max == max || a.max == -INFINITY) /* then the sum is of zeros, or NaN */
        return a.sum;
    return a.sum * exp((double)exp_sum_shift(a.max) - (double)exp_sum_shift(max));
}

__device__ static inline exp_sum exp_sum_merge(exp_sum a, exp_sum b)
{
    float max = fmaxf(a.max, b.max);

    return { max, exp_sum_moved(a, max) + exp_sum_moved(b, max) };
}

__device__ static inline exp_sum exp_sum_add(exp_sum a, float x)
{
    float max = fmaxf(a.max, x);

    return { max, exp_sum_moved(a, max) + (double)exp_sum_e(x - exp_sum_shift(max)) };
}

/* The few of a pack are summed as floats, in a tree: conversions to double are slow. */
template <typename T> __device__ static inline exp_sum exp_sum_add_pack(exp_sum a, const op_pack<T> &p)
{
    constexpr size_t N = op_pack<T>::N;
    float v[N], max = a.max, shift;

#pragma unroll
    for (size_t k = 0; k < N; k++)
        max = fmaxf(max, op_wide(p.v[k]));
    shift = exp_sum_shift(max);
#pragma unroll
    for (size_t k = 0; k < N; k++)
        v[k] = exp_sum_e(op_wide(p.v[k]) - shift);
#pragma unroll
    for (size_t half = N / 2; half > 0; half /= 2)
#pragma unroll
        for (size_t k = 0; k < half; k++)
            v[k] += v[k + half];
    return { max, exp_sum_moved(a, max) + (double)v[0] };
}

#endif
