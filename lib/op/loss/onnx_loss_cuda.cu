/* onnx_loss_cuda.cu - see onnx_loss.c. A row is the scores of one position. A label that is out of
 * range is noted (op_report); the loss and the gradient of its row become NaN. */
#include "op/loss/loss_cuda.cuh"
#include "op/reduce/exp_sum.cuh"

namespace {

struct onnx_labels {
    const int64_t *wide; /* one of `wide` and `narrow` is not nullptr */
    const int32_t *narrow;
    const float *weights; /* of the classes; nullptr: all 1 */
    struct op_divisor space;
    size_t classes;
    bool has_ignored;
    int64_t ignored;

    __device__ enum loss_kind kind(int64_t l) const
    {
        return loss_kind_of(l, classes, has_ignored, ignored);
    }
    __device__ int64_t label(size_t i) const { return wide != nullptr ? wide[i] : narrow[i]; }
    /* The weight of a label that is in range or ignored. */
    __device__ double weight(int64_t l) const
    {
        return kind(l) == LOSS_IGNORED ? 0 : weights != nullptr ? (double)weights[l] : 1;
    }
    __device__ size_t place(size_t row, int64_t k) const
    {
        size_t i = op_divide(row, space);

        return (i * classes + (size_t)k) * space.by + (row - i * space.by);
    }
};

struct is_wrong {
    onnx_labels l;

    __device__ bool operator()(size_t i, int64_t *label) const
    {
        *label = l.label(i);
        return l.kind(*label) == LOSS_WRONG;
    }
};

/* The maximum of a row, and the sum of its softmax. */
struct measure {
    const float *x;
    struct loss_position *save;

    using acc = exp_sum;
    using item = float;
    struct at {};

    __device__ acc start() const { return exp_sum_start(); }
    __device__ at of(size_t) const { return {}; }
    __device__ item load(size_t i) const { return x[i]; }
    __device__ acc add(acc a, item v, size_t, at) const { return exp_sum_add(a, v); }
    __device__ acc add_pack(acc a, const op_pack<float> &p, size_t, at) const { return exp_sum_add_pack(a, p); }
    __device__ acc merge(acc a, acc b) const { return exp_sum_merge(a, b); }
    __device__ void put(size_t row, acc a) const
    {
        save[row] = { a.max, isinf(a.max) ? NAN : (float)log(a.sum) }; /* inf - inf */
    }
};

/* y = log_softmax(x) */
struct log_prob {
    const float *x, *t;
    const struct loss_position *save;

    using number = float;

    __device__ struct loss_position of(size_t row) const { return save[row]; }
    __device__ float operator()(struct loss_position at, float v, float, size_t) const
    {
        return v - at.max - at.log_sum;
    }
};

/* The loss of row i, and its weight. */
struct onnx_row {
    const float *x;
    onnx_labels l;
    const struct loss_position *save; /* nullptr: x are log-probabilities */

    __device__ loss_pair operator()(size_t i) const
    {
        int64_t label = l.label(i);
        enum loss_kind kind = l.kind(label);
        float score;

        if (kind != LOSS_COUNTS)
            return { kind == LOSS_WRONG ? (double)NAN : 0, 0 };
        score = x[l.place(i, label)];
        return { l.weight(label) * (save != nullptr ? loss_of_score(score, save[i].max, (double)save[i].log_sum)
                                                    : -(double)score),
                 l.weight(label) };
    }
};

__global__ void each_row(onnx_row row, size_t n, float *y)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        y[i] = (float)row(i).sum;
}

struct onnx_put {
    float *y;
    bool is_mean;

    __device__ void operator()(loss_pair all) const { *y = (float)(is_mean ? all.sum / all.weight : all.sum); }
};

/* ---- backward ---- */

struct all_weights {
    onnx_labels l;

    __device__ loss_pair operator()(size_t i) const
    {
        int64_t label = l.label(i);

        return { 0, l.kind(label) == LOSS_WRONG ? 0 : l.weight(label) };
    }
};

struct one_of {
    double *scale;

    __device__ void operator()(loss_pair all) const { *scale = all.weight != 0 ? 1 / all.weight : 0; }
};

/* The sum of v over the classes of a row. */
struct sum_of_v {
    const float *x;
    double *sum;

    using acc = double;
    using item = float;
    struct at {};

