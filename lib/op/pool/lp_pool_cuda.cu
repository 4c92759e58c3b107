/* lp_pool_cuda.cu - see lp_pool.c; float32 only. */
#include <math.h>

#include "op/pool/pool_cuda.cuh"

/* |x|^p for an integer p. */
__device__ static inline float power(float x, float p)
{
    return p == 0 ? 1.0f : p == 1 ? x : p == 2 ? x * x : powf(x, p);
}

/* y [n, out.., c] = (sum over the window of |x|^p)^(1/p). A thread owns N channels of a window. */
template <int N>
__global__ void norms_of_windows(const float *x, float *y, float p, struct pool_windows w)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;

    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < w.packs; i += step) {
        struct pool_place at = pool_place_of<N>(w, i);
        struct pool_taps t[3];
        pool_sum<N> s;
        op_pack<float, N> out;

        for (int k = 0; k < 3; k++)
            t[k] = pool_taps_of(w, k, at.at[k]);
        for (int32_t a = 0; a < t[0].n; a++)
            for (int32_t b = 0; b < t[1].n; b++) {
                uint64_t plane =
                    pool_line(w.in, 0, at.image, t[0].at + a * (int32_t)w.dilation[0].by);
                uint64_t line = pool_line(w.in, 1, plane, t[1].at + b * (int32_t)w.dilation[1].by);

                pool_each(
                    t[2].n,
                    [&](int32_t c) {
                        return *(const op_pack<float, N> *)(
                            x + pool_index(w, w.in, line, t[2].at + c * (int32_t)w.dilation[2].by, at));
                    },
                    [&](int32_t, const op_pack<float, N> &v) {
#pragma unroll
                        for (int k = 0; k < N; k++)
                            s.part[k] += power(fabsf(v.v[k]), p);
                        s.counted();
                    });
            }
        s.flush();
#pragma unroll
        for (int k = 0; k < N; k++)
            out.v[k] = p == 1 ? s.sum[k] : p == 2 ? sqrtf(s.sum[k]) : powf(s.sum[k], 1.0f / p);
        ((op_pack<float, N> *)y)[i] = out;
    }
}

/* dx [n, in.., c] = the sum over its windows of dy sign(x) (|x| / y)^(p-1), or += ; 0 where y is 0.
 * A thread owns N channels of an element. */
template <int N>
__global__ void share_norms(const float *x, const float *y, const float *dy, float *dx, float p,
                            bool add, struct pool_windows w)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;

    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < w.packs; i += step) {
        struct pool_place at = pool_place_of<N>(w, i);
        op_pack<float, N> mine = ((const op_pack<float, N> *)x)[i], out;
        struct pool_span s[3];
        float sum[N] = {}, inner[N];

#pragma unroll
        for (int k = 0; k < N; k++) {
            float v = mine.v[k];

            inner[k] = (v > 0 ? 1.0f : v < 0 ? -1.0f : 0.0f) * power(fabsf(v), p - 1);
        }
        for (int k = 0; k < 3; k++)
            s[k] = pool_span_of(w, k, at.at[k]);
        for (int32_t a = s[0].first; a <= s[0].last; a++)
            for (int32_t b = s[1].first; b <= s[1].last; b++)
                for (int32_t c = s[2].first; c <= s[2].last; c++) {
                    uint64_t line = pool_line(w.out, 1, pool_line(w.out, 0, at.image, a), b);
                    uint64_t e = pool_index(w, w.out, line, c, at);

                    if (pool_tap(w, 0, a, at.at[0]) < 0 || pool_tap(w, 1, b, at.at[1]) < 0 ||
                        pool_tap(w, 2, c, at.at[2]) < 0)
                        continue;
                    op_pack<float, N> d = *(const op_pack<float, N> *)(dy + e),
                                      norm = *(const op_pack<float, N> *)(y + e);
#pragma unroll
                    for (int k = 0; k < N; k++)
                        if (norm.v[k] > 0)
                            sum[k] += (p == 2   ? d.v[k] / norm.v[k]
                                       : p == 1 ? d.v[k]
                                                : d.v[k] * powf(norm.v[k], 1.0f - p)) *
                                      inner[k];
                }
        if (add)
            out = ((const op_pack<float, N> *)dx)[i];
#pragma unroll
        for (int k = 0; k < N; k++)
            out.v[k] = add ? out.v[k] + sum[k] : sum[k];
        ((op_pack<float, N> *)dx)[i] = out;
    }
}

static int forward(const struct op_call *c, struct err *err)
{
    const struct lp_pool_param *p = (const struct lp_pool_param *)c->param;
    struct pool_windows w = pool_windows_of(&p->window, c->in[0]);
    const float *x = (const float *)c->in[0]->data;
    float *y = (float *)c->out[0]->data;

    if (pool_size(&w, w.out) == 0)
        return 0;
    POOL_PACKED(float, &w, op_aligned(x) && op_aligned(y),
                POOL_LAUNCH((norms_of_windows<N>), &w, out, op_stream(c), x, y, p->p, w))
    return cuda_launched(err);
}

static int backward(const struct op_call *c, struct err *err)
{
    const struct lp_pool_param *p = (const struct lp_pool_param *)c->param;
    const float *x, *y, *dy;
    struct pool_windows w;
    float *dx;

    if (c->dout[0] == NULL || c->din[0] == NULL)
        return op_cuda_zero(c, err);
    w = pool_windows_of(&p->window, c->in[0]);
    x = (const float *)c->in[0]->data;
    y = (const float *)c->out[0]->data;
    dy = (const float *)c->dout[0]->data;
    dx = (float *)c->din[0]->data;
    if (pool_size(&w, w.in) == 0)
        return 0;
    POOL_PACKED(float, &w, op_aligned(x) && op_aligned(y) && op_aligned(dy) && op_aligned(dx),
                POOL_LAUNCH((share_norms<N>), &w, in, op_stream(c), x, y, dy, dx, p->p,
                            op_cuda_adds(c, 0), w))
    return cuda_launched(err);
}

static int plan(struct op_plan *p, struct err *err)
{
    return pool_plan(p, &((const struct lp_pool_param *)p->param)->window, err);
}

OP_CUDA(op_lp_pool, .plan = plan, .fwd = forward, .bwd = backward);
OP_CUDA(op_global_lp_pool, .plan = plan, .fwd = forward, .bwd = backward);
