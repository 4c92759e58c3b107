/* batch_norm_cuda.cu - BatchNormalization and the ops with a residual and a clamp, of channels-last
 * x [rows, c] (columns_cuda.cuh). Forward and backward are two launches each: one for the sums and
 * one for the elements. */
#include "op/norm/columns_cuda.cuh"

extern "C" {
#include "op/norm/norm_priv.h"
}

enum { RESIDUAL = 5 };

namespace {

struct outputs { /* NULL: not requested */
    float *to[4];
    bool add[4];

    __device__ void put(unsigned i, size_t channel, float v) const
    {
        if (to[i] != NULL)
            to[i][channel] = add[i] ? to[i][channel] + v : v;
    }
};

/* ---- forward ---- */

template <typename T, unsigned V> struct measure : norm_moments {
    const T *x;
    float *mean, *var;
    float rows;

    struct own {
        float from[V]; /* first element of each column: deviations are measured from it, for
                          precision */
    };
    __device__ own own_of(size_t, size_t channel) const
    {
        const op_pack<T, V> first = *(const op_pack<T, V> *)(x + channel);
        own o;

#pragma unroll
        for (unsigned j = 0; j < V; j++)
            o.from[j] = op_wide(first.v[j]);
        return o;
    }
    __device__ op_pack<T, V> load(size_t at) const { return *(const op_pack<T, V> *)(x + at); }
    __device__ void add(const own &o, size_t, const op_pack<T, V> &p, unsigned nth,
                        float2 *pairs) const
    {
        float inverse = 1.0f / (float)nth;

#pragma unroll
        for (unsigned j = 0; j < V; j++)
            add_one(pairs[j], op_wide(p.v[j]) - o.from[j], inverse);
    }
    __device__ void finish(size_t, size_t channel, float2 p) const
    {
        mean[channel] = op_wide(x[channel]) + p.x;
        var[channel] = p.y / rows;
    }
};

/* y = (x - mean) a + bias with a = scale / sqrt(var + epsilon); then the residual and the clamp. */
template <typename T, unsigned V> struct apply {
    const T *x, *residual;
    T *y;
    const float *mean, *var, *scale, *bias;
    float epsilon, ceiling;
    bool clamp;

    struct own {
        float mean[V], a[V], b[V];
    };
    __device__ own own_of(size_t, size_t channel) const
    {
        own o;
        float v[V];

        norm_read(mean + channel, o.mean);
        norm_read(scale + channel, o.a);
        norm_read(bias + channel, o.b);
        norm_read(var + channel, v);
#pragma unroll
        for (unsigned j = 0; j < V; j++)
            o.a[j] /= sqrtf(v[j] + epsilon);
        return o;
    }
    struct in {
        op_pack<T, V> x, residual;
    };
    __device__ in load(size_t at) const
    {
        in i = { *(const op_pack<T, V> *)(x + at), {} };

        if (residual != NULL)
            i.residual = *(const op_pack<T, V> *)(residual + at);
        return i;
    }
    __device__ void put(const own &o, size_t at, const in &i) const
    {
        op_pack<T, V> out;

#pragma unroll
        for (unsigned j = 0; j < V; j++) {
            float v = (op_wide(i.x.v[j]) - o.mean[j]) * o.a[j] + o.b[j];

            v = residual != NULL ? v + op_wide(i.residual.v[j]) : v;
            v = clamp ? v < 0.0f ? 0.0f : v > ceiling ? ceiling : v : v; /* NaN passes */
            out.v[j] = op_narrow<T>(v);
        }
        *(op_pack<T, V> *)(y + at) = out;
    }
};

/* Stores the running averages after this call alone, and the statistics used. */
__global__ void store_statistics(size_t c, float keep, float correction, const float *mean,
                                 const float *var, const float *old_mean, const float *old_var,
                                 struct outputs out)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < c;
         i += (size_t)gridDim.x * blockDim.x) {
        out.put(0, i, (1.0f - keep) * mean[i] + keep * old_mean[i]);
        out.put(1, i, (1.0f - keep) * correction * var[i] + keep * old_var[i]);
        out.put(2, i, mean[i]);
        out.put(3, i, var[i]);
    }
}

/* ---- backward ---- */

