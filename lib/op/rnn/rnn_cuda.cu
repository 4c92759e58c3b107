/* rnn_cuda.cu - LSTM, GRU and RNN on a GPU: the products and the walk over the steps; cells_cuda.cu has the
 * rest of a step.
 *
 * Only the GPU knows the lengths of the sequences. An invalid length is noted (op_report) and makes y NaN for
 * its row; no kernel reads or writes out of range for it. */
#include "op/gemm/contract_cuda.cuh"
#include "op/gemm/product.cuh"
#include "op/rnn/cells_cuda.cuh"

#include <stdlib.h>

extern "C" {
#include "op/rnn/rnn_layout.h"
}

struct rnn_part {      /* some rows of W and R; see rnn_product */
    size_t first, k;
    bool h_adds;       /* h R^T is added to the gates; else it becomes e */
    struct product *x, *h, *dh, *dx, *dw, *dr;
    struct contract bias; /* the sum over all steps */
};

struct rnn_state {
    struct rnn_part part[RNN_PARTS];
    uint32_t parts;
    bool has_bias, keeps;
    size_t kept_bytes, rest; /* bytes of one direction; where the products' scratch begins */
    struct contract turn, back; /* x between [B, T, I] and [T, B, I] */
    struct contract peephole[3];
};

static void free_state(void *state)
{
    struct rnn_state *s = (struct rnn_state *)state;

    for (uint32_t i = 0; s != NULL && i < RNN_PARTS; i++) {
        struct product *const all[] = { s->part[i].x, s->part[i].h, s->part[i].dh,
                                        s->part[i].dx, s->part[i].dw, s->part[i].dr };

        for (struct product *p : all)
            product_close(p);
    }
    free(s);
}

/* ---- plan ---- */

static struct product_problem float_product(const struct op_plan *op, int64_t m, int64_t n,
                                            int64_t k, int64_t a_row, int64_t a_col, int64_t b_row,
                                            int64_t b_col)
{
    return { .m = m, .n = n, .k = k,
             .at = { { TENSOR_F32, a_row, a_col }, { TENSOR_F32, b_row, b_col }, { TENSOR_F32, n, 1 } },
             .tf32 = op->tf32 };
}

static int open_part(const struct op_plan *op, const struct rnn_state *s, struct rnn_part *q,
                     struct err *err)
{
    const struct rnn_param *p = (const struct rnn_param *)op->param;
    const int64_t rows = (int64_t)(p->steps * p->batch), b = (int64_t)p->batch, k = (int64_t)q->k;
    const int64_t in = (int64_t)p->inputs, n = (int64_t)p->hidden;
    struct product_problem x = float_product(op, rows, k, in, in, 1, 1, in);
    struct product_problem h = float_product(op, b, k, n, n, 1, 1, n);
    const struct product_problem dh = float_product(op, b, n, k, k, 1, n, 1);
    const struct product_problem dx = float_product(op, rows, in, k, k, 1, in, 1);
    const struct product_problem dw = float_product(op, k, in, rows, 1, k, in, 1);
    const struct product_problem dr = float_product(op, k, n, rows, 1, k, n, 1);
    int rc;

    x.bias = s->has_bias;
    h.bias = !q->h_adds && s->has_bias;
    rc = product_open(&x, &q->x, err);
    if (rc == 0)
        rc = product_open(&h, &q->h, err);
    contract_add_axis(&q->bias, (size_t)rows, k, 0, 0);
    contract_add_axis(&q->bias, q->k, 1, 0, 1);
    contract_finish(&q->bias);
    if (rc < 0 || !s->keeps)
        return rc;
    rc = product_open(&dh, &q->dh, err);
    if (rc == 0 && op_wants(op, RNN_X))
        rc = product_open(&dx, &q->dx, err);
    if (rc == 0 && op_wants(op, RNN_W))
        rc = product_open(&dw, &q->dw, err);
    if (rc == 0 && op_wants(op, RNN_R))
        rc = product_open(&dr, &q->dr, err);
    return rc;
}

