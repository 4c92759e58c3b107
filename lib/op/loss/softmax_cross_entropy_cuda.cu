/* softmax_cross_entropy_cuda.cu - see softmax_cross_entropy.c. Forward and backward each read the
 * logits once. */
#include "op/loss/loss_cuda.cuh"
#include "op/reduce/exp_sum.cuh"

namespace {

struct entropy_acc {
    exp_sum e;
    double weighed; /* sum of v_j x_j, if labels are smoothed */
};

/* A row: the values for backward, and the loss. */
template <typename T> struct entropy_rows {
    const T *x;
    loss_labels l;
    float smoothing;
    double all_weights;
    struct loss_row *save; /* nullptr: there is no backward */
    loss_pair *pair;

    using acc = entropy_acc;
    using item = float;
    struct at {};

    __device__ acc start() const { return { exp_sum_start(), 0 }; }
    __device__ at of(size_t) const { return {}; }
    __device__ item load(size_t i) const { return op_wide(x[i]); }
    __device__ double weigh(float v, size_t k) const
    {
        return smoothing != 0.0f ? (double)l.class_weight(k) * (double)v : 0;
    }
    __device__ acc add(acc a, item v, size_t k, at) const
    {
        return { exp_sum_add(a.e, v), a.weighed + weigh(v, k) };
    }
    __device__ acc add_pack(acc a, const op_pack<T> &p, size_t k, at) const
    {
        a.e = exp_sum_add_pack(a.e, p);
        if (smoothing != 0.0f)
#pragma unroll
            for (size_t i = 0; i < op_pack<T>::N; i++)
                a.weighed += weigh(op_wide(p.v[i]), k + i);
        return a;
    }
    __device__ acc merge(acc a, acc b) const { return { exp_sum_merge(a.e, b.e), a.weighed + b.weighed }; }

    __device__ double loss(size_t row, int64_t label, acc a, double sum) const
    {
        double log_sum = log(sum);
        double loss =
            l.share(row, label) * loss_of_score(op_wide(x[l.place(row, label)]), a.e.max, log_sum);

        return loss_smoothed(loss, (double)smoothing,
                             (double)l.weight_of(row) / (double)l.positions.by, l.classes,
                             all_weights, log_sum, a.e.max, a.weighed);
    }
    __device__ void put(size_t row, acc a) const
    {
        double sum = isinf(a.e.max) ? (double)NAN : a.e.sum; /* inf - inf */
        int64_t label = l.label[row];
        enum loss_kind kind = l.kind(label);
        struct loss_row kept = { 0, 0 };
        loss_pair p = { 0, 0 };

        if (kind == LOSS_WRONG)
            p.sum = (double)NAN;
        if (kind == LOSS_COUNTS)
            p.weight = l.share(row, label);
        if (kind == LOSS_COUNTS && l.weight_of(row) != 0.0f) {
            kept = { a.e.max, (float)(1.0 / sum) };
            p.sum = loss(row, label, a, sum);
        }
        if (save != nullptr)
            save[row] = kept;
        pair[row] = p;
    }
};

struct alignas(16) entropy_slope { /* of a row */
    float max;
    struct loss_slope by;
    uint32_t label; /* NO_CLASS: no class */
    bool counts;    /* false: the gradient is 0, also if x is NaN */
};

constexpr uint32_t NO_CLASS = UINT32_MAX;

__global__ void entropy_slopes(loss_labels l, size_t rows, const struct loss_row *save,
                               const float *dy, const struct op_run *run, float smoothing,
                               float all_weights, entropy_slope *out)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows;
         i += (size_t)gridDim.x * blockDim.x) {
        float weight = l.weight_of(i),
              coef = *dy * run->loss_scale / (float)l.positions.by * weight;
        int64_t label = l.label[i];
        enum loss_kind kind = l.kind(label);
        entropy_slope s = { save[i].max, { 0, 0, 0 }, NO_CLASS, kind == LOSS_WRONG };

        if (kind == LOSS_COUNTS && weight != 0.0f) {
            s.by = loss_slope_of(coef, l.class_weight((size_t)label), smoothing, l.classes,
                                 all_weights, save[i].scale);
            s.label = (uint32_t)label;
            s.counts = true;
        } else if (kind == LOSS_WRONG) {
            s.by.factor = NAN;
        }
        out[i] = s;
    }
}

