/* layer_norm_cuda.cu - LayerNormalization, RMSNormalization: rows (rows_cuda.cuh), of x or of its sum with a
 * residual. Forward is one launch, which reads both and writes both once; backward one that makes dx, with
 * what comes past the norm, and, of the rows of each block, the sums for scale and bias, and one that adds
 * those up. */
#include "op/norm/rows_cuda.cuh"

extern "C" {
#include "base/check.h"
#include "op/norm/norm_priv.h"
}

/* Backward has sums of columns in registers, of which three blocks of 128 threads get enough: so many blocks,
 * at most. */
static constexpr unsigned THREADS = 128, SLABS = 396;

namespace {

/* Numbers of a type that the kernel learns as it runs: all of a kernel go the same way. */
struct any {
    void *at; /* NULL: not there */
    enum tensor_dtype type;
    bool adds; /* to what is there */
};

/* Pack `pack` of V numbers, as float32. */
template <unsigned V> __device__ static inline op_pack<float, V> any_load(const any &a, size_t pack)
{
    op_pack<float, V> v;

    OP_FLOATS(a.type, {
        const op_pack<T, V> p = ((const op_pack<T, V> *)a.at)[pack];

#pragma unroll
        for (unsigned j = 0; j < V; j++)
            v.v[j] = op_wide(p.v[j]);
    });
    return v;
}

template <unsigned V> __device__ static inline void any_put(const any &a, size_t pack, const op_pack<float, V> &v)
{
    OP_FLOATS(a.type, {
        op_pack<T, V> p = {};

        if (a.adds)
            p = ((const op_pack<T, V> *)a.at)[pack];
#pragma unroll
        for (unsigned j = 0; j < V; j++)
            p.v[j] = op_narrow<T>(a.adds ? op_wide(p.v[j]) + v.v[j] : v.v[j]);
        ((op_pack<T, V> *)a.at)[pack] = p;
    });
}

struct forward_args {
    struct norm_rows g;
    float epsilon;
    bool rms;
    const float *scale, *bias;
    struct row_stat *save;
    float *mean, *rstd; /* outputs 1 and 2, or NULL */
    any x, residual;    /* without one x is of type T */
    void *sum;          /* of the two, of type T; NULL: nobody reads it */
};

/* Brings parts of a row of what is normalised. A sum is computed when a part is first asked for. */
template <typename T, unsigned V> struct row_source {
    const struct forward_args &a;
    const norm_place &me;
    norm_part<T, V> &part;
    unsigned seen = 0; /* packs before this are in `sum` */

    __device__ void operator()(unsigned first)
    {
        const struct norm_rows &g = a.g;
        const size_t row = me.row * g.wide;

        if (a.residual.at == NULL) {
            part.load((const T *)a.x.at + me.row * g.n, g, first, me.at);
        } else if (first < seen) {
            part.load((const T *)a.sum + me.row * g.n, g, first, me.at);
        } else {
            norm_each_pack(g, first, me.at, [&](unsigned i, unsigned pack) {
                const op_pack<float, V> x = any_load<V>(a.x, row + pack), r = any_load<V>(a.residual, row + pack);

#pragma unroll
                for (unsigned j = 0; j < V; j++)
                    part.p[i].v[j] = op_narrow<T>(x.v[j] + r.v[j]);
                if (a.sum != NULL)
                    ((op_pack<T, V> *)a.sum)[row + pack] = part.p[i];
            });
            if (a.sum != NULL)
                seen = first + g.side * NORM_PACKS;
        }
    }
};

/* y = (x - mean) rstd scale + bias, of x or the sum of x and the residual, which has type T. */
template <typename T, typename Y, unsigned V>
__global__ void __launch_bounds__(NORM_ROW_THREADS) normalise(Y *y, struct forward_args a)
{
    __shared__ float room[64];
    const struct norm_rows &g = a.g;
    const norm_place me(g, blockIdx.x);
    norm_part<T, V> part;
    row_source<T, V> load = { a, me, part };
    struct row_stat s;

    if (me.row >= g.rows) /* a whole warp, and nobody waits for it */
        return;
    s = norm_row_measure<T, V>(load, g, me.at, a.epsilon, a.rms, part, room);
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
            load(first);
        norm_each_pack(g, first, me.at, [&](unsigned i, unsigned pack) {
            const op_pack<float, V> k = ((const op_pack<float, V> *)a.scale)[pack];
            op_pack<float, V> b = {};
            op_pack<Y, V> out;

            if (a.bias != NULL)
                b = ((const op_pack<float, V> *)a.bias)[pack];
#pragma unroll
            for (unsigned j = 0; j < V; j++)
                out.v[j] = op_narrow<Y>((op_wide(part.p[i].v[j]) - s.mean) * s.rstd * k.v[j] + b.v[j]);
            ((op_pack<Y, V> *)(y + me.row * g.n))[pack] = out;
        });
    }
}

