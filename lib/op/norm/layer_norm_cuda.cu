/* layer_norm_cuda.cu - LayerNormalization, RMSNormalization: rows (rows_cuda.cuh) of x or of its
 * sum with a residual. Forward is one launch, which reads and writes each operand once. Backward is
 * two launches: the first computes dx, adds the gradients that bypass the norm, and sums the
 * gradients of scale and bias over the rows of each block; the second adds those sums up. */
#include "op/norm/rows_cuda.cuh"

extern "C" {
#include "base/check.h"
#include "op/norm/norm_priv.h"
}

/* Backward keeps sums of columns in registers; three resident blocks of 128 threads leave enough
 * of them for each thread (RESIDENT: two blocks if a thread processes packs). */
static constexpr unsigned THREADS = 128, SLABS = 3 * OP_PROCESSORS;

template <unsigned V> static constexpr unsigned RESIDENT = V > 1 ? 2 : 3;

namespace {

/* Numbers of a type that is only known at run time; all threads of a kernel take the same
 * branch. */
struct numbers {
    void *at; /* NULL: absent */
    enum tensor_dtype type;
    bool adds; /* accumulates */
};

template <typename T, unsigned V>
__device__ static inline op_pack<float, V> load_as(const void *at, size_t pack)
{
    const op_pack<T, V> p = ((const op_pack<T, V> *)at)[pack];
    op_pack<float, V> v;

#pragma unroll
    for (unsigned j = 0; j < V; j++)
        v.v[j] = op_wide(p.v[j]);
    return v;
}

/* Loads pack `pack` of V numbers as float32. */
template <unsigned V>
__device__ static inline op_pack<float, V> numbers_load(const numbers &a, size_t pack)
{
    OP_FLOATS(a.type, return (load_as<T, V>(a.at, pack)));
    return {};
}

template <typename T, unsigned V>
__device__ static inline void store_as(void *at, bool adds, size_t pack, const op_pack<float, V> &v)
{
    op_pack<T, V> p = {};

    if (adds)
        p = ((const op_pack<T, V> *)at)[pack];
#pragma unroll
    for (unsigned j = 0; j < V; j++)
        p.v[j] = op_narrow<T>(adds ? op_wide(p.v[j]) + v.v[j] : v.v[j]);
    ((op_pack<T, V> *)at)[pack] = p;
}

template <unsigned V>
__device__ static inline void numbers_store(const numbers &a, size_t pack,
                                            const op_pack<float, V> &v)
{
    OP_FLOATS(a.type, (store_as<T, V>(a.at, a.adds, pack, v)));
}

__device__ static inline float rounded_as(enum tensor_dtype type, float x)
{
    OP_FLOATS(type, return op_wide(op_narrow<T>(x)));
    return x;
}

/* Loads a thread's packs of the part of a row that begins at pack `first`: of type T, or, if V is
 * 1, of any type. */
template <typename T, unsigned V>
__device__ static inline void load_part(norm_part<T, V> &part, const numbers &from,
                                        const struct norm_rows &g, size_t row, unsigned first,
                                        unsigned at)
{
    if constexpr (V == 1)
        norm_each_pack(g, first, at, [&](unsigned i, unsigned pack) {
            part.p[i].v[0] = from.at != NULL ? numbers_load<1>(from, row * g.n + pack).v[0] : 0;
        });
    else
        part.load(from.at != NULL ? (const T *)from.at + row * g.n : NULL, g, first, at);
}

template <typename T, unsigned V>
__device__ static inline void put(const numbers &to, size_t pack, const op_pack<float, V> &v)
{
    if constexpr (V == 1)
        numbers_store<V>(to, pack, v);
    else
        store_as<T, V>(to.at, false, pack, v);
}

struct forward_args {
    struct norm_rows g;
    float epsilon;
    bool rms;
    const float *scale, *bias;
    struct row_stat *save;
    float *mean, *rstd; /* outputs 1 and 2, or NULL */
    numbers x, residual;
    numbers sum;        /* x + residual, the normalised tensor, if not NULL */
    numbers y;
};

/* Loads parts of a row of the normalised tensor. A sum is computed when a part is first loaded. */
template <typename T, unsigned V> struct row_source {
    const struct forward_args &a;
    const norm_place &me;
    norm_part<T, V> &part;
    unsigned seen = 0; /* packs before this index are in `sum` */

    __device__ void operator()(unsigned first)
    {
        const struct norm_rows &g = a.g;
        const size_t row = me.row * g.wide;

        if (a.residual.at == NULL) {
            load_part(part, a.x, g, me.row, first, me.at);
        } else if (first < seen) {
            load_part(part, a.sum, g, me.row, first, me.at);
        } else {
            norm_each_pack(g, first, me.at, [&](unsigned i, unsigned pack) {
                op_pack<float, V> x = numbers_load<V>(a.x, row + pack);
                const op_pack<float, V> r = numbers_load<V>(a.residual, row + pack);

#pragma unroll
                for (unsigned j = 0; j < V; j++)
                    x.v[j] += r.v[j];
                if (a.sum.at != NULL)
                    put<T, V>(a.sum, row + pack, x);
                if constexpr (V == 1) /* T is wider than the stored type */
                    x.v[0] = rounded_as(a.sum.type, x.v[0]);
#pragma unroll
                for (unsigned j = 0; j < V; j++)
                    part.p[i].v[j] = op_narrow<T>(x.v[j]);
            });
            if (a.sum.at != NULL)
                seen = first + g.side * NORM_PACKS;
        }
    }
};

/* y = (x - mean) rstd scale + bias, of x or of the sum of x and the residual, which has type T. V
 * 1: any types, T and Y are float. */
template <typename T, typename Y, unsigned V>
__global__ void __launch_bounds__(NORM_ROW_THREADS) normalise(struct forward_args a)
{
    __shared__ float room[64];
    const struct norm_rows &g = a.g;
    const norm_place me(g, blockIdx.x);
    norm_part<T, V> part;
    row_source<T, V> load = { a, me, part };
    struct row_stat s;

    if (me.row >= g.rows) /* a whole warp returns; no thread waits for it */
        return;
    s = norm_row_measure<T, V>(load, g, me.at, a.epsilon, a.rms, part, room);
    if (me.at == 0) {
        a.save[me.row] = s;
        if (a.mean != NULL)
            a.mean[me.row] = s.mean;
        if (a.rstd != NULL)
            a.rstd[me.row] = s.rstd;
    }
    if (a.y.at == NULL)
        return;
    for (unsigned first = 0; first < g.wide; first += g.side * NORM_PACKS) {
        if (first > 0)
            load(first);
        norm_each_pack(g, first, me.at, [&](unsigned i, unsigned pack) {
            const op_pack<float, V> k = ((const op_pack<float, V> *)a.scale)[pack];
            op_pack<float, V> b = {}, out;

            if (a.bias != NULL)
                b = ((const op_pack<float, V> *)a.bias)[pack];
#pragma unroll
            for (unsigned j = 0; j < V; j++)
                out.v[j] = (op_wide(part.p[i].v[j]) - s.mean) * s.rstd * k.v[j] + b.v[j];
            put<Y, V>(a.y, me.row * g.wide + pack, out);
        });
    }
}

struct backward_args {
    struct norm_rows g;
    bool rms;
    const float *scale;
    const struct row_stat *save;
    const float *dmean, *drstd; /* gradients of outputs 1 and 2, or NULL */
    numbers x, dy;
    numbers dsum;               /* incoming gradient of the sum itself */
    numbers dx, dresidual;      /* outputs, both the same gradient */
    float *part;                /* [blocks][2][n]: sums for scale and bias; NULL: not requested */
};

/* dx = rstd g - b - (x - mean) k, with g = dy scale. */
__device__ static inline float2 line_of(const struct backward_args &a, size_t row,
                                        struct row_stat s, float2 sums)
{
    float n = (float)a.g.n, cube = s.rstd * s.rstd * s.rstd;
    float b = a.rms ? 0 : s.rstd * sums.x, k = cube * sums.y;

