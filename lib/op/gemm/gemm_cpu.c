/* gemm_cpu.c - up to three matrix products by the library, and our own loops for the rest.
 * Transposes are strides, never copies. If c is a bias row, the product adds it. */
#include <stdlib.h>

#include "base/err.h"
#include "op/dnn.h"
#include "op/gemm/gemm_priv.h"
#include "op/half.h"
#include "op/op_priv.h"

struct gemm_state {
    struct dnn *y, *da, *db;
    bool has_c, c_inside;
    bool is_wide;       /* y is bfloat16, but needs more than a product: it is computed in scratch
                           first */
    size_t spare_bytes; /* beginning of scratch: a gradient that is accumulated, y before it is
                           rounded, dy as float32 */
};

void gemm_cpu_free(void *state)
{
    struct gemm_state *s = state;

    if (s == NULL)
        return;
    dnn_free(s->y);
    dnn_free(s->da);
    dnn_free(s->db);
    free(s);
}

/* Returns true if the same row c is added to every row. */
static bool is_row(const struct gemm_param *g)
{
    return g->c_row == 0 && g->c_col == 1;
}

/* da and db as products, where ' marks an operand as it is multiplied, so a = a'^T if trans_a:
 *   da [m, k] = dy b'^T       or, transposed,   da [k, m] = b' dy^T
 *   db [k, n] = a'^T dy       or, transposed,   db [n, k] = dy^T a' */
static int plan_bwd(const struct op_plan *p, struct gemm_state *s, struct err *err)
{
    const struct gemm_param *g = p->param;
    enum tensor_dtype a = p->in[0]->dtype, b = p->in[1]->dtype, y = p->out[0].dtype;
    struct dnn_matmul da = { .batch = 1, .m = g->m, .n = g->k, .k = g->n, .trans_b = !g->trans_b,
                             .a = y, .b = b, .y = a };
    struct dnn_matmul db = { .batch = 1, .m = g->k, .n = g->n, .k = g->m, .trans_a = !g->trans_a,
                             .a = a, .b = y, .y = b };
    int rc = 0;

    if (g->trans_a)
        da = (struct dnn_matmul){ .batch = 1, .m = g->k, .n = g->m, .k = g->n,
                                  .trans_a = g->trans_b, .trans_b = true,
                                  .a = b, .b = y, .y = a };
    if (g->trans_b)
        db = (struct dnn_matmul){ .batch = 1, .m = g->n, .n = g->k, .k = g->m,
                                  .trans_a = true, .trans_b = g->trans_a,
                                  .a = y, .b = a, .y = b };
    if ((p->want_din & OP_IN(0)) != 0)
        rc = dnn_matmul(&da, &s->da, err);
    if (rc == 0 && (p->want_din & OP_IN(1)) != 0)
        rc = dnn_matmul(&db, &s->db, err);
    return rc;
}

int gemm_cpu_plan(struct op_plan *p, struct err *err)
{
    const struct gemm_param *g = p->param;
    struct dnn_matmul y = { .batch = 1, .m = g->m, .n = g->n, .k = g->k,
                            .trans_a = g->trans_a, .trans_b = g->trans_b,
                            .a = p->in[0]->dtype, .b = p->in[1]->dtype, .y = p->out[0].dtype };
    struct gemm_state *s = calloc(1, sizeof(*s));
    int rc;

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "Gemm '%s': out of memory", p->node);
    s->has_c = p->n_in > 2 && p->in[2] != NULL;
    s->c_inside = s->has_c && g->alpha == 1.0f && g->beta == 1.0f && g->c_row == 0 &&
                  (g->c_col == 1 || g->n == 1) && g->k > 0;
    y.bias = s->c_inside;
    s->is_wide = op_is_half(&p->out[0]) && (s->has_c ? !s->c_inside : g->alpha != 1.0f);
    if (s->is_wide)
        y.y = TENSOR_F32;
    rc = dnn_matmul(&y, &s->y, err);
    if (rc == 0 && p->training)
        rc = plan_bwd(p, s, err);
    if (rc < 0) {
        gemm_cpu_free(s);
        return err_wrap(err, rc, "Gemm '%s'", p->node);
    }
    if (s->da != NULL)
        s->spare_bytes = op_round(tensor_bytes(p->in[0]));
    if (s->db != NULL)
        s->spare_bytes = op_max(s->spare_bytes, op_round(tensor_bytes(p->in[1])));
    if (s->is_wide || (s->has_c && op_wants(p, 2) && op_is_half(&p->out[0]) && !is_row(g)))
        s->spare_bytes = op_max(s->spare_bytes, op_round((size_t)(g->m * g->n) * sizeof(float)));
    p->scratch_bytes =
        s->spare_bytes +
        op_max(dnn_scratch_bytes(s->y), op_max(dnn_scratch_bytes(s->da), dnn_scratch_bytes(s->db)));
    p->state = s;
    return 0;
}

