/* of_shape.c - Shape: the dimensions as int64 (opset 15: only from start to end). Size: the number
 * of elements. Any type; the planner folds them, because they depend only on shapes. */
#include <string.h>

#include "base/err.h"
#include "op/op_priv.h"
#include "op/shape/generate.h"

static int64_t clamp(int64_t v, int64_t rank)
{
    v = v < 0 ? v + rank : v;
    return v < 0 ? 0 : v > rank ? rank : v;
}

static int shape_infer(struct op_infer *f, struct err *err)
{
    struct span *s = f->param;
    int64_t end, rank;
    int rc = op_attr_i(f, "start", 0, &s->start, err);

    if (rc == 0)
        rc = op_attr_i(f, "end", INT64_MAX, &end, err);
    if (rc < 0)
        return rc;
    if (f->in[0] == NULL)
        return op_error(f, ERR_INPUT, err, "input 0 is missing");
    rank = f->in[0]->shape.rank;
    s->start = clamp(s->start, rank);
    end = clamp(end, rank);
    s->n = end > s->start ? end - s->start : 0;
    f->out[0].dtype = TENSOR_I64;
    f->out[0].shape = shape_of(1, s->n);
    return 0;
}

static int shape_fwd(const struct op_call *c, struct err *err)
{
    const struct span *s = c->param;

    (void)err;
    memcpy(c->out[0]->data, c->in[0]->shape.dim + s->start, (size_t)s->n * sizeof(int64_t));
    return 0;
}

static int size_infer(struct op_infer *f, struct err *err)
{
    if (f->in[0] == NULL)
        return op_error(f, ERR_INPUT, err, "input 0 is missing");
    f->out[0].dtype = TENSOR_I64;
    f->out[0].shape = shape_of(0);
    return 0;
}

static int size_fwd(const struct op_call *c, struct err *err)
{
    (void)err;
    *(int64_t *)c->out[0]->data = tensor_elements(c->in[0]);
    return 0;
}

static const char *const attrs[] = { "start", "end", NULL };

#define FIELDS                                                                                     \
    .n_in = { 1, 1 }, .n_out = { 1, 1 }, .of_shape = true, .layout = OP_LAYOUT_ANY

const struct op_def op_shape_15 = { FIELDS, .name = "Shape", .since = 15, .attrs = attrs,
                                    .param_bytes = sizeof(struct span), .infer = shape_infer,
                                    .cpu = { .fwd = shape_fwd } };
const struct op_def op_shape_1 = { FIELDS, .name = "Shape", .since = 1, .until = 14,
                                   .param_bytes = sizeof(struct span), .infer = shape_infer,
                                   .cpu = { .fwd = shape_fwd } };
const struct op_def op_size = { FIELDS, .name = "Size", .since = 1, .infer = size_infer,
                                .cpu = { .fwd = size_fwd } };