    __device__ acc start() const { return 0; }
    __device__ at of(size_t) const { return {}; }
    __device__ item load(size_t i) const { return x[i]; }
    __device__ acc add(acc a, item v, size_t, at) const { return a + (double)v; }
    __device__ acc merge(acc a, acc b) const { return a + b; }
    __device__ void put(size_t row, acc a) const { sum[row] = a; }
};

struct arrives {
    const float *dy; /* nullptr: 0 */
    const double *scale; /* nullptr: 1 */
    bool is_each;
    onnx_labels l;

    /* The gradient of the loss of a row, times its weight. */
    __device__ float operator()(size_t i) const
    {
        int64_t label = l.label(i);
        enum loss_kind kind = l.kind(label);
        double w = kind == LOSS_WRONG ? 0 : l.weight(label);

        if (kind == LOSS_WRONG)
            return NAN;
        if (dy == nullptr || w == 0)
            return 0.0f;
        return (float)((double)dy[is_each ? i : 0] * (scale != nullptr ? *scale : 1) * w);
    }
};

/* The coefficients of a row: dx = e^(x - max - log_sum) factor + v - [c = label] outer. */
struct alignas(16) onnx_slope {
    float max, log_sum, factor, outer;
    int64_t label;
};

/* sums: of v; may be nullptr. */
__global__ void onnx_slopes(arrives from, size_t n, const struct loss_position *save,
                            const double *sums, onnx_slope *out)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        float outer = from(i), factor = sums != nullptr ? (float)((double)outer - sums[i]) : outer;

        out[i] = { save[i].max, save[i].log_sum, factor, outer, from.l.label(i) };
    }
}

struct onnx_back {
    const float *x, *t; /* t: v, or nullptr */
    const onnx_slope *slope;

    using number = float;

    __device__ onnx_slope of(size_t row) const { return slope[row]; }
    __device__ float operator()(const onnx_slope &s, float a, float v, size_t k) const
    {
        float d = expf(a - s.max - s.log_sum) * s.factor + v;

        return (int64_t)k == s.label ? d - s.outer : d;
    }
};

/* A thread per row, which writes the only element of dx that is not 0. */
__global__ void nll_back(arrives from, size_t n, float *dx)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        int64_t label = from.l.label(i);

        dx[from.l.place(i, from.l.kind(label) == LOSS_COUNTS ? label : 0)] -= from(i);
    }
}

} // namespace

static size_t rows_of(const struct onnx_loss *p)
{
    return p->n * p->space;
}

/* The walk over the scores: a fold over classes. */
static void walk_of(const struct onnx_loss *p, struct reduce_walk *w)
{
    const struct reduce_axis axes[3] = { { p->n, false, p->space }, { p->classes, true, 0 }, { p->space, false, 1 } };

    reduce_walk_make(w, axes, 3, 16 / sizeof(float));
}

static onnx_labels labels_of(const struct op_call *c)
{
    const struct onnx_loss *p = (const struct onnx_loss *)c->param;
    const struct tensor *t = c->in[1];

    return { t->dtype == TENSOR_I64 ? (const int64_t *)t->data : NULL,
             t->dtype == TENSOR_I64 ? NULL : (const int32_t *)t->data,
             c->n_in > 2 && c->in[2] != NULL ? (const float *)c->in[2]->data : NULL, op_divisor_of(p->space),
             p->classes, p->has_ignored, p->ignored };
}

/* Scratch: slopes, sums of v, the scale, then the scratch of the folds. */
struct places {
    size_t sums, scale, room;
};

static places places_of(const struct onnx_loss *p)
{
    size_t sums = loss_round(rows_of(p) * sizeof(onnx_slope));
    size_t scale = sums + loss_round(rows_of(p) * sizeof(double));

    return { sums, scale, scale + loss_round(sizeof(double)) };
}

static int plan(struct op_plan *p, struct err *err)
{
    const struct onnx_loss *l = (const struct onnx_loss *)p->param;
    size_t rows, all = loss_fold_scratch(rows_of(l));
    struct reduce_walk w;

    (void)err;
    walk_of(l, &w);
    rows = loss_round(reduce_scratch(&w, sizeof(exp_sum)));
    p->scratch_bytes = places_of(l).room + (rows > all ? rows : all);
    if (l->softmax)
        p->save_bytes = rows_of(l) * sizeof(struct loss_position);
    return 0;
}

