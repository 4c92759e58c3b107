/* layer_norm_cuda.cu - LayerNormalization, RMSNormalization: rows (rows_cuda.cuh). Forward is one launch;
 * backward one that makes dx and, of the rows of each block, the sums for scale and bias, and one that
 * adds those up. */
#include "op/norm/rows_cuda.cuh"

extern "C" {
#include "op/norm/norm_priv.h"
}

/* Backward has sums of columns in registers, of which three blocks of 128 threads get enough: so many blocks,
 * at most. */
static constexpr unsigned THREADS = 128, SLABS = 396;

namespace {

struct forward_args {
    struct norm_rows g;
    float epsilon;
    bool rms;
    const float *scale, *bias;
    struct row_stat *save;
    float *mean, *rstd; /* outputs 1 and 2, or NULL */
};

/* y = (x - mean) rstd scale + bias */
template <typename T, unsigned V>
__global__ void __launch_bounds__(NORM_ROW_THREADS) normalise(const T *x, T *y, struct forward_args a)
{
    __shared__ float room[64];
    const struct norm_rows &g = a.g;
    const norm_place me(g, blockIdx.x);
    norm_part<T, V> part;
    struct row_stat s;

    if (me.row >= g.rows) /* a whole warp, and nobody waits for it */
        return;
    s = norm_row_measure<T, V>(x + me.row * g.n, g, me.at, a.epsilon, a.rms, part, room);
    if (me.at == 0) {
        a.save[me.row] = s;
        if (a.mean != NULL)
            a.mean[me.row] = s.mean;
        if (a.rstd != NULL)
            a.rstd[me.row] = s.rstd;
    }
    if (y == NULL)
        return;
    for (unsigned first = 0; first < g.wide; first += g.side * NORM_PACKS) {
        if (first > 0)
            part.load(x + me.row * g.n, g, first, me.at);
        norm_each_pack(g, first, me.at, [&](unsigned i, unsigned pack) {
            const op_pack<float, V> k = ((const op_pack<float, V> *)a.scale)[pack];
            op_pack<float, V> b = {};
            op_pack<T, V> out;

            if (a.bias != NULL)
                b = ((const op_pack<float, V> *)a.bias)[pack];
#pragma unroll
            for (unsigned j = 0; j < V; j++)
                out.v[j] = op_narrow<T>((op_wide(part.p[i].v[j]) - s.mean) * s.rstd * k.v[j] + b.v[j]);
            ((op_pack<T, V> *)(y + me.row * g.n))[pack] = out;
        });
    }
}

struct backward_args {
    struct norm_rows g;
    bool rms, adds;
    const float *scale;
    const struct row_stat *save;
    const float *dmean, *drstd; /* gradients of outputs 1 and 2, or NULL */
    float *part;                /* [blocks][2][n]: sums for scale, bias; NULL: not wanted */
};

/* dx = rstd g - b - (x - mean) k, with g = dy scale. */
__device__ static inline float2 line_of(const struct backward_args &a, size_t row, struct row_stat s, float2 sums)
{
    float n = (float)a.g.n, cube = s.rstd * s.rstd * s.rstd;
    float b = a.rms ? 0 : s.rstd * sums.x, k = cube * sums.y;

    if (a.dmean != NULL && !a.rms)
        b -= a.dmean[row];
    if (a.drstd != NULL)
        k += cube * a.drstd[row];
    return make_float2(b / n, k / n);
}

/* What a thread adds up of the columns it owns, over its rows: in registers while a row fits there. */
template <unsigned V> struct column_sums {
    float scale[NORM_PACKS][V], bias[NORM_PACKS][V];
};

/* One part of a row: dx, and what it adds to the columns. */
template <bool LONG, typename T, unsigned V>
__device__ static inline void put_part(const struct backward_args &a, const norm_part<T, V> &x,
                                       const norm_part<T, V> &dy, unsigned first, unsigned at,
                                       struct row_stat s, float2 line, T *dx, float *part,
                                       column_sums<V> &sums)
{
    norm_each_pack(a.g, first, at, [&](unsigned i, unsigned pack) {
        const op_pack<float, V> k = ((const op_pack<float, V> *)a.scale)[pack];
        op_pack<T, V> out = {};

        if (dx != NULL && a.adds)
            out = ((const op_pack<T, V> *)dx)[pack];
#pragma unroll
        for (unsigned j = 0; j < V; j++) {
            float d = op_wide(x.p[i].v[j]) - s.mean, g = op_wide(dy.p[i].v[j]);
            float v = __fmul_rn(s.rstd, g * k.v[j]) - line.x - d * line.y; /* exactly 0 in rows of one */

            out.v[j] = op_narrow<T>(a.adds ? op_wide(out.v[j]) + v : v);
            if constexpr (!LONG) {
                sums.scale[i][j] += g * (d * s.rstd);
                sums.bias[i][j] += g;
            } else if (part != NULL) { /* this thread's own columns, in memory */
                part[pack * V + j] += g * (d * s.rstd);
                part[a.g.n + pack * V + j] += g;
            }
        }
        if (dx != NULL)
            ((op_pack<T, V> *)dx)[pack] = out;
    });
}

/* own [2][n] = what the threads of a block have added up: one warp after another, in their order. */
template <unsigned V>
__device__ static inline void put_columns(const struct norm_rows &g, const column_sums<V> &sums, float *own)
{
    for (unsigned turn = 0; turn < blockDim.x / g.side; turn++) {
        if (threadIdx.x / g.side == turn)
            norm_each_pack(g, 0, threadIdx.x % g.side, [&](unsigned i, unsigned pack) {
#pragma unroll
                for (unsigned j = 0; j < V; j++) {
                    size_t to = (size_t)pack * V + j;

                    own[to] = (turn > 0 ? own[to] : 0) + sums.scale[i][j];
                    own[g.n + to] = (turn > 0 ? own[g.n + to] : 0) + sums.bias[i][j];
                }
            });
        __syncthreads();
    }
}

/* Block i has rows i, i + blocks, ... (or as many at a time as it has warps), one after another. LONG: rows do
 * not fit into registers. */
template <bool LONG, typename T, unsigned V>
__global__ void __launch_bounds__(THREADS, 3)
    gradient(const T *x, const T *dy, T *dx, struct backward_args a)
{
    __shared__ float room[64];
    const struct norm_rows &g = a.g;
    const unsigned step = g.side * NORM_PACKS, wide = LONG ? g.wide : 1; /* of which one step is enough */
    float *own = a.part != NULL ? a.part + (size_t)blockIdx.x * 2 * g.n : NULL;
    norm_part<T, V> px, pd;
    column_sums<V> sums = {};
    unsigned at = threadIdx.x % g.side;

    if (LONG && own != NULL)
        for (unsigned first = 0; first < wide; first += step)
            norm_each_pack(g, first, at, [&](unsigned, unsigned pack) {
                for (unsigned j = 0; j < V; j++)
                    own[pack * V + j] = own[g.n + pack * V + j] = 0;
            });
    for (size_t block = blockIdx.x;; block += gridDim.x) {
        const norm_place me(g, block);
        float2 of_row = { 0, 0 };
        struct row_stat s;

        if (me.row >= g.rows)
            break;
        s = a.save[me.row];
        for (unsigned first = 0; first < wide; first += step) {
            px.load(x + me.row * g.n, g, first, at);
            pd.load(dy != NULL ? dy + me.row * g.n : NULL, g, first, at);
            norm_each_pack(g, first, at, [&](unsigned i, unsigned pack) {
                const op_pack<float, V> k = ((const op_pack<float, V> *)a.scale)[pack];

#pragma unroll
                for (unsigned j = 0; j < V; j++) {
                    float v = op_wide(pd.p[i].v[j]) * k.v[j];

                    of_row.x += v;
                    of_row.y += v * (op_wide(px.p[i].v[j]) - s.mean);
                }
            });
        }
        of_row = line_of(a, me.row, s, norm_row_sum(g, of_row, room));
        for (unsigned first = 0; first < wide; first += step) {
            if (LONG) {
                px.load(x + me.row * g.n, g, first, at);
                pd.load(dy != NULL ? dy + me.row * g.n : NULL, g, first, at);
            }
            put_part<LONG, T, V>(a, px, pd, first, at, s, of_row, dx != NULL ? dx + me.row * g.n : NULL,
                                 own, sums);
        }
    }
    if constexpr (!LONG)
        if (own != NULL)
            put_columns<V>(g, sums, own);
}

} // namespace

