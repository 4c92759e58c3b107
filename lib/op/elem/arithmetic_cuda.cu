/* arithmetic_cuda.cu - see add.c, sub.c, mul.c, div.c, mod.c, prelu.c.
 *
 * An integer divisor of 0 is noted (op_notice); quotient and rest are 0 there. */
#include "op/elem/row_cuda.cuh"

extern "C" {
#include "op/elem/mod.h"
}

/* ---- integers: the least one by -1 wraps ---- */

template <typename T> __device__ static inline T quotient(T a, T b)
{
    if constexpr (std::is_same_v<T, float>)
        return a / b;
    else if constexpr (std::is_unsigned_v<T>)
        return b == 0 ? 0 : a / b;
    else
        return b == 0 ? 0 : b == -1 ? (T)(0 - (elem_wrapping<T>)a) : a / b;
}

/* With the sign of a; `like_python`: of b. */
template <typename T> __device__ static inline T rest(T a, T b, bool like_python)
{
    if constexpr (std::is_same_v<T, float>) {
        return fmodf(a, b);
    } else if constexpr (std::is_unsigned_v<T>) {
        return b == 0 ? 0 : a % b;
    } else {
        T r = b == 0 || b == -1 ? 0 : a % b;

        return like_python && r != 0 && (r < 0) != (b < 0) ? r + b : r;
    }
}

ELEM_CUDA_Y(sum, (U)a + (U)b)
ELEM_CUDA_Y(difference, (U)a - (U)b)
ELEM_CUDA_Y(product, (U)a * (U)b)
ELEM_CUDA_Y(divided, quotient(a, b))
ELEM_CUDA_Y(rest_of_c, rest(a, b, false))
ELEM_CUDA_Y(rest_of_python, rest(a, b, true))
ELEM_CUDA_Y(sloped, a < 0.0f ? a * b : a)

ELEM_CUDA_D(passed, d)
ELEM_CUDA_D(turned, -d)
ELEM_CUDA_DX(times, d * x)
ELEM_CUDA_DX(by, d / x)
ELEM_CUDA_DAB(by_square, -(d / b) * (a / b))
ELEM_CUDA_DAB(times_whole, -d * truncf(a / b))
ELEM_CUDA_DAB(sloped_da, a <= 0.0f ? d * b : d)
ELEM_CUDA_DX(sloped_db, x < 0.0f ? d * x : 0.0f)

ELEM_CUDA_FWD(add, sum)
ELEM_CUDA_BWD(add, passed, D, passed, D)
ELEM_CUDA_ROW(add)

ELEM_CUDA_FWD(sub, difference)
ELEM_CUDA_BWD(sub, passed, D, turned, D)
ELEM_CUDA_ROW(sub)

ELEM_CUDA_FWD(mul, product)
ELEM_CUDA_BWD(mul, times, DB, times, DA)
ELEM_CUDA_ROW(mul)

/* ---- divisors ---- */

namespace {
struct is_zero {
    const void *b;
    enum tensor_dtype dtype; /* of integers */

    __device__ bool operator()(size_t i, int64_t *) const
    {
        return dtype == TENSOR_I32 ? ((const int32_t *)b)[i] == 0 : ((const int64_t *)b)[i] == 0;
    }
};
}

static int look_at_divisor(const struct op_call *c, struct err *err)
{
    const struct tensor *b = c->in[1];
    bool whole = b->dtype == TENSOR_I32 || b->dtype == TENSOR_I64 || b->dtype == TENSOR_U64;

    return op_cuda_look(c, whole ? (size_t)tensor_elements(b) : 0, is_zero{ b->data, b->dtype }, err);
}

static int div_fwd(const struct op_call *c, struct err *err)
{
    int rc = look_at_divisor(c, err);

    return rc < 0 ? rc : elem_cuda_fwd(c, divided(), err);
}
ELEM_CUDA_BWD(div, by, DB, by_square, DAB)
ELEM_CUDA_ROW(div)

static int mod_fwd(const struct op_call *c, struct err *err)
{
    bool like_c = ((const struct mod *)c->param)->fmod != 0;
    int rc = look_at_divisor(c, err);

    if (rc < 0)
        return rc;
    return like_c ? elem_cuda_fwd(c, rest_of_c(), err) : elem_cuda_fwd(c, rest_of_python(), err);
}
ELEM_CUDA_BWD(mod, passed, D, times_whole, DAB)
ELEM_CUDA_ROW(mod)

static int prelu_fwd(const struct op_call *c, struct err *err)
{
    return elem_cuda_of<float>(c, sloped(), err);
}
ELEM_CUDA_BWD(prelu, sloped_da, DAB, sloped_db, DA)
ELEM_CUDA_ROW(prelu)
