/* average_pool_cuda.cu - see average_pool.c. */
#include "op/pool/pool_cuda.cuh"

struct means {
    struct pool_windows w;
    int64_t end[3]; /* as in struct average_pool_param */
    bool count_pad;
};

/* 1 / divisor of window e. */
__device__ static inline float share(const struct means &m, const int32_t *e,
                                     const struct pool_taps *t)
{
    double n = 1;

    for (int k = 0; k < 3; k++) {
        int64_t start = e[k] * m.w.stride[k] - m.w.lo[k];
        int64_t left = m.end[k] - 1 - start,
                steps = op_divide((uint32_t)(left < 0 ? -left : left), m.w.dilation[k]);
        int64_t room = (left < 0 ? -steps : steps) + 1;

        n *= (double)(!m.count_pad ? t[k].n : room < m.w.kernel[k] ? room : m.w.kernel[k]);
    }
    return (float)(1 / n);
}

/* y [n, out.., c] = the mean over each window. A thread owns N channels of a window. */
template <typename T, int N> __global__ void means_of_windows(const T *x, T *y, struct means m)
{
    const struct pool_windows &w = m.w;
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;

    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < w.packs; i += step) {
        struct pool_place p = pool_place_of<N>(w, i);
        struct pool_taps t[3];
        pool_sum<N> s;
        op_pack<T, N> out;
        float by;

        for (int k = 0; k < 3; k++)
            t[k] = pool_taps_of(w, k, p.at[k]);
        by = share(m, p.at, t);
        for (int32_t a = 0; a < t[0].n; a++)
            for (int32_t b = 0; b < t[1].n; b++) {
                uint64_t plane =
                    pool_line(w.in, 0, p.image, t[0].at + a * (int32_t)w.dilation[0].by);
                uint64_t line = pool_line(w.in, 1, plane, t[1].at + b * (int32_t)w.dilation[1].by);

                pool_each(
                    t[2].n,
                    [&](int32_t c) {
                        return *(const op_pack<T, N> *)(
                            x + pool_index(w, w.in, line, t[2].at + c * (int32_t)w.dilation[2].by, p));
                    },
                    [&](int32_t, const op_pack<T, N> &v) {
#pragma unroll
                        for (int k = 0; k < N; k++)
                            s.part[k] += op_wide(v.v[k]);
                        s.counted();
                    });
            }
        s.flush();
#pragma unroll
        for (int k = 0; k < N; k++)
            out.v[k] = op_narrow<T>(s.sum[k] * by);
        ((op_pack<T, N> *)y)[i] = out;
    }
}

/* dx [n, in.., c] = the sum of the shares of dy, or += . A thread owns N channels of an element of
 * x. */
template <typename T, int N>
__global__ void share_means(const T *dy, T *dx, bool add, struct means m)
{
    const struct pool_windows &w = m.w;
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;

    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < w.packs; i += step) {
        struct pool_place p = pool_place_of<N>(w, i);
        struct pool_span s[3];
        float sum[N] = {};
        op_pack<T, N> out;
        int32_t e[3];

        for (int k = 0; k < 3; k++)
            s[k] = pool_span_of(w, k, p.at[k]);
        for (e[0] = s[0].first; e[0] <= s[0].last; e[0]++)
            for (e[1] = s[1].first; e[1] <= s[1].last; e[1]++)
                for (e[2] = s[2].first; e[2] <= s[2].last; e[2]++) {
                    struct pool_taps t[3];
                    bool reads = true;
                    float by;

                    for (int k = 0; k < 3; k++) {
                        reads = reads && pool_tap(w, k, e[k], p.at[k]) >= 0;
                        t[k] = pool_taps_of(w, k, e[k]);
                    }
                    if (!reads)
                        continue;
                    by = share(m, e, t);
                    op_pack<T, N> d =
                        *(const op_pack<T, N> *)(dy + pool_index(w, w.out,
                                                                 pool_line(w.out, 1,
                                                                           pool_line(w.out, 0,
                                                                                     p.image, e[0]),
                                                                           e[1]),
                                                                 e[2], p));
#pragma unroll
                    for (int k = 0; k < N; k++)
                        sum[k] += by * op_wide(d.v[k]);
                }
        if (add)
            out = ((const op_pack<T, N> *)dx)[i];
#pragma unroll
        for (int k = 0; k < N; k++)
            out.v[k] = op_narrow<T>(add ? op_wide(out.v[k]) + sum[k] : sum[k]);
        ((op_pack<T, N> *)dx)[i] = out;
    }
}

static struct means means_of(const struct op_call *c, const struct tensor *x)
{
    const struct average_pool_param *p = (const struct average_pool_param *)c->param;

    return { pool_windows_of(&p->window, x), { p->end[0], p->end[1], p->end[2] }, p->count_pad };
}

static int forward(const struct op_call *c, struct err *err)
{
    struct means m = means_of(c, c->in[0]);

    if (pool_size(&m.w, m.w.out) == 0)
        return 0;
    OP_FLOATS(c->in[0]->dtype, const T *x = (const T *)c->in[0]->data; T *y = (T *)c->out[0]->data;
              POOL_PACKED(T, &m.w, op_aligned(x) && op_aligned(y),
                          POOL_LAUNCH((means_of_windows<T, N>), &m.w, out, op_stream(c), x, y, m)))
    return cuda_launched(err);
}

static int backward(const struct op_call *c, struct err *err)
{
    struct means m;

    if (c->dout[0] == NULL || c->din[0] == NULL)
        return op_cuda_zero(c, err);
    m = means_of(c, c->din[0]);
    if (pool_size(&m.w, m.w.in) == 0)
        return 0;
    OP_FLOATS(c->din[0]->dtype, const T *dy = (const T *)c->dout[0]->data;
              T *dx = (T *)c->din[0]->data;
              POOL_PACKED(T, &m.w, op_aligned(dy) && op_aligned(dx),
                          POOL_LAUNCH((share_means<T, N>), &m.w, in, op_stream(c), dy, dx,
                                      op_cuda_adds(c, 0), m)))
    return cuda_launched(err);
}

static int plan(struct op_plan *p, struct err *err)
{
    return pool_plan(p, &((const struct average_pool_param *)p->param)->window, err);
}

OP_CUDA(op_average_pool, .plan = plan, .fwd = forward, .bwd = backward);