struct backward_args {
    struct norm_rows g;
    bool rms;
    const float *scale;
    const struct row_stat *save;
    const float *dmean, *drstd; /* gradients of outputs 1 and 2, or NULL */
    any dsum;                   /* what arrives at the sum itself */
    any dx, dresidual;          /* where the gradient goes: the same to both */
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
template <bool LONG, typename T, typename Y, unsigned V>
__device__ static inline void put_part(const struct backward_args &a, const norm_part<T, V> &x,
                                       const norm_part<Y, V> &dy, unsigned first, unsigned at,
                                       struct row_stat s, float2 line, size_t row, float *part,
                                       column_sums<V> &sums)
{
    norm_each_pack(a.g, first, at, [&](unsigned i, unsigned pack) {
        const op_pack<float, V> k = ((const op_pack<float, V> *)a.scale)[pack];
        const size_t place = row * a.g.wide + pack;
        op_pack<float, V> out = {};

        if (a.dsum.at != NULL)
            out = any_load<V>(a.dsum, place);
#pragma unroll
        for (unsigned j = 0; j < V; j++) {
            float d = op_wide(x.p[i].v[j]) - s.mean, g = op_wide(dy.p[i].v[j]);

            out.v[j] += __fmul_rn(s.rstd, g * k.v[j]) - line.x - d * line.y; /* exactly 0 in rows of one */
            if constexpr (!LONG) {
                sums.scale[i][j] += g * (d * s.rstd);
                sums.bias[i][j] += g;
            } else if (part != NULL) { /* this thread's own columns, in memory */
                part[pack * V + j] += g * (d * s.rstd);
                part[a.g.n + pack * V + j] += g;
            }
        }
        if (a.dx.at != NULL)
            any_put<V>(a.dx, place, out);
        if (a.dresidual.at != NULL)
            any_put<V>(a.dresidual, place, out);
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
template <bool LONG, typename T, typename Y, unsigned V>
__global__ void __launch_bounds__(THREADS, 3)
    gradient(const T *x, const Y *dy, struct backward_args a)
{
    __shared__ float room[64];
    const struct norm_rows &g = a.g;
    const unsigned step = g.side * NORM_PACKS, wide = LONG ? g.wide : 1; /* of which one step is enough */
    float *own = a.part != NULL ? a.part + (size_t)blockIdx.x * 2 * g.n : NULL;
    norm_part<T, V> px;
    norm_part<Y, V> pd;
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
            put_part<LONG, T, Y, V>(a, px, pd, first, at, s, of_row, me.row, own, sums);
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

static const struct tensor *tensor_of(const struct tensor *const *t, uint32_t n, uint32_t i)
{
    return t != NULL && i < n ? t[i] : NULL;
}

static void *data_of(const struct tensor *const *t, uint32_t n, uint32_t i)
{
    const struct tensor *at = tensor_of(t, n, i);

    return at != NULL ? at->data : NULL;
}

static any any_of(const struct tensor *const *t, uint32_t n, uint32_t i, bool adds)
{
    const struct tensor *at = tensor_of(t, n, i);

    return at != NULL ? any{ at->data, at->dtype, adds } : any{ NULL, TENSOR_F32, false };
}

/* Of what is normalised: of a sum float32, if one of the two is. */
static enum tensor_dtype type_of(const struct op_call *c)
{
    bool adds = ((const struct layer_norm_param *)c->param)->adds;

    return adds && c->in[3]->dtype == TENSOR_F32 ? TENSOR_F32 : c->in[0]->dtype;
}

/* Numbers of a pack: 16 bytes of the shorter types, where whole rows are such packs. */
static constexpr unsigned PACK = 8;

static bool are_aligned(const struct tensor *const *t, uint32_t n)
{
    bool all = true;

    for (uint32_t i = 0; t != NULL && i < n; i++) /* what backward does not read has an aligned address */
        all = all && (t[i] == NULL || op_aligned(t[i]->data));
    return all;
}

static bool is_packed(const struct op_call *c, size_t n)
{
    return n % PACK == 0 && are_aligned(c->in, c->n_in) && are_aligned(c->out, c->n_out) &&
           are_aligned(c->dout, c->n_out) && are_aligned(c->din, c->n_in);
}

template <typename T, typename Y, unsigned V> static void forward_of(const struct op_call *c)
{
    const struct layer_norm_param *p = (const struct layer_norm_param *)c->param;
    struct forward_args a = { .g = norm_rows_of(p->rows, p->n, V), .epsilon = p->epsilon, .rms = p->rms,
                              .scale = (const float *)c->in[1]->data,
                              .bias = (const float *)data_of(c->in, c->n_in, 2),
                              .save = (struct row_stat *)c->save,
                              .mean = p->adds ? NULL : (float *)data_of(c->out, c->n_out, 1),
                              .rstd = (float *)data_of(c->out, c->n_out, 2),
                              .x = any_of(c->in, c->n_in, 0, false),
                              .residual = any_of(c->in, c->n_in, 3, false),
                              .sum = p->adds ? data_of(c->out, c->n_out, 1) : NULL };

    if (p->rows > 0)
        CUDA_LAUNCH((normalise<T, Y, V>), norm_rows_blocks(a.g), a.g.threads, 0, op_stream(c),
                    (Y *)data_of(c->out, c->n_out, 0), a);
}

template <typename T, typename Y, unsigned V> static void backward_of(const struct op_call *c)
{
    const struct layer_norm_param *p = (const struct layer_norm_param *)c->param;
    bool sums = op_cuda_wants(c, 1) || op_cuda_wants(c, 2);
    size_t slabs = slabs_of(p, V);
    struct backward_args a = { .g = norm_rows_of(p->rows, p->n, V, THREADS), .rms = p->rms,
                               .scale = (const float *)c->in[1]->data,
                               .save = (const struct row_stat *)c->save,
                               .dmean = p->adds ? NULL : (const float *)data_of(c->dout, c->n_out, 1),
                               .drstd = (const float *)data_of(c->dout, c->n_out, 2),
                               .dsum = any_of(p->adds ? c->dout : NULL, c->n_out, 1, false),
                               .dx = any_of(c->din, c->n_in, 0, op_cuda_adds(c, 0)),
                               .dresidual = any_of(c->din, c->n_in, 3, op_cuda_adds(c, 3)),
                               .part = sums ? (float *)c->scratch : NULL };

    auto go = a.g.wide > a.g.side * NORM_PACKS ? gradient<true, T, Y, V> : gradient<false, T, Y, V>;

    CUDA_LAUNCH(go, (unsigned)slabs, a.g.threads, 0, op_stream(c),
                (const T *)(p->adds ? c->out[1] : c->in[0])->data,
                (const Y *)data_of(c->dout, c->n_out, 0), a);
    norm_launch_fold(c, a.part, slabs, p->n, 1);
}

/* y has the type of what is normalised, or a shorter one. */
template <typename T, typename Y> static void run_of(const struct op_call *c, bool is_backward)
{
    bool packed = is_packed(c, ((const struct layer_norm_param *)c->param)->n);

    if (is_backward)
        packed ? backward_of<T, Y, PACK>(c) : backward_of<T, Y, 1>(c);
    else
        packed ? forward_of<T, Y, PACK>(c) : forward_of<T, Y, 1>(c);
}

/* of: output 0, or its gradient */
static void run(const struct op_call *c, const struct tensor *of, bool is_backward)
{
    enum tensor_dtype type = type_of(c), y = of != NULL ? of->dtype : type;

    CHECK(type == TENSOR_F32 || y == type);
    if (type == TENSOR_F32)
        OP_FLOATS(y, run_of<float, T>(c, is_backward))
    else
        OP_FLOATS(y, run_of<T, T>(c, is_backward))
}

static int forward(const struct op_call *c, struct err *err)
{
    run(c, c->out[0], false);
    return cuda_launched(err);
}

static int backward(const struct op_call *c, struct err *err)
{
    bool any_arrives = false;

    for (uint32_t i = 0; i < c->n_out; i++)
        any_arrives = any_arrives || c->dout[i] != NULL;
    if (!any_arrives)
        return op_cuda_zero(c, err);
    run(c, c->dout[0], true);
    return cuda_launched(err);
}

#define LAYER_NORM(row_) OP_CUDA(row_, .plan = plan, .fwd = forward, .bwd = backward)

LAYER_NORM(op_layer_norm);
LAYER_NORM(op_rms_norm);
LAYER_NORM(op_rms_norm_23);
LAYER_NORM(op_layer_norm_add);
LAYER_NORM(op_rms_norm_add);
