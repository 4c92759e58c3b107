/* cast_cuda.cu - see cast.c, convert.c, identity.c. */
#include "op/op_cuda.cuh"

/* ---- between floats of at most 32 bits ---- */

static bool is_small_float(enum tensor_dtype t)
{
    return t == TENSOR_F32 || t == TENSOR_F16 || t == TENSOR_BF16;
}

/* to = from, or to += from; both have float types of at most 32 bits. */
static int convert(const struct op_call *c, const struct tensor *from, const struct tensor *to,
                   bool add, struct err *err)
{
    size_t n = (size_t)tensor_elements(to);

    OP_FLOATS(to->dtype, {
        using To = T;

        OP_FLOATS(from->dtype, return op_each(op_stream(c), (To *)to->data, n, add, op_same(), err,
                                              (const T *)from->data));
    });
    return 0;
}

/* ---- between any types: through a 64-bit integer or double, as in cast.c ---- */

__device__ static inline bool is_float(enum tensor_dtype t)
{
    return t == TENSOR_F32 || t == TENSOR_F64 || t == TENSOR_F16 || t == TENSOR_BF16;
}

/* Converts with round-to-odd: an inexact value becomes its odd neighbour, so that a later rounding
 * to a smaller float gives the same result as rounding from all bits. */
__device__ static inline float to_odd_float(double v)
{
    float f = (float)v;
    uint32_t bits = __float_as_uint(f);

    if ((double)f == v || v != v)
        return f;
    return __uint_as_float((fabs((double)f) > fabs(v) ? bits - 1 : bits) | 1);
}

/* Rounds integers that a double does not represent exactly, as to_odd_float() rounds a double. */
__device__ static inline double to_odd_double(uint64_t v)
{
    const uint64_t low = 0x7FF;

    return (double)(v >> 53 == 0 ? v : (v & ~low) | ((v & low) != 0 ? low + 1 : 0));
}

__device__ static inline double load_float(enum tensor_dtype t, const void *x, size_t i)
{
    switch (t) {
    case TENSOR_F64: return ((const double *)x)[i];
    case TENSOR_F16: return (double)op_wide(((const __half *)x)[i]);
    case TENSOR_BF16: return (double)op_wide(((const __nv_bfloat16 *)x)[i]);
    default: return (double)((const float *)x)[i];
    }
}

/* uint64: its bits */
__device__ static inline int64_t load_whole(enum tensor_dtype t, const void *x, size_t i)
{
    switch (t) {
    case TENSOR_U8:
    case TENSOR_BOOL: return ((const uint8_t *)x)[i];
    case TENSOR_I8: return ((const int8_t *)x)[i];
    case TENSOR_U16: return ((const uint16_t *)x)[i];
    case TENSOR_I16: return ((const int16_t *)x)[i];
    case TENSOR_U32: return ((const uint32_t *)x)[i];
    case TENSOR_I32: return ((const int32_t *)x)[i];
    default: return ((const int64_t *)x)[i];
    }
}

/* Truncates v and clamps it to an integer of `bits` bits; NaN becomes 0. */
__device__ static inline int64_t limit(double v, bool has_sign, int bits)
{
    double end = ldexp(1.0, has_sign ? bits - 1 : bits), lo = has_sign ? -end : 0;

    if (v != v)
        return 0;
    if (v >= end)
        return bits == 64 ? (has_sign ? INT64_MAX : -1) : (int64_t)end - 1;
    if (v <= lo)
        return (int64_t)lo;
    return has_sign || v < 0x1p63 ? (int64_t)v : (int64_t)(uint64_t)v;
}

__device__ static inline int64_t to_whole(enum tensor_dtype t, double v)
{
    switch (t) {
    case TENSOR_BOOL: return v != 0;
    case TENSOR_U8: return limit(v, false, 8);
    case TENSOR_I8: return limit(v, true, 8);
    case TENSOR_U16: return limit(v, false, 16);
    case TENSOR_I16: return limit(v, true, 16);
    case TENSOR_U32: return limit(v, false, 32);
    case TENSOR_I32: return limit(v, true, 32);
    case TENSOR_U64: return limit(v, false, 64);
    default: return limit(v, true, 64);
    }
}

