/* squeeze.c - Squeeze: removes axes of size 1, the given ones or all. Unsqueeze: inserts axes of
 * size 1 at the given positions of the output. Any type; the same bytes. The axes are an attribute
 * up to opset 12, input 1 from 13 on, a constant. */
#include <inttypes.h>

#include "base/err.h"
#include "op/op_priv.h"
#include "op/shape/view.h"

static int squeeze_infer(struct op_infer *f, struct err *err)
{
    const struct tensor *x = f->in[0];
    struct shape *y = &f->out[0].shape;
    char text[192];
    uint32_t set, k;
    bool given;
    int rc;

    if (x == NULL)
        return op_error(f, ERR_INPUT, err, "input 0 is missing");
    rc = op_axes(f, 1, "axes", x->shape.rank, &set, &given, err);
    if (rc < 0)
        return rc;
    f->out[0].dtype = x->dtype;
    y->rank = 0;
    for (k = 0; k < x->shape.rank; k++) {
        bool goes = given ? (set & (1u << k)) != 0 : x->shape.dim[k] == 1;

        if (goes && x->shape.dim[k] != 1)
            return op_error(f, ERR_INPUT, err, "axis %" PRIu32 " of %s is not of size 1", k,
                            shape_print(&x->shape, text, sizeof(text)));
        if (!goes)
            y->dim[y->rank++] = x->shape.dim[k];
    }
    return 0;
}

static int unsqueeze_infer(struct op_infer *f, struct err *err)
{
    const struct tensor *x = f->in[0];
    struct shape *y = &f->out[0].shape;
    const int64_t *axes = NULL;
    uint32_t set, from = 0, k;
    size_t n = 0;
    bool given;
    int rc = op_const_ints(f, 1, &axes, &n, err);

    if (rc == 0 && axes == NULL)
        rc = op_attr_ints(f, "axes", &axes, &n, err);
    if (rc < 0)
        return rc;
    if (x == NULL || axes == NULL)
        return op_error(f, ERR_INPUT, err, "%s missing", x == NULL ? "input 0 is" : "the axes are");
    if (n > TENSOR_MAX_RANK - x->shape.rank)
        return op_error(f, ERR_UNSUPPORTED, err, "%" PRIu32 " and %zu more dimensions; at most %d "
                        "work", x->shape.rank, n, TENSOR_MAX_RANK);
    y->rank = x->shape.rank + (uint32_t)n;
    rc = op_axes(f, 1, "axes", y->rank, &set, &given, err);
    if (rc < 0)
        return rc;
    f->out[0].dtype = x->dtype;
    for (k = 0; k < y->rank; k++)
        y->dim[k] = (set & (1u << k)) != 0 ? 1 : x->shape.dim[from++];
    return 0;
}

static const char *const axes_attr[] = { "axes", NULL };

#define FIELDS                                                                                     \
    .n_out = { 1, 1 }, .diff = OP_IN(0), .view = true, .layout = OP_LAYOUT_PLAIN,                  \
    .half = OP_HALF_SAME, .half_of = OP_IN(0) | OP_OUT(0),                                         \
    .cpu = { .fwd = view_fwd, .bwd = view_bwd }

const struct op_def op_squeeze_13 = { FIELDS, .name = "Squeeze", .since = 13, .n_in = { 1, 2 },
                                      .infer = squeeze_infer };
const struct op_def op_squeeze_1 = { FIELDS, .name = "Squeeze", .since = 1, .until = 12,
                                     .n_in = { 1, 1 }, .attrs = axes_attr,
                                     .infer = squeeze_infer };
const struct op_def op_unsqueeze_13 = { FIELDS, .name = "Unsqueeze", .since = 13, .n_in = { 2, 2 },
                                        .infer = unsqueeze_infer };
const struct op_def op_unsqueeze_1 = { FIELDS, .name = "Unsqueeze", .since = 1, .until = 12,
                                       .n_in = { 1, 1 }, .attrs = axes_attr,
                                       .infer = unsqueeze_infer };
