/* gather.c - Gather, GatherElements, GatherND: rows of the data at indices (rows.h).
 *   y_i = x[row_i].   dx[row_i] += dy_i, in the order of i; the gradient of rows that are not read
 *                     is 0.
 * Gather along axis 0 of a weight is an embedding; its dx may be packed (tensor/packed.h), and then
 * no loop visits rows that are not read. The padding row of an embedding is read, but has no
 * gradient and no mark (torch.nn.Embedding(padding_idx)). With a remote table (op_call.lookup) the
 * row numbers are slots that the caller determined. Data of any type. Negative indices: from
 * opset 11 on (rejected before); GatherND: batch_dims from 12 on. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/prefetch.h"
#include "op/op_priv.h"
#include "op/shape/rows.h"
#include "tensor/packed.h"

static int gather_infer(struct op_infer *f, struct err *err)
{
    struct rows *r = f->param;
    struct shape *y = &f->out[0].shape;
    const struct shape *x, *at;
    int64_t axis;
    uint32_t k;
    int rc = op_attr_i(f, "axis", 0, &axis, err);

    if (rc == 0)
        rc = rows_infer_axis(f, axis, err);
    if (rc == 0)
        rc = op_attr_i(f, ROWS_PADDING_ATTR, -1, &r->padding, err);
    if (rc < 0)
        return rc;
    x = &f->in[0]->shape;
    at = &f->in[1]->shape;
    if (r->padding >= 0 && (r->axis != 0 || r->padding >= x->dim[0]))
        return op_error(f, ERR_INPUT, err,
                        "padding_idx is %" PRId64 "; expected a row along axis 0, of %" PRId64
                        " rows",
                        r->padding, x->rank > 0 ? x->dim[0] : 0);
    if (x->rank - 1 + at->rank > TENSOR_MAX_RANK)
        return op_error(f, ERR_UNSUPPORTED, err,
                        "the output has %u dimensions; at most %d are supported",
                        x->rank - 1 + at->rank, TENSOR_MAX_RANK);
    y->rank = 0;
    for (k = 0; k < r->axis; k++)
        y->dim[y->rank++] = x->dim[k];
    for (k = 0; k < at->rank; k++)
        y->dim[y->rank++] = at->dim[k];
    for (k = (uint32_t)r->axis + 1; k < x->rank; k++)
        y->dim[y->rank++] = x->dim[k];
    f->out[0].dtype = f->in[0]->dtype;
    if (shape_elements(y) == 0) /* even if the product of the other dimensions overflows */
        r->n = r->rounds = 0;
    return op_check_size(f, err);
}

static int elements_infer(struct op_infer *f, struct err *err)
{
    int64_t axis;
    int rc = op_attr_i(f, "axis", 0, &axis, err);

    if (rc == 0)
        rc = rows_infer_elements(f, axis, err);
    if (rc < 0)
        return rc;
    f->out[0].dtype = f->in[0]->dtype;
    f->out[0].shape = f->in[1]->shape;
    return 0;
}

static int nd_infer(struct op_infer *f, struct err *err)
{
    const struct rows *r = f->param;
    struct shape *y = &f->out[0].shape;
    const struct shape *x, *at;
    int64_t batch;
    uint32_t k;
    int rc = op_attr_i(f, "batch_dims", 0, &batch, err);

    if (rc == 0)
        rc = rows_infer_nd(f, batch, err);
    if (rc < 0)
        return rc;
    x = &f->in[0]->shape;
    at = &f->in[1]->shape;
    if (at->rank - 1 + x->rank - r->batch - r->depth > TENSOR_MAX_RANK)
        return op_error(f, ERR_UNSUPPORTED, err, "the output has more than %d dimensions",
                        TENSOR_MAX_RANK);
    *y = *at;
    y->rank--;
    for (k = r->batch + r->depth; k < x->rank; k++)
        y->dim[y->rank++] = x->dim[k];
    f->out[0].dtype = f->in[0]->dtype;
    return op_check_size(f, err);
}

static int plan(struct op_plan *p, struct err *err)
{
    (void)err;
    p->save_bytes = rows_bytes(p->param);
    return 0;
}

#define TAKE(name_, type_)                                                                         \
    static void name_(const int64_t *row, size_t n, const void *vx, void *vy)                      \
    {                                                                                              \
        const type_ *x = vx;                                                                       \
        type_ *y = vy;                                                                             \
        size_t i;                                                                                  \
                                                                                                   \
        for (i = 0; i < n; i++)                                                                    \
            y[i] = x[row[i]];                                                                      \
    }
TAKE(take_8, uint8_t)
TAKE(take_16, uint16_t)
TAKE(take_32, uint32_t)
TAKE(take_64, uint64_t)

struct selection { /* the rows that a call reads */
    const int64_t *row;  /* [n] */
    const uint8_t *skip; /* [n] 1: the padding row. NULL: compare with `padding` */
    int64_t padding;     /* -1: no row */
};

/* A slot does not identify the padding row, since the row has another slot in each lane. */
static struct selection selection_of(const struct op_call *c)
{
    const struct rows *r = c->param;

    if (c->lookup != NULL)
        return (struct selection){ c->lookup->slots, c->lookup->is_padding, -1 };
    return (struct selection){ c->save, NULL, r->padding };
}