static size_t part_scratch(const struct rnn_part *q)
{
    const struct product *const all[] = { q->x, q->h, q->dh, q->dx, q->dw, q->dr };
    size_t most = contract_scratch_bytes(&q->bias);

    for (const struct product *p : all)
        most = op_max(most, product_scratch_bytes(p));
    return most;
}

/* Transposes of x, and the sums for the peepholes. */
static void settle_sums(const struct rnn_param *p, struct rnn_state *s)
{
    const ptrdiff_t t = (ptrdiff_t)p->steps, b = (ptrdiff_t)p->batch, in = (ptrdiff_t)p->inputs,
                    n = (ptrdiff_t)p->hidden;

    contract_add_axis(&s->turn, p->steps, in, 0, b * in);
    contract_add_axis(&s->turn, p->batch, t * in, 0, in);
    contract_add_axis(&s->turn, p->inputs, 1, 0, 1);
    contract_finish(&s->turn);
    contract_add_axis(&s->back, p->batch, in, 0, t * in);
    contract_add_axis(&s->back, p->steps, b * in, 0, in);
    contract_add_axis(&s->back, p->inputs, 1, 0, 1);
    contract_finish(&s->back);
    for (struct contract &k : s->peephole) {
        contract_add_axis(&k, p->steps * p->batch, 4 * n, n, 0);
        contract_add_axis(&k, p->hidden, 1, 1, 1);
        contract_finish(&k);
    }
}

static int plan(struct op_plan *op, struct err *err)
{
    const struct rnn_param *p = (const struct rnn_param *)op->param;
    struct rnn_state *s = (struct rnn_state *)calloc(1, sizeof(*s));
    size_t most = 0, row = 0;
    int rc = 0;

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "%s '%s': out of memory", op->def->name, op->node);
    s->has_bias = op->n_in > RNN_B && op->in[RNN_B] != NULL;
    s->keeps = op->training && op->want_din != 0;
    while (s->parts < RNN_PARTS && p->cell->part[s->parts] > 0 && rc == 0) {
        struct rnn_part *q = &s->part[s->parts];

        q->first = row;
        q->k = p->cell->part[s->parts] * p->hidden;
        q->h_adds = !p->reset_after || s->parts == 0;
        row += q->k;
        rc = open_part(op, s, q, err);
        most = op_max(most, part_scratch(q));
        s->parts++;
    }
    if (rc < 0) {
        free_state(s);
        return err_wrap(err, rc, "%s '%s'", op->def->name, op->node);
    }
    settle_sums(p, s);
    (void)rnn_kept_at(p, NULL, &s->kept_bytes);
    (void)rnn_work_at(p, s->keeps ? 0 : s->kept_bytes, s->keeps, NULL, &s->rest);
    op->save_bytes = s->keeps ? p->dirs * s->kept_bytes : 0;
    op->scratch_bytes = s->rest + op_max(most, contract_scratch_bytes(&s->peephole[0]));
    op->state = s;
    return 0;
}

/* ---- rows of tensors that a direction reads and writes ---- */

/* to [rows, cols] = from, or += ; a `from` of NULL stands for zeros. */
__global__ void copy_rows(float *to, size_t to_step, const float *from, size_t from_step,
                          size_t rows, size_t cols, bool add)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * cols;
         i += (size_t)gridDim.x * blockDim.x) {
        float *at = to + i / cols * to_step + i % cols;
        float v = from != NULL ? from[i / cols * from_step + i % cols] : 0.0f;

        *at = add ? *at + v : v;
    }
}

static int copy_state(const struct rnn_param *p, struct rnn_slice to, struct rnn_slice from,
                      bool add, cudaStream_t stream, struct err *err)
{
    size_t n = p->batch * p->hidden;

    if (to.at == NULL || n == 0)
        return 0;
    CUDA_LAUNCH(copy_rows, op_blocks(n, OP_THREADS), OP_THREADS, 0, stream, to.at, to.step, from.at,
                from.step, p->batch, p->hidden, add);
    return cuda_launched(err);
}

