#include "op/shape/rows.h"

#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "op/op_priv.h"

/* ---- infer ---- */

static int check_inputs(const struct op_infer *f, struct err *err)
{
    const struct tensor *data = f->in[0], *indices = f->n_in > 1 ? f->in[1] : NULL;

    if (data == NULL || indices == NULL)
        return op_error(f, ERR_INPUT, err, "input %d is missing", data == NULL ? 0 : 1);
    if (indices->dtype != TENSOR_I64 && indices->dtype != TENSOR_I32)
        return op_error(f, ERR_INPUT, err, "the indices are %s; expected int64 or int32",
                        tensor_dtype_name(indices->dtype));
    return 0;
}

static size_t product(const struct shape *s, uint32_t from, uint32_t to)
{
    size_t n = 1;

    for (; from < to; from++)
        n *= (size_t)s->dim[from];
    return n;
}

int rows_infer_axis(struct op_infer *f, int64_t axis, struct err *err)
{
    struct rows *r = f->param;
    const struct shape *x, *at;
    int rc = check_inputs(f, err);

    if (rc == 0)
        rc = op_axis(f, &axis, f->in[0]->shape.rank, err);
    if (rc < 0)
        return rc;
    x = &f->in[0]->shape;
    at = &f->in[1]->shape;
    r->kind = ROWS_AXIS;
    r->padding = -1;
    r->axis = axis;
    r->rounds = product(x, 0, (uint32_t)axis);
    r->stride = (size_t)x->dim[axis];
    r->width = product(x, (uint32_t)axis + 1, x->rank);
    r->n = (size_t)shape_elements(at);
    return 0;
}

int rows_infer_elements(struct op_infer *f, int64_t axis, struct err *err)
{
    struct rows *r = f->param;
    const struct shape *x, *at;
    char a[192], b[192];
    uint32_t k;
    int rc = check_inputs(f, err);

    if (rc == 0)
        rc = op_axis(f, &axis, f->in[0]->shape.rank, err);
    if (rc < 0)
        return rc;
    x = &f->in[0]->shape;
    at = &f->in[1]->shape;
    for (k = 0; k < x->rank && k < at->rank; k++)
        if (k != axis && at->dim[k] > x->dim[k])
            break;
    if (x->rank != at->rank || k < x->rank)
        return op_error(f, ERR_INPUT, err, "indices %s exceed data %s along an axis other than %"
                        PRId64, shape_print(at, a, sizeof(a)), shape_print(x, b, sizeof(b)), axis);
    r->kind = ROWS_ELEMENTS;
    r->padding = -1;
    r->axis = axis;
    r->width = r->rounds = 1;
    r->n = (size_t)shape_elements(at);
    return 0;
}

int rows_infer_nd(struct op_infer *f, int64_t batch, struct err *err)
{
    struct rows *r = f->param;
    const struct shape *x, *at;
    char a[192], b[192];
    uint32_t k;
    int rc = check_inputs(f, err);

    if (rc < 0)
        return rc;
    x = &f->in[0]->shape;
    at = &f->in[1]->shape;
    if (batch < 0 || batch >= at->rank || batch >= x->rank)
        return op_error(f, ERR_INPUT, err, "batch_dims is %" PRId64 " for data %s and indices %s",
                        batch, shape_print(x, a, sizeof(a)), shape_print(at, b, sizeof(b)));
    for (k = 0; k < batch; k++)
        if (x->dim[k] != at->dim[k])
            return op_error(f, ERR_INPUT, err, "data %s and indices %s differ in batch axis %"
                            PRIu32, shape_print(x, a, sizeof(a)), shape_print(at, b, sizeof(b)), k);
    if (at->dim[at->rank - 1] < 1 || at->dim[at->rank - 1] > x->rank - batch)
        return op_error(f, ERR_INPUT, err, "the last axis of the indices %s addresses %" PRId64
                        " axes of data %s; expected 1 to %" PRId64,
                        shape_print(at, a, sizeof(a)), at->dim[at->rank - 1],
                        shape_print(x, b, sizeof(b)), x->rank - batch);
    r->kind = ROWS_ND;
    r->padding = -1;
    r->batch = (uint32_t)batch;
    r->depth = (uint32_t)at->dim[at->rank - 1];
    r->rounds = 1;
    r->per = product(at, r->batch, at->rank - 1);
    r->n = product(x, 0, r->batch) * r->per;
    r->width = product(x, r->batch + r->depth, x->rank);
    return 0;
}

