#include "op/conv/copy.cuh"

#include "op/op_cuda.cuh"

struct conv_form conv_form_of(enum tensor_dtype dtype, enum tensor_layout layout,
                              const int64_t *size)
{
    static const int orders[][CONV_AXES] = { { 0, 1, 2, 3, 4 }, { 0, 2, 3, 4, 1 } };
    const int *order = orders[layout == TENSOR_CHANNELS_LAST];
    struct conv_form f = { dtype, {}, {} };
    int64_t at = 1;

    for (int k = CONV_AXES; k-- > 0; at *= size[order[k]])
        f.step[order[k]] = at;
    for (int k = 0; k < CONV_AXES; k++)
        f.size[k] = size[k];
    return f;
}

bool conv_form_equal(const struct conv_form *a, const struct conv_form *b)
{
    for (int k = 0; k < CONV_AXES; k++)
        if (a->size[k] != b->size[k] || (a->size[k] > 1 && a->step[k] != b->step[k]))
            return false;
    return a->dtype == b->dtype;
}

size_t conv_form_bytes(const struct conv_form *f)
{
    size_t n = tensor_dtype_bytes(f->dtype);

    for (int k = 0; k < CONV_AXES; k++)
        n *= (size_t)f->size[k];
    return n;
}

/* The axes of a copy, from the outermost of the destination to the innermost. */
struct moved {
    uint64_t n;    /* number of elements, or of packs */
    bool is_small; /* fewer than 2^31 elements: small_size is used */
    struct op_divisor to_size[CONV_AXES];
    struct op_small_divisor small_size[CONV_AXES];
    int64_t from_size[CONV_AXES], shift[CONV_AXES], to_step[CONV_AXES], from_step[CONV_AXES];
};

/* Returns the positions of destination element i on both sides; false: outside of `from`. */
template <typename I, typename D>
__device__ static inline bool moved_place(const struct moved &m, I i, const D (&size)[CONV_AXES],
                                          int64_t *at, int64_t *src)
{
    bool inside = true;

    *at = *src = 0;
#pragma unroll
    for (int k = CONV_AXES; k-- > 0;) {
        int64_t p = (int64_t)op_digit(&i, size[k]), q = p + m.shift[k];

        inside = inside && q >= 0 && q < m.from_size[k];
        *at += p * m.to_step[k];
        *src += q * m.from_step[k];
    }
    return inside;
}

/* Each thread writes N numbers along the innermost axis, in a grid-stride loop. Both sides are
 * contiguous along that axis, and n, sizes, shifts and steps count packs. */
template <typename To, typename From, int N>
__global__ void move_shifted(To *to, const From *from, struct moved m, bool add)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;

    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < m.n; i += step) {
        int64_t at, src;
        bool inside = m.is_small ? moved_place(m, (uint32_t)i, m.small_size, &at, &src)
                                 : moved_place(m, i, m.to_size, &at, &src);
        op_pack<To, N> out = {};
        op_pack<From, N> in = {};

        if (inside)
            in = ((const op_pack<From, N> *)from)[src];
        if (add)
            out = ((const op_pack<To, N> *)to)[at];
#pragma unroll
        for (int k = 0; k < N; k++) {
            float v = inside ? op_wide(in.v[k]) : 0.0f;

            out.v[k] = op_narrow<To>(add ? op_wide(out.v[k]) + v : v);
        }
        ((op_pack<To, N> *)to)[at] = out;
    }
}

/* Converts the sizes to packs of n elements if both sides permit it; returns whether they do. */
static bool use_packs(struct moved *m, int64_t n)
{
    const int last = CONV_AXES - 1;

    if (m->to_step[last] != 1 || m->from_step[last] != 1 ||
        m->to_size[last].by % (uint64_t)n != 0 || m->from_size[last] % n != 0 ||
        m->shift[last] % n != 0)
        return false;
    for (int k = 0; k < last; k++)
        if ((m->to_size[k].by > 1 && m->to_step[k] % n != 0) ||
            (m->from_size[k] > 1 && m->from_step[k] % n != 0))
            return false;
    for (int k = 0; k < last; k++) {
        m->to_step[k] /= n;
        m->from_step[k] /= n;
    }
    m->to_size[last] = op_divisor_of(m->to_size[last].by / (uint64_t)n);
    m->from_size[last] /= n;
    m->shift[last] /= n;
    m->n /= (uint64_t)n;
    return true;
}