static const struct tensor *output(const struct tensor *const *t, const struct op_call *c,
                                   uint32_t i)
{
    return i < c->n_out ? t[i] : NULL;
}

/* ---- one direction ---- */

struct walk {
    const struct op_call *c;
    const struct rnn_param *p;
    const struct rnn_state *s;
    struct rnn_work w;
    char *rest; /* the scratch of the products */
    cudaStream_t stream;
    uint32_t d;
    bool reverse;
    struct rnn_kept k;
    const float *x, *recurrent; /* x [T, B, I]; R of this direction */
    const float *bias_e;        /* GRU with reset_after and biases: that of h R^T */
    struct rnn_here step;
};

static void begin(struct walk *w, const struct op_call *c, uint32_t d)
{
    const struct tensor *length = rnn_input(c, RNN_LENGTHS),
                        *peephole = rnn_input(c, RNN_PEEPHOLES);
    const struct rnn_param *p = w->p;
    size_t rows = p->cell->gates * p->hidden, bytes;
    char *base = w->s->keeps ? (char *)c->save : w->w.kept;

    w->d = d;
    w->reverse = rnn_is_reverse(p, d);
    w->k = rnn_kept_at(p, base + d * w->s->kept_bytes, &bytes);
    w->recurrent = (const float *)c->in[RNN_R]->data + d * rows * p->hidden;
    w->bias_e = w->s->has_bias
                    ? (const float *)c->in[RNN_B]->data + d * 2 * rows + rows + 2 * p->hidden
                    : NULL;
    w->step = { .batch = (uint32_t)p->batch, .hidden = (uint32_t)p->hidden, .steps = p->steps,
                .length = length != NULL ? (const int32_t *)length->data : NULL,
                .peephole = peephole != NULL ? (const float *)peephole->data + d * 3 * p->hidden : NULL,
                .dh = w->w.dh, .dc = w->w.dc, .spare = w->w.spare, .coupled = p->coupled,
                .reset_after = p->reset_after };
    for (uint32_t i = 0; i < RNN_ACTS; i++)
        w->step.act[i] = p->act[d][i];
}

static void at_step(struct walk *w, const struct tensor *y, size_t t)
{
    const struct rnn_slice to = rnn_y_of(w->p, y, w->d, t);

    rnn_at_step(w->p, &w->k, w->reverse, t, &w->step.at);
    w->step.y = to.at;
    w->step.y_step = to.step;
}

/* y (+)= h R^T of a part. */
static int run_h(const struct walk *w, uint32_t i, const float *h, float *y, struct err *err)
{
    const struct rnn_part *q = &w->s->part[i];

    return product_run(q->h, h, w->recurrent + q->first * w->p->hidden, y, w->bias_e, 1.0f,
                       q->h_adds, w->rest, w->stream, err);
}

static int run_dh(const struct walk *w, uint32_t i, const float *gates, float *dh, bool add,
                  struct err *err)
{
    const struct rnn_part *q = &w->s->part[i];

    return product_run(q->dh, gates, w->recurrent + q->first * w->p->hidden, dh, NULL, 1.0f, add,
                       w->rest, w->stream, err);
}

static int step_forward(const struct walk *w, struct err *err)
{
    const struct rnn_here *s = &w->step;
    int rc = run_h(w, 0, s->at.h_prev, s->at.gates[0], err);

    if (rc < 0)
        return rc;
    if (w->p->cell->has_c)
        return rnn_lstm_forward(s, w->stream, err);
    if (!w->p->cell->has_e)
        return rnn_plain_forward(s, w->stream, err);
    rc = rnn_gru_gates(s, w->stream, err);
    if (rc == 0)
        rc = w->p->reset_after ? run_h(w, 1, s->at.h_prev, s->at.e, err)
                               : run_h(w, 1, s->at.e, s->at.gates[1], err);
    return rc < 0 ? rc : rnn_gru_forward(s, w->stream, err);
}

