/* max_pool_cuda.cu - `save` has, for each element of y, the number of the tap of the maximum: one
 * byte if the window has at most 256 taps, else four. NaN never is the maximum; in a window of NaN
 * only, it is tap 0, and y is -inf. */
#include <math.h>

#include "op/pool/pool_cuda.cuh"

static bool is_small(const struct pool_windows *w)
{
    return (int64_t)w->kernel[0] * w->kernel[1] * w->kernel[2] <= 256;
}

/* y [n, out.., c], won [n, out.., c], indices [n, c, out..], i.e. indices in the plain order of x;
 * each may be NULL. A thread owns N channels of a window. */
template <typename T, int N, typename Tap>
__global__ void max_windows(const T *x, T *y, Tap *won, int64_t *indices, struct pool_windows w)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;

    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < w.packs; i += step) {
        struct pool_place p = pool_place_of<N>(w, i);
        struct pool_taps t[3];
        float most[N];
        int32_t tap[N];
        op_pack<T, N> best;
        op_pack<Tap, N> taps;

        for (int k = 0; k < 3; k++)
            t[k] = pool_taps_of(w, k, p.at[k]);
#pragma unroll
        for (int k = 0; k < N; k++) {
            most[k] = -INFINITY;
            tap[k] = (t[0].tap * w.kernel[1] + t[1].tap) * w.kernel[2] + t[2].tap;
        }
        for (int32_t a = 0; a < t[0].n; a++)
            for (int32_t b = 0; b < t[1].n; b++) {
                uint64_t plane =
                    pool_line(w.in, 0, p.image, t[0].at + a * (int32_t)w.dilation[0].by);
                uint64_t line = pool_line(w.in, 1, plane, t[1].at + b * (int32_t)w.dilation[1].by);
                int32_t first =
                    ((t[0].tap + a) * w.kernel[1] + t[1].tap + b) * w.kernel[2] + t[2].tap;

                pool_each(
                    t[2].n,
                    [&](int32_t c) {
                        return *(const op_pack<T, N> *)(
                            x + pool_index(w, w.in, line, t[2].at + c * (int32_t)w.dilation[2].by, p));
                    },
                    [&](int32_t c, const op_pack<T, N> &v) {
#pragma unroll
                        for (int k = 0; k < N; k++)
                            if (op_wide(v.v[k]) > most[k]) {
                                most[k] = op_wide(v.v[k]);
                                tap[k] = first + c;
                            }
                    });
            }
#pragma unroll
        for (int k = 0; k < N; k++) {
            best.v[k] = op_narrow<T>(most[k]);
            taps.v[k] = (Tap)tap[k];
        }
        if (y != NULL)
            ((op_pack<T, N> *)y)[i] = best;
        if (won != NULL)
            ((op_pack<Tap, N> *)won)[i] = taps;
        for (int k = 0; indices != NULL && k < N; k++) {
            uint64_t plane = p.image * w.c + p.channel + (uint64_t)k, to = plane, from = plane;

            for (int axis = 0; axis < 3; axis++)
                to = to * (uint64_t)w.out[axis] + (uint64_t)p.at[axis];
            for (int axis = 0; axis < 3; axis++) {
                int32_t under = (axis < 1 ? w.kernel[1] : 1) * (axis < 2 ? w.kernel[2] : 1);
                int64_t number = tap[k] / under % w.kernel[axis];

                from = from * (uint64_t)w.in[axis] +
                       (uint64_t)((int64_t)p.at[axis] * w.stride[axis] - w.lo[axis] +
                                  number * w.dilation[axis].by);
            }
            indices[to] = (int64_t)from;
        }
    }
}

namespace {
/* the gradient and the tap at a window */
template <typename T, int N, typename Tap> struct arrived {
    op_pack<T, N> d;
    op_pack<Tap, N> winner;
};
}

/* dx [n, in.., c] = the sum of dy of the windows whose maximum x is, or += . A thread owns N
 * channels of an element. */
