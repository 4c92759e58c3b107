/* arg_cuda.cu - see arg.c. */
#include "op/reduce/walk.cuh"

extern "C" {
#include "op/op_priv.h"
#include "op/reduce/params.h"
}

namespace {

template <typename T> struct found {
    T best;
    int64_t at; /* -1: none yet */
};

template <typename T, bool Greatest> struct arg_of {
    const T *in;
    int64_t *y;
    bool last; /* of equal elements, selects the last */

    using acc = found<T>;
    using item = T;
    struct at {};

    __device__ acc start() const { return { 0, -1 }; }
    __device__ at of(size_t) const { return {}; }
    __device__ item load(size_t i) const { return in[i]; }
    __device__ acc merge(acc a, acc b) const
    {
        bool beats, equal = a.best == b.best || (a.best != a.best && b.best != b.best);

        if (a.at < 0 || b.at < 0)
            return a.at < 0 ? b : a;
        if (equal)
            return (b.at > a.at) == last ? b : a;
        beats = (Greatest ? b.best > a.best : b.best < a.best) || b.best != b.best;
        return beats ? b : a;
    }
    __device__ acc add(acc a, item v, size_t g, at) const { return merge(a, { v, (int64_t)g }); }
    __device__ void put(size_t at, acc a) const { y[at] = a.at; }
};

} // namespace

static void walk_of(const struct arg *p, struct reduce_walk *w)
{
    const struct reduce_axis axes[3] = {
        { p->a.outer, false, p->a.inner }, { p->a.k, true, 0 }, { p->a.inner, false, 1 }
    };

    reduce_walk_make(w, axes, 3, 1);
}

static int plan(struct op_plan *p, struct err *err)
{
    struct reduce_walk w;

    (void)err;
    walk_of((const struct arg *)p->param, &w);
    p->scratch_bytes = op_round(reduce_scratch(&w, sizeof(found<int64_t>)));
    return 0;
}

template <typename T, bool Greatest> static int run(const struct op_call *c, struct err *err)
{
    const struct arg *p = (const struct arg *)c->param;
    arg_of<T, Greatest> f = { (const T *)c->in[0]->data, (int64_t *)c->out[0]->data, p->last != 0 };
    struct reduce_walk w;

    walk_of(p, &w);
    return reduce_run(op_stream(c), f, w, c->scratch, err);
}

template <bool Greatest> static int forward(const struct op_call *c, struct err *err)
{
    switch (c->in[0]->dtype) {
    case TENSOR_F32: return run<float, Greatest>(c, err);
    case TENSOR_I32: return run<int32_t, Greatest>(c, err);
    default: return run<int64_t, Greatest>(c, err);
    }
}

OP_CUDA(op_arg_max_12, .plan = plan, .fwd = forward<true>);
OP_CUDA(op_arg_max_1, .plan = plan, .fwd = forward<true>);
OP_CUDA(op_arg_min_12, .plan = plan, .fwd = forward<false>);
OP_CUDA(op_arg_min_1, .plan = plan, .fwd = forward<false>);