static int step_backward(const struct walk *w, struct err *err)
{
    const struct rnn_here *s = &w->step;
    int rc;

    if (w->p->cell->has_c) {
        rc = rnn_lstm_backward(s, w->stream, err);
    } else if (!w->p->cell->has_e) {
        rc = rnn_plain_backward(s, w->stream, err);
    } else {
        rc = rnn_gru_backward(s, w->stream, err);
        if (rc == 0 && w->p->reset_after)
            rc = run_dh(w, 1, s->at.e, s->dh, true, err);
        else if (rc == 0)
            rc = run_dh(w, 1, s->at.gates[1], s->spare, false, err);
        if (rc == 0 && !w->p->reset_after)
            rc = rnn_gru_reset(s, w->stream, err);
    }
    return rc < 0 ? rc : run_dh(w, 0, s->at.gates[0], s->dh, true, err);
}

/* The sum of the biases of W and R; with reset_after, the last gate has only that of W. */
__global__ void add_biases(float *bias, const float *of, size_t rows, size_t both)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows;
         i += (size_t)gridDim.x * blockDim.x)
        bias[i] = i < both ? of[i] + of[rows + i] : of[i];
}

/* The part of the gates of all steps that comes from x. */
static int run_x(const struct walk *w, struct err *err)
{
    const struct rnn_param *p = w->p;
    const size_t rows = p->cell->gates * p->hidden;
    int rc = 0;

    if (w->s->has_bias) {
        CUDA_LAUNCH(add_biases, op_blocks(rows, OP_THREADS), OP_THREADS, 0, w->stream, w->w.bias,
                    (const float *)w->c->in[RNN_B]->data + w->d * 2 * rows, rows,
                    p->reset_after ? 2 * p->hidden : rows);
        rc = cuda_launched(err);
    }
    for (uint32_t i = 0; i < w->s->parts && rc == 0; i++) {
        const struct rnn_part *q = &w->s->part[i];

        rc = product_run(
            q->x, w->x, (const float *)w->c->in[RNN_W]->data + (w->d * rows + q->first) * p->inputs,
            w->k.gates[i], w->w.bias + q->first, 1.0f, false, w->rest, w->stream, err);
    }
    return rc;
}

static int forward_direction(struct walk *w, struct err *err)
{
    const struct rnn_param *p = w->p;
    const struct op_call *c = w->c;
    const size_t state = p->batch * p->hidden, last = p->steps * state;
    const size_t from = w->reverse ? last : 0, to = w->reverse ? 0 : last;
    int rc = run_x(w, err);

    if (rc == 0)
        rc = copy_state(p, { w->k.h + from, p->hidden }, rnn_state_of(p, rnn_input(c, RNN_H), w->d), false, w->stream,
                        err);
    if (rc == 0 && w->k.c != NULL)
        rc = copy_state(p, { w->k.c + from, p->hidden }, rnn_state_of(p, rnn_input(c, RNN_C), w->d), false, w->stream,
                        err);
    for (size_t i = 0; i < p->steps && rc == 0; i++) {
        at_step(w, c->out[0], w->reverse ? p->steps - 1 - i : i);
        rc = step_forward(w, err);
    }
    if (rc == 0)
        rc = copy_state(p, rnn_state_of(p, output(c->out, c, 1), w->d), { w->k.h + to, p->hidden }, false, w->stream,
                        err);
    if (rc == 0)
        rc = copy_state(p, rnn_state_of(p, output(c->out, c, 2), w->d), { w->k.c + to, p->hidden }, false, w->stream,
                        err);
    return rc;
}

/* x [T, B, I]: the input itself, or its transpose in the scratch. */
static int transpose_x(struct walk *w, struct err *err)
{
    const struct tensor *x = w->c->in[RNN_X];

    w->x = w->p->batch_first ? w->w.x : (const float *)x->data;
    if (!w->p->batch_first)
        return 0;
    return contract_launch(&w->s->turn, x->data, TENSOR_F32, NULL, 1.0f, w->w.x, false, NULL,
                           w->stream, err);
}