static inline bool is_padding(const struct selection *s, size_t i)
{
    return s->skip != NULL ? s->skip[i] != 0 : s->row[i] == s->padding;
}

static int fwd(const struct op_call *c, const char *op, struct err *err)
{
    const struct rows *r = c->param;
    const struct selection s = selection_of(c);
    size_t size = tensor_dtype_bytes(c->in[0]->dtype), bytes = r->width * size, o, i;
    const char *x = c->lookup != NULL ? (const char *)c->lookup->values : c->in[0]->data;
    const int64_t *row = s.row;
    char *y = c->out[0]->data;
    int rc = c->lookup != NULL ? 0 : rows_list(c, op, c->save, err);

    if (rc < 0)
        return rc;
    for (i = 0; c->rows != NULL && c->rows->marks != NULL && i < r->n; i++)
        if (!is_padding(&s, i))
            packed_mark(c->rows, (size_t)row[i]);
    for (o = 0; o < r->rounds; o++, x += r->stride * bytes, y += r->n * bytes) {
        if (r->width == 1)
            (size == 1   ? take_8
             : size == 2 ? take_16
             : size == 4 ? take_32
                         : take_64)(row, r->n, x, y);
        else
            for (i = 0; i < r->n; i++) {
                if (i + PREFETCH_AHEAD < r->n)
                    prefetch_row(x + (size_t)row[i + PREFETCH_AHEAD] * bytes, bytes);
                memcpy(y + i * bytes, x + (size_t)row[i] * bytes, bytes);
            }
    }
    return 0;
}

/* The packed rows start at zero. */
CLONES static void add_packed(const struct selection *s, size_t n, size_t width, const float *dy,
                              const struct packed_rows *to)
{
    const uint64_t *marks = to->marks;
    const uint32_t *before = to->before;
    size_t i, k;

    for (i = 0; i < n; i++) {
        float *restrict dx;
        const float *restrict x = dy + i * width;

        if (is_padding(s, i))
            continue;
        dx = to->values + packed_place(marks, before, (size_t)s->row[i]) * width;
        for (k = 0; k < width; k++)
            dx[k] += x[k];
    }
}

static int bwd(const struct op_call *c, struct err *err)
{
    const struct rows *r = c->param;
    const struct selection s = selection_of(c);
    const int64_t *row = s.row;
    bool packed = c->rows != NULL && c->rows->marks != NULL;
    const float *dy;
    float *dx;
    size_t o, i;

    (void)err;
    if (!packed)
        op_bwd_zero(c);
    if (c->dout[0] == NULL || c->din[0] == NULL)
        return 0;
    dy = c->dout[0]->data;
    dx = c->din[0]->data;
    if (packed)
        add_packed(&s, r->n, r->width, dy, c->rows); /* axis 0: one round */
    for (o = 0; o < r->rounds && !packed; o++, dx += r->stride * r->width, dy += r->n * r->width) {
        if (r->width == 1)
            for (i = 0; i < r->n; i++)
                dx[row[i]] += row[i] == r->padding ? 0.0f : dy[i];
        else
            for (i = 0; i < r->n; i++)
                if (row[i] != r->padding)
                    op_store(dx + (size_t)row[i] * r->width, dy + i * r->width, r->width, 1.0f,
                             true);
    }
    return 0;
}

static int gather_fwd(const struct op_call *c, struct err *err)
{
    return fwd(c, "Gather", err);
}

static int gather_refuse(const struct op_call *c, size_t at, int64_t value, struct err *err)
{
    return rows_refuse(c, "Gather", at, value, err);
}

static int elements_fwd(const struct op_call *c, struct err *err)
{
    return fwd(c, "GatherElements", err);
}

static int elements_refuse(const struct op_call *c, size_t at, int64_t value, struct err *err)
{
    return rows_refuse(c, "GatherElements", at, value, err);
}

static int nd_fwd(const struct op_call *c, struct err *err)
{
    return fwd(c, "GatherND", err);
}

static int nd_refuse(const struct op_call *c, size_t at, int64_t value, struct err *err)
{
    return rows_refuse(c, "GatherND", at, value, err);
}

static const char *const axis_attr[] = { "axis", NULL };
static const char *const batch_attr[] = { "batch_dims", NULL };

#define FIELDS                                                                                     \
    .n_in = { 2, 2 }, .n_out = { 1, 1 }, .param_bytes = sizeof(struct rows), .diff = OP_IN(0),     \
    .layout = OP_LAYOUT_PLAIN

const struct op_def op_gather = { FIELDS, .name = "Gather", .since = 1, .attrs = axis_attr,
                                  .infer = gather_infer, .refuse = gather_refuse,
                                  .cpu = { plan, gather_fwd, bwd, NULL } };
const struct op_def op_gather_elements = { FIELDS, .name = "GatherElements", .since = 11,
                                           .attrs = axis_attr, .infer = elements_infer,
                                           .refuse = elements_refuse,
                                           .cpu = { plan, elements_fwd, bwd, NULL } };
const struct op_def op_gather_nd = { FIELDS, .name = "GatherND", .since = 11, .attrs = batch_attr,
                                     .infer = nd_infer, .refuse = nd_refuse,
                                     .cpu = { plan, nd_fwd, bwd, NULL } };