template <typename T> struct entropy_back {
    const T *x, *t;
    const entropy_slope *slope;
    const float *class_weights;

    using number = T;

    __device__ entropy_slope of(size_t row) const { return slope[row]; }
    __device__ float operator()(const entropy_slope &s, float v, float, size_t k) const
    {
        float d = exp_sum_e(v - s.max) * s.by.factor;

        if (!s.counts)
            return 0.0f;
        if ((uint32_t)k == s.label)
            d -= s.by.hard;
        if (s.by.soft != 0.0f)
            d -= s.by.soft * (class_weights != nullptr ? class_weights[k] : 1.0f);
        return d;
    }
};

} // namespace

static int plan(struct op_plan *p, struct err *err)
{
    const struct cross_entropy *s = (const struct cross_entropy *)p->param;
    size_t rows = loss_rows(&s->rows), slopes = loss_round(rows * sizeof(entropy_slope));
    int rc;

    if (s->rows.classes >= NO_CLASS)
        return err_set(err, ERR_UNSUPPORTED, "%s '%s': %zu classes; a GPU takes fewer than %u: train with --devices "
                       "cpu", p->def->name, p->node, s->rows.classes, NO_CLASS);
    rc = loss_cuda_plan(p, &s->rows, sizeof(entropy_acc), err);

    if (p->training)
        p->save_bytes = rows * sizeof(struct loss_row);
    if (p->scratch_bytes < slopes)
        p->scratch_bytes = slopes;
    return rc;
}

template <typename T> static int rows_forward(const struct op_call *c, struct err *err)
{
    const struct cross_entropy *s = (const struct cross_entropy *)c->param;
    entropy_rows<T> f = { (const T *)c->in[0]->data, loss_labels_of(c, &s->rows), s->smoothing,
                          s->rows.all_weights, (struct loss_row *)c->save, (loss_pair *)c->scratch };

    return reduce_run(op_stream(c), f, loss_state_of(c)->rows, loss_fold_room(c, &s->rows), err);
}

static int forward(const struct op_call *c, struct err *err)
{
    const struct cross_entropy *s = (const struct cross_entropy *)c->param;
    loss_stored pairs = { (const loss_pair *)c->scratch };
    int rc = loss_scan(c, &s->rows, err);

    if (rc == 0)
        OP_FLOATS(c->in[0]->dtype, rc = rows_forward<T>(c, err));
    return rc < 0 ? rc
                  : loss_fold_run(c, loss_rows(&s->rows), pairs, loss_put_of(c, true),
                                  loss_fold_room(c, &s->rows), err);
}

template <typename T> static int rows_backward(const struct op_call *c, struct err *err)
{
    entropy_back<T> f = { (const T *)c->in[0]->data, NULL, (const entropy_slope *)c->scratch,
                          loss_state_of(c)->class_weights };

    return reduce_spread(op_stream(c), f, loss_state_of(c)->rows, (T *)c->din[0]->data,
                         op_cuda_adds(c, 0), err);
}

static int backward(const struct op_call *c, struct err *err)
{
    const struct cross_entropy *s = (const struct cross_entropy *)c->param;
    size_t rows = loss_rows(&s->rows);

    if (c->dout[0] == NULL || c->din[0] == NULL)
        return op_cuda_zero(c, err);
    if (rows == 0 || s->rows.classes == 0)
        return 0;
    CUDA_LAUNCH(entropy_slopes, op_blocks(rows, OP_THREADS), OP_THREADS, 0, op_stream(c),
                loss_labels_of(c, &s->rows), rows, (const struct loss_row *)c->save,
                (const float *)c->dout[0]->data, c->run->device, s->smoothing,
                (float)s->rows.all_weights, (entropy_slope *)c->scratch);
    OP_FLOATS(c->in[0]->dtype, return rows_backward<T>(c, err));
    return 0;
}

OP_CUDA(op_softmax_cross_entropy, .plan = plan, .fwd = forward, .bwd = backward, .free_state = loss_cuda_free);