static struct walk new_walk(const struct op_call *c)
{
    struct walk w = { .c = c, .p = (const struct rnn_param *)c->param, .s = (const struct rnn_state *)c->state,
                      .stream = op_stream(c) };
    size_t bytes;

    w.w =
        rnn_work_at(w.p, w.s->keeps ? 0 : w.s->kept_bytes, w.s->keeps, (char *)c->scratch, &bytes);
    w.rest = (char *)c->scratch + bytes;
    return w;
}

namespace {
struct is_invalid_length {
    const int32_t *length;
    size_t steps;

    __device__ bool operator()(size_t b, int64_t *value) const
    {
        *value = length[b];
        return length[b] < 0 || (size_t)length[b] > steps;
    }
};
}

static int check_lengths(const struct op_call *c, struct err *err)
{
    const struct rnn_param *p = (const struct rnn_param *)c->param;
    const struct tensor *length = rnn_input(c, RNN_LENGTHS);

    if (length == NULL)
        return 0;
    return op_cuda_scan(c, p->batch, is_invalid_length{ (const int32_t *)length->data, p->steps }, err);
}

static int forward(const struct op_call *c, struct err *err)
{
    struct walk w = new_walk(c);
    int rc = check_lengths(c, err);

    if (rc == 0)
        rc = transpose_x(&w, err);

    for (uint32_t d = 0; d < w.p->dirs && rc == 0; d++) {
        begin(&w, c, d);
        rc = forward_direction(&w, err);
    }
    return rc;
}

/* ---- backward ---- */

/* The gradients of the biases of a part: sums of the gradients of the gates over all steps. */
static int bias_backward(const struct walk *w, const struct rnn_part *q, const float *gates,
                         const float *recurrent, struct err *err)
{
    const size_t rows = w->p->cell->gates * w->p->hidden;
    const bool add = op_cuda_adds(w->c, RNN_B);
    float *db = (float *)w->c->din[RNN_B]->data + w->d * 2 * rows + q->first;
    int rc = contract_launch(&q->bias, gates, TENSOR_F32, NULL, 1.0f, w->w.bias, false, w->rest,
                             w->stream, err);

    if (rc == 0)
        rc = op_each(w->stream, db, q->k, add, op_same(), err, (const float *)w->w.bias);
    if (rc == 0 && recurrent != gates)
        rc = contract_launch(&q->bias, recurrent, TENSOR_F32, NULL, 1.0f, w->w.bias, false, w->rest,
                             w->stream, err);
    if (rc == 0)
        rc = op_each(w->stream, db + rows, q->k, add, op_same(), err, (const float *)w->w.bias);
    return rc;
}

/* After the last step: the gradients of W, R, B and x from one part. */
static int part_backward(const struct walk *w, uint32_t i, float *dx, bool dx_add, struct err *err)
{
    const struct rnn_param *p = w->p;
    const struct rnn_part *q = &w->s->part[i];
    const struct op_call *c = w->c;
    const size_t first = w->d * p->cell->gates * p->hidden + q->first;
    const float *gates = w->k.gates[i], *recurrent = gates;
    const float *h = w->k.h + (w->reverse ? p->batch * p->hidden : 0); /* h_prev */
    int rc = 0;

    if (i == 1 && p->reset_after)
        recurrent = w->k.e;
    else if (i == 1)
        h = w->k.e;
    if (op_cuda_wants(c, RNN_W))
        rc = product_run(q->dw, gates, w->x, (float *)c->din[RNN_W]->data + first * p->inputs, NULL,
                         1.0f, op_cuda_adds(c, RNN_W), w->rest, w->stream, err);
    if (rc == 0 && op_cuda_wants(c, RNN_R))
        rc = product_run(q->dr, recurrent, h, (float *)c->din[RNN_R]->data + first * p->hidden,
                         NULL, 1.0f, op_cuda_adds(c, RNN_R), w->rest, w->stream, err);
    if (rc == 0 && op_cuda_wants(c, RNN_B))
        rc = bias_backward(w, q, gates, recurrent, err);
    if (rc == 0 && dx != NULL)
        rc = product_run(q->dx, gates, (const float *)c->in[RNN_W]->data + first * p->inputs, dx,
                         NULL, 1.0f, dx_add, w->rest, w->stream, err);
    return rc;
}

