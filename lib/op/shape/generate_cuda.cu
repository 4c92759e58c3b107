/* generate_cuda.cu - see generate.c and of_shape.c. Results that depend only on constants and
 * shapes are computed at load up to a size limit; these kernels compute larger ones in every
 * run. */
#include "op/shape/shape_cuda.cuh"

extern "C" {
#include "op/shape/generate.h"
}

namespace {

__device__ static inline double number_at(const void *x, enum tensor_dtype dtype, size_t i)
{
    switch ((int)dtype) {
    case TENSOR_F32: return (double)((const float *)x)[i];
    case TENSOR_I32: return ((const int32_t *)x)[i];
    case TENSOR_I64: return (double)((const int64_t *)x)[i];
    default: return ((const uint8_t *)x)[i]; /* bool, uint8 */
    }
}

/* ---- ConstantOfShape ---- */

int filler_forward(const struct op_call *c, struct err *err)
{
    return shape_cuda_fill(c, c->out[0], NULL, ((const struct filler *)c->param)->value, err);
}

/* ---- Range ---- */

__device__ static inline float range_at(float start, float delta, size_t i)
{
    return __fadd_rn(start, __fmul_rn((float)i, delta)); /* rounded twice, as on a CPU */
}

__device__ static inline double range_at(double start, double delta, size_t i)
{
    return __dadd_rn(start, __dmul_rn((double)i, delta));
}

template <typename T> __device__ static inline T range_at(T start, T delta, size_t i)
{
    return start + (T)i * delta;
}

/* y[i] = start + i delta; a thread computes elements in a grid-stride loop. */
template <typename T> __global__ void range(const T *start, const T *delta, T *y, size_t n)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        y[i] = range_at(*start, *delta, i);
}

template <typename T> static int run_range(const struct op_call *c, struct err *err)
{
    size_t n = (size_t)tensor_elements(c->out[0]);

    if (n == 0)
        return 0;
    CUDA_LAUNCH((range<T>), op_blocks(n, OP_THREADS), OP_THREADS, 0, op_stream(c),
                (const T *)c->in[0]->data, (const T *)c->in[2]->data, (T *)c->out[0]->data, n);
    return cuda_launched(err);
}

int range_forward(const struct op_call *c, struct err *err)
{
    if (c->out[0]->dtype == TENSOR_F32)
        return run_range<float>(c, err);
    if (c->out[0]->dtype == TENSOR_F64)
        return run_range<double>(c, err);
    return c->out[0]->dtype == TENSOR_I32 ? run_range<uint32_t>(c, err)
                                          : run_range<uint64_t>(c, err);
}

/* ---- EyeLike ---- */

/* Sets the diagonal of y [.., cols], which is zero, to `one`. A thread processes rows in a
 * grid-stride loop. */