static int softmax_forward(const struct op_call *c, void *room, struct err *err)
{
    const struct onnx_loss *p = (const struct onnx_loss *)c->param;
    const float *x = (const float *)c->in[0]->data;
    struct loss_position *save = (struct loss_position *)c->save;
    struct reduce_walk w;
    int rc;

    walk_of(p, &w);
    rc = reduce_run(op_stream(c), measure{ x, save }, w, room, err);
    if (rc < 0 || loss_out(c, 1) == NULL)
        return rc;
    return reduce_spread(op_stream(c), log_prob{ x, NULL, save }, w, loss_out(c, 1), false, err);
}

static int forward(const struct op_call *c, struct err *err)
{
    const struct onnx_loss *p = (const struct onnx_loss *)c->param;
    onnx_row row = { (const float *)c->in[0]->data, labels_of(c),
                     p->softmax ? (const struct loss_position *)c->save : NULL };
    void *room = (char *)c->scratch + places_of(p).room;
    float *y = loss_out(c, 0);
    size_t n = rows_of(p);
    int rc = op_cuda_scan(c, n, is_wrong{ row.l }, err);

    if (rc == 0 && p->softmax)
        rc = softmax_forward(c, room, err);
    if (rc < 0 || y == NULL)
        return rc;
    if (p->reduction != LOSS_NONE)
        return loss_fold_run(c, n, row, onnx_put{ y, p->reduction == LOSS_MEAN }, room, err);
    if (n > 0)
        CUDA_LAUNCH(each_row, op_blocks(n, OP_THREADS), OP_THREADS, 0, op_stream(c), row, n, y);
    return cuda_launched(err);
}

static int softmax_backward(const struct op_call *c, const arrives &from, const float *v,
                            struct err *err)
{
    const struct onnx_loss *p = (const struct onnx_loss *)c->param;
    char *scratch = (char *)c->scratch;
    double *sums = v != NULL ? (double *)(scratch + places_of(p).sums) : NULL;
    onnx_slope *slopes = (onnx_slope *)scratch;
    struct reduce_walk w;
    int rc = 0;

    walk_of(p, &w);
    if (v != NULL)
        rc = reduce_run(op_stream(c), sum_of_v{ v, sums }, w, scratch + places_of(p).room, err);
    if (rc < 0)
        return rc;
    CUDA_LAUNCH(onnx_slopes, op_blocks(rows_of(p), OP_THREADS), OP_THREADS, 0, op_stream(c), from,
                rows_of(p), (const struct loss_position *)c->save, (const double *)sums, slopes);
    return reduce_spread(op_stream(c), onnx_back{ (const float *)c->in[0]->data, v, slopes }, w,
                         (float *)c->din[0]->data, op_cuda_adds(c, 0), err);
}

static int backward(const struct op_call *c, struct err *err)
{
    const struct onnx_loss *p = (const struct onnx_loss *)c->param;
    const float *v = c->n_out > 1 && c->dout[1] != NULL ? (const float *)c->dout[1]->data : NULL;
    double *scale = (double *)((char *)c->scratch + places_of(p).scale);
    arrives from = { c->dout[0] != NULL ? (const float *)c->dout[0]->data : NULL,
                     p->reduction == LOSS_MEAN ? scale : NULL, p->reduction == LOSS_NONE, labels_of(c) };
    size_t n = rows_of(p);
    int rc = 0;

    if ((c->dout[0] == NULL && v == NULL) || c->din[0] == NULL)
        return op_cuda_zero(c, err);
    if (n == 0)
        return 0;
    if (p->reduction == LOSS_MEAN)
        rc = loss_fold_run(c, n, all_weights{ from.l }, one_of{ scale }, (char *)c->scratch + places_of(p).room, err);
    if (rc == 0 && p->softmax)
        return softmax_backward(c, from, v, err);
    if (rc == 0)
        rc = op_cuda_zero(c, err);
    if (rc < 0)
        return rc;
    CUDA_LAUNCH(nll_back, op_blocks(n, OP_THREADS), OP_THREADS, 0, op_stream(c), from, n,
                (float *)c->din[0]->data);
    return cuda_launched(err);
}

OP_CUDA(op_softmax_cross_entropy_loss, .plan = plan, .fwd = forward, .bwd = backward);
OP_CUDA(op_negative_log_likelihood_loss, .plan = plan, .fwd = forward, .bwd = backward);