/* For one row: y = alpha y + beta c. */
CLONES static void blend_row(float *restrict y, const float *restrict c, size_t n, float alpha,
                             float beta)
{
    size_t j;

    for (j = 0; j < n; j++)
        y[j] = alpha * y[j] + beta * c[j];
}

CLONES static void blend_value(float *y, size_t n, float alpha, float add)
{
    size_t j;

    for (j = 0; j < n; j++)
        y[j] = alpha * y[j] + add;
}

/* y = alpha y + beta c, after the product */
static void finish(const struct gemm_param *g, const float *c, float *y)
{
    int64_t i;

    if (c == NULL)
        op_store(y, y, (size_t)(g->m * g->n), g->alpha, false);
    for (i = 0; c != NULL && i < g->m; i++, y += g->n) {
        if (g->c_col == 1)
            blend_row(y, c + i * g->c_row, (size_t)g->n, g->alpha, g->beta);
        else
            blend_value(y, (size_t)g->n, g->alpha, g->beta * c[i * g->c_row]);
    }
}

int gemm_cpu_fwd(const struct op_call *c, struct err *err)
{
    const struct gemm_param *g = c->param;
    struct gemm_state *s = c->state;
    const float *bias = s->has_c ? c->in[2]->data : NULL;
    float *y = s->is_wide ? c->scratch : c->out[0]->data;
    void *args[DNN_ARGS] = { c->in[0]->data, c->in[1]->data, y, (void *)(uintptr_t)bias };
    int rc = dnn_run(s->y, args, op_at(c->scratch, s->spare_bytes), err);

    if (rc < 0)
        return rc;
    if (s->has_c ? !s->c_inside : g->alpha != 1.0f)
        finish(g, bias, y);
    if (s->is_wide)
        op_narrow(y, (size_t)(g->m * g->n), c->out[0]->data);
    return 0;
}

static void bwd_c(const struct gemm_param *g, const float *dy, float *dc, bool add)
{
    size_t m = (size_t)g->m, n = (size_t)g->n;

    if (g->c_row == 0 && g->c_col == 0)
        op_sum_cols(dy, 1, m * n, g->beta, dc, add);
    else if (g->c_row == 0)
        op_sum_rows(dy, m, n, g->beta, dc, add);
    else if (g->c_col == 0)
        op_sum_cols(dy, m, n, g->beta, dc, add);
    else
        op_store(dc, dy, m * n, g->beta, add);
}

/* Computes dc from a bfloat16 dy. room [m, n]: scratch, unless c is a row. */
static void bwd_c_half(const struct gemm_param *g, const uint16_t *dy, float *room, float *dc,
                       bool add)
{
    size_t m = (size_t)g->m, n = (size_t)g->n;

    if (is_row(g)) {
        op_sum_rows_half(dy, m, n, g->beta, dc, add);
        return;
    }
    op_widen(dy, m * n, room);
    bwd_c(g, room, dc, add);
}

int gemm_cpu_bwd(const struct op_call *c, struct err *err)
{
    const struct gemm_param *g = c->param;
    struct gemm_state *s = c->state;
    void *rest = op_at(c->scratch, s->spare_bytes);
    void *dy;
    int rc;

    if (c->dout[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    dy = c->dout[0]->data;
    if (c->din[0] != NULL) {
        void *da = op_din_at(c, 0, c->scratch);
        void *b = c->in[1]->data;
        void *args[DNN_ARGS] = { g->trans_a ? b : dy, g->trans_a ? dy : b, da };

        rc = dnn_run(s->da, args, rest, err);
        if (rc < 0)
            return rc;
        op_din_done(c, 0, da, g->alpha);
    }
    if (c->din[1] != NULL) {
        void *db = op_din_at(c, 1, c->scratch);
        void *a = c->in[0]->data;
        void *args[DNN_ARGS] = { g->trans_b ? dy : a, g->trans_b ? a : dy, db };

        rc = dnn_run(s->db, args, rest, err);
        if (rc < 0)
            return rc;
        op_din_done(c, 1, db, g->alpha);
    }
    if (s->has_c && c->din[2] != NULL && op_is_half(c->dout[0]))
        bwd_c_half(g, dy, c->scratch, c->din[2]->data, op_adds(c, 2));
    else if (s->has_c && c->din[2] != NULL)
        bwd_c(g, dy, c->din[2]->data, op_adds(c, 2));
    return 0;
}