template <typename U>
__global__ void diagonal(U *y, int64_t first, int64_t end, int64_t cols, int64_t k, U one)
{
    for (int64_t i = first + (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < end;
         i += (int64_t)gridDim.x * blockDim.x)
        y[i * cols + i + k] = one;
}

int eye_forward(const struct op_call *c, struct err *err)
{
    const struct tensor *y = c->out[0];
    int64_t rows = y->shape.dim[0], cols = y->shape.dim[1], k = ((const struct eye *)c->param)->k;
    int rc = shape_cuda_fill(c, y, NULL, NULL, err);
    int64_t first, end;

    if (rc < 0 || k >= cols || k <= -rows)
        return rc;
    first = k < 0 ? -k : 0;
    end = rows < cols - k ? rows : cols - k;
    OP_SIZES(tensor_dtype_bytes(y->dtype), {
        U one = 1;

        if (y->dtype == TENSOR_F32)
            one = (U)0x3f800000u;
        if (y->dtype == TENSOR_F64)
            one = (U)0x3ff0000000000000u;
        CUDA_LAUNCH((diagonal<U>), op_blocks((size_t)(end - first), OP_THREADS), OP_THREADS, 0, op_stream(c),
                    (U *)y->data, first, end, cols, k, one);
    });
    return cuda_launched(err);
}

/* ---- NonZero ---- */

/* y [rank, found] = indices of the elements of x [n] that are not 0. One block processes x,
 * blockDim.x elements at a time; the position of an index is the number of such elements before
 * it. */
__global__ void non_zero(const void *x, enum tensor_dtype dtype, struct shape s, size_t n,
                         size_t found, int64_t *y)
{
    __shared__ unsigned counts[32];
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    size_t before = 0;

    for (size_t at = 0; at < n; at += blockDim.x) {
        size_t i = at + threadIdx.x, rest = i, place = before;
        bool is = i < n && number_at(x, dtype, i) != 0;
        unsigned who = __ballot_sync(0xffffffffu, is);

        if (lane == 0)
            counts[warp] = (unsigned)__popc(who);
        __syncthreads();
        for (unsigned k = 0; k < warps; k++) {
            place += k < warp ? counts[k] : 0;
            before += counts[k];
        }
        place += (size_t)__popc(who & ((1u << lane) - 1));
        for (uint32_t k = s.rank; is && place < found && k-- > 0; rest /= (size_t)s.dim[k])
            y[k * found + place] = (int64_t)(rest % (size_t)s.dim[k]);
        __syncthreads();
    }
}

int non_zero_forward(const struct op_call *c, struct err *err)
{
    const struct tensor *x = c->in[0];

    if (tensor_elements(c->out[0]) == 0)
        return 0;
    CUDA_LAUNCH(non_zero, 1, 1024, 0, op_stream(c), x->data, x->dtype, x->shape,
                (size_t)tensor_elements(x), (size_t)c->out[0]->shape.dim[1],
                (int64_t *)c->out[0]->data);
    return cuda_launched(err);
}

/* ---- OneHot ---- */

/* y [outer, depth, inner] = values[1] if the index [outer, inner] equals the position along the
 * depth, else values[0]. A thread computes elements of y, in a grid-stride loop. */
template <typename U>
__global__ void one_hot(const void *at, enum tensor_dtype dtype, const U *values, U *y, size_t n,
                        struct op_divisor inner, struct op_divisor depth, bool counts_back)
{
    U off = values[0], on = values[1];

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint64_t o = i, column = op_digit(&o, inner), place = op_digit(&o, depth);
        double v = number_at(at, dtype, o * inner.by + column), whole = (double)depth.by;
        bool is = v >= (counts_back ? -whole : 0) && v < whole &&
                  (uint64_t)(v < 0 ? v + whole : v) == place;

        y[i] = is ? on : off;
    }
}

int one_hot_forward(const struct op_call *c, struct err *err)
{
    const struct one_hot *p = (const struct one_hot *)c->param;
    const struct tensor *at = c->in[0], *y = c->out[0];
    size_t n = (size_t)tensor_elements(y);

    if (n == 0)
        return 0;
    OP_SIZES(tensor_dtype_bytes(y->dtype),
             CUDA_LAUNCH((one_hot<U>), op_blocks(n, OP_THREADS), OP_THREADS, 0, op_stream(c),
                         at->data, at->dtype, (const U *)c->in[2]->data, (U *)y->data, n,
                         op_divisor_of(p->inner), op_divisor_of(p->depth), p->counts_back));
    return cuda_launched(err);
}

/* ---- Shape, Size ---- */

/* y [n] = the dimensions, which the host passes. One block. */
__global__ void dimensions(struct shape s, int64_t *y)
{
    if (threadIdx.x < s.rank)
        y[threadIdx.x] = s.dim[threadIdx.x];
}

int store_dimensions(const struct op_call *c, const struct shape *s, struct err *err)
{
    if (s->rank == 0)
        return 0;
    CUDA_LAUNCH(dimensions, 1, 32, 0, op_stream(c), *s, (int64_t *)c->out[0]->data);
    return cuda_launched(err);
}

int shape_forward(const struct op_call *c, struct err *err)
{
    const struct span *span = (const struct span *)c->param;
    struct shape s = {};

    s.rank = (uint32_t)span->n;
    for (int64_t k = 0; k < span->n; k++)
        s.dim[k] = c->in[0]->shape.dim[span->start + k];
    return store_dimensions(c, &s, err);
}

int size_forward(const struct op_call *c, struct err *err)
{
    struct shape s = shape_of(1, tensor_elements(c->in[0]));

    return store_dimensions(c, &s, err);
}

} // namespace

OP_CUDA(op_constant_of_shape, .fwd = filler_forward);
OP_CUDA(op_range, .fwd = range_forward);
OP_CUDA(op_eye_like, .fwd = eye_forward);
OP_CUDA(op_non_zero, .fwd = non_zero_forward);
OP_CUDA(op_one_hot, .fwd = one_hot_forward);
OP_CUDA(op_one_hot_9, .fwd = one_hot_forward);
OP_CUDA(op_shape_15, .fwd = shape_forward);
OP_CUDA(op_shape_1, .fwd = shape_forward);
OP_CUDA(op_size, .fwd = size_forward);
