/* exp_sum.cuh - the maximum of many numbers and the sum of e^(x - maximum), in one pass: when the
 * maximum grows, the sum is rescaled. Without infinities the sum is at most the number of summands.
 * A NaN makes the sum NaN; the maximum ignores it. */
#ifndef OP_REDUCE_EXP_SUM_CUH
#define OP_REDUCE_EXP_SUM_CUH

#include "op/op_cuda.cuh"

struct exp_sum {
    float max;  /* -inf: no numbers */
    double sum; /* of e^(x - shift of max) */
};

/* The number that is subtracted: 0 for infinities, because inf - inf is NaN. */
__device__ static inline float exp_sum_shift(float max)
{
    return isinf(max) ? 0.0f : max;
}

/* e^x for x <= 0, with 5 instructions instead of the 8 of expf(). Its relative error grows with -x,
 * but the value shrinks faster: the error is below 2^-24 of e^0. */
__device__ static inline float exp_sum_e(float x)
{
    return exp2f(x * 1.44269504f);
}

__device__ static inline exp_sum exp_sum_start()
{
    return { -INFINITY, 0 };
}

/* Returns the sum of `a` relative to `max`, which is not less than a.max. */
__device__ static inline double exp_sum_moved(exp_sum a, float max)
{
    if (a.max == max || a.max == -INFINITY) /* unchanged, or a sum of zeros or NaN */
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

/* The numbers of a pack are summed as floats in a tree, because conversion to double is slow. */
template <typename T>
__device__ static inline exp_sum exp_sum_add_pack(exp_sum a, const op_pack<T> &p)
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
