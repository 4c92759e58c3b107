/* whole_cuda.cu - see reduce_cuda.cuh and whole.c. */
#include <climits>
#include <cstdlib>

#include "op/reduce/reduce_cuda.cuh"

extern "C" {
#include "op/op_priv.h"
}

/* Describes the axes of x in memory order, with their strides in y. */
int reduce_cuda_plan(struct op_plan *p, struct err *err)
{
    const struct reduce *r = (const struct reduce *)p->param;
    const struct tensor *x = p->in[0], *y = &p->out[0];
    struct reduce_walk *w = (struct reduce_walk *)calloc(1, sizeof(*w));
    struct reduce_axis axes[TENSOR_MAX_RANK] = {};
    size_t y_of[TENSOR_MAX_RANK] = {}; /* stride in y of each axis of x */
    uint32_t order[TENSOR_MAX_RANK];
    ptrdiff_t steps[TENSOR_MAX_RANK];

    if (w == NULL)
        return err_set(err, ERR_NOMEM, "%s '%s': out of memory", p->def->name, p->node);
    op_memory_order(x, order);
    op_strides(y, steps);
    for (uint32_t i = 0; i < y->shape.rank; i++)
        y_of[r->axis[i]] = (size_t)steps[i];
    for (uint32_t i = 0; i < x->shape.rank; i++)
        axes[i] = { (size_t)x->shape.dim[order[i]], (r->set & (1u << order[i])) != 0, y_of[order[i]] };
    reduce_walk_make(w, axes, x->shape.rank, 16 / sizeof(float));
    p->scratch_bytes = op_round(w->ys * REDUCE_ACC) + op_round(reduce_scratch(w, REDUCE_ACC));
    p->state = w;
    return 0;
}

void reduce_cuda_free(void *state)
{
    free(state);
}

/* ---- integers ---- */

namespace {

/* T: unsigned, so that sums and products wrap; signed for extremes. by: divisor of the sum. */
template <typename T, int How> struct whole {
    const T *in;
    T *y;
    int64_t by;

    using acc = T;
    using item = T;
    struct at {};

    __device__ acc start() const
    {
        constexpr T least = sizeof(T) == 4 ? (T)INT_MIN : (T)LLONG_MIN;

        return How == WHOLE_PROD ? 1 : How == WHOLE_MAX ? least : How == WHOLE_MIN ? (T)~least : 0;
    }
    __device__ at of(size_t) const { return {}; }
    __device__ item load(size_t i) const { return in[i]; }
    __device__ acc merge(acc a, acc b) const
    {
        return How == WHOLE_PROD  ? a * b
               : How == WHOLE_MAX ? (b > a ? b : a)
               : How == WHOLE_MIN ? (b < a ? b : a)
                                  : a + b;
    }
    __device__ acc add(acc a, item b, size_t, at) const { return merge(a, b); }
    __device__ void put(size_t at, acc a) const
    {
        using S = std::make_signed_t<T>;

        y[at] = by > 1 ? (T)(S)((int64_t)(S)a / by) : a;
    }
};

} // namespace

template <typename T, int How> static int run(const struct op_call *c, int64_t by, struct err *err)
{
    whole<T, How> f = { (const T *)c->in[0]->data, (T *)c->out[0]->data, by };

    return reduce_run(op_stream(c), f, *reduce_walk_of(c), reduce_splits(c), err);
}

int reduce_cuda_whole(const struct op_call *c, enum reduce_whole how, struct err *err)
{
    const struct reduce *r = (const struct reduce *)c->param;
    bool wide = c->in[0]->dtype == TENSOR_I64;
    int64_t by = how == WHOLE_MEAN && r->n > 0 ? (int64_t)r->n : 1;

    switch (how) {
    case WHOLE_PROD: return (wide ? run<uint64_t, WHOLE_PROD> : run<uint32_t, WHOLE_PROD>)(c, by, err);
    case WHOLE_MAX: return (wide ? run<int64_t, WHOLE_MAX> : run<int32_t, WHOLE_MAX>)(c, by, err);
    case WHOLE_MIN: return (wide ? run<int64_t, WHOLE_MIN> : run<int32_t, WHOLE_MIN>)(c, by, err);
    default: return (wide ? run<uint64_t, WHOLE_SUM> : run<uint32_t, WHOLE_SUM>)(c, by, err);
    }
}
