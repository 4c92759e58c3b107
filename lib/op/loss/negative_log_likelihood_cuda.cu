/* negative_log_likelihood_cuda.cu - see negative_log_likelihood.c. */
#include "op/loss/loss_cuda.cuh"

namespace {

struct likelihood_of {
    const float *x;
    loss_labels l;

    __device__ loss_pair operator()(size_t row) const
    {
        int64_t label = l.label[row];
        enum loss_kind kind = l.kind(label);
        double share;

        if (kind != LOSS_COUNTS)
            return { kind == LOSS_WRONG ? (double)NAN : 0, 0 };
        share = l.share(row, label);
        return { share != 0 ? -share * (double)x[l.place(row, label)] : 0, share };
    }
};

/* A thread per row, which writes the only element of dx that is not 0. */
__global__ void likelihood_back(loss_labels l, size_t rows, const float *dy,
                                const struct op_run *run, float *dx)
{
    double outer = (double)*dy * (double)run->loss_scale;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows;
         i += (size_t)gridDim.x * blockDim.x) {
        int64_t label = l.label[i];
        enum loss_kind kind = l.kind(label);

        if (kind == LOSS_WRONG)
            dx[l.place(i, 0)] = NAN;
        else if (kind == LOSS_COUNTS && l.share(i, label) != 0)
            dx[l.place(i, label)] -= (float)(outer * l.share(i, label));
    }
}

} // namespace

static int plan(struct op_plan *p, struct err *err)
{
    return loss_cuda_plan(p, (const struct loss_classes *)p->param, 0, err);
}

static int forward(const struct op_call *c, struct err *err)
{
    const struct loss_classes *s = (const struct loss_classes *)c->param;
    likelihood_of rows = { (const float *)c->in[0]->data, loss_labels_of(c, s) };
    int rc = loss_scan(c, s, err);

    return rc < 0 ? rc
                  : loss_fold_run(c, loss_rows(s), rows, loss_put_of(c, true), loss_fold_room(c, s),
                                  err);
}

static int backward(const struct op_call *c, struct err *err)
{
    const struct loss_classes *s = (const struct loss_classes *)c->param;
    size_t rows = loss_rows(s);
    int rc = op_cuda_zero(c, err);

    if (rc < 0 || c->dout[0] == NULL || c->din[0] == NULL || rows == 0 || s->classes == 0)
        return rc;
    CUDA_LAUNCH(likelihood_back, op_blocks(rows, OP_THREADS), OP_THREADS, 0, op_stream(c),
                loss_labels_of(c, s), rows, (const float *)c->dout[0]->data, c->run->device,
                (float *)c->din[0]->data);
    return cuda_launched(err);
}

OP_CUDA(op_negative_log_likelihood, .plan = plan, .fwd = forward, .bwd = backward, .free_state = loss_cuda_free);