__device__ static inline double to_float(enum tensor_dtype from, enum tensor_dtype to, int64_t w)
{
    bool minus = from != TENSOR_U64 && w < 0;
    uint64_t v = minus ? 0 - (uint64_t)w : (uint64_t)w;
    double f = to == TENSOR_F64 ? (double)v : to_odd_double(v);

    return minus ? -f : f;
}

__device__ static inline void store_float(enum tensor_dtype t, void *y, size_t i, double v)
{
    switch (t) {
    case TENSOR_F64: ((double *)y)[i] = v; break;
    case TENSOR_F16: ((__half *)y)[i] = op_narrow<__half>(to_odd_float(v)); break;
    case TENSOR_BF16: ((__nv_bfloat16 *)y)[i] = op_narrow<__nv_bfloat16>(to_odd_float(v)); break;
    default: ((float *)y)[i] = (float)v; break;
    }
}

__device__ static inline void store_whole(enum tensor_dtype t, void *y, size_t i, int64_t v)
{
    switch (t) {
    case TENSOR_BOOL: ((uint8_t *)y)[i] = v != 0; break;
    case TENSOR_U8:
    case TENSOR_I8: ((uint8_t *)y)[i] = (uint8_t)v; break;
    case TENSOR_U16:
    case TENSOR_I16: ((uint16_t *)y)[i] = (uint16_t)v; break;
    case TENSOR_U32:
    case TENSOR_I32: ((uint32_t *)y)[i] = (uint32_t)v; break;
    default: ((int64_t *)y)[i] = v; break;
    }
}

/* y[i] = x[i], converted. A thread converts numbers in a grid-stride loop. */
__global__ void cast_any(enum tensor_dtype from, const void *x, enum tensor_dtype to, void *y,
                         size_t n)
{
    size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        if (is_float(from)) {
            double v = load_float(from, x, i);

            if (is_float(to))
                store_float(to, y, i, v);
            else
                store_whole(to, y, i, to_whole(to, v));
        } else {
            int64_t v = load_whole(from, x, i);

            if (is_float(to))
                store_float(to, y, i, to_float(from, to, v));
            else
                store_whole(to, y, i, v);
        }
    }
}

/* ---- calls ---- */

static int copy_fwd(const struct op_call *c, struct err *err)
{
    const struct tensor *x = c->in[0], *y = c->out[0];

    if (y->data == x->data || tensor_bytes(x) == 0)
        return 0;
    return cuda_copy(y->data, x->data, tensor_bytes(x), c->run->queue, err);
}

/* dx = dy, for any float types. */
static int convert_bwd(const struct op_call *c, struct err *err)
{
    const struct tensor *dy = c->dout[0], *dx = c->din[0];

    if (dy == NULL || dx == NULL)
        return op_cuda_zero(c, err);
    if (dx->data == dy->data && !op_cuda_adds(c, 0))
        return 0;
    return convert(c, dy, dx, op_cuda_adds(c, 0), err);
}

static int convert_fwd(const struct op_call *c, struct err *err)
{
    return convert(c, c->in[0], c->out[0], false, err);
}

static int cast_fwd(const struct op_call *c, struct err *err)
{
    const struct tensor *x = c->in[0], *y = c->out[0];
    size_t n = (size_t)tensor_elements(x);

    if (x->dtype == y->dtype)
        return copy_fwd(c, err);
    if (is_small_float(x->dtype) && is_small_float(y->dtype))
        return convert(c, x, y, false, err);
    if (n == 0)
        return 0;
    CUDA_LAUNCH(cast_any, op_blocks(n, OP_THREADS), OP_THREADS, 0, op_stream(c), x->dtype, x->data,
                y->dtype, y->data, n);
    return cuda_launched(err);
}

OP_CUDA(op_identity, .fwd = copy_fwd, .bwd = convert_bwd);
OP_CUDA(op_cast, .fwd = cast_fwd, .bwd = convert_bwd);
OP_CUDA(op_cast_like, .fwd = cast_fwd, .bwd = convert_bwd);
OP_CUDA(op_convert, .fwd = convert_fwd, .bwd = convert_bwd);
