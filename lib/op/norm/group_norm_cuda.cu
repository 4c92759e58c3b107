/* group_norm_cuda.cu - GroupNormalization, InstanceNormalization; float32. A plain tensor is
 * processed as rows (rows_cuda.cuh): a group of a sample, or in backward a part of it. A
 * channels-last tensor is processed as columns (columns_cuda.cuh) per sample, whose sums are
 * combined per group. */
#include "op/norm/columns_cuda.cuh"
#include "op/norm/rows_cuda.cuh"

extern "C" {
#include "op/norm/norm_priv.h"
}

namespace {

/* The shape for the kernels: x [batch, groups, parts, len], or channels-last [batch, space,
 * channels]. */
struct sizes {
    size_t batch, groups, parts, len;
    size_t channels, space;
    size_t per_group; /* channels per group */
    size_t per_part;  /* channels per part */
    size_t sums;      /* columns of sums in backward: parts of all groups, or channels */
    float n;          /* elements per group */
    struct op_divisor by_len, by_group, by_part;
};

struct scales {
    const float *scale, *bias;
};

/* ---- plain: forward ---- */

template <unsigned V>
__global__ void __launch_bounds__(NORM_ROW_THREADS)
    normalise(const float *x, float *y, struct norm_rows g, struct sizes z, struct scales k,
              float epsilon, struct row_stat *save)
{
    __shared__ float room[64];
    const norm_place me(g, blockIdx.x);
    norm_part<float, V> part;
    struct row_stat s;

    if (me.row >= g.rows) /* a whole warp returns; no thread waits for it */
        return;
    s = norm_row_measure<float, V>([&](unsigned first) { part.load(x + me.row * g.n, g, first, me.at); }, g, me.at,
                                   epsilon, false, part, room);
    if (me.at == 0)
        save[me.row] = s;
    for (unsigned first = 0; first < g.wide; first += g.side * NORM_PACKS) {
        if (first > 0)
            part.load(x + me.row * g.n, g, first, me.at);
        norm_each_pack(g, first, me.at, [&](unsigned i, unsigned pack) {
            size_t of = me.row % z.groups * z.parts + op_divide((uint64_t)pack * V, z.by_len);
            float a = s.rstd * k.scale[of], b = k.bias[of];

#pragma unroll
            for (unsigned j = 0; j < V; j++)
                part.p[i].v[j] = (part.p[i].v[j] - s.mean) * a + b;
            ((op_pack<float, V> *)(y + me.row * g.n))[pack] = part.p[i];
        });
    }
}

/* ---- plain: backward; each row is a part ---- */

/* sums [batch][2][groups * parts] = sum of dy (x - mean) rstd, sum of dy */
template <unsigned V>
__global__ void __launch_bounds__(NORM_ROW_THREADS)
    sum_parts(const float *x, const float *dy, struct norm_rows g, struct sizes z,
              const struct row_stat *save, float *sums)
{
    __shared__ float room[64];
    const norm_place me(g, blockIdx.x);
    norm_part<float, V> px, pd;
    float2 sum = { 0, 0 };
    struct row_stat s;
    float *to;

    if (me.row >= g.rows)
        return;
    s = save[me.row / z.parts];
    for (unsigned first = 0; first < g.wide; first += g.side * NORM_PACKS) {
        px.load(x + me.row * g.n, g, first, me.at);
        pd.load(dy + me.row * g.n, g, first, me.at);
        norm_each_pack(g, first, me.at, [&](unsigned i, unsigned) {
#pragma unroll
            for (unsigned j = 0; j < V; j++) {
                sum.x += pd.p[i].v[j] * (px.p[i].v[j] - s.mean);
                sum.y += pd.p[i].v[j];
            }
        });
    }
    sum = norm_row_sum(g, sum, room);
    if (me.at != 0)
        return;
    to = sums + me.row / z.sums * 2 * z.sums + me.row % z.sums;
    to[0] = sum.x * s.rstd;
    to[z.sums] = sum.y;
}

/* One warp per group of a sample. line = b, k of dx = rstd (dy scale - b) - (x - mean) k. */
__global__ void find_lines(struct sizes z, const float *scale, const struct row_stat *save,
                           const float *sums, float2 *lines)
{
    size_t group = (size_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    size_t per = z.sums / z.groups, each = per / z.parts, sample = group / z.groups, first;
    float b = 0, k = 0, rstd;

    if (group >= z.batch * z.groups)
        return;
    first = group % z.groups * per;
    sums += sample * 2 * z.sums + first;
    for (size_t i = threadIdx.x % 32; i < per; i += 32) {
        float a = scale[(first + i) / each];

        k += sums[i] * a;
        b += sums[z.sums + i] * a;
    }
    rstd = save[group].rstd;
    b = op_warp_sum(b) / z.n;
    k = op_warp_sum(k) * rstd * rstd / z.n; /* the sums contain the third rstd */
    if (threadIdx.x % 32 == 0)
        lines[group] = make_float2(b, k);
}

template <unsigned V>
__global__ void __launch_bounds__(NORM_ROW_THREADS)
    store_parts(const float *x, const float *dy, float *dx, bool add, struct norm_rows g,
                struct sizes z, const float *scale, const struct row_stat *save,
                const float2 *lines)
{
    const norm_place me(g, blockIdx.x);
    struct row_stat s;
    float2 line;
    float a; /* scale */

    if (me.row >= g.rows)
        return;
    s = save[me.row / z.parts];
    line = lines[me.row / z.parts];
    a = scale[me.row % z.sums];
    for (unsigned pack = me.at; pack < g.wide; pack += g.side) {
        size_t at = me.row * g.n + (size_t)pack * V;
        const op_pack<float, V> px = *(const op_pack<float, V> *)(x + at),
                                pd = *(const op_pack<float, V> *)(dy + at);
        op_pack<float, V> out = {};

        if (add)
            out = *(const op_pack<float, V> *)(dx + at);
#pragma unroll
        for (unsigned j = 0; j < V; j++)
            out.v[j] += s.rstd * (__fmul_rn(a, pd.v[j]) - line.x) - (px.v[j] - s.mean) * line.y;
        *(op_pack<float, V> *)(dx + at) = out;
    }
}

/* ---- channels-last: forward ---- */

/* moments [batch][2][channels]: the mean of each column, relative to the first element of its
 * group, and the sum of squared deviations. */
template <unsigned V> struct measure : norm_moments {
    const float *x;
    struct sizes z;
    float *moments;

    struct own {
        float from[V];
    };
    __device__ float from(size_t sample, size_t channel) const
    {
        size_t group = op_divide(channel, z.by_group);

        return x[sample * z.space * z.channels + group * z.per_group];
    }
    __device__ own own_of(size_t sample, size_t channel) const
    {
        own o;

#pragma unroll
        for (unsigned j = 0; j < V; j++)
            o.from[j] = from(sample, channel + j);
        return o;
    }
    __device__ op_pack<float, V> load(size_t at) const { return *(const op_pack<float, V> *)(x + at); }
    __device__ void add(const own &o, size_t, const op_pack<float, V> &p, unsigned nth,
                        float2 *pairs) const
    {
        float inverse = 1.0f / (float)nth;

#pragma unroll
        for (unsigned j = 0; j < V; j++)
            add_one(pairs[j], p.v[j] - o.from[j], inverse);
    }
    __device__ void finish(size_t sample, size_t channel, float2 p) const
    {
        float *to = moments + sample * 2 * z.channels + channel;

        to[0] = p.x;
        to[z.channels] = p.y;
    }
};

/* One warp per group of a sample. */
__global__ void join_moments(struct sizes z, const float *x, const float *moments, float epsilon,
                             struct row_stat *save)
{
    size_t group = (size_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32,
           sample = group / z.groups;
    size_t first = group % z.groups * z.per_group;
    float space = (float)z.space, n = 0;
    float2 all = { 0, 0 };

    if (group >= z.batch * z.groups)
        return;
    moments += sample * 2 * z.channels + first;
    for (size_t i = threadIdx.x % 32; i < z.per_group; i += 32) {
        norm_moments::merge(all, n, make_float2(moments[i], moments[z.channels + i]), space);
        n += space;
    }
    for (unsigned k = 16; k > 0; k /= 2) {
        float2 other = make_float2(__shfl_down_sync(0xffffffffu, all.x, k),
                                   __shfl_down_sync(0xffffffffu, all.y, k));
        float m = __shfl_down_sync(0xffffffffu, n, k);

        norm_moments::merge(all, n, other, m);
        n += m;
    }
    if (threadIdx.x % 32 == 0)
        save[group] = { x[sample * z.space * z.channels + first] + all.x, 1.0f / sqrtf(all.y / z.n + epsilon) };
}

template <unsigned V> struct apply {
    const float *x;
    float *y;
    struct sizes z;
    struct scales k;
    const struct row_stat *save;

    struct own {
        float mean[V], a[V], b[V];
    };
    __device__ own own_of(size_t sample, size_t channel) const
    {
        own o;

#pragma unroll
        for (unsigned j = 0; j < V; j++) {
            struct row_stat s = save[sample * z.groups + op_divide(channel + j, z.by_group)];
            size_t part = op_divide(channel + j, z.by_part);

            o.mean[j] = s.mean;
            o.a[j] = s.rstd * k.scale[part];
            o.b[j] = k.bias[part];
        }
        return o;
    }
    __device__ op_pack<float, V> load(size_t at) const { return *(const op_pack<float, V> *)(x + at); }
    __device__ void put(const own &o, size_t at, op_pack<float, V> p) const
    {
#pragma unroll
        for (unsigned j = 0; j < V; j++)
            p.v[j] = (p.v[j] - o.mean[j]) * o.a[j] + o.b[j];
        *(op_pack<float, V> *)(y + at) = p;
    }
};

/* ---- channels-last: backward ---- */

/* The sums of sum_parts, per channel. */
template <unsigned V> struct products : norm_sums {
    const float *x, *dy;
    struct sizes z;
    const struct row_stat *save;
    float *sums;

    struct own {
        float mean[V];
    };
    __device__ struct row_stat stat(size_t sample, size_t channel) const
    {
        return save[sample * z.groups + op_divide(channel, z.by_group)];
    }
    __device__ own own_of(size_t sample, size_t channel) const
    {
        own o;

#pragma unroll
        for (unsigned j = 0; j < V; j++)
            o.mean[j] = stat(sample, channel + j).mean;
        return o;
    }
    struct in {
        op_pack<float, V> x, dy;
    };
    __device__ in load(size_t at) const
    {
        return { *(const op_pack<float, V> *)(x + at), *(const op_pack<float, V> *)(dy + at) };
    }
    __device__ void add(const own &o, size_t, const in &i, unsigned, float2 *pairs) const
    {
#pragma unroll
        for (unsigned j = 0; j < V; j++) {
            pairs[j].x += i.dy.v[j] * (i.x.v[j] - o.mean[j]);
            pairs[j].y += i.dy.v[j];
        }
    }
    __device__ void finish(size_t sample, size_t channel, float2 p) const
    {
        float *to = sums + sample * 2 * z.channels + channel;

        to[0] = p.x * stat(sample, channel).rstd;
        to[z.channels] = p.y;
    }
};

template <unsigned V> struct gradient {
    const float *x, *dy;
    float *dx;
    bool adds;
    struct sizes z;
    const float *scale;
    const struct row_stat *save;
    const float2 *lines;

    struct own {
        float mean[V], rstd[V], a[V], b[V], k[V];
    };
    __device__ own own_of(size_t sample, size_t channel) const
    {
        own o;

#pragma unroll
        for (unsigned j = 0; j < V; j++) {
            size_t group = sample * z.groups + op_divide(channel + j, z.by_group);

            o.mean[j] = save[group].mean;
            o.rstd[j] = save[group].rstd;
            o.a[j] = scale[op_divide(channel + j, z.by_part)];
            o.b[j] = lines[group].x;
            o.k[j] = lines[group].y;
        }
        return o;
    }
    struct in {
        op_pack<float, V> x, dy;
    };
    __device__ in load(size_t at) const
    {
        return { *(const op_pack<float, V> *)(x + at), *(const op_pack<float, V> *)(dy + at) };
    }
    __device__ void put(const own &o, size_t at, const in &i) const
    {
        op_pack<float, V> out = {};

        if (adds)
            out = *(const op_pack<float, V> *)(dx + at);
#pragma unroll
        for (unsigned j = 0; j < V; j++)
            out.v[j] += o.rstd[j] * (__fmul_rn(o.a[j], i.dy.v[j]) - o.b[j]) -
                        (i.x.v[j] - o.mean[j]) * o.k[j];
        *(op_pack<float, V> *)(dx + at) = out;
    }
};

} // namespace

/* ---- calls ---- */

static bool is_columns(const struct tensor *x)
{
    return x->layout == TENSOR_CHANNELS_LAST && x->shape.rank >= 3;
}

static struct sizes sizes_of(const struct group_norm_param *p, const struct tensor *x)
{
    struct sizes z = { .batch = p->batch, .groups = p->groups, .parts = p->parts, .len = p->len,
                       .channels = p->channels };

    z.space = p->groups * p->parts * p->len / p->channels;
    z.per_group = p->channels / p->groups;
    z.per_part = z.per_group / p->parts;
    z.sums = is_columns(x) ? p->channels : p->groups * p->parts;
    z.n = (float)(p->parts * p->len);
    z.by_len = op_divisor_of(p->len);
    z.by_group = op_divisor_of(z.per_group);
    z.by_part = op_divisor_of(z.per_part);
    return z;
}

/* Scratch: of norm_sum_columns(); moments or sums [batch][2][sums]; lines [batch][groups]. */
struct work {
    void *columns;
    float *sums;
    float2 *lines;
    size_t bytes;
};

static struct work work_at(const struct sizes &z, bool columns, void *scratch)
{
    size_t first = columns ? norm_columns_parts(z.batch, z.channels) : 0;
    size_t sums = z.batch * 2 * z.sums * sizeof(float), lines = z.batch * z.groups * sizeof(float2);
    char *at = (char *)scratch;

    return { at, (float *)(at + first), (float2 *)(at + first + sums), first + sums + lines };
}

static int plan(struct op_plan *p, struct err *err)
{
    const struct group_norm_param *g = (const struct group_norm_param *)p->param;
    struct sizes z = sizes_of(g, p->in[0]);
    bool columns = is_columns(p->in[0]);

    p->save_bytes = z.batch * z.groups * sizeof(struct row_stat);
    p->scratch_bytes = work_at(z, columns, NULL).bytes;
    return columns ? norm_open_counters(z.batch, z.channels, &p->state, err) : 0;
}

static bool is_aligned(const struct tensor *const *t)
{
    return t == NULL || t[0] == NULL || op_aligned(t[0]->data);
}

/* Returns true if packs of four numbers can be used: parts of plain tensors, or channels, are
 * multiples of four. */
static bool is_packed(const struct op_call *c, const struct sizes &z)
{
    return (is_columns(c->in[0]) ? z.channels : z.len) % 4 == 0 && is_aligned(c->in) &&
           is_aligned(c->out) && is_aligned(c->dout) && is_aligned(c->din);
}

static unsigned warps_for(size_t groups)
{
    return (unsigned)((groups + OP_THREADS / 32 - 1) / (OP_THREADS / 32));
}

template <unsigned V> static void forward_of(const struct op_call *c, const struct sizes &z)
{
    const struct group_norm_param *p = (const struct group_norm_param *)c->param;
    const float *x = (const float *)c->in[0]->data;
    float *y = (float *)c->out[0]->data;
    struct scales k = { (const float *)c->in[1]->data, (const float *)c->in[2]->data };
    struct row_stat *save = (struct row_stat *)c->save;
    size_t n_groups = z.batch * z.groups;

    if (!is_columns(c->in[0])) {
        struct norm_rows g = norm_rows_of(n_groups, z.parts * z.len, V);

        CUDA_LAUNCH((normalise<V>), norm_rows_blocks(g), g.threads, 0, op_stream(c), x, y, g, z, k,
                    p->epsilon, save);
        return;
    }
    struct norm_columns g = norm_columns_of(z.batch, z.space, z.channels, V);
    struct work w = work_at(z, true, c->scratch);
    measure<V> m;

    m.x = x;
    m.z = z;
    m.moments = w.sums;
    norm_launch_sum<V>(m, g, w.columns, c->state, op_stream(c));
    CUDA_LAUNCH(join_moments, warps_for(n_groups), OP_THREADS, 0, op_stream(c), z, x,
                (const float *)w.sums, p->epsilon, save);
    norm_launch_each<V>(apply<V>{ x, y, z, k, save }, g, op_stream(c));
}

static int forward(const struct op_call *c, struct err *err)
{
    struct sizes z = sizes_of((const struct group_norm_param *)c->param, c->in[0]);

    if (z.batch == 0)
        return 0;
    if (is_packed(c, z))
        forward_of<4>(c, z);
    else
        forward_of<1>(c, z);
    return cuda_launched(err);
}

template <unsigned V> static void backward_of(const struct op_call *c, const struct sizes &z)
{
    bool columns = is_columns(c->in[0]), adds = op_cuda_adds(c, 0);
    const float *x = (const float *)c->in[0]->data, *dy = (const float *)c->dout[0]->data;
    const float *scale = (const float *)c->in[1]->data;
    float *dx = c->din[0] != NULL ? (float *)c->din[0]->data : NULL;
    const struct row_stat *save = (const struct row_stat *)c->save;
    struct work w = work_at(z, columns, c->scratch);
    struct norm_rows rows = norm_rows_of(z.batch * z.groups * z.parts, z.len, V);
    struct norm_columns g = norm_columns_of(z.batch, z.space, z.channels, V);

    if (columns) {
        products<V> sums;

        sums.x = x;
        sums.dy = dy;
        sums.z = z;
        sums.save = save;
        sums.sums = w.sums;
        norm_launch_sum<V>(sums, g, w.columns, c->state, op_stream(c));
    } else {
        CUDA_LAUNCH((sum_parts<V>), norm_rows_blocks(rows), rows.threads, 0, op_stream(c), x, dy,
                    rows, z, save, w.sums);
    }
    norm_launch_fold(c, w.sums, z.batch, z.groups * z.parts, z.sums / (z.groups * z.parts));
    if (dx == NULL)
        return;
    CUDA_LAUNCH(find_lines, warps_for(z.batch * z.groups), OP_THREADS, 0, op_stream(c), z, scale,
                save, (const float *)w.sums, w.lines);
    if (columns)
        norm_launch_each<V>(gradient<V>{ x, dy, dx, adds, z, scale, save, w.lines }, g, op_stream(c));
    else
        CUDA_LAUNCH((store_parts<V>), norm_rows_blocks(rows), rows.threads, 0, op_stream(c), x, dy,
                    dx, adds, rows, z, scale, save, (const float2 *)w.lines);
}

static int backward(const struct op_call *c, struct err *err)
{
    struct sizes z = sizes_of((const struct group_norm_param *)c->param, c->in[0]);

    if (c->dout[0] == NULL || z.batch == 0)
        return op_cuda_zero(c, err);
    if (is_packed(c, z))
        backward_of<4>(c, z);
    else
        backward_of<1>(c, z);
    return cuda_launched(err);
}

#define GROUP_NORM(row_) OP_CUDA(row_, .plan = plan, .fwd = forward, .bwd = backward, .free_state = cuda_free)

GROUP_NORM(op_instance_norm);
GROUP_NORM(op_group_norm_18);
GROUP_NORM(op_group_norm_21);
