/* conv_cpu.c - Conv by three oneDNN kernels. They take x and y channels-last, and convert the
 * weights inside the call if they need a blocked layout.
 *
 * If the kernel is one pixel, the gradients in bfloat16 are matrix products: with x and dy as rows
 * of channels, where the rows of x are the pixels that the stride visits, dx = dy w and dw = dy^T
 * x. oneDNN's convolutions need two to four times as long for the same result. */
#include <stdlib.h>

#include "base/check.h"
#include "base/err.h"
#include "op/conv/conv_priv.h"
#include "op/dnn.h"
#include "op/half.h"
#include "op/op_priv.h"
#include "op/shape/copy.h"

struct conv_state {
    struct dnn *y, *dx, *dw; /* dw: with the gradient of the bias, unless it is a product */
    bool has_bias;
    bool by_product;        /* dx and dw are matrix products */
    bool is_strided;        /* then the rows of x are gathered in scratch, after the spare area */
    struct copy gather, scatter; /* gather: x to its rows; scatter: rows back to x */
    size_t gathered_bytes;
    /* The beginning of scratch: a gradient that is accumulated, or that is not requested but
     * computed together with another: [dx] or [dw][dbias]. */
    size_t spare_dw, spare_bytes;
};

void conv_cpu_free(void *state)
{
    struct conv_state *s = state;

    if (s == NULL)
        return;
    dnn_free(s->y);
    dnn_free(s->dx);
    dnn_free(s->dw);
    free(s);
}

static bool is_pixel(const struct op_window *w)
{
    uint32_t k;

    for (k = 0; k < w->spatial; k++)
        if (w->kernel[k] != 1 || w->pad_lo[k] != 0 || w->pad_hi[k] != 0)
            return false;
    return true;
}

/* Prepares the copies of the rows of x that are multiplied, sample by sample, in the order of y. */
static void plan_rows(struct conv_state *s, const struct op_window *w, const struct tensor *x,
                      const struct tensor *y)
{
    ptrdiff_t from[TENSOR_MAX_RANK], to[TENSOR_MAX_RANK];
    struct tensor picked = *x;
    uint32_t k;

    for (k = 0; k < w->spatial; k++)
        picked.shape.dim[2 + k] = y->shape.dim[2 + k];
    op_strides(x, from);
    op_strides(&picked, to);
    for (k = 0; k < picked.shape.rank; k++)
        copy_add_axis(&s->gather, picked.shape.dim[k], from[k] * (k < 2 ? 1 : w->stride[k - 2]),
                      to[k]);
    copy_finish(&s->gather);
    s->scatter = copy_back(&s->gather);
    s->is_strided = !shape_equal(&picked.shape, &x->shape);
    if (s->is_strided)
        s->gathered_bytes = op_round(tensor_bytes(&picked));
}

static int plan_gradients(const struct op_plan *p, const struct dnn_conv *spec,
                          struct conv_state *s, struct err *err)
{
    const struct conv_param *cp = p->param;
    int64_t rows = spec->o > 0 ? tensor_elements(&p->out[0]) / spec->o : 0;
    struct dnn_matmul dx = { .batch = 1, .m = rows, .n = spec->c, .k = spec->o,
                             .a = TENSOR_BF16, .b = TENSOR_F32, .y = TENSOR_BF16 };
    struct dnn_matmul dw = { .batch = 1, .m = spec->o, .n = spec->c, .k = rows, .trans_a = true,
                             .a = TENSOR_BF16, .b = TENSOR_BF16, .y = TENSOR_F32 };
    int rc = 0;

    s->by_product = op_is_half(p->in[0]) && cp->group == 1 && is_pixel(&cp->window);
    if (s->by_product)
        plan_rows(s, &cp->window, p->in[0], &p->out[0]);
    if (op_wants(p, 0))
        rc = s->by_product ? dnn_matmul(&dx, &s->dx, err) : dnn_conv_bwd_x(spec, &s->dx, err);
    if (rc == 0 && (op_wants(p, 1) || op_wants(p, 2)))
        rc = s->by_product ? dnn_matmul(&dw, &s->dw, err) : dnn_conv_bwd_w(spec, &s->dw, err);
    return rc;
}

