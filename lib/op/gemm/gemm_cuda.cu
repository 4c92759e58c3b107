/* gemm_cuda.cu - see gemm.c. The library applies alpha. c is passed as a bias if it is a row, else
 * it is stored in y before the product is accumulated. */
#include "op/gemm/contract_cuda.cuh"
#include "op/gemm/product.cuh"

#include <stdlib.h>

extern "C" {
#include "op/gemm/gemm_priv.h"
#include "op/op_priv.h"
}

struct gemm_there {
    struct product *y, *d[2];
    bool has_c, is_row;   /* is_row: the same row c is added to every row */
    bool is_wide;         /* y is not float32, and c is not a row: y is computed in scratch first */
    bool sums;            /* d[1] also computes the column sums of dy, the gradient of a row c with
                             beta 1 */
    struct contract dc;   /* computes the gradient of c otherwise */
    size_t spare_bytes;   /* beginning of scratch: beta c, or y as float32 */
};

static void free_state(void *state)
{
    struct gemm_there *s = (struct gemm_there *)state;

    if (s == NULL)
        return;
    product_close(s->y);
    product_close(s->d[0]);
    product_close(s->d[1]);
    free(s);
}

static int open_all(const struct op_plan *p, struct gemm_there *s, struct err *err)
{
    const struct gemm_param *g = (const struct gemm_param *)p->param;
    const enum tensor_dtype at = p->in[0]->dtype, bt = p->in[1]->dtype, yt = p->out[0].dtype;
    /* strides of a' and b' */
    const int64_t a_row = g->trans_a ? 1 : g->k, a_col = g->trans_a ? g->m : 1;
    const int64_t b_row = g->trans_b ? 1 : g->n, b_col = g->trans_b ? g->k : 1;
    const struct product_problem y = { .m = g->m, .n = g->n, .k = g->k,
                                       .at = { { at, a_row, a_col }, { bt, b_row, b_col },
                                               { s->is_wide ? TENSOR_F32 : yt, g->n, 1 } },
                                       .bias = s->is_row, .tf32 = p->tf32 };
    const struct product_problem da = { .m = g->m, .n = g->k, .k = g->n,
                                        .at = { { yt, g->n, 1 }, { bt, b_col, b_row }, { at, a_row, a_col } },
                                        .tf32 = p->tf32 };
    const struct product_problem db = { .m = g->k, .n = g->n, .k = g->m,
                                        .at = { { at, a_col, a_row }, { yt, g->n, 1 }, { bt, b_row, b_col } },
                                        .tf32 = p->tf32 };
    int rc = product_open(&y, &s->y, err);

    if (rc == 0 && op_wants(p, 0))
        rc = product_open(&da, &s->d[0], err);
    if (rc == 0 && op_wants(p, 1))
        rc = s->is_row && op_wants(p, 2) && g->alpha == 1.0f && g->beta == 1.0f
                 ? product_open_sums(&db, &s->d[1], &s->sums, err)
                 : product_open(&db, &s->d[1], err);
    return rc;
}

static int plan(struct op_plan *p, struct err *err)
{
    const struct gemm_param *g = (const struct gemm_param *)p->param;
    struct gemm_there *s = (struct gemm_there *)calloc(1, sizeof(*s));
    size_t most;
    int rc;

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "Gemm '%s': out of memory", p->node);
    s->has_c = p->n_in > 2 && p->in[2] != NULL;
    s->is_row = s->has_c && g->c_row == 0 && (g->c_col == 1 || g->n == 1);
    s->is_wide = s->has_c && !s->is_row && p->out[0].dtype != TENSOR_F32;
    rc = open_all(p, s, err);
    if (rc < 0) {
        free_state(s);
        return err_wrap(err, rc, "Gemm '%s'", p->node);
    }
    contract_add_axis(&s->dc, (size_t)g->m, g->n, 0, g->c_row);
    contract_add_axis(&s->dc, (size_t)g->n, 1, 0, g->c_col);
    contract_finish(&s->dc);
    if (s->is_wide)
        s->spare_bytes = op_round((size_t)(g->m * g->n) * sizeof(float));
    else if (s->is_row && g->beta != 1.0f)
        s->spare_bytes = op_round((size_t)g->n * sizeof(float));
    most = op_max(product_scratch_bytes(s->y), contract_scratch_bytes(&s->dc));
    most = op_max(most, op_max(product_scratch_bytes(s->d[0]), product_scratch_bytes(s->d[1])));
    p->scratch_bytes = s->spare_bytes + most;
    p->state = s;
    return 0;
}