    if (a.dmean != NULL && !a.rms)
        b -= a.dmean[row];
    if (a.drstd != NULL)
        k += cube * a.drstd[row];
    return make_float2(b / n, k / n);
}

/* Sums over a thread's rows of the columns that it owns, in registers; used if a row fits there. */
template <unsigned V> struct column_sums {
    float scale[NORM_PACKS][V], bias[NORM_PACKS][V];
};

/* Processes one part of a row: dx, and its contribution to the column sums. */
template <bool LONG, typename T, typename Y, unsigned V>
__device__ static inline void backward_part(const struct backward_args &a, const norm_part<T, V> &x,
                                            const norm_part<Y, V> &dy, unsigned first, unsigned at,
                                            struct row_stat s, float2 line, size_t row, float *part,
                                            column_sums<V> &sums)
{
    norm_each_pack(a.g, first, at, [&](unsigned i, unsigned pack) {
        const op_pack<float, V> k = ((const op_pack<float, V> *)a.scale)[pack];
        const size_t place = row * a.g.wide + pack;
        op_pack<float, V> out = {};

        if (a.dsum.at != NULL)
            out = numbers_load<V>(a.dsum, place);
#pragma unroll
        for (unsigned j = 0; j < V; j++) {
            float d = op_wide(x.p[i].v[j]) - s.mean, g = op_wide(dy.p[i].v[j]);

            /* exactly 0 in rows of one */
            out.v[j] += __fmul_rn(s.rstd, g * k.v[j]) - line.x - d * line.y;
            if constexpr (!LONG) {
                sums.scale[i][j] += g * (d * s.rstd);
                sums.bias[i][j] += g;
            } else if (part != NULL) { /* the thread's own columns, in memory */
                part[pack * V + j] += g * (d * s.rstd);
                part[a.g.n + pack * V + j] += g;
            }
        }
        if (a.dx.at != NULL)
            numbers_store<V>(a.dx, place, out);
        if (a.dresidual.at != NULL)
            numbers_store<V>(a.dresidual, place, out);
    });
}

/* own [2][n] = the sums of a block: one warp after another, in order. */
template <unsigned V>
__device__ static inline void store_columns(const struct norm_rows &g, const column_sums<V> &sums,
                                            float *own)
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

/* Block i processes rows i, i + blocks, ... (or as many at a time as it has warps) in sequence.
 * LONG: rows do not fit into registers. */
template <bool LONG, typename T, typename Y, unsigned V>
__global__ void __launch_bounds__(THREADS, RESIDENT<V>) gradient(struct backward_args a)
{
    __shared__ float room[64];
    const struct norm_rows &g = a.g;
    /* not LONG: one iteration */
    const unsigned step = g.side * NORM_PACKS, wide = LONG ? g.wide : 1;
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
            load_part(px, a.x, g, me.row, first, at);
            load_part(pd, a.dy, g, me.row, first, at);
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
                load_part(px, a.x, g, me.row, first, at);
                load_part(pd, a.dy, g, me.row, first, at);
            }
            backward_part<LONG, T, Y, V>(a, px, pd, first, at, s, of_row, me.row, own, sums);
        }
    }
    if constexpr (!LONG)
        if (own != NULL)
            store_columns<V>(g, sums, own);
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
        /* at least as many as with packs */
        p->scratch_bytes = slabs_of(l, 1) * 2 * l->n * sizeof(float);
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