template <typename To, typename From>
static void launch(To *to, const From *from, struct moved m, bool add, cudaStream_t s)
{
    constexpr int N = (int)op_each_pack<To, From>();
    bool packed = op_aligned(to) && op_aligned(from) && use_packs(&m, N);

    m.is_small = m.n <= INT32_MAX;
    for (int k = 0; k < CONV_AXES && m.is_small; k++)
        m.small_size[k] = op_small_divisor_of((uint32_t)m.to_size[k].by);
    if (packed)
        CUDA_LAUNCH((move_shifted<To, From, N>), op_blocks(m.n, OP_THREADS), OP_THREADS, 0, s, to,
                    from, m, add);
    else
        CUDA_LAUNCH((move_shifted<To, From, 1>), op_blocks(m.n, OP_THREADS), OP_THREADS, 0, s, to,
                    from, m, add);
}

int conv_copy(const struct conv_form *from, const void *src, const int64_t shift[CONV_AXES],
              const struct conv_form *to, void *dst, bool add, cudaStream_t s, struct err *err)
{
    auto step_of = [&](int k) { return to->size[k] > 1 ? to->step[k] : INT64_MAX; };
    int order[CONV_AXES];
    struct moved m = {};

    m.n = 1;
    for (int k = 0; k < CONV_AXES; k++) { /* sort by the strides of the destination, the largest
                                             first */
        int at = k;

        for (; at > 0 && step_of(order[at - 1]) < step_of(k); at--)
            order[at] = order[at - 1];
        order[at] = k;
    }
    for (int k = 0; k < CONV_AXES; k++) {
        m.n *= (uint64_t)to->size[order[k]];
        m.to_size[k] = op_divisor_of((uint64_t)to->size[order[k]]);
        m.to_step[k] = to->step[order[k]];
        m.from_size[k] = from->size[order[k]];
        m.from_step[k] = from->step[order[k]];
        m.shift[k] = shift[order[k]];
    }
    if (m.n == 0)
        return 0;
    if (to->dtype == from->dtype)
        OP_FLOATS(to->dtype, launch((T *)dst, (const T *)src, m, add, s))
    else if (to->dtype == TENSOR_F32)
        OP_FLOATS(from->dtype, launch((float *)dst, (const T *)src, m, add, s))
    else
        OP_FLOATS(to->dtype, launch((T *)dst, (const float *)src, m, add, s))
    return cuda_launched(err);
}

/* y += bias. Each thread processes packs of N numbers of y, in a grid-stride loop; N divides the
 * channels. */
template <typename T, int N>
__global__ void add_bias(T *y, uint64_t packs, struct op_divisor pixel, const float *bias)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;

    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < packs; i += step) {
        uint64_t rest = i;
        const float *b = bias + op_digit(&rest, pixel) * N;
        op_pack<T, N> p = ((const op_pack<T, N> *)y)[i];

#pragma unroll
        for (int k = 0; k < N; k++)
            p.v[k] = op_narrow<T>(op_wide(p.v[k]) + b[k]);
        ((op_pack<T, N> *)y)[i] = p;
    }
}

template <typename T>
static void bias_on(T *y, size_t n, size_t o, const float *bias, cudaStream_t s)
{
    constexpr int N = (int)op_pack<T>::N;

    if (o % N == 0 && op_aligned(y))
        CUDA_LAUNCH((add_bias<T, N>), op_blocks(n / N, OP_THREADS), OP_THREADS, 0, s, y,
                    (uint64_t)(n / N), op_divisor_of(o / N), bias);
    else
        CUDA_LAUNCH((add_bias<T, 1>), op_blocks(n, OP_THREADS), OP_THREADS, 0, s, y, (uint64_t)n,
                    op_divisor_of(o), bias);
}

int conv_add_bias(void *y, enum tensor_dtype dtype, size_t rows, size_t o, const float *bias,
                  cudaStream_t s, struct err *err)
{
    if (rows * o == 0)
        return 0;
    OP_FLOATS(dtype, bias_on((T *)y, rows * o, o, bias, s))
    return cuda_launched(err);
}