struct times {
    float by;
    __device__ float operator()(float x) const { return by * x; }
};

/* y [m, n] = beta c, one element of y per thread. */
__global__ void spread(float *y, size_t elements, size_t n, const float *c, int64_t c_row,
                       int64_t c_col, float beta)
{
    size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += step)
        y[i] = beta * c[(int64_t)(i / n) * c_row + (int64_t)(i % n) * c_col];
}

static int forward(const struct op_call *c, struct err *err)
{
    const struct gemm_param *g = (const struct gemm_param *)c->param;
    struct gemm_there *s = (struct gemm_there *)c->state;
    const float *row = s->is_row ? (const float *)c->in[2]->data : NULL;
    void *y = s->is_wide ? c->scratch : c->out[0]->data;
    size_t n = (size_t)(g->m * g->n);
    bool before = s->has_c && !s->is_row;
    int rc = 0;

    if (s->is_row && g->beta != 1.0f) {
        rc = op_each(op_stream(c), (float *)c->scratch, (size_t)g->n, false, times{ g->beta }, err, row);
        row = (const float *)c->scratch;
    }
    if (before && n > 0) {
        CUDA_LAUNCH(spread, op_blocks(n, OP_THREADS), OP_THREADS, 0, op_stream(c), (float *)y, n,
                    (size_t)g->n, (const float *)c->in[2]->data, g->c_row, g->c_col, g->beta);
        rc = cuda_launched(err);
    }
    if (rc == 0)
        rc = product_run(s->y, c->in[0]->data, c->in[1]->data, y, row, g->alpha, before,
                         op_at(c->scratch, s->spare_bytes), op_stream(c), err);
    if (rc == 0 && s->is_wide)
        OP_FLOATS(c->out[0]->dtype, rc = op_each(op_stream(c), (T *)c->out[0]->data, n, false,
                                                 op_same(), err, (const float *)y));
    return rc;
}

static int backward(const struct op_call *c, struct err *err)
{
    const struct gemm_param *g = (const struct gemm_param *)c->param;
    struct gemm_there *s = (struct gemm_there *)c->state;
    void *rest = op_at(c->scratch, s->spare_bytes);
    const void *dy;
    int rc = 0;

    if (c->dout[0] == NULL)
        return op_cuda_zero(c, err);
    dy = c->dout[0]->data;
    if (c->din[0] != NULL)
        rc = product_run(s->d[0], dy, c->in[1]->data, c->din[0]->data, NULL, g->alpha,
                         op_cuda_adds(c, 0), rest, op_stream(c), err);
    if (rc == 0 && c->din[1] != NULL)
        rc = product_run_tail(s->d[1], c->in[0]->data, dy, c->din[1]->data, NULL, NULL,
                              s->sums ? (float *)c->din[2]->data : NULL, op_cuda_adds(c, 2),
                              g->alpha, op_cuda_adds(c, 1), rest, op_stream(c), err);
    if (rc == 0 && op_cuda_wants(c, 2) && !s->sums)
        rc = contract_launch(&s->dc, dy, c->dout[0]->dtype, NULL, g->beta, (float *)c->din[2]->data,
                             op_cuda_adds(c, 2), rest, op_stream(c), err);
    return rc;
}

OP_CUDA(op_gemm, .plan = plan, .fwd = forward, .bwd = backward, .free_state = free_state);
