/* loss_cuda.cuh - shared by the kernels of losses and metrics.
 *
 * A loss over classes is a fold of reduce/walk.cuh over rows of scores, for any class axis. Each
 * row produces a pair of doubles, its loss and its weight; a second fold adds the pairs.
 *
 * A label that is out of range is noted (op_report): no kernel reads or writes out of range for
 * it, and the sum and the gradient of its row become NaN. */
#ifndef OP_LOSS_LOSS_CUDA_CUH
#define OP_LOSS_LOSS_CUDA_CUH

#include <cstdlib>

#include "op/reduce/walk.cuh"

#include "op/loss/loss_formula.h"

extern "C" {
#include "op/loss/params.h"
}

struct loss_pair {
    double sum, weight;
};

static inline size_t loss_round(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* ---- sums over rows ---- */

/* In: a copyable object with loss_pair operator()(i). To: a copyable object with
 * operator()(loss_pair), which gets the sum. */
template <typename In, typename To> struct loss_fold {
    In in;
    To to;

    using acc = loss_pair;
    using item = loss_pair;
    struct at {};

    __device__ acc start() const { return { 0, 0 }; }
    __device__ at of(size_t) const { return {}; }
    __device__ item load(size_t i) const { return in(i); }
    __device__ acc merge(acc a, acc b) const { return { a.sum + b.sum, a.weight + b.weight }; }
    __device__ acc add(acc a, item b, size_t, at) const { return merge(a, b); }
    __device__ void put(size_t, acc a) const { to(a); }
};

static inline void loss_fold_walk(struct reduce_walk *w, size_t n)
{
    const struct reduce_axis all = { n, true, 0 };

    reduce_walk_make(w, &all, 1, 1);
}

static inline size_t loss_fold_scratch(size_t n)
{
    struct reduce_walk w;

    loss_fold_walk(&w, n);
    return loss_round(reduce_scratch(&w, sizeof(loss_pair)));
}

/* Computes to(the sum of in(i), i < n). scratch: loss_fold_scratch(n) bytes. */
template <typename In, typename To>
static inline int loss_fold_run(const struct op_call *c, size_t n, const In &in, const To &to,
                                void *scratch, struct err *err)
{
    struct reduce_walk w;

    loss_fold_walk(&w, n);
    return reduce_run(op_stream(c), loss_fold<In, To>{ in, to }, w, scratch, err);
}

struct loss_stored { /* the pairs of the rows */
    const loss_pair *pair;

    __device__ loss_pair operator()(size_t i) const { return pair[i]; }
};

/* Like loss_store(): stores outputs 0 and 1 if they are present, times loss_scale if `run` is
 * given. */
struct loss_put {
    float *sum, *weight;
    const struct op_run *run;

    __device__ void operator()(loss_pair all) const
    {
        double scale = run != nullptr ? (double)run->loss_scale : 1;

        if (sum != nullptr)
            *sum = (float)(scale * all.sum);
        if (weight != nullptr)
            *weight = (float)(scale * all.weight);
    }
};

static inline float *loss_out(const struct op_call *c, uint32_t i)
{
    return i < c->n_out && c->out[i] != NULL ? (float *)c->out[i]->data : NULL;
}

static inline loss_put loss_put_of(const struct op_call *c, bool scaled)
{
    return { loss_out(c, 0), loss_out(c, 1), scaled ? c->run->device : NULL };
}

/* ---- rows over classes ---- */

struct loss_state { /* op_plan.state */
    struct reduce_walk rows; /* over the scores: a fold over classes for each row */
    float *class_weights;    /* in the memory of the GPU; NULL: all 1 */
};

/* Makes the state: the walk and the class weights for s. acc_bytes: of the accumulator of a fold
 * over classes; 0: no fold. Scratch: a pair for each row, then the scratch of the folds. */
int loss_cuda_plan(struct op_plan *p, const struct loss_classes *s, size_t acc_bytes,
                   struct err *err);
void loss_cuda_free(void *state);

static inline const struct loss_state *loss_state_of(const struct op_call *c)
{
    return (const struct loss_state *)c->state;
}

static inline size_t loss_rows(const struct loss_classes *s)
{
    return s->n * s->positions;
}

static inline void *loss_fold_room(const struct op_call *c, const struct loss_classes *s)
{
    return (char *)c->scratch + loss_round(loss_rows(s) * sizeof(loss_pair));
}

struct loss_labels {
    const int64_t *label;
    const float *weight, *class_weights;
    struct op_divisor positions;
    size_t classes;
    bool is_last, has_ignored;
    int64_t ignored;

    __device__ enum loss_kind kind(int64_t l) const
    {
        return loss_kind_of(l, classes, has_ignored, ignored);
    }
    __device__ float weight_of(size_t row) const { return weight[op_divide(row, positions)]; }
    __device__ float class_weight(size_t k) const { return class_weights != nullptr ? class_weights[k] : 1.0f; }
    /* loss_share() of a label that is in range and not ignored. */
    __device__ double share(size_t row, int64_t l) const
    {
        return (double)weight_of(row) / (double)positions.by * (double)class_weight((size_t)l);
    }
    /* The index of the score of class k. */
    __device__ size_t place(size_t row, int64_t k) const
    {
        size_t i = op_divide(row, positions);

        return is_last ? row * classes + (size_t)k
                       : (i * classes + (size_t)k) * positions.by + (row - i * positions.by);
    }
};

static inline loss_labels loss_labels_of(const struct op_call *c, const struct loss_classes *s)
{
    return { (const int64_t *)c->in[1]->data, (const float *)c->in[2]->data, loss_state_of(c)->class_weights,
             op_divisor_of(s->positions), s->classes, s->is_last, s->has_ignored, s->ignored };
}

struct loss_is_wrong {
    loss_labels l;

    __device__ bool operator()(size_t row, int64_t *label) const
    {
        *label = l.label[row];
        return l.kind(*label) == LOSS_WRONG;
    }
};

/* Like loss_check_labels(), on the GPU. */
static inline int loss_scan(const struct op_call *c, const struct loss_classes *s, struct err *err)
{
    return op_cuda_scan(c, loss_rows(s), loss_is_wrong{ loss_labels_of(c, s) }, err);
}

#endif