static numbers numbers_of(const struct tensor *const *t, uint32_t n, uint32_t i, bool adds)
{
    const struct tensor *at = tensor_of(t, n, i);

    return at != NULL ? numbers{ at->data, at->dtype, adds } : numbers{ NULL, TENSOR_F32, false };
}

/* Type of the normalised tensor: a sum is float32 if one of its summands is. */
static enum tensor_dtype type_of(const struct op_call *c)
{
    bool adds = ((const struct layer_norm_param *)c->param)->adds;

    return adds && c->in[3]->dtype == TENSOR_F32 ? TENSOR_F32 : c->in[0]->dtype;
}

/* Numbers per pack: 16 bytes of the shorter type, if rows are multiples of it. */
static constexpr unsigned PACK = 8;

static bool are_aligned(const struct tensor *const *t, uint32_t n)
{
    bool all = true;

    /* backward does not read some of them, but their addresses are aligned, too */
    for (uint32_t i = 0; t != NULL && i < n; i++)
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
                              .x = numbers_of(c->in, c->n_in, 0, false),
                              .residual = numbers_of(c->in, c->n_in, 3, false),
                              .sum = { p->adds ? data_of(c->out, c->n_out, 1) : NULL, type_of(c), false },
                              .y = numbers_of(c->out, c->n_out, 0, false) };

    if (p->rows > 0)
        CUDA_LAUNCH((normalise<T, Y, V>), norm_rows_blocks(a.g), a.g.threads, 0, op_stream(c), a);
}