/* The incoming gradient of element `at`: dy, or 0 if the clamp limited y. */
template <typename T, unsigned V> struct arrival {
    const T *dy, *y; /* y NULL: no clamp */
    float ceiling;

    struct in {
        op_pack<T, V> dy, y;
    };
    __device__ in load(size_t at) const
    {
        in i = { *(const op_pack<T, V> *)(dy + at), {} };

        if (y != NULL)
            i.y = *(const op_pack<T, V> *)(y + at);
        return i;
    }
    __device__ op_pack<T, V> of(const in &i) const
    {
        op_pack<T, V> d = i.dy;

#pragma unroll
        for (unsigned j = 0; j < V && y != NULL; j++) {
            float v = op_wide(i.y.v[j]);

            if (v <= 0.0f || v >= ceiling)
                d.v[j] = op_narrow<T>(0.0f);
        }
        return d;
    }
};

/* From the sums d1 of dy and d2 of dy (x - mean), with r = 1 / sqrt(var + epsilon):
 *   dscale = d2 r, dbias = d1, dx = a dy - b - (x - mean) k,
 *   a = scale r, b = a d1 / n, k = a d2 r^2 / n; b and k are 0 if the statistics are not of this
 *   batch. */
template <typename T, unsigned V> struct products : norm_sums {
    const T *x;
    struct arrival<T, V> dy;
    T *residual; /* its gradient; NULL: not requested */
    bool residual_add, from_batch;
    const float *mean, *var, *scale;
    float *a, *b, *k;
    float epsilon, rows, share, correction;
    struct outputs out; /* gradients of scale and bias, and the statistics */

    struct own {
        float mean[V];
    };
    __device__ own own_of(size_t, size_t channel) const
    {
        own o;

        norm_read(mean + channel, o.mean);
        return o;
    }
    struct in {
        op_pack<T, V> x;
        typename arrival<T, V>::in dy;
    };
    __device__ in load(size_t at) const { return { *(const op_pack<T, V> *)(x + at), dy.load(at) }; }
    __device__ void add(const own &o, size_t at, const in &i, unsigned, float2 *pairs) const
    {
        op_pack<T, V> d = dy.of(i.dy);

#pragma unroll
        for (unsigned j = 0; j < V; j++) {
            float v = op_wide(d.v[j]);

            pairs[j].x += v;
            pairs[j].y += v * (op_wide(i.x.v[j]) - o.mean[j]);
        }
        if (residual == NULL)
            return;
        if (residual_add) {
            const op_pack<T, V> was = *(const op_pack<T, V> *)(residual + at);

#pragma unroll
            for (unsigned j = 0; j < V; j++)
                d.v[j] = op_narrow<T>(op_wide(was.v[j]) + op_wide(d.v[j]));
        }
        *(op_pack<T, V> *)(residual + at) = d;
    }
    __device__ void finish(size_t, size_t i, float2 d) const
    {
        float r = 1.0f / sqrtf(var[i] + epsilon), of = scale[i] * r;

        a[i] = of;
        b[i] = from_batch ? of * d.x / rows : 0.0f;
        k[i] = from_batch ? of * d.y * r * r / rows : 0.0f;
        out.put(0, i, d.y * r);
        out.put(1, i, d.x);
        out.put(2, i, mean[i] * share);
        out.put(3, i, var[i] * (share * correction));
    }
};

template <typename T, unsigned V> struct gradient {
    const T *x;
    struct arrival<T, V> dy;
    T *dx;
    bool adds;
    const float *mean, *a, *b, *k;

    struct own {
        float mean[V], a[V], b[V], k[V];
    };
    __device__ own own_of(size_t, size_t channel) const
    {
        own o;

        norm_read(mean + channel, o.mean);
        norm_read(a + channel, o.a);
        norm_read(b + channel, o.b);
        norm_read(k + channel, o.k);
        return o;
    }
    struct in {
        op_pack<T, V> x;
        typename arrival<T, V>::in dy;
    };
    __device__ in load(size_t at) const { return { *(const op_pack<T, V> *)(x + at), dy.load(at) }; }
    __device__ void put(const own &o, size_t at, const in &i) const
    {
        const op_pack<T, V> d = dy.of(i.dy);
        op_pack<T, V> to = {};

        if (adds)
            to = *(const op_pack<T, V> *)(dx + at);
#pragma unroll
        for (unsigned j = 0; j < V; j++) {
            float v = o.a[j] * op_wide(d.v[j]) - o.b[j] - (op_wide(i.x.v[j]) - o.mean[j]) * o.k[j];

            to.v[j] = op_narrow<T>(adds ? op_wide(to.v[j]) + v : v);
        }
        *(op_pack<T, V> *)(dx + at) = to;
    }
};

} // namespace