/* ---- calls ---- */

static size_t slabs_of(const struct layer_norm_param *p, unsigned v)
{
    unsigned blocks = norm_rows_blocks(norm_rows_of(p->rows, p->n, v, THREADS));

    return blocks < 1 ? 1 : blocks > SLABS ? SLABS : blocks;
}

static int plan(struct op_plan *p, struct err *err)
{
    const struct layer_norm_param *l = (const struct layer_norm_param *)p->param;

    (void)err;
    p->save_bytes = l->rows * sizeof(struct row_stat);
    if (op_cuda_plan_wants(p, 1) || op_cuda_plan_wants(p, 2))
        p->scratch_bytes = slabs_of(l, 1) * 2 * l->n * sizeof(float); /* at least as many as of packs */
    return 0;
}

static void *data_of(const struct tensor *const *t, uint32_t n, uint32_t i)
{
    return t != NULL && i < n && t[i] != NULL ? t[i]->data : NULL;
}

/* Whole packs of 16 bytes? Scale and bias are read in packs of as many floats. */
static bool is_packed(const struct op_call *c, size_t n, size_t pack)
{
    return n % pack == 0 && op_aligned(c->in[0]->data) && op_aligned(c->in[1]->data) &&
           op_aligned(data_of(c->in, c->n_in, 2)) && op_aligned(data_of(c->out, c->n_out, 0)) &&
           op_aligned(data_of(c->dout, c->n_out, 0)) && op_aligned(data_of(c->din, c->n_in, 0));
}

