/* arithmetic_cuda.cu - see add.c, sub.c, mul.c, div.c, mod.c, prelu.c.
 *
 * An integer divisor of 0 is noted (op_report). */
#include "op/elem/row_cuda.cuh"

extern "C" {
#include "op/elem/mod.h"
}

/* For each type that ELEM_CUDA_Y() is made for. */
#define OF_TYPE(type_, suffix_)                                                                        \
    __device__ static inline type_ quotient(type_ a, type_ b) { return elem_quotient_##suffix_(a, b); } \
    __device__ static inline type_ rest(type_ a, type_ b) { return elem_rest_##suffix_(a, b); }
OF_TYPE(int32_t, i32)
OF_TYPE(int64_t, i64)
OF_TYPE(uint64_t, u64)

__device__ static inline float quotient(float a, float b) { return a / b; }
__device__ static inline float rest(float a, float b) { return fmodf(a, b); }

__device__ static inline int32_t modulo(int32_t a, int32_t b) { return elem_modulo_i32(a, b); }
__device__ static inline int64_t modulo(int64_t a, int64_t b) { return elem_modulo_i64(a, b); }
__device__ static inline uint64_t modulo(uint64_t a, uint64_t b) { return rest(a, b); }
__device__ static inline float modulo(float a, float b) { return rest(a, b); }

ELEM_CUDA_Y(sum, (U)a + (U)b)
ELEM_CUDA_Y(difference, (U)a - (U)b)
ELEM_CUDA_Y(product, (U)a * (U)b)
ELEM_CUDA_Y(divided, quotient(a, b))
ELEM_CUDA_Y(rest_of_c, rest(a, b))
ELEM_CUDA_Y(rest_of_python, modulo(a, b))
ELEM_CUDA_Y(sloped, elem_prelu_y(a, b))

ELEM_CUDA_D(passed, d)
ELEM_CUDA_D(turned, -d)
ELEM_CUDA_DX(times, d * x)
ELEM_CUDA_DX(by, d / x)
ELEM_CUDA_DAB(by_square, elem_div_db(d, a, b))
ELEM_CUDA_DAB(times_whole, elem_mod_db(d, a, b))
ELEM_CUDA_DAB(sloped_da, elem_prelu_da(d, a, b))
ELEM_CUDA_DX(sloped_db, elem_prelu_db(d, x))

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
    enum tensor_dtype dtype; /* an integer type */

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

    return op_cuda_scan(c, whole ? (size_t)tensor_elements(b) : 0, is_zero{ b->data, b->dtype }, err);
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