/* ---- calls ---- */

struct sizes {
    size_t rows, c;
};

static struct sizes sizes_of(const struct tensor *x)
{
    size_t c = (size_t)x->shape.dim[1];

    return { (size_t)tensor_elements(x) / c, c };
}

static int plan(struct op_plan *p, struct err *err)
{
    const struct batch_norm_param *b = (const struct batch_norm_param *)p->param;
    struct sizes s = sizes_of(p->in[0]);

    if (b->from_batch)
        p->save_bytes = 2 * s.c * sizeof(float); /* mean, variance */
    p->scratch_bytes = norm_columns_parts(1, s.c) + 3 * s.c * sizeof(float);
    return norm_open_counters(1, s.c, &p->state, err);
}

struct stats {
    const float *mean, *var;
};

static struct stats stats_of(const struct op_call *c, size_t channels)
{
    const struct batch_norm_param *p = (const struct batch_norm_param *)c->param;
    const float *save = (const float *)c->save;

    if (p->from_batch)
        return { save, save + channels };
    return { (const float *)c->in[3]->data, (const float *)c->in[4]->data };
}

static void *data_of(const struct tensor *const *t, uint32_t n, uint32_t i)
{
    return t != NULL && i < n && t[i] != NULL ? t[i]->data : NULL;
}

/* Returns true if all operands consist of aligned packs of 16 bytes. */
static bool is_packed(const struct op_call *c, size_t channels, size_t pack)
{
    bool all =
        channels % pack == 0 && op_aligned(c->save) && op_aligned(c->scratch) &&
        op_aligned(data_of(c->out, c->n_out, 0)) && op_aligned(data_of(c->dout, c->n_out, 0)) &&
        op_aligned(data_of(c->din, c->n_in, 0)) && op_aligned(data_of(c->din, c->n_in, RESIDUAL));

    for (uint32_t i = 0; i < c->n_in; i++)
        all = all && op_aligned(data_of(c->in, c->n_in, i));
    return all;
}

#define PACKED(c_, channels_, body_)                                                                   \
    do {                                                                                               \
        OP_FLOATS((c_)->in[0]->dtype, if (is_packed(c_, channels_, op_pack<T>::N)) {                   \
            constexpr unsigned V = op_pack<T>::N;                                                      \
            body_                                                                                      \
        } else {                                                                                       \
            constexpr unsigned V = 1;                                                                  \
            body_                                                                                      \
        });                                                                                            \
    } while (0)

template <typename T, unsigned V>
static void forward_of(const struct op_call *c, const struct sizes &s)
{
    const struct batch_norm_param *p = (const struct batch_norm_param *)c->param;
    struct norm_columns g = norm_columns_of(1, s.rows, s.c, V);
    struct stats st = stats_of(c, s.c);
    const T *x = (const T *)c->in[0]->data;

    if (p->from_batch) {
        measure<T, V> m;

        m.x = x;
        m.mean = (float *)c->save;
        m.var = m.mean + s.c;
        m.rows = (float)s.rows;
        norm_launch_sum<V>(m, g, c->scratch, c->state, op_stream(c));
    }
    if (c->out[0] != NULL)
        norm_launch_each<V>(apply<T, V>{ x, (const T *)data_of(c->in, c->n_in, RESIDUAL), (T *)c->out[0]->data,
                                         st.mean, st.var, (const float *)c->in[1]->data,
                                         (const float *)c->in[2]->data, p->epsilon, p->ceiling, p->clamp },
                            g, op_stream(c));
}