template <typename T, typename Y, unsigned V> static void backward_of(const struct op_call *c)
{
    const struct layer_norm_param *p = (const struct layer_norm_param *)c->param;
    bool sums = op_cuda_wants(c, 1) || op_cuda_wants(c, 2);
    size_t slabs = slabs_of(p, V), resident = SLABS / 3 * RESIDENT<V>;
    struct backward_args a = { .g = norm_rows_of(p->rows, p->n, V, THREADS), .rms = p->rms,
                               .scale = (const float *)c->in[1]->data,
                               .save = (const struct row_stat *)c->save,
                               .dmean = p->adds ? NULL : (const float *)data_of(c->dout, c->n_out, 1),
                               .drstd = (const float *)data_of(c->dout, c->n_out, 2),
                               .x = p->adds ? numbers_of(c->out, c->n_out, 1, false)
                                            : numbers_of(c->in, c->n_in, 0, false),
                               .dy = numbers_of(c->dout, c->n_out, 0, false),
                               .dsum = numbers_of(p->adds ? c->dout : NULL, c->n_out, 1, false),
                               .dx = numbers_of(c->din, c->n_in, 0, op_cuda_adds(c, 0)),
                               .dresidual = numbers_of(c->din, c->n_in, 3, op_cuda_adds(c, 3)),
                               .part = sums ? (float *)c->scratch : NULL };

    auto go = a.g.wide > a.g.side * NORM_PACKS ? gradient<true, T, Y, V> : gradient<false, T, Y, V>;

    slabs = slabs < resident ? slabs : resident;
    CUDA_LAUNCH(go, (unsigned)slabs, a.g.threads, 0, op_stream(c), a);
    norm_launch_fold(c, a.part, slabs, p->n, 1);
}

template <typename T, typename Y, unsigned V>
static void run_of(const struct op_call *c, bool is_backward)
{
    is_backward ? backward_of<T, Y, V>(c) : forward_of<T, Y, V>(c);
}

/* of: output 0 or its gradient, whose type is that of the normalised tensor or shorter. */
static void run(const struct op_call *c, const struct tensor *of, bool is_backward)
{
    enum tensor_dtype type = type_of(c), y = of != NULL ? of->dtype : type;

    CHECK(type == TENSOR_F32 || y == type);
    if (!is_packed(c, ((const struct layer_norm_param *)c->param)->n))
        run_of<float, float, 1>(c, is_backward);
    else if (type == TENSOR_F32)
        OP_FLOATS(y, (run_of<float, T, PACK>(c, is_backward)))
    else
        OP_FLOATS(y, (run_of<T, T, PACK>(c, is_backward)))
}

static int forward(const struct op_call *c, struct err *err)
{
    run(c, c->out[0], false);
    return cuda_launched(err);
}

static int backward(const struct op_call *c, struct err *err)
{
    bool arrives = false;

    for (uint32_t i = 0; i < c->n_out; i++)
        arrives = arrives || c->dout[i] != NULL;
    if (!arrives)
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
