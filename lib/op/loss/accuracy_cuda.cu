/* accuracy_cuda.cu - see accuracy.c. */
#include "op/loss/loss_cuda.cuh"

namespace {

constexpr unsigned long long NOT_A_NUMBER = 1ull << 63;

/* A row is correct if fewer than k scores rank before the score of its label. */
template <typename T> struct rivals {
    const T *x;
    loss_labels l;
    int64_t k;
    loss_pair *pair;

    using acc = unsigned long long; /* the number of those scores; bit 63: the row has a NaN */
    using item = float;
    struct at {
        float best;
        size_t label;
    };

    __device__ acc start() const { return 0; }
    __device__ at of(size_t row) const
    {
        int64_t label = l.label[row];

        if (l.kind(label) != LOSS_COUNTS)
            return { 0.0f, 0 };
        return { op_wide(x[l.place(row, label)]), (size_t)label };
    }
    __device__ item load(size_t i) const { return op_wide(x[i]); }
    __device__ acc add(acc a, item v, size_t j, at own) const
    {
        a += j < own.label ? v >= own.best : v > own.best;
        return v != v ? a | NOT_A_NUMBER : a;
    }
    __device__ acc merge(acc a, acc b) const
    {
        return ((a | b) & NOT_A_NUMBER) | ((a & ~NOT_A_NUMBER) + (b & ~NOT_A_NUMBER));
    }
    __device__ void put(size_t row, acc a) const
    {
        int64_t label = l.label[row];
        enum loss_kind kind = l.kind(label);
        loss_pair p = { kind == LOSS_WRONG ? (double)NAN : 0, 0 };

        if (kind == LOSS_COUNTS)
            p.weight = l.share(row, label);
        if (p.weight != 0 && a < (acc)k)
            p.sum = p.weight;
        pair[row] = p;
    }
};

} // namespace

static int plan(struct op_plan *p, struct err *err)
{
    const struct accuracy *s = (const struct accuracy *)p->param;

    return loss_cuda_plan(p, &s->rows, sizeof(unsigned long long), err);
}

template <typename T> static int rows_forward(const struct op_call *c, struct err *err)
{
    const struct accuracy *s = (const struct accuracy *)c->param;
    rivals<T> f = { (const T *)c->in[0]->data, loss_labels_of(c, &s->rows), s->k, (loss_pair *)c->scratch };

    return reduce_run(op_stream(c), f, loss_state_of(c)->rows, loss_fold_room(c, &s->rows), err);
}

static int forward(const struct op_call *c, struct err *err)
{
    const struct accuracy *s = (const struct accuracy *)c->param;
    loss_stored pairs = { (const loss_pair *)c->scratch };
    int rc = loss_scan(c, &s->rows, err);

    if (rc == 0)
        OP_FLOATS(c->in[0]->dtype, rc = rows_forward<T>(c, err));
    return rc < 0 ? rc
                  : loss_fold_run(c, loss_rows(&s->rows), pairs, loss_put_of(c, false),
                                  loss_fold_room(c, &s->rows), err);
}

OP_CUDA(op_accuracy, .plan = plan, .fwd = forward, .free_state = loss_cuda_free);