static int forward(const struct op_call *c, struct err *err)
{
    const struct batch_norm_param *p = (const struct batch_norm_param *)c->param;
    struct sizes s = sizes_of(c->in[0]);
    struct stats st = stats_of(c, s.c);
    struct outputs out = {};
    bool any = false;

    PACKED(c, s.c, (forward_of<T, V>(c, s)););
    for (uint32_t i = 1; i < c->n_out; i++)
        any = (out.to[i - 1] = (float *)data_of(c->out, c->n_out, i)) != NULL || any;
    if (any)
        CUDA_LAUNCH(store_statistics, op_blocks(s.c, OP_THREADS), OP_THREADS, 0, op_stream(c), s.c,
                    p->from_batch ? p->momentum : 1.0f, p->correction, st.mean, st.var,
                    (const float *)c->in[3]->data, (const float *)c->in[4]->data, out);
    return cuda_launched(err);
}

template <typename T, unsigned V>
static void backward_of(const struct op_call *c, const struct sizes &s, const struct outputs &out)
{
    const struct batch_norm_param *p = (const struct batch_norm_param *)c->param;
    struct norm_columns g = norm_columns_of(1, s.rows, s.c, V);
    struct stats st = stats_of(c, s.c);
    float *a = (float *)((char *)c->scratch + norm_columns_parts(1, s.c)), *b = a + s.c,
          *k = b + s.c;
    T *residual = (T *)data_of(c->din, c->n_in, RESIDUAL), *dx = (T *)data_of(c->din, c->n_in, 0);
    products<T, V> sums;

    sums.x = (const T *)c->in[0]->data;
    sums.dy = { (const T *)c->dout[0]->data, p->clamp ? (const T *)c->out[0]->data : NULL, p->ceiling };
    sums.residual = residual;
    sums.residual_add = op_cuda_adds(c, RESIDUAL);
    sums.from_batch = p->from_batch;
    sums.mean = st.mean;
    sums.var = st.var;
    sums.scale = (const float *)c->in[1]->data;
    sums.a = a;
    sums.b = b;
    sums.k = k;
    sums.epsilon = p->epsilon;
    sums.rows = (float)s.rows;
    sums.share = p->share;
    sums.correction = p->correction;
    sums.out = out;
    norm_launch_sum<V>(sums, g, c->scratch, c->state, op_stream(c));
    if (dx == NULL)
        return;
    if (residual != NULL && !sums.residual_add) /* it already contains the clamped dy */
        sums.dy = { residual, NULL, 0 };
    norm_launch_each<V>(gradient<T, V>{ sums.x, sums.dy, dx, op_cuda_adds(c, 0), st.mean, a, b, k }, g,
                        op_stream(c));
}

namespace {

struct times {
    float factor;

    __device__ float operator()(float x) const { return x * factor; }
};

} // namespace

static int backward(const struct op_call *c, struct err *err)
{
    const struct batch_norm_param *p = (const struct batch_norm_param *)c->param;
    struct sizes s = sizes_of(c->in[0]);
    struct stats st = stats_of(c, s.c);
    struct outputs out = {};
    bool wants_sums = op_cuda_wants(c, 0) || op_cuda_wants(c, 1) || op_cuda_wants(c, 2) ||
                      op_cuda_wants(c, RESIDUAL);
    int rc = 0;

    for (uint32_t i = 1; i < RESIDUAL; i++) {
        out.to[i - 1] = (float *)data_of(c->din, c->n_in, i);
        out.add[i - 1] = op_cuda_adds(c, i);
    }
    if (c->dout[0] != NULL && wants_sums) {
        PACKED(c, s.c, (backward_of<T, V>(c, s, out)););
        return cuda_launched(err);
    }
    if (c->dout[0] == NULL) {
        rc = op_cuda_zero(c, err);
        out.to[0] = out.to[1] = NULL;
    }
    if (rc == 0 && out.to[2] != NULL)
        rc = op_each(op_stream(c), out.to[2], s.c, out.add[2], times{ p->share }, err, st.mean);
    if (rc == 0 && out.to[3] != NULL)
        rc = op_each(op_stream(c), out.to[3], s.c, out.add[3], times{ p->share * p->correction }, err, st.var);
    return rc;
}

#define BATCH_NORM(row_) OP_CUDA(row_, .plan = plan, .fwd = forward, .bwd = backward, .free_state = cuda_free)

BATCH_NORM(op_batch_norm_14);
BATCH_NORM(op_batch_norm_9);
BATCH_NORM(op_batch_norm_7);
BATCH_NORM(op_batch_norm_add);
BATCH_NORM(op_batch_norm_relu);