/* ---- the list ---- */

static int64_t index_at(const struct tensor *t, size_t i)
{
    return t->dtype == TENSOR_I64 ? ((const int64_t *)t->data)[i] : ((const int32_t *)t->data)[i];
}

int rows_refuse(const struct op_call *c, const char *op, size_t i, int64_t v, struct err *err)
{
    const struct rows *r = c->param;
    uint32_t axis = r->kind == ROWS_ND ? r->batch + (uint32_t)(i % r->depth) : (uint32_t)r->axis;

    if (c->run != NULL && c->run->refused != NULL)
        *c->run->refused = (struct op_invalid){
            .found = 1, .lane = c->run->lane, .call = c->number, .at = i, .value = v
        };
    return err_set(err, ERR_INPUT,
                   "%s: index %zu is %" PRId64 "; the axis has %" PRId64 " elements", op, i, v,
                   c->in[0]->shape.dim[axis]);
}

/* Reads index i along an axis of size `dim`: *out in 0 .. dim - 1; a negative index counts from the
 * end. */
static int normalise_index(const struct op_call *c, const char *op, size_t i, int64_t dim,
                           int64_t *out, struct err *err)
{
    int64_t v = index_at(c->in[1], i);

    if (v < -dim || v >= dim)
        return rows_refuse(c, op, i, v, err);
    *out = v < 0 ? v + dim : v;
    return 0;
}

static int list_axis(const struct op_call *c, const char *op, int64_t *list, struct err *err)
{
    const struct rows *r = c->param;
    int64_t dim = c->in[0]->shape.dim[r->axis];
    size_t i;

    for (i = 0; i < r->n; i++) {
        int rc = normalise_index(c, op, i, dim, &list[i], err);

        if (rc < 0)
            return rc;
    }
    return 0;
}

static int list_elements(const struct op_call *c, const char *op, int64_t *list, struct err *err)
{
    const struct rows *r = c->param;
    const struct shape *x = &c->in[0]->shape, *at = &c->in[1]->shape;
    size_t i;

    for (i = 0; i < r->n; i++) {
        int64_t row = 0, step = 1, here;
        size_t rest = i;
        uint32_t k;

        for (k = x->rank; k-- > 0; rest /= (size_t)at->dim[k], step *= x->dim[k]) {
            here = (int64_t)(rest % (size_t)at->dim[k]);
            if (k == r->axis) {
                int rc = normalise_index(c, op, i, x->dim[k], &here, err);

                if (rc < 0)
                    return rc;
            }
            row += here * step;
        }
        list[i] = row;
    }
    return 0;
}

static int list_nd(const struct op_call *c, const char *op, int64_t *list, struct err *err)
{
    const struct rows *r = c->param;
    const struct shape *x = &c->in[0]->shape;
    size_t i;
    uint32_t k;

    for (i = 0; i < r->n; i++) {
        int64_t row = (int64_t)(i / r->per);

        for (k = 0; k < r->depth; k++) {
            int64_t dim = x->dim[r->batch + k], here;
            int rc = normalise_index(c, op, i * r->depth + k, dim, &here, err);

            if (rc < 0)
                return rc;
            row = row * dim + here;
        }
        list[i] = row;
    }
    return 0;
}

int rows_list(const struct op_call *c, const char *op, int64_t *list, struct err *err)
{
    const struct rows *r = c->param;

    if (r->kind == ROWS_AXIS)
        return list_axis(c, op, list, err);
    return r->kind == ROWS_ELEMENTS ? list_elements(c, op, list, err) : list_nd(c, op, list, err);
}

void rows_list_ids(const struct op_call *c, int64_t *list)
{
    const struct rows *r = c->param;

    for (size_t i = 0; i < r->n; i++)
        list[i] = index_at(c->in[1], i);
}
