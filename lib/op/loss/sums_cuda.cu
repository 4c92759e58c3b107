/* sums_cuda.cu - see sums.c. */
#include "op/loss/loss_cuda.cuh"

namespace {

struct number_of {
    const float *x;

    __device__ loss_pair operator()(size_t i) const { return { (double)x[i], 0 }; }
};

/* Input k of WeightedSum: adds to the total in the scratch, which is the result after the last
 * input. */
struct joined {
    double *total, factor;
    bool is_first;
    float *y; /* nullptr: not the last input */

    __device__ void operator()(loss_pair sum) const
    {
        double all = (is_first ? 0 : *total) + factor * sum.sum;

        *total = all;
        if (y != nullptr)
            *y = (float)all;
    }
};

/* dx = dy f, or += . */
struct passed {
    const float *x, *t, *dy;
    float factor;

    using number = float;

    __device__ float of(size_t) const { return *dy * factor; }
    __device__ float operator()(float d, float, float, size_t) const { return d; }
};

/* MeanLoss: to = x loss_scale sum w, or += . */
struct counted {
    const float *x;
    const struct op_run *run;
    float *to;
    bool add;

    __device__ void operator()(loss_pair sum) const
    {
        float v = *x * (float)(sum.sum * (double)run->loss_scale);

        *to = add ? *to + v : v;
    }
};

} // namespace

static double factor_of(const struct op_call *c, uint32_t k)
{
    const struct weighted_sum *s = (const struct weighted_sum *)c->param;

    return s->factors != NULL ? (double)s->factors[k] : 1.0;
}

/* Scratch: the total, then the scratch of the folds. */
static int sum_plan(struct op_plan *p, struct err *err)
{
    size_t most = 0;

    (void)err;
    for (uint32_t k = 0; k < p->n_in; k++) {
        size_t bytes = loss_fold_scratch((size_t)tensor_elements(p->in[k]));

        most = bytes > most ? bytes : most;
    }
    p->scratch_bytes = loss_round(sizeof(double)) + most;
    return 0;
}

static int sum_forward(const struct op_call *c, struct err *err)
{
    void *room = (char *)c->scratch + loss_round(sizeof(double));
    int rc = 0;

    for (uint32_t k = 0; k < c->n_in && rc == 0; k++) {
        joined to = { (double *)c->scratch, factor_of(c, k), k == 0,
                      k + 1 == c->n_in ? (float *)c->out[0]->data : NULL };

        rc = loss_fold_run(c, (size_t)tensor_elements(c->in[k]), number_of{ (const float *)c->in[k]->data }, to, room,
                           err);
    }
    return rc;
}

static int sum_backward(const struct op_call *c, struct err *err)
{
    int rc = 0;

    if (c->dout[0] == NULL)
        return op_cuda_zero(c, err);
    for (uint32_t k = 0; k < c->n_in && rc == 0; k++) {
        struct reduce_walk w;

        if (c->din[k] == NULL)
            continue;
        loss_fold_walk(&w, (size_t)tensor_elements(c->din[k]));
        rc = reduce_spread(op_stream(c), passed{ NULL, NULL, (const float *)c->dout[0]->data, (float)factor_of(c, k) },
                           w, (float *)c->din[k]->data, op_cuda_adds(c, k), err);
    }
    return rc;
}

static int mean_plan(struct op_plan *p, struct err *err)
{
    (void)err;
    p->scratch_bytes = loss_fold_scratch((size_t)tensor_elements(p->in[1]));
    return 0;
}

/* to = x times the sum of the weights of the samples. */
static int mean(const struct op_call *c, const struct tensor *x, const struct tensor *to, bool add,
                struct err *err)
{
    counted f = { (const float *)x->data, c->run->device, (float *)to->data, add };

    return loss_fold_run(c, (size_t)tensor_elements(c->in[1]), number_of{ (const float *)c->in[1]->data }, f,
                         c->scratch, err);
}

static int mean_forward(const struct op_call *c, struct err *err)
{
    return mean(c, c->in[0], c->out[0], false, err);
}

static int mean_backward(const struct op_call *c, struct err *err)
{
    if (c->dout[0] == NULL || c->din[0] == NULL)
        return op_cuda_zero(c, err);
    return mean(c, c->dout[0], c->din[0], op_cuda_adds(c, 0), err);
}

OP_CUDA(op_weighted_sum, .plan = sum_plan, .fwd = sum_forward, .bwd = sum_backward);
OP_CUDA(op_mean_loss, .plan = mean_plan, .fwd = mean_forward, .bwd = mean_backward);