template <typename T, int N, typename Tap>
__global__ void max_winners(const T *dy, const Tap *won, T *dx, bool add, struct pool_windows w)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;

    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < w.packs; i += step) {
        struct pool_place p = pool_place_of<N>(w, i);
        struct pool_span s[3];
        float sum[N] = {};
        op_pack<T, N> out;

        for (int k = 0; k < 3; k++)
            s[k] = pool_span_of(w, k, p.at[k]);
        for (int32_t a = s[0].first; a <= s[0].last; a++)
            for (int32_t b = s[1].first; b <= s[1].last; b++) {
                uint64_t line = pool_line(w.out, 1, pool_line(w.out, 0, p.image, a), b);
                int32_t ta = pool_tap(w, 0, a, p.at[0]), tb = pool_tap(w, 1, b, p.at[1]);

                if (ta < 0 || tb < 0)
                    continue;
                pool_each(
                    s[2].last - s[2].first + 1,
                    [&](int32_t c) {
                        uint64_t at = pool_index(w, w.out, line, s[2].first + c, p);

                        return arrived<T, N, Tap>{ *(const op_pack<T, N> *)(dy + at),
                                                   *(const op_pack<Tap, N> *)(won + at) };
                    },
                    [&](int32_t c, const arrived<T, N, Tap> &v) {
                        int32_t tc = pool_tap(w, 2, s[2].first + c, p.at[2]);

#pragma unroll
                        for (int k = 0; k < N; k++)
                            if (tc >= 0 && v.winner.v[k] == (Tap)((ta * w.kernel[1] + tb) * w.kernel[2] + tc))
                                sum[k] += op_wide(v.d.v[k]);
                    });
            }
        if (add)
            out = ((const op_pack<T, N> *)dx)[i];
#pragma unroll
        for (int k = 0; k < N; k++)
            out.v[k] = op_narrow<T>(add ? op_wide(out.v[k]) + sum[k] : sum[k]);
        ((op_pack<T, N> *)dx)[i] = out;
    }
}

template <typename T>
static void max_forward(const T *x, T *y, void *save, int64_t *indices, struct pool_windows *w,
                        cudaStream_t s)
{
    POOL_PACKED(T, w, op_aligned(x) && op_aligned(y),
                if (is_small(w)) POOL_LAUNCH((max_windows<T, N, uint8_t>), w, out, s, x, y,
                                             (uint8_t *)save, indices, *w);
                else POOL_LAUNCH((max_windows<T, N, uint32_t>), w, out, s, x, y, (uint32_t *)save,
                                 indices, *w))
}

template <typename T>
static void max_backward(const T *dy, const void *save, T *dx, bool add, struct pool_windows *w,
                         cudaStream_t s)
{
    POOL_PACKED(T, w, op_aligned(dy) && op_aligned(dx),
                if (is_small(w)) POOL_LAUNCH((max_winners<T, N, uint8_t>), w, in, s, dy,
                                             (const uint8_t *)save, dx, add, *w);
                else POOL_LAUNCH((max_winners<T, N, uint32_t>), w, in, s, dy,
                                 (const uint32_t *)save, dx, add, *w))
}

static int plan(struct op_plan *p, struct err *err)
{
    const struct max_pool_param *param = (const struct max_pool_param *)p->param;
    struct pool_windows w;
    int rc = pool_plan(p, &param->window, err);

    if (rc < 0)
        return rc;
    w = pool_windows_of(&param->window, p->in[0]);
    if ((int64_t)w.kernel[0] * w.kernel[1] > INT32_MAX / w.kernel[2])
        return err_set(err, ERR_UNSUPPORTED,
                       "%s '%s': a window of %d x %d x %d elements; expected less than 2^31 on a GPU: train "
                       "with --devices cpu", p->def->name, p->node, w.kernel[0], w.kernel[1], w.kernel[2]);
    if (op_cuda_plan_wants(p, 0))
        p->save_bytes = (size_t)pool_size(&w, w.out) * (is_small(&w) ? 1 : sizeof(uint32_t));
    return 0;
}

static int forward(const struct op_call *c, struct err *err)
{
    const struct max_pool_param *param = (const struct max_pool_param *)c->param;
    struct pool_windows w = pool_windows_of(&param->window, c->in[0]);
    void *y = c->out[0] != NULL ? c->out[0]->data : NULL;
    int64_t *indices = c->n_out > 1 && c->out[1] != NULL ? (int64_t *)c->out[1]->data : NULL;

    if (pool_size(&w, w.out) == 0)
        return 0;
    OP_FLOATS(c->in[0]->dtype,
              max_forward((const T *)c->in[0]->data, (T *)y, c->save, indices, &w, op_stream(c)))
    return cuda_launched(err);
}

static int backward(const struct op_call *c, struct err *err)
{
    const struct max_pool_param *param = (const struct max_pool_param *)c->param;
    struct pool_windows w;

    if (c->dout[0] == NULL || c->din[0] == NULL)
        return op_cuda_zero(c, err);
    w = pool_windows_of(&param->window, c->din[0]);
    if (pool_size(&w, w.in) == 0)
        return 0;
    OP_FLOATS(c->din[0]->dtype,
              max_backward((const T *)c->dout[0]->data, c->save, (T *)c->din[0]->data,
                           op_cuda_adds(c, 0), &w, op_stream(c)))
    return cuda_launched(err);
}

OP_CUDA(op_max_pool, .plan = plan, .fwd = forward, .bwd = backward);
OP_CUDA(op_global_max_pool, .plan = plan, .fwd = forward, .bwd = backward);