int conv_cpu_plan(struct op_plan *p, struct err *err)
{
    const struct conv_param *cp = p->param;
    const struct tensor *x = p->in[0], *w = p->in[1];
    struct conv_state *s = calloc(1, sizeof(*s));
    struct dnn_conv spec = { .window = &cp->window, .layout = x->layout, .images = x->dtype,
                             .n = x->shape.dim[0], .c = x->shape.dim[1], .o = w->shape.dim[0],
                             .group = cp->group };
    int rc;

    CHECK(p->out[0].layout == x->layout && p->out[0].dtype == x->dtype);
    if (s == NULL)
        return err_set(err, ERR_NOMEM, "Conv '%s': out of memory", p->node);
    s->has_bias = spec.bias = p->n_in > 2 && p->in[2] != NULL;
    rc = dnn_conv_fwd(&spec, &s->y, err);
    if (rc == 0)
        rc = plan_gradients(p, &spec, s, err);
    if (rc < 0) {
        conv_cpu_free(s);
        return err_wrap(err, rc, "Conv '%s'", p->node);
    }
    if (s->dw != NULL) {
        s->spare_dw = op_round(tensor_bytes(w));
        s->spare_bytes = s->spare_dw + op_round((size_t)spec.o * sizeof(float));
    }
    if (s->dx != NULL)
        s->spare_bytes = op_max(s->spare_bytes, op_round(tensor_bytes(x)));
    p->scratch_bytes =
        s->spare_bytes + s->gathered_bytes +
        op_max(dnn_scratch_bytes(s->y), op_max(dnn_scratch_bytes(s->dx), dnn_scratch_bytes(s->dw)));
    p->state = s;
    return 0;
}

int conv_cpu_fwd(const struct op_call *c, struct err *err)
{
    struct conv_state *s = c->state;
    void *args[DNN_ARGS] = { c->in[0]->data, c->in[1]->data, c->out[0]->data,
                             s->has_bias ? c->in[2]->data : NULL };

    return dnn_run(s->y, args, op_at(c->scratch, s->spare_bytes), err);
}

/* Computes dw and db. */
static int bwd_w(const struct op_call *c, struct err *err)
{
    struct conv_state *s = c->state;
    const struct tensor *x = c->in[0], *dy = c->dout[0];
    void *picked = op_at(c->scratch, s->spare_bytes), *rest = op_at(picked, s->gathered_bytes);
    void *dw = op_din_at(c, 1, c->scratch), *rows = s->is_strided ? picked : x->data;
    void *db = op_din_at(c, 2, op_at(c->scratch, s->spare_dw));
    void *product[DNN_ARGS] = { dy->data, rows, dw }, *args[DNN_ARGS] = { x->data, dy->data, dw, db };
    size_t o = (size_t)dy->shape.dim[1];
    int rc;

    if (s->by_product && s->is_strided)
        copy_run(&s->gather, x->data, picked, sizeof(uint16_t));
    rc = dnn_run(s->dw, s->by_product ? product : args, rest, err);
    if (rc < 0)
        return rc;
    if (s->by_product && s->has_bias && c->din[2] != NULL)
        op_sum_rows_half(dy->data, (size_t)tensor_elements(dy) / o, o, 1.0f, db, false);
    op_din_done(c, 1, dw, 1.0f);
    op_din_done(c, 2, db, 1.0f);
    return 0;
}

static int bwd_x(const struct op_call *c, struct err *err)
{
    struct conv_state *s = c->state;
    void *picked = op_at(c->scratch, s->spare_bytes), *rest = op_at(picked, s->gathered_bytes);
    void *dx = op_din_at(c, 0, c->scratch);
    void *args[DNN_ARGS] = { c->dout[0]->data, c->in[1]->data, s->is_strided ? picked : dx };
    int rc = dnn_run(s->dx, args, rest, err);

    if (rc < 0)
        return rc;
    if (s->is_strided) {
        memset(dx, 0, tensor_bytes(c->din[0]));
        copy_run(&s->scatter, picked, dx, sizeof(uint16_t));
    }
    op_din_done(c, 0, dx, 1.0f);
    return 0;
}

int conv_cpu_bwd(const struct op_call *c, struct err *err)
{
    struct conv_state *s = c->state;
    int rc = 0;

    if (c->dout[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    if (c->din[1] != NULL || (s->has_bias && c->din[2] != NULL))
        rc = bwd_w(c, err);
    return rc == 0 && c->din[0] != NULL ? bwd_x(c, err) : rc;
}
