/* trilu.c - Trilu (opset 14): of each matrix of the last two axes, keeps the elements on and above
 * diagonal k (upper=1) or on and below it (upper=0); the others become 0. dx is dy, masked the same
 * way. Any type. k: input 1, a scalar, default 0. */
#include <string.h>

#include "base/err.h"
#include "op/op_priv.h"
#include "op/shape/trilu.h"

static int trilu_infer(struct op_infer *f, struct err *err)
{
    struct trilu *p = f->param;
    const struct tensor *x = f->in[0];
    char text[192];
    int rc = op_attr_i(f, "upper", 1, &p->upper, err);

    if (rc == 0 && f->n_in > 1 && f->in[1] != NULL) {
        rc = op_check_input(f, 1, TENSOR_I64, -1, err);
        if (rc == 0 && tensor_elements(f->in[1]) != 1)
            rc = op_error(f, ERR_INPUT, err, "k is not one number");
    }
    if (rc < 0)
        return rc;
    if (x == NULL)
        return op_error(f, ERR_INPUT, err, "input 0 is missing");
    if (x->shape.rank < 2)
        return op_error(f, ERR_INPUT, err, "input 0 has shape %s; expected two dimensions or more",
                        shape_print(&x->shape, text, sizeof(text)));
    f->out[0].dtype = x->dtype;
    f->out[0].shape = x->shape;
    return 0;
}

/* Computes the columns of row i that are kept: [*from, *to). */
static void kept(const struct op_call *c, int64_t i, int64_t cols, int64_t *from, int64_t *to)
{
    const struct trilu *p = c->param;
    int64_t k = c->n_in > 1 && c->in[1] != NULL ? *(const int64_t *)c->in[1]->data : 0, at;

    k = k < -i - 1 ? -i - 1 : k > cols ? cols : k; /* larger values have the same result */
    at = i + k + (p->upper == 0);                  /* the diagonal belongs to both sides */
    at = at < 0 ? 0 : at > cols ? cols : at;
    *from = p->upper != 0 ? at : 0;
    *to = p->upper != 0 ? cols : at;
}

static int trilu_fwd(const struct op_call *c, struct err *err)
{
    const struct shape *s = &c->in[0]->shape;
    int64_t rows = s->dim[s->rank - 2], cols = s->dim[s->rank - 1], r, from, to;
    int64_t all = tensor_elements(c->in[0]) == 0 ? 0 : tensor_elements(c->in[0]) / cols;
    size_t size = tensor_dtype_bytes(c->in[0]->dtype), width = (size_t)cols * size;
    const char *x = c->in[0]->data;
    char *y = c->out[0]->data;

    (void)err;
    for (r = 0; r < all; r++, x += width, y += width) {
        kept(c, r % rows, cols, &from, &to);
        memset(y, 0, (size_t)from * size);
        memmove(y + (size_t)from * size, x + (size_t)from * size, (size_t)(to - from) * size);
        memset(y + (size_t)to * size, 0, (size_t)(cols - to) * size);
    }
    return 0;
}

static int trilu_bwd(const struct op_call *c, struct err *err)
{
    const struct shape *s = &c->in[0]->shape;
    int64_t rows = s->dim[s->rank - 2], cols = s->dim[s->rank - 1], r, from, to;
    int64_t all = tensor_elements(c->in[0]) == 0 ? 0 : tensor_elements(c->in[0]) / cols;
    const float *dy;
    float *dx;

    (void)err;
    op_bwd_zero(c);
    if (c->dout[0] == NULL || c->din[0] == NULL)
        return 0;
    dy = c->dout[0]->data;
    dx = c->din[0]->data;
    for (r = 0; r < all; r++, dy += cols, dx += cols) {
        kept(c, r % rows, cols, &from, &to);
        op_store(dx + from, dy + from, (size_t)(to - from), 1.0f, true);
    }
    return 0;
}

static const char *const attrs[] = { "upper", NULL };

const struct op_def op_trilu = {
    .name = "Trilu",
    .since = 14,
    .n_in = { 1, 2 },
    .n_out = { 1, 1 },
    .attrs = attrs,
    .param_bytes = sizeof(struct trilu),
    .infer = trilu_infer,
    .diff = OP_IN(0),
    .bwd_reads = OP_IN(1),
    .in_place = true,
    .layout = OP_LAYOUT_PLAIN,
    .cpu = { .fwd = trilu_fwd, .bwd = trilu_bwd },
};