static int peepholes_backward(const struct walk *w, struct err *err)
{
    const struct rnn_param *p = w->p;
    const size_t state = p->batch * p->hidden;
    const float *before = w->k.c + w->reverse * state, *after = w->k.c + !w->reverse * state;
    float *dp = (float *)w->c->din[RNN_PEEPHOLES]->data + w->d * 3 * p->hidden;
    int rc = 0;

    for (size_t g = 0; g < 3 && rc == 0; g++)
        rc = contract_launch(&w->s->peephole[g], w->k.gates[0] + g * p->hidden, TENSOR_F32,
                             g == 1 ? after : before, 1.0f, dp + g * p->hidden,
                             op_cuda_adds(w->c, RNN_PEEPHOLES), w->rest, w->stream, err);
    return rc;
}

static int backward_direction(struct walk *w, float *dx, bool dx_add, struct err *err)
{
    const struct rnn_param *p = w->p;
    const struct op_call *c = w->c;
    const struct rnn_slice dh = { w->w.dh, p->hidden }, dc = { w->w.dc, p->hidden };
    int rc = copy_state(p, dh, rnn_state_of(p, output(c->dout, c, 1), w->d), false, w->stream, err);

    if (rc == 0)
        rc = copy_state(p, dc, rnn_state_of(p, output(c->dout, c, 2), w->d), false, w->stream, err);
    for (size_t i = 0; i < p->steps && rc == 0; i++) {
        at_step(w, c->dout[0], w->reverse ? i : p->steps - 1 - i);
        rc = step_backward(w, err);
    }
    if (rc == 0 && op_cuda_wants(c, RNN_H))
        rc = copy_state(p, rnn_state_of(p, c->din[RNN_H], w->d), dh, op_cuda_adds(c, RNN_H),
                        w->stream, err);
    if (rc == 0 && op_cuda_wants(c, RNN_C))
        rc = copy_state(p, rnn_state_of(p, c->din[RNN_C], w->d), dc, op_cuda_adds(c, RNN_C),
                        w->stream, err);
    if (rc == 0 && op_cuda_wants(c, RNN_PEEPHOLES))
        rc = peepholes_backward(w, err);
    for (uint32_t i = 0; i < w->s->parts && rc == 0; i++)
        rc = part_backward(w, i, dx, dx_add || i > 0, err);
    return rc;
}

static int backward(const struct op_call *c, struct err *err)
{
    struct walk w = new_walk(c);
    const bool first = w.p->batch_first;
    float *dx = NULL;
    uint32_t d, i;
    int rc;

    for (i = 0; i < c->n_out && c->dout[i] == NULL;)
        i++;
    if (i == c->n_out)
        return op_cuda_zero(c, err);
    rc = transpose_x(&w, err);
    if (c->din[RNN_X] != NULL)
        dx = first ? w.w.dx : (float *)c->din[RNN_X]->data;
    for (d = 0; d < w.p->dirs && rc == 0; d++) {
        begin(&w, c, d);
        rc = backward_direction(&w, dx, d > 0 || (!first && op_cuda_adds(c, RNN_X)), err);
    }
    if (rc == 0 && dx != NULL && first)
        rc = contract_launch(&w.s->back, dx, TENSOR_F32, NULL, 1.0f, (float *)c->din[RNN_X]->data,
                             op_cuda_adds(c, RNN_X), NULL, w.stream, err);
    return rc;
}

#define ROW(row_) OP_CUDA(row_, .plan = plan, .fwd = forward, .bwd = backward, .free_state = free_state)
ROW(op_lstm);
ROW(op_gru);
ROW(op_rnn);