template <typename T, unsigned V> static void forward_of(const struct op_call *c)
{
    const struct layer_norm_param *p = (const struct layer_norm_param *)c->param;
    struct forward_args a = { .g = norm_rows_of(p->rows, p->n, V), .epsilon = p->epsilon, .rms = p->rms,
                              .scale = (const float *)c->in[1]->data,
                              .bias = (const float *)data_of(c->in, c->n_in, 2),
                              .save = (struct row_stat *)c->save,
                              .mean = (float *)data_of(c->out, c->n_out, 1),
                              .rstd = (float *)data_of(c->out, c->n_out, 2) };

    if (p->rows > 0)
        CUDA_LAUNCH((normalise<T, V>), norm_rows_blocks(a.g), a.g.threads, 0, op_stream(c),
                    (const T *)c->in[0]->data, (T *)data_of(c->out, c->n_out, 0), a);
}

static int forward(const struct op_call *c, struct err *err)
{
    const struct layer_norm_param *p = (const struct layer_norm_param *)c->param;

    OP_FLOATS(c->in[0]->dtype, if (is_packed(c, p->n, op_pack<T>::N)) forward_of<T, op_pack<T>::N>(c);
              else forward_of<T, 1>(c););
    return cuda_launched(err);
}

template <typename T, unsigned V> static void backward_of(const struct op_call *c)
{
    const struct layer_norm_param *p = (const struct layer_norm_param *)c->param;
    bool sums = op_cuda_wants(c, 1) || op_cuda_wants(c, 2);
    size_t slabs = slabs_of(p, V);
    struct backward_args a = { .g = norm_rows_of(p->rows, p->n, V, THREADS), .rms = p->rms,
                               .adds = op_cuda_adds(c, 0), .scale = (const float *)c->in[1]->data,
                               .save = (const struct row_stat *)c->save,
                               .dmean = (const float *)data_of(c->dout, c->n_out, 1),
                               .drstd = (const float *)data_of(c->dout, c->n_out, 2),
                               .part = sums ? (float *)c->scratch : NULL };

    auto go = a.g.wide > a.g.side * NORM_PACKS ? gradient<true, T, V> : gradient<false, T, V>;

    CUDA_LAUNCH(go, (unsigned)slabs, a.g.threads, 0, op_stream(c), (const T *)c->in[0]->data,
                (const T *)data_of(c->dout, c->n_out, 0), (T *)data_of(c->din, c->n_in, 0), a);
    norm_launch_fold(c, a.part, slabs, p->n, 1);
}

static int backward(const struct op_call *c, struct err *err)
{
    const struct layer_norm_param *p = (const struct layer_norm_param *)c->param;
    bool any = false;

    for (uint32_t i = 0; i < c->n_out; i++)
        any = any || c->dout[i] != NULL;
    if (!any)
        return op_cuda_zero(c, err);
    OP_FLOATS(c->in[0]->dtype, if (is_packed(c, p->n, op_pack<T>::N)) backward_of<T, op_pack<T>::N>(c);
              else backward_of<T, 1>(c););
    return cuda_launched(err);
}

#define LAYER_NORM(row_) OP_CUDA(row_, .plan = plan, .fwd = forward, .bwd = backward)

LAYER_NORM(op_layer_norm);
LAYER_NORM(op_rms_norm);
LAYER_NORM(op_rms_norm_23);
